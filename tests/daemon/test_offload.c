/* Requests that find no room wait with their blocks in a pool beside the cache. The null model's hash
 * runs through what is in the blocks: one copied wrongly, too late or not at all changes every token
 * from there on. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/clock.h"
#include "daemon/engine.h"
#include "daemon/model/model_ops.h"
#include "daemon/sched/batch.h"
#include "tests/daemon/job.h"

enum { N_JOBS = 64, VOCAB = 512, CONTEXT = 400, PAGE = 4, ROOMY = 4096 };

struct shape {
    uint32_t n_blocks, n_pool_blocks;
    enum scheduler_kind scheduler;
    bool shares;
};

struct rig {
    struct model *model;
    struct engine *engine;
    struct virtual_clock time;
    struct clock clock;
};

/* ---- copies that fail ------------------------------------------------------------------------ */

static const struct model_ops *null_ops;
static uint32_t first_pool_block;
static int n_good_copies = -1; /* before one to the pool, or back, fails, and all after it */
static bool fails_to_pool;

static int copy_block(struct model *m, uint32_t group, uint32_t from_idx, uint32_t to_idx)
{
    bool to_pool = to_idx >= first_pool_block;
    if (n_good_copies >= 0 && to_pool == fails_to_pool && n_good_copies-- == 0) {
        n_good_copies = 0;
        return -EIO;
    }
    return null_ops->copy_block(m, group, from_idx, to_idx);
}

/* ---- the rig --------------------------------------------------------------------------------- */

static void rig_init(struct rig *g, const struct shape *shape)
{
    static struct model_ops ops;
    char message[MODEL_MESSAGE_MAX];
    const struct model_config model = {.path = "null",
                                       .page_size = PAGE,
                                       .n_blocks = shape->n_blocks,
                                       .pool_bytes = shape->n_pool_blocks * PAGE * sizeof(uint64_t),
                                       .pool_share = 1,
                                       .max_batch_tokens = 512,
                                       .max_batch_seqs = N_JOBS,
                                       .null_vocab = VOCAB,
                                       .null_context = CONTEXT};
    const struct engine_config config = {.scheduler = shape->scheduler,
                                         .max_requests = N_JOBS,
                                         .max_held_tokens = N_JOBS * CONTEXT,
                                         .max_batch_tokens = 512,
                                         .max_requests_per_batch = N_JOBS,
                                         .safety_margin = 0,
                                         .allow_block_sharing = shape->shares};
    const struct engine_sink sink = {.token = job_token, .end = job_end};
    cr_assert_eq(model_open(&g->model, &model, message), 0, "%s", message);
    cr_assert_eq(model_info(g->model)->n_pool_blocks, shape->n_pool_blocks);
    null_ops = g->model->ops;
    ops = *null_ops;
    ops.copy_block = copy_block;
    g->model->ops = &ops;
    first_pool_block = shape->n_blocks;
    virtual_clock_init(&g->time, &g->clock);
    cr_assert_eq(engine_new(&g->engine, &config, g->model, &sink, &g->clock), 0);
}

static struct engine_stats stats_of(const struct rig *g)
{
    struct engine_stats stats;
    engine_stats(g->engine, &stats);
    return stats;
}

static struct engine_stats rig_fini(struct rig *g)
{
    struct engine_stats stats = stats_of(g);
    cr_assert_eq(stats.n_active + stats.n_waiting, 0);
    cr_assert_eq(stats.n_free_blocks, stats.n_blocks, "blocks are lost");
    cr_assert_eq(stats.n_free_pool_blocks, stats.n_pool_blocks, "the pool's blocks are lost");
    cr_assert_eq(stats.n_violations, 0, "%s", stats.violation);
    engine_free(g->engine);
    g->model->ops = null_ops;
    model_free(g->model);
    return stats;
}

static void submit(struct rig *g, struct job *j, uint32_t n_prompt, uint32_t n_new, uint32_t seed)
{
    *j = (struct job){.spec = {.prompt = j->prompt,
                               .n_prompt = n_prompt,
                               .max_new_tokens = n_new,
                               .top_p = 1,
                               .ignore_eos = true,
                               .priority = (uint8_t)(seed % 4 * 50),
                               .uid = seed % 3,
                               .owner = j}};
    for (uint32_t i = 0; i < n_prompt; i++)
        j->prompt[i] = (i * 7 + (i < 12 ? 0 : seed * 13)) % VOCAB;
    cr_assert_eq(engine_submit(g->engine, &j->spec, &j->r), 0);
}

static int step(struct rig *g)
{
    const char *why = "";
    int r = engine_step(g->engine);
    cr_assert_eq(engine_check(g->engine, &why), 0, "%s", why);
    return r;
}

static void run_dry(struct rig *g)
{
    for (int i = 0; step(g) != ENGINE_IDLE; i++)
        cr_assert_lt(i, 100000);
}

static void check_against_alone(const struct job *j)
{
    static const struct shape roomy = {ROOMY, 0, SCHEDULER_FIFO, false};
    static struct job a;
    struct rig alone;
    rig_init(&alone, &roomy);
    a = *j;
    a.n_got = a.n_ends = 0;
    a.spec.owner = &a;
    a.spec.prompt = a.prompt;
    cr_assert_eq(engine_submit(alone.engine, &a.spec, &a.r), 0);
    run_dry(&alone);
    rig_fini(&alone);
    cr_assert_eq(j->n_ends, 1);
    cr_assert_eq(j->end.finish, a.end.finish);
    cr_assert_eq(j->n_got, a.n_got);
    cr_assert_arr_eq(j->got, a.got, a.n_got * sizeof *a.got);
}

/* 64 requests whose tokens are four times what the cache holds, all at once. */
static struct engine_stats run_all(const struct shape *shape)
{
    static struct job jobs[N_JOBS];
    struct rig g;
    uint64_t n_tokens = 0, n_to_compute = 0;
    rig_init(&g, shape);
    for (uint32_t i = 0; i < N_JOBS; i++) {
        submit(&g, &jobs[i], 20 + i % 30, 40 + i * 5 % 70, i);
        n_tokens += jobs[i].spec.n_prompt + jobs[i].spec.max_new_tokens;
        n_to_compute += jobs[i].spec.n_prompt + jobs[i].spec.max_new_tokens - 1;
    }
    cr_assert_geq(n_tokens, 4 * (uint64_t)shape->n_blocks * PAGE);
    run_dry(&g);
    struct engine_stats stats = rig_fini(&g);
    for (uint32_t i = 0; i < N_JOBS; i++)
        check_against_alone(&jobs[i]);
    cr_assert_eq(stats.n_restores, stats.n_offloads);
    if (stats.n_soft_resets == 0) {
        cr_assert_eq(stats.n_recomputed_tokens, 0);
        cr_assert_eq(stats.n_prefill_tokens + stats.n_decode_tokens + stats.n_prefix_hit_tokens,
                     n_to_compute);
    }
    return stats;
}

/* ---- the tests ------------------------------------------------------------------------------- */

static const struct shape tight[] = {
    {400, 0, SCHEDULER_FIFO, true},     {400, 0, SCHEDULER_PREFILL_FIRST, true},
    {400, 0, SCHEDULER_FIFO, false},    {400, 0, SCHEDULER_PREFILL_FIRST, false},
    {400, 0, SCHEDULER_PRIORITY, true}, {400, 0, SCHEDULER_FAIR, false},
};

enum { N_TIGHT = sizeof tight / sizeof tight[0] };

Test(offload, without_a_pool_four_caches_of_requests_end_well_and_tokens_are_computed_again)
{
    for (size_t i = 0; i < N_TIGHT; i++) {
        struct engine_stats stats = run_all(&tight[i]);
        cr_expect_gt(stats.n_soft_resets, 0);
        cr_expect_eq(stats.n_offloads, 0);
        /* Where blocks are shared, what was let go may be found again. */
        if (!tight[i].shares)
            cr_expect_gt(stats.n_recomputed_tokens, 0);
    }
}

Test(offload, with_a_pool_they_do_and_no_token_is_computed_again)
{
    for (size_t i = 0; i < N_TIGHT; i++) {
        struct shape shape = tight[i];
        shape.n_pool_blocks = 2000;
        struct engine_stats stats = run_all(&shape);
        cr_expect_gt(stats.n_offloads, 10);
        cr_expect_eq(stats.n_soft_resets, 0);
        cr_expect_eq(stats.n_recomputed_tokens, 0);
    }
}

Test(offload, who_finds_no_room_in_the_pool_is_reset)
{
    for (size_t i = 0; i < N_TIGHT; i++) {
        struct shape shape = tight[i];
        shape.n_pool_blocks = 25;
        struct engine_stats stats = run_all(&shape);
        cr_expect_gt(stats.n_offloads, 0);
        cr_expect_gt(stats.n_soft_resets, 0);
    }
}

/* Runs until n of the requests wait with blocks aside. */
static void run_until_aside(struct rig *g, const struct job *jobs, uint32_t n_jobs, uint32_t n)
{
    uint32_t n_aside = 0;
    for (int i = 0; n_aside < n; i++) {
        cr_assert_lt(i, 1000);
        step(g);
        n_aside = 0;
        for (uint32_t k = 0; k < n_jobs; k++)
            n_aside += jobs[k].r && request_is_aside(jobs[k].r);
    }
}

Test(offload, who_ends_while_aside_leaves_nothing_in_the_pool)
{
    static const struct shape shape = {30, 100, SCHEDULER_FIFO, true};
    static struct job jobs[3];
    struct rig g;
    rig_init(&g, &shape);
    for (uint32_t i = 0; i < 3; i++)
        submit(&g, &jobs[i], 30, 80, i);
    run_until_aside(&g, jobs, 3, 2);
    uint32_t n_got = jobs[1].n_got;
    engine_cancel(g.engine, jobs[1].r);
    step(&g);
    cr_assert_eq(jobs[1].end.finish, FINISH_CANCELLED);
    cr_assert_eq(jobs[1].end.n_generated, n_got);
    run_dry(&g);
    rig_fini(&g);
    check_against_alone(&jobs[0]);
    check_against_alone(&jobs[2]);

    rig_init(&g, &shape);
    for (uint32_t i = 0; i < 3; i++)
        submit(&g, &jobs[i], 30, 80, i);
    run_until_aside(&g, jobs, 3, 2);
    engine_fail_all(g.engine, 1);
    rig_fini(&g);
}

/* A pool that can't be written or read costs time, no request. */
Test(offload, where_copies_fail_tokens_are_computed_again)
{
    static const struct shape shape = {400, 2000, SCHEDULER_FIFO, false};
    for (int to_pool = 0; to_pool < 2; to_pool++) {
        static struct job jobs[N_JOBS];
        struct rig g;
        rig_init(&g, &shape);
        fails_to_pool = to_pool;
        n_good_copies = 30;
        for (uint32_t i = 0; i < N_JOBS; i++)
            submit(&g, &jobs[i], 20 + i % 30, 40 + i * 5 % 70, i);
        run_dry(&g);
        n_good_copies = -1;
        struct engine_stats stats = rig_fini(&g);
        cr_expect_gt(stats.n_restores, 0);
        cr_expect_gt(stats.n_soft_resets, 0);
        for (uint32_t i = 0; i < N_JOBS; i++)
            check_against_alone(&jobs[i]);
    }
}

/* Of three the last is put aside, then the second; three more arrive; then the first leaves. */
Test(offload, those_aside_and_the_others_take_turns)
{
    static const struct shape shape = {30, 100, SCHEDULER_FIFO, false};
    static struct job jobs[6];
    static const uint32_t order[] = {2, 3, 1, 4, 5};
    struct rig g;
    rig_init(&g, &shape);
    for (uint32_t i = 0; i < 3; i++)
        submit(&g, &jobs[i], 30, 80, i);
    run_until_aside(&g, jobs, 3, 2);
    for (uint32_t i = 3; i < 6; i++)
        submit(&g, &jobs[i], 4, 1, i);
    step(&g);
    cr_assert_eq(engine_batch(g.engine)->n_entries, 1, "nobody is let in");
    engine_cancel(g.engine, jobs[0].r);
    step(&g);
    const struct batch *b = engine_batch(g.engine);
    cr_assert_eq(b->n_entries, 5);
    for (uint32_t i = 0; i < 5; i++) {
        struct request_info info;
        engine_request_info(b->entries[i].r, &info);
        cr_assert_eq(info.owner, &jobs[order[i]], "entry %u", i);
    }
    cr_assert_eq(b->entries[0].n_tokens, 1);
    cr_assert_eq(b->entries[2].n_tokens, 1);
    run_dry(&g);
    rig_fini(&g);
    check_against_alone(&jobs[1]);
    check_against_alone(&jobs[2]);
}

/* What is aside is not shared; taken up, it is found by others again. */
Test(offload, what_is_taken_up_can_be_found)
{
    static const struct shape shape = {30, 100, SCHEDULER_FIFO, true};
    static struct job jobs[4];
    struct rig g;
    rig_init(&g, &shape);
    for (uint32_t i = 0; i < 3; i++)
        submit(&g, &jobs[i], 30, 80, i);
    run_until_aside(&g, jobs, 3, 2);
    engine_cancel(g.engine, jobs[0].r);
    while (request_is_aside(jobs[1].r))
        step(&g);
    submit(&g, &jobs[3], 30, 4, 1);
    run_dry(&g);
    cr_assert_eq(jobs[3].end.n_prefix_hit, 28);
    rig_fini(&g);
    for (uint32_t i = 1; i < 4; i++)
        check_against_alone(&jobs[i]);
}
