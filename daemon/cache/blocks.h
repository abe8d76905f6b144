/* cache/blocks.h - fixed-size blocks that hold attention keys and values.
 *
 * The pool is carved once at start and never grows. This is bookkeeping only: the bytes belong to
 * the model. A taken block has one holder, who gives it back once. Engine thread only: nothing
 * locks.
 *
 * Blocks that were never held are given out in ascending order of id, so whoever backs them with
 * memory needs one mark, not a map. Released blocks are given out again first, the latest first:
 * they are warm, but hold another request's bytes and must be cleared before use
 * (blocks_was_held). */
#ifndef CB_DAEMON_CACHE_BLOCKS_H
#define CB_DAEMON_CACHE_BLOCKS_H

#include <stdbool.h>
#include <stdint.h>

struct blocks;                 /* opaque: its fields are in blocks.c   */
enum { BLOCKS_EXHAUSTED = 1 }; /* too few are free; nothing was taken  */

/* Makes a pool of n_blocks (at least 1). 0 or -ENOMEM; on 0, *blocksp is the caller's to free. */
int blocks_new(struct blocks **blocksp, uint32_t n_blocks);
struct blocks *blocks_free(struct blocks *b); /* NULL is fine; returns NULL */

/* Takes n blocks or none: 0, or BLOCKS_EXHAUSTED with ids[] untouched. */
int blocks_take(struct blocks *b, uint32_t n, uint32_t *ids);

/* Gives n blocks back. Each must be held. */
void blocks_release(struct blocks *b, uint32_t n, const uint32_t *ids);

/* Whether this block had a holder before the present one. */
bool blocks_was_held(const struct blocks *b, uint32_t block_idx);

uint32_t blocks_n_total(const struct blocks *b);
uint32_t blocks_n_free(const struct blocks *b);

/* Audits the pool: 0, or -EUCLEAN and *whyp a sentence. held[n_total] is the caller's count of
 * holders of each block, or NULL where it does not know. */
int blocks_check(const struct blocks *b, const uint8_t *held, const char **whyp);

#endif
