/* client/pause.c - a handle's requests stand still for as long as somebody wants it.
 *
 * One word in the lane says so, and the daemon answers with the same number once no step holds any
 * of them. Holders are counted here: the word changes with the first and the last only. */
#include "client/internal.h"

static void ask_locked(struct cb_handle *h, bool pause, int *ringp)
{
    h->is_paused = false;   /* that was another one */
    if (!cb_gone_locked(h)) /* else the next one is told */
        *ringp |= cb_lane_client_pause(h->link->lane, pause);
}

static void resume_locked(struct cb_handle *h, int *ringp)
{
    if (--h->n_pauses == 0)
        ask_locked(h, false, ringp);
}

/* Whether a pause can be had at all: 0 or a status. */
static int may_pause_locked(struct cb_handle *h)
{
    int lost = cb_lost(h);
    if (lost)
        return lost;
    if (!(h->features & CB_FEATURE_PAUSE))
        return CB_VERSION;
    if (h->stop)
        return CB_NOT_RUNNING;
    return h->n_pauses == UINT32_MAX ? CB_INVALID : 0;
}

int cb_pause(struct cb_handle *h, int64_t timeout_ms)
{
    const struct cb_want want = {.kind = CB_WANT_PAUSE};
    int r = cb_enter(h), ring = 0;
    if (r || timeout_ms < -1)
        return cb_fail(r ? r : CB_INVALID);
    pthread_mutex_lock(&h->lock);
    r = may_pause_locked(h);
    if (!r) {
        if (h->n_pauses++ == 0)
            ask_locked(h, true, &ring);
        r = cb_await_locked(h, &want, timeout_ms, &ring);
        if (r)
            resume_locked(h, &ring);
        cb_pass_lead_locked(h);
    }
    pthread_mutex_unlock(&h->lock);
    if (ring)
        cb_ring(h);
    return r ? cb_fail(r) : 0;
}

int cb_resume(struct cb_handle *h)
{
    int r = cb_enter(h), ring = 0;
    if (r)
        return cb_fail(r);
    pthread_mutex_lock(&h->lock);
    r = h->n_pauses ? 0 : CB_NOT_PAUSED;
    if (!r)
        resume_locked(h, &ring);
    pthread_mutex_unlock(&h->lock);
    if (ring)
        cb_ring(h);
    return r ? cb_fail(r) : 0;
}
