/* client/ends.c - what its slot says of a request: that it runs, what it has, and how it ended. */
#include "client/internal.h"

#include "client/record.h"

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
int cb_over_locked(struct cb_handle *h, struct cb_held *q, enum cb_request_state state)
{
    cb_release_arena_locked(q);
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
    return cb_over_locked(h, q, CB_REQUEST_ENDED);
}

int cb_changed_locked(struct cb_handle *h, struct cb_held *q)
{
    int ring = cb_leave_slot_locked(h, q);
    if (!(q->flags & CB_RESTART) || !h->reconnect)
        return ring | cb_end_locked(h, q, CB_END_ERROR, CB_CHANGED);
    if (cb_record_restart(q->record))
        return ring | cb_end_locked(h, q, CB_END_ERROR, CB_NO_MEMORY);
    q->n_restarts++;
    q->is_restart_told = false;
    q->n_seen = q->n_told = 0;
    q->ids = q->record->kept->ids;
    q->times = q->record->kept->times;
    cb_queue_locked(h, q);
    cb_make_ready_locked(h, q);
    return ring;
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

bool cb_is_cancelled(const struct cb_held *q)
{
    return cb_load64(&q->cancel_id, CB_RELAXED) == cb_load64(&q->id, CB_RELAXED);
}

/* Whether its time has come in the library, be it by its end or by one that was asked for. */
bool cb_is_over_locked(struct cb_handle *h, struct cb_held *q, uint64_t now_ns)
{
    const struct cb_record *r = q->record;
    if (cb_is_cancelled(q))
        cb_end_locked(h, q, CB_END_CANCELLED, 0);
    else if (r->due_ns && r->due_ns <= now_ns)
        cb_end_locked(h, q, CB_END_DEADLINE, 0);
    else
        return false;
    return true;
}
