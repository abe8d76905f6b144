/* The order matters, for later steps read what earlier ones decided: deprecated names, which decide
 * over what they stand for; sizes; whether decoding has a path of its own; tuning; graphs; overlap,
 * which goes with graphs. */
#include "daemon/settings_resolve.h"

#include <stdio.h>
#include <string.h>

#define BATCH_TOKENS   512u
#define BATCH_REQUESTS 1024u
#define Q_INTERVAL     64u
#define KV_INTERVAL    16384u
#define LEVEL_MAX      3u

static bool is(const char *word, const char *other)
{
    return strcmp(word, other) == 0;
}

static uint32_t number_or(uint64_t value, uint32_t otherwise)
{
    return value == SETTING_NONE ? otherwise : (uint32_t)value;
}

/* Blocks for the longest request that is expected, one to grow into, and even; 0: nobody said. */
static uint32_t hinted_blocks(const struct settings *set, uint32_t page_size)
{
    uint64_t tokens = set->hint_max_prompt_length + set->hint_max_generated_length;
    uint64_t blocks = (tokens + page_size - 1) / page_size + 1;
    return tokens ? (uint32_t)(blocks + blocks % 2) : 0;
}

static void resolve_sizes(const struct settings *set, const struct settings_facts *facts,
                          struct settings_resolved *r)
{
    r->page_size = number_or(set->block_size, (uint32_t)set->page_size);
    r->max_batch_tokens = number_or(set->max_batch_tokens, BATCH_TOKENS);
    uint64_t expected = set->hint_num_requests;
    uint32_t hinted = hinted_blocks(set, r->page_size);
    r->max_requests_per_batch =
        number_or(set->max_requests_per_batch,
                  expected && expected < BATCH_REQUESTS ? (uint32_t)expected : BATCH_REQUESTS);
    if (r->max_requests_per_batch > r->max_batch_tokens)
        r->max_requests_per_batch = r->max_batch_tokens;
    /* What is behind a window is given back, so tables of a fixed width would have holes. */
    r->max_blocks_per_request =
        facts->has_windows
            ? 0
            : number_or(set->max_blocks_per_request,
                        facts->table_blocks && hinted ? hinted : facts->table_blocks);
}

static void resolve_levels(const struct settings *set, struct settings_resolved *r)
{
    r->level = is(set->use_default_compile_configs, "true") ? LEVEL_MAX
               : is(set->use_default_compile_configs, "false")
                   ? 0
                   : (uint32_t)set->default_compile_level;
    r->mixed_level = number_or(set->varlen_compile_config, r->level);
    r->decode_level =
        r->max_blocks_per_request ? number_or(set->decode_compile_config, r->level) : 0;
}

static void resolve_graphs(const struct settings *set, const struct settings_facts *facts,
                           struct settings_resolved *r)
{
    const char *given = set->use_cuda_graph, *comma = strchr(given, ',');
    bool interval = set->q_padding_interval_size || set->kv_padding_interval_size;
    r->q_interval =
        set->q_padding_interval_size ? (uint32_t)set->q_padding_interval_size : Q_INTERVAL;
    r->kv_interval =
        set->kv_padding_interval_size ? (uint32_t)set->kv_padding_interval_size : KV_INTERVAL;
    if (!facts->has_graphs)
        r->mixed_graphs = r->decode_graphs = false;
    else if (!is(given, "none")) {
        r->mixed_graphs = *given == 't';
        r->decode_graphs = comma ? comma[1] == 't' : *given == 't';
    } else {
        r->mixed_graphs = r->decode_graphs = interval || !facts->needs_mask;
    }
    r->overlaps =
        facts->overlaps && (is(set->use_async_batching, "none")
                                ? (r->mixed_graphs || r->decode_graphs) && !facts->needs_mask
                                : is(set->use_async_batching, "true"));
}

static enum scheduler_kind scheduler_of(const struct settings *set)
{
    static const char *const words[] = {[SCHEDULER_FIFO] = "fifo",
                                        [SCHEDULER_PREFILL_FIRST] = "prefill_first",
                                        [SCHEDULER_PRIORITY] = "priority",
                                        [SCHEDULER_FAIR] = "fair",
                                        [SCHEDULER_AUTO] = "auto"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strcmp(words[i], set->scheduler) == 0)
            return (enum scheduler_kind)i;
    return SCHEDULER_AUTO;
}

void settings_resolve(const struct settings *set, const struct settings_facts *facts,
                      struct settings_resolved *r)
{
    memset(r, 0, sizeof *r);
    resolve_sizes(set, facts, r);
    resolve_levels(set, r);
    resolve_graphs(set, facts, r);
    r->scheduler = scheduler_of(set);
    r->safety_margin =
        set->safety_margin >= 0 ? set->safety_margin : policy_safety_margin(r->scheduler);
    r->kv_dtype = !is(set->kv_dtype, "auto")      ? set->kv_dtype
                  : is(set->backend, "reference") ? "f32"
                                                  : "bf16";
}

/* ---- as text --------------------------------------------------------------------------------- */

static const char *word(bool b)
{
    return b ? "true" : "false";
}

/* The number that a row comes to, if it comes to a number. */
static bool resolved_number(const struct settings *set, const struct settings_facts *facts,
                            const struct settings_resolved *r, uint32_t i, uint64_t *np)
{
    switch (i) {
    case SETTINGS_ROW_page_size:
        return *np = r->page_size, true;
    case SETTINGS_ROW_num_blocks:
        return *np = facts->n_blocks, facts->n_blocks != 0;
    case SETTINGS_ROW_max_batch_tokens:
        return *np = r->max_batch_tokens, true;
    case SETTINGS_ROW_max_requests_per_batch:
        return *np = r->max_requests_per_batch, true;
    case SETTINGS_ROW_max_blocks_per_request:
        return *np = r->max_blocks_per_request, true;
    case SETTINGS_ROW_q_padding_interval_size:
        return *np = r->q_interval, true;
    case SETTINGS_ROW_kv_padding_interval_size:
        return *np = r->kv_interval, true;
    case SETTINGS_ROW_default_compile_level:
        return *np = r->level, true;
    case SETTINGS_ROW_varlen_compile_config:
        return *np = r->mixed_level, true;
    case SETTINGS_ROW_decode_compile_config:
        return *np = r->decode_level, true;
    case SETTINGS_ROW_threads:
        return *np = facts->n_threads, facts->n_threads && set->threads == SETTING_NONE;
    }
    return false;
}

void settings_resolved_value(const struct settings *set, const struct settings_facts *facts,
                             uint32_t i, char text[SETTINGS_TEXT_MAX])
{
    struct settings_resolved r;
    uint64_t n;
    settings_resolve(set, facts, &r);
    if (resolved_number(set, facts, &r, i, &n)) {
        snprintf(text, SETTINGS_TEXT_MAX, "%llu", (unsigned long long)n);
        return;
    }
    settings_value(set, i, text);
    switch (i) {
    case SETTINGS_ROW_max_memory_percent:
        if (set->max_memory_percent < 0 && set->num_blocks == SETTING_NONE)
            strcpy(text, "0.6, at most eight contexts");
        break;
    case SETTINGS_ROW_safety_margin:
        snprintf(text, SETTINGS_TEXT_MAX, "%.9g", r.safety_margin);
        break;
    case SETTINGS_ROW_cpu_offload_space:
        if (facts->n_blocks)
            snprintf(text, SETTINGS_TEXT_MAX, "%.9g", facts->pool_gib);
        break;
    case SETTINGS_ROW_use_cuda_graph:
        snprintf(text, SETTINGS_TEXT_MAX, "%s,%s", word(r.mixed_graphs), word(r.decode_graphs));
        break;
    case SETTINGS_ROW_use_async_batching:
        strcpy(text, word(r.overlaps));
        break;
    case SETTINGS_ROW_isa:
        if (facts->isa)
            snprintf(text, SETTINGS_TEXT_MAX, "%s", facts->isa);
        break;
    case SETTINGS_ROW_kv_dtype:
        strcpy(text, r.kv_dtype);
        break;
    }
}

/* ---- what does nothing ----------------------------------------------------------------------- */

static const char *idle_on_backend(const struct settings_facts *facts, uint32_t i)
{
    switch (i) {
    case SETTINGS_ROW_use_cuda_graph:
        return facts->has_graphs ? NULL : "this backend records no graphs";
    case SETTINGS_ROW_q_padding_interval_size:
    case SETTINGS_ROW_kv_padding_interval_size:
        return facts->has_graphs ? NULL : "nothing is padded where no graphs are recorded";
    case SETTINGS_ROW_use_async_batching:
        return facts->overlaps ? NULL : "on this backend a step is done when it is submitted";
    case SETTINGS_ROW_varlen_compile_config:
    case SETTINGS_ROW_decode_compile_config:
    case SETTINGS_ROW_default_compile_level:
    case SETTINGS_ROW_use_default_compile_configs:
        return facts->compiles ? NULL : "kernels of this backend are as they were built";
    case SETTINGS_ROW_auto_switch_to_flash:
        return facts->needs_mask ? NULL : "the one attention there is needs no mask";
    case SETTINGS_ROW_disable_nccl_graph_mixing:
    case SETTINGS_ROW_cpu_group_timeout:
        return "one process serves; there is no group";
    }
    return NULL;
}

static const char *idle_with_model(const struct settings *set, uint32_t i)
{
    bool null_model = is(set->model, "null");
    switch (i) {
    case SETTINGS_ROW_null_vocab:
    case SETTINGS_ROW_null_context:
    case SETTINGS_ROW_null_step_us:
        return null_model ? NULL : "model is not null";
    case SETTINGS_ROW_backend:
    case SETTINGS_ROW_isa:
    case SETTINGS_ROW_batch_invariant:
    case SETTINGS_ROW_threads:
    case SETTINGS_ROW_pin_threads:
    case SETTINGS_ROW_kv_dtype:
        return null_model ? "the null model has no arithmetic" : NULL;
    }
    return NULL;
}

static const char *idle_with_others(const struct settings *set, uint32_t i)
{
    switch (i) {
    case SETTINGS_ROW_priority_ageing_ms:
        return is(set->scheduler, "priority") ? NULL : "scheduler is not priority";
    case SETTINGS_ROW_uid_weights:
        return is(set->scheduler, "fair") || is(set->scheduler, "auto")
                   ? NULL
                   : "scheduler is neither fair nor auto";
    }
    return NULL;
}

const char *settings_idle(const struct settings *set, const struct settings_facts *facts,
                          uint32_t i)
{
    const char *why = idle_on_backend(facts, i);
    if (!why)
        why = idle_with_model(set, i);
    if (!why)
        why = idle_with_others(set, i);
    switch (i) {
    case SETTINGS_ROW_page_size:
        return set->block_size != SETTING_NONE ? "block_size is given" : NULL;
    case SETTINGS_ROW_max_memory_percent:
        return set->num_blocks != SETTING_NONE ? "num_blocks is given" : NULL;
    case SETTINGS_ROW_hint_num_requests:
        return set->max_requests_per_batch != SETTING_NONE ? "max_requests_per_batch is given"
                                                           : NULL;
    case SETTINGS_ROW_hint_max_prompt_length:
    case SETTINGS_ROW_hint_max_generated_length:
        return set->max_blocks_per_request != SETTING_NONE ? "max_blocks_per_request is given"
               : facts->has_windows || !facts->table_blocks
                   ? "on this backend tables of blocks have room for any request"
                   : NULL;
    case SETTINGS_ROW_cpu_offload_space:
        return facts->n_blocks && set->cpu_offload_space != 0 && facts->pool_gib <= 0
                   ? "there is no room for one block of it"
                   : NULL;
    case SETTINGS_ROW_cpu_offload_space_safety_threshold:
        return set->cpu_offload_space == 0 ? "cpu_offload_space is 0" : NULL;
    case SETTINGS_ROW_max_blocks_per_request:
        return facts->has_windows ? "the model has layers that see a window only" : NULL;
    case SETTINGS_ROW_per_request_processors:
        return "every request may carry its own, always";
    case SETTINGS_ROW_drop_unsupported_processors:
        return "everything works, so nothing is left out";
    case SETTINGS_ROW_max_cached_graphs:
        return "it has no effect anywhere";
    case SETTINGS_ROW_batch_invariant:
        return why || set->batch_invariant ? why : facts->bf16_refusal;
    default:
        return why;
    }
}
