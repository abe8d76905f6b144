/* client/session.c - a handle's own beginning and end of work: stop, start, join, destroy.
 *
 * The daemon knows nothing of it. A handle that is stopped sends no more requests; what it has sent
 * runs on in the daemon whether anybody waits or not, so that a flush needs no thread. A hard stop
 * is a cancel of everything, whose ends are told under another name: nobody asked for these
 * one by one. */
#include "client/internal.h"

static void cut_all_locked(struct cb_handle *h, int *ringp)
{
    for (uint32_t i = 0; i < h->n_held; i++) {
        struct cb_held *q = &h->held[i];
        uint64_t id = cb_load64(&q->id, CB_RELAXED);
        if (q->state == CB_REQUEST_FREE || q->state >= CB_REQUEST_ENDED)
            continue;
        if (cb_load64(&q->cancel_id, CB_RELAXED) == id)
            continue; /* its end is asked for */
        q->is_cut = true;
        cb_store64(&q->cancel_id, id, CB_RELAXED);
        if (q->state != CB_REQUEST_AWAY)
            *ringp |= cb_lane_client_cancel(q->link->lane, q->slot, q->gen);
    }
    cb_sweep_locked(h);
}

int cb_stop(struct cb_handle *h, uint32_t flags)
{
    enum cb_stop_level level = flags & CB_STOP_HARD ? CB_STOP_CUTS : CB_STOP_FLUSHES;
    int r = cb_enter(h), ring = 0;
    if (!r && flags & ~CB_STOP_HARD)
        r = CB_INVALID;
    if (r)
        return cb_fail(r);
    pthread_mutex_lock(&h->lock);
    r = cb_lost(h);
    if (!r && h->stop >= level)
        r = CB_NOT_RUNNING;
    if (!r && level == CB_STOP_FLUSHES && h->n_pauses)
        r = CB_PAUSED;
    if (!r)
        h->stop = level;
    if (!r && level == CB_STOP_CUTS)
        cut_all_locked(h, &ring);
    pthread_mutex_unlock(&h->lock);
    if (ring)
        cb_ring(h);
    return r ? cb_fail(r) : 0;
}

int cb_start(struct cb_handle *h)
{
    int r = cb_enter(h);
    if (r)
        return cb_fail(r);
    pthread_mutex_lock(&h->lock);
    r = cb_lost(h);
    if (!r && !h->stop)
        r = CB_RUNNING;
    if (!r)
        h->stop = CB_STOP_NOT;
    pthread_mutex_unlock(&h->lock);
    return r ? cb_fail(r) : 0;
}

int cb_join(struct cb_handle *h, int64_t timeout_ms)
{
    const struct cb_want want = {.kind = CB_WANT_ENDS};
    int r = cb_enter(h), ring = 0;
    if (r || timeout_ms < -1)
        return cb_fail(r ? r : CB_INVALID);
    pthread_mutex_lock(&h->lock);
    r = cb_await_locked(h, &want, timeout_ms, &ring);
    cb_pass_lead_locked(h);
    pthread_mutex_unlock(&h->lock);
    if (ring)
        cb_ring(h);
    return r ? cb_fail(r) : 0;
}

int cb_is_running(struct cb_handle *h)
{
    int r = cb_enter(h), ring;
    if (r)
        return cb_fail(r);
    pthread_mutex_lock(&h->lock);
    ring = cb_drain_locked(h);
    cb_life_locked(h, false);
    r = !cb_lost(h) && (!h->stop || h->n_unended > 0);
    pthread_mutex_unlock(&h->lock);
    if (ring)
        cb_ring(h);
    return r;
}

int cb_destroy(struct cb_handle *h, int64_t timeout_ms)
{
    int r = cb_enter(h);
    if (!h)
        return 0;
    if (timeout_ms < -1)
        return cb_fail(CB_INVALID);
    if (!r) {
        r = cb_stop(h, 0);
        if (r == CB_PAUSED)
            return r;
        r = cb_join(h, timeout_ms);
        if (r)
            return r;
        while (cb_dispatch(h, 0) > 0)
            ;
    }
    cb_close(h); /* also a child's copy of its parent's handle */
    return 0;
}
