#include <criterion/criterion.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>

#include "shm/arena.h"

Test(arena, takes_the_first_gap_that_fits)
{
    struct cb_piece storage[4];
    struct cb_arena a;
    uint64_t a0, a1, a2, a3;

    cb_arena_init(&a, storage, 4, 1000, 64); /* 960 usable */
    cr_assert_eq(cb_arena_take(&a, 1, &a0), 0);
    cr_assert_eq(cb_arena_take(&a, 65, &a1), 0);
    cr_assert_eq(cb_arena_take(&a, 64, &a2), 0);
    cr_assert(a0 == 0 && a1 == 64 && a2 == 192);
    cr_assert_eq(a.held_bytes, 256);
    cb_arena_release(&a, a1);
    cr_assert_eq(cb_arena_take(&a, 129, &a3), 0);
    cr_assert_eq(a3, 256, "the gap of 128 is too small");
    cr_assert_eq(cb_arena_take(&a, 128, &a1), 0);
    cr_assert_eq(a1, 64);
    cr_assert_eq(cb_arena_take(&a, 1, &a1), CB_ARENA_FULL, "no more pieces");
}

Test(arena, refuses_what_does_not_fit_also_at_the_end_of_numbers)
{
    struct cb_piece storage[4];
    struct cb_arena a;
    uint64_t off;

    cb_arena_init(&a, storage, 4, 1024, 64);
    cr_assert_eq(cb_arena_take(&a, 1025, &off), CB_ARENA_FULL);
    cr_assert_eq(cb_arena_take(&a, UINT64_MAX, &off), CB_ARENA_FULL);
    cr_assert_eq(cb_arena_take(&a, UINT64_MAX - 62, &off), CB_ARENA_FULL);
    cr_assert_eq(cb_arena_take(&a, 1024, &off), 0);
    cr_assert_eq(cb_arena_take(&a, 1, &off), CB_ARENA_FULL);
    cb_arena_release(&a, 0);
    cr_assert_eq(a.held_bytes, 0);
}

Test(arena, releasing_what_is_not_held_is_our_bug, .signal = SIGABRT)
{
    struct cb_piece storage[4];
    struct cb_arena a;
    uint64_t off;

    cb_arena_init(&a, storage, 4, 1024, 64);
    cb_arena_take(&a, 64, &off);
    cb_arena_release(&a, 64);
}

/* Against a map of who holds each unit. */
Test(arena, agrees_with_a_naive_one)
{
    enum { UNITS = 40, PIECES = 12 };
    struct cb_piece storage[PIECES];
    struct cb_arena a;
    uint8_t owner[UNITS] = {0};
    uint64_t offs[PIECES + 1] = {0};
    uint32_t random = 1;

    cb_arena_init(&a, storage, PIECES, UNITS * 8, 8);
    for (int step = 0; step < 200000; step++) {
        uint8_t id;

        random = random * 1664525u + 1013904223u;
        id = (uint8_t)(1 + (random >> 8) % PIECES);
        if (memchr(owner, id, UNITS)) {
            cb_arena_release(&a, offs[id]);
            for (int i = 0; i < UNITS; i++)
                owner[i] = owner[i] == id ? 0 : owner[i];
        } else {
            uint32_t n = 1 + (random >> 16) % 16, run = 0, at = 0;
            uint64_t off = 0;

            while (at < UNITS && run < n)
                run = owner[at++] ? 0 : run + 1;
            if (run < n) {
                cr_assert_eq(cb_arena_take(&a, n * 8, &off), CB_ARENA_FULL);
            } else {
                cr_assert_eq(cb_arena_take(&a, n * 8 - 7, &off), 0);
                cr_assert_eq(off, (at - n) * 8);
                memset(owner + at - n, id, n);
                offs[id] = off;
            }
        }
    }
}
