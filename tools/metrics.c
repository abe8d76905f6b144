/* Names and values are made from the tables' rows, so that a new counter needs no line here.
 * Numbers of nanoseconds are printed as decimals by whole arithmetic: a double would begin to lose
 * some after 104 days, and then a rate over a short time would be wrong. */
#include "tools/metrics.h"

#include <inttypes.h>
#include <string.h>

#include "shm/utf8.h"

enum { NAME_BYTES = 80 };

/* A label's value: `"`, `\` and line ends escaped; what is not UTF-8 becomes U+FFFD, since one such
 * byte would make a reader refuse everything. */
static void print_value(FILE *out, const char *text)
{
    const uint8_t *p = (const uint8_t *)text;
    size_t n = strlen(text);

    while (n > 0) {
        int k = cb_utf8_scan(p, n);
        size_t bytes = k > 0 ? (size_t)k : k < 0 ? (size_t)-k : n;

        if (k <= 0)
            fputs("\xef\xbf\xbd", out);
        else if (*p == '\n')
            fputs("\\n", out);
        else
            fprintf(out, "%s%.*s", *p == '"' || *p == '\\' ? "\\" : "", k, (const char *)p);
        p += bytes;
        n -= bytes;
    }
}

static void print_label(FILE *out, const char *name, const char *value)
{
    fprintf(out, "%s=\"", name);
    print_value(out, value);
    fputc('"', out);
}

/* "{instance=...,model=...": the caller adds its own labels, and the brace. */
static void print_labels(FILE *out, const struct watch *w)
{
    fputc('{', out);
    print_label(out, "instance", w->boot.instance);
    fputc(',', out);
    print_label(out, "model", w->boot.model);
}

static void print_head(FILE *out, const char *name, const char *type, const char *help,
                       const char *unit)
{
    fprintf(out, "# HELP %s %s", name, help);
    if (unit)
        fprintf(out, " (%s)", unit);
    fprintf(out, "\n# TYPE %s %s\n", name, type);
}

/* How many of a unit are a second; 0: it is no time. */
static uint32_t per_second(const char *unit)
{
    return strcmp(unit, "ns") == 0 ? 1000000000u : strcmp(unit, "us") == 0 ? 1000000u : 0;
}

/* "ring_us_per_step", us: "cbd_ring_seconds_per_step". */
static void make_name(char out[NAME_BYTES], const char *row, const char *unit, const char *end)
{
    size_t n_unit = strlen(unit);
    const char *at = per_second(unit) ? strstr(row, unit) : NULL;

    while (at && (at == row || at[-1] != '_' || (at[n_unit] && at[n_unit] != '_')))
        at = strstr(at + 1, unit);
    if (at)
        snprintf(out, NAME_BYTES, "cbd_%.*sseconds%s%s", (int)(at - row), row, at + n_unit, end);
    else
        snprintf(out, NAME_BYTES, "cbd_%s%s", row, end);
}

static void print_number(FILE *out, uint64_t value, uint32_t a_second)
{
    if (a_second == 0)
        fprintf(out, " %" PRIu64 "\n", value);
    else
        fprintf(out, " %" PRIu64 ".%0*" PRIu64 "\n", value / a_second, a_second == 1000000u ? 6 : 9,
                value % a_second);
}

static void print_counter(FILE *out, const struct watch *w, enum cb_stat stat)
{
    const struct cb_stat_row *row = cb_stat_row(stat);
    uint32_t a_second = per_second(row->unit);
    char name[NAME_BYTES];

    make_name(name, row->name, row->unit, row->is_gauge ? "" : "_total");
    print_head(out, name, row->is_gauge ? "gauge" : "counter", row->meaning,
               a_second ? "seconds" : row->unit);
    fputs(name, out);
    print_labels(out, w);
    fputc('}', out);
    print_number(out, w->counters[stat], a_second);
}

static void print_timing(FILE *out, const struct watch *w, enum cb_timing timing)
{
    const struct cb_timing_row *row = cb_timing_row(timing);
    const struct cb_histogram *h = &w->timings[timing];
    char name[NAME_BYTES];
    uint64_t n = 0;

    make_name(name, row->name, "ns", "");
    print_head(out, name, "histogram", row->meaning, "seconds");
    for (unsigned i = 0; i < CB_HISTOGRAM_BUCKETS; i++) {
        uint64_t bound = cb_histogram_bound(i);

        n += h->buckets[i];
        if (!cb_histogram_ends_octave(i) && bound != UINT64_MAX)
            continue;
        fprintf(out, "%s_bucket", name);
        print_labels(out, w);
        if (bound == UINT64_MAX)
            fputs(",le=\"+Inf\"}", out);
        else
            fprintf(out, ",le=\"%.15g\"}", (double)bound / 1e9);
        print_number(out, n, 0);
    }
    fprintf(out, "%s_sum", name);
    print_labels(out, w);
    fputc('}', out);
    print_number(out, h->sum, 1000000000u);
    fprintf(out, "%s_count", name);
    print_labels(out, w);
    fputc('}', out);
    print_number(out, n, 0);
}

static void print_gauge(FILE *out, const struct watch *w, const char *name, const char *help,
                        const char *unit, uint64_t value)
{
    print_head(out, name, "gauge", help, unit);
    fputs(name, out);
    print_labels(out, w);
    fputc('}', out);
    print_number(out, value, 0);
}

static void print_boot(FILE *out, const struct watch *w)
{
    const struct cb_stats_boot *b = &w->boot;
    const struct {
        const char *name, *value;
    } facts[] = {{"version", b->version},
                 {"arch", b->arch},
                 {"backend", b->backend},
                 {"isa", b->isa},
                 {"loop", b->loop}};

    print_head(out, "cbd_info", "gauge", "what the daemon is; always 1", NULL);
    fputs("cbd_info", out);
    print_labels(out, w);
    for (size_t i = 0; i < sizeof facts / sizeof facts[0]; i++) {
        fputc(',', out);
        print_label(out, facts[i].name, facts[i].value);
    }
    fputs("} 1\n", out);
    print_head(out, "cbd_state", "gauge", "1 for the state that it is in", NULL);
    for (int i = 0; i < WATCH_STATES; i++) {
        fputs("cbd_state", out);
        print_labels(out, w);
        fputc(',', out);
        print_label(out, "state", watch_state_name((enum watch_state)i));
        fprintf(out, "} %d\n", (int)w->state == i);
    }
    print_gauge(out, w, "cbd_start_time_seconds", "when it started, since 1970", "seconds",
                b->started_unix_s);
    print_gauge(out, w, "cbd_threads", "threads that compute", "threads", b->n_threads);
    print_gauge(out, w, "cbd_context_tokens", "longest prompt and answer", "tokens", b->n_context);
    print_gauge(out, w, "cbd_page_size_tokens", "tokens of a cache block", "tokens", b->page_size);
    print_gauge(out, w, "cbd_max_batch_tokens", "most tokens of a step", "tokens",
                b->max_batch_tokens);
}

void metrics_print(FILE *out, const struct watch *w)
{
    print_boot(out, w);
    for (int i = 0; i < CB_STAT_COUNT; i++)
        print_counter(out, w, (enum cb_stat)i);
    for (int i = 0; i < CB_TIMING_COUNT; i++)
        print_timing(out, w, (enum cb_timing)i);
}
