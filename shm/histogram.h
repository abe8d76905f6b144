/* shm/histogram.h - how long things took: counts in fixed buckets that grow as the time does.
 *
 * Bucket 0 holds values up to CB_HISTOGRAM_LEAST; then each octave has four of equal width, so that
 * a bucket is at most a quarter wider than where it begins; the last one holds all that is longer
 * than the last bound. A value that equals a bound is below it. Counts are of the buckets' sum, so
 * that they agree whenever a histogram is read. Pure functions. */
#ifndef CB_SHM_HISTOGRAM_H
#define CB_SHM_HISTOGRAM_H

#include <stdint.h>

#define CB_HISTOGRAM_SHIFT   10u /* the least bound, 1024 ns, is 2 to the power of this */
#define CB_HISTOGRAM_OCTAVES 30u /* the greatest bound is 18 minutes                    */
#define CB_HISTOGRAM_BUCKETS (CB_HISTOGRAM_OCTAVES * 4u + 2u)

struct cb_histogram {
    uint64_t sum; /* of the values */
    uint64_t buckets[CB_HISTOGRAM_BUCKETS];
};

/* The bucket of a value. */
unsigned cb_histogram_bucket(uint64_t value);
/* The greatest value that belongs to a bucket; UINT64_MAX: the last one. */
uint64_t cb_histogram_bound(unsigned bucket);
/* Whether the bound of a bucket ends an octave: what is shown where all would be too many. */
int cb_histogram_ends_octave(unsigned bucket);

uint64_t cb_histogram_count(const struct cb_histogram *h);
/* The value that a share q (0 to 1) of all are not above, drawn straight through its bucket; 0 of an
 * empty one. Of the last bucket, whose end nobody knows, it is the beginning. */
uint64_t cb_histogram_quantile(const struct cb_histogram *h, double q);
/* What came since `earlier`, an older state of the same. */
void cb_histogram_since(struct cb_histogram *h, const struct cb_histogram *earlier);

#endif
