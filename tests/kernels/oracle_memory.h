/* tests/kernels/oracle_memory.h - weights, pages and buffers of the oracles, as plain as can be:
 * every value lies by itself, in double, and a weight's rows also as in the file. */
#ifndef CB_TESTS_KERNELS_ORACLE_MEMORY_H
#define CB_TESTS_KERNELS_ORACLE_MEMORY_H

#include "kernels/kernels.h"

struct weight {
    uint32_t n_rows, n_cols, n_parts;
    struct weight_part parts[3]; /* the rows as they came */
    double *values;              /* [n_rows][n_cols]      */
    uint32_t *begin, *end;       /* [n_rows] columns outside [begin, end) are zeros */
};

/* The columns that matter to the product of a row with n values of x: all of them unless all are
 * finite, for 0 * NaN counts. */
struct oracle_cols {
    uint32_t begin, end;
};
struct oracle_cols oracle_cols(const struct weight *w, uint32_t row, bool x_is_finite);

struct kv {
    struct kv_shape shape;
    double *values;
};

/* K, or V, of a slot: [n_kv_heads][head_dim]. */
double *oracle_kv_at(const struct kv *kv, uint32_t layer, int is_v, uint32_t slot_idx);

/* n zeroed things; never NULL. */
void *oracle_zeroed(size_t n, size_t size);

static inline float *oracle_row(const struct tensor *t, uint32_t row)
{
    return (float *)(void *)((char *)t->data + row * t->stride_bytes);
}

int oracle_open(struct backend **backendp, const struct backend_config *config, const char **why);
struct backend *oracle_close(struct backend *b);
void oracle_caps(const struct backend *b, struct backend_caps *caps);
int oracle_buffer_new(struct backend *b, void **datap, size_t bytes, const void *init);
void *oracle_buffer_free(struct backend *b, void *data);
int oracle_weight_new(struct backend *b, struct weight **weightp, const struct weight_spec *spec,
                      const char **why);
struct weight *oracle_weight_free(struct weight *w);
int oracle_kv_new(struct backend *b, struct kv **kvp, const struct kv_shape *shape,
                  const char **why);
struct kv *oracle_kv_free(struct kv *kv);
size_t oracle_kv_page_bytes(const struct kv_shape *shape);
int oracle_kv_populate(struct kv *kv, uint32_t page_idx, uint32_t n_pages);
int oracle_kv_copy(struct kv *kv, const struct page_copy *copies, uint32_t n_copies);
int oracle_stream_new(struct backend *b, struct stream **streamp, const struct stream_shape *shape);
struct stream *oracle_stream_free(struct stream *s);

/* The part of a table that this is. */
#define ORACLE_MEMORY                                                                              \
    .open = oracle_open, .close = oracle_close, .caps = oracle_caps,                               \
    .buffer_new = oracle_buffer_new, .buffer_free = oracle_buffer_free,                            \
    .weight_new = oracle_weight_new, .weight_free = oracle_weight_free, .kv_new = oracle_kv_new,   \
    .kv_free = oracle_kv_free, .kv_page_bytes = oracle_kv_page_bytes,                              \
    .kv_populate = oracle_kv_populate, .kv_copy = oracle_kv_copy, .stream_new = oracle_stream_new, \
    .stream_free = oracle_stream_free

#endif
