/* client/submit.c - a request from the caller's structure to the lane.
 *
 * Everything that can be slow or fail is done before the lock: text becomes ids, all is checked,
 * the option block is built. Under the lock only copies remain. What the library can check it
 * checks here, with the daemon's own words, so that a mistake is a return value and not an
 * event. */
#include "client/internal.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/record.h"
#include "client/resume.h"
#include "client/text.h"
#include "shm/message.h"
#include "shm/stop.h"

#define STOP_IDS_MAX  64u
#define OPTIONS_BYTES 1024u /* a larger block takes memory of the heap */
#define FLAGS_KNOWN                                                                          \
    (CB_FINAL_ONLY | CB_IGNORE_EOS | CB_TIMES | CB_HAS_SEED | CB_PARSE_SPECIAL | CB_NO_BOS | \
     CB_KEEP_STOP | CB_AUTO_RELEASE | CB_LOGPROBS | CB_RAW_LOGPROBS | CB_PROMPT_LOGPROBS |   \
     CB_PROCESSED_LOGPROBS | CB_EPOCHS | CB_RESUMABLE | CB_RESTART)

static_assert(CB_OPTIONS_MAX >= 7 * sizeof(struct cb_option_head) + 4 * STOP_IDS_MAX +
                                    CB_STOPS_MAX * (4 + CB_STOP_BYTES_MAX) + CB_SALT_MAX +
                                    sizeof(struct cb_sampling) +
                                    CB_BIASES_MAX * sizeof(struct cb_logit_bias) +
                                    2 * CB_IDS_MAX * sizeof(uint32_t),
              "every block within the limits is allowed");
static_assert(STOP_IDS_MAX <= CB_STOP_IDS_MAX, "format 1");
static_assert(CB_NO_TOKEN == CB_NO_ID, "cbclient.h spells format.h out");

struct prepared {
    struct cb_request_entry entry;
    const struct cb_request *request;
    struct cb_group *group; /* NULL: none */
    uint32_t flags;         /* the request's, with the daemon's defaults */
    const uint32_t *ids;
    uint32_t *own_ids;                      /* NULL: ids are the caller's */
    struct cb_text *texts[CB_CHILDREN_MAX]; /* NULL: none */
    struct cb_record *records[CB_CHILDREN_MAX];
    size_t option_bytes;
    unsigned char *options; /* few, or of the heap */
    alignas(8) unsigned char few[OPTIONS_BYTES];
};

static void prepared_fini(struct prepared *p)
{
    free(p->own_ids);
    for (uint32_t i = 0; i < p->entry.n_children; i++) {
        cb_text_free(p->texts[i]);
        cb_record_free(p->records[i]);
    }
    if (p->options != p->few)
        free(p->options);
}

/* ---- checking -------------------------------------------------------------------------------- */

static int check_sampling(const struct cb_request *request)
{
    if (!(request->temperature >= 0) || !isfinite(request->temperature))
        return cb_fail(CB_BAD_TEMPERATURE);
    if (!(request->top_p > 0 && request->top_p <= 1))
        return cb_fail(CB_BAD_TOP_P);
    if (request->top_k < 0)
        return cb_fail(CB_BAD_TOP_K);
    if (request->priority > 255)
        return cb_fail_at("cb_request.priority is above 255", CB_INVALID, 0, 0);
    if (request->flags & ~FLAGS_KNOWN)
        return cb_fail_at("cb_request.flags", CB_INVALID, 0, 0);
    if (request->flags & CB_RAW_LOGPROBS && request->flags & CB_PROCESSED_LOGPROBS)
        return cb_fail_at("CB_RAW_LOGPROBS with CB_PROCESSED_LOGPROBS", CB_INVALID, 0, 0);
    if (request->flags & CB_AUTO_RELEASE && !request->handler)
        return cb_fail_at("CB_AUTO_RELEASE without a handler", CB_INVALID, 0, 0);
    return 0;
}

static int check_ids(const uint32_t *ids, size_t n, uint32_t n_vocab)
{
    uint32_t most = 0;
    for (size_t i = 0; i < n; i++) /* no exit: the compiler does many at once */
        most = ids[i] > most ? ids[i] : most;
    return most < n_vocab ? 0 : cb_fail_with(CB_BAD_TOKEN, most, n_vocab);
}

static int check_length(const struct cb_handle *h, size_t n, uint32_t limit)
{
    uint32_t n_context = h->n_context;
    uint64_t all = limit == CB_NO_LIMIT ? n : n + (uint64_t)limit;
    if (!n)
        return cb_fail(CB_EMPTY_PROMPT);
    if (all > n_context)
        return cb_fail_with(CB_TOO_LONG, all > UINT32_MAX ? UINT32_MAX : (uint32_t)all, n_context);
    return 0;
}

int cb_prompt_ids(struct cb_handle *h, const struct cb_request *request, const uint32_t **idsp,
                  uint32_t **ownp, size_t *np)
{
    uint32_t flags = request->flags & (CB_PARSE_SPECIAL | CB_NO_BOS);
    const char *text = request->text;
    size_t bytes = request->text_bytes;
    char *chat = NULL;
    int r;

    if (!!request->ids + !!request->text + !!request->messages > 1)
        return cb_fail_at("more than one of ids, text and messages is given", CB_INVALID, 0, 0);
    *ownp = NULL;
    if (request->ids) {
        *idsp = request->ids;
        *np = request->n_ids;
        return 0;
    }
    if (request->messages) {
        r = cb_text_chat(h, request->messages, request->n_messages, &chat, &bytes);
        if (r)
            return r;
        text = chat;
        flags = CB_PARSE_SPECIAL | CB_NO_BOS;
    } else if (text && !bytes) {
        bytes = strlen(text);
    }
    if (!text)
        return cb_fail(CB_EMPTY_PROMPT);
    r = cb_text_ids(h, text, bytes, flags, ownp, np);
    free(chat);
    *idsp = *ownp;
    return r;
}

/* stops [CB_STOPS_MAX] is for the options to point to. */
static int prepare_stops(struct cb_handle *h, struct prepared *p,
                         struct cb_message_options *options, struct cb_message_text *stops)
{
    const struct cb_request *request = p->request;
    int r;
    if (request->n_stop_ids > STOP_IDS_MAX)
        return cb_fail_with(CB_BAD_STOP, (uint32_t)request->n_stop_ids, STOP_IDS_MAX);
    if (request->n_stops > CB_STOPS_MAX)
        return cb_fail_with(CB_BAD_STOP, (uint32_t)request->n_stops, CB_STOPS_MAX);
    r = check_ids(request->stop_ids, request->n_stop_ids, h->n_vocab);
    for (uint32_t i = 0; !r && request->n_stops && i < p->entry.n_children; i++)
        r = cb_text_new(&p->texts[i], h, request->stops, request->n_stops, request->flags);
    if (r)
        return r;
    for (size_t i = 0; i < request->n_stops; i++)
        stops[i] = (struct cb_message_text){request->stops[i].bytes, request->stops[i].n};
    options->stop_ids = request->stop_ids;
    options->n_stop_ids = (uint32_t)request->n_stop_ids;
    options->stops = stops;
    options->n_stops = (uint32_t)request->n_stops;
    return 0;
}

static int prepare_salt(const struct cb_request *request, struct cb_message_options *options)
{
    size_t n = request->cache_salt ? strnlen(request->cache_salt, CB_SALT_MAX + 1) : 0;
    if (request->cache_salt && (n == 0 || n > CB_SALT_MAX))
        return cb_fail_at("cb_request.cache_salt is no word of 1 to 64 bytes", CB_INVALID, 0, 0);
    options->cache_salt = (struct cb_message_text){request->cache_salt, n};
    return 0;
}

static int build_options(struct prepared *p, const struct cb_message_options *options)
{
    p->option_bytes = cb_message_options_bytes(options);
    assert(p->option_bytes <= CB_OPTIONS_MAX);
    if (p->option_bytes > sizeof(p->few))
        p->options = malloc(p->option_bytes);
    if (!p->options)
        return cb_fail(CB_NO_MEMORY);
    cb_message_options_build(options, p->options);
    return 0;
}

static int prepare_options(struct cb_handle *h, struct prepared *p)
{
    struct cb_message_text stops[CB_STOPS_MAX];
    struct cb_message_options options = {0};
    struct cb_wishes wishes;
    int r = cb_wishes_init(&wishes, h, p->request);
    if (!r)
        r = prepare_salt(p->request, &options);
    if (!r)
        r = prepare_stops(h, p, &options, stops);
    if (!r) {
        options.sampling = wishes.has_sampling ? &wishes.sampling : NULL;
        options.biases = wishes.biases;
        options.n_biases = wishes.n_biases;
        options.allowed_ids = wishes.allowed_ids;
        options.n_allowed_ids = wishes.n_allowed_ids;
        options.banned_ids = wishes.banned_ids;
        options.n_banned_ids = wishes.n_banned_ids;
        r = build_options(p, &options);
    }
    cb_wishes_fini(&wishes);
    return r;
}

static int prepare_children(const struct cb_handle *h, struct prepared *p)
{
    const struct cb_request *request = p->request;
    uint32_t n = request->n ? request->n : 1;
    if (n > CB_CHILDREN_MAX || n > h->n_held)
        return cb_fail_at("cb_request.n is above 64, or above the handle's slots", CB_INVALID, 0,
                          0);
    if (request->child_idx > UINT32_MAX - n)
        return cb_fail_at("cb_request.child_idx", CB_INVALID, 0, 0);
    if ((n > 1 || request->child_idx) && !(h->features & CB_FEATURE_CHILDREN))
        return cb_fail(CB_VERSION);
    p->entry.n_children = n;
    p->entry.child_idx = request->child_idx;
    memset(p->texts, 0, n * sizeof(*p->texts));
    memset(p->records, 0, n * sizeof(*p->records));
    return 0;
}

/* What it takes to send each of them again. */
static int prepare_records(const struct cb_handle *h, struct prepared *p)
{
    if (!(p->request->flags & CB_RESUMABLE))
        return p->request->flags & CB_RESTART
                   ? cb_fail_at("CB_RESTART without CB_RESUMABLE", CB_INVALID, 0, 0)
                   : 0;
    if (!h->reconnect)
        return cb_fail_at("CB_RESUMABLE on a handle without cb_options.resume", CB_INVALID, 0, 0);
    for (uint32_t i = 0; i < p->entry.n_children; i++) {
        p->records[i] = cb_record_new(&p->entry, i, p->ids, p->options, p->option_bytes,
                                      i > 0 ? p->records[0] : NULL);
        if (!p->records[i])
            return cb_fail(CB_NO_MEMORY);
    }
    return 0;
}

static int prepare(struct cb_handle *h, const struct cb_request *request, struct prepared *p)
{
    struct cb_request_entry *e = &p->entry;
    size_t n = 0;
    int r;
    cb_message_init(e);
    e->n_children = 0; /* nothing is made for any yet */
    p->own_ids = NULL;
    p->options = p->few;
    p->option_bytes = 0;
    p->request = request;
    p->flags = cb_flags_of(h, request);
    if (request->size != sizeof(*request))
        return cb_fail_at("cb_request.size; use cb_request_init", CB_INVALID, 0, 0);
    r = check_sampling(request);
    if (!r)
        r = prepare_children(h, p);
    if (!r)
        r = cb_prompt_ids(h, request, &p->ids, &p->own_ids, &n);
    if (!r)
        r = check_length(h, n, request->max_new_tokens);
    if (!r && !p->own_ids)
        r = check_ids(p->ids, n, h->n_vocab);
    if (!r)
        r = prepare_options(h, p);
    if (!r)
        r = cb_planes_of(h, request, p->flags, &e->planes);
    if (r)
        return r;

    if (request->flags & CB_FINAL_ONLY)
        e->flags |= CB_FLAG_FINAL_ONLY;
    if (request->flags & CB_IGNORE_EOS)
        e->flags |= CB_FLAG_IGNORE_EOS;
    if (p->flags & CB_RAW_LOGPROBS)
        e->flags |= CB_FLAG_RAW_LOGPROBS;
    if (request->on_new_weights > CB_WEIGHTS_FAIL)
        return cb_fail_at("cb_request.on_new_weights", CB_INVALID, 0, 0);
    e->flags |= request->on_new_weights << CB_FLAG_ON_WEIGHTS_SHIFT;
    e->n_prompt = (uint32_t)n;
    e->opt_len = (uint32_t)p->option_bytes;
    e->temperature = request->temperature;
    e->top_p = request->top_p;
    e->top_k = (uint32_t)request->top_k;
    e->max_new_tokens = request->max_new_tokens;
    e->seed = request->seed;
    e->user = request->user;
    e->deadline_ns =
        request->deadline_ms > UINT64_MAX / 1000000u ? UINT64_MAX : request->deadline_ms * 1000000u;
    e->priority = request->priority;
    return prepare_records(h, p);
}

/* ---- sending --------------------------------------------------------------------------------- */

/* Below 2^53: a reader of JSON that keeps numbers as doubles can give it back to repeat a request. */
static uint64_t next_seed_locked(struct cb_handle *h)
{
    uint64_t z = h->seed_state += 0x9e3779b97f4a7c15u; /* splitmix64 */
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (z ^ z >> 31) >> 11;
}

/* n in a row that are free: those of that number, if they are, so that a handle whose daemon never died
 * has them as the lane has its slots. NULL: there are none. */
static struct cb_held *find_held_locked(struct cb_handle *h, uint32_t slot, uint32_t n)
{
    uint32_t n_found = 0;
    bool is_there = slot + n <= h->n_held;
    for (uint32_t i = 0; is_there && i < n; i++)
        is_there = !cb_load64(&h->held[slot + i].id, CB_RELAXED);
    if (is_there)
        return &h->held[slot];
    for (uint32_t i = 0; i < h->n_held; i++) {
        n_found = cb_load64(&h->held[i].id, CB_RELAXED) ? 0 : n_found + 1;
        if (n_found == n)
            return &h->held[i + 1 - n];
    }
    return NULL;
}

/* The first child's; the others' follow, for all have one number, and count as many wraps. */
static uint64_t new_id_locked(const struct cb_handle *h, const struct cb_held *first,
                              const struct cb_request_entry *e)
{
    uint64_t wraps = 0;
    for (uint32_t i = 0; i < e->n_children; i++) {
        uint64_t last = first[i].last_id;
        uint64_t mine = (last >> 36) + (e->gen <= CB_ID_NUMBER(last));
        wraps = mine > wraps ? mine : wraps;
    }
    return wraps << 36 | (uint64_t)e->gen << 12 | (uint64_t)(first - h->held);
}

/* Child i, which was sent. */
static void hold_locked(struct cb_handle *h, struct prepared *p, uint32_t i, struct cb_held *q,
                        uint64_t id, uint64_t now_ns)
{
    const struct cb_request *request = p->request;
    q->last_id = id;
    q->home = q->link;
    q->home->n_requests++;
    q->flags = p->flags;
    q->abandoned = q->told = q->is_cut = q->busy = q->listed = false;
    q->user = request->user;
    q->seed = p->entry.seed;
    q->n_prompt = p->entry.n_prompt;
    q->limit = p->entry.max_new_tokens == CB_NO_LIMIT ? h->n_context - q->n_prompt
                                                      : p->entry.max_new_tokens;
    q->n_told = q->n_seen = 0;
    q->start_us = q->finish_us = 0;
    q->end = CB_END_NONE;
    q->status = 0;
    q->detail[0] = q->detail[1] = 0;
    q->ids = NULL;
    q->times = NULL;
    q->n_restarts = 0;
    q->is_restart_told = true;
    q->later = NULL;
    q->record = p->records[i];
    if (q->record) {
        q->record->order = h->n_sent++;
        q->record->entry.seed = p->entry.seed;
        if (p->entry.deadline_ns)
            q->record->due_ns = p->entry.deadline_ns > UINT64_MAX - now_ns
                                    ? UINT64_MAX
                                    : now_ns + p->entry.deadline_ns;
        cb_record_sent(q->record, q->link, now_ns);
    }
    q->text = p->texts[i];
    q->group = p->group;
    q->handler = request->handler;
    q->handler_arg = request->handler_arg;
    q->next = q->prev = NULL;
    p->texts[i] = NULL; /* moved */
    p->records[i] = NULL;
    h->n_unended++;
    cb_store64(&q->id, id, CB_RELAXED);
}

/* Whether something new may be sent: 0 or a status. */
static int may_send_locked(struct cb_handle *h, int *ringp)
{
    int r;
    if (!h->is_away && cb_lane_client_closed(h->link->lane))
        *ringp |= cb_drain_locked(h); /* finds out why */
    cb_life_locked(h, false);
    if (h->is_away)
        cb_resume_locked(h, 0, ringp);
    r = cb_lost(h);
    if (!r && h->stop)
        r = CB_NOT_RUNNING;
    if (r)
        return r;
    cb_resend_locked(h, ringp);
    return h->is_away || h->away_first ? CB_BUSY : 0;
}

/* 0 with *idp, or a status. Adds CB_LANE_RING to *ringp. */
static int send_locked(struct cb_handle *h, struct prepared *p, uint64_t *idp, int *ringp)
{
    struct cb_held *first;
    uint64_t off;
    int r = may_send_locked(h, ringp);
    if (r)
        return r;
    r = cb_room_locked(h, &p->entry, p->option_bytes, &off);
    if (r) { /* what the daemon has taken in by now makes room */
        *ringp |= cb_drain_locked(h);
        r = cb_gone_locked(h) ? CB_BUSY : cb_room_locked(h, &p->entry, p->option_bytes, &off);
    }
    if (r)
        return r;
    first = find_held_locked(h, cb_lane_client_next_slot(h->link->lane, p->entry.n_children),
                             p->entry.n_children);
    if (!first) { /* they are held by requests that the lane knows nothing of */
        cb_arena_release(&h->link->arena, off);
        return CB_BUSY;
    }
    if (!(p->request->flags & CB_HAS_SEED))
        p->entry.seed = next_seed_locked(h);
    cb_lane_client_write_arena(h->link->lane, off, p->ids, (size_t)p->entry.n_prompt * 4);
    if (p->option_bytes)
        cb_lane_client_write_arena(h->link->lane, p->entry.opt_off, p->options, p->option_bytes);
    r = cb_send_locked(h, &p->entry, off, first, ringp);
    if (r == CB_LOST)
        cb_lose_locked(h, CB_LOST);
    if (r)
        return r;
    *idp = new_id_locked(h, first, &p->entry);
    uint64_t now_ns = p->records[0] ? cb_now_ns() : 0;
    for (uint32_t i = 0; i < p->entry.n_children; i++)
        hold_locked(h, p, i, &first[i], *idp + i, now_ns);
    return 0;
}

/* 0, or a status kept for cb_message; adds CB_LANE_RING to *ringp. */
static int submit_one(struct cb_handle *h, struct cb_group *group, const struct cb_request *request,
                      uint64_t *idp, int *ringp)
{
    struct prepared p;
    int r = prepare(h, request, &p);
    p.group = group;
    if (!r) {
        pthread_mutex_lock(&h->lock);
        r = send_locked(h, &p, idp, ringp);
        pthread_mutex_unlock(&h->lock);
        if (r)
            cb_fail(r);
    }
    prepared_fini(&p);
    return r;
}

int cb_group_submit(struct cb_handle *h, struct cb_group *group, const struct cb_request *request,
                    uint64_t *idp)
{
    int ring = 0, r = submit_one(h, group, request, idp, &ring);
    if (ring)
        cb_ring(h);
    return r;
}

int cb_submit(struct cb_handle *h, const struct cb_request *request, uint64_t *idp)
{
    int r = cb_enter(h), ring = 0;
    if (idp)
        *idp = 0;
    if (r || !request || !idp)
        return cb_fail(r ? r : CB_INVALID);
    r = submit_one(h, NULL, request, idp, &ring);
    if (ring)
        cb_ring(h);
    return r;
}

int cb_submit_many(struct cb_handle *h, const struct cb_request *requests, size_t n, uint64_t *ids)
{
    int r = cb_enter(h), ring = 0;
    size_t i;
    if (r || n > INT_MAX || (n && (!requests || !ids)))
        return cb_fail(r ? r : CB_INVALID);
    if (n)
        memset(ids, 0, n * sizeof(*ids));
    for (i = 0; i < n && !r; i++)
        r = submit_one(h, NULL, &requests[i], &ids[i], &ring);
    if (ring)
        cb_ring(h);
    if (r && i == 1)
        return r;
    return (int)(r ? i - 1 : i);
}
