/* Starved requests are dealt with at the beginning of the next plan, not at once: what ends in
 * between often makes the room, and nobody needs to be computed again. Whoever presses is
 * different: it does not run yet, and those it presses are behind it in the order, so they are not
 * in the batch and can be reset on the spot. */
#include "daemon/sched/scheduler_state.h"

/* Whether all starved requests, the oldest first, could now have what they last asked for. */
static bool starved_fit(const struct scheduler *s)
{
    struct cache_lack lack = {0};
    for (const struct list *link = s->active.next; link != &s->active; link = link->next) {
        const struct request *r = list_entry(link, struct request, link);
        if (r->starved_tokens == 0)
            continue;
        if (!cache_has_room(s->cache, &lack, &r->table, r->starved_tokens))
            return false;
    }
    return true;
}

/* Takes an active request's blocks and its place. */
static void give_up(struct scheduler *s, struct request *r)
{
    scheduler_deactivate(s, r);
    if (scheduler_put_aside(s, r))
        return;
    request_soft_reset(r, s->cache);
    s->n_soft_resets++;
}

static void wait_again(struct scheduler *s, struct request *r)
{
    list_append(&s->waiting, &r->link);
    s->n_waiting++;
    policy_queue_again(s->policy, r);
    s->admission_shut = true;
}

bool scheduler_yield(struct scheduler *s)
{
    bool was_shut = s->admission_shut;
    for (struct list *link = s->active.prev; link != &s->active; link = link->prev) {
        struct request *r = list_entry(link, struct request, link);
        if (!request_is_paused(r))
            continue;
        give_up(s, r);
        wait_again(s, r);
        s->admission_shut = was_shut && s->n_active > 0;
        return true;
    }
    return false;
}

/* They wait in the order in which they were active. */
bool scheduler_relieve(struct scheduler *s)
{
    struct list victims, *link, *after;
    list_init(&victims);
    while (s->n_starved > 0 && s->n_active > 1 && !starved_fit(s)) {
        struct request *r = policy_loser(s->policy, &s->active);
        if (!r) {
            s->n_starved = 0; /* it was counted wrong */
            break;
        }
        give_up(s, r);
        list_prepend(&victims, &r->link);
    }
    if (list_is_empty(&victims))
        return false;
    list_for_each (link, after, &victims) {
        list_remove(link);
        wait_again(s, list_entry(link, struct request, link));
    }
    return true;
}

bool scheduler_press(struct scheduler *s, const struct request *r, uint32_t n_blocks)
{
    struct cache_counts room;
    uint32_t n_held;
    struct request *victim = policy_pressed_by(s->policy, &s->active, r, n_blocks, &n_held);
    if (!victim)
        return false;
    cache_counts(s->cache, &room);
    if (n_held + room.n_unheld < n_blocks)
        return false;
    give_up(s, victim);
    wait_again(s, victim);
    return true;
}
