#include "tests/shm/lane_pair.h"

#include <errno.h>
#include <math.h>

static struct cb_result_entry poll_one(struct pair *p, enum cb_result_type type)
{
    struct cb_result_entry got = {0};

    cr_assert_eq(cb_lane_client_poll(p->client, &got) & CB_LANE_ENTRY, CB_LANE_ENTRY);
    cr_assert_eq(got.type, type, "type %u, not %u", got.type, type);
    return got;
}

static void poll_none(struct pair *p)
{
    struct cb_result_entry got;

    cr_assert_eq(cb_lane_client_poll(p->client, &got), CB_LANE_NOTHING);
}

/* Submits and admits one; both ends agree. */
static struct cb_request_entry admit(struct pair *p, uint32_t n_new, uint64_t user)
{
    struct cb_request_entry entry;

    cr_assert_geq(pair_submit(p, n_new, user, &entry), 0);
    cr_assert_eq(pair_intake(p, &entry), CB_LANE_ENTRY);
    cr_assert_geq(cb_lane_flush(p->lane), 0);
    poll_one(p, CB_RESULT_ACCEPTED);
    return entry;
}

Test(lane, a_request_from_submit_to_free)
{
    struct pair p;
    struct cb_request_entry entry;
    struct cb_result_entry got;
    struct cb_slot_view view;

    pair_init(&p, 4, 0);
    cb_message_init(&entry);
    entry.n_prompt = 3;
    entry.max_new_tokens = 2;
    entry.user = 99;
    entry.seed = 1234;
    entry.planes = CB_PLANE_TIMES;
    cb_lane_client_write_arena(p.client, 64, (const uint32_t[]){7, 8, 9}, 12);
    entry.prompt_off = 64;
    cr_assert_eq(cb_lane_client_submit(p.client, &entry), 0);

    struct cb_request_entry seen;
    uint32_t ids[3], detail[2];
    cr_assert_eq(cb_lane_peek(p.lane, &seen), CB_LANE_ENTRY);
    cr_assert_eq(memcmp(&seen, &entry, sizeof entry), 0);
    cr_assert_eq(cb_lane_copy_arena(p.lane, seen.prompt_off, 12, ids), 0);
    cr_assert_eq(ids[2], 9);
    cr_assert_eq(cb_lane_reserve(p.lane, &seen, 2, detail), 0);
    cb_lane_accept(p.lane, &seen, seen.seed, (struct cb_lane_forecast){0});
    poll_none(&p);
    cr_assert_eq(cb_lane_flush(p.lane), 0);
    got = poll_one(&p, CB_RESULT_ACCEPTED);
    cr_assert_eq(got.user, 99);
    cb_lane_client_slot(p.client, got.slot, &view);
    cr_assert_eq(view.gen, entry.gen);
    cr_assert_eq(view.state, CB_SLOT_ADMITTED);
    cr_assert_eq(view.seed, 1234);

    cb_lane_token(p.lane, got.slot, 500, 1000);
    cr_assert_eq(cb_lane_flush(p.lane), 0);
    got = poll_one(&p, CB_RESULT_TOKENS);
    cr_assert(got.first == 0 && got.count == 1 && got.last == 500);
    cb_lane_token(p.lane, got.slot, 501, 2000);
    cb_lane_end(p.lane, got.slot,
                &(struct cb_lane_end){.state = CB_SLOT_FINISHED,
                                      .finish = CB_FINISH_STOP,
                                      .stop_idx = 3,
                                      .text_bytes = 17,
                                      .total_ns = 5000});
    cr_assert_eq(cb_lane_flush(p.lane), 0);
    got = poll_one(&p, CB_RESULT_FINISHED);
    cr_assert(got.first == 1 && got.count == 2 && got.last == 501);
    poll_none(&p);

    cb_lane_client_slot(p.client, got.slot, &view);
    cr_assert_eq(view.state, CB_SLOT_FINISHED);
    cr_assert(view.emitted == 2 && view.ids[0] == 500 && view.ids[1] == 501);
    cr_assert(view.times[0] == 1000 && view.times[1] == 2000);
    cr_assert(view.finish == CB_FINISH_STOP && view.stop_idx == 3 && view.text_bytes == 17);
    cr_assert_eq(view.n_prompt, 3);
    cr_assert_eq(view.total_ns, 5000);
    cr_assert_eq(cb_lane_client_free(p.client, got.slot), 0);
    pair_check(&p);
    pair_fini(&p);
}

/* A pool for `n_new` tokens with these planes, in a lane of one slot, and a request for them. */
static struct cb_request_entry admit_planes(struct pair *p, uint32_t n_new, uint32_t planes)
{
    struct cb_request_entry entry, seen;
    uint32_t detail[2];

    cb_message_init(&entry);
    entry.n_prompt = 3;
    entry.max_new_tokens = n_new;
    entry.planes = planes;
    cr_assert_eq(cb_lane_client_submit(p->client, &entry), 0);
    cr_assert_eq(cb_lane_peek(p->lane, &seen), CB_LANE_ENTRY);
    cr_assert_eq(cb_lane_reserve(p->lane, &seen, n_new, detail), 0);
    cb_lane_accept(p->lane, &seen, 0, (struct cb_lane_forecast){0});
    cb_lane_flush(p->lane);
    poll_one(p, CB_RESULT_ACCEPTED);
    return entry;
}

static struct cb_slot_view view_of(const struct pair *p, uint32_t slot)
{
    struct cb_slot_view view;

    cb_lane_client_slot(p->client, slot, &view);
    return view;
}

Test(lane, log_probabilities_are_there_with_their_tokens)
{
    static const struct cb_top top[] = {{8, -0.5f}, {6, -1}, {4, -2}};
    struct pair p;
    struct cb_request_entry entry;
    struct cb_slot_view view;

    pair_init(&p, 1, 0);
    entry = admit_planes(
        &p, 4, CB_PLANE_TIMES | CB_PLANE_LOGPROBS | CB_PLANE_TOPK | CB_PLANE_PROMPT | 3u << 16);
    for (uint32_t i = 1; i < 3; i++)
        cb_lane_prompt_logprobs(p.lane, entry.slot, i,
                                &(struct cb_lane_logprobs){-10.0f * (float)i, top, 3});
    view = view_of(&p, entry.slot);
    cr_assert(!view.prompt_logprobs && !view.prompt_top, "nothing says that all are there");
    for (uint32_t i = 0; i < 2; i++) {
        /* Fewer than were asked for: the second token has two left to choose from. */
        cb_lane_logprobs(p.lane, entry.slot,
                         &(struct cb_lane_logprobs){-1.0f - (float)i, top + i, 3 - i});
        cb_lane_token(p.lane, entry.slot, 40 + i, 1000 + i);
    }
    view = view_of(&p, entry.slot);
    cr_assert(view.emitted == 2 && view.n_top == 3);
    cr_assert(view.ids[1] == 41 && view.times[1] == 1001);
    cr_assert(view.logprobs[0] == -1 && view.logprobs[1] == -2);
    cr_assert_eq(memcmp(view.top, top, sizeof top), 0);
    cr_assert_eq(memcmp(view.top + 3, top + 1, 2 * sizeof top[0]), 0);
    cr_assert(view.top[5].id == CB_NO_ID && view.top[5].logprob == -INFINITY);
    cr_assert(isnan(view.prompt_logprobs[0]) && view.prompt_logprobs[2] == -20);
    cr_assert_eq(view.prompt_top[0].id, CB_NO_ID);
    cr_assert_eq(memcmp(view.prompt_top + 6, top, sizeof top), 0);
    pair_check(&p);
    pair_fini(&p);
}

Test(lane, epochs_are_there_with_their_tokens)
{
    struct pair p;
    struct cb_request_entry entry;
    struct cb_slot_view view;

    pair_init(&p, 1, 0);
    entry = admit_planes(&p, 4, CB_PLANE_TIMES | CB_PLANE_EPOCHS);
    for (uint32_t i = 0; i < 3; i++) {
        cb_lane_epoch(p.lane, entry.slot, CB_EPOCH_ANEW | i);
        cb_lane_token(p.lane, entry.slot, 40 + i, 1000 + i);
    }
    cb_lane_end(p.lane, entry.slot, &(struct cb_lane_end){CB_SLOT_FINISHED, .weight_epoch = 2});
    view = view_of(&p, entry.slot);
    cr_assert(view.emitted == 3 && view.ids[2] == 42 && view.times[2] == 1002);
    cr_assert(view.epochs[0] == CB_EPOCH_ANEW && view.epochs[2] == (CB_EPOCH_ANEW | 2));
    cr_assert_eq(view.weight_epoch, 2);
    pair_check(&p);
    pair_fini(&p);
}

/* With a limit of 0 a request may still want its prompt scored. */
Test(lane, log_probabilities_of_a_prompt_without_a_token)
{
    struct pair p;
    struct cb_request_entry entry;
    struct cb_slot_view view;

    pair_init(&p, 1, 0);
    entry = admit_planes(&p, 0, CB_PLANE_PROMPT);
    for (uint32_t i = 1; i < 3; i++)
        cb_lane_prompt_logprobs(p.lane, entry.slot, i,
                                &(struct cb_lane_logprobs){.logprob = -1.5f * (float)i});
    cr_assert_null(view_of(&p, entry.slot).prompt_logprobs);
    cb_lane_end(p.lane, entry.slot,
                &(struct cb_lane_end){.state = CB_SLOT_FINISHED, .finish = CB_FINISH_LENGTH});
    view = view_of(&p, entry.slot);
    cr_assert(view.prompt_logprobs && view.prompt_logprobs[2] == -3 && !view.prompt_top);
    cb_lane_flush(p.lane);
    poll_one(&p, CB_RESULT_FINISHED);
    pair_check(&p);
    pair_fini(&p);
}

Test(lane, what_was_not_asked_for_is_not_stored)
{
    static const struct cb_top top[] = {{8, -0.5f}};
    struct pair p;
    struct cb_request_entry entry;
    struct cb_slot_view view;

    pair_init(&p, 1, 0);
    entry = admit_planes(&p, 4, 0);
    cb_lane_prompt_logprobs(p.lane, entry.slot, 1, &(struct cb_lane_logprobs){-1, top, 1});
    cb_lane_logprobs(p.lane, entry.slot, &(struct cb_lane_logprobs){-1, top, 1});
    cb_lane_token(p.lane, entry.slot, 40, 0);
    view = view_of(&p, entry.slot);
    cr_assert(view.ids[0] == 40 && !view.logprobs && !view.top && !view.n_top);
    cr_assert(!view.prompt_logprobs && !view.prompt_top);
    pair_fini(&p);
}

Test(lane, a_run_that_is_too_large_says_how_many_tokens_are_not)
{
    struct pair p;
    struct cb_request_entry entry, seen;
    uint32_t detail[2], most;

    pair_init(&p, 1, 0);
    cb_message_init(&entry);
    entry.n_prompt = 3;
    entry.planes = CB_PLANE_LOGPROBS | CB_PLANE_TOPK | 20u << 16;
    cr_assert_eq(cb_lane_client_submit(p.client, &entry), 0);
    cr_assert_eq(cb_lane_peek(p.lane, &seen), CB_LANE_ENTRY);
    most = cb_lane_tokens_max(p.lane, &seen);
    cr_assert_eq(cb_lane_reserve(p.lane, &seen, most + 1, detail), CB_QUOTA);
    cr_assert(detail[0] == CB_LIMIT_POOL && detail[1] == most);
    cr_assert_eq(cb_lane_reserve(p.lane, &seen, most, detail), 0);
    cb_lane_accept(p.lane, &seen, 0, (struct cb_lane_forecast){0});
    pair_check(&p);
    pair_fini(&p);
}

Test(lane, a_slow_reader_gets_one_entry_and_the_latest_count)
{
    struct pair p;
    struct cb_request_entry entry;
    struct cb_result_entry got;

    pair_init(&p, 1, 0);
    entry = admit(&p, 10, 0);
    for (uint32_t i = 0; i < 5; i++) {
        cb_lane_token(p.lane, entry.slot, i, 0);
        cb_lane_flush(p.lane);
        pair_check(&p);
    }
    got = poll_one(&p, CB_RESULT_TOKENS);
    cr_assert_eq(got.count, 1);
    cr_assert_eq(cb_lane_client_emitted(p.client, entry.slot), 5);
    poll_none(&p);
    /* Given back: the next token has an entry again, which begins where the last one ended. */
    cb_lane_token(p.lane, entry.slot, 5, 0);
    cb_lane_flush(p.lane);
    got = poll_one(&p, CB_RESULT_TOKENS);
    cr_assert(got.first == 1 && got.count == 5 && got.last == 5);
    pair_fini(&p);
}

Test(lane, final_only_says_nothing_before_the_end)
{
    struct pair p;
    struct cb_request_entry entry;
    struct cb_result_entry got;

    pair_init(&p, 1, 0);
    cb_message_init(&entry);
    entry.n_prompt = 1;
    entry.max_new_tokens = 3;
    entry.flags = CB_FLAG_FINAL_ONLY;
    cr_assert_eq(cb_lane_client_submit(p.client, &entry), 0);
    cr_assert_eq(pair_intake(&p, &entry), CB_LANE_ENTRY);
    cb_lane_token(p.lane, entry.slot, 1, 0);
    cb_lane_flush(p.lane);
    poll_one(&p, CB_RESULT_ACCEPTED);
    poll_none(&p);
    pair_end(&p, entry.slot);
    cb_lane_flush(p.lane);
    got = poll_one(&p, CB_RESULT_FINISHED);
    cr_assert(got.first == 0 && got.count == 1);
    pair_fini(&p);
}

/* The client that reads nothing: it gets each slot once, and every place it may need is there. */
static void read_nothing(uint32_t n_slots, uint64_t first)
{
    struct pair p;
    struct cb_request_entry entry;
    struct cb_result_entry got;
    uint32_t n_accepted = 0, n_ended = 0;

    pair_init(&p, n_slots, first);
    for (uint32_t i = 0; i < n_slots; i++) {
        cr_assert_eq(pair_submit(&p, 8, i, &entry), 0);
        if (pair_intake(&p, &entry) != CB_LANE_ENTRY)
            break;
        n_accepted++;
        for (uint32_t t = 0; t < 8; t++) {
            cb_lane_token(p.lane, entry.slot, t, 0);
            cb_lane_flush(p.lane);
            pair_check(&p);
        }
        pair_end(&p, entry.slot);
        cb_lane_flush(p.lane);
        pair_check(&p);
    }
    cr_assert_eq(n_accepted, n_slots);
    cr_assert_eq(pair_submit(&p, 8, 0, &entry), -EAGAIN);
    while (cb_lane_client_poll(p.client, &got) & CB_LANE_ENTRY)
        n_ended += got.type == CB_RESULT_FINISHED;
    cr_assert_eq(n_ended, n_slots);
    pair_fini(&p);
}

Test(lane, who_reads_nothing_can_use_each_slot_once)
{
    for (uint32_t n_slots = 1; n_slots <= 64; n_slots *= 2) {
        read_nothing(n_slots, 0);
        read_nothing(n_slots, UINT64_MAX - n_slots);
    }
}

Test(lane, an_entry_waits_for_room_and_goes_on_when_results_are_read)
{
    struct cb_geometry g;
    struct pair p;
    struct cb_request_entry entry;
    struct cb_result_entry got;

    cr_assert_eq(cb_geometry_make(&g, 1, 0, 0, 1000, 64), 0);
    g.res_capacity = 4; /* the smallest that lets one request in: 3n + 1 */
    pair_init_geometry(&p, &g, UINT64_MAX - 2);
    entry = admit(&p, 1, 0);
    cb_lane_token(p.lane, entry.slot, 1, 0);
    cb_lane_flush(p.lane);
    pair_end(&p, entry.slot);
    cb_lane_flush(p.lane);
    poll_one(&p, CB_RESULT_TOKENS);
    cr_assert_eq(cb_lane_client_free(p.client, entry.slot), 0);
    cr_assert_eq(pair_submit(&p, 1, 0, &entry), 0);
    cr_assert_eq(pair_intake(&p, &entry), CB_LANE_WAITS);

    cb_lane_doze(p.lane);
    cb_lane_doze_fence();
    cr_assert_eq(cb_lane_look_again(p.lane, false), CB_LANE_NOTHING);
    cr_assert_eq(cb_lane_client_poll(p.client, &got), CB_LANE_ENTRY | CB_LANE_RING,
                 "giving back rings while a request waits");
    cr_assert_eq(cb_lane_look_again(p.lane, false), CB_LANE_ENTRY);
    cb_lane_undoze(p.lane);
    cr_assert_eq(pair_intake(&p, &entry), CB_LANE_ENTRY);
    pair_check(&p);
    pair_fini(&p);
}

/* A pool of exactly one run of 64 tokens. */
static void pair_init_tight(struct pair *p, uint32_t n_slots)
{
    struct cb_geometry g;

    cr_assert_eq(cb_geometry_make(&g, n_slots, 0, 0, 1000, 64), 0);
    g.down_pool_bytes = 256;
    pair_init_geometry(p, &g, 0);
}

Test(lane, an_entry_waits_for_a_run_and_goes_on_when_one_is_freed)
{
    struct pair p;
    struct cb_request_entry first, second;

    pair_init_tight(&p, 4);
    first = admit(&p, 63, 0);
    pair_end(&p, first.slot);
    cb_lane_flush(p.lane);
    poll_one(&p, CB_RESULT_FINISHED);
    cr_assert_eq(pair_submit(&p, 63, 1, &second), 0);
    cr_assert_eq(pair_intake(&p, &second), CB_LANE_WAITS);
    cr_assert_eq(pair_intake(&p, &second), CB_LANE_WAITS);
    pair_check(&p);

    cb_lane_doze(p.lane);
    cb_lane_doze_fence();
    cr_assert_eq(cb_lane_look_again(p.lane, false), CB_LANE_NOTHING);
    cr_assert_eq(cb_lane_client_free(p.client, first.slot), CB_LANE_RING,
                 "a free rings while a request waits");
    cr_assert_eq(cb_lane_look_again(p.lane, false), CB_LANE_ENTRY);
    cr_assert_eq(pair_intake(&p, &second), CB_LANE_ENTRY);
    pair_check(&p);
    pair_fini(&p);
}

/* If submit wiped out the free of the slot it takes, the entry ahead would wait for its run for
 * ever. */
Test(lane, reuse_does_not_wipe_out_a_free_for_which_an_entry_ahead_waits)
{
    struct pair p;
    struct cb_request_entry first, second, third;

    pair_init_tight(&p, 2);
    first = admit(&p, 63, 0);
    pair_end(&p, first.slot);
    cb_lane_flush(p.lane);
    poll_one(&p, CB_RESULT_FINISHED);
    cr_assert_eq(pair_submit(&p, 63, 1, &second), 0);
    cr_assert_eq(pair_intake(&p, &second), CB_LANE_WAITS);
    cb_lane_client_free(p.client, first.slot);
    cr_assert_eq(pair_submit(&p, 1, 2, &third), 0);
    cr_assert_eq(third.slot, first.slot);
    cr_assert_eq(pair_intake(&p, &second), CB_LANE_ENTRY);
    pair_fini(&p);
}

Test(lane, a_waiting_entry_can_be_cancelled)
{
    struct pair p;
    struct cb_request_entry first, second;

    pair_init_tight(&p, 4);
    first = admit(&p, 63, 0);
    cr_assert_eq(pair_submit(&p, 63, 1, &second), 0);
    cr_assert_eq(pair_intake(&p, &second), CB_LANE_WAITS);
    cb_lane_doze(p.lane);
    cr_assert_eq(cb_lane_client_cancel(p.client, second.slot, second.gen), CB_LANE_RING);
    cr_assert_eq(cb_lane_look_again(p.lane, false), CB_LANE_ENTRY);
    cr_assert_eq(pair_intake(&p, &second), CB_LANE_CANCELLED);
    cb_lane_flush(p.lane);
    poll_one(&p, CB_RESULT_CANCELLED);

    /* The same for one that waits for its user's credit. */
    pair_end(&p, first.slot);
    cb_lane_flush(p.lane);
    poll_one(&p, CB_RESULT_FINISHED);
    cb_lane_client_free(p.client, first.slot);
    cr_assert_eq(pair_submit(&p, 1, 1, &second), CB_LANE_RING);
    cr_assert_eq(cb_lane_peek(p.lane, &second), CB_LANE_ENTRY);
    cb_lane_wait(p.lane);
    cr_assert_eq(cb_lane_peek(p.lane, &second), CB_LANE_WAITS);
    cr_assert_eq(cb_lane_look_again(p.lane, false), CB_LANE_NOTHING);
    cb_lane_client_cancel(p.client, second.slot, second.gen);
    cr_assert_eq(cb_lane_look_again(p.lane, false), CB_LANE_ENTRY);
    cr_assert_eq(pair_intake(&p, &second), CB_LANE_CANCELLED);
    pair_check(&p);
    pair_fini(&p);
}

Test(lane, credit_that_comes_is_said_by_retry)
{
    struct pair p;
    struct cb_request_entry entry;
    uint32_t detail[2];

    pair_init(&p, 1, 0);
    cr_assert_eq(pair_submit(&p, 1, 1, &entry), 0);
    cr_assert_eq(cb_lane_peek(p.lane, &entry), CB_LANE_ENTRY);
    cr_assert_eq(cb_lane_reserve(p.lane, &entry, 1, detail), 0);
    cb_lane_wait(p.lane);
    pair_check(&p);
    cr_assert_eq(cb_lane_peek(p.lane, &entry), CB_LANE_WAITS);
    cb_lane_retry(p.lane);
    cr_assert_eq(pair_intake(&p, &entry), CB_LANE_ENTRY);
    pair_fini(&p);
}

Test(lane, cancel_is_seen_once_and_only_for_its_generation)
{
    struct pair p;
    struct cb_request_entry entry;
    uint32_t slots[4];

    pair_init(&p, 4, 0);
    entry = admit(&p, 8, 0);
    cr_assert_eq(cb_lane_client_cancel(p.client, entry.slot, entry.gen + 1), 0);
    cr_assert_eq(cb_lane_look_cancels(p.lane, slots), 0);
    /* A newer generation was there: the older one does not replace it. */
    cr_assert_eq(cb_lane_client_cancel(p.client, entry.slot, entry.gen), 0);
    cr_assert_eq(cb_lane_look_cancels(p.lane, slots), 0);

    entry = admit(&p, 8, 0);
    cr_assert_eq(cb_lane_client_cancel(p.client, entry.slot, entry.gen), 0);
    cr_assert_eq(cb_lane_look_again(p.lane, true), CB_LANE_ENTRY);
    cr_assert_eq(cb_lane_look_cancels(p.lane, slots), 1);
    cr_assert_eq(slots[0], entry.slot);
    cr_assert_eq(cb_lane_look_cancels(p.lane, slots), 0);
    cr_assert_eq(cb_lane_look_again(p.lane, true), CB_LANE_NOTHING);
    pair_fini(&p);
}

Test(lane, cancel_order_is_serial_over_24_bits)
{
    struct pair p;
    struct cb_slot_words *words;

    pair_init(&p, 1, 0);
    words = (struct cb_slot_words *)(void *)((char *)p.up + p.g.up_slots_off);
    cb_lane_client_cancel(p.client, 0, CB_GEN_MASK);
    cb_lane_client_cancel(p.client, 0, 1);
    cr_assert_eq(cb_load32(&words->cancel_gen, CB_RELAXED), 1, "1 follows 2^24 - 1");
    cb_lane_client_cancel(p.client, 0, CB_GEN_MASK);
    cr_assert_eq(cb_load32(&words->cancel_gen, CB_RELAXED), 1);
    pair_fini(&p);
}

/* A word left from 2^24 uses ago. */
Test(lane, an_old_cancel_does_not_hit_the_same_generation_a_lap_later)
{
    struct pair p;
    struct cb_request_entry entry;

    pair_init(&p, 1, 0);
    cb_lane_client_cancel(p.client, 0, 1);
    cr_assert_eq(pair_submit(&p, 1, 0, &entry), 0);
    cr_assert_eq(entry.gen, 1);
    cr_assert_eq(pair_intake(&p, &entry), CB_LANE_ENTRY);
    pair_fini(&p);
}

Test(lane, generations_skip_0)
{
    cr_assert_eq(cb_generation_next(0), 1);
    cr_assert_eq(cb_generation_next(1), 2);
    cr_assert_eq(cb_generation_next(CB_GEN_MASK), 1);
}

/* What a client of our own never sends. */
static int forge(struct pair *p, uint32_t slot, uint32_t gen)
{
    struct cb_request_entry entry;
    struct cb_up_hot *hot = p->up;
    uint64_t sent = cb_load64(&hot->req_sent, CB_RELAXED);

    cb_message_init(&entry);
    entry.n_prompt = 1;
    entry.max_new_tokens = 4;
    entry.slot = slot;
    entry.gen = gen;
    cb_copy_out((char *)p->up + p->g.up_ring_off + (sent % p->g.req_capacity) * p->g.req_stride,
                &entry, sizeof entry);
    cb_store64(&hot->req_sent, sent + 1, CB_RELEASE);
    return pair_intake(p, &entry);
}

Test(lane, slots_and_generations_out_of_turn_are_rejected)
{
    struct pair p;
    struct cb_result_entry got;

    pair_init(&p, 2, 0);
    cr_assert_eq(forge(&p, 0, 7), CB_LANE_ENTRY);
    cr_assert_eq(forge(&p, 0, 8), CB_BAD_GENERATION, "its slot is active");
    cr_assert_eq(forge(&p, 2, 1), CB_BAD_SLOT);
    cr_assert_eq(forge(&p, UINT32_MAX, 1), CB_BAD_SLOT);
    cr_assert_eq(forge(&p, 1, 0), CB_BAD_GENERATION);
    cr_assert_eq(forge(&p, 1, 1u << 24), CB_BAD_GENERATION);
    pair_check(&p);
    pair_end(&p, 0);
    cb_lane_flush(p.lane);
    poll_one(&p, CB_RESULT_ACCEPTED);
    for (int i = 0; i < 5; i++) {
        struct cb_result_entry *e = &got;
        int r = cb_lane_client_poll(p.client, e);

        /* The library refuses entries for slots that it does not have, and so does this end. */
        if (r == -EPROTO)
            break;
        cr_assert_eq(got.type, CB_RESULT_REJECTED);
        cr_assert_eq((int)got.count, CB_BAD_GENERATION);
        cr_assert(got.first == 8 && got.last == 7);
    }
    cr_assert_eq(forge(&p, 0, 7), CB_BAD_GENERATION, "the same generation again");
    pair_check(&p);
    pair_fini(&p);
}

Test(lane, arena_is_read_within_its_bounds_only)
{
    struct pair p;
    unsigned char copy[64];
    const uint64_t end = (pair_init(&p, 1, 0), p.g.up_arena_bytes);

    cr_assert_eq(cb_lane_copy_arena(p.lane, end - 8, 8, copy), 0);
    cr_assert_eq(cb_lane_copy_arena(p.lane, end - 8, 12, copy), -ERANGE);
    cr_assert_eq(cb_lane_copy_arena(p.lane, end, 4, copy), -ERANGE);
    cr_assert_eq(cb_lane_copy_arena(p.lane, end, 0, copy), 0);
    cr_assert_eq(cb_lane_copy_arena(p.lane, UINT64_MAX - 3, 8, copy), -ERANGE);
    cr_assert_eq(cb_lane_copy_arena(p.lane, 8, UINT64_MAX - 3, copy), -ERANGE);
    cr_assert_eq(cb_lane_copy_arena(p.lane, 2, 4, copy), -ERANGE);
    pair_fini(&p);
}

Test(lane, cursors_that_lie_break_the_lane)
{
    struct pair p;
    struct cb_up_hot *hot;
    struct cb_request_entry entry;

    pair_init(&p, 2, 1000);
    hot = p.up;
    entry = admit(&p, 4, 0);
    cb_store64(&hot->req_sent, 1001 + p.g.req_capacity + 1, CB_RELAXED);
    cr_assert_eq(cb_lane_peek(p.lane, &entry), -EPROTO);
    cr_assert_eq(cb_lane_look_again(p.lane, false), -EPROTO);
    cb_store64(&hot->req_sent, 1000, CB_RELAXED);
    cr_assert_eq(cb_lane_peek(p.lane, &entry), -EPROTO);
    cb_store64(&hot->req_sent, 1001, CB_RELAXED);
    cr_assert_eq(cb_lane_peek(p.lane, &entry), CB_LANE_NOTHING);

    cb_store64(&hot->res_taken, 1002, CB_RELAXED);
    cb_lane_token(p.lane, 0, 1, 0);
    cr_assert_eq(cb_lane_flush(p.lane), -EPROTO);
    cb_lane_close(p.lane, CB_CLOSED_BROKEN);
    cr_assert_eq(cb_lane_flush(p.lane), CB_LANE_NOTHING, "closing is published all the same");
    cr_assert_eq(cb_lane_client_closed(p.client), CB_CLOSED_BROKEN);
    cb_lane_close(p.lane, CB_CLOSED_BYE);
    cr_assert_eq(cb_lane_client_closed(p.client), CB_CLOSED_BROKEN, "the first reason counts");
    cr_assert_eq(cb_lane_peek(p.lane, &entry), CB_LANE_NOTHING);
    pair_check(&p);
    pair_fini(&p);
}

Test(lane, a_sleeping_client_is_rung_once_a_sleep)
{
    struct pair p;
    struct cb_request_entry entry;
    uint32_t seen, again;

    pair_init(&p, 2, 0);
    entry = admit(&p, 8, 0);
    cr_assert_eq(cb_lane_client_park(p.client, &seen), CB_LANE_NOTHING);
    cb_lane_token(p.lane, entry.slot, 1, 0);
    cr_assert_eq(cb_lane_flush(p.lane), CB_LANE_RING);
    cb_lane_bell(p.lane);
    cb_lane_answered(p.lane);
    cr_assert_neq(cb_load32(cb_lane_client_bell_word(p.client), CB_RELAXED), seen);
    cb_lane_token(p.lane, entry.slot, 2, 0);
    cr_assert_eq(cb_lane_flush(p.lane), CB_LANE_NOTHING, "this sleep was answered");
    cb_lane_client_unpark(p.client);

    cr_assert_eq(cb_lane_client_park(p.client, &again), CB_LANE_ENTRY, "the second look");
    cb_lane_client_unpark(p.client);
    poll_one(&p, CB_RESULT_TOKENS);
    cb_lane_token(p.lane, entry.slot, 3, 0);
    cr_assert_eq(cb_lane_flush(p.lane), CB_LANE_NOTHING, "nobody sleeps");
    poll_one(&p, CB_RESULT_TOKENS);

    cr_assert_eq(cb_lane_client_park(p.client, &seen), CB_LANE_NOTHING);
    cr_assert_eq(cb_lane_flush(p.lane), CB_LANE_NOTHING, "nothing happened");
    cb_lane_token(p.lane, entry.slot, 4, 0);
    cr_assert_eq(cb_lane_flush(p.lane), CB_LANE_RING, "a new sleep");
    pair_fini(&p);
}

Test(lane, notice_and_closed_wake_and_keep_awake)
{
    struct pair p;
    struct cb_result_entry got;
    uint32_t seen;

    pair_init(&p, 1, 0);
    cr_assert_eq(cb_lane_client_park(p.client, &seen), CB_LANE_NOTHING);
    cb_lane_notice(p.lane, CB_NOTICE_DRAINING);
    cr_assert_eq(cb_lane_flush(p.lane), CB_LANE_RING);
    cb_lane_client_unpark(p.client);
    poll_one(&p, CB_RESULT_LANE);
    cr_assert_eq(cb_lane_client_park(p.client, &seen), CB_LANE_ENTRY, "not read yet");
    cb_lane_client_unpark(p.client);
    cr_assert_eq(cb_lane_client_notice(p.client), CB_NOTICE_DRAINING);
    cr_assert_eq(cb_lane_client_park(p.client, &seen), CB_LANE_NOTHING);
    cb_lane_client_unpark(p.client);
    cb_lane_close(p.lane, CB_CLOSED_STOPPED);
    cr_assert_eq(cb_lane_flush(p.lane), CB_LANE_NOTHING);
    cr_assert_eq(cb_lane_client_park(p.client, &seen), CB_LANE_ENTRY);
    cb_lane_client_unpark(p.client);
    while (cb_lane_client_poll(p.client, &got) & CB_LANE_ENTRY)
        ;
    cr_assert_eq(cb_lane_client_park(p.client, &seen), CB_LANE_ENTRY, "closed lanes don't sleep");
    pair_fini(&p);
}

Test(lane, a_lane_entry_never_takes_a_place_that_a_request_may_need)
{
    struct pair p;
    struct cb_request_entry entry;

    pair_init(&p, 2, 0);
    entry = admit(&p, 8, 0);
    for (uint32_t i = 0; i < 100; i++) {
        cb_lane_notice(p.lane, i + 1);
        cb_lane_flush(p.lane);
        pair_check(&p);
    }
    cb_lane_token(p.lane, entry.slot, 1, 0);
    cb_lane_flush(p.lane);
    pair_end(&p, entry.slot);
    cb_lane_flush(p.lane);
    pair_check(&p);
    pair_fini(&p);
}

Test(lane, submit_and_cancel_ring_a_dozing_daemon)
{
    struct pair p;
    struct cb_request_entry entry;

    pair_init(&p, 4, 0);
    cb_lane_doze(p.lane);
    cb_lane_doze_fence();
    cr_assert_eq(cb_lane_look_again(p.lane, false), CB_LANE_NOTHING);
    cr_assert_eq(pair_submit(&p, 4, 0, &entry), CB_LANE_RING);
    cr_assert_eq(cb_lane_look_again(p.lane, false), CB_LANE_ENTRY);
    cr_assert_eq(cb_lane_client_cancel(p.client, entry.slot, entry.gen), CB_LANE_RING);
    cb_lane_undoze(p.lane);
    cr_assert_eq(pair_submit(&p, 4, 0, &entry), 0);
    pair_fini(&p);
}

Test(lane, one_bell_is_enough_for_a_sleep)
{
    struct pair p;
    struct cb_request_entry entry;

    pair_init(&p, 4, 0);
    for (int sleep = 0; sleep < 3; sleep++) {
        cb_lane_doze(p.lane);
        cb_lane_doze_fence();
        if (sleep == 0)
            cr_assert_eq(pair_submit(&p, 4, 0, &entry), CB_LANE_RING);
        cr_assert_eq(cb_lane_client_cancel(p.client, entry.slot, entry.gen), CB_LANE_RING,
                     "until the bell is sent everybody asks for it");
        cb_lane_client_rang(p.client, cb_lane_client_doze(p.client));
        cr_assert_eq(cb_lane_client_cancel(p.client, entry.slot, entry.gen), 0);
        cb_lane_undoze(p.lane);
        cb_lane_undoze(p.lane);
    }
    pair_fini(&p);
}

Test(lane, a_full_ring_or_no_free_slot_is_busy_and_changes_nothing)
{
    struct pair p;
    struct cb_request_entry entry;
    struct cb_geometry g;

    cr_assert_eq(cb_geometry_make(&g, 4, 0, 0, 1000, 64), 0);
    g.req_capacity = 2;
    pair_init_geometry(&p, &g, 0);
    cr_assert_eq(pair_submit(&p, 1, 0, &entry), 0);
    cr_assert_eq(pair_submit(&p, 1, 0, &entry), 0);
    cr_assert_not(cb_lane_client_can_submit(p.client, 1));
    cr_assert_eq(pair_submit(&p, 1, 0, &entry), -EAGAIN);
    cr_assert_eq(pair_intake(&p, &entry), CB_LANE_ENTRY);
    cr_assert(cb_lane_client_can_submit(p.client, 1));
    cr_assert_eq(pair_submit(&p, 1, 0, &entry), 0);
    cr_assert_eq(entry.slot, 2);
    cr_assert_eq(entry.gen, 1);
    pair_fini(&p);
}

Test(lane, a_rejected_slot_can_be_used_again)
{
    struct pair p;
    struct cb_request_entry entry, bad;
    struct cb_result_entry got;

    pair_init(&p, 1, 0);
    entry = admit(&p, 8, 0);
    pair_end(&p, entry.slot);
    cb_lane_flush(p.lane);
    poll_one(&p, CB_RESULT_FINISHED);
    cb_lane_client_free(p.client, entry.slot);
    cb_message_init(&bad);
    cr_assert_eq(cb_lane_client_submit(p.client, &bad), 0);
    cr_assert_eq(pair_intake(&p, &bad), CB_EMPTY_PROMPT);
    cb_lane_flush(p.lane);
    got = poll_one(&p, CB_RESULT_REJECTED);
    cr_assert_eq((int)got.count, CB_EMPTY_PROMPT);
    pair_check(&p);
    cb_lane_client_free(p.client, got.slot);
    admit(&p, 8, 0);
    pair_fini(&p);
}

Test(lane, attach_refuses_another_format_or_geometry)
{
    struct pair p;
    struct cb_geometry g;
    struct cb_lane_client *client;

    pair_init(&p, 2, 0);
    g = p.g;
    g.n_vocab++;
    cr_assert_eq(cb_lane_client_init(&client, p.client_memory, &g, p.up, p.down), -EPROTO);
    ((struct cb_down_fixed *)p.down)->format++;
    cr_assert_eq(cb_lane_client_init(&client, p.client_memory, &p.g, p.up, p.down), -EPROTO);
    pair_fini(&p);
}

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Everything in UP is random, always; entries are often nearly right, so that all paths are
 * taken. */
Test(lane, random_bytes_in_up_break_nothing_but_the_lane)
{
    uint64_t random = 88172645463325252u;

    for (int life = 0; life < 300; life++) {
        struct pair p;
        struct cb_up_hot *hot;
        uint64_t first = next_random(&random);
        bool broken = false;

        pair_init(&p, 1 + life % 5, first);
        hot = p.up;
        for (int step = 0; step < 300 && !broken; step++) {
            struct cb_request_entry entry;
            uint32_t slots[8];
            int r;

            for (int i = 0; i < 8; i++) {
                uint32_t *word = (uint32_t *)p.up + next_random(&random) % (p.g.up_bytes / 4);

                if ((char *)word >= (char *)p.up + sizeof *hot)
                    *word = next_random(&random) % 4 ? (uint32_t)next_random(&random) % 8
                                                     : (uint32_t)next_random(&random);
            }
            hot->parked = (uint32_t)next_random(&random);
            if (next_random(&random) % 4 == 0)
                forge(&p, (uint32_t)next_random(&random) % 6, (uint32_t)next_random(&random) % 9);
            if (next_random(&random) % 3 == 0)
                hot->res_taken += next_random(&random) % 3;
            if (next_random(&random) % 100 == 0)
                hot->req_sent += next_random(&random) % 40;
            if (next_random(&random) % 4000 == 0)
                hot->res_taken = next_random(&random);
            r = pair_intake(&p, &entry);
            broken = r == -EPROTO;
            cb_lane_look_cancels(p.lane, slots);
            for (uint32_t s = 0; s < p.g.n_slots; s++) {
                struct cb_slot *slot =
                    (struct cb_slot *)(void *)((char *)p.down + p.g.down_slots_off) + s;
                uint32_t state = slot->ctl & 0xff;

                if (state != CB_SLOT_ADMITTED && state != CB_SLOT_RUNNING)
                    continue;
                if (slot->emitted < slot->out_cap)
                    cb_lane_token(p.lane, s, 1, 2);
                if (slot->emitted == slot->out_cap || next_random(&random) % 3 == 0)
                    pair_end(&p, s);
            }
            broken |= cb_lane_flush(p.lane) < 0;
            broken |= cb_lane_look_again(p.lane, true) < 0;
            pair_check(&p);
        }
        cb_lane_close(p.lane, CB_CLOSED_BROKEN);
        cr_assert_geq(cb_lane_flush(p.lane), 0);
        pair_fini(&p);
    }
}

/* ---- families -------------------------------------------------------------------------------- */

static struct cb_request_entry family(struct pair *p, uint32_t n, uint32_t n_new)
{
    struct cb_request_entry entry;

    cb_message_init(&entry);
    entry.n_prompt = 1;
    entry.max_new_tokens = n_new;
    entry.n_children = n;
    p->limits.features = CB_FEATURE_CHILDREN;
    cr_assert_geq(cb_lane_client_submit(p->client, &entry), 0);
    return entry;
}

Test(lane, a_family_is_admitted_in_one_and_each_child_ends_on_its_own)
{
    struct pair p;
    struct cb_request_entry entry, seen;
    struct cb_result_entry got;
    uint32_t slots[8];

    pair_init(&p, 8, UINT64_MAX - 2);
    entry = family(&p, 3, 2);
    cr_assert_eq(pair_intake(&p, &seen), CB_LANE_ENTRY);
    cb_lane_flush(p.lane);
    for (uint32_t i = 0; i < 3; i++) {
        got = poll_one(&p, CB_RESULT_ACCEPTED);
        cr_assert(got.slot == entry.slot + i && got.gen == entry.gen);
    }
    for (uint32_t i = 0; i < 3; i++)
        cb_lane_token(p.lane, entry.slot + i, 100 + i, 0);
    cb_lane_client_cancel(p.client, entry.slot + 1, entry.gen);
    cr_assert_eq(cb_lane_look_cancels(p.lane, slots), 1);
    cr_assert_eq(slots[0], entry.slot + 1);
    pair_end(&p, entry.slot + 1);
    cb_lane_flush(p.lane);
    pair_check(&p);
    for (uint32_t i = 0; i < 3; i++) {
        struct cb_slot_view view;

        cb_lane_client_slot(p.client, entry.slot + i, &view);
        cr_assert(view.emitted == 1 && view.ids[0] == 100 + i);
    }
    pair_end(&p, entry.slot);
    pair_end(&p, entry.slot + 2);
    cb_lane_flush(p.lane);
    pair_check(&p);
    pair_fini(&p);
}

Test(lane, a_family_gets_slots_in_a_row_and_a_generation_new_to_all)
{
    struct pair p;
    struct cb_request_entry first, entry, seen;

    pair_init(&p, 4, 0);
    for (uint32_t i = 0; i < 3; i++) { /* slots 0, 1, 2; then 0 again, so that it is ahead */
        cr_assert_geq(pair_submit(&p, 0, 0, &first), 0);
        cr_assert_eq(first.slot, i);
        cr_assert_eq(pair_intake(&p, &seen), CB_LANE_ENTRY);
        pair_end(&p, i);
    }
    cb_lane_client_free(p.client, 0);
    cb_lane_client_free(p.client, 2);
    cr_assert(cb_lane_client_can_submit(p.client, 2), "2 and 3");
    cr_assert_not(cb_lane_client_can_submit(p.client, 3), "0, 2 and 3 are apart");
    cb_lane_client_free(p.client, 1);
    entry = family(&p, 4, 0);
    cr_assert(entry.slot == 0 && entry.gen == 2);
    cr_assert_eq(pair_intake(&p, &seen), CB_LANE_ENTRY);
    cr_assert_not(cb_lane_client_can_submit(p.client, 1));
    for (uint32_t i = 0; i < 4; i++) {
        pair_end(&p, i);
        cb_lane_client_free(p.client, 3 - i);
    }
    cr_assert_geq(pair_submit(&p, 0, 0, &first), 0);
    cr_assert(first.slot == 3 && first.gen == 3, "in the order of their giving back");
    pair_check(&p);
    pair_fini(&p);
}

Test(lane, generations_of_a_family_go_round_together)
{
    struct pair p;
    struct cb_request_entry entry, seen;
    uint32_t *gens;

    pair_init(&p, 2, 0);
    /* As after 2^24 uses: the client's record has its generations first behind itself. */
    entry = family(&p, 2, 0);
    gens = (uint32_t *)p.client_memory;
    while (gens[0] != 1 || gens[1] != 1 || gens[2] != 0) /* generations, then the queue of slots */
        gens++;
    cr_assert_eq(pair_intake(&p, &seen), CB_LANE_ENTRY);
    for (uint32_t i = 0; i < 2; i++) {
        pair_end(&p, i);
        cb_lane_client_free(p.client, i);
    }
    gens[0] = CB_GEN_MASK;
    gens[1] = 2;
    entry = family(&p, 2, 0);
    cr_assert_eq(entry.gen, 3, "2 is newer than 2^24 - 1");
    pair_fini(&p);
}

Test(lane, a_family_is_refused_or_waits_whole)
{
    struct pair p;
    struct cb_request_entry entry, seen;
    struct cb_geometry g;

    cr_assert_eq(cb_geometry_make(&g, 4, 0, 0, 1000, 64), 0);
    g.down_pool_bytes = 3 * cb_run_layout(4, 1, 0).bytes;
    pair_init_geometry(&p, &g, 0);
    entry = family(&p, 4, 4);
    cr_assert_eq(pair_intake(&p, &seen), CB_QUOTA, "three runs are there, not four");
    cb_lane_flush(p.lane);
    for (uint32_t i = 0; i < 4; i++) {
        cr_assert_eq(poll_one(&p, CB_RESULT_REJECTED).slot, entry.slot + i);
        cb_lane_client_free(p.client, i);
    }
    poll_none(&p);
    admit(&p, 4, 0);
    entry = family(&p, 3, 4);
    cr_assert_eq(entry.slot, 1);
    cr_assert_eq(pair_intake(&p, &seen), CB_LANE_WAITS, "two runs are left");
    pair_check(&p);
    cb_lane_client_cancel(p.client, 2, entry.gen);
    cr_assert_eq(cb_lane_peek(p.lane, &seen), CB_LANE_WAITS, "two children want it yet");
    cb_lane_client_cancel(p.client, 1, entry.gen);
    cb_lane_client_cancel(p.client, 3, entry.gen);
    cr_assert_eq(pair_intake(&p, &seen), CB_LANE_CANCELLED);
    cb_lane_flush(p.lane);
    for (uint32_t i = 1; i < 4; i++)
        cr_assert_eq(poll_one(&p, CB_RESULT_CANCELLED).slot, i);
    pair_check(&p);
    pair_fini(&p);
}

/* What the children may yet need is free before they are let in, or the ring would not hold it. */
Test(lane, a_family_waits_until_the_ring_holds_all_that_it_may_need)
{
    struct pair p;
    struct cb_request_entry seen;
    struct cb_result_entry got;
    struct cb_geometry g;
    uint32_t n;

    cr_assert_eq(cb_geometry_make(&g, 8, 0, 0, 1000, 64), 0);
    pair_init_geometry(&p, &g, 0);
    for (n = 0; n < 100; n++) { /* 8 ACCEPTED and 8 ends a turn, of which none is read */
        family(&p, 8, 1);
        if (pair_intake(&p, &seen) == CB_LANE_WAITS)
            break;
        for (uint32_t i = 0; i < 8; i++) {
            pair_end(&p, i);
            cb_lane_client_free(p.client, i);
        }
        cb_lane_flush(p.lane);
        pair_check(&p);
    }
    cr_assert_eq(n, (g.res_capacity - 25) / 16 + 1);
    pair_check(&p);
    while (pair_intake(&p, &seen) == CB_LANE_WAITS)
        cr_assert_eq(cb_lane_client_poll(p.client, &got) & CB_LANE_ENTRY, CB_LANE_ENTRY);
    cb_lane_flush(p.lane);
    pair_check(&p);
    pair_fini(&p);
}
