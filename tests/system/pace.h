/* tests/system/pace.h - how fast tokens come, as clients in processes of their own see it: how many, and
 * how long after the one before. What is printed of it is for people; no test asserts a time. */
#ifndef CB_TESTS_SYSTEM_PACE_H
#define CB_TESTS_SYSTEM_PACE_H

#include <stdatomic.h>
#include <stdint.h>

#include "shm/histogram.h"

struct pace {
    _Atomic uint64_t n_tokens;
    _Atomic uint64_t gaps[CB_HISTOGRAM_BUCKETS]; /* events by the time since the request's last */
};

/* Shared with the processes that are forked from here on. */
struct pace *pace_new(void);
struct pace *pace_free(struct pace *p); /* NULL is fine; returns NULL */
void pace_clear(struct pace *p);

/* A request got n tokens; *last_ns: when it got the ones before, 0: it had none; brought up to now. */
void pace_note(struct pace *p, uint64_t n, uint64_t *last_ns);
/* The gap that a share q of all are not above. */
uint64_t pace_gap_us(const struct pace *p, double q);

uint64_t pace_now_ns(void);

#endif
