/* Shared blocks and the bits of results, over real arithmetic: a small model computes the logits of
 * each step, and the next token is drawn from all bits of its row. Whatever a request takes over
 * from others, in whatever chunks and company, it gets the tokens that it gets alone without
 * sharing. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "daemon/base/clock.h"
#include "daemon/engine.h"
#include "daemon/model/forward.h"
#include "tests/fake_model.h"
#include "tests/util/memory_file.h"
#include "tests/util/tiny.h"

enum { PAGE = 16, N_BLOCKS = 40, CONTEXT = 160, SEQS_MAX = 8, N_JOBS = 7, N_NEW = 12, N_FORKS = 3 };

struct job {
    uint32_t prompt[CONTEXT], n_prompt;
    uint32_t got[N_NEW], n_got;
    uint32_t arrives_at; /* step */
    bool has_ended;
    uint32_t n_prefix_hit;
};

struct rig {
    struct model *real;
    struct fake_model *fake;
    struct engine *engine;
    struct virtual_clock time;
    struct clock clock;
    float *logits; /* [SEQS_MAX][TINY_VOCAB] */
};

static int run(void *ctx, const struct step *step, const struct sample_params *params,
               struct sample *samples)
{
    struct rig *g = ctx;
    (void)params;
    int r = forward_logits(g->real, step, g->logits);
    for (uint32_t i = 0; i < step->n_outputs; i++) {
        XXH64_hash_t bits = XXH3_64bits(g->logits + i * TINY_VOCAB, TINY_VOCAB * sizeof(float));
        samples[i] = (struct sample){.token = (uint32_t)(bits % TINY_VOCAB)};
    }
    return r;
}

static int prepare(void *ctx, uint32_t block_idx, bool clear)
{
    struct rig *g = ctx;
    return clear ? 0 : model_populate(g->real, block_idx, 1);
}

static int copy(void *ctx, uint32_t group, uint32_t from_idx, uint32_t to_idx)
{
    struct rig *g = ctx;
    return model_copy_block(g->real, group, from_idx, to_idx);
}

static void on_token(void *ctx, struct request *r, void *owner, uint32_t index, uint32_t token,
                     uint64_t time_ns)
{
    struct job *j = owner;
    (void)ctx;
    (void)r;
    (void)time_ns;
    cr_assert_eq(index, j->n_got);
    j->got[j->n_got++] = token;
}

static void on_end(void *ctx, struct request *r, void *owner, const struct request_end *end)
{
    struct job *j = owner;
    (void)ctx;
    (void)r;
    cr_assert_eq(end->finish, FINISH_LENGTH);
    j->has_ended = true;
    j->n_prefix_hit = end->n_prefix_hit;
}

static void rig_init(struct rig *g, const char *backend, enum dtype kv_dtype, uint32_t budget,
                     uint32_t n_blocks, bool shares)
{
    char message[MODEL_MESSAGE_MAX], path[MEMORY_FILE_PATH_MAX];
    struct tiny t = tiny_default();
    t.dtype = t.embed_dtype = DTYPE_Q4_1;
    int fd = memory_file_gguf(tiny_new(&t), path);
    const struct model_config model = {
        .path = path,
        .backend = backend,
        .kv_dtype = kv_dtype,
        .page_size = PAGE,
        .n_blocks = n_blocks,
        .max_batch_tokens = budget,
        .max_batch_seqs = SEQS_MAX,
    };
    cr_assert_eq(model_open(&g->real, &model, message), 0, "%s", message);
    close(fd);
    g->logits = malloc(SEQS_MAX * TINY_VOCAB * sizeof *g->logits);
    g->fake = fake_model_new(TINY_VOCAB, n_blocks, PAGE, CONTEXT);
    cr_assert(g->logits && g->fake);
    g->fake->ctx = g;
    g->fake->run = run;
    g->fake->prepare = prepare;
    g->fake->copy = copy;
    const struct engine_config config = {.max_requests = N_JOBS,
                                         .max_held_tokens = N_JOBS * CONTEXT,
                                         .max_batch_tokens = budget,
                                         .max_requests_per_batch = SEQS_MAX,
                                         .safety_margin = 0,
                                         .allow_block_sharing = shares};
    const struct engine_sink sink = {.ctx = g, .token = on_token, .end = on_end};
    virtual_clock_init(&g->time, &g->clock);
    cr_assert_eq(engine_new(&g->engine, &config, &g->fake->model, &sink, &g->clock), 0);
}

static struct engine_stats rig_fini(struct rig *g)
{
    struct engine_stats stats;
    engine_stats(g->engine, &stats);
    engine_free(g->engine);
    model_free(&g->fake->model);
    model_free(g->real);
    free(g->logits);
    return stats;
}

/* n continuations, all of which must get what one gets alone. */
static void submit(struct rig *g, struct job *jobs, uint32_t n)
{
    struct job *j = &jobs[0];
    struct request *requests[N_FORKS];
    void *owners[N_FORKS];
    const struct request_spec spec = {.prompt = j->prompt,
                                      .n_prompt = j->n_prompt,
                                      .max_new_tokens = N_NEW,
                                      .ignore_eos = true,
                                      .top_p = 1,
                                      .owner = j};
    for (uint32_t i = 0; i < n; i++) {
        jobs[i] = *j;
        jobs[i].n_got = 0;
        jobs[i].has_ended = false;
        owners[i] = &jobs[i];
    }
    cr_assert_eq(engine_submit_many(g->engine, &spec, n, owners, requests), 0);
}

/* Lengths around whole blocks, all alike for a while; two are equal. */
static void jobs_init(struct job *jobs)
{
    static const uint32_t lengths[N_JOBS] = {97, 97, 48, 49, 80, 33, 100};
    for (uint32_t k = 0; k < N_JOBS; k++) {
        struct job *j = &jobs[k];
        *j = (struct job){.n_prompt = lengths[k], .arrives_at = k < 3 ? 0 : 2 * k};
        for (uint32_t i = 0; i < j->n_prompt; i++)
            j->prompt[i] = (i * 97 + i * i * 13 + (k > 1 && i > 30 + 10 * k)) % TINY_VOCAB;
    }
}

static struct engine_stats run_together(struct job *jobs, const char *backend, enum dtype kv_dtype,
                                        uint32_t budget, uint32_t n_blocks)
{
    struct rig g;
    rig_init(&g, backend, kv_dtype, budget, n_blocks, true);
    for (uint32_t i = 0; i <= 2 * N_JOBS; i++) {
        for (uint32_t k = 0; k < N_JOBS; k++)
            if (jobs[k].arrives_at == i)
                submit(&g, &jobs[k], 1);
        engine_step(g.engine);
    }
    while (engine_step(g.engine) == 0)
        ;
    return rig_fini(&g);
}

static void run_alone(struct job *j, const char *backend, enum dtype kv_dtype)
{
    struct rig g;
    rig_init(&g, backend, kv_dtype, CONTEXT, N_BLOCKS, false);
    submit(&g, j, 1);
    while (engine_step(g.engine) == 0)
        ;
    rig_fini(&g);
}

static void compare(const char *backend, enum dtype kv_dtype)
{
    static const struct {
        uint32_t budget, n_blocks;
    } of[] = {{CONTEXT, N_BLOCKS}, {7, N_BLOCKS}, {15, N_BLOCKS}, {16, N_BLOCKS},
              {17, N_BLOCKS},      {40, 14},      {512, N_BLOCKS}};
    static struct job alone[N_JOBS], jobs[N_JOBS];
    jobs_init(alone);
    for (uint32_t k = 0; k < N_JOBS; k++)
        run_alone(&alone[k], backend, kv_dtype);
    for (size_t i = 0; i < sizeof of / sizeof of[0]; i++) {
        jobs_init(jobs);
        struct engine_stats stats =
            run_together(jobs, backend, kv_dtype, of[i].budget, of[i].n_blocks);
        cr_assert_geq(stats.n_prefix_hits, 4, "budget %u: %lu hits", of[i].budget,
                      stats.n_prefix_hits);
        for (uint32_t k = 0; k < N_JOBS; k++) {
            cr_assert(jobs[k].has_ended);
            cr_assert_arr_eq(jobs[k].got, alone[k].got, sizeof jobs[k].got,
                             "budget %u, request %u, %u tokens taken over", of[i].budget, k,
                             jobs[k].n_prefix_hit);
        }
    }
}

/* Continuations share complete blocks, or none, and have a copy of the rest. */
static void compare_forks(const char *backend, enum dtype kv_dtype)
{
    static const uint32_t budgets[] = {CONTEXT, 7, 16};
    static struct job alone[N_JOBS], forks[N_FORKS];
    jobs_init(alone);
    for (uint32_t k = 0; k < N_JOBS; k++) {
        run_alone(&alone[k], backend, kv_dtype);
        for (uint32_t i = 0; i < 6; i++) {
            struct rig g;
            rig_init(&g, backend, kv_dtype, budgets[i / 2], N_BLOCKS, i % 2);
            forks[0] = alone[k];
            submit(&g, forks, N_FORKS);
            while (engine_step(g.engine) == 0)
                ;
            rig_fini(&g);
            for (uint32_t c = 0; c < N_FORKS; c++)
                cr_assert_arr_eq(forks[c].got, alone[k].got, sizeof forks[c].got,
                                 "budget %u, request %u, child %u", budgets[i / 2], k, c);
        }
    }
}

Test(sharing_bits, nor_can_a_fork)
{
    compare_forks("cpu", DTYPE_BF16);
    compare_forks("cpu", DTYPE_U8);
    compare_forks("cpu", DTYPE_F32);
    compare_forks("reference", DTYPE_F32);
}

Test(sharing_bits, a_hit_cannot_be_told_on_cpu_from_any_keys_and_values)
{
    compare("cpu", DTYPE_BF16);
    compare("cpu", DTYPE_U8);
    compare("cpu", DTYPE_F32);
}

Test(sharing_bits, nor_on_reference)
{
    compare("reference", DTYPE_F32);
}
