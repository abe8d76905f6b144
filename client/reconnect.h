/* client/reconnect.h - the search for the next daemon when one is gone.
 *
 * Nobody does it but those who poll and wait, one at a time, outside the lock: a look when it is due,
 * HELLO, and then the answer, for which each caller waits as long as he may and no longer; the next
 * one carries on. Looks come at 20 ms to 2 s, longer each time, jittered, for reconnect_ms in all. */
#ifndef CB_CLIENT_RECONNECT_H
#define CB_CLIENT_RECONNECT_H

#include "client/internal.h"

/* For a handle that is connected: options, which are copied, say where. 0 or a status, kept. */
int cb_reconnect_new(struct cb_handle *h, const struct cb_options *options);
struct cb_reconnect *cb_reconnect_free(struct cb_reconnect *c); /* NULL is fine; returns NULL */

/* The daemon is gone: the handle is away from now on. */
void cb_reconnect_begin_locked(struct cb_handle *h);

/* Away: does what is due and waits up to wait_ns for an answer; the lock is off meanwhile. Afterwards
 * the handle may have a new link, with what waited sent again, or be lost for good. Adds CB_LANE_RING
 * to *ringp. Nothing, if another thread is at it. */
void cb_reconnect_locked(struct cb_handle *h, uint64_t wait_ns, int *ringp);
/* How long cb_reconnect_locked would find nothing to do: 0: call it. */
uint64_t cb_reconnect_idle_ns(const struct cb_handle *h);
/* How long a poll may wait. */
uint64_t cb_reconnect_patience_ns(const struct cb_handle *h);

uint32_t cb_reconnect_resume_max(const struct cb_handle *h);

/* What an event loop watches; and, as a part of its recipe, what it waits for next. */
int cb_reconnect_fd(const struct cb_handle *h);
void cb_reconnect_arm_locked(struct cb_handle *h);

#endif
