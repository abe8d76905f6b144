/* client/lost.c - what becomes of requests whose daemon is gone.
 *
 * A lost lane has no writer any more, and its slot table is the truth about each of them. It is read
 * once a slot, as something that may make no sense: what does is the client's, what does not is as if
 * it had never been written. What is resumable then waits, in the order of admission (resend.c). */
#include "client/internal.h"

#include "client/reconnect.h"
#include "client/record.h"

/* ---- the lane is lost ------------------------------------------------------------------------ */

/* Whether a slot's record is this request's, and makes sense. */
static bool belongs(const struct cb_handle *h, const struct cb_held *q,
                    const struct cb_slot_view *view)
{
    uint32_t n_known = q->n_seen;
    /* That `emitted` lies within the run, and the run, if any, in the pool, is cb_lane_client_slot's. */
    if (view->gen != q->gen || view->state == CB_SLOT_FREE || view->state > CB_SLOT_FAILED ||
        view->out_cap > q->limit || (view->out_cap && !view->ids))
        return false;
    if (q->record && q->record->kept) {
        n_known = q->record->kept->n;
        if (view->out_cap > q->record->kept->capacity || view->n_prompt != q->n_prompt)
            return false;
        /* An end before what was known may be one; it is judged there. */
        if (view->emitted < n_known && view->state >= CB_SLOT_FINISHED)
            return true;
    }
    if (view->emitted < n_known)
        return false;
    for (uint32_t i = n_known; i < view->emitted; i++)
        if (view->ids[i] >= h->n_vocab)
            return false;
    return true;
}

static bool unfinished(const struct cb_held *q)
{
    return q->state == CB_REQUEST_SENT || q->state == CB_REQUEST_RUNNING;
}

/* What was seen of it in the lane that it was sent to first, which nothing else has. */
static void view_seen(const struct cb_held *q, struct cb_slot_view *view)
{
    *view = (struct cb_slot_view){.gen = q->gen,
                                  .state = CB_SLOT_RUNNING,
                                  .emitted = q->n_seen,
                                  .n_prompt = q->n_prompt,
                                  .ids = q->ids,
                                  .times = q->times,
                                  .weight_epoch = q->record->weight_epoch,
                                  .seed = q->seed};
}

/* It was cut off, with what was seen of it. `view`: of its slot, or NULL: that makes no sense. */
static void lose_one_locked(struct cb_handle *h, struct cb_held *q, const struct cb_slot_view *view,
                            int status)
{
    struct cb_record *r = q->record;
    struct cb_slot_view seen;
    if (cb_is_cancelled(q)) {
        cb_end_locked(h, q, CB_END_CANCELLED, 0);
        return;
    }
    if (!h->is_away || !r) {
        cb_end_locked(h, q, CB_END_ERROR, status);
        return;
    }
    if (r->n_resumes >= cb_reconnect_resume_max(h)) {
        cb_end_locked(h, q, CB_END_ERROR, CB_LOST);
        return;
    }
    if (!r->kept && view && view->out_cap && r->entry.max_new_tokens == CB_NO_LIMIT)
        r->entry.max_new_tokens = view->out_cap; /* what an open one came to */
    if (!r->kept && !view && q->ids) {
        view_seen(q, &seen);
        view = &seen;
    }
    if (cb_record_keep(r, h->n_context)) {
        cb_end_locked(h, q, CB_END_ERROR, CB_NO_MEMORY);
        return;
    }
    if (view)
        cb_record_pull(r, view);
    q->ids = r->kept->ids;
    q->times = r->kept->times;
    if (r->kept->n > q->n_seen)
        q->n_seen = r->kept->n;
    q->link = NULL;
    cb_queue_locked(h, q);
    cb_make_ready_locked(h, q);
}

/* Nobody will take what waits. */
static void end_waiting_locked(struct cb_handle *h, int status)
{
    struct cb_held *q;
    while ((q = h->away_first) != NULL) {
        h->away_first = q->later;
        if (!cb_is_over_locked(h, q, cb_now_ns()))
            cb_end_locked(h, q, CB_END_ERROR, status);
    }
    cb_add32(&h->n_moves, 1, CB_RELAXED);
    cb_wake_all_locked(h);
}

void cb_lose_locked(struct cb_handle *h, int status)
{
    struct cb_link *link = h->link;
    if (cb_gone_locked(h))
        return;
    /* A daemon that stops says so in the lane. One that was killed says nothing. */
    bool stopped = status == CB_LOST && cb_lane_client_closed(link->lane) == CB_CLOSED_STOPPED;
    if (h->reconnect && status == CB_LOST)
        cb_reconnect_begin_locked(h);
    else
        cb_store32(&h->lost, (uint32_t)status, CB_RELAXED);
    for (uint32_t i = 0; i < h->n_held; i++) {
        struct cb_held *q = &h->held[i];
        struct cb_slot_view view;
        if (q->link != link)
            continue;
        if (!unfinished(q)) {
            if (q->record && q->record->kept)
                q->link = NULL; /* all of it is there */
            continue;
        }
        cb_store64(&q->place, 0, CB_RELAXED);
        q->has_arena = false;
        cb_lane_client_slot(link->lane, q->slot, &view);
        bool makes_sense = belongs(h, q, &view);
        if (makes_sense && view.state >= CB_SLOT_FINISHED) {
            cb_end_by_view_locked(h, q, &view);
            continue;
        }
        if (makes_sense)
            cb_admit_locked(q, &view, true);
        lose_one_locked(h, q, makes_sense ? &view : NULL, stopped ? CB_STOPPED : status);
    }
    if (!h->is_away)
        end_waiting_locked(h, status);
    cb_add32(&h->n_moves, 1, CB_RELAXED);
    cb_wake_all_locked(h);
}

void cb_give_up_locked(struct cb_handle *h, int status)
{
    h->is_away = false;
    cb_store32(&h->lost, (uint32_t)CB_LOST, CB_RELAXED);
    end_waiting_locked(h, status);
}

/* ---- the safety net -------------------------------------------------------------------------- */

/* Whether what the slot says should have been announced. Tokens of a request that wants its end only
 * are by nobody. */
static bool is_news(const struct cb_held *q, const struct cb_slot_view *view)
{
    return view->state >= CB_SLOT_FINISHED ||
           (view->emitted > q->n_seen && !(q->flags & CB_FINAL_ONLY));
}

/* The daemon stores a count before it announces it, and may lose its core in between. So what a scan
 * finds is missed only if the one before it, a second ago, found it unannounced too. */
bool cb_scan_locked(struct cb_handle *h, bool is_second)
{
    struct cb_link *link = h->link;
    bool any = false;
    for (uint32_t slot = 0; slot < link->geometry.n_slots && !cb_gone_locked(h); slot++) {
        struct cb_held *q = link->of_slot[slot];
        struct cb_slot_view view;
        if (!q || !unfinished(q) || cb_lane_client_pending(link->lane))
            continue;
        cb_lane_client_slot(link->lane, slot, &view);
        if (!belongs(h, q, &view) || !is_news(q, &view))
            continue;
        if (!is_second || q->n_unannounced <= q->n_seen) {
            q->n_unannounced = view.emitted + (view.state >= CB_SLOT_FINISHED);
            any = true;
            continue;
        }
        h->wake_missed++;
        if (view.state >= CB_SLOT_FINISHED) {
            cb_end_by_view_locked(h, q, &view);
        } else {
            cb_admit_locked(q, &view, true);
            cb_make_ready_locked(h, q);
        }
    }
    return any;
}

/* ---- the bell -------------------------------------------------------------------------------- */

void cb_ring(struct cb_handle *h)
{
    struct cb_link *link = cb_link_enter(h);
    uint32_t serial = link->serial;
    bool gone = cb_send_bell(link) != 0;
    cb_link_leave(h);
    if (!gone)
        return;
    pthread_mutex_lock(&h->lock);
    struct cb_link *now = h->link;
    if (now->serial == serial)
        cb_lose_locked(h, CB_LOST);
    pthread_mutex_unlock(&h->lock);
}
