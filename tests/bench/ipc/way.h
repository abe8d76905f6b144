/* tests/bench/ipc/way.h - the ways that are measured: each sends a word to somebody and has it back.
 *
 * Who sends runs on one core. Who answers is a process of its own on another, made by `open` and ended
 * by `close`: for each lane a thread that sleeps, or one thread that looks at all of them. Two at once
 * would share that core, so one is open at a time. What a way can't do here ends its `open`. */
#ifndef CB_BENCH_IPC_WAY_H
#define CB_BENCH_IPC_WAY_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct place {
    int here, there;   /* cores: who sends, who answers */
    const char *build; /* where cbd is */
    char dir[64];      /* for sockets and logs; empty at first */
    const char *loop;  /* the daemon's setting `loop` */
    char why[160];     /* set when an open fails */
    pid_t roudi;       /* iceoryx.c: its daemon; 0: not started yet; -1: does not start */
};

struct way {
    const char *name;
    bool sleeps;      /* both sides do, when there is nothing */
    bool is_ours;     /* a bad client can be beside it, in the same daemon */
    uint32_t n_lanes; /* the most it is asked for */
    int variant;      /* the functions' own */
    /* NULL: p->why says why not. */
    void *(*open)(struct place *p, const struct way *way, uint32_t n_lanes);
    void (*round)(void *ctx, uint32_t lane);
    void (*close)(void *ctx);
};

extern const struct way way_spin, way_ring, way_lane, way_futex, way_semaphore, way_pipe,
    way_socket, way_mqueue, way_null_spin, way_null_balanced, way_null_eco, way_iceoryx;

/* What answers for iceoryx, as a program of its own. */
_Noreturn void iceoryx_echo(uint32_t n_lanes);

/* All of them, up to a NULL. */
extern const struct way *const ways[];

#endif
