/* Intake over a real lane: what is taken, what is refused and why, what waits, and that one user's
 * flood does not keep another out. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "shm/message.h"
#include "tests/daemon/peer.h"

static struct sim_report report;

static struct sim *fresh(void)
{
    struct sim *s = sim_new(1, false, &report);
    cr_assert(s);
    return s;
}

static void tune(struct sim *s, const char *name, const char *value)
{
    char message[SETTINGS_MESSAGE_MAX];
    cr_assert_eq(settings_set(&s->settings, name, value, SETTINGS_OPERATOR, NULL, message), 0, "%s",
                 message);
}

static void good(struct cb_request_entry *e)
{
    cb_message_init(e);
    e->n_prompt = 4;
    e->max_new_tokens = 3;
    e->flags = CB_FLAG_IGNORE_EOS;
}

static const uint32_t ids[4] = {1, 2, 3, 4};

/* Runs a lane dry: how many results of that type came. */
static uint32_t drain(struct peer *p, uint32_t type, bool frees)
{
    struct cb_result_entry e;
    uint32_t n = 0;
    while (peer_result(p, &e)) {
        n += e.type == type;
        if (frees && e.type >= CB_RESULT_FINISHED && e.type <= CB_RESULT_FAILED)
            cb_lane_client_free(p->lc, e.slot);
    }
    return n;
}

struct bad {
    const char *what;
    void (*spoil)(struct cb_request_entry *e);
    int status;
};

static void no_prompt(struct cb_request_entry *e)
{
    e->n_prompt = 0;
}
static void beyond_context(struct cb_request_entry *e)
{
    e->max_new_tokens = 61;
}
static void wrapping(struct cb_request_entry *e)
{
    e->prompt_off = UINT64_MAX - 7;
}
static void beyond_arena(struct cb_request_entry *e)
{
    e->prompt_off = 1u << 30;
}
static void unaligned(struct cb_request_entry *e)
{
    e->prompt_off = 2;
}
static void no_number(struct cb_request_entry *e)
{
    e->temperature = NAN;
}
static void cold(struct cb_request_entry *e)
{
    e->temperature = -0.5f;
}
static void p_of_zero(struct cb_request_entry *e)
{
    e->top_p = 0;
}
static void unknown_op(struct cb_request_entry *e)
{
    e->op = 77;
}
static void unknown_flag(struct cb_request_entry *e)
{
    e->flags = 0x8000;
}
static void last_child(struct cb_request_entry *e)
{
    e->child_idx = UINT32_MAX;
}
static void resumes(struct cb_request_entry *e)
{
    e->resume_from = 1;
}
static void long_options(struct cb_request_entry *e)
{
    e->opt_len = CB_OPTIONS_MAX + 8;
}
static void half_options(struct cb_request_entry *e)
{
    e->opt_len = 12; /* not a whole number of records */
    e->opt_off = 1024;
}

Test(intake, each_bad_request_gets_its_status_and_the_next_good_one_runs)
{
    static const struct bad bad[] = {
        {"empty prompt", no_prompt, CB_EMPTY_PROMPT},
        {"longer than the context", beyond_context, CB_TOO_LONG},
        {"offset wraps", wrapping, CB_BAD_BOUNDS},
        {"beyond the arena", beyond_arena, CB_BAD_BOUNDS},
        {"unaligned", unaligned, CB_BAD_BOUNDS},
        {"not a number", no_number, CB_BAD_TEMPERATURE},
        {"negative", cold, CB_BAD_TEMPERATURE},
        {"top_p 0", p_of_zero, CB_BAD_TOP_P},
        {"operation", unknown_op, CB_BAD_OPTION},
        {"flag", unknown_flag, CB_BAD_OPTION},
        {"children", last_child, CB_BAD_OPTION},
        {"resume", resumes, CB_BAD_OPTION},
        {"options too long", long_options, 0},
        {"options malformed", half_options, 0},
    };
    struct sim *s = fresh();
    struct peer p;
    const struct cb_hello hello = peer_hello();
    peer_open(&p, s, 1000, &hello);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct cb_request_entry e;
        struct cb_result_entry result;
        good(&e);
        bad[i].spoil(&e);
        peer_submit(&p, &e, ids, 4);
        cr_assert(peer_result(&p, &result), "%s: no answer", bad[i].what);
        cr_assert_eq(result.type, CB_RESULT_REJECTED, "%s", bad[i].what);
        if (bad[i].status)
            cr_assert_eq((int)result.count, bad[i].status, "%s: %d", bad[i].what,
                         (int)result.count);
        cb_lane_client_free(p.lc, result.slot);
        good(&e);
        peer_submit(&p, &e, ids, 4);
        cr_assert_eq(drain(&p, CB_RESULT_FINISHED, true), 1, "after: %s", bad[i].what);
    }
    cr_assert_eq(cb_stats_get(s->stats.base, CB_STAT_requests_rejected),
                 sizeof bad / sizeof bad[0]);
    peer_close(&p);
    sim_free(s);
}

Test(intake, ids_outside_the_vocabulary_are_named)
{
    struct sim *s = fresh();
    struct peer p;
    struct cb_request_entry e;
    struct cb_result_entry result;
    const struct cb_hello hello = peer_hello();
    peer_open(&p, s, 1000, &hello);
    const uint32_t wild[4] = {1, p.welcome.geometry.n_vocab, UINT32_MAX, 2};
    good(&e);
    peer_submit(&p, &e, wild, 4);
    cr_assert(peer_result(&p, &result));
    cr_assert_eq(result.type, CB_RESULT_REJECTED);
    cr_assert_eq((int)result.count, CB_BAD_TOKEN);
    cr_assert_eq(result.first, p.welcome.geometry.n_vocab);
    cr_assert_eq(result.last, p.welcome.geometry.n_vocab);
    peer_close(&p);
    sim_free(s);
}

/* The option block is checked on the daemon's copy, with the status and the numbers that say it all. */
Test(intake, what_is_asked_of_the_choice_of_tokens_is_checked)
{
#define PLAIN .sampling = {.typical_p = 1, .repetition_penalty = 1 }
    static const struct {
        struct cb_sampling sampling;
        struct cb_logit_bias bias;
        uint32_t allowed[2], banned[2], n_ids, which, value;
    } bad[] = {
        {.sampling = {.min_p = 2, .typical_p = 1, .repetition_penalty = 1},
         .which = CB_PARAMETER_MIN_P,
         .value = 0x40000000},
        {.sampling = {.typical_p = 1}, .which = CB_PARAMETER_REPETITION, .value = 0},
        {PLAIN, .allowed = {5, 4}, .banned = {0, 1}, .n_ids = 2, .which = CB_PARAMETER_IDS_ORDER,
         .value = 4},
        {PLAIN, .allowed = {4, 5}, .banned = {4, 5}, .n_ids = 2, .which = CB_PARAMETER_ALL_BANNED,
         .value = 2},
        {PLAIN, .bias = {3, 1e6f}, .which = CB_PARAMETER_BIAS, .value = 0x49742400},
    };
#undef PLAIN
    struct sim *s = fresh();
    struct peer p;
    struct cb_hello hello = peer_hello();
    hello.features = CB_FEATURES;
    peer_open(&p, s, 1000, &hello);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const struct cb_message_options options = {.sampling = &bad[i].sampling,
                                                   .biases = &bad[i].bias,
                                                   .n_biases = bad[i].bias.id ? 1 : 0,
                                                   .allowed_ids = bad[i].allowed,
                                                   .n_allowed_ids = bad[i].n_ids,
                                                   .banned_ids = bad[i].banned,
                                                   .n_banned_ids = bad[i].n_ids};
        struct cb_request_entry e;
        struct cb_result_entry result;
        uint64_t block[32];
        good(&e);
        cb_message_options_build(&options, block);
        e.opt_off = 1024;
        e.opt_len = (uint32_t)cb_message_options_bytes(&options);
        cb_lane_client_write_arena(p.lc, e.opt_off, block, e.opt_len);
        peer_submit(&p, &e, ids, 4);
        cr_assert(peer_result(&p, &result));
        cr_assert_eq(result.type, CB_RESULT_REJECTED, "%zu", i);
        cr_assert_eq((int)result.count, CB_BAD_PARAMETER, "%zu: %d", i, (int)result.count);
        cr_assert(result.first == bad[i].which && result.last == bad[i].value, "%zu: %u %#x", i,
                  result.first, result.last);
        cb_lane_client_free(p.lc, result.slot);
    }
    peer_close(&p);
    sim_free(s);
}

Test(intake, log_probabilities_need_the_feature)
{
    struct sim *s = fresh();
    for (uint64_t features = 0; features <= CB_FEATURE_LOGPROBS; features += CB_FEATURE_LOGPROBS) {
        struct peer p;
        struct cb_request_entry e;
        struct cb_result_entry result;
        struct cb_hello hello = peer_hello();
        hello.features = features;
        peer_open(&p, s, 1000, &hello);
        good(&e);
        e.planes = CB_PLANE_LOGPROBS;
        peer_submit(&p, &e, ids, 4);
        cr_assert(peer_result(&p, &result));
        cr_assert_eq(result.type, features ? CB_RESULT_ACCEPTED : CB_RESULT_REJECTED);
        peer_close(&p);
    }
    sim_free(s);
}

/* A limit that is left open becomes what the lane's results have room for. */
Test(intake, an_open_limit_is_what_there_is_room_for)
{
    struct sim *s = fresh();
    struct peer p;
    struct cb_request_entry e;
    struct cb_result_entry result;
    struct cb_slot_view view;
    struct cb_hello hello = peer_hello();
    hello.features = CB_FEATURES;
    peer_open(&p, s, 1000, &hello);
    good(&e);
    e.max_new_tokens = CB_NO_LIMIT;
    e.planes = CB_PLANE_LOGPROBS | CB_PLANE_TOPK | 20u << 16;
    peer_submit(&p, &e, ids, 4);
    cr_assert(peer_result(&p, &result));
    cr_assert_eq(result.type, CB_RESULT_ACCEPTED);
    cb_lane_client_slot(p.lc, result.slot, &view);
    cr_assert(view.out_cap > 0 && view.out_cap < p.welcome.geometry.n_context - 4);
    cr_assert_leq(cb_run_layout(view.out_cap, 4, e.planes).bytes,
                  p.welcome.geometry.down_pool_bytes);
    peer_close(&p);
    sim_free(s);
}

Test(intake, a_lane_that_lies_about_its_cursor_is_closed_alone)
{
    struct sim *s = fresh();
    struct peer liar, honest;
    struct cb_request_entry e;
    const struct cb_hello hello = peer_hello();
    peer_open(&liar, s, 1000, &hello);
    peer_open(&honest, s, 1001, &hello);
    good(&e);
    peer_submit(&honest, &e, ids, 4);
    struct cb_up_hot *hot = liar.up.base;
    cb_store64(&hot->req_sent, 1000, CB_RELEASE);
    cr_assert_eq(drain(&honest, CB_RESULT_FINISHED, true), 1);
    cr_assert_eq(cb_lane_client_closed(liar.lc), CB_CLOSED_BROKEN);
    cr_assert_eq(cb_lane_client_closed(honest.lc), 0);
    cr_assert_eq(s->daemon->clients->n_lanes, 1);
    peer_close(&liar);
    peer_close(&honest);
    sim_free(s);
}

Test(intake, a_full_queue_answers_busy_at_once)
{
    struct sim *s = fresh();
    struct peer p;
    struct cb_result_entry result;
    uint32_t n_busy = 0;
    const struct cb_hello hello = peer_hello();
    tune(s, "max_queue_size", "2");
    peer_open(&p, s, 1000, &hello);
    for (int i = 0; i < 4; i++) {
        struct cb_request_entry e;
        good(&e);
        peer_submit(&p, &e, ids, 4);
    }
    while (peer_result(&p, &result))
        n_busy += result.type == CB_RESULT_REJECTED && (int)result.count == CB_BUSY;
    cr_assert_eq(n_busy, 2);
    peer_close(&p);
    sim_free(s);
}

/* What would wait in its lane for want of the uid's or the engine's credit is answered, too. */
Test(intake, with_a_bound_on_the_queue_nothing_waits_in_a_lane)
{
    struct sim *s = fresh();
    struct peer p;
    struct cb_result_entry result;
    uint32_t n_busy = 0, n_finished = 0;
    const struct cb_hello hello = peer_hello();
    tune(s, "max_queue_size", "3");
    tune(s, "uid_requests", "1");
    peer_open(&p, s, 1000, &hello);
    for (int i = 0; i < 4; i++) {
        struct cb_request_entry e;
        good(&e);
        peer_submit(&p, &e, ids, 4);
    }
    while (peer_result(&p, &result)) {
        n_busy += result.type == CB_RESULT_REJECTED && (int)result.count == CB_BUSY;
        n_finished += result.type == CB_RESULT_FINISHED;
    }
    cr_assert_eq(n_busy, 3);
    cr_assert_eq(n_finished, 1);
    peer_close(&p);
    sim_free(s);
}

/* The result of type `type` of a request like `e`, once it has ended. */
static struct cb_result_entry outcome(struct peer *p, struct cb_request_entry e,
                                      const uint32_t *prompt, uint32_t type)
{
    struct cb_result_entry result, found = {.type = 0};
    peer_submit(p, &e, prompt, e.n_prompt);
    while (peer_result(p, &result)) {
        if (result.type == type)
            found = result;
        if (result.type != CB_RESULT_ACCEPTED && result.type != CB_RESULT_TOKENS)
            cb_lane_client_free(p->lc, result.slot);
    }
    cr_assert_eq(found.type, type, "no result of type %u", type);
    return found;
}

Test(intake, what_cannot_make_its_deadline_is_refused_with_both_times)
{
    struct sim *s = fresh();
    struct peer p;
    struct cb_request_entry e;
    const struct cb_hello hello = peer_hello();
    s->tick_ns = 200000;
    peer_open(&p, s, 1000, &hello);
    good(&e);
    e.n_prompt = 4;
    e.max_new_tokens = 20;
    e.flags |= CB_FLAG_IGNORE_EOS;
    e.deadline_ns = 1000000;
    struct cb_result_entry r = outcome(&p, e, ids, CB_RESULT_ACCEPTED);
    cr_assert(r.first == 0 && r.last == 0, "nothing was measured: nothing is guessed or refused");
    e.deadline_ns = 0;
    for (int i = 0; i < 4; i++) { /* prompts long enough to say how fast prefill is */
        uint32_t many[32] = {(uint32_t)i + 1};
        struct cb_request_entry longer = e;
        longer.n_prompt = 32;
        outcome(&p, longer, many, CB_RESULT_FINISHED);
    }
    r = outcome(&p, e, ids, CB_RESULT_ACCEPTED);
    cr_assert_gt(r.last, 0);
    uint32_t end_ms = r.last / 1000;
    e.deadline_ns = (uint64_t)end_ms * 2000000;
    r = outcome(&p, e, ids, CB_RESULT_ACCEPTED);
    e.deadline_ns = (uint64_t)end_ms * 500000;
    r = outcome(&p, e, ids, CB_RESULT_REJECTED);
    cr_assert_eq((int)r.count, CB_TOO_LATE);
    cr_assert_eq(r.last, e.deadline_ns / 1000000);
    cr_assert_gt(r.first, r.last);
    e.max_new_tokens = CB_NO_LIMIT;
    outcome(&p, e, ids, CB_RESULT_ACCEPTED); /* its first token is in time */
    e.deadline_ns = 1;
    r = outcome(&p, e, ids, CB_RESULT_REJECTED);
    cr_assert_eq((int)r.count, CB_TOO_LATE);
    peer_close(&p);
    sim_free(s);
}

Test(intake, what_a_uid_can_never_have_is_refused_and_what_it_has_not_now_waits)
{
    struct sim *s = fresh();
    struct peer p;
    struct cb_request_entry e;
    const struct cb_hello hello = peer_hello();
    tune(s, "uid_requests", "1");
    peer_open(&p, s, 1000, &hello);
    for (int i = 0; i < 4; i++) {
        good(&e);
        peer_submit(&p, &e, ids, 4);
    }
    cr_assert_eq(drain(&p, CB_RESULT_FINISHED, true), 4, "one after the other");
    tune(s, "uid_requests", "100");
    tune(s, "uid_waiting_tokens", "3");
    good(&e);
    peer_submit(&p, &e, ids, 4);
    struct cb_result_entry result;
    cr_assert(peer_result(&p, &result));
    cr_assert_eq(result.type, CB_RESULT_REJECTED);
    cr_assert_eq((int)result.count, CB_QUOTA);
    cr_assert_eq(result.first, CB_LIMIT_UID_WAITING);
    cr_assert_eq(result.last, 3);
    peer_close(&p);
    sim_free(s);
}

/* The flood has all that one user may have before the other comes: there is room left, and what
 * becomes free goes round. */
Test(intake, a_flood_of_one_user_does_not_keep_another_out)
{
    struct sim *s = fresh();
    struct peer flood[6], other;
    struct cb_hello hello = peer_hello();
    struct cb_request_entry e;
    struct cb_result_entry result;
    uint32_t n_done = 0;
    hello.n_slots = 16;
    for (int i = 0; i < 6; i++)
        peer_open(&flood[i], s, 1000, &hello);
    peer_open(&other, s, 1001, &hello);
    for (int i = 0; i < 6; i++)
        for (int k = 0; k < 16; k++) {
            good(&e);
            peer_submit(&flood[i], &e, ids, 4);
        }
    peer_turn(&flood[0], 1);
    cr_assert_eq(cb_stats_get(s->stats.base, CB_STAT_requests_accepted),
                 s->settings.max_requests - s->settings.max_requests / 8);
    for (int k = 0; k < 4; k++) {
        good(&e);
        peer_submit(&other, &e, ids, 4);
    }
    uint64_t n_accepted = cb_stats_get(s->stats.base, CB_STAT_requests_accepted);
    peer_turn(&other, 1);
    cr_assert_geq(cb_stats_get(s->stats.base, CB_STAT_requests_accepted), n_accepted + 4,
                  "there is room for the other at once");
    while (n_done < 4) {
        cr_assert(peer_result(&other, &result));
        n_done += result.type == CB_RESULT_FINISHED;
    }
    uint64_t n_finished = cb_stats_get(s->stats.base, CB_STAT_requests_finished);
    cr_assert_leq(n_finished, s->settings.max_requests + 24, "%u ran before", (unsigned)n_finished);
    for (int i = 0; i < 6; i++)
        peer_close(&flood[i]);
    peer_close(&other);
    sim_free(s);
}

Test(intake, one_pass_serves_every_lane_that_has_something)
{
    struct sim *s = fresh();
    struct peer a, b;
    const struct cb_hello hello = peer_hello();
    struct cb_request_entry e;
    struct cb_result_entry result;
    peer_open(&a, s, 1000, &hello);
    peer_open(&b, s, 1001, &hello);
    for (int k = 0; k < 4; k++) {
        good(&e);
        peer_submit(&a, &e, ids, 4);
        peer_submit(&b, &e, ids, 4);
    }
    peer_turn(&a, 1);
    for (int k = 0; k < 4; k++) {
        cr_assert(cb_lane_client_poll(a.lc, &result) & CB_LANE_ENTRY);
        cr_assert_eq(result.type, CB_RESULT_ACCEPTED);
        cr_assert(cb_lane_client_poll(b.lc, &result) & CB_LANE_ENTRY);
        cr_assert_eq(result.type, CB_RESULT_ACCEPTED);
    }
    peer_close(&a);
    peer_close(&b);
    sim_free(s);
}

Test(intake, a_client_that_reads_nothing_uses_each_slot_once_and_delays_nobody)
{
    struct sim *s = fresh();
    struct peer p;
    struct cb_request_entry e;
    const struct cb_hello hello = peer_hello();
    peer_open(&p, s, 1000, &hello);
    for (int i = 0; i < 4; i++) {
        good(&e);
        peer_submit(&p, &e, ids, 4);
    }
    peer_turn(&p, 100);
    cr_assert_eq(s->daemon->seen.n_active + s->daemon->seen.n_waiting, 0);
    cr_assert_eq(cb_stats_get(s->stats.base, CB_STAT_requests_finished), 4);
    cr_assert_eq(drain(&p, CB_RESULT_FINISHED, true), 4);
    peer_close(&p);
    sim_free(s);
}

/* What the library would not send: the entry is written behind its back. */
static void submit_spoilt(struct peer *p, const struct cb_request_entry *lie)
{
    struct cb_request_entry e;
    struct cb_up_hot *hot = (struct cb_up_hot *)p->up.base;
    good(&e);
    peer_submit(p, &e, ids, 4);
    e.slot = lie->slot;
    e.gen = lie->gen;
    e.n_children = lie->n_children;
    memcpy((unsigned char *)p->up.base + p->welcome.geometry.up_ring_off +
               (cb_load64(&hot->req_sent, CB_RELAXED) - 1) % p->welcome.geometry.req_capacity *
                   p->welcome.geometry.req_stride,
           &e, sizeof e);
}

Test(intake, families_that_make_no_sense_are_refused_whole)
{
    static const struct {
        struct cb_request_entry entry;
        int32_t status;
        uint32_t n;
    } lies[] = {
        {{.slot = 1, .gen = 9, .n_children = 0}, CB_BAD_OPTION, 1},
        {{.slot = 1, .gen = 9, .n_children = UINT32_MAX}, CB_BAD_OPTION, 1},
        {{.slot = 1, .gen = 9, .n_children = CB_CHILDREN_MAX + 1}, CB_BAD_OPTION, 1},
        {{.slot = 62, .gen = 9, .n_children = 3}, CB_BAD_SLOT, 1},
        {{.slot = 0, .gen = 9, .n_children = 3}, CB_BAD_GENERATION, 3}, /* 0 runs */
        {{.slot = 2, .gen = 7, .n_children = 3}, CB_BAD_GENERATION, 3}, /* 4 has had 7 */
    };
    struct sim *s = fresh();
    struct peer p;
    struct cb_hello hello = peer_hello();
    struct cb_request_entry e;
    struct cb_result_entry result;
    hello.features = CB_FEATURES;
    hello.n_slots = 64;
    peer_open(&p, s, 1000, &hello);
    cr_assert_eq(p.welcome.geometry.n_slots, 64);
    submit_spoilt(&p, &(struct cb_request_entry){.slot = 4, .gen = 7, .n_children = 1});
    cr_assert(peer_result(&p, &result) && result.type == CB_RESULT_ACCEPTED);
    while (result.type < CB_RESULT_FINISHED)
        cr_assert(peer_result(&p, &result));
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        good(&e);
        e.slot = 0;
        submit_spoilt(
            &p, &(struct cb_request_entry){.slot = 0, .gen = 100 + (uint32_t)i, .n_children = 1});
        submit_spoilt(&p, &lies[i].entry);
        for (uint32_t n = 0; n < lies[i].n;) {
            cr_assert(peer_result(&p, &result), "lie %zu", i);
            if (result.type != CB_RESULT_REJECTED)
                continue;
            cr_assert_eq((int32_t)result.count, lies[i].status, "lie %zu: %d", i,
                         (int32_t)result.count);
            cr_assert_eq(result.slot, lies[i].entry.slot + n);
            n++;
        }
        while (result.type != CB_RESULT_FINISHED)
            cr_assert(peer_result(&p, &result), "the one before, lie %zu", i);
    }
    peer_close(&p);
    sim_free(s);
}
