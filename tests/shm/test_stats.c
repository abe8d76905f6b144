#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

#include "shm/stats.h"

static struct cb_stats_page page;

static void make(void)
{
    struct cb_stats_boot boot = {.pid = 5, .instance = "main"};

    memset(&boot.model, 'm', sizeof boot.model); /* no NUL */
    memset(&boot.arch, 'a', sizeof boot.arch);
    memset(&boot.isa, 'i', sizeof boot.isa);
    memset(&boot.loop, 'l', sizeof boot.loop);
    cb_stats_init(&page, &boot);
}

Test(stats, counts_are_read_by_name)
{
    make();
    cb_stats_add(&page, CB_STAT_tokens_decode, 3);
    cb_stats_add(&page, CB_STAT_tokens_decode, 4);
    cb_stats_set(&page, CB_STAT_blocks_free, 9);
    cr_assert_eq(cb_stats_attach(&page, sizeof page), 0);
    cr_assert_eq(cb_stats_read(&page, (enum cb_stat)cb_stat_find("tokens_decode")), 7);
    cr_assert_eq(cb_stats_read(&page, (enum cb_stat)cb_stat_find("blocks_free")), 9);
    cr_assert_eq(cb_stats_get(&page, CB_STAT_steps), 0);
    cr_assert_eq(cb_stat_find("no_such"), -ENOENT);
    cr_assert(cb_stat_row(CB_STAT_blocks_free)->is_gauge);
    cr_assert_not(cb_stat_row(CB_STAT_steps)->is_gauge);
}

Test(stats, strings_of_the_boot_always_end)
{
    struct cb_stats_boot boot;

    make();
    cb_stats_boot(&page, &boot);
    cr_assert_str_eq(boot.instance, "main");
    cr_assert_eq(strlen(boot.model), sizeof boot.model - 1);
    cr_assert_eq(strlen(boot.arch), sizeof boot.arch - 1);
    cr_assert_eq(strlen(boot.isa), sizeof boot.isa - 1);
    cr_assert_eq(strlen(boot.loop), sizeof boot.loop - 1);
    cr_assert_eq(boot.pid, 5);
}

Test(stats, the_fingerprint_alone_changes)
{
    const uint64_t fingerprint[2] = {7, 8};
    struct cb_stats_boot before, after;

    make();
    cb_stats_boot(&page, &before);
    cb_stats_set_fingerprint(&page, fingerprint);
    cb_stats_boot(&page, &after);
    memcpy(before.fingerprint, fingerprint, sizeof fingerprint);
    cr_assert_eq(memcmp(&before, &after, sizeof before), 0);
}

Test(stats, a_page_of_another_length_is_read_as_far_as_both_know)
{
    make();
    cb_stats_add(&page, CB_STAT_paused, 1);
    page.n_counters = CB_STAT_paused;
    cr_assert_eq(cb_stats_attach(&page, sizeof page), 0);
    cr_assert_eq(cb_stats_read(&page, CB_STAT_paused), 0, "that daemon does not have it");
}

Test(stats, histograms_are_read_as_they_were_filled)
{
    struct cb_histogram h;

    make();
    cb_stats_observe(&page, CB_TIMING_step_model_ns, 5000, 3);
    cb_stats_observe(&page, CB_TIMING_step_model_ns, 1, 1);
    cr_assert_eq(cb_stats_attach(&page, sizeof page), 0);
    cb_stats_histogram(&page, CB_TIMING_step_model_ns, &h);
    cr_assert_eq(h.sum, 15001);
    cr_assert_eq(cb_histogram_count(&h), 4);
    cr_assert_eq(h.buckets[0], 1);
    cr_assert_eq(h.buckets[cb_histogram_bucket(5000)], 3);
    cb_stats_histogram(&page, CB_TIMING_step_own_ns, &h);
    cr_assert_eq(cb_histogram_count(&h), 0);
    cr_assert_str_eq(cb_timing_row(CB_TIMING_step_own_ns)->name, "step_own_ns");
}

Test(stats, a_page_without_these_histograms_is_read_as_empty)
{
    struct cb_histogram h;

    make();
    cb_stats_observe(&page, CB_TIMING_step_own_ns, 5000, 3);
    page.histograms.n_histograms = CB_TIMING_step_own_ns;
    cr_assert_eq(cb_stats_attach(&page, sizeof page), 0);
    cb_stats_histogram(&page, CB_TIMING_step_own_ns, &h);
    cr_assert_eq(cb_histogram_count(&h), 0, "a shorter table");
    make();
    page.histograms.n_buckets = CB_HISTOGRAM_BUCKETS - 1;
    cr_assert_eq(cb_stats_attach(&page, sizeof page), 0);
    cb_stats_histogram(&page, CB_TIMING_step_own_ns, &h);
    cr_assert_eq(cb_histogram_count(&h), 0, "other buckets");
    make();
    page.histograms_off = 0;
    cr_assert_eq(cb_stats_attach(&page, sizeof page), 0);
    cb_stats_histogram(&page, CB_TIMING_step_own_ns, &h);
    cr_assert_eq(cb_histogram_count(&h), 0, "an older daemon");
}

Test(stats, histograms_outside_the_page_are_refused)
{
    make();
    page.histograms_off = (uint32_t)sizeof page;
    cr_assert_eq(cb_stats_attach(&page, sizeof page), -EPROTO);
    make();
    page.histograms_off += 4;
    cr_assert_eq(cb_stats_attach(&page, sizeof page), -EPROTO);
    page.histograms_off = 8;
    cr_assert_eq(cb_stats_attach(&page, sizeof page), -EPROTO);
    make();
    page.histograms.n_histograms++;
    cr_assert_eq(cb_stats_attach(&page, sizeof page), -EPROTO);
    page.histograms.n_histograms = page.histograms.n_buckets = UINT32_MAX;
    cr_assert_eq(cb_stats_attach(&page, sizeof page), -EPROTO);
}

Test(stats, what_is_no_page_is_refused)
{
    make();
    cr_assert_eq(cb_stats_attach(&page, sizeof page - 1), -EPROTO);
    cr_assert_eq(cb_stats_attach(&page, 8), -EPROTO);
    page.counters_off = UINT32_MAX - 7;
    cr_assert_eq(cb_stats_attach(&page, sizeof page), -EPROTO);
    make();
    page.n_counters = 1;
    page.counters_off += 4;
    cr_assert_eq(cb_stats_attach(&page, sizeof page), -EPROTO);
    page.counters_off = 8;
    cr_assert_eq(cb_stats_attach(&page, sizeof page), -EPROTO);
    make();
    page.n_counters = (uint32_t)((sizeof page - page.counters_off) / 8 + 1);
    cr_assert_eq(cb_stats_attach(&page, sizeof page), -EPROTO);
    make();
    page.version++;
    cr_assert_eq(cb_stats_attach(&page, sizeof page), -EPROTO);
    make();
    page.magic = 0;
    cr_assert_eq(cb_stats_attach(&page, sizeof page), -EPROTO);
}
