/* A sorted array beats lists or a heap here: there are at most as many pieces as slots, nothing is
 * allocated, and the walk is a few cache lines. First fit keeps what is left in one piece at the
 * end, so the largest request only ever waits for those that came before it. */
#include "shm/arena.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

void cb_arena_init(struct cb_arena *a, struct cb_piece *storage, uint32_t n_held_max,
                   uint64_t bytes, uint32_t align)
{
    assert(align && (align & (align - 1)) == 0);
    *a = (struct cb_arena){
        .held = storage, .n_held_max = n_held_max, .bytes = bytes - bytes % align, .align = align};
}

int cb_arena_take(struct cb_arena *a, uint64_t bytes, uint64_t *offp)
{
    uint64_t need, start = 0;
    uint32_t i;

    assert(bytes > 0);
    /* Compared before rounding up, which could wrap. */
    if (bytes > a->bytes || a->n_held == a->n_held_max)
        return CB_ARENA_FULL;
    need = (bytes + a->align - 1) & ~(uint64_t)(a->align - 1);
    for (i = 0; i < a->n_held; i++) {
        if (a->held[i].off - start >= need)
            break;
        start = a->held[i].off + a->held[i].bytes;
    }
    if (i == a->n_held && a->bytes - start < need)
        return CB_ARENA_FULL;
    memmove(&a->held[i + 1], &a->held[i], (a->n_held - i) * sizeof a->held[0]);
    a->held[i] = (struct cb_piece){.off = start, .bytes = need};
    a->n_held++;
    a->held_bytes += need;
    *offp = start;
    return 0;
}

void cb_arena_release(struct cb_arena *a, uint64_t off)
{
    uint32_t low = 0, high = a->n_held;

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;

        if (a->held[middle].off < off)
            low = middle + 1;
        else
            high = middle;
    }
    assert(low < a->n_held && a->held[low].off == off);
    a->held_bytes -= a->held[low].bytes;
    a->n_held--;
    memmove(&a->held[low], &a->held[low + 1], (a->n_held - low) * sizeof a->held[0]);
}
