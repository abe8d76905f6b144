/* y = x w^T + bias + residual. */
#include "kernels/cpu/product.h"

struct linear_job {
    struct product product;
    const struct epilogue *e;
    const struct tensor *y;
};

static void finish_row(const void *arg, float *sums, uint32_t token, uint32_t row_idx,
                       uint32_t n_rows)
{
    const struct linear_job *job = arg;
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

    product_items(&job->product, worker, begin, end, finish_row, job);
}

int LEVEL(linear)(struct stream *stream, struct tensor *y, const struct tensor *x,
                  const struct weight *w, const struct epilogue *e)
{
    struct cpu_stream *s = (struct cpu_stream *)stream;
    struct linear_job job = {.product.w = w, .e = e, .y = y};
    const struct act_args args = {.x = x, .n_tokens = x->n_rows, .n_cols = w->n_cols};

    product_run(&job.product, s, &args, linear_items, &job);
    return 0;
}
