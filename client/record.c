/* What is kept has room for the request's whole limit at once: that it never moves is what lets
 * pointers into it be handed out. Pages that are not written cost nothing. */
#include "client/record.h"

#include <stdlib.h>
#include <string.h>

#include "shm/message.h"

struct cb_origin {
    uint32_t n_users, n_ids;
    uint32_t *ids;
    unsigned char *options;
    size_t option_bytes;
};

static void origin_drop(struct cb_origin *o)
{
    if (!o || --o->n_users)
        return;
    free(o->ids);
    free(o->options);
    free(o);
}

static struct cb_origin *origin_new(const uint32_t *ids, uint32_t n_ids, const void *options,
                                    size_t option_bytes)
{
    struct cb_origin *o = calloc(1, sizeof(*o));
    if (!o)
        return NULL;
    o->n_users = 1;
    o->n_ids = n_ids;
    o->option_bytes = option_bytes;
    o->ids = malloc(n_ids * sizeof(*ids));
    o->options = malloc(option_bytes ? option_bytes : 1);
    if (!o->ids || !o->options) {
        origin_drop(o);
        return NULL;
    }
    memcpy(o->ids, ids, n_ids * sizeof(*ids));
    if (option_bytes)
        memcpy(o->options, options, option_bytes);
    return o;
}

struct cb_record *cb_record_new(const struct cb_request_entry *entry, uint32_t i,
                                const uint32_t *ids, const void *options, size_t option_bytes,
                                const struct cb_record *first)
{
    struct cb_record *r = calloc(1, sizeof(*r));
    if (!r)
        return NULL;
    if (first) {
        r->origin = first->origin;
        r->origin->n_users++;
    } else {
        r->origin = origin_new(ids, entry->n_prompt, options, option_bytes);
        if (!r->origin) {
            free(r);
            return NULL;
        }
    }
    r->entry = *entry;
    r->entry.n_children = 1;
    r->entry.child_idx = 0;
    r->child_idx = entry->child_idx + i;
    return r;
}

static void kept_free(struct cb_kept *k)
{
    if (!k)
        return;
    free(k->ids);
    free(k->epochs);
    free(k->times);
    free(k->logprobs);
    free(k->top);
    free(k->prompt_logprobs);
    free(k->prompt_top);
    free(k);
}

void cb_record_free(struct cb_record *r)
{
    if (!r)
        return;
    for (struct cb_kept *k = r->kept, *older; k; k = older) {
        older = k->older;
        kept_free(k);
    }
    origin_drop(r->origin);
    free(r);
}

static struct cb_kept *kept_new(uint32_t capacity, uint32_t n_prompt, uint32_t planes)
{
    struct cb_kept *k = calloc(1, sizeof(*k));
    size_t n = capacity ? capacity : 1;
    bool ok = k != NULL;
    if (!ok)
        return NULL;
    k->capacity = capacity;
    k->k = cb_planes_k(planes);
    ok &= (k->ids = malloc(n * sizeof(*k->ids))) != NULL;
    if (planes & CB_PLANE_TIMES)
        ok &= (k->times = calloc(n, sizeof(*k->times))) != NULL;
    if (planes & CB_PLANE_EPOCHS)
        ok &= (k->epochs = calloc(n, sizeof(*k->epochs))) != NULL;
    if (planes & CB_PLANE_LOGPROBS)
        ok &= (k->logprobs = calloc(n, sizeof(*k->logprobs))) != NULL;
    if (k->k)
        ok &= (k->top = calloc(n * k->k, sizeof(*k->top))) != NULL;
    if (planes & CB_PLANE_PROMPT)
        ok &= (k->prompt_logprobs = malloc(n_prompt * sizeof(*k->prompt_logprobs))) != NULL;
    if (planes & CB_PLANE_PROMPT && k->k)
        ok &= (k->prompt_top = malloc((size_t)n_prompt * k->k * sizeof(*k->prompt_top))) != NULL;
    if (!ok) {
        kept_free(k);
        return NULL;
    }
    return k;
}

int cb_record_keep(struct cb_record *r, uint32_t n_context)
{
    uint32_t limit = r->entry.max_new_tokens;
    if (r->kept)
        return 0;
    if (limit == CB_NO_LIMIT)
        limit = n_context - r->origin->n_ids;
    r->kept = kept_new(limit, r->origin->n_ids, r->entry.planes);
    return r->kept ? 0 : CB_NO_MEMORY;
}

static uint64_t later_by(uint64_t ns, uint64_t since_ns)
{
    return ns ? ns + since_ns : 0;
}

static void pull_prompt(struct cb_kept *k, const struct cb_slot_view *view)
{
    if (k->has_prompt || !k->prompt_logprobs || !view->prompt_logprobs)
        return;
    k->has_prompt = true;
    memcpy(k->prompt_logprobs, view->prompt_logprobs, view->n_prompt * sizeof(float));
    if (k->prompt_top && view->prompt_top)
        memcpy(k->prompt_top, view->prompt_top,
               (size_t)view->n_prompt * k->k * sizeof(*k->prompt_top));
}

void cb_record_pull(struct cb_record *r, const struct cb_slot_view *view)
{
    struct cb_slot_view *v = &r->view, old = *v;
    struct cb_kept *k = r->kept;
    uint32_t from = k->n, to = view->emitted < k->capacity ? view->emitted : k->capacity, n;
    *v = *view;
    v->ids = v->epochs = NULL;
    v->times = NULL;
    v->logprobs = v->prompt_logprobs = NULL;
    v->top = v->prompt_top = NULL;
    v->queued_ns = old.queued_ns ? old.queued_ns : later_by(view->queued_ns, r->since_ns);
    v->first_token_ns =
        old.first_token_ns ? old.first_token_ns : later_by(view->first_token_ns, r->since_ns);
    v->total_ns = later_by(view->total_ns, r->since_ns);
    if ((view->emitted > r->n_given || view->state == CB_SLOT_FINISHED) &&
        view->n_prompt == r->origin->n_ids)
        pull_prompt(k, view);
    if (to <= from || !view->ids)
        return;
    r->is_mixed |= view->weight_epoch != r->weight_epoch;
    n = to - from;
    memcpy(k->ids + from, view->ids + from, n * sizeof(*k->ids));
    for (uint32_t i = from; k->times && view->times && i < to; i++)
        k->times[i] = view->times[i] + r->since_ns;
    if (k->epochs && view->epochs)
        memcpy(k->epochs + from, view->epochs + from, n * sizeof(*k->epochs));
    if (k->logprobs && view->logprobs)
        memcpy(k->logprobs + from, view->logprobs + from, n * sizeof(*k->logprobs));
    if (k->top && view->top && view->n_top == k->k)
        memcpy(k->top + (size_t)from * k->k, view->top + (size_t)from * k->k,
               (size_t)n * k->k * sizeof(*k->top));
    k->n = to;
}

int cb_record_restart(struct cb_record *r)
{
    struct cb_kept *k = kept_new(r->kept->capacity, r->origin->n_ids, r->entry.planes);
    if (!k)
        return CB_NO_MEMORY;
    k->older = r->kept;
    r->kept = k;
    r->is_mixed = false;
    r->is_anew = true;
    memset(&r->view, 0, sizeof(r->view));
    return 0;
}

void cb_record_sent(struct cb_record *r, const struct cb_link *link, uint64_t now_ns)
{
    if (r->n_resumes == 0 && !r->sent_ns)
        r->sent_ns = now_ns;
    if (!r->kept || r->is_anew)
        memcpy(r->fingerprint, link->fingerprint, sizeof(r->fingerprint));
    r->is_anew = false;
    r->weight_epoch = link->weight_epoch;
    r->since_ns = now_ns - r->sent_ns;
    r->n_given = r->kept ? r->kept->n : 0;
}

void cb_record_entry(const struct cb_record *r, uint64_t now_ns, struct cb_request_entry *entry)
{
    const struct cb_resume resume = {.child_idx = r->child_idx};
    const struct cb_message_options last = {.resume = &resume};
    *entry = r->entry;
    entry->n_prompt = r->origin->n_ids + r->kept->n;
    entry->resume_from = r->kept->n;
    if (r->kept->has_prompt)
        entry->planes &= ~CB_PLANE_PROMPT;
    entry->opt_len = (uint32_t)(r->origin->option_bytes + cb_message_options_bytes(&last));
    entry->deadline_ns = r->due_ns ? r->due_ns - now_ns : 0;
}

void cb_record_write(const struct cb_record *r, struct cb_lane_client *lane,
                     const struct cb_request_entry *entry)
{
    const struct cb_resume resume = {.fingerprint = {r->fingerprint[0], r->fingerprint[1]},
                                     .child_idx = r->child_idx};
    const struct cb_message_options last = {.resume = &resume};
    uint64_t block[8];
    const struct cb_origin *o = r->origin;
    assert(cb_message_options_bytes(&last) <= sizeof(block));
    cb_message_options_build(&last, block);
    cb_lane_client_write_arena(lane, entry->prompt_off, o->ids, o->n_ids * sizeof(*o->ids));
    if (r->kept->n)
        cb_lane_client_write_arena(lane, entry->prompt_off + o->n_ids * sizeof(*o->ids),
                                   r->kept->ids, r->kept->n * sizeof(*r->kept->ids));
    if (o->option_bytes)
        cb_lane_client_write_arena(lane, entry->opt_off, o->options, o->option_bytes);
    cb_lane_client_write_arena(lane, entry->opt_off + o->option_bytes, block,
                               cb_message_options_bytes(&last));
}
