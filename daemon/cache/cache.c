/* Room is what is free and what is kept: keeping costs nobody anything until the block is needed.
 * So there is no share of the cache set apart for prefixes, and no moment at which all of them go
 * at once. */
#include "daemon/cache/cache.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "daemon/cache/cache_state.h"

static bool can_share(const struct cache_config *config)
{
    return config->shares && config->n_groups == 1 && config->groups[0].window == 0;
}

static int group_new(struct cache *c, uint32_t g)
{
    int r = blocks_new(&c->blocks[g], c->sectors, c->config.groups[g].blocks_per_sector);
    if (r)
        return r;
    c->holders[g] = calloc(blocks_n_total(c->blocks[g]), sizeof *c->holders[g]);
    c->tags[g] = calloc(blocks_n_total(c->blocks[g]), sizeof *c->tags[g]);
    c->seen[g] = calloc(blocks_n_total(c->blocks[g]), sizeof *c->seen[g]);
    return c->holders[g] && c->tags[g] && c->seen[g] ? 0 : -ENOMEM;
}

int cache_new(struct cache **cachep, const struct cache_config *config)
{
    assert(config->n_groups >= 1 && config->n_groups <= SIZING_GROUPS_MAX);
    struct cache *c = calloc(1, sizeof *c);
    if (!c)
        return -ENOMEM;
    c->config = *config;
    int r = sectors_new(&c->sectors, config->n_sectors);
    for (uint32_t g = 0; g < config->n_groups && !r; g++)
        r = group_new(c, g);
    c->owned = calloc(config->n_sectors, sizeof *c->owned);
    c->noted = calloc(config->n_sectors, sizeof *c->noted);
    if (!r && (!c->owned || !c->noted))
        r = -ENOMEM;
    if (!r && can_share(config))
        r = prefix_new(&c->prefix, c->blocks[0], config->page_size);
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
        for (uint32_t g = 0; g < SIZING_GROUPS_MAX; g++) {
            blocks_free(c->blocks[g]);
            free(c->holders[g]);
            free(c->tags[g]);
            free(c->seen[g]);
        }
        sectors_free(c->sectors);
        free(c->owned);
        free(c->noted);
        free(c);
    }
    return NULL;
}

uint32_t cache_n_groups(const struct cache *c)
{
    return c->config.n_groups;
}

struct prefix_key cache_key(const struct cache *c, uint32_t uid, const void *salt, size_t n_salt)
{
    if (n_salt > 0 && c->prefix)
        return prefix_key_salt(c->prefix, salt, n_salt);
    return prefix_key_uid(uid);
}

/* ---- room ------------------------------------------------------------------------------------ */

/* Blocks of a group that a request of n_tokens ever holds at once. */
static uint32_t blocks_at_once(const struct cache_config *config, uint32_t g, uint32_t n_tokens,
                               uint32_t step_tokens)
{
    uint32_t all = table_blocks_for(n_tokens, config->page_size);
    uint64_t seen = (uint64_t)config->groups[g].window + step_tokens - 1;
    if (config->groups[g].window == 0 || seen >= n_tokens)
        return all;
    /* However they lie among the blocks. */
    uint32_t some = table_blocks_for((uint32_t)seen, config->page_size) + 1;
    return some < all ? some : all;
}

static bool fits_alone(const struct cache_config *config, uint32_t n_tokens, uint32_t step_tokens)
{
    uint64_t n_sectors = 0;
    for (uint32_t g = 0; g < config->n_groups; g++) {
        uint32_t n = blocks_at_once(config, g, n_tokens, step_tokens);
        n_sectors +=
            (n + config->groups[g].blocks_per_sector - 1) / config->groups[g].blocks_per_sector;
    }
    return n_sectors <= config->n_sectors;
}

uint32_t cache_tokens_max(const struct cache_config *config, uint32_t step_tokens)
{
    uint32_t fits = 0, too_many = UINT32_MAX / 2;
    while (too_many - fits > 1) {
        uint32_t n = fits + (too_many - fits) / 2;
        *(fits_alone(config, n, step_tokens) ? &fits : &too_many) = n;
    }
    return fits;
}

uint64_t cache_reads_max(const struct cache *c)
{
    uint64_t most = 0;
    for (uint32_t g = 0; g < c->config.n_groups; g++) {
        uint64_t n = (uint64_t)blocks_n_total(c->blocks[g]) * c->config.page_size;
        most = n > most ? n : most;
    }
    return most;
}

uint32_t cache_reads_of(const struct cache *c, uint32_t n_tokens)
{
    uint32_t most = 0;
    for (uint32_t g = 0; g < c->config.n_groups; g++) {
        uint32_t window = c->config.groups[g].window;
        if (window == 0)
            return n_tokens;
        most = window > most ? window : most;
    }
    return n_tokens < most ? n_tokens : most;
}

/* Notes that a table got the block of its entry i, or lost it. */
static void gain(struct cache *c, struct table *t, uint32_t g, uint32_t i)
{
    uint32_t block_idx = t->block_idx[g][i];
    c->ledger[g] += blocks_mark(block_idx);
    c->n_entries++;
    c->tags[g][block_idx] ^= tag_of(t, i);
    t->sum += entry_of(t, g, i);
}

static void lose(struct cache *c, struct table *t, uint32_t g, uint32_t i)
{
    uint32_t block_idx = t->block_idx[g][i];
    c->ledger[g] -= blocks_mark(block_idx);
    c->n_entries--;
    if (block_idx < blocks_n_total(c->blocks[g]))
        c->tags[g][block_idx] ^= tag_of(t, i);
    t->sum -= entry_of(t, g, i);
}

/* Blocks that t lacks in each row. */
static uint32_t n_lacking(const struct cache *c, const struct table *t, uint32_t n_tokens)
{
    uint32_t n = table_blocks_for(n_tokens, c->config.page_size);
    return n > t->n_blocks ? n - t->n_blocks : 0;
}

/* Whether each group can have so many blocks more, with what is kept given up. */
static bool have_room(const struct cache *c, const uint32_t *n_blocks)
{
    uint32_t n_sectors = 0;
    for (uint32_t g = 0; g < c->config.n_groups; g++) {
        uint32_t n_kept = blocks_n_kept(c->blocks[g]);
        if (n_blocks[g] > n_kept)
            n_sectors += blocks_sectors_for(c->blocks[g], n_blocks[g] - n_kept);
    }
    return n_sectors <= sectors_n_free(c->sectors);
}

bool cache_has_room(const struct cache *c, struct cache_lack *sum, const struct table *t,
                    uint32_t n_tokens)
{
    for (uint32_t g = 0; g < c->config.n_groups; g++)
        sum->n_blocks[g] += n_lacking(c, t, n_tokens);
    return have_room(c, sum->n_blocks);
}

/* Lets the entries [begin, end) of a row go. */
static void release_blocks(struct cache *c, struct table *t, uint32_t g, uint32_t begin,
                           uint32_t end)
{
    if (begin >= end)
        return;
    blocks_release(c->blocks[g], end - begin, t->block_idx[g] + begin);
    for (uint32_t i = begin; i < end; i++)
        lose(c, t, g, i);
}

/* Takes blocks for the entries [begin, end) of a row. There is room; false: only a fault in the
 * bookkeeping could tell otherwise, and did. */
static bool take_blocks(struct cache *c, struct table *t, uint32_t g, uint32_t begin, uint32_t end)
{
    while (c->prefix && blocks_n_free(c->blocks[g]) < end - begin &&
           blocks_oldest_kept(c->blocks[g]) != BLOCKS_NONE) {
        prefix_give_up_oldest(c->prefix);
        c->n_evicted++;
    }
    if (blocks_take(c->blocks[g], end - begin, t->block_idx[g] + begin))
        return false;
    for (uint32_t i = begin; i < end; i++)
        gain(c, t, g, i);
    return true;
}

/* Takes blocks until the table has n_blocks: 0, or CACHE_EXHAUSTED with the table as it was. */
static int extend(struct cache *c, struct table *t, uint32_t n_blocks)
{
    for (uint32_t g = 0; g < c->config.n_groups; g++)
        if (!take_blocks(c, t, g, t->n_blocks, n_blocks)) {
            while (g-- > 0)
                release_blocks(c, t, g, t->n_blocks, n_blocks);
            return CACHE_EXHAUSTED;
        }
    t->n_blocks = n_blocks;
    return 0;
}

int cache_grow(struct cache *c, struct table *t, uint32_t n_tokens)
{
    struct cache_lack lack = {0};
    uint32_t n_more = n_lacking(c, t, n_tokens);
    if (n_more == 0)
        return 0;
    assert(t->n_blocks + n_more <= t->max_blocks);
    if (!cache_has_room(c, &lack, t, n_tokens))
        return CACHE_EXHAUSTED;
    return extend(c, t, t->n_blocks + n_more);
}

/* A row of t with the entries that are gone in `from`, and blocks for the rest: as take_blocks. */
static bool mirror_row(struct cache *c, uint32_t g, const struct table *from, struct table *t,
                       uint32_t n_blocks)
{
    uint32_t n_gone = from->n_gone[g];
    for (uint32_t i = 0; i < n_gone; i++)
        t->block_idx[g][i] = TABLE_GONE;
    if (!take_blocks(c, t, g, n_gone, n_blocks))
        return false;
    t->n_gone[g] = n_gone;
    return true;
}

int cache_mirror(struct cache *c, const struct table *from, struct table *t, uint32_t n_tokens)
{
    uint32_t n_blocks = table_blocks_for(n_tokens, c->config.page_size), n_own[SIZING_GROUPS_MAX];
    assert(t->n_blocks == 0 && n_blocks <= t->max_blocks);
    for (uint32_t g = 0; g < c->config.n_groups; g++)
        n_own[g] = n_blocks - from->n_gone[g];
    if (!have_room(c, n_own))
        return CACHE_EXHAUSTED;
    for (uint32_t g = 0; g < c->config.n_groups; g++)
        if (!mirror_row(c, g, from, t, n_blocks)) {
            while (g-- > 0) {
                release_blocks(c, t, g, t->n_gone[g], n_blocks);
                t->n_gone[g] = 0;
            }
            return CACHE_EXHAUSTED;
        }
    t->n_blocks = n_blocks;
    return 0;
}

void cache_slide(struct cache *c, struct table *t, uint32_t n_tokens)
{
    for (uint32_t g = 0; g < c->config.n_groups; g++) {
        uint32_t window = c->config.groups[g].window, *gone = &t->n_gone[g];
        if (window == 0 || n_tokens < window)
            continue;
        uint32_t end = (n_tokens + 1 - window) / c->config.page_size;
        for (; *gone < end; ++*gone) {
            blocks_release(c->blocks[g], 1, &t->block_idx[g][*gone]);
            lose(c, t, g, *gone);
            t->block_idx[g][*gone] = TABLE_GONE;
        }
    }
}

void cache_clear(struct cache *c, struct table *t)
{
    for (uint32_t g = 0; g < c->config.n_groups; g++) {
        release_blocks(c, t, g, t->n_gone[g], t->n_blocks);
        t->n_gone[g] = 0;
    }
    t->n_blocks = 0;
}

uint32_t cache_sector_of(const struct cache *c, uint32_t group, uint32_t block_idx)
{
    return block_idx / c->config.groups[group].blocks_per_sector;
}

bool cache_was_used(const struct cache *c, uint32_t group, uint32_t block_idx)
{
    return blocks_was_held(c->blocks[group], block_idx);
}

/* ---- sharing --------------------------------------------------------------------------------- */

uint32_t cache_find(const struct cache *c, const struct prefix_key *key, const uint32_t *ids,
                    uint32_t n_ids, struct table *t)
{
    assert(n_ids > 0);
    if (!c->prefix || t->n_blocks > 0)
        return 0;
    return prefix_find(c->prefix, key, ids, (n_ids - 1) / c->config.page_size, t->block_idx[0]);
}

int cache_admit(struct cache *c, struct table *t, uint32_t n_found, uint32_t n_tokens)
{
    if (n_found == 0)
        return cache_grow(c, t, n_tokens);
    uint32_t n_blocks = table_blocks_for(n_tokens, c->config.page_size);
    uint32_t n_room = blocks_n_free(c->blocks[0]) + blocks_n_kept(c->blocks[0]);
    assert(t->n_blocks == 0 && n_found <= n_blocks && n_blocks <= t->max_blocks);
    for (uint32_t i = 0; i < n_found; i++)
        n_room -= !blocks_is_held(c->blocks[0], t->block_idx[0][i]);
    if (n_blocks - n_found > n_room)
        return CACHE_EXHAUSTED;
    for (; t->n_blocks < n_found; t->n_blocks++) {
        if (!blocks_ref(c->blocks[0], t->block_idx[0][t->n_blocks])) {
            cache_clear(c, t);
            return CACHE_EXHAUSTED;
        }
        gain(c, t, 0, t->n_blocks);
    }
    if (extend(c, t, n_blocks) == 0)
        return 0;
    cache_clear(c, t);
    return CACHE_EXHAUSTED;
}

void cache_promise(struct cache *c, const struct table *t, const struct prefix_key *key,
                   const uint32_t *ids, uint32_t begin, uint32_t end)
{
    if (c->prefix)
        for (uint32_t i = begin / c->config.page_size; i < end / c->config.page_size; i++)
            prefix_add(c->prefix, key, ids, t->block_idx[0], i);
}

void cache_settle(struct cache *c, struct table *t, const struct prefix_key *key,
                  const uint32_t *ids, uint32_t begin, uint32_t end)
{
    uint32_t *row = t->block_idx[0];
    if (!c->prefix)
        return;
    for (uint32_t i = begin / c->config.page_size; i < end / c->config.page_size; i++) {
        uint32_t there = prefix_add(c->prefix, key, ids, row, i);
        if (there == BLOCKS_NONE || there == row[i] || !blocks_ref(c->blocks[0], there))
            continue;
        blocks_release(c->blocks[0], 1, &row[i]);
        lose(c, t, 0, i);
        row[i] = there;
        gain(c, t, 0, i);
    }
}

void cache_forget(struct cache *c, const struct table *t, uint32_t first_block)
{
    if (c->prefix)
        for (uint32_t i = first_block; i < t->n_blocks; i++)
            prefix_forget(c->prefix, t->block_idx[0][i]);
}

void cache_forget_all(struct cache *c)
{
    if (c->prefix)
        prefix_forget_all(c->prefix);
}

void cache_forget_own(struct cache *c, const struct table *t)
{
    if (c->prefix)
        for (uint32_t i = 0; i < t->n_blocks; i++)
            if (blocks_n_holders(c->blocks[0], t->block_idx[0][i]) == 1)
                prefix_forget(c->prefix, t->block_idx[0][i]);
}

bool cache_prefix_is_found(const struct cache *c, uint32_t n_tokens)
{
    return n_tokens == 0 || (c->prefix && n_tokens % c->config.page_size == 0);
}

/* Fills one row of t from that of `from`; false, and it is empty: as take_blocks. */
static bool fork_row(struct cache *c, uint32_t g, const struct table *from, struct table *t,
                     uint32_t n_shared)
{
    uint32_t *row = t->block_idx[g];
    for (uint32_t i = 0; i < n_shared; i++) {
        row[i] = from->block_idx[g][i];
        if (i >= from->n_gone[g] && blocks_ref(c->blocks[g], row[i]))
            gain(c, t, g, i);
    }
    t->n_gone[g] = from->n_gone[g];
    if (take_blocks(c, t, g, n_shared, from->n_blocks))
        return true;
    release_blocks(c, t, g, t->n_gone[g], n_shared);
    return false;
}

int cache_fork(struct cache *c, const struct table *from, struct table *t, uint32_t n_tokens)
{
    uint32_t n_complete = c->config.shares ? n_tokens / c->config.page_size : 0;
    uint32_t n_shared[SIZING_GROUPS_MAX], n_own[SIZING_GROUPS_MAX];
    assert(t->n_blocks == 0 && from->n_blocks <= t->max_blocks);
    for (uint32_t g = 0; g < c->config.n_groups; g++) {
        n_shared[g] = n_complete > from->n_gone[g] ? n_complete : from->n_gone[g];
        n_own[g] = from->n_blocks - n_shared[g];
    }
    if (!have_room(c, n_own))
        return CACHE_EXHAUSTED;
    for (uint32_t g = 0; g < c->config.n_groups; g++)
        if (!fork_row(c, g, from, t, n_shared[g])) {
            while (g-- > 0)
                release_blocks(c, t, g, t->n_gone[g], from->n_blocks);
            return CACHE_EXHAUSTED;
        }
    t->n_blocks = from->n_blocks;
    return 0;
}

uint32_t cache_first_shared(const struct table *t, const struct table *other, uint32_t first)
{
    uint32_t n = t->n_blocks < other->n_blocks ? t->n_blocks : other->n_blocks;
    for (uint32_t i = first; i < n; i++)
        if (t->block_idx[0][i] == other->block_idx[0][i] && t->block_idx[0][i] != TABLE_GONE)
            return i;
    return t->n_blocks;
}

/* ---- watching -------------------------------------------------------------------------------- */

void cache_counts(const struct cache *c, struct cache_counts *counts)
{
    uint32_t n_kept = c->prefix ? blocks_n_kept(c->blocks[0]) : 0;
    *counts = (struct cache_counts){
        .n_total = c->config.n_sectors,
        .n_unheld = sectors_n_free(c->sectors) + n_kept,
        .n_kept = n_kept,
        .n_evicted = c->n_evicted,
    };
}

double cache_free_share(const struct cache *c)
{
    double free_sectors = 0;
    /* Of a sector that a group has, what is free of it. */
    for (uint32_t g = 0; g < c->config.n_groups; g++) {
        uint32_t n = blocks_n_free(c->blocks[g]) + blocks_n_kept(c->blocks[g]);
        free_sectors +=
            (double)n / c->config.groups[g].blocks_per_sector - sectors_n_free(c->sectors);
    }
    free_sectors += sectors_n_free(c->sectors);
    return free_sectors / c->config.n_sectors;
}
