/* tests/bench/ipc/load.h - a load on a way, and how long its rounds took. */
#ifndef CB_BENCH_IPC_LOAD_H
#define CB_BENCH_IPC_LOAD_H

#include "tests/bench/ipc/way.h"

struct load {
    uint32_t n_max;     /* rounds, at most */
    double seconds_max; /* and so long, at most */
    double interval_ns; /* 0: each round begins when the one before has ended. Else they are due so
                           far apart, whatever happens, and are timed from when they were due. */
};

struct took {
    uint32_t n;
    double p50, p99, p999, max; /* ns */
};

uint64_t load_now_ns(void);
/* Rounds on one lane after the other. */
struct took load_run(const struct way *way, void *ctx, uint32_t n_lanes, const struct load *load);
/* By the values, which are put in order. */
struct took load_took(uint64_t *ns, uint32_t n);
double load_median(double *values, uint32_t n);

#endif
