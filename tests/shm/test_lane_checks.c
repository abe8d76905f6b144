/* What the lane checks by itself, whoever checks before it: entries that intake has not looked at yet, and words that
 * mean something only together. */
#include "tests/shm/lane_pair.h"

/* Puts an entry that a client of our own never sends into the request ring. */
static void put(struct pair *p, uint32_t slot, uint32_t gen, uint32_t n_children)
{
    struct cb_request_entry entry;
    struct cb_up_hot *hot = p->up;
    uint64_t sent = cb_load64(&hot->req_sent, CB_RELAXED);

    cb_message_init(&entry);
    entry.n_prompt = 1;
    entry.max_new_tokens = 4;
    entry.slot = slot;
    entry.gen = gen;
    entry.n_children = n_children;
    cb_copy_out((char *)p->up + p->g.up_ring_off + (sent % p->g.req_capacity) * p->g.req_stride,
                &entry, sizeof entry);
    cb_store64(&hot->req_sent, sent + 1, CB_RELEASE);
}

/* What the lane alone says of it, which is then refused. */
static int refused(struct pair *p, uint32_t slot, uint32_t gen, uint32_t n_children)
{
    struct cb_request_entry entry;
    uint32_t detail[2] = {0};
    int r;

    put(p, slot, gen, n_children);
    cr_assert_eq(cb_lane_peek(p->lane, &entry), CB_LANE_ENTRY);
    cr_assert_eq(cb_lane_n_children(p->lane), 1, "it is answered in its first slot");
    r = cb_lane_reserve(p->lane, &entry, 4, detail);
    cr_assert_lt(r, 0);
    cb_lane_reject(p->lane, &entry, r, detail[0], detail[1]);
    pair_check(p);
    return r;
}

Test(lane_checks, slots_and_generations_that_there_are)
{
    struct pair p;
    struct cb_request_entry entry;

    pair_init(&p, 2, 0);
    put(&p, 0, 7, 1);
    cr_assert_eq(pair_intake(&p, &entry), CB_LANE_ENTRY);
    pair_end(&p, 0);
    cr_assert_eq(refused(&p, 2, 1, 1), CB_BAD_SLOT);
    cr_assert_eq(refused(&p, UINT32_MAX, 1, 1), CB_BAD_SLOT);
    cr_assert_eq(refused(&p, 0, 0, 1), CB_BAD_GENERATION);
    cr_assert_eq(refused(&p, 0, CB_GEN_MASK + 1, 1), CB_BAD_GENERATION);
    pair_fini(&p);
}

/* However many children it says it has: it must not wait for room, or be answered in slots that are not there. */
Test(lane_checks, families_that_do_not_fit_are_one_answer)
{
    static const struct {
        uint32_t n_slots, slot, n_children;
    } bad[] = {{128, 0, CB_CHILDREN_MAX + 1},
               {128, 0, UINT32_MAX},
               {64, 63, 2},
               {64, 62, 3},
               {64, 64, 1},
               {64, 0, 0}};

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct pair p;
        struct cb_request_entry entry;

        pair_init(&p, bad[i].n_slots, 0);
        put(&p, bad[i].slot, 1, bad[i].n_children);
        cr_assert_eq(cb_lane_peek(p.lane, &entry), CB_LANE_ENTRY, "%zu waits", i);
        cr_assert_eq(cb_lane_n_children(p.lane), 1, "%zu has %u answers", i,
                     cb_lane_n_children(p.lane));
        cb_lane_reject(p.lane, &entry, CB_BAD_SLOT, 0, 0);
        pair_check(&p);
        pair_fini(&p);
    }
}

Test(lane_checks, a_closed_lane_takes_nothing_in)
{
    struct pair p;
    struct cb_request_entry entry;

    pair_init(&p, 2, 0);
    cr_assert_geq(pair_submit(&p, 1, 0, &entry), 0);
    cb_lane_close(p.lane, CB_CLOSED_STOPPED);
    cr_assert_eq(cb_lane_peek(p.lane, &entry), CB_LANE_NOTHING);
    pair_fini(&p);
}

/* The word says "generation 1 was freed", from when the slot had it a lap ago: its run is the request's all the same. */
Test(lane_checks, an_old_free_does_not_give_back_the_same_generations_run_a_lap_later)
{
    struct cb_geometry g;
    struct pair p;
    struct cb_request_entry first, second;
    struct cb_slot_words *words;

    cr_assert_eq(cb_geometry_make(&g, 2, 0, 0, 1000, 64), 0);
    g.down_pool_bytes = 256; /* one run of 63 */
    pair_init_geometry(&p, &g, 0);
    words = (void *)((char *)p.up + g.up_slots_off);
    cb_store32(&words[0].free_gen, 1, CB_RELAXED);
    cr_assert_geq(pair_submit(&p, 63, 0, &first), 0);
    cr_assert_eq(first.gen, 1);
    cr_assert_eq(pair_intake(&p, &first), CB_LANE_ENTRY);
    pair_end(&p, first.slot);
    cr_assert_geq(pair_submit(&p, 63, 0, &second), 0);
    cr_assert_eq(pair_intake(&p, &second), CB_LANE_WAITS, "the first one's run is still read");
    pair_fini(&p);
}
