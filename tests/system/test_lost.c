/* The daemon dies by kill -9: whatever a client is in the middle of, it returns and says CB_LOST;
 * and the next daemon starts at once in what the dead one left. */
#include <criterion/criterion.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "tests/system/crowd.h"

TestSuite(lost, .timeout = 120);

static uint64_t submit_long(struct crowd *c, struct cb_handle *h)
{
    static const uint32_t prompt[] = {1, 2, 3};
    struct cb_request r;
    uint64_t id;
    cb_request_init(&r);
    r.ids = prompt;
    r.n_ids = 3;
    r.max_new_tokens = 100000;
    r.flags = CB_IGNORE_EOS;
    member_expect(c, cb_submit(h, &r, &id) == 0, "%s", cb_message());
    return id;
}

/* A handle with one request that streams. */
static struct cb_handle *open_streaming(struct crowd *c, uint32_t kind, uint64_t *idp)
{
    struct cb_options options;
    struct cb_event event;
    cb_options_init(&options);
    options.kind = kind;
    options.pool_bytes = 8 << 20;
    struct cb_handle *h = crowd_open(c, &options);
    *idp = submit_long(c, h);
    member_expect(c, cb_wait(h, *idp, &event, HANG_MS) == 1 && event.type == CB_EVENT_TOKENS,
                  "no token: type %u, %s", event.type, cb_strerror(event.status));
    crowd_there(c);
    return h;
}

/* What every call says afterwards; what was made stays readable. */
static void expect_lost(struct crowd *c, struct cb_handle *h, uint64_t id)
{
    struct cb_event event;
    struct cb_result result;
    const uint32_t *ids;
    size_t n;
    uint64_t other;
    struct cb_request r;
    static const uint32_t prompt[] = {1};
    cb_request_init(&r);
    r.ids = prompt;
    r.n_ids = 1;
    member_expect(c, cb_poll(h, &event) == CB_LOST, "poll");
    member_expect(c, cb_wait(h, 0, &event, -1) == CB_LOST, "wait");
    member_expect(c, cb_wait(h, id, &event, -1) == CB_NOT_FOUND, "wait for one after its end");
    member_expect(c, cb_dispatch(h, -1) == CB_LOST, "dispatch");
    member_expect(c, cb_submit(h, &r, &other) == CB_LOST && other == 0, "submit");
    member_expect(c, cb_cancel(h, id) == CB_LOST, "cancel");
    member_expect(c, cb_tokens(h, id, &ids, &n) == 0 && n > 0, "tokens");
    member_expect(c,
                  cb_result(h, id, &result) == 0 && result.end == CB_END_ERROR &&
                      result.status == CB_LOST && result.n_generated == n,
                  "end %u, status %d, %u tokens of %zu", result.end, result.status,
                  result.n_generated, n);
    member_expect(c, cb_release(h, id) == 0, "release");
    cb_close(h);
}

/* Waits by `call` until the request's END says CB_LOST. */
enum way {
    POLL,
    WAIT_ANY,
    WAIT_ID,
    WAIT_SPINNING,
    DISPATCH,
    EVENT_LOOP,
    SUBMIT,
    CANCEL,
    THREADS,
    N_WAYS
};

static int event_loop_turn(struct cb_handle *h, struct cb_event *event)
{
    struct pollfd p = {cb_fd(h), POLLIN, 0};
    int r = cb_poll(h, event);
    if (r)
        return r;
    r = cb_arm(h);
    if (r)
        return cb_poll(h, event);
    r = cb_poll(h, event);
    if (r == 0)
        poll(&p, 1, -1);
    return r;
}

static void until_lost(struct crowd *c, struct cb_handle *h, uint64_t id, enum way way)
{
    struct cb_event event = {0};
    do {
        int r = 0;
        memset(&event, 0, sizeof event);
        if (way == POLL)
            r = cb_poll(h, &event);
        else if (way == WAIT_ANY || way == WAIT_SPINNING)
            r = cb_wait(h, 0, &event, -1);
        else if (way == WAIT_ID)
            r = cb_wait(h, id, &event, -1);
        else
            r = event_loop_turn(h, &event);
        member_expect(c, r >= 0, "%d before the END", r);
    } while (event.type != CB_EVENT_END);
    member_expect(c, event.end == CB_END_ERROR && event.status == CB_LOST, "end %u, status %d",
                  event.end, event.status);
}

static void on_event(struct cb_handle *h, const struct cb_event *event, void *arg)
{
    struct cb_event *last = arg;
    (void)h;
    *last = *event;
}

static void by_dispatch(struct crowd *c, struct cb_handle *h)
{
    static const uint32_t prompt[] = {5, 6};
    struct cb_event last = {0};
    struct cb_request r;
    uint64_t id;
    int n;
    cb_request_init(&r);
    r.ids = prompt;
    r.n_ids = 2;
    r.max_new_tokens = 1000;
    r.flags = CB_IGNORE_EOS;
    r.handler = on_event;
    r.handler_arg = &last;
    member_expect(c, cb_submit(h, &r, &id) == 0, "%s", cb_message());
    while ((n = cb_dispatch(h, -1)) > 0)
        ;
    member_expect(c, n == CB_LOST, "dispatch gives %d", n);
    member_expect(c, last.type == CB_EVENT_END && last.status == CB_LOST, "type %u, status %d",
                  last.type, last.status);
}

/* Submits and cancels, and looks at nothing else. */
static void by_submit(struct crowd *c, struct cb_handle *h)
{
    static const uint32_t prompt[] = {7};
    struct cb_request r;
    int status;
    cb_request_init(&r);
    r.ids = prompt;
    r.n_ids = 1;
    r.max_new_tokens = 1;
    r.flags = CB_FINAL_ONLY;
    do {
        uint64_t id;
        status = cb_submit(h, &r, &id);
        if (status == 0)
            cb_release(h, id);
        nap();
    } while (status == 0 || status == CB_BUSY);
    member_expect(c, status == CB_LOST, "submit gives %d: %s", status, cb_message());
}

struct waiter {
    struct crowd *c;
    struct cb_handle *h;
    uint64_t id;
};

static void *thread_waits(void *arg)
{
    struct waiter *w = arg;
    struct cb_event event;
    do
        member_expect(w->c, cb_wait(w->h, w->id, &event, -1) == 1, "%s", cb_message());
    while (event.type == CB_EVENT_TOKENS);
    member_expect(w->c, event.status == CB_LOST, "status %d", event.status);
    return NULL;
}

/* Eight threads wait, each for its own; some lead, some sleep in private memory. */
static void by_threads(struct crowd *c, struct cb_handle *h)
{
    struct waiter waiters[8];
    pthread_t threads[8];
    for (int i = 0; i < 8; i++) {
        waiters[i] = (struct waiter){c, h, submit_long(c, h)};
        member_expect(c, pthread_create(&threads[i], NULL, thread_waits, &waiters[i]) == 0,
                      "thread");
    }
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
}

static void client(struct crowd *c, uint32_t i, void *arg)
{
    enum way way = (enum way)(i % N_WAYS);
    uint64_t id;
    (void)arg;
#ifdef __SANITIZE_THREAD__
    /* Criterion's processes have threads, and ThreadSanitizer lets no child of such start its own. */
    if (way == THREADS)
        way = WAIT_ID;
#endif
    struct cb_handle *h =
        open_streaming(c, way == EVENT_LOOP ? CB_KIND_EVENT_LOOP : CB_KIND_LATENCY, &id);
    if (way == DISPATCH)
        by_dispatch(c, h);
    else if (way == SUBMIT)
        by_submit(c, h);
    else if (way == THREADS)
        by_threads(c, h);
    else if (way == CANCEL)
        while (cb_cancel(h, UINT64_MAX) == CB_NOT_FOUND && atomic_load(&c->shared->go) == 0)
            nap();
    if (way == CANCEL || way == DISPATCH || way == SUBMIT || way == THREADS)
        way = WAIT_ID;
    until_lost(c, h, id, way);
    expect_lost(c, h, id);
}

/* While it serves, and twice: the second daemon starts in what the first left. */
static void kill_and_start_again(const char *loop)
{
    struct system s;
    system_init(&s);
    for (int round = 0; round < 2; round++) {
        struct crowd c;
        system_start(&s, SETTINGS("--model", "null", "--null_step_us", "1000", "--loop", loop));
        crowd_init(&c, &s);
        for (uint32_t i = 0; i < 2 * N_WAYS; i++)
            crowd_add(&c, client, NULL);
        crowd_await(&c, 2 * N_WAYS);
        system_signal(&s, SIGKILL);
        cr_assert_eq(system_wait(&s), -SIGKILL);
        atomic_store(&c.shared->go, 1);
        crowd_join(&c);
        crowd_fini(&c);
    }
    /* The dead one's socket and STATUS are there; the next one begins all the same. */
    struct output o = system_run(&s, NULL, "cbctl", SETTINGS("-i", s.instance, "status"));
    cr_expect_eq(o.status, 1);
    cr_expect(strstr(o.err, "no daemon serves this instance") && strstr(o.err, "was killed"), "%s",
              o.err);
    output_free(&o);
    system_start(&s, SETTINGS("--model", "null"));
    cb_close(system_open(&s, NULL));
    system_settle(&s);
    system_fini(&s);
}

Test(lost, daemon_killed_while_it_streams)
{
    kill_and_start_again("uring");
}

Test(lost, daemon_killed_while_it_streams_on_epoll)
{
    kill_and_start_again("epoll");
}

/* Nothing runs, both sleep. */
static void idler(struct crowd *c, uint32_t i, void *arg)
{
    struct cb_options options;
    struct cb_event event;
    int r;
    (void)arg;
    cb_options_init(&options);
    options.kind = i % 2 ? CB_KIND_EVENT_LOOP : CB_KIND_LATENCY;
    struct cb_handle *h = crowd_open(c, &options);
    crowd_there(c);
    if (i % 4 < 2)
        r = cb_wait(h, 0, &event, -1);
    else if (i % 2)
        while ((r = event_loop_turn(h, &event)) == 0)
            ;
    else
        r = cb_dispatch(h, -1);
    member_expect(c, r == CB_LOST, "an idle client gets %d", r);
    cb_close(h);
}

Test(lost, daemon_killed_while_all_sleep)
{
    struct system s;
    struct crowd c;
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null"));
    crowd_init(&c, &s);
    for (uint32_t i = 0; i < 8; i++)
        crowd_add(&c, idler, NULL);
    crowd_await(&c, 8);
    for (int i = 0; i < 50; i++)
        nap();
    system_signal(&s, SIGKILL);
    cr_assert_eq(system_wait(&s), -SIGKILL);
    crowd_join(&c);
    crowd_fini(&c);
    system_start(&s, SETTINGS("--model", "null"));
    system_fini(&s);
}

/* Waits for a daemon that is not there yet. */
static void early(struct crowd *c, uint32_t i, void *arg)
{
    struct cb_options options;
    (void)i;
    (void)arg;
    cb_options_init(&options);
    options.wait_ms = -1;
    crowd_there(c);
    cb_close(crowd_open(c, &options));
}

Test(lost, no_daemon_at_once_or_after_a_wait)
{
    struct system s;
    struct crowd c;
    struct cb_options options;
    struct cb_handle *h;
    system_init(&s);
    cb_options_init(&options);
    cr_expect_eq(system_try_open(&s, &options, &h), CB_NO_DAEMON);
    cr_expect_null(h);
    options.wait_ms = 60;
    cr_expect_eq(system_try_open(&s, &options, &h), CB_NO_DAEMON);
    crowd_init(&c, &s);
    crowd_add(&c, early, NULL);
    crowd_await(&c, 1);
    system_start(&s, SETTINGS("--model", "null"));
    crowd_join(&c);
    crowd_fini(&c);
    system_settle(&s);
    system_fini(&s);
}
