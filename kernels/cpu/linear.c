/* y = x w^T + bias + residual. An item is two panels and a block of tokens; the panels stay in the
 * first-level cache while the tiles of the block pass, and the epilogue runs on a tile of results
 * that has not left it. */
#include "kernels/cpu/level.h"

#include <stdalign.h>

#include "kernels/cpu/vec.h"

enum { UNIT_PANELS = 2, UNIT_ROWS = UNIT_PANELS * PANEL_ROWS };

struct linear_job {
    const struct weight *w;
    const struct epilogue *e;
    const struct tensor *y;
    struct act act;
    struct cut cut;
};

static void finish_row(const struct linear_job *job, const float *sums, uint32_t token,
                       uint32_t row_idx, uint32_t n_rows)
{
    const struct epilogue *e = job->e;
    float *y = tensor_row(job->y, token) + row_idx;

    for (uint32_t r = 0; r < n_rows; r += PANEL_ROWS) {
        v16 a = v_load(sums + r);

        if (e && e->bias)
            a = v_add(a, v_load_n(e->bias + row_idx + r, n_rows - r));
        if (e && e->residual)
            a = v_add(a, v_load_n(tensor_row(e->residual, token) + row_idx + r, n_rows - r));
        v_store_n(y + r, a, n_rows - r);
    }
}

static void linear_items(void *arg, uint32_t worker, uint32_t begin, uint32_t end)
{
    const struct linear_job *job = arg;
    alignas(64) float sums[MATMUL_TOKENS][UNIT_ROWS];

    (void)worker;
    LEVEL(matmul_begin)(job->act.n_tokens);
    for (uint32_t item = begin; item < end; item++) {
        uint32_t token = item / job->cut.n_units * job->cut.block_tokens;
        uint32_t token_end = token + job->cut.block_tokens;
        struct unit u = weight_unit(job->w, UNIT_PANELS, item % job->cut.n_units);
        uint32_t row_idx = u.part->row_idx + u.panel_idx * PANEL_ROWS, n_rows = unit_n_rows(&u);

        if (token_end > job->act.n_tokens)
            token_end = job->act.n_tokens;
        for (; token < token_end; token += MATMUL_TOKENS) {
            uint32_t n = matmul_n_tokens(token, token_end);

            LEVEL(matmul)(sums[0], UNIT_ROWS, u.part, u.panel_idx, u.n_panels, &job->act, token, n);
            for (uint32_t t = 0; t < n; t++)
                finish_row(job, sums[t], token + t, row_idx, n_rows);
        }
    }
    LEVEL(matmul_end)(job->act.n_tokens);
}

int LEVEL(linear)(struct stream *stream, struct tensor *y, const struct tensor *x,
                  const struct weight *w, const struct epilogue *e)
{
    struct cpu_stream *s = (struct cpu_stream *)stream;
    struct linear_job job = {.w = w, .e = e, .y = y};
    struct act_args args = {.x = x, .n_tokens = x->n_rows, .n_cols = w->n_cols};

    BASE(quant)(s, &job.act, w, &args);
    job.cut =
        cut_product(weight_n_units(w, UNIT_PANELS), x->n_rows, pool_n_threads(s->backend->pool));
    pool_run(s->backend->pool, linear_items, &job, job.cut.n_units * job.cut.n_blocks,
             job.cut.run_max);
    return 0;
}
