/* The commands that are one question to the daemon and one answer: status, clients, requests,
 * settings, cancel, drain, stop. The daemon answers in JSON; here it is printed as it is, or set
 * for a terminal: an object as a line for each key, a list of objects as a table. So a new counter
 * or column needs no line here. */
#include <argp.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/cbclient.h"
#include "tools/cbctl.h"
#include "tools/talk.h"

enum { COLUMNS_MAX = 24, CELL_BYTES = 96 };

static const char *cell(const json_t *value, char out[CELL_BYTES])
{
    switch (json_typeof(value)) {
    case JSON_STRING:
        snprintf(out, CELL_BYTES, "%s", json_string_value(value));
        break;
    case JSON_INTEGER:
        snprintf(out, CELL_BYTES, "%lld", (long long)json_integer_value(value));
        break;
    case JSON_REAL:
        snprintf(out, CELL_BYTES, "%.3f", json_real_value(value));
        break;
    case JSON_TRUE:
        return "yes";
    case JSON_FALSE:
        return "no";
    case JSON_NULL:
        return "-";
    default:
        return "...";
    }
    /* What a client named itself must not steer the terminal. */
    for (char *p = out; *p; p++) {
        if ((unsigned char)*p < ' ' || *p == 0x7f)
            *p = '?';
    }
    return out;
}

static bool is_among(const char *key, const char *const *keys, size_t n)
{
    while (n > 0)
        if (strcmp(keys[--n], key) == 0)
            return true;
    return false;
}

/* Columns are the keys of all rows, in the order of their coming: not every row has all. */
static void print_table(const json_t *rows)
{
    const char *keys[COLUMNS_MAX];
    int width[COLUMNS_MAX];
    size_t n = 0, i;
    char out[CELL_BYTES];
    const char *key;
    json_t *row, *value;

    json_array_foreach(rows, i, row)
    {
        json_object_foreach(row, key, value)
        {
            if (n < COLUMNS_MAX && !is_among(key, keys, n)) {
                keys[n] = key;
                width[n++] = (int)strlen(key);
            }
        }
    }
    json_array_foreach(rows, i, row)
    {
        for (size_t k = 0; k < n; k++) {
            value = json_object_get(row, keys[k]);
            int w = value ? (int)strlen(cell(value, out)) : 1;

            width[k] = w > width[k] ? w : width[k];
        }
    }
    for (size_t k = 0; k < n; k++)
        printf("%-*s%s", k + 1 < n ? width[k] : 0, keys[k], k + 1 < n ? "  " : "\n");
    json_array_foreach(rows, i, row)
    {
        for (size_t k = 0; k < n; k++) {
            value = json_object_get(row, keys[k]);
            printf("%-*s%s", k + 1 < n ? width[k] : 0, value ? cell(value, out) : "-",
                   k + 1 < n ? "  " : "\n");
        }
    }
}

static void print_object(const json_t *o, int indent)
{
    int width = 0;
    char out[CELL_BYTES];
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)o, key, value)
    {
        if (!json_is_object(value) && !json_is_array(value) && (int)strlen(key) > width)
            width = (int)strlen(key);
    }
    json_object_foreach((json_t *)o, key, value)
    {
        if (json_is_object(value)) {
            printf("%*s%s:\n", indent, "", key);
            print_object(value, indent + 2);
        } else if (json_is_array(value)) {
            if (json_is_object(json_array_get(value, 0)))
                print_table(value);
            else
                printf("%*s%s: none\n", indent, "", key);
        } else {
            printf("%*s%-*s  %s\n", indent, "", width, key, cell(value, out));
        }
    }
}

struct parse_state {
    struct cbctl ctl;
    char argument[208];
    size_t n_arguments;
    bool too_long;
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct parse_state *ps = state->input;
    size_t used = strlen(ps->argument);

    switch (key) {
    case 'j':
        ps->ctl.json = true;
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

static const struct argp_option options[] = {
    {"json", 'j', NULL, 0, "print the daemon's JSON", 0},
    {0},
};

/* How many arguments each command takes; their names for --help. */
static const struct form {
    const char *command;
    size_t least, most;
    const char *arguments, *doc;
} forms[] = {
    {"status", 0, 0, NULL, "What the daemon serves, and its counters."},
    {"clients", 0, 0, NULL, "Who is connected, and what each holds."},
    {"requests", 0, 0, NULL, "What runs and what waits."},
    {"settings", 0, 2, "[KEY [VALUE]]",
     "Every setting with its value, one of them, or a new value for one that may change while the "
     "daemon runs."},
    {"cancel", 1, 1, "LANE[:SLOT]",
     "Ends a request, or all of a lane; LANE and SLOT as `cbctl requests` prints them."},
    {"drain", 0, 0, NULL, "Finishes what was accepted, takes nothing new, then stops the daemon."},
    {"stop", 0, 0, NULL, "Stops the daemon now; what runs ends with an error."},
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

int cmd_admin(const struct cbctl *ctl, int argc, char **argv)
{
    const struct form *form = forms;
    struct parse_state ps = {.ctl = *ctl};
    json_t *reply = NULL;
    const char *error;
    int r;

    while (strcmp(form->command, ctl->command) != 0)
        form++;
    const struct argp argp = {options, parse, form->arguments, form->doc, NULL, NULL, NULL};

    if (argp_parse(&argp, argc, argv, 0, NULL, &ps))
        return CBCTL_USAGE;
    if (ps.n_arguments < form->least || ps.n_arguments > form->most || ps.too_long) {
        cbctl_complain(ctl, "usage: cbctl %s %s", form->command,
                       form->arguments ? form->arguments : "");
        return CBCTL_USAGE;
    }
    if (strcmp(form->command, "cancel") == 0 && !is_place(ps.argument)) {
        cbctl_complain(ctl, "\"%s\" is no LANE or LANE:SLOT, as `cbctl requests` prints them",
                       ps.argument);
        return CBCTL_USAGE;
    }
    r = talk(ctl->instance, ps.n_arguments == 2 ? "set" : form->command, ps.argument, &reply);
    error = json_string_value(json_object_get(reply, "error"));
    if (r) {
        cbctl_complain(ctl, "%s", error ? error : cb_message());
    } else if (ps.ctl.json) {
        json_dumpf(reply, stdout, JSON_COMPACT);
        putchar('\n');
    } else if (json_is_array(reply)) {
        if (json_array_size(reply))
            print_table(reply);
        else
            printf("none\n");
    } else {
        print_object(reply, 0);
    }
    json_decref(reply);
    return r ? CBCTL_FAILED : CBCTL_OK;
}
