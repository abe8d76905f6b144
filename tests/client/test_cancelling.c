/* Cancelling and releasing, from anywhere; handlers. */
#include "client/cbclient.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include "tests/client/pair.h"

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

struct storm {
    struct cb_handle *h;
    _Atomic uint64_t ids[16];
    _Atomic bool over;
};

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
