/* The order is always: write the entry, then move the cursor (release); load the cursor (acquire),
 * then read the entry. What the peer's cursor says is compared by distance from the last accepted
 * value, which is right at 2^64 too, and makes a cursor that moves backwards look like a jump far
 * ahead: both are refused by one test. */
#include "shm/ring.h"

static size_t entry_off(uint64_t cursor, uint32_t capacity, uint32_t stride)
{
    return (size_t)(cursor & (capacity - 1)) * stride;
}

int cb_ring_out_refresh(struct cb_ring_out *r)
{
    /* Acquire: the consumer's reads of the entries it gave back are over before we overwrite
     * them. */
    uint64_t taken = cb_load64(r->taken_word, CB_ACQUIRE);

    if (taken - r->taken > r->published - r->taken)
        return -EPROTO;
    r->taken = taken;
    return 0;
}

void cb_ring_out_put(struct cb_ring_out *r, const void *entry, size_t bytes)
{
    assert(cb_ring_out_free(r) > 0 && bytes <= r->stride);
    cb_copy_out(r->entries + entry_off(r->sent, r->capacity, r->stride), entry, bytes);
    r->sent++;
}

void cb_ring_out_publish(struct cb_ring_out *r)
{
    r->published = r->sent;
    /* Release: whoever sees the cursor sees the entries, and what they point to. */
    cb_store64(r->sent_word, r->sent, CB_RELEASE);
}

int cb_ring_in_refresh(struct cb_ring_in *r)
{
    /* Acquire: entries below the cursor, and what they point to, are complete. */
    uint64_t sent = cb_load64(r->sent_word, CB_ACQUIRE);

    if (sent - r->taken > r->capacity || sent - r->taken < r->sent - r->taken)
        return -EPROTO;
    r->sent = sent;
    return 0;
}

void cb_ring_in_peek(const struct cb_ring_in *r, void *entry, size_t bytes)
{
    assert(cb_ring_in_used(r) > 0 && bytes <= r->stride);
    cb_copy_in(entry, r->entries + entry_off(r->taken, r->capacity, r->stride), bytes);
}

void cb_ring_in_take(struct cb_ring_in *r)
{
    assert(cb_ring_in_used(r) > 0);
    r->taken++;
    /* Release: our reads of the entry are over before the producer may overwrite it. */
    cb_store64(r->taken_word, r->taken, CB_RELEASE);
}
