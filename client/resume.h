/* client/resume.h - the handle goes on with the next daemon.
 *
 * Whoever polls or waits does it, one thread at a time, outside the lock: a look when it is due, HELLO,
 * and then the answer, for which each caller waits as long as he may and no longer; the next one carries
 * on. When (reconnect.h) is one thing, what then is done another. */
#ifndef CB_CLIENT_RESUME_H
#define CB_CLIENT_RESUME_H

#include "client/internal.h"

/* Away: does what is due and waits up to wait_ns for an answer; the lock is off meanwhile. Afterwards
 * the handle may have a new link, with what waited sent again, or be lost for good. Adds CB_LANE_RING
 * to *ringp. Nothing, if another thread is at it. */
void cb_resume_locked(struct cb_handle *h, uint64_t wait_ns, int *ringp);
#endif
