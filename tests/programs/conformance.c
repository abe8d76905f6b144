/* conformance CASES.json GROUP INSTANCE: runs the cases of a group by libcbclient, and prints what came
 * of each, one JSON object a line. tests/conformance/run.py does the same in Python; what both print
 * must be the same, and what the file expects.
 *
 * A case is a connection of its own ("lane" says what is asked of it) and steps:
 *
 *   {"submit": {...}}            the fields of struct cb_request by name, flags as true
 *   {"pause": true|false}        of the handle
 *   {"cancel": i}                of the i-th sequence that was submitted
 *   {"await": i, "tokens": n}    until it has so many, or has ended
 *   {"finish": i}                until it has ended, and its slot is free
 *
 * At the end all are awaited. Then there is an outcome for each sequence, and for each submit that
 * failed, in order. Long lists of ids are given as a count and a hash, floats as their bits. */
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/cbclient.h"
#include "shm/status.h"

enum { N_MAX = 256, IDS_MAX = 65536, IDS_SHOWN = 40, HANG_MS = 60000 };

struct sequence {
    uint64_t id; /* 0: none; the outcome is there */
    json_t *wishes;
    json_t *outcome;
    uint32_t ids[IDS_MAX]; /* as events brought them */
    uint32_t n_ids;
    uint64_t user;
    bool has_ended;
};

struct run {
    struct cb_handle *h;
    struct sequence *sequences[N_MAX];
    int n;
};

static _Noreturn void fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("conformance: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(2);
}

static const char *status_name(int status)
{
    switch (status) {
#define X(name, number, text) \
    case number:              \
        return &#name[3];
        CB_STATUS_TABLE(X)
#undef X
    default:
        fail("status %d", status);
    }
}

/* ---- a request from its JSON ------------------------------------------------------------------- */

static double number(const json_t *o, const char *key, double preset)
{
    const json_t *v = json_object_get(o, key);
    return json_is_number(v) ? json_number_value(v) : preset;
}

static uint64_t whole(const json_t *o, const char *key, uint64_t preset)
{
    const json_t *v = json_object_get(o, key);
    return json_is_integer(v) ? (uint64_t)json_integer_value(v) : preset;
}

/* A list, or {"from": a, "step": s, "n": n}. NULL: it is not there. */
static uint32_t *ids_of(const json_t *v, size_t *np)
{
    *np = 0;
    if (!v)
        return NULL;
    *np = json_is_array(v) ? json_array_size(v) : whole(v, "n", 0);
    uint32_t *ids = calloc(*np + 1, sizeof *ids);
    for (size_t i = 0; i < *np; i++)
        ids[i] = json_is_array(v) ? (uint32_t)json_integer_value(json_array_get(v, i))
                                  : (uint32_t)(whole(v, "from", 0) + i * whole(v, "step", 1));
    return ids;
}

static uint32_t flag(const json_t *o, const char *key, uint32_t value)
{
    return json_is_true(json_object_get(o, key)) ? value : 0;
}

static struct cb_string *stops_of(const json_t *v, size_t *np)
{
    *np = json_array_size(v);
    struct cb_string *stops = calloc(*np + 1, sizeof *stops);
    for (size_t i = 0; i < *np; i++) {
        const json_t *s = json_array_get(v, i);
        stops[i] = (struct cb_string){json_string_value(s), json_string_length(s)};
    }
    return *np ? stops : (free(stops), NULL);
}

static struct cb_bias *biases_of(const json_t *v, size_t *np)
{
    *np = json_array_size(v);
    struct cb_bias *biases = calloc(*np + 1, sizeof *biases);
    for (size_t i = 0; i < *np; i++) {
        const json_t *pair = json_array_get(v, i);
        biases[i] = (struct cb_bias){(uint32_t)json_integer_value(json_array_get(pair, 0)),
                                     (float)json_number_value(json_array_get(pair, 1))};
    }
    return biases;
}

static void request_init(struct cb_request *r, const json_t *w)
{
    cb_request_init(r);
    r->ids = ids_of(json_object_get(w, "ids"), &r->n_ids);
    r->text = json_string_value(json_object_get(w, "text"));
    r->max_new_tokens = (uint32_t)whole(w, "max_new_tokens", CB_NO_LIMIT);
    r->temperature = (float)number(w, "temperature", 0);
    r->top_p = (float)number(w, "top_p", 1);
    r->top_k = (int32_t)number(w, "top_k", 0);
    r->priority = (uint32_t)whole(w, "priority", 0);
    r->user = whole(w, "user", 0);
    r->deadline_ms = whole(w, "deadline_ms", 0);
    r->stop_ids = ids_of(json_object_get(w, "stop_ids"), &r->n_stop_ids);
    r->stops = stops_of(json_object_get(w, "stops"), &r->n_stops);
    r->cache_salt = json_string_value(json_object_get(w, "cache_salt"));
    r->allowed_ids = ids_of(json_object_get(w, "allowed_ids"), &r->n_allowed_ids);
    r->banned_ids = ids_of(json_object_get(w, "banned_ids"), &r->n_banned_ids);
    r->biases = biases_of(json_object_get(w, "biases"), &r->n_biases);
    r->repetition_penalty = (float)number(w, "repetition_penalty", 1);
    r->presence_penalty = (float)number(w, "presence_penalty", 0);
    r->frequency_penalty = (float)number(w, "frequency_penalty", 0);
    r->no_repeat_ngram = (uint32_t)whole(w, "no_repeat_ngram", 0);
    r->min_new_tokens = (uint32_t)whole(w, "min_new_tokens", 0);
    r->first_id = (uint32_t)whole(w, "first_id", CB_NO_TOKEN);
    r->min_p = (float)number(w, "min_p", 0);
    r->typical_p = (float)number(w, "typical_p", 1);
    r->top_logprobs = (uint32_t)whole(w, "top_logprobs", 0);
    r->on_new_weights = (uint32_t)whole(w, "on_new_weights", 0);
    r->n = (uint32_t)whole(w, "n", 1);
    r->child_idx = (uint32_t)whole(w, "child_idx", 0);
    if (json_object_get(w, "seed")) {
        r->seed = whole(w, "seed", 0);
        r->flags |= CB_HAS_SEED;
    }
    r->flags |= flag(w, "final_only", CB_FINAL_ONLY) | flag(w, "ignore_eos", CB_IGNORE_EOS) |
                flag(w, "times", CB_TIMES) | flag(w, "logprobs", CB_LOGPROBS) |
                flag(w, "raw_logprobs", CB_RAW_LOGPROBS) | flag(w, "epochs", CB_EPOCHS) |
                flag(w, "prompt_logprobs", CB_PROMPT_LOGPROBS) |
                flag(w, "parse_special", CB_PARSE_SPECIAL) | flag(w, "no_bos", CB_NO_BOS);
}

static void request_fini(struct cb_request *r)
{
    free((void *)r->ids);
    free((void *)r->stop_ids);
    free((void *)r->stops);
    free((void *)r->allowed_ids);
    free((void *)r->banned_ids);
    free((void *)r->biases);
}

/* ---- what came of it --------------------------------------------------------------------------- */

static void put(json_t *o, const char *key, json_t *value)
{
    if (json_object_set_new(o, key, value))
        fail("out of memory");
}

static json_t *refused(int status, const char *words)
{
    return json_pack("{s:s, s:s}", "refused", status_name(status), "words", words);
}

static json_t *bits_of(float x)
{
    uint32_t bits;
    if (isnan(x))
        return json_null();
    memcpy(&bits, &x, sizeof bits);
    return json_integer(bits);
}

static json_t *ids_shown(const uint32_t *ids, size_t n)
{
    json_t *list = json_array();
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    char text[48];
    for (size_t i = 0; i < n; i++) {
        json_array_append_new(list, json_integer(ids[i]));
        hash = (hash ^ ids[i]) * UINT64_C(0x100000001b3);
    }
    if (n <= IDS_SHOWN)
        return list;
    json_decref(list);
    snprintf(text, sizeof text, "%zu ids, %016llx", n, (unsigned long long)hash);
    return json_string(text);
}

static json_t *floats(const float *x, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(list, bits_of(x[i]));
    return list;
}

static json_t *best(const struct cb_top_logprob *top, size_t n, size_t k)
{
    json_t *all = json_array();
    for (size_t i = 0; i < n; i++) {
        json_t *place = json_array();
        for (size_t j = 0; j < k && top[i * k + j].id != CB_NO_TOKEN; j++)
            json_array_append_new(place, json_pack("[I,o]", (json_int_t)top[i * k + j].id,
                                                   bits_of(top[i * k + j].logprob)));
        json_array_append_new(all, place);
    }
    return all;
}

static void put_planes(json_t *o, struct cb_handle *h, const struct sequence *q)
{
    const struct cb_top_logprob *top;
    size_t n, k = whole(q->wishes, "top_logprobs", 0);
    const uint32_t *epochs;
    const uint64_t *times;
    const float *x;
    if (k || flag(q->wishes, "logprobs", 1)) {
        if (cb_logprobs(h, q->id, &x, &top, &n))
            fail("cb_logprobs: %s", cb_message());
        put(o, "logprobs", floats(x, n));
        if (k)
            put(o, "top", best(top, n, k));
    }
    if (flag(q->wishes, "prompt_logprobs", 1)) {
        if (cb_prompt_logprobs(h, q->id, &x, &top, &n))
            fail("cb_prompt_logprobs: %s", cb_message());
        put(o, "prompt_logprobs", floats(x, n));
        if (k)
            put(o, "prompt_top", best(top, n, k));
    }
    if (flag(q->wishes, "epochs", 1)) {
        if (cb_epochs(h, q->id, &epochs, &n))
            fail("cb_epochs: %s", cb_message());
        put(o, "epochs", ids_shown(epochs, n));
    }
    if (flag(q->wishes, "times", 1)) {
        bool ascend = true;
        if (cb_times(h, q->id, &times, &n))
            fail("cb_times: %s", cb_message());
        for (size_t i = 0; i < n; i++)
            ascend &= times[i] > 0 && (i == 0 || times[i] >= times[i - 1]);
        put(o, "times", json_pack("{s:I, s:b}", "n", (json_int_t)n, "ascend", ascend));
    }
}

static json_t *outcome_of(struct cb_handle *h, const struct sequence *q)
{
    static const char *const ends[] = {NULL,        "eos",      "stop", "length",
                                       "cancelled", "deadline", "error"};
    struct cb_result r;
    const uint32_t *ids;
    const char *text;
    size_t n;
    char words[256];
    json_t *o = json_object();
    if (cb_result(h, q->id, &r) || cb_tokens(h, q->id, &ids, &n) ||
        cb_text_all(h, q->id, &text, &(size_t){0}) < 0)
        fail("what came of it: %s", cb_message());
    if (n != q->n_ids || (n > 0 && memcmp(ids, q->ids, n * sizeof *ids) != 0))
        fail("events brought %u tokens, and there are %zu", q->n_ids, n);
    put(o, "end", json_string(ends[r.end]));
    if (r.status)
        put(o, "error", json_string(cb_explain(r.status, r.detail, words, sizeof words)));
    put(o, "ids", ids_shown(ids, n));
    put(o, "n_prompt", json_integer(r.n_prompt));
    put(o, "user", json_integer((json_int_t)q->user));
    if (n <= IDS_SHOWN)
        put(o, "text", json_string(text));
    if (json_object_get(q->wishes, "seed"))
        put(o, "seed", json_integer((json_int_t)r.seed));
    if (r.end == CB_END_STOP)
        put(o, "stop", json_pack("[i,b]", (int)r.stop_idx, (int)r.stop_is_id));
    put_planes(o, h, q);
    return o;
}

/* ---- steps ------------------------------------------------------------------------------------- */

/* Takes events until it has n tokens or has ended. */
static void take(struct cb_handle *h, struct sequence *q, uint64_t n)
{
    struct cb_event e;
    while (!q->has_ended && q->n_ids < n) {
        char words[256];
        if (cb_wait(h, q->id, &e, HANG_MS) != 1)
            fail("waiting: %s", cb_message());
        if (e.first != q->n_ids && e.n_ids > 0)
            fail("tokens from %u on, and there were %u", e.first, q->n_ids);
        if (e.n_ids > IDS_MAX - q->n_ids)
            fail("more than %d tokens", IDS_MAX);
        if (e.n_ids > 0)
            memcpy(&q->ids[q->n_ids], e.ids, e.n_ids * sizeof *e.ids);
        q->n_ids += (uint32_t)e.n_ids;
        q->user = e.user;
        q->has_ended = e.type == CB_EVENT_END || e.type == CB_EVENT_REJECTED;
        if (e.type == CB_EVENT_REJECTED)
            q->outcome = refused(e.status, cb_explain(e.status, e.detail, words, sizeof words));
    }
}

static void finish(struct cb_handle *h, struct sequence *q)
{
    if (!q->id)
        return;
    take(h, q, UINT64_MAX);
    if (!q->outcome)
        q->outcome = outcome_of(h, q);
    cb_release(h, q->id);
    q->id = 0;
}

static void submit(struct run *run, json_t *wishes)
{
    struct cb_request r;
    uint64_t id;
    request_init(&r, wishes);
    int status = cb_submit(run->h, &r, &id);
    for (uint32_t i = 0; i < (status ? 1 : r.n); i++) {
        struct sequence *q = calloc(1, sizeof *q);
        if (!q || run->n == N_MAX)
            fail("too many sequences");
        q->wishes = wishes;
        q->id = status ? 0 : id + i;
        q->outcome = status ? refused(status, cb_message()) : NULL;
        run->sequences[run->n++] = q;
    }
    request_fini(&r);
}

static struct sequence *sequence_at(const struct run *run, const json_t *idx)
{
    json_int_t i = json_integer_value(idx);
    if (!json_is_integer(idx) || i < 0 || i >= run->n)
        fail("a step is of no sequence");
    return run->sequences[i];
}

static void step(struct run *run, const json_t *s)
{
    json_t *v;
    if ((v = json_object_get(s, "submit"))) {
        submit(run, v);
    } else if ((v = json_object_get(s, "pause"))) {
        if (json_is_true(v) ? cb_pause(run->h, HANG_MS) : cb_resume(run->h))
            fail("pausing: %s", cb_message());
    } else if ((v = json_object_get(s, "cancel"))) {
        if (cb_cancel(run->h, sequence_at(run, v)->id))
            fail("cancelling: %s", cb_message());
    } else if ((v = json_object_get(s, "await"))) {
        take(run->h, sequence_at(run, v), whole(s, "tokens", 0));
    } else if ((v = json_object_get(s, "finish"))) {
        finish(run->h, sequence_at(run, v));
    } else {
        fail("an unknown step");
    }
}

static json_t *run_case(const json_t *c, const char *instance)
{
    const json_t *lane = json_object_get(c, "lane");
    struct cb_options options;
    struct run run = {0};
    json_t *outcomes = json_array(), *s;
    size_t i;
    cb_options_init(&options);
    options.instance = instance;
    options.n_slots = (uint32_t)whole(lane, "n_slots", 0);
    options.arena_bytes = whole(lane, "arena_bytes", 0);
    options.pool_bytes = whole(lane, "pool_bytes", 0);
    int r = cb_open(&run.h, &options);
    if (r) {
        json_array_append_new(outcomes, refused(r, cb_message()));
        return outcomes;
    }
    json_array_foreach(json_object_get(c, "do"), i, s)
    {
        step(&run, s);
    }
    for (int k = 0; k < run.n; k++) {
        finish(run.h, run.sequences[k]);
        json_array_append_new(outcomes, run.sequences[k]->outcome);
        free(run.sequences[k]);
    }
    cb_close(run.h);
    return outcomes;
}

int main(int argc, char **argv)
{
    json_t *group, *c;
    json_error_t error;
    size_t i;
    if (argc != 4)
        fail("usage: conformance CASES.json GROUP INSTANCE");
    json_t *root = json_load_file(argv[1], 0, &error);
    if (!root)
        fail("%s:%d: %s", argv[1], error.line, error.text);
    group = json_object_get(root, argv[2]);
    json_array_foreach(json_object_get(group, "cases"), i, c)
    {
        json_t *line = json_pack("{s:O, s:o}", "name", json_object_get(c, "name"), "outcomes",
                                 run_case(c, argv[3]));
        json_dumpf(line, stdout, JSON_COMPACT | JSON_SORT_KEYS);
        putchar('\n');
        json_decref(line);
    }
    json_decref(root);
    return 0;
}
