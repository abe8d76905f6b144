/* cbctl metrics: the STATUS page for Prometheus, once to standard output, or served. */
#include <argp.h>

#include "tools/cbctl.h"
#include "tools/metrics.h"
#include "tools/serve.h"

struct arguments {
    struct cbctl ctl;
    const char *listen;
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct arguments *a = state->input;

    switch (key) {
    case 'l':
        a->listen = arg;
        return 0;
    case ARGP_KEY_ARG:
        argp_usage(state);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

int cmd_metrics(const struct cbctl *ctl, int argc, char **argv)
{
    static const struct argp_option options[] = {
        {"listen", 'l', "PORT|PATH", 0,
         "serve GET /metrics at this port of 127.0.0.1, or at a unix socket (a path with a /), "
         "until "
         "SIGTERM",
         0},
        {0},
    };
    static const struct argp argp = {
        options,
        parse,
        NULL,
        "The daemon's counters and histograms as Prometheus text, read "
        "from its STATUS page: the daemon is not asked.",
        NULL,
        NULL,
        NULL};
    struct arguments a = {.ctl = *ctl};
    struct watch w;
    char why[WATCH_WHY_MAX];

    if (argp_parse(&argp, argc, argv, 0, NULL, &a))
        return CBCTL_USAGE;
    if (ctl->json) {
        cbctl_complain(ctl, "there is no --json; `cbctl status --json` has the same counters");
        return CBCTL_USAGE;
    }
    if (a.listen)
        return serve(&a.ctl, a.listen);
    if (watch_take(ctl->instance, &w, why)) {
        cbctl_complain(ctl, "%s", why);
        return CBCTL_FAILED;
    }
    metrics_print(stdout, &w);
    return CBCTL_OK;
}
