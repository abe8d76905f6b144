/* cache/cache.h - the room for keys and values, and what of it requests share.
 *
 * Layers come in groups: those that see all keys, and those that see a window of them. Each group
 * has blocks of its own, cut from common sectors (sizing.h), and a row in every request's table. A
 * table grows by whole blocks, in all rows at once; behind a window blocks are given back.
 *
 * Where all layers see all keys, complete blocks can be found by other requests with the same ids
 * (prefix.h) as soon as a step that computes them is planned: in the same step all keys of a layer
 * are written before any is read, so whoever finds such a block may read it in that very step. If
 * then the step does not compute it, cache_forget takes the promise back.
 *
 * What nobody holds is kept until the room is needed, and given up block by block, the longest
 * unused first. Engine thread only; never allocates after new. */
#ifndef CB_DAEMON_CACHE_CACHE_H
#define CB_DAEMON_CACHE_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/cache/prefix.h"
#include "daemon/cache/table.h"

struct cache;                 /* opaque: its fields are in cache.c   */
enum { CACHE_EXHAUSTED = 1 }; /* too little room; nothing was taken  */

struct cache_group {
    uint32_t blocks_per_sector; /* at least 1 */
    /* 0: its layers see all keys; else a query at p sees those in (p - window, p]. */
    uint32_t window;
};

struct cache_config {
    uint32_t n_sectors, page_size;
    uint32_t n_groups;
    struct cache_group groups[SIZING_GROUPS_MAX];
    bool shares; /* false, or any group has a window: nothing is ever found */
};

/* 0 or a negative errno; on 0, *cachep is the caller's to free. */
int cache_new(struct cache **cachep, const struct cache_config *config);
struct cache *cache_free(struct cache *c); /* NULL is fine; returns NULL */

uint32_t cache_n_groups(const struct cache *c);

/* Whose blocks a request may find: those of its user, or of a salt (prefix.h). */
struct prefix_key cache_key(const struct cache *c, uint32_t uid, const void *salt, size_t n_salt);

/* ---- room ------------------------------------------------------------------------------------ */

/* The most tokens that one request may have in all that has the cache to itself and computes up to
 * step_tokens a step. */
uint32_t cache_tokens_max(const struct cache_config *config, uint32_t step_tokens);

/* The most tokens that any group can hold at once. */
uint64_t cache_reads_max(const struct cache *c);
/* How many tokens a step reads for a request that has so many behind it: no more than the window,
 * if every layer has one. */
uint32_t cache_reads_of(const struct cache *c, uint32_t n_tokens);

/* Makes room for n_tokens in all: 0, or CACHE_EXHAUSTED with the table as it was. */
int cache_grow(struct cache *c, struct table *t, uint32_t n_tokens);

/* Gives the empty table t room for n_tokens in all, but for entries that are gone in `from`, which
 * may be a table of another cache with the same groups: then the blocks are alike, to copy them. 0,
 * or CACHE_EXHAUSTED with t empty. */
int cache_mirror(struct cache *c, const struct table *from, struct table *t, uint32_t n_tokens);

/* n_tokens are computed: gives back what is behind the window of the next one. */
void cache_slide(struct cache *c, struct table *t, uint32_t n_tokens);

/* Lets all blocks go. */
void cache_clear(struct cache *c, struct table *t);

/* A sum of what several requests lack. */
struct cache_lack {
    uint32_t n_blocks[SIZING_GROUPS_MAX];
};
/* Adds what t lacks to hold n_tokens. Whether there is room for the sum. */
bool cache_has_room(const struct cache *c, struct cache_lack *sum, const struct table *t,
                    uint32_t n_tokens);

/* The sector that a block lies in, and whether the block has the bytes of an earlier use. */
uint32_t cache_sector_of(const struct cache *c, uint32_t group, uint32_t block_idx);
bool cache_was_used(const struct cache *c, uint32_t group, uint32_t block_idx);

/* ---- sharing --------------------------------------------------------------------------------- */

/* How many complete blocks there are for ids[0 .. n_ids), but never for all: one id at least is
 * left to compute. Writes them down in the table, which is empty and stays so. */
uint32_t cache_find(const struct cache *c, const struct prefix_key *key, const uint32_t *ids,
                    uint32_t n_ids, struct table *t);

/* Takes the first n_found blocks as cache_find just wrote them down, and room for n_tokens in all:
 * 0, or CACHE_EXHAUSTED with the table empty. */
int cache_admit(struct cache *c, struct table *t, uint32_t n_found, uint32_t n_tokens);

/* The coming step computes ids[begin .. end): blocks that are complete by that can be found. */
void cache_promise(struct cache *c, const struct table *t, const struct prefix_key *key,
                   const uint32_t *ids, uint32_t begin, uint32_t end);

/* The step did: blocks that were there already, of another request that computed the same, replace
 * the table's own. */
void cache_settle(struct cache *c, struct table *t, const struct prefix_key *key,
                  const uint32_t *ids, uint32_t begin, uint32_t end);

/* None of the table's blocks from that one on can be found any more. */
void cache_forget(struct cache *c, const struct table *t, uint32_t first_block);

/* None of anybody's, of those that are kept neither. */
void cache_forget_all(struct cache *c);

/* None of those that nobody else holds. */
void cache_forget_own(struct cache *c, const struct table *t);

/* Whether a request always finds its first n_tokens, if another one with the same ids computed them,
 * in an earlier step or in the one that it is taken into: they fill blocks that are shared. */
bool cache_prefix_is_found(const struct cache *c, uint32_t n_tokens);

/* Gives the empty table t what `from` holds: its complete blocks, if blocks are shared at all, and
 * blocks of its own for the rest, to which that is to be copied. 0, or CACHE_EXHAUSTED with t
 * empty. n_tokens are computed. */
int cache_fork(struct cache *c, const struct table *from, struct table *t, uint32_t n_tokens);

/* The first block that both tables hold, at its place from `first` on; a block count of t if there
 * is none. */
uint32_t cache_first_shared(const struct table *t, const struct table *other, uint32_t first);

/* ---- watching -------------------------------------------------------------------------------- */

/* In sectors, which are blocks where there is one group. */
struct cache_counts {
    uint32_t n_total;
    uint32_t n_unheld; /* of which nobody holds anything: room */
    uint32_t n_kept;   /* of these, that can be found          */
    uint64_t n_evicted;
};
void cache_counts(const struct cache *c, struct cache_counts *counts);
/* Of all bytes, those that nobody holds. */
double cache_free_share(const struct cache *c);

/* ---- audit: each returns 0, or -EUCLEAN and *whyp a sentence --------------------------------- */

/* The laws that cost next to nothing, for every step: blocks, holders and tables add up. And whether
 * what is said of one block, another one each time, fits together. */
int cache_audit(const struct cache *c, const char **whyp);
int cache_audit_block(struct cache *c, const char **whyp);

/* How many entries of all tables it has given out. */
uint64_t cache_n_entries(const struct cache *c);

/* A table names what it was given. */
int cache_audit_sum(const struct cache *c, const struct table *t, const char **whyp);

/* Entry i of a table: its blocks are held, and found by others iff it is complete. */
int cache_audit_entry(const struct cache *c, const struct table *t, uint32_t i, bool is_complete,
                      const char **whyp);

/* That complete entry is found as what it is: it costs a look at all its ids. */
int cache_audit_ids(const struct cache *c, const struct table *t, uint32_t i,
                    const struct prefix_key *key, const uint32_t *ids, const char **whyp);

/* The table of a request with ids[], of which n_computed are in the cache at most: what others find
 * of it is what its ids say. */
int cache_check_table(const struct cache *c, const struct table *t, const struct prefix_key *key,
                      const uint32_t *ids, uint32_t n_computed, const char **whyp);

/* All of it together with all tables, which it is told one by one between begin and end. */
void cache_audit_begin(struct cache *c);
int cache_audit_table(struct cache *c, const struct table *t, const char **whyp);
int cache_audit_end(struct cache *c, const char **whyp);

/* ---- after a fault --------------------------------------------------------------------------- */

/* Once all tables are told: whether those that name what t has at entry i are those that took it.
 * With another table: whether all is right but that this one does and should not, or should and
 * does not. */
bool cache_is_right(const struct cache *c, const struct table *t, uint32_t group, uint32_t i,
                    const struct table *other);

/* What the caller notes of each block after cache_audit_begin, instead of telling of tables; at
 * first 0. NULL: the block's sector was noted for another group. */
uint32_t *cache_note(struct cache *c, uint32_t group, uint32_t block_idx);

/* Makes all be what the tables say that it was told of since cache_audit_begin. Nothing is found
 * any more before it is settled. */
void cache_rebuild(struct cache *c);

#endif
