/* The commands that are one question to the daemon and one answer: clients, requests, why, settings,
 * set, cancel, resume, drain, stop. The daemon answers in JSON, which is shown as it is: a new column needs no
 * line here. */
#include <argp.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/cbclient.h"
#include "tools/cbctl.h"
#include "tools/show.h"
#include "tools/talk.h"

struct parse_state {
    struct cbctl ctl;
    char argument[208];
    size_t n_arguments;
    bool too_long;
    bool flag; /* the form's own option */
};

enum { KEY_FLAG = 256 };

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct parse_state *ps = state->input;
    size_t used = strlen(ps->argument);

    switch (key) {
    case 'j':
        ps->ctl.json = true;
        return 0;
    case KEY_FLAG:
        ps->flag = true;
        return 0;
    case ARGP_KEY_ARG:
        if (used + strlen(arg) + 2 > sizeof ps->argument)
            ps->too_long = true;
        else
            snprintf(ps->argument + used, sizeof ps->argument - used, "%s%s", used ? " " : "", arg);
        ps->n_arguments++;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option plain_options[] = {
    {"json", 'j', NULL, 0, "print the daemon's JSON", 0},
    {0},
};

/* How many arguments each command takes; their names for --help. An option of its own is sent as an
 * argument. */
static const struct form {
    const char *command;
    size_t least, most;
    const char *arguments, *doc;
    const char *flag, *flag_doc;
} forms[] = {
    {"clients", 0, 0, NULL, "Who is connected, and what each holds.", NULL, NULL},
    {"requests", 0, 0, NULL, "What runs and what waits.", NULL, NULL},
    {"why", 1, 1, "LANE[:SLOT]",
     "What a request waits for, as `cbctl requests` names it; or what keeps a lane's next request "
     "from being taken in.",
     NULL, NULL},
    {"settings", 0, 2, "[KEY [VALUE]]",
     "Every setting with its value, one of them, or a new value for one that may change while the "
     "daemon runs.",
     NULL, NULL},
    {"set", 2, 2, "KEY VALUE",
     "A new value for a setting that may change while the daemon runs: those that `cbctl settings` "
     "shows as live.",
     NULL, NULL},
    {"cancel", 1, 1, "LANE[:SLOT]",
     "Ends a request, or all of a lane; LANE and SLOT as `cbctl requests` prints them.", NULL,
     NULL},
    {"resume", 0, 0, NULL, "Takes back one pause that was left by `cbctl pause`.", "all",
     "all of them, and those that connections hold"},
    {"drain", 0, 0, NULL, "Finishes what was accepted, takes nothing new, then stops the daemon.",
     NULL, NULL},
    {"stop", 0, 0, NULL, "Finishes what was accepted, takes nothing new, then stops the daemon.",
     "hard", "stops it now; what runs ends with an error"},
};

/* "3" or "3:12"; which of them there are, the daemon knows. */
static bool is_place(const char *text)
{
    size_t n = strspn(text, "0123456789"), m;

    if (n == 0 || text[n] == '\0')
        return n != 0;
    m = strspn(text + n + 1, "0123456789");
    return text[n] == ':' && m != 0 && text[n + 1 + m] == '\0';
}

/* A last word such as "-1" is a value, for the daemon to judge, where argp would look for options:
 * it gets a "--" in front. words has room for argc + 2; returns how many there are. */
static int shield_number(int argc, char **argv, char **words)
{
    static char end_of_options[] = "--";
    const char *last = argv[argc - 1];
    int n = argc;

    memcpy(words, argv, (size_t)argc * sizeof *words);
    if (last[0] == '-' && last[1] >= '0' && last[1] <= '9') {
        words[n++] = words[argc - 1];
        words[argc - 1] = end_of_options;
    }
    words[n] = NULL;
    return n;
}

int cmd_admin(const struct cbctl *ctl, int argc, char **argv)
{
    const struct form *form = forms;
    struct parse_state ps = {.ctl = *ctl};
    json_t *reply = NULL;
    const char *error;
    int r;

    while (strcmp(form->command, ctl->command) != 0)
        form++;
    const struct argp_option options[] = {
        plain_options[0],
        {form->flag, KEY_FLAG, NULL, 0, form->flag_doc, 0},
        {0},
    };
    const struct argp argp = {
        form->flag ? options : plain_options, parse, form->arguments, form->doc, NULL, NULL, NULL};

    char **words = malloc(((size_t)argc + 2) * sizeof *words);
    if (!words) {
        cbctl_complain(ctl, "out of memory");
        return CBCTL_FAILED;
    }
    r = argp_parse(&argp, shield_number(argc, argv, words), words, 0, NULL, &ps);
    free(words);
    if (r)
        return CBCTL_USAGE;
    if (ps.too_long && ps.n_arguments <= form->most) {
        cbctl_complain(ctl,
                       "the arguments have more than %zu bytes, which is what a command holds; "
                       "longer values can be given when the daemon starts only",
                       sizeof ps.argument - 1);
        return CBCTL_USAGE;
    }
    if (ps.n_arguments < form->least || ps.n_arguments > form->most) {
        cbctl_complain(ctl, "usage: cbctl %s %s", form->command,
                       form->arguments ? form->arguments : "");
        return CBCTL_USAGE;
    }
    if (form->arguments && strncmp(form->arguments, "LANE", 4) == 0 && !is_place(ps.argument)) {
        cbctl_complain(ctl, "\"%s\" is no LANE or LANE:SLOT, as `cbctl requests` prints them",
                       ps.argument);
        return CBCTL_USAGE;
    }
    r = talk(ctl->instance, ps.n_arguments == 2 ? "set" : form->command,
             ps.flag ? form->flag : ps.argument, &reply);
    error = json_string_value(json_object_get(reply, "error"));
    if (r) {
        cbctl_complain(ctl, "%s", error ? error : cb_message());
    } else {
        show(reply, ps.ctl.json);
    }
    json_decref(reply);
    return r ? CBCTL_FAILED : CBCTL_OK;
}
