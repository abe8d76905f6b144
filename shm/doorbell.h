/* shm/doorbell.h - how one process wakes the other: a futex on a shared word, a socket record, or a
 * POSIX semaphore.
 *
 * Neither call here can block on the peer: FUTEX_WAKE only, and sends with MSG_DONTWAIT. No
 * eventfd: its open file is shared, so a peer could make the next write hang. The order that makes
 * waking safe (publish, fence, test, ring) is lane.h's; this is only the ringing. */
#ifndef CB_SHM_DOORBELL_H
#define CB_SHM_DOORBELL_H

#include <stdbool.h>
#include <stdint.h>

#include "shm/control.h"

#define CB_WAIT_SLICE_MS 50u /* longest futex sleep between two looks at the socket */

/* Sleeps while *bell == seen, at most timeout_ns. 0: woken, or the word had changed already, or a
 * signal came: look again; -ETIMEDOUT; other negative errno. A read-only mapping will do. The
 * kernel does not tell of the peer's death: sleep in slices of CB_WAIT_SLICE_MS, look at the socket
 * between. */
int cb_doorbell_wait(const cb_atomic32 *bell, uint32_t seen, uint64_t timeout_ns);

/* Wakes every sleeper on the word (a second mapper could swallow a single wake). How many woke, or
 * negative errno. */
int cb_doorbell_wake(cb_atomic32 *bell);

/* ---- semaphores ------------------------------------------------------------------------------ */

/* The bell of a lane under names: a page that begins with a sem_t, which peers open by
 * sem_open(3). The daemon posts by these means and not by sem_post(3): that one believes what
 * stands behind the count, and a peer that wrote there could have it sleep in the kernel for good,
 * or abort. */
void cb_semaphore_init(void *page);

/* Whether this C library counts where cb_semaphore_post does. */
bool cb_semaphore_is_known(void);

/* Counts one up: what cb_doorbell_wake then takes. Neither can block, or fail. */
cb_atomic32 *cb_semaphore_post(void *page);

/* The sleeper: posts for sleeps that are over are taken away before the next one is announced, so
 * that they are not taken for its own; then it waits as with cb_doorbell_wait. */
void cb_semaphore_empty(void *page);
int cb_semaphore_wait(void *page, uint64_t timeout_ns);

/* ---- records --------------------------------------------------------------------------------- */

/* Fills a record that has a head only: READY, BYE, BELL, NOTICE. */
void cb_record_plain(struct cb_plain_record *record, enum cb_record_type type);

/* Sends one such record. 0: sent, or the socket is full of unread records, which is as good: the
 * peer's socket is readable. Negative errno (-EPIPE, -ECONNRESET: the peer is gone): it was not. */
int cb_doorbell_send(int sock, enum cb_record_type type);

#endif
