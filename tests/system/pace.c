#include "tests/system/pace.h"

#include <sys/mman.h>
#include <time.h>

struct pace *pace_new(void)
{
    void *p =
        mmap(NULL, sizeof(struct pace), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

struct pace *pace_free(struct pace *p)
{
    if (p)
        munmap(p, sizeof *p);
    return NULL;
}

void pace_clear(struct pace *p)
{
    atomic_store(&p->n_tokens, 0);
    for (unsigned i = 0; i < CB_HISTOGRAM_BUCKETS; i++)
        atomic_store(&p->gaps[i], 0);
}

uint64_t pace_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

void pace_note(struct pace *p, uint64_t n, uint64_t *last_ns)
{
    uint64_t now = pace_now_ns();
    if (*last_ns)
        atomic_fetch_add(&p->gaps[cb_histogram_bucket(now - *last_ns)], 1);
    *last_ns = now;
    atomic_fetch_add(&p->n_tokens, n);
}

uint64_t pace_gap_us(const struct pace *p, double q)
{
    struct cb_histogram h = {0};
    for (unsigned i = 0; i < CB_HISTOGRAM_BUCKETS; i++)
        h.buckets[i] = atomic_load(&p->gaps[i]);
    return cb_histogram_quantile(&h, q) / 1000;
}
