#include "tests/bench/ipc/load.h"

#include <stdlib.h>
#include <time.h>

#include "shm/atomics.h"
#include "tests/bench/ipc/peer.h"

enum { N_WARM = 200 };

uint64_t load_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

struct took load_took(uint64_t *ns, uint32_t n)
{
    if (n == 0)
        return (struct took){0};
    qsort(ns, n, sizeof *ns, by_value);
    return (struct took){.n = n,
                         .p50 = (double)ns[n / 2],
                         .p99 = (double)ns[(uint64_t)n * 99 / 100],
                         .p999 = (double)ns[(uint64_t)n * 999 / 1000],
                         .max = (double)ns[n - 1]};
}

static int by_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double load_median(double *values, uint32_t n)
{
    qsort(values, n, sizeof *values, by_double);
    return values[n / 2];
}

struct took load_run(const struct way *way, void *ctx, uint32_t n_lanes, const struct load *load)
{
    uint64_t *ns = malloc(load->n_max * sizeof *ns);
    uint32_t n = 0;
    if (!ns)
        peer_fail("load");
    for (uint32_t i = 0; i < N_WARM; i++)
        way->round(ctx, i % n_lanes);
    uint64_t begun = load_now_ns(), end = begun + (uint64_t)(load->seconds_max * 1e9), now = begun;
    for (; n < load->n_max && now < end; n++) {
        uint64_t due = load->interval_ns > 0 ? begun + (uint64_t)(load->interval_ns * n) : now;
        for (; now < due; now = load_now_ns())
            cb_spin_hint();
        way->round(ctx, n % n_lanes);
        now = load_now_ns();
        ns[n] = now - due;
    }
    struct took took = load_took(ns, n);
    free(ns);
    return took;
}
