/* cbctl run: prompts in, streams out. One prompt streams to the terminal as it comes, and so do several
 * answers to it, line by line; of several prompts each answer comes when it ends. Where there are
 * several of anything their numbers stand in front. With --json a line a prompt, in their order.
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
#include "tools/family.h"
#include "tools/logprobs.h"
#include "tools/prompts.h"

enum { WAIT_SLICE_MS = 100, PLACE_BYTES = 512 };

struct run {
    const struct cbctl *ctl;
    struct cb_handle *h;
    struct prompts prompts;
    struct family *families;  /* [prompts.n] */
    size_t n_sent, n_printed; /* prompts */
    size_t n_running;         /* sequences */
    uint32_t n_slots;
    bool ids, bad, is_manifold; /* some prompt has several sequences */
    bool resumes;               /* through daemons that die */
    bool is_named;              /* its lane */
    struct asked asked;
};

static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal)
{
    (void)signal;
    interrupted++;
}

/* ---- sending --------------------------------------------------------------------------------- */

/* "FILE:LINE" or "prompt N", for complaints; and which answer, of several (seq; else -1). */
static const char *place_of(const struct run *run, size_t i, int64_t seq, char place[PLACE_BYTES])
{
    const struct prompt *p = &run->prompts.v[i];
    int n = p->file ? snprintf(place, PLACE_BYTES, "%s:%zu", p->file, p->line_number)
                    : snprintf(place, PLACE_BYTES, "prompt %zu", i + 1);

    if (seq >= 0 && run->families[i].n > 1 && n < PLACE_BYTES)
        snprintf(place + n, PLACE_BYTES - (size_t)n, ", answer %d", (int)seq + 1);
    return place;
}

/* What waits of it never comes to run: the library, or its line's reader, says why. */
static void refused(struct run *run, size_t i, int status, const char *words)
{
    const struct prompt *p = &run->prompts.v[i];
    struct family *f = &run->families[i];
    char place[PLACE_BYTES], error[PLACE_BYTES + 256];

    run->bad = true;
    snprintf(error, sizeof error, "%s: %s", place_of(run, i, -1, place), words);
    for (uint32_t k = 0; k < f->n; k++)
        if (f->v[k].state == SEQUENCE_WAITS)
            family_over(f, k, answer_refused(p, status, p->file ? error : words));
    if (!run->ctl->json)
        cbctl_complain(run->ctl, "%s", error);
}

/* Sends what there is room for. */
static void send_some(struct run *run)
{
    while (run->n_sent < run->prompts.n && !interrupted) {
        struct prompt *p = &run->prompts.v[run->n_sent];
        struct family *f = &run->families[run->n_sent];
        int r = p->fault ? CB_INVALID : 0;

        if (!family_waits(f)) {
            run->n_sent++;
            continue;
        }
        if (!r && p->text && !p->ids)
            r = prompt_tokenize(p, run->h, run->asked.chat, run->asked.system);
        if (!r) {
            prompt_complete(p);
            p->request.user = run->n_sent;
            r = family_send(f, run->h, &p->request, run->n_slots, run->n_running);
        }
        if (r == CB_BUSY && run->n_running)
            return;
        if (r == CB_BUSY && run->resumes) { /* no daemon is there, but one may come */
            struct cb_event none;

            if (cb_wait(run->h, 0, &none, WAIT_SLICE_MS) == CB_TIMEOUT)
                continue;
        }
        if (r > 0)
            run->n_running += (size_t)r;
        else
            refused(run, run->n_sent, r, p->fault ? p->fault : cb_message());
    }
    /* What of a prompt was sent is told without the rest. */
    for (; interrupted && run->n_sent < run->prompts.n; run->n_sent++) {
        struct family *f = &run->families[run->n_sent];

        if (f->n_running + f->n_over == 0)
            return;
        family_cut(f);
    }
}

/* ---- results out ----------------------------------------------------------------------------- */

/* What stands in front of what belongs to it: nothing, if it is the only one. */
static const char *label_of(const struct run *run, size_t i, uint32_t seq, char label[48])
{
    *label = 0;
    if (run->prompts.n > 1 && run->is_manifold)
        snprintf(label, 48, "[%zu.%u] ", i + 1, seq + 1);
    else if (run->prompts.n > 1)
        snprintf(label, 48, "[%zu] ", i + 1);
    else if (run->is_manifold)
        snprintf(label, 48, "[%u] ", seq + 1);
    return label;
}

/* Its lines, each with the label in front. */
static void print_lines(const char *label, const char *text, size_t bytes)
{
    while (bytes) {
        const char *nl = memchr(text, '\n', bytes);
        size_t part = nl ? (size_t)(nl - text) : bytes;

        fputs(label, stdout);
        fwrite(text, 1, part, stdout); /* which may hold a NUL */
        putchar('\n');
        part += nl != NULL;
        text += part;
        bytes -= part;
    }
}

/* All of an answer at its end; or, of one prompt's, the lines that are complete. */
static void print_text(struct run *run, const struct cb_event *event, struct sequence *s,
                       const char *label)
{
    const char *text;
    size_t bytes;

    if (cb_text_all(run->h, event->id, &text, &bytes))
        return;
    text += s->n_shown;
    bytes -= s->n_shown;
    if (event->type == CB_EVENT_TOKENS) {
        const char *nl = run->prompts.n == 1 ? memrchr(text, '\n', bytes) : NULL;

        bytes = nl ? (size_t)(nl + 1 - text) : 0;
    }
    print_lines(label, text, bytes);
    s->n_shown += bytes;
}

static void print_ids(struct run *run, const struct cb_event *event, const char *label)
{
    const uint32_t *ids = NULL;
    size_t n = 0;

    cb_tokens(run->h, event->id, &ids, &n);
    fwrite(label, 1, strlen(label) - 1, stdout);
    for (size_t i = 0; i < n; i++)
        printf(" %u", ids[i]);
    putchar('\n');
}

static void stream_only_one(struct run *run, const struct cb_event *event)
{
    const char *text;
    size_t bytes;

    if (run->ids) {
        for (size_t i = 0; i < event->n_ids; i++)
            printf("%s%u", event->first + i ? " " : "", event->ids[i]);
    } else {
        while (cb_text(run->h, event->id, &text, &bytes) > 0)
            fwrite(text, 1, bytes, stdout);
    }
    if (event->type == CB_EVENT_END)
        putchar('\n');
}

static void stream(struct run *run, const struct cb_event *event)
{
    const struct prompt *p = &run->prompts.v[event->user];
    struct family *f = &run->families[event->user];
    uint32_t seq = family_find(f, event->id);
    char label[48];

    label_of(run, event->user, seq, label);
    if (logprobs_asked(&p->request))
        logprobs_print(run->h, event, p, label);
    else if (!*label)
        stream_only_one(run, event);
    else if (!run->ids)
        print_text(run, event, &f->v[seq], label);
    else if (event->type == CB_EVENT_END)
        print_ids(run, event, label);
    fflush(stdout);
}

/* An answer without a limit of its own ends where there is no more room: that looks like an end of
 * its own will. */
static void tell_full(const struct run *run, const struct cb_event *event, uint32_t seq)
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
            place_of(run, event->user, seq, place), result.n_prompt + result.n_generated);
}

static void ended(struct run *run, const struct cb_event *event)
{
    struct family *f = &run->families[event->user];
    uint32_t seq = family_find(f, event->id);
    char words[256], place[PLACE_BYTES];
    const char *why = NULL;

    if (family_was_too_many(f, seq, event) && !interrupted) {
        cb_release(run->h, event->id);
        family_wait_again(f, seq, true);
        run->n_running--;
        run->n_sent = event->user < run->n_sent ? event->user : run->n_sent;
        return;
    }
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
        cbctl_complain(run->ctl, "%s: %s", place_of(run, event->user, seq, place), why);
    if (!run->ctl->json)
        tell_full(run, event, seq);
    family_over(f, seq,
                run->ctl->json ? answer_json(run->h, event, &run->prompts.v[event->user]) : NULL);
    cb_release(run->h, event->id);
    run->n_running--;
}

/* With --json: the lines of what is over, as far as no earlier one is missing. */
static void print_answers(struct run *run)
{
    for (; run->n_printed < run->n_sent && family_is_over(&run->families[run->n_printed]);
         run->n_printed++) {
        const struct prompt *p = &run->prompts.v[run->n_printed];
        json_t *answer;

        if (!run->ctl->json)
            continue;
        answer = family_answer(&run->families[run->n_printed]);
        json_object_set_new(answer, "index", json_integer((json_int_t)run->n_printed));
        json_object_set_new(answer, "prompt_ids", answer_ids(p->ids, p->ids ? p->n_ids : 0));
        answer_print(answer, stdout);
        json_decref(answer);
    }
}

static void cancel_all(struct run *run)
{
    for (size_t i = 0; i < run->prompts.n && i <= run->n_sent; i++)
        family_cancel(&run->families[i], run->h);
}

static int run_all(struct run *run)
{
    bool cancelled = false;

    send_some(run);
    print_answers(run);
    while (run->n_running && interrupted < 2) {
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
        print_answers(run);
    }
    if (interrupted)
        return CBCTL_INTERRUPTED;
    return run->bad ? CBCTL_FAILED : CBCTL_OK;
}

/* ---- the command ----------------------------------------------------------------------------- */

enum { KEY_IDS = 256, KEY_IDS_IN, KEY_FILE, KEY_RESUME, KEY_NAMED };

static const struct argp_option options[] = {
    {"ids", KEY_IDS, NULL, 0, "print token ids instead of text", 0},
    {"ids-in", KEY_IDS_IN, "IDS", 0, "a prompt as token ids, \"1 2 3\"; may be repeated", 0},
    {"file", KEY_FILE, "FILE", 0,
     "prompts, a JSON object a line: {\"text\": ...} or {\"ids\": [...]}", 0},
    {"resume", KEY_RESUME, NULL, 0, "if the daemon dies, go on with the next one", 0},
    {"named", KEY_NAMED, NULL, 0,
     "the lane by names in /dev/shm, for where no descriptors can be received", 0},
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
    case KEY_RESUME:
        run->resumes = true;
        run->asked.defaults.flags |= CB_RESUMABLE;
        return 0;
    case KEY_NAMED:
        run->is_named = true;
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
    for (size_t i = 0; i < list->n; i++) {
        const char *fault;

        list->v[i].request = ps->run.asked.defaults;
        fault = prompt_fault(&list->v[i]);
        if (fault) {
            cbctl_complain(&ps->ctl, "%s", fault);
            return false;
        }
    }
    return !ps->file || prompts_add_file(list, ps->file, &ps->run.asked.defaults);
}

/* Room for what becomes of each. */
static bool make_families(struct run *run)
{
    run->families = calloc(run->prompts.n + 1, sizeof *run->families);
    for (size_t i = 0; run->families && i < run->prompts.n; i++) {
        uint32_t n = prompt_n(&run->prompts.v[i]);

        if (!family_init(&run->families[i], n))
            return false;
        run->is_manifold |= n > 1;
    }
    return run->families != NULL;
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
    struct cb_info info;
    struct sigaction action = {.sa_handler = on_interrupt};
    int r = CBCTL_USAGE;

    run->ctl = run->prompts.ctl = &ps.ctl;
    asked_init(&run->asked, &ps.ctl);
    if (argp_parse(&argp, argc, argv, 0, NULL, &ps) || ps.failed || asked_failed(&run->asked) ||
        !gather(&ps))
        goto out;
    cb_options_init(&open_options);
    open_options.instance = ctl->instance;
    open_options.name = "cbctl run";
    open_options.resume = run->resumes;
    open_options.named = run->is_named;
    r = CBCTL_FAILED;
    if (!make_families(run)) {
        cbctl_complain(&ps.ctl, "out of memory");
    } else if (cb_open(&run->h, &open_options) || cb_info(run->h, &info)) {
        cbctl_complain(&ps.ctl, "%s", cb_message());
    } else {
        run->n_slots = info.n_slots;
        sigaction(SIGINT, &action, NULL);
        r = run_all(run);
    }
out:
    for (size_t i = 0; run->families && i < run->prompts.n; i++)
        family_fini(&run->families[i]);
    free(run->families);
    prompts_fini(&run->prompts);
    asked_fini(&run->asked);
    cb_close(run->h);
    return r;
}
