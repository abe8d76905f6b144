/* Blocks get memory in ascending order, for that is how the cache gives out those that were never
 * held (sectors.h): so two marks say what has. */
#include "daemon/backing.h"

void backing_init(struct backing *b, struct model *m, const struct cache *c)
{
    const struct model_info *info = model_info(m);
    *b = (struct backing){
        .model = m,
        .info = info,
        .cache = c,
        .in_cache = {.n = info->n_blocks},
        .in_pool = {.first = info->n_blocks, .n = info->n_pool_blocks},
    };
}

/* Gives all sectors up to this one memory. */
static int back_up_to(struct backing *b, struct extent *e, uint32_t sector_idx)
{
    while (e->n_done <= sector_idx) {
        int r = model_populate(b->model, e->first + e->n_done, 1);
        if (r)
            return r;
        e->n_done++;
    }
    return 0;
}

/* Whether it has memory is asked first, for a block that got none was held as well. */
int backing_prepare(struct backing *b, uint32_t group, uint32_t block_idx)
{
    uint32_t sector_idx = cache_sector_of(b->cache, group, block_idx);
    if (sector_idx >= b->in_cache.n_done)
        return back_up_to(b, &b->in_cache, sector_idx);
    return cache_was_used(b->cache, group, block_idx)
               ? model_clear_block(b->model, group, block_idx)
               : 0;
}

int backing_fork(struct backing *b, const struct table *from, const struct table *to)
{
    int err = 0;
    for (uint32_t g = 0; g < b->info->n_groups; g++)
        for (uint32_t i = to->n_gone[g]; i < to->n_blocks && !err; i++) {
            uint32_t from_idx = from->block_idx[g][i], to_idx = to->block_idx[g][i];
            if (to_idx == from_idx)
                continue;
            err = back_up_to(b, &b->in_cache, cache_sector_of(b->cache, g, to_idx));
            if (!err)
                err = model_copy_block(b->model, g, from_idx, to_idx);
        }
    return err;
}

int backing_move(struct backing *b, const struct table *from, const struct table *to, bool to_pool)
{
    uint32_t n_blocks = from->n_blocks < to->n_blocks ? from->n_blocks : to->n_blocks;
    int err = 0;
    for (uint32_t g = 0; g < b->info->n_groups; g++) {
        /* The model numbers blocks of the pool after the cache's. */
        uint32_t first = b->info->n_blocks * b->info->groups[g].blocks_per_sector;
        for (uint32_t i = to->n_gone[g]; i < n_blocks && !err; i++) {
            uint32_t from_idx = from->block_idx[g][i], to_idx = to->block_idx[g][i];
            err = back_up_to(b, to_pool ? &b->in_pool : &b->in_cache,
                             cache_sector_of(b->cache, g, to_idx));
            if (!err)
                err = model_copy_block(b->model, g, from_idx + (to_pool ? 0 : first),
                                       to_idx + (to_pool ? first : 0));
        }
    }
    return err;
}

int backing_some(struct backing *b, size_t bytes)
{
    size_t block_bytes = b->info->block_bytes ? b->info->block_bytes : 1;
    struct extent *e = b->in_cache.n_done < b->in_cache.n ? &b->in_cache : &b->in_pool;
    uint32_t n = e->n - e->n_done;
    if (n > bytes / block_bytes)
        n = bytes < block_bytes ? 1 : (uint32_t)(bytes / block_bytes);
    if (e->n_done < e->n) {
        int r = model_populate(b->model, e->first + e->n_done, n);
        if (r)
            return r;
        e->n_done += n;
    }
    return b->in_cache.n_done < b->in_cache.n || b->in_pool.n_done < b->in_pool.n ? BACKING_MORE
                                                                                  : 0;
}
