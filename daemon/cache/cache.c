/* Room is what is free and what is kept: keeping costs nobody anything until the block is needed.
 * So there is no share of the cache set apart for prefixes, and no moment at which all of them go
 * at once. */
#include "daemon/cache/cache.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

struct cache {
    struct cache_config config;
    struct blocks *blocks;
    struct prefix *prefix; /* NULL: nothing is shared */
    uint64_t n_evicted;
};

int cache_new(struct cache **cachep, const struct cache_config *config)
{
    struct cache *c = calloc(1, sizeof *c);
    if (!c)
        return -ENOMEM;
    c->config = *config;
    int r = blocks_new(&c->blocks, config->n_blocks);
    if (!r && config->shares)
        r = prefix_new(&c->prefix, c->blocks, config->page_size);
    if (r) {
        cache_free(c);
        return r;
    }
    *cachep = c;
    return 0;
}

struct cache *cache_free(struct cache *c)
{
    if (c) {
        prefix_free(c->prefix);
        blocks_free(c->blocks);
        free(c);
    }
    return NULL;
}

struct prefix_key cache_key(const struct cache *c, uint32_t uid, const void *salt, size_t n_salt)
{
    if (n_salt > 0 && c->prefix)
        return prefix_key_salt(c->prefix, salt, n_salt);
    return prefix_key_uid(uid);
}

/* ---- room ------------------------------------------------------------------------------------ */

static uint32_t n_unheld(const struct cache *c)
{
    return blocks_n_free(c->blocks) + blocks_n_kept(c->blocks);
}

/* Takes blocks until the table has n_blocks; so many are not held. */
static void extend(struct cache *c, struct table *t, uint32_t n_blocks)
{
    uint32_t n = n_blocks - t->n_blocks;
    while (blocks_n_free(c->blocks) < n) {
        prefix_give_up_oldest(c->prefix);
        c->n_evicted++;
    }
    int r = blocks_take(c->blocks, n, t->block_idx + t->n_blocks);
    assert(r == 0);
    t->n_blocks = n_blocks;
}

int cache_grow(struct cache *c, struct table *t, uint32_t n_tokens)
{
    uint32_t n_blocks = table_blocks_for(n_tokens, c->config.page_size);
    if (n_blocks <= t->n_blocks)
        return 0;
    assert(n_blocks <= t->max_blocks);
    if (n_blocks - t->n_blocks > n_unheld(c))
        return CACHE_EXHAUSTED;
    extend(c, t, n_blocks);
    return 0;
}

void cache_clear(struct cache *c, struct table *t)
{
    blocks_release(c->blocks, t->n_blocks, t->block_idx);
    t->n_blocks = 0;
}

bool cache_was_used(const struct cache *c, uint32_t block_idx)
{
    return blocks_was_held(c->blocks, block_idx);
}

/* ---- sharing --------------------------------------------------------------------------------- */

uint32_t cache_find(const struct cache *c, const struct prefix_key *key, const uint32_t *ids,
                    uint32_t n_ids, struct table *t)
{
    assert(t->n_blocks == 0 && n_ids > 0);
    if (!c->prefix)
        return 0;
    return prefix_find(c->prefix, key, ids, (n_ids - 1) / c->config.page_size, t->block_idx);
}

int cache_admit(struct cache *c, struct table *t, uint32_t n_found, uint32_t n_tokens)
{
    uint32_t n_blocks = table_blocks_for(n_tokens, c->config.page_size), n_room = n_unheld(c);
    assert(t->n_blocks == 0 && n_found <= n_blocks && n_blocks <= t->max_blocks);
    for (uint32_t i = 0; i < n_found; i++)
        n_room -= !blocks_is_held(c->blocks, t->block_idx[i]);
    if (n_blocks - n_found > n_room)
        return CACHE_EXHAUSTED;
    for (; t->n_blocks < n_found; t->n_blocks++)
        blocks_ref(c->blocks, t->block_idx[t->n_blocks]);
    extend(c, t, n_blocks);
    return 0;
}

void cache_promise(struct cache *c, const struct table *t, const struct prefix_key *key,
                   const uint32_t *ids, uint32_t begin, uint32_t end)
{
    if (c->prefix)
        for (uint32_t i = begin / c->config.page_size; i < end / c->config.page_size; i++)
            prefix_add(c->prefix, key, ids, t->block_idx, i);
}

void cache_settle(struct cache *c, struct table *t, const struct prefix_key *key,
                  const uint32_t *ids, uint32_t begin, uint32_t end)
{
    if (!c->prefix)
        return;
    for (uint32_t i = begin / c->config.page_size; i < end / c->config.page_size; i++) {
        uint32_t there = prefix_add(c->prefix, key, ids, t->block_idx, i);
        if (there == BLOCKS_NONE || there == t->block_idx[i])
            continue;
        blocks_ref(c->blocks, there);
        blocks_release(c->blocks, 1, &t->block_idx[i]);
        t->block_idx[i] = there;
    }
}

void cache_forget(struct cache *c, const struct table *t, uint32_t first_block)
{
    if (c->prefix)
        for (uint32_t i = first_block; i < t->n_blocks; i++)
            prefix_forget(c->prefix, t->block_idx[i]);
}

/* ---- watching -------------------------------------------------------------------------------- */

void cache_counts(const struct cache *c, struct cache_counts *counts)
{
    *counts = (struct cache_counts){
        .n_blocks = c->config.n_blocks,
        .n_unheld = n_unheld(c),
        .n_kept = blocks_n_kept(c->blocks),
        .n_evicted = c->n_evicted,
    };
}

int cache_check_table(const struct cache *c, const struct table *t, const struct prefix_key *key,
                      const uint32_t *ids, uint32_t n_computed, const char **whyp)
{
    uint32_t n_complete = n_computed / c->config.page_size;
    bool is_reachable = true; /* behind a block that was forgotten nothing can be found */
    for (uint32_t i = 0; c->prefix && i < t->n_blocks; i++) {
        bool is_there = prefix_has(c->prefix, t->block_idx[i]);
        is_reachable = is_reachable && is_there;
        if (is_there && (i >= n_complete ||
                         (is_reachable && !prefix_holds(c->prefix, key, ids, t->block_idx, i)))) {
            *whyp = "cache: others find a block that does not hold what they look for";
            return -EUCLEAN;
        }
    }
    return 0;
}

int cache_check(const struct cache *c, const uint32_t *holders, const char **whyp)
{
    int r = blocks_check(c->blocks, holders, whyp);
    return r || !c->prefix ? r : prefix_check(c->prefix, whyp);
}
