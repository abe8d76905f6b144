/* A request's keys and values are of one epoch of weights, or else of several of which its tokens tell
 * where each began: the prompt is of that of the first token, and each generated id of that of the
 * token after it. Whoever replays them by what was told gets the same bits. So who stands in a prompt,
 * or in a repetition of what it had, begins anew: where it stood is told nowhere. */
#include "daemon/sched/scheduler_state.h"

static bool goes_on(const struct request *r, enum on_new_weights otherwise)
{
    enum on_new_weights wish = r->on_new_weights ? r->on_new_weights : otherwise;
    return wish == ON_NEW_WEIGHTS_CONTINUE && request_n_generated(r) > 0 &&
           r->past + 1 == r->n_ids && r->kv_epoch == r->told_kv_epoch;
}

/* What was told of its prompt is told again. */
static void forget_scores(struct request *r)
{
    if (request_n_generated(r) > 0)
        return;
    r->n_scored = 1;
    r->end.n_prefix_hit = 0;
}

void scheduler_switch(struct scheduler *s, uint32_t epoch, enum on_new_weights otherwise)
{
    struct list *link, *before;
    cache_forget_all(s->cache);
    s->epoch = epoch;
    for (link = s->waiting.next; link != &s->waiting; link = link->next) {
        struct request *r = list_entry(link, struct request, link);
        forget_scores(r);
        if (!request_is_aside(r) || goes_on(r, otherwise))
            continue;
        scheduler_drop_aside(s, r);
        s->n_restarts++;
    }
    /* The newest first, each before all: they wait in the order in which they were active. */
    for (link = s->active.prev; link != &s->active; link = before) {
        struct request *r = list_entry(link, struct request, link);
        before = link->prev;
        forget_scores(r);
        if (!goes_on(r, otherwise))
            scheduler_restart(s, r);
    }
}
