/* Two books are kept of who holds what: the pool counts holders of blocks, and the cache notes what
 * each table was given. A fault in one of them is a difference, which a sum shows at once, and a tag
 * of each block says between whom. */
#include <errno.h>
#include <string.h>

#include "daemon/cache/cache_state.h"

static int unclean(const char **whyp, const char *why)
{
    *whyp = why;
    return -EUCLEAN;
}

/* ---- audit ----------------------------------------------------------------------------------- */

int cache_check_table(const struct cache *c, const struct table *t, const struct prefix_key *key,
                      const uint32_t *ids, uint32_t n_computed, const char **whyp)
{
    const uint32_t *row = t->block_idx[0];
    uint32_t n_complete = n_computed / c->config.page_size;
    bool is_reachable = true; /* behind a block that was forgotten nothing can be found */
    for (uint32_t i = 0; c->prefix && i < t->n_blocks; i++) {
        bool is_there = prefix_has(c->prefix, row[i]);
        is_reachable = is_reachable && is_there;
        if (is_there && i >= n_complete)
            return unclean(whyp, "cache: others find a block that is not complete");
        if (is_reachable && !prefix_holds(c->prefix, key, ids, row, i))
            return unclean(whyp, "cache: others find a block that holds something else");
    }
    return 0;
}

uint64_t cache_n_entries(const struct cache *c)
{
    return c->n_entries;
}

int cache_audit(const struct cache *c, const char **whyp)
{
    uint32_t n_sectors = sectors_n_free(c->sectors);
    for (uint32_t g = 0; g < c->config.n_groups; g++) {
        uint32_t n;
        int r = blocks_audit(c->blocks[g], &n, whyp);
        if (r)
            return r;
        if (blocks_ledger(c->blocks[g]) != c->ledger[g])
            return unclean(whyp, "cache: holders of blocks are not the tables");
        n_sectors += n;
    }
    if (n_sectors != c->config.n_sectors || sectors_n_faults(c->sectors))
        return unclean(whyp, "cache: sectors of groups and free ones do not add up");
    if (c->prefix && prefix_n_faults(c->prefix))
        return unclean(whyp, "cache: a block was kept that could not be found");
    return 0;
}

int cache_audit_block(struct cache *c, const char **whyp)
{
    struct audited *at = &c->audited;
    if (++at->block_idx >= blocks_n_total(c->blocks[at->group])) {
        at->block_idx = 0;
        at->group = (at->group + 1) % c->config.n_groups;
    }
    int r = blocks_audit_one(c->blocks[at->group], at->block_idx, whyp);
    if (r || !c->prefix)
        return r;
    if (prefix_has(c->prefix, at->block_idx) != blocks_keeps(c->blocks[0], at->block_idx) ||
        !prefix_is_reachable(c->prefix, at->block_idx))
        return unclean(whyp, "cache: a block is kept and can't be found, or the other way");
    return 0;
}

int cache_audit_sum(const struct cache *c, const struct table *t, const char **whyp)
{
    uint32_t sum = 0;
    for (uint32_t g = 0; g < c->config.n_groups; g++)
        for (uint32_t i = t->n_gone[g]; i < t->n_blocks; i++)
            sum += entry_of(t, g, i);
    return sum == t->sum ? 0 : unclean(whyp, "cache: a table is not what was written there");
}

int cache_audit_entry(const struct cache *c, const struct table *t, uint32_t i, bool is_complete,
                      const char **whyp)
{
    for (uint32_t g = 0; g < c->config.n_groups; g++) {
        uint32_t block_idx = t->block_idx[g][i], n;
        if (i < t->n_gone[g] && block_idx == TABLE_GONE)
            continue;
        n = blocks_n_holders(c->blocks[g], block_idx);
        if (n == 0 || i < t->n_gone[g])
            return unclean(whyp, "cache: a table names a block that nobody holds");
        if (n == 1 && c->tags[g][block_idx] != tag_of(t, i))
            return unclean(whyp, "cache: a table names a block that another one holds");
    }
    if (c->prefix && is_complete != prefix_has(c->prefix, t->block_idx[0][i]))
        return unclean(whyp, "cache: a complete block can't be found, or one that is not can");
    return 0;
}

int cache_audit_ids(const struct cache *c, const struct table *t, uint32_t i,
                    const struct prefix_key *key, const uint32_t *ids, const char **whyp)
{
    if (c->prefix && !prefix_holds(c->prefix, key, ids, t->block_idx[0], i))
        return unclean(whyp, "cache: others find a block that holds something else");
    return 0;
}

/* ---- all of it ------------------------------------------------------------------------------- */

void cache_audit_begin(struct cache *c)
{
    for (uint32_t g = 0; g < c->config.n_groups; g++) {
        memset(c->holders[g], 0, blocks_n_total(c->blocks[g]) * sizeof *c->holders[g]);
        memset(c->seen[g], 0, blocks_n_total(c->blocks[g]) * sizeof *c->seen[g]);
    }
    memset(c->owned, 0, c->config.n_sectors * sizeof *c->owned);
    memset(c->noted, 0, c->config.n_sectors * sizeof *c->noted);
}

int cache_audit_table(struct cache *c, const struct table *t, const char **whyp)
{
    for (uint32_t g = 0; g < c->config.n_groups; g++) {
        if (t->n_blocks > t->max_blocks || t->n_gone[g] > t->n_blocks)
            return unclean(whyp, "cache: more of a table is gone than there was");
        for (uint32_t i = 0; i < t->n_gone[g]; i++)
            if (t->block_idx[g][i] != TABLE_GONE)
                return unclean(whyp, "cache: a table names a block that is gone");
        for (uint32_t i = t->n_gone[g]; i < t->n_blocks; i++)
            if (t->block_idx[g][i] >= blocks_n_total(c->blocks[g]))
                return unclean(whyp, "cache: a table names a block that is not there");
    }
    int r = cache_audit_sum(c, t, whyp);
    if (r)
        return r;
    for (uint32_t g = 0; g < c->config.n_groups; g++)
        for (uint32_t i = t->n_gone[g]; i < t->n_blocks; i++) {
            c->holders[g][t->block_idx[g][i]]++;
            c->seen[g][t->block_idx[g][i]] ^= tag_of(t, i);
        }
    return 0;
}

int cache_audit_end(struct cache *c, const char **whyp)
{
    int r = 0;
    for (uint32_t g = 0; g < c->config.n_groups && !r; g++) {
        r = blocks_check(c->blocks[g], c->holders[g], c->owned, whyp);
        if (!r && memcmp(c->seen[g], c->tags[g], blocks_n_total(c->blocks[g]) * sizeof(uint32_t)))
            r = unclean(whyp, "cache: the tags of blocks are not those of the tables");
    }
    if (!r)
        r = sectors_check(c->sectors, c->owned, whyp);
    return r || !c->prefix ? r : prefix_check(c->prefix, whyp);
}

/* ---- after a fault --------------------------------------------------------------------------- */

bool cache_is_right(const struct cache *c, const struct table *t, uint32_t group, uint32_t i,
                    const struct table *other)
{
    uint32_t block_idx = t->block_idx[group][i];
    uint32_t wrong = c->seen[group][block_idx] ^ c->tags[group][block_idx];
    return wrong == (other ? tag_of(other, i) : 0);
}

uint32_t *cache_note(struct cache *c, uint32_t group, uint32_t block_idx)
{
    uint8_t *of = &c->noted[cache_sector_of(c, group, block_idx)];
    if (*of != 0 && *of != group + 1)
        return NULL;
    *of = (uint8_t)(group + 1);
    return &c->holders[group][block_idx];
}

void cache_rebuild(struct cache *c)
{
    memset(c->owned, 0, c->config.n_sectors * sizeof *c->owned);
    if (c->prefix)
        prefix_clear(c->prefix);
    c->n_entries = 0;
    for (uint32_t g = 0; g < c->config.n_groups; g++) {
        blocks_rebuild(c->blocks[g], c->holders[g], c->owned);
        c->ledger[g] = blocks_ledger(c->blocks[g]);
        for (uint32_t i = 0; i < blocks_n_total(c->blocks[g]); i++) {
            c->n_entries += c->holders[g][i];
            c->tags[g][i] = c->seen[g][i];
        }
    }
    sectors_rebuild(c->sectors, c->owned);
}
