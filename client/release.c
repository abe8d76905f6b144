/* client/release.c - a request's way back: its slot, its results, its number. */
#include "client/internal.h"

#include "client/record.h"

struct cb_held *cb_held_find_locked(struct cb_handle *h, uint64_t id)
{
    struct cb_held *q;
    if (CB_ID_IDX(id) >= h->n_held || !id)
        return NULL;
    q = &h->held[CB_ID_IDX(id)];
    return atomic_load_explicit(&q->id, memory_order_relaxed) == id && !q->abandoned ? q : NULL;
}

/* Its slot, if it has one, and whatever of it lay in another link. CB_LANE_RING or 0. */
static int leave_locked(struct cb_handle *h, struct cb_held *q)
{
    struct cb_link *link = q->link, *home = q->home;
    atomic_store(&q->place, 0);
    q->link = q->home = NULL;
    home->n_requests--;
    if (home != h->link)
        cb_link_reap_locked(h);
    if (!link || link != h->link || cb_gone_locked(h))
        return 0;
    link->of_slot[q->slot] = NULL;
    return cb_lane_client_free(link->lane, q->slot);
}

int cb_held_free_locked(struct cb_handle *h, struct cb_held *q)
{
    cb_unlist_locked(h, q);
    q->group = NULL;
    cb_text_free(q->text);
    q->text = NULL;
    q->ids = NULL;
    q->times = NULL;
    q->state = CB_REQUEST_FREE;
    q->abandoned = false;
    cb_record_free(q->record);
    q->record = NULL;
    atomic_store_explicit(&q->id, 0, memory_order_release);
    return leave_locked(h, q);
}

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
            atomic_store_explicit(&q->cancel_id, id, memory_order_relaxed);
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
