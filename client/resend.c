/* client/resend.c - what waits for the next daemon is sent to it, in the order of admission: each as an
 * ordinary request, prompt, tokens so far, and the option that says so. */
#include "client/internal.h"

#include <string.h>

#include "client/reconnect.h"
#include "client/record.h"

#define AGAIN_NS 20000000ull /* after the next daemon, too, had no room or was about to stop */

void cb_sweep_locked(struct cb_handle *h)
{
    struct cb_held **at = &h->away_first, *q;
    uint64_t now_ns = cb_now_ns();
    while ((q = *at) != NULL) {
        struct cb_held *later = q->later;
        if (cb_is_over_locked(h, q, now_ns))
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
    if (status == CB_LOST)
        cb_lose_locked(h, CB_LOST);
    if (status)
        return status;
    r->n_resumes++;
    cb_record_sent(r, link, now_ns);
    /* The place is set, then the mark is looked at; cb_cancel does it the other way round. */
    cb_fence();
    if (cb_is_cancelled(q))
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
        if (cb_is_over_locked(h, q, now_ns))
            continue;
        if (q->record->n_resumes >= cb_reconnect_resume_max(h)) {
            cb_end_locked(h, q, CB_END_ERROR, CB_LOST);
        } else if (q->record->is_mixed) {
            *ringp |= cb_changed_locked(h, q); /* ends, or is not mixed any more */
        } else if (resend_locked(h, q, ringp)) {
            cb_queue_locked(h, q);
            return;
        }
    }
}

int cb_refused_locked(struct cb_handle *h, struct cb_held *q, int status, const uint32_t detail[2])
{
    int ring;
    if (status == CB_CHANGED)
        return cb_changed_locked(h, q);
    ring = cb_leave_slot_locked(h, q);
    if (status == CB_BUSY || status == CB_DRAINING) {
        q->record->n_resumes--;
        cb_queue_locked(h, q);
        h->resend_ns = cb_now_ns() + AGAIN_NS;
        return ring;
    }
    memcpy(q->detail, detail, sizeof(q->detail));
    return ring | cb_end_locked(h, q, CB_END_ERROR, status);
}
