/* Activations of a product: an RMS norm if wanted, then int8 or bf16 a token and 32 columns at a
 * time, once for all parts of the weight, unless whoever made them has done it already
 * (quant_next). */
#include "kernels/cpu/quant.h"

#include <stdalign.h>
#include <string.h>

#include "kernels/cpu/rmsnorm.h"
#include "kernels/cpu/vec.h"

enum { PARALLEL_TOKENS = 16 }; /* below this a second region costs more than it saves */

/* Token t of a tile n_tokens wide. */
static void quant_row(uint8_t *tile, uint32_t t, uint32_t n_tokens, const float *x,
                      uint32_t n_groups)
{
    for (uint32_t g = 0; g < n_groups; g++)
        quant_put(tile + (size_t)g * n_tokens * ACT_GROUP_BYTES, t, n_tokens, x + g * GROUP_COLS);
}

/* The same for a row that is normed first; it need not be kept. */
static void quant_normed_row(uint8_t *tile, uint32_t t, uint32_t n_tokens, const float *x,
                             const float *w, float scale, uint32_t n_groups)
{
    alignas(64) float y[GROUP_COLS];

    for (uint32_t g = 0; g < n_groups; g++) {
        for (uint32_t k = 0; k < GROUP_COLS; k += 16) {
            v16 a = v_mul(v_load(x + g * GROUP_COLS + k), v_set1(scale));

            v_store(y + k, v_mul(a, v_load(w + g * GROUP_COLS + k)));
        }
        quant_put(tile + (size_t)g * n_tokens * ACT_GROUP_BYTES, t, n_tokens, y);
    }
}

/* The same in bf16; norm_w may be NULL. Columns need not fill the last group. */
static void bf16_row(uint8_t *tiles, uint32_t token, const float *x, const float *norm_w,
                     float scale, uint32_t n_cols)
{
    uint32_t n_groups = (n_cols + GROUP_COLS - 1) / GROUP_COLS;
    alignas(64) float y[GROUP_COLS];

    for (uint32_t g = 0; g < n_groups; g++) {
        uint32_t col = g * GROUP_COLS, n = n_cols - col < GROUP_COLS ? n_cols - col : GROUP_COLS;

        for (uint32_t k = 0; k < n && norm_w; k += 16) {
            v16 a = v_mul(v_load_n(x + col + k, n - k), v_set1(scale));

            v_store(y + k, v_mul(a, v_load_n(norm_w + col + k, n - k)));
        }
        bf16_put(tiles, n_groups, token, g, norm_w ? y : x + col, n);
    }
}

struct quant_job {
    struct cpu_stream *s;
    const struct act_args *args;
    bool quantise, keep; /* keep: rows are wanted in f32 as well */
    bool bf16;           /* instead of both                      */
};

/* Items are tiles. */
static void quant_tiles(void *arg, uint32_t worker, uint32_t begin, uint32_t end)
{
    const struct quant_job *job = arg;
    const struct act_args *args = job->args;
    uint32_t n_groups = args->n_cols / GROUP_COLS;

    (void)worker;
    for (uint32_t item = begin; item < end; item++) {
        uint32_t first = item * TILE_TOKENS;
        uint32_t n = args->n_tokens - first < TILE_TOKENS ? args->n_tokens - first : TILE_TOKENS;
        uint8_t *tile = job->s->q + (size_t)first * n_groups * ACT_GROUP_BYTES;
        const float *x[TILE_TOKENS];
        float scale[TILE_TOKENS];

        for (uint32_t t = 0; t < n; t++)
            x[t] = tensor_row(args->x, args->rows ? args->rows[first + t] : first + t);
        /* On their own: a row's sum is a chain of latencies, and rows run side by side. */
        for (uint32_t t = 0; t < n && args->norm_w; t++)
            scale[t] = rmsnorm_scale(x[t], args->n_cols, args->norm_eps);
        for (uint32_t t = 0; t < n; t++) {
            float *y = job->s->x + (size_t)(first + t) * job->s->x_stride;

            if (job->keep && args->norm_w)
                LEVEL(rmsnorm_row)(y, x[t], args->norm_w, args->n_cols, scale[t]);
            else if (job->keep && args->rows)
                memcpy(y, x[t], args->n_cols * sizeof *y);
            if (job->quantise && args->norm_w)
                quant_normed_row(tile, t, n, x[t], args->norm_w, scale[t], n_groups);
            else if (job->quantise)
                quant_row(tile, t, n, x[t], n_groups);
            if (job->bf16)
                bf16_row(job->s->q, first + t, x[t], args->norm_w, args->norm_w ? scale[t] : 1,
                         args->n_cols);
        }
    }
}

void LEVEL(quant)(struct cpu_stream *s, struct act *act, const struct weight *w,
                  const struct act_args *args)
{
    const bool bf16 = act_is_bf16(s, args->n_tokens);
    struct quant_job job = {.s = s,
                            .args = args,
                            .quantise = w->has_quantised && !bf16,
                            .keep = w->has_plain && !bf16,
                            .bf16 = bf16};
    const struct cpu_next next = s->next;
    uint32_t n_tiles = (args->n_tokens + TILE_TOKENS - 1) / TILE_TOKENS;
    bool moved = args->norm_w || args->rows;

    s->next = (struct cpu_next){0};
    if (next.w == w && next.x == args->x->data && next.n_tokens == args->n_tokens && !moved) {
        uint8_t *q = s->q;

        s->q = s->next_q;
        s->next_q = q;
        job.quantise = job.bf16 = false;
    }
    *act = (struct act){.q = s->q,
                        .x = moved ? s->x : (const float *)args->x->data,
                        .x_stride = moved ? s->x_stride : args->x->stride_bytes / sizeof(float),
                        .bf16 = bf16 ? (const uint16_t *)(const void *)s->q : NULL,
                        .n_tokens = args->n_tokens,
                        .n_cols = args->n_cols};
    if (!moved && !job.quantise && !job.bf16)
        return;
    if (args->n_tokens < PARALLEL_TOKENS)
        quant_tiles(&job, 0, 0, n_tiles);
    else
        pool_run(s->backend->pool, quant_tiles, &job, n_tiles, 4);
}
