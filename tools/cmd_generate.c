/* cbctl generate-batch: a file of prompts in, a file of answers out, however many.
 *
 * Lines are read as slots get free, and answers are written as they come, each with its prompt's
 * number: nothing is held but what is under way, and an answer that is written is safe. So whatever
 * ends a run, the next one with the same files goes on from there.
 *
 * A line that asks for several answers is answered by one line as well, when all of them are there: so
 * it is written as a whole or not at all.
 *
 * What ends because the daemon goes away, or because of Ctrl-C, is not written: it is no answer, and
 * the next run asks again. */
#include <argp.h>
#include <errno.h>
#include <jansson.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client/bar.h"
#include "client/cbclient.h"
#include "tools/answer.h"
#include "tools/asked.h"
#include "tools/cbctl.h"
#include "tools/family.h"
#include "tools/kept.h"
#include "tools/prompts.h"

enum { WAIT_SLICE_MS = 100, NAP_NS = 5000000 };

/* A line under way. */
struct place {
    bool is_taken;
    struct prompts list; /* of one */
    struct family family;
    size_t idx;
    uint64_t hash;
};

struct generate {
    struct cbctl ctl;
    struct asked asked;
    const char *in_path, *out_path;
    bool is_named; /* its lane */
    FILE *in;
    struct kept kept;
    struct cb_handle *h;
    struct place *places; /* [n_places] */
    uint32_t n_places, n_taken;
    uint32_t n_running, n_slots; /* sequences */
    uint32_t n_most;  /* as many may run as the daemon did not refuse, and one more with each end */
    bool was_refused; /* since something was sent */
    size_t n_lines, n_read, n_prompts; /* lines read, and prompts among them */
    size_t n_total;                    /* prompts of the file; 0: unknown    */
    size_t n_answered, n_failed, n_skipped;
    uint64_t n_tokens;
    bool at_end, is_broken; /* nothing more to read; or to be had */
    struct cb_bar bar;
};

static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal)
{
    (void)signal;
    interrupted++;
}

/* ---- lines in -------------------------------------------------------------------------------- */

static bool of_other_file(struct generate *g, size_t number)
{
    cbctl_complain(&g->ctl,
                   "%s has an answer to something else than line %zu of %s: it belongs to another "
                   "file; give another -o",
                   g->out_path, number, g->in_path);
    return false;
}

/* A look at all of a file before anything runs: how many prompts there are, and that the answers
 * there are belong to them. */
static bool survey(struct generate *g)
{
    char *line = NULL;
    size_t room = 0, number = 0;
    ssize_t n;
    bool ok = true;

    if (g->in == stdin || fseeko(g->in, 0, SEEK_CUR))
        return true; /* it can be read once only */
    while (ok && (n = getline(&line, &room, g->in)) > 0) {
        number++;
        if (prompts_is_blank(line, (size_t)n))
            continue;
        if (kept_find(&g->kept, g->n_total, kept_hash(line, (size_t)n)) == KEPT_OTHERS)
            ok = of_other_file(g, number);
        g->n_total++;
    }
    free(line);
    if (ok && ferror(g->in)) {
        cbctl_complain(&g->ctl, "can't read %s: %s", g->in_path, strerror(errno));
        ok = false;
    }
    if (ok && kept_has_more(&g->kept, g->n_total)) {
        cbctl_complain(&g->ctl,
                       "%s has answers to more prompts than the %zu of %s; give another -o",
                       g->out_path, g->n_total, g->in_path);
        ok = false;
    }
    rewind(g->in);
    return ok;
}

/* The next prompt that has no answer yet, into the place. False: there is none, or it is broken. */
static bool read_prompt(struct generate *g, struct place *at)
{
    char *line = NULL;
    size_t room = 0;
    ssize_t n = 0;
    bool found = false;

    while (!found && !g->at_end && !g->is_broken) {
        n = getline(&line, &room, g->in);
        if (n <= 0) {
            g->at_end = true;
            if (!feof(g->in) || ferror(g->in)) {
                cbctl_complain(&g->ctl, "can't read %s: %s", g->in_path, strerror(errno));
                g->is_broken = true;
            }
            break;
        }
        g->n_lines++;
        if (prompts_is_blank(line, (size_t)n))
            continue;
        at->idx = g->n_prompts++;
        at->hash = kept_hash(line, (size_t)n);
        switch (kept_find(&g->kept, at->idx, at->hash)) {
        case KEPT_ANSWERED:
            g->n_skipped++;
            break;
        case KEPT_OTHERS:
            g->is_broken = !of_other_file(g, g->n_lines);
            break;
        case KEPT_NONE:
            at->list = (struct prompts){.ctl = &g->ctl};
            found = prompts_add_line(&at->list, g->in_path, g->n_lines, line, (size_t)n,
                                     &g->asked.defaults) &&
                    family_init(&at->family, prompt_n(&at->list.v[0]));
            g->is_broken |= !found;
            break;
        }
    }
    free(line);
    return found;
}

/* ---- answers out ----------------------------------------------------------------------------- */

static void give_back(struct generate *g, struct place *at)
{
    prompts_fini(&at->list);
    family_fini(&at->family);
    memset(at, 0, sizeof *at);
    g->n_taken--;
}

/* All of it is over. */
static void answer(struct generate *g, struct place *at)
{
    json_t *o = family_answer(&at->family);

    g->n_answered++;
    g->n_failed += json_object_get(o, "error") != NULL;
    if (!kept_add(&g->kept, at->idx, at->hash, o))
        g->is_broken = true; /* kept_close says so */
    give_back(g, at);
}

/* What waits of it never comes to run. */
static void refused(struct generate *g, struct place *at, int status, const char *words)
{
    struct family *f = &at->family;
    char error[768];

    snprintf(error, sizeof error, "%s:%zu: %s", g->in_path, at->list.v[0].line_number, words);
    for (uint32_t i = 0; i < f->n; i++)
        if (f->v[i].state == SEQUENCE_WAITS)
            family_over(f, i, answer_refused(&at->list.v[0], status, error));
    if (family_is_over(f))
        answer(g, at);
}

/* The daemon has gone, or goes: what it says of requests is no answer. */
static bool is_no_answer(int status)
{
    return status == CB_LOST || status == CB_CLOSED || status == CB_STOPPED ||
           status == CB_DRAINING || status == CB_NOT_RUNNING;
}

static void broken(struct generate *g, const char *words)
{
    if (!g->is_broken)
        cbctl_complain(&g->ctl, "%s", words);
    g->is_broken = true;
}

/* The daemon had no room for it, or not for all of its prompt at once. */
static bool must_wait(const struct place *at, uint32_t i, const struct cb_event *event)
{
    return (event->type == CB_EVENT_REJECTED && event->status == CB_BUSY) ||
           family_was_too_many(&at->family, i, event);
}

static json_t *answer_of(struct generate *g, const struct place *at, const struct cb_event *event)
{
    struct cb_result result = {0};
    json_t *o = answer_json(g->h, event, &at->list.v[0]);

    if (event->end == CB_END_CANCELLED || event->end == CB_END_DEADLINE)
        json_object_set_new(o, "error",
                            json_string(event->end == CB_END_DEADLINE
                                            ? "its deadline has passed"
                                            : "somebody else has cancelled it"));
    cb_result(g->h, event->id, &result);
    g->n_tokens += result.n_generated;
    return o;
}

static void ended(struct generate *g, const struct cb_event *event)
{
    struct place *at = &g->places[event->user];
    uint32_t i = family_find(&at->family, event->id);
    char words[256];

    g->n_running--;
    if (must_wait(at, i, event)) {
        cb_release(g->h, event->id);
        family_wait_again(&at->family, i, event->status == CB_QUOTA);
        g->n_most = g->n_running ? g->n_running : 1;
        g->was_refused = true;
        return;
    }
    if (is_no_answer(event->status)) {
        broken(g, cb_explain(event->status, event->detail, words, sizeof words));
        family_over(&at->family, i, NULL);
    } else if (event->end == CB_END_CANCELLED && (interrupted || g->is_broken)) {
        family_over(&at->family, i, NULL);
    } else {
        family_over(&at->family, i, answer_of(g, at, event));
    }
    cb_release(g->h, event->id);
    g->n_most += g->n_most < g->n_slots;
    if (at->family.n_running)
        return;
    for (i = 0; i < at->family.n && at->family.v[i].answer; i++)
        ;
    if (i == at->family.n)
        answer(g, at);
    else if (family_is_over(&at->family)) /* some of it is no answer: all of it is asked again */
        give_back(g, at);
}

/* ---- running --------------------------------------------------------------------------------- */

/* 0: all of it runs, or has failed; CB_BUSY: there is no room now. */
static int send_one(struct generate *g, struct place *at)
{
    struct prompt *p = &at->list.v[0];
    int r = p->fault ? CB_INVALID : 0;

    if (g->n_running >= g->n_most)
        return CB_BUSY;
    if (!r && p->text && !p->ids)
        r = prompt_tokenize(p, g->h, g->asked.chat, g->asked.system);
    if (!r) {
        prompt_complete(p);
        p->request.flags |= CB_FINAL_ONLY;
        p->request.user = (uint64_t)(at - g->places);
        r = family_send(&at->family, g->h, &p->request, g->n_most - g->n_running, g->n_running);
    }
    if (r >= 0) {
        g->n_running += (uint32_t)r;
        return 0;
    }
    if (r == CB_BUSY && g->n_running)
        return r;
    if (is_no_answer(r)) {
        broken(g, cb_message());
        return CB_BUSY;
    }
    refused(g, at, r, p->fault ? p->fault : cb_message());
    return 0;
}

/* Sends what there is room for. */
static void send_some(struct generate *g)
{
    for (uint32_t i = 0; i < g->n_places && !interrupted && !g->is_broken; i++) {
        struct place *at = &g->places[i];

        while ((!at->is_taken || family_waits(&at->family)) && !interrupted && !g->is_broken) {
            if (!at->is_taken) {
                if (!read_prompt(g, at))
                    break; /* the places behind it may hold prompts that were refused */
                at->is_taken = true;
                g->n_taken++;
            }
            if (send_one(g, at))
                return;
        }
    }
}

static void cancel_all(struct generate *g)
{
    for (uint32_t i = 0; i < g->n_places; i++)
        family_cancel(&g->places[i].family, g->h);
}

static void run_all(struct generate *g)
{
    const struct timespec nap = {.tv_nsec = NAP_NS};
    bool cancelled = false;

    for (;;) {
        struct cb_event event;
        int r;

        if (g->was_refused && !g->n_running)
            nanosleep(&nap, NULL);
        g->was_refused = false;
        send_some(g);
        if ((interrupted || g->is_broken) && !cancelled) {
            cancel_all(g);
            cancelled = true;
        }
        cb_bar_show(&g->bar, g->kept.n + g->n_answered, g->n_failed, false);
        if (interrupted > 1 || (!g->n_running && (cancelled || !g->n_taken)))
            return;
        if (!g->n_running) { /* all wait for the queues of others */
            nanosleep(&nap, NULL);
            continue;
        }
        r = cb_wait(g->h, 0, &event, WAIT_SLICE_MS);
        if (r > 0) {
            ended(g, &event);
        } else if (r != CB_TIMEOUT) {
            broken(g, cb_message());
            return;
        }
    }
}

/* ---- the command ----------------------------------------------------------------------------- */

enum { KEY_NAMED = 256 };

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct generate *g = state->input;

    switch (key) {
    case 'o':
        g->out_path = strcmp(arg, "-") == 0 ? NULL : arg;
        return 0;
    case KEY_NAMED:
        g->is_named = true;
        return 0;
    case 'j':
        g->ctl.json = true;
        return 0;
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &g->asked;
        return 0;
    case ARGP_KEY_ARG:
        if (g->in_path)
            argp_usage(state);
        g->in_path = arg;
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_usage(state);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option options[] = {
    {"output", 'o', "OUT", 0, "append the answers to OUT, and skip what it answers already", 0},
    {"named", KEY_NAMED, NULL, 0,
     "the lane by names in /dev/shm, for where no descriptors can be received", 0},
    {"json", 'j', NULL, 0, "end with a JSON object that says what was done", 0},
    {0},
};

static void summary(const struct generate *g, double seconds)
{
    size_t n_failed = g->n_failed + g->kept.n_failed;
    FILE *to = g->out_path ? stdout : stderr; /* there the answers are */
    json_t *o;

    if (!g->ctl.json) {
        fprintf(stderr, "%zu answered, %zu kept, %zu failed; %llu tokens in %.1f s%s\n",
                g->n_answered, g->n_skipped, n_failed, (unsigned long long)g->n_tokens, seconds,
                interrupted || g->is_broken ? "; the same command goes on from here" : "");
        return;
    }
    o = json_pack("{s:I, s:I, s:I, s:I, s:f, s:b}", "answered", (json_int_t)g->n_answered, "kept",
                  (json_int_t)g->n_skipped, "failed", (json_int_t)n_failed, "tokens",
                  (json_int_t)g->n_tokens, "seconds", seconds, "complete",
                  !interrupted && !g->is_broken);
    json_dumpf(o, to, JSON_COMPACT | JSON_REAL_PRECISION(6));
    putc('\n', to);
    json_decref(o);
}

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Files and daemon; false after a complaint. */
static bool begin(struct generate *g)
{
    struct cb_options open_options;
    struct cb_info info;

    g->in = strcmp(g->in_path, "-") == 0 ? stdin : fopen(g->in_path, "r");
    if (!g->in) {
        cbctl_complain(&g->ctl, "can't open %s: %s", g->in_path, strerror(errno));
        return false;
    }
    if (!kept_open(&g->kept, &g->ctl, g->out_path) || !survey(g))
        return false;
    cb_options_init(&open_options);
    open_options.instance = g->ctl.instance;
    open_options.name = "cbctl generate-batch";
    open_options.named = g->is_named;
    if (cb_open(&g->h, &open_options) || cb_info(g->h, &info)) {
        cbctl_complain(&g->ctl, "%s", cb_message());
        return false;
    }
    g->n_places = g->n_slots = g->n_most = info.n_slots;
    g->places = calloc(g->n_places, sizeof *g->places);
    if (!g->places)
        cbctl_complain(&g->ctl, "out of memory");
    return g->places != NULL;
}

int cmd_generate(const struct cbctl *ctl, int argc, char **argv)
{
    static const char doc[] =
        "Sends the prompts of FILE, a JSON object a line, as `cbctl run --file` does, and writes "
        "the answers as they come, each with its prompt's number. What OUT answers already is "
        "skipped, so that a run that was cut short can be continued. FILE - is standard input.";
    static const struct argp_child children[] = {{&asked_argp, 0, NULL, 0}, {0}};
    const struct argp argp = {options, parse, "FILE", doc, children, NULL, NULL};
    struct generate g = {.ctl = *ctl};
    struct sigaction action = {.sa_handler = on_interrupt};
    int r = CBCTL_FAILED;

    asked_init(&g.asked, &g.ctl);
    if (argp_parse(&argp, argc, argv, 0, NULL, &g) || asked_failed(&g.asked)) {
        r = CBCTL_USAGE;
    } else if (begin(&g)) {
        double start = now_s();
        bool on_screen = !g.out_path && isatty(STDOUT_FILENO);

        sigaction(SIGINT, &action, NULL);
        sigaction(SIGTERM, &action, NULL);
        cb_bar_init(&g.bar, on_screen ? -1 : STDERR_FILENO, g.n_total, g.kept.n);
        run_all(&g);
        cb_bar_end(&g.bar, g.kept.n + g.n_answered, g.n_failed);
        summary(&g, now_s() - start);
        r = interrupted                                    ? CBCTL_INTERRUPTED
            : g.is_broken || g.n_failed || g.kept.n_failed ? CBCTL_FAILED
                                                           : CBCTL_OK;
    }
    for (uint32_t i = 0; g.places && i < g.n_places; i++)
        give_back(&g, &g.places[i]);
    free(g.places);
    cb_close(g.h);
    if (g.in && g.in != stdin)
        fclose(g.in);
    if (!kept_close(&g.kept) && r == CBCTL_OK)
        r = CBCTL_FAILED;
    asked_fini(&g.asked);
    return r;
}
