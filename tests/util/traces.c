/* The scheduler against recorded decisions of the reference implementation: the engine runs each
 * workload over a scripted model, and looks at every batch. */
#include "tests/util/traces.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/clock.h"
#include "daemon/cache/sizing.h"
#include "daemon/engine.h"
#include "daemon/sched/batch.h"
#include "tests/fake_model.h"

enum { STEPS_MAX = 100000, CONTEXT = 1 << 20, PAGE_BYTES_A_TOKEN = 128 };

struct traced {
    const json_t *json;
    const char *id;
    struct request *r; /* NULL: not accepted, or ended */
    bool has_ended;
    enum finish finish;
    json_int_t finished_at, prefix_hit;
};

struct run {
    const json_t *workload;
    enum scheduler_kind fifo;
    struct traced *requests; /* [n_requests] */
    size_t n_requests, n_ended;
    uint32_t *prompt; /* scratch */
    struct engine *engine;
    struct fake_model *fake;
    struct virtual_clock time;
    struct clock clock;
    json_int_t step, first_token;
    char *why, *differs;
};

static void note(char *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The first note stays. */
static void note(char *text, const char *format, ...)
{
    va_list args;

    if (text[0])
        return;
    va_start(args, format);
    vsnprintf(text, TRACES_WHY_MAX, format, args);
    va_end(args);
}

static json_int_t integer(const json_t *o, const char *key)
{
    return json_integer_value(json_object_get(o, key));
}

static const char *string(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));

    return s ? s : "";
}

/* ---- the engine's two sides ------------------------------------------------------------------ */

static struct traced *traced_of(const struct request *r)
{
    struct request_info info;

    engine_request_info(r, &info);
    return info.owner;
}

static int answer(void *ctx, const struct step *step, const struct sample_params *params,
                  struct sample *samples)
{
    struct run *p = ctx;
    const struct batch *b = engine_batch(p->engine);
    uint32_t n = 0;

    (void)params;
    for (uint32_t i = 0; i < b->n_entries; i++) {
        if (!b->entries[i].yields)
            continue;
        json_int_t idx = traced_of(b->entries[i].r) - p->requests;
        samples[b->entries[i].output_idx] =
            (struct sample){.token = (uint32_t)(p->first_token + idx)};
        n++;
    }
    if (n != step->n_outputs)
        note(p->why, "step %" JSON_INTEGER_FORMAT ": %u outputs for %u entries that yield", p->step,
             step->n_outputs, n);
    return 0;
}

static void on_token(void *ctx, struct request *r, void *owner, uint32_t index, uint32_t token,
                     uint64_t time_ns)
{
    struct run *p = ctx;
    struct traced *t = owner;

    (void)r;
    (void)index;
    (void)time_ns;
    if (token != (uint32_t)(p->first_token + (t - p->requests)))
        note(p->why, "%s got another request's token", t->id);
}

static void on_end(void *ctx, struct request *r, void *owner, const struct request_end *end)
{
    struct run *p = ctx;
    struct traced *t = owner;

    (void)r;
    if (t->has_ended)
        note(p->why, "%s ended twice", t->id);
    if (end->finish == FINISH_ERROR)
        note(p->why, "%s ended with error %d", t->id, end->error);
    t->r = NULL;
    t->has_ended = true;
    t->finish = end->finish;
    t->finished_at = end->finish == FINISH_LENGTH ? p->step : -1;
    t->prefix_hit = end->n_prefix_hit;
    p->n_ended++;
}

/* ---- setting up ------------------------------------------------------------------------------ */

/* Sectors and blocks for the workload's layers; without layer_types, one that sees all keys. */
static void shape_cache(const json_t *w, struct model_info *info)
{
    const json_t *types = json_object_get(w, "layer_types"), *type;
    struct sizing_layers layers = {.page_size = info->page_size};
    struct sizing_sector sector;
    const char *names[SIZING_GROUPS_MAX] = {NULL};
    size_t i;

    layers.page_bytes = (uint64_t)info->page_size * PAGE_BYTES_A_TOKEN;
    json_array_foreach(types, i, type)
    {
        const char *name = json_string_value(type);
        uint32_t g = layers.n_groups > 0 && strcmp(names[0], name) != 0;

        if (g == layers.n_groups) {
            names[layers.n_groups++] = name;
            info->groups[g].window =
                strcmp(name, "sliding_attention") == 0 ? (uint32_t)integer(w, "sliding_window") : 0;
        }
        layers.n_layers[g]++;
    }
    if (layers.n_groups == 0) {
        layers.n_groups = 1;
        layers.n_layers[0] = 1;
    }
    sizing_sector(&layers, &sector);
    info->n_groups = layers.n_groups;
    info->n_blocks = (uint32_t)sizing_sectors_for(&sector, integer(w, "num_blocks"));
    for (uint32_t g = 0; g < layers.n_groups; g++)
        info->groups[g].blocks_per_sector = sector.n_blocks[g];
}

static uint32_t prompt_of(const json_t *request, uint32_t *prompt)
{
    const json_t *ids = json_object_get(request, "prompt");
    size_t n = json_is_array(ids) ? json_array_size(ids) : (size_t)integer(ids, "n");

    for (size_t k = 0; k < n && prompt; k++)
        prompt[k] = (uint32_t)(json_is_array(ids) ? json_integer_value(json_array_get(ids, k))
                                                  : integer(ids, "base") + (json_int_t)k);
    return (uint32_t)n;
}

/* A vocabulary that holds every id of the workload; its last one, the end of a sequence, none. */
static uint32_t vocabulary_of(struct run *p)
{
    uint32_t most = (uint32_t)(p->first_token + (json_int_t)p->n_requests);

    for (size_t i = 0; i < p->n_requests; i++) {
        uint32_t n = prompt_of(p->requests[i].json, p->prompt);

        for (uint32_t k = 0; k < n; k++)
            most = p->prompt[k] > most ? p->prompt[k] : most;
    }
    return most + 2 < 512 ? 512 : most + 2;
}

static bool open_requests(struct run *p)
{
    const json_t *list = json_object_get(p->workload, "requests");
    uint32_t longest = 1;

    p->n_requests = json_array_size(list);
    p->requests = calloc(p->n_requests + 1, sizeof *p->requests);
    for (size_t i = 0; i < p->n_requests && p->requests; i++) {
        const json_t *request = json_array_get(list, i);
        uint32_t n = prompt_of(request, NULL);

        p->requests[i] = (struct traced){.json = request, .id = string(request, "id")};
        p->requests[i].finished_at = -1;
        longest = n > longest ? n : longest;
    }
    p->prompt = malloc(longest * sizeof *p->prompt);
    return p->requests && p->prompt;
}

static bool open_engine(struct run *p)
{
    const json_t *w = p->workload;
    const struct engine_sink sink = {.ctx = p, .token = on_token, .end = on_end};
    struct engine_config config = {
        .scheduler =
            strcmp(string(w, "scheduler"), "fifo") == 0 ? p->fifo : SCHEDULER_PREFILL_FIRST,
        .max_requests = (uint32_t)p->n_requests + 1,
        .max_held_tokens = UINT32_MAX,
        .max_batch_tokens = (uint32_t)integer(w, "max_batch_tokens"),
        .max_requests_per_batch = (uint32_t)integer(w, "max_requests_per_batch"),
        .max_blocks_per_request = (uint32_t)integer(w, "max_blocks_per_request"),
        .safety_margin = json_number_value(json_object_get(w, "safety_margin")),
        .allow_block_sharing = json_is_true(json_object_get(w, "allow_block_sharing")),
    };

    p->fake = fake_model_new(vocabulary_of(p), 1, (uint32_t)integer(w, "page_size"), CONTEXT);
    if (!p->fake)
        return false;
    p->fake->ctx = p;
    p->fake->run = answer;
    shape_cache(w, &p->fake->model.info);
    virtual_clock_init(&p->time, &p->clock);
    return engine_new(&p->engine, &config, &p->fake->model, &sink, &p->clock) == 0;
}

/* ---- running --------------------------------------------------------------------------------- */

static void submit(struct run *p, struct traced *t)
{
    const struct request_spec spec = {
        .prompt = p->prompt,
        .n_prompt = prompt_of(t->json, p->prompt),
        .max_new_tokens = (uint32_t)integer(t->json, "max_new_tokens"),
        .top_p = 1,
        .owner = t,
    };
    int r = engine_submit(p->engine, &spec, &t->r);

    if (r == 0)
        return;
    if (r != ENGINE_TOO_BIG)
        note(p->why, "%s was not accepted: %d", t->id, r);
    t->has_ended = true;
    p->n_ended++;
}

static void events_of_step(struct run *p)
{
    const json_t *v;
    size_t i;

    for (i = 0; i < p->n_requests; i++)
        if (integer(p->requests[i].json, "arrives_at_step") == p->step)
            submit(p, &p->requests[i]);
    json_array_foreach(json_object_get(p->workload, "cancels"), i, v)
    {
        if (integer(v, "at_step") != p->step)
            continue;
        for (size_t k = 0; k < p->n_requests; k++)
            if (p->requests[k].r && strcmp(p->requests[k].id, string(v, "id")) == 0)
                engine_cancel(p->engine, p->requests[k].r);
    }
}

static void compare_step(struct run *p, const json_t *want)
{
    const struct batch *b = engine_batch(p->engine);

    if (b->n_entries != json_array_size(want))
        note(p->differs, "step %" JSON_INTEGER_FORMAT ": %u entries instead of %zu", p->step,
             b->n_entries, json_array_size(want));
    for (uint32_t i = 0; i < b->n_entries && !p->differs[0]; i++) {
        const struct batch_entry *got = &b->entries[i];
        const json_t *entry = json_array_get(want, i);
        const char *id = traced_of(got->r)->id;

        if (strcmp(id, string(entry, "id")) != 0 || got->past != integer(entry, "past") ||
            got->n_tokens != integer(entry, "q") ||
            got->yields != json_is_true(json_object_get(entry, "yields")))
            note(p->differs,
                 "step %" JSON_INTEGER_FORMAT ", entry %u: %s past %u q %u%s instead of "
                 "%s past %" JSON_INTEGER_FORMAT " q %" JSON_INTEGER_FORMAT "%s",
                 p->step, i, id, got->past, got->n_tokens, got->yields ? " yields" : "",
                 string(entry, "id"), integer(entry, "past"), integer(entry, "q"),
                 json_is_true(json_object_get(entry, "yields")) ? " yields" : "");
    }
}

static void compare_ends(struct run *p)
{
    const json_t *finished = json_object_get(p->workload, "finished_at_step");
    const json_t *hits = json_object_get(p->workload, "prefix_hits");

    for (size_t i = 0; i < p->n_requests; i++) {
        const struct traced *t = &p->requests[i];
        const json_t *at = json_object_get(finished, t->id);
        json_int_t end = at ? json_integer_value(at) : -1;

        if (t->finished_at != end)
            note(p->differs,
                 "%s finished at step %" JSON_INTEGER_FORMAT " instead of %" JSON_INTEGER_FORMAT,
                 t->id, t->finished_at, end);
        if (t->prefix_hit != integer(hits, t->id))
            note(p->differs,
                 "%s took over %" JSON_INTEGER_FORMAT " tokens instead of %" JSON_INTEGER_FORMAT,
                 t->id, t->prefix_hit, integer(hits, t->id));
    }
}

static void run_steps(struct run *p)
{
    const json_t *steps = json_object_get(p->workload, "steps");
    json_int_t n_steps = (json_int_t)json_array_size(steps);
    struct engine_stats stats;

    for (; (p->step < n_steps || p->n_ended < p->n_requests) && !p->why[0]; p->step++) {
        const char *audit = "";

        events_of_step(p);
        engine_step(p->engine);
        compare_step(p, json_array_get(steps, (size_t)p->step));
        if (engine_check(p->engine, &audit))
            note(p->why, "step %" JSON_INTEGER_FORMAT ": %s", p->step, audit);
        if (p->step > STEPS_MAX)
            note(p->why, "it does not end");
    }
    engine_stats(p->engine, &stats);
    if (!p->why[0] && stats.n_free_blocks != stats.n_blocks)
        note(p->why, "%u blocks are lost", stats.n_blocks - stats.n_free_blocks);
    compare_ends(p);
}

void traces_run(const json_t *root, const json_t *workload, enum scheduler_kind fifo,
                char why[TRACES_WHY_MAX], char differs[TRACES_WHY_MAX])
{
    struct run p = {.workload = workload,
                    .fifo = fifo,
                    .first_token = integer(root, "first_token"),
                    .why = why,
                    .differs = differs};

    why[0] = differs[0] = '\0';
    if (open_requests(&p) && open_engine(&p))
        run_steps(&p);
    else
        note(why, "the engine could not be made");
    engine_free(p.engine);
    if (p.fake)
        model_free(&p.fake->model);
    free(p.requests);
    free(p.prompt);
}
