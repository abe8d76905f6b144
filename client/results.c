/* client/results.c - what the daemon says about requests, turned into events.
 *
 * There is no queue of events. A request knows how many of its tokens are there, how many it has
 * told, and whether it has ended; its next event follows from that, and a request that has one
 * stands in a list. So nothing here can be full, however late the application looks, and one
 * request's events never stand before another's.
 *
 * The lane's entries are hints: an entry says "look at this slot", the slot table says the rest.
 * The same look, without entries, is the safety net, and is all there is when the daemon has
 * died. */
#include "client/internal.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LIFE_NS 50000000ull

/* ---- ready lists ----------------------------------------------------------------------------- */

static struct cb_ready *ready_of(struct cb_handle *h, const struct cb_held *q)
{
    return q->group ? &q->group->ready : q->handler ? &h->ready_handlers : &h->ready;
}

bool cb_has_event(const struct cb_held *q)
{
    if (q->abandoned || q->told || q->state == CB_REQUEST_FREE)
        return false;
    return q->state >= CB_REQUEST_ENDED || (q->n_seen > q->n_told && !(q->flags & CB_FINAL_ONLY));
}

void cb_unlist_locked(struct cb_handle *h, struct cb_held *q)
{
    struct cb_ready *list = ready_of(h, q);
    if (!q->listed)
        return;
    *(q->prev ? &q->prev->next : &list->first) = q->next;
    *(q->next ? &q->next->prev : &list->last) = q->prev;
    q->next = q->prev = NULL;
    q->listed = false;
}

void cb_make_ready_locked(struct cb_handle *h, struct cb_held *q)
{
    struct cb_ready *list = ready_of(h, q);
    if (q->busy || !cb_has_event(q)) /* a busy one is looked at when its handler returns */
        return;
    if (!q->listed) {
        q->prev = list->last;
        q->next = NULL;
        *(list->last ? &list->last->next : &list->first) = q;
        list->last = q;
        q->listed = true;
    }
    atomic_fetch_add_explicit(&h->n_moves, 1, memory_order_release);
    if (q->group)
        cb_wake_group_locked(h, q->group);
    else
        cb_wake_locked(h, atomic_load_explicit(&q->id, memory_order_relaxed), q->handler != NULL);
}

void cb_take_locked(struct cb_handle *h, struct cb_held *q, struct cb_event *event)
{
    bool ended = q->state >= CB_REQUEST_ENDED;
    uint32_t n = q->n_seen - q->n_told;
    cb_unlist_locked(h, q);
    memset(event, 0, sizeof(*event));
    event->id = atomic_load_explicit(&q->id, memory_order_relaxed);
    event->user = q->user;
    event->first = q->n_told;
    event->ids = n ? q->ids + q->n_told : NULL;
    event->n_ids = n;
    if (n && !(q->flags & CB_FINAL_ONLY)) {
        event->type = CB_EVENT_TOKENS;
    } else {
        assert(ended);
        event->type = q->state == CB_REQUEST_REJECTED ? CB_EVENT_REJECTED : CB_EVENT_END;
        event->end = q->end;
        event->status = q->status;
        memcpy(event->detail, q->detail, sizeof(event->detail));
        q->told = true;
    }
    q->n_told = q->n_seen;
    cb_make_ready_locked(h, q);
}

/* ---- entries --------------------------------------------------------------------------------- */

static void release_arena_locked(struct cb_handle *h, struct cb_held *q)
{
    if (q->has_arena)
        cb_arena_release(&h->arena, q->arena_off);
    q->has_arena = false;
}

/* The daemon has taken it in: its run can be read. */
static void admit_locked(struct cb_held *q, const struct cb_slot_view *view)
{
    q->ids = view->ids;
    q->times = view->times;
    q->seed = view->seed;
    if (q->state == CB_REQUEST_SENT)
        q->state = CB_REQUEST_RUNNING;
}

/* Nothing more comes of it. CB_LANE_RING or 0. */
static int over_locked(struct cb_handle *h, struct cb_held *q, enum cb_request_state state)
{
    release_arena_locked(h, q);
    q->state = state;
    if (--h->n_unended == 0)
        cb_wake_all_locked(h);
    if (q->abandoned)
        return cb_held_free_locked(h, q);
    cb_make_ready_locked(h, q);
    return 0;
}

/* Its end is known. CB_LANE_RING or 0. */
static int end_locked(struct cb_handle *h, struct cb_held *q, uint32_t end, int status)
{
    bool is_cut = q->is_cut && end == CB_END_CANCELLED;
    q->end = is_cut ? CB_END_ERROR : end;
    q->status = is_cut ? CB_STOPPED : status;
    return over_locked(h, q, CB_REQUEST_ENDED);
}

static bool terminal(const struct cb_slot_view *view)
{
    return view->state >= CB_SLOT_FINISHED;
}

static void see_locked(struct cb_held *q, uint32_t n)
{
    if (q->ids && n > q->n_seen)
        q->n_seen = n;
}

static int end_by_view_locked(struct cb_handle *h, struct cb_held *q,
                              const struct cb_slot_view *view)
{
    uint32_t end = view->finish & 0xffu;
    admit_locked(q, view);
    see_locked(q, view->emitted);
    if (view->state == CB_SLOT_FAILED || end == CB_END_NONE || end > CB_END_ERROR)
        end = view->state == CB_SLOT_CANCELLED ? CB_END_CANCELLED : CB_END_ERROR;
    return end_locked(h, q, end,
                      end != CB_END_ERROR ? 0
                      : view->error < 0   ? view->error
                                          : CB_INTERNAL);
}

static int apply_locked(struct cb_handle *h, const struct cb_result_entry *e)
{
    struct cb_slot_view view;
    struct cb_held *q;
    uint64_t id;
    if (e->type == CB_RESULT_LANE || e->slot >= h->geometry.n_slots)
        return 0;
    q = &h->held[e->slot];
    id = atomic_load_explicit(&q->id, memory_order_relaxed);
    if (!id || CB_ID_GEN(id) != e->gen || q->state >= CB_REQUEST_ENDED)
        return 0; /* of an earlier request in this slot, or told by the safety net already */

    switch (e->type) {
    case CB_RESULT_REJECTED:
        q->status = (int32_t)e->count < 0 ? (int32_t)e->count : CB_INTERNAL;
        q->detail[0] = e->first;
        q->detail[1] = e->last;
        return over_locked(h, q, CB_REQUEST_REJECTED);
    case CB_RESULT_ACCEPTED:
        release_arena_locked(h, q);
        q->start_us = e->first;
        q->finish_us = e->last;
        cb_lane_client_slot(h->lane, e->slot, &view);
        admit_locked(q, &view);
        return 0;
    case CB_RESULT_TOKENS:
        see_locked(q, cb_lane_client_emitted(h->lane, e->slot));
        cb_make_ready_locked(h, q);
        return 0;
    case CB_RESULT_FINISHED:
    case CB_RESULT_CANCELLED:
    case CB_RESULT_FAILED:
        cb_lane_client_slot(h->lane, e->slot, &view);
        return end_by_view_locked(h, q, &view);
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
    h->is_paused = cb_lane_client_is_paused(h->lane);
    if (h->is_paused && !was_paused)
        cb_wake_all_locked(h);
}

int cb_drain_locked(struct cb_handle *h)
{
    struct cb_result_entry e;
    uint32_t closed;
    int r, ring = 0;
    bool any = false;
    if (cb_led_by_other_locked(h) || atomic_load_explicit(&h->lost, memory_order_relaxed))
        return 0;
    while ((r = cb_lane_client_poll(h->lane, &e)) > 0) {
        ring |= r & CB_LANE_RING;
        ring |= apply_locked(h, &e);
        any = true;
    }
    if (any)
        h->life_seen_ns = cb_now_coarse_ns();
    (void)cb_lane_client_notice(h->lane); /* or park would not sleep on what it says */
    look_at_pause_locked(h);
    closed = cb_lane_client_closed(h->lane);
    if (r < 0)
        cb_lose_locked(h, CB_LOST);
    else if (closed)
        cb_lose_locked(h, closed == CB_CLOSED_STOPPED ? CB_LOST : CB_CLOSED);
    return ring;
}

/* ---- without entries ------------------------------------------------------------------------- */

void cb_life_locked(struct cb_handle *h, bool now)
{
    struct pollfd p = {h->sock, 0, 0};
    struct timespec none = {0, 0};
    uint64_t t = cb_now_coarse_ns();
    if (!now && t - h->life_seen_ns < LIFE_NS)
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

/* Whether a slot's record is this request's, and makes sense. */
static bool belongs(const struct cb_handle *h, const struct cb_held *q,
                    const struct cb_slot_view *view)
{
    uint64_t id = atomic_load_explicit(&q->id, memory_order_relaxed);
    if (view->gen != CB_ID_GEN(id) || view->state == CB_SLOT_FREE || view->emitted < q->n_seen ||
        view->emitted > view->out_cap || (view->emitted && !view->ids))
        return false;
    for (uint32_t i = q->n_seen; i < view->emitted; i++)
        if (view->ids[i] >= h->geometry.n_vocab)
            return false;
    return true;
}

static bool unfinished(const struct cb_held *q)
{
    return q->state == CB_REQUEST_SENT || q->state == CB_REQUEST_RUNNING;
}

void cb_lose_locked(struct cb_handle *h, int status)
{
    /* A daemon that stops says so in the lane, and ends what it has taken in; what it has not is
     * ended here the same way. One that was killed says nothing. */
    bool stopped = status == CB_LOST && cb_lane_client_closed(h->lane) == CB_CLOSED_STOPPED;
    if (atomic_load_explicit(&h->lost, memory_order_relaxed))
        return;
    atomic_store_explicit(&h->lost, status, memory_order_release);
    for (uint32_t slot = 0; slot < h->geometry.n_slots; slot++) {
        struct cb_held *q = &h->held[slot];
        struct cb_slot_view view;
        uint64_t id = atomic_load_explicit(&q->id, memory_order_relaxed);
        if (!unfinished(q))
            continue;
        cb_lane_client_slot(h->lane, slot, &view);
        if (belongs(h, q, &view)) {
            if (terminal(&view)) {
                end_by_view_locked(h, q, &view);
                continue;
            }
            admit_locked(q, &view);
            see_locked(q, view.emitted);
        }
        if (atomic_load_explicit(&q->cancel_id, memory_order_relaxed) == id)
            end_locked(h, q, CB_END_CANCELLED, 0);
        else
            end_locked(h, q, CB_END_ERROR, stopped ? CB_STOPPED : status);
    }
    atomic_fetch_add_explicit(&h->n_moves, 1, memory_order_release);
    cb_wake_all_locked(h);
}

void cb_scan_locked(struct cb_handle *h)
{
    for (uint32_t slot = 0; slot < h->geometry.n_slots; slot++) {
        struct cb_held *q = &h->held[slot];
        struct cb_slot_view view;
        if (!unfinished(q) || cb_lane_client_pending(h->lane))
            continue;
        cb_lane_client_slot(h->lane, slot, &view);
        if (!belongs(h, q, &view))
            continue;
        if (view.emitted > q->n_seen || terminal(&view))
            h->wake_missed++;
        if (terminal(&view)) {
            end_by_view_locked(h, q, &view);
        } else {
            admit_locked(q, &view);
            see_locked(q, view.emitted);
            cb_make_ready_locked(h, q);
        }
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
    }
    if (h->ready.first) {
        cb_take_locked(h, h->ready.first, event);
        r = 1;
    } else {
        r = atomic_load_explicit(&h->lost, memory_order_relaxed);
    }
    pthread_mutex_unlock(&h->lock);
    if (ring)
        cb_ring(h);
    return r < 0 ? cb_fail(r) : r;
}
