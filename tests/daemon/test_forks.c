/* Several continuations of one prompt: the prompt is computed once, and each continuation is what
 * it is alone, whatever becomes of the first. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/clock.h"
#include "daemon/engine.h"
#include "daemon/sched/batch.h"
#include "tests/daemon/job.h"

enum { JOBS_MAX = 64, VOCAB = 512, CONTEXT = 200 };

struct shape {
    uint32_t max_batch_tokens, page_size, n_blocks;
    bool shares;
};

struct rig {
    struct model *model;
    struct engine *engine;
    struct virtual_clock time;
    struct clock clock;
};

static const struct shape roomy = {256, 8, 64, true};
static uint32_t n_pool_blocks; /* beside the cache of the next rig */

static void rig_init(struct rig *g, const struct shape *s)
{
    char message[MODEL_MESSAGE_MAX];
    const struct model_config model = {.path = "null",
                                       .page_size = s->page_size,
                                       .n_blocks = s->n_blocks,
                                       .pool_bytes = n_pool_blocks * s->page_size * 8,
                                       .pool_share = 1,
                                       .max_batch_tokens = s->max_batch_tokens,
                                       .max_batch_seqs = 16,
                                       .null_vocab = VOCAB,
                                       .null_context = CONTEXT};
    const struct engine_config config = {.max_requests = JOBS_MAX,
                                         .max_held_tokens = JOBS_MAX * CONTEXT,
                                         .max_batch_tokens = s->max_batch_tokens,
                                         .max_requests_per_batch = 16,
                                         .safety_margin = 0,
                                         .allow_block_sharing = s->shares};
    const struct engine_sink sink = {.token = job_token, .end = job_end};
    cr_assert_eq(model_open(&g->model, &model, message), 0, "%s", message);
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
    engine_free(g->engine);
    model_free(g->model);
    return stats;
}

static void step(struct rig *g)
{
    const char *why = "";
    engine_step(g->engine);
    cr_assert_eq(engine_check(g->engine, &why), 0, "%s", why);
}

static void run_dry(struct rig *g)
{
    for (int i = 0; stats_of(g).n_active + stats_of(g).n_waiting > 0; i++) {
        cr_assert_lt(i, 10000);
        step(g);
    }
}

/* n continuations of a prompt of n_prompt ids, as jobs[0 .. n). */
static void submit(struct rig *g, struct job *jobs, uint32_t n, uint32_t n_prompt, uint32_t seed)
{
    void *owners[JOBS_MAX];
    struct request *requests[JOBS_MAX];
    for (uint32_t i = 0; i < n; i++) {
        jobs[i] = (struct job){.n_prompt = n_prompt,
                               .spec = {.max_new_tokens = 20,
                                        .temperature = 1,
                                        .top_p = 1,
                                        .seed = seed,
                                        .child_idx = i,
                                        .ignore_eos = true}};
        for (uint32_t k = 0; k < n_prompt; k++)
            jobs[i].prompt[k] = (k * 7 + seed) % VOCAB;
        jobs[i].spec.prompt = jobs[i].prompt;
        jobs[i].spec.n_prompt = n_prompt;
        owners[i] = &jobs[i];
    }
    cr_assert_eq(engine_submit_many(g->engine, &jobs[0].spec, n, owners, requests), 0);
    for (uint32_t i = 0; i < n; i++)
        jobs[i].r = requests[i];
}

static void check_against_alone(const struct job *j)
{
    static struct job a;
    struct rig alone;
    a = *j;
    a.n_got = a.n_ends = 0;
    a.spec.prompt = a.prompt;
    a.spec.owner = &a;
    rig_init(&alone, &(struct shape){CONTEXT, 64, 8, false});
    cr_assert_eq(engine_submit(alone.engine, &a.spec, &a.r), 0);
    run_dry(&alone);
    rig_fini(&alone);
    cr_assert_eq(j->n_ends, 1);
    cr_assert_leq(j->n_got, a.n_got);
    cr_assert_arr_eq(j->got, a.got, j->n_got * sizeof *a.got);
    if (j->end.finish != FINISH_CANCELLED)
        cr_assert_eq(j->n_got, a.n_got);
}

/* ---- a prompt is computed once --------------------------------------------------------------- */

Test(forks, the_prompt_is_computed_once_whatever_its_length)
{
    static struct job jobs[4];
    for (int shares = 0; shares < 2; shares++)
        for (uint32_t n_prompt = 1; n_prompt <= 34; n_prompt++) {
            struct shape s = roomy;
            struct rig g;
            s.shares = shares;
            rig_init(&g, &s);
            submit(&g, jobs, 4, n_prompt, 5);
            run_dry(&g);
            for (int i = 0; i < 4; i++)
                check_against_alone(&jobs[i]);
            for (int i = 1; i < 4; i++)
                cr_assert_eq(jobs[i].end.n_prefix_hit, n_prompt - 1);
            cr_assert_eq(rig_fini(&g).n_prefill_tokens, n_prompt - 1 + 4);
        }
}

Test(forks, continuations_differ_by_their_draws)
{
    static struct job jobs[3];
    struct rig g;
    rig_init(&g, &roomy);
    submit(&g, jobs, 3, 21, 5);
    run_dry(&g);
    cr_assert_arr_neq(jobs[0].got, jobs[1].got, 20 * sizeof(uint32_t));
    cr_assert_arr_neq(jobs[1].got, jobs[2].got, 20 * sizeof(uint32_t));
    rig_fini(&g);
}

Test(forks, children_come_after_their_parent_and_begin_together)
{
    static struct job jobs[3];
    struct rig g;
    rig_init(&g, &(struct shape){16, 8, 64, true});
    submit(&g, jobs, 3, 30, 5);
    step(&g); /* 16 of the prompt */
    cr_assert_eq(engine_batch(g.engine)->n_entries, 1);
    step(&g); /* 13, all but one */
    cr_assert_eq(engine_batch(g.engine)->n_entries, 1);
    cr_assert_eq(engine_batch(g.engine)->n_tokens, 13);
    step(&g);
    cr_assert_eq(engine_batch(g.engine)->n_entries, 3);
    for (uint32_t i = 0; i < 3; i++) {
        cr_assert_eq(engine_batch(g.engine)->entries[i].r, jobs[i].r);
        cr_assert_eq(engine_batch(g.engine)->entries[i].past, 29);
        cr_assert_eq(jobs[i].n_got, 1);
    }
    run_dry(&g);
    rig_fini(&g);
}

Test(forks, complete_blocks_are_shared_and_the_last_one_copied)
{
    static struct job jobs[4];
    struct rig g;
    rig_init(&g, &roomy);
    submit(&g, jobs, 4, 30, 5);
    step(&g);
    /* Three complete ones, and one begun by each. */
    cr_assert_eq(stats_of(&g).n_blocks - stats_of(&g).n_free_blocks, 3 + 4);
    run_dry(&g);
    cr_assert_eq(rig_fini(&g).n_forks, 3);
}

/* ---- misfortune ------------------------------------------------------------------------------ */

Test(forks, a_parent_that_is_cancelled_takes_no_child_with_it)
{
    for (int shares = 0; shares < 2; shares++)
        for (int at = 0; at < 6; at++) {
            static struct job jobs[3];
            struct rig g;
            rig_init(&g, &(struct shape){12, 8, 64, shares});
            submit(&g, jobs, 3, 30, 5);
            for (int i = 0; i < at; i++)
                step(&g);
            engine_cancel(g.engine, jobs[0].r);
            run_dry(&g);
            cr_assert_eq(jobs[0].end.finish, FINISH_CANCELLED);
            for (int i = 0; i < 3; i++)
                check_against_alone(&jobs[i]);
            rig_fini(&g);
        }
}

Test(forks, children_that_are_cancelled_while_they_wait_never_begin)
{
    static struct job jobs[4];
    struct rig g;
    rig_init(&g, &(struct shape){12, 8, 64, true});
    submit(&g, jobs, 4, 30, 5);
    step(&g);
    engine_cancel(g.engine, jobs[1].r);
    step(&g);
    engine_cancel(g.engine, jobs[3].r);
    run_dry(&g);
    cr_assert_eq(jobs[1].n_got + jobs[3].n_got, 0);
    for (int i = 0; i < 4; i++)
        check_against_alone(&jobs[i]);
    cr_assert_eq(rig_fini(&g).n_forks, 1);
}

Test(forks, who_finds_no_room_waits_on_its_own)
{
    uint64_t n_resets = 0, n_forks = 0;
    for (int shares = 0; shares < 2; shares++)
        for (uint32_t n_blocks = 7; n_blocks < 20; n_blocks++) {
            static struct job jobs[6];
            struct rig g;
            rig_init(&g, &(struct shape){16, 8, n_blocks, shares});
            submit(&g, jobs, 6, 30, 5);
            run_dry(&g);
            for (int i = 0; i < 6; i++) {
                cr_assert_eq(jobs[i].end.finish, FINISH_LENGTH);
                check_against_alone(&jobs[i]);
            }
            struct engine_stats stats = rig_fini(&g);
            n_resets += stats.n_soft_resets;
            n_forks += stats.n_forks;
        }
    cr_assert_gt(n_resets, 10);
    cr_assert_gt(n_forks, 30);
    cr_assert_lt(n_forks, 2 * 13 * 5, "all found room");
}

Test(forks, all_are_accepted_or_none)
{
    static struct job jobs[JOBS_MAX];
    struct request *requests[JOBS_MAX + 1];
    void *owners[JOBS_MAX + 1] = {NULL};
    struct rig g;
    rig_init(&g, &roomy);
    submit(&g, jobs, 3, 10, 5);
    cr_assert_eq(engine_submit_many(g.engine, &jobs[0].spec, JOBS_MAX - 2, owners, requests),
                 ENGINE_FULL);
    cr_assert_eq(stats_of(&g).n_waiting, 3);
    run_dry(&g);
    submit(&g, jobs, JOBS_MAX, 10, 5);
    run_dry(&g);
    for (int i = 0; i < JOBS_MAX; i += 7)
        check_against_alone(&jobs[i]);
    rig_fini(&g);
}

Test(forks, without_tokens_all_end_at_once)
{
    static struct job jobs[3];
    struct rig g;
    void *owners[3] = {&jobs[0], &jobs[1], &jobs[2]};
    struct request *requests[3];
    rig_init(&g, &roomy);
    for (int i = 0; i < 3; i++)
        jobs[i].n_prompt = 4;
    const struct request_spec spec = {.prompt = jobs[0].prompt, .n_prompt = 4, .top_p = 1};
    cr_assert_eq(engine_submit_many(g.engine, &spec, 3, owners, requests), 0);
    for (int i = 0; i < 3; i++)
        jobs[i].r = requests[i];
    step(&g);
    for (int i = 0; i < 3; i++)
        cr_assert_eq(jobs[i].end.finish, FINISH_LENGTH);
    rig_fini(&g);
}

/* Groups of one to five among each other, arriving and cancelled at random. */
Test(forks, storms_give_each_continuation_what_it_gets_alone)
{
    uint64_t n_forks = 0, n_resets = 0, n_restores = 0;
    for (uint64_t seed = 1; seed <= 24; seed++) {
        static struct job jobs[JOBS_MAX];
        struct rig g;
        uint64_t state = seed;
        uint32_t n_sent = 0;
        n_pool_blocks = (uint32_t)(seed / 2 % 3) * 8;
        rig_init(&g, &(struct shape){seed % 2 ? 16 : 64, 4u << seed % 3, 40u >> seed % 3,
                                     seed % 4 != 0});
        while (n_sent < 40 || stats_of(&g).n_active + stats_of(&g).n_waiting > 0) {
            state = state * UINT64_C(6364136223846793005) + 1442695040888963407u;
            uint32_t draw = (uint32_t)(state >> 33), n = 1 + draw % 5;
            if (n_sent < 40 && draw / 8 % 4 == 0) {
                submit(&g, jobs + n_sent, n, 1 + draw / 64 % 50, draw % 3);
                n_sent += n;
            }
            struct job *victim = &jobs[draw / 4096 % JOBS_MAX];
            if (draw / 512 % 8 == 0 && victim < jobs + n_sent && victim->r)
                engine_cancel(g.engine, victim->r);
            step(&g);
        }
        struct engine_stats stats = rig_fini(&g);
        n_forks += stats.n_forks;
        n_resets += stats.n_soft_resets;
        n_restores += stats.n_restores;
        n_pool_blocks = 0;
        for (uint32_t i = 0; i < n_sent; i++)
            check_against_alone(&jobs[i]);
    }
    cr_assert_gt(n_forks, 100);
    cr_assert_gt(n_resets, 10);
    cr_assert_gt(n_restores, 10);
}
