/* A line is printed into place and then made printable: the order that no later change to a line
 * can get wrong. What cannot be known, such as a rate over no time, is a "-" and not a zero. */
#include "tools/view.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { BAR_CELLS = 24, CELL_BYTES = 24 };

struct span {                          /* what is shown: the difference of two looks */
    const struct watch *now, *earlier; /* NULL: since the start */
    double seconds;
};

__attribute__((format(printf, 2, 3))) static void add_line(struct view *v, const char *format, ...)
{
    char *line = v->rows[v->n_rows];
    va_list args;

    if (v->n_rows == VIEW_LINES_MAX)
        return;
    va_start(args, format);
    vsnprintf(line, VIEW_COLUMNS_MAX, format, args);
    va_end(args);
    for (char *p = line; *p; p++) {
        if (*p < ' ' || *p > '~')
            *p = '?';
    }
    v->n_rows++;
}

static uint64_t grown(const struct span *s, enum cb_stat stat)
{
    return s->now->counters[stat] - (s->earlier ? s->earlier->counters[stat] : 0);
}

static const char *rate(char out[CELL_BYTES], const struct span *s, enum cb_stat stat)
{
    if (s->seconds > 0)
        snprintf(out, CELL_BYTES, "%.1f", (double)grown(s, stat) / s->seconds);
    else
        strcpy(out, "-");
    return out;
}

/* part of whole, in percent. */
static const char *percent(char out[CELL_BYTES], double part, double whole)
{
    if (whole > 0)
        snprintf(out, CELL_BYTES, "%.1f %%", 100 * part / whole);
    else
        strcpy(out, "-");
    return out;
}

/* Three digits are all that a bucket of a quarter of itself can tell. */
static const char *duration(char out[CELL_BYTES], double ns)
{
    static const char *const units[] = {"ns", "us", "ms", "s"};
    unsigned i = 0;

    while (i < 3 && ns >= 999.5) {
        ns /= 1000;
        i++;
    }
    snprintf(out, CELL_BYTES, "%.*f %s", ns < 9.995 ? 2 : ns < 99.95 ? 1 : 0, ns, units[i]);
    return out;
}

/* The mean over the steps of the span. */
static const char *a_step(char out[CELL_BYTES], const struct span *s, enum cb_stat stat)
{
    uint64_t n_steps = grown(s, CB_STAT_steps);

    if (n_steps == 0)
        return strcpy(out, "-");
    return duration(out, (double)grown(s, stat) / (double)n_steps);
}

static const char *uptime(char out[CELL_BYTES], uint64_t ns)
{
    uint64_t s = ns / 1000000000u;
    size_t n = 0;

    out[0] = 0;
    if (s >= 86400)
        n = (size_t)snprintf(out, CELL_BYTES, "%" PRIu64 "d ", s / 86400);
    snprintf(out + n, CELL_BYTES - n, "%02u:%02u:%02u", (unsigned)(s % 86400 / 3600),
             (unsigned)(s % 3600 / 60), (unsigned)(s % 60));
    return out;
}

/* '#' held, '+' free but kept to be found again, '.' empty. */
static void fill_bar(char bar[BAR_CELLS + 1], uint64_t held, uint64_t kept, uint64_t total)
{
    for (uint64_t i = 0; i < BAR_CELLS; i++) {
        /* In blocks: where the cell's middle lies. */
        double at = ((double)i + 0.5) * (double)total / BAR_CELLS;

        bar[i] = at < (double)held ? '#' : at < (double)held + (double)kept ? '+' : '.';
    }
    bar[BAR_CELLS] = 0;
}

static void add_head(struct view *v, const struct span *s)
{
    const struct cb_stats_boot *b = &s->now->boot;
    char up[CELL_BYTES];

    add_line(v, "%s  %s  %.40s  up %s  pid %" PRIu64 "  %s %s, %u threads", b->instance,
             watch_state_name(s->now->state), b->model, uptime(up, s->now->up_ns), b->pid,
             b->backend, b->isa, b->n_threads);
    if (s->earlier)
        add_line(v, "Rates and times of the last %.1f s.", s->seconds);
    else
        add_line(v, "Rates and times since the daemon's start.");
    add_line(v, "%s", "");
}

static void add_requests(struct view *v, const struct span *s)
{
    const uint64_t *c = s->now->counters;

    add_line(v,
             "requests  %" PRIu64 " running  %" PRIu64 " waiting  %" PRIu64 " paused  %" PRIu64
             " clients  %" PRIu64 " accepted  %" PRIu64 " rejected",
             c[CB_STAT_requests_active], c[CB_STAT_requests_waiting], c[CB_STAT_requests_paused],
             c[CB_STAT_lanes], c[CB_STAT_requests_accepted], c[CB_STAT_requests_rejected]);
    add_line(v,
             "ended     %" PRIu64 " finished  %" PRIu64 " cancelled  %" PRIu64 " deadline  %" PRIu64
             " failed  %" PRIu64 " dropped",
             c[CB_STAT_requests_finished], c[CB_STAT_requests_cancelled],
             c[CB_STAT_requests_deadline], c[CB_STAT_requests_failed], c[CB_STAT_requests_dropped]);
}

static void add_tokens(struct view *v, const struct span *s)
{
    char prefill[CELL_BYTES], decode[CELL_BYTES], hit[CELL_BYTES];

    add_line(v, "tokens/s  %s prefill  %s decode  %s found in the cache",
             rate(prefill, s, CB_STAT_tokens_prefill), rate(decode, s, CB_STAT_tokens_decode),
             rate(hit, s, CB_STAT_tokens_prefix_hit));
}

static void add_cache(struct view *v, const struct span *s)
{
    const uint64_t *c = s->now->counters;
    uint64_t total = c[CB_STAT_blocks_total], n_free = c[CB_STAT_blocks_free];
    uint64_t held = total > n_free ? total - n_free : 0, kept = c[CB_STAT_blocks_cached];
    uint64_t hit = grown(s, CB_STAT_tokens_prefix_hit);
    char bar[BAR_CELLS + 1], held_part[CELL_BYTES], kept_part[CELL_BYTES], hits[CELL_BYTES];
    char evicted[CELL_BYTES], resets[CELL_BYTES];

    fill_bar(bar, held, kept, total);
    add_line(v, "cache     [%s] %s held  %s kept  of %" PRIu64 " blocks", bar,
             percent(held_part, (double)held, (double)total),
             percent(kept_part, (double)kept, (double)total), total);
    add_line(v, "          %s of prompts found  %s evictions/s  %s soft resets/s",
             percent(hits, (double)hit, (double)(hit + grown(s, CB_STAT_tokens_prefill))),
             rate(evicted, s, CB_STAT_blocks_evicted), rate(resets, s, CB_STAT_soft_resets));
}

/* What was put aside for want of room, and what had to be computed again. */
static void add_pool(struct view *v, const struct span *s)
{
    char offloads[CELL_BYTES], restores[CELL_BYTES], again[CELL_BYTES], forks[CELL_BYTES];

    add_line(v,
             "pool      %" PRIu64 " blocks aside  %s offloads/s  %s restores/s  %s recomputed/s"
             "  %s forks/s",
             s->now->counters[CB_STAT_blocks_aside], rate(offloads, s, CB_STAT_offloads),
             rate(restores, s, CB_STAT_restores), rate(again, s, CB_STAT_tokens_recomputed),
             rate(forks, s, CB_STAT_forks));
}

/* Of all time, and only if there was any: each is a fault, or near to one. */
static void add_trouble(struct view *v, const struct span *s)
{
    const uint64_t *c = s->now->counters;

    if (!(c[CB_STAT_violations] | c[CB_STAT_wake_missed] | c[CB_STAT_watchdog]))
        return;
    add_line(v, "trouble   %" PRIu64 " violations  %" PRIu64 " wakes missed  %" PRIu64 " watchdog",
             c[CB_STAT_violations], c[CB_STAT_wake_missed], c[CB_STAT_watchdog]);
}

static void add_steps(struct view *v, const struct span *s)
{
    char steps[CELL_BYTES], model[CELL_BYTES], own[CELL_BYTES], intake[CELL_BYTES];
    char schedule[CELL_BYTES], deliver[CELL_BYTES], busy[CELL_BYTES];

    add_line(v, "steps/s   %s  busy %s", rate(steps, s, CB_STAT_steps),
             percent(busy, (double)(grown(s, CB_STAT_model_ns) + grown(s, CB_STAT_own_ns)),
                     s->seconds * 1e9));
    add_line(v, "a step    %s model  %s own", a_step(model, s, CB_STAT_model_ns),
             a_step(own, s, CB_STAT_own_ns));
    add_line(v, "  own     %s intake  %s schedule  %s deliver",
             a_step(intake, s, CB_STAT_intake_ns), a_step(schedule, s, CB_STAT_schedule_ns),
             a_step(deliver, s, CB_STAT_deliver_ns));
}

/* So many as fit in eight columns, then millions. */
static const char *amount(char out[CELL_BYTES], uint64_t n)
{
    if (n < 100000000)
        snprintf(out, CELL_BYTES, "%" PRIu64, n);
    else
        snprintf(out, CELL_BYTES, "%" PRIu64 "M", n / 1000000);
    return out;
}

/* How many, and the times that half, nine in ten and 99 in 100 are not above. */
static const char *quantiles(char out[64], const struct cb_histogram *h)
{
    static const double shares[] = {0.5, 0.9, 0.99};
    uint64_t count = cb_histogram_count(h);
    char all[CELL_BYTES];
    int n = snprintf(out, 64, "%8.8s", amount(all, count));

    for (unsigned i = 0; i < 3; i++) {
        char cell[CELL_BYTES] = "-";

        if (count)
            duration(cell, (double)cb_histogram_quantile(h, shares[i]));
        n += snprintf(out + n, 64 - (size_t)n, " %7.7s", cell);
    }
    return out;
}

static void add_timings(struct view *v, const struct span *s)
{
    static const char *const labels[CB_TIMING_COUNT] = {
        [CB_TIMING_time_to_first_token_ns] = "first token",
        [CB_TIMING_time_between_tokens_ns] = "next token",
        [CB_TIMING_request_queued_ns] = "queued",
        [CB_TIMING_request_total_ns] = "request",
        [CB_TIMING_step_model_ns] = "step: model",
        [CB_TIMING_step_own_ns] = "step: own",
    };

    add_line(v, "%s", "");
    add_line(v, "%-11s%8s %7s %7s %7s %8s %7s %7s %7s", "", s->earlier ? "lately" : "", "p50",
             "p90", "p99", "in all", "p50", "p90", "p99");
    for (int i = 0; i < CB_TIMING_COUNT; i++) {
        struct cb_histogram span = s->now->timings[i];
        char lately[64], all[64];

        quantiles(all, &span);
        if (s->earlier)
            cb_histogram_since(&span, &s->earlier->timings[i]);
        add_line(v, "%-11s%s %s", labels[i], quantiles(lately, &span), all);
    }
}

void view_make(struct view *v, const struct watch *now, const struct watch *earlier)
{
    struct span s = {.now = now, .seconds = (double)now->up_ns / 1e9};

    if (earlier && watch_is_same_boot(now, earlier)) {
        s.earlier = earlier;
        s.seconds = (double)(now->taken_ns - earlier->taken_ns) / 1e9;
    }
    v->n_rows = 0;
    add_head(v, &s);
    add_requests(v, &s);
    add_tokens(v, &s);
    add_cache(v, &s);
    add_pool(v, &s);
    add_steps(v, &s);
    add_trouble(v, &s);
    add_timings(v, &s);
}
