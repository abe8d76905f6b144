/* daemon/backing.h - the memory under blocks: when it comes, and what is in it.
 *
 * Blocks are address space at first. One gets memory when it is first given out, or before, while
 * there is nothing else to do; from then on it is cleared where that is needed. Blocks are copied
 * within the cache, and to the pool beside it and back (model.h). Loop thread only, between
 * steps. */
#ifndef CB_DAEMON_BACKING_H
#define CB_DAEMON_BACKING_H

#include <stdbool.h>

#include "daemon/cache/cache.h"
#include "daemon/model/model.h"

struct backing {
    struct model *model;
    const struct model_info *info;
    const struct cache *cache;
    struct extent {
        uint32_t first, n, n_done; /* blocks [first, first + n_done) have memory, n are to */
    } in_cache, in_pool;
};

/* None has memory. Model and cache must outlive it. */
void backing_init(struct backing *b, struct model *m, const struct cache *c);

/* Makes a block ready for its new holder: 0 or a negative errno. */
int backing_prepare(struct backing *b, uint32_t group, uint32_t block_idx);

/* Copies what `to` does not share with `from`, entry by entry. Likewise. */
int backing_fork(struct backing *b, const struct table *from, const struct table *to);

/* Copies blocks of the cache to the pool, or back: all that both tables have. Likewise. */
int backing_move(struct backing *b, const struct table *from, const struct table *to, bool to_pool);

/* Gives some more blocks memory, about `bytes` of it, at least one: 0: all have; BACKING_MORE; or a
 * negative errno. */
enum { BACKING_MORE = 1 };
int backing_some(struct backing *b, size_t bytes);

#endif
