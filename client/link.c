/* client/link.c - who may still look at a link whose daemon is gone.
 *
 * Three kinds: threads that look without the lock, and say so under it; requests whose tokens were
 * told as pointers into it, until they are released; and cb_cancel, which can take no lock and so
 * counts itself in before it loads the pointer, and out when it is done. Whoever has replaced the
 * pointer and then finds that count 0 knows that nobody of the last kind has the old one. */
#include "client/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

struct cb_link *cb_link_free(struct cb_link *link, bool is_child)
{
    if (!link)
        return NULL;
    if (link->sock >= 0)
        close(link->sock);
    if (!is_child) {
        cb_segment_unmap(&link->up);
        cb_segment_unmap(&link->down);
        cb_segment_unmap(&link->bell);
    }
    free(link->arena.held);
    free(link->lane_memory);
    free(link->of_slot);
    free(link);
    return NULL;
}

bool cb_gone_locked(const struct cb_handle *h)
{
    return h->is_away || cb_lost(h);
}

void cb_link_set(struct cb_handle *h, struct cb_link *link)
{
    h->link = link;
    /* Release: what it points to was made before. */
    cb_store64(&h->link_shown, (uintptr_t)link, CB_RELEASE);
}

struct cb_link *cb_link_enter(struct cb_handle *h)
{
    /* Full: the count before the look at the pointer. Who replaces the pointer fences, then looks at the
     * count. */
    cb_add32(&h->n_inside, 1, CB_RELAXED);
    cb_fence();
    /* Acquire: then it is whole. */
    return (struct cb_link *)(uintptr_t)cb_load64(&h->link_shown, CB_ACQUIRE);
}

void cb_link_leave(struct cb_handle *h)
{
    /* Release: we are done with the mappings before they go. */
    cb_add32(&h->n_inside, UINT32_MAX, CB_RELEASE);
}

struct cb_link *cb_link_hold_locked(struct cb_handle *h)
{
    struct cb_link *link = h->link;
    link->n_threads++;
    return link;
}

void cb_link_drop_locked(struct cb_handle *h, struct cb_link *link)
{
    link->n_threads--;
    if (link != h->link)
        cb_link_reap_locked(h);
}

void cb_link_reap_locked(struct cb_handle *h)
{
    struct cb_link **at = &h->older;
    /* Full: the pointer was replaced before the looks at the count. */
    cb_fence();
    while (*at) {
        struct cb_link *link = *at;
        bool is_left = link->n_threads == 0 && cb_load32(&h->n_inside, CB_ACQUIRE) == 0;
        if (is_left && link->n_requests == 0) {
            *at = link->older;
            cb_link_free(link, false);
            continue;
        }
        if (is_left) { /* only results are looked at */
            cb_segment_unmap(&link->up);
            cb_segment_unmap(&link->bell);
            if (link->sock >= 0)
                close(link->sock);
            link->sock = -1;
        }
        at = &link->older;
    }
}
