/* Each counter is one aligned word with one writer, so an add is load, add, store: no locked
 * instruction. Nothing orders one counter against another; nobody acts on them. */
#include "shm/stats.h"

#include <errno.h>
#include <string.h>

enum { COUNTER = 0, GAUGE = 1 };

static const struct cb_stat_row rows[CB_STAT_COUNT] = {
#define X(name, kind, unit, meaning) [CB_STAT_##name] = {#name, unit, meaning, kind},
    CB_STATS_TABLE(X)
#undef X
};

static const struct cb_timing_row timing_rows[CB_TIMING_COUNT] = {
#define X(name, meaning) [CB_TIMING_##name] = {#name, meaning},
    CB_HISTOGRAMS_TABLE(X)
#undef X
};

void cb_stats_init(struct cb_stats_page *page, const struct cb_stats_boot *boot)
{
    /* The page may be mapped by others already, so it is written by words, the magic last. */
    struct cb_stats_page head = {.version = CB_STATS_VERSION,
                                 .n_counters = CB_STAT_COUNT,
                                 .counters_off = offsetof(struct cb_stats_page, counters),
                                 .histograms_off = offsetof(struct cb_stats_page, histograms),
                                 .boot = *boot};
    const uint32_t lengths[2] = {CB_TIMING_COUNT, CB_HISTOGRAM_BUCKETS};

    cb_copy_out(page, &head, offsetof(struct cb_stats_page, counters));
    cb_copy_out(&page->histograms, lengths, sizeof lengths);
    /* Release: who sees the magic sees the head. */
    cb_store64(&page->magic, CB_STATS_MAGIC, CB_RELEASE);
}

void cb_stats_set_fingerprint(struct cb_stats_page *page, const uint64_t fingerprint[2])
{
    cb_copy_out(page->boot.fingerprint, fingerprint, sizeof page->boot.fingerprint);
}

static void word_add(cb_atomic64 *word, uint64_t n)
{
    /* Relaxed: display only, and this thread is the only writer. */
    cb_store64(word, cb_load64(word, CB_RELAXED) + n, CB_RELAXED);
}

void cb_stats_add(struct cb_stats_page *page, enum cb_stat stat, uint64_t n)
{
    word_add(&page->counters[stat], n);
}

void cb_stats_set(struct cb_stats_page *page, enum cb_stat stat, uint64_t value)
{
    /* Relaxed: display only. */
    cb_store64(&page->counters[stat], value, CB_RELAXED);
}

uint64_t cb_stats_get(const struct cb_stats_page *page, enum cb_stat stat)
{
    /* Relaxed: display only. */
    return cb_load64(&page->counters[stat], CB_RELAXED);
}

void cb_stats_observe(struct cb_stats_page *page, enum cb_timing timing, uint64_t value_ns,
                      uint64_t n)
{
    struct cb_stats_histogram *h = &page->histograms.each[timing];

    word_add(&h->buckets[cb_histogram_bucket(value_ns)], n);
    word_add(&h->sum, value_ns * n);
}

/* Where the head says that counter idx lies; NULL: not in that page. */
static const cb_atomic64 *counter_at(const struct cb_stats_page *page, uint32_t idx)
{
    uint32_t n, off;

    cb_copy_in(&n, &page->n_counters, sizeof n);
    cb_copy_in(&off, &page->counters_off, sizeof off);
    if (idx >= n)
        return NULL;
    return (const cb_atomic64 *)(const void *)((const unsigned char *)page + off) + idx;
}

/* Where the head says that histogram idx lies; NULL: not in that page, or not as here. */
static const struct cb_stats_histogram *histogram_at(const struct cb_stats_page *page, uint32_t idx)
{
    const struct cb_stats_histograms *all;
    uint32_t off, lengths[2];

    cb_copy_in(&off, &page->histograms_off, sizeof off);
    if (off == 0)
        return NULL;
    all = (const struct cb_stats_histograms *)(const void *)((const unsigned char *)page + off);
    cb_copy_in(lengths, all, sizeof lengths);
    return idx < lengths[0] && lengths[1] == CB_HISTOGRAM_BUCKETS ? &all->each[idx] : NULL;
}

/* Whether all that the head says of histograms lies in the page. */
static int histograms_fit(const struct cb_stats_page *page, size_t bytes)
{
    uint32_t off, lengths[2];

    cb_copy_in(&off, &page->histograms_off, sizeof off);
    if (off == 0)
        return 1;
    if (off % 8 || off < offsetof(struct cb_stats_page, counters) || off > bytes ||
        bytes - off < sizeof lengths)
        return 0;
    cb_copy_in(lengths, (const unsigned char *)page + off, sizeof lengths);
    return lengths[0] <= (bytes - off - sizeof lengths) / 8 / ((uint64_t)lengths[1] + 1);
}

int cb_stats_attach(const void *page, size_t bytes)
{
    const struct cb_stats_page *p = page;
    uint32_t version, n, off;

    if (bytes < offsetof(struct cb_stats_page, counters))
        return -EPROTO;
    /* Acquire: with the magic comes the head. */
    if (cb_load64(&p->magic, CB_ACQUIRE) != CB_STATS_MAGIC)
        return -EPROTO;
    cb_copy_in(&version, &p->version, sizeof version);
    cb_copy_in(&n, &p->n_counters, sizeof n);
    cb_copy_in(&off, &p->counters_off, sizeof off);
    if (version != CB_STATS_VERSION || off % 8 || off < offsetof(struct cb_stats_page, counters) ||
        off > bytes || n > (bytes - off) / 8 || !histograms_fit(p, bytes))
        return -EPROTO;
    return 0;
}

void cb_stats_boot(const void *page, struct cb_stats_boot *boot)
{
    const struct cb_stats_page *p = page;

    cb_copy_in(boot, &p->boot, sizeof *boot);
    boot->instance[sizeof boot->instance - 1] = 0;
    boot->model[sizeof boot->model - 1] = 0;
    boot->arch[sizeof boot->arch - 1] = 0;
    boot->backend[sizeof boot->backend - 1] = 0;
    boot->isa[sizeof boot->isa - 1] = 0;
    boot->loop[sizeof boot->loop - 1] = 0;
    boot->version[sizeof boot->version - 1] = 0;
    boot->batch_invariant[sizeof boot->batch_invariant - 1] = 0;
    boot->sandbox[sizeof boot->sandbox - 1] = 0;
}

uint64_t cb_stats_read(const void *page, enum cb_stat stat)
{
    const cb_atomic64 *word = counter_at(page, stat);

    /* Relaxed: display only. */
    return word ? cb_load64(word, CB_RELAXED) : 0;
}

void cb_stats_histogram(const void *page, enum cb_timing timing, struct cb_histogram *h)
{
    const struct cb_stats_histogram *words = histogram_at(page, timing);

    *h = (struct cb_histogram){0};
    if (!words)
        return;
    /* Relaxed: display only. */
    h->sum = cb_load64(&words->sum, CB_RELAXED);
    for (unsigned i = 0; i < CB_HISTOGRAM_BUCKETS; i++)
        h->buckets[i] = cb_load64(&words->buckets[i], CB_RELAXED);
}

const struct cb_stat_row *cb_stat_row(enum cb_stat stat)
{
    return &rows[stat];
}

int cb_stat_find(const char *name)
{
    for (int i = 0; i < CB_STAT_COUNT; i++) {
        if (strcmp(rows[i].name, name) == 0)
            return i;
    }
    return -ENOENT;
}

const struct cb_timing_row *cb_timing_row(enum cb_timing timing)
{
    return &timing_rows[timing];
}
