/* A daemon that dies, a lane that is closed, a process that forks. */
#include "client/cbclient.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/client/pair.h"

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
    cr_assert(e.end == CB_END_ERROR && e.status == CB_STOPPED, "status %d", e.status);
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
