/* tests/bench/kernels/limits.h - what this machine can do at most, by all threads at once.
 *
 * Peaks of arithmetic come from independent chains of one instruction with its operands in registers;
 * the bandwidth from reading a buffer of the model's size over and over, so that a cache the model
 * fits into counts as memory. */
#ifndef CB_BENCH_LIMITS_H
#define CB_BENCH_LIMITS_H

#include "kernels/cpu/pool.h"

enum limit { LIMIT_READ, LIMIT_DOT8, LIMIT_BF16, LIMIT_FMA, N_LIMITS };

/* Bytes or multiply-adds a second over the repeats; all 0 where the machine has no such instruction. */
struct rate {
    double median, least, most;
};

/* Fills rates[N_LIMITS]. */
void limits_measure(struct pool *pool, struct rate *rates);

/* What it is, its unit, and how many of the unit are in one byte or multiply-add a second. */
const char *limit_name(enum limit limit);
const char *limit_unit(enum limit limit);
double limit_scale(enum limit limit);

/* Sorts n > 0 values: their median, least and most. */
struct rate rate_of(double *values, int n);

#endif
