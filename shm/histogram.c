/* A bucket is found by the place of the highest bit and the two below it: no table, no search, no
 * division, for it is done for each token. One is taken off first, which makes bounds inclusive,
 * as readers of such buckets expect ("le"). */
#include "shm/histogram.h"

#include <assert.h>

enum { SHIFT = CB_HISTOGRAM_SHIFT, LAST = CB_HISTOGRAM_BUCKETS - 1 };

unsigned cb_histogram_bucket(uint64_t value)
{
    uint64_t below = value - (value != 0);
    unsigned octave, bucket;

    if (below < 1u << SHIFT)
        return 0;
    octave = 63u - (unsigned)__builtin_clzll(below);
    bucket = 1 + (octave - SHIFT) * 4 + (unsigned)(below >> (octave - 2) & 3);
    return bucket < LAST ? bucket : LAST;
}

uint64_t cb_histogram_bound(unsigned bucket)
{
    assert(bucket <= LAST);
    if (bucket == LAST)
        return UINT64_MAX;
    if (bucket == 0)
        return 1u << SHIFT;
    return (uint64_t)(5 + (bucket - 1) % 4) << ((bucket - 1) / 4 + SHIFT - 2);
}

int cb_histogram_ends_octave(unsigned bucket)
{
    return bucket % 4 == 0;
}

uint64_t cb_histogram_count(const struct cb_histogram *h)
{
    uint64_t n = 0;

    for (unsigned i = 0; i <= LAST; i++)
        n += h->buckets[i];
    return n;
}

uint64_t cb_histogram_quantile(const struct cb_histogram *h, double q)
{
    uint64_t begin = 0;
    double rank = q * (double)cb_histogram_count(h), n = 0;

    for (unsigned i = 0; i < LAST; i++) {
        double here = (double)h->buckets[i];

        if (here > 0 && n + here >= rank) {
            double share = rank > n ? (rank - n) / here : 0;

            return begin + (uint64_t)(share * (double)(cb_histogram_bound(i) - begin));
        }
        n += here;
        begin = cb_histogram_bound(i);
    }
    return h->buckets[LAST] ? begin : 0;
}

void cb_histogram_since(struct cb_histogram *h, const struct cb_histogram *earlier)
{
    h->sum -= earlier->sum;
    for (unsigned i = 0; i <= LAST; i++)
        h->buckets[i] -= earlier->buckets[i];
}
