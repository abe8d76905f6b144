/* tests/programs/teacher.c - teacher [OPTION...] MODEL FILE.safetensors
 *
 * Prints as JSON how far the model's distributions are from recorded ones (tests/util/score.h).
 * Keys and values are f32 on the reference backend, else bf16; --kv chooses. */
#include <argp.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/util/score.h"

struct arguments {
    const char *backend, *kv, *paths[2];
    struct backend_config backend_config;
    uint32_t n_texts;
    unsigned n_paths;
};

static const struct argp_option options[] = {
    {"backend", 'b', "NAME", 0, "cpu or reference [cpu]", 0},
    {"isa", 'i', "NAME", 0, "instruction set of the cpu backend [the best]", 0},
    {"threads", 't', "N", 0, "[one a physical core]", 0},
    {"kv", 'k', "TYPE", 0, "f32, bf16 or u8", 0},
    {"batch-variant", 'v', NULL, 0, "results may depend on the batch, for speed", 0},
    {"texts", 'n', "N", 0, "score the first N texts only [all]", 0},
    {0},
};

static uint32_t number(const char *text, struct argp_state *state)
{
    char *end;
    unsigned long n;

    errno = 0;
    n = strtoul(text, &end, 10);
    if (errno || end == text || *end || n > 4096)
        argp_error(state, "'%s' is no number up to 4096", text);
    return (uint32_t)n;
}

static error_t take_option(int key, char *text, struct argp_state *state)
{
    struct arguments *a = state->input;

    switch (key) {
    case 'b':
        a->backend = text;
        return 0;
    case 'i':
        a->backend_config.isa = text;
        return 0;
    case 't':
        a->backend_config.n_threads = number(text, state);
        return 0;
    case 'k':
        if (strcmp(text, "f32") != 0 && strcmp(text, "bf16") != 0 && strcmp(text, "u8") != 0)
            argp_error(state, "--kv is f32, bf16 or u8");
        a->kv = text;
        return 0;
    case 'v':
        a->backend_config.batch_variant = true;
        return 0;
    case 'n':
        a->n_texts = number(text, state);
        return 0;
    case ARGP_KEY_ARG:
        if (a->n_paths == 2)
            argp_usage(state);
        a->paths[a->n_paths++] = text;
        return 0;
    case ARGP_KEY_END:
        if (a->n_paths != 2)
            argp_usage(state);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

int main(int argc, char **argv)
{
    const struct argp argp = {
        .options = options,
        .parser = take_option,
        .args_doc = "MODEL FILE.safetensors",
        .doc = "How far a model's distributions are from recorded ones, as JSON.",
    };
    struct arguments a = {.backend = "cpu"};
    char message[MODEL_MESSAGE_MAX];
    struct score s;

    argp_parse(&argp, argc, argv, 0, NULL, &a);
    if (!a.kv)
        a.kv = strcmp(a.backend, "reference") == 0 ? "f32" : "bf16";
    if (score_model(&s, a.paths[0], a.backend, &a.backend_config,
                    strcmp(a.kv, "f32") == 0  ? DTYPE_F32
                    : strcmp(a.kv, "u8") == 0 ? DTYPE_U8
                                              : DTYPE_BF16,
                    a.paths[1], a.n_texts, message)) {
        fprintf(stderr, "teacher: %s\n", message);
        return 1;
    }
    printf("{\"mean_kl\": %.9g, \"p99_kl\": %.9g, \"top1_agreement\": %.6f, \"ppl\": %.6f, "
           "\"ref_ppl\": %.6f, \"n_disagree_margin_over_0.3\": %u, \"n_positions\": %u}\n",
           s.mean_kl, s.p99_kl, s.top1_agreement, s.ppl, s.ref_ppl, s.n_disagree_wide,
           s.n_positions);
    return 0;
}
