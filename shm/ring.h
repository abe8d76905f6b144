/* shm/ring.h - a one-way ring of fixed-size entries: one producer, one consumer, no lock, no wait.
 *
 * Two free-running 64-bit cursors: `sent`, stored by the producer alone, and `taken`, stored by the
 * consumer alone. "Used" is their unsigned difference, so wrapping at 2^64 needs no case of its
 * own. The capacity is a power of two (1 is fine); entry i lies at (i mod capacity) x stride.
 *
 * Each end keeps private copies of both cursors. Its own is the truth: it never reads its own word
 * back, which the peer may be able to see but must not decide. The peer's word is a claim: it is
 * accepted only if it lies between the last accepted value and what the rules allow, else the ring
 * is broken (-EPROTO), for good; the owner closes the lane. */
#ifndef CB_SHM_RING_H
#define CB_SHM_RING_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>

#include "shm/atomics.h"

/* The sending end. */
struct cb_ring_out {
    cb_atomic64 *sent_word;
    const cb_atomic64 *taken_word;
    unsigned char *entries;
    uint32_t capacity, stride;
    uint64_t sent;      /* entries written */
    uint64_t published; /* of these, visible to the peer */
    uint64_t taken;     /* last accepted claim of the peer */
};

/* The receiving end. */
struct cb_ring_in {
    cb_atomic64 *taken_word;
    const cb_atomic64 *sent_word;
    const unsigned char *entries;
    uint32_t capacity, stride;
    uint64_t taken;
    uint64_t sent; /* last accepted claim of the peer */
};

/* Loads the peer's `taken` (acquire). 0, or -EPROTO if it is a lie. Entries that were given back
 * may be overwritten from then on. */
int cb_ring_out_refresh(struct cb_ring_out *r);

/* Places for further entries, by the last accepted claim. */
static inline uint64_t cb_ring_out_free(const struct cb_ring_out *r)
{
    return r->capacity - (r->sent - r->taken);
}

/* Writes the next entry; there must be a place for it. The peer sees it after the next publish. */
void cb_ring_out_put(struct cb_ring_out *r, const void *entry, size_t bytes);

/* Publishes all entries written so far (release). The caller fences if a Dekker pair follows. */
void cb_ring_out_publish(struct cb_ring_out *r);

/* Loads the peer's `sent` (acquire). 0, or -EPROTO if it is a lie. */
int cb_ring_in_refresh(struct cb_ring_in *r);

/* Entries that wait, by the last accepted claim. */
static inline uint64_t cb_ring_in_used(const struct cb_ring_in *r)
{
    return r->sent - r->taken;
}

/* Copies the first bytes of the oldest entry; one must be waiting. It stays in the ring, and
 * whoever looks again must copy again: the peer may have changed it. */
void cb_ring_in_peek(const struct cb_ring_in *r, void *entry, size_t bytes);

/* Gives the oldest entry back (release); the peer may overwrite it from now on. */
void cb_ring_in_take(struct cb_ring_in *r);

#endif
