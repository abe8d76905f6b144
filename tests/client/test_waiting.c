/* Waits: timeouts, threads that share a handle, event loops. */
#include "client/cbclient.h"

#include <criterion/criterion.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "client/internal.h"
#include "tests/client/pair.h"

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

static bool scan(struct cb_handle *h, bool is_second)
{
    pthread_mutex_lock(&h->lock);
    bool any = cb_scan_locked(h, is_second);
    pthread_mutex_unlock(&h->lock);
    return any;
}

/* Whether all is announced that the last scan found. */
static bool is_announced(struct cb_handle *h, uint64_t id)
{
    pthread_mutex_lock(&h->lock);
    const struct cb_held *q = cb_held_find_locked(h, id);
    bool is = q->n_seen >= q->n_unannounced;
    pthread_mutex_unlock(&h->lock);
    return is;
}

/* The daemon stores a count, is kept from its core for a while, and announces it then. */
Test(waiting, what_is_announced_late_is_not_missed, .timeout = 30)
{
    struct pair p = start_plain();
    struct cb_info info;
    struct cb_event e;
    uint64_t id;
    fake_hold(p.f, true);
    id = submit(p.h, 5, 1000, 0);
    fake_step(p.f, 1);
    cr_assert_eq(cb_wait(p.h, id, &e, HANG_MS), 1);
    fake_mute(p.f, true);
    while (!scan(p.h, false)) /* until it has stored one */
        usleep(10);
    fake_mute(p.f, false);
    cr_expect_not(is_announced(p.h, id));
    while (!is_announced(p.h, id)) {
        fake_step(p.f, 1);
        cr_assert_eq(cb_wait(p.h, id, &e, HANG_MS), 1);
    }
    fake_mute(p.f, true);
    while (!scan(p.h, true)) /* it finds one, but not what the last one found */
        usleep(10);
    fake_mute(p.f, false);
    cb_info(p.h, &info);
    cr_expect_eq(info.wake_missed, 0, "%llu", (unsigned long long)info.wake_missed);
    fake_hold(p.f, false);
    while (e.type != CB_EVENT_END)
        cr_assert_eq(cb_wait(p.h, id, &e, HANG_MS), 1);
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

Test(waiting, tokens_of_a_request_that_wants_its_end_only_are_not_missed)
{
    struct pair p = start_plain();
    struct cb_info info;
    struct cb_event e;
    fake_hold(p.f, true);
    uint64_t id = submit(p.h, 5, 10, CB_FINAL_ONLY);
    fake_step(p.f, 3);
    cr_assert_eq(cb_wait(p.h, id, &e, 1500), CB_TIMEOUT);
    fake_hold(p.f, false);
    cr_assert_eq(cb_wait(p.h, id, &e, HANG_MS), 1);
    cr_assert(e.type == CB_EVENT_END && e.n_ids == 10);
    cb_info(p.h, &info);
    cr_assert_eq(info.wake_missed, 0);
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
