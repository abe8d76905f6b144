/* cbctl: see, use and steer a running cbd. The table of commands; each parses its own arguments. */
#include <argp.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/cbclient.h"
#include "shm/stdio_hold.h"
#include "tools/cbctl.h"

static const struct command {
    const char *name;
    int (*run)(const struct cbctl *ctl, int argc, char **argv);
    const char *help;
} commands[] = {
    {"status", cmd_status, "what the daemon serves, and its counters"},
    {"top", cmd_top, "rates, load and latencies, again and again"},
    {"metrics", cmd_metrics, "Prometheus text; --listen serves it over HTTP"},
    {"run", cmd_run, "send prompts, stream the answers"},
    {"generate-batch", cmd_generate, "answer a file of prompts; goes on where it was cut short"},
    {"bench", cmd_bench, "measure tokens a second and latencies"},
    {"clients", cmd_admin, "who is connected, and what each holds"},
    {"requests", cmd_admin, "what runs and what waits"},
    {"why", cmd_admin, "what a request waits for"},
    {"settings", cmd_admin, "every setting with its value"},
    {"set", cmd_admin, "change a setting that may change while the daemon runs"},
    {"cancel", cmd_admin, "end a request, or all of a lane, as `requests` names them"},
    {"pause", cmd_pause, "no step runs until `resume`, or while a command runs"},
    {"resume", cmd_admin, "take a pause back"},
    {"load-weights", cmd_weights, "other weights of the same model, while requests run"},
    {"upgrade", cmd_upgrade, "another cbd takes this one's place; its requests go on there"},
    {"drain", cmd_admin, "finish what was accepted, take nothing new, then stop"},
    {"stop", cmd_admin, "the same; --hard: now, what runs ends with an error"},
};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

static const struct argp_option options[] = {
    {"instance", 'i', "NAME", 0, "the daemon's instance name (default: default)", 0},
    {"json", 'j', NULL, 0, "print JSON, for programs", 0},
    {0},
};

struct start {
    struct cbctl ctl;
    int first; /* index in argv of the command */
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct start *start = state->input;

    switch (key) {
    case 'i':
        start->ctl.instance = arg;
        return 0;
    case 'j':
        start->ctl.json = true;
        return 0;
    case ARGP_KEY_ARG:
        start->first = state->next - 1;
        state->next = state->argc;
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_usage(state);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static char *help_filter(int key, const char *text, void *input)
{
    char *out;
    size_t bytes = 64;

    (void)input;
    if (key != ARGP_KEY_HELP_POST_DOC)
        return (char *)text;
    for (size_t i = 0; i < N_COMMANDS; i++)
        bytes += strlen(commands[i].help) + 24;
    out = malloc(bytes);
    if (!out)
        return (char *)text;
    strcpy(out, "Commands (each has --help):\n");
    for (size_t i = 0; i < N_COMMANDS; i++)
        sprintf(out + strlen(out), "  %-14s %s\n", commands[i].name, commands[i].help);
    return out;
}

/* A full disk or a closed standard output must not pass for success. */
static int finish(const struct cbctl *ctl, int status)
{
    bool had_failed = ferror(stdout) != 0;

    if (fflush(stdout) == 0 && !had_failed)
        return status;
    cbctl_complain(ctl, "standard output can't be written%s%s; what was printed is not complete",
                   had_failed ? "" : ": ", had_failed ? "" : strerror(errno));
    return CBCTL_FAILED;
}

int main(int argc, char **argv)
{
    static const char doc[] = "See, use and steer a running cbd.\v-";
    const struct argp argp = {options,     parse, "COMMAND [ARGUMENT...]", doc, NULL,
                              help_filter, NULL};
    struct start start = {0};
    char called[32];

    cb_stdio_hold();
    argp_program_version = cb_version();
    argp_err_exit_status = CBCTL_USAGE;
    if (argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &start))
        return CBCTL_USAGE;
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (strcmp(argv[start.first], commands[i].name) == 0) {
            start.ctl.command = commands[i].name;
            snprintf(called, sizeof called, "cbctl %s", commands[i].name);
            argv[start.first] = called; /* how argp calls it when it complains */
            return finish(&start.ctl,
                          commands[i].run(&start.ctl, argc - start.first, argv + start.first));
        }
    }
    fprintf(stderr, "cbctl: no command \"%s\"; `cbctl --help` lists them\n", argv[start.first]);
    return CBCTL_USAGE;
}
