/* Tokens are compared as they come, so that a failure names the first that differs, and so are bits of
 * log-probabilities: they depend on the whole row, of which a token alone hides most. */
#include "tests/daemon/storm.h"

#include <criterion/criterion.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/clock.h"
#include "kernels/cpu/isa.h"
#include "kernels/numeric.h"
#include "shm/status.h"
#include "tests/util/memory_file.h"

#define ALONE UINT32_MAX /* number of what is no storm */

enum { NEVER = UINT32_MAX, N_STOP_SETS = 4, N_BEGINNINGS = 3, FAMILY_MAX = 4 };

/* What a request gave. */
struct answer {
    uint32_t n, tokens[STORM_NEW_MAX];
    uint64_t logprobs[STORM_NEW_MAX], prompt[STORM_PROMPT_MAX]; /* digests; 0: none were told */
    struct request_end end;
};

struct job {
    uint32_t prompt[STORM_TOKENS_MAX], stop_ids[3], allowed[60], banned[8];
    struct sample_bias biases[8];
    struct sampler_wishes wishes;
    struct request_spec spec;
    uint32_t n_family; /* it and the jobs behind it that go on from its prompt; 0: one of these */
    struct answer alone, got;
    /* Of this run: */
    struct request *r; /* NULL: not sent yet, or ended */
    uint32_t n_ends, cancel_at, n_given;
    bool is_cancelled;
    bool is_paused; /* with its continuations */
};

struct storm {
    struct storm_kind kind;
    char path[MEMORY_FILE_PATH_MAX];
    int fd;
    struct cb_stops stops[N_STOP_SETS];
    struct job jobs[STORM_REQUESTS];
    /* Of this run: */
    uint32_t number;
    uint64_t random, clock_random, now_ns;
    uint32_t n_pauses;
    struct clock clock;
    struct model *model;
    struct engine *engine;
};

static uint32_t draw(uint64_t *random, uint32_t n) /* below n; splitmix64 */
{
    uint64_t z = *random += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return (uint32_t)((z ^ z >> 31) % n);
}

static void fail(const struct storm *st, const struct job *j, const char *format, ...)
    __attribute__((format(printf, 3, 4), noreturn));

static void fail(const struct storm *st, const struct job *j, const char *format, ...)
{
    char what[256], who[64] = "";
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    if (j)
        snprintf(who, sizeof who, "request %td: ", j - st->jobs);
    if (st->number == ALONE)
        cr_assert_fail("%salone: %s", who, what);
    cr_assert_fail("storm %u: %s%s; again: CB_STORM=%u build/tests/test_daemon --filter %s",
                   st->number, who, what, st->number, st->kind.test);
    abort();
}

/* ---- requests -------------------------------------------------------------------------------- */

static uint32_t ids_draw(uint64_t *random, uint32_t *ids, uint32_t n, uint32_t n_good)
{
    for (uint32_t i = 0; i < n; i++) /* ascending */
        ids[i] = (i * n_good + draw(random, n_good)) / n;
    return n;
}

static void wishes_draw(struct job *j, uint64_t *random, uint32_t n_good)
{
    struct sampler_wishes *w = &j->wishes;
    uint32_t logprobs = draw(random, 5), asks = draw(random, 2) ? draw(random, 256) : 0;
    sampler_wishes_init(w);
    w->allowed = j->allowed;
    w->banned = j->banned;
    w->biases = j->biases;
    w->logprobs = logprobs == 0   ? SAMPLE_NO_LOGPROBS
                  : logprobs == 1 ? SAMPLE_PROCESSED
                                  : SAMPLE_RAW;
    w->n_best = logprobs && draw(random, 2) ? 1 + draw(random, SAMPLE_BEST_MAX) : 0;
    w->prompt_logprobs = draw(random, 4) == 0;
    if (asks & 1)
        w->min_p = 0.05f;
    if (asks & 2)
        w->typical_p = 0.8f;
    if (asks & 4)
        w->repetition_penalty = draw(random, 2) ? 1.3f : 0.8f;
    if (asks & 8) {
        w->presence_penalty = (float)draw(random, 5) / 2 - 1;
        w->frequency_penalty = (float)draw(random, 5) / 4;
    }
    if (asks & 16)
        w->no_repeat_ngram = 1 + draw(random, 4);
    if (asks & 32)
        w->min_new_tokens = draw(random, STORM_NEW_MAX);
    if (asks & 64)
        w->n_biases = ids_draw(random, j->allowed, 8, n_good);
    for (uint32_t i = 0; i < w->n_biases; i++)
        j->biases[i] = (struct sample_bias){j->allowed[i], (float)draw(random, 13) - 6};
    if (asks & 128) {
        w->n_banned = ids_draw(random, j->banned, 8, n_good);
        /* No 1-gram again, and soon nothing would be left. */
        if (w->no_repeat_ngram != 1 && draw(random, 2))
            w->n_allowed = ids_draw(random, j->allowed, 60, n_good);
        if (draw(random, 4) == 0)
            w->first_id = draw(random, n_good);
    }
    j->spec.wishes = w;
}

static void job_draw(struct storm *st, struct job *j, uint32_t i)
{
    static const float temperatures[] = {0.5f, 1, 2, 4};
    uint64_t random = st->kind.seed + i * UINT64_C(1000003);
    uint32_t n_good = st->kind.tiny.bad_from ? st->kind.tiny.bad_from : TINY_VOCAB;
    struct request_spec *s = &j->spec;
    uint32_t size = draw(&random, 16);
    *s = (struct request_spec){.prompt = j->prompt, .top_p = 1, .owner = j};
    s->n_prompt = 1 + draw(&random, size == 0  ? STORM_PROMPT_MAX
                                    : size < 4 ? 150
                                               : st->kind.prompt_usual);
    uint32_t n_alike =
        draw(&random, 4) ? s->n_prompt - draw(&random, 2) * draw(&random, s->n_prompt) : 0;
    uint64_t beginning = st->kind.seed - 1 - draw(&random, N_BEGINNINGS);
    for (uint32_t k = 0; k < s->n_prompt; k++)
        j->prompt[k] = draw(k < n_alike ? &beginning : &random, n_good);
    if (n_good < TINY_VOCAB && i % 4 == 3) {
        /* Most of them early in a block, for then rows of the block before are computed along with
         * it. */
        uint32_t at = draw(&random, s->n_prompt), kind = draw(&random, 8);
        at = kind == 0 ? 0 : kind == 1 ? s->n_prompt - 1 : kind == 2 ? at : at / 16 * 16;
        j->prompt[at] = n_good + draw(&random, TINY_VOCAB - n_good);
    }
    size = draw(&random, 16);
    s->max_new_tokens = size < 2 ? size : 1 + draw(&random, size < 6 ? STORM_NEW_MAX : 25);
    s->ignore_eos = draw(&random, 2);
    if (draw(&random, 4)) {
        s->temperature = temperatures[draw(&random, 4)];
        s->top_k = draw(&random, 2) ? 1 + draw(&random, 60) : 0;
        s->top_p = draw(&random, 2) ? 0.9f : 1;
        s->seed = (uint64_t)draw(&random, 1u << 30) << 20;
    }
    if (draw(&random, 4) == 0) {
        for (int k = 0; k < 3; k++)
            j->stop_ids[k] = draw(&random, TINY_VOCAB);
        s->stop_ids = j->stop_ids;
        s->n_stop_ids = 3;
    }
    if (draw(&random, 3) == 0)
        s->stops = &st->stops[draw(&random, N_STOP_SETS)];
    wishes_draw(j, &random, n_good);
    s->priority = (uint8_t)draw(&random, draw(&random, 2) ? 256 : 2);
    s->uid = draw(&random, 3) == 0; /* two thirds are one user's */
    j->n_family = draw(&random, 6) == 0 ? 1 + draw(&random, FAMILY_MAX) : 1;
}

/* Continuation k of another's prompt, whose lists it has in common with it. */
static void job_continue(struct job *j, const struct job *parent, uint32_t k)
{
    *j = *parent;
    j->n_family = 0;
    j->spec.child_idx = k;
    j->spec.owner = j;
    j->spec.wishes = &j->wishes;
}

struct storm *storm_new(const struct storm_kind *kind)
{
    static const char *const stops[N_STOP_SETS][2] = {
        {"e", "q"}, {"th", "o"}, {"ab", "a"}, {"in", "\n"}};
    struct storm *st = calloc(1, sizeof *st);
    cr_assert_not_null(st);
    st->kind = *kind;
    st->fd = memory_file_gguf(tiny_new(&kind->tiny), st->path);
    for (int i = 0; i < N_STOP_SETS; i++) {
        cb_stops_init(&st->stops[i]);
        for (int k = 0; k < 2; k++)
            cr_assert_eq(cb_stops_add(&st->stops[i], stops[i][k], strlen(stops[i][k])), 0);
    }
    for (uint32_t i = 0; i < kind->n_requests;) {
        struct job *j = &st->jobs[i];
        job_draw(st, j, i);
        if (j->n_family > kind->n_requests - i)
            j->n_family = kind->n_requests - i;
        for (uint32_t k = 1; k < j->n_family; k++)
            job_continue(j + k, j, k);
        i += j->n_family;
    }
    return st;
}

struct storm *storm_free(struct storm *st)
{
    if (st) {
        close(st->fd);
        free(st);
    }
    return NULL;
}

/* ---- what the engine tells ------------------------------------------------------------------- */

static uint64_t digest_of(const struct engine_logprobs *l)
{
    uint64_t digest = numeric_bits(l->logprob) + UINT64_C(1) /* 0 is none */;
    for (uint32_t i = 0; i < l->n_best; i++)
        digest = (digest ^ ((uint64_t)l->best[i].id << 32 | numeric_bits(l->best[i].logprob))) *
                 UINT64_C(0x9e3779b97f4a7c15);
    return digest;
}

static void on_logprobs(void *ctx, struct request *r, void *owner, bool of_prompt, uint32_t index,
                        const struct engine_logprobs *l)
{
    struct storm *st = ctx;
    struct job *j = owner;
    uint64_t *got = of_prompt ? j->got.prompt : j->got.logprobs;
    const uint64_t *alone = of_prompt ? j->alone.prompt : j->alone.logprobs;
    const char *of = of_prompt ? "the prompt's token" : "token";
    if (r != j->r || j->n_ends || index >= (of_prompt ? j->spec.n_prompt : STORM_NEW_MAX) ||
        got[index])
        fail(st, j, "log-probabilities of %s %u are not due", of, index);
    if (l->n_best != (j->wishes.logprobs ? j->wishes.n_best : 0))
        fail(st, j, "%u best of %s %u, not %u", l->n_best, of, index, j->wishes.n_best);
    got[index] = digest_of(l);
    /* Rows before one that is not finite may be so too, by the chunk, and are never told then. */
    bool is_void = of_prompt && j->alone.end.finish == FINISH_ERROR && j->alone.n == 0;
    if (st->number != ALONE && got[index] != alone[index] && !is_void)
        fail(st, j, "log-probabilities of %s %u differ; its own is %a", of, index,
             (double)l->logprob);
}

static void on_token(void *ctx, struct request *r, void *owner, uint32_t index, uint32_t token,
                     uint64_t time_ns)
{
    struct storm *st = ctx;
    struct job *j = owner;
    (void)time_ns;
    if (r != j->r || j->n_ends || index != j->got.n || index >= j->spec.max_new_tokens)
        fail(st, j, "token %u where %u was due", index, j->got.n);
    if ((j->wishes.logprobs != SAMPLE_NO_LOGPROBS) != (j->got.logprobs[index] != 0))
        fail(st, j, "token %u has log-probabilities, or lacks them", index);
    if (st->number != ALONE) {
        const struct answer *a = &j->alone;
        if (index >= a->n || token != a->tokens[index])
            fail(st, j, "token %u of %u is %u, not %u", index, a->n, token, a->tokens[index]);
    }
    j->got.tokens[index] = token;
    j->got.n++;
    if (j->got.n == j->cancel_at) {
        engine_cancel(st->engine, r);
        j->is_cancelled = true;
    }
}

static void on_end(void *ctx, struct request *r, void *owner, const struct request_end *end)
{
    struct storm *st = ctx;
    struct job *j = owner;
    if (r != j->r || j->n_ends++ || end->n_generated != j->got.n ||
        end->n_prompt != j->spec.n_prompt)
        fail(st, j, "ends %u times, with %u tokens, not %u", j->n_ends, end->n_generated, j->got.n);
    j->got.end = *end;
    j->r = NULL;
}

/* Pauses a family that is there, or lets it go on. */
static void toggle_pause(struct storm *st)
{
    struct job *j = &st->jobs[draw(&st->random, st->kind.n_requests)];
    if (st->number == ALONE || j->n_family == 0 || (!j->is_paused && !j->r))
        return;
    j->is_paused = !j->is_paused;
    st->n_pauses += j->is_paused;
}

/* Lets all go on; whether anybody was held. */
static bool resume_all(struct storm *st)
{
    bool any = false;
    for (uint32_t i = 0; i < st->kind.n_requests; i++) {
        any |= st->jobs[i].is_paused;
        st->jobs[i].is_paused = false;
    }
    return any;
}

/* Those that are to be cancelled at no particular token, one of them at a time. */
static void on_look(void *ctx)
{
    struct storm *st = ctx;
    if (draw(&st->random, 6) == 0)
        toggle_pause(st);
    for (int i = 0; i < 4; i++) {
        struct job *j = &st->jobs[draw(&st->random, st->kind.n_requests)];
        if (j->r && j->cancel_at == 0) {
            engine_cancel(st->engine, j->r);
            j->is_cancelled = true;
            return;
        }
    }
}

/* Each look at the clock finds it up to 0.4 ms later. */
static uint64_t clock_drawn(void *ctx)
{
    struct storm *st = ctx;
    st->now_ns += 1 + draw(&st->clock_random, 400000);
    return st->now_ns;
}

/* ---- a run ----------------------------------------------------------------------------------- */

/* Enough for so many tokens: keys and values are f32 at most, and pages end on one of the machine's. */
static uint64_t pool_bytes(const struct storm *st, const struct storm_shape *shape)
{
    const struct tiny *t = &st->kind.tiny;
    uint64_t page = 2 * sizeof(float) * t->n_layers * t->n_embd * shape->page_size;
    return shape->pool_tokens / shape->page_size * (page / 4096 + 1) * 4096;
}

static void run_begin(struct storm *st, uint32_t number, const struct storm_shape *shape)
{
    const char *why;
    char message[MODEL_MESSAGE_MAX];
    const struct model_config model = {
        .path = st->path,
        .backend = "cpu",
        .backend_config = {.n_threads = shape->n_threads,
                           .isa = isa_level(shape->isa, false, &why) ? shape->isa : "auto"},
        .kv_dtype = st->kind.kv_dtype,
        .page_size = shape->page_size,
        .n_blocks = shape->cache_tokens / shape->page_size,
        .pool_bytes = pool_bytes(st, shape),
        .pool_share = 1,
        .max_batch_tokens = shape->max_batch_tokens,
        .max_batch_seqs = shape->max_requests_per_batch,
        .without_uring = true,
    };
    const struct engine_config config = {
        .scheduler = shape->scheduler,
        .ageing_ms = number % 3,
        .max_requests = STORM_REQUESTS,
        .max_held_tokens = STORM_REQUESTS * STORM_TOKENS_MAX,
        .max_batch_tokens = shape->max_batch_tokens,
        .max_requests_per_batch = shape->max_requests_per_batch,
        .safety_margin = -1,
        .allow_block_sharing = shape->shares,
        .step_ms_max = shape->step_ms_max,
    };
    const struct engine_sink sink = {
        .ctx = st, .look = on_look, .logprobs = on_logprobs, .token = on_token, .end = on_end};
    st->n_pauses = 0;
    st->number = number;
    st->random = st->kind.seed * 1000 + number;
    st->clock_random = ~st->random;
    st->now_ns = 0;
    st->clock = (struct clock){.now_ns = clock_drawn, .ctx = st};
    if (model_open(&st->model, &model, message))
        fail(st, NULL, "%s", message);
    cr_assert_eq(engine_new(&st->engine, &config, st->model, &sink, &st->clock), 0);
    engine_set_weights(st->engine,
                       &(struct share_weights){1, {{.uid = 0, .weight = 1 + number % 3}}});
}

static void audit(struct storm *st)
{
    const char *why;
    if (engine_check(st->engine, &why))
        fail(st, NULL, "%s", why);
}

static void run_end(struct storm *st, struct storm_counts *counts)
{
    struct engine_stats stats;
    engine_stats(st->engine, &stats);
    if (stats.n_active + stats.n_waiting || stats.n_free_blocks != stats.n_blocks ||
        stats.n_free_pool_blocks != stats.n_pool_blocks)
        fail(st, NULL, "requests or blocks are left");
    audit(st);
    engine_free(st->engine);
    model_free(st->model);
    counts->n_soft_resets += stats.n_soft_resets;
    counts->n_restores += stats.n_restores;
    counts->n_prefix_hits += stats.n_prefix_hits;
    counts->n_forks += stats.n_forks;
}

static void job_begin(struct storm *st, struct job *j)
{
    memset(&j->got, 0, sizeof j->got);
    j->n_ends = 0;
    j->is_cancelled = j->is_paused = false;
    j->spec.paused = st->number == ALONE ? NULL : &j->is_paused;
    j->cancel_at = NEVER;
    if (st->number != ALONE && draw(&st->random, 6) == 0)
        j->cancel_at = draw(&st->random, 2) ? 1 + draw(&st->random, 12) : 0;
}

/* Gives a job some of the tokens that it got alone, now and then all of them: how many. */
static uint32_t give(struct storm *st, struct job *j)
{
    const struct answer *a = &j->alone;
    if (st->number == ALONE || draw(&st->random, 3))
        return 0;
    uint32_t n = draw(&st->random, 4) ? draw(&st->random, a->n + 1) : a->n;
    memcpy(j->prompt + j->spec.n_prompt, a->tokens, n * sizeof *a->tokens);
    memcpy(j->got.tokens, a->tokens, n * sizeof *a->tokens);
    memcpy(j->got.logprobs, a->logprobs, n * sizeof *a->logprobs);
    return j->got.n = n;
}

/* The job and n - 1 continuations behind it, as one. */
static void submit(struct storm *st, struct job *j, uint32_t n)
{
    void *owners[FAMILY_MAX] = {NULL};
    struct request *requests[FAMILY_MAX] = {NULL};
    for (uint32_t i = 0; i < n; i++) {
        job_begin(st, &j[i]);
        owners[i] = &j[i];
    }
    struct request_spec spec = j->spec;
    spec.n_given = j->n_given = n == 1 ? give(st, j) : 0;
    int r = engine_submit_many(st->engine, &spec, n, owners, requests);
    if (r)
        fail(st, j, "refused: %d", r);
    for (uint32_t i = 0; i < n; i++)
        j[i].r = requests[i];
}

/* ---- alone ----------------------------------------------------------------------------------- */

/* A request fails iff it is computed with an id whose row is spoilt, in its prompt or among its own
 * tokens: it gets those before, and CB_NOT_FINITE. */
static void check_alone(const struct storm *st, const struct job *j)
{
    const struct answer *a = &j->alone;
    uint32_t bad_from = st->kind.tiny.bad_from ? st->kind.tiny.bad_from : TINY_VOCAB, n_due = 0;
    bool fails = false;
    bool runs = j->spec.max_new_tokens || (j->wishes.prompt_logprobs && j->spec.n_prompt > 1);
    for (uint32_t k = 0; k < j->spec.n_prompt && runs; k++)
        fails |= j->prompt[k] >= bad_from;
    for (uint32_t k = 1; k < j->spec.n_prompt && runs && !fails; k++)
        if (j->wishes.prompt_logprobs != (a->prompt[k] != 0))
            fail(st, j, "its prompt's token %u has log-probabilities, or lacks them", k);
    for (n_due = 0; !fails && n_due < a->n; n_due++)
        fails = a->tokens[n_due] >= bad_from && (n_due + 1 < a->n || a->end.finish == FINISH_ERROR);
    if (a->end.finish == FINISH_CANCELLED || j->n_ends != 1)
        fail(st, j, "ends %u times, with %d", j->n_ends, a->end.finish);
    if ((a->end.finish == FINISH_ERROR) != fails || a->n != n_due ||
        a->end.error != (fails ? CB_NOT_FINITE : 0))
        fail(st, j, "ends with %d, status %d, after %u of %u tokens", a->end.finish, a->end.error,
             a->n, n_due);
}

void storm_alone(struct storm *st, struct storm_counts *counts)
{
    static const struct storm_shape shape = {.max_batch_tokens = STORM_PROMPT_MAX,
                                             .page_size = 256,
                                             .cache_tokens = 1024,
                                             .max_requests_per_batch = 1,
                                             .n_threads = 1,
                                             .isa = "scalar"};
    for (uint32_t i = 0; i < st->kind.n_requests; i++) {
        struct job *j = &st->jobs[i];
        run_begin(st, ALONE, &shape);
        submit(st, j, 1);
        while (engine_step(st->engine) != ENGINE_IDLE)
            ;
        run_end(st, counts);
        j->alone = j->got;
        check_alone(st, j);
        counts->n_finishes[j->alone.end.finish]++;
    }
}

/* ---- together -------------------------------------------------------------------------------- */

static void check_together(const struct storm *st, const struct job *j)
{
    const struct request_end *e = &j->got.end, *a = &j->alone.end;
    if (j->n_ends != 1)
        fail(st, j, "never ends");
    if (e->finish == FINISH_CANCELLED && j->is_cancelled)
        return; /* on_token saw to it that it is a prefix */
    if (j->got.n != j->alone.n || e->finish != a->finish || e->error != a->error ||
        e->stop_idx != a->stop_idx || e->stop_is_id != a->stop_is_id ||
        e->text_bytes != a->text_bytes)
        fail(st, j, "ends with %d, status %d, stop %u, after %u tokens, not %d, %d, %u, %u",
             e->finish, e->error, e->stop_idx, j->got.n, a->finish, a->error, a->stop_idx,
             j->alone.n);
}

/* Those that are no continuations, in an order that is drawn; how many. */
static uint32_t shuffle(struct storm *st, uint32_t *order)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < st->kind.n_requests; i += st->jobs[i].n_family) {
        uint32_t k = draw(&st->random, n + 1);
        order[n++] = order[k];
        order[k] = i;
    }
    return n;
}

void storm_rage(struct storm *st, uint32_t number, const struct storm_shape *shape,
                struct storm_counts *counts)
{
    uint32_t order[STORM_REQUESTS], n_sent = 0;
    run_begin(st, number, shape);
    uint32_t n = shuffle(st, order);
    /* One now and then, sometimes many at once, and at once when nothing is left to do. */
    for (int r = ENGINE_IDLE; n_sent < n || r != ENGINE_IDLE;) {
        uint32_t n_now = draw(&st->random, 64) == 0  ? 1 + draw(&st->random, 60)
                         : draw(&st->random, 2) == 0 ? 1
                                                     : r == ENGINE_IDLE;
        for (; n_now > 0 && n_sent < n; n_now--, n_sent++) {
            struct job *j = &st->jobs[order[n_sent]];
            submit(st, j, j->n_family);
        }
        r = engine_step(st->engine);
        if (r == ENGINE_IDLE && n_sent == n && resume_all(st))
            r = 0;
        if (draw(&st->random, 16) == 0)
            audit(st);
        if (draw(&st->random, 4) == 0)
            engine_populate_some(st->engine, 1);
    }
    run_end(st, counts);
    counts->n_pauses += st->n_pauses;
    for (uint32_t i = 0; i < st->kind.n_requests; i++) {
        const struct job *j = &st->jobs[i];
        check_together(st, j);
        counts->n_finishes[j->got.end.finish]++;
        counts->n_given += j->n_given > 0;
        counts->n_scored += j->wishes.prompt_logprobs && j->got.n > 0;
        counts->n_cut += j->is_cancelled && j->got.n > 0 && j->got.n < j->alone.n;
    }
}
