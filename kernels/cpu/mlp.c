/* h = act(gate) * up of the normed x. The weight holds a panel of gate, then the panel of up with
 * the same rows, and so on. An item is two such couples, a group of h's columns: the activation runs
 * on their sums while they are in the first-level cache, and so does the quantising for the product
 * that follows. */
#include "kernels/cpu/level.h"

#include <assert.h>
#include <stdalign.h>

#include "kernels/cpu/quant.h"
#include "kernels/cpu/vec.h"

enum { COUPLES = 2, COUPLE_ROWS = 2 * PANEL_ROWS };

static_assert(COUPLES * PANEL_ROWS == GROUP_COLS, "an item makes a group");

struct mlp_job {
    struct cpu_stream *s;
    const struct weight *w;
    const struct tensor *h;
    enum activation activation;
    bool is_quantised; /* h is not written but put where the next product wants it */
    struct act act;
    struct cut cut;
};

/* A row of sums, each couple's gate and then its up, becomes h at its beginning. */
static void activate(const struct mlp_job *job, float *sums, uint32_t n_couples)
{
    for (uint32_t c = 0; c < n_couples; c++) {
        v16 g = v_load(sums + c * COUPLE_ROWS), up = v_load(sums + c * COUPLE_ROWS + PANEL_ROWS);

        g = job->activation == ACT_SILU ? v_silu(g) : v_gelu_tanh(g);
        v_store(sums + c * PANEL_ROWS, v_mul(g, up));
    }
}

static void finish_row(const struct mlp_job *job, const float *h, uint32_t token,
                       uint32_t couple_idx, uint32_t n_couples)
{
    uint32_t n_rows = job->w->parts[0].n_rows, row_idx = couple_idx * PANEL_ROWS;

    if (job->is_quantised) {
        quant_next(job->s, n_rows / GROUP_COLS, job->act.n_tokens, token, row_idx / GROUP_COLS, h);
        return;
    }
    for (uint32_t c = 0; c < n_couples; c++)
        v_store_n(tensor_row(job->h, token) + row_idx + c * PANEL_ROWS, v_load(h + c * PANEL_ROWS),
                  n_rows - row_idx - c * PANEL_ROWS);
}

static void mlp_items(void *arg, uint32_t worker, uint32_t begin, uint32_t end)
{
    const struct mlp_job *job = arg;
    const struct panels *gate = &job->w->parts[0], *up = &job->w->parts[1];
    /* A couple's gate and up lie together. */
    const struct panels both = {.panels = gate->panels,
                                .panel_stride = (size_t)(up->panels - gate->panels),
                                .dtype = gate->dtype,
                                .n_panels = 2 * gate->n_panels};
    const size_t stride = COUPLES * COUPLE_ROWS;
    alignas(64) float sums[MATMUL_TOKENS][COUPLES * COUPLE_ROWS];
    const struct act act = act_of(&job->act, job->s, worker);

    LEVEL(matmul_begin)(&act);
    for (uint32_t item = begin; item < end; item++) {
        uint32_t couple_idx = item % job->cut.n_units * COUPLES, left = gate->n_panels - couple_idx;
        uint32_t n_couples = left < COUPLES ? left : COUPLES;
        uint32_t token = item / job->cut.n_units * job->cut.block_tokens;
        uint32_t token_end = token + job->cut.block_tokens;

        if (token_end > act.n_tokens)
            token_end = act.n_tokens;
        for (uint32_t n; token < token_end; token += n) {
            n = matmul_n_tokens(&act, token, token_end);
            if (gate->dtype == up->dtype)
                LEVEL(matmul)
            (sums[0], stride, &both, 2 * couple_idx, 2 * n_couples, &act, token, n);
            for (uint32_t c = 0; c < n_couples && gate->dtype != up->dtype; c++) {
                float *out = sums[0] + c * COUPLE_ROWS;

                LEVEL(matmul)(out, stride, gate, couple_idx + c, 1, &act, token, n);
                LEVEL(matmul)(out + PANEL_ROWS, stride, up, couple_idx + c, 1, &act, token, n);
            }
            /* In two loops: each is a chain of long latencies a token, side by side only where the
             * processor sees several tokens at once. */
            for (uint32_t t = 0; t < n; t++)
                activate(job, sums[t], n_couples);
            for (uint32_t t = 0; t < n; t++)
                finish_row(job, sums[t], token + t, couple_idx, n_couples);
        }
    }
    LEVEL(matmul_end)(&act);
}

int LEVEL(gate_up)(struct stream *stream, struct tensor *h, const struct tensor *x,
                   const struct weight *w, const struct gate_up_args *args)
{
    struct cpu_stream *s = (struct cpu_stream *)stream;
    const struct panels *gate = &w->parts[0];
    struct mlp_job job = {.s = s,
                          .w = w,
                          .h = h,
                          .activation = args->act,
                          .is_quantised = quant_is_wanted(args->next, gate->n_rows)};
    struct act_args act_args = {.x = x,
                                .n_tokens = x->n_rows,
                                .n_cols = w->n_cols,
                                .norm_w = args->norm_w,
                                .norm_eps = args->norm_eps};

    BASE(quant)(s, &job.act, w, &act_args);
    job.cut = cut_product((gate->n_panels + COUPLES - 1) / COUPLES, &job.act,
                          pool_n_threads(s->backend->pool));
    pool_run(s->backend->pool, mlp_items, &job, job.cut.n_units * job.cut.n_blocks,
             job.cut.run_max);
    if (job.is_quantised)
        s->next = (struct cpu_next){args->next, h->data, x->n_rows};
    return 0;
}
