/* cbctl load-weights: the library does it; this shows how far it is. */
#include <argp.h>
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "client/cbclient.h"
#include "tools/cbctl.h"

#define MIB 1048576.0

struct weights_state {
    struct cbctl ctl;
    const char *path;
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct weights_state *ws = state->input;

    switch (key) {
    case 'j':
        ws->ctl.json = true;
        return 0;
    case ARGP_KEY_ARG:
        if (ws->path)
            argp_usage(state);
        ws->path = arg;
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_usage(state);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option options[] = {
    {"json", 'j', NULL, 0, "print JSON, for programs", 0},
    {0},
};

static const struct argp argp = {
    options,
    parse,
    "FILE",
    "Gives the daemon other weights of the model that it runs.\v"
    "FILE has the same architecture, shapes and vocabulary. It is taken as a whole between two "
    "steps, or refused. What becomes of requests under way, they say, or the setting "
    "on_new_weights.",
    NULL,
    NULL,
    NULL};

static void show_progress(void *arg, uint64_t done, uint64_t all)
{
    (void)arg;
    fprintf(stderr, "\r%3.0f%% of %.1f MiB%s", 100.0 * (double)done / (double)all,
            (double)all / MIB, done == all ? ", being loaded\n" : "");
}

int cmd_weights(const struct cbctl *ctl, int argc, char **argv)
{
    struct weights_state ws = {.ctl = *ctl};
    struct cb_options where;
    struct cb_loaded loaded;
    int r;

    if (argp_parse(&argp, argc, argv, 0, NULL, &ws))
        return CBCTL_USAGE;
    cb_options_init(&where);
    where.instance = ws.ctl.instance;
    r = cb_load_weights(&where, ws.path, isatty(STDERR_FILENO) ? show_progress : NULL, NULL,
                        &loaded);
    if (r) {
        cbctl_complain(&ws.ctl, "%s", cb_message());
        return CBCTL_FAILED;
    }
    if (ws.ctl.json)
        printf("{\"weight_epoch\": %" PRIu32 ", \"bytes\": %" PRIu64 ", \"stall_ms\": %" PRIu64
               ", \"steps\": %" PRIu64 ", \"restarted\": %" PRIu32 "}\n",
               loaded.weight_epoch, loaded.bytes, loaded.stall_ms, loaded.n_steps,
               loaded.n_restarted);
    else
        printf("weights %" PRIu32 ": %.1f MiB, %" PRIu64 " steps meanwhile, at most %" PRIu64
               " ms without one, %" PRIu32 " requests computed anew\n",
               loaded.weight_epoch, (double)loaded.bytes / MIB, loaded.n_steps, loaded.stall_ms,
               loaded.n_restarted);
    return CBCTL_OK;
}
