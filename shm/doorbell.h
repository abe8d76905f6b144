/* shm/doorbell.h - how one process wakes the other: a futex on a shared word, or a socket record.
 *
 * Neither call here can block on the peer: FUTEX_WAKE only, and sends with MSG_DONTWAIT. No
 * eventfd: its open file is shared, so a peer could make the next write hang. The order that makes
 * waking safe (publish, fence, test, ring) is lane.h's; this is only the ringing. */
#ifndef CB_SHM_DOORBELL_H
#define CB_SHM_DOORBELL_H

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

/* Fills a record that has a head only: READY, BYE, BELL, NOTICE. */
void cb_record_plain(struct cb_plain_record *record, enum cb_record_type type);

/* Sends one such record. 0: sent, or the socket is full of unread records, which is as good: the
 * peer's socket is readable. Negative errno (-EPIPE, -ECONNRESET: the peer is gone): it was not. */
int cb_doorbell_send(int sock, enum cb_record_type type);

#endif
