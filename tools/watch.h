/* tools/watch.h - one look at a daemon's STATUS page, copied out: what status, top and metrics show.
 *
 * Nothing is asked of the daemon, so a look never waits for it nor keeps it from its work. Each look
 * finds the page anew: a daemon that was replaced meanwhile is seen by its boot_id. */
#ifndef CB_TOOLS_WATCH_H
#define CB_TOOLS_WATCH_H

#include <stdbool.h>
#include <stdint.h>

#include <sys/types.h>

#include "shm/stats.h"

#define WATCH_WHY_MAX 512

enum watch_state { WATCH_SERVING, WATCH_DRAINING, WATCH_PAUSED, WATCH_SUSPENDED, WATCH_STATES };

struct watch {
    struct cb_stats_boot boot;
    uid_t maker; /* whose page it is, and so whose word all the rest is */
    enum watch_state state;
    uint64_t taken_ns; /* of the monotonic clock */
    uint64_t up_ns;    /* since its start, to the second; 0 if the machine's clock was set back */
    uint64_t counters[CB_STAT_COUNT];
    struct cb_histogram timings[CB_TIMING_COUNT];
};

/* 0, or -1 and `why` a sentence: there is no such daemon, or no right to look. */
int watch_take(const char *instance, struct watch *w, char why[WATCH_WHY_MAX]);

const char *watch_state_name(enum watch_state state);
/* Whether both are of one boot, so that a difference means something. */
bool watch_is_same_boot(const struct watch *a, const struct watch *b);

#endif
