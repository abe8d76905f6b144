/* client/lost.c - what becomes of requests whose daemon is gone.
 *
 * A lost lane has no writer any more, and its slot table is the truth about each of them. It is read
 * once a slot, as something that may make no sense: what does is the client's, what does not is as if
 * it had never been written. What is resumable then waits in a list, in the order of admission, and is
 * sent to the next daemon as an ordinary request: prompt, tokens so far, and the option that says so. */
#include "client/internal.h"

#include <poll.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "client/reconnect.h"
#include "client/record.h"

#define LIFE_NS  50000000ull
#define AGAIN_NS 20000000ull /* after the next daemon, too, had no room or was about to stop */

static bool is_cancelled(const struct cb_held *q)
{
    return atomic_load(&q->cancel_id) == atomic_load_explicit(&q->id, memory_order_relaxed);
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

/* ---- one to be sent again -------------------------------------------------------------------- */

/* Behind those that were admitted before it. */
static void queue_locked(struct cb_handle *h, struct cb_held *q)
{
    struct cb_held **at = &h->away_first;
    while (*at && (*at)->record->order < q->record->order)
        at = &(*at)->later;
    q->later = *at;
    *at = q;
    q->state = CB_REQUEST_AWAY;
}

/* It has no slot any more. CB_LANE_RING or 0. */
static int leave_slot_locked(struct cb_handle *h, struct cb_held *q)
{
    struct cb_link *link = q->link;
    atomic_store(&q->place, 0);
    q->link = NULL;
    if (link != h->link || cb_gone_locked(h))
        return 0;
    if (q->has_arena)
        cb_arena_release(&link->arena, q->arena_off);
    q->has_arena = false;
    link->of_slot[q->slot] = NULL;
    return cb_lane_client_free(link->lane, q->slot);
}

int cb_changed_locked(struct cb_handle *h, struct cb_held *q)
{
    int ring = leave_slot_locked(h, q);
    if (!(q->flags & CB_RESTART) || !h->reconnect)
        return ring | cb_end_locked(h, q, CB_END_ERROR, CB_CHANGED);
    if (cb_record_restart(q->record))
        return ring | cb_end_locked(h, q, CB_END_ERROR, CB_NO_MEMORY);
    q->n_restarts++;
    q->is_restart_told = false;
    q->n_seen = q->n_told = 0;
    q->ids = q->record->kept->ids;
    q->times = q->record->kept->times;
    queue_locked(h, q);
    cb_make_ready_locked(h, q);
    return ring;
}

int cb_refused_locked(struct cb_handle *h, struct cb_held *q, int status, const uint32_t detail[2])
{
    int ring;
    if (status == CB_CHANGED)
        return cb_changed_locked(h, q);
    ring = leave_slot_locked(h, q);
    if (status == CB_BUSY || status == CB_DRAINING) {
        q->record->n_resumes--;
        queue_locked(h, q);
        h->resend_ns = cb_now_ns() + AGAIN_NS;
        return ring;
    }
    memcpy(q->detail, detail, sizeof(q->detail));
    return ring | cb_end_locked(h, q, CB_END_ERROR, status);
}

/* Whether its time has come in the library, be it by its end or by one that was asked for. */
static bool is_over_locked(struct cb_handle *h, struct cb_held *q, uint64_t now_ns)
{
    const struct cb_record *r = q->record;
    if (is_cancelled(q))
        cb_end_locked(h, q, CB_END_CANCELLED, 0);
    else if (r->due_ns && r->due_ns <= now_ns)
        cb_end_locked(h, q, CB_END_DEADLINE, 0);
    else
        return false;
    return true;
}

void cb_sweep_locked(struct cb_handle *h)
{
    struct cb_held **at = &h->away_first, *q;
    uint64_t now_ns = cb_now_ns();
    while ((q = *at) != NULL) {
        struct cb_held *later = q->later;
        if (is_over_locked(h, q, now_ns))
            *at = later;
        else
            at = &q->later;
    }
}

/* Sends it: 0; CB_BUSY: there is no room now; or it is over, or waits once more. */
static int resend_locked(struct cb_handle *h, struct cb_held *q, int *ringp)
{
    struct cb_link *link = h->link;
    struct cb_record *r = q->record;
    struct cb_request_entry entry;
    uint64_t now_ns = cb_now_ns(), off;
    int status;
    if (r->is_anew)
        cb_record_sent(r, link, now_ns);
    cb_record_entry(r, now_ns, &entry);
    status = cb_room_locked(h, &entry, entry.opt_len, &off);
    if (status)
        return status;
    cb_record_write(r, link->lane, &entry);
    status = cb_send_locked(h, &entry, off, q, ringp);
    if (status)
        return status;
    r->n_resumes++;
    cb_record_sent(r, link, now_ns);
    /* The place is set, then the mark is looked at; cb_cancel does it the other way round. */
    atomic_thread_fence(memory_order_seq_cst);
    if (is_cancelled(q))
        *ringp |= cb_lane_client_cancel(link->lane, q->slot, q->gen);
    return 0;
}

void cb_resend_locked(struct cb_handle *h, int *ringp)
{
    struct cb_held *q;
    if (!h->away_first || cb_gone_locked(h))
        return;
    uint64_t now_ns = cb_now_ns();
    if (now_ns < h->resend_ns)
        return;
    while ((q = h->away_first) != NULL && !cb_gone_locked(h)) {
        now_ns = cb_now_ns(); /* those before it may have taken long; a deadline is seen to once */
        h->away_first = q->later;
        q->later = NULL;
        if (is_over_locked(h, q, now_ns))
            continue;
        if (q->record->n_resumes >= cb_reconnect_resume_max(h)) {
            cb_end_locked(h, q, CB_END_ERROR, CB_LOST);
        } else if (q->record->is_mixed) {
            *ringp |= cb_changed_locked(h, q); /* ends, or is not mixed any more */
        } else if (resend_locked(h, q, ringp)) {
            queue_locked(h, q);
            return;
        }
    }
}

/* ---- the lane is lost ------------------------------------------------------------------------ */

/* Whether a slot's record is this request's, and makes sense. */
static bool belongs(const struct cb_handle *h, const struct cb_held *q,
                    const struct cb_slot_view *view)
{
    uint32_t n_known = q->n_seen;
    if (view->gen != q->gen || view->state == CB_SLOT_FREE || view->state > CB_SLOT_FAILED ||
        view->emitted > view->out_cap || view->out_cap > q->limit || (view->emitted && !view->ids))
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

/* It was cut off, with what was seen of it. `view`: of its slot, or NULL: that makes no sense. */
static void lose_one_locked(struct cb_handle *h, struct cb_held *q, const struct cb_slot_view *view,
                            int status)
{
    struct cb_record *r = q->record;
    if (is_cancelled(q)) {
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
    queue_locked(h, q);
    cb_make_ready_locked(h, q);
}

/* Nobody will take what waits. */
static void end_waiting_locked(struct cb_handle *h, int status)
{
    struct cb_held *q;
    while ((q = h->away_first) != NULL) {
        h->away_first = q->later;
        if (!is_over_locked(h, q, cb_now_ns()))
            cb_end_locked(h, q, CB_END_ERROR, status);
    }
    atomic_fetch_add_explicit(&h->n_moves, 1, memory_order_release);
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
        atomic_store_explicit(&h->lost, status, memory_order_release);
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
        atomic_store(&q->place, 0);
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
    atomic_fetch_add_explicit(&h->n_moves, 1, memory_order_release);
    cb_wake_all_locked(h);
}

void cb_give_up_locked(struct cb_handle *h, int status)
{
    h->is_away = false;
    atomic_store_explicit(&h->lost, CB_LOST, memory_order_release);
    end_waiting_locked(h, status);
}

/* ---- the safety net -------------------------------------------------------------------------- */

void cb_scan_locked(struct cb_handle *h)
{
    struct cb_link *link = h->link;
    for (uint32_t slot = 0; slot < link->geometry.n_slots && !cb_gone_locked(h); slot++) {
        struct cb_held *q = link->of_slot[slot];
        struct cb_slot_view view;
        if (!q || !unfinished(q) || cb_lane_client_pending(link->lane))
            continue;
        cb_lane_client_slot(link->lane, slot, &view);
        if (!belongs(h, q, &view))
            continue;
        if (view.emitted > q->n_seen || view.state >= CB_SLOT_FINISHED)
            h->wake_missed++;
        if (view.state >= CB_SLOT_FINISHED) {
            cb_end_by_view_locked(h, q, &view);
        } else {
            cb_admit_locked(q, &view, true);
            cb_make_ready_locked(h, q);
        }
    }
}
