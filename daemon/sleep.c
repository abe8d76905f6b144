/* Falling asleep is one half of a Dekker pair with every client: say doze in all lanes, fence, look
 * at all lanes again, and only then block. With lanes open a sleep lasts at most net_ms, and what
 * is found then that no bell announced is counted: the net under our own bugs, not a means of
 * progress. Without lanes nothing wakes. */
#include "daemon/sleep.h"

#include <string.h>

#include "daemon/base/clock.h"

#define MS           1000000ull
#define BELL_NS_MOST (100 * MS) /* between what is published and its bell, on a slow machine */

typedef int (*lane_visit)(struct daemon *d, struct client *cl);

/* Calls visit for every live client; the sum of what it returned. */
static int visit_lanes(struct daemon *d, lane_visit visit)
{
    struct list *l, *after, *k, *behind;
    int sum = 0;
    list_for_each (l, after, &d->clients->quotas->used) {
        struct quota *q = list_entry(l, struct quota, link);
        list_for_each (k, behind, &q->live)
            sum += visit(d, list_entry(k, struct client, link));
    }
    return sum;
}

static int visit_doze(struct daemon *d, struct client *cl)
{
    (void)d;
    cb_lane_doze(cl->lane);
    return 1;
}

static int visit_undoze(struct daemon *d, struct client *cl)
{
    (void)d;
    cb_lane_undoze(cl->lane);
    return 1;
}

/* As cb_lane_look_again; a lane that is broken is closed. */
static int look_again(struct daemon *d, struct client *cl)
{
    int r = cb_lane_look_again(cl->lane, cl->n_running > 0); /* if any, none may run */
    if (r < 0)
        clients_close(d->clients, cl, CB_CLOSED_BROKEN);
    return r;
}

static int visit_look(struct daemon *d, struct client *cl)
{
    return look_again(d, cl) != CB_LANE_NOTHING;
}

static int visit_missed(struct daemon *d, struct client *cl)
{
    return look_again(d, cl) > 0; /* no bell is due for a broken one */
}

/* What is there, and no bell told of. One may be on its way: whoever is to ring may have lost its
 * core since it published. So it is waited for; the daemon dozes all the while. */
static void look_for_missed(struct daemon *d)
{
    if (visit_lanes(d, visit_missed) == 0)
        return;
    d->is_woken = loop_wait(d->config.loop, BELL_NS_MOST);
    if (d->is_woken)
        return;
    int found = visit_lanes(d, visit_missed);
    cb_stats_add(d->config.stats, CB_STAT_wake_missed, (uint64_t)found);
}

bool sleep_is_early(struct daemon *d, uint64_t now_ns)
{
    const struct settings *set = d->config.settings;
    if (d->idle_since_ns == 0)
        d->idle_since_ns = now_ns;
    if (strcmp(set->wait_mode, "spin") == 0)
        return true;
    if (strcmp(set->wait_mode, "eco") == 0 || !d->may_spin)
        return false;
    double window_us = (double)set->spin_us;
    if (window_us > d->step_us / 10)
        window_us = d->step_us / 10;
    return (double)(now_ns - d->idle_since_ns) < window_us * 1000;
}

/* How long it is to at_ns, at most max_ns. */
static uint64_t until(uint64_t at_ns, uint64_t now_ns, uint64_t max_ns)
{
    uint64_t ns = at_ns > now_ns ? at_ns - now_ns : 0;
    return ns < max_ns ? ns : max_ns;
}

void sleep_until_something(struct daemon *d)
{
    uint64_t max_ns = LOOP_FOREVER;
    if (d->clients->n_lanes > 0)
        max_ns = d->config.settings->net_ms * MS;
    if (!d->is_populated && max_ns > SLEEP_QUIET_NS)
        max_ns = SLEEP_QUIET_NS;
    bells_settle(&d->clients->bells);
    uint64_t sleep_ns = until(engine_next_ns(d->engine), clock_now(d->config.clock), max_ns);
    (void)visit_lanes(d, visit_doze);
    cb_lane_doze_fence();
    if (visit_lanes(d, visit_look) == 0) {
        uint64_t begun_ns = clock_now(d->config.clock);
        d->is_woken = loop_wait(d->config.loop, sleep_ns);
        /* Only a sleep that lasted: it may also end early, when a bell of ours is off, and before a
         * deadline it may be shorter than a bell's way. */
        if (!d->is_woken && clock_now(d->config.clock) - begun_ns >= max_ns)
            look_for_missed(d);
    }
    (void)visit_lanes(d, visit_undoze);
    d->idle_since_ns = 0;
}
