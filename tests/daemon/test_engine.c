/* The engine over the null model: whatever else runs, however prompts are cut, with soft resets,
 * cancels and deadlines, each request gets what it gets alone; and over a scripted model, for what
 * the null model never does: rows that are not finite, devices that fail or are slow, machines
 * without memory. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/clock.h"
#include "daemon/engine.h"
#include "daemon/sched/batch.h"
#include "shm/status.h"
#include "tests/fake_model.h"

enum { TOKENS_MAX = 160, JOBS_MAX = 64, VOCAB = 512, CONTEXT = 200 };

static uint32_t random_below(uint64_t *state, uint32_t n)
{
    *state = *state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (uint32_t)((*state >> 33) % n);
}

/* ---- a job: a request as the test sees it ---------------------------------------------------- */

struct job {
    uint32_t prompt[TOKENS_MAX], n_prompt;
    struct request_spec spec;
    struct request *r; /* NULL: not accepted yet, or ended */
    uint32_t got[TOKENS_MAX], n_got;
    uint32_t n_ends;
    struct request_end end;
    bool cancelled, paused;
};

static void on_token(void *ctx, struct request *r, void *owner, uint32_t index, uint32_t token,
                     uint64_t time_ns)
{
    struct job *j = owner;
    (void)ctx;
    cr_assert_eq(r, j->r);
    cr_assert_eq(j->n_ends, 0, "a token after the end");
    cr_assert_eq(index, j->n_got, "token %u where %u was due", index, j->n_got);
    cr_assert_neq(time_ns, 0);
    j->got[j->n_got++] = token;
}

static void on_end(void *ctx, struct request *r, void *owner, const struct request_end *end)
{
    struct job *j = owner;
    (void)ctx;
    cr_assert_eq(r, j->r);
    cr_assert_eq(j->n_ends++, 0, "a second end");
    cr_assert_eq(end->n_generated, j->n_got);
    cr_assert_eq(end->n_prompt, j->n_prompt);
    j->end = *end;
    j->r = NULL;
}

/* ---- an engine with its model and clock ------------------------------------------------------ */

struct rig {
    struct model *model;
    struct engine *engine;
    struct virtual_clock time;
    struct clock clock;
};

struct shape {
    uint32_t max_batch_tokens, page_size, n_blocks, max_requests_per_batch, step_us;
    enum scheduler_kind scheduler;
    uint32_t max_held_tokens; /* 0: plenty */
    bool shares_nothing;
};

static void rig_engine(struct rig *g, const struct shape *s, const struct engine_sink *sink)
{
    struct engine_config config = {.scheduler = s->scheduler,
                                   .max_requests = JOBS_MAX,
                                   .max_held_tokens =
                                       s->max_held_tokens ? s->max_held_tokens : JOBS_MAX * CONTEXT,
                                   .max_batch_tokens = s->max_batch_tokens,
                                   .max_requests_per_batch = s->max_requests_per_batch,
                                   .safety_margin = -1,
                                   .allow_block_sharing = !s->shares_nothing,
                                   .step_ms_max = 50};
    virtual_clock_init(&g->time, &g->clock);
    cr_assert_eq(engine_new(&g->engine, &config, g->model, sink, &g->clock), 0);
}

static const struct engine_sink plain_sink = {.token = on_token, .end = on_end};

static void rig_init(struct rig *g, const struct shape *s)
{
    char message[MODEL_MESSAGE_MAX];
    struct model_config config = {.path = "null",
                                  .page_size = s->page_size,
                                  .n_blocks = s->n_blocks,
                                  .max_batch_tokens = s->max_batch_tokens,
                                  .max_batch_seqs = s->max_requests_per_batch,
                                  .null_vocab = VOCAB,
                                  .null_context = CONTEXT,
                                  .null_step_us = s->step_us};
    cr_assert_eq(model_open(&g->model, &config, message), 0, "%s", message);
    rig_engine(g, s, &plain_sink);
}

static void rig_fini(struct rig *g)
{
    struct engine_stats stats;
    engine_stats(g->engine, &stats);
    cr_assert_eq(stats.n_active + stats.n_waiting, 0);
    cr_assert_eq(stats.n_free_blocks, stats.n_blocks, "blocks are lost");
    engine_free(g->engine);
    model_free(g->model);
}

static void audit(const struct rig *g)
{
    const char *why = "";
    cr_assert_eq(engine_check(g->engine, &why), 0, "%s", why);
}

static int submit(struct rig *g, struct job *j)
{
    j->spec.prompt = j->prompt;
    j->spec.n_prompt = j->n_prompt;
    j->spec.owner = j;
    if (j->spec.top_p == 0)
        j->spec.top_p = 1;
    return engine_submit(g->engine, &j->spec, &j->r);
}

/* Steps until nothing is left; each step is audited. */
static void run_dry(struct rig *g)
{
    for (int i = 0; engine_step(g->engine) != ENGINE_IDLE; i++) {
        cr_assert_lt(i, 1000000);
        audit(g);
    }
}

/* The same request by itself, on a roomy engine. */
static void run_alone(const struct job *j, struct job *alone)
{
    struct rig g;
    *alone = *j;
    alone->r = NULL;
    alone->n_got = alone->n_ends = 0;
    alone->spec.deadline_ns = 0;
    alone->spec.paused = NULL;
    rig_init(&g, &(struct shape){.max_batch_tokens = 256,
                                 .page_size = 64,
                                 .n_blocks = 8,
                                 .max_requests_per_batch = 4,
                                 .shares_nothing = true});
    cr_assert_eq(submit(&g, alone), 0);
    run_dry(&g);
    rig_fini(&g);
}

static void job_random(struct job *j, uint64_t *state)
{
    static const char *const stops[] = {"a", " ", "th", "e r", "\x41"};
    static struct cb_stops compiled;
    memset(j, 0, sizeof *j);
    j->n_prompt = 1 + random_below(state, random_below(state, 4) ? 30 : 90);
    /* Most begin like others, for a while. */
    uint32_t family = 2 + random_below(state, 2);
    uint32_t n_alike = j->n_prompt - random_below(state, random_below(state, 3) ? 6 : j->n_prompt);
    for (uint32_t i = 0; i < j->n_prompt; i++)
        j->prompt[i] = i < n_alike ? i * family : random_below(state, VOCAB);
    j->spec.uid = random_below(state, 2);
    if (random_below(state, 4) == 0) {
        j->spec.cache_salt = "salt";
        j->spec.n_cache_salt = 4;
    }
    j->spec.max_new_tokens = random_below(state, 16) ? random_below(state, 70) : 0;
    j->spec.ignore_eos = random_below(state, 2);
    if (random_below(state, 2)) {
        j->spec.temperature = 0.25f * (float)(1 + random_below(state, 4));
        j->spec.top_k = random_below(state, 50);
        j->spec.seed = random_below(state, 1000);
    }
    static uint32_t stop_ids[JOBS_MAX][4];
    static uint32_t place;
    if (random_below(state, 4) == 0) {
        uint32_t *ids = stop_ids[place++ % JOBS_MAX];
        j->spec.n_stop_ids = 1 + random_below(state, 4);
        for (uint32_t i = 0; i < j->spec.n_stop_ids; i++)
            ids[i] = random_below(state, VOCAB);
        j->spec.stop_ids = ids;
    }
    if (random_below(state, 8) == 0) {
        cb_stops_init(&compiled);
        for (uint32_t i = 0; i < 5; i++)
            cr_assert_eq(cb_stops_add(&compiled, stops[i], strlen(stops[i])), 0);
        j->spec.stops = &compiled;
    }
}

static void check_against_alone(const struct job *j)
{
    static struct job alone;
    cr_assert_eq(j->n_ends, 1);
    run_alone(j, &alone);
    bool cut = j->end.finish == FINISH_CANCELLED || j->end.finish == FINISH_DEADLINE;
    cr_assert_leq(j->n_got, alone.n_got);
    for (uint32_t i = 0; i < j->n_got; i++)
        cr_assert_eq(j->got[i], alone.got[i], "token %u is not what it is alone", i);
    if (cut) {
        cr_assert(j->cancelled || j->spec.deadline_ns != 0);
        return;
    }
    cr_assert_eq(j->n_got, alone.n_got);
    cr_assert_eq(j->end.finish, alone.end.finish);
    cr_assert_eq(j->end.stop_idx, alone.end.stop_idx);
    cr_assert_eq(j->end.stop_is_id, alone.end.stop_is_id);
    cr_assert_eq(j->end.text_bytes, alone.end.text_bytes);
}

/* An idle engine has nothing that could run: what is left is paused, and goes on now. Whether there
 * was any. */
static bool resume_all(struct job *jobs, uint32_t n_jobs)
{
    bool any = false;
    for (uint32_t i = 0; i < n_jobs; i++) {
        cr_assert(!jobs[i].r || jobs[i].paused, "job %u could run and does not", i);
        any |= jobs[i].r != NULL;
        jobs[i].paused = false;
    }
    return any;
}

/* Random arrivals, pauses, cancels and deadlines until all ended; the finishes seen are counted. */
static struct engine_stats storm(const struct shape *s, uint64_t seed, uint32_t n_jobs,
                                 uint32_t n_finishes[7])
{
    static struct job jobs[JOBS_MAX];
    struct rig g;
    uint64_t state = seed * 7919 + 1;
    struct engine_stats stats;
    rig_init(&g, s);
    for (uint32_t i = 0; i < n_jobs; i++) {
        job_random(&jobs[i], &state);
        if (random_below(&state, 8) == 0)
            jobs[i].spec.deadline_ns = g.time.now_ns + 1000000u * random_below(&state, 200);
        jobs[i].spec.paused = &jobs[i].paused;
    }
    uint32_t n_sent = 0;
    for (int r = 0; n_sent < n_jobs || r != ENGINE_IDLE;) {
        for (uint32_t n = random_below(&state, 3); n > 0 && n_sent < n_jobs; n--) {
            int err = submit(&g, &jobs[n_sent]);
            cr_assert_eq(err, 0);
            n_sent++;
        }
        struct job *victim = &jobs[random_below(&state, n_jobs)];
        if (random_below(&state, 12) == 0 && victim->r) {
            engine_cancel(g.engine, victim->r);
            victim->cancelled = true;
        }
        if (random_below(&state, 8) == 0)
            victim->paused = !victim->paused;
        r = engine_step(g.engine);
        audit(&g);
        if (r == ENGINE_IDLE && resume_all(jobs, n_sent))
            r = 0;
        g.time.now_ns += 1000000u;
        if (s->step_us && random_below(&state, 2) == 0 && (int)random_below(&state, 3))
            engine_populate_some(g.engine, 1);
    }
    engine_stats(g.engine, &stats);
    rig_fini(&g);
    for (uint32_t i = 0; i < n_jobs; i++) {
        check_against_alone(&jobs[i]);
        n_finishes[jobs[i].end.finish]++;
    }
    return stats;
}

/* ---- each result is what it is alone --------------------------------------------------------- */

Test(engine, storms_give_each_request_what_it_gets_alone)
{
    static const uint32_t budgets[] = {16, 2048}, pages[] = {4, 16, 256};
    uint32_t n_finishes[7] = {0};
    uint64_t n_resets = 0, n_hits = 0, n_evicted = 0, seed = 1;
    for (int roomy = 0; roomy < 4; roomy++)
        for (int b = 0; b < 2; b++)
            for (int p = 0; p < 3; p++)
                for (int kind = 0; kind < 2; kind++, seed++) {
                    uint32_t n_tokens = roomy == 3 ? 4096 : 256u << roomy;
                    struct shape s = {.max_batch_tokens = budgets[b],
                                      .page_size = pages[p],
                                      .n_blocks = (n_tokens + pages[p] - 1) / pages[p],
                                      .max_requests_per_batch = 1 + (uint32_t)seed % 16,
                                      .scheduler = kind ? SCHEDULER_PREFILL_FIRST : SCHEDULER_FIFO};
                    struct engine_stats stats = storm(&s, seed, 40, n_finishes);
                    n_resets += stats.n_soft_resets;
                    n_hits += stats.n_prefix_hits;
                    n_evicted += stats.n_evicted_blocks;
                }
    cr_assert_gt(n_resets, 20u, "the tiny caches forced only %lu soft resets", n_resets);
    cr_assert_gt(n_hits, 200u, "only %lu requests took blocks over", n_hits);
    cr_assert_gt(n_evicted, 100u, "only %lu blocks were given up", n_evicted);
    for (int f = FINISH_EOS; f <= FINISH_DEADLINE; f++)
        cr_assert_gt(n_finishes[f], 3u, "only %u ended with %d", n_finishes[f], f);
    cr_assert_eq(n_finishes[FINISH_ERROR], 0);
}

Test(engine, a_device_that_is_polled_gives_the_same)
{
    uint32_t n_finishes[7] = {0};
    struct shape s = {.max_batch_tokens = 64,
                      .page_size = 8,
                      .n_blocks = 40,
                      .max_requests_per_batch = 8,
                      .step_us = 3};
    for (uint64_t seed = 100; seed < 104; seed++)
        storm(&s, seed, 40, n_finishes);
    cr_assert_eq(n_finishes[FINISH_ERROR], 0);
}

Test(engine, many_chunk_sizes_give_the_same)
{
    static struct job first, j;
    uint64_t state = 77;
    job_random(&first, &state);
    first.n_prompt = 53;
    first.spec = (struct request_spec){
        .max_new_tokens = 40, .temperature = 1, .seed = 5, .ignore_eos = true};
    for (uint32_t chunk = 1; chunk <= 60; chunk++) {
        struct rig g;
        rig_init(&g, &(struct shape){.max_batch_tokens = chunk,
                                     .page_size = 16,
                                     .n_blocks = 12,
                                     .max_requests_per_batch = 1});
        j = first;
        cr_assert_eq(submit(&g, &j), 0);
        run_dry(&g);
        cr_assert_eq(j.n_got, 40);
        if (chunk == 1)
            memcpy(first.got, j.got, sizeof first.got);
        cr_assert_arr_eq(j.got, first.got, 40 * sizeof *j.got);
        rig_fini(&g);
    }
}

Test(engine, equal_seeds_give_equal_tokens_and_other_seeds_others)
{
    static struct job j[3];
    struct rig g;
    rig_init(&g, &(struct shape){.max_batch_tokens = 64,
                                 .page_size = 16,
                                 .n_blocks = 64,
                                 .max_requests_per_batch = 8});
    for (int i = 0; i < 3; i++) {
        j[i] = (struct job){.prompt = {1, 2, 3}, .n_prompt = 3};
        j[i].spec = (struct request_spec){
            .max_new_tokens = 20, .temperature = 1, .seed = i < 2 ? 7 : 8, .ignore_eos = true};
        cr_assert_eq(submit(&g, &j[i]), 0);
    }
    run_dry(&g);
    cr_assert_arr_eq(j[0].got, j[1].got, 20 * sizeof(uint32_t));
    cr_assert_arr_neq(j[0].got, j[2].got, 20 * sizeof(uint32_t));
    rig_fini(&g);
}

/* ---- admission and ends ---------------------------------------------------------------------- */

static const struct shape small = {
    .max_batch_tokens = 32, .page_size = 4, .n_blocks = 20, .max_requests_per_batch = 8};

static struct job job_of(uint32_t n_prompt, uint32_t max_new_tokens)
{
    struct job j = {.n_prompt = n_prompt};
    for (uint32_t i = 0; i < n_prompt; i++)
        j.prompt[i] = i * 3 + 1;
    j.spec.max_new_tokens = max_new_tokens;
    j.spec.ignore_eos = true;
    return j;
}

Test(engine, what_can_never_fit_is_refused_and_what_just_fits_runs)
{
    struct rig g;
    static struct job j, k;
    rig_init(&g, &small);
    cr_assert_eq(engine_tokens_max(g.engine), 80);
    j = job_of(30, 51);
    cr_assert_eq(submit(&g, &j), ENGINE_TOO_BIG);
    k = job_of(30, 50);
    cr_assert_eq(submit(&g, &k), 0);
    run_dry(&g);
    cr_assert_eq(k.end.finish, FINISH_LENGTH);
    cr_assert_eq(k.n_got, 50);
    rig_fini(&g);
}

/* It was ENGINE_FULL, and the client waited for ever. */
Test(engine, what_is_more_than_all_may_hold_together_is_refused)
{
    struct rig g;
    static struct job j, k, l;
    struct shape tight = small;
    tight.max_held_tokens = 50;
    rig_init(&g, &tight);
    cr_assert_eq(engine_tokens_max(g.engine), 50);
    j = job_of(30, 21);
    cr_assert_eq(submit(&g, &j), ENGINE_TOO_BIG);
    k = job_of(30, 20);
    l = job_of(3, 1);
    cr_assert_eq(submit(&g, &k), 0);
    cr_assert_eq(submit(&g, &l), ENGINE_FULL);
    run_dry(&g);
    cr_assert_eq(submit(&g, &l), 0);
    run_dry(&g);
    cr_assert_eq(l.end.finish, FINISH_LENGTH);
    rig_fini(&g);
}

Test(engine, full_is_an_answer_and_passes)
{
    struct rig g;
    static struct job j[JOBS_MAX + 1];
    rig_init(&g, &small);
    for (int i = 0; i <= JOBS_MAX; i++) {
        j[i] = job_of(3, 4);
        cr_assert_eq(submit(&g, &j[i]), i < JOBS_MAX ? 0 : ENGINE_FULL);
    }
    run_dry(&g);
    cr_assert_eq(submit(&g, &j[JOBS_MAX]), 0);
    run_dry(&g);
    for (int i = 0; i <= JOBS_MAX; i++)
        cr_assert_eq(j[i].end.finish, FINISH_LENGTH);
    rig_fini(&g);
}

Test(engine, limit_0_ends_at_once_without_a_step)
{
    struct rig g;
    struct engine_stats stats;
    static struct job j;
    rig_init(&g, &small);
    j = job_of(5, 0);
    cr_assert_eq(submit(&g, &j), 0);
    cr_assert_eq(j.n_ends, 0, "the end came before engine_submit returned");
    cr_assert_eq(engine_step(g.engine), 0);
    cr_assert_eq(j.end.finish, FINISH_LENGTH);
    engine_stats(g.engine, &stats);
    cr_assert_eq(stats.n_steps, 0);
    cr_assert_eq(engine_step(g.engine), ENGINE_IDLE);
    rig_fini(&g);
}

Test(engine, cancel_during_a_long_prefill_ends_at_the_next_chunk)
{
    struct rig g;
    struct engine_stats stats;
    static struct job j;
    rig_init(&g, &(struct shape){.max_batch_tokens = 8,
                                 .page_size = 4,
                                 .n_blocks = 50,
                                 .max_requests_per_batch = 8});
    j = job_of(100, 10);
    cr_assert_eq(submit(&g, &j), 0);
    engine_step(g.engine);
    engine_step(g.engine);
    engine_cancel(g.engine, j.r);
    engine_cancel(g.engine, j.r);
    engine_step(g.engine);
    cr_assert_eq(j.end.finish, FINISH_CANCELLED);
    engine_stats(g.engine, &stats);
    cr_assert_eq(stats.n_prefill_tokens, 16);
    rig_fini(&g);
}

Test(engine, cancelled_waiting_request_never_starts)
{
    struct rig g;
    static struct job a, b;
    rig_init(&g, &(struct shape){.max_batch_tokens = 8,
                                 .page_size = 4,
                                 .n_blocks = 50,
                                 .max_requests_per_batch = 1});
    a = job_of(4, 5);
    b = job_of(4, 5);
    cr_assert_eq(submit(&g, &a), 0);
    cr_assert_eq(submit(&g, &b), 0);
    engine_step(g.engine);
    engine_cancel(g.engine, b.r);
    run_dry(&g);
    cr_assert_eq(b.end.finish, FINISH_CANCELLED);
    cr_assert_eq(b.end.started_ns, 0);
    cr_assert_eq(a.end.finish, FINISH_LENGTH);
    rig_fini(&g);
}

/* After a soft reset nobody is admitted until an active request leaves; leaving by cancel counts,
 * else a waiting request would wait for ever. */
Test(engine, admission_opens_when_all_active_are_cancelled)
{
    struct rig g;
    struct engine_stats stats;
    static struct job j[3];
    rig_init(&g, &(struct shape){.max_batch_tokens = 64,
                                 .page_size = 4,
                                 .n_blocks = 8,
                                 .max_requests_per_batch = 8});
    for (int i = 0; i < 3; i++) {
        j[i] = job_of(8, 20);
        cr_assert_eq(submit(&g, &j[i]), 0);
    }
    do {
        engine_step(g.engine);
        audit(&g);
        engine_stats(g.engine, &stats);
    } while (stats.n_soft_resets == 0);
    for (int i = 0; i < 3; i++) {
        struct request_info info;
        engine_request_info(j[i].r, &info);
        if (info.phase != REQUEST_WAITING)
            engine_cancel(g.engine, j[i].r);
    }
    run_dry(&g);
    int n_done = 0;
    for (int i = 0; i < 3; i++)
        n_done += j[i].end.finish == FINISH_LENGTH;
    cr_assert_geq(n_done, 1);
    rig_fini(&g);
}

Test(engine, soft_reset_keeps_times_and_the_count_of_tokens)
{
    struct rig g;
    static struct job j[2];
    rig_init(&g, &(struct shape){.max_batch_tokens = 64,
                                 .page_size = 4,
                                 .n_blocks = 8,
                                 .max_requests_per_batch = 8,
                                 .shares_nothing = true});
    uint64_t first_token_ns = 0;
    uint32_t n_resets = 0;
    for (int i = 0; i < 2; i++) {
        j[i] = job_of(8, 20);
        j[i].spec.temperature = 1;
        j[i].spec.seed = (uint64_t)i;
        cr_assert_eq(submit(&g, &j[i]), 0);
    }
    while (engine_step(g.engine) != ENGINE_IDLE) {
        struct request_info info;
        if (first_token_ns == 0 && j[1].n_got > 0)
            first_token_ns = g.time.now_ns;
        g.time.now_ns += 1000;
        if (j[1].r) {
            engine_request_info(j[1].r, &info);
            n_resets = info.n_soft_resets;
        }
    }
    cr_assert_geq(n_resets, 1);
    cr_assert_eq(j[1].end.first_token_ns, first_token_ns);
    for (int i = 0; i < 2; i++)
        check_against_alone(&j[i]);
    rig_fini(&g);
}

Test(engine, who_was_reset_waits_at_the_end_of_the_line)
{
    struct rig g;
    static struct job a, b, c;
    rig_init(&g, &(struct shape){.max_batch_tokens = 64,
                                 .page_size = 4,
                                 .n_blocks = 8,
                                 .max_requests_per_batch = 8,
                                 .shares_nothing = true});
    a = job_of(8, 20);
    b = job_of(8, 20);
    c = job_of(12, 2);
    cr_assert_eq(submit(&g, &a), 0);
    cr_assert_eq(submit(&g, &b), 0);
    engine_step(g.engine);
    cr_assert_eq(submit(&g, &c), 0);
    while (a.n_ends == 0) {
        engine_step(g.engine);
        cr_assert_eq(c.n_got, 0, "c found room, or was admitted beside one that was reset");
    }
    engine_step(g.engine);
    cr_assert_eq(engine_batch(g.engine)->n_entries, 2);
    cr_assert_eq(engine_batch(g.engine)->entries[0].r, c.r);
    cr_assert_eq(engine_batch(g.engine)->entries[1].r, b.r);
    run_dry(&g);
    rig_fini(&g);
}

Test(engine, a_small_request_behind_a_large_waiting_one_runs_at_once)
{
    struct rig g;
    static struct job running, large, tiny;
    rig_init(&g, &small);
    running = job_of(30, 40); /* holds 8 of the 20 blocks, then more */
    large = job_of(68, 4);
    tiny = job_of(3, 2);
    cr_assert_eq(submit(&g, &running), 0);
    while (running.n_got < 30)
        engine_step(g.engine);
    cr_assert_eq(submit(&g, &large), 0);
    cr_assert_eq(submit(&g, &tiny), 0);
    engine_step(g.engine);
    engine_step(g.engine);
    cr_assert_eq(tiny.end.finish, FINISH_LENGTH);
    cr_assert_eq(large.n_got, 0);
    run_dry(&g);
    cr_assert_eq(running.end.finish, FINISH_LENGTH);
    cr_assert_eq(large.end.finish, FINISH_LENGTH);
    rig_fini(&g);
}

Test(engine, deadline_ends_waiting_and_running_ones_by_the_clock)
{
    struct rig g;
    static struct job a, b;
    rig_init(&g, &(struct shape){.max_batch_tokens = 8,
                                 .page_size = 4,
                                 .n_blocks = 50,
                                 .max_requests_per_batch = 1});
    a = job_of(4, 100);
    b = job_of(4, 100);
    a.spec.deadline_ns = g.time.now_ns + 10;
    b.spec.deadline_ns = g.time.now_ns + 5;
    cr_assert_eq(submit(&g, &a), 0);
    cr_assert_eq(submit(&g, &b), 0);
    engine_step(g.engine);
    g.time.now_ns += 5;
    engine_step(g.engine);
    cr_assert_eq(b.end.finish, FINISH_DEADLINE);
    cr_assert_eq(a.n_ends, 0);
    g.time.now_ns += 4;
    engine_step(g.engine);
    cr_assert_eq(a.n_ends, 0);
    g.time.now_ns += 1;
    engine_step(g.engine);
    cr_assert_eq(a.end.finish, FINISH_DEADLINE);
    cr_assert_eq(a.n_got, 3);
    rig_fini(&g);
}

Test(engine, fail_all_ends_everything_with_the_status)
{
    struct rig g;
    static struct job j[5];
    struct shape s = small;
    s.step_us = 1000;
    rig_init(&g, &s);
    for (int i = 0; i < 5; i++) {
        j[i] = job_of(20, 10);
        cr_assert_eq(submit(&g, &j[i]), 0);
    }
    engine_step(g.engine);
    engine_fail_all(g.engine, CB_STOPPED);
    for (int i = 0; i < 5; i++) {
        cr_assert_eq(j[i].end.finish, FINISH_ERROR);
        cr_assert_eq(j[i].end.error, CB_STOPPED);
    }
    cr_assert_eq(engine_step(g.engine), ENGINE_IDLE);
    rig_fini(&g);
}

/* ---- stops ----------------------------------------------------------------------------------- */

Test(engine, stop_string_over_two_tokens_ends_there_and_keeps_the_text_before)
{
    static struct job free_run, j;
    struct rig g;
    char text[4096];
    uint32_t ends[TOKENS_MAX + 1] = {0};
    static struct cb_stops stops;
    rig_init(&g, &small);
    const struct cb_vocab *vocab = vocab_image_view(model_vocab(g.model));
    free_run = job_of(5, 30);
    cr_assert_eq(submit(&g, &free_run), 0);
    run_dry(&g);
    for (uint32_t i = 0; i < 30; i++) {
        uint32_t n;
        const uint8_t *bytes = cb_vocab_text(vocab, free_run.got[i], &n);
        memcpy(text + ends[i], bytes, n);
        ends[i + 1] = ends[i] + n;
    }
    /* The last byte of token 9 and the first of token 10 that are ASCII together, wherever they are
     * first. */
    uint32_t at = 0;
    for (uint32_t i = 9; i < 29 && !at; i++)
        if ((signed char)text[ends[i] - 1] > 0 && (signed char)text[ends[i]] > 0)
            at = ends[i] - 1;
    cr_assert_neq(at, 0);
    uint32_t found = 0;
    while (memcmp(text + found, text + at, 2) != 0)
        found++;
    cb_stops_init(&stops);
    cr_assert_eq(cb_stops_add(&stops, "never to be seen", 16), 0);
    cr_assert_eq(cb_stops_add(&stops, text + at, 2), 0);
    j = job_of(5, 30);
    j.spec.stops = &stops;
    cr_assert_eq(submit(&g, &j), 0);
    memset(&stops, 0, sizeof stops); /* engine_submit has copied it */
    run_dry(&g);
    cr_assert_eq(j.end.finish, FINISH_STOP);
    cr_assert_not(j.end.stop_is_id);
    cr_assert_eq(j.end.stop_idx, 1);
    cr_assert_eq(j.end.text_bytes, found);
    cr_assert(ends[j.n_got] >= found + 2 && ends[j.n_got - 1] < found + 2);
    rig_fini(&g);
}

Test(engine, stop_id_and_eos_are_told_apart)
{
    static struct job free_run, by_id, by_eos;
    struct rig g;
    rig_init(&g, &small);
    free_run = job_of(5, 30);
    cr_assert_eq(submit(&g, &free_run), 0);
    run_dry(&g);
    uint32_t ids[2] = {VOCAB - 1, free_run.got[7]};
    uint32_t first = 0;
    while (free_run.got[first] != ids[1])
        first++;
    by_id = job_of(5, 30);
    by_id.spec.stop_ids = ids;
    by_id.spec.n_stop_ids = 2;
    cr_assert_eq(submit(&g, &by_id), 0);
    run_dry(&g);
    cr_assert_eq(by_id.end.finish, FINISH_STOP);
    cr_assert(by_id.end.stop_is_id);
    cr_assert_eq(by_id.end.stop_idx, 1);
    cr_assert_eq(by_id.n_got, first + 1);

    /* A prompt after which the null model's next token is its eos, found by trying. */
    uint32_t eos = model_info(g.model)->eos[0];
    for (uint32_t i = 0; i < VOCAB * 20; i++) {
        by_eos = job_of(2, 1);
        by_eos.prompt[0] = i % VOCAB;
        by_eos.prompt[1] = i / VOCAB;
        cr_assert_eq(submit(&g, &by_eos), 0);
        while (engine_step(g.engine) != ENGINE_IDLE)
            ;
        if (by_eos.got[0] == eos)
            break;
    }
    cr_assert_eq(by_eos.got[0], eos);
    cr_assert_eq(by_eos.end.finish, FINISH_LENGTH);
    by_eos.spec.ignore_eos = false;
    by_eos.spec.max_new_tokens = 9;
    by_eos.n_got = by_eos.n_ends = 0;
    cr_assert_eq(submit(&g, &by_eos), 0);
    run_dry(&g);
    cr_assert_eq(by_eos.end.finish, FINISH_EOS);
    cr_assert_eq(by_eos.n_got, 1);
    rig_fini(&g);
}

/* ---- a scripted model ------------------------------------------------------------------------ */

struct script {
    struct rig rig;
    struct fake_model *fake;
    uint32_t n_steps, bad_step; /* in this step, counted from 1, */
    int error;                  /* fail,                         */
    int32_t bad_token;          /* or answer what follows this id with a row that is not finite */
    uint32_t no_memory_from;    /* blocks from here on cannot be populated                      */
    uint32_t n_populated, n_cleared;
    struct job *cancel_in_look;
};

static int script_run(void *ctx, const struct step *step, const struct sample_params *params,
                      struct sample *samples)
{
    struct script *s = ctx;
    s->n_steps++;
    if (s->error && s->n_steps == s->bad_step)
        return s->error;
    for (uint32_t i = 0; i < step->n_outputs; i++) {
        int32_t last = step->tokens[step->output_token_idx[i]];
        samples[i] =
            (struct sample){.token = params[i].token_idx, .not_finite = last == s->bad_token};
    }
    return 0;
}

static int script_prepare(void *ctx, uint32_t block_idx, bool clear)
{
    struct script *s = ctx;
    if (clear) {
        cr_assert_lt(block_idx, s->n_populated);
        s->n_cleared++;
        return 0;
    }
    if (block_idx >= s->no_memory_from)
        return -ENOMEM;
    cr_assert_eq(block_idx, s->n_populated, "populated out of order or twice");
    s->n_populated++;
    return 0;
}

static void script_look(void *ctx)
{
    struct script *s = ctx;
    if (s->cancel_in_look && s->cancel_in_look->r)
        engine_cancel(s->rig.engine, s->cancel_in_look->r);
}

static void script_init(struct script *s)
{
    memset(s, 0, sizeof *s);
    s->fake = fake_model_new(VOCAB, small.n_blocks, small.page_size, CONTEXT);
    cr_assert_not_null(s->fake);
    s->bad_token = -1;
    s->no_memory_from = UINT32_MAX;
    s->fake->ctx = s;
    s->fake->run = script_run;
    s->fake->prepare = script_prepare;
    s->rig.model = &s->fake->model;
    struct engine_sink sink = {.ctx = s, .look = script_look, .token = on_token, .end = on_end};
    rig_engine(&s->rig, &small, &sink);
}

Test(engine, a_row_that_is_not_finite_fails_its_request_alone)
{
    static struct script s;
    static struct job j[3];
    script_init(&s);
    s.bad_token = 300;
    for (int i = 0; i < 3; i++) {
        j[i] = job_of(6, 5);
        if (i == 1)
            j[i].prompt[5] = 300;
        cr_assert_eq(submit(&s.rig, &j[i]), 0);
    }
    run_dry(&s.rig);
    cr_assert_eq(j[1].end.finish, FINISH_ERROR);
    cr_assert_eq(j[1].end.error, CB_NOT_FINITE);
    cr_assert_eq(j[1].n_got, 0);
    cr_assert_eq(j[0].end.finish, FINISH_LENGTH);
    cr_assert_eq(j[2].end.finish, FINISH_LENGTH);
    rig_fini(&s.rig);
}

Test(engine, a_step_that_fails_ends_those_in_it_and_the_engine_goes_on)
{
    static struct script s;
    static struct job in[2], waiting;
    script_init(&s);
    s.bad_step = 2;
    s.error = -EIO;
    for (int i = 0; i < 2; i++) {
        in[i] = job_of(4, 9);
        cr_assert_eq(submit(&s.rig, &in[i]), 0);
    }
    engine_step(s.rig.engine);
    engine_step(s.rig.engine);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(in[i].end.finish, FINISH_ERROR);
        cr_assert_eq(in[i].end.error, CB_DEVICE);
        cr_assert_eq(in[i].n_got, 1);
    }
    waiting = job_of(10, 4);
    cr_assert_eq(submit(&s.rig, &waiting), 0);
    run_dry(&s.rig);
    cr_assert_eq(waiting.end.finish, FINISH_LENGTH);
    rig_fini(&s.rig);
}

Test(engine, a_block_without_memory_ends_its_request_alone)
{
    static struct script s;
    static struct job big, little;
    script_init(&s);
    s.no_memory_from = 4;
    little = job_of(4, 5);
    big = job_of(20, 4);
    cr_assert_eq(submit(&s.rig, &little), 0);
    cr_assert_eq(submit(&s.rig, &big), 0);
    run_dry(&s.rig);
    cr_assert_eq(big.end.finish, FINISH_ERROR);
    cr_assert_eq(big.end.error, CB_NO_MEMORY);
    cr_assert_eq(little.end.finish, FINISH_LENGTH);
    /* Later there is memory: the blocks that had none get it before they are cleared or used. */
    s.no_memory_from = UINT32_MAX;
    big = job_of(20, 4);
    cr_assert_eq(submit(&s.rig, &big), 0);
    run_dry(&s.rig);
    cr_assert_eq(big.end.finish, FINISH_LENGTH);
    rig_fini(&s.rig);
}

Test(engine, blocks_are_populated_once_and_cleared_when_given_again)
{
    static struct script s;
    static struct job j;
    int r;
    script_init(&s);
    for (int i = 0; i < 2; i++) {
        j = job_of(14, 2);
        j.prompt[0] = (uint32_t)i; /* nothing is shared with the one before */
        cr_assert_eq(submit(&s.rig, &j), 0);
        run_dry(&s.rig);
        cr_assert_eq(s.n_populated, i ? 7 : 4);
        cr_assert_eq(s.n_cleared, i ? 1 : 0); /* the last one was not complete, so not kept */
    }
    while ((r = engine_populate_some(s.rig.engine, 1)) == ENGINE_MORE)
        ;
    cr_assert_eq(r, 0);
    cr_assert_eq(s.n_populated, small.n_blocks);
    rig_fini(&s.rig);
}

/* The cancel is seen only after the step was submitted: its token must not be handed out. */
Test(engine, a_cancel_seen_before_results_are_applied_drops_them)
{
    static struct script s;
    static struct job j;
    script_init(&s);
    s.fake->polls_needed = 2;
    j = job_of(4, 9);
    cr_assert_eq(submit(&s.rig, &j), 0);
    cr_assert_eq(engine_step(s.rig.engine), ENGINE_RUNNING);
    s.cancel_in_look = &j;
    cr_assert_eq(engine_step(s.rig.engine), ENGINE_RUNNING);
    cr_assert_eq(j.n_ends, 0);
    cr_assert_eq(engine_step(s.rig.engine), 0);
    cr_assert_eq(j.end.finish, FINISH_CANCELLED);
    cr_assert_eq(j.n_got, 0);
    rig_fini(&s.rig);
}

Test(engine, the_time_of_a_step_bounds_the_next_one_s_prefill)
{
    static struct script s;
    static struct job j[2];
    script_init(&s);
    struct engine_config config = {.max_requests = 4,
                                   .max_held_tokens = 1000,
                                   .max_batch_tokens = 80,
                                   .max_requests_per_batch = 4,
                                   .safety_margin = 0,
                                   .step_ms_max = 1};
    engine_free(s.rig.engine);
    struct engine_sink sink = {.ctx = &s, .look = script_look, .token = on_token, .end = on_end};
    cr_assert_eq(engine_new(&s.rig.engine, &config, s.rig.model, &sink, &s.rig.clock), 0);
    s.fake->polls_needed = 1;
    j[1] = job_of(20, 1);
    j[0] = job_of(75, 2);
    for (int i = 1; i >= 0; i--) {
        uint32_t n_steps = 0;
        cr_assert_eq(submit(&s.rig, &j[i]), 0);
        while (n_steps < 100 && engine_step(s.rig.engine) == ENGINE_RUNNING) {
            uint32_t n = engine_batch(s.rig.engine)->n_tokens;
            /* The first finds nothing measured; each takes far more than 1 ms, so what follows has
             * the least that is always allowed. */
            cr_assert_leq(n, i == 1 ? 64 : 16, "step %u has %u tokens", n_steps, n);
            s.rig.time.now_ns += 100000000;
            n_steps++;
        }
        cr_assert_eq(j[i].end.finish, FINISH_LENGTH);
        cr_assert_geq(n_steps, i == 1 ? 1 : 5);
    }
    rig_fini(&s.rig);
}
