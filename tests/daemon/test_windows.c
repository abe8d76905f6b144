/* Layers that see a window only, over a scripted model that reads exactly what its layers may see:
 * the next token is a hash of all ids (if some layers see all) and of those within the window, each
 * read from where the step says it lies. So a block given back too early, or to two, changes
 * tokens; one given back too late, what fits. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/clock.h"
#include "daemon/engine.h"
#include "daemon/sched/batch.h"
#include "tests/daemon/job.h"
#include "tests/fake_model.h"

enum { PAGE = 4, SLOTS_MAX = 4096, VOCAB = 512, CONTEXT = 500, SEQS_MAX = 8 };

struct shape {
    uint32_t max_batch_tokens, n_sectors, n_groups;
    struct model_group groups[2];
};

static uint32_t n_pool_sectors; /* beside the cache of the next rig */

struct rig {
    struct fake_model *fake;
    struct engine *engine;
    struct virtual_clock time;
    struct clock clock;
    struct shape shape;
    uint32_t ids[2][SLOTS_MAX]; /* by group and slot: the id there, plus one */
    uint32_t owner[SLOTS_MAX];  /* of a sector: 1 + the group whose ids it holds */
};

/* ---- the model ------------------------------------------------------------------------------- */

static void write_ids(struct rig *g, const struct step *steps)
{
    for (uint32_t k = 0; k < g->shape.n_groups; k++)
        for (uint32_t t = 0; t < steps[k].n_tokens; t++) {
            uint32_t slot = steps[k].slot_idx[t];
            uint32_t sector = slot / PAGE / g->shape.groups[k].blocks_per_sector;
            cr_assert_lt(slot, (uint32_t)SLOTS_MAX);
            cr_assert_lt(sector, g->shape.n_sectors);
            cr_assert_eq(g->ids[k][slot], 0, "a place is written twice");
            g->ids[k][slot] = (uint32_t)steps[k].tokens[t] + 1;
            g->owner[sector] = k + 1;
        }
}

/* What the layers of a group see from position p of a sequence. */
static uint64_t see(const struct rig *g, const struct step *s, uint32_t k, uint32_t seq, uint32_t p)
{
    uint32_t window = g->shape.groups[k].window;
    uint32_t first = window && p + 1 > window ? p + 1 - window : 0;
    uint64_t hash = 5381 + k;
    for (uint32_t i = first; i <= p; i++) {
        uint32_t block = s->table[s->table_off[seq] + i / PAGE];
        cr_assert_neq(block, KERNELS_NO_SLOT, "what position %u sees at %u is gone", p, i);
        cr_assert_eq(g->owner[block / g->shape.groups[k].blocks_per_sector], k + 1);
        uint32_t id = g->ids[k][block * PAGE + i % PAGE];
        cr_assert_neq(id, 0, "what position %u sees at %u was never written", p, i);
        hash = (hash ^ id) * UINT64_C(0x100000001b3);
    }
    return hash;
}

static int run(void *ctx, const struct step *steps, const struct sample_params *params,
               struct sample *samples)
{
    struct rig *g = ctx;
    (void)params;
    write_ids(g, steps);
    for (uint32_t seq = 0, i = 0; seq < steps[0].n_seqs; seq++) {
        uint32_t last = steps[0].token_off[seq + 1] - 1;
        uint64_t hash = 0;
        /* Every position of the chunk sees what it should, the last one makes the token. */
        for (uint32_t t = steps[0].token_off[seq]; t <= last; t++) {
            hash = 0;
            for (uint32_t k = 0; k < g->shape.n_groups; k++)
                hash = hash * 31 + see(g, &steps[k], k, seq, (uint32_t)steps[0].positions[t]);
        }
        if (i < steps[0].n_outputs && steps[0].output_token_idx[i] == last)
            samples[i++] = (struct sample){.token = (uint32_t)(hash >> 20) % (VOCAB - 1)};
    }
    return 0;
}

static int clear(struct model *m, uint32_t group, uint32_t block_idx)
{
    struct rig *g = ((struct fake_model *)m)->ctx;
    memset(&g->ids[group][block_idx * PAGE], 0, PAGE * sizeof(uint32_t));
    return 0;
}

static int copy(void *ctx, uint32_t group, uint32_t from_idx, uint32_t to_idx)
{
    struct rig *g = ctx;
    g->owner[to_idx / g->shape.groups[group].blocks_per_sector] = group + 1;
    memcpy(&g->ids[group][to_idx * PAGE], &g->ids[group][from_idx * PAGE], PAGE * sizeof(uint32_t));
    return 0;
}

/* ---- the rig --------------------------------------------------------------------------------- */

static void rig_init(struct rig *g, const struct shape *shape)
{
    static struct model_ops ops;
    const struct engine_config config = {.max_requests = 32,
                                         .max_held_tokens = 32 * CONTEXT,
                                         .max_batch_tokens = shape->max_batch_tokens,
                                         .max_requests_per_batch = SEQS_MAX,
                                         .safety_margin = 0,
                                         .allow_block_sharing = true};
    memset(g, 0, sizeof *g);
    const struct engine_sink sink = {.ctx = g, .token = job_token, .end = job_end};
    g->shape = *shape;
    g->fake = fake_model_new(VOCAB, shape->n_sectors, PAGE, CONTEXT);
    cr_assert_not_null(g->fake);
    ops = *g->fake->model.ops;
    ops.clear_block = clear;
    g->fake->model.ops = &ops;
    g->fake->ctx = g;
    g->fake->run = run;
    g->fake->copy = copy;
    g->fake->model.info.n_groups = shape->n_groups;
    g->fake->model.info.n_pool_blocks = n_pool_sectors;
    memcpy(g->fake->model.info.groups, shape->groups, sizeof shape->groups);
    virtual_clock_init(&g->time, &g->clock);
    cr_assert_eq(engine_new(&g->engine, &config, &g->fake->model, &sink, &g->clock), 0);
}

static struct engine_stats rig_fini(struct rig *g)
{
    struct engine_stats stats;
    engine_stats(g->engine, &stats);
    cr_assert_eq(stats.n_active + stats.n_waiting, 0);
    cr_assert_eq(stats.n_free_blocks, stats.n_blocks, "blocks are lost");
    cr_assert_eq(stats.n_free_pool_blocks, stats.n_pool_blocks, "the pool's blocks are lost");
    engine_free(g->engine);
    model_free(&g->fake->model);
    return stats;
}

static int try_submit(struct rig *g, struct job *j)
{
    j->spec.prompt = j->prompt;
    j->spec.n_prompt = j->n_prompt;
    j->spec.top_p = 1;
    j->spec.ignore_eos = true;
    j->spec.owner = j;
    j->n_got = j->n_ends = 0;
    return engine_submit(g->engine, &j->spec, &j->r);
}

static void step(struct rig *g)
{
    const char *why = "";
    engine_step(g->engine);
    cr_assert_eq(engine_check(g->engine, &why), 0, "%s", why);
}

static void run_dry(struct rig *g, struct job *jobs, uint32_t n)
{
    uint32_t n_left = n;
    for (int i = 0; n_left > 0; i++) {
        cr_assert_lt(i, 20000);
        step(g);
        n_left = 0;
        for (uint32_t k = 0; k < n; k++)
            n_left += jobs[k].r != NULL;
    }
}

static struct job job_of(uint32_t n_prompt, uint32_t n_new, uint32_t seed)
{
    struct job j = {.n_prompt = n_prompt, .spec = {.max_new_tokens = n_new}};
    for (uint32_t i = 0; i < n_prompt; i++)
        j.prompt[i] = (i * 7 + seed * 13) % (VOCAB - 1);
    return j;
}

/* What the request gets where nothing is ever given back or cut. */
static void check_against_alone(const struct job *j, const struct shape *shape)
{
    static struct rig alone;
    static struct job a;
    struct shape roomy = *shape;
    roomy.max_batch_tokens = CONTEXT;
    roomy.n_sectors = 400 / shape->groups[0].blocks_per_sector;
    a = *j;
    rig_init(&alone, &roomy);
    cr_assert_eq(try_submit(&alone, &a), 0);
    run_dry(&alone, &a, 1);
    rig_fini(&alone);
    cr_assert_eq(j->end.finish, a.end.finish);
    cr_assert_eq(j->n_got, a.n_got);
    cr_assert_arr_eq(j->got, a.got, a.n_got * sizeof *a.got);
}

static uint32_t n_unheld(const struct rig *g)
{
    struct engine_stats stats;
    engine_stats(g->engine, &stats);
    return stats.n_free_blocks;
}

/* ---- the tests ------------------------------------------------------------------------------- */

/* Far longer than the cache, for what is behind the window is given back. */
Test(windows, a_request_holds_no_more_than_its_window)
{
    static const struct shape shape = {8, 6, 1, {{1, 9}}};
    static struct rig g;
    static struct job j;
    struct request_info info;
    rig_init(&g, &shape);
    j = job_of(100, 300, 1);
    cr_assert_eq(try_submit(&g, &j), 0);
    for (step(&g); j.r; step(&g)) {
        engine_request_info(j.r, &info);
        /* The next position sees eight of those behind it. */
        uint32_t first = info.n_cached > 8 ? info.n_cached - 8 : 0;
        cr_assert_eq(shape.n_sectors - n_unheld(&g),
                     (info.n_cached + PAGE - 1) / PAGE - first / PAGE);
    }
    rig_fini(&g);
    check_against_alone(&j, &shape);
}

Test(windows, what_can_never_fit_is_refused_by_what_is_seen_at_once)
{
    /* A step of 8 and a window of 9 see 16 positions, in up to five blocks. */
    static const struct shape fits = {8, 5, 1, {{1, 9}}}, tight = {8, 4, 1, {{1, 9}}};
    static struct rig g;
    static struct job j;
    j = job_of(100, 300, 1);
    rig_init(&g, &fits);
    cr_assert_eq(try_submit(&g, &j), 0);
    run_dry(&g, &j, 1);
    rig_fini(&g);
    rig_init(&g, &tight);
    cr_assert_eq(try_submit(&g, &j), ENGINE_TOO_BIG);
    j = job_of(10, 6, 1);
    cr_assert_eq(try_submit(&g, &j), 0, "16 tokens are 4 blocks");
    run_dry(&g, &j, 1);
    rig_fini(&g);
}

Test(windows, storms_give_each_request_what_it_gets_alone)
{
    static const struct shape shapes[] = {
        {16, 24, 1, {{1, 8}}},           {5, 24, 1, {{1, 13}}},
        {16, 40, 2, {{2, 12}, {4, 0}}},  {12, 90, 2, {{1, 0}, {1, 11}}},
        {12, 40, 2, {{5, 0}, {1, 11}}},  {64, 60, 2, {{1, 3}, {2, 0}}},
        {500, 150, 2, {{1, 4}, {1, 0}}},
    };
    uint64_t n_resets = 0, n_restores = 0;
    for (size_t i = 0; i < 2 * sizeof shapes / sizeof shapes[0]; i++) {
        static struct rig g;
        static struct job jobs[20];
        const struct shape shape = shapes[i / 2];
        struct engine_stats stats;
        uint32_t n_sent = 0;
        n_pool_sectors = i % 2 ? shape.n_sectors * 3 / 2 : 0;
        rig_init(&g, &shape);
        for (uint32_t k = 0; n_sent < 20; k++) {
            if (k % 2 == 0) {
                jobs[n_sent] = job_of(1 + (n_sent * 37 + (uint32_t)i) % 60, 1 + n_sent * 3, n_sent);
                cr_assert_eq(try_submit(&g, &jobs[n_sent]), 0);
                n_sent++;
            }
            step(&g);
        }
        run_dry(&g, jobs, 20);
        stats = rig_fini(&g);
        n_resets += stats.n_soft_resets;
        n_restores += stats.n_restores;
        n_pool_sectors = 0;
        for (uint32_t k = 0; k < 20; k++)
            check_against_alone(&jobs[k], &shape);
    }
    cr_assert_gt(n_resets, 5);
    cr_assert_gt(n_restores, 5);
}

/* A window group's blocks behind the window make room for the other's. */
Test(windows, groups_take_sectors_from_each_other)
{
    static const struct shape shape = {8, 26, 2, {{1, 8}, {1, 0}}};
    static struct rig g;
    static struct job j;
    rig_init(&g, &shape);
    j = job_of(60, 20, 3); /* 20 blocks of one group, up to 5 of the other */
    cr_assert_eq(try_submit(&g, &j), 0);
    run_dry(&g, &j, 1);
    cr_assert_eq(j.end.finish, FINISH_LENGTH);
    rig_fini(&g);
    check_against_alone(&j, &shape);
}

/* Prefixes are not shared where a layer sees a window only: its keys are gone. */
Test(windows, nothing_is_taken_over)
{
    static const struct shape shape = {16, 60, 2, {{1, 8}, {1, 0}}};
    static struct rig g;
    static struct job j;
    rig_init(&g, &shape);
    for (int i = 0; i < 2; i++) {
        j = job_of(40, 5, 3);
        cr_assert_eq(try_submit(&g, &j), 0);
        run_dry(&g, &j, 1);
        cr_assert_eq(j.end.n_prefix_hit, 0);
    }
    rig_fini(&g);
}

/* Continuations share what is complete in every group, and slide on their own. */
Test(windows, continuations_begin_where_their_prompt_ends)
{
    static const struct shape shapes[] = {{16, 40, 1, {{1, 8}}}, {16, 60, 2, {{2, 13}, {3, 0}}}};
    for (size_t i = 0; i < 2; i++)
        for (uint32_t n_prompt = 30; n_prompt < 40; n_prompt++) {
            static struct rig g;
            static struct job jobs[3];
            void *owners[3] = {&jobs[0], &jobs[1], &jobs[2]};
            struct request *requests[3];
            rig_init(&g, &shapes[i]);
            for (int k = 0; k < 3; k++)
                jobs[k] = job_of(n_prompt, 30, 3);
            const struct request_spec spec = {.prompt = jobs[0].prompt,
                                              .n_prompt = n_prompt,
                                              .max_new_tokens = 30,
                                              .top_p = 1,
                                              .ignore_eos = true};
            cr_assert_eq(engine_submit_many(g.engine, &spec, 3, owners, requests), 0);
            for (int k = 0; k < 3; k++)
                jobs[k].r = requests[k];
            run_dry(&g, jobs, 3);
            cr_assert_eq(rig_fini(&g).n_forks, 2);
            for (int k = 0; k < 3; k++)
                check_against_alone(&jobs[k], &shapes[i]);
        }
}
