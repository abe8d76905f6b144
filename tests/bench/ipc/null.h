/* tests/bench/ipc/null.h - a real cbd with the null model, on the core of those who answer. */
#ifndef CB_BENCH_IPC_NULL_H
#define CB_BENCH_IPC_NULL_H

#include "client/cbclient.h"
#include "tests/bench/ipc/way.h"

struct null_daemon {
    pid_t pid;
    const struct place *place;
};

/* Serves when this returns. settings: "--name", "value", ..., NULL, besides those that let one user
 * have many small lanes. */
bool null_start(struct null_daemon *d, struct place *place, const char *const *settings);
void null_stop(struct null_daemon *d);
/* NULL: place->why says why not. */
struct cb_handle *null_open(struct place *place, enum cb_wait_mode mode, uint32_t n_slots);
/* A request of one id, with this limit; waits for nothing. */
uint64_t null_submit(struct cb_handle *h, uint32_t max_new_tokens, uint32_t flags);
/* A figure of `cbctl status --json`; fails the bench if there is none. */
double null_figure(const struct place *place, const char *name);

#endif
