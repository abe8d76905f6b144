/* Who runs first, by the real daemon and the library: priorities, users' shares, deadlines that can't
 * be made. In which order requests end is told by the order of their events. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <unistd.h>

#include "tests/system/crowd.h"

TestSuite(scheduling, .timeout = 120);

enum { N_PROMPT = 20 };

static int submit(struct cb_handle *h, uint32_t salt, uint32_t n_new, uint32_t priority,
                  uint64_t deadline_ms, uint64_t *idp)
{
    uint32_t prompt[N_PROMPT];
    struct cb_request r;

    for (uint32_t i = 0; i < N_PROMPT; i++)
        prompt[i] = salt * 100 + i;
    cb_request_init(&r);
    r.ids = prompt;
    r.n_ids = N_PROMPT;
    r.max_new_tokens = n_new;
    r.flags = CB_IGNORE_EOS | CB_FINAL_ONLY;
    r.priority = priority;
    r.deadline_ms = deadline_ms;
    r.user = salt;
    return cb_submit(h, &r, idp);
}

/* The users of the next n ends, in their order. */
static void collect(struct cb_handle *h, uint64_t *order, uint32_t n)
{
    struct cb_event event;

    for (uint32_t i = 0; i < n; i++) {
        cr_assert_eq(cb_wait(h, 0, &event, HANG_MS), 1, "%s", cb_message());
        cr_assert_eq(event.type, CB_EVENT_END, "%s", cb_strerror(event.status));
        cr_assert_eq(event.end, CB_END_LENGTH);
        order[i] = event.user;
        cr_assert_eq(cb_release(h, event.id), 0);
    }
}

/* Six wait, one at a time runs, behind one that is long enough for all to be seen. */
static void run_six(const char *scheduler, const uint32_t priorities[6], uint64_t order[7])
{
    uint64_t id;
    struct system s;

    system_init(&s);
    system_start(&s,
                 SETTINGS("--model", "null", "--null_step_us", "2000", "--max_requests_per_batch",
                          "1", "--scheduler", scheduler, "--priority_ageing_ms", "600000"));
    struct cb_handle *h = system_open(&s, NULL);
    cr_assert_eq(submit(h, 0, 100, 255, 0, &id), 0);
    system_await(&s, "requests_active", 1);
    for (uint32_t i = 0; i < 6; i++)
        cr_assert_eq(submit(h, 1 + i, 3, priorities[i], 0, &id), 0);
    collect(h, order, 7);
    cb_close(h);
    system_settle(&s);
    system_fini(&s);
}

Test(scheduling, the_higher_priority_goes_first_where_the_daemon_goes_by_it)
{
    static const uint32_t priorities[6] = {5, 0, 200, 7, 200, 255};
    static const uint64_t by_priority[7] = {0, 6, 3, 5, 4, 1, 2},
                          by_arrival[7] = {0, 1, 2, 3, 4, 5, 6};
    uint64_t order[7];

    run_six("priority", priorities, order);
    cr_expect_arr_eq(order, by_priority, sizeof order);
    run_six("fifo", priorities, order);
    cr_expect_arr_eq(order, by_arrival, sizeof order);
}

enum { N_FLOOD = 40, FLOODER = 64001 };

static void floods(struct crowd *c, uint32_t i, void *arg)
{
    struct cb_handle *h = crowd_open(c, NULL);
    struct cb_event event;
    uint64_t id;

    (void)i;
    (void)arg;
    for (uint32_t k = 0; k < N_FLOOD; k++)
        member_expect(c, submit(h, 100 + k, 20, 0, 0, &id) == 0, "%s", cb_message());
    crowd_there(c);
    for (uint32_t k = 0; k < N_FLOOD; k++) {
        member_expect(c, cb_wait(h, 0, &event, HANG_MS) == 1, "%s", cb_message());
        member_expect(c, event.type == CB_EVENT_END && event.end == CB_END_LENGTH, "ends ill");
        cb_release(h, event.id);
        crowd_move(c);
    }
    cb_close(h);
}

/* One user's forty wait in line; the other's three, who come last, do not wait behind them. */
Test(scheduling, a_users_flood_does_not_keep_another_waiting)
{
    uint64_t id, order[3];
    struct system s;
    struct crowd c;

    if (geteuid() != 0) {
        fprintf(stderr, "skipped: only root can become another user\n");
        return;
    }
    system_init(&s);
    system_start(&s,
                 SETTINGS("--model", "null", "--null_step_us", "2000", "--max_requests_per_batch",
                          "2", "--socket_mode", "0666", "--socket_trust", "true"));
    crowd_init(&c, &s);
    crowd_add_as(&c, FLOODER, floods, NULL);
    crowd_await(&c, 1);
    system_await(&s, "requests_accepted", N_FLOOD);
    struct cb_handle *h = system_open(&s, NULL);
    for (uint32_t i = 0; i < 3; i++)
        cr_assert_eq(submit(h, i, 20, 0, 0, &id), 0);
    collect(h, order, 3);
    /* Of the flood, those before it and as many as ran beside it have ended, not all. */
    cr_expect_lt(system_counter(&s, "requests_finished"), N_FLOOD / 2 + 3);
    cb_close(h);
    crowd_join(&c);
    crowd_fini(&c);
    system_settle(&s);
    system_fini(&s);
}

Test(scheduling, a_deadline_that_cannot_be_made_is_refused_with_the_prediction)
{
    uint64_t id, order[1];
    struct cb_event event;
    struct cb_result result;
    struct system s;

    system_init(&s);
    system_start(&s, SETTINGS("--model", "null", "--null_step_us", "5000"));
    struct cb_handle *h = system_open(&s, NULL);
    cr_assert_eq(submit(h, 1, 30, 0, 0, &id), 0); /* there is a pace now */
    collect(h, order, 1);

    cr_assert_eq(submit(h, 2, 2000, 0, 1000, &id), 0);
    cr_assert_eq(cb_wait(h, id, &event, HANG_MS), 1);
    cr_assert_eq(event.type, CB_EVENT_REJECTED);
    cr_expect_eq(event.status, CB_TOO_LATE, "%s", cb_strerror(event.status));
    cr_expect_gt(event.detail[0], 1000, "predicted for %u ms", event.detail[0]);
    cr_expect_eq(event.detail[1], 1000);
    cr_assert_eq(cb_release(h, id), 0);

    cr_assert_eq(submit(h, 3, 20, 0, 60000, &id), 0);
    cr_assert_eq(cb_wait(h, id, &event, HANG_MS), 1);
    cr_assert_eq(event.type, CB_EVENT_END);
    cr_assert_eq(cb_result(h, id, &result), 0);
    cr_expect_gt(result.predicted_finish_ns, result.predicted_start_ns);
    cr_expect_gt(result.predicted_finish_ns, 5000000u * 10, "20 tokens at 5 ms each");
    cr_assert_eq(cb_release(h, id), 0);
    cr_expect_eq(system_counter(&s, "requests_rejected"), 1);
    cb_close(h);
    system_settle(&s);
    system_fini(&s);
}
