/* base/clock.h - the only way this daemon reads the time.
 *
 * Time is nanoseconds that never go backwards, from an origin of the clock's own; 0 is never
 * returned, so that 0 can mean "not reached". Two bodies: the machine's monotonic clock, and a
 * virtual one that stands still until somebody moves it, for simulation and tests. */
#ifndef CB_DAEMON_BASE_CLOCK_H
#define CB_DAEMON_BASE_CLOCK_H

#include <stdint.h>

struct clock {
    uint64_t (*now_ns)(void *ctx);
    void *ctx;
};

static inline uint64_t clock_now(const struct clock *c)
{
    return c->now_ns(c->ctx);
}

extern const struct clock clock_monotonic; /* CLOCK_MONOTONIC */

struct virtual_clock {
    uint64_t now_ns; /* its owner moves it, forwards only */
};

/* Starts at 1 s. *c is the face to hand out; it must not outlive *v. */
void virtual_clock_init(struct virtual_clock *v, struct clock *c);

#endif
