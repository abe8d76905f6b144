/* A pass asks candidates in the policy's order until the step is full. What is remembered of it is
 * who found no room (starved); all else is in the requests themselves. */
#include "daemon/sched/scheduler_state.h"

#include <assert.h>

/* Where nobody waits for a next token, a step may be longer by this part of its prefill rather than
 * leave the last few tokens of a prompt to one of their own. */
enum { TAIL_SHARE = 4 };

/* What is left of a step's budgets while a plan is made. */
struct budget {
    uint32_t tokens, prefill_tokens, requests;
    uint32_t tail_tokens; /* more prefill than that, if it ends the prompt                   */
    int64_t reads;        /* cached tokens that may be read; goes below 0 on the fast path only */
    bool fast;            /* so far every sequence fits the decode fast path                    */
    bool below_margin;    /* little of the cache is free: judged once a plan                    */
    uint64_t now_ns;      /* of the plan                                                        */
    bool ranked;          /* the policy's round                                                 */
    struct request *without_room; /* the first that found no room */
};

static struct budget budget_init(const struct scheduler *s, uint32_t n_decoding, uint64_t now_ns)
{
    bool ranked = policy_is_ranked(s->policy);
    uint32_t tokens = s->config.max_batch_tokens;
    uint32_t prefill = pace_prefill_tokens(&s->pace, s->config.step_ms_max, n_decoding);
    if (ranked && n_decoding + (uint64_t)prefill > tokens)
        prefill = n_decoding + PACE_PREFILL_TOKENS_MIN <= tokens ? tokens - n_decoding
                                                                 : PACE_PREFILL_TOKENS_MIN;
    return (struct budget){
        .tokens = tokens,
        .prefill_tokens = prefill,
        .tail_tokens = n_decoding == 0 ? prefill / TAIL_SHARE : 0,
        .ranked = ranked,
        .requests = s->config.max_requests_per_batch,
        .reads = (int64_t)cache_reads_max(s->cache),
        .fast = s->config.max_blocks_per_request > 0,
        .below_margin = cache_free_share(s->cache) < s->config.safety_margin,
        .now_ns = now_ns,
    };
}

static bool budget_is_spent(const struct budget *left)
{
    return left->tokens == 0 || left->requests == 0 || (left->reads <= 0 && !left->fast);
}

enum answer { TAKEN, PASSED_OVER, NO_ROOM, LIKE_IT_NONE };

/* What a request would be taken with. */
struct offer {
    uint32_t n_found;  /* blocks it would take over             */
    uint32_t past;     /* tokens in the cache, theirs included  */
    uint32_t n_reads;  /* of these, that the step reads         */
    uint32_t n_tokens; /* that it would compute                 */
};

static struct offer offer_to(const struct scheduler *s, const struct budget *left,
                             struct request *r)
{
    struct offer o = {.past = r->past};
    if (r->phase == REQUEST_WAITING && !request_is_aside(r) && !r->is_suspect &&
        !request_scores(r)) {
        o.n_found = cache_find(s->cache, &r->key, r->ids, r->n_ids, &r->table);
        o.past = o.n_found * s->config.page_size;
    }
    o.n_reads = cache_reads_of(s->cache, o.past);
    /* With children, one short: they begin there. */
    o.n_tokens = r->n_ids - o.past - !list_is_empty(&r->children);
    assert(o.n_tokens > 0);
    if (o.n_tokens > left->tokens)
        o.n_tokens = left->tokens;
    if (r->phase != REQUEST_DECODING && o.n_tokens > left->prefill_tokens &&
        o.n_tokens - left->prefill_tokens > left->tail_tokens)
        o.n_tokens = left->prefill_tokens;
    return o;
}

/* 0, CACHE_EXHAUSTED, or a negative errno: r is not what it was when the offer was made. */
static int take_room(struct scheduler *s, struct request *r, const struct offer *o)
{
    uint32_t n_tokens = o->past + o->n_tokens;
    if (request_is_aside(r))
        return scheduler_take_up(s, r, n_tokens);
    if (r->phase == REQUEST_WAITING)
        return cache_admit(s->cache, &r->table, o->n_found, n_tokens);
    return cache_grow(s->cache, &r->table, n_tokens);
}

/* Likewise; others may be made to give room. */
static int make_room(struct scheduler *s, const struct budget *left, struct request *r,
                     struct offer *o)
{
    int err;
    while ((err = take_room(s, r, o)) == CACHE_EXHAUSTED) {
        uint32_t n_blocks = table_blocks_for(o->past + o->n_tokens, s->config.page_size);
        if (r->phase != REQUEST_WAITING || !left->ranked ||
            !scheduler_press(s, r, n_blocks - o->n_found))
            break;
        *o = offer_to(s, left, r);
    }
    return err;
}

/* Notes that r found no room. */
static void note_starved(struct scheduler *s, struct budget *left, struct request *r,
                         const struct offer *o)
{
    bool waits = r->phase == REQUEST_WAITING;
    if (!left->without_room)
        left->without_room = r;
    s->wants_room = true;
    if (!waits) {
        r->starved_tokens = o->past + o->n_tokens;
        s->n_starved++;
    }
}

static void count_hit(struct scheduler *s, struct request *r, const struct offer *o)
{
    if (o->n_found == 0)
        return;
    s->n_hits++;
    s->n_hit_tokens += o->past;
    if (r->n_soft_resets == 0) /* there may be tokens behind the prompt that others had, too */
        r->end.n_prefix_hit = o->past < r->n_prompt ? o->past : r->n_prompt;
}

/* Who had no past has one of the present weights, be it others' work. */
static void begin_at(const struct scheduler *s, struct request *r, const struct offer *o)
{
    if (r->past == 0)
        r->kv_epoch = s->epoch;
    r->past = o->past;
}

static void take(struct scheduler *s, struct batch *b, struct request *r, const struct offer *o,
                 uint32_t new_block, uint64_t now_ns)
{
    count_hit(s, r, o);
    begin_at(s, r, o);
    policy_charge(r, o->n_tokens);
    batch_add(b, r, o->n_tokens, new_block);
    if (scheduler_shares(s, r))
        cache_promise(s->cache, &r->table, &r->key, r->ids, r->past, r->past + o->n_tokens);
    scheduler_activate(
        s, r, b->entries[b->n_entries - 1].yields ? REQUEST_DECODING : REQUEST_PREFILLING, now_ns);
}

/* There is no turn for it in this step, but its blocks are safe, and it comes before those who
 * wait. */
static void take_blocks_only(struct scheduler *s, struct request *r, const struct offer *o,
                             uint64_t now_ns)
{
    if (cache_admit(s->cache, &r->table, o->n_found, o->past))
        return;
    count_hit(s, r, o);
    begin_at(s, r, o);
    scheduler_activate(s, r, REQUEST_PREFILLING, now_ns);
}

/* What would do harm if it ran; the audit is to find it. */
static bool contradicts_itself(const struct request *r)
{
    switch (r->phase) {
    case REQUEST_WAITING:
        return (r->past != 0 && !request_is_aside(r)) || r->past >= r->n_ids ||
               r->table.n_blocks != 0;
    case REQUEST_PREFILLING:
        return r->past >= r->n_ids;
    default:
        return r->past + 1 != r->n_ids;
    }
}

/* Whether prompts are held off that this one may not step over: little is free, or somebody gave
 * way and is to run before them. Who may press is not held off by what others hold; but who gave way
 * itself waits until somebody leaves. Else two could make room for each other in turn for ever, and
 * none would get further than where it stood. */
static bool is_held_off(const struct scheduler *s, const struct batch *b, const struct budget *left,
                        const struct request *r)
{
    bool waits = r->phase == REQUEST_WAITING;
    bool is_shut = waits && s->admission_shut;
    if (!(left->below_margin && b->n_entries > 0) && !is_shut)
        return false;
    return (is_shut && r->n_reached > 0) || !left->ranked || !policy_may_press(s->policy, r);
}

/* Tries to take r into the batch. LIKE_IT_NONE: r was refused for a reason that holds for every
 * waiting request behind it as well. */
static enum answer ask(struct scheduler *s, struct batch *b, struct budget *left, struct request *r)
{
    bool decodes = r->phase == REQUEST_DECODING;
    if (r->parent || request_is_paused(r) || contradicts_itself(r))
        return PASSED_OVER;
    if (!decodes && is_held_off(s, b, left, r)) {
        s->wants_room |= left->below_margin;
        return LIKE_IT_NONE;
    }
    if (left->tokens == 0 || (!decodes && left->prefill_tokens == 0))
        return LIKE_IT_NONE;
    struct offer o = offer_to(s, left, r);
    bool fast = left->fast && o.n_tokens == 1 &&
                o.past / s->config.page_size < s->config.max_blocks_per_request;
    if (!fast && o.n_reads > left->reads) {
        if (o.n_found > 0)
            take_blocks_only(s, r, &o, left->now_ns);
        return PASSED_OVER;
    }
    uint32_t n_blocks = r->table.n_blocks + r->aside.n_blocks;
    int err = make_room(s, left, r, &o);
    if (err < 0)
        return ask(s, b, left, r);
    if (err) {
        note_starved(s, left, r, &o);
        return NO_ROOM;
    }
    if (r->table.n_blocks < table_blocks_for(o.past + o.n_tokens, s->config.page_size))
        return PASSED_OVER;
    take(s, b, r, &o, n_blocks + o.n_found, left->now_ns);
    left->tokens -= o.n_tokens;
    if (!decodes)
        left->prefill_tokens -=
            o.n_tokens < left->prefill_tokens ? o.n_tokens : left->prefill_tokens;
    left->reads -= o.n_reads;
    left->requests--;
    left->fast = fast;
    return TAKEN;
}

/* Whether one that waits and found no room is passed over by those behind it. By rank it is not;
 * and where not one block is left nobody who waits can be admitted, for each needs one of its own. */
static bool is_passed_over(const struct scheduler *s, const struct budget *left)
{
    struct cache_counts room;
    if (left->ranked || policy_asks_all(s->policy))
        return !left->ranked;
    cache_counts(s->cache, &room);
    return room.n_unheld > 0;
}

struct request *scheduler_fill(struct scheduler *s, struct batch *b, uint64_t now_ns)
{
    uint32_t n_decoding = 0, n_able = 0;
    struct request *r;
    policy_begin(s->policy, &s->active, s->n_aside > 0, now_ns);
    s->n_starved = 0;
    s->wants_room = false;
    for (const struct list *link = s->active.next; link != &s->active; link = link->next) {
        r = list_entry(link, struct request, link);
        bool is_able = !request_is_paused(r);
        r->starved_tokens = 0;
        n_able += is_able;
        n_decoding += is_able && r->phase == REQUEST_DECODING;
    }
    if (n_able == 0)
        s->admission_shut = false; /* who is paused might never open it */
    struct budget left = budget_init(s, n_decoding, now_ns);
    if (s->admission_shut && !left.ranked)
        policy_skip_waiting(s->policy);
    while (!budget_is_spent(&left) && (r = policy_next(s->policy)) != NULL) {
        bool waits = r->phase == REQUEST_WAITING;
        enum answer answer = ask(s, b, &left, r);
        if (waits && (answer == LIKE_IT_NONE || (answer == NO_ROOM && !is_passed_over(s, &left))))
            policy_skip_waiting(s->policy);
    }
    return left.without_room;
}
