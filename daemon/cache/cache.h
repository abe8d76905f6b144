/* cache/cache.h - the room for keys and values, and what of it requests share.
 *
 * A request's table grows by whole blocks. Blocks that are complete can be found by other requests
 * with the same ids (prefix.h) as soon as a step that computes them is planned: in the same step
 * all keys of a layer are written before any is read, so whoever finds such a block may read it in
 * that very step. If then the step does not compute it, cache_forget takes the promise back.
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

struct cache_config {
    uint32_t n_blocks, page_size;
    bool shares; /* false: nothing is ever found */
};

/* 0 or a negative errno; on 0, *cachep is the caller's to free. */
int cache_new(struct cache **cachep, const struct cache_config *config);
struct cache *cache_free(struct cache *c); /* NULL is fine; returns NULL */

/* Whose blocks a request may find: those of its user, or of a salt (prefix.h). */
struct prefix_key cache_key(const struct cache *c, uint32_t uid, const void *salt, size_t n_salt);

/* ---- room ------------------------------------------------------------------------------------ */

/* Makes room for n_tokens in all: 0, or CACHE_EXHAUSTED with the table as it was. */
int cache_grow(struct cache *c, struct table *t, uint32_t n_tokens);

/* Lets all blocks go. */
void cache_clear(struct cache *c, struct table *t);

/* Whether this block holds the bytes of an earlier use. */
bool cache_was_used(const struct cache *c, uint32_t block_idx);

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

/* ---- watching -------------------------------------------------------------------------------- */

struct cache_counts {
    uint32_t n_blocks;
    uint32_t n_unheld; /* that nobody holds: room                  */
    uint32_t n_kept;   /* of these, that can be found              */
    uint64_t n_evicted;
};
void cache_counts(const struct cache *c, struct cache_counts *counts);

/* Audits the table of a request with ids[], of which n_computed are in the cache at most: what
 * others find of it is what its ids say. 0, or -EUCLEAN and *whyp a sentence. */
int cache_check_table(const struct cache *c, const struct table *t, const struct prefix_key *key,
                      const uint32_t *ids, uint32_t n_computed, const char **whyp);

/* Audits all of it: 0, or -EUCLEAN and *whyp a sentence. holders[n_blocks] is the caller's count of
 * tables that name each block. */
int cache_check(const struct cache *c, const uint32_t *holders, const char **whyp);

#endif
