/* client/results.c - what the daemon says about requests, turned into events.
 *
 * There is no queue of events. A request knows how many of its tokens are there, how many it has
 * told, and whether it has ended; its next event follows from that, and a request that has one
 * stands in a list. So nothing here can be full, however late the application looks, and one
 * request's events never stand before another's.
 *
 * The lane's entries are hints: an entry says "look at this slot", the slot table says the rest.
 * The same look, without entries, is the safety net, and is all there is when the daemon has
 * died (lost.c). */
#include "client/internal.h"

#include <string.h>

#include "client/reconnect.h"
#include "client/record.h"

/* ---- ready lists ----------------------------------------------------------------------------- */

static struct cb_ready *ready_of(struct cb_handle *h, const struct cb_held *q)
{
    return q->group ? &q->group->ready : q->handler ? &h->ready_handlers : &h->ready;
}

bool cb_has_event(const struct cb_held *q)
{
    if (q->abandoned || q->told || q->state == CB_REQUEST_FREE)
        return false;
    if (!q->is_restart_told)
        return true;
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
    if (!q->is_restart_told) { /* and nothing else: what it has by now comes behind */
        event->type = CB_EVENT_RESTARTED;
        event->ids = NULL;
        event->n_ids = 0;
        q->is_restart_told = true;
        cb_make_ready_locked(h, q);
        return;
    }
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

static void release_arena_locked(struct cb_held *q)
{
    if (q->has_arena)
        cb_arena_release(&q->link->arena, q->arena_off);
    q->has_arena = false;
}

void cb_admit_locked(struct cb_held *q, const struct cb_slot_view *view, bool sees)
{
    uint32_t n = view->emitted;
    if (q->record && q->record->kept) {
        struct cb_kept *k = q->record->kept;
        cb_record_pull(q->record, view);
        q->ids = k->ids;
        q->times = k->times;
        n = k->n;
    } else {
        q->ids = view->ids;
        q->times = view->times;
    }
    q->seed = view->seed;
    if (q->state == CB_REQUEST_SENT)
        q->state = CB_REQUEST_RUNNING;
    if (sees && q->ids && n > q->n_seen)
        q->n_seen = n;
}

bool cb_view_locked(const struct cb_held *q, struct cb_slot_view *view)
{
    const struct cb_record *r = q->record;
    if (!r || !r->kept) {
        if (!q->link)
            return false;
        cb_lane_client_slot(q->link->lane, q->slot, view);
        return view->gen == q->gen;
    }
    const struct cb_kept *k = r->kept;
    *view = r->view;
    view->emitted = k->n;
    view->ids = k->ids;
    view->times = k->times;
    view->epochs = k->epochs;
    view->logprobs = k->logprobs;
    view->top = k->top;
    view->n_top = k->k;
    view->n_prompt = q->n_prompt;
    view->prompt_logprobs = k->has_prompt ? k->prompt_logprobs : NULL;
    view->prompt_top = k->has_prompt ? k->prompt_top : NULL;
    return true;
}

uint32_t cb_count_locked(struct cb_handle *h, struct cb_held *q)
{
    struct cb_slot_view view;
    if (q->state != CB_REQUEST_RUNNING || !q->link || !q->ids)
        return q->n_seen;
    if (!q->record || !q->record->kept)
        return cb_lane_client_emitted(q->link->lane, q->slot);
    if (q->link == h->link && !cb_gone_locked(h)) {
        cb_lane_client_slot(q->link->lane, q->slot, &view);
        cb_record_pull(q->record, &view);
    }
    return q->record->kept->n;
}

/* Nothing more comes of it. CB_LANE_RING or 0. */
static int over_locked(struct cb_handle *h, struct cb_held *q, enum cb_request_state state)
{
    release_arena_locked(q);
    q->state = state;
    if (--h->n_unended == 0)
        cb_wake_all_locked(h);
    if (q->abandoned)
        return cb_held_free_locked(h, q);
    cb_make_ready_locked(h, q);
    return 0;
}

int cb_end_locked(struct cb_handle *h, struct cb_held *q, uint32_t end, int status)
{
    bool is_cut = q->is_cut && end == CB_END_CANCELLED;
    q->end = is_cut ? CB_END_ERROR : end;
    q->status = is_cut ? CB_STOPPED : status;
    return over_locked(h, q, CB_REQUEST_ENDED);
}

int cb_end_by_view_locked(struct cb_handle *h, struct cb_held *q, const struct cb_slot_view *view)
{
    uint32_t end = view->finish & 0xffu;
    if (view->state == CB_SLOT_FINISHED && q->record && q->record->kept &&
        view->emitted < q->record->kept->n)
        return cb_changed_locked(h, q); /* before the last token that was handed out */
    cb_admit_locked(q, view, true);
    if (view->state == CB_SLOT_FAILED || end == CB_END_NONE || end > CB_END_ERROR)
        end = view->state == CB_SLOT_CANCELLED ? CB_END_CANCELLED : CB_END_ERROR;
    return cb_end_locked(h, q, end,
                         end != CB_END_ERROR ? 0
                         : view->error < 0   ? view->error
                                             : CB_INTERNAL);
}

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
        return over_locked(h, q, CB_REQUEST_REJECTED);
    case CB_RESULT_ACCEPTED:
        release_arena_locked(q);
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
            cb_reconnect_locked(h, cb_reconnect_patience_ns(h), &ring);
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
