/* h = act(gate) * up of the normed x. The weight holds a panel of gate, then the panel of up with
 * the same rows, and so on: an item is such a couple, and the activation runs on its two sums while
 * they are in the first-level cache. */
#include "kernels/cpu/level.h"

#include <stdalign.h>

#include "kernels/cpu/vec.h"

struct mlp_job {
    const struct weight *w;
    const struct tensor *h;
    enum activation activation;
    struct act act;
    struct cut cut;
};

static void mlp_items(void *arg, uint32_t worker, uint32_t begin, uint32_t end)
{
    const struct mlp_job *job = arg;
    const struct panels *gate = &job->w->parts[0], *up = &job->w->parts[1];
    /* One token's gate and up lie together, so that a single token can take both panels at once. */
    const struct panels both = {.panels = gate->panels,
                                .panel_stride = (size_t)(up->panels - gate->panels),
                                .dtype = gate->dtype,
                                .n_panels = 2 * gate->n_panels};
    alignas(64) float sums[TILE_TOKENS][2 * PANEL_ROWS];

    (void)worker;
    for (uint32_t item = begin; item < end; item++) {
        uint32_t panel_idx = item % job->cut.n_units, row_idx = panel_idx * PANEL_ROWS;
        uint32_t token = item / job->cut.n_units * job->cut.block_tokens;
        uint32_t token_end = token + job->cut.block_tokens;

        if (token_end > job->act.n_tokens)
            token_end = job->act.n_tokens;
        for (; token < token_end; token += TILE_TOKENS) {
            uint32_t n = tile_n_tokens(token, token_end), n_rows = gate->n_rows - row_idx;

            if (gate->dtype == up->dtype) {
                LEVEL(matmul)
                (sums[0], 2 * PANEL_ROWS, &both, 2 * panel_idx, 2, &job->act, token, n);
            } else {
                LEVEL(matmul)(sums[0], 2 * PANEL_ROWS, gate, panel_idx, 1, &job->act, token, n);
                LEVEL(matmul)
                (sums[0] + PANEL_ROWS, 2 * PANEL_ROWS, up, panel_idx, 1, &job->act, token, n);
            }
            for (uint32_t t = 0; t < n; t++) {
                v16 g = v_load(sums[t]);

                g = job->activation == ACT_SILU ? v_silu(g) : v_gelu_tanh(g);
                v_store_n(tensor_row(job->h, token + t) + row_idx,
                          v_mul(g, v_load(sums[t] + PANEL_ROWS)), n_rows);
            }
        }
    }
}

int LEVEL(gate_up)(struct stream *stream, struct tensor *h, const struct tensor *x,
                   const struct weight *w, const struct gate_up_args *args)
{
    struct cpu_stream *s = (struct cpu_stream *)stream;
    struct mlp_job job = {.w = w, .h = h, .activation = args->act};
    struct act_args act_args = {.x = x,
                                .n_tokens = x->n_rows,
                                .n_cols = w->n_cols,
                                .norm_w = args->norm_w,
                                .norm_eps = args->norm_eps};

    LEVEL(quant)(s, &job.act, w, &act_args);
    job.cut = cut_product(w->parts[0].n_panels, x->n_rows, pool_n_threads(s->backend->pool));
    pool_run(s->backend->pool, mlp_items, &job, job.cut.n_units * job.cut.n_blocks,
             job.cut.run_max);
    return 0;
}
