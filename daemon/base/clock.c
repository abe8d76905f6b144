/* The monotonic clock is read through the vDSO: some 20 ns, no system call. */
#include "daemon/base/clock.h"

#include <time.h>

static uint64_t monotonic_now(void *ctx)
{
    (void)ctx;
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    uint64_t ns = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
    return ns ? ns : 1;
}

const struct clock clock_monotonic = {.now_ns = monotonic_now, .ctx = NULL};

static uint64_t virtual_now(void *ctx)
{
    const struct virtual_clock *v = ctx;
    return v->now_ns;
}

void virtual_clock_init(struct virtual_clock *v, struct clock *c)
{
    v->now_ns = 1000000000u;
    c->now_ns = virtual_now;
    c->ctx = v;
}
