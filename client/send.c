/* client/send.c - into the lane: an entry with its arena bytes, by whoever has one, and the bell.
 *
 * What is sent for the first time and what is sent again take the same way: from here on the lane knows
 * no difference. */
#include "client/internal.h"

#include <errno.h>

#include "shm/doorbell.h"

int cb_room_locked(struct cb_handle *h, struct cb_request_entry *entry, uint64_t option_bytes,
                   uint64_t *offp)
{
    struct cb_link *link = h->link;
    uint64_t prompt_bytes = ((uint64_t)entry->n_prompt * 4 + 7) & ~(uint64_t)7;
    if (!cb_lane_client_can_submit(link->lane, entry->n_children) ||
        cb_arena_take(&link->arena, prompt_bytes + option_bytes, offp))
        return CB_BUSY;
    entry->prompt_off = *offp;
    entry->opt_off = option_bytes ? *offp + prompt_bytes : 0;
    return 0;
}

int cb_send_locked(struct cb_handle *h, struct cb_request_entry *entry, uint64_t arena_off,
                   struct cb_held *first, int *ringp)
{
    struct cb_link *link = h->link;
    int r = cb_lane_client_submit(link->lane, entry);
    if (r < 0) {
        cb_arena_release(&link->arena, arena_off);
        return r == -EAGAIN ? CB_BUSY : CB_LOST;
    }
    *ringp |= r;
    for (uint32_t i = 0; i < entry->n_children; i++) {
        struct cb_held *q = &first[i];
        link->of_slot[entry->slot + i] = q;
        q->link = link;
        q->slot = entry->slot + i;
        q->gen = entry->gen;
        q->n_unannounced = 0;
        q->state = CB_REQUEST_SENT;
        q->has_arena = i == 0; /* all are answered in one */
        q->arena_off = arena_off;
        /* Relaxed: who sends it again fences behind this; and the fence in the lane's submit lies between
         * the end of the id that was here before and this. */
        cb_store64(&q->place, (uint64_t)link->serial << 36 | (uint64_t)q->gen << 12 | q->slot,
                   CB_RELAXED);
    }
    return 0;
}

int cb_send_bell(const struct cb_link *link)
{
    uint32_t doze = cb_lane_client_doze(link->lane);
    int r = cb_doorbell_send(link->sock, CB_RECORD_BELL);
    if (!r)
        cb_lane_client_rang(link->lane, doze);
    return r;
}
