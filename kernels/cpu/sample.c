/* One worker a row, over the drawing that all CPU backends share. */
#include "kernels/cpu/cpu.h"

#include "kernels/sampling.h"

struct sample_job {
    const struct cpu_stream *s;
    struct sample *samples;
    const struct tensor *logits;
    const struct head_row *rows;
    const struct sample_params *params;
};

static void sample_rows(void *arg, uint32_t worker, uint32_t begin, uint32_t end)
{
    const struct sample_job *job = arg;
    float *weights = job->s->weights + (size_t)worker * job->s->weights_stride;

    for (uint32_t i = begin; i < end; i++) {
        if (job->params[i].temperature == 0.0f)
            sampling_greedy(&job->samples[i], &job->rows[i]);
        else
            sampling_draw(&job->samples[i], tensor_row(job->logits, i), weights,
                          job->logits->n_cols, &job->params[i]);
    }
}

int cpu_sample(struct stream *stream, struct sample *samples, struct tensor *logits,
               const struct head_row *rows, const struct sample_params *params, uint32_t n_outputs)
{
    struct cpu_stream *s = (struct cpu_stream *)stream;
    struct sample_job job = {
        .s = s, .samples = samples, .logits = logits, .rows = rows, .params = params};

    pool_run(s->backend->pool, sample_rows, &job, n_outputs, 4);
    return 0;
}
