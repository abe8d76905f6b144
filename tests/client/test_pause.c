/* Pausing a handle's own requests: holders, promises, and what can't be had meanwhile. */
#include "client/cbclient.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "tests/client/pair.h"

enum { SOON_MS = 30 };

static uint32_t n_made(struct cb_handle *h, uint64_t id)
{
    struct cb_result result;
    cr_assert_eq(cb_result(h, id, &result), 0);
    return result.n_generated;
}

Test(pause, not_a_token_more_until_it_is_taken_back)
{
    struct pair p = start(&(struct fake_config){.step_us = 100}, CB_KIND_LATENCY, CB_WAIT_ECO);
    struct cb_event e;
    uint64_t a = submit(p.h, 5, 300, 0), b = 0;
    for (int round = 0; round < 20; round++) {
        uint32_t n;
        cr_assert_eq(cb_wait(p.h, a, &e, HANG_MS), 1);
        cr_assert_eq(cb_pause(p.h, HANG_MS), 0, "%s", cb_message());
        n = n_made(p.h, a);
        usleep(2000);
        cr_assert_eq(n_made(p.h, a), n, "a step ran");
        if (round == 0)
            b = submit(p.h, 50, 30, CB_FINAL_ONLY); /* taken in, but not run */
        cr_assert_eq(cb_resume(p.h), 0);
        if (e.type == CB_EVENT_END)
            break;
    }
    while (e.type != CB_EVENT_END)
        cr_assert_eq(cb_wait(p.h, a, &e, HANG_MS), 1);
    cr_assert_eq(e.end, CB_END_LENGTH);
    cr_assert_eq(n_made(p.h, a), 300);
    cr_assert_eq(take_all(p.h, b, 50).end, CB_END_LENGTH);
    stop(p);
}

Test(pause, lasts_until_the_last_holder_lets_go)
{
    struct pair p = start_plain();
    uint64_t id;
    cr_assert_eq(cb_resume(p.h), CB_NOT_PAUSED);
    cr_assert_eq(cb_pause(p.h, HANG_MS), 0);
    cr_assert_eq(cb_pause(p.h, HANG_MS), 0);
    id = submit(p.h, 5, 10, 0);
    cr_assert_eq(cb_resume(p.h), 0);
    cr_assert_eq(cb_join(p.h, SOON_MS), CB_TIMEOUT);
    cr_assert_eq(n_made(p.h, id), 0);
    cr_assert_eq(cb_resume(p.h), 0);
    cr_assert_eq(cb_resume(p.h), CB_NOT_PAUSED);
    cr_assert_eq(take_all(p.h, id, 5).end, CB_END_LENGTH);
    cr_assert_eq(cb_pause(p.h, -2), CB_INVALID);
    cr_assert_eq(cb_pause(NULL, 0), CB_INVALID);
    stop(p);
}

Test(pause, cancels_are_heard_in_it)
{
    struct pair p = start_plain();
    struct cb_event e;
    uint64_t id = submit(p.h, 5, 4000, 0);
    cr_assert_eq(cb_wait(p.h, id, &e, HANG_MS), 1);
    cr_assert_eq(cb_pause(p.h, HANG_MS), 0);
    usleep(1000 * SOON_MS); /* the daemon sleeps by now */
    cr_assert_eq(cb_cancel(p.h, id), 0);
    cr_assert_eq(cb_join(p.h, HANG_MS), 0);
    cr_assert_eq(cb_resume(p.h), 0);
    stop(p);
}

Test(pause, and_stop_do_not_mix)
{
    struct pair p = start_plain();
    struct cb_event e;
    uint64_t id;
    cr_assert_eq(cb_pause(p.h, HANG_MS), 0);
    id = submit(p.h, 5, 10, 0);
    cr_assert_eq(cb_stop(p.h, 0), CB_PAUSED);
    cr_assert_eq(cb_destroy(p.h, HANG_MS), CB_PAUSED);
    cr_assert_eq(cb_is_running(p.h), 1);
    cr_assert_eq(cb_stop(p.h, CB_STOP_HARD), 0); /* wins */
    cr_assert_eq(cb_join(p.h, HANG_MS), 0);
    e = take_all(p.h, id, 5);
    cr_assert(e.end == CB_END_ERROR && e.status == CB_STOPPED);
    cr_assert_eq(cb_pause(p.h, HANG_MS), CB_NOT_RUNNING);
    cr_assert_eq(cb_start(p.h), 0);
    id = submit(p.h, 5, 10, 0);
    cr_assert_eq(cb_join(p.h, SOON_MS), CB_TIMEOUT); /* still held */
    cr_assert_eq(cb_resume(p.h), 0);
    cr_assert_eq(take_all(p.h, id, 5).end, CB_END_LENGTH);
    cr_assert_eq(cb_stop(p.h, 0), 0);
    cr_assert_eq(cb_pause(p.h, HANG_MS), CB_NOT_RUNNING);
    stop(p);
}

Test(pause, that_the_daemon_does_not_honour_is_none)
{
    struct pair p = start_plain();
    uint64_t id;
    cr_assert_eq(cb_pause(p.h, HANG_MS), 0); /* that this one was is no answer to the next */
    cr_assert_eq(cb_resume(p.h), 0);
    fake_deaf(p.f, true);
    cr_assert_eq(cb_pause(p.h, SOON_MS), CB_TIMEOUT);
    cr_assert_eq(cb_resume(p.h), CB_NOT_PAUSED);
    fake_deaf(p.f, false);
    id = submit(p.h, 5, 10, 0);
    cr_assert_eq(take_all(p.h, id, 5).end, CB_END_LENGTH);
    fake_kill(p.f);
    cr_assert_eq(cb_pause(p.h, HANG_MS), CB_LOST);
    stop(p);
}

Test(pause, needs_a_daemon_that_knows_it)
{
    struct pair p = start(&(struct fake_config){.is_old = true}, CB_KIND_LATENCY, CB_WAIT_ECO);
    cr_assert_eq(cb_pause(p.h, HANG_MS), CB_VERSION);
    cr_assert_eq(cb_resume(p.h), CB_NOT_PAUSED);
    stop(p);
}

struct holder {
    struct cb_handle *h;
    uint64_t id;
    _Atomic int *n_inside;
};

static void *hold_again_and_again(void *arg)
{
    struct holder *o = arg;
    for (int i = 0; i < 100; i++) {
        uint32_t n;
        cr_assert_eq(cb_pause(o->h, HANG_MS), 0, "%s", cb_message());
        n = n_made(o->h, o->id);
        atomic_fetch_add(o->n_inside, 1);
        if (i % 8 == 0)
            usleep(200);
        cr_assert_eq(n_made(o->h, o->id), n, "a step ran while this thread held a pause");
        atomic_fetch_sub(o->n_inside, 1);
        cr_assert_eq(cb_resume(o->h), 0);
    }
    return NULL;
}

Test(pause, any_threads_may_hold_it)
{
    struct pair p = start(&(struct fake_config){.step_us = 20}, CB_KIND_LATENCY, CB_WAIT_ECO);
    _Atomic int n_inside = 0;
    pthread_t threads[4];
    struct cb_info info;
    struct holder o = {p.h, submit(p.h, 5, 4000, 0), &n_inside};
    for (int i = 0; i < 4; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, hold_again_and_again, &o), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    cr_assert_eq(atomic_load(&n_inside), 0);
    cr_assert_eq(cb_resume(p.h), CB_NOT_PAUSED);
    cr_assert_eq(cb_cancel(p.h, o.id), 0);
    cr_assert_eq(cb_join(p.h, HANG_MS), 0);
    cr_assert_eq(cb_info(p.h, &info), 0);
    cr_assert_eq(info.wake_missed, 0);
    stop(p);
}

/* On an event loop's handle, whose thread leads without sleeping on the lane. */
Test(pause, is_told_to_who_waits_beside_an_event_loop)
{
    struct pair p = start(&(struct fake_config){0}, CB_KIND_EVENT_LOOP, CB_WAIT_ECO);
    _Atomic int n_inside = 0;
    struct cb_event e = {0};
    pthread_t thread;
    fake_hold(p.f, true); /* or it would end */
    struct holder o = {p.h, submit(p.h, 5, 4000, CB_FINAL_ONLY), &n_inside};
    cr_assert_eq(cb_arm(p.h), 0);
    cr_assert_eq(pthread_create(&thread, NULL, hold_again_and_again, &o), 0);
    while (pthread_tryjoin_np(thread, NULL)) { /* the recipe, without its sleep */
        cr_assert_eq(cb_poll(p.h, &e), 0);
        cr_assert_eq(cb_arm(p.h), 0);
        cr_assert_eq(cb_poll(p.h, &e), 0);
        usleep(100);
    }
    stop(p);
}
