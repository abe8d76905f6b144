/* A flat array a request: a step copies the part it needs into the batch with one memcpy. */
#include "daemon/cache/table.h"

#include <assert.h>

void table_init(struct table *t, uint32_t *storage, uint32_t max_blocks)
{
    *t = (struct table){.block_idx = storage, .max_blocks = max_blocks};
}

int table_grow(struct table *t, struct blocks *b, uint32_t n_tokens, uint32_t page_size)
{
    uint32_t n_wanted = table_blocks_for(n_tokens, page_size);
    if (n_wanted <= t->n_blocks)
        return 0;
    assert(n_wanted <= t->max_blocks);
    int r = blocks_take(b, n_wanted - t->n_blocks, t->block_idx + t->n_blocks);
    if (r)
        return r;
    t->n_blocks = n_wanted;
    return 0;
}

void table_clear(struct table *t, struct blocks *b)
{
    blocks_release(b, t->n_blocks, t->block_idx);
    t->n_blocks = 0;
}
