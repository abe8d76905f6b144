/* Requests and their events against the fake daemon: order, ends, waits, cancels, threads, loss. */
#include "client/cbclient.h"

#include <criterion/criterion.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/client/fake.h"

#define HANG_MS 10000 /* what takes this long hangs */

#define expect_message(part) \
    cr_assert(strstr(cb_message(), part), "\"%s\" lacks \"%s\"", cb_message(), part)

struct pair {
    struct fake *f;
    struct cb_handle *h;
};

static struct pair start(const struct fake_config *config, uint32_t kind, uint32_t mode)
{
    struct cb_options o;
    struct pair p = {fake_start(config), NULL};
    cb_options_init(&o);
    o.run_dir = fake_dir(p.f);
    o.kind = kind;
    o.wait_mode = mode;
    cr_assert_eq(cb_open(&p.h, &o), 0, "%s", cb_message());
    return p;
}

static struct pair start_plain(void)
{
    return start(&(struct fake_config){0}, CB_KIND_LATENCY, CB_WAIT_BALANCED);
}

static void stop(struct pair p)
{
    cb_close(p.h);
    fake_stop(p.f);
}

static struct cb_request request_of(const uint32_t *ids, size_t n, uint32_t limit)
{
    struct cb_request r;
    cb_request_init(&r);
    r.ids = ids;
    r.n_ids = n;
    r.max_new_tokens = limit;
    return r;
}

static const uint32_t ids3[] = {5, 6, 7};

static uint64_t submit(struct cb_handle *h, uint32_t first, uint32_t limit, uint32_t flags)
{
    struct cb_request r = request_of(&first, 1, limit);
    uint64_t id;
    r.flags = flags;
    cr_assert_eq(cb_submit(h, &r, &id), 0, "%s", cb_message());
    cr_assert(id > 0);
    return id;
}

/* Takes all events of id; checks that the tokens are first, first + 1, ... and come once, in order.
 * Returns the last event. */
static struct cb_event take_all(struct cb_handle *h, uint64_t id, uint32_t first)
{
    struct cb_event e;
    uint32_t n = 0;
    for (;;) {
        int r = cb_wait(h, id, &e, HANG_MS);
        cr_assert_eq(r, 1, "%s", cb_message());
        cr_assert_eq(e.id, id);
        cr_assert(!e.n_ids || e.first == n);
        for (size_t i = 0; i < e.n_ids; i++, n++)
            cr_assert_eq(e.ids[i], (first + n) % FAKE_VOCAB);
        if (e.type != CB_EVENT_TOKENS)
            break;
        cr_assert(e.n_ids > 0);
    }
    cr_assert_eq(cb_wait(h, id, &(struct cb_event){0}, HANG_MS), CB_NOT_FOUND);
    return e;
}

/* ---- one request ----------------------------------------------------------------------------- */

Test(request, brings_each_token_once_and_one_end)
{
    struct pair p = start_plain();
    uint64_t id = submit(p.h, 3, 100, CB_TIMES);
    struct cb_event e = take_all(p.h, id, 3);
    struct cb_result r;
    const uint32_t *ids;
    const uint64_t *ns;
    size_t n;
    cr_assert(e.type == CB_EVENT_END && e.end == CB_END_LENGTH && e.status == 0 && e.n_ids == 0);
    cr_assert_eq(cb_tokens(p.h, id, &ids, &n), 0);
    cr_assert(n == 100 && ids[0] == 3 && ids[99] == 102);
    cr_assert_eq(cb_times(p.h, id, &ns, &n), 0);
    cr_assert(n == 100 && ns[0] == 1000 && ns[99] == 1099);
    cr_assert_eq(cb_result(p.h, id, &r), 0);
    cr_assert(r.id == id && r.end == CB_END_LENGTH && r.n_prompt == 1 && r.n_generated == 100);
    cr_assert(r.queued_ns == 1 && r.first_token_ns == 2 && r.total_ns == 3);
    cr_assert_eq(cb_release(p.h, id), 0);
    cr_assert_eq(cb_release(p.h, id), CB_NOT_FOUND);
    cr_assert_eq(cb_tokens(p.h, id, &ids, &n), CB_NOT_FOUND);
    cr_assert_eq(cb_result(p.h, id, &r), CB_NOT_FOUND);
    cr_assert_eq(cb_cancel(p.h, id), CB_NOT_FOUND);
    stop(p);
}

Test(request, final_only_brings_all_tokens_with_the_end)
{
    struct pair p = start_plain();
    uint64_t id = submit(p.h, 3, 50, CB_FINAL_ONLY);
    struct cb_event e;
    cr_assert_eq(cb_wait(p.h, id, &e, HANG_MS), 1);
    cr_assert(e.type == CB_EVENT_END && e.first == 0 && e.n_ids == 50 && e.ids[49] == 52);
    stop(p);
}

Test(request, polls_find_the_same)
{
    struct pair p = start_plain();
    uint32_t n = 0;
    struct cb_event e;
    submit(p.h, 3, 100, 0);
    for (;;) {
        int r = cb_poll(p.h, &e);
        cr_assert(r >= 0);
        if (r == 0)
            continue;
        for (size_t i = 0; i < e.n_ids; i++, n++)
            cr_assert_eq(e.ids[i], 3 + n);
        if (e.type == CB_EVENT_END)
            break;
    }
    cr_assert_eq(n, 100);
    cr_assert_eq(cb_poll(p.h, &e), 0);
    stop(p);
}

Test(request, seeds_are_drawn_unless_given)
{
    struct pair p = start_plain();
    struct cb_request r = request_of(ids3, 3, 1);
    struct cb_result a, b, c;
    uint64_t ids[3];
    cr_assert_eq(cb_submit(p.h, &r, &ids[0]), 0);
    cr_assert_eq(cb_submit(p.h, &r, &ids[1]), 0);
    r.flags = CB_HAS_SEED;
    r.seed = 99;
    cr_assert_eq(cb_submit(p.h, &r, &ids[2]), 0);
    for (int i = 0; i < 3; i++)
        take_all(p.h, ids[i], 5);
    cb_result(p.h, ids[0], &a);
    cb_result(p.h, ids[1], &b);
    cb_result(p.h, ids[2], &c);
    cr_assert(a.seed != b.seed && c.seed == 99);
    stop(p);
}

Test(request, stops_say_which)
{
    struct pair p = start_plain();
    uint32_t stop_ids[] = {9, 8};
    struct cb_request r = request_of(ids3, 3, 100);
    struct cb_result result;
    struct cb_event e;
    uint64_t id;
    r.stop_ids = stop_ids;
    r.n_stop_ids = 2;
    r.user = 77;
    cr_assert_eq(cb_submit(p.h, &r, &id), 0);
    e = take_all(p.h, id, 5);
    cr_assert(e.end == CB_END_STOP && e.user == 77);
    cb_result(p.h, id, &result);
    cr_assert(result.stop_is_id && result.stop_idx == 1 && result.n_generated == 4);
    stop(p);
}

Test(request, ids_are_never_used_again)
{
    struct pair p = start(&(struct fake_config){.n_slots = 1}, 0, 0);
    uint64_t before = 0;
    for (int i = 0; i < 200; i++) {
        uint64_t id = submit(p.h, 1, 1, 0);
        cr_assert_neq(id, before);
        take_all(p.h, id, 1);
        cr_assert_eq(cb_cancel(p.h, id), 0); /* of what has ended: no effect on the next one */
        cb_release(p.h, id);
        cr_assert_eq(cb_cancel(p.h, id), CB_NOT_FOUND);
        before = id;
    }
    stop(p);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static int refusal(struct cb_handle *h, const struct cb_request *r)
{
    uint64_t id = 1;
    int status = cb_submit(h, r, &id);
    cr_assert_eq(id, 0);
    return status;
}

Test(refusal, bad_requests_are_refused_at_once_in_words)
{
    struct pair p = start_plain();
    struct cb_request good = request_of(ids3, 3, 10), r;
    uint32_t bad[] = {1, FAKE_VOCAB}, many[65] = {0};
    struct cb_string stops[17];
    char long_stop[257];

    r = good, r.n_ids = 0;
    cr_assert_eq(refusal(p.h, &r), CB_EMPTY_PROMPT);
    r = good, r.ids = NULL;
    cr_assert_eq(refusal(p.h, &r), CB_EMPTY_PROMPT);
    r = good, r.ids = bad, r.n_ids = 2;
    cr_assert_eq(refusal(p.h, &r), CB_BAD_TOKEN);
    expect_message("token id 600 is outside the vocabulary of 600");
    r = good, r.max_new_tokens = FAKE_CONTEXT - 2;
    cr_assert_eq(refusal(p.h, &r), CB_TOO_LONG);
    expect_message("prompt and limit make 4097 tokens, the context is 4096");
    r = good, r.temperature = -1;
    cr_assert_eq(refusal(p.h, &r), CB_BAD_TEMPERATURE);
    r.temperature = NAN;
    cr_assert_eq(refusal(p.h, &r), CB_BAD_TEMPERATURE);
    r.temperature = INFINITY;
    cr_assert_eq(refusal(p.h, &r), CB_BAD_TEMPERATURE);
    r = good, r.top_p = 0;
    cr_assert_eq(refusal(p.h, &r), CB_BAD_TOP_P);
    r.top_p = 1.5f;
    cr_assert_eq(refusal(p.h, &r), CB_BAD_TOP_P);
    r.top_p = NAN;
    cr_assert_eq(refusal(p.h, &r), CB_BAD_TOP_P);
    r = good, r.top_k = -1;
    cr_assert_eq(refusal(p.h, &r), CB_BAD_TOP_K);
    r = good, r.stop_ids = many, r.n_stop_ids = 65;
    cr_assert_eq(refusal(p.h, &r), CB_BAD_STOP);
    expect_message("a stop list has 65 where 64 are allowed");
    r = good, r.stop_ids = bad, r.n_stop_ids = 2;
    cr_assert_eq(refusal(p.h, &r), CB_BAD_TOKEN);
    for (int i = 0; i < 17; i++)
        stops[i] = (struct cb_string){"x", 1};
    r = good, r.stops = stops, r.n_stops = 17;
    cr_assert_eq(refusal(p.h, &r), CB_BAD_STOP);
    stops[1].n = 0;
    r.n_stops = 2;
    cr_assert_eq(refusal(p.h, &r), CB_BAD_STOP);
    memset(long_stop, 'a', sizeof(long_stop));
    stops[1] = (struct cb_string){long_stop, sizeof(long_stop)};
    cr_assert_eq(refusal(p.h, &r), CB_BAD_STOP);
    stops[1] = (struct cb_string){"a\xff", 2};
    cr_assert_eq(refusal(p.h, &r), CB_BAD_UTF8);
    expect_message("at byte 1");
    r = good, r.priority = 256;
    cr_assert_eq(refusal(p.h, &r), CB_INVALID);
    r = good, r.flags = 0x8000;
    cr_assert_eq(refusal(p.h, &r), CB_INVALID);
    r = good, r.flags = CB_AUTO_RELEASE;
    cr_assert_eq(refusal(p.h, &r), CB_INVALID);
    r = good, r.size = 16;
    cr_assert_eq(refusal(p.h, &r), CB_INVALID);
    r = good, r.text = "both";
    cr_assert_eq(refusal(p.h, &r), CB_INVALID);
    r = good, r.ids = NULL, r.text = "a\xc3";
    cr_assert_eq(refusal(p.h, &r), CB_BAD_UTF8);
    expect_message("at byte 1");
    r.text = "ab\0c", r.text_bytes = 4;
    cr_assert_eq(refusal(p.h, &r), CB_BAD_NUL);
    expect_message("at byte 2");
    r = good, r.ids = NULL;
    r.messages = &(struct cb_chat_message){"user", "hi", 0}, r.n_messages = 1;
    cr_assert_eq(refusal(p.h, &r), CB_NO_TEMPLATE);

    take_all(p.h, submit(p.h, 5, 10, 0), 5); /* the handle is as good as before */
    stop(p);
}

Test(refusal, prompt_and_limit_may_fill_the_context_exactly)
{
    struct pair p = start_plain();
    struct cb_request r = request_of(ids3, 3, FAKE_CONTEXT - 3);
    uint64_t id;
    cr_assert_eq(cb_submit(p.h, &r, &id), 0, "%s", cb_message());
    r.max_new_tokens = CB_NO_LIMIT;
    cr_assert_eq(cb_submit(p.h, &r, &id), 0, "%s", cb_message());
    stop(p);
}

Test(refusal, what_only_the_daemon_knows_comes_as_an_event)
{
    struct pair p = start_plain();
    struct cb_request r = request_of(ids3, 3, 10);
    struct cb_result result;
    struct cb_event e;
    char words[200];
    uint64_t id;
    r.user = 666;
    cr_assert_eq(cb_submit(p.h, &r, &id), 0);
    e = take_all(p.h, id, 5);
    cr_assert(e.type == CB_EVENT_REJECTED && e.status == CB_NO_CAPACITY);
    cr_assert_str_eq(cb_explain(e.status, e.detail, words, sizeof(words)),
                     "11 cache blocks are needed, there are 9 in all; lower the limit");
    cr_assert_eq(cb_result(p.h, id, &result), 0);
    cr_assert(result.status == CB_NO_CAPACITY && result.end == CB_END_NONE && !result.n_generated);
    cr_assert_eq(cb_release(p.h, id), 0);
    take_all(p.h, submit(p.h, 5, 10, 0), 5);
    stop(p);
}

Test(refusal, a_full_handle_says_busy_at_once)
{
    struct pair p = start(&(struct fake_config){.n_slots = 4}, 0, 0);
    struct cb_request r = request_of(ids3, 3, 10);
    uint64_t ids[4], id;
    fake_hold(p.f, true);
    for (int i = 0; i < 4; i++)
        ids[i] = submit(p.h, 5, 10, 0);
    cr_assert_eq(cb_submit(p.h, &r, &id), CB_BUSY);
    expect_message("no free slot");
    fake_hold(p.f, false);
    take_all(p.h, ids[2], 5);
    cr_assert_eq(cb_submit(p.h, &r, &id), CB_BUSY); /* not before it is released */
    cb_release(p.h, ids[2]);
    cr_assert_eq(cb_submit(p.h, &r, &id), 0);
    stop(p);
}

Test(refusal, a_full_arena_says_busy_and_recovers)
{
    struct pair p = start(&(struct fake_config){.arena_bytes = 1}, 0, 0);
    uint32_t *prompt = calloc(4000, sizeof(*prompt));
    struct cb_request r = request_of(prompt, 4000, 10);
    uint64_t ids[64];
    int n = 0, status;
    fake_deaf(p.f, true);
    while (n < 64 && !(status = cb_submit(p.h, &r, &ids[n])))
        n++;
    cr_assert(n > 0 && n < 64 && status == CB_BUSY);
    fake_deaf(p.f, false);
    for (int i = 0; i < n; i++)
        take_all(p.h, ids[i], 0);
    cr_assert_eq(cb_submit(p.h, &r, &ids[n]), 0, "%s", cb_message());
    free(prompt);
    stop(p);
}

Test(refusal, many_at_once_go_in_order_as_far_as_they_go)
{
    struct pair p = start(&(struct fake_config){.n_slots = 5}, 0, 0);
    struct cb_request r[8];
    uint64_t ids[8];
    for (int i = 0; i < 8; i++) {
        r[i] = request_of(&ids3[0], 1, 10);
        r[i].user = (uint64_t)i;
    }
    cr_assert_eq(cb_submit_many(p.h, r, 8, ids), 5);
    expect_message("no free slot");
    cr_assert(ids[4] && !ids[5] && !ids[7]);
    for (int i = 0; i < 5; i++)
        cr_assert_eq(take_all(p.h, ids[i], 5).user, (uint64_t)i);
    cr_assert_eq(cb_submit_many(p.h, r, 8, ids), CB_BUSY);
    cr_assert_eq(cb_submit_many(p.h, r, 0, ids), 0);
    stop(p);
}

/* ---- waiting --------------------------------------------------------------------------------- */

Test(waiting, a_timeout_is_honoured_whatever_others_do)
{
    struct pair p = start(&(struct fake_config){.step_us = 200, .n_slots = 2}, 0, 0);
    uint64_t busy = submit(p.h, 5, 2000, 0), id;
    struct cb_event e;
    struct timespec a, b;
    struct cb_request r = request_of(ids3, 3, 10);
    fake_hold(p.f, true);
    cr_assert_eq(cb_submit(p.h, &r, &id), 0);
    fake_hold(p.f, true);
    fake_step(p.f, 1);
    cr_assert_eq(cb_wait(p.h, id, &e, 10), 1); /* the one step's token, or its TIMEOUT below */
    fake_hold(p.f, true);
    clock_gettime(CLOCK_MONOTONIC, &a);
    while (cb_wait(p.h, id, &e, 150) == 1)
        clock_gettime(CLOCK_MONOTONIC, &a);
    clock_gettime(CLOCK_MONOTONIC, &b);
    cr_assert((b.tv_sec - a.tv_sec) * 1000000000ll + b.tv_nsec - a.tv_nsec >= 150000000);
    cr_assert_eq(cb_wait(p.h, id, &e, 0), CB_TIMEOUT);
    fake_hold(p.f, false);
    take_all(p.h, busy, 5);
    stop(p);
}

Test(waiting, arguments)
{
    struct pair p = start_plain();
    struct cb_event e;
    cr_assert_eq(cb_wait(p.h, 12345, &e, -1), CB_NOT_FOUND);
    cr_assert_eq(cb_wait(p.h, 0, &e, -2), CB_INVALID);
    cr_assert_eq(cb_wait(p.h, 0, NULL, 0), CB_INVALID);
    cr_assert_eq(cb_wait(p.h, 0, &e, 0), CB_TIMEOUT);
    cr_assert_eq(cb_poll(NULL, &e), CB_INVALID);
    cr_assert_eq(cb_fd(p.h), CB_INVALID);
    cr_assert_eq(cb_arm(p.h), CB_INVALID);
    stop(p);
}

struct waiter {
    struct cb_handle *h;
    uint64_t id;
    uint32_t first;
};

static void *take_all_thread(void *arg)
{
    struct waiter *w = arg;
    struct cb_event e = take_all(w->h, w->id, w->first);
    cr_assert_eq(e.end, CB_END_LENGTH);
    return NULL;
}

/* Known fault: two threads that wait for ids 1 and 2 lose each other's tokens. */
static void many_waiters(uint32_t kind, uint32_t mode)
{
    enum { N = 12 };
    struct pair p = start(&(struct fake_config){.step_us = 20}, kind, mode);
    struct waiter w[N];
    pthread_t t[N];
    for (int round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < N; i++) {
            w[i] = (struct waiter){p.h, submit(p.h, i * 31, 100 + i * 17, 0), i * 31};
            pthread_create(&t[i], NULL, take_all_thread, &w[i]);
        }
        for (int i = 0; i < N; i++) {
            pthread_join(t[i], NULL);
            cb_release(p.h, w[i].id);
        }
    }
    struct cb_info info;
    cb_info(p.h, &info);
    cr_assert_eq(info.wake_missed, 0);
    stop(p);
}

Test(waiting, each_thread_gets_all_tokens_of_its_id_eco)
{
    many_waiters(CB_KIND_LATENCY, CB_WAIT_ECO);
}

Test(waiting, each_thread_gets_all_tokens_of_its_id_spinning)
{
    many_waiters(CB_KIND_LATENCY, CB_WAIT_SPIN);
}

Test(waiting, each_thread_gets_all_tokens_of_its_id_on_a_socket)
{
    many_waiters(CB_KIND_EVENT_LOOP, CB_WAIT_BALANCED);
}

struct storm {
    struct cb_handle *h;
    _Atomic uint64_t ids[16];
    _Atomic bool over;
};

struct share {
    struct cb_handle *h;
    _Atomic uint32_t n;
};

static void *take_any_thread(void *arg)
{
    struct share *s = arg;
    struct cb_event e;
    while (atomic_load(&s->n) < 2000)
        if (cb_wait(s->h, 0, &e, 50) == 1)
            atomic_fetch_add(&s->n, (uint32_t)e.n_ids);
    return NULL;
}

Test(waiting, threads_that_wait_for_any_share_the_events, .timeout = 10)
{
    struct pair p = start(&(struct fake_config){.step_us = 20}, 0, CB_WAIT_ECO);
    struct share s = {.h = p.h};
    pthread_t t[4];
    for (int i = 0; i < 4; i++)
        pthread_create(&t[i], NULL, take_any_thread, &s);
    for (uint32_t i = 0; i < 10; i++)
        submit(p.h, i, 200, 0);
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    cr_assert_eq(atomic_load(&s.n), 2000);
    stop(p);
}

Test(waiting, a_lost_wake_costs_a_look_and_is_counted)
{
    struct pair p = start_plain();
    struct cb_info info;
    struct cb_event e;
    uint64_t id;
    fake_hold(p.f, true);
    id = submit(p.h, 5, 10, 0);
    fake_step(p.f, 1);
    cr_assert_eq(cb_wait(p.h, id, &e, HANG_MS), 1);
    fake_mute(p.f, true);
    cr_assert_eq(cb_wait(p.h, id, &e, HANG_MS), 1);
    cr_assert_eq(e.ids[0], 6);
    cb_info(p.h, &info);
    cr_assert(info.wake_missed > 0);
    fake_mute(p.f, false);
    fake_hold(p.f, false);
    while (e.type != CB_EVENT_END)
        cr_assert_eq(cb_wait(p.h, id, &e, HANG_MS), 1);
    stop(p);
}

Test(waiting, a_notice_does_not_keep_anyone_awake)
{
    struct pair p = start_plain();
    struct cb_event e;
    struct rusage a, b;
    fake_notice(p.f, CB_NOTICE_DRAINING);
    usleep(20000);
    getrusage(RUSAGE_THREAD, &a);
    cr_assert_eq(cb_wait(p.h, 0, &e, 400), CB_TIMEOUT);
    getrusage(RUSAGE_THREAD, &b);
    cr_assert(b.ru_nvcsw - a.ru_nvcsw >= 3, "it spun instead of sleeping");
    stop(p);
}

/* Each time the lead is not passed on, somebody sleeps for a second. */
Test(waiting, a_leader_that_leaves_passes_it_on, .timeout = 10)
{
    enum { N = 40 };
    struct pair p = start(&(struct fake_config){.step_us = 1000}, 0, CB_WAIT_ECO);
    struct waiter w[N];
    struct cb_info info;
    pthread_t t[N];
    fake_hold(p.f, true);
    for (uint32_t i = 0; i < N; i++) {
        w[i] = (struct waiter){p.h, submit(p.h, i, i + 1, CB_FINAL_ONLY), i};
        pthread_create(&t[i], NULL, take_all_thread, &w[i]);
    }
    usleep(20000);
    for (int i = 0; i < N; i++) {
        fake_step(p.f, i ? 1 : 2);
        pthread_join(t[i], NULL);
    }
    cb_info(p.h, &info);
    cr_assert_eq(info.wake_missed, 0);
    stop(p);
}

static void *wait_released(void *arg)
{
    struct waiter *w = arg;
    struct cb_event e;
    return (void *)(intptr_t)cb_wait(w->h, w->id, &e, HANG_MS);
}

/* Whoever follows is woken for its own event, and when its request is released, though the leader
 * goes on waiting. */
Test(waiting, followers_are_woken_for_their_own)
{
    struct pair p = start(&(struct fake_config){0}, 0, CB_WAIT_ECO);
    struct waiter leader = {p.h, 0, 1}, follower = {p.h, 0, 2}, released = {p.h, 0, 3};
    struct cb_info info;
    pthread_t t[3];
    void *r;
    fake_hold(p.f, true);
    leader.id = submit(p.h, 1, 50, CB_FINAL_ONLY);
    follower.id = submit(p.h, 2, 1, 0);
    released.id = submit(p.h, 3, 50, CB_FINAL_ONLY);
    pthread_create(&t[0], NULL, take_all_thread, &leader);
    usleep(20000);
    pthread_create(&t[1], NULL, take_all_thread, &follower);
    pthread_create(&t[2], NULL, wait_released, &released);
    usleep(20000);
    fake_step(p.f, 2);
    pthread_join(t[1], NULL);
    cb_release(p.h, released.id);
    pthread_join(t[2], &r);
    cr_assert_eq((int)(intptr_t)r, CB_NOT_FOUND);
    cb_info(p.h, &info);
    cr_assert_eq(info.wake_missed, 0);
    fake_hold(p.f, false);
    pthread_join(t[0], NULL);
    stop(p);
}

/* ---- cancelling and releasing ---------------------------------------------------------------- */

Test(cancelling, ends_it_once_and_keeps_what_there_is)
{
    struct pair p = start_plain();
    const uint32_t *ids;
    struct cb_event e;
    uint64_t id;
    size_t n;
    fake_hold(p.f, true);
    id = submit(p.h, 5, 100, 0);
    fake_step(p.f, 3);
    cr_assert_eq(cb_wait(p.h, id, &e, HANG_MS), 1);
    cr_assert_eq(cb_cancel(p.h, id), 0);
    cr_assert_eq(cb_cancel(p.h, id), 0);
    while (e.type == CB_EVENT_TOKENS)
        cr_assert_eq(cb_wait(p.h, id, &e, HANG_MS), 1);
    cr_assert(e.type == CB_EVENT_END && e.end == CB_END_CANCELLED && e.status == 0);
    cr_assert_eq(cb_tokens(p.h, id, &ids, &n), 0);
    cr_assert(n >= 1 && n <= 3 && ids[0] == 5);
    cr_assert_eq(cb_cancel(p.h, id), 0);
    cr_assert_eq(cb_cancel(p.h, 0), CB_NOT_FOUND);
    cr_assert_eq(cb_cancel(p.h, ~0ull), CB_NOT_FOUND);
    stop(p);
}

Test(cancelling, before_the_daemon_has_seen_it)
{
    struct pair p = start_plain();
    struct cb_event e;
    uint64_t id;
    fake_deaf(p.f, true);
    id = submit(p.h, 5, 100, 0);
    cb_cancel(p.h, id);
    fake_deaf(p.f, false);
    e = take_all(p.h, id, 5);
    cr_assert(e.end == CB_END_CANCELLED && e.n_ids == 0);
    stop(p);
}

Test(cancelling, releasing_what_runs_gives_the_slot_back_in_time)
{
    struct pair p = start(&(struct fake_config){.n_slots = 2, .step_us = 10}, 0, 0);
    struct cb_request r = request_of(ids3, 3, 4000);
    for (int i = 0; i < 100; i++) {
        uint64_t id;
        struct cb_event e;
        int status;
        while ((status = cb_submit(p.h, &r, &id)) == CB_BUSY)
            cr_assert_eq(cb_wait(p.h, 0, &e, 1),
                         CB_TIMEOUT); /* none of the released ones says a word */
        cr_assert_eq(status, 0);
        cr_assert_eq(cb_release(p.h, id), 0);
        cr_assert_eq(cb_wait(p.h, id, &e, 0), CB_NOT_FOUND);
    }
    stop(p);
}

static void *release_later(void *arg)
{
    struct waiter *w = arg;
    usleep(30000);
    cb_release(w->h, w->id);
    return NULL;
}

Test(cancelling, releasing_wakes_who_waits_for_it)
{
    struct pair p = start_plain();
    struct waiter w = {.h = p.h};
    struct cb_info info;
    pthread_t t[4];
    fake_hold(p.f, true);
    w.id = submit(p.h, 5, 100, 0);
    for (int i = 0; i < 3; i++)
        pthread_create(&t[i], NULL, wait_released, &w);
    pthread_create(&t[3], NULL, release_later, &w);
    for (int i = 0; i < 4; i++) {
        void *r;
        pthread_join(t[i], &r);
        cr_assert_eq((int)(intptr_t)r, i < 3 ? CB_NOT_FOUND : 0);
    }
    cb_info(p.h, &info);
    cr_assert_eq(info.wake_missed, 0);
    stop(p);
}

Test(cancelling, what_was_released_says_nothing_more)
{
    struct pair p = start(&(struct fake_config){.n_slots = 1}, 0, 0);
    struct cb_request r = request_of(ids3, 3, 10);
    struct cb_event e;
    uint64_t id;
    int status;
    fake_hold(p.f, true);
    id = submit(p.h, 5, 10, 0);
    fake_step(p.f, 1);
    usleep(50000);
    cr_assert_eq(cb_dispatch(p.h, 0), 0); /* takes the token in, for polls to find */
    cb_release(p.h, id);
    cr_assert_eq(cb_poll(p.h, &e), 0);
    fake_hold(p.f, false);
    r.user = 666; /* refused by the daemon after it was released */
    while ((status = cb_submit(p.h, &r, &id)) == CB_BUSY)
        cr_assert_eq(cb_poll(p.h, &e), 0);
    cr_assert_eq(status, 0);
    cb_release(p.h, id);
    r.user = 0;
    while ((status = cb_submit(p.h, &r, &id)) == CB_BUSY)
        cr_assert_eq(cb_poll(p.h, &e), 0);
    cr_assert_eq(status, 0);
    stop(p);
}

static void *cancel_storm(void *arg)
{
    struct storm *s = arg;
    for (unsigned i = 0; !atomic_load(&s->over); i++) {
        uint64_t id = atomic_load(&s->ids[i % 16]);
        if (id)
            cb_cancel(s->h, id);
        if (i % 64 == 0)
            usleep(200);
    }
    return NULL;
}

Test(cancelling, storms_of_it_hit_only_their_own)
{
    struct pair p = start(&(struct fake_config){.step_us = 5, .n_slots = 24}, 0, 0);
    struct storm s = {.h = p.h};
    pthread_t t[3];
    uint64_t untouched = submit(p.h, 9, 4000, 0);
    for (int i = 0; i < 3; i++)
        pthread_create(&t[i], NULL, cancel_storm, &s);
    for (int round = 0; round < 40; round++) {
        uint64_t id[16];
        for (uint32_t i = 0; i < 16; i++) {
            id[i] = submit(p.h, i, 50, 0);
            atomic_store(&s.ids[i], id[i]);
        }
        for (uint32_t i = 0; i < 16; i++) {
            struct cb_event e = take_all(p.h, id[i], i);
            cr_assert(e.end == CB_END_CANCELLED || e.end == CB_END_LENGTH);
            cb_release(p.h, id[i]);
        }
    }
    atomic_store(&s.over, true);
    for (int i = 0; i < 3; i++)
        pthread_join(t[i], NULL);
    cr_assert_eq(take_all(p.h, untouched, 9).end, CB_END_LENGTH);
    stop(p);
}

static struct cb_handle *signal_handle;
static _Atomic uint64_t signal_id;
static _Atomic int n_signals;

static void on_alarm(int number)
{
    uint64_t id = atomic_load(&signal_id);
    (void)number;
    atomic_fetch_add(&n_signals, 1);
    if (id)
        cb_cancel(signal_handle, id);
}

Test(cancelling, from_a_signal_handler_that_interrupts_any_call)
{
    struct pair p = start(&(struct fake_config){.step_us = 50}, 0, 0);
    struct itimerval every = {{0, 300}, {0, 300}}, never = {{0, 0}, {0, 0}};
    struct sigaction act = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    int n_cancelled = 0;
    signal_handle = p.h;
    sigaction(SIGALRM, &act, NULL);
    setitimer(ITIMER_REAL, &every, NULL);
    for (int i = 0; i < 300 || (!n_cancelled && i < 3000); i++) {
        uint64_t id = submit(p.h, 5, 40, 0);
        struct cb_event e;
        atomic_store(&signal_id, id);
        e = take_all(p.h, id, 5);
        n_cancelled += e.end == CB_END_CANCELLED;
        cr_assert(e.end == CB_END_CANCELLED || e.end == CB_END_LENGTH);
        cb_release(p.h, id);
    }
    setitimer(ITIMER_REAL, &never, NULL);
    cr_assert(n_cancelled > 0 && atomic_load(&n_signals) > 0);
    stop(p);
}

/* ---- handlers -------------------------------------------------------------------------------- */

struct chain {
    uint64_t id;
    int n_tokens, n_ends, n_left;
    uint32_t end;
    bool nested;
    _Atomic bool inside;
};

static void chain_handler(struct cb_handle *h, const struct cb_event *e, void *arg);

static void chain_submit(struct cb_handle *h, struct chain *c)
{
    struct cb_request r = request_of(ids3, 3, 20);
    r.handler = chain_handler;
    r.handler_arg = c;
    r.flags = CB_AUTO_RELEASE;
    cr_assert_eq(cb_submit(h, &r, &c->id), 0, "%s", cb_message());
}

static void chain_handler(struct cb_handle *h, const struct cb_event *e, void *arg)
{
    struct chain *c = arg;
    cr_assert_eq(e->id, c->id);
    cr_assert_not(atomic_exchange(&c->inside, true), "two calls at a time");
    c->n_tokens += (int)e->n_ids;
    if (!c->nested)
        usleep(100);
    if (c->nested)
        cb_dispatch(h, 0);
    atomic_store(&c->inside, false);
    if (e->type == CB_EVENT_END) {
        c->n_ends++;
        c->end = e->end;
        if (c->n_left-- > 0)
            chain_submit(h, c); /* from inside; the slot of this one is not free yet */
    }
}

Test(handlers, may_submit_and_dispatch_from_inside)
{
    struct pair p = start(&(struct fake_config){.n_slots = 2}, 0, 0);
    struct chain c = {.n_left = 50, .nested = true};
    struct cb_event e;
    chain_submit(p.h, &c);
    usleep(50000);
    cr_assert_eq(cb_poll(p.h, &e), 0);                   /* takes its tokens in */
    cr_assert_eq(cb_wait(p.h, c.id, &e, 0), CB_INVALID); /* but they are its handler's */
    while (c.n_ends < 51)
        cr_assert(cb_dispatch(p.h, HANG_MS) > 0, "%s", cb_message());
    cr_assert_eq(c.n_tokens, 51 * 20);
    cr_assert_eq(cb_poll(p.h, &e), 0); /* nothing is left for polls */
    cr_assert_eq(cb_dispatch(p.h, 0), 0);
    stop(p);
}

static void cancel_handler(struct cb_handle *h, const struct cb_event *e, void *arg)
{
    struct chain *c = arg;
    cr_assert_eq(c->n_ends, 0, "called after the end");
    c->n_tokens += (int)e->n_ids;
    if (e->type == CB_EVENT_TOKENS)
        cb_cancel(h, e->id);
    if (e->type == CB_EVENT_END) {
        c->n_ends++;
        c->end = e->end;
        cb_release(h, e->id);
    }
}

Test(handlers, may_cancel_and_release_from_inside)
{
    struct pair p = start(&(struct fake_config){.step_us = 100}, 0, 0);
    struct cb_request r = request_of(ids3, 3, 4000);
    struct chain c = {0};
    r.handler = cancel_handler;
    r.handler_arg = &c;
    cr_assert_eq(cb_submit(p.h, &r, &c.id), 0);
    while (!c.n_ends)
        cr_assert(cb_dispatch(p.h, HANG_MS) > 0);
    cr_assert(c.end == CB_END_CANCELLED && c.n_tokens > 0 && c.n_tokens < 4000);
    cr_assert_eq(cb_release(p.h, c.id), CB_NOT_FOUND);
    stop(p);
}

static void *dispatch_thread(void *arg)
{
    while (cb_dispatch(arg, 200) > 0) {
    }
    return NULL;
}

Test(handlers, of_one_request_never_overlap_though_threads_share)
{
    struct pair p = start(&(struct fake_config){.step_us = 10}, 0, CB_WAIT_ECO);
    struct chain c[8];
    pthread_t t[4];
    memset(c, 0, sizeof(c));
    for (int i = 0; i < 8; i++) {
        c[i].n_left = 10;
        chain_submit(p.h, &c[i]);
    }
    for (int i = 0; i < 4; i++)
        pthread_create(&t[i], NULL, dispatch_thread, p.h);
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    for (int i = 0; i < 8; i++)
        cr_assert(c[i].n_ends == 11 && c[i].n_tokens == 11 * 20, "%d %d", c[i].n_ends,
                  c[i].n_tokens);
    stop(p);
}

/* ---- event loops ----------------------------------------------------------------------------- */

Test(event_loop, the_recipe_never_misses)
{
    struct pair p = start(&(struct fake_config){.step_us = 30}, CB_KIND_EVENT_LOOP, 0);
    struct pollfd fd = {cb_fd(p.h), POLLIN, 0};
    struct cb_event e;
    int n_ends = 0, n_tokens = 0;
    cr_assert(fd.fd >= 0);
    for (uint32_t i = 0; i < 20; i++)
        submit(p.h, i, 150, 0);
    while (n_ends < 200) {
        int r;
        for (int pass = 0; pass < 2; pass++) {
            while ((r = cb_poll(p.h, &e)) > 0) {
                n_tokens += (int)e.n_ids;
                if (e.type == CB_EVENT_END) {
                    n_ends++;
                    cb_release(p.h, e.id);
                    if (n_ends <= 180)
                        submit(p.h, (uint32_t)n_ends, 150, 0);
                }
            }
            cr_assert_eq(r, 0);
            if (!pass)
                cr_assert_eq(cb_arm(p.h), 0);
        }
        if (n_ends < 200)
            cr_assert_eq(poll(&fd, 1, HANG_MS), 1, "slept through a result");
    }
    cr_assert_eq(n_tokens, 200 * 150);
    stop(p);
}

Test(event_loop, other_threads_wait_for_their_own_meanwhile)
{
    struct pair p = start(&(struct fake_config){.step_us = 30}, CB_KIND_EVENT_LOOP, 0);
    struct pollfd fd = {cb_fd(p.h), POLLIN, 0};
    struct waiter w[4];
    struct cb_event e;
    pthread_t t[4];
    struct chain c = {.n_left = 20};
    fake_hold(p.f, true);
    cr_assert_eq(cb_arm(p.h), 0);
    for (uint32_t i = 0; i < 4; i++) {
        w[i] = (struct waiter){p.h, submit(p.h, i * 31, 300, 0), i * 31};
        pthread_create(&t[i], NULL, take_all_thread, &w[i]);
    }
    chain_submit(p.h, &c);
    fake_hold(p.f, false);
    while (c.n_ends < 21) { /* the loop has handlers only: what polls find is the threads' */
        cr_assert(cb_dispatch(p.h, 0) >= 0);
        cr_assert_eq(cb_arm(p.h), 0);
        cr_assert(cb_dispatch(p.h, 0) >= 0);
        if (c.n_ends < 21)
            cr_assert_eq(poll(&fd, 1, HANG_MS), 1, "slept through a result");
    }
    for (int i = 0; i < 4; i++) {
        struct timespec soon;
        clock_gettime(CLOCK_REALTIME, &soon);
        soon.tv_nsec += 1000000;
        soon.tv_sec += soon.tv_nsec / 1000000000;
        soon.tv_nsec %= 1000000000;
        while (pthread_timedjoin_np(t[i], NULL, &soon)) { /* the loop goes on */
            cb_dispatch(p.h, 0);
            cb_arm(p.h);
            cb_dispatch(p.h, 0);
            poll(&fd, 1, 5);
            clock_gettime(CLOCK_REALTIME, &soon);
        }
    }
    cr_assert_eq(cb_poll(p.h, &e), 0);
    stop(p);
}

Test(event_loop, a_thread_that_waits_does_not_take_the_loops_wake)
{
    struct pair p = start(&(struct fake_config){0}, CB_KIND_EVENT_LOOP, 0);
    struct pollfd fd = {cb_fd(p.h), POLLIN, 0};
    struct chain c = {0};
    struct waiter w = {p.h, 0, 7};
    pthread_t t;
    fake_hold(p.f, true);
    chain_submit(p.h, &c);
    w.id = submit(p.h, 7, 2, 0);
    usleep(20000);
    cb_dispatch(p.h, 0);
    cr_assert_eq(cb_arm(p.h), 0);
    cr_assert_eq(cb_dispatch(p.h, 0), 0);
    pthread_create(&t, NULL, take_all_thread, &w);
    usleep(20000);
    fake_step(p.f, 1);
    usleep(100000); /* the loop is about other things; the thread must leave its bell alone */
    cr_assert_eq(poll(&fd, 1, HANG_MS), 1, "slept through a result");
    fake_hold(p.f, false);
    while (!c.n_ends) {
        cb_dispatch(p.h, 0);
        cb_arm(p.h);
        cb_dispatch(p.h, 0);
    }
    while (pthread_tryjoin_np(t, NULL)) {
        cb_dispatch(p.h, 0);
        usleep(1000);
    }
    stop(p);
}

Test(event_loop, its_end_is_told_to_threads_that_follow)
{
    struct pair p = start(&(struct fake_config){0}, CB_KIND_EVENT_LOOP, 0);
    struct waiter w = {.h = p.h};
    struct cb_info info;
    pthread_t t;
    void *r;
    cr_assert_eq(cb_arm(p.h), 0);
    pthread_create(&t, NULL, wait_released, &w); /* for any: there is none */
    usleep(20000);
    fake_kill(p.f);
    cr_assert_eq(cb_arm(p.h), CB_LOST);
    pthread_join(t, &r);
    cr_assert_eq((int)(intptr_t)r, CB_LOST);
    cb_info(p.h, &info);
    cr_assert_eq(info.wake_missed, 0);
    stop(p);
}

Test(event_loop, a_dead_daemon_makes_it_readable)
{
    struct pair p = start(&(struct fake_config){0}, CB_KIND_EVENT_LOOP, 0);
    struct pollfd fd = {cb_fd(p.h), POLLIN, 0};
    struct cb_event e;
    fake_hold(p.f, true);
    submit(p.h, 5, 10, 0);
    cr_assert_eq(cb_arm(p.h), 0);
    while (cb_poll(p.h, &e) > 0) {
    }
    fake_kill(p.f);
    cr_assert_eq(poll(&fd, 1, HANG_MS), 1);
    cr_assert_eq(cb_arm(p.h), CB_LOST);
    cr_assert_eq(cb_poll(p.h, &e), 1);
    cr_assert(e.type == CB_EVENT_END && e.end == CB_END_ERROR && e.status == CB_LOST);
    cr_assert_eq(cb_poll(p.h, &e), CB_LOST);
    stop(p);
}

/* ---- loss ------------------------------------------------------------------------------------ */

static void *wait_lost(void *arg)
{
    struct waiter *w = arg;
    struct cb_event e;
    int r;
    while ((r = cb_wait(w->h, w->id, &e, HANG_MS)) == 1 && e.type == CB_EVENT_TOKENS) {
    }
    return (void *)(intptr_t)(r == 1 ? e.status : r);
}

static void lost(uint32_t kind, uint32_t mode)
{
    struct pair p = start(&(struct fake_config){0}, kind, mode);
    const uint32_t *ids;
    struct waiter w[3];
    struct cb_event e;
    struct cb_result result;
    struct cb_request r = request_of(ids3, 3, 4);
    pthread_t t[3];
    uint64_t done = submit(p.h, 5, 4, 0), cancelled, id;
    const char *text;
    size_t n;
    take_all(p.h, done, 5);
    fake_hold(p.f, true);
    for (uint32_t i = 0; i < 3; i++)
        w[i] = (struct waiter){p.h, submit(p.h, i, 100, 0), i};
    fake_step(p.f, 2);
    cr_assert_eq(cb_wait(p.h, w[2].id, &e, HANG_MS), 1);
    for (int i = 0; i < 3; i++)
        pthread_create(&t[i], NULL, wait_lost, &w[i]);
    usleep(30000);
    fake_kill(p.f);
    for (int i = 0; i < 3; i++) {
        void *status;
        pthread_join(t[i], &status);
        cr_assert_eq((int)(intptr_t)status, CB_LOST, "thread %d: %d", i, (int)(intptr_t)status);
    }
    while (cb_poll(p.h, &e) > 0) {
    }
    cr_assert_eq(cb_poll(p.h, &e), CB_LOST);
    cr_assert_eq(cb_wait(p.h, 0, &e, -1), CB_LOST);
    cr_assert_eq(cb_dispatch(p.h, -1), CB_LOST);
    cr_assert_eq(cb_submit(p.h, &r, &id), CB_LOST);
    cr_assert_eq(cb_cancel(p.h, w[0].id), CB_LOST);
    expect_message("the daemon is gone");
    /* what there was stays readable */
    cr_assert_eq(cb_tokens(p.h, w[0].id, &ids, &n), 0);
    cr_assert(n >= 1 && n <= 2 && ids[0] == 0);
    cr_assert_eq(cb_result(p.h, w[0].id, &result), 0);
    cr_assert(result.status == CB_LOST && result.end == CB_END_ERROR && result.n_generated == n);
    cr_assert_eq(cb_result(p.h, done, &result), 0);
    cr_assert(result.end == CB_END_LENGTH && result.n_generated == 4);
    cr_assert_eq(cb_text_all(p.h, done, &text, &n), 0);
    cr_assert_eq(n, 4);
    cr_assert_eq(cb_release(p.h, done), 0);
    cancelled = w[1].id;
    cr_assert_eq(cb_release(p.h, cancelled), 0);
    stop(p);
}

Test(loss, every_call_says_lost_and_none_hangs)
{
    lost(CB_KIND_LATENCY, CB_WAIT_BALANCED);
}

Test(loss, every_call_says_lost_and_none_hangs_spinning)
{
    lost(CB_KIND_LATENCY, CB_WAIT_SPIN);
}

Test(loss, every_call_says_lost_and_none_hangs_on_a_socket)
{
    lost(CB_KIND_EVENT_LOOP, CB_WAIT_ECO);
}

Test(loss, who_waits_for_any_is_told)
{
    struct pair p = start_plain();
    struct waiter w = {.h = p.h};
    struct cb_info info;
    pthread_t t[3];
    for (int i = 0; i < 3; i++)
        pthread_create(&t[i], NULL, wait_lost, &w);
    usleep(30000);
    fake_kill(p.f);
    for (int i = 0; i < 3; i++) {
        void *status;
        pthread_join(t[i], &status);
        cr_assert_eq((int)(intptr_t)status, CB_LOST);
    }
    cb_info(p.h, &info);
    cr_assert_eq(info.wake_missed, 0);
    stop(p);
}

Test(loss, an_end_without_an_entry_counts)
{
    struct pair p = start_plain();
    struct cb_event e;
    uint64_t id;
    fake_hold(p.f, true);
    id = submit(p.h, 5, 3, 0);
    fake_step(p.f, 1);
    cr_assert_eq(cb_wait(p.h, id, &e, HANG_MS), 1);
    fake_mute(p.f, true);
    usleep(100000);
    fake_kill(p.f);
    cr_assert_eq(cb_wait(p.h, id, &e, HANG_MS), 1);
    cr_assert(e.type == CB_EVENT_TOKENS && e.first == 1 && e.n_ids == 2 && e.ids[1] == 7);
    cr_assert_eq(cb_wait(p.h, id, &e, HANG_MS), 1);
    cr_assert(e.type == CB_EVENT_END && e.end == CB_END_LENGTH && e.status == 0);
    stop(p);
}

Test(loss, polls_alone_notice_it)
{
    struct pair p = start_plain();
    struct cb_event e;
    int r;
    fake_kill(p.f);
    while (!(r = cb_poll(p.h, &e))) {
    }
    cr_assert_eq(r, CB_LOST);
    stop(p);
}

Test(loss, submits_alone_notice_it)
{
    struct pair p = start_plain();
    struct cb_request r = request_of(ids3, 3, 4);
    uint64_t id;
    int status = 0;
    fake_kill(p.f);
    for (int i = 0; i < 60 && !status; i++) {
        status = cb_submit(p.h, &r, &id);
        usleep(5000);
    }
    cr_assert_eq(status, CB_LOST);
    stop(p);
}

Test(loss, ends_written_before_it_count_and_cancels_asked_before_it_too)
{
    struct pair p = start_plain();
    struct cb_event e = {0};
    uint64_t ended, cancelled;
    ended = submit(p.h, 5, 4, 0);
    usleep(100000); /* it ends; nobody looks */
    fake_deaf(p.f, true);
    cancelled = submit(p.h, 5, 100, 0);
    cb_cancel(p.h, cancelled);
    fake_kill(p.f);
    e = take_all(p.h, ended, 5);
    cr_assert(e.end == CB_END_LENGTH && e.status == 0);
    e = take_all(p.h, cancelled, 5);
    cr_assert(e.end == CB_END_CANCELLED && e.status == 0);
    stop(p);
}

Test(loss, a_closed_lane_says_closed_and_a_stopped_daemon_lost)
{
    struct pair p = start_plain();
    struct cb_event e;
    fake_close_lane(p.f, CB_CLOSED_BROKEN);
    cr_assert_eq(cb_wait(p.h, 0, &e, HANG_MS), CB_CLOSED);
    stop(p);
    p = start_plain();
    fake_hold(p.f, true);
    submit(p.h, 5, 4, 0);
    fake_close_lane(p.f, CB_CLOSED_STOPPED);
    cr_assert_eq(cb_wait(p.h, 0, &e, HANG_MS), 1);
    cr_assert(e.end == CB_END_ERROR && e.status == CB_LOST);
    cr_assert_eq(cb_wait(p.h, 0, &e, HANG_MS), CB_LOST);
    stop(p);
}

/* ---- forks ----------------------------------------------------------------------------------- */

Test(forks, a_child_gets_forked_and_leaves_the_parent_alone)
{
    struct pair p = start(&(struct fake_config){.step_us = 100}, 0, 0);
    struct cb_request r = request_of(ids3, 3, 4);
    uint64_t id = submit(p.h, 5, 300, 0);
    int status;
    pid_t child = fork();
    if (!child) {
        struct cb_event e;
        uint64_t other;
        const char *text;
        size_t n;
        if (cb_poll(p.h, &e) != CB_FORKED || cb_wait(p.h, id, &e, -1) != CB_FORKED ||
            cb_submit(p.h, &r, &other) != CB_FORKED || cb_cancel(p.h, id) != CB_FORKED ||
            cb_release(p.h, id) != CB_FORKED || cb_text(p.h, id, &text, &n) != CB_FORKED ||
            cb_dispatch(p.h, -1) != CB_FORKED ||
            cb_tokenize(p.h, "x", 1, 0, NULL, 0, &n) != CB_FORKED)
            _exit(1);
        cb_close(p.h);
        _exit(0);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    cr_assert_eq(take_all(p.h, id, 5).end, CB_END_LENGTH);
    stop(p);
}
