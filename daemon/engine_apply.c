/* Results of a request whose end is decided are dropped, and so are those of one that must begin
 * anew. Of the others each row is looked at before it counts: one that makes no sense takes the
 * request's blocks out of everyone's reach. */
#include <assert.h>

#include "daemon/engine_state.h"
#include "daemon/model/vocabulary.h"

/* A row was nonsense, so what is in the request's blocks may be. If it was not finite the request
 * is computed once more, from clean blocks: the fault may have been another's, or the machine's. */
static void refuse_row(struct engine *e, struct request *r, int why)
{
    scheduler_distrust(e->scheduler, r, 0);
    if (why == SAMPLER_NOT_FINITE && !r->is_suspect) {
        r->is_suspect = true;
        scheduler_restart(e->scheduler, r);
    } else {
        engine_decide(e, r, FINISH_ERROR,
                      why == SAMPLER_NOT_FINITE     ? CB_NOT_FINITE
                      : why == SAMPLER_NOTHING_LEFT ? CB_NOTHING_LEFT
                                                    : CB_DEVICE);
    }
}

/* Hands out what output output_idx says of a token's probability, if that was asked for. */
static void tell_logprobs(struct engine *e, struct request *r, bool of_prompt, uint32_t index,
                          uint32_t output_idx)
{
    const struct sample_params *params = &e->batch->params[output_idx];
    const struct engine_logprobs l = {.logprob = e->batch->samples[output_idx].logprob,
                                      .best = params->best,
                                      .n_best = params->n_best};
    if (params->logprobs != SAMPLE_NO_LOGPROBS && e->sink.logprobs)
        e->sink.logprobs(e->sink.ctx, r, r->owner, of_prompt, index, &l);
}

/* Hands out the log-probabilities of a part of the prompt: whether the rows made sense. */
static bool take_scores(struct engine *e, struct request *r, const struct batch_entry *entry)
{
    for (uint32_t i = 0; i < entry->n_scores; i++) {
        uint32_t output_idx = entry->score_output_idx + i, token;
        int why = sampler_token(&e->batch->samples[output_idx], e->info->n_vocab, &token);
        if (why) {
            refuse_row(e, r, why);
            return false;
        }
        tell_logprobs(e, r, true, entry->score_idx + i, output_idx);
        r->n_scored = entry->score_idx + i + 1;
    }
    return true;
}

/* Notes whose token the next one is. */
static void note_epoch(const struct engine *e, struct request *r)
{
    bool is_anew = request_n_generated(r) > 0 && r->kv_epoch != r->told_kv_epoch;
    r->token_epoch = e->epoch | (is_anew ? CB_EPOCH_ANEW : 0);
    r->told_kv_epoch = r->kv_epoch;
    r->end.weight_epoch = e->epoch;
}

/* Hands out the token that an entry yielded and sees whether the request ends with it. */
static void take_token(struct engine *e, struct request *r, uint32_t output_idx, uint64_t now_ns)
{
    uint32_t token, n_text;
    int r_sample = sampler_token(&e->batch->samples[output_idx], e->info->n_vocab, &token);
    if (r_sample) {
        refuse_row(e, r, r_sample);
        return;
    }
    if (r->max_new_tokens == 0) { /* only its prompt was wanted */
        engine_decide(e, r, FINISH_LENGTH, 0);
        return;
    }
    tell_logprobs(e, r, false, request_n_generated(r), output_idx);
    const uint8_t *text = cb_vocab_text(e->vocab, token, &n_text);
    uint32_t index = request_n_generated(r);
    note_epoch(e, r);
    if (request_append(r, token, e->info->eos, e->info->n_eos, text, n_text, now_ns))
        list_append(&e->ending, &r->end_link);
    e->sink.token(e->sink.ctx, r, r->owner, index, token, now_ns);
}

/* Those of r's children whose time has come begin where r stands. Who can't be given that computes
 * it. */
static void fork_children(struct engine *e, struct request *r, uint64_t now_ns)
{
    struct request *child;
    while ((child = scheduler_fork(e->scheduler, r, now_ns)) != NULL)
        if (backing_fork(&e->backing, &r->table, &child->table))
            scheduler_restart(e->scheduler, child);
}

/* Nothing of the step was computed, not even for those whose end was decided meanwhile. */
static void fail_batch(struct engine *e)
{
    for (uint32_t i = 0; i < e->batch->n_entries; i++)
        engine_decide(e, e->batch->entries[i].r, FINISH_ERROR, CB_DEVICE);
    for (uint32_t i = 0; i < e->batch->n_entries; i++)
        scheduler_distrust(e->scheduler, e->batch->entries[i].r, 0);
}

void engine_apply(struct engine *e, int step_error)
{
    uint64_t now_ns = clock_now(e->clock);
    e->in_flight = false;
    e->stats.n_steps++;
    e->stats.model_ns += now_ns - e->submit_ns;
    if (!step_error)
        scheduler_observe(e->scheduler, e->batch, now_ns - e->submit_ns);
    engine_look(e);
    if (step_error)
        fail_batch(e);
    for (uint32_t i = 0; i < e->batch->n_entries; i++) {
        const struct batch_entry *entry = &e->batch->entries[i];
        struct request *r = entry->r;
        if (entry->decodes)
            e->stats.n_decode_tokens++;
        else
            e->stats.n_prefill_tokens += entry->n_tokens;
        if (r->end.finish != FINISH_NONE || r->phase == REQUEST_WAITING)
            continue;
        scheduler_advance(e->scheduler, entry);
        fork_children(e, r, now_ns);
        if (take_scores(e, r, entry) && entry->yields)
            take_token(e, r, entry->output_idx, now_ns);
    }
}
