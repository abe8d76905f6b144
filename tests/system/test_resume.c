/* Streams that survive their daemon: killed again and again, stopped, replaced by another one. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/system/stream.h"

TestSuite(resume, .timeout = 300);

#define DAEMON SETTINGS("--model", "null", "--null_step_us", "500")

static void learn(struct system *s, struct streams *st)
{
    struct cb_options options;
    stream_options(&options, STREAM_WAIT);
    struct cb_handle *h = system_open(s, &options);
    streams_learn(st, h);
    cb_close(h);
}

static void restart(struct system *s, int signal, const char *const *settings)
{
    system_signal(s, signal);
    (void)system_wait(s);
    system_spawn_as(s, geteuid(), settings);
    cr_assert(system_is_ready(s));
}

/* ---- many, all sorts, several kills ---------------------------------------------------------- */

static void streamer(struct crowd *c, uint32_t i, void *arg)
{
    const struct streams *st = arg;
    struct cb_options options;
    enum stream_way way = (enum stream_way)(i % STREAM_WAYS);
    struct cb_info info;
    stream_options(&options, way);
    struct cb_handle *h = crowd_open(c, &options);
    crowd_there(c);
    for (uint32_t k = 0; atomic_load(&c->shared->go) == 0; k++)
        stream_run(c, st, h, (i + k) % STREAM_KINDS, way, HANG_MS);
    for (uint32_t k = 0; k < STREAM_KINDS; k++)
        stream_run(c, st, h, k, way, HANG_MS);
    cb_info(h, &info);
    member_expect(c, info.n_reconnects > 0, "it has seen no kill");
    member_expect(c, info.wake_missed == 0, "%llu wakes were missed",
                  (unsigned long long)info.wake_missed);
    cb_close(h);
}

static void kills(int signal, uint32_t n_clients, uint32_t n_kills, uint64_t random)
{
    static struct streams st;
    struct system s;
    struct crowd c;
    system_init(&s);
    system_start(&s, DAEMON);
    learn(&s, &st);
    crowd_init(&c, &s);
    for (uint32_t i = 0; i < n_clients; i++)
        crowd_add(&c, streamer, &st);
    crowd_await(&c, n_clients);
    for (uint32_t k = 0; k < n_kills; k++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        for (uint32_t ms = (uint32_t)(random >> 33) % 60; ms > 0; ms--)
            nap();
        restart(&s, signal, DAEMON);
    }
    atomic_store(&c.shared->go, 1);
    crowd_join(&c);
    crowd_fini(&c);
    system_settle(&s);
    system_fini(&s);
}

Test(resume, streams_of_all_sorts_go_on_through_kills)
{
    kills(SIGKILL, 8, 6, 1);
}

/* ---- threads --------------------------------------------------------------------------------- */

enum { N_THREADS = 6, N_OF_EACH = 200 };

struct worker {
    struct crowd *c;
    struct cb_handle *h;
    const uint32_t *whole; /* [N_OF_EACH] */
    _Atomic uint64_t id;   /* what it waits for */
    uint32_t n_whole, n_cancelled;
};

static uint64_t thread_submit(struct worker *w)
{
    static const uint32_t prompt[] = {9, 8, 7};
    struct cb_request r;
    uint64_t id;
    int status;
    cb_request_init(&r);
    r.ids = prompt;
    r.n_ids = 3;
    r.max_new_tokens = N_OF_EACH;
    r.flags = CB_IGNORE_EOS | CB_RESUMABLE;
    while ((status = cb_submit(w->h, &r, &id)) == CB_BUSY)
        nap();
    member_expect(w->c, status == 0, "submit: %s", cb_strerror(status));
    return id;
}

static void *thread_streams(void *arg)
{
    struct worker *w = arg;
    while (atomic_load(&w->c->shared->go) == 0 || w->n_whole == 0) {
        struct cb_event e = {0};
        uint32_t n = 0;
        uint64_t id = thread_submit(w);
        atomic_store(&w->id, id);
        do {
            int r = cb_wait(w->h, id, &e, HANG_MS);
            member_expect(w->c, r == 1, "%d: %s", r, cb_message());
            member_expect(w->c, e.first == n && e.n_ids <= N_OF_EACH - n, "%u behind %u", e.first,
                          n);
            for (uint32_t i = 0; i < e.n_ids; i++) /* an end without ids has no pointer to any */
                member_expect(w->c, e.ids[i] == w->whole[n + i], "others at %u", n + i);
            n += (uint32_t)e.n_ids;
        } while (e.type == CB_EVENT_TOKENS);
        member_expect(w->c, e.end == CB_END_CANCELLED || (e.end == CB_END_LENGTH && n == N_OF_EACH),
                      "end %u, status %d, after %u", e.end, e.status, n);
        w->n_whole += e.end == CB_END_LENGTH;
        w->n_cancelled += e.end == CB_END_CANCELLED;
        cb_release(w->h, id);
        crowd_move(w->c);
    }
    return NULL;
}

/* One handle, on which some wait, one leads, one looks for daemons, and another cancels. */
static void many_threads(struct crowd *c, uint32_t i, void *arg)
{
    struct worker workers[N_THREADS] = {0};
    pthread_t threads[N_THREADS];
    struct cb_options options;
    struct cb_info info;
    uint32_t n_cancelled = 0;
    (void)i;
    stream_options(&options, STREAM_WAIT);
    struct cb_handle *h = crowd_open(c, &options);
    for (int k = 0; k < N_THREADS; k++) {
        workers[k].c = c;
        workers[k].h = h;
        workers[k].whole = arg;
        member_expect(c, pthread_create(&threads[k], NULL, thread_streams, &workers[k]) == 0,
                      "thread");
    }
    crowd_there(c);
    for (uint32_t k = 0; atomic_load(&c->shared->go) == 0; k++) {
        uint64_t id = atomic_load(&workers[k % N_THREADS].id);
        if (k % 8 == 0 && id)
            cb_cancel(h, id);
        nap();
    }
    for (int k = 0; k < N_THREADS; k++) {
        pthread_join(threads[k], NULL);
        n_cancelled += workers[k].n_cancelled;
    }
    cb_info(h, &info);
    member_expect(c, info.n_reconnects > 0 && n_cancelled > 0, "%u cancels", n_cancelled);
    member_expect(c, info.wake_missed == 0, "%llu wakes were missed",
                  (unsigned long long)info.wake_missed);
    cb_close(h);
}

#ifndef __SANITIZE_THREAD__ /* which lets no child of a process with threads start its own */
Test(resume, threads_of_one_handle_through_kills)
{
    static uint32_t whole[N_OF_EACH];
    struct system s;
    struct crowd c;
    system_init(&s);
    system_start(&s, DAEMON);
    struct cb_options options;
    stream_options(&options, STREAM_WAIT);
    struct cb_handle *h = system_open(&s, &options);
    struct worker w = {.h = h};
    struct cb_result result;
    uint64_t id = thread_submit(&w);
    do
        cr_assert_eq(cb_get_result(h, id, &result, HANG_MS), 1);
    while (!result.end);
    cr_assert_eq(result.n_generated, N_OF_EACH);
    memcpy(whole, result.ids, sizeof whole);
    cb_close(h);
    crowd_init(&c, &s);
    crowd_add(&c, many_threads, whole);
    crowd_add(&c, many_threads, whole);
    crowd_await(&c, 2);
    for (int k = 0; k < 8; k++) {
        for (int ms = 0; ms < 20 + 13 * k; ms++)
            nap();
        restart(&s, SIGKILL, DAEMON);
    }
    atomic_store(&c.shared->go, 1);
    crowd_join(&c);
    crowd_fini(&c);
    system_settle(&s);
    system_fini(&s);
}
#endif

/* ---- by cases -------------------------------------------------------------------------------- */

struct one {
    struct system s;
    struct cb_handle *h;
    uint64_t id;
    uint32_t n, ids[4096];
    struct cb_event last;
    uint32_t n_restarted;
};

static void one_open(struct one *o, const char *const *settings,
                     void (*change)(struct cb_options *))
{
    struct cb_options options;
    memset(o, 0, sizeof *o);
    system_init(&o->s);
    system_start(&o->s, settings);
    stream_options(&options, STREAM_WAIT);
    options.pool_bytes = 1 << 20;
    options.resume_max = 0;
    if (change)
        change(&options);
    o->h = system_open(&o->s, &options);
}

static void one_close(struct one *o)
{
    cb_close(o->h);
    system_fini(&o->s);
}

static struct cb_request one_request(uint32_t limit)
{
    static const uint32_t prompt[] = {9, 8, 7};
    struct cb_request r;
    cb_request_init(&r);
    r.ids = prompt;
    r.n_ids = 3;
    r.max_new_tokens = limit;
    r.flags = CB_IGNORE_EOS | CB_RESUMABLE;
    return r;
}

static void one_submit(struct one *o, const struct cb_request *r)
{
    o->n = o->n_restarted = 0;
    cr_assert_eq(cb_submit(o->h, r, &o->id), 0, "%s", cb_message());
}

/* Takes events until there are `least` tokens, or its end. */
static void one_read(struct one *o, uint32_t least)
{
    struct cb_event e = {0};
    while (o->n < least || least == 0) {
        int r = cb_wait(o->h, o->id, &e, 20000);
        cr_assert_eq(r, 1, "%d %s after %u", r, cb_message(), o->n);
        if (e.type == CB_EVENT_RESTARTED) {
            o->n = 0;
            o->n_restarted++;
            continue;
        }
        cr_assert_eq(e.first, o->n);
        cr_assert_leq(e.n_ids, 4096 - o->n);
        for (size_t i = 0; i < e.n_ids; i++)
            o->ids[o->n++] = e.ids[i];
        o->last = e;
        if (e.type != CB_EVENT_TOKENS)
            return;
    }
}

static void release(struct one *o)
{
    cr_assert_eq(cb_release(o->h, o->id), 0);
}

static void await_log(const struct system *s, const char *part)
{
    for (bool is_there = false; !is_there; nap()) {
        char *log = system_log(s);
        is_there = strstr(log, part);
        free(log);
    }
}

static uint64_t n_reconnects(const struct one *o)
{
    struct cb_info info;
    cb_info(o->h, &info);
    return info.n_reconnects;
}

Test(resume, a_hard_stop_is_a_pause_too)
{
    static struct one o;
    static uint32_t whole[1500];
    struct cb_request r = one_request(1500);
    struct cb_result result;
    one_open(&o, DAEMON, NULL);
    r.temperature = 1; /* by a seed that the library draws */
    one_submit(&o, &r);
    one_read(&o, 50);
    system_signal(&o.s, SIGTERM);
    await_log(&o.s, "draining");
    restart(&o.s, SIGTERM, DAEMON);
    one_read(&o, 0);
    cr_assert_gt(n_reconnects(&o), 0, "it was drained");
    cr_assert(o.last.end == CB_END_LENGTH && o.n == 1500, "end %u status %d", o.last.end,
              o.last.status);
    memcpy(whole, o.ids, sizeof whole);
    cr_assert_eq(cb_result(o.h, o.id, &result), 0);
    release(&o);
    r.flags |= CB_HAS_SEED;
    r.seed = result.seed;
    one_submit(&o, &r);
    one_read(&o, 0);
    cr_assert(o.n == 1500 && memcmp(o.ids, whole, sizeof whole) == 0);
    release(&o);
    one_close(&o);
}

Test(resume, a_limit_that_was_open_stays_what_it_came_to)
{
    static struct one o;
    const char *const *settings =
        SETTINGS("--model", "null", "--null_step_us", "500", "--null_context", "300");
    const char *const *larger = SETTINGS("--model", "null", "--null_step_us", "500",
                                         "--null_context", "300", "--lane_pool_tokens", "100000");
    struct cb_request r = one_request(CB_NO_LIMIT);
    one_open(&o, settings, NULL);
    one_submit(&o, &r);
    one_read(&o, 60);
    restart(&o.s, SIGKILL, larger);
    one_read(&o, 0); /* a full context */
    cr_assert(o.last.end == CB_END_LENGTH && o.n == 297, "end %u after %u", o.last.end, o.n);
    release(&o);
    one_close(&o);
}

Test(resume, cancelled_and_late_while_nobody_is_there)
{
    static struct one o;
    struct cb_request r = one_request(4000);
    one_open(&o, DAEMON, NULL);
    one_submit(&o, &r);
    one_read(&o, 20);
    system_signal(&o.s, SIGKILL);
    (void)system_wait(&o.s);
    one_read(&o, o.n); /* nothing more is needed */
    cr_assert_eq(cb_cancel(o.h, o.id), 0);
    one_read(&o, 0);
    cr_assert(o.last.end == CB_END_CANCELLED && o.last.status == 0);
    cr_assert_geq(o.n, 20);
    release(&o);
    uint64_t id;
    cr_assert_eq(cb_submit(o.h, &r, &id), CB_BUSY);
    system_spawn_as(&o.s, geteuid(), DAEMON);
    cr_assert(system_is_ready(&o.s));
    r.deadline_ms = 400;
    int status;
    while ((status = cb_submit(o.h, &r, &o.id)) == CB_BUSY)
        nap();
    cr_assert_eq(status, 0, "%s", cb_message());
    o.n = 0;
    one_read(&o, 20);
    system_signal(&o.s, SIGKILL);
    (void)system_wait(&o.s);
    one_read(&o, 0);
    cr_assert(o.last.end == CB_END_DEADLINE, "end %u status %d", o.last.end, o.last.status);
    release(&o);
    system_spawn_as(&o.s, geteuid(), DAEMON);
    cr_assert(system_is_ready(&o.s));
    one_close(&o);
}

/* By the order of two ends: what was asked for before a daemon died, and waited a second for the next
 * one, is over before what was asked of that with half a second less. */
Test(resume, of_a_deadline_what_remains_goes_along)
{
    static struct one o;
    const char *const *slow =
        SETTINGS("--model", "null", "--null_step_us", "20000", "--null_context", "20000");
    struct cb_request r = one_request(CB_NO_LIMIT);
    struct cb_event e = {0};
    uint64_t later;
    one_open(&o, slow, NULL);
    r.deadline_ms = 3000;
    r.flags |= CB_FINAL_ONLY;
    one_submit(&o, &r);
    system_await(&o.s, "requests_active", 1);
    system_signal(&o.s, SIGKILL);
    (void)system_wait(&o.s);
    for (uint64_t until = now_ms() + 1000; now_ms() < until; nap())
        cr_assert_eq(cb_poll(o.h, &e), 0);
    system_spawn_as(&o.s, geteuid(), slow);
    cr_assert(system_is_ready(&o.s));
    r.deadline_ms = 2500;
    while (cb_submit(o.h, &r, &later) == CB_BUSY)
        nap();
    cr_assert_eq(cb_wait(o.h, 0, &e, HANG_MS), 1);
    cr_assert_eq(e.id, o.id, "the deadline began anew");
    cr_assert(e.end == CB_END_DEADLINE, "end %u status %d", e.end, e.status);
    cr_assert_gt(n_reconnects(&o), 0);
    cr_assert_eq(cb_wait(o.h, 0, &e, HANG_MS), 1);
    cr_assert(e.id == later && e.end == CB_END_DEADLINE);
    one_close(&o);
}

static void few_times(struct cb_options *options)
{
    options->resume_max = 2;
}

Test(resume, one_that_saw_too_many_daemons_die_ends)
{
    static struct one o;
    struct cb_request r = one_request(4000);
    one_open(&o, DAEMON, few_times);
    one_submit(&o, &r);
    for (uint32_t k = 1; k <= 3; k++) {
        one_read(&o, 20 * k);
        restart(&o.s, SIGKILL, DAEMON);
    }
    one_read(&o, 0);
    cr_assert(o.last.end == CB_END_ERROR && o.last.status == CB_LOST, "end %u status %d after %u",
              o.last.end, o.last.status, o.n);
    cr_assert_geq(o.n, 60);
    release(&o);
    one_close(&o);
}

static void no_patience(struct cb_options *options)
{
    options->reconnect_ms = 300;
}

Test(resume, without_a_next_daemon_the_handle_is_lost)
{
    static struct one o;
    struct cb_request r = one_request(4000);
    struct cb_event e;
    one_open(&o, DAEMON, no_patience);
    one_submit(&o, &r);
    one_read(&o, 20);
    system_signal(&o.s, SIGKILL);
    (void)system_wait(&o.s);
    one_read(&o, 0);
    cr_assert(o.last.end == CB_END_ERROR && o.last.status == CB_LOST);
    cr_assert_eq(cb_wait(o.h, 0, &e, -1), CB_LOST);
    cr_assert_eq(cb_submit(o.h, &r, &o.id), CB_LOST);
    system_spawn_as(&o.s, geteuid(), DAEMON);
    cr_assert(system_is_ready(&o.s));
    one_close(&o);
}

Test(resume, what_is_not_resumable_ends_and_the_handle_goes_on)
{
    static struct one o;
    struct cb_request r = one_request(4000), plain = one_request(4000);
    const uint32_t *ids;
    size_t n;
    one_open(&o, DAEMON, NULL);
    plain.flags &= ~CB_RESUMABLE;
    one_submit(&o, &plain);
    one_read(&o, 20);
    restart(&o.s, SIGKILL, DAEMON);
    one_read(&o, 0);
    cr_assert(o.last.end == CB_END_ERROR && o.last.status == CB_LOST);
    uint64_t lost = o.id;
    r.max_new_tokens = 50;
    int status;
    while ((status = cb_submit(o.h, &r, &o.id)) == CB_BUSY)
        nap();
    cr_assert_eq(status, 0, "%s", cb_message());
    uint32_t n_lost = o.n, first = o.ids[0], last = o.ids[o.n - 1];
    o.n = 0;
    one_read(&o, 0);
    cr_assert(o.last.end == CB_END_LENGTH && o.n == 50);
    cr_assert_eq(cb_tokens(o.h, lost, &ids, &n), 0);
    cr_assert(n == n_lost && ids[0] == first && ids[n - 1] == last, "what was made is gone");
    cr_assert_eq(cb_release(o.h, lost), 0);
    release(&o);
    one_close(&o);
}

/* The null model's context is a part of its fingerprint, and is in no vocabulary. */
Test(resume, another_fingerprint_ends_it_or_begins_it_anew)
{
    static struct one o;
    const char *const *other =
        SETTINGS("--model", "null", "--null_step_us", "500", "--null_context", "100000");
    struct cb_request r = one_request(300);
    const char *text;
    size_t bytes;
    one_open(&o, DAEMON, NULL);
    one_submit(&o, &r);
    one_read(&o, 20);
    uint64_t fails = o.id;
    uint32_t n_fails = o.n;
    r.flags |= CB_RESTART;
    one_submit(&o, &r);
    one_read(&o, 20);
    const uint32_t *before = o.last.ids, kept = before[0];
    restart(&o.s, SIGKILL, other);
    one_read(&o, 0);
    cr_assert_eq(o.n_restarted, 1);
    cr_assert(o.last.end == CB_END_LENGTH && o.n == 300, "end %u after %u", o.last.end, o.n);
    cr_assert_eq(before[0], kept, "what was told has changed");
    cr_assert_eq(cb_text_all(o.h, o.id, &text, &bytes), 0);
    release(&o);
    o.id = fails;
    o.n = n_fails;
    one_read(&o, 0);
    cr_assert(o.last.end == CB_END_ERROR && o.last.status == CB_CHANGED, "status %d",
              o.last.status);
    release(&o);
    one_close(&o);
}

/* The next daemon's fingerprint is the one under which it began, but its tokens are not all of those
 * weights. */
Test(resume, tokens_of_two_weights_go_on_nowhere)
{
    static struct one o;
    struct cb_request r = one_request(4000);
    struct output out;
    char path[128];
    one_open(&o, DAEMON, NULL);
    snprintf(path, sizeof path, "%s/other", o.s.dir);
    FILE *f = fopen(path, "w");
    cr_assert(f && fputs("null weights 7\n", f) >= 0 && fclose(f) == 0);
    r.on_new_weights = CB_WEIGHTS_CONTINUE;
    one_submit(&o, &r);
    one_read(&o, 20);
    out = system_run(&o.s, NULL, "cbctl", SETTINGS("-i", o.s.instance, "load-weights", path));
    cr_assert_eq(out.status, 0, "%s", out.err);
    output_free(&out);
    one_read(&o, o.n + 1);
    one_read(&o, o.n + 50); /* of the other ones */
    restart(&o.s, SIGKILL, DAEMON);
    one_read(&o, 0);
    cr_assert(o.last.end == CB_END_ERROR && o.last.status == CB_CHANGED, "end %u, status %d",
              o.last.end, o.last.status);
    release(&o);
    one_close(&o);
}

Test(resume, another_vocabulary_ends_all)
{
    static struct one o;
    const char *const *other = SETTINGS("--model", "null", "--null_vocab", "1000");
    struct cb_request r = one_request(4000);
    struct cb_event e;
    one_open(&o, DAEMON, NULL);
    one_submit(&o, &r);
    one_read(&o, 20);
    uint64_t plain = o.id;
    uint32_t n_plain = o.n;
    r.flags |= CB_RESTART;
    one_submit(&o, &r);
    one_read(&o, 20);
    restart(&o.s, SIGKILL, other);
    for (int i = 0; i < 2; i++) {
        one_read(&o, 0);
        cr_assert(o.last.end == CB_END_ERROR && o.last.status == CB_CHANGED, "status %d",
                  o.last.status);
        release(&o);
        o.id = plain;
        o.n = n_plain;
    }
    cr_assert_eq(cb_wait(o.h, 0, &e, 1000), CB_LOST);
    one_close(&o);
}

/* Twelve of them come back to a lane of three slots, where they take turns. */
Test(resume, onto_a_smaller_lane)
{
    static struct one o;
    const char *const *small = SETTINGS("--model", "null", "--null_step_us", "500",
                                        "--lane_slots_max", "3", "--lane_slots", "3");
    struct cb_request r = one_request(300);
    uint64_t ids[12];
    static uint32_t whole[300];
    one_open(&o, DAEMON, NULL);
    one_submit(&o, &r);
    one_read(&o, 0);
    memcpy(whole, o.ids, sizeof whole);
    release(&o);
    for (int i = 0; i < 12; i++) {
        one_submit(&o, &r);
        ids[i] = o.id;
    }
    one_read(&o, 20);
    restart(&o.s, SIGKILL, small);
    for (int i = 0; i < 12; i++) {
        struct cb_result result;
        o.id = ids[i];
        do
            cr_assert_eq(cb_get_result(o.h, ids[i], &result, 20000), 1, "%d: %s", i, cb_message());
        while (!result.end);
        cr_assert(result.end == CB_END_LENGTH && result.n_generated == 300, "%d: status %d", i,
                  result.status);
        cr_assert_eq(memcmp(result.ids, whole, sizeof whole), 0);
        release(&o);
    }
    one_close(&o);
}

Test(resume, a_command_that_was_told_to)
{
    struct system s;
    const char *const *words =
        SETTINGS("-i", s.instance, "run", "--resume", "--ids", "--ignore-eos", "-n", "600",
                 "--temperature", "1", "--seed", "5", "tell me");
    system_init(&s);
    system_start(&s, DAEMON);
    struct output whole = system_run(&s, NULL, "cbctl", words);
    cr_assert_eq(whole.status, 0, "%s", whole.err);
    struct running r = system_run_begin(&s, NULL, "cbctl", words);
    system_await(&s, "requests_accepted", 2);
    restart(&s, SIGKILL, DAEMON);
    struct output o = system_run_end(&r);
    cr_assert_eq(o.status, 0, "%s", o.err);
    cr_assert_str_eq(o.out, whole.out);
    output_free(&o);
    output_free(&whole);
    system_fini(&s);
}

/* Under load, several times: the socket is never without a daemon, and no stream shows a seam. */
Test(resume, upgrades_are_seen_by_nobody)
{
    static struct streams st;
    struct system s;
    struct crowd c;
    struct cb_options options;
    system_init(&s);
    system_start(&s, DAEMON);
    learn(&s, &st);
    crowd_init(&c, &s);
    for (uint32_t i = 0; i < 4; i++)
        crowd_add(&c, streamer, &st);
    crowd_await(&c, 4);
    /* An even number: every other one can't have the plain name in /dev/shm, which is in use. */
    for (int k = 0; k < 4; k++) {
        system_upgrade(&s, SETTINGS("-i", s.instance, "upgrade", "--json"));
        cb_options_init(&options);
        cb_close(system_open(&s, &options));
    }
    atomic_store(&c.shared->go, 1);
    crowd_join(&c);
    crowd_fini(&c);
    system_settle(&s);
    system_fini(&s);
}

static void failed_upgrade(const struct system *s, const char *const *words)
{
    struct output o = system_run(s, NULL, "cbctl", words);
    cr_assert_eq(o.status, 1);
    output_free(&o);
}

Test(resume, an_upgrade_that_fails_changes_nothing)
{
    static struct one o;
    struct cb_request r = one_request(3000);
    one_open(&o, DAEMON, NULL);
    one_submit(&o, &r);
    one_read(&o, 20);
    failed_upgrade(
        &o.s, SETTINGS("-i", o.s.instance, "upgrade", "--json", "--", "--model", "/nowhere.gguf"));
    failed_upgrade(&o.s, SETTINGS("-i", o.s.instance, "upgrade", "--program", "/bin/false"));
    failed_upgrade(&o.s, SETTINGS("-i", o.s.instance, "upgrade", "--program", "/nowhere"));
    cb_close(system_open(&o.s, NULL));
    one_read(&o, 0);
    cr_assert(o.last.end == CB_END_LENGTH && o.n == 3000 && n_reconnects(&o) == 0);
    release(&o);
    one_close(&o);
}

Test(resume, two_that_do_not_go_together)
{
    static struct one o;
    struct cb_options options;
    struct cb_request r = one_request(10);
    uint64_t id;
    one_open(&o, DAEMON, NULL);
    cb_options_init(&options);
    struct cb_handle *h = system_open(&o.s, &options);
    cr_assert_eq(cb_submit(h, &r, &id), CB_INVALID);
    cb_close(h);
    r.flags = CB_RESTART;
    cr_assert_eq(cb_submit(o.h, &r, &id), CB_INVALID);
    one_close(&o);
}
