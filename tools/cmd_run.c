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
#include "tools/answer.h"
#include "tools/asked.h"
#include "tools/cbctl.h"
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
    bool ids, bad;
    struct asked asked;
};

static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal)
{
    (void)signal;
    interrupted++;
}

/* ---- sending --------------------------------------------------------------------------------- */

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
    char place[PLACE_BYTES], error[PLACE_BYTES + 256];

    run->sent[i].over = true;
    run->n_over++;
    run->bad = true;
    snprintf(error, sizeof error, "%s: %s", place_of(run, i, place), words);
    run->sent[i].result = answer_refused(p, status, p->file ? error : words);
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
            r = prompt_tokenize(p, run->h, run->asked.chat, run->asked.system);
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
        s->result = answer_json(run->h, event, &run->prompts.v[event->user]);
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
        json_object_set_new(result, "prompt_ids", answer_ids(p->ids, p->ids ? p->n_ids : 0));
        answer_print(result, stdout);
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

enum { KEY_IDS = 256, KEY_IDS_IN, KEY_FILE };

static const struct argp_option options[] = {
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
    const struct cb_request *d = &run->asked.defaults;

    switch (key) {
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
        state->child_inputs[0] = &run->asked;
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

    if (!list->n && !ps->file && !prompts_add_stdin(list, &ps->run.asked.defaults))
        return false;
    /* Options hold for prompts on the command line wherever they stand. */
    for (size_t i = 0; i < list->n; i++)
        list->v[i].request = ps->run.asked.defaults;
    return !ps->file || prompts_add_file(list, ps->file, &ps->run.asked.defaults);
}

int cmd_run(const struct cbctl *ctl, int argc, char **argv)
{
    static const char doc[] =
        "Sends prompts and streams the answers. Without a prompt, standard input "
        "is one. Ctrl-C cancels.";
    static const struct argp_child children[] = {{&asked_argp, 0, NULL, 0}, {0}};
    const struct argp argp = {options, parse, "[TEXT...]", doc, children, NULL, NULL};
    struct parse_state ps = {.ctl = *ctl};
    struct run *run = &ps.run;
    struct cb_options open_options;
    struct sigaction action = {.sa_handler = on_interrupt};
    int r = CBCTL_USAGE;

    run->ctl = run->prompts.ctl = &ps.ctl;
    asked_init(&run->asked, &ps.ctl);
    if (argp_parse(&argp, argc, argv, 0, NULL, &ps) || ps.failed || asked_failed(&run->asked) ||
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
    asked_fini(&run->asked);
    cb_close(run->h);
    return r;
}
