/* Tokens are all alike: what matters here is who got how many, and when. */
#include "tests/util/timed.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/sched/batch.h"
#include "tests/fake_model.h"

enum { VOCAB = 512, TOKEN = 300, STEPS_MOST = 200000 };

static void found(struct timed *t, const char *what)
{
    if (!t->why[0])
        snprintf(t->why, sizeof t->why, "step %llu: %s", (unsigned long long)t->n_steps, what);
}

static int run(void *ctx, const struct step *step, const struct sample_params *params,
               struct sample *samples)
{
    struct timed *t = ctx;
    const struct batch *b = engine_batch(t->engine);
    (void)params;
    t->n_steps++;
    t->time.now_ns += TIMED_STEP_NS + (uint64_t)step->n_tokens * TIMED_TOKEN_NS;
    for (uint32_t i = 0; i < step->n_outputs; i++)
        samples[i] = (struct sample){.token = TOKEN};
    for (uint32_t i = 0; i < b->n_entries; i++) {
        const struct batch_entry *e = &b->entries[i];
        uint32_t begin = e->past > e->r->n_reached ? e->past : e->r->n_reached;
        for (uint32_t p = begin; p < e->past + e->n_tokens; p++)
            t->service[e->r->uid] += p < e->r->n_prompt ? 1 : 2;
    }
    return 0;
}

static void on_token(void *ctx, struct request *r, void *owner, uint32_t index, uint32_t token,
                     uint64_t time_ns)
{
    struct timed *t = ctx;
    struct timed_job *j = owner;
    (void)token;
    (void)time_ns;
    if (index == 0)
        j->first_step = t->n_steps;
    j->n_tokens++;
    j->n_resets = r->n_soft_resets;
}

static void on_end(void *ctx, struct request *r, void *owner, const struct request_end *end)
{
    struct timed *t = ctx;
    struct timed_job *j = owner;
    if (!j->r)
        found(t, "a request ends twice");
    j->n_resets = r->n_soft_resets;
    j->finish = end->finish;
    j->end_step = t->n_steps;
    j->start_ns = end->started_ns - end->submitted_ns;
    j->first_ns = end->first_token_ns - end->submitted_ns;
    j->end_ns = end->ended_ns - end->submitted_ns;
    j->r = NULL;
    t->n_there--;
    t->n_ended[j->user]++;
}

int timed_init(struct timed *t, const struct timed_shape *shape)
{
    const struct engine_sink sink = {.ctx = t, .token = on_token, .end = on_end};
    const struct engine_config config = {.scheduler = shape->scheduler,
                                         .ageing_ms = shape->ageing_ms,
                                         .max_requests =
                                             shape->max_requests ? shape->max_requests : 256,
                                         .max_held_tokens = 1 << 24,
                                         .max_batch_tokens = TIMED_BATCH_TOKENS,
                                         .max_requests_per_batch = 8,
                                         .safety_margin = -1,
                                         .allow_block_sharing = true};
    memset(t, 0, sizeof *t);
    virtual_clock_init(&t->time, &t->clock);
    t->fake = fake_model_new(VOCAB, shape->n_blocks ? shape->n_blocks : 4096, TIMED_PAGE, 8192);
    if (!t->fake)
        return -ENOMEM;
    t->fake->ctx = t;
    t->fake->run = run;
    int r = engine_new(&t->engine, &config, &t->fake->model, &sink, &t->clock);
    if (r)
        model_free(&t->fake->model);
    return r;
}

void timed_fini(struct timed *t)
{
    engine_free(t->engine);
    model_free(&t->fake->model);
}

struct request_spec timed_spec(struct timed *t, struct timed_job *j, uint32_t *prompt)
{
    uint32_t id = t->next_id++;
    for (uint32_t i = 0; i < j->n_prompt; i++)
        prompt[i] = i == 0 ? id % 256 : i == 1 ? id / 256 % 256 : 1;
    return (struct request_spec){.prompt = prompt,
                                 .n_prompt = j->n_prompt,
                                 .max_new_tokens = j->limit,
                                 .ignore_eos = true,
                                 .top_p = 1,
                                 .priority = (uint8_t)j->priority,
                                 .uid = j->user,
                                 .owner = j};
}

void timed_send_many(struct timed *t, struct timed_job *jobs, uint32_t n)
{
    uint32_t prompt[TIMED_PROMPT_MAX];
    void *owners[8] = {NULL};
    struct request *requests[8];
    const struct request_spec spec = timed_spec(t, &jobs[0], prompt);
    for (uint32_t i = 0; i < n; i++) {
        jobs[i] = jobs[0];
        jobs[i].submitted_step = t->n_steps;
        jobs[i].n_tokens = 0;
        owners[i] = &jobs[i];
    }
    if (n > 8 || engine_submit_many(t->engine, &spec, n, owners, requests)) {
        found(t, "a request is refused");
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        jobs[i].r = requests[i];
    t->n_there += n;
}

void timed_send(struct timed *t, struct timed_job *j)
{
    timed_send_many(t, j, 1);
}

void timed_keep_busy(struct timed *t, struct timed_job *jobs, uint32_t n,
                     const struct timed_job *like)
{
    for (uint32_t i = 0; i < n; i++)
        if (!jobs[i].r) {
            jobs[i] = *like;
            timed_send(t, &jobs[i]);
        }
}

void timed_step(struct timed *t)
{
    const char *why = "";
    engine_step(t->engine);
    if (!t->is_fast && engine_check(t->engine, &why))
        found(t, why);
}

void timed_finish_all(struct timed *t)
{
    for (uint32_t i = 0; t->n_there > 0 && !t->why[0]; i++) {
        if (i > STEPS_MOST)
            found(t, "it does not end");
        timed_step(t);
    }
}

uint64_t timed_bound(uint32_t n_prompt, uint32_t n_blocks, uint32_t weight)
{
    uint64_t most = 2 * (uint64_t)n_blocks * TIMED_PAGE;
    if (most < n_prompt)
        most = n_prompt;
    return (2 * most + 2 * TIMED_BATCH_TOKENS) / weight;
}
