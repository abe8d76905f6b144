/* tests/util/busy.h - users who are busy all the time, from one seed: is it fair, does anyone
 * starve?
 *
 * Two users always have requests waiting, others come and go, for some hundred steps on the clock
 * of timed.h; scheduler, cache, weights, sizes, continuations and cancels are drawn. Checked at
 * each step: all audits; under fair and auto that the two differ in service by no more than
 * shares.h says; under all schedulers that rank that nobody waits longer than it takes to compute
 * what was there before it. */
#ifndef CB_TESTS_UTIL_BUSY_H
#define CB_TESTS_UTIL_BUSY_H

#include <stdint.h>

#include "tests/util/timed.h"

struct busy_report {
    char error[192]; /* empty: all held */
    uint64_t digest, n_steps, n_requests, n_soft_resets, n_forks, n_cancelled;
    double closeness; /* the largest difference in service, as a share of its bound */
};

/* 0, or -1 with report->error. */
int busy_run(uint64_t seed, struct busy_report *report);

#endif
