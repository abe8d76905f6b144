/* Normal forms are made once, at submission, so that a step only copies. */
#include "daemon/sample/sampler.h"

#include <assert.h>

void sampler_init(struct sampler *s, float temperature, uint32_t top_k, float top_p, uint64_t seed,
                  uint32_t n_vocab)
{
    assert(temperature >= 0 && top_p > 0);
    if (temperature == 0)
        *s = (struct sampler){.temperature = 0, .top_p = 1, .top_k = 0, .seed = 0};
    else
        *s = (struct sampler){.temperature = temperature,
                              .top_p = top_p < 1 ? top_p : 1,
                              .top_k = top_k < n_vocab ? top_k : 0,
                              .seed = seed};
}

void sampler_params(const struct sampler *s, uint32_t token_idx, struct sample_params *params)
{
    *params = (struct sample_params){.temperature = s->temperature,
                                     .top_k = s->top_k,
                                     .top_p = s->top_p,
                                     .seed = s->seed,
                                     .child_idx = 0,
                                     .token_idx = token_idx};
}

int sampler_token(const struct sample *sample, uint32_t n_vocab, uint32_t *tokenp)
{
    if (sample->not_finite)
        return SAMPLER_NOT_FINITE;
    if (sample->token >= n_vocab)
        return SAMPLER_BAD_TOKEN;
    *tokenp = sample->token;
    return 0;
}
