/* All fields of the reference's configuration: that they are taken from every source, what they come
 * to, in which order one decides over another, and which are said to do nothing. */
#include <criterion/criterion.h>
#include <assert.h>
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "daemon/settings_resolve.h"

static char message[SETTINGS_MESSAGE_MAX];

/* A value that is allowed, one that is not, and whether it is deprecated. */
static const struct field {
    const char *name, *good, *bad;
    bool deprecated;
} fields[] = {
    {"page_size", "64", "3", false},
    {"num_blocks", "7", "0", false},
    {"max_batch_tokens", "100", "0", false},
    {"max_memory_percent", "0.5", "1.1", false},
    {"max_requests_per_batch", "9", "0", false},
    {"max_blocks_per_request", "0", "-1", false},
    {"allow_block_sharing", "false", "maybe", false},
    {"use_async_batching", "true", "both", false},
    {"use_cuda_graph", "true,false", "true,none", false},
    {"q_padding_interval_size", "32", "-1", false},
    {"kv_padding_interval_size", "4096", "x", false},
    {"varlen_compile_config", "2", "4", false},
    {"decode_compile_config", "none", "default", false},
    {"default_compile_level", "3", "4", false},
    {"scheduler_type", "prefill_first", "lifo", false},
    {"cpu_offload_space", "1.5", "-1", false},
    {"cpu_offload_space_safety_threshold", "0.5", "none", false},
    {"safety_margin", "0.2", "1.5", false},
    {"return_logprobs", "true", "2", false},
    {"seed", "0", "-1", false},
    {"auto_switch_to_flash", "false", "3", false},
    {"max_queue_size", "10", "-1", false},
    {"per_request_processors", "true", "yess", false},
    {"drop_unsupported_processors", "false", "", false},
    {"disable_nccl_graph_mixing", "false", "none", false},
    {"cpu_group_timeout", "1.5", "0", false},
    {"use_default_compile_configs", "true", "3", true},
    {"max_cached_graphs", "8", "many", true},
    {"block_size", "32", "3", true},
};
enum { N_FIELDS = sizeof fields / sizeof fields[0] };
static_assert(sizeof fields / sizeof fields[0] == 29, "all that the reference has");

static int n_warnings;
static char warning[SETTINGS_MESSAGE_MAX];

static void warn(void *ctx, const char *text)
{
    (void)ctx;
    snprintf(warning, sizeof warning, "%s", text);
    n_warnings++;
}

static const struct settings_warn warner = {.warn = warn};

static void check_given(const struct settings *s, const struct field *f, const char *value,
                        enum settings_source source)
{
    char text[SETTINGS_TEXT_MAX];
    int i = settings_meant(f->name, message);
    cr_assert_geq(i, 0, "%s", message);
    settings_value(s, (uint32_t)i, text);
    cr_expect_str_eq(text, value, "%s is %s, not %s", f->name, text, value);
    cr_expect_eq(s->sources[i], source, "%s", f->name);
}

Test(settings_resolve, each_field_is_taken_from_every_source)
{
    for (const struct field *f = fields; f < fields + N_FIELDS; f++) {
        struct settings s;
        char line[128], variable[128], option[128];
        snprintf(line, sizeof line, "%s = %s\n", f->name, f->good);
        snprintf(option, sizeof option, "--%s=%s", f->name, f->good);
        n_warnings = snprintf(variable, sizeof variable, "CBD_%s=%s", f->name, f->good);
        for (char *c = variable; *c != '='; c++)
            *c = (char)toupper((unsigned char)*c);
        char *env[] = {variable, NULL}, *argv[] = {"cbd", option};

        n_warnings = 0;
        settings_init(&s);
        cr_assert_eq(settings_text(&s, "x", line, strlen(line), &warner, message), 0, "%s",
                     message);
        check_given(&s, f, f->good, SETTINGS_FILE);
        cr_assert_eq(settings_load(&s, 1, argv, env, &warner, message), 0, "%s", message);
        check_given(&s, f, f->good, SETTINGS_ENVIRONMENT);
        cr_assert_eq(settings_load(&s, 2, argv, NULL, &warner, message), 0, "%s", message);
        check_given(&s, f, f->good, SETTINGS_COMMAND_LINE);
        cr_expect_eq(n_warnings, f->deprecated ? 3 : 0, "%s: %s", f->name, warning);
        if (f->deprecated)
            cr_expect(strncmp(warning, f->name, strlen(f->name)) == 0 &&
                          strstr(warning, "deprecated"),
                      "%s", warning);

        snprintf(line, sizeof line, "--%s=%s", f->name, f->bad);
        argv[1] = line;
        cr_expect_lt(settings_load(&s, 2, argv, NULL, NULL, message), 0, "%s", line);
        cr_expect(strstr(message, "allowed"), "%s", message);
    }
}

Test(settings_resolve, a_deprecated_one_warns_once_and_not_of_its_default)
{
    struct settings s;
    settings_init(&s);
    settings_set(&s, "block_size", "none", SETTINGS_FILE, &warner, message);
    cr_expect_eq(n_warnings, 0);
    settings_set(&s, "block_size", "32", SETTINGS_FILE, &warner, message);
    settings_set(&s, "block_size", "64", SETTINGS_COMMAND_LINE, &warner, message);
    cr_expect_eq(n_warnings, 1);
}

/* ---- what they come to ----------------------------------------------------------------------- */

static const struct settings_facts cpu = {0};
static const struct settings_facts opened = {
    .n_blocks = 77, .pool_gib = 1.5, .n_threads = 6, .isa = "avx2", .bf16_refusal = "no tiles"};
static const struct settings_facts windows = {.n_blocks = 77, .has_windows = true};
static const struct settings_facts gpu = {
    .has_graphs = true, .overlaps = true, .compiles = true, .table_blocks = 32};
static const struct settings_facts gpu_masks = {
    .has_graphs = true, .overlaps = true, .compiles = true, .needs_mask = true};

/* After these "NAME=VALUE ...", that row comes to this. */
static const struct {
    const struct settings_facts *facts;
    const char *given, *row, *resolved;
} cases[] = {
    {&cpu, "", "page_size", "256"},
    {&cpu, "page_size=64", "page_size", "64"},
    {&cpu, "block_size=32 page_size=64", "page_size", "32"}, /* whichever comes first */
    {&cpu, "page_size=64 block_size=32", "page_size", "32"},
    {&cpu, "", "num_blocks", "none"},
    {&cpu, "num_blocks=5", "num_blocks", "5"},
    {&opened, "num_blocks=5", "num_blocks", "77"}, /* what there really is */
    {&cpu, "", "max_batch_tokens", "512"},
    {&cpu, "max_batch_tokens=8192", "max_batch_tokens", "8192"},
    {&cpu, "", "max_requests_per_batch", "512"}, /* 1024, but no more than tokens */
    {&cpu, "max_batch_tokens=8192", "max_requests_per_batch", "1024"},
    {&cpu, "hint_num_requests=9", "max_requests_per_batch", "9"},
    {&cpu, "hint_num_requests=9000 max_batch_tokens=8192", "max_requests_per_batch", "1024"},
    {&cpu, "hint_num_requests=9 max_requests_per_batch=10", "max_requests_per_batch", "10"},
    {&cpu, "hint_max_prompt_length=1000", "max_blocks_per_request", "0"},
    {&gpu, "hint_max_prompt_length=1000", "max_blocks_per_request", "6"}, /* 4, 1, and even */
    {&gpu, "hint_max_prompt_length=1000 hint_max_generated_length=25", "max_blocks_per_request",
     "6"},
    {&gpu, "hint_max_generated_length=256 page_size=16", "max_blocks_per_request", "18"},
    {&gpu, "hint_max_prompt_length=1000 max_blocks_per_request=3", "max_blocks_per_request", "3"},
    {&cpu, "", "cpu_offload_space", "0"},
    {&cpu, "cpu_offload_space=2", "cpu_offload_space", "2"},
    {&opened, "cpu_offload_space=2", "cpu_offload_space", "1.5"},
    {&cpu, "max_requests_per_batch=700", "max_requests_per_batch", "512"},
    {&cpu, "max_requests_per_batch=7", "max_requests_per_batch", "7"},
    {&cpu, "", "max_blocks_per_request", "0"},
    {&cpu, "max_blocks_per_request=9", "max_blocks_per_request", "9"},
    {&windows, "max_blocks_per_request=9", "max_blocks_per_request", "0"},
    {&gpu, "", "max_blocks_per_request", "32"},
    {&gpu, "max_blocks_per_request=0", "max_blocks_per_request", "0"},
    {&cpu, "", "max_memory_percent", "0.6, at most eight contexts"},
    {&cpu, "max_memory_percent=0.25", "max_memory_percent", "0.25"},
    {&cpu, "", "safety_margin", "0.15"},
    {&cpu, "scheduler=prefill_first", "safety_margin", "0"},
    {&cpu, "scheduler=prefill_first safety_margin=0.3", "safety_margin", "0.3"},
    {&cpu, "", "q_padding_interval_size", "64"},
    {&cpu, "", "kv_padding_interval_size", "16384"},
    {&cpu, "q_padding_interval_size=8", "q_padding_interval_size", "8"},
    /* graphs: none here; else explicit before intervals before what pays */
    {&cpu, "", "use_cuda_graph", "false,false"},
    {&cpu, "use_cuda_graph=true", "use_cuda_graph", "false,false"},
    {&gpu, "", "use_cuda_graph", "true,true"},
    {&gpu, "use_cuda_graph=false", "use_cuda_graph", "false,false"},
    {&gpu, "use_cuda_graph=false,true", "use_cuda_graph", "false,true"},
    {&gpu, "use_cuda_graph=true,false q_padding_interval_size=8", "use_cuda_graph", "true,false"},
    {&gpu_masks, "", "use_cuda_graph", "false,false"},
    {&gpu_masks, "kv_padding_interval_size=8", "use_cuda_graph", "true,true"},
    /* overlap: explicit, else with any graph and without masks */
    {&cpu, "use_async_batching=true", "use_async_batching", "false"},
    {&gpu, "", "use_async_batching", "true"},
    {&gpu, "use_async_batching=false", "use_async_batching", "false"},
    {&gpu, "use_cuda_graph=false", "use_async_batching", "false"},
    {&gpu, "use_cuda_graph=false,true", "use_async_batching", "true"},
    {&gpu, "use_cuda_graph=false use_async_batching=true", "use_async_batching", "true"},
    {&gpu_masks, "use_cuda_graph=true", "use_async_batching", "false"},
    {&gpu_masks, "use_async_batching=true", "use_async_batching", "true"},
    /* tuning: a path's own before the level, which the deprecated switch decides over */
    {&gpu, "", "varlen_compile_config", "0"},
    {&gpu, "default_compile_level=2", "varlen_compile_config", "2"},
    {&gpu, "default_compile_level=2 varlen_compile_config=1", "varlen_compile_config", "1"},
    {&gpu, "default_compile_level=2 varlen_compile_config=0", "varlen_compile_config", "0"},
    {&gpu, "default_compile_level=2", "decode_compile_config", "2"},
    {&cpu, "decode_compile_config=2", "decode_compile_config", "0"}, /* no path of its own */
    {&cpu, "decode_compile_config=2 max_blocks_per_request=4", "decode_compile_config", "2"},
    {&gpu, "use_default_compile_configs=true", "default_compile_level", "3"},
    {&gpu, "use_default_compile_configs=true", "varlen_compile_config", "3"},
    {&gpu, "use_default_compile_configs=false default_compile_level=2", "default_compile_level",
     "0"},
    {&cpu, "", "kv_dtype", "bf16"},
    {&cpu, "backend=reference", "kv_dtype", "f32"},
    {&cpu, "backend=reference kv_dtype=u8", "kv_dtype", "u8"},
    {&cpu, "", "threads", "none"},
    {&opened, "", "threads", "6"},
    {&opened, "threads=2", "threads", "2"},
    {&cpu, "", "isa", "auto"},
    {&opened, "", "isa", "avx2"},
    {&cpu, "", "cpu_group_timeout", "300"},
    {&cpu, "cpu_group_timeout=none", "cpu_group_timeout", "none"},
    {&cpu, "", "seed", "none"},
    {&cpu, "seed=7", "seed", "7"},
};

static void give(struct settings *s, const char *given)
{
    char words[256], *rest = words;
    snprintf(words, sizeof words, "%s", given);
    settings_init(s);
    for (char *name; (name = strtok_r(rest, " ", &rest));) {
        char *value = strchr(name, '=');
        *value++ = 0;
        cr_assert_eq(settings_set(s, name, value, SETTINGS_FILE, NULL, message), 0, "%s", message);
    }
}

Test(settings_resolve, values_come_to_what_the_order_says)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct settings s, before;
        char text[SETTINGS_TEXT_MAX];
        give(&s, cases[i].given);
        before = s;
        settings_resolved_value(&s, cases[i].facts, (uint32_t)settings_find(cases[i].row), text);
        cr_expect_str_eq(text, cases[i].resolved, "case %zu: with \"%s\" %s comes to %s, not %s", i,
                         cases[i].given, cases[i].row, text, cases[i].resolved);
        cr_expect_eq(memcmp(&s, &before, sizeof s), 0, "what was given has changed");
    }
}

/* What the engine is made of is what is shown. */
Test(settings_resolve, what_is_used_is_what_is_shown)
{
    struct settings s;
    struct settings_resolved r;
    give(&s, "block_size=32 max_batch_tokens=40 max_blocks_per_request=3");
    settings_resolve(&s, &opened, &r);
    cr_expect(r.page_size == 32 && r.max_batch_tokens == 40 && r.max_requests_per_batch == 40 &&
              r.max_blocks_per_request == 3 && r.safety_margin > 0.1499);
    cr_expect(!r.mixed_graphs && !r.decode_graphs && !r.overlaps && r.q_interval == 64 &&
              r.kv_interval == 16384);
}

/* ---- which do nothing ------------------------------------------------------------------------ */

static const struct {
    const struct settings_facts *facts;
    const char *given, *row, *why; /* a part; NULL: it acts */
} idle[] = {
    {&cpu, "", "use_cuda_graph", "graphs"},
    {&gpu, "", "use_cuda_graph", NULL},
    {&cpu, "", "use_async_batching", "submitted"},
    {&gpu, "", "use_async_batching", NULL},
    {&cpu, "", "q_padding_interval_size", "padded"},
    {&cpu, "", "kv_padding_interval_size", "padded"},
    {&gpu, "", "kv_padding_interval_size", NULL},
    {&cpu, "", "varlen_compile_config", "built"},
    {&cpu, "", "decode_compile_config", "built"},
    {&cpu, "", "default_compile_level", "built"},
    {&cpu, "", "use_default_compile_configs", "built"},
    {&gpu, "", "default_compile_level", NULL},
    {&cpu, "", "auto_switch_to_flash", "mask"},
    {&cpu, "", "per_request_processors", "always"},
    {&cpu, "", "drop_unsupported_processors", "everything works"},
    {&cpu, "", "disable_nccl_graph_mixing", "group"},
    {&cpu, "", "cpu_group_timeout", "group"},
    {&cpu, "", "max_cached_graphs", "no effect"},
    {&gpu, "", "max_cached_graphs", "no effect"},
    {&cpu, "", "max_memory_percent", NULL},
    {&cpu, "num_blocks=3", "max_memory_percent", "num_blocks"},
    {&cpu, "", "page_size", NULL},
    {&cpu, "block_size=32", "page_size", "block_size"},
    {&cpu, "block_size=32", "block_size", NULL},
    {&cpu, "", "max_blocks_per_request", NULL},
    {&windows, "", "max_blocks_per_request", "window"},
    {&opened, "", "batch_invariant", NULL},
    {&opened, "batch_invariant=false", "batch_invariant", "no tiles"},
    {&cpu, "model=null", "threads", "null model"},
    {&cpu, "model=null", "null_vocab", NULL},
    {&cpu, "", "null_vocab", "not null"},
    {&cpu, "", "hint_num_requests", NULL},
    {&cpu, "max_requests_per_batch=3", "hint_num_requests", "is given"},
    {&cpu, "", "hint_max_prompt_length", "any request"},
    {&gpu, "", "hint_max_generated_length", NULL},
    {&gpu, "max_blocks_per_request=3", "hint_max_generated_length", "is given"},
    {&opened, "cpu_offload_space=2", "cpu_offload_space", NULL},
    {&windows, "cpu_offload_space=2", "cpu_offload_space", "no room"},
    {&windows, "", "cpu_offload_space", NULL},
    {&opened, "", "cpu_offload_space_safety_threshold", "is 0"},
    {&opened, "cpu_offload_space=1", "cpu_offload_space_safety_threshold", NULL},
    {&cpu, "", "priority_ageing_ms", "not priority"},
    {&cpu, "scheduler=priority", "priority_ageing_ms", NULL},
    {&cpu, "", "uid_weights", NULL},
    {&cpu, "scheduler=fair", "uid_weights", NULL},
    {&cpu, "scheduler=fifo", "uid_weights", "neither fair nor auto"},
    {&cpu, "", "seed", NULL},
    {&cpu, "", "return_logprobs", NULL},
    {&cpu, "", "num_blocks", NULL},
    {&cpu, "", "max_batch_tokens", NULL},
    {&cpu, "", "max_requests_per_batch", NULL},
    {&cpu, "", "allow_block_sharing", NULL},
    {&cpu, "", "scheduler", NULL},
    {&cpu, "", "safety_margin", NULL},
    {&cpu, "", "max_queue_size", NULL},
};

Test(settings_resolve, what_does_nothing_says_why)
{
    for (size_t i = 0; i < sizeof idle / sizeof idle[0]; i++) {
        struct settings s;
        give(&s, idle[i].given);
        const char *why = settings_idle(&s, idle[i].facts, (uint32_t)settings_find(idle[i].row));
        cr_expect(idle[i].why ? why && strstr(why, idle[i].why) : !why,
                  "case %zu: with \"%s\" %s is idle: %s", i, idle[i].given, idle[i].row,
                  why ? why : "not");
    }
}
