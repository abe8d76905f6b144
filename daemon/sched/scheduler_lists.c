/* daemon/sched/scheduler_lists.c - from waiting to active, and out of both: what counts them follows. */
#include "daemon/sched/scheduler_state.h"

void scheduler_stop_waiting(struct scheduler *s, struct request *r)
{
    list_remove(&r->link);
    s->n_waiting--;
    policy_unqueue(s->policy, r);
}

void scheduler_activate(struct scheduler *s, struct request *r, enum request_phase phase,
                        uint64_t now_ns)
{
    if (r->phase == REQUEST_WAITING) {
        scheduler_stop_waiting(s, r);
        list_append(&s->active, &r->link);
        s->n_active++;
        if (r->end.started_ns == 0)
            r->end.started_ns = now_ns;
    }
    r->phase = phase;
}

void scheduler_deactivate(struct scheduler *s, struct request *r)
{
    if (s->turn == &r->link)
        s->turn = r->link.next;
    list_remove(&r->link);
    s->n_active--;
    s->n_starved -= r->starved_tokens != 0;
}
