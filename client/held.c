/* client/held.c - the requests of a handle: the table that holds them, and the lists they stand in.
 *
 * There is no queue of events. A request knows how many of its tokens are there, how many it has
 * told, and whether it has ended; its next event follows from that, and a request that has one
 * stands in a list. So nothing here can be full, however late the application looks, and one
 * request's events never stand before another's. */
#include "client/internal.h"

#include <string.h>

#include "client/record.h"
#include "client/text.h"

struct cb_held *cb_held_find_locked(struct cb_handle *h, uint64_t id)
{
    struct cb_held *q;
    if (CB_ID_IDX(id) >= h->n_held || !id)
        return NULL;
    q = &h->held[CB_ID_IDX(id)];
    return cb_load64(&q->id, CB_RELAXED) == id && !q->abandoned ? q : NULL;
}

/* ---- those that have an event ---------------------------------------------------------------- */

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
    cb_add32(&h->n_moves, 1, CB_RELAXED);
    if (q->group)
        cb_wake_group_locked(h, q->group);
    else
        cb_wake_locked(h, cb_load64(&q->id, CB_RELAXED), q->handler != NULL);
}

void cb_take_locked(struct cb_handle *h, struct cb_held *q, struct cb_event *event)
{
    bool ended = q->state >= CB_REQUEST_ENDED;
    uint32_t n = q->n_seen - q->n_told;
    cb_unlist_locked(h, q);
    memset(event, 0, sizeof(*event));
    event->id = cb_load64(&q->id, CB_RELAXED);
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

/* ---- those that are away --------------------------------------------------------------------- */

/* Behind those that were admitted before it. */
void cb_queue_locked(struct cb_handle *h, struct cb_held *q)
{
    struct cb_held **at = &h->away_first;
    while (*at && (*at)->record->order < q->record->order)
        at = &(*at)->later;
    q->later = *at;
    *at = q;
    q->state = CB_REQUEST_AWAY;
}

/* ---- the way back ---------------------------------------------------------------------------- */

void cb_release_arena_locked(struct cb_held *q)
{
    if (q->has_arena)
        cb_arena_release(&q->link->arena, q->arena_off);
    q->has_arena = false;
}

/* It has no slot any more. CB_LANE_RING or 0. */
int cb_leave_slot_locked(struct cb_handle *h, struct cb_held *q)
{
    struct cb_link *link = q->link;
    bool is_there = link == h->link && !cb_gone_locked(h);
    if (is_there)
        cb_release_arena_locked(q);
    cb_store64(&q->place, 0, CB_RELAXED);
    q->link = NULL;
    if (!is_there)
        return 0;
    link->of_slot[q->slot] = NULL;
    return cb_lane_client_free(link->lane, q->slot);
}

/* Its slot, if it has one, and whatever of it lay in another link. CB_LANE_RING or 0. */
static int leave_locked(struct cb_handle *h, struct cb_held *q)
{
    struct cb_link *link = q->link, *home = q->home;
    cb_store64(&q->place, 0, CB_RELAXED);
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
    cb_store64(&q->id, 0, CB_RELAXED);
    return leave_locked(h, q);
}
