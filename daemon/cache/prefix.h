/* cache/prefix.h - complete blocks, found again by what they hold.
 *
 * Keys and values of a token depend on nothing but the tokens up to it. So a complete block may
 * serve every request whose ids begin with the same ids: a chain of such blocks from the first
 * token on is a prefix. A chain belongs to a key, and is found under that key only: requests of two
 * users never share, nor does the time they take tell one what the other sent, unless both name the
 * same salt. Hashes only say where to look: ids, the chain before them and the key are compared.
 *
 * A block that is in here is kept when nobody holds it any more (blocks.h). Who needs room gives up
 * the oldest kept ones. A holder of a block holds those before it as well and lets go of the last
 * one first, so a chain is given up from its end. Engine thread only; never allocates after
 * new. */
#ifndef CB_DAEMON_CACHE_PREFIX_H
#define CB_DAEMON_CACHE_PREFIX_H

#include <stddef.h>

#include "daemon/cache/blocks.h"

struct prefix; /* opaque: its fields are in prefix.c */

struct prefix_key {
    uint64_t word[2];
};

/* Over the blocks of b, which must outlive it, with page_size ids each. 0 or a negative errno. */
int prefix_new(struct prefix **prefixp, struct blocks *b, uint32_t page_size);
struct prefix *prefix_free(struct prefix *p); /* NULL is fine; returns NULL */

/* The key of a user's requests, and of those that name a salt of n bytes, whosever they are. */
struct prefix_key prefix_key_uid(uint32_t uid);
struct prefix_key prefix_key_salt(const struct prefix *p, const void *salt, size_t n);

/* The longest chain under that key whose ids are ids[0 .. n * page_size), but at most blocks_max
 * blocks: returns n, and their block_idx[0 .. n). They are not held by that. */
uint32_t prefix_find(const struct prefix *p, const struct prefix_key *key, const uint32_t *ids,
                     uint32_t blocks_max, uint32_t *block_idx);

/* Makes block i of a chain findable: block_idx[0 .. i] are the caller's, held, and hold
 * ids[0 .. (i + 1) * page_size). Returns block_idx[i]; or another block that is there already with
 * the same ids; or BLOCKS_NONE: the block before it is not in here, so nobody could find it. */
uint32_t prefix_add(struct prefix *p, const struct prefix_key *key, const uint32_t *ids,
                    const uint32_t *block_idx, uint32_t i);

/* From now on nobody finds that block, nor any behind it. Fine for blocks that are not in here. */
void prefix_forget(struct prefix *p, uint32_t block_idx);

/* From now on nobody finds any of them. */
void prefix_forget_all(struct prefix *p);

/* Whether block i of this chain is in here, as that. */
bool prefix_holds(const struct prefix *p, const struct prefix_key *key, const uint32_t *ids,
                  const uint32_t *block_idx, uint32_t i);

bool prefix_has(const struct prefix *p, uint32_t block_idx);

/* Frees the oldest kept block; there is one. */
void prefix_give_up_oldest(struct prefix *p);

/* Forgets all, without a word to the pool, which is being rebuilt. */
void prefix_clear(struct prefix *p);

/* Of one block: if it is in here, it is found where it is looked for. And whether a block was ever
 * kept that was not in here. */
bool prefix_is_reachable(const struct prefix *p, uint32_t block_idx);
uint32_t prefix_n_faults(const struct prefix *p);

/* Audits: 0, or -EUCLEAN and *whyp a sentence. */
int prefix_check(const struct prefix *p, const char **whyp);

#endif
