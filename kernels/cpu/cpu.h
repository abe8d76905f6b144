/* kernels/cpu/cpu.h - what the files of the cpu backend share.
 *
 * Weights lie in panels of 16 rows ("P16"). A panel of a quantised weight is a list of groups of 32
 * columns, each: d[16] f16, for Q4_1 m[16] f16, then codes in 64-byte vectors of 16 rows x 4
 * columns. 4-bit: vector j (of 4), row r, byte i holds columns 4j+i (low nibble) and 16+4j+i
 * (high). 8-bit: vector j (of 8) holds columns 4j+i as code + 128. Panels of the other formats are
 * [n_cols][16] of F32 or F16, and [n_cols / 2, rounded up][16][2] of BF16. Rows that fill the last
 * panel up are zeros.
 *
 * Activations are quantised a token and 32 columns at a time: q = rint(x * 127/max), dy = max/127.
 * They lie in tiles of up to 8 tokens (struct act). Where results may depend on the batch, those of
 * many tokens are bf16 instead, in tiles of 16 tokens and 32 columns. */
#ifndef CB_KERNELS_CPU_CPU_H
#define CB_KERNELS_CPU_CPU_H

#include <stdalign.h>
#include <stdatomic.h>

#include "kernels/cpu/memory.h"
#include "kernels/cpu/pool.h"
#include "kernels/kernels.h"

struct level; /* kernels/cpu/level.h */

enum {
    PANEL_ROWS = 16,
    GROUP_COLS = 32,
    TILE_TOKENS = 8,
    ACT_GROUP_BYTES = GROUP_COLS + 3 * 4, /* a token's share of a group of a tile: q, dy, sy, nsq */
    BF16_TILE_TOKENS = 16,
    BF16_TILE_BYTES = BF16_TILE_TOKENS * GROUP_COLS * 2,
    BF16_BLOCK_TOKENS = 2 * BF16_TILE_TOKENS, /* acts in bf16 have room for whole blocks         */
    ATTENTION_ROWS = 32,        /* (token, head) rows of an attention item             */
    KV_FACTS_BYTES = 2 * 16 * 4 /* u8: scales and zeros of a block's K, or of its V    */
};

struct backend {
    struct pool *pool;
    const struct level *level;
    struct arena weights;
    uint32_t bf16_tokens; /* products of so many tokens and more are in bf16; UINT32_MAX: none */
    const char *bf16_refusal; /* why none are although they may be, or NULL */
    _Atomic uint64_t weight_bytes;
};

/* Panel i of the part begins at panels + i * panel_stride. */
struct panels {
    const uint8_t *panels;
    size_t panel_stride;
    enum dtype dtype;
    uint32_t n_panels;
    uint32_t row_idx, n_rows; /* its rows among those of the weight */
};

struct weight {
    struct backend *backend;
    uint8_t *data;
    size_t bytes;
    enum weight_use use;
    uint32_t n_rows, n_cols, n_parts;
    bool has_quantised, has_plain; /* which forms of activations its parts want */
    struct panels parts[3];
};

/* Page p, layer l, head h: blocks of 16 tokens from data + p*page_bytes + (l*n_kv_heads +
 * h)*head_bytes, each of them K, then V, so that a sequence's head is one stream from memory.
 *   bf16   K [hd/2][16 tokens][2]   V [8][hd][2 tokens]
 *   u8     as bf16, of bytes; before K and before V: f32 scale[16 tokens], zero[16 tokens]
 *   f32    K [hd][16 tokens]        V [16][hd]                                                   */
struct kv {
    struct kv_shape shape;
    struct pool *pool; /* the backend's */
    uint8_t *data;
    size_t page_bytes, head_bytes, half_bytes, mapped_bytes; /* half: a block's K, or its V */
};

/* Blocks of keys and values that a worker will take in the next layer, as it took them in this one.
 * Its products fetch them meanwhile: they compute, where attention waits for memory. What is no
 * longer so costs a little and changes nothing. The worker's alone while a region runs. */
enum { AHEAD_BLOCKS = 512 };
struct cpu_ahead {
    alignas(64) uint32_t n, next; /* blocks[next, n) are to be fetched  */
    const uint8_t *at, *end;      /* what is left of the one before     */
    size_t block_bytes;
    const uint8_t *blocks[AHEAD_BLOCKS];
};

/* Activations of a region, in the forms its weight wants. A tile of n <= 8 tokens is, for each
 * group: [n][32] q, then f32 dy[n], f32 sy[n] = dy * sum(q), i32 nsq[n] = -sum(q). Tile t begins at
 * q + t * 8 * n_groups * ACT_GROUP_BYTES, whatever the others' widths.
 *
 * In bf16 there is no other form, for parts of any type: [tokens / 16][n_cols / 32][16][32], both
 * quotients rounded up, columns from n_cols on zeros. */
struct act {
    const uint8_t *q;
    const float *x;          /* f32 rows, normed if there is a norm */
    size_t x_stride;         /* floats */
    const uint16_t *bf16;    /* or NULL */
    struct cpu_ahead *ahead; /* the worker's: its products set it */
    uint32_t n_tokens, n_cols;
};

/* What a worker knows of one output row of the head: the best logit lane by lane, over the panels
 * it has seen. */
struct head_track {
    float best[PANEL_ROWS];
    uint32_t row[PANEL_ROWS]; /* the first row of the panel that has it */
    uint32_t not_finite;
};

/* A run of (token, head of the group) rows of one sequence that attends together. */
struct attention_tile {
    uint32_t seq_idx, row_begin, n_rows;
};

/* The rows x lie in next_q already, in the form that w wants. Holds for the very next product. */
struct cpu_next {
    const struct weight *w; /* NULL: nothing does */
    const void *x;
    uint32_t n_tokens;
};

struct cpu_stream {
    struct stream stream;
    struct backend *backend;
    struct stream_shape shape;
    uint8_t *q;      /* quantised activations                       */
    uint8_t *next_q; /* those of the next product                   */
    struct cpu_next next;
    float *x;                     /* f32 activations after a norm or a gathering */
    size_t x_stride;              /* floats a row                                */
    struct attention_tile *tiles; /* [max_tiles]                                 */
    uint32_t max_tiles;
    float *partials;           /* spans of attention shared by workers */
    struct head_track *tracks; /* [workers][max_outputs]               */
    struct cpu_ahead *ahead;   /* [workers]                            */
    uint8_t *scratch;          /* [workers][scratch_bytes]             */
    uint8_t *sampler;          /* [workers][sampler_bytes]: sampler_scratch    */
    size_t scratch_bytes, q_bytes, x_bytes, partials_bytes, tracks_bytes, sampler_bytes;
};

/* weight.c, kv.c, stream.c, sample.c: the bodies of the table's functions of these names. */
int cpu_weight_new(struct backend *b, struct weight **weightp, const struct weight_spec *spec,
                   const char **why);
void cpu_weight_fill(struct weight *w, uint32_t part_idx, uint32_t row_idx, uint32_t n_rows,
                     const void *rows);
struct weight *cpu_weight_free(struct weight *w);
int cpu_kv_new(struct backend *b, struct kv **kvp, const struct kv_shape *shape, const char **why);
struct kv *cpu_kv_free(struct kv *kv);
size_t cpu_kv_page_bytes(const struct kv_shape *shape);
int cpu_kv_populate(struct kv *kv, uint32_t page_idx, uint32_t n_pages);
int cpu_kv_pin(struct kv *kv, uint32_t page_idx, uint32_t n_pages);
int cpu_kv_copy(struct kv *kv, const struct page_copy *copies, uint32_t n_copies);
int cpu_stream_new(struct backend *b, struct stream **streamp, const struct stream_shape *shape);
struct stream *cpu_stream_free(struct stream *s);
int cpu_sample(struct stream *s, struct sample *samples, struct tensor *logits,
               const struct head_row *rows, const struct sample_params *params, uint32_t n_outputs);

/* Bytes of a panel's group (quantised formats) and of a whole panel. */
size_t panel_group_bytes(enum dtype t);
size_t panel_bytes(enum dtype t, uint32_t n_cols);
bool panel_is_quantised(enum dtype t);

/* The fewest panels that hold whole heads. */
static inline uint32_t heads_panels(uint32_t head_dim)
{
    uint32_t n = 1;

    while (n * PANEL_ROWS % head_dim)
        n++;
    return n;
}

/* A block's K, or its V; whole lines, for they are fetched by their number. */
static inline size_t kv_half_bytes(enum dtype t, uint32_t head_dim)
{
    size_t n = (size_t)16 * head_dim;

    if (t == DTYPE_U8)
        return KV_FACTS_BYTES + (n + 63) / 64 * 64;
    return n * (t == DTYPE_F32 ? 4 : 2);
}

/* K of the block that holds token `at` of a page; its V lies half_bytes behind. */
static inline uint8_t *kv_block(const struct kv *kv, uint32_t page_idx, uint32_t layer,
                                uint32_t head, uint32_t at)
{
    size_t heads = (size_t)layer * kv->shape.n_kv_heads + head;

    return kv->data + (size_t)page_idx * kv->page_bytes + heads * kv->head_bytes +
           at / 16 * 2 * kv->half_bytes;
}

static inline float *tensor_row(const struct tensor *t, uint32_t row_idx)
{
    return (float *)(void *)((uint8_t *)t->data + (size_t)row_idx * t->stride_bytes);
}

#endif
