/* RMS norm. Rows are independent; a worker takes whole rows. */
#include "kernels/cpu/rmsnorm.h"

#include "kernels/cpu/level.h"

void LEVEL(rmsnorm_row)(float *y, const float *x, const float *w, uint32_t n, float scale)
{
    for (uint32_t k = 0; k < n; k += 16) {
        v16 a = v_mul(v_load_n(x + k, n - k), v_set1(scale));

        v_store_n(y + k, v_mul(a, v_load_n(w + k, n - k)), n - k);
    }
}

struct norm_job {
    const struct tensor *y, *x;
    const float *w;
    float eps;
};

static void norm_rows(void *arg, uint32_t worker, uint32_t begin, uint32_t end)
{
    const struct norm_job *job = arg;
    uint32_t n = job->x->n_cols;

    (void)worker;
    for (uint32_t i = begin; i < end; i++) {
        const float *x = tensor_row(job->x, i);

        LEVEL(rmsnorm_row)(tensor_row(job->y, i), x, job->w, n, rmsnorm_scale(x, n, job->eps));
    }
}

int LEVEL(rmsnorm)(struct stream *s, struct tensor *y, const struct tensor *x, const float *w,
                   float eps)
{
    struct norm_job job = {.y = y, .x = x, .w = w, .eps = eps};

    pool_run(((struct cpu_stream *)s)->backend->pool, norm_rows, &job, x->n_rows, 16);
    return 0;
}
