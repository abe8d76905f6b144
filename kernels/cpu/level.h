/* kernels/cpu/level.h - files compiled once an instruction set, and what they offer.
 *
 * LEVEL(f) is f's name at the level being compiled, and BASE(f) at the level it borrows f from: amx
 * has products of its own, and all that does not call them is avx512vnni's. For other levels the two
 * are one. A level is the table of operators at the end of level.c; the calls below are between
 * files of one level. Any two levels give the same bits, but for products in bf16, which only levels
 * with tiles have. */
#ifndef CB_KERNELS_CPU_LEVEL_H
#define CB_KERNELS_CPU_LEVEL_H

#include "kernels/cpu/cpu.h"

#define LEVEL_PASTE2(f, level) cpu_##f##_##level
#define LEVEL_PASTE(f, level)  LEVEL_PASTE2(f, level)
#define LEVEL(f)               LEVEL_PASTE(f, CPU_LEVEL)
#define BASE(f)                LEVEL_PASTE(f, CPU_BASE)

#if defined(CPU_LEVEL_amx) || defined(CPU_LEVEL_amx_emulated) || defined(CPU_LEVEL_amx512_emulated)
#define LEVEL_TILES 1
#endif

struct sampling_sweeps; /* kernels/sampling_sweep.h */

struct level {
    const char *name;
    uint32_t matmul_tokens; /* MATMUL_TOKENS */
    uint32_t bf16_tokens;   /* products of so many tokens are faster in bf16; 0: it has none */
    int (*embed)(struct stream *s, struct tensor *x, const struct weight *e, const int32_t *tokens,
                 float scale);
    int (*rmsnorm)(struct stream *s, struct tensor *y, const struct tensor *x, const float *w,
                   float eps);
    int (*qkv)(struct stream *s, struct tensor *q, struct kv *kv, const struct tensor *x,
               const struct qkv_args *args);
    int (*attention)(struct stream *s, struct tensor *o, const struct tensor *q,
                     const struct kv *kv, const struct attention_args *args);
    int (*linear)(struct stream *s, struct tensor *y, const struct tensor *x,
                  const struct weight *w, const struct epilogue *e);
    int (*gate_up)(struct stream *s, struct tensor *h, const struct tensor *x,
                   const struct weight *w, const struct gate_up_args *args);
    int (*head)(struct stream *s, struct tensor *logits, struct head_row *rows,
                const struct tensor *x, const struct weight *w, const struct head_args *args);
    const struct sampling_sweeps *sampling_sweeps;
    /* out[i] = the chain of pair products of n_pairs pairs, as attention makes scores of 16 keys: k
     * [n_pairs][16][2] and q [n_pairs][2] bf16. For the choice of avx512bf16. */
    void (*pairs)(float out[16], const uint16_t *k, const uint16_t *q, uint32_t n_pairs);
    /* out[n_tokens][16] = the product of a part's first panel with all tokens. For the choice of
     * amx. */
    void (*product)(float *out, const struct panels *p, const struct act *act);
};

extern const struct level cpu_level_scalar, cpu_level_avx2, cpu_level_amx_emulated,
    cpu_level_avx512vnni, cpu_level_avx512bf16, cpu_level_amx512_emulated, cpu_level_amx;

#ifdef CPU_LEVEL

extern const struct sampling_sweeps BASE(sampling_sweeps); /* sample_sweep.c */

/* Operators, each in the file of its name. */
int BASE(embed)(struct stream *s, struct tensor *x, const struct weight *e, const int32_t *tokens,
                float scale);
int BASE(rmsnorm)(struct stream *s, struct tensor *y, const struct tensor *x, const float *w,
                  float eps);
int LEVEL(qkv)(struct stream *s, struct tensor *q, struct kv *kv, const struct tensor *x,
               const struct qkv_args *args);
int BASE(attention)(struct stream *s, struct tensor *o, const struct tensor *q, const struct kv *kv,
                    const struct attention_args *args);
int LEVEL(linear)(struct stream *s, struct tensor *y, const struct tensor *x,
                  const struct weight *w, const struct epilogue *e);
int LEVEL(gate_up)(struct stream *s, struct tensor *h, const struct tensor *x,
                   const struct weight *w, const struct gate_up_args *args);
int LEVEL(head)(struct stream *s, struct tensor *logits, struct head_row *rows,
                const struct tensor *x, const struct weight *w, const struct head_args *args);

/* y = x * scale * w over n columns, scale being x's rmsnorm_scale; y may be x. */
void BASE(rmsnorm_row)(float *y, const float *x, const float *w, uint32_t n, float scale);

/* What to make of the input rows of a product: row i is row rows[i] of x (rows NULL: row i), with
 * an RMS norm if norm_w. */
struct act_args {
    const struct tensor *x;
    const uint32_t *rows;
    uint32_t n_tokens, n_cols;
    const float *norm_w;
    float norm_eps;
};

/* Fills the stream's activations in the forms w wants, and says where they are. */
void BASE(quant)(struct cpu_stream *s, struct act *act, const struct weight *w,
                 const struct act_args *args);

/* A worker's own copy, with what it fetches ahead. */
static inline struct act act_of(const struct act *act, struct cpu_stream *s, uint32_t worker)
{
    struct act own = *act;

    own.ahead = &s->ahead[worker];
    return own;
}

/* Tokens that one call of matmul takes: of bf16 the more the better, for each call unpacks its
 * panels; of other activations what lets the results stay in the first-level cache. */
#if LEVEL_TILES
enum { MATMUL_TOKENS = 256, MATMUL_PLAIN_TOKENS = 64 };
#else
enum { MATMUL_TOKENS = TILE_TOKENS, MATMUL_PLAIN_TOKENS = TILE_TOKENS };
#endif

/* out[t * out_stride + 16*i + r] = row r of panel panel_idx + i times token token_idx + t, for
 * n_panels of a part and matmul_n_tokens tokens from token_idx, a multiple of 8; they are a multiple
 * of 8 too, or end with the act's last. In bf16 both are multiples of BF16_BLOCK_TOKENS. out has
 * room for whole panels and, in bf16, for whole blocks of tokens. */
void LEVEL(matmul)(float *out, size_t out_stride, const struct panels *p, uint32_t panel_idx,
                   uint32_t n_panels, const struct act *act, uint32_t token_idx, uint32_t n_tokens);

/* Around a thread's calls of matmul for an act: tiles are a state of the thread, which takes some
 * 200 cycles to set up. */
#if LEVEL_TILES
void LEVEL(matmul_begin)(const struct act *act);
void LEVEL(matmul_end)(const struct act *act);
void LEVEL(matmul_bf16)(float *out, size_t out_stride, const struct panels *p, uint32_t panel_idx,
                        uint32_t n_panels, const struct act *act, uint32_t token_idx,
                        uint32_t n_tokens);
void LEVEL(matmul_bf16_begin)(void);
void BASE(matmul)(float *out, size_t out_stride, const struct panels *p, uint32_t panel_idx,
                  uint32_t n_panels, const struct act *act, uint32_t token_idx, uint32_t n_tokens);
#else
static inline void LEVEL(matmul_begin)(const struct act *act)
{
    (void)act;
}
static inline void LEVEL(matmul_end)(const struct act *act)
{
    (void)act;
}
#endif

/* Rotates the first n_dims of one head's row in place, for a position. */
void BASE(rope_row)(float *x, const struct rope *rope, int32_t position);

/* How a product is cut into items: n_blocks runs of block_tokens tokens, each with n_units units of
 * panels; item = block * n_units + unit. Where there are tokens enough, each worker has blocks of
 * its own: what it wrote of them in one region it reads in the next. Enough items for the pool to
 * balance, blocks small enough to stay in the second-level cache while the panels pass. */
struct cut {
    uint32_t n_units, n_blocks, block_tokens, run_max;
};

static inline uint32_t whole_tiles(uint32_t n_tokens)
{
    return (n_tokens + TILE_TOKENS - 1) / TILE_TOKENS * TILE_TOKENS;
}

/* In bf16 an item unpacks its panels, which takes about as long as 64 to 96 of its tokens: so its
 * block is as large as lets the threads have some items each. */
static inline struct cut cut_product_bf16(uint32_t n_units, uint32_t n_tokens, uint32_t n_threads)
{
    struct cut c = {.n_units = n_units, .n_blocks = (n_tokens + 255) / 256, .run_max = 2};

    while (n_units * c.n_blocks < 4 * n_threads && n_tokens >= 128 * c.n_blocks)
        c.n_blocks *= 2;
    c.block_tokens = (n_tokens + c.n_blocks - 1) / c.n_blocks;
    c.block_tokens =
        (c.block_tokens + BF16_BLOCK_TOKENS - 1) / BF16_BLOCK_TOKENS * BF16_BLOCK_TOKENS;
    c.n_blocks = (n_tokens + c.block_tokens - 1) / c.block_tokens;
    return c;
}

static inline struct cut cut_product(uint32_t n_units, const struct act *act, uint32_t n_threads)
{
    struct cut c = {.n_units = n_units, .block_tokens = 256};
    uint32_t n_tokens = act->n_tokens, share = (n_tokens + n_threads - 1) / n_threads;

    if (act->bf16)
        return cut_product_bf16(n_units, n_tokens, n_threads);
    if (share >= 2 * TILE_TOKENS && share < c.block_tokens)
        c.block_tokens = whole_tiles(share);
    while (c.block_tokens > 32 &&
           n_units * ((n_tokens + c.block_tokens - 1) / c.block_tokens) < 16 * n_threads &&
           n_tokens > c.block_tokens / 2)
        c.block_tokens = whole_tiles(c.block_tokens / 2);
    c.n_blocks = (n_tokens + c.block_tokens - 1) / c.block_tokens;
    /* A run of some tens of microseconds at most: a worker that is descheduled holds up one run. */
    c.run_max = n_tokens >= 64 ? 2 : n_tokens >= 8 ? 8 : 32;
    return c;
}

/* Unit i of a weight cut in units of unit_panels panels; no unit spans two parts. */
struct unit {
    const struct panels *part;
    uint32_t panel_idx, n_panels;
};

static inline uint32_t weight_n_units(const struct weight *w, uint32_t unit_panels)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < w->n_parts; i++)
        n += (w->parts[i].n_panels + unit_panels - 1) / unit_panels;
    return n;
}

static inline struct unit weight_unit(const struct weight *w, uint32_t unit_panels, uint32_t i)
{
    struct unit u = {.part = w->parts};
    uint32_t left;

    for (;;) {
        uint32_t n = (u.part->n_panels + unit_panels - 1) / unit_panels;

        if (i < n)
            break;
        i -= n;
        u.part++;
    }
    u.panel_idx = i * unit_panels;
    left = u.part->n_panels - u.panel_idx;
    u.n_panels = left < unit_panels ? left : unit_panels;
    return u;
}

/* Rows of the weight that panels [panel_idx, panel_idx + n_panels) of a part really have. */
static inline uint32_t unit_n_rows(const struct unit *u)
{
    uint32_t left = u->part->n_rows - u->panel_idx * PANEL_ROWS;

    return left < u->n_panels * PANEL_ROWS ? left : u->n_panels * PANEL_ROWS;
}

static inline uint32_t tile_n_tokens(uint32_t token_idx, uint32_t end)
{
    return end - token_idx < TILE_TOKENS ? end - token_idx : TILE_TOKENS;
}

/* How many tokens from token_idx the next call of matmul takes. */
static inline uint32_t matmul_n_tokens(const struct act *act, uint32_t token_idx, uint32_t end)
{
    const uint32_t most = act->bf16 ? MATMUL_TOKENS : MATMUL_PLAIN_TOKENS;

    return end - token_idx < most ? end - token_idx : most;
}

#endif
#endif
