/* Rows are shared out among workers, over the drawing that all CPU backends share. */
#include "kernels/cpu/level.h"
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
    const struct sampler_scratch scratch = sampler_scratch_at(
        job->s->sampler + (size_t)worker * job->s->sampler_bytes, job->s->shape.n_vocab);

    for (uint32_t i = begin; i < end; i++)
        sampling_row(&job->samples[i], tensor_row(job->logits, i), job->logits->n_cols,
                     &job->rows[i], &job->params[i], job->s->backend->level->sampling_sweeps,
                     &scratch);
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
