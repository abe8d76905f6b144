/* Blocks are copied when they are put aside and when they are taken up, at once and whole: then
 * nothing refers to the pool but the table of a request that waits, and no block has two places to
 * be looked for. What was shared is put aside once for each holder; taken up, it is shared again.
 *
 * What can't be copied, or back, is computed again: the pool may cost time, never a request. */
#include <errno.h>
#include <string.h>

#include "daemon/sched/scheduler_state.h"

bool scheduler_put_aside(struct scheduler *s, struct request *r)
{
    const struct scheduler_pool *pool = &s->config.pool;
    if (!pool->cache || r->past == 0 ||
        cache_mirror(pool->cache, &r->table, &r->aside, r->past) != 0)
        return false;
    if (pool->copy(pool->ctx, &r->table, &r->aside, true)) {
        cache_clear(pool->cache, &r->aside);
        return false;
    }
    cache_clear(s->cache, &r->table);
    r->phase = REQUEST_WAITING;
    r->starved_tokens = 0;
    s->n_aside++;
    s->n_offloads++;
    return true;
}

void scheduler_drop_aside(struct scheduler *s, struct request *r)
{
    if (!request_is_aside(r))
        return;
    cache_clear(s->config.pool.cache, &r->aside);
    r->past = 0;
    s->n_aside--;
}

int scheduler_take_up(struct scheduler *s, struct request *r, uint32_t n_tokens)
{
    const struct scheduler_pool *pool = &s->config.pool;
    const char *why;
    if (cache_mirror(s->cache, &r->aside, &r->table, n_tokens))
        return CACHE_EXHAUSTED;
    if (cache_audit_sum(pool->cache, &r->aside, &why) ||
        pool->copy(pool->ctx, &r->aside, &r->table, false)) {
        scheduler_drop_aside(s, r);
        request_soft_reset(r, s->cache);
        s->n_soft_resets++;
        return -EIO;
    }
    cache_clear(pool->cache, &r->aside);
    s->n_aside--;
    s->n_restores++;
    if (scheduler_shares(s, r))
        cache_settle(s->cache, &r->table, &r->key, r->ids, 0, r->past);
    return 0;
}

/* Whether a may ever have taken over, or given, blocks of b from that one on. */
static bool may_have_shared(const struct scheduler *s, const struct request *a,
                            const struct request *b, uint32_t first_block)
{
    uint32_t n_ids = (first_block + 1) * s->config.page_size;
    return n_ids <= a->past && n_ids <= b->n_ids && memcmp(&a->key, &b->key, sizeof a->key) == 0 &&
           memcmp(a->ids, b->ids, n_ids * sizeof *a->ids) == 0;
}

void scheduler_distrust_aside(struct scheduler *s, const struct request *r, uint32_t first_block)
{
    uint32_t n_left = s->n_aside;
    for (struct list *link = s->waiting.next; n_left > 0 && link != &s->waiting;
         link = link->next) {
        struct request *other = list_entry(link, struct request, link);
        if (!request_is_aside(other))
            continue;
        n_left--;
        if (!may_have_shared(s, other, r, first_block))
            continue;
        scheduler_drop_aside(s, other);
        s->n_restarts++;
    }
}
