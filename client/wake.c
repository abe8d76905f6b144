/* client/wake.c - threads asleep on words of their own are told to look. */
#include "client/internal.h"

#include "shm/doorbell.h"

static void wake_one(struct cb_waiter *w)
{
    cb_store32(&w->word, 1, CB_RELAXED); /* the lock orders it */
    cb_doorbell_wake(&w->word);
}

void cb_wake_locked(struct cb_handle *h, uint64_t id, bool handled)
{
    enum cb_want_kind kind = handled ? CB_WANT_HANDLED : CB_WANT_EVENT;
    for (struct cb_waiter *w = h->waiters; w; w = w->next)
        if (w->want.kind == kind && (!w->want.id || w->want.id == id))
            wake_one(w);
}

void cb_wake_group_locked(struct cb_handle *h, const struct cb_group *group)
{
    for (struct cb_waiter *w = h->waiters; w; w = w->next)
        if (w->want.kind == CB_WANT_GROUP && w->want.group == group)
            wake_one(w);
}

void cb_wake_all_locked(struct cb_handle *h)
{
    for (struct cb_waiter *w = h->waiters; w; w = w->next)
        wake_one(w);
}

void cb_pass_lead_locked(struct cb_handle *h)
{
    if (h->waiters && !h->leader_parked)
        wake_one(h->waiters);
}
