/* client/cancel.c - asks that a request end, from anywhere.
 *
 * A signal may have interrupted this very thread while it held the lock, so nothing here takes it:
 * slot and generation are read off the id, the lane's cancel word is changed by compare-and-swap,
 * and the bell is one send. No message is kept either: thread-local memory may not exist yet. errno
 * is the interrupted code's and stays as it was. */
#include "client/internal.h"

#include <errno.h>

int cb_cancel(struct cb_handle *h, uint64_t id)
{
    struct cb_held *q;
    int r = cb_enter(h), saved = errno;
    if (r)
        return r;
    if (CB_ID_SLOT(id) >= h->geometry.n_slots || !id)
        return CB_NOT_FOUND;
    q = &h->held[CB_ID_SLOT(id)];
    if (atomic_load_explicit(&q->id, memory_order_acquire) != id)
        return CB_NOT_FOUND;
    r = atomic_load_explicit(&h->lost, memory_order_relaxed);
    if (r)
        return r;
    atomic_store_explicit(&q->cancel_id, id, memory_order_relaxed);
    if (cb_lane_client_cancel(h->lane, CB_ID_SLOT(id), CB_ID_GEN(id)) & CB_LANE_RING)
        r = cb_send_bell(h) ? CB_LOST : 0;
    errno = saved;
    return r;
}
