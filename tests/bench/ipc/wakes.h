/* tests/bench/ipc/wakes.h - many sleepers that are woken together. */
#ifndef CB_BENCH_IPC_WAKES_H
#define CB_BENCH_IPC_WAKES_H

#include "tests/bench/ipc/way.h"

/* In ns, medians over the wakes: how long whoever wakes is busy with it, and how long it is from the
 * first that runs to the last. */
struct wakes {
    double busy, span;
};

/* Threads that sleep on a word each, woken by as many FUTEX_WAKEs. */
struct wakes wakes_bare(const struct place *place, uint32_t n_sleepers, uint32_t n_wakes);
/* As many clients of cbd, each asleep until a step has a token for it. */
struct wakes wakes_cbd(struct place *place, uint32_t n_sleepers, uint32_t n_wakes);

#endif
