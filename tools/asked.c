/* Values are only shaped here; whether they make sense, library and daemon say. */
#include "tools/asked.h"

#include <string.h>

enum {
    KEY_TEMPERATURE = 256,
    KEY_TOP_K,
    KEY_TOP_P,
    KEY_SEED,
    KEY_STOP,
    KEY_STOP_ID,
    KEY_CHAT,
    KEY_SYSTEM,
    KEY_DEADLINE,
    KEY_PRIORITY,
    KEY_IGNORE_EOS,
    KEY_CACHE_SALT,
    KEY_N,
};

static const struct argp_option options[] = {
    {"max-new-tokens", 'n', "TOKENS", 0,
     "at most so many new tokens (default: what context and cache hold)", 0},
    {"n", KEY_N, "N", 0, "so many answers to each prompt, 1 to 64; above 1 with a temperature", 0},
    {"temperature", KEY_TEMPERATURE, "T", 0, "0, the default, is greedy", 0},
    {"top-k", KEY_TOP_K, "K", 0, "draw from the K best; 0: off", 0},
    {"top-p", KEY_TOP_P, "P", 0, "draw from the best that make up P; 1: off", 0},
    {"seed", KEY_SEED, "N", 0, "makes draws repeatable", 0},
    {"stop", KEY_STOP, "TEXT", 0, "ends the answer before TEXT; up to 16 times", 0},
    {"stop-id", KEY_STOP_ID, "ID", 0, "ends the answer at this token; up to 64 times", 0},
    {"ignore-eos", KEY_IGNORE_EOS, NULL, 0, "an end-of-sequence token does not end it", 0},
    {"cache-salt", KEY_CACHE_SALT, "WORD", 0, "share cached prompts with all that name WORD", 0},
    {"deadline", KEY_DEADLINE, "MS", 0, "ends it after so many milliseconds", 0},
    {"priority", KEY_PRIORITY, "N", 0, "0 to 255: the higher first, where the daemon goes by it",
     0},
    {"chat", KEY_CHAT, NULL, 0, "each TEXT is a user's message, put in the model's template", 0},
    {"system", KEY_SYSTEM, "TEXT", 0, "the system message of --chat", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct asked *a = state->input;
    struct cb_request *d = a ? &a->defaults : NULL;
    double v = 0;
    uint64_t n = 0;

    switch (key) {
    case 'n':
        a->failed |= !cbctl_whole(a->ctl, "-n", arg, 0, CB_NO_LIMIT - 1, &n);
        d->max_new_tokens = (uint32_t)n;
        return 0;
    case KEY_N:
        a->failed |= !cbctl_whole(a->ctl, "--n", arg, 1, PROMPT_SEQUENCES_MAX, &n);
        d->n = (uint32_t)n;
        return 0;
    case KEY_TEMPERATURE:
        a->failed |= !cbctl_number(a->ctl, "--temperature", arg, 0, 1e6, &v);
        d->temperature = (float)v;
        return 0;
    case KEY_TOP_K:
        a->failed |= !cbctl_whole(a->ctl, "--top-k", arg, 0, INT32_MAX, &n);
        d->top_k = (int32_t)n;
        return 0;
    case KEY_TOP_P:
        a->failed |= !cbctl_number(a->ctl, "--top-p", arg, 1e-9, 1, &v);
        d->top_p = (float)v;
        return 0;
    case KEY_SEED:
        a->failed |= !cbctl_whole(a->ctl, "--seed", arg, 0, PROMPT_SEED_MAX, &d->seed);
        d->flags |= CB_HAS_SEED;
        return 0;
    case KEY_STOP:
        if (!*arg) {
            cbctl_complain(a->ctl, "--stop is empty; give the text that ends the answer");
            a->failed = true;
            return 0;
        }
        if (d->n_stops == PROMPT_STOPS_MAX) {
            cbctl_complain(a->ctl, "at most %d --stop", PROMPT_STOPS_MAX);
            a->failed = true;
            return 0;
        }
        a->stops[d->n_stops++] = (struct cb_string){arg, strlen(arg)};
        return 0;
    case KEY_STOP_ID:
        if (d->n_stop_ids == PROMPT_STOP_IDS_MAX ||
            !cbctl_whole(a->ctl, "--stop-id", arg, 0, UINT32_MAX, &n)) {
            a->failed = true;
            return 0;
        }
        a->stop_ids[d->n_stop_ids++] = (uint32_t)n;
        return 0;
    case KEY_IGNORE_EOS:
        d->flags |= CB_IGNORE_EOS;
        return 0;
    case KEY_CACHE_SALT:
        d->cache_salt = arg;
        return 0;
    case KEY_DEADLINE:
        a->failed |=
            !cbctl_whole(a->ctl, "--deadline", arg, 1, PROMPT_DEADLINE_MS_MAX, &d->deadline_ms);
        return 0;
    case KEY_PRIORITY:
        a->failed |= !cbctl_whole(a->ctl, "--priority", arg, 0, PROMPT_PRIORITY_MAX, &n);
        d->priority = (uint32_t)n;
        return 0;
    case KEY_CHAT:
        a->chat = true;
        return 0;
    case KEY_SYSTEM:
        a->system = arg;
        a->chat = true;
        return 0;
    case ARGP_KEY_INIT:
        state->child_inputs[0] = a ? &a->choices : NULL;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child children[] = {{&choices_argp, 0, "Which tokens:", 1}, {0}};

const struct argp asked_argp = {options, parse, NULL, NULL, children, NULL, NULL};

void asked_init(struct asked *a, const struct cbctl *ctl)
{
    memset(a, 0, sizeof *a);
    a->ctl = ctl;
    cb_request_init(&a->defaults);
    a->defaults.stops = a->stops;
    a->defaults.stop_ids = a->stop_ids;
    a->choices.ctl = ctl;
    a->choices.request = &a->defaults;
}

bool asked_failed(const struct asked *a)
{
    return a->failed || a->choices.failed;
}

void asked_fini(struct asked *a)
{
    choices_fini(&a->choices);
}
