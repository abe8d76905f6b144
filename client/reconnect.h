/* client/reconnect.h - the search for the next daemon when one is gone: where, when, how long.
 *
 * Nobody does it but those who poll and wait (resume.h). Looks come at 20 ms to 2 s, longer each time,
 * jittered, for reconnect_ms in all. */
#ifndef CB_CLIENT_RECONNECT_H
#define CB_CLIENT_RECONNECT_H

#include "client/internal.h"

struct cb_reconnect {
    struct cb_options options; /* what it points to is owned */
    uint32_t *trusted_uids;
    char *instance, *run_dir, *name;
    uint32_t reconnect_ms, resume_max;
    int epoll_fd, timer_fd; /* -1: no event loop */
    bool is_busy;           /* a thread is at it */
    int sock;               /* HELLO was sent there; -1: none was */
    uint32_t delay_ms;
    uint64_t look_ns, answer_ns, end_ns; /* the next look; no answer by then; giving up */
    uint64_t random;
};

/* For a handle that is connected: options, which are copied, say where. 0 or a status, kept. */
int cb_reconnect_new(struct cb_handle *h, const struct cb_options *options);
struct cb_reconnect *cb_reconnect_free(struct cb_reconnect *c); /* NULL is fine; returns NULL */

/* The daemon is gone: the handle is away from now on. */
void cb_reconnect_begin_locked(struct cb_handle *h);

/* How long cb_resume_locked would find nothing to do: 0: call it. */
uint64_t cb_reconnect_idle_ns(const struct cb_handle *h);
/* How long a poll may wait. */
uint64_t cb_reconnect_patience_ns(const struct cb_handle *h);

/* The next look, a longer while from now than the one before. */
void cb_reconnect_later(struct cb_reconnect *c, uint64_t now_ns);

uint32_t cb_reconnect_resume_max(const struct cb_handle *h);

/* What an event loop watches; and, as a part of its recipe, what it waits for next. */
int cb_reconnect_fd(const struct cb_handle *h);
void cb_reconnect_arm_locked(struct cb_handle *h);
/* A socket among what it watches; nothing, if there is no loop. 0 or -errno. */
int cb_reconnect_watch(struct cb_reconnect *c, int fd);
void cb_reconnect_unwatch(struct cb_reconnect *c, int fd);

#endif
