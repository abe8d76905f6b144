/* audit_storm: eight little storms of 100 steps each, with all that bookkeeping knows: hits, forks,
 * evictions, soft resets, offload, cancels, deadlines. Ends with 0 if the engine's audit is content with all
 * of them, with 1 if it is not, and says at which step and why. tests/audit/mutants.sh runs it with
 * bugs put into the bookkeeping. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/clock.h"
#include "daemon/engine.h"

enum { N_STORMS = 8, N_STEPS = 100, JOBS_MAX = 512, VOCAB = 512, CONTEXT = 160, PROMPT_MAX = 48 };

struct job {
    struct request *r; /* NULL: ended */
};

static uint32_t draw(uint64_t *state, uint32_t n)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((*state >> 33) % n);
}

static void on_token(void *ctx, struct request *r, void *owner, uint32_t index, uint32_t token,
                     uint64_t time_ns)
{
    (void)ctx;
    (void)r;
    (void)owner;
    (void)index;
    (void)token;
    (void)time_ns;
}

static void on_end(void *ctx, struct request *r, void *owner, const struct request_end *end)
{
    struct job *j = owner;
    (void)ctx;
    (void)r;
    (void)end;
    j->r = NULL;
}

/* One to four continuations of a prompt that begins like others. Returns how many. */
static uint32_t submit(struct engine *e, struct job *jobs, uint64_t now_ns, uint64_t *state)
{
    uint32_t prompt[PROMPT_MAX], n = draw(state, 4) ? 1 : 2 + draw(state, 3);
    uint32_t n_prompt = 1 + draw(state, PROMPT_MAX), n_alike = draw(state, n_prompt + 1);
    struct request *requests[4];
    void *owners[4];
    for (uint32_t i = 0; i < n_prompt; i++)
        prompt[i] = i < n_alike ? i : draw(state, VOCAB - 1);
    const struct request_spec spec = {.prompt = prompt,
                                      .n_prompt = n_prompt,
                                      .max_new_tokens = 1 + draw(state, 40),
                                      .top_p = 1,
                                      .deadline_ns = draw(state, 12) ? 0 : now_ns + 20,
                                      .uid = draw(state, 4) == 0,
                                      .ignore_eos = true};
    for (uint32_t i = 0; i < n; i++)
        owners[i] = &jobs[i];
    if (engine_submit_many(e, &spec, n, owners, requests))
        return 0;
    for (uint32_t i = 0; i < n; i++)
        jobs[i].r = requests[i];
    return n;
}

/* Whether the audit was content; else says why. */
static int storm(uint64_t seed)
{
    static struct job jobs[JOBS_MAX + 4];
    char message[MODEL_MESSAGE_MAX];
    struct virtual_clock time;
    struct clock clock;
    struct model *model;
    struct engine *engine;
    struct engine_stats stats = {0};
    uint64_t state = seed * 7919 + 1;
    uint32_t n_jobs = 0;
    const struct model_config model_config = {.path = "null",
                                              .page_size = 4u << seed % 2,
                                              .n_blocks = 44u >> seed % 2,
                                              .pool_bytes = seed % 8 < 4 ? 0 : 4096,
                                              .pool_share = 1,
                                              .max_batch_tokens = seed % 3 ? 64 : 20,
                                              .max_batch_seqs = 12,
                                              .null_vocab = VOCAB,
                                              .null_context = CONTEXT};
    const struct engine_config config = {.scheduler = seed % 4 == 3 ? SCHEDULER_PREFILL_FIRST
                                                                    : SCHEDULER_FIFO,
                                         .max_requests = 24,
                                         .max_held_tokens = 24 * CONTEXT,
                                         .max_batch_tokens = model_config.max_batch_tokens,
                                         .max_requests_per_batch = 12,
                                         .safety_margin = 0,
                                         .allow_block_sharing = true};
    const struct engine_sink sink = {.token = on_token, .end = on_end};
    memset(jobs, 0, sizeof jobs);
    virtual_clock_init(&time, &clock);
    if (model_open(&model, &model_config, message) ||
        engine_new(&engine, &config, model, &sink, &clock))
        abort();
    for (uint32_t i = 1; i <= N_STEPS && stats.n_violations == 0; i++) {
        if (n_jobs < JOBS_MAX && draw(&state, 2))
            n_jobs += submit(engine, jobs + n_jobs, time.now_ns, &state);
        struct job *victim = &jobs[draw(&state, n_jobs + 1)];
        if (victim->r && draw(&state, 6) == 0)
            engine_cancel(engine, victim->r);
        engine_step(engine);
        time.now_ns++;
        engine_stats(engine, &stats);
        if (stats.n_violations)
            printf("step %u: %s\n", i, stats.violation);
    }
    engine_free(engine);
    model_free(model);
    return stats.n_violations == 0;
}

int main(void)
{
    for (uint64_t seed = 0; seed < N_STORMS; seed++)
        if (!storm(seed))
            return 1;
    return 0;
}
