#include <criterion/criterion.h>

#include "shm/histogram.h"

enum { LAST = CB_HISTOGRAM_BUCKETS - 1 };

/* The bucket whose bounds hold the value, found as slowly as can be. */
static unsigned naive_bucket(uint64_t value)
{
    unsigned i = 0;

    while (value > cb_histogram_bound(i))
        i++;
    return i;
}

Test(histogram, every_value_lies_within_its_bounds)
{
    for (unsigned i = 0; i < LAST; i++) {
        uint64_t bound = cb_histogram_bound(i), next = cb_histogram_bound(i + 1);

        cr_assert_lt(bound, next, "bucket %u", i);
        cr_assert_eq(cb_histogram_bucket(bound), i, "a bound belongs to what it ends");
        cr_assert_eq(cb_histogram_bucket(bound + 1), i + 1);
        if (i > 0 && i + 1 < LAST)
            cr_assert_leq(4 * (next - bound), bound, "bucket %u is wider than a quarter", i);
    }
    for (uint64_t v = 0; v < 100000; v++)
        cr_assert_eq(cb_histogram_bucket(v), naive_bucket(v), "%llu", (unsigned long long)v);
    for (unsigned bit = 0; bit < 64; bit++) {
        for (uint64_t d = 0; d < 3; d++) {
            uint64_t v = (1ull << bit) + d - 1;

            cr_assert_eq(cb_histogram_bucket(v), naive_bucket(v), "%llu", (unsigned long long)v);
        }
    }
    cr_assert_eq(cb_histogram_bucket(UINT64_MAX), LAST);
    cr_assert_eq(cb_histogram_bound(LAST), UINT64_MAX);
    cr_assert_eq(cb_histogram_bound(LAST - 1), 1ull << 40);
}

Test(histogram, octaves_end_at_powers_of_two)
{
    for (unsigned i = 0; i < LAST; i++) {
        uint64_t bound = cb_histogram_bound(i);

        cr_assert_eq(!!cb_histogram_ends_octave(i), (bound & (bound - 1)) == 0, "bucket %u", i);
    }
    cr_assert_not(cb_histogram_ends_octave(LAST));
}

Test(histogram, quantiles_lie_in_the_right_bucket)
{
    struct cb_histogram h = {0};

    cr_assert_eq(cb_histogram_quantile(&h, 0.5), 0);
    for (uint64_t v = 1; v <= 1000; v++)
        h.buckets[cb_histogram_bucket(v * 10000)]++;
    cr_assert_eq(cb_histogram_count(&h), 1000);
    for (int percent = 1; percent <= 100; percent++) {
        uint64_t exact = (uint64_t)percent * 100000;
        uint64_t got = cb_histogram_quantile(&h, percent / 100.0);

        cr_assert_eq(cb_histogram_bucket(got), cb_histogram_bucket(exact), "p%d is %llu", percent,
                     (unsigned long long)got);
    }
    h = (struct cb_histogram){0};
    h.buckets[LAST] = 3;
    cr_assert_eq(cb_histogram_quantile(&h, 0.5), 1ull << 40, "no more is known");
}

Test(histogram, what_came_since)
{
    struct cb_histogram then = {0}, now;

    then.sum = 5000;
    then.buckets[7] = 2;
    now = then;
    now.sum += 9000;
    now.buckets[7]++;
    now.buckets[9] += 4;
    cb_histogram_since(&now, &then);
    cr_assert_eq(now.sum, 9000);
    cr_assert_eq(now.buckets[7], 1);
    cr_assert_eq(now.buckets[9], 4);
    cr_assert_eq(cb_histogram_count(&now), 5);
}
