#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/util/prometheus.h"
#include "tools/metrics.h"

static struct watch w;
static struct prometheus p;

static char *print(void)
{
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);

    cr_assert(out);
    metrics_print(out, &w);
    fclose(out);
    return text;
}

static void make(void)
{
    w = (struct watch){.state = WATCH_DRAINING};
    strcpy(w.boot.instance, "main");
    strcpy(w.boot.model, "tiny");
    strcpy(w.boot.version, "1");
}

static void expect(const char *name, const char *label, double value)
{
    const struct prometheus_sample *s = prometheus_find(&p, name, label);

    cr_assert(s, "no %s{%s}", name, label ? label : "");
    cr_expect_float_eq(s->value, value, value * 1e-15, "%s is %.17g, not %.17g", name, s->value,
                       value);
}

static void read_back(void)
{
    char *text = print();

    cr_assert_eq(prometheus_read(&p, text), 0, "%s", p.why);
    free(text);
}

Test(metrics, every_row_of_the_tables_is_there)
{
    make();
    for (int i = 0; i < CB_STAT_COUNT; i++)
        w.counters[i] = (uint64_t)i + 1;
    read_back();
    expect("cbd_requests_accepted_total", "instance=\"main\",model=\"tiny\"",
           CB_STAT_requests_accepted + 1);
    expect("cbd_requests_active", NULL, CB_STAT_requests_active + 1);
    expect("cbd_model_seconds_total", NULL, (CB_STAT_model_ns + 1) / 1e9);
    expect("cbd_ring_seconds_per_step", NULL, (CB_STAT_ring_us_per_step + 1) / 1e6);
    expect("cbd_lane_bytes", NULL, CB_STAT_lane_bytes + 1);
    expect("cbd_state", "state=\"draining\"", 1);
    expect("cbd_state", "state=\"serving\"", 0);
    expect("cbd_time_between_tokens_seconds_count", NULL, 0);
    /* info, states, five facts, counters; of each histogram: octaves, +Inf, sum, count. */
    cr_assert_eq(p.n_samples, 1u + WATCH_STATES + 5 + CB_STAT_COUNT +
                                  CB_TIMING_COUNT * (CB_HISTOGRAM_OCTAVES + 1u + 3u));
}

Test(metrics, times_lose_no_digit)
{
    char *text;

    make();
    w.counters[CB_STAT_own_ns] = 12345678901234567u;
    w.timings[CB_TIMING_step_own_ns].sum = 1000000001u;
    text = print();
    cr_expect(strstr(text, "cbd_own_seconds_total{instance=\"main\",model=\"tiny\"} "
                           "12345678.901234567\n"));
    cr_expect(strstr(text, "cbd_step_own_seconds_sum{instance=\"main\",model=\"tiny\"} "
                           "1.000000001\n"));
    free(text);
}

Test(metrics, buckets_are_cumulative_and_bounds_inclusive)
{
    struct cb_histogram *h = &w.timings[CB_TIMING_time_to_first_token_ns];

    make();
    h->buckets[cb_histogram_bucket(1024)]++;
    h->buckets[cb_histogram_bucket(1025)]++;
    h->buckets[cb_histogram_bucket(2048)] += 2;
    h->buckets[cb_histogram_bucket(2049)]++;
    h->buckets[CB_HISTOGRAM_BUCKETS - 1] = 10;
    read_back();
    expect("cbd_time_to_first_token_seconds_bucket", "le=\"1.024e-06\"", 1);
    expect("cbd_time_to_first_token_seconds_bucket", "le=\"2.048e-06\"", 4);
    expect("cbd_time_to_first_token_seconds_bucket", "le=\"4.096e-06\"", 5);
    expect("cbd_time_to_first_token_seconds_bucket", "le=\"1099.511627776\"", 5);
    expect("cbd_time_to_first_token_seconds_bucket", "le=\"+Inf\"", 15);
    expect("cbd_time_to_first_token_seconds_count", NULL, 15);
}

Test(metrics, labels_are_escaped)
{
    make();
    strcpy(w.boot.instance, "a\"b\\c\nd");
    strcpy(w.boot.model, "na\xc3\xafve \xff\xc3|\xe2\x82");
    read_back();
    cr_expect(prometheus_find(&p, "cbd_steps_total", "instance=\"a\\\"b\\\\c\\nd\","));
    cr_expect(prometheus_find(&p, "cbd_steps_total",
                              "model=\"na\xc3\xafve \xef\xbf\xbd\xef\xbf\xbd|\xef\xbf\xbd\""));
}

/* What the reader of these tests must not let through. */
Test(metrics, the_reader_is_strict)
{
    static const char *const bad[] = {
        "",
        "a 1\n",
        "# HELP a x\n# TYPE a gauge\na 1",
        "# HELP a x\n# TYPE a gauge\na 1 x\n",
        "# HELP a x\n# TYPE a gauge\na{b=\"\"\"} 1\n",
        "# HELP a x\n# TYPE a gauge\na{b=\"\\x\"} 1\n",
        "# HELP a x\n# TYPE a gauge\na{b=\"c} 1\n",
        "# HELP a x\n# TYPE a gauge\na 1\na 2\n",
        "# HELP a x\n# TYPE a gauge\nb 1\n",
        "# HELP a x\n# TYPE a counter\na 1\n",
        "# HELP a x\na 1\n",
        "# HELP a x\n# TYPE a histogram\na_bucket{le=\"+Inf\"} 1\na_sum 1\na_count 2\n",
        "# HELP a x\n# TYPE a histogram\na_bucket{le=\"2\"} 1\na_bucket{le=\"1\"} 1\n"
        "a_bucket{le=\"+Inf\"} 1\na_sum 1\na_count 1\n",
        "# HELP a x\n# TYPE a histogram\na_bucket{le=\"1\"} 2\na_bucket{le=\"+Inf\"} 1\n"
        "a_sum 1\na_count 1\n",
        "# HELP a x\n# TYPE a histogram\na_bucket{le=\"1\"} 1\na_sum 1\na_count 1\n",
        "# HELP a x\n# TYPE a gauge\na{b=\"\xff\"} 1\n",
    };

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        cr_expect_eq(prometheus_read(&p, bad[i]), -1, "case %zu", i);
    cr_expect_eq(prometheus_read(&p, "# HELP a x\n# TYPE a gauge\na{b=\"\\\"\\\\\\n\"} 1e9\n"), 0);
}
