/* cache/blocks.h - fixed-size blocks that hold attention keys and values of one group of layers.
 *
 * A pool takes sectors as it needs them, cuts each into equally many blocks, and gives a sector
 * back as soon as none of its blocks is in use. This is bookkeeping only: the bytes belong to the
 * model. A block may have several holders (shared prefixes). When the last one lets go, it is free
 * again, unless it is to be kept: then it stays as it is until somebody holds it again or it is
 * given up. Engine thread only: nothing locks.
 *
 * A call that can't be right (a block released that nobody holds) does nothing and is counted, so
 * that the audit finds it and the caller's requests fail, not everybody's.
 *
 * Block b lies in sector b / blocks_per_sector. Blocks of sectors that were never held are given
 * out in ascending order; those that were in use before hold another request's bytes and must be
 * cleared before use (blocks_was_held). */
#ifndef CB_DAEMON_CACHE_BLOCKS_H
#define CB_DAEMON_CACHE_BLOCKS_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/cache/sectors.h"

struct blocks;                 /* opaque: its fields are in blocks.c   */
enum { BLOCKS_EXHAUSTED = 1 }; /* too few are free; nothing was taken  */
#define BLOCKS_NONE UINT32_MAX /* no block                             */

/* Makes a pool over sectors that others may take from as well, and that outlive it. 0 or -ENOMEM;
 * on 0, *blocksp is the caller's to free. */
int blocks_new(struct blocks **blocksp, struct sectors *s, uint32_t blocks_per_sector);
struct blocks *blocks_free(struct blocks *b); /* NULL is fine; returns NULL */

/* Takes n free blocks or none, each with one holder: 0, or BLOCKS_EXHAUSTED; ids[] is for scratch then.
 * Kept ones are not free. */
int blocks_take(struct blocks *b, uint32_t n, uint32_t *ids);

/* How many sectors it would take to have n free blocks. */
uint32_t blocks_sectors_for(const struct blocks *b, uint32_t n);

/* One holder more. The block is held or kept; false: it is not, which is a fault. */
bool blocks_ref(struct blocks *b, uint32_t block_idx);

/* One holder less for each of n blocks. Those that are kept by this are as if let go in turn, the
 * last of ids[] first. */
void blocks_release(struct blocks *b, uint32_t n, const uint32_t *ids);

/* From now on the held block is kept when its last holder lets go. */
void blocks_keep(struct blocks *b, uint32_t block_idx);

/* No longer: free at once if nobody holds it. */
void blocks_give_up(struct blocks *b, uint32_t block_idx);

/* The block that was kept first of those that are, or BLOCKS_NONE. */
uint32_t blocks_oldest_kept(const struct blocks *b);

uint32_t blocks_n_holders(const struct blocks *b, uint32_t block_idx);
bool blocks_is_held(const struct blocks *b, uint32_t block_idx);
bool blocks_is_in_use(const struct blocks *b, uint32_t block_idx); /* held or kept           */
bool blocks_keeps(const struct blocks *b, uint32_t block_idx);     /* blocks_keep, no give_up */

/* Whether the bytes of this block were in use before it was last taken. */
bool blocks_was_held(const struct blocks *b, uint32_t block_idx);

uint32_t blocks_n_total(const struct blocks *b); /* if it had all sectors            */
uint32_t blocks_n_free(const struct blocks *b);  /* in sectors that are free or its  */
uint32_t blocks_n_kept(const struct blocks *b);

/* A sum over all holders of all blocks, of which each adds what blocks_mark gives for its block:
 * who holds the same blocks gets the same sum. */
uint64_t blocks_ledger(const struct blocks *b);

static inline uint64_t blocks_mark(uint32_t block_idx)
{
    return (block_idx + UINT64_C(1)) * UINT64_C(0x9e3779b97f4a7c15);
}

/* The laws that cost nothing to check: no fault was counted, all blocks are somewhere. *n_sectorsp
 * is how many sectors it has. And those of one block. */
int blocks_audit(const struct blocks *b, uint32_t *n_sectorsp, const char **whyp);
int blocks_audit_one(const struct blocks *b, uint32_t block_idx, const char **whyp);

/* Makes the pool what its holders say: holders[n_total]; marks its sectors in is_mine[]. Nothing is
 * kept, no fault has ever been. */
void blocks_rebuild(struct blocks *b, const uint32_t *holders, bool *is_mine);

/* Audits the pool, and marks its sectors in is_mine[], which has none marked that is another's: 0,
 * or -EUCLEAN and *whyp a sentence. holders[n_total] is the caller's count of holders of each
 * block, or NULL where it does not know. */
int blocks_check(const struct blocks *b, const uint32_t *holders, bool *is_mine, const char **whyp);

#endif
