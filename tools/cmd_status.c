/* cbctl status: what the STATUS page says. Watching is mapping and reading: the daemon is not
 * asked, so it may be suspended, or in a long step, and is not kept from its work. */
#include <argp.h>
#include <inttypes.h>
#include <stdio.h>

#include "tools/cbctl.h"
#include "tools/show.h"
#include "tools/watch.h"

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

/* A histogram: enough to tell at a glance how long it took; its buckets are for programs. */
static json_t *timing_json(const struct cb_histogram *h, bool with_buckets)
{
    json_t *o = json_object(), *buckets;

    set_number(o, "count", cb_histogram_count(h));
    set_number(o, "sum", h->sum);
    set_number(o, "p50", cb_histogram_quantile(h, 0.5));
    set_number(o, "p90", cb_histogram_quantile(h, 0.9));
    set_number(o, "p99", cb_histogram_quantile(h, 0.99));
    if (!with_buckets)
        return o;
    buckets = json_array();
    for (unsigned i = 0; i < CB_HISTOGRAM_BUCKETS; i++) {
        if (h->buckets[i])
            json_array_append_new(buckets,
                                  json_pack("{s:o, s:I}", "le",
                                            i + 1 < CB_HISTOGRAM_BUCKETS
                                                ? json_integer((json_int_t)cb_histogram_bound(i))
                                                : json_null(),
                                            "count", (json_int_t)h->buckets[i]));
    }
    json_object_set_new(o, "buckets", buckets);
    return o;
}

/* By name for programs; for people a table. */
static json_t *timings_json(const struct watch *w, bool for_programs)
{
    json_t *all = for_programs ? json_object() : json_array();

    for (int i = 0; i < CB_TIMING_COUNT; i++) {
        const char *name = cb_timing_row((enum cb_timing)i)->name;
        json_t *timing = timing_json(&w->timings[i], for_programs);

        if (for_programs) {
            json_object_set_new(all, name, timing);
        } else {
            json_t *row = json_pack("{s:s}", "histogram", name);

            json_object_update(row, timing);
            json_decref(timing);
            json_array_append_new(all, row);
        }
    }
    return all;
}

static json_t *status_json(const struct watch *w, bool for_programs)
{
    json_t *o = json_object(), *counters = json_object();
    const struct cb_stats_boot *boot = &w->boot;

    set_text(o, "state", watch_state_name(w->state));
    set_text(o, "instance", boot->instance);
    set_text(o, "version", boot->version);
    set_number(o, "pid", boot->pid);
    set_number(o, "started_unix_s", boot->started_unix_s);
    set_text(o, "model", boot->model);
    set_text(o, "arch", boot->arch);
    set_text(o, "backend", boot->backend);
    set_text(o, "isa", boot->isa);
    set_number(o, "threads", boot->n_threads);
    set_text(o, "batch_invariant", boot->batch_invariant);
    set_text(o, "loop", boot->loop);
    set_text(o, "sandbox", boot->sandbox);
    set_number(o, "vocabulary", boot->n_vocab);
    set_number(o, "context", boot->n_context);
    set_number(o, "page_size", boot->page_size);
    set_number(o, "max_batch_tokens", boot->max_batch_tokens);
    set_hex(o, "boot_id", boot->boot_id);
    set_hex(o, "fingerprint", boot->fingerprint);
    for (int i = 0; i < CB_STAT_COUNT; i++)
        set_number(counters, cb_stat_row((enum cb_stat)i)->name, w->counters[i]);
    json_object_set_new(o, "counters", counters);
    json_object_set_new(o, "histograms", timings_json(w, for_programs));
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
    static const struct argp argp = {
        options,
        parse,
        NULL,
        "What the daemon serves, its counters and histograms, read from its "
        "STATUS page: the daemon is not asked.",
        NULL,
        NULL,
        NULL};
    struct cbctl own = *ctl;
    struct watch w;
    char why[WATCH_WHY_MAX];
    json_t *status;

    if (argp_parse(&argp, argc, argv, 0, NULL, &own))
        return CBCTL_USAGE;
    if (watch_take(own.instance, &w, why)) {
        cbctl_complain(&own, "%s", why);
        return CBCTL_FAILED;
    }
    status = status_json(&w, own.json);
    show(status, own.json);
    json_decref(status);
    return CBCTL_OK;
}
