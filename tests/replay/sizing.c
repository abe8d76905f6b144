/* Memory sizing against recorded results: the intermediate values, then what came of them. */
#include "daemon/cache/sizing.h"

#include <inttypes.h>
#include <string.h>

#include "tests/replay/replay.h"

#define BATCH_TOKENS 8192 /* where a case gives none */
#define REQUESTS     1024

static int64_t integer(const json_t *o, const char *key)
{
    return json_integer_value(json_object_get(o, key));
}

/* An integer that may be null. */
static int64_t given(const json_t *o, const char *key, int64_t otherwise)
{
    const json_t *v = json_object_get(o, key);

    return json_is_integer(v) ? json_integer_value(v) : otherwise;
}

static bool is_true(const json_t *o, const char *key)
{
    return json_is_true(json_object_get(o, key));
}

static void same(struct replay *r, const json_t *want, const char *key, int64_t got)
{
    if (!json_object_get(want, key) || integer(want, key) != got)
        replay_differs(r, "%s is %" PRId64 " instead of %" PRId64, key, got, integer(want, key));
}

static void read_layers(const json_t *c, struct sizing_layers *layers, bool *has_slidingp)
{
    const json_t *types = json_object_get(c, "layer_types"), *type;
    const char *first = NULL;
    size_t i;

    *layers = (struct sizing_layers){.page_size = (uint32_t)integer(c, "page_size")};
    layers->page_bytes = 2u * (uint64_t)integer(c, "kv_heads") * (uint64_t)integer(c, "head_dim") *
                         (uint64_t)integer(c, "element_size") * layers->page_size;
    *has_slidingp = false;
    json_array_foreach(types, i, type)
    {
        const char *name = json_string_value(type);
        uint32_t g = first && strcmp(first, name) != 0;

        first = first ? first : name;
        *has_slidingp |= strcmp(name, "sliding_attention") == 0;
        layers->n_groups = g + 1 > layers->n_groups ? g + 1 : layers->n_groups;
        layers->n_layers[g]++;
    }
}

static struct sizing_model read_model(const json_t *c, uint32_t n_groups, bool has_sliding)
{
    const char *attention = json_string_value(json_object_get(c, "attention"));

    return (struct sizing_model){
        .element_size = (uint32_t)integer(c, "element_size"),
        .n_embd = (uint32_t)integer(c, "hidden_size"),
        .n_vocab = (uint32_t)integer(c, "vocab_size"),
        .n_heads = (uint32_t)integer(c, "heads"),
        .n_kv_heads = (uint32_t)integer(c, "kv_heads"),
        .head_dim = (uint32_t)integer(c, "head_dim"),
        .n_groups = n_groups,
        .has_sliding = has_sliding,
        .flash = attention && strcmp(attention, "flash") == 0,
        .selects = is_true(c, "selects_before_lm_head"),
        .async = is_true(c, "async"),
        .logprobs = is_true(c, "logprobs"),
        .max_requests = (uint32_t)given(c, "max_requests_per_batch", REQUESTS),
        .max_blocks = (uint32_t)given(c, "max_blocks_per_request", 0),
    };
}

static void compare_parts(struct replay *r, const json_t *want, const struct sizing_sector *sector,
                          const struct sizing_costs *costs)
{
    same(r, want, "available_bytes", costs->available_bytes);
    same(r, want, "bytes_per_sector", sector->bytes);
    same(r, want, "tokens_per_sector", sector->n_tokens);
    same(r, want, "bytes_per_block", sector->model_bytes);
    same(r, want, "bytes_per_batch_token", costs->batch_token_bytes);
    same(r, want, "bytes_per_cache_token",
         (costs->sector_bytes - sector->bytes) / sector->n_tokens);
    same(r, want, "fixed_bytes", costs->fixed_bytes);
}

static void run_case(struct replay *r, const json_t *c)
{
    const json_t *want = json_object_get(c, "expect");
    const char *error = json_string_value(json_object_get(want, "error"));
    int64_t batch_tokens = given(c, "max_batch_tokens", BATCH_TOKENS);
    int64_t n_blocks = given(c, "num_blocks", SIZING_NONE);
    const struct sizing_memory memory = {
        .total_bytes = integer(c, "total_bytes"),
        .reserved_bytes = integer(c, "reserved_bytes"),
        .allocated_bytes = integer(c, "allocated_bytes"),
        .share = json_number_value(json_object_get(c, "max_memory_percent")),
    };
    struct sizing_layers layers;
    struct sizing_sector sector;
    struct sizing_costs costs;
    struct sizing_fit fit;
    bool has_sliding;

    read_layers(c, &layers, &has_sliding);
    sizing_sector(&layers, &sector);
    const struct sizing_model model = read_model(c, layers.n_groups, has_sliding);
    sizing_costs(&model, &sector, &memory, &costs);
    compare_parts(r, json_object_get(c, "parts"), &sector, &costs);
    int outcome = sizing_fit(
        &costs, batch_tokens,
        n_blocks == SIZING_NONE ? SIZING_NONE : sizing_sectors_for(&sector, n_blocks), &fit);
    const char *got = outcome == SIZING_TOO_LARGE ? "memory" : outcome ? "value" : NULL;
    if (!!got != !!error || (got && strcmp(got, error) != 0))
        replay_differs(r, "%s instead of %s", got ? got : "a size", error ? error : "a size");
    if (got || error)
        return;
    same(r, want, "num_sectors", fit.n_sectors);
    same(r, want, "num_blocks", fit.n_sectors * sector.bytes / sector.model_bytes);
    same(r, want, "max_batch_tokens", batch_tokens);
    same(r, want, "read_budget", fit.n_sectors * sector.n_tokens);
    same(r, want, "footprint_bytes", fit.footprint_bytes);
}

static bool matches(const json_t *root)
{
    return json_object_get(json_array_get(json_object_get(root, "cases"), 0), "total_bytes");
}

static void run(struct replay *r, const json_t *root)
{
    const json_t *c;
    size_t i;

    json_array_foreach(json_object_get(root, "cases"), i, c)
    {
        const char *name = json_string_value(json_object_get(c, "name"));

        run_case(r, c);
        replay_case(r, name ? name : "a case without a name");
    }
}

const struct replay_form replay_sizing = {.name = "memory sizing", .matches = matches, .run = run};
