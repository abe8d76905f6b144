/* Stopping a handle and starting it again; results as a whole; handlers that come later. */
#include "client/cbclient.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "tests/client/pair.h"

enum { SOON_MS = 30 };

/* ---- stop ------------------------------------------------------------------------------------ */

Test(session, a_stop_takes_no_more_and_what_was_taken_ends_well)
{
    struct pair p = start_plain();
    struct cb_request r = request_of(ids3, 3, 4);
    uint64_t a, b, id;
    fake_hold(p.f, true);
    a = submit(p.h, 5, 20, 0);
    b = submit(p.h, 50, 30, CB_FINAL_ONLY);
    cr_assert_eq(cb_stop(p.h, 2), CB_INVALID);
    cr_assert_eq(cb_stop(p.h, 0), 0);
    cr_assert_eq(cb_submit(p.h, &r, &id), CB_NOT_RUNNING);
    cr_assert_eq(id, 0);
    cr_assert_eq(cb_submit_many(p.h, &r, 1, &id), CB_NOT_RUNNING);
    cr_assert_eq(cb_join(p.h, SOON_MS), CB_TIMEOUT);
    cr_assert_eq(cb_is_running(p.h), 1);
    fake_hold(p.f, false);
    cr_assert_eq(cb_join(p.h, HANG_MS), 0, "%s", cb_message());
    cr_assert_eq(cb_is_running(p.h), 0);
    cr_assert_eq(take_all(p.h, a, 5).end, CB_END_LENGTH);
    cr_assert_eq(take_all(p.h, b, 50).end, CB_END_LENGTH);
    stop(p);
}

Test(session, a_second_stop_and_a_second_start_are_told_so)
{
    struct pair p = start_plain();
    cr_assert_eq(cb_start(p.h), CB_RUNNING);
    cr_assert_eq(cb_is_running(p.h), 1);
    cr_assert_eq(cb_stop(p.h, 0), 0);
    cr_assert_eq(cb_stop(p.h, 0), CB_NOT_RUNNING);
    cr_assert_eq(cb_stop(p.h, CB_STOP_HARD), 0); /* asks for more */
    cr_assert_eq(cb_stop(p.h, CB_STOP_HARD), CB_NOT_RUNNING);
    cr_assert_eq(cb_stop(p.h, 0), CB_NOT_RUNNING);
    cr_assert_eq(cb_is_running(p.h), 0);
    cr_assert_eq(cb_join(p.h, 0), 0);
    cr_assert_eq(cb_start(p.h), 0);
    cr_assert_eq(cb_start(p.h), CB_RUNNING);
    cr_assert_eq(take_all(p.h, submit(p.h, 5, 10, 0), 5).end, CB_END_LENGTH);
    cr_assert_eq(cb_stop(NULL, 0), CB_INVALID);
    stop(p);
}

Test(session, a_start_lets_what_a_stop_left_run_on)
{
    struct pair p = start_plain();
    uint64_t a, b;
    fake_hold(p.f, true);
    a = submit(p.h, 5, 20, 0);
    cr_assert_eq(cb_stop(p.h, 0), 0);
    cr_assert_eq(cb_start(p.h), 0);
    b = submit(p.h, 50, 20, 0);
    fake_hold(p.f, false);
    cr_assert_eq(take_all(p.h, a, 5).end, CB_END_LENGTH);
    cr_assert_eq(take_all(p.h, b, 50).end, CB_END_LENGTH);
    stop(p);
}

Test(session, a_hard_stop_ends_all_at_once_each_with_what_it_has)
{
    struct pair p = start_plain();
    uint64_t ids[3];
    struct cb_event e;
    fake_hold(p.f, true);
    for (uint32_t i = 0; i < 3; i++)
        ids[i] = submit(p.h, 100 * i, 100, i == 1 ? CB_FINAL_ONLY : 0);
    fake_step(p.f, 4);
    while (cb_wait(p.h, ids[0], &e, HANG_MS) == 1 && e.first + e.n_ids < 4)
        ;
    cr_assert_eq(cb_cancel(p.h, ids[2]), 0); /* this end was asked for by name */
    fake_deaf(p.f, true);
    uint64_t unseen = submit(p.h, 300, 100, 0);
    cr_assert_eq(cb_stop(p.h, CB_STOP_HARD), 0);
    fake_deaf(p.f, false);
    cr_assert_eq(cb_join(p.h, HANG_MS), 0);
    cr_assert_eq(cb_is_running(p.h), 0);
    for (int i = 0; i < 4; i++) {
        uint64_t id = i < 3 ? ids[i] : unseen;
        struct cb_result result;
        do
            cr_assert_eq(cb_wait(p.h, id, &e, HANG_MS), 1);
        while (e.type == CB_EVENT_TOKENS);
        cr_assert_eq(e.type, CB_EVENT_END);
        cr_assert_eq(e.end, i == 2 ? CB_END_CANCELLED : CB_END_ERROR);
        cr_assert_eq(e.status, i == 2 ? 0 : CB_STOPPED);
        cr_assert_eq(cb_result(p.h, id, &result), 0);
        cr_assert_eq(result.status, e.status);
        cr_assert_eq(result.n_generated, i == 3 ? 0 : 4);
        cr_assert_eq(cb_wait(p.h, id, &e, 0), CB_NOT_FOUND, "a second end");
    }
    stop(p);
}

Test(session, a_hard_stop_also_cuts_what_a_flush_still_waits_for)
{
    struct pair p = start_plain();
    struct cb_event e;
    uint64_t id;
    fake_hold(p.f, true);
    id = submit(p.h, 5, 100, 0);
    cr_assert_eq(cb_stop(p.h, 0), 0);
    cr_assert_eq(cb_join(p.h, SOON_MS), CB_TIMEOUT);
    cr_assert_eq(cb_stop(p.h, CB_STOP_HARD), 0);
    cr_assert_eq(cb_join(p.h, HANG_MS), 0);
    e = take_all(p.h, id, 5);
    cr_assert(e.end == CB_END_ERROR && e.status == CB_STOPPED);
    stop(p);
}

Test(session, a_handle_without_its_daemon_runs_no_more)
{
    struct pair p = start_plain();
    struct cb_event e;
    uint64_t id;
    fake_hold(p.f, true);
    id = submit(p.h, 5, 100, 0);
    fake_kill(p.f);
    cr_assert_eq(cb_join(p.h, HANG_MS), 0);
    cr_assert_eq(cb_is_running(p.h), 0);
    cr_assert_eq(cb_stop(p.h, 0), CB_LOST);
    cr_assert_eq(cb_start(p.h), CB_LOST);
    e = take_all(p.h, id, 5);
    cr_assert(e.end == CB_END_ERROR && e.status == CB_LOST);
    cr_assert_eq(cb_destroy(p.h, 0), 0);
    fake_stop(p.f);
}

/* ---- join ------------------------------------------------------------------------------------ */

static void *join_thread(void *arg)
{
    struct waiter *w = arg;
    return (void *)(intptr_t)cb_join(w->h, HANG_MS);
}

/* One sleeps on the lane for all; the others must be told by it. */
Test(session, many_threads_may_join_while_others_take_events)
{
    struct pair p = start(&(struct fake_config){.step_us = 200}, CB_KIND_LATENCY, CB_WAIT_ECO);
    pthread_t threads[6];
    struct waiter w[6];
    struct cb_info info;
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < 6; i++) {
            w[i] = (struct waiter){p.h, submit(p.h, 5, 10 + (uint32_t)i, 0), 5};
            cr_assert_eq(
                pthread_create(&threads[i], NULL, i % 2 ? join_thread : take_all_thread, &w[i]), 0);
        }
        for (int i = 0; i < 6; i++) {
            void *r;
            pthread_join(threads[i], &r);
            cr_assert_eq((intptr_t)r, 0);
        }
        cr_assert_eq(cb_join(p.h, 0), 0);
        for (int i = 0; i < 6; i++)
            cr_assert_eq(cb_release(p.h, w[i].id), 0);
    }
    cr_assert_eq(cb_info(p.h, &info), 0);
    cr_assert_eq(info.wake_missed, 0);
    stop(p);
}

Test(session, an_event_loop_tells_who_joins_beside_it)
{
    struct pair p = start(&(struct fake_config){0}, CB_KIND_EVENT_LOOP, CB_WAIT_ECO);
    struct cb_event e = {0};
    struct cb_info info;
    struct waiter w;
    pthread_t thread;
    void *r;
    fake_hold(p.f, true);
    w = (struct waiter){p.h, submit(p.h, 5, 10, 0), 5};
    cr_assert_eq(cb_arm(p.h), 0);
    cr_assert_eq(pthread_create(&thread, NULL, join_thread, &w), 0);
    usleep(1000 * SOON_MS);
    fake_hold(p.f, false);
    while (e.type != CB_EVENT_END)
        if (cb_poll(p.h, &e) == 0)
            usleep(1000);
    pthread_join(thread, &r);
    cr_assert_eq((intptr_t)r, 0);
    cr_assert_eq(cb_info(p.h, &info), 0);
    cr_assert_eq(info.wake_missed, 0);
    stop(p);
}

Test(session, join_waits_for_what_was_released_too)
{
    struct pair p = start_plain();
    struct cb_request r = request_of(ids3, 3, 100);
    uint64_t id;
    fake_deaf(p.f, true);
    cr_assert_eq(cb_submit(p.h, &r, &id), 0);
    cr_assert_eq(cb_release(p.h, id), 0);
    cr_assert_eq(cb_join(p.h, SOON_MS), CB_TIMEOUT);
    fake_deaf(p.f, false);
    cr_assert_eq(cb_join(p.h, HANG_MS), 0);
    cr_assert_eq(cb_join(p.h, -2), CB_INVALID);
    stop(p);
}

Test(session, join_ends_with_a_refusal_too)
{
    struct pair p = start_plain();
    struct cb_request r = request_of(ids3, 3, 100);
    uint64_t id;
    r.user = 666;
    cr_assert_eq(cb_submit(p.h, &r, &id), 0);
    cr_assert_eq(cb_join(p.h, HANG_MS), 0);
    stop(p);
}

/* ---- destroy --------------------------------------------------------------------------------- */

static void count_ends(struct cb_handle *h, const struct cb_event *e, void *arg)
{
    int *n = arg;
    (void)h;
    cr_assert_eq(*n % 100, 0, "an event after the end");
    *n += e->type == CB_EVENT_TOKENS ? 100 : 1;
}

Test(session, destroy_flushes_and_handlers_hear_of_the_end)
{
    struct pair p = start_plain();
    struct cb_request r = request_of(ids3, 3, 20);
    int n = 0;
    uint64_t id;
    r.handler = count_ends;
    r.handler_arg = &n;
    fake_hold(p.f, true);
    cr_assert_eq(cb_submit(p.h, &r, &id), 0);
    cr_assert_eq(cb_destroy(p.h, -2), CB_INVALID);
    cr_assert_eq(cb_destroy(p.h, SOON_MS), CB_TIMEOUT);
    cr_assert_eq(cb_is_running(p.h), 1); /* still there */
    fake_hold(p.f, false);
    cr_assert_eq(cb_destroy(p.h, HANG_MS), 0);
    cr_assert_eq(n % 100, 1);
    cr_assert_eq(cb_destroy(NULL, 0), 0);
    fake_stop(p.f);
}

/* ---- results as a whole ---------------------------------------------------------------------- */

Test(results, of_one_request_do_not_depend_on_the_others)
{
    struct pair p = start_plain();
    struct cb_result result;
    uint64_t a, b;
    fake_hold(p.f, true);
    a = submit(p.h, 5, 100, 0);
    b = submit(p.h, 50, 100, 0);
    fake_step(p.f, 3);
    for (uint32_t n = 0; n < 3; n = result.n_generated) /* b's results lie there too, untouched */
        cr_assert_eq(cb_get_result(p.h, a, &result, HANG_MS), 1);
    cr_assert(result.end == CB_END_NONE && result.id == a && result.ids[2] == 7);
    while (cb_get_result(p.h, a, &result, SOON_MS) == 1)
        ;
    cr_assert_eq(result.id, 0);
    cr_assert_eq(cb_get_result(p.h, a, &result, SOON_MS), CB_TIMEOUT);
    cr_assert_eq(cb_get_result(p.h, 0, &result, HANG_MS), 1);
    cr_assert_eq(result.id, b);
    cr_assert_eq(cb_get_result(p.h, 0, NULL, 0), CB_INVALID);
    cr_assert_eq(cb_get_result(p.h, 12345, &result, HANG_MS), CB_NOT_FOUND);
    fake_hold(p.f, false);
    do
        cr_assert_eq(cb_get_result(p.h, a, &result, HANG_MS), 1);
    while (result.end == CB_END_NONE);
    cr_assert(result.end == CB_END_LENGTH && result.n_generated == 100);
    for (uint32_t i = 0; i < 100; i++) /* all of them, not the latest */
        cr_assert_eq(result.ids[i], 5 + i);
    cr_assert_eq(cb_get_result(p.h, a, &result, HANG_MS), CB_NOT_FOUND);
    stop(p);
}

Test(results, of_any_request_come_once_each)
{
    struct pair p = start_plain();
    struct cb_result result;
    uint64_t ids[5], seen = 0;
    for (uint32_t i = 0; i < 5; i++)
        ids[i] = submit(p.h, 100 * i, 10 + i, CB_FINAL_ONLY);
    for (uint32_t k = 0; k < 5; k++) {
        uint32_t i = 0;
        cr_assert_eq(cb_get_result(p.h, 0, &result, HANG_MS), 1);
        while (ids[i] != result.id)
            i++;
        cr_assert_not(seen >> i & 1);
        seen |= 1u << i;
        cr_assert(result.end == CB_END_LENGTH && result.n_generated == 10 + i);
    }
    cr_assert_eq(cb_get_result(p.h, 0, &result, 0), CB_TIMEOUT);
    stop(p);
}

/* ---- handlers -------------------------------------------------------------------------------- */

struct heard {
    int n_events, n_tokens, n_ends;
    uint32_t type, end;
};

static void hear(struct cb_handle *h, const struct cb_event *e, void *arg)
{
    struct heard *heard = arg;
    (void)h;
    heard->n_events++;
    heard->n_tokens += (int)e->n_ids;
    heard->n_ends += e->type != CB_EVENT_TOKENS;
    heard->type = e->type;
    heard->end = e->end;
}

Test(handlers, may_come_after_the_request_and_go_before_its_end)
{
    struct pair p = start_plain();
    struct heard heard = {0};
    struct cb_event e;
    uint64_t id;
    fake_hold(p.f, true);
    id = submit(p.h, 5, 10, 0);
    fake_step(p.f, 3);
    for (size_t n = 0; n < 2; n += e.n_ids) /* these are told; the rest is the handler's */
        cr_assert_eq(cb_wait(p.h, id, &e, HANG_MS), 1);
    int told = (int)(e.first + e.n_ids);
    cr_assert_eq(cb_set_handler(p.h, id, hear, &heard), 0);
    cr_assert_eq(cb_wait(p.h, id, &e, HANG_MS), CB_INVALID);
    fake_step(p.f, 3);
    while (told + heard.n_tokens < 6)
        cr_assert_geq(cb_dispatch(p.h, HANG_MS), 1);
    cr_assert_eq(cb_set_handler(p.h, id, NULL, NULL), 0);
    int n_events = heard.n_events;
    fake_hold(p.f, false);
    do
        cr_assert_eq(cb_wait(p.h, id, &e, HANG_MS), 1);
    while (e.type == CB_EVENT_TOKENS);
    cr_assert_eq(e.end, CB_END_LENGTH);
    cr_assert_eq(cb_dispatch(p.h, 0), 0);
    cr_assert_eq(heard.n_events, n_events);
    cr_assert_eq(cb_set_handler(p.h, id, hear, &heard), CB_NOT_FOUND); /* its end was taken */
    cr_assert_eq(cb_set_handler(p.h, 999, hear, &heard), CB_NOT_FOUND);
    stop(p);
}

/* The loop leads, so that whoever waits beside it is told by a word of its own. */
Test(handlers, that_come_later_end_another_threads_wait)
{
    struct pair p = start(&(struct fake_config){0}, CB_KIND_EVENT_LOOP, CB_WAIT_ECO);
    struct heard heard = {0};
    struct cb_info info;
    struct waiter w;
    pthread_t thread;
    void *r;
    fake_hold(p.f, true);
    w = (struct waiter){p.h, submit(p.h, 5, 10, 0), 5};
    cr_assert_eq(cb_arm(p.h), 0);
    cr_assert_eq(pthread_create(&thread, NULL, wait_released, &w), 0);
    usleep(1000 * SOON_MS);
    cr_assert_eq(cb_set_handler(p.h, w.id, hear, &heard), 0);
    pthread_join(thread, &r);
    cr_assert_eq((intptr_t)r, CB_INVALID);
    cr_assert_eq(cb_info(p.h, &info), 0);
    cr_assert_eq(info.wake_missed, 0);
    stop(p);
}

/* However a request ends: its handler hears it once, and is no more. */
Test(handlers, are_removed_at_every_kind_of_end)
{
    static const uint32_t ends[] = {CB_END_LENGTH, CB_END_STOP, CB_END_CANCELLED,
                                    CB_END_ERROR,  CB_END_NONE, CB_END_ERROR};
    enum { N = sizeof ends / sizeof ends[0] };
    struct pair p = start_plain();
    struct heard heard[N] = {0};
    uint64_t ids[N];
    uint32_t stop_id = 8;
    for (int i = 0; i < N; i++) {
        struct cb_request r = request_of(ids3, 3, i == 0 ? 10 : 400);
        r.handler = hear;
        r.handler_arg = &heard[i];
        r.stop_ids = &stop_id;
        r.n_stop_ids = i == 1;
        r.user = i == 4 ? 666 : 0;
        fake_hold(p.f, i >= 2);
        cr_assert_eq(cb_submit(p.h, &r, &ids[i]), 0);
        if (i == 2)
            cr_assert_eq(cb_cancel(p.h, ids[i]), 0);
        if (i == 3)
            cr_assert_eq(cb_stop(p.h, CB_STOP_HARD), 0);
        if (i == 5)
            fake_close_lane(p.f, CB_CLOSED_STOPPED);
        while (!heard[i].n_ends)
            cr_assert_geq(cb_dispatch(p.h, HANG_MS), 1);
        if (i == 3)
            cr_assert_eq(cb_start(p.h), 0);
        cr_assert_eq(heard[i].type, i == 4 ? CB_EVENT_REJECTED : CB_EVENT_END);
        cr_assert_eq(heard[i].end, ends[i], "%d", i);
        cr_assert_eq(cb_set_handler(p.h, ids[i], hear, &heard[i]), CB_NOT_FOUND);
    }
    cr_assert_eq(cb_dispatch(p.h, 0), CB_LOST);
    for (int i = 0; i < 6; i++)
        cr_assert_eq(heard[i].n_ends, 1, "%d", i);
    stop(p);
}
