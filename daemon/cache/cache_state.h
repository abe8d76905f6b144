/* cache/cache_state.h - a cache from the inside, for cache.c and cache_audit.c. */
#ifndef CB_DAEMON_CACHE_CACHE_STATE_H
#define CB_DAEMON_CACHE_CACHE_STATE_H

#include "daemon/cache/cache.h"

struct cache {
    struct cache_config config;
    struct sectors *sectors;
    struct blocks *blocks[SIZING_GROUPS_MAX]; /* of each group                           */
    struct prefix *prefix;                    /* of group 0, the only one; NULL: no sharing */
    uint64_t n_evicted;
    uint64_t ledger[SIZING_GROUPS_MAX]; /* what the tables say (blocks_ledger)  */
    uint64_t n_entries;                 /* of all tables                        */
    uint32_t *tags[SIZING_GROUPS_MAX];  /* of each block: those of its tables   */
    struct audited {
        uint32_t group, block_idx; /* whose turn it was */
    } audited;
    uint32_t *holders[SIZING_GROUPS_MAX]; /* scratch of the audit: of each block */
    uint32_t *seen[SIZING_GROUPS_MAX];    /* likewise: what its tag should be    */
    bool *owned;                          /* likewise: of each sector            */
    uint8_t *noted;                       /* likewise: for which group, plus one */
};

/* A number that stands for an entry of a table, which stays where it is. The tag of a block is the
 * sum, without carry, of all entries that name it. */
static inline uint32_t tag_of(const struct table *t, uint32_t i)
{
    return (uint32_t)((((uintptr_t)t >> 3) + ((uint64_t)i << 48)) * UINT64_C(0x9e3779b97f4a7c15) >>
                      32);
}

/* What an entry adds to the sum of its table. */
static inline uint32_t entry_of(const struct table *t, uint32_t g, uint32_t i)
{
    return (t->block_idx[g][i] + 1) * (2 * i + 1) * (g + 1);
}

#endif
