/* client/results.c - what the daemon says about requests, turned into events.
 *
 * The lane's entries are hints: an entry says "look at this slot", the slot table says the rest.
 * The same look, without entries, is the safety net, and is all there is when the daemon has
 * died (lost.c). */
#include "client/internal.h"

#include <poll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "client/reconnect.h"
#include "client/record.h"
#include "client/resume.h"

#define LIFE_NS 50000000ull

/* ---- entries --------------------------------------------------------------------------------- */

static int apply_locked(struct cb_handle *h, const struct cb_result_entry *e)
{
    struct cb_link *link = h->link;
    struct cb_slot_view view;
    struct cb_held *q;
    if (e->type == CB_RESULT_LANE || e->slot >= link->geometry.n_slots)
        return 0;
    q = link->of_slot[e->slot];
    if (!q || q->gen != e->gen || q->state >= CB_REQUEST_AWAY)
        return 0; /* of an earlier request in this slot, or told by the safety net already */

    switch (e->type) {
    case CB_RESULT_REJECTED:
        if (q->record && q->record->kept) {
            const uint32_t detail[2] = {e->first, e->last};
            return cb_refused_locked(h, q, (int32_t)e->count < 0 ? (int32_t)e->count : CB_INTERNAL,
                                     detail);
        }
        q->status = (int32_t)e->count < 0 ? (int32_t)e->count : CB_INTERNAL;
        q->detail[0] = e->first;
        q->detail[1] = e->last;
        return cb_over_locked(h, q, CB_REQUEST_REJECTED);
    case CB_RESULT_ACCEPTED:
        cb_release_arena_locked(q);
        q->start_us = e->first;
        q->finish_us = e->last;
        cb_lane_client_slot(link->lane, e->slot, &view);
        cb_admit_locked(q, &view, false);
        return 0;
    case CB_RESULT_TOKENS:
        if (q->record && q->record->kept) {
            cb_lane_client_slot(link->lane, e->slot, &view);
            cb_admit_locked(q, &view, true);
        } else if (q->ids) {
            uint32_t n = cb_lane_client_emitted(link->lane, e->slot);
            q->n_seen = n > q->n_seen ? n : q->n_seen;
        }
        cb_make_ready_locked(h, q);
        return 0;
    case CB_RESULT_FINISHED:
    case CB_RESULT_CANCELLED:
    case CB_RESULT_FAILED:
        cb_lane_client_slot(link->lane, e->slot, &view);
        return cb_end_by_view_locked(h, q, &view);
    default:
        return 0;
    }
}

bool cb_led_by_other_locked(const struct cb_handle *h)
{
    return h->leader_parked && !pthread_equal(h->leader, pthread_self());
}

static void look_at_pause_locked(struct cb_handle *h)
{
    bool was_paused = h->is_paused;
    h->is_paused = cb_lane_client_is_paused(h->link->lane);
    if (h->is_paused && !was_paused)
        cb_wake_all_locked(h);
}

int cb_drain_locked(struct cb_handle *h)
{
    struct cb_lane_client *lane = h->link->lane;
    struct cb_result_entry e;
    uint32_t closed;
    int r, ring = 0;
    bool any = false;
    if (cb_led_by_other_locked(h) || cb_gone_locked(h))
        return 0;
    while ((r = cb_lane_client_poll(lane, &e)) > 0) {
        ring |= r & CB_LANE_RING;
        ring |= apply_locked(h, &e);
        any = true;
    }
    if (any)
        h->life_seen_ns = cb_now_coarse_ns();
    (void)cb_lane_client_notice(lane); /* or park would not sleep on what it says */
    look_at_pause_locked(h);
    closed = cb_lane_client_closed(lane);
    cb_resend_locked(h, &ring);
    if (r < 0)
        cb_lose_locked(h, CB_LOST);
    else if (closed)
        cb_lose_locked(h, closed == CB_CLOSED_STOPPED ? CB_LOST : CB_CLOSED);
    return ring;
}

void cb_life_locked(struct cb_handle *h, bool now)
{
    const struct cb_link *link = h->link;
    struct pollfd p = {link->sock, 0, 0};
    struct timespec none = {0, 0};
    uint64_t t = cb_now_coarse_ns();
    if (cb_gone_locked(h) || (!now && t - h->life_seen_ns < LIFE_NS))
        return;
    h->life_seen_ns = t;
    /* Only the death is asked for: a bell in the socket stays there for cb_arm. By syscall(), which
     * is no point of thread cancellation. */
    if (syscall(SYS_ppoll, &p, 1, &none, NULL, 0) > 0 &&
        p.revents & (POLLHUP | POLLERR | POLLNVAL)) {
        if (!cb_led_by_other_locked(h))
            cb_drain_locked(h); /* what it said last */
        cb_lose_locked(h, CB_LOST);
    }
}

/* ---- the calls ------------------------------------------------------------------------------- */

int cb_poll(struct cb_handle *h, struct cb_event *event)
{
    int r = cb_enter(h), ring = 0;
    if (r || !event)
        return cb_fail(r ? r : CB_INVALID);
    pthread_mutex_lock(&h->lock);
    if (!h->ready.first) {
        ring = cb_drain_locked(h);
        if (!h->ready.first)
            cb_life_locked(h, false);
        if (!h->ready.first && h->is_away)
            cb_resume_locked(h, cb_reconnect_patience_ns(h), &ring);
    }
    if (h->ready.first) {
        cb_take_locked(h, h->ready.first, event);
        r = 1;
    } else {
        r = cb_lost(h);
    }
    pthread_mutex_unlock(&h->lock);
    if (ring)
        cb_ring(h);
    return r < 0 ? cb_fail(r) : r;
}
