/* The page is mapped for a moment only: a mapping kept would show a daemon that is gone as one that
 * idles. */
#include "tools/watch.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "client/internal.h"

static enum watch_state state_of(const struct watch *w)
{
    return cb_is_suspended(w->boot.pid)    ? WATCH_SUSPENDED
           : w->counters[CB_STAT_draining] ? WATCH_DRAINING
           : w->counters[CB_STAT_paused]   ? WATCH_PAUSED
                                           : WATCH_SERVING;
}

static void copy_page(struct watch *w, const void *page)
{
    uint64_t now_s = (uint64_t)time(NULL);

    cb_stats_boot(page, &w->boot);
    w->taken_ns = cb_now_ns();
    if (now_s > w->boot.started_unix_s)
        w->up_ns = (now_s - w->boot.started_unix_s) * 1000000000u;
    for (int i = 0; i < CB_STAT_COUNT; i++)
        w->counters[i] = cb_stats_read(page, (enum cb_stat)i);
    for (int i = 0; i < CB_TIMING_COUNT; i++)
        cb_stats_histogram(page, (enum cb_timing)i, &w->timings[i]);
    w->state = state_of(w);
}

int watch_take(const char *instance, struct watch *w, char why[WATCH_WHY_MAX])
{
    struct cb_options where;
    struct cb_found_status found;
    int r = 0;

    *w = (struct watch){0};
    cb_options_init(&where);
    where.instance = instance;
    if (cb_find_status(&where, &found)) {
        snprintf(why, WATCH_WHY_MAX, "%s", cb_message());
        return -1;
    }
    copy_page(w, found.page.base);
    w->maker = found.maker.uid;
    if (!found.maker.is_live) {
        snprintf(why, WATCH_WHY_MAX,
                 "no daemon serves this instance: the last one, process %" PRIu64
                 ", was killed, and left its STATUS page in /dev/shm%s",
                 w->boot.pid, found.name);
        r = -1;
    }
    cb_segment_unmap(&found.page);
    return r;
}

const char *watch_state_name(enum watch_state state)
{
    static const char *const names[WATCH_STATES] = {"serving", "draining", "paused", "suspended"};

    return names[state];
}

bool watch_is_same_boot(const struct watch *a, const struct watch *b)
{
    return memcmp(a->boot.boot_id, b->boot.boot_id, sizeof a->boot.boot_id) == 0;
}
