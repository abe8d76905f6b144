/* The scheduler against recorded decisions of the reference implementation, step by step: the
 * engine runs each workload over a scripted model, and every batch must be the recorded one, in the
 * recorded order. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "daemon/base/clock.h"
#include "daemon/engine.h"
#include "daemon/sched/batch.h"
#include "tests/fake_model.h"

enum { REQUESTS_MAX = 64, STEPS_MAX = 400, PROMPT_MAX = 512, VOCAB = 65536 };

struct traced {
    const char *id;
    struct request *r; /* NULL: not accepted, or ended */
    enum finish finish;
    json_int_t finished_at, prefix_hit;
};

struct replay {
    struct traced requests[REQUESTS_MAX];
    size_t n_requests, n_ended;
    struct engine *engine;
    json_int_t step, first_token;
    char why[256]; /* first difference; "": none */
};

static json_t *traces(void)
{
    json_error_t error;
    json_t *root = json_load_file("tests/data/scheduler-traces.json", 0, &error);
    cr_assert_not_null(root, "%s", error.text);
    return root;
}

static json_int_t integer(const json_t *o, const char *key)
{
    return json_integer_value(json_object_get(o, key));
}

/* ---- the engine's two sides ------------------------------------------------------------------ */

static int run(void *ctx, const struct step *step, const struct sample_params *params,
               struct sample *samples)
{
    struct replay *p = ctx;
    const struct batch *b = engine_batch(p->engine);
    (void)params;
    uint32_t n = 0;
    for (uint32_t i = 0; i < b->n_entries; i++)
        if (b->entries[i].yields) {
            struct request_info info;
            engine_request_info(b->entries[i].r, &info);
            json_int_t idx = (struct traced *)info.owner - p->requests;
            samples[b->entries[i].output_idx] =
                (struct sample){.token = (uint32_t)(p->first_token + idx)};
            n++;
        }
    cr_assert_eq(n, step->n_outputs);
    return 0;
}

static void on_token(void *ctx, struct request *r, void *owner, uint32_t index, uint32_t token,
                     uint64_t time_ns)
{
    struct replay *p = ctx;
    (void)r;
    (void)index;
    (void)time_ns;
    cr_assert_eq(token, (uint32_t)(p->first_token + ((struct traced *)owner - p->requests)));
}

static void on_end(void *ctx, struct request *r, void *owner, const struct request_end *end)
{
    struct replay *p = ctx;
    struct traced *t = owner;
    (void)r;
    cr_assert_not_null(t->r, "%s ended twice", t->id);
    t->r = NULL;
    t->finish = end->finish;
    t->finished_at = end->finish == FINISH_LENGTH ? p->step : -1;
    t->prefix_hit = end->n_prefix_hit;
    p->n_ended++;
}

/* ---- one workload ---------------------------------------------------------------------------- */

static struct engine *engine_of(struct replay *p, const json_t *w, struct model *m)
{
    static struct virtual_clock time;
    static struct clock clock;
    virtual_clock_init(&time, &clock);
    bool fifo = strcmp(json_string_value(json_object_get(w, "scheduler")), "fifo") == 0;
    struct engine_config config = {
        .scheduler = fifo ? SCHEDULER_FIFO : SCHEDULER_PREFILL_FIRST,
        .max_requests = REQUESTS_MAX,
        .max_held_tokens = UINT32_MAX,
        .max_batch_tokens = (uint32_t)integer(w, "max_batch_tokens"),
        .max_requests_per_batch = (uint32_t)integer(w, "max_requests_per_batch"),
        .max_blocks_per_request = (uint32_t)integer(w, "max_blocks_per_request"),
        .safety_margin = json_number_value(json_object_get(w, "safety_margin")),
        .allow_block_sharing = json_is_true(json_object_get(w, "allow_block_sharing")),
    };
    struct engine_sink sink = {.ctx = p, .token = on_token, .end = on_end};
    cr_assert_eq(engine_new(&p->engine, &config, m, &sink, &clock), 0);
    return p->engine;
}

static void submit(struct replay *p, size_t i, const json_t *request)
{
    static uint32_t prompt[PROMPT_MAX];
    const json_t *ids = json_object_get(request, "prompt");
    size_t n = json_is_array(ids) ? json_array_size(ids) : (size_t)integer(ids, "n");
    cr_assert_leq(n, (size_t)PROMPT_MAX);
    for (size_t k = 0; k < n; k++)
        prompt[k] = (uint32_t)(json_is_array(ids) ? json_integer_value(json_array_get(ids, k))
                                                  : integer(ids, "base") + (json_int_t)k);
    struct request_spec spec = {.prompt = prompt,
                                .n_prompt = (uint32_t)n,
                                .max_new_tokens = (uint32_t)integer(request, "max_new_tokens"),
                                .top_p = 1,
                                .owner = &p->requests[i]};
    p->requests[i].id = json_string_value(json_object_get(request, "id"));
    int r = engine_submit(p->engine, &spec, &p->requests[i].r);
    if (r == ENGINE_TOO_BIG)
        p->n_ended++;
    else
        cr_assert_eq(r, 0);
}

static void events_of_step(struct replay *p, const json_t *w)
{
    size_t i;
    const json_t *v;
    json_array_foreach(json_object_get(w, "requests"), i, v)
    {
        if (integer(v, "arrives_at_step") == p->step)
            submit(p, i, v);
    }
    json_array_foreach(json_object_get(w, "cancels"), i, v)
    {
        if (integer(v, "at_step") != p->step)
            continue;
        const char *id = json_string_value(json_object_get(v, "id"));
        for (size_t k = 0; k < p->n_requests; k++)
            if (p->requests[k].r && strcmp(p->requests[k].id, id) == 0)
                engine_cancel(p->engine, p->requests[k].r);
    }
}

/* Writes down the first difference between this step's batch and the recorded one. */
static void compare(struct replay *p, const json_t *want)
{
    const struct batch *b = engine_batch(p->engine);
    if (p->why[0])
        return;
    if (b->n_entries != json_array_size(want))
        snprintf(p->why, sizeof p->why, "step %lld: %u entries instead of %zu", (long long)p->step,
                 b->n_entries, json_array_size(want));
    for (uint32_t i = 0; i < b->n_entries && !p->why[0]; i++) {
        const struct batch_entry *got = &b->entries[i];
        const json_t *entry = json_array_get(want, i);
        struct request_info info;
        engine_request_info(got->r, &info);
        const char *id = ((struct traced *)info.owner)->id;
        if (strcmp(id, json_string_value(json_object_get(entry, "id"))) != 0 ||
            got->past != integer(entry, "past") || got->n_tokens != integer(entry, "q") ||
            got->yields != json_is_true(json_object_get(entry, "yields")))
            snprintf(p->why, sizeof p->why, "step %lld, entry %u: %s past %u q %u yields %d",
                     (long long)p->step, i, id, got->past, got->n_tokens, got->yields);
    }
}

/* Runs a workload until all requests ended, but compares its first n_compared steps only. */
static void replay(struct replay *p, const json_t *root, const json_t *w, size_t n_compared)
{
    const json_t *steps = json_object_get(w, "steps");
    memset(p, 0, sizeof *p);
    p->first_token = integer(root, "first_token");
    p->n_requests = json_array_size(json_object_get(w, "requests"));
    cr_assert_leq(p->n_requests, (size_t)REQUESTS_MAX);
    struct fake_model *fake = fake_model_new(VOCAB, (uint32_t)integer(w, "num_blocks"),
                                             (uint32_t)integer(w, "page_size"), 4096);
    cr_assert_not_null(fake);
    fake->ctx = p;
    fake->run = run;
    struct engine *e = engine_of(p, w, &fake->model);
    for (; p->step < (json_int_t)json_array_size(steps) || p->n_ended < p->n_requests; p->step++) {
        const char *why = "";
        cr_assert_lt(p->step, STEPS_MAX, "%s does not end",
                     json_string_value(json_object_get(w, "name")));
        events_of_step(p, w);
        engine_step(e);
        if ((size_t)p->step < n_compared)
            compare(p, json_array_get(steps, (size_t)p->step));
        cr_assert_eq(engine_check(e, &why), 0, "%s", why);
    }
    struct engine_stats stats;
    engine_stats(e, &stats);
    cr_assert_eq(stats.n_free_blocks, stats.n_blocks);
    engine_free(e);
    model_free(&fake->model);
}

static void compare_ends(struct replay *p, const json_t *w)
{
    const json_t *finished = json_object_get(w, "finished_at_step");
    for (size_t i = 0; i < p->n_requests && !p->why[0]; i++) {
        const json_t *at = json_object_get(finished, p->requests[i].id);
        json_int_t want = at ? json_integer_value(at) : -1;
        if (p->requests[i].finished_at != want)
            snprintf(p->why, sizeof p->why, "%s finished at step %lld instead of %lld",
                     p->requests[i].id, (long long)p->requests[i].finished_at, (long long)want);
    }
    const json_t *hits = json_object_get(w, "prefix_hits");
    for (size_t i = 0; i < p->n_requests && !p->why[0]; i++) {
        json_int_t want = integer(hits, p->requests[i].id);
        if (p->requests[i].prefix_hit != want)
            snprintf(p->why, sizeof p->why, "%s took over %lld tokens instead of %lld",
                     p->requests[i].id, (long long)p->requests[i].prefix_hit, (long long)want);
    }
}

Test(traces, exact_workloads_match_step_by_step)
{
    json_t *root = traces(), *w;
    static struct replay p;
    size_t i;
    json_array_foreach(json_object_get(root, "workloads"), i, w)
    {
        const char *name = json_string_value(json_object_get(w, "name"));
        replay(&p, root, w, SIZE_MAX);
        compare_ends(&p, w);
        cr_expect_str_empty(p.why, "%s: %s", name, p.why);
    }
    cr_assert_eq(i, (size_t)58);
    json_decref(root);
}

Test(traces, under_pressure_all_end)
{
    json_t *root = traces(), *w;
    static struct replay p;
    size_t i;
    json_array_foreach(json_object_get(root, "pressure"), i, w)
    {
        /* The one of them that depends on nothing but whose blocks are taken. */
        bool exact = strcmp(json_string_value(json_object_get(w, "name")), "two-outgrow") == 0;
        replay(&p, root, w, exact ? SIZE_MAX : 0);
        if (exact)
            compare_ends(&p, w);
        cr_expect_str_empty(p.why, "two-outgrow: %s", p.why);
        cr_expect_eq(p.n_ended, p.n_requests);
        for (size_t k = 0; k < p.n_requests; k++)
            cr_expect_neq(p.requests[k].finish, FINISH_ERROR);
    }
    json_decref(root);
}
