/* kernels/reference/reference.h - the parts of the reference backend, for its own files only.
 *
 * One thread, plain C, f32 activations, sums in f32 over 16 lanes or in double. Its promise is
 * accuracy against the dequantised weights. A row's result depends on that row only here too, for
 * no sum follows the shape of the step; but its bits may change with any release. */
#ifndef CB_KERNELS_REFERENCE_H
#define CB_KERNELS_REFERENCE_H

#include "kernels/kernels.h"

enum {
    REFERENCE_ALIGN = 64,
    REFERENCE_TILE = 64, /* rows of a weight that are dequantised at a time */
};

struct backend {
    uint64_t weight_bytes;
};

/* The source's own blocks, part after part. */
struct weight {
    struct backend *backend;
    enum weight_use use;
    uint32_t n_cols, n_rows, n_parts;
    struct {
        enum dtype dtype;
        uint32_t n_rows;
        size_t row_bytes;
        const uint8_t *data; /* in `bytes` */
    } parts[3];
    uint8_t *bytes;
    size_t n_bytes;
};

/* Page p: for each layer K [page_size][n_kv_heads][head_dim], then V likewise; f32, bf16 as uint16_t,
 * or of u8 each head's scale and zero, then its codes. */
struct kv {
    struct kv_shape shape;
    size_t head_bytes;  /* one head's K of one token                */
    size_t plane_bytes; /* K of one layer of one page: as many as V */
    size_t page_bytes, map_bytes;
    uint8_t *pages; /* reserved address space */
};

struct reference_stream {
    struct stream stream;
    struct stream_shape shape;
    float *normed; /* [max(max_tokens, max_outputs)][max_cols]        rows after a norm */
    float *rows;  /* [REFERENCE_TILE][max_cols]                      dequantised rows of a weight */
    float *tile;  /* [max(max_tokens, max_outputs)][REFERENCE_TILE]  products with these rows     */
    float *tile2; /* the same again: gate_up's other half                                         */
    float
        *keys; /* [max_tokens][2 * max_cols]                      K and V before they are stored */
    double *scores; /* [max_context] */
    double *sums; /* [head_dim]                                                                  */
    float *query; /* [head_dim]                                                                  */
    float *head_kv; /* [head_dim]                                     one K or V vector */
    void *sampler;  /* its scratch */
};

static inline float *tensor_row(const struct tensor *t, uint32_t row)
{
    return (float *)((uint8_t *)t->data + (size_t)row * t->stride_bytes);
}

static inline size_t reference_round_up(size_t n, size_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* NULL if there is no memory; free() gives it back. Zeroed. */
void *reference_alloc(size_t bytes);

/* ---- vector.c -------------------------------------------------------------------------------- */

/* out[i] = dot(rows + i * n, x), i < 4 */
void reference_dot4(float out[4], const float *rows, const float *x, uint32_t n);
/* y = x / rms(x) * w; y may be x. */
void reference_rmsnorm_row(float *y, const float *x, const float *w, uint32_t n, float eps);
/* Turns one head by the angles of a position. */
void reference_rope_head(float *head, const struct rope *rope, int32_t position);

/* ---- weight.c -------------------------------------------------------------------------------- */

int reference_weight_new(struct backend *b, struct weight **weightp, const struct weight_spec *spec,
                         const char **why);
void reference_weight_fill(struct weight *w, uint32_t part_idx, uint32_t row_idx, uint32_t n_rows,
                           const void *rows);
struct weight *reference_weight_free(struct weight *w);
/* out [n_cols] = row of w */
void reference_weight_row(float *out, const struct weight *w, uint32_t row);
/* tile[t * REFERENCE_TILE + i] = dot(row row0 + i of w, x + t * x_stride), i < n_rows <=
 * REFERENCE_TILE. Each row is dequantised once and used for all tokens. */
void reference_weight_multiply(struct reference_stream *s, float *tile, const struct weight *w,
                               uint32_t row0, uint32_t n_rows, const float *x, size_t x_stride,
                               uint32_t n_tokens);

/* ---- kv.c ------------------------------------------------------------------------------------ */

int reference_kv_new(struct backend *b, struct kv **kvp, const struct kv_shape *shape,
                     const char **why);
struct kv *reference_kv_free(struct kv *kv);
size_t reference_kv_page_bytes(const struct kv_shape *shape);
int reference_kv_populate(struct kv *kv, uint32_t page_idx, uint32_t n_pages);
int reference_kv_pin(struct kv *kv, uint32_t page_idx, uint32_t n_pages);
int reference_kv_copy(struct kv *kv, const struct page_copy *copies, uint32_t n_copies);
/* Writes K and V [n_kv_heads][head_dim] of one token; slots outside the pool (KERNELS_NO_SLOT) are
 * ignored. */
void reference_kv_put(struct kv *kv, uint32_t layer, uint32_t slot_idx, const float *k,
                      const float *v);
/* out [head_dim] = K (or V) of a slot, which is inside the pool. */
void reference_kv_get(float *out, const struct kv *kv, uint32_t layer, bool is_v, uint32_t slot_idx,
                      uint32_t kv_head);

/* ---- operators ------------------------------------------------------------------------------- */

int reference_embed(struct stream *s, struct tensor *x, const struct weight *e,
                    const int32_t *tokens, float scale);
int reference_rmsnorm(struct stream *s, struct tensor *y, const struct tensor *x, const float *w,
                      float eps);
int reference_qkv(struct stream *s, struct tensor *q, struct kv *kv, const struct tensor *x,
                  const struct qkv_args *args);
int reference_attention(struct stream *s, struct tensor *o, const struct tensor *q,
                        const struct kv *kv, const struct attention_args *args);
int reference_linear(struct stream *s, struct tensor *y, const struct tensor *x,
                     const struct weight *w, const struct epilogue *e);
int reference_gate_up(struct stream *s, struct tensor *h, const struct tensor *x,
                      const struct weight *w, const struct gate_up_args *args);
int reference_head(struct stream *s, struct tensor *logits, struct head_row *rows,
                   const struct tensor *x, const struct weight *w, const struct head_args *args);
int reference_sample(struct stream *s, struct sample *samples, struct tensor *logits,
                     const struct head_row *rows, const struct sample_params *params,
                     uint32_t n_outputs);

#endif
