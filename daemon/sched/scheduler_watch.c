/* What is told about those who wait, and what is predicted. Both look and change nothing; both are
 * about the next step as things stand, for what comes in between nobody knows. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "daemon/sched/scheduler_state.h"

/* ---- why ------------------------------------------------------------------------------------- */

struct words {
    char *text;
    size_t bytes, n;
};

static void say(struct words *w, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Appends a clause; what does not fit is cut. */
static void say(struct words *w, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(w->text + w->n, w->bytes - w->n, format, args);
    va_end(args);
    if (n > 0)
        w->n += (size_t)n < w->bytes - w->n ? (size_t)n : w->bytes - w->n - 1;
}

/* Blocks that r needs for n_tokens in all, and how many there are for it. */
static void say_room(struct words *w, const struct scheduler *s, const struct request *r,
                     uint32_t n_tokens)
{
    struct cache_counts room;
    uint32_t n_blocks = table_blocks_for(n_tokens, s->config.page_size) - r->table.n_blocks;
    cache_counts(s->cache, &room);
    if (n_blocks > room.n_unheld)
        say(w, "; the cache has no room: it needs %u more blocks, %u are free", n_blocks,
            room.n_unheld);
}

static void say_place(struct words *w, const struct scheduler *s, const struct request *r,
                      uint64_t now_ns)
{
    struct policy_ahead ahead;
    policy_ahead_of(s->policy, r, now_ns, &ahead);
    if (ahead.n_requests == 0)
        say(w, "it waits, and is the next by the rules of scheduler %s", policy_name(s->policy));
    else
        say(w,
            "it waits; by the rules of scheduler %s %u requests with %" PRIu64
            " tokens to compute come before it",
            policy_name(s->policy), ahead.n_requests, ahead.n_tokens);
    if (request_is_aside(r))
        say(w, "; it ran before, and its %u blocks were put aside", r->aside.n_blocks);
    else if (r->n_reached > 0)
        say(w, "; it ran before, and had to give way");
}

/* All that keeps the next request from running in the next step. */
static void say_obstacles(struct words *w, const struct scheduler *s, const struct request *r)
{
    uint32_t n_decoding = 0, n_tokens = r->n_ids - r->past;
    double free_share = cache_free_share(s->cache);
    for (const struct list *link = s->active.next; link != &s->active; link = link->next)
        n_decoding += list_entry(link, struct request, link)->phase == REQUEST_DECODING;
    if (s->admission_shut && (r->n_reached > 0 || !policy_may_press(s->policy, r)))
        say(w, "; since some had to give way nobody is admitted until one of the %u that run ends",
            s->n_active);
    if (free_share < s->config.safety_margin && s->n_active > 0 && !policy_may_press(s->policy, r))
        say(w, "; %.1f %% of the cache are free, less than safety_margin, which is %.1f %%",
            100 * free_share, 100 * s->config.safety_margin);
    if (s->n_active >= s->config.max_requests_per_batch)
        say(w, "; %u requests run, and a step takes %u (max_requests_per_batch)", s->n_active,
            s->config.max_requests_per_batch);
    if (n_decoding >= s->config.max_batch_tokens)
        say(w, "; those who decode take all %u tokens of a step (max_batch_tokens)",
            s->config.max_batch_tokens);
    if (n_tokens > s->config.max_batch_tokens)
        n_tokens = s->config.max_batch_tokens;
    say_room(w, s, r, r->past + n_tokens);
}

void scheduler_why(const struct scheduler *s, const struct request *r, uint64_t now_ns, char *text,
                   size_t bytes)
{
    struct words w = {.text = text, .bytes = bytes};
    if (r->end.finish != FINISH_NONE) {
        say(&w, "its end is decided; it leaves with the next step");
        return;
    }
    if (request_is_paused(r)) {
        say(&w, "its client has paused it");
    } else if (r->parent) {
        say(&w, "it waits for the first continuation of its prompt, which computes that for both");
    } else if (r->phase == REQUEST_WAITING) {
        say_place(&w, s, r, now_ns);
        say_obstacles(&w, s, r);
    } else if (r->phase == REQUEST_PREFILLING) {
        say(&w, "it runs: %u of %u tokens are computed", r->past, r->n_ids);
    } else {
        say(&w, "it runs: %u tokens of at most %u are generated", request_n_generated(r),
            r->max_new_tokens);
    }
    if (r->starved_tokens != 0)
        say_room(&w, s, r, r->starved_tokens);
    if (r->deadline_ns > now_ns)
        say(&w, "; its deadline is in %" PRIu64 " ms", (r->deadline_ns - now_ns) / 1000000);
    else if (r->deadline_ns != 0)
        say(&w, "; its deadline has passed");
}

/* ---- when ------------------------------------------------------------------------------------ */

/* What active requests have before them: ids to compute, and tokens that they may generate. */
static void measure_load(struct scheduler *s)
{
    s->load.is_known = true;
    s->load.n_able = s->load.n_loose = 0;
    s->load.n_tokens = s->load.n_limit = 0;
    for (const struct list *link = s->active.next; link != &s->active; link = link->next) {
        const struct request *r = list_entry(link, struct request, link);
        if (request_is_paused(r)) {
            s->load.n_loose += r->table.n_blocks;
            continue;
        }
        s->load.n_able++;
        s->load.n_tokens += r->phase == REQUEST_PREFILLING ? r->n_ids - r->past : 0;
        s->load.n_limit += r->max_new_tokens - request_n_generated(r);
    }
}

/* Whether a request behind these can be admitted before any ends. */
static bool has_place(const struct scheduler *s, const struct policy_ahead *ahead,
                      const struct scheduler_wish *wish)
{
    struct cache_counts room;
    cache_counts(s->cache, &room);
    uint64_t n_tokens = ahead->n_tokens + wish->n_prompt;
    uint64_t n_free = (uint64_t)room.n_unheld + s->load.n_loose;
    double free_share = cache_free_share(s->cache) + (double)s->load.n_loose / room.n_total;
    return !s->admission_shut && free_share >= s->config.safety_margin &&
           s->load.n_able + ahead->n_requests < s->config.max_requests_per_batch &&
           n_tokens / s->config.page_size + ahead->n_requests + 1 <= n_free;
}

void scheduler_forecast(struct scheduler *s, const struct scheduler_wish *wish, uint64_t now_ns,
                        struct scheduler_forecast *f)
{
    struct policy_ahead ahead;
    *f = (struct scheduler_forecast){.is_known = pace_is_known(&s->pace)};
    if (!f->is_known)
        return;
    if (!s->load.is_known)
        measure_load(s);
    policy_ahead_of_new(s->policy, wish->uid, wish->priority, wish->n_prompt, now_ns, &ahead);
    bool is_next = ahead.n_requests == 0;
    double start_ns = pace_prefill_ns(&s->pace, ahead.n_tokens);
    if (!is_next || !policy_is_ranked(s->policy))
        start_ns += pace_prefill_ns(&s->pace, s->load.n_tokens);
    /* Places come free as those who run end, one after the other. */
    if (s->load.n_able > 0 && !(is_next && policy_is_ranked(s->policy)) &&
        !has_place(s, &ahead, wish))
        start_ns += pace_decode_ns(&s->pace, (ahead.n_requests + 1.0) *
                                                 pace_expected(&s->pace, s->load.n_limit) /
                                                 s->load.n_able / s->load.n_able);
    double first_ns = start_ns + pace_prefill_ns(&s->pace, wish->n_prompt);
    double n_tokens = pace_expected(&s->pace, wish->limit);
    double finish_ns = first_ns + (n_tokens > 1 ? pace_decode_ns(&s->pace, n_tokens - 1) : 0);
    f->start_ns = (uint64_t)start_ns;
    f->first_token_ns = (uint64_t)first_ns;
    f->finish_ns = (uint64_t)finish_ns;
}
