/* One table for both forms: where a number goes, what it is called, what it does. Lists are few and
 * have code of their own. */
#include "tools/choices.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* X(field, which is the key too, option, argument, kind, help) */
/* clang-format off */
#define NUMBERS(X)                                                                                                 \
    X(min_p, "min-p", "P", REAL, "keep what is P times as probable as the best; 0: off")                           \
    X(typical_p, "typical-p", "P", REAL, "keep the least surprising that make up P; 1: off")                       \
    X(repetition_penalty, "repetition-penalty", "X", REAL, "above 1: rather no tokens of prompt and answer again") \
    X(presence_penalty, "presence-penalty", "X", REAL, "subtracted from logits of tokens in the answer")           \
    X(frequency_penalty, "frequency-penalty", "X", REAL, "likewise, times how often they are in it")               \
    X(no_repeat_ngram, "no-repeat-ngram", "N", WHOLE, "no N tokens in a row come again; 0: off")                   \
    X(min_new_tokens, "min-new-tokens", "N", WHOLE, "no token ends the answer before there are N")                 \
    X(first_id, "first-id", "ID", WHOLE, "the answer begins with this token")                                      \
    X(top_logprobs, "logprobs", "K", WHOLE, "tell log-probabilities, also of the K best at each place (0 to 20)")
/* clang-format on */

enum { REAL, WHOLE };
enum {
#define X(field, option, arg, kind, help) NUMBER_##field,
    NUMBERS(X)
#undef X
        N_NUMBERS
};
enum {
    KEY_FIRST = 0x1000,
    KEY_ALLOW = KEY_FIRST + N_NUMBERS,
    KEY_BAN,
    KEY_BIAS,
    KEY_RAW,
    KEY_PROMPT,
    KEY_WEIGHTS
};

static const struct number {
    const char *key, *option;
    int kind;
    size_t offset; /* of a float or a uint32_t in struct cb_request */
} numbers[] = {
#define X(field, option, arg, kind, help) \
    {#field, "--" option, kind, offsetof(struct cb_request, field)},
    NUMBERS(X)
#undef X
};

/* By enum cb_on_new_weights; the default has no word. */
static const char *const wishes[] = {
    [CB_WEIGHTS_CONTINUE] = "continue",
    [CB_WEIGHTS_RESTART] = "restart",
    [CB_WEIGHTS_FAIL] = "fail",
};

/* False: there is no such word, or none at all. */
static bool take_wish(struct choices *c, const char *word)
{
    for (uint32_t i = CB_WEIGHTS_CONTINUE; word && i <= CB_WEIGHTS_FAIL; i++)
        if (!strcmp(word, wishes[i])) {
            c->request->on_new_weights = i;
            return true;
        }
    return false;
}

void choices_fini(struct choices *c)
{
    free(c->allowed);
    free(c->banned);
    free(c->biases);
    c->allowed = c->banned = NULL;
    c->biases = NULL;
}

static float *real_at(const struct choices *c, const struct number *n)
{
    return (float *)(void *)((char *)c->request + n->offset);
}

static uint32_t *whole_at(const struct choices *c, const struct number *n)
{
    return (uint32_t *)(void *)((char *)c->request + n->offset);
}

/* ---- the command line ------------------------------------------------------------------------ */

static bool bad_list(struct choices *c, const char *option, const char *text, const char *like)
{
    cbctl_complain(c->ctl, "%s is \"%s\", which is no list like %s", option, text, like);
    return false;
}

/* One id of a list, and what stands behind it; NULL: none is there. */
static const char *read_id(const char *text, uint32_t *idp)
{
    char *end;
    unsigned long v;

    errno = 0;
    v = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || errno || v > UINT32_MAX)
        return NULL;
    *idp = (uint32_t)v;
    return end;
}

/* "3,17" is added to the list. */
static bool add_ids(struct choices *c, const char *option, const char *arg, uint32_t **idsp,
                    size_t *np)
{
    uint32_t *ids = realloc(*idsp, (*np + strlen(arg) / 2 + 1) * sizeof *ids);

    if (!ids) {
        cbctl_complain(c->ctl, "out of memory");
        return false;
    }
    *idsp = ids;
    for (const char *at = arg;; at++) {
        at = read_id(at, &ids[*np]);
        if (!at || (*at && *at != ','))
            return bad_list(c, option, arg, "3,17");
        ++*np;
        if (!*at)
            return true;
    }
}

/* "3=1.5,17=-2" is added to the list. */
static bool add_biases(struct choices *c, const char *arg)
{
    size_t *np = &c->request->n_biases;
    struct cb_bias *biases = realloc(c->biases, (*np + strlen(arg) / 3 + 1) * sizeof *biases);

    if (!biases) {
        cbctl_complain(c->ctl, "out of memory");
        return false;
    }
    c->biases = biases;
    for (const char *at = arg;; at++) {
        char *end;

        at = read_id(at, &biases[*np].id);
        if (!at || *at != '=')
            return bad_list(c, "--logit-bias", arg, "3=1.5,17=-2");
        biases[*np].bias = strtof(at + 1, &end);
        if (end == at + 1 || (*end && *end != ','))
            return bad_list(c, "--logit-bias", arg, "3=1.5,17=-2");
        ++*np;
        at = end;
        if (!*at)
            return true;
    }
}

static bool take_number(struct choices *c, const struct number *n, const char *arg)
{
    double real = 0;
    uint64_t whole = 0;

    if (n->kind == REAL) {
        if (!cbctl_number(c->ctl, n->option, arg, -1e30, 1e30, &real))
            return false;
        *real_at(c, n) = (float)real;
    } else {
        if (!cbctl_whole(c->ctl, n->option, arg, 0, CB_NO_TOKEN - 1, &whole))
            return false;
        *whole_at(c, n) = (uint32_t)whole;
    }
    if (n == &numbers[NUMBER_top_logprobs])
        c->request->flags |= CB_LOGPROBS;
    return true;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct choices *c = state->input;
    struct cb_request *r = c ? c->request : NULL;

    if (key >= KEY_FIRST && key < KEY_FIRST + N_NUMBERS) {
        c->failed |= !take_number(c, &numbers[key - KEY_FIRST], arg);
        return 0;
    }
    switch (key) {
    case KEY_ALLOW:
        c->failed |= !add_ids(c, "--allow-ids", arg, &c->allowed, &r->n_allowed_ids);
        r->allowed_ids = c->allowed;
        return 0;
    case KEY_BAN:
        c->failed |= !add_ids(c, "--ban-ids", arg, &c->banned, &r->n_banned_ids);
        r->banned_ids = c->banned;
        return 0;
    case KEY_BIAS:
        c->failed |= !add_biases(c, arg);
        r->biases = c->biases;
        return 0;
    case KEY_RAW:
        r->flags |= CB_RAW_LOGPROBS;
        return 0;
    case KEY_PROMPT:
        r->flags |= CB_PROMPT_LOGPROBS;
        return 0;
    case KEY_WEIGHTS:
        if (c && !take_wish(c, arg)) {
            cbctl_complain(c->ctl, "--on-new-weights is \"%s\"; give continue, restart or fail",
                           arg);
            c->failed = true;
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option options[] = {
#define X(field, option, arg, kind, help) {option, KEY_FIRST + NUMBER_##field, arg, 0, help, 0},
    NUMBERS(X)
#undef X
        {"allow-ids", KEY_ALLOW, "ID,...", 0, "no other tokens", 0},
    {"ban-ids", KEY_BAN, "ID,...", 0, "not these tokens", 0},
    {"logit-bias", KEY_BIAS, "ID=V,...", 0, "V is added to the logit of ID", 0},
    {"raw-logprobs", KEY_RAW, NULL, 0, "log-probabilities of the model's logits as they are", 0},
    {"prompt-logprobs", KEY_PROMPT, NULL, 0, "log-probabilities of the prompt's tokens too", 0},
    {"on-new-weights", KEY_WEIGHTS, "WORD", 0,
     "when the daemon loads others: continue, restart or fail", 0},
    {0},
};

const struct argp choices_argp = {options, parse, NULL, NULL, NULL, NULL, NULL};

/* ---- JSON ------------------------------------------------------------------------------------ */

static int bad_value(char *fault, size_t bytes, const char *key, const char *what)
{
    snprintf(fault, bytes, "\"%s\" is no %s", key, what);
    return -1;
}

static bool is_id(const json_t *value)
{
    return json_is_integer(value) && json_integer_value(value) >= 0 &&
           json_integer_value(value) < CB_NO_TOKEN;
}

static int key_ids(const char *key, const json_t *list, uint32_t **idsp, size_t *np, char *fault,
                   size_t bytes)
{
    uint32_t *ids = calloc(json_array_size(list) + 1, sizeof *ids);
    json_t *value;
    size_t i;

    free(*idsp);
    *idsp = ids;
    *np = 0;
    if (!ids || !json_is_array(list))
        return bad_value(fault, bytes, key, "list of token ids");
    json_array_foreach(list, i, value)
    {
        if (!is_id(value))
            return bad_value(fault, bytes, key, "list of token ids");
        ids[(*np)++] = (uint32_t)json_integer_value(value);
    }
    return 1;
}

/* {"3": 1.5, "17": -2} */
static int key_biases(struct choices *c, const char *key, const json_t *object, char *fault,
                      size_t bytes)
{
    static const char what[] = "object of token ids with a number each";
    struct cb_bias *biases = calloc(json_object_size(object) + 1, sizeof *biases);
    size_t n = 0;
    const char *name;
    json_t *value;

    free(c->biases);
    c->biases = biases;
    if (!biases || !json_is_object(object))
        return bad_value(fault, bytes, key, what);
    json_object_foreach((json_t *)object, name, value)
    {
        const char *end = read_id(name, &biases[n].id);

        if (!end || *end || !json_is_number(value))
            return bad_value(fault, bytes, key, what);
        biases[n++].bias = (float)json_number_value(value);
    }
    c->request->biases = biases;
    c->request->n_biases = n;
    return 1;
}

static int key_flag(struct choices *c, const char *key, const json_t *value, uint32_t flag,
                    char *fault, size_t bytes)
{
    uint32_t *flags = &c->request->flags;

    if (!json_is_boolean(value))
        return bad_value(fault, bytes, key, "true or false");
    *flags = json_is_true(value) ? *flags | flag : *flags & ~flag;
    return 1;
}

static int key_number(struct choices *c, const struct number *n, const json_t *value, char *fault,
                      size_t bytes)
{
    if (n->kind == REAL) {
        if (!json_is_number(value))
            return bad_value(fault, bytes, n->key, "number");
        *real_at(c, n) = (float)json_number_value(value);
    } else {
        if (!is_id(value))
            return bad_value(fault, bytes, n->key, "whole number below 2^32 - 1");
        *whole_at(c, n) = (uint32_t)json_integer_value(value);
    }
    return 1;
}

int choices_take_key(struct choices *c, const char *key, const json_t *value, char *fault,
                     size_t bytes)
{
    struct cb_request *r = c->request;
    int taken = 0;

    for (size_t i = 0; i < N_NUMBERS; i++)
        if (!strcmp(key, numbers[i].key))
            return key_number(c, &numbers[i], value, fault, bytes);
    if (!strcmp(key, "allowed_ids")) {
        taken = key_ids(key, value, &c->allowed, &r->n_allowed_ids, fault, bytes);
        r->allowed_ids = c->allowed;
    } else if (!strcmp(key, "banned_ids")) {
        taken = key_ids(key, value, &c->banned, &r->n_banned_ids, fault, bytes);
        r->banned_ids = c->banned;
    } else if (!strcmp(key, "logit_bias")) {
        taken = key_biases(c, key, value, fault, bytes);
    } else if (!strcmp(key, "logprobs")) {
        taken = key_flag(c, key, value, CB_LOGPROBS, fault, bytes);
    } else if (!strcmp(key, "raw_logprobs")) {
        taken = key_flag(c, key, value, CB_RAW_LOGPROBS, fault, bytes);
    } else if (!strcmp(key, "prompt_logprobs")) {
        taken = key_flag(c, key, value, CB_PROMPT_LOGPROBS, fault, bytes);
    } else if (!strcmp(key, "on_new_weights")) {
        taken = take_wish(c, json_string_value(value))
                    ? 1
                    : bad_value(fault, bytes, key, "\"continue\", \"restart\" or \"fail\"");
    }
    return taken;
}
