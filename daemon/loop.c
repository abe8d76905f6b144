/* What the bodies share: the table of watches, and timers in a sorted list. There are few timers at
 * a time (handshakes, a watchdog, a drain) and they are mostly set in the order in which they are
 * due, so an insertion that walks from the end beats a heap. */
#include "daemon/loop_body.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/clock.h"

#define NO_SLOT UINT32_MAX

int loop_init(struct loop *l, const struct loop_ops *ops, uint32_t n_slots,
              const struct clock *clock, struct log *log)
{
    l->ops = ops;
    l->clock = clock;
    l->log = log;
    l->n_slots = n_slots;
    list_init(&l->timers);
    l->slots = calloc(n_slots, sizeof *l->slots);
    l->ringing = calloc(n_slots, sizeof *l->ringing);
    if (!l->slots || !l->ringing) {
        loop_fini(l);
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < n_slots; i++) {
        l->slots[i].gen = 1;
        l->slots[i].next_free = i + 1 < n_slots ? i + 1 : NO_SLOT;
    }
    return 0;
}

void loop_fini(struct loop *l)
{
    free(l->slots);
    free(l->ringing);
    l->slots = NULL;
    l->ringing = NULL;
}

struct loop *loop_free(struct loop *l)
{
    if (l)
        l->ops->free(l);
    return NULL;
}

const char *loop_name(const struct loop *l)
{
    return l->ops->name;
}

int loop_watch(struct loop *l, struct loop_watch *w, uint32_t events)
{
    assert(!w->is_active && w->ready);
    uint32_t idx = l->first_free;
    if (idx == NO_SLOT)
        return -ENOSPC;
    struct loop_slot *s = &l->slots[idx];
    s->watch = w;
    w->idx = idx;
    w->events = events;
    int r = l->ops->arm(l, idx, true);
    if (r) {
        s->watch = NULL;
        return r;
    }
    l->first_free = s->next_free;
    w->is_active = true;
    w->is_ringing = false;
    return 0;
}

int loop_change(struct loop *l, struct loop_watch *w, uint32_t events)
{
    assert(w->is_active);
    if (w->events == events)
        return 0;
    w->events = events;
    return l->ops->arm(l, w->idx, false);
}

void loop_unwatch(struct loop *l, struct loop_watch *w)
{
    if (!w->is_active)
        return;
    struct loop_slot *s = &l->slots[w->idx];
    l->ops->disarm(l, w->idx);
    s->watch = NULL;
    s->gen = (s->gen + 1) & LOOP_GEN_MASK;
    s->next_free = l->first_free;
    l->first_free = w->idx;
    w->is_active = w->is_ringing = false;
}

void loop_ready(struct loop *l, uint32_t idx, uint32_t gen, uint32_t events)
{
    if (idx >= l->n_slots || !l->slots[idx].watch || l->slots[idx].gen != gen || !events)
        return;
    l->n_called++;
    l->slots[idx].watch->ready(l->slots[idx].watch, events);
}

void loop_rung(struct loop *l, uint32_t idx, uint32_t gen, int result)
{
    struct loop_watch *w = idx < l->n_slots ? l->slots[idx].watch : NULL;
    if (!w || l->slots[idx].gen != gen)
        return;
    if (w->rung)
        w->rung(w, result);
}

void loop_ring(struct loop *l, struct loop_watch *w)
{
    if (!w->is_active || w->is_ringing)
        return;
    w->is_ringing = true;
    l->ringing[l->n_ringing++] = w->idx;
}

void loop_ring_flush(struct loop *l)
{
    uint32_t n = 0;
    /* A watch may have gone since, its slot may even have another one. */
    for (uint32_t i = 0; i < l->n_ringing; i++) {
        struct loop_watch *w = l->slots[l->ringing[i]].watch;
        if (w && w->is_ringing) {
            w->is_ringing = false;
            l->ringing[n++] = l->ringing[i];
        }
    }
    l->n_ringing = 0;
    if (n)
        l->ops->ring(l, l->ringing, n);
}

void loop_timer_init(struct loop_timer *t, void (*due)(struct loop_timer *t))
{
    t->due = due;
    t->at_ns = 0;
    list_init(&t->link);
}

void loop_timer_set(struct loop *l, struct loop_timer *t, uint64_t at_ns)
{
    list_remove(&t->link);
    t->at_ns = at_ns ? at_ns : 1;
    struct list *before = l->timers.prev;
    while (before != &l->timers && list_entry(before, struct loop_timer, link)->at_ns > t->at_ns)
        before = before->prev;
    list_prepend(before, &t->link); /* at the place after `before` */
}

void loop_timer_clear(struct loop_timer *t)
{
    list_remove(&t->link);
    t->at_ns = 0;
}

static void timers_serve(struct loop *l)
{
    if (list_is_empty(&l->timers))
        return;
    uint64_t now = clock_now(l->clock);
    while (!list_is_empty(&l->timers)) {
        struct loop_timer *t = list_entry(l->timers.next, struct loop_timer, link);
        if (t->at_ns > now)
            break; /* one that its own handler sets again for now waits for the next serve */
        loop_timer_clear(t);
        l->n_called++;
        t->due(t);
    }
}

/* How long it is until the first timer is due. */
static uint64_t timers_left_ns(const struct loop *l)
{
    if (list_is_empty(&l->timers))
        return LOOP_FOREVER;
    uint64_t at = list_entry(l->timers.next, struct loop_timer, link)->at_ns;
    uint64_t now = clock_now(l->clock);
    return at > now ? at - now : 0;
}

bool loop_wait(struct loop *l, uint64_t max_ns)
{
    uint64_t left_ns = timers_left_ns(l);
    if (left_ns == 0)
        return true;
    return l->ops->wait(l, left_ns < max_ns ? left_ns : max_ns) || timers_left_ns(l) == 0;
}

int loop_serve(struct loop *l)
{
    l->n_called = 0;
    l->ops->tell(l);
    timers_serve(l);
    return (int)l->n_called;
}

int loop_sleep(struct loop *l, uint64_t max_ns)
{
    return loop_wait(l, max_ns) ? loop_serve(l) : 0;
}
