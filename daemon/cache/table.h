/* cache/table.h - which blocks hold the tokens of one request, by absolute position.
 *
 * Entry i holds positions [i * page_size, (i + 1) * page_size). Its ids lie in storage of whoever
 * made it (the pool of requests). cache.h fills and empties it. Engine thread only. */
#ifndef CB_DAEMON_CACHE_TABLE_H
#define CB_DAEMON_CACHE_TABLE_H

#include <stdint.h>

struct table {
    uint32_t *block_idx; /* [max_blocks], the first n_blocks in use */
    uint32_t n_blocks, max_blocks;
};

/* An empty table over storage[max_blocks], which must outlive it. */
static inline void table_init(struct table *t, uint32_t *storage, uint32_t max_blocks)
{
    *t = (struct table){.block_idx = storage, .max_blocks = max_blocks};
}

/* ceil(n_tokens / page_size). */
static inline uint32_t table_blocks_for(uint32_t n_tokens, uint32_t page_size)
{
    return n_tokens / page_size + (n_tokens % page_size != 0);
}

#endif
