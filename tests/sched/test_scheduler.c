/* What the recorded workloads cannot show of the scheduler: outcomes that only a fault brings
 * about, and that its audit sees such faults. */
#include <criterion/criterion.h>

#include "daemon/sched/scheduler.h"

enum { N_BLOCKS = 8, PAGE = 4 };

struct bench {
    struct cache *cache, *pool; /* the pool: NULL, or beside the cache */
    struct requests *requests;
    struct scheduler *scheduler;
    struct batch *batch;
};

static int copy_nothing(void *ctx, const struct table *from, const struct table *to, bool to_pool)
{
    (void)ctx;
    (void)from;
    (void)to;
    (void)to_pool;
    return 0;
}

static void bench_init_with(struct bench *b, uint32_t n_pool_blocks)
{
    struct scheduler_config config = {.policy = SCHEDULER_FIFO,
                                      .max_requests = 4,
                                      .max_batch_tokens = 16,
                                      .max_requests_per_batch = 4,
                                      .page_size = PAGE,
                                      .safety_margin = -1};
    cr_assert_eq(cache_new(&b->cache, &(struct cache_config){N_BLOCKS, PAGE, 1, {{1, 0}}, true}),
                 0);
    b->pool = NULL;
    if (n_pool_blocks > 0)
        cr_assert_eq(
            cache_new(&b->pool, &(struct cache_config){n_pool_blocks, PAGE, 1, {{1, 0}}, false}),
            0);
    config.pool = (struct scheduler_pool){.cache = b->pool, .copy = copy_nothing};
    cr_assert_eq(requests_new(&b->requests, 4, N_BLOCKS * PAGE, 1, N_BLOCKS), 0);
    cr_assert_eq(scheduler_new(&b->scheduler, &config, b->cache), 0);
    cr_assert_eq(batch_new(&b->batch, 16, 4, 1, N_BLOCKS), 0);
}

static void bench_init(struct bench *b)
{
    bench_init_with(b, 0);
}

static void bench_fini(struct bench *b)
{
    batch_free(b->batch);
    scheduler_free(b->scheduler);
    requests_free(b->requests);
    cache_free(b->pool);
    cache_free(b->cache);
}

static struct request *add(struct bench *b, uint32_t n_prompt, uint32_t first_id)
{
    uint32_t prompt[N_BLOCKS * PAGE] = {first_id};
    struct request_spec spec = {
        .prompt = prompt, .n_prompt = n_prompt, .max_new_tokens = 2, .top_p = 1};
    struct request *r =
        requests_take(b->requests, &spec, &(struct request_vocab){.n_vocab = 100}, 1);
    cr_assert_not_null(r);
    r->key = cache_key(b->cache, 0, NULL, 0);
    scheduler_add(b->scheduler, r);
    return r;
}

Test(scheduler, nobody_there_is_nothing)
{
    struct bench b;
    struct request *stuck;
    bench_init(&b);
    cr_assert_eq(scheduler_plan(b.scheduler, b.batch, 1, &stuck), SCHEDULER_NOTHING);
    bench_fini(&b);
}

Test(scheduler, blocks_that_leaked_make_it_name_the_request_to_give_up)
{
    struct bench b;
    uint32_t storage[N_BLOCKS];
    struct table leaked;
    struct request *stuck = NULL;
    const char *why = NULL;
    bench_init(&b);
    table_init(&leaked, storage, 1, N_BLOCKS);
    cr_assert_eq(cache_grow(b.cache, &leaked, N_BLOCKS * PAGE), 0);
    struct request *r = add(&b, 3, 0);
    cr_assert_eq(scheduler_plan(b.scheduler, b.batch, 1, &stuck), SCHEDULER_STUCK);
    cr_assert_eq(stuck, r);
    cr_assert_lt(scheduler_check(b.scheduler, true, &why), 0);
    cr_assert_not_null(why);
    bench_fini(&b);
}

Test(scheduler, who_wants_its_prompt_judged_computes_all_of_it_and_others_find_it)
{
    struct bench b;
    struct request *stuck;
    bench_init(&b);
    struct request *r = add(&b, 6, 0), *judged = add(&b, 6, 0), *s = add(&b, 6, 0);
    judged->sampler.prompt_logprobs = true;
    cr_assert_eq(scheduler_plan(b.scheduler, b.batch, 1, &stuck), 0);
    cr_assert_eq(r->past, 0);
    cr_assert_eq(judged->past, 0);
    cr_assert_eq(s->past, 4);
    bench_fini(&b);
}

Test(scheduler, audit_sees_a_block_in_two_tables)
{
    struct bench b;
    struct request *stuck;
    const char *why = "";
    bench_init(&b);
    struct request *r = add(&b, 5, 0), *s = add(&b, 5, 1);
    cr_assert_eq(scheduler_plan(b.scheduler, b.batch, 1, &stuck), 0);
    for (uint32_t i = 0; i < b.batch->n_entries; i++)
        scheduler_advance(b.scheduler, &b.batch->entries[i]);
    r->ids[r->n_ids++] = s->ids[s->n_ids++] = 1;
    r->end.n_generated = s->end.n_generated = 1;
    cr_assert_eq(scheduler_check(b.scheduler, true, &why), 0, "%s", why);
    s->table.block_idx[0][0] = r->table.block_idx[0][0];
    cr_assert_lt(scheduler_check(b.scheduler, true, &why), 0);
    bench_fini(&b);
}

/* Plans a step and gives each request of it a token, until r's blocks are aside. */
static void run_until_aside(struct bench *b, const struct request *r)
{
    struct request *stuck;
    while (!request_is_aside(r)) {
        batch_clear(b->batch);
        cr_assert_eq(scheduler_plan(b->scheduler, b->batch, 1, &stuck), 0);
        for (uint32_t i = 0; i < b->batch->n_entries; i++) {
            struct request *taken = b->batch->entries[i].r;
            scheduler_advance(b->scheduler, &b->batch->entries[i]);
            taken->ids[taken->n_ids++] = taken == r ? 50 : 51;
        }
    }
}

/* Who took blocks over may have them aside when they turn out to be bad. */
Test(scheduler, bad_blocks_are_not_taken_up_again)
{
    for (int alike = 0; alike < 2; alike++) {
        struct bench b;
        bench_init_with(&b, N_BLOCKS);
        struct request *r = add(&b, 6, 0), *s = add(&b, 6, !alike);
        run_until_aside(&b, s);
        cr_assert_gt(s->past, PAGE);
        scheduler_distrust(b.scheduler, r, 0);
        cr_assert_eq(request_is_aside(s), !alike);
        cr_assert_eq(s->past > 0, !alike);
        bench_fini(&b);
    }
}
