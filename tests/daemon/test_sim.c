/* The whole daemon in one process: seeds that once failed, and a couple of hundred others; `make
 * soak` runs ten thousand. */
#include <criterion/criterion.h>

#include "tests/util/busy.h"
#include "tests/util/sim.h"

static void run(uint64_t first, uint64_t last)
{
    for (uint64_t seed = first; seed <= last; seed++) {
        struct sim_report report;
        cr_assert_eq(sim_run(seed, &report), 0, "build/tests/simulate --seeds %llu-%llu: %s",
                     (unsigned long long)seed, (unsigned long long)seed, report.error);
    }
}

Test(sim, holds_for_two_hundred_seeds, .timeout = 120)
{
    run(0, 199);
}

Test(sim, gives_the_same_run_for_the_same_seed, .timeout = 120)
{
    for (uint64_t seed = 1000; seed < 1020; seed++) {
        struct sim_report one, two;
        cr_assert_eq(sim_run(seed, &one), 0, "%s", one.error);
        cr_assert_eq(sim_run(seed, &two), 0, "%s", two.error);
        cr_assert_eq(one.digest, two.digest, "seed %llu", (unsigned long long)seed);
        cr_assert_eq(one.n_turns, two.n_turns);
    }
}

/* A seed must reach what it is there for; else the checks above check nothing. */
Test(sim, reaches_ends_of_every_kind, .timeout = 120)
{
    uint64_t n_finished = 0, n_cancelled = 0, n_rejected = 0, n_deaths = 0, n_hostile = 0;
    uint64_t n_prefix_hits = 0, n_evicted = 0, n_soft_resets = 0, n_pauses = 0;
    uint64_t n_too_late = 0, n_past_deadline = 0, n_predicted = 0;
    uint64_t n_resumed = 0;
    uint64_t n_families = 0, n_forks = 0, n_room_waits = 0, n_switches = 0, n_weights_refused = 0;
    uint64_t n_mixed = 0, n_anew = 0, n_failed = 0;
    for (uint64_t seed = 2000; seed < 2400; seed++) {
        struct sim_report r;
        cr_assert_eq(sim_run(seed, &r), 0, "%s", r.error);
        n_finished += r.n_finished;
        n_cancelled += r.n_cancelled;
        n_rejected += r.n_rejected;
        n_deaths += r.n_deaths;
        n_hostile += r.n_hostile;
        n_prefix_hits += r.n_prefix_hits;
        n_evicted += r.n_evicted;
        n_soft_resets += r.n_soft_resets;
        n_too_late += r.n_too_late;
        n_past_deadline += r.n_past_deadline;
        n_predicted += r.n_predicted;
        n_pauses += r.n_pauses;
        n_families += r.n_families;
        n_resumed += r.n_resumed;
        n_forks += r.n_forks;
        n_room_waits += r.n_room_waits;
        n_switches += r.n_switches;
        n_weights_refused += r.n_weights_refused;
        n_mixed += r.n_mixed;
        n_anew += r.n_anew;
        n_failed += r.n_failed;
    }
    cr_assert_gt(n_finished, 50);
    cr_assert_gt(n_cancelled, 50);
    cr_assert_gt(n_rejected, 20);
    cr_assert_gt(n_deaths, 50);
    cr_assert_gt(n_hostile, 10);
    cr_assert_gt(n_prefix_hits, 30);
    cr_assert_gt(n_evicted, 50);
    cr_assert_gt(n_soft_resets, 0);
    cr_assert_gt(n_too_late, 0);
    cr_assert_gt(n_past_deadline, 5);
    cr_assert_gt(n_predicted, 50);
    cr_assert_gt(n_pauses, 100);
    cr_assert_gt(n_families, 100);
    cr_assert_gt(n_resumed, 100);
    cr_assert_gt(n_forks, 30);
    cr_assert_gt(n_room_waits, 0);
    cr_assert_gt(n_switches, 100);
    cr_assert_gt(n_weights_refused, 20);
    cr_assert_gt(n_mixed, 5);
    cr_assert_gt(n_anew, 5);
    cr_assert_gt(n_failed, 5);
}

/* Two users made room for each other in turn, and neither got on. */
Test(sim, those_who_gave_way_do_not_press_each_other_for_ever)
{
    static const uint64_t seeds[] = {20206, 21161};
    for (int i = 0; i < 2; i++) {
        struct busy_report r;
        cr_expect_eq(busy_run(seeds[i], &r), 0, "%s", r.error);
    }
}

Test(sim, is_fair_and_starves_nobody_for_two_hundred_seeds, .timeout = 120)
{
    uint64_t n_soft_resets = 0, n_forks = 0, n_cancelled = 0;
    double closeness = 0;
    for (uint64_t seed = 0; seed < 200; seed++) {
        struct busy_report r, again;
        cr_assert_eq(busy_run(seed, &r), 0, "build/tests/simulate --seeds %llu-%llu: %s",
                     (unsigned long long)seed, (unsigned long long)seed, r.error);
        if (seed % 10 == 0) {
            cr_assert_eq(busy_run(seed, &again), 0);
            cr_assert_eq(again.digest, r.digest);
        }
        n_soft_resets += r.n_soft_resets;
        n_forks += r.n_forks;
        n_cancelled += r.n_cancelled;
        closeness = r.closeness > closeness ? r.closeness : closeness;
    }
    cr_assert_gt(n_soft_resets, 100);
    cr_assert_gt(n_forks, 100);
    cr_assert_gt(n_cancelled, 100);
    cr_assert_gt(closeness, 0.05, "the bound says something");
}
