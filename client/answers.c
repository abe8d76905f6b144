/* client/answers.c - what a request has made: its tokens and what belongs to each, in place in shared
 * memory, and its result as a whole.
 *
 * Everything is looked up in the slot table when it is asked for. What a running request has is what
 * was published by then; of one that has ended, what its end told. */
#include "client/internal.h"

#include <string.h>

#include "client/text.h"

int cb_tokens(struct cb_handle *h, uint64_t id, const uint32_t **idsp, size_t *np)
{
    struct cb_held *q;
    int r = cb_enter(h);
    if (r || !idsp || !np)
        return cb_fail(r ? r : CB_INVALID);
    *idsp = NULL;
    *np = 0;
    pthread_mutex_lock(&h->lock);
    q = cb_held_find_locked(h, id);
    if (q && q->ids) {
        *idsp = q->ids;
        *np = cb_count_locked(h, q);
    }
    pthread_mutex_unlock(&h->lock);
    return q ? 0 : cb_fail(CB_NOT_FOUND);
}

int cb_times(struct cb_handle *h, uint64_t id, const uint64_t **nsp, size_t *np)
{
    const uint32_t *ids;
    struct cb_held *q;
    int r = cb_enter(h);
    if (r || !nsp)
        return cb_fail(r ? r : CB_INVALID);
    *nsp = NULL;
    r = cb_tokens(h, id, &ids, np);
    if (r)
        return r;
    pthread_mutex_lock(&h->lock);
    q = cb_held_find_locked(h, id);
    if (!q)
        r = CB_NOT_FOUND;
    else if (!(q->flags & CB_TIMES))
        r = CB_INVALID;
    else
        *nsp = q->times;
    pthread_mutex_unlock(&h->lock);
    if (!*nsp)
        *np = 0;
    return r ? cb_fail(r) : 0;
}

/* What belongs to each of its tokens; false: nothing yet. *np: of how many. */
static bool look(struct cb_handle *h, struct cb_held *q, struct cb_slot_view *view, size_t *np)
{
    if (q->state == CB_REQUEST_SENT && !q->ids)
        return false;
    *np = cb_count_locked(h, q);
    if (!cb_view_locked(q, view))
        return false;
    if (q->state == CB_REQUEST_RUNNING)
        *np = view->emitted;
    return true;
}

int cb_epochs(struct cb_handle *h, uint64_t id, const uint32_t **epochsp, size_t *np)
{
    struct cb_slot_view view;
    struct cb_held *q;
    bool asked = false;
    int r = cb_enter(h);
    if (r || !epochsp || !np)
        return cb_fail(r ? r : CB_INVALID);
    *epochsp = NULL;
    *np = 0;
    pthread_mutex_lock(&h->lock);
    q = cb_held_find_locked(h, id);
    if (q) {
        size_t n;
        asked = q->flags & CB_EPOCHS;
        if (asked && look(h, q, &view, &n) && view.epochs) {
            *epochsp = view.epochs;
            *np = n;
        }
    }
    pthread_mutex_unlock(&h->lock);
    if (!q)
        return cb_fail(CB_NOT_FOUND);
    return asked ? 0 : cb_fail(CB_INVALID);
}

static_assert(sizeof(struct cb_top_logprob) == sizeof(struct cb_top) &&
                  offsetof(struct cb_top_logprob, logprob) == offsetof(struct cb_top, logprob),
              "cbclient.h spells format.h out");

/* Those of generated tokens, or of the prompt's, which are in DOWN. */
static int logprobs_of(struct cb_handle *h, uint64_t id, bool of_prompt, const float **logprobsp,
                       const struct cb_top_logprob **topp, size_t *np)
{
    struct cb_slot_view view;
    struct cb_held *q;
    bool asked = false;
    int r = cb_enter(h);
    if (r || !logprobsp || !np)
        return cb_fail(r ? r : CB_INVALID);
    *logprobsp = NULL;
    if (topp)
        *topp = NULL;
    *np = 0;
    pthread_mutex_lock(&h->lock);
    q = cb_held_find_locked(h, id);
    if (q) {
        size_t n;
        asked = q->flags & (of_prompt ? CB_PROMPT_LOGPROBS : CB_LOGPROBS);
        if (asked && look(h, q, &view, &n)) {
            *logprobsp = of_prompt ? view.prompt_logprobs : view.logprobs;
            if (topp)
                *topp = (const void *)(of_prompt ? view.prompt_top : view.top);
            *np = !*logprobsp ? 0 : of_prompt ? view.n_prompt : n;
        }
    }
    pthread_mutex_unlock(&h->lock);
    if (!q)
        return cb_fail(CB_NOT_FOUND);
    return asked ? 0 : cb_fail(CB_INVALID);
}

int cb_logprobs(struct cb_handle *h, uint64_t id, const float **logprobsp,
                const struct cb_top_logprob **topp, size_t *np)
{
    return logprobs_of(h, id, false, logprobsp, topp, np);
}

int cb_prompt_logprobs(struct cb_handle *h, uint64_t id, const float **logprobsp,
                       const struct cb_top_logprob **topp, size_t *np)
{
    return logprobs_of(h, id, true, logprobsp, topp, np);
}

void cb_fill_result_locked(struct cb_handle *h, struct cb_held *q, struct cb_result *result)
{
    struct cb_slot_view view;
    uint64_t id = cb_load64(&q->id, CB_RELAXED);
    memset(result, 0, sizeof(*result));
    result->id = id;
    result->user = q->user;
    result->seed = q->seed;
    result->end = q->end;
    result->status = q->status;
    memcpy(result->detail, q->detail, sizeof(result->detail));
    result->predicted_start_ns = (uint64_t)q->start_us * 1000;
    result->predicted_finish_ns = (uint64_t)q->finish_us * 1000;
    result->n_prompt = q->n_prompt;
    result->n_generated = cb_count_locked(h, q);
    result->ids = q->ids;
    if (!q->ids || !cb_view_locked(q, &view))
        return;
    if (q->state == CB_REQUEST_RUNNING)
        result->n_generated = view.emitted;
    result->n_prefix_hit = view.n_prefix_hit;
    result->weight_epoch = view.weight_epoch;
    result->queued_ns = view.queued_ns;
    result->first_token_ns = view.first_token_ns;
    result->total_ns = view.total_ns;
    if (q->end == CB_END_STOP) {
        result->stop_is_id = (view.finish & CB_FINISH_STOP_ID) != 0;
        result->stop_idx = view.stop_idx;
        result->text_bytes = view.text_bytes;
    }
}

int cb_result(struct cb_handle *h, uint64_t id, struct cb_result *result)
{
    struct cb_held *q;
    int r = cb_enter(h);
    if (r || !result)
        return cb_fail(r ? r : CB_INVALID);
    memset(result, 0, sizeof(*result));
    pthread_mutex_lock(&h->lock);
    q = cb_held_find_locked(h, id);
    if (q)
        cb_fill_result_locked(h, q, result);
    pthread_mutex_unlock(&h->lock);
    return q ? 0 : cb_fail(CB_NOT_FOUND);
}

/* ---- its text -------------------------------------------------------------------------------- */

/* The request's text, brought up to date. */
static int current_text(struct cb_handle *h, uint64_t id, struct cb_text **textp)
{
    const uint32_t *ids = NULL;
    struct cb_text *t = NULL;
    struct cb_held *q;
    uint32_t n = 0, flags = 0, n_restarts = 0;
    bool ended = false;
    int r;
    pthread_mutex_lock(&h->lock);
    q = cb_held_find_locked(h, id);
    if (q) {
        t = q->text;
        ids = q->ids;
        flags = q->flags;
        ended = q->state >= CB_REQUEST_ENDED;
        n = cb_count_locked(h, q);
        n_restarts = q->n_restarts;
    }
    pthread_mutex_unlock(&h->lock);
    if (!q)
        return cb_fail(CB_NOT_FOUND);
    if (!t) {
        r = cb_text_new(&t, h, NULL, 0, flags);
        if (r)
            return r;
        q->text = t; /* the caller's own: one call at a time, and no release meanwhile */
    }
    *textp = t;
    return cb_text_update(t, h, n_restarts, ids, n, ended);
}

int cb_text(struct cb_handle *h, uint64_t id, const char **textp, size_t *bytesp)
{
    struct cb_text *t;
    int r = cb_enter(h);
    if (r || !textp || !bytesp)
        return cb_fail(r ? r : CB_INVALID);
    *textp = "";
    *bytesp = 0;
    r = current_text(h, id, &t);
    if (r || t->n_told == t->text.n)
        return r;
    *textp = t->text.bytes + t->n_told;
    *bytesp = t->text.n - t->n_told;
    t->n_told = t->text.n;
    return 1;
}

int cb_text_all(struct cb_handle *h, uint64_t id, const char **textp, size_t *bytesp)
{
    struct cb_text *t;
    int r = cb_enter(h);
    if (r || !textp || !bytesp)
        return cb_fail(r ? r : CB_INVALID);
    *textp = "";
    *bytesp = 0;
    r = current_text(h, id, &t);
    if (r)
        return r;
    *textp = t->text.bytes;
    *bytesp = t->text.n;
    return 0;
}

int cb_text_tail(struct cb_handle *h, uint64_t id, uint8_t tail[4], size_t *np)
{
    struct cb_text *t;
    const uint8_t *bytes;
    int r = cb_enter(h);
    if (r || !tail || !np)
        return cb_fail(r ? r : CB_INVALID);
    *np = 0;
    r = current_text(h, id, &t);
    if (r || !t->finished)
        return r;
    bytes = cb_decoder_tail(&t->decoder, np);
    memcpy(tail, bytes, *np);
    return 0;
}
