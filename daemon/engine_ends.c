/* engine_ends.c - requests that come to an end, by whatever decides it: first it is decided, then, between
 * steps, carried out. */
#include "daemon/engine_state.h"

#include <assert.h>

void engine_decide(struct engine *e, struct request *r, enum finish finish, int32_t error)
{
    if (r->end.finish != FINISH_NONE)
        return;
    r->end.finish = finish;
    r->end.error = error;
    list_append(&e->ending, &r->end_link);
}

bool engine_end_decided(struct engine *e)
{
    bool any = false;
    assert(!e->in_flight);
    while (!list_is_empty(&e->ending)) {
        struct request *r = list_entry(e->ending.next, struct request, end_link);
        list_remove(&r->end_link);
        scheduler_remove(e->scheduler, r);
        e->n_held_tokens -= (uint64_t)r->n_prompt + r->max_new_tokens;
        r->end.ended_ns = clock_now(e->clock);
        e->sink.end(e->sink.ctx, r, r->owner, &r->end);
        requests_release(e->requests, r);
        any = true;
    }
    return any;
}

static void visit_deadlines(struct engine *e, const struct list *head, uint64_t now_ns)
{
    for (const struct list *link = head->next; link != head; link = link->next) {
        struct request *r = list_entry(link, struct request, link);
        if (r->deadline_ns == 0)
            continue;
        if (r->deadline_ns <= now_ns)
            engine_decide(e, r, FINISH_DEADLINE, 0);
        else if (r->deadline_ns < e->next_deadline_ns)
            e->next_deadline_ns = r->deadline_ns;
    }
}

void engine_look(struct engine *e)
{
    if (e->sink.look)
        e->sink.look(e->sink.ctx);
    if (e->next_deadline_ns == UINT64_MAX)
        return;
    uint64_t now_ns = clock_now(e->clock);
    if (now_ns < e->next_deadline_ns)
        return;
    e->next_deadline_ns = UINT64_MAX;
    visit_deadlines(e, scheduler_active(e->scheduler), now_ns);
    visit_deadlines(e, scheduler_waiting(e->scheduler), now_ns);
}

int engine_settle(struct engine *e)
{
    int r = 0;
    if (e->in_flight)
        while ((r = model_step_poll(e->model, e->ticket, e->batch->samples)) == MODEL_STEP_RUNNING)
            ;
    e->in_flight = false;
    return r;
}

void engine_fail_all(struct engine *e, int32_t error)
{
    engine_settle(e);
    const struct list *heads[] = {scheduler_active(e->scheduler), scheduler_waiting(e->scheduler)};
    for (int i = 0; i < 2; i++)
        for (const struct list *link = heads[i]->next; link != heads[i]; link = link->next)
            engine_decide(e, list_entry(link, struct request, link), FINISH_ERROR, error);
    engine_end_decided(e);
}
