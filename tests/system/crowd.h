/* tests/system/crowd.h - client processes of a test, and what they have to say.
 *
 * A member runs in a process of its own and ends by crowd_done or crowd_fail; it must not use
 * Criterion. It has `crowd->shared`, memory that all see, for what goes wrong, and to show
 * progress: crowd_join fails the test when nobody moved for HANG_MS. */
#ifndef CB_TESTS_SYSTEM_CROWD_H
#define CB_TESTS_SYSTEM_CROWD_H

#include <stdatomic.h>
#include <stdint.h>
#include <sys/types.h>

#include "tests/system/fixture.h"

enum { CROWD_MAX = 64 };

struct crowd_shared {
    _Atomic uint32_t n_moves;  /* anything that shows that it goes on */
    _Atomic uint32_t n_there;  /* members that reached what the test waits for */
    _Atomic uint32_t go;       /* set by the test */
    _Atomic uint32_t n_claims; /* the first to claim writes `why`, ... */
    _Atomic uint32_t n_failed; /* ... which is whole once this is not 0 */
    char why[512];
};

struct crowd {
    const struct system *system;
    struct crowd_shared *shared;
    pid_t pids[CROWD_MAX]; /* 0: over */
    uint32_t n;
};

/* What a member does: as number i of the crowd. Returns when done. */
typedef void crowd_fn(struct crowd *c, uint32_t i, void *arg);

void crowd_init(struct crowd *c, const struct system *s);
void crowd_fini(struct crowd *c);
/* Adds a process; uid: whom it becomes first. Its number. */
uint32_t crowd_add_as(struct crowd *c, uid_t uid, crowd_fn *fn, void *arg);
uint32_t crowd_add(struct crowd *c, crowd_fn *fn, void *arg);
/* In the place of one that was killed. */
void crowd_again(struct crowd *c, uint32_t i, crowd_fn *fn, void *arg);
/* Waits until n_there has this value. */
void crowd_await(struct crowd *c, uint32_t n_there);
/* A signal to a member; after SIGKILL it is reaped and no more waited for. */
void crowd_signal(struct crowd *c, uint32_t i, int signal);
/* Waits for all; each must have ended well. */
void crowd_join(struct crowd *c);

/* ---- for members ----------------------------------------------------------------------------- */

__attribute__((format(printf, 2, 3), noreturn)) void crowd_fail(struct crowd *c, const char *format,
                                                                ...);
void crowd_move(struct crowd *c);
void crowd_there(struct crowd *c);
/* Sleeps until the test sets `go` to at least this. */
void crowd_hold(struct crowd *c, uint32_t go);
struct cb_handle *crowd_open(struct crowd *c, const struct cb_options *options);

#define member_expect(c, condition, ...)                              \
    do {                                                              \
        if (!(condition))                                             \
            crowd_fail(c, __FILE__ ": " #condition ": " __VA_ARGS__); \
    } while (0)

#endif
