/* The one-way ring: an entry is read whole and in order, never before it was written, never after
 * its place was given back; with wrap, with one and two places, with cursors that pass 2^64. */
#include <string.h>

#include "shm/ring.h"
#include "tests/explore/cases.h"

enum { N_ENTRIES = 3, TRIES = 5 };

static struct {
    cb_atomic64 sent, taken;
    unsigned char entries[2 * 8];
} shared;
static struct cb_ring_out out;
static struct cb_ring_in in;

static void init(uint32_t capacity, uint64_t start)
{
    memset(&shared, 0, sizeof shared);
    shared.sent = shared.taken = start;
    out = (struct cb_ring_out){.sent_word = &shared.sent,
                               .taken_word = &shared.taken,
                               .entries = shared.entries,
                               .capacity = capacity,
                               .stride = 8,
                               .sent = start,
                               .published = start,
                               .taken = start};
    in = (struct cb_ring_in){.taken_word = &shared.taken,
                             .sent_word = &shared.sent,
                             .entries = shared.entries,
                             .capacity = capacity,
                             .stride = 8,
                             .taken = start,
                             .sent = start};
}

static void init_1(void)
{
    init(1, 0);
}

static void init_2(void)
{
    init(2, 0);
}

static void init_wrap(void)
{
    init(2, UINT64_MAX - 1);
}

static void produce(void)
{
    uint32_t n = 0;

    for (int i = 0; i < TRIES && n < N_ENTRIES; i++) {
        uint32_t entry[2] = {n + 1, ~(n + 1)};

        if (!cb_ring_out_free(&out))
            explore_claim(cb_ring_out_refresh(&out) == 0, "an honest cursor was refused");
        if (!cb_ring_out_free(&out))
            continue;
        cb_ring_out_put(&out, entry, sizeof entry);
        cb_ring_out_publish(&out);
        n++;
    }
}

static void consume(void)
{
    uint32_t n = 0;

    for (int i = 0; i < TRIES && n < N_ENTRIES; i++) {
        uint32_t entry[2];

        if (!cb_ring_in_used(&in))
            explore_claim(cb_ring_in_refresh(&in) == 0, "an honest cursor was refused");
        if (!cb_ring_in_used(&in))
            continue;
        cb_ring_in_peek(&in, entry, sizeof entry);
        explore_claim(entry[0] == n + 1 && entry[1] == ~(n + 1),
                      "an entry was torn or out of order");
        cb_ring_in_take(&in);
        n++;
    }
}

static const struct explore_case cases[] = {
    {.name = "ring of 1", .n_threads = 2, .init = init_1, .thread = {produce, consume}},
    {.name = "ring of 2, wrap", .n_threads = 2, .init = init_2, .thread = {produce, consume}},
    {.name = "ring of 2, near 2^64",
     .n_threads = 2,
     .init = init_wrap,
     .thread = {produce, consume}},
};
const struct explore_list cases_ring = {cases, sizeof cases / sizeof cases[0]};
