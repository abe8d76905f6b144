/* client/cancel.c - asks that a request end, from anywhere.
 *
 * A signal may have interrupted this very thread while it held the lock, so nothing here takes it:
 * the request's place is one word, the lane's cancel word is changed by compare-and-swap,
 * and the bell is one send. No message is kept either: thread-local memory may not exist yet. errno
 * is the interrupted code's and stays as it was. */
#include "client/internal.h"

#include <errno.h>

int cb_cancel(struct cb_handle *h, uint64_t id)
{
    struct cb_held *q;
    int r = cb_enter(h), saved = errno;
    if (r)
        return r;
    if (CB_ID_IDX(id) >= h->n_held || !id)
        return CB_NOT_FOUND;
    q = &h->held[CB_ID_IDX(id)];
    /* Relaxed: whoever has the id has it from the submit that stored it. */
    if (cb_load64(&q->id, CB_RELAXED) != id)
        return CB_NOT_FOUND;
    r = cb_lost(h);
    if (r)
        return r;
    /* Newer replaces older: a thread that was delayed with the number's last request must not take the
     * mark from this one. */
    uint64_t seen = cb_load64(&q->cancel_id, CB_RELAXED);
    while (seen < id && !cb_cas64(&q->cancel_id, &seen, id))
        ;
    /* The mark, the fence in here, then a look at the place: who sends it to another daemon sets the place,
     * fences, then looks at the mark. One of the two sees the other. */
    const struct cb_link *link = cb_link_enter(h);
    /* Where the mark was not seen, the fences bring the place, and the pointer with it. Acquire: if the
     * place is the index's next request's, then the id is not this one any more. */
    uint64_t place = cb_load64(&q->place, CB_ACQUIRE);
    if (place && cb_load64(&q->id, CB_RELAXED) == id && link->serial == CB_PLACE_SERIAL(place) &&
        cb_lane_client_cancel(link->lane, CB_PLACE_SLOT(place), CB_PLACE_GEN(place)) & CB_LANE_RING)
        r = cb_send_bell(link) && !h->reconnect ? CB_LOST : 0;
    cb_link_leave(h);
    errno = saved;
    return r;
}
