/* Normal forms are made once, at submission, so that a step only copies. A step's parameters name a
 * program only where it can change something, for then the head must write the row's logits. */
#include "daemon/sample/sampler.h"

#include <assert.h>
#include <string.h>

void sampler_wishes_init(struct sampler_wishes *w)
{
    *w = (struct sampler_wishes){.typical_p = 1, .repetition_penalty = 1, .first_id = SAMPLE_NO_ID};
}

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
    s->first_id = SAMPLE_NO_ID;
}

static void copy_ids(uint32_t *to, const uint32_t *ids, uint32_t n)
{
    if (n)
        memcpy(to, ids, n * sizeof *ids);
}

void sampler_wish(struct sampler *s, const struct sampler_wishes *w, struct sampler_lists *lists,
                  const uint32_t *ends, uint32_t n_ends)
{
    bool draws = s->temperature > 0;

    assert(w->n_biases <= CB_BIASES_MAX && w->n_allowed <= CB_IDS_MAX && w->n_banned <= CB_IDS_MAX);
    assert(n_ends <= SAMPLER_ENDS_MAX && w->n_best <= SAMPLE_BEST_MAX);
    s->program = (struct sample_program){
        .min_p = draws ? w->min_p : 0,
        .typical_p = draws ? w->typical_p : 1,
        .repetition_penalty = w->repetition_penalty,
        .presence_penalty = w->presence_penalty,
        .frequency_penalty = w->frequency_penalty,
        .no_repeat_ngram = w->no_repeat_ngram,
        .min_new_tokens = w->min_new_tokens,
        .n_biases = w->n_biases,
        .n_allowed = w->n_allowed,
        .n_banned = w->n_banned,
        .n_ends = n_ends,
        .biases = lists->biases,
        .allowed = lists->allowed,
        .banned = lists->banned,
        .ends = lists->ends,
    };
    if (w->n_biases)
        memcpy(lists->biases, w->biases, w->n_biases * sizeof *w->biases);
    copy_ids(lists->allowed, w->allowed, w->n_allowed);
    copy_ids(lists->banned, w->banned, w->n_banned);
    copy_ids(lists->ends, ends, n_ends);
    s->edits = w->repetition_penalty != 1 || w->presence_penalty != 0 ||
               w->frequency_penalty != 0 || w->no_repeat_ngram || w->n_biases || w->n_allowed ||
               w->n_banned;
    s->cuts = s->program.min_p > 0 || s->program.typical_p < 1;
    s->first_id = w->first_id;
    s->logprobs = w->logprobs;
    s->n_best = w->logprobs != SAMPLE_NO_LOGPROBS ? w->n_best : 0;
    s->prompt_logprobs = w->prompt_logprobs;
}

void sampler_params(const struct sampler *s, const uint32_t *ids, uint32_t n_ids, uint32_t n_prompt,
                    struct sample_best *best, struct sample_params *params)
{
    uint32_t token_idx = n_ids - n_prompt;
    bool keeps_ends = token_idx < s->program.min_new_tokens && s->program.n_ends;

    *params = (struct sample_params){
        .temperature = s->temperature,
        .top_k = s->top_k,
        .top_p = s->top_p,
        .seed = s->seed,
        .child_idx = s->child_idx,
        .token_idx = token_idx,
        .program = s->edits || s->cuts || keeps_ends ? &s->program : NULL,
        .ids = ids,
        .n_ids = n_ids,
        .n_prompt = n_prompt,
        .is_given = token_idx == 0 && s->first_id != SAMPLE_NO_ID,
        .given_id = s->first_id,
        .logprobs = s->logprobs,
        .n_best = s->n_best,
        .best = best,
    };
}

void sampler_score_params(const struct sampler *s, uint32_t given_id, struct sample_best *best,
                          struct sample_params *params)
{
    *params = (struct sample_params){.top_p = 1,
                                     .is_given = true,
                                     .given_id = given_id,
                                     .logprobs = SAMPLE_RAW,
                                     .n_best = s->n_best,
                                     .best = best};
}

int sampler_token(const struct sample *sample, uint32_t n_vocab, uint32_t *tokenp)
{
    if (sample->not_finite)
        return SAMPLER_NOT_FINITE;
    if (sample->nothing_left)
        return SAMPLER_NOTHING_LEFT;
    if (sample->token >= n_vocab)
        return SAMPLER_BAD_TOKEN;
    *tokenp = sample->token;
    return 0;
}
