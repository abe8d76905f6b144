/* Faults that other engines had, where no other suite has them already: tests/faults.txt says where
 * each one is tested. */
#include <criterion/criterion.h>
#include <signal.h>
#include <string.h>

#include "tests/system/crowd.h"

TestSuite(faults, .timeout = 120);

enum { N_PROMPT = 40, IDS_MAX = 256 };

/* What a request made, and how it ended. */
struct answer {
    uint32_t ids[IDS_MAX], n;
    uint32_t end;
};

static void prompt_fill(uint32_t *ids, uint32_t n, uint32_t salt)
{
    for (uint32_t i = 0; i < n; i++)
        ids[i] = (salt * 1000 + i * 7) % 40000;
}

static uint64_t submit(struct cb_handle *h, const uint32_t *ids, uint32_t n, uint32_t n_new)
{
    struct cb_request r;
    uint64_t id;

    cb_request_init(&r);
    r.ids = ids;
    r.n_ids = n;
    r.max_new_tokens = n_new;
    r.flags = CB_IGNORE_EOS;
    cr_assert_eq(cb_submit(h, &r, &id), 0, "%s", cb_message());
    return id;
}

/* Waits until this many tokens are there; the end too if there are fewer. */
static void await(struct cb_handle *h, uint64_t id, uint32_t n, struct answer *a)
{
    struct cb_event event;

    do {
        cr_assert_eq(cb_wait(h, id, &event, HANG_MS), 1, "%s", cb_message());
        cr_assert_neq(event.type, CB_EVENT_REJECTED, "%s", cb_strerror(event.status));
        cr_assert_leq(a->n + event.n_ids, IDS_MAX);
        if (event.n_ids)
            memcpy(a->ids + a->n, event.ids, event.n_ids * sizeof a->ids[0]);
        a->n += (uint32_t)event.n_ids;
        a->end = event.end;
    } while (a->n < n && event.type != CB_EVENT_END);
}

static void await_end(struct cb_handle *h, uint64_t id, struct answer *a)
{
    while (a->end == CB_END_NONE)
        await(h, id, IDS_MAX, a);
    cr_assert_eq(cb_release(h, id), 0);
}

/* The same prompt on a daemon where nothing else is. */
static struct answer alone(const uint32_t *ids, uint32_t n, uint32_t n_new)
{
    struct answer a = {0};
    struct system s;

    system_init(&s);
    system_start(&s, SETTINGS("--model", "null"));
    struct cb_handle *h = system_open(&s, NULL);
    await_end(h, submit(h, ids, n, n_new), &a);
    cb_close(h);
    system_fini(&s);
    return a;
}

static void expect_same(const struct answer *a, const struct answer *b)
{
    cr_assert_eq(a->n, b->n);
    cr_assert_eq(a->end, b->end);
    cr_assert_arr_eq(a->ids, b->ids, a->n * sizeof a->ids[0]);
}

static void waits_behind(struct crowd *c, uint32_t i, void *arg)
{
    struct cb_handle *h = crowd_open(c, NULL);
    struct cb_request r;
    uint32_t prompt[N_PROMPT];
    struct cb_event event;
    uint64_t id;

    (void)arg;
    prompt_fill(prompt, N_PROMPT, 100 + i);
    cb_request_init(&r);
    r.ids = prompt;
    r.n_ids = N_PROMPT;
    member_expect(c, cb_submit(h, &r, &id) == 0, "%s", cb_message());
    crowd_there(c);
    member_expect(c, cb_wait(h, id, &event, -1) != 1, "it was served");
    crowd_fail(c, "nobody killed it");
}

/* One request a step, and that one is another's. */
Test(faults, who_is_killed_while_it_waits_is_never_served)
{
    struct answer a = {0};
    uint32_t prompt[N_PROMPT];
    struct system s;
    struct crowd c;

    prompt_fill(prompt, N_PROMPT, 1);
    struct answer right = alone(prompt, N_PROMPT, 100);
    system_init(&s);
    system_start(
        &s, SETTINGS("--model", "null", "--null_step_us", "5000", "--max_requests_per_batch", "1"));
    crowd_init(&c, &s);
    struct cb_handle *h = system_open(&s, NULL);
    uint64_t id = submit(h, prompt, N_PROMPT, 100);
    await(h, id, 1, &a);
    uint32_t victim = crowd_add(&c, waits_behind, NULL);
    crowd_await(&c, 1);
    system_await(&s, "requests_accepted", 2);
    crowd_signal(&c, victim, SIGKILL);
    await_end(h, id, &a);
    expect_same(&a, &right);
    crowd_join(&c);
    cb_close(h);
    system_settle(&s);
    cr_expect_eq(system_counter(&s, "tokens_prefill"), N_PROMPT, "the dead one's was computed");
    crowd_fini(&c);
    system_fini(&s);
}

/* One between two chunks of its prompt, one that has tokens, one that waits. */
Test(faults, cancelling_all_ends_each_in_whatever_phase_it_is)
{
    enum { LONG = 4000 };
    static uint32_t prompt[LONG];
    struct answer answers[3] = {0};
    uint64_t ids[3];
    struct system s;

    system_init(&s);
    system_start(&s,
                 SETTINGS("--model", "null", "--null_step_us", "2000", "--max_batch_tokens", "64",
                          "--max_requests_per_batch", "2", "--allow_block_sharing", "false"));
    for (uint32_t round = 0; round < 10; round++) {
        struct cb_handle *h = system_open(&s, NULL);
        memset(answers, 0, sizeof answers);
        for (uint32_t i = 0; i < 3; i++) {
            prompt_fill(prompt, LONG, i);
            ids[i] = submit(h, prompt, i == 0 ? 5 : LONG, 200);
        }
        await(h, ids[0], 1 + round, &answers[0]);
        for (uint32_t i = 0; i < 3; i++)
            cr_assert_eq(cb_cancel(h, ids[i]), 0);
        for (uint32_t i = 0; i < 3; i++) {
            await_end(h, ids[i], &answers[i]);
            cr_expect_eq(answers[i].end, CB_END_CANCELLED, "request %u of round %u", i, round);
        }
        cr_expect_eq(answers[1].n + answers[2].n, 0, "they were to be cancelled in their prompts");
        cb_close(h);
        system_settle(&s); /* all blocks are free */
    }
    system_fini(&s);
}

/* A conversation, whose second turn is dropped after a token. */
Test(faults, a_dropped_turn_leaves_the_next_one_its_context)
{
    uint32_t prompt[IDS_MAX];
    struct answer first = {0}, second = {0}, third = {0};
    struct system s;

    system_init(&s);
    system_start(&s, SETTINGS("--model", "null", "--null_step_us", "1000", "--page_size", "16"));
    struct cb_handle *h = system_open(&s, NULL);
    prompt_fill(prompt, N_PROMPT, 3);
    await_end(h, submit(h, prompt, N_PROMPT, 30), &first);
    memcpy(prompt + N_PROMPT, first.ids, first.n * sizeof first.ids[0]);
    uint32_t n = N_PROMPT + first.n;
    prompt_fill(prompt + n, 10, 4);
    uint64_t dropped = submit(h, prompt, n + 10, 200);
    await(h, dropped, 1, &second);
    cr_assert_eq(cb_release(h, dropped), 0);
    prompt_fill(prompt + n, 10, 5);
    await_end(h, submit(h, prompt, n + 10, 30), &third);
    struct answer right = alone(prompt, n + 10, 30);
    expect_same(&third, &right);
    cr_expect_gt(system_counter(&s, "tokens_prefix_hit"), 0, "no turn found the one before");
    cb_close(h);
    system_settle(&s);
    system_fini(&s);
}

Test(faults, where_there_is_room_nobody_is_preempted)
{
    uint32_t prompt[N_PROMPT];
    struct answer answers[8] = {0};
    uint64_t ids[8];
    struct system s;

    system_init(&s);
    system_start(&s, SETTINGS("--model", "null", "--null_step_us", "200", "--page_size", "16",
                              "--num_blocks", "200"));
    struct cb_handle *h = system_open(&s, NULL);
    for (uint32_t i = 0; i < 8; i++) {
        prompt_fill(prompt, N_PROMPT, i);
        ids[i] = submit(h, prompt, 5 + i * 4, 20 + i * 30);
    }
    for (uint32_t i = 0; i < 8; i++) {
        await_end(h, ids[i], &answers[i]);
        cr_expect_eq(answers[i].n, 20 + i * 30);
    }
    cr_expect_eq(system_counter(&s, "soft_resets"), 0);
    cr_expect_eq(system_counter(&s, "offloads"), 0);
    cr_expect_eq(system_counter(&s, "tokens_recomputed"), 0);
    cb_close(h);
    system_fini(&s);
}

/* Each may say one id only, its own; they come and go at random, some with others' prompts. */
Test(faults, nobody_gets_a_token_that_was_meant_for_another)
{
    enum { N = 100 };
    static struct answer answers[N];
    static uint64_t ids[N];
    uint32_t prompt[8], state = 12345, n_cancelled = 0;
    struct system s;

    if (!default_model())
        return;
    system_init(&s);
    system_start(&s,
                 SETTINGS("--model", default_model(), "--page_size", "16", "--num_blocks", "24"));
    struct cb_handle *h = system_open(&s, NULL);
    for (uint32_t i = 0, n_sent = 0, n_ended = 0; n_ended < N; i++) {
        state = state * 1664525u + 1013904223u;
        if (n_sent < N && (state >> 30 || n_sent == n_ended)) {
            struct cb_bias own = {.id = 1000 + n_sent, .bias = 10000};
            struct cb_request r;
            cb_request_init(&r);
            prompt_fill(prompt, 8, n_sent % 10);
            r.ids = prompt;
            r.n_ids = 2 + n_sent % 7;
            r.max_new_tokens = 1 + state / 4096 % 12;
            r.temperature = n_sent % 2 ? 1.0f : 0.0f;
            r.biases = &own;
            r.n_biases = 1;
            r.user = n_sent;
            if (cb_submit(h, &r, &ids[n_sent]) == 0)
                n_sent++;
        }
        if ((state >> 24) % 8 == 0)
            (void)cb_cancel(h, ids[state / 256 % n_sent]);
        struct cb_event event;
        int r = cb_wait(h, 0, &event, n_sent < N ? 2 : HANG_MS);
        if (r == CB_TIMEOUT && n_sent < N)
            continue;
        cr_assert_eq(r, 1, "%s", cb_message());
        for (size_t k = 0; k < event.n_ids; k++)
            cr_assert_eq(event.ids[k], 1000 + event.user, "request %lu said another's",
                         (unsigned long)event.user);
        answers[event.user].n += (uint32_t)event.n_ids;
        if (event.type == CB_EVENT_END) {
            n_ended++;
            n_cancelled += event.end == CB_END_CANCELLED;
            cr_assert(event.end == CB_END_CANCELLED || answers[event.user].n > 0);
            cr_assert_eq(cb_release(h, event.id), 0);
        }
    }
    cr_expect_gt(n_cancelled, 3, "only %u were cancelled", n_cancelled);
    cb_close(h);
    system_settle(&s);
    system_fini(&s);
}

/* Its blocks are complete with the prompt, though it leaves in the step that ends it. */
Test(faults, a_prompt_of_one_answer_token_is_found_again)
{
    struct system s;
    struct cb_handle *h;
    struct cb_result result;
    uint32_t ids[N_PROMPT];

    system_init(&s);
    system_start(&s, SETTINGS("--model", "null", "--page_size", "16"));
    h = system_open(&s, NULL);
    prompt_fill(ids, N_PROMPT, 3);
    for (uint32_t i = 0; i < 2; i++) {
        uint64_t id = submit(h, ids, N_PROMPT, 1);
        struct answer a = {.n = 0};

        while (a.end == CB_END_NONE)
            await(h, id, IDS_MAX, &a);
        cr_expect_eq(a.n, 1);
        cr_assert_eq(cb_result(h, id, &result), 0);
        cr_expect_eq(result.n_prefix_hit, i ? N_PROMPT / 16 * 16 : 0);
        cr_assert_eq(cb_release(h, id), 0);
    }
    cb_close(h);
    system_settle(&s);
    system_fini(&s);
}
