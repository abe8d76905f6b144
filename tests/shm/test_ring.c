#include <criterion/criterion.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "shm/ring.h"

struct words {
    cb_atomic64 sent, taken;
    uint64_t entries[64];
};

static struct cb_ring_out out_of(struct words *w, uint32_t capacity, uint64_t first)
{
    cb_store64(&w->sent, first, CB_RELAXED);
    return (struct cb_ring_out){.sent_word = &w->sent,
                                .taken_word = &w->taken,
                                .entries = (unsigned char *)w->entries,
                                .capacity = capacity,
                                .stride = 16,
                                .sent = first,
                                .published = first,
                                .taken = first};
}

static struct cb_ring_in in_of(struct words *w, uint32_t capacity, uint64_t first)
{
    cb_store64(&w->taken, first, CB_RELAXED);
    return (struct cb_ring_in){.taken_word = &w->taken,
                               .sent_word = &w->sent,
                               .entries = (const unsigned char *)w->entries,
                               .capacity = capacity,
                               .stride = 16,
                               .taken = first,
                               .sent = first};
}

/* Fills and empties a ring of every small capacity, over the wrap of the cursors. */
Test(ring, carries_every_entry_in_order_over_2_to_the_64)
{
    for (uint32_t capacity = 1; capacity <= 8; capacity *= 2) {
        struct words w = {0};
        struct cb_ring_out out = out_of(&w, capacity, UINT64_MAX - 20);
        struct cb_ring_in in = in_of(&w, capacity, UINT64_MAX - 20);
        uint64_t n_put = 0, n_taken = 0;

        for (int round = 0; round < 100; round++) {
            cr_assert_eq(cb_ring_out_refresh(&out), 0);
            while (cb_ring_out_free(&out) > 0) {
                cb_ring_out_put(&out, &n_put, sizeof n_put);
                n_put++;
            }
            cr_assert_eq(cb_ring_in_refresh(&in), 0);
            cr_assert_lt(cb_ring_in_used(&in), capacity, "what is not published can't be seen");
            cb_ring_out_publish(&out);
            cr_assert_eq(cb_ring_in_refresh(&in), 0);
            cr_assert_eq(cb_ring_in_used(&in), capacity);
            for (uint32_t i = 0; i < (capacity + 1) / 2; i++) {
                uint64_t value;

                cb_ring_in_peek(&in, &value, sizeof value);
                cr_assert_eq(value, n_taken);
                cb_ring_in_take(&in);
                n_taken++;
            }
        }
    }
}

Test(ring, refuses_a_sent_that_jumps_ahead_or_back)
{
    struct words w = {0};
    struct cb_ring_in in = in_of(&w, 4, 100);
    const uint64_t lies[] = {105, 99, 0, UINT64_MAX, 100 + (1ull << 63), 100 - 4};

    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        cb_store64(&w.sent, lies[i], CB_RELAXED);
        cr_assert_eq(cb_ring_in_refresh(&in), -EPROTO, "%llu", (unsigned long long)lies[i]);
        cr_assert_eq(cb_ring_in_used(&in), 0, "a lie is not accepted");
    }
    cb_store64(&w.sent, 104, CB_RELAXED);
    cr_assert_eq(cb_ring_in_refresh(&in), 0);
    cb_store64(&w.sent, 103, CB_RELAXED);
    cr_assert_eq(cb_ring_in_refresh(&in), -EPROTO, "what was sent stays sent");
}

Test(ring, refuses_a_taken_that_is_ahead_of_what_was_published)
{
    struct words w = {0};
    struct cb_ring_out out = out_of(&w, 4, 7);
    const uint64_t value = 1;

    cb_store64(&w.taken, 8, CB_RELAXED);
    cr_assert_eq(cb_ring_out_refresh(&out), -EPROTO);
    cb_ring_out_put(&out, &value, sizeof value);
    cr_assert_eq(cb_ring_out_refresh(&out), -EPROTO, "written is not published");
    cb_ring_out_publish(&out);
    cr_assert_eq(cb_ring_out_refresh(&out), 0);
    cr_assert_eq(cb_ring_out_free(&out), 4);
    cb_store64(&w.taken, 7, CB_RELAXED);
    cr_assert_eq(cb_ring_out_refresh(&out), -EPROTO, "what was given back stays given back");
}

/* Two threads; the consumer checks that each entry is whole and next. */
struct torture {
    struct words w;
    uint32_t capacity;
    uint64_t n;
};

static void *produce(void *arg)
{
    struct torture *t = arg;
    struct cb_ring_out out = out_of(&t->w, t->capacity, UINT64_MAX - 1000);

    for (uint64_t i = 0; i < t->n; i++) {
        const uint64_t entry[2] = {i, ~i};

        while (cb_ring_out_free(&out) == 0) {
            if (cb_ring_out_refresh(&out) < 0)
                return "the producer saw a lie";
            sched_yield();
        }
        cb_ring_out_put(&out, entry, sizeof entry);
        cb_ring_out_publish(&out);
    }
    return NULL;
}

Test(ring, two_threads_see_whole_entries_in_order)
{
    for (uint32_t capacity = 1; capacity <= 16; capacity *= 4) {
        struct torture t = {.capacity = capacity, .n = 20000};
        struct cb_ring_in in = in_of(&t.w, capacity, UINT64_MAX - 1000);
        pthread_t thread;
        void *said;

        cb_store64(&t.w.sent, UINT64_MAX - 1000, CB_RELAXED);
        cr_assert_eq(pthread_create(&thread, NULL, produce, &t), 0);
        for (uint64_t i = 0; i < t.n; i++) {
            uint64_t entry[2];

            while (cb_ring_in_used(&in) == 0) {
                cr_assert_eq(cb_ring_in_refresh(&in), 0);
                sched_yield();
            }
            cb_ring_in_peek(&in, entry, sizeof entry);
            cb_ring_in_take(&in);
            if (entry[0] != i || entry[1] != ~i)
                cr_assert_fail("entry %llu is %llu", (unsigned long long)i,
                               (unsigned long long)entry[0]);
        }
        pthread_join(thread, &said);
        cr_assert_null(said);
    }
}
