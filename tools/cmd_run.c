/* cbctl run: prompts in, streams out. One prompt streams to the terminal as it comes; of several, whole
 * lines come with the prompt's number in front, and with --json a line a prompt, in the prompts' order.
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

enum { STOPS_MAX = 16, STOP_IDS_MAX = 64, WAIT_SLICE_MS = 100 };

struct prompt {
    char *text;    /* owned; NULL: ids */
    uint32_t *ids; /* owned: given, or the text's */
    size_t n_ids;
    struct cb_request request; /* its options; the prompt is filled in when it is sent */
    struct cb_string stops[STOPS_MAX];
    uint32_t stop_ids[STOP_IDS_MAX];
    json_t *line; /* keeps alive what the options point to; NULL: the command line does */
    uint64_t id;  /* 0: not sent, or over */
    int status;   /* why it was never accepted */
    bool over, printed;
    bool fresh_line; /* of several: at the start of a line */
    json_t *result;
};

struct run {
    const struct cbctl *ctl;
    struct cb_handle *h;
    struct prompt *prompts;
    size_t n_prompts, n_sent, n_over, n_printed;
    struct cb_request defaults;
    struct cb_string stops[STOPS_MAX];
    uint32_t stop_ids[STOP_IDS_MAX];
    bool ids, chat, bad;
    const char *system;
};

static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal)
{
    (void)signal;
    interrupted++;
}

/* ---- prompts in ------------------------------------------------------------------------------------- */

static struct prompt *prompt_add(struct run *run)
{
    struct prompt *p;

    if ((run->n_prompts & (run->n_prompts - 1)) == 0) {
        size_t room = run->n_prompts ? run->n_prompts * 2 : 1;

        p = realloc(run->prompts, room * sizeof *p);
        if (!p)
            return NULL;
        run->prompts = p;
    }
    p = &run->prompts[run->n_prompts++];
    memset(p, 0, sizeof *p);
    p->fresh_line = true;
    return p;
}

static bool ids_parse(const struct run *run, const char *text, uint32_t **idsp, size_t *np)
{
    size_t n = 0, room = strlen(text) / 2 + 1;
    uint32_t *ids = malloc(room * sizeof *ids);

    if (!ids)
        return false;
    for (const char *p = text; *(p += strspn(p, " ,\t\n"));) {
        char *end;
        unsigned long v;

        errno = 0;
        v = strtoul(p, &end, 10);
        if (end == p || *p == '-' || v > UINT32_MAX || errno) {
            cbctl_complain(run->ctl, "\"%s\" is no list of token ids; give numbers and blanks",
                           text);
            free(ids);
            return false;
        }
        ids[n++] = (uint32_t)v;
        p = end;
    }
    *idsp = ids;
    *np = n;
    return true;
}

static char *read_all(FILE *f, size_t *bytesp)
{
    size_t n = 0, room = 1 << 16;
    char *text = malloc(room);

    while (text) {
        n += fread(text + n, 1, room - 1 - n, f);
        if (n < room - 1)
            break;
        room *= 2;
        char *larger = realloc(text, room);

        if (!larger)
            free(text);
        text = larger;
    }
    if (text)
        text[n] = '\0';
    *bytesp = n;
    return text;
}

static bool line_number(const json_t *o, const char *key, double *v)
{
    const json_t *value = json_object_get(o, key);

    if (!value)
        return false;
    *v = json_is_number(value) ? json_number_value(value) : -1;
    return true;
}

/* One line of --file: {"text": ...} or {"ids": [...]}, with options named as on the command line. */
static bool line_parse(struct run *run, json_t *o, const char *file, size_t line)
{
    static const char *const known[] = {"text",     "ids",         "max_new_tokens", "temperature",
                                        "top_k",    "top_p",       "seed",           "stop",
                                        "stop_ids", "deadline_ms", "ignore_eos"};
    struct prompt *p = prompt_add(run);
    const json_t *text = json_object_get(o, "text"), *ids = json_object_get(o, "ids"), *list;
    const char *key;
    json_t *value;
    double v;
    size_t i;

    if (!p)
        return false;
    p->request = run->defaults;
    p->line = json_incref(o);
    json_object_foreach(o, key, value)
    {
        bool found = false;

        for (i = 0; i < sizeof known / sizeof known[0]; i++)
            found |= strcmp(key, known[i]) == 0;
        if (!found) {
            cbctl_complain(run->ctl, "%s, line %zu: unknown key \"%s\"", file, line, key);
            return false;
        }
    }
    if (json_is_string(text) && !ids) {
        p->text = strdup(json_string_value(text));
    } else if (json_is_array(ids) && !text) {
        p->ids = calloc(json_array_size(ids) + 1, sizeof *p->ids);
        json_array_foreach(ids, i, value)
        {
            json_int_t id = json_integer_value(value);

            if (!json_is_integer(value) || id < 0 || id > UINT32_MAX) {
                cbctl_complain(run->ctl, "%s, line %zu: ids[%zu] is no token id", file, line, i);
                return false;
            }
            if (p->ids)
                p->ids[p->n_ids++] = (uint32_t)id;
        }
    } else {
        cbctl_complain(run->ctl, "%s, line %zu: needs a \"text\" or a list \"ids\"", file, line);
        return false;
    }
    if (!p->text && !p->ids)
        return false;
    if (line_number(o, "max_new_tokens", &v))
        p->request.max_new_tokens = v >= 0 && v < CB_NO_LIMIT ? (uint32_t)v : CB_NO_LIMIT;
    if (line_number(o, "temperature", &v))
        p->request.temperature = (float)v;
    if (line_number(o, "top_k", &v))
        p->request.top_k = (int32_t)v;
    if (line_number(o, "top_p", &v))
        p->request.top_p = (float)v;
    if (line_number(o, "deadline_ms", &v))
        p->request.deadline_ms = v > 0 ? (uint64_t)v : 0;
    if (json_is_integer(value = json_object_get(o, "seed"))) {
        p->request.seed = (uint64_t)json_integer_value(value);
        p->request.flags |= CB_HAS_SEED;
    }
    if (json_is_true(json_object_get(o, "ignore_eos")))
        p->request.flags |= CB_IGNORE_EOS;
    list = json_object_get(o, "stop");
    if (json_is_string(list)) {
        p->stops[0] = (struct cb_string){json_string_value(list), json_string_length(list)};
        p->request.n_stops = 1;
    } else if (list) {
        p->request.n_stops = 0;
        json_array_foreach(list, i, value)
        {
            if (!json_is_string(value) || i == STOPS_MAX) {
                cbctl_complain(run->ctl, "%s, line %zu: stop is a list of up to %d strings", file,
                               line, STOPS_MAX);
                return false;
            }
            p->stops[i] = (struct cb_string){json_string_value(value), json_string_length(value)};
            p->request.n_stops++;
        }
    }
    if (list)
        p->request.stops = NULL; /* its own: pointed to when it is sent, for prompts move */
    list = json_object_get(o, "stop_ids");
    if (list) {
        p->request.n_stop_ids = 0;
        p->request.stop_ids = NULL;
        json_array_foreach(list, i, value)
        {
            if (!json_is_integer(value) || i == STOP_IDS_MAX) {
                cbctl_complain(run->ctl, "%s, line %zu: stop_ids is a list of up to %d ids", file,
                               line, STOP_IDS_MAX);
                return false;
            }
            p->stop_ids[p->request.n_stop_ids++] = (uint32_t)json_integer_value(value);
        }
    }
    return true;
}

static bool file_parse(struct run *run, const char *file)
{
    FILE *f = strcmp(file, "-") == 0 ? stdin : fopen(file, "r");
    size_t room = 0, number = 0;
    char *line = NULL;
    bool ok = true;

    if (!f) {
        cbctl_complain(run->ctl, "can't open %s: %s", file, strerror(errno));
        return false;
    }
    while (ok && getline(&line, &room, f) > 0) {
        json_error_t error;
        json_t *o;

        number++;
        if (line[strspn(line, " \t\r\n")] == '\0')
            continue;
        o = json_loads(line, 0, &error);
        if (!json_is_object(o)) {
            cbctl_complain(run->ctl, "%s, line %zu: %s", file, number,
                           o ? "not a JSON object" : error.text);
            ok = false;
        } else {
            ok = line_parse(run, o, file, number);
        }
        json_decref(o);
    }
    free(line);
    if (f != stdin)
        fclose(f);
    return ok;
}

/* ---- sending ---------------------------------------------------------------------------------------- */

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

static void prompt_refused(struct run *run, struct prompt *p, int status)
{
    p->status = status;
    p->over = true;
    run->n_over++;
    run->bad = true;
    p->result = json_pack("{s:s, s:i, s:s}", "finish_reason", "error", "status", status, "error",
                          cb_message());
    if (!run->ctl->json)
        cbctl_complain(run->ctl, "prompt %zu: %s", (size_t)(p - run->prompts) + 1, cb_message());
}

/* Sends what there is room for. */
static void send_some(struct run *run)
{
    while (run->n_sent < run->n_prompts && !interrupted) {
        struct prompt *p = &run->prompts[run->n_sent];
        int r = 0;

        if (p->text && !p->ids)
            r = prompt_tokenize(run, p);
        if (!r) {
            p->request.ids = p->ids;
            p->request.n_ids = p->n_ids;
            if (p->request.n_stops && !p->request.stops)
                p->request.stops = p->stops;
            if (p->request.n_stop_ids && !p->request.stop_ids)
                p->request.stop_ids = p->stop_ids;
            p->request.user = run->n_sent;
            r = cb_submit(run->h, &p->request, &p->id);
        }
        if (r == CB_BUSY && run->n_sent > run->n_over)
            return;
        run->n_sent++;
        if (r)
            prompt_refused(run, p, r);
    }
}

/* ---- results out ------------------------------------------------------------------------------------- */

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

static json_t *result_json(struct run *run, struct prompt *p, const struct cb_event *event)
{
    const uint32_t *ids = NULL;
    const char *text = "";
    size_t n = 0, bytes = 0;
    struct cb_result result = {0};
    json_t *o;

    cb_tokens(run->h, p->id, &ids, &n);
    cb_text_all(run->h, p->id, &text, &bytes);
    cb_result(run->h, p->id, &result);
    o = json_pack("{s:o, s:s%, s:s, s:I, s:{s:i, s:i, s:i}, s:{s:f, s:f, s:f}}", "ids",
                  ids_json(ids, n), "text", text, bytes, "finish_reason",
                  event->type == CB_EVENT_REJECTED ? "error" : end_name(event->end), "seed",
                  (json_int_t)result.seed, "usage", "prompt_tokens", (int)result.n_prompt,
                  "completion_tokens", (int)n, "prefix_tokens", (int)result.n_prefix_hit, "times",
                  "queued_ms", (double)result.queued_ns / 1e6, "first_token_ms",
                  (double)result.first_token_ns / 1e6, "total_ms", (double)result.total_ns / 1e6);
    if (event->status) {
        char words[256];

        json_object_set_new(o, "status", json_integer(event->status));
        json_object_set_new(
            o, "error", json_string(cb_explain(event->status, event->detail, words, sizeof words)));
    }
    if (event->end == CB_END_STOP && !result.stop_is_id)
        json_object_set_new(o, "stop_index", json_integer(result.stop_idx));
    return o;
}

static void stream_text(struct run *run, struct prompt *p, const char *text, size_t bytes)
{
    size_t number = (size_t)(p - run->prompts) + 1;

    if (run->n_prompts == 1) {
        fwrite(text, 1, bytes, stdout);
        fflush(stdout);
        return;
    }
    /* Whole lines of several streams, so that none breaks into another's. */
    while (bytes) {
        const char *nl = memchr(text, '\n', bytes);
        size_t part = nl ? (size_t)(nl - text) + 1 : bytes;

        if (p->fresh_line)
            printf("[%zu] ", number);
        fwrite(text, 1, part, stdout);
        p->fresh_line = nl != NULL;
        text += part;
        bytes -= part;
    }
}

static void stream(struct run *run, struct prompt *p, const struct cb_event *event)
{
    const char *text;
    size_t bytes;

    if (run->ids) {
        for (size_t i = 0; i < event->n_ids; i++)
            printf("%s%u", event->first + i ? " " : "", event->ids[i]);
        fflush(stdout);
        return;
    }
    if (run->n_prompts == 1) {
        while (cb_text(run->h, p->id, &text, &bytes) > 0)
            stream_text(run, p, text, bytes);
    } else if (event->type == CB_EVENT_END && !cb_text_all(run->h, p->id, &text, &bytes)) {
        stream_text(run, p, text, bytes);
    }
}

static void prompt_end(struct run *run, struct prompt *p, const struct cb_event *event)
{
    if (run->ctl->json)
        p->result = result_json(run, p, event);
    else if (event->type == CB_EVENT_END && !p->fresh_line)
        putchar('\n');
    else if (event->type == CB_EVENT_END && run->n_prompts == 1)
        putchar('\n');
    if (event->status && !run->ctl->json) {
        char words[256];

        cbctl_complain(run->ctl, "prompt %zu: %s", (size_t)(p - run->prompts) + 1,
                       cb_explain(event->status, event->detail, words, sizeof words));
    }
    if (event->type == CB_EVENT_REJECTED || event->end == CB_END_ERROR)
        run->bad = true;
    cb_release(run->h, p->id);
    p->id = 0;
    p->over = true;
    run->n_over++;
}

static void print_lines(struct run *run)
{
    for (; run->n_printed < run->n_over; run->n_printed++) {
        struct prompt *p = &run->prompts[run->n_printed];

        if (!p->over)
            return;
        if (!run->ctl->json)
            continue;
        json_object_set_new(p->result, "index", json_integer((json_int_t)run->n_printed));
        json_object_set_new(p->result, "prompt_ids", ids_json(p->ids, p->n_ids));
        json_dumpf(p->result, stdout, JSON_COMPACT | JSON_SORT_KEYS);
        putchar('\n');
        fflush(stdout);
    }
}

static int run_all(struct run *run)
{
    bool cancelled = false;

    send_some(run);
    print_lines(run);
    while (run->n_over < run->n_sent) {
        struct cb_event event;
        int r = cb_wait(run->h, 0, &event, WAIT_SLICE_MS);

        if (interrupted && !cancelled) {
            for (size_t i = 0; i < run->n_sent; i++) {
                if (run->prompts[i].id)
                    cb_cancel(run->h, run->prompts[i].id);
            }
            cancelled = true;
        }
        if (interrupted > 1)
            break;
        if (r == CB_TIMEOUT)
            continue;
        if (r < 0) {
            cbctl_complain(run->ctl, "%s", cb_message());
            return CBCTL_FAILED;
        }
        struct prompt *p = &run->prompts[event.user];

        if (!run->ctl->json)
            stream(run, p, &event);
        if (event.type != CB_EVENT_TOKENS)
            prompt_end(run, p, &event);
        print_lines(run);
        send_some(run);
        print_lines(run);
    }
    if (interrupted)
        return CBCTL_INTERRUPTED;
    return run->bad ? CBCTL_FAILED : CBCTL_OK;
}

/* ---- the command ------------------------------------------------------------------------------------- */

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
};

static const struct argp_option options[] = {
    {"max-new-tokens", 'n', "TOKENS", 0, "at most so many new tokens (default: the context)", 0},
    {"temperature", KEY_TEMPERATURE, "T", 0, "0, the default, is greedy", 0},
    {"top-k", KEY_TOP_K, "K", 0, "draw from the K best; 0: off", 0},
    {"top-p", KEY_TOP_P, "P", 0, "draw from the best that make up P; 1: off", 0},
    {"seed", KEY_SEED, "N", 0, "makes draws repeatable", 0},
    {"stop", KEY_STOP, "TEXT", 0, "ends the answer before TEXT; up to 16 times", 0},
    {"stop-id", KEY_STOP_ID, "ID", 0, "ends the answer at this token; up to 64 times", 0},
    {"ignore-eos", KEY_IGNORE_EOS, NULL, 0, "an end-of-sequence token does not end it", 0},
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
    const char *file;
    bool failed;
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct parse_state *ps = state->input;
    struct run *run = &ps->run;
    struct cb_request *d = &run->defaults;
    double v = 0;
    struct prompt *p;
    char *end;

    switch (key) {
    case 'n':
        ps->failed |= !cbctl_number(run->ctl, "-n", arg, 0, CB_NO_LIMIT - 1.0, &v);
        d->max_new_tokens = (uint32_t)v;
        return 0;
    case KEY_TEMPERATURE:
        ps->failed |= !cbctl_number(run->ctl, "--temperature", arg, 0, 1e6, &v);
        d->temperature = (float)v;
        return 0;
    case KEY_TOP_K:
        ps->failed |= !cbctl_number(run->ctl, "--top-k", arg, 0, INT32_MAX, &v);
        d->top_k = (int32_t)v;
        return 0;
    case KEY_TOP_P:
        ps->failed |= !cbctl_number(run->ctl, "--top-p", arg, 1e-9, 1, &v);
        d->top_p = (float)v;
        return 0;
    case KEY_SEED:
        errno = 0;
        d->seed = strtoull(arg, &end, 0);
        if (end == arg || *end || errno) {
            cbctl_complain(run->ctl, "--seed is \"%s\", which is no whole number", arg);
            ps->failed = true;
        }
        d->flags |= CB_HAS_SEED;
        return 0;
    case KEY_STOP:
        if (d->n_stops == STOPS_MAX) {
            cbctl_complain(run->ctl, "at most %d --stop", STOPS_MAX);
            ps->failed = true;
            return 0;
        }
        run->stops[d->n_stops++] = (struct cb_string){arg, strlen(arg)};
        return 0;
    case KEY_STOP_ID:
        if (d->n_stop_ids == STOP_IDS_MAX ||
            !cbctl_number(run->ctl, "--stop-id", arg, 0, UINT32_MAX, &v)) {
            ps->failed = true;
            return 0;
        }
        run->stop_ids[d->n_stop_ids++] = (uint32_t)v;
        return 0;
    case KEY_IGNORE_EOS:
        d->flags |= CB_IGNORE_EOS;
        return 0;
    case KEY_DEADLINE:
        ps->failed |= !cbctl_number(run->ctl, "--deadline", arg, 1, 1e12, &v);
        d->deadline_ms = (uint64_t)v;
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
        p = prompt_add(run);
        if (!p || !ids_parse(run, arg, &p->ids, &p->n_ids))
            ps->failed = true;
        return 0;
    case KEY_FILE:
        ps->file = arg;
        return 0;
    case 'j':
        ps->ctl.json = true;
        return 0;
    case ARGP_KEY_ARG:
        p = prompt_add(run);
        if (p)
            p->text = strdup(arg);
        ps->failed |= !p || !p->text;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

int cmd_run(const struct cbctl *ctl, int argc, char **argv)
{
    static const char doc[] = "Sends prompts and streams the answers. Without a prompt, standard "
                              "input is one. Ctrl-C cancels.";
    const struct argp argp = {options, parse, "[TEXT...]", doc, NULL, NULL, NULL};
    struct parse_state ps = {.ctl = *ctl};
    struct run *run = &ps.run;
    struct cb_options open_options;
    struct sigaction action = {.sa_handler = on_interrupt};
    size_t n_line_prompts;
    int r = CBCTL_USAGE;

    run->ctl = &ps.ctl;
    cb_request_init(&run->defaults);
    if (argp_parse(&argp, argc, argv, 0, NULL, &ps) || ps.failed)
        goto out;
    run->defaults.stops = run->stops;
    run->defaults.stop_ids = run->stop_ids;
    for (size_t i = 0; i < run->n_prompts; i++)
        run->prompts[i].request = run->defaults;
    n_line_prompts = run->n_prompts;
    if (ps.file && !file_parse(run, ps.file))
        goto out;
    if (!n_line_prompts && !ps.file) {
        struct prompt *p = prompt_add(run);
        size_t bytes = 0;

        if (p)
            p->text = read_all(stdin, &bytes);
        if (!p || !p->text || strlen(p->text) != bytes) {
            cbctl_complain(&ps.ctl, "standard input can't be read, or holds a NUL");
            goto out;
        }
        p->request = run->defaults;
    }

    cb_options_init(&open_options);
    open_options.instance = ctl->instance;
    open_options.name = "cbctl run";
    r = CBCTL_FAILED;
    if (cb_open(&run->h, &open_options)) {
        cbctl_complain(&ps.ctl, "%s", cb_message());
        goto out;
    }
    sigaction(SIGINT, &action, NULL);
    r = run_all(run);
out:
    for (size_t i = 0; i < run->n_prompts; i++) {
        struct prompt *p = &run->prompts[i];

        free(p->text);
        free(p->ids);
        json_decref(p->line);
        json_decref(p->result);
    }
    free(run->prompts);
    cb_close(run->h);
    return r;
}
