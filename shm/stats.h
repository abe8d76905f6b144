/* shm/stats.h - the STATUS page: what the daemon is and counts, for anyone allowed to map and read.
 *
 * A head (magic, version, how many counters), facts of this boot, then one u64 a counter in the
 * order of stats_table.h, then the histograms. One writer, the daemon's loop; readers load relaxed,
 * for display only: two words read one after the other need not agree, and a histogram's count is
 * what its buckets sum up to, so that it always does. A reader built with shorter or longer tables
 * reads what both have. */
#ifndef CB_SHM_STATS_H
#define CB_SHM_STATS_H

#include <stddef.h>
#include <stdint.h>

#include "shm/atomics.h"
#include "shm/histogram.h"
#include "shm/stats_table.h"

enum cb_stat {
#define X(name, kind, unit, meaning) CB_STAT_##name,
    CB_STATS_TABLE(X)
#undef X
        CB_STAT_COUNT
};

enum cb_timing {
#define X(name, meaning) CB_TIMING_##name,
    CB_HISTOGRAMS_TABLE(X)
#undef X
        CB_TIMING_COUNT
};

#define CB_STATS_MAGIC   0x3154415453424300ull
#define CB_STATS_VERSION 4u

/* Facts that don't change while a daemon runs, but for one. Strings end with a NUL. */
struct cb_stats_boot {
    uint64_t boot_id[2];
    uint64_t fingerprint[2]; /* of the weights in use: others may be loaded */
    uint64_t started_unix_s;
    uint64_t pid;
    uint32_t n_vocab, n_context;
    uint32_t page_size, max_batch_tokens;
    uint32_t n_threads, reserved;
    char instance[64];
    char model[128];
    char arch[32];
    char backend[32];
    char isa[32];
    char loop[16]; /* how the daemon waits */
    char version[32];
    char batch_invariant[96]; /* whether results depend on the batch, and why */
    char sandbox[96];         /* what the daemon can still do to the machine  */
};

struct cb_stats_page {
    cb_atomic64 magic; /* release, last: what follows is complete */
    uint32_t version;
    uint32_t n_counters;
    uint32_t counters_off;   /* from the page's start */
    uint32_t histograms_off; /* likewise; 0: there are none */
    struct cb_stats_boot boot;
    cb_atomic64 counters[CB_STAT_COUNT];
    struct cb_stats_histograms {
        uint32_t n_histograms, n_buckets; /* of each */
        struct cb_stats_histogram {
            cb_atomic64 sum;
            cb_atomic64 buckets[CB_HISTOGRAM_BUCKETS];
        } each[CB_TIMING_COUNT];
    } histograms;
};

/* Daemon: fills a fresh, zeroed page of at least sizeof(struct cb_stats_page). The magic is stored
 * last. */
void cb_stats_init(struct cb_stats_page *page, const struct cb_stats_boot *boot);
/* Other weights were loaded. */
void cb_stats_set_fingerprint(struct cb_stats_page *page, const uint64_t fingerprint[2]);
void cb_stats_add(struct cb_stats_page *page, enum cb_stat stat, uint64_t n);
void cb_stats_set(struct cb_stats_page *page, enum cb_stat stat, uint64_t value);
uint64_t cb_stats_get(const struct cb_stats_page *page, enum cb_stat stat);
/* n things took value_ns each. */
void cb_stats_observe(struct cb_stats_page *page, enum cb_timing timing, uint64_t value_ns,
                      uint64_t n);

/* Reader: any mapped page of `bytes`, also of another version. 0, or -EPROTO if it is none, and
 * then nothing else may be called. */
int cb_stats_attach(const void *page, size_t bytes);
void cb_stats_boot(const void *page, struct cb_stats_boot *boot);
/* The counter's value; 0 if that daemon does not have it. */
uint64_t cb_stats_read(const void *page, enum cb_stat stat);
/* A copy of the histogram; an empty one if that daemon does not have it, or has other buckets. */
void cb_stats_histogram(const void *page, enum cb_timing timing, struct cb_histogram *h);

struct cb_stat_row {
    const char *name, *unit, *meaning;
    int is_gauge;
};
const struct cb_stat_row *cb_stat_row(enum cb_stat stat);
/* By name: an enum cb_stat, or -ENOENT. */
int cb_stat_find(const char *name);

struct cb_timing_row {
    const char *name, *meaning;
};
const struct cb_timing_row *cb_timing_row(enum cb_timing timing);

#endif
