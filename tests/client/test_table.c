/* The manual's table for those who come from a batching manager: it has each of that one's names, and
 * what it says instead exists. */
#include <criterion/criterion.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/settings.h"

struct part {
    const char *heading;
    const char *const *names;
};

static const char *const batch_names[] = {"inputs",
                                          "generation_config",
                                          "continuous_batching_config",
                                          "record_timestamps",
                                          "progress_bar",
                                          "persistent_manager",
                                          "warmup",
                                          "max_new_tokens",
                                          "any other keyword",
                                          "num_return_sequences",
                                          NULL};
static const char *const manager_names[] = {"constructor",
                                            "model",
                                            "init_continuous_batching",
                                            "continuous_batching_context_manager",
                                            "destroy_cached_continuous_batching_manager",
                                            "stop_trigger_time",
                                            "input_ids",
                                            "callback",
                                            "workload_hints",
                                            "start",
                                            "stop",
                                            "block",
                                            "timeout",
                                            "keep_for_next_session",
                                            "hard_stop",
                                            "join",
                                            "destroy",
                                            "is_running",
                                            "pause",
                                            "warmup",
                                            "switch_to_cb_friendly_attn",
                                            "add_request",
                                            "request_id",
                                            "streaming",
                                            "eos_token_id",
                                            "temperature",
                                            "top_k",
                                            "top_p",
                                            "add_requests",
                                            "cancel_request",
                                            "get_result",
                                            "iteration",
                                            "request_id_iter",
                                            "register_result_handler",
                                            NULL};
static const char *const fields[] = {"page_size",
                                     "num_blocks",
                                     "max_batch_tokens",
                                     "max_memory_percent",
                                     "max_requests_per_batch",
                                     "max_blocks_per_request",
                                     "allow_block_sharing",
                                     "use_async_batching",
                                     "use_cuda_graph",
                                     "q_padding_interval_size",
                                     "kv_padding_interval_size",
                                     "varlen_compile_config",
                                     "decode_compile_config",
                                     "default_compile_level",
                                     "scheduler_type",
                                     "safety_margin",
                                     "return_logprobs",
                                     "seed",
                                     "auto_switch_to_flash",
                                     "cpu_offload_space",
                                     "cpu_offload_space_safety_threshold",
                                     "max_queue_size",
                                     "per_request_processors",
                                     "drop_unsupported_processors",
                                     "disable_nccl_graph_mixing",
                                     "cpu_group_timeout",
                                     "use_default_compile_configs",
                                     "max_cached_graphs",
                                     "block_size",
                                     NULL};
static const char *const output_names[] = {
    "request_id",   "prompt_ids", "generated_tokens", "logprobs",    "error",   "status",
    "created_time", "lifespan",   "timestamps",       "is_finished", "PENDING", "PREFILLING",
    "DECODING",     "FINISHED",   "FAILED",           NULL};

static const struct part parts[] = {
    {".Ss Of generate_batch\n", batch_names},
    {".Ss Of the manager\n", manager_names},
    {".Ss Of its configuration\n", fields},
    {".Ss Of its outputs\n", output_names},
};

static char *slurp(const char *path)
{
    FILE *f = fopen(path, "r");
    cr_assert(f, "%s", path);
    char *data = calloc(1, 1 << 20);
    cr_assert_gt(fread(data, 1, (1 << 20) - 1, f), 0);
    fclose(f);
    return data;
}

/* The lines from one heading to the next, 0-terminated; `text` is cut. */
static char *part_of(char *text, const char *heading)
{
    char *at = strstr(text, heading);
    cr_assert(at, "no %s", heading);
    at += strlen(heading);
    char *end = at; /* .Sx is none */
    do
        end = strstr(end + 1, "\n.S");
    while (end && end[3] != 's' && end[3] != 'h');
    cr_assert(end);
    char *part = strndup(at, (size_t)(end - at) + 1);
    return part;
}

/* ".It a , b : Fn c", for any of a and b. */
static bool has_item(const char *part, const char *name)
{
    for (const char *at = part; (at = strstr(at, ".It ")); at++) {
        const char *end = strchr(at, '\n'), *colon = strstr(at, " : ");
        char names[160];
        size_t n = (size_t)((colon && colon < end ? colon : end) - at - 4);
        cr_assert_lt(n, sizeof names);
        memcpy(names, at + 4, n);
        names[n] = 0;
        for (char *rest = names, *one; (one = strtok_r(rest, ",", &rest));) {
            one += strspn(one, " ");
            size_t last = strlen(one);
            while (last && one[last - 1] == ' ')
                one[--last] = 0;
            if (strcmp(one, name) == 0)
                return true;
        }
    }
    return false;
}

Test(table, has_every_name)
{
    char *manual = slurp("client/cbclient.3");
    size_t n_fields = 0;
    for (size_t p = 0; p < sizeof parts / sizeof parts[0]; p++) {
        char *part = part_of(manual, parts[p].heading);
        for (const char *const *name = parts[p].names; *name; name++)
            cr_expect(has_item(part, *name), "%s lacks %s", parts[p].heading, *name);
        free(part);
    }
    while (fields[n_fields])
        n_fields++;
    cr_expect_eq(n_fields, 29);
    free(manual);
}

Test(table, every_name_has_a_test)
{
    char *names = slurp("tests/names.txt"), row[80];
    for (size_t p = 0; p < sizeof parts / sizeof parts[0]; p++)
        for (const char *const *name = parts[p].names; *name; name++) {
            snprintf(row, sizeof row, " | %s | ", *name);
            cr_expect(strstr(names, row), "no row of %s", *name);
        }
    free(names);
}

static bool is_word_in(const char *text, const char *word)
{
    size_t n = strlen(word);
    for (const char *at = text; (at = strstr(at, word)); at++)
        if (!(isalnum((unsigned char)at[n]) || at[n] == '_') &&
            (at == text || !(isalnum((unsigned char)at[-1]) || at[-1] == '_')))
            return true;
    return false;
}

/* A word that follows macro `kind`: of the header, or a setting. */
static void expect_exists(const char *header, const char *kind, const char *word, const char *line)
{
    char message[SETTINGS_MESSAGE_MAX];
    bool exists =
        strcmp(kind, "Cm") == 0 ? settings_meant(word, message) >= 0 : is_word_in(header, word);
    cr_expect(exists, "\"%s\" names %s %s, which is not there", line, kind, word);
}

Test(table, names_only_what_exists)
{
    static const char *const kinds[] = {"Fn", "Va", "Dv", "Vt", "Cm"};
    char *manual = slurp("client/cbclient.3"), *header = slurp("client/cbclient.h");
    size_t n_words = 0;
    for (size_t p = 0; p < sizeof parts / sizeof parts[0]; p++) {
        char *part = part_of(manual, parts[p].heading);
        for (char *lines = part, *line; (line = strtok_r(lines, "\n", &lines));) {
            char copy[256];
            const char *kind = NULL;
            snprintf(copy, sizeof copy, "%s", line);
            if (*line != '.')
                continue;
            for (char *words = copy, *word; (word = strtok_r(words, " ", &words));) {
                bool is_kind = false;
                word += *word == '.';
                for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
                    if (strcmp(word, kinds[k]) == 0) {
                        kind = kinds[k];
                        is_kind = true;
                    }
                if (strcmp(word, "Ns") == 0)
                    kind = NULL;
                if (!is_kind && kind && isalpha((unsigned char)*word) &&
                    strcmp(word, "struct") != 0) {
                    expect_exists(header, kind, word, line);
                    n_words++;
                }
            }
        }
        free(part);
    }
    cr_expect_gt(n_words, 80, "%zu", n_words);
    free(header);
    free(manual);
}
