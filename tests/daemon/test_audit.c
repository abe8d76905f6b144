/* Bookkeeping that goes wrong in mid-flight: found within a few steps, paid for by the requests
 * concerned alone, made good, and the engine goes on. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/clock.h"
#include "daemon/engine.h"
#include "daemon/sched/batch.h"
#include "shm/status.h"
#include "tests/daemon/job.h"

enum { N_JOBS = 6, VOCAB = 512, CONTEXT = 400, PAGE = 4, N_NEW = 130 };

struct rig {
    struct model *model;
    struct engine *engine;
    struct virtual_clock time;
    struct clock clock;
};

static void rig_init(struct rig *g, bool shares)
{
    char message[MODEL_MESSAGE_MAX];
    const struct model_config model = {.path = "null",
                                       .page_size = PAGE,
                                       .n_blocks = 300,
                                       .max_batch_tokens = 256,
                                       .max_batch_seqs = 16,
                                       .null_vocab = VOCAB,
                                       .null_context = CONTEXT};
    const struct engine_config config = {.max_requests = 16,
                                         .max_held_tokens = 16 * CONTEXT,
                                         .max_batch_tokens = 256,
                                         .max_requests_per_batch = 16,
                                         .safety_margin = 0,
                                         .allow_block_sharing = shares};
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

static void rig_fini(struct rig *g)
{
    struct engine_stats stats = stats_of(g);
    cr_assert_eq(stats.n_active + stats.n_waiting, 0);
    cr_assert_eq(stats.n_free_blocks, stats.n_blocks, "blocks are lost");
    engine_free(g->engine);
    model_free(g->model);
}

static void submit(struct rig *g, struct job *j, uint32_t n_alike, uint32_t own)
{
    *j = (struct job){.n_prompt = 20};
    for (uint32_t i = 0; i < 20; i++)
        j->prompt[i] = i + (i < n_alike ? 0 : 20 * own);
    j->spec = (struct request_spec){.prompt = j->prompt,
                                    .n_prompt = 20,
                                    .max_new_tokens = N_NEW,
                                    .top_p = 1,
                                    .ignore_eos = true,
                                    .owner = j};
    cr_assert_eq(engine_submit(g->engine, &j->spec, &j->r), 0);
}

static void run_dry(struct rig *g)
{
    while (engine_step(g->engine) != ENGINE_IDLE)
        ;
}

static void check_against_alone(const struct job *j)
{
    static struct job a;
    struct rig alone;
    rig_init(&alone, false);
    a = *j;
    a.n_got = a.n_ends = 0;
    a.spec.owner = &a;
    a.spec.prompt = a.prompt;
    cr_assert_eq(engine_submit(alone.engine, &a.spec, &a.r), 0);
    run_dry(&alone);
    rig_fini(&alone);
    cr_assert_eq(j->n_got, a.n_got);
    cr_assert_arr_eq(j->got, a.got, a.n_got * sizeof *a.got);
}

/* ---- faults ---------------------------------------------------------------------------------- */

struct fault {
    const char *name;
    void (*inject)(struct job *jobs); /* in request 1, or between 1 and 2 */
    uint32_t n_concerned;             /* of these how many may fail       */
};

static void alien_block(struct job *jobs)
{
    jobs[1].r->table.block_idx[0][6] = jobs[2].r->table.block_idx[0][6];
}

static void block_of_nobody(struct job *jobs)
{
    jobs[1].r->table.block_idx[0][3] = 299;
}

static void swapped_blocks(struct job *jobs)
{
    uint32_t *row = jobs[1].r->table.block_idx[0], first = row[1];
    row[1] = row[2];
    row[2] = first;
}

static void longer_table(struct job *jobs)
{
    jobs[1].r->table.block_idx[0][jobs[1].r->table.n_blocks++] = 7;
}

static void shorter_table(struct job *jobs)
{
    jobs[1].r->table.n_blocks--;
}

static void gone_block(struct job *jobs)
{
    jobs[1].r->table.n_gone[0] = 1;
}

static void longer_past(struct job *jobs)
{
    jobs[1].r->past += 1;
}

static void shorter_past(struct job *jobs)
{
    jobs[1].r->past -= 1;
}

static void count_of_tokens(struct job *jobs)
{
    jobs[1].r->end.n_generated++;
}

static void lost_request(struct job *jobs)
{
    list_remove(&jobs[1].r->link);
}

static const struct fault faults[] = {
    {"alien_block", alien_block, 2},         {"block_of_nobody", block_of_nobody, 1},
    {"swapped_blocks", swapped_blocks, 1},   {"longer_table", longer_table, 1},
    {"shorter_table", shorter_table, 1},     {"gone_block", gone_block, 1},
    {"longer_past", longer_past, 1},         {"shorter_past", shorter_past, 1},
    {"count_of_tokens", count_of_tokens, 1}, {"lost_request", lost_request, 1},
};

/* Six requests, of which all begin alike or none; the fault comes when all decode. */
static void run_fault(const struct fault *f, bool shares, uint32_t at)
{
    static struct job jobs[N_JOBS], later;
    struct rig g;
    const char *why = "";
    uint32_t n_failed = 0, n_steps = 0;
    rig_init(&g, shares);
    while (engine_populate_some(g.engine, 1 << 20) == ENGINE_MORE)
        ;
    for (uint32_t i = 0; i < N_JOBS; i++)
        submit(&g, &jobs[i], shares ? 12 : 0, i + 1);
    for (uint32_t i = 0; i < at; i++)
        engine_step(g.engine);
    f->inject(jobs);
    while (stats_of(&g).n_violations == 0) {
        cr_assert_lt(n_steps++, 100, "%s was not found in 100 steps", f->name);
        engine_step(g.engine);
    }
    cr_assert_not_null(stats_of(&g).violation);
    cr_assert_eq(engine_check(g.engine, &why), 0, "%s: %s", f->name, why);
    submit(&g, &later, 12, 9);
    run_dry(&g);
    cr_assert_eq(stats_of(&g).n_violations, 1, "%s: it was not made good: %s", f->name,
                 stats_of(&g).violation);
    for (uint32_t i = 0; i < N_JOBS; i++) {
        cr_assert_eq(jobs[i].n_ends, 1);
        if (jobs[i].end.finish == FINISH_ERROR) {
            n_failed++;
            cr_assert(i == 1 || i == 2, "%s: request %u had to pay", f->name, i);
            cr_assert_eq(jobs[i].end.error, CB_INTERNAL);
        } else if (i != 1) {
            check_against_alone(&jobs[i]);
        }
    }
    cr_assert_leq(n_failed, f->n_concerned, "%s: %u had to pay", f->name, n_failed);
    check_against_alone(&later);
    rig_fini(&g);
}

Test(audit, a_fault_in_one_request_is_found_and_paid_for_by_it_alone)
{
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
        for (int shares = 0; shares < 2; shares++)
            run_fault(&faults[i], shares, 20 + (uint32_t)i);
}

Test(audit, nothing_is_found_where_nothing_is_wrong)
{
    static struct job jobs[N_JOBS];
    for (int shares = 0; shares < 2; shares++) {
        struct rig g;
        rig_init(&g, shares);
        for (uint32_t i = 0; i < N_JOBS; i++)
            submit(&g, &jobs[i], 12, i + 1);
        run_dry(&g);
        cr_assert_eq(stats_of(&g).n_violations, 0, "%s", stats_of(&g).violation);
        rig_fini(&g);
    }
}
