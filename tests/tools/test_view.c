#include <criterion/criterion.h>
#include <string.h>

#include "tools/view.h"

static struct watch before, now;
static struct view v;

static void make(void)
{
    before = (struct watch){.taken_ns = 5000000000u, .up_ns = 90061000000000u};
    strcpy(before.boot.instance, "main");
    strcpy(before.boot.model, "tiny");
    strcpy(before.boot.backend, "cpu");
    strcpy(before.boot.isa, "avx2");
    before.boot.n_threads = 2;
    before.counters[CB_STAT_tokens_decode] = 1000;
    before.counters[CB_STAT_blocks_total] = 100;
    before.counters[CB_STAT_blocks_free] = 100;
    now = before;
    now.taken_ns += 2000000000u;
    now.counters[CB_STAT_tokens_decode] += 500;
    now.counters[CB_STAT_tokens_prefill] = 300;
    now.counters[CB_STAT_tokens_prefix_hit] = 100;
    now.counters[CB_STAT_blocks_free] = 50;
    now.counters[CB_STAT_blocks_cached] = 25;
    now.counters[CB_STAT_steps] = 10;
    now.counters[CB_STAT_model_ns] = 800000000;
    now.counters[CB_STAT_own_ns] = 200000000;
    now.counters[CB_STAT_requests_active] = 3;
    now.timings[CB_TIMING_step_model_ns].buckets[cb_histogram_bucket(80000000)] = 10;
}

static const char *row_with(const char *part)
{
    for (unsigned i = 0; i < v.n_rows; i++)
        if (strstr(v.rows[i], part))
            return v.rows[i];
    return NULL;
}

static void expect(const char *part)
{
    cr_expect(row_with(part), "no \"%s\"", part);
}

Test(view, rates_are_of_the_time_between_the_looks)
{
    make();
    view_make(&v, &now, &before);
    expect("main  serving  tiny  up 1d 01:01:01");
    expect("of the last 2.0 s");
    expect("3 running");
    expect("150.0 prefill  250.0 decode  50.0 found");
    expect("[############++++++......] 50.0 % held  25.0 % kept  of 100 blocks");
    expect("25.0 % of prompts found");
    expect("5.0  busy 50.0 %");
    expect("80.0 ms model  20.0 ms own");
}

Test(view, what_was_put_aside_and_what_stands_still)
{
    make();
    now.counters[CB_STAT_blocks_aside] = 7;
    now.counters[CB_STAT_offloads] = 6;
    now.counters[CB_STAT_restores] = 5;
    now.counters[CB_STAT_tokens_recomputed] = 80;
    now.counters[CB_STAT_forks] = 3;
    now.counters[CB_STAT_requests_paused] = 4;
    view_make(&v, &now, &before);
    expect("7 blocks aside  3.0 offloads/s  2.5 restores/s  40.0 recomputed/s  1.5 forks/s");
    expect("0 waiting  4 paused  0 clients");
}

Test(view, trouble_is_shown_where_there_was_any)
{
    make();
    view_make(&v, &now, &before);
    cr_expect_null(row_with("trouble"));
    now.counters[CB_STAT_wake_missed] = 2;
    before.counters[CB_STAT_wake_missed] = 2; /* of all time */
    view_make(&v, &now, &before);
    expect("trouble   0 violations  2 wakes missed  0 watchdog");
}

Test(view, what_is_not_known_is_a_dash)
{
    make();
    view_make(&v, &before, &before);
    expect("tokens/s  - prefill  - decode");
    expect("a step    - model  - own");
    expect("- of prompts found");
}

Test(view, another_boot_is_no_earlier_look)
{
    make();
    before.boot.boot_id[0] = 1;
    view_make(&v, &now, &before);
    expect("since the daemon's start");
    view_make(&v, &now, NULL);
    expect("since the daemon's start");
}

Test(view, recent_latencies_and_all_stand_side_by_side)
{
    make();
    before.timings[CB_TIMING_step_model_ns].buckets[cb_histogram_bucket(80000000)] = 10;
    view_make(&v, &now, &before);
    const char *row = row_with("step: model");
    cr_assert(row);
    cr_expect_str_eq(row, "step: model       0       -       -       -       10 75.5 ms 82.2 ms "
                          "83.7 ms");
}

Test(view, no_byte_steers_the_terminal)
{
    make();
    strcpy(now.boot.model, "\x1b[2J\xc3\xa4\r\n\x7f");
    view_make(&v, &now, NULL);
    expect("?[2J?????");
    for (unsigned i = 0; i < v.n_rows; i++)
        for (const char *c = v.rows[i]; *c; c++)
            cr_assert(*c >= ' ' && *c <= '~');
}

Test(view, the_greatest_numbers_fit_somehow)
{
    make();
    memset(now.counters, 0xff, sizeof now.counters);
    memset(now.timings, 0xff, sizeof now.timings);
    memset(now.boot.model, 'm', sizeof now.boot.model - 1);
    view_make(&v, &now, NULL);
    cr_assert_leq(v.n_rows, (unsigned)VIEW_LINES_MAX);
    for (unsigned i = 0; i < v.n_rows; i++)
        cr_assert_lt(strlen(v.rows[i]), (size_t)VIEW_COLUMNS_MAX);
}
