/* Clients die by kill -9, in mid-stream and at each step of the handshake, or stand still: the
 * others' results are what they are alone, and the daemon gets back all it lent. */
#include <criterion/criterion.h>
#include <signal.h>
#include <unistd.h>

#include "tests/system/raw.h"
#include "tests/system/storm.h"

TestSuite(death, .timeout = 120);

static const struct storm_scale scale = {.seed = 21,
                                         .n_vocab = 49152,
                                         .n_distinct = 64,
                                         .prompt_usual = 60,
                                         .prompt_max = 300,
                                         .new_usual = 60,
                                         .new_max = 200};

/* Slow enough that there is a middle of the stream. */
#define SLOW "--model", "null", "--null_step_us", "300"

static void setup(struct system *s, struct storm *st, struct crowd *c)
{
    storm_init(st, &scale);
    system_init(s);
    system_start(s, SETTINGS("--model", "null"));
    storm_answer_all(st, s);
    system_signal(s, SIGTERM);
    cr_assert_eq(system_wait(s), 0);
    system_start(s, SETTINGS(SLOW, "--page_size", "16", "--num_blocks", "256"));
    crowd_init(c, s);
}

static void teardown(struct system *s, struct storm *st, struct crowd *c)
{
    crowd_fini(c);
    system_settle(s);
    cr_expect_eq(system_counter(s, "requests_failed"), 0);
    cr_expect_eq(system_counter(s, "lane_broken"), 0);
    cr_expect_eq(system_counter(s, "wake_missed"), 0);
    system_fini(s);
    storm_fini(st);
}

/* Sends requests that are long, tells once each streams, and streams on until it is killed. */
static void victim(struct crowd *c, uint32_t i, void *arg)
{
    struct cb_handle *h = crowd_open(c, NULL);
    uint32_t prompt[100], n_streaming = 0;
    bool streams[4] = {false};
    struct cb_event event;
    (void)arg;
    for (uint32_t k = 0; k < 100; k++)
        prompt[k] = i * 100 + k;
    for (uint32_t k = 0; k < 4; k++) {
        struct cb_request r;
        uint64_t id;
        cb_request_init(&r);
        r.ids = prompt;
        r.n_ids = 100 - k;
        r.max_new_tokens = 3000; /* without a cancel the others starve */
        r.flags = CB_IGNORE_EOS;
        r.user = k;
        member_expect(c, cb_submit(h, &r, &id) == 0, "%s", cb_message());
    }
    for (;;) {
        if (cb_wait(h, 0, &event, HANG_MS) < 0)
            crowd_fail(c, "a victim got %s", cb_message());
        if (event.type == CB_EVENT_TOKENS && !streams[event.user]) {
            streams[event.user] = true;
            if (++n_streaming == 2)
                crowd_there(c);
        }
        if (event.type == CB_EVENT_END)
            for (;;) /* the test is slow to kill; a client that never reads again */
                nap();
    }
}

Test(death, half_of_the_clients_in_mid_stream)
{
    struct storm st;
    struct system s;
    struct crowd c;
    setup(&s, &st, &c);
    struct storm_member member = {.storm = &st, .n_rounds = 2};
    for (uint32_t i = 0; i < 16; i++)
        crowd_add(&c, victim, NULL);
    for (uint32_t i = 16; i < 32; i++)
        crowd_add(&c, storm_member_run, &member);
    crowd_await(&c, 4);
    for (uint32_t i = 0; i < 16; i++)
        crowd_signal(&c, i, SIGKILL);
    crowd_join(&c);
    cr_expect_gt(system_counter(&s, "requests_dropped"), 0);
    teardown(&s, &st, &c);
}

enum step { CONNECTED, HELLO_SENT, WELCOMED, N_STEPS };
static const enum step steps[N_STEPS] = {CONNECTED, HELLO_SENT, WELCOMED};

static void halfway(struct crowd *c, uint32_t i, void *arg)
{
    enum step step = *(const enum step *)arg;
    struct cb_hello hello = raw_hello();
    _Alignas(8) char record[CB_RECORD_BYTES];
    struct raw r;
    (void)i;
    member_expect(c, raw_connect(&r, c->system), "step %d", step);
    if (step >= HELLO_SENT)
        member_expect(c, raw_send(&r, &hello, sizeof hello), "step %d", step);
    if (step >= WELCOMED)
        member_expect(c, raw_receive(&r, record) == CB_RECORD_WELCOME, "step %d", step);
    crowd_there(c);
    for (;;)
        pause();
}

Test(death, at_each_step_of_the_handshake)
{
    struct storm st;
    struct system s;
    struct crowd c;
    setup(&s, &st, &c);
    struct storm_member member = {.storm = &st, .n_rounds = 2};
    enum { N = 4 * N_STEPS };
    for (uint32_t i = 0; i < N; i++)
        crowd_add(&c, halfway, (void *)&steps[i % N_STEPS]);
    for (uint32_t i = 0; i < 8; i++)
        crowd_add(&c, storm_member_run, &member);
    crowd_await(&c, N);
    for (uint32_t i = 0; i < N; i++)
        crowd_signal(&c, i, SIGKILL);
    crowd_join(&c);
    teardown(&s, &st, &c);
}

/* Killed before the daemon can have looked at what was sent: the daemon stands still meanwhile. */
Test(death, before_the_daemon_looks)
{
    struct storm st;
    struct system s;
    struct crowd c;
    setup(&s, &st, &c);
    struct storm_member member = {.storm = &st, .n_rounds = 1};
    for (uint32_t round = 0; round < 6; round++) {
        system_signal(&s, SIGSTOP);
        uint32_t i = crowd_add(&c, halfway, (void *)&steps[round % WELCOMED]);
        crowd_await(&c, round + 1);
        crowd_signal(&c, i, SIGKILL);
        system_signal(&s, SIGCONT);
    }
    crowd_add(&c, storm_member_run, &member);
    crowd_join(&c);
    teardown(&s, &st, &c);
}

Test(death, one_stands_still_for_a_while)
{
    struct storm st;
    struct system s;
    struct crowd c;
    setup(&s, &st, &c);
    struct storm_member member = {.storm = &st, .n_rounds = 2};
    for (uint32_t i = 0; i < 3; i++)
        crowd_add(&c, storm_member_run, &member);
    system_await(&s, "requests_accepted", 4);
    crowd_signal(&c, 0, SIGSTOP);
    for (uint32_t i = 0; i < 8; i++)
        crowd_add(&c, storm_member_run, &member);
    system_await(&s, "requests_accepted", 100);
    crowd_signal(&c, 0, SIGCONT);
    crowd_join(&c);
    teardown(&s, &st, &c);
}

/* A client that never reads: its requests run on and end, nothing is dropped, nobody waits. */
static void sleeper(struct crowd *c, uint32_t i, void *arg)
{
    const struct storm *st = arg;
    struct cb_handle *h = crowd_open(c, NULL);
    struct storm_request r;
    uint64_t ids[STORM_EACH];
    for (uint32_t k = 0; k < STORM_EACH; k++) {
        storm_request(st, i * STORM_EACH + k, &r);
        member_expect(c, cb_submit(h, &r.request, &ids[k]) == 0, "%s", cb_message());
    }
    crowd_there(c);
    crowd_hold(c, 1);
    for (uint32_t k = 0; k < STORM_EACH; k++) {
        struct cb_event event;
        uint32_t n_seen = 0;
        do {
            member_expect(c, cb_wait(h, ids[k], &event, HANG_MS) == 1, "%s", cb_message());
            member_expect(c, event.first == n_seen, "a token is missing");
            n_seen += (uint32_t)event.n_ids;
        } while (event.type == CB_EVENT_TOKENS);
        storm_check(c, st, h, ids[k], i * STORM_EACH + k, event.end);
        member_expect(c, n_seen == st->answers[i * STORM_EACH + k].n, "not all was streamed");
    }
    cb_close(h);
}

Test(death, who_never_reads_delays_nobody_and_loses_nothing)
{
    struct storm st;
    struct system s;
    struct crowd c;
    setup(&s, &st, &c);
    for (uint32_t i = 0; i < 4; i++)
        crowd_add(&c, sleeper, &st);
    crowd_await(&c, 4);
    system_await(&s, "requests_finished", 4 * STORM_EACH);
    atomic_store(&c.shared->go, 1);
    crowd_join(&c);
    teardown(&s, &st, &c);
}
