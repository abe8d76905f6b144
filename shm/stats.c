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

void cb_stats_init(struct cb_stats_page *page, const struct cb_stats_boot *boot)
{
    /* The page may be mapped by others already, so it is written by words, the magic last. */
    struct cb_stats_page head = {.version = CB_STATS_VERSION,
                                 .n_counters = CB_STAT_COUNT,
                                 .counters_off = offsetof(struct cb_stats_page, counters),
                                 .boot = *boot};

    cb_copy_out(page, &head, offsetof(struct cb_stats_page, counters));
    /* Release: who sees the magic sees the head. */
    cb_store64(&page->magic, CB_STATS_MAGIC, CB_RELEASE);
}

void cb_stats_add(struct cb_stats_page *page, enum cb_stat stat, uint64_t n)
{
    cb_atomic64 *word = &page->counters[stat];

    /* Relaxed: display only, and this thread is the only writer. */
    cb_store64(word, cb_load64(word, CB_RELAXED) + n, CB_RELAXED);
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
        off > bytes || n > (bytes - off) / 8)
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
}

uint64_t cb_stats_read(const void *page, enum cb_stat stat)
{
    const cb_atomic64 *word = counter_at(page, stat);

    /* Relaxed: display only. */
    return word ? cb_load64(word, CB_RELAXED) : 0;
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
