/* cache/table.h - which blocks hold the tokens of one request, by absolute position.
 *
 * A row for each group of layers; entry i of a row holds positions [i * page_size, (i + 1) *
 * page_size). All rows are equally long. In a group that sees a window only, the blocks behind it
 * are given back, and their entries say so. The ids lie in storage of whoever made the table (the
 * pool of requests). cache.h fills and empties it. Engine thread only. */
#ifndef CB_DAEMON_CACHE_TABLE_H
#define CB_DAEMON_CACHE_TABLE_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/cache/sizing.h"

#define TABLE_GONE UINT32_MAX /* an entry of a block behind the window */

struct table {
    uint32_t *block_idx[SIZING_GROUPS_MAX]; /* [max_blocks], the first n_blocks in use */
    uint32_t n_gone[SIZING_GROUPS_MAX];     /* of these, the first ones are gone       */
    uint32_t n_blocks, max_blocks;
    uint32_t sum; /* cache.c's, of all entries that are not gone: they are what it wrote */
};

/* An empty table over storage[n_groups * max_blocks], which must outlive it. */
static inline void table_init(struct table *t, uint32_t *storage, uint32_t n_groups,
                              uint32_t max_blocks)
{
    *t = (struct table){.max_blocks = max_blocks};
    for (uint32_t g = 0; g < n_groups; g++)
        t->block_idx[g] = storage + (size_t)g * max_blocks;
}

/* ceil(n_tokens / page_size). */
static inline uint32_t table_blocks_for(uint32_t n_tokens, uint32_t page_size)
{
    return n_tokens / page_size + (n_tokens % page_size != 0);
}

#endif
