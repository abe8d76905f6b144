/* cbctl run: prompts in, streams out. One prompt streams to the terminal as it comes; of several,
 * each answer comes when it ends, with the prompt's number in front; with --json a line a prompt,
 * in their order.
 *
 * All prompts are sent as fast as the handle has slots; an ended one gives its slot to the next. */
#include <argp.h>
#include <errno.h>
#include <jansson.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/cbclient.h"
#include "tools/cbctl.h"
#include "tools/choices.h"
#include "tools/logprobs.h"
#include "tools/prompts.h"

enum { WAIT_SLICE_MS = 100, PLACE_BYTES = 512 };

/* Where a prompt stands. */
struct sent {
    uint64_t id; /* 0: not sent, or over */
    bool over;
    json_t *result;
};

struct run {
    const struct cbctl *ctl;
    struct cb_handle *h;
    struct prompts prompts;
    struct sent *sent; /* [prompts.n] */
    size_t n_sent, n_over, n_printed;
    bool ids, chat, bad;
    const char *system;
};

static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal)
{
    (void)signal;
    interrupted++;
}

/* ---- lines of JSON ---------------------------------------------------------------------------- */

static const char *end_name(uint32_t end)
{
    static const char *const names[] = {
        [CB_END_NONE] = "none",           [CB_END_EOS] = "eos",
        [CB_END_STOP] = "stop",           [CB_END_LENGTH] = "length",
        [CB_END_CANCELLED] = "cancelled", [CB_END_DEADLINE] = "deadline",
        [CB_END_ERROR] = "error",
    };

    return end < sizeof names / sizeof names[0] ? names[end] : "unknown";
}

static json_t *ids_json(const uint32_t *ids, size_t n)
{
    json_t *list = json_array();

    for (size_t i = 0; i < n; i++)
        json_array_append_new(list, json_integer(ids[i]));
    return list;
}

/* Microseconds are enough to tell, and short. */
static double ms(uint64_t ns)
{
    return (double)(ns / 1000) / 1e3;
}

/* The line of a prompt, whatever became of it: always the same keys, and status and error for one
 * that failed. */
static json_t *line_json(const uint32_t *ids, size_t n, const char *text, size_t bytes,
                         const char *reason, const struct cb_result *result)
{
    return json_pack("{s:o, s:s%, s:s, s:I, s:{s:i, s:i, s:i}, s:{s:f, s:f, s:f}}", "ids",
                     ids_json(ids, n), "text", text, bytes, "finish_reason", reason, "seed",
                     (json_int_t)result->seed, "usage", "prompt_tokens", (int)result->n_prompt,
                     "completion_tokens", (int)n, "prefix_tokens", (int)result->n_prefix_hit,
                     "times", "queued_ms", ms(result->queued_ns), "first_token_ms",
                     ms(result->first_token_ns), "total_ms", ms(result->total_ns));
}

static void line_failed(json_t *o, int status, const char *words)
{
    json_object_set_new(o, "status", json_integer(status));
    json_object_set_new(o, "error", json_string(words));
}

static json_t *result_json(struct run *run, const struct cb_event *event)
{
    const uint32_t *ids = NULL;
    const char *text = "";
    size_t n = 0, bytes = 0;
    struct cb_result result = {0};
    char words[256];
    json_t *o;

    cb_tokens(run->h, event->id, &ids, &n);
    cb_text_all(run->h, event->id, &text, &bytes);
    cb_result(run->h, event->id, &result);
    o = line_json(ids, n, text, bytes,
                  event->type == CB_EVENT_REJECTED ? "error" : end_name(event->end), &result);
    if (event->status)
        line_failed(o, event->status,
                    cb_explain(event->status, event->detail, words, sizeof words));
    if (event->end == CB_END_STOP && !result.stop_is_id)
        json_object_set_new(o, "stop_index", json_integer(result.stop_idx));
    logprobs_json(run->h, event->id, &run->prompts.v[event->user].request, o);
    return o;
}

/* ---- sending --------------------------------------------------------------------------------- */

/* Text to ids here, so that they can be shown; a chat is rendered first. */
static int prompt_tokenize(const struct run *run, struct prompt *p)
{
    const char *text = p->text;
    char *rendered = NULL;
    uint32_t flags = 0;
    size_t bytes;
    int r;

    if (run->chat) {
        struct cb_chat_message messages[2] = {{.role = "system", .content = run->system},
                                              {.role = "user", .content = text}};
        const struct cb_chat_message *first = run->system ? messages : messages + 1;
        size_t n = run->system ? 2 : 1;

        r = cb_chat(run->h, first, n, NULL, 0, &bytes);
        if (r && r != CB_TOO_SMALL)
            return r;
        rendered = malloc(bytes + 1);
        if (!rendered)
            return CB_NO_MEMORY;
        r = cb_chat(run->h, first, n, rendered, bytes, &bytes);
        rendered[bytes] = '\0';
        text = rendered;
        flags = CB_PARSE_SPECIAL | CB_NO_BOS;
        if (r) {
            free(rendered);
            return r;
        }
    }
    r = cb_tokenize(run->h, text, strlen(text), flags, NULL, 0, &p->n_ids);
    if (r == CB_TOO_SMALL) {
        p->ids = malloc(p->n_ids * sizeof *p->ids);
        r = p->ids ? cb_tokenize(run->h, text, strlen(text), flags, p->ids, p->n_ids, &p->n_ids)
                   : CB_NO_MEMORY;
    }
    free(rendered);
    return r;
}

/* "FILE:LINE" or "prompt N", for complaints. */
static const char *place_of(const struct run *run, size_t i, char place[PLACE_BYTES])
{
    const struct prompt *p = &run->prompts.v[i];

    if (p->file)
        snprintf(place, PLACE_BYTES, "%s:%zu", p->file, p->line_number);
    else
        snprintf(place, PLACE_BYTES, "prompt %zu", i + 1);
    return place;
}

/* It never came to run: the library, or its line's reader, says why. */
static void refused(struct run *run, size_t i, int status, const char *words)
{
    const struct prompt *p = &run->prompts.v[i];
    const struct cb_result result = {.seed = p->request.seed,
                                     .n_prompt = p->ids ? (uint32_t)p->n_ids : 0};
    char place[PLACE_BYTES], error[PLACE_BYTES + 256];

    run->sent[i].over = true;
    run->n_over++;
    run->bad = true;
    run->sent[i].result = line_json(NULL, 0, "", 0, "error", &result);
    snprintf(error, sizeof error, "%s: %s", place_of(run, i, place), words);
    line_failed(run->sent[i].result, status, p->file ? error : words);
    if (!run->ctl->json)
        cbctl_complain(run->ctl, "%s", error);
}

/* Sends what there is room for. */
static void send_some(struct run *run)
{
    while (run->n_sent < run->prompts.n && !interrupted) {
        struct prompt *p = &run->prompts.v[run->n_sent];
        int r = p->fault ? CB_INVALID : 0;

        if (!r && p->text && !p->ids)
            r = prompt_tokenize(run, p);
        if (!r) {
            prompt_complete(p);
            p->request.user = run->n_sent;
            r = cb_submit(run->h, &p->request, &run->sent[run->n_sent].id);
        }
        if (r == CB_BUSY && run->n_sent > run->n_over)
            return;
        run->n_sent++;
        if (r)
            refused(run, run->n_sent - 1, r, p->fault ? p->fault : cb_message());
    }
}

/* ---- results out ----------------------------------------------------------------------------- */

/* A whole answer, its lines with the prompt's number in front. */
static void print_answer(size_t i, const char *text, size_t bytes)
{
    while (bytes) {
        const char *nl = memchr(text, '\n', bytes);
        size_t part = nl ? (size_t)(nl - text) : bytes;

        printf("[%zu] %.*s\n", i + 1, (int)part, text);
        part += nl != NULL;
        text += part;
        bytes -= part;
    }
    fflush(stdout);
}

static void stream(struct run *run, const struct cb_event *event)
{
    const struct prompt *p = &run->prompts.v[event->user];
    const char *text;
    size_t bytes;

    if (logprobs_asked(&p->request)) {
        logprobs_print(run->h, event, p, run->prompts.n > 1);
        return;
    }
    if (run->ids && run->prompts.n == 1) {
        for (size_t i = 0; i < event->n_ids; i++)
            printf("%s%u", event->first + i ? " " : "", event->ids[i]);
    } else if (run->prompts.n == 1) {
        while (cb_text(run->h, event->id, &text, &bytes) > 0)
            fwrite(text, 1, bytes, stdout);
    } else if (run->ids && event->type == CB_EVENT_END) {
        const uint32_t *ids = NULL;
        size_t n = 0;

        cb_tokens(run->h, event->id, &ids, &n);
        printf("[%zu]", (size_t)event->user + 1);
        for (size_t i = 0; i < n; i++)
            printf(" %u", ids[i]);
        putchar('\n');
    } else if (event->type == CB_EVENT_END && !cb_text_all(run->h, event->id, &text, &bytes)) {
        print_answer(event->user, text, bytes);
    }
    if (event->type == CB_EVENT_END && run->prompts.n == 1)
        putchar('\n');
    fflush(stdout);
}

/* An answer without a limit of its own ends where there is no more room: that looks like an end of
 * its own will. */
static void tell_full(const struct run *run, const struct cb_event *event)
{
    const struct prompt *p = &run->prompts.v[event->user];
    struct cb_result result;
    char place[PLACE_BYTES];

    if (event->type == CB_EVENT_END && event->end == CB_END_LENGTH &&
        p->request.max_new_tokens == CB_NO_LIMIT && !cb_result(run->h, event->id, &result))
        cbctl_complain(
            run->ctl,
            "%s: it ended because it was full: with its prompt it has %u tokens, and the "
            "daemon's cache, the model's context or the room for its results holds no more",
            place_of(run, event->user, place), result.n_prompt + result.n_generated);
}

static void ended(struct run *run, const struct cb_event *event)
{
    struct sent *s = &run->sent[event->user];

    if (run->ctl->json)
        s->result = result_json(run, event);
    char words[256], place[PLACE_BYTES];
    const char *why = NULL;

    /* What ended early must not look whole. */
    if (event->status)
        why = cb_explain(event->status, event->detail, words, sizeof words);
    else if (event->end == CB_END_DEADLINE)
        why = "its deadline has passed";
    else if (event->end == CB_END_CANCELLED && !interrupted)
        why = "somebody else has cancelled it";
    if (why)
        run->bad = true;
    if (why && !run->ctl->json)
        cbctl_complain(run->ctl, "%s: %s", place_of(run, event->user, place), why);
    if (!run->ctl->json)
        tell_full(run, event);
    cb_release(run->h, event->id);
    s->id = 0;
    s->over = true;
    run->n_over++;
}

/* With --json: the lines of what is over, as far as no earlier one is missing. */
static void print_lines(struct run *run)
{
    for (; run->n_printed < run->n_sent && run->sent[run->n_printed].over; run->n_printed++) {
        const struct prompt *p = &run->prompts.v[run->n_printed];
        json_t *result = run->sent[run->n_printed].result;

        if (!run->ctl->json)
            continue;
        json_object_set_new(result, "index", json_integer((json_int_t)run->n_printed));
        json_object_set_new(result, "prompt_ids", ids_json(p->ids, p->ids ? p->n_ids : 0));
        json_dumpf(result, stdout, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(15));
        putchar('\n');
        fflush(stdout);
    }
}

static void cancel_all(struct run *run)
{
    for (size_t i = 0; i < run->n_sent; i++) {
        if (run->sent[i].id)
            cb_cancel(run->h, run->sent[i].id);
    }
}

static int run_all(struct run *run)
{
    bool cancelled = false;

    send_some(run);
    print_lines(run);
    while (run->n_over < run->n_sent && interrupted < 2) {
        struct cb_event event;
        int r = cb_wait(run->h, 0, &event, WAIT_SLICE_MS);

        if (ferror(stdout)) { /* nobody reads any more; cbctl.c says so */
            cancel_all(run);
            return CBCTL_FAILED;
        }
        if (interrupted && !cancelled) {
            cancel_all(run);
            cancelled = true;
        }
        if (r == CB_TIMEOUT)
            continue;
        if (r < 0) {
            cbctl_complain(run->ctl, "%s", cb_message());
            return CBCTL_FAILED;
        }
        if (!run->ctl->json)
            stream(run, &event);
        if (event.type != CB_EVENT_TOKENS)
            ended(run, &event);
        send_some(run);
        print_lines(run);
    }
    if (interrupted)
        return CBCTL_INTERRUPTED;
    return run->bad ? CBCTL_FAILED : CBCTL_OK;
}

/* ---- the command ----------------------------------------------------------------------------- */

enum {
    KEY_TEMPERATURE = 256,
    KEY_TOP_K,
    KEY_TOP_P,
    KEY_SEED,
    KEY_STOP,
    KEY_STOP_ID,
    KEY_IDS,
    KEY_IDS_IN,
    KEY_FILE,
    KEY_CHAT,
    KEY_SYSTEM,
    KEY_DEADLINE,
    KEY_IGNORE_EOS,
    KEY_CACHE_SALT,
};

static const struct argp_option options[] = {
    {"max-new-tokens", 'n', "TOKENS", 0,
     "at most so many new tokens (default: what context and cache hold)", 0},
    {"temperature", KEY_TEMPERATURE, "T", 0, "0, the default, is greedy", 0},
    {"top-k", KEY_TOP_K, "K", 0, "draw from the K best; 0: off", 0},
    {"top-p", KEY_TOP_P, "P", 0, "draw from the best that make up P; 1: off", 0},
    {"seed", KEY_SEED, "N", 0, "makes draws repeatable", 0},
    {"stop", KEY_STOP, "TEXT", 0, "ends the answer before TEXT; up to 16 times", 0},
    {"stop-id", KEY_STOP_ID, "ID", 0, "ends the answer at this token; up to 64 times", 0},
    {"ignore-eos", KEY_IGNORE_EOS, NULL, 0, "an end-of-sequence token does not end it", 0},
    {"cache-salt", KEY_CACHE_SALT, "WORD", 0, "share cached prompts with all that name WORD", 0},
    {"deadline", KEY_DEADLINE, "MS", 0, "ends it after so many milliseconds", 0},
    {"chat", KEY_CHAT, NULL, 0, "each TEXT is a user's message, put in the model's template", 0},
    {"system", KEY_SYSTEM, "TEXT", 0, "the system message of --chat", 0},
    {"ids", KEY_IDS, NULL, 0, "print token ids instead of text", 0},
    {"ids-in", KEY_IDS_IN, "IDS", 0, "a prompt as token ids, \"1 2 3\"; may be repeated", 0},
    {"file", KEY_FILE, "FILE", 0,
     "prompts, a JSON object a line: {\"text\": ...} or {\"ids\": [...]}", 0},
    {"json", 'j', NULL, 0, "print a JSON object a prompt", 0},
    {0},
};

struct parse_state {
    struct run run;
    struct cbctl ctl;
    struct cb_request defaults;
    struct choices choices; /* among the defaults */
    struct cb_string stops[PROMPT_STOPS_MAX];
    uint32_t stop_ids[PROMPT_STOP_IDS_MAX];
    const char *file;
    bool failed;
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct parse_state *ps = state->input;
    struct run *run = &ps->run;
    struct cb_request *d = &ps->defaults;
    double v = 0;
    uint64_t n = 0;

    switch (key) {
    case 'n':
        ps->failed |= !cbctl_whole(run->ctl, "-n", arg, 0, CB_NO_LIMIT - 1, &n);
        d->max_new_tokens = (uint32_t)n;
        return 0;
    case KEY_TEMPERATURE:
        ps->failed |= !cbctl_number(run->ctl, "--temperature", arg, 0, 1e6, &v);
        d->temperature = (float)v;
        return 0;
    case KEY_TOP_K:
        ps->failed |= !cbctl_whole(run->ctl, "--top-k", arg, 0, INT32_MAX, &n);
        d->top_k = (int32_t)n;
        return 0;
    case KEY_TOP_P:
        ps->failed |= !cbctl_number(run->ctl, "--top-p", arg, 1e-9, 1, &v);
        d->top_p = (float)v;
        return 0;
    case KEY_SEED:
        ps->failed |= !cbctl_whole(run->ctl, "--seed", arg, 0, PROMPT_SEED_MAX, &d->seed);
        d->flags |= CB_HAS_SEED;
        return 0;
    case KEY_STOP:
        if (!*arg) {
            cbctl_complain(run->ctl, "--stop is empty; give the text that ends the answer");
            ps->failed = true;
            return 0;
        }
        if (d->n_stops == PROMPT_STOPS_MAX) {
            cbctl_complain(run->ctl, "at most %d --stop", PROMPT_STOPS_MAX);
            ps->failed = true;
            return 0;
        }
        ps->stops[d->n_stops++] = (struct cb_string){arg, strlen(arg)};
        return 0;
    case KEY_STOP_ID:
        if (d->n_stop_ids == PROMPT_STOP_IDS_MAX ||
            !cbctl_whole(run->ctl, "--stop-id", arg, 0, UINT32_MAX, &n)) {
            ps->failed = true;
            return 0;
        }
        ps->stop_ids[d->n_stop_ids++] = (uint32_t)n;
        return 0;
    case KEY_IGNORE_EOS:
        d->flags |= CB_IGNORE_EOS;
        return 0;
    case KEY_CACHE_SALT:
        d->cache_salt = arg;
        return 0;
    case KEY_DEADLINE:
        ps->failed |=
            !cbctl_whole(run->ctl, "--deadline", arg, 1, PROMPT_DEADLINE_MS_MAX, &d->deadline_ms);
        return 0;
    case KEY_CHAT:
        run->chat = true;
        return 0;
    case KEY_SYSTEM:
        run->system = arg;
        run->chat = true;
        return 0;
    case KEY_IDS:
        run->ids = true;
        return 0;
    case KEY_IDS_IN:
        ps->failed |= !prompts_add_ids(&run->prompts, arg, d);
        return 0;
    case KEY_FILE:
        ps->file = arg;
        return 0;
    case 'j':
        ps->ctl.json = true;
        return 0;
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &ps->choices;
        return 0;
    case ARGP_KEY_ARG:
        ps->failed |= !prompts_add_text(&run->prompts, arg, d);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* All prompts there are; false after a complaint. */
static bool gather(struct parse_state *ps)
{
    struct prompts *list = &ps->run.prompts;

    ps->defaults.stops = ps->stops;
    ps->defaults.stop_ids = ps->stop_ids;
    if (!list->n && !ps->file && !prompts_add_stdin(list, &ps->defaults))
        return false;
    /* Options hold for prompts on the command line wherever they stand. */
    for (size_t i = 0; i < list->n; i++)
        list->v[i].request = ps->defaults;
    return !ps->file || prompts_add_file(list, ps->file, &ps->defaults);
}

int cmd_run(const struct cbctl *ctl, int argc, char **argv)
{
    static const char doc[] =
        "Sends prompts and streams the answers. Without a prompt, standard input "
        "is one. Ctrl-C cancels.";
    static const struct argp_child children[] = {{&choices_argp, 0, "Which tokens:", 1}, {0}};
    const struct argp argp = {options, parse, "[TEXT...]", doc, children, NULL, NULL};
    struct parse_state ps = {.ctl = *ctl};
    struct run *run = &ps.run;
    struct cb_options open_options;
    struct sigaction action = {.sa_handler = on_interrupt};
    int r = CBCTL_USAGE;

    run->ctl = run->prompts.ctl = &ps.ctl;
    cb_request_init(&ps.defaults);
    ps.choices.ctl = &ps.ctl;
    ps.choices.request = &ps.defaults;
    if (argp_parse(&argp, argc, argv, 0, NULL, &ps) || ps.failed || ps.choices.failed ||
        !gather(&ps))
        goto out;
    run->sent = calloc(run->prompts.n + 1, sizeof *run->sent);
    cb_options_init(&open_options);
    open_options.instance = ctl->instance;
    open_options.name = "cbctl run";
    r = CBCTL_FAILED;
    if (!run->sent) {
        cbctl_complain(&ps.ctl, "out of memory");
    } else if (cb_open(&run->h, &open_options)) {
        cbctl_complain(&ps.ctl, "%s", cb_message());
    } else {
        sigaction(SIGINT, &action, NULL);
        r = run_all(run);
    }
out:
    for (size_t i = 0; run->sent && i < run->prompts.n; i++)
        json_decref(run->sent[i].result);
    free(run->sent);
    prompts_fini(&run->prompts);
    choices_fini(&ps.choices);
    cb_close(run->h);
    return r;
}
