/* daemon/loop.h - how the daemon waits: descriptors, timers, and the socket bells of a step.
 *
 * Three bodies behind one header: io_uring, epoll (for containers that refuse io_uring), and
 * simulation (loop_sim.h). Nothing wakes by itself: with no descriptor ready and no timer due a
 * sleep lasts.
 *
 * Watches and timers are structs of their owners, linked in while they are active. A watch is level
 * triggered: its `ready` is called at each serve for as long as the descriptor stays ready, so a
 * handler may read a bounded amount and leave the rest. Handlers may add, change and remove any
 * watch or timer, their own too. Before a descriptor is closed its watch is removed.
 *
 * Loop thread only. Nothing allocates after loop_new. */
#ifndef CB_DAEMON_LOOP_H
#define CB_DAEMON_LOOP_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/list.h"

struct loop;
struct clock;
struct log;

enum loop_kind { LOOP_AUTO, LOOP_URING, LOOP_EPOLL };

enum { LOOP_READ = 1, LOOP_WRITE = 2, LOOP_HUP = 4 }; /* HUP (peer gone, or error) always comes */

#define LOOP_FOREVER UINT64_MAX

struct loop_watch {
    int fd;
    void (*ready)(struct loop_watch *w, uint32_t events);
    /* What became of a bell: 0, or a negative errno; only watches that are rung need it. */
    void (*rung)(struct loop_watch *w, int result);
    /* The loop's own; zero while not watched. */
    bool is_active, is_ringing;
    uint32_t idx, events;
};

struct loop_timer {
    void (*due)(struct loop_timer *t);
    uint64_t at_ns;   /* by the loop's clock; 0: not set */
    struct list link; /* the loop's own */
};

/* A loop for at most n_watches descriptors. LOOP_AUTO: io_uring, or epoll if the kernel refuses
 * that (logged). 0 or negative errno. clock and log must outlive it. */
int loop_new(struct loop **loopp, enum loop_kind kind, uint32_t n_watches,
             const struct clock *clock, struct log *log);
/* NULL is fine; returns NULL; closes no watched descriptor. */
struct loop *loop_free(struct loop *l);
const char *loop_name(const struct loop *l); /* "io_uring", "epoll", "simulation" */

/* Begins to watch w->fd for events (LOOP_READ, LOOP_WRITE). fd, ready and rung are set by the
 * caller; *w stays where it is until it is removed. 0, -ENOSPC (n_watches are active), or
 * -errno. */
int loop_watch(struct loop *l, struct loop_watch *w, uint32_t events);
/* Changes what is watched for. 0 or -errno. */
int loop_change(struct loop *l, struct loop_watch *w, uint32_t events);
void loop_unwatch(struct loop *l, struct loop_watch *w); /* fine on one not watched */

void loop_timer_init(struct loop_timer *t, void (*due)(struct loop_timer *t));
/* Calls due once, at or after at_ns; setting again moves it. */
void loop_timer_set(struct loop *l, struct loop_timer *t, uint64_t at_ns);
void loop_timer_clear(struct loop_timer *t); /* fine on one not set */

/* Queues a BELL record for the socket of a watch; once a step is enough, further ones are the
 * same. */
void loop_ring(struct loop *l, struct loop_watch *w);
/* Sends all queued bells, in one submission where the body can, and reports each by `rung`. */
void loop_ring_flush(struct loop *l);

/* Calls handlers of what is ready and timers that are due; never waits. How many were called. */
int loop_serve(struct loop *l);
/* The same, but waits for the first one, at most max_ns. */
int loop_sleep(struct loop *l, uint64_t max_ns);
/* Only waits. True: there is something for the next loop_serve. */
bool loop_wait(struct loop *l, uint64_t max_ns);

#endif
