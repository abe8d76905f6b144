/* Who runs when users and priorities compete, by exact steps (tests/util/timed.h). */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/util/timed.h"

static void begin(struct timed *t, const struct timed_shape *shape)
{
    cr_assert_eq(timed_init(t, shape), 0);
}

static void end(struct timed *t)
{
    cr_expect_str_empty(t->why, "%s", t->why);
    timed_fini(t);
}

static uint64_t difference(uint64_t a, uint64_t b)
{
    return a > b ? a - b : b - a;
}

/* ---- priority -------------------------------------------------------------------------------- */

Test(policies, the_higher_priority_runs_first_and_the_earlier_of_one)
{
    struct timed w;
    struct timed_job jobs[12];
    static const uint32_t priorities[12] = {0, 5, 5, 200, 0, 255, 5, 200, 0, 1, 255, 3};
    begin(&w, &(struct timed_shape){.scheduler = SCHEDULER_PRIORITY});
    for (int i = 0; i < 12; i++) {
        jobs[i] = (struct timed_job){.n_prompt = 60, .limit = 1, .priority = priorities[i]};
        timed_send(&w, &jobs[i]);
        w.time.now_ns++;
    }
    timed_finish_all(&w);
    for (int i = 0; i < 12; i++)
        for (int k = i + 1; k < 12; k++)
            cr_expect(jobs[i].priority >= jobs[k].priority
                          ? jobs[i].first_step <= jobs[k].first_step
                          : jobs[i].first_step >= jobs[k].first_step,
                      "%d and %d", i, k);
    end(&w);
}

Test(policies, a_higher_priority_makes_lower_ones_give_way_and_they_end_well)
{
    struct timed w;
    struct timed_job low[4], high = {.n_prompt = 50, .limit = 20, .priority = 9}, equal;
    struct engine_stats stats;
    begin(&w, &(struct timed_shape){.scheduler = SCHEDULER_PRIORITY, .n_blocks = 16});
    for (int i = 0; i < 4; i++) {
        low[i] = (struct timed_job){.n_prompt = 40, .limit = 24, .priority = 3};
        timed_send(&w, &low[i]);
    }
    for (int i = 0; i < 12; i++)
        timed_step(&w);
    equal = low[0];
    equal.n_prompt = 50;
    timed_send(&w, &equal);
    timed_step(&w);
    timed_step(&w);
    engine_stats(w.engine, &stats);
    cr_expect_eq(stats.n_soft_resets, 0, "an equal one presses nobody");
    cr_expect_eq(stats.n_waiting, 1);
    timed_send(&w, &high);
    timed_step(&w);
    timed_step(&w);
    cr_assert_leq(high.first_step, high.submitted_step + 2);
    cr_assert_geq(high.first_step, 1, "it has its token");
    timed_finish_all(&w);
    uint32_t n_resets = 0;
    for (int i = 0; i < 4; i++) {
        cr_expect_eq(low[i].n_tokens, 24);
        n_resets += low[i].n_resets;
    }
    cr_expect_eq(low[0].n_resets, 0, "the newest gives way, not the oldest");
    cr_expect_gt(n_resets, 0);
    cr_expect_eq(high.n_resets, 0);
    end(&w);
}

/* One of priority 255 after another, more than there is room for: one of priority 0 waits as long
 * as it takes to rise, and then for its turn. */
Test(policies, nobody_starves_below_a_stream_of_higher_priorities)
{
    struct timed w;
    struct timed_job high[64], low = {.n_prompt = 30, .limit = 2};
    uint32_t next = 0;
    begin(&w,
          &(struct timed_shape){.scheduler = SCHEDULER_PRIORITY, .n_blocks = 32, .ageing_ms = 1});
    memset(high, 0, sizeof high);
    timed_send(&w, &low);
    for (int i = 0; i < 800 && low.finish == FINISH_NONE; i++) {
        for (; w.n_there < 24; next = (next + 1) % 64)
            if (!high[next].r) {
                high[next] = (struct timed_job){.n_prompt = 40, .limit = 8, .priority = 255};
                timed_send(&w, &high[next]);
            }
        timed_step(&w);
    }
    cr_assert_eq(low.finish, FINISH_LENGTH);
    cr_expect_gt(low.first_ns, 200 * UINT64_C(1000000), "it came before those above it");
    end(&w);
}

/* ---- fair ------------------------------------------------------------------------------------ */

Test(policies, two_busy_users_get_the_same_whatever_they_send)
{
    static const struct timed_job kinds[] = {{.n_prompt = 60, .limit = 4},
                                             {.n_prompt = 5, .limit = 60},
                                             {.n_prompt = 300, .limit = 1},
                                             {.n_prompt = 17, .limit = 17}};
    for (uint32_t a = 0; a < 4; a++)
        for (uint32_t b = 0; b < 4; b++) {
            struct timed w;
            struct timed_job jobs[2][20] = {0}, like[2] = {kinds[a], kinds[b]};
            uint32_t n_blocks = 24 + 8 * a;
            uint64_t begun[2], most = 0;
            like[0].user = 0;
            like[1].user = 1;
            begin(&w, &(struct timed_shape){.scheduler = SCHEDULER_FAIR, .n_blocks = n_blocks});
            for (int i = 0; i < 5000; i++) {
                timed_keep_busy(&w, jobs[0], 12 + a, &like[0]);
                if (i >= 20)
                    timed_keep_busy(&w, jobs[1], 20 - b, &like[1]);
                if (i == 20)
                    memcpy(begun, w.service, sizeof begun);
                timed_step(&w);
                if (i >= 20 && difference(w.service[0] - begun[0], w.service[1] - begun[1]) > most)
                    most = difference(w.service[0] - begun[0], w.service[1] - begun[1]);
            }
            cr_expect_leq(most, timed_bound(300, n_blocks, 1), "kinds %u and %u: %llu apart", a, b,
                          (unsigned long long)most);
            cr_expect_gt(w.service[1], 10 * timed_bound(300, n_blocks, 1),
                         "the bound says something");
            end(&w);
        }
}

Test(policies, weights_divide_the_machine_and_can_change)
{
    struct timed w;
    struct timed_job jobs[2][20] = {0};
    const struct timed_job like[2] = {{.user = 0, .n_prompt = 20, .limit = 10},
                                      {.user = 1, .n_prompt = 20, .limit = 10}};
    begin(&w, &(struct timed_shape){.scheduler = SCHEDULER_AUTO, .n_blocks = 64});
    engine_set_weights(w.engine, &(struct share_weights){1, {{.uid = 1, .weight = 3}}});
    for (int phase = 0; phase < 2; phase++) {
        uint64_t begun[2];
        memcpy(begun, w.service, sizeof begun);
        for (int i = 0; i < 3000; i++) {
            timed_keep_busy(&w, jobs[0], 20, &like[0]);
            timed_keep_busy(&w, jobs[1], 20, &like[1]);
            timed_step(&w);
        }
        double ratio = (double)(w.service[1] - begun[1]) / (double)(w.service[0] - begun[0]);
        cr_expect(phase == 0 ? ratio > 2.8 && ratio < 3.2 : ratio > 0.95 && ratio < 1.05, "%f",
                  ratio);
        engine_set_weights(w.engine, &(struct share_weights){0});
        for (int i = 0; i < 200; i++) { /* until what is owed is paid */
            timed_keep_busy(&w, jobs[0], 20, &like[0]);
            timed_keep_busy(&w, jobs[1], 20, &like[1]);
            timed_step(&w);
        }
    }
    end(&w);
}

/* What a user did not ask for while it was idle it does not get later. */
Test(policies, an_idle_user_saves_no_turns_up)
{
    struct timed w;
    struct timed_job jobs[2][20] = {0};
    const struct timed_job like[2] = {{.user = 0, .n_prompt = 20, .limit = 10},
                                      {.user = 1, .n_prompt = 20, .limit = 10}};
    uint64_t begun[2];
    begin(&w, &(struct timed_shape){.scheduler = SCHEDULER_FAIR, .n_blocks = 64});
    timed_keep_busy(&w, jobs[1], 1, &like[1]);
    for (int i = 0; i < 1000; i++) {
        timed_keep_busy(&w, jobs[0], 20, &like[0]);
        timed_step(&w);
    }
    memcpy(begun, w.service, sizeof begun);
    for (int i = 0; i < 1000; i++) {
        timed_keep_busy(&w, jobs[0], 20, &like[0]);
        timed_keep_busy(&w, jobs[1], 20, &like[1]);
        timed_step(&w);
    }
    cr_expect_leq(difference(w.service[0] - begun[0], w.service[1] - begun[1]),
                  timed_bound(20, 64, 1));
    end(&w);
}

/* A large prompt before small ones that would always fit: by rank they do not pass it. */
Test(policies, a_large_request_is_not_passed_over_for_ever)
{
    static const enum scheduler_kind kinds[] = {SCHEDULER_PRIORITY, SCHEDULER_FAIR,
                                                SCHEDULER_PREFILL_FIRST};
    for (int k = 0; k < 3; k++) {
        struct timed w;
        struct timed_job small[12] = {0}, large = {.n_prompt = 100, .limit = 4};
        const struct timed_job like = {.n_prompt = 4, .limit = 9};
        begin(&w, &(struct timed_shape){.scheduler = kinds[k], .n_blocks = 8});
        for (int i = 0; i < 600; i++) {
            timed_keep_busy(&w, small, i < 12 ? 1 + (uint32_t)i : 12, &like);
            timed_step(&w);
            if (i == 20)
                timed_send(&w, &large);
        }
        cr_expect_eq(large.finish,
                     kinds[k] == SCHEDULER_PREFILL_FIRST ? FINISH_NONE : FINISH_LENGTH,
                     "scheduler %d", kinds[k]);
        end(&w);
    }
}

/* ---- a flood --------------------------------------------------------------------------------- */

enum { FLOOD = 10000, FLOOD_HELD = 3000, PROBES = 400 };

static int ascending(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* Runs 10,000 prompts of one user, 3,000 of them in the engine at any time, beside, if probe_every,
 * a short one of another each so many steps. The steps that the flood took; waits[] of the probes. */
static uint64_t flood(enum scheduler_kind scheduler, uint32_t n_blocks, uint32_t probe_every,
                      uint64_t *waits, uint32_t *n_waitsp)
{
    struct timed w;
    static struct timed_job jobs[FLOOD_HELD], probes[PROBES];
    const struct timed_job probe = {.user = 1, .n_prompt = 20, .limit = 8};
    uint32_t n_sent = 0, n_probes = 0;
    memset(jobs, 0, sizeof jobs);
    memset(probes, 0, sizeof probes);
    begin(&w, &(struct timed_shape){
                  .scheduler = scheduler, .n_blocks = n_blocks, .max_requests = 4096});
    w.is_fast = true;
    while (w.n_ended[0] < FLOOD) {
        for (uint32_t i = 0; i < FLOOD_HELD && n_sent < FLOOD; i++)
            if (!jobs[i].r) {
                jobs[i] = (struct timed_job){.n_prompt = 30 + n_sent % 21, .limit = 16};
                timed_send(&w, &jobs[i]);
                n_sent++;
            }
        if (probe_every && w.n_steps / probe_every > n_probes && n_probes < PROBES &&
            n_sent < FLOOD) {
            probes[n_probes] = probe;
            timed_send(&w, &probes[n_probes++]);
        }
        timed_step(&w);
    }
    timed_finish_all(&w);
    for (uint32_t i = 0; i < n_probes && waits; i++)
        waits[i] = probes[i].first_step - probes[i].submitted_step;
    if (n_waitsp)
        *n_waitsp = n_probes;
    uint64_t n_steps = w.n_steps;
    end(&w);
    return n_steps;
}

/* A step takes 1.6 ms here; one probe a second is one in 600 steps. Here they come ten times as
 * often. Each is there at the latest with the second step: the one under way when it came, and its
 * own, which holds its prompt. With a cache that the flood fills, too. */
Test(policies, a_flood_does_not_hold_up_another_user, .timeout = 120)
{
    static const uint32_t caches[] = {4096, 40, 24};
    for (int i = 0; i < 3; i++) {
        uint64_t waits[PROBES];
        uint32_t n = 0;
        uint64_t alone = flood(SCHEDULER_AUTO, caches[i], 0, NULL, NULL);
        uint64_t beside = flood(SCHEDULER_AUTO, caches[i], 60, waits, &n);
        cr_assert_gt(n, 100);
        qsort(waits, n, sizeof *waits, ascending);
        cr_expect_leq(waits[n * 99 / 100], 2, "p99 %llu", (unsigned long long)waits[n * 99 / 100]);
        cr_expect_leq(beside * 100, alone * 105, "%llu steps instead of %llu",
                      (unsigned long long)beside, (unsigned long long)alone);
        flood(SCHEDULER_FIFO, caches[i], 60, waits, &n);
        qsort(waits, n, sizeof *waits, ascending);
        cr_expect_gt(waits[n / 2], 100, "fifo would do as well");
    }
}
