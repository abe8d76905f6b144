/* tests/util/prometheus.h - reads Prometheus text (format 0.0.4) as strictly as its readers may.
 *
 * Each name has HELP and TYPE, once, before its samples, which stand together; names and labels are
 * well-formed, values are UTF-8; no sample comes twice; a histogram's buckets grow with their
 * bounds, and the last one is +Inf and is the count. */
#ifndef CB_TESTS_UTIL_PROMETHEUS_H
#define CB_TESTS_UTIL_PROMETHEUS_H

#include <stddef.h>

struct prometheus_sample {
    char name[96];
    char labels[640]; /* as they stand between the braces */
    double value;
};

struct prometheus {
    struct prometheus_sample samples[1024];
    size_t n_samples;
    char why[256]; /* what is wrong, if something is */
};

/* 0, or -1 and p->why. */
int prometheus_read(struct prometheus *p, const char *text);

/* The sample of that name whose labels contain `label` (NULL: the first one); NULL: none. */
const struct prometheus_sample *prometheus_find(const struct prometheus *p, const char *name,
                                                const char *label);

#endif
