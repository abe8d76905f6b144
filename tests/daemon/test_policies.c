/* Who runs when users, priorities and deadlines compete: the engine over a scripted model whose
 * steps take time by what is in them, on a clock that stands still otherwise. So steps and times are
 * exact, and the same on every machine. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/clock.h"
#include "daemon/engine.h"
#include "daemon/sched/batch.h"
#include "tests/fake_model.h"

enum { PAGE = 16, VOCAB = 512, USERS = 4, STEP_NS = 1000000, TOKEN_NS = 10000 };

struct job {
    uint32_t user, n_prompt, limit, priority;
    uint64_t submitted_step; /* steps done when it was sent             */
    uint64_t first_step;     /* the step that gave its first token      */
    uint64_t end_step;
    uint64_t start_ns, first_ns, end_ns; /* from when it was sent */
    enum finish finish;
    uint32_t n_resets, n_tokens;
    struct request *r;
};

struct world {
    struct fake_model *fake;
    struct engine *engine;
    struct virtual_clock time;
    struct clock clock;
    uint64_t n_steps;
    uint64_t service[USERS]; /* 1 for a prompt's token, 2 for a generated one, once each */
    uint64_t n_generated[USERS], n_ended[USERS];
    uint32_t n_there; /* sent and not ended */
    uint32_t next_id; /* no two prompts begin alike */
};

static int run(void *ctx, const struct step *step, const struct sample_params *params,
               struct sample *samples)
{
    struct world *w = ctx;
    const struct batch *b = engine_batch(w->engine);
    (void)params;
    w->n_steps++;
    w->time.now_ns += STEP_NS + (uint64_t)step->n_tokens * TOKEN_NS;
    for (uint32_t i = 0; i < step->n_outputs; i++)
        samples[i] = (struct sample){.token = 300};
    for (uint32_t i = 0; i < b->n_entries; i++) {
        const struct batch_entry *e = &b->entries[i];
        uint32_t begin = e->past > e->r->n_reached ? e->past : e->r->n_reached;
        for (uint32_t p = begin; p < e->past + e->n_tokens; p++)
            w->service[e->r->uid] += p < e->r->n_prompt ? 1 : 2;
    }
    return 0;
}

static void on_token(void *ctx, struct request *r, void *owner, uint32_t index, uint32_t token,
                     uint64_t time_ns)
{
    struct world *w = ctx;
    struct job *j = owner;
    (void)token;
    (void)time_ns;
    if (index == 0)
        j->first_step = w->n_steps;
    j->n_tokens++;
    j->n_resets = r->n_soft_resets;
    w->n_generated[j->user]++;
}

static void on_end(void *ctx, struct request *r, void *owner, const struct request_end *end)
{
    struct world *w = ctx;
    struct job *j = owner;
    j->n_resets = r->n_soft_resets;
    j->finish = end->finish;
    j->end_step = w->n_steps;
    j->start_ns = end->started_ns - end->submitted_ns;
    j->first_ns = end->first_token_ns - end->submitted_ns;
    j->end_ns = end->ended_ns - end->submitted_ns;
    j->r = NULL;
    w->n_there--;
    w->n_ended[j->user]++;
}

/* What tests differ in; the rest is 64 tokens and 8 requests a step. */
struct shape {
    enum scheduler_kind scheduler;
    uint32_t n_blocks, ageing_ms, max_requests;
};

static void world_init(struct world *w, const struct shape *shape)
{
    const struct engine_sink sink = {.ctx = w, .token = on_token, .end = on_end};
    const struct engine_config config = {.scheduler = shape->scheduler,
                                         .ageing_ms = shape->ageing_ms,
                                         .max_requests =
                                             shape->max_requests ? shape->max_requests : 256,
                                         .max_held_tokens = 1 << 24,
                                         .max_batch_tokens = 64,
                                         .max_requests_per_batch = 8,
                                         .safety_margin = -1,
                                         .allow_block_sharing = true};
    memset(w, 0, sizeof *w);
    virtual_clock_init(&w->time, &w->clock);
    w->fake = fake_model_new(VOCAB, shape->n_blocks ? shape->n_blocks : 4096, PAGE, 8192);
    cr_assert_not_null(w->fake);
    w->fake->ctx = w;
    w->fake->run = run;
    cr_assert_eq(engine_new(&w->engine, &config, &w->fake->model, &sink, &w->clock), 0);
}

static void world_fini(struct world *w)
{
    engine_free(w->engine);
    model_free(&w->fake->model);
}

static struct request_spec spec_of(struct world *w, const struct job *j, uint32_t *prompt)
{
    uint32_t id = w->next_id++;
    for (uint32_t i = 0; i < j->n_prompt; i++)
        prompt[i] = i == 0 ? id % 256 : i == 1 ? id / 256 : 1;
    return (struct request_spec){.prompt = prompt,
                                 .n_prompt = j->n_prompt,
                                 .max_new_tokens = j->limit,
                                 .ignore_eos = true,
                                 .top_p = 1,
                                 .priority = (uint8_t)j->priority,
                                 .uid = j->user,
                                 .owner = (void *)j};
}

static void send(struct world *w, struct job *j)
{
    uint32_t prompt[4096];
    const struct request_spec spec = spec_of(w, j, prompt);
    j->submitted_step = w->n_steps;
    j->n_tokens = 0;
    cr_assert_eq(engine_submit(w->engine, &spec, &j->r), 0);
    w->n_there++;
}

static void step(struct world *w)
{
    const char *why = "";
    engine_step(w->engine);
    cr_assert_eq(engine_check(w->engine, &why), 0, "step %llu: %s", (unsigned long long)w->n_steps,
                 why);
}

static void finish_all(struct world *w)
{
    for (uint32_t i = 0; w->n_there > 0; i++) {
        cr_assert_lt(i, 100000, "it does not end");
        step(w);
    }
}

static uint64_t difference(uint64_t a, uint64_t b)
{
    return a > b ? a - b : b - a;
}

/* ---- priority -------------------------------------------------------------------------------- */

Test(policies, the_higher_priority_runs_first_and_the_earlier_of_one)
{
    struct world w;
    struct job jobs[12];
    static const uint32_t priorities[12] = {0, 5, 5, 200, 0, 255, 5, 200, 0, 1, 255, 3};
    world_init(&w, &(struct shape){.scheduler = SCHEDULER_PRIORITY});
    for (int i = 0; i < 12; i++) {
        jobs[i] = (struct job){.n_prompt = 60, .limit = 1, .priority = priorities[i]};
        send(&w, &jobs[i]);
        w.time.now_ns++;
    }
    finish_all(&w);
    for (int i = 0; i < 12; i++)
        for (int k = i + 1; k < 12; k++)
            cr_expect(jobs[i].priority >= jobs[k].priority
                          ? jobs[i].first_step <= jobs[k].first_step
                          : jobs[i].first_step >= jobs[k].first_step,
                      "%d and %d", i, k);
    world_fini(&w);
}

Test(policies, a_higher_priority_makes_lower_ones_give_way_and_they_end_well)
{
    struct world w;
    struct job low[4], high = {.n_prompt = 50, .limit = 20, .priority = 9}, equal;
    struct engine_stats stats;
    world_init(&w, &(struct shape){.scheduler = SCHEDULER_PRIORITY, .n_blocks = 16});
    for (int i = 0; i < 4; i++) {
        low[i] = (struct job){.n_prompt = 40, .limit = 24, .priority = 3};
        send(&w, &low[i]);
    }
    for (int i = 0; i < 12; i++)
        step(&w);
    equal = low[0];
    equal.n_prompt = 50;
    send(&w, &equal);
    step(&w);
    step(&w);
    engine_stats(w.engine, &stats);
    cr_expect_eq(stats.n_soft_resets, 0, "an equal one presses nobody");
    cr_expect_eq(stats.n_waiting, 1);
    send(&w, &high);
    step(&w);
    step(&w);
    cr_assert_leq(high.first_step, high.submitted_step + 2);
    cr_assert_geq(high.first_step, 1, "it has its token");
    finish_all(&w);
    uint32_t n_resets = 0;
    for (int i = 0; i < 4; i++) {
        cr_expect_eq(low[i].n_tokens, 24);
        n_resets += low[i].n_resets;
    }
    cr_expect_eq(low[0].n_resets, 0, "the newest gives way, not the oldest");
    cr_expect_gt(n_resets, 0);
    cr_expect_eq(high.n_resets, 0);
    world_fini(&w);
}

/* One of priority 255 after another, more than there is room for: one of priority 0 waits as long as
 * it takes to rise, and then for its turn. */
Test(policies, nobody_starves_below_a_stream_of_higher_priorities)
{
    struct world w;
    struct job high[64], low = {.n_prompt = 30, .limit = 2};
    uint32_t next = 0;
    world_init(&w,
               &(struct shape){.scheduler = SCHEDULER_PRIORITY, .n_blocks = 32, .ageing_ms = 1});
    memset(high, 0, sizeof high);
    send(&w, &low);
    for (int i = 0; i < 800 && low.finish == FINISH_NONE; i++) {
        for (; w.n_there < 24; next = (next + 1) % 64)
            if (!high[next].r) {
                high[next] = (struct job){.n_prompt = 40, .limit = 8, .priority = 255};
                send(&w, &high[next]);
            }
        step(&w);
    }
    cr_assert_eq(low.finish, FINISH_LENGTH);
    cr_expect_gt(low.first_ns, 200 * UINT64_C(1000000), "it came before those above it");
    world_fini(&w);
}

/* ---- fair ------------------------------------------------------------------------------------ */

/* Keeps n of a user's requests waiting or running, all alike. */
static void keep_busy(struct world *w, struct job *jobs, uint32_t n, const struct job *like)
{
    for (uint32_t i = 0; i < n; i++)
        if (!jobs[i].r) {
            jobs[i] = *like;
            send(w, &jobs[i]);
        }
}

/* The bound of shares.h, in tokens of a prompt at weight 1. */
static uint64_t bound_of(uint32_t n_prompt, uint32_t n_blocks, uint32_t weight)
{
    uint64_t most = 2 * n_blocks * PAGE > n_prompt ? 2 * n_blocks * PAGE : n_prompt;
    return (2 * most + 2 * 64) / weight;
}

Test(policies, two_busy_users_get_the_same_whatever_they_send)
{
    static const struct job kinds[] = {{.n_prompt = 60, .limit = 4},
                                       {.n_prompt = 5, .limit = 60},
                                       {.n_prompt = 300, .limit = 1},
                                       {.n_prompt = 17, .limit = 17}};
    for (uint32_t a = 0; a < 4; a++)
        for (uint32_t b = 0; b < 4; b++) {
            struct world w;
            struct job jobs[2][20] = {0}, like[2] = {kinds[a], kinds[b]};
            uint32_t n_blocks = 24 + 8 * a;
            uint64_t begun[2], most = 0;
            like[0].user = 0;
            like[1].user = 1;
            world_init(&w, &(struct shape){.scheduler = SCHEDULER_FAIR, .n_blocks = n_blocks});
            for (int i = 0; i < 5000; i++) {
                keep_busy(&w, jobs[0], 12 + a, &like[0]);
                if (i >= 20)
                    keep_busy(&w, jobs[1], 20 - b, &like[1]);
                if (i == 20)
                    memcpy(begun, w.service, sizeof begun);
                step(&w);
                if (i >= 20 && difference(w.service[0] - begun[0], w.service[1] - begun[1]) > most)
                    most = difference(w.service[0] - begun[0], w.service[1] - begun[1]);
            }
            cr_expect_leq(most, bound_of(300, n_blocks, 1), "kinds %u and %u: %llu apart", a, b,
                          (unsigned long long)most);
            cr_expect_gt(w.service[1], 10 * bound_of(300, n_blocks, 1), "the bound says something");
            world_fini(&w);
        }
}

Test(policies, weights_divide_the_machine_and_can_change)
{
    struct world w;
    struct job jobs[2][20] = {0};
    const struct job like[2] = {{.user = 0, .n_prompt = 20, .limit = 10},
                                {.user = 1, .n_prompt = 20, .limit = 10}};
    world_init(&w, &(struct shape){.scheduler = SCHEDULER_AUTO, .n_blocks = 64});
    engine_set_weights(w.engine, &(struct share_weights){1, {{.uid = 1, .weight = 3}}});
    for (int phase = 0; phase < 2; phase++) {
        uint64_t begun[2];
        memcpy(begun, w.service, sizeof begun);
        for (int i = 0; i < 3000; i++) {
            keep_busy(&w, jobs[0], 20, &like[0]);
            keep_busy(&w, jobs[1], 20, &like[1]);
            step(&w);
        }
        double ratio = (double)(w.service[1] - begun[1]) / (double)(w.service[0] - begun[0]);
        cr_expect(phase == 0 ? ratio > 2.8 && ratio < 3.2 : ratio > 0.95 && ratio < 1.05, "%f",
                  ratio);
        engine_set_weights(w.engine, &(struct share_weights){0});
        for (int i = 0; i < 200; i++) { /* until what is owed is paid */
            keep_busy(&w, jobs[0], 20, &like[0]);
            keep_busy(&w, jobs[1], 20, &like[1]);
            step(&w);
        }
    }
    world_fini(&w);
}

/* What a user did not ask for while it was idle it does not get later. */
Test(policies, an_idle_user_saves_no_turns_up)
{
    struct world w;
    struct job jobs[2][20] = {0};
    const struct job like[2] = {{.user = 0, .n_prompt = 20, .limit = 10},
                                {.user = 1, .n_prompt = 20, .limit = 10}};
    uint64_t begun[2];
    world_init(&w, &(struct shape){.scheduler = SCHEDULER_FAIR, .n_blocks = 64});
    keep_busy(&w, jobs[1], 1, &like[1]);
    for (int i = 0; i < 1000; i++) {
        keep_busy(&w, jobs[0], 20, &like[0]);
        step(&w);
    }
    memcpy(begun, w.service, sizeof begun);
    for (int i = 0; i < 1000; i++) {
        keep_busy(&w, jobs[0], 20, &like[0]);
        keep_busy(&w, jobs[1], 20, &like[1]);
        step(&w);
    }
    cr_expect_leq(difference(w.service[0] - begun[0], w.service[1] - begun[1]),
                  bound_of(20, 64, 1));
    world_fini(&w);
}

/* A large prompt before small ones that would always fit: by rank they do not pass it. */
Test(policies, a_large_request_is_not_passed_over_for_ever)
{
    static const enum scheduler_kind kinds[] = {SCHEDULER_PRIORITY, SCHEDULER_FAIR,
                                                SCHEDULER_PREFILL_FIRST};
    for (int k = 0; k < 3; k++) {
        struct world w;
        struct job small[12] = {0}, large = {.n_prompt = 100, .limit = 4};
        const struct job like = {.n_prompt = 4, .limit = 9};
        world_init(&w, &(struct shape){.scheduler = kinds[k], .n_blocks = 8});
        for (int i = 0; i < 600; i++) {
            keep_busy(&w, small, i < 12 ? 1 + (uint32_t)i : 12, &like);
            step(&w);
            if (i == 20)
                send(&w, &large);
        }
        cr_expect_eq(large.finish,
                     kinds[k] == SCHEDULER_PREFILL_FIRST ? FINISH_NONE : FINISH_LENGTH,
                     "scheduler %d", kinds[k]);
        world_fini(&w);
    }
}

/* ---- a flood --------------------------------------------------------------------------------- */

enum { FLOOD = 10000, FLOOD_HELD = 3000, PROBES = 400 };

static int ascending(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* Runs 10,000 prompts of one user, 3,000 of them in the engine at any time, beside, if probe_every,
 * a short one of another each so many steps. The steps that the flood took; waits[] of the probes. */
static uint64_t flood(enum scheduler_kind scheduler, uint32_t n_blocks, uint32_t probe_every,
                      uint64_t *waits, uint32_t *n_waitsp)
{
    struct world w;
    static struct job jobs[FLOOD_HELD], probes[PROBES];
    const struct job probe = {.user = 1, .n_prompt = 20, .limit = 8};
    uint32_t n_sent = 0, n_probes = 0;
    memset(jobs, 0, sizeof jobs);
    memset(probes, 0, sizeof probes);
    world_init(&w,
               &(struct shape){.scheduler = scheduler, .n_blocks = n_blocks, .max_requests = 4096});
    while (w.n_ended[0] < FLOOD) {
        for (uint32_t i = 0; i < FLOOD_HELD && n_sent < FLOOD; i++)
            if (!jobs[i].r) {
                jobs[i] = (struct job){.n_prompt = 30 + n_sent % 21, .limit = 16};
                send(&w, &jobs[i]);
                n_sent++;
            }
        if (probe_every && w.n_steps / probe_every > n_probes && n_probes < PROBES &&
            n_sent < FLOOD) {
            probes[n_probes] = probe;
            send(&w, &probes[n_probes++]);
        }
        engine_step(w.engine);
    }
    finish_all(&w);
    for (uint32_t i = 0; i < n_probes && waits; i++)
        waits[i] = probes[i].first_step - probes[i].submitted_step;
    if (n_waitsp)
        *n_waitsp = n_probes;
    uint64_t n_steps = w.n_steps;
    world_fini(&w);
    return n_steps;
}

/* A step takes 1.6 ms here; one probe a second is one in 600 steps. Here they come ten times as
 * often. Each is there at the latest with the second step: the one under way when it came, and its
 * own, which holds its prompt. With a cache that the flood fills, too. */
Test(policies, a_flood_does_not_hold_up_another_user, .timeout = 120)
{
    static const uint32_t caches[] = {4096, 40, 24};
    for (int i = 0; i < 3; i++) {
        uint64_t waits[PROBES];
        uint32_t n = 0;
        uint64_t alone = flood(SCHEDULER_AUTO, caches[i], 0, NULL, NULL);
        uint64_t beside = flood(SCHEDULER_AUTO, caches[i], 60, waits, &n);
        cr_assert_gt(n, 100);
        qsort(waits, n, sizeof *waits, ascending);
        cr_expect_leq(waits[n * 99 / 100], 2, "p99 %llu", (unsigned long long)waits[n * 99 / 100]);
        cr_expect_leq(beside * 100, alone * 105, "%llu steps instead of %llu",
                      (unsigned long long)beside, (unsigned long long)alone);
        flood(SCHEDULER_FIFO, caches[i], 60, waits, &n);
        qsort(waits, n, sizeof *waits, ascending);
        cr_expect_gt(waits[n / 2], 100, "fifo would do as well");
    }
}

/* ---- deadlines ------------------------------------------------------------------------------- */

static struct engine_forecast guess(struct world *w, const struct job *j)
{
    uint32_t prompt[4096];
    struct engine_forecast f;
    const struct request_spec spec = spec_of(w, j, prompt);
    engine_forecast(w->engine, &spec, &f);
    return f;
}

static void check_near(uint64_t guessed, uint64_t was, const char *what)
{
    cr_expect(guessed <= was + was / 2 + 4000000 && was <= guessed + guessed / 2 + 4000000,
              "%s: guessed %.1f ms, was %.1f ms", what, (double)guessed / 1e6, (double)was / 1e6);
}

Test(policies, what_is_predicted_comes_near_to_what_happens)
{
    static const enum scheduler_kind kinds[] = {SCHEDULER_FIFO, SCHEDULER_PRIORITY, SCHEDULER_FAIR};
    for (int k = 0; k < 3; k++) {
        struct world w;
        struct job first = {.n_prompt = 60, .limit = 20}, queue[16], last;
        world_init(&w, &(struct shape){.scheduler = kinds[k]});
        cr_expect_not(guess(&w, &first).is_known, "nothing was measured yet");
        send(&w, &first);
        finish_all(&w);
        struct engine_forecast f = guess(&w, &first);
        cr_assert(f.is_known);
        cr_expect_eq(f.start_ns, 0, "nobody is there");
        check_near(f.finish_ns, first.end_ns, "alone");
        for (int i = 0; i < 16; i++) {
            queue[i] = (struct job){.n_prompt = 200, .limit = 10};
            send(&w, &queue[i]);
        }
        last = (struct job){.n_prompt = 100, .limit = 30};
        f = guess(&w, &last);
        send(&w, &last);
        finish_all(&w);
        cr_expect_leq(f.start_ns, f.first_token_ns);
        cr_expect_leq(f.first_token_ns, f.finish_ns);
        check_near(f.start_ns, last.start_ns, "start behind a queue");
        check_near(f.first_token_ns, last.first_ns, "first token behind a queue");
        check_near(f.finish_ns, last.end_ns, "end behind a queue");
        world_fini(&w);
    }
}

Test(policies, limits_that_nobody_uses_are_not_counted_in_full)
{
    struct world w;
    struct job j = {.n_prompt = 20, .limit = 1000};
    world_init(&w, &(struct shape){.scheduler = SCHEDULER_FIFO});
    send(&w, &j);
    step(&w);
    engine_cancel(w.engine, j.r);
    finish_all(&w);
    uint64_t before = guess(&w, &j).finish_ns;
    cr_expect_gt(before, 999 * UINT64_C(1000000), "a cancel says nothing of limits");
    uint32_t prompt[20] = {7}, eos = 300;
    struct request_spec spec = {.prompt = prompt,
                                .n_prompt = 20,
                                .max_new_tokens = 1000,
                                .stop_ids = &eos,
                                .n_stop_ids = 1,
                                .top_p = 1,
                                .owner = &j};
    for (int i = 0; i < 100; i++) {
        w.n_there++;
        cr_assert_eq(engine_submit(w.engine, &spec, &j.r), 0);
        finish_all(&w);
    }
    cr_expect_lt(guess(&w, &j).finish_ns, before / 10);
    world_fini(&w);
}

/* ---- why ------------------------------------------------------------------------------------- */

static const char *why(struct world *w, const struct job *j)
{
    static char text[600];
    engine_request_why(w->engine, j->r, text, sizeof text);
    return text;
}

#define EXPECT_WHY(w, j, part) \
    cr_expect(strstr(why(w, j), part), "'%s' lacks '%s'", why(w, j), part)

Test(policies, it_says_why_a_request_waits)
{
    struct world w;
    struct job jobs[12], large = {.n_prompt = 150, .limit = 40, .priority = 0};
    world_init(&w, &(struct shape){.scheduler = SCHEDULER_PRIORITY, .n_blocks = 24});
    send(&w, &large);
    EXPECT_WHY(&w, &large, "is the next by the rules of scheduler priority");
    step(&w);
    EXPECT_WHY(&w, &large, "64 of 150 tokens are computed");
    step(&w);
    step(&w);
    EXPECT_WHY(&w, &large, "1 tokens of at most 40 are generated");
    for (uint32_t i = 0; i < 12; i++) {
        jobs[i] = (struct job){.n_prompt = 30, .limit = 30};
        send(&w, &jobs[i]);
    }
    EXPECT_WHY(&w, &jobs[11], "11 requests with 330 tokens to compute come before it");
    for (int i = 0; i < 8; i++)
        step(&w);
    EXPECT_WHY(&w, &jobs[11], "less than safety_margin");
    char small[10];
    engine_request_why(w.engine, jobs[0].r, small, sizeof small);
    cr_expect_eq(strlen(small), 9, "cut, with its 0");
    engine_cancel(w.engine, jobs[11].r);
    EXPECT_WHY(&w, &jobs[11], "its end is decided");
    finish_all(&w);
    world_fini(&w);
}
