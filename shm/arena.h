/* shm/arena.h - who holds which bytes of a region: contiguous pieces, first fit.
 *
 * Bookkeeping only, in private memory; the region itself (the arena in UP for the client, the
 * output pool in DOWN for the daemon) is never touched, so nothing in it can mislead this. The
 * pieces held are kept sorted by offset in an array of the caller's; taking and releasing walk it,
 * so both are bounded by the number of pieces. One thread at a time. */
#ifndef CB_SHM_ARENA_H
#define CB_SHM_ARENA_H

#include <stdint.h>

struct cb_piece {
    uint64_t off, bytes;
};

struct cb_arena {
    struct cb_piece *held; /* sorted, not overlapping */
    uint32_t n_held, n_held_max;
    uint64_t bytes; /* of the region */
    uint64_t held_bytes;
    uint32_t align; /* a power of two; offsets and sizes are multiples of it */
};

/* Nothing is held. `storage` has n_held_max elements and stays the caller's. */
void cb_arena_init(struct cb_arena *a, struct cb_piece *storage, uint32_t n_held_max,
                   uint64_t bytes, uint32_t align);

enum { CB_ARENA_FULL = 1 };

/* Takes a piece of at least `bytes` (more than 0): 0 and *offp, or CB_ARENA_FULL with nothing
 * changed: no gap is large enough now, or there are n_held_max pieces. */
int cb_arena_take(struct cb_arena *a, uint64_t bytes, uint64_t *offp);

/* Gives back the piece that was taken at `off`. Asserts that there is one. */
void cb_arena_release(struct cb_arena *a, uint64_t off);

#endif
