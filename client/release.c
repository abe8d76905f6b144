/* client/release.c - a request's way back: its slot, its results, its number. */
#include "client/internal.h"

#include "client/record.h"

int cb_release(struct cb_handle *h, uint64_t id)
{
    int r = cb_enter(h), ring = 0;
    struct cb_held *q;
    if (r)
        return cb_fail(r);
    pthread_mutex_lock(&h->lock);
    q = cb_held_find_locked(h, id);
    if (q) {
        cb_wake_locked(h, id, q->handler != NULL); /* whoever waits for it: it is no more */
        if (q->state >= CB_REQUEST_ENDED) {
            ring = cb_held_free_locked(h, q);
        } else {
            cb_unlist_locked(h, q);
            q->group = NULL; /* which may be gone before it ends */
            q->abandoned = true;
            cb_store64(&q->cancel_id, id, CB_RELAXED);
            if (q->state == CB_REQUEST_AWAY)
                cb_sweep_locked(h);
            else
                ring = cb_lane_client_cancel(q->link->lane, q->slot, q->gen);
        }
    }
    pthread_mutex_unlock(&h->lock);
    if (ring)
        cb_ring(h);
    return q ? 0 : cb_fail(CB_NOT_FOUND);
}
