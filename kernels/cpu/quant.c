/* Activations of a product: an RMS norm if wanted, then int8 a token and 32 columns at a time, once
 * for all parts of the weight, unless whoever made them has done it already (quant_next). */
#include "kernels/cpu/quant.h"

#include <string.h>

#include "kernels/cpu/vec.h"

enum { PARALLEL_TOKENS = 16 }; /* below this a second region costs more than it saves */

/* Token t of a tile n_tokens wide. */
static void quant_row(uint8_t *tile, uint32_t t, uint32_t n_tokens, const float *x,
                      uint32_t n_groups)
{
    for (uint32_t g = 0; g < n_groups; g++)
        quant_put(tile + (size_t)g * n_tokens * ACT_GROUP_BYTES, t, n_tokens, x + g * GROUP_COLS);
}

struct quant_job {
    struct cpu_stream *s;
    const struct act_args *args;
    bool quantise;
};

/* Items are tiles. A normed row goes to the stream's f32 rows, from where it is quantised. */
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

        for (uint32_t t = 0; t < n; t++) {
            uint32_t row = args->rows ? args->rows[first + t] : first + t;
            const float *x = tensor_row(args->x, row);

            if (args->norm_w || args->rows) {
                float *y = job->s->x + (size_t)(first + t) * job->s->x_stride;

                if (args->norm_w)
                    LEVEL(rmsnorm_row)(y, x, args->norm_w, args->n_cols, args->norm_eps);
                else
                    memcpy(y, x, args->n_cols * sizeof *y);
                x = y;
            }
            if (job->quantise)
                quant_row(tile, t, n, x, n_groups);
        }
    }
}

void LEVEL(quant)(struct cpu_stream *s, struct act *act, const struct weight *w,
                  const struct act_args *args)
{
    struct quant_job job = {.s = s, .args = args, .quantise = w->has_quantised};
    const struct cpu_next next = s->next;
    uint32_t n_tiles = (args->n_tokens + TILE_TOKENS - 1) / TILE_TOKENS;
    bool moved = args->norm_w || args->rows;

    s->next = (struct cpu_next){0};
    if (next.w == w && next.x == args->x->data && next.n_tokens == args->n_tokens && !moved) {
        uint8_t *q = s->q;

        s->q = s->next_q;
        s->next_q = q;
        job.quantise = false;
    }
    *act = (struct act){.q = s->q,
                        .x = moved ? s->x : (const float *)args->x->data,
                        .x_stride = moved ? s->x_stride : args->x->stride_bytes / sizeof(float),
                        .n_tokens = args->n_tokens,
                        .n_cols = args->n_cols};
    if (!moved && !job.quantise)
        return;
    if (args->n_tokens < PARALLEL_TOKENS)
        quant_tiles(&job, 0, 0, n_tiles);
    else
        pool_run(s->backend->pool, quant_tiles, &job, n_tiles, 4);
}
