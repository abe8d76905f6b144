/* Cost is counted in work: a child of an entry is one unit and each 64 ids of its prompt and its options
 * another, which is about what copying and checking them takes. A uid's round is QUANTUM units;
 * what it did not use is not saved up, what it used too much (the last prompt may be long) it owes
 * in the next round. */
#include "daemon/intake.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/clock.h"
#include "daemon/engine.h"
#include "shm/message.h"

#define PASS_UNITS 1024 /* at most about this much work between two steps */
#define QUANTUM    8
#define IDS_A_UNIT 64
#define LAST_SHARE 8

struct intake {
    struct intake_config config;
    uint32_t *prompt;  /* [n_context] the copy of one prompt                  */
    uint64_t *options; /* CB_OPTIONS_MAX bytes: the copy of one option block  */
    struct cb_message_parsed parsed;
    struct sample_bias biases[CB_BIASES_MAX];
    /* In the engine, about: counted up by what this pass added. */
    uint32_t n_waiting, n_requests;
    uint64_t n_held_tokens;
    uint64_t since_ns; /* when the entry that is taken came into view; 0: none has */
    uint32_t n_paused; /* of those that wait, counted when it first mattered in this pass */
    bool knows_paused;
    bool refuses;
};

int intake_new(struct intake **intakep, const struct intake_config *config)
{
    struct intake *i = calloc(1, sizeof *i);
    if (!i)
        return -ENOMEM;
    i->config = *config;
    i->prompt = malloc((size_t)config->n_context * sizeof *i->prompt);
    i->options = malloc(CB_OPTIONS_MAX);
    if (!i->prompt || !i->options) {
        intake_free(i);
        return -ENOMEM;
    }
    *intakep = i;
    return 0;
}

struct intake *intake_free(struct intake *i)
{
    if (i) {
        free(i->prompt);
        free(i->options);
        free(i);
    }
    return NULL;
}

void intake_refuse_all(struct intake *i)
{
    i->refuses = true;
}

/* ---- one request ----------------------------------------------------------------------------- */

/* Of each of its children: what it has, and may yet come to have. */
static uint64_t n_tokens_of(const struct cb_request_entry *entry)
{
    return (uint64_t)cb_entry_prompt(entry) + entry->max_new_tokens;
}

/* Everything about the entry itself; brings an open limit to what can be had. */
static int entry_check(const struct intake *i, const struct client *cl,
                       struct cb_request_entry *entry, uint32_t detail[2])
{
    const struct cb_message_limits limits = {
        .arena_bytes = cl->geometry.up_arena_bytes,
        .n_slots = cl->geometry.n_slots,
        .n_vocab = i->config.n_vocab,
        .n_context = i->config.n_context,
        .features = cl->features,
    };
    bool is_open = entry->max_new_tokens == CB_NO_LIMIT;
    if (i->refuses)
        return CB_DRAINING;
    int status = cb_message_check(entry, &limits, detail);
    if (status)
        return status;
    uint32_t most = engine_tokens_max(i->config.engine);
    uint32_t n_prompt = cb_entry_prompt(entry);
    if (is_open && n_prompt < most && entry->max_new_tokens > most - n_prompt)
        entry->max_new_tokens = most - n_prompt;
    if (is_open && entry->max_new_tokens > cb_lane_tokens_max(cl->lane, entry))
        entry->max_new_tokens = cb_lane_tokens_max(cl->lane, entry);
    uint64_t n_tokens = n_tokens_of(entry);
    if (n_tokens > i->config.settings->max_held_tokens / entry->n_children)
        return cb_over(CB_LIMIT_HELD_TOKENS, i->config.settings->max_held_tokens, detail);
    if (entry->n_children > i->config.settings->max_requests)
        return cb_over(CB_LIMIT_REQUESTS, i->config.settings->max_requests, detail);
    if (n_tokens > most) {
        uint32_t page = i->config.page_size;
        detail[0] = (uint32_t)((n_tokens + page - 1) / page);
        detail[1] = most / page;
        return CB_NO_CAPACITY;
    }
    if (entry->resume_from > entry->max_new_tokens) /* as far as the limit was open */
        return cb_over(CB_LIMIT_POOL, entry->max_new_tokens, detail);
    return 0;
}

/* The last eighth of the engine's room, in requests and in tokens, is for users who have less than an
 * eighth of it: a flood of one leaves others a way in. */
static bool takes_the_last(const struct intake *i, const struct quota *q, uint32_t n_children,
                           uint64_t n_tokens)
{
    const struct settings *set = i->config.settings;
    uint64_t n_requests = set->max_requests - set->max_requests / LAST_SHARE;
    uint64_t n_held = set->max_held_tokens - set->max_held_tokens / LAST_SHARE;
    if (set->max_requests < LAST_SHARE || q->use.n_requests < set->max_requests / LAST_SHARE)
        return false;
    return i->n_requests + n_children > n_requests || i->n_held_tokens + n_tokens > n_held;
}

/* 0; CB_LANE_WAITS: the uid has used up what it may have now; or a negative cb_status: it may never
 * have that much. */
static int quota_allows(const struct intake *i, const struct client *cl,
                        const struct cb_request_entry *entry, uint32_t detail[2])
{
    const struct settings *set = i->config.settings;
    const struct quota *q = cl->quota;
    uint32_t n = entry->n_children;
    uint64_t n_prompt = (uint64_t)n * entry->n_prompt; /* each child may be the one that stays */
    if (n_prompt > set->uid_waiting_tokens)
        return cb_over(CB_LIMIT_UID_WAITING, set->uid_waiting_tokens, detail);
    if (n > set->uid_requests)
        return cb_over(CB_LIMIT_UID_REQUESTS, set->uid_requests, detail);
    if (q->use.n_requests + n > set->uid_requests ||
        q->use.waiting_tokens + n_prompt > set->uid_waiting_tokens ||
        takes_the_last(i, q, n, n * n_tokens_of(entry)))
        return CB_LANE_WAITS;
    return 0;
}

/* Copies and checks prompt and options: 0 or a negative cb_status. */
static int bodies_check(struct intake *i, const struct client *cl,
                        const struct cb_request_entry *entry, uint32_t detail[2])
{
    if (cb_lane_copy_arena(cl->lane, entry->prompt_off,
                           (uint64_t)entry->n_prompt * sizeof(uint32_t), i->prompt))
        return CB_BAD_BOUNDS;
    int status = cb_message_check_ids(i->prompt, entry->n_prompt, i->config.n_vocab, detail);
    if (status)
        return status;
    cb_message_parsed_init(&i->parsed);
    if (entry->opt_len) {
        if (cb_lane_copy_arena(cl->lane, entry->opt_off, entry->opt_len, i->options))
            return CB_BAD_BOUNDS;
        status = cb_message_parse_options(i->options, entry->opt_len, i->config.n_vocab, &i->parsed,
                                          detail);
        if (status)
            return status;
    }
    return cb_message_check_resume(entry, &i->parsed, cl->features,
                                   i->config.clients->config.fingerprint, detail);
}

/* What the copies ask for beside the entry's own fields. */
static struct sampler_wishes wishes_of(struct intake *i, const struct cb_request_entry *entry)
{
    const struct cb_sampling *s = &i->parsed.sampling;
    for (uint32_t k = 0; k < i->parsed.n_biases; k++)
        i->biases[k] =
            (struct sample_bias){.id = i->parsed.biases[k].id, .bias = i->parsed.biases[k].bias};
    return (struct sampler_wishes){
        .min_p = s->min_p,
        .typical_p = s->typical_p,
        .repetition_penalty = s->repetition_penalty,
        .presence_penalty = s->presence_penalty,
        .frequency_penalty = s->frequency_penalty,
        .no_repeat_ngram = s->no_repeat_ngram,
        .min_new_tokens = s->min_new_tokens,
        .first_id = s->first_id,
        .biases = i->biases,
        .n_biases = i->parsed.n_biases,
        .allowed = i->parsed.allowed_ids,
        .n_allowed = i->parsed.n_allowed_ids,
        .banned = i->parsed.banned_ids,
        .n_banned = i->parsed.n_banned_ids,
        .logprobs = !(entry->planes & CB_PLANE_LOGPROBS)  ? SAMPLE_NO_LOGPROBS
                    : entry->flags & CB_FLAG_RAW_LOGPROBS ? SAMPLE_RAW
                                                          : SAMPLE_PROCESSED,
        .n_best = cb_planes_k(entry->planes),
        .prompt_logprobs = entry->planes & CB_PLANE_PROMPT,
    };
}

static uint32_t whole(uint64_t n) /* or the most there is */
{
    return n > UINT32_MAX ? UINT32_MAX : (uint32_t)n;
}

/* 0, or CB_TOO_LATE: by what is guessed it can't make its deadline. Where the limit is open, all
 * that must be there by then is its first token. */
static int forecast(struct intake *i, const struct request_spec *spec, bool is_open, uint64_t now,
                    struct cb_lane_forecast *told, uint32_t detail[2])
{
    struct engine_forecast f;
    engine_forecast(i->config.engine, spec, &f);
    *told = (struct cb_lane_forecast){0};
    if (!f.is_known)
        return 0;
    told->start_us = whole(f.start_ns / 1000);
    told->finish_us = whole(f.finish_ns / 1000 + 1);
    uint64_t due_ns = is_open ? f.first_token_ns : f.finish_ns;
    if (spec->deadline_ns == 0 || due_ns <= spec->deadline_ns - now)
        return 0;
    detail[0] = whole(due_ns / 1000000 + 1);
    detail[1] = whole((spec->deadline_ns - now) / 1000000);
    return CB_TOO_LATE;
}

/* Hands the copies to the engine: 0, CB_LANE_WAITS, or a negative cb_status. */
static int submit(struct intake *i, struct client *cl, const struct cb_request_entry *entry,
                  bool is_open, uint32_t detail[2])
{
    uint64_t now = clock_now(i->config.clock);
    uint32_t n = entry->n_children;
    struct request *requests[CB_CHILDREN_MAX];
    void *owners[CB_CHILDREN_MAX];
    const struct sampler_wishes wishes = wishes_of(i, entry);
    const struct request_spec spec = {
        .prompt = i->prompt,
        .n_prompt = cb_entry_prompt(entry),
        .n_given = entry->resume_from,
        .max_new_tokens = entry->max_new_tokens,
        .stop_ids = i->parsed.stop_ids,
        .n_stop_ids = i->parsed.n_stop_ids,
        .ignore_eos = entry->flags & CB_FLAG_IGNORE_EOS,
        .stops = i->parsed.stops.n_stops ? &i->parsed.stops : NULL,
        .temperature = entry->temperature,
        .top_k = entry->top_k,
        .top_p = entry->top_p,
        .seed = entry->seed,
        .wishes = &wishes,
        .deadline_ns = entry->deadline_ns == 0                 ? 0
                       : entry->deadline_ns > UINT64_MAX - now ? UINT64_MAX
                                                               : now + entry->deadline_ns,
        .priority = (uint8_t)entry->priority,
        .uid = cl->lease.uid,
        .cache_salt = i->parsed.cache_salt,
        .n_cache_salt = i->parsed.n_cache_salt,
        .on_new_weights =
            (enum on_new_weights)((entry->flags & CB_FLAG_ON_WEIGHTS) >> CB_FLAG_ON_WEIGHTS_SHIFT),
        .paused = &cl->is_paused,
        .now_ns = now,
        .child_idx = i->parsed.has_resume ? i->parsed.resume.child_idx : entry->child_idx,
    };
    struct cb_lane_forecast told;
    int late = forecast(i, &spec, is_open, now, &told, detail);
    if (late && !i->parsed.has_resume) /* that one has begun: what it has by then is its answer */
        return late;
    for (uint32_t k = 0; k < n; k++)
        owners[k] = &cl->slots[entry->slot + k];
    switch (engine_submit_many(i->config.engine, &spec, n, owners, requests)) {
    case 0:
        break;
    case ENGINE_TOO_BIG:
        detail[0] = detail[1] = engine_tokens_max(i->config.engine) / i->config.page_size;
        return CB_NO_CAPACITY;
    case ENGINE_ENDED:
        return CB_CHANGED;
    default:
        return CB_LANE_WAITS;
    }
    if (entry->resume_from)
        cb_lane_give(cl->lane, entry, i->prompt + cb_entry_prompt(entry));
    cb_lane_accept(cl->lane, entry, entry->seed, told);
    for (uint32_t k = 0; k < n; k++) {
        clients_request_taken(i->config.clients, owners[k], requests[k], entry->n_prompt, now);
        cb_lane_set_owner(cl->lane, entry->slot + k, requests[k]);
    }
    cb_stats_add(i->config.stats, CB_STAT_requests_accepted, n);
    i->n_waiting += n;
    i->n_requests += n;
    i->n_held_tokens += n * n_tokens_of(entry);
    return 0;
}

/* How many wait in the engine because their client has paused them. */
static uint32_t count_paused(const struct intake *i)
{
    struct list *l, *after, *k, *behind;
    uint32_t n = 0;
    list_for_each (l, after, &i->config.clients->quotas->used) {
        const struct quota *q = list_entry(l, struct quota, link);
        list_for_each (k, behind, &q->live) {
            const struct client *cl = list_entry(k, struct client, link);
            for (uint32_t s = 0; cl->is_paused && cl->n_running && s < cl->geometry.n_slots; s++) {
                struct request_info info = {.phase = REQUEST_DECODING};
                if (cl->slots[s].request)
                    engine_request_info(cl->slots[s].request, &info);
                n += info.phase == REQUEST_WAITING;
            }
        }
    }
    return n;
}

/* An empty one takes as many children as there are: later there would be no more room. */
static bool has_no_room(const struct settings *set, uint32_t n_waiting, uint32_t n_children)
{
    return n_waiting > 0 && (uint64_t)n_waiting + n_children > set->max_queue_size;
}

/* Those who pause theirs fill the queue for themselves only. */
static bool queue_is_full(struct intake *i, const struct client *cl, uint32_t n_children)
{
    const struct settings *set = i->config.settings;
    if (!set->max_queue_size || !has_no_room(set, i->n_waiting, n_children))
        return false;
    if (cl->is_paused)
        return true;
    if (!i->knows_paused)
        i->n_paused = count_paused(i);
    i->knows_paused = true;
    return has_no_room(set, i->n_waiting - i->n_paused, n_children);
}

/* With a bound on what waits nothing waits in a lane either, but for its client's own results. */
static int or_busy(const struct intake *i, int r)
{
    return r == CB_LANE_WAITS && i->config.settings->max_queue_size ? CB_BUSY : r;
}

enum { TAKE_NOTHING, TAKE_ONE, TAKE_CLOSED };

/* Takes the lane's oldest entry, if it can be taken now. *units is what that cost. */
static int intake_take(struct intake *i, struct client *cl, int64_t *units)
{
    struct cb_request_entry entry;
    uint32_t detail[2] = {0, 0};
    int r = cb_lane_peek(cl->lane, &entry);
    if (r < 0) {
        clients_close(i->config.clients, cl, CB_CLOSED_BROKEN);
        return TAKE_CLOSED;
    }
    if (r != CB_LANE_ENTRY)
        return TAKE_NOTHING;
    if (i->since_ns == 0)
        i->since_ns = chores_now(&i->config.clients->chores);
    uint32_t n = cb_lane_n_children(cl->lane);
    *units = n;
    bool is_open = entry.max_new_tokens == CB_NO_LIMIT;
    r = entry_check(i, cl, &entry, detail);
    if (r == 0)
        r = queue_is_full(i, cl, n)
                ? CB_BUSY
                : cb_lane_reserve(cl->lane, &entry, entry.max_new_tokens, detail);
    if (r == CB_LANE_WAITS)
        return TAKE_NOTHING;
    if (r == CB_LANE_CANCELLED) {
        cb_lane_cancel(cl->lane, &entry);
        cb_stats_add(i->config.stats, CB_STAT_requests_accepted, n); /* each that ends was one */
        cb_stats_add(i->config.stats, CB_STAT_requests_cancelled, n);
        return TAKE_ONE;
    }
    if (r == 0)
        r = quota_allows(i, cl, &entry, detail);
    if (r == 0) {
        *units += (entry.n_prompt + entry.opt_len / sizeof(uint32_t)) / IDS_A_UNIT;
        r = bodies_check(i, cl, &entry, detail);
    }
    if (r == 0)
        r = submit(i, cl, &entry, is_open, detail);
    r = or_busy(i, r);
    if (r == CB_LANE_WAITS) {
        cb_lane_wait(cl->lane);
        cl->waits = true;
        return TAKE_NOTHING;
    }
    if (r < 0) {
        cb_lane_reject(cl->lane, &entry, r, detail[0], detail[1]);
        cb_stats_add(i->config.stats, CB_STAT_requests_rejected, n);
    }
    return TAKE_ONE;
}

/* ---- whose turn ------------------------------------------------------------------------------ */

/* One round of one uid: its lanes in turn, an entry each. Returns the units used; *donep: no lane
 * of it has anything that can be taken. A uid in debt from an earlier round is not done. */
static int64_t serve_uid(struct intake *i, struct quota *q, bool *donep)
{
    int64_t used = 0;
    bool took = true;
    q->deficit += QUANTUM;
    while (took && q->deficit > 0) {
        struct list *l, *after;
        took = false;
        list_for_each (l, after, &q->live) {
            struct client *cl = list_entry(l, struct client, link);
            int64_t units = 0;
            if (q->deficit <= 0)
                break;
            took |= intake_take(i, cl, &units) == TAKE_ONE;
            q->deficit -= units;
            used += units;
        }
        if (took && !list_is_empty(&q->live)) { /* the next round begins with another lane */
            struct list *first = q->live.next;
            list_remove(first);
            list_append(&q->live, first);
        }
    }
    *donep = !took;
    if (*donep && q->deficit > 0)
        q->deficit = 0;
    return used;
}

/* The same, at the uid's own cost if nothing comes of it that it pays for otherwise: what is refused, or
 * cancelled before it was taken. */
static int64_t round_of(struct intake *i, struct quota *q, bool *donep)
{
    uint32_t n_requests = i->n_requests;
    int64_t used = serve_uid(i, q, donep);
    if (used > 0 && i->n_requests == n_requests)
        chores_charge(&i->config.clients->chores, q, &i->since_ns);
    else
        i->since_ns = 0;
    return used;
}

/* Credit that came back may be what a waiting lane waits for. */
static void retry_waiting(struct intake *i)
{
    struct clients *c = i->config.clients;
    struct list *l, *after, *k, *behind;
    if (!c->has_credit)
        return;
    c->has_credit = false;
    list_for_each (l, after, &c->quotas->used) {
        struct quota *q = list_entry(l, struct quota, link);
        list_for_each (k, behind, &q->live) {
            struct client *cl = list_entry(k, struct client, link);
            if (cl->waits) {
                cl->waits = false;
                cb_lane_retry(cl->lane);
            }
        }
    }
}

bool intake_drain(struct intake *i)
{
    struct clients *c = i->config.clients;
    struct chores *ch = &c->chores;
    struct engine_held held;
    int64_t left = PASS_UNITS;
    struct list *last = NULL;
    bool more;
    engine_held(i->config.engine, &held);
    i->n_waiting = held.n_waiting;
    i->knows_paused = false;
    i->since_ns = 0;
    i->n_requests = held.n_requests;
    i->n_held_tokens = held.n_tokens;
    retry_waiting(i);
    do {
        struct list *l, *after;
        more = false;
        list_for_each (l, after, &c->quotas->used) {
            struct quota *q = list_entry(l, struct quota, link);
            bool done = true;
            if (list_is_empty(&q->live) || !chores_may_take(ch, q))
                continue;
            chores_hold(q);
            int64_t used = round_of(i, q, &done);
            chores_let_go(ch, q);
            left -= used;
            more |= !done;
            if (used > 0)
                last = after->prev == l ? l : NULL; /* NULL: it went with its last lane */
            if (left <= 0)
                break;
        }
    } while (more && left > 0);
    /* Whoever took something last comes last next time: when credit returns to a full house, it
     * goes round. */
    if (last) {
        list_remove(&c->quotas->used);
        list_prepend(last, &c->quotas->used);
    }
    return more || left <= 0;
}
