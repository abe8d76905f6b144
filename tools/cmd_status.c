/* cbctl status: what the STATUS page says. Watching is mapping and reading: the daemon is not
 * asked, so it may be suspended, or in a long step, and is not kept from its work. */
#include <argp.h>
#include <inttypes.h>
#include <stdio.h>

#include "client/internal.h"
#include "shm/stats.h"
#include "tools/cbctl.h"
#include "tools/show.h"

static void set_text(json_t *o, const char *key, const char *text)
{
    json_object_set_new(o, key, json_string(text));
}

static void set_number(json_t *o, const char *key, uint64_t n)
{
    json_object_set_new(o, key, json_integer((json_int_t)n));
}

static void set_hex(json_t *o, const char *key, const uint64_t id[2])
{
    char text[33];

    snprintf(text, sizeof text, "%016" PRIx64 "%016" PRIx64, id[1], id[0]);
    set_text(o, key, text);
}

static json_t *status_json(const void *page)
{
    json_t *o = json_object(), *counters = json_object();
    struct cb_stats_boot boot;

    cb_stats_boot(page, &boot);
    set_text(o, "state",
             cb_is_suspended(boot.pid)               ? "suspended"
             : cb_stats_read(page, CB_STAT_draining) ? "draining"
                                                     : "serving");
    set_text(o, "instance", boot.instance);
    set_text(o, "version", boot.version);
    set_number(o, "pid", boot.pid);
    set_number(o, "started_unix_s", boot.started_unix_s);
    set_text(o, "model", boot.model);
    set_text(o, "arch", boot.arch);
    set_text(o, "backend", boot.backend);
    set_text(o, "isa", boot.isa);
    set_number(o, "threads", boot.n_threads);
    set_text(o, "batch_invariant", boot.batch_invariant);
    set_text(o, "loop", boot.loop);
    set_number(o, "vocabulary", boot.n_vocab);
    set_number(o, "context", boot.n_context);
    set_number(o, "page_size", boot.page_size);
    set_number(o, "max_batch_tokens", boot.max_batch_tokens);
    set_hex(o, "boot_id", boot.boot_id);
    set_hex(o, "fingerprint", boot.fingerprint);
    for (int i = 0; i < CB_STAT_COUNT; i++)
        set_number(counters, cb_stat_row((enum cb_stat)i)->name,
                   cb_stats_read(page, (enum cb_stat)i));
    json_object_set_new(o, "counters", counters);
    return o;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct cbctl *ctl = state->input;

    (void)arg;
    switch (key) {
    case 'j':
        ctl->json = true;
        return 0;
    case ARGP_KEY_ARG:
        argp_usage(state);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

int cmd_status(const struct cbctl *ctl, int argc, char **argv)
{
    static const struct argp_option options[] = {
        {"json", 'j', NULL, 0, "print JSON", 0},
        {0},
    };
    static const struct argp argp = {options,
                                     parse,
                                     NULL,
                                     "What the daemon serves, and its counters, read from its "
                                     "STATUS page: the daemon is not asked.",
                                     NULL,
                                     NULL,
                                     NULL};
    struct cbctl own = *ctl;
    struct cb_options where;
    struct cb_found_status found;
    int r = CBCTL_FAILED;

    if (argp_parse(&argp, argc, argv, 0, NULL, &own))
        return CBCTL_USAGE;
    cb_options_init(&where);
    where.instance = own.instance;
    if (cb_find_status(&where, &found)) {
        cbctl_complain(&own, "%s", cb_message());
        return CBCTL_FAILED;
    }
    if (found.is_live) {
        json_t *status = status_json(found.page.base);

        show(status, own.json);
        json_decref(status);
        r = CBCTL_OK;
    } else {
        struct cb_stats_boot boot;

        cb_stats_boot(found.page.base, &boot);
        cbctl_complain(&own,
                       "no daemon serves this instance: the last one, process %" PRIu64
                       ", was killed, and left its STATUS page in /dev/shm%s",
                       boot.pid, found.name);
    }
    cb_segment_unmap(&found.page);
    return r;
}
