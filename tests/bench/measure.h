/* tests/bench/measure.h - the clock and the order that benches share. */
#ifndef CB_BENCH_MEASURE_H
#define CB_BENCH_MEASURE_H

#include <stddef.h>
#include <stdlib.h>
#include <time.h>

/* Seconds, from an origin of its own. */
static inline double bench_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static inline int bench_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* The least first. */
static inline void bench_sort(double *values, size_t n)
{
    qsort(values, n, sizeof *values, bench_compare);
}

#endif
