/* Two intrusive lists and one array of candidates that is filled anew each step: a step costs what
 * is active plus the waiting requests looked at, whatever the cache's size. Nothing is remembered
 * between steps but who found no room (starved) and whether admission is shut, so there is no state
 * that could disagree with the requests themselves.
 *
 * Starved requests are dealt with at the beginning of the next plan, not at once: what ends in
 * between often makes the room, and nobody needs to be computed again. */
#include "daemon/sched/scheduler.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "daemon/sched/scheduler_state.h"

/* Prefill of a step is never cut below this, and starts from the guess until something was
 * measured. */
enum { PREFILL_TOKENS_MIN = 16, PREFILL_TOKENS_GUESS = 64, STEP_TOKENS_MULTIPLE = 16 };

/* What is left of a step's budgets while a plan is made. */
struct budget {
    uint32_t tokens, prefill_tokens, requests;
    int64_t reads;     /* cached tokens that may be read; goes below 0 on the fast path only */
    bool fast;         /* so far every sequence fits the decode fast path                    */
    bool below_margin; /* little of the cache is free: judged once a plan                    */
    uint64_t now_ns;   /* of the plan                                                        */
    struct request *without_room; /* the first that found no room */
};

int scheduler_new(struct scheduler **schedulerp, const struct scheduler_config *config,
                  struct cache *c)
{
    assert(config->max_batch_tokens > 0 && config->max_requests_per_batch > 0);
    struct scheduler *s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    s->config = *config;
    if (s->config.safety_margin < 0)
        s->config.safety_margin = config->policy->safety_margin;
    s->cache = c;
    s->n_groups = cache_n_groups(c);
    list_init(&s->active);
    list_init(&s->waiting);
    s->turn = &s->active;
    s->order = calloc(config->max_requests, sizeof *s->order);
    if (!s->order) {
        scheduler_free(s);
        return -ENOMEM;
    }
    *schedulerp = s;
    return 0;
}

struct scheduler *scheduler_free(struct scheduler *s)
{
    if (s) {
        free(s->order);
        free(s);
    }
    return NULL;
}

void scheduler_add(struct scheduler *s, struct request *r)
{
    assert(r->phase == REQUEST_WAITING);
    assert(s->n_active + s->n_waiting < s->config.max_requests);
    list_append(&s->waiting, &r->link);
    s->n_waiting++;
}

void scheduler_add_child(struct scheduler *s, struct request *parent, struct request *r)
{
    scheduler_add(s, r);
    if (cache_prefix_is_found(s->cache, parent->n_prompt - 1) || request_scores(r))
        return;
    r->parent = parent;
    list_append(&parent->children, &r->sibling);
}

/* The child no longer waits for its parent. */
static void release_child(struct request *child)
{
    child->parent = NULL;
    list_remove(&child->sibling);
}

static void release_children(struct request *r)
{
    while (!list_is_empty(&r->children))
        release_child(list_entry(r->children.next, struct request, sibling));
}

/* An active request leaves the list. */
static void deactivate(struct scheduler *s, struct request *r)
{
    if (s->turn == &r->link)
        s->turn = r->link.next;
    list_remove(&r->link);
    s->n_active--;
    s->n_starved -= r->starved_tokens != 0;
}

void scheduler_remove(struct scheduler *s, struct request *r)
{
    release_children(r);
    if (r->parent)
        release_child(r);
    if (r->phase == REQUEST_WAITING) {
        list_remove(&r->link);
        s->n_waiting--;
    } else {
        deactivate(s, r);
        s->admission_shut = false;
    }
    scheduler_drop_aside(s, r);
    if (r->end.finish == FINISH_ERROR)
        cache_forget_own(s->cache, &r->table);
    cache_clear(s->cache, &r->table);
}

void scheduler_restart(struct scheduler *s, struct request *r)
{
    deactivate(s, r);
    s->admission_shut = false;
    request_soft_reset(r, s->cache);
    list_prepend(&s->waiting, &r->link);
    s->n_waiting++;
    s->n_restarts++;
}

void scheduler_distrust(struct scheduler *s, struct request *r, uint32_t first_block)
{
    struct list *link, *after;
    cache_forget(s->cache, &r->table, first_block);
    list_for_each (link, after, &s->active) {
        struct request *other = list_entry(link, struct request, link);
        uint32_t first = cache_first_shared(&other->table, &r->table, first_block);
        if (other == r || other->end.finish != FINISH_NONE || first == other->table.n_blocks)
            continue;
        cache_forget(s->cache, &other->table, first);
        scheduler_restart(s, other);
    }
    scheduler_distrust_aside(s, r, first_block);
}

uint32_t scheduler_pick(const struct list *active, enum request_phase phase, struct request **order,
                        uint32_t n)
{
    const struct list *link;
    for (link = active->next; link != active; link = link->next) {
        struct request *r = list_entry(link, struct request, link);
        if (r->phase == phase)
            order[n++] = r;
    }
    return n;
}

/* ---- room ------------------------------------------------------------------------------------ */

/* Whether all starved requests, the oldest first, could now have what they last asked for. */
static bool starved_fit(const struct scheduler *s)
{
    struct cache_lack lack = {0};
    for (const struct list *link = s->active.next; link != &s->active; link = link->next) {
        const struct request *r = list_entry(link, struct request, link);
        if (r->starved_tokens == 0)
            continue;
        if (!cache_has_room(s->cache, &lack, &r->table, r->starved_tokens))
            return false;
    }
    return true;
}

/* Takes the blocks of starved requests away, the newest first, until the rest fit or one active
 * request is left. They wait at the end of the line, the oldest first. Says whether there were
 * any. */
static bool relieve(struct scheduler *s)
{
    struct list victims, *link, *after;
    list_init(&victims);
    while (s->n_starved > 0 && s->n_active > 1 && !starved_fit(s)) {
        for (link = s->active.prev; link != &s->active; link = link->prev)
            if (list_entry(link, struct request, link)->starved_tokens != 0)
                break;
        if (link == &s->active) {
            s->n_starved = 0; /* it was counted wrong */
            break;
        }
        struct request *victim = list_entry(link, struct request, link);
        deactivate(s, victim);
        list_prepend(&victims, link);
        if (!scheduler_put_aside(s, victim)) {
            request_soft_reset(victim, s->cache);
            s->n_soft_resets++;
        }
    }
    if (list_is_empty(&victims))
        return false;
    list_for_each (link, after, &victims) {
        list_remove(link);
        list_append(&s->waiting, link);
        s->n_waiting++;
    }
    s->admission_shut = true;
    return true;
}

/* ---- one step -------------------------------------------------------------------------------- */

static uint32_t prefill_budget(const struct scheduler *s, uint32_t n_decoding)
{
    if (s->config.step_ms_max == 0)
        return UINT32_MAX;
    if (s->ns_per_token == 0)
        return PREFILL_TOKENS_GUESS;
    double all = s->config.step_ms_max * 1e6 / s->ns_per_token;
    if (all >= UINT32_MAX)
        return UINT32_MAX;
    /* Decoding and prefill together fill whole tiles of the kernels. */
    uint32_t n =
        ((uint32_t)all + STEP_TOKENS_MULTIPLE / 2) / STEP_TOKENS_MULTIPLE * STEP_TOKENS_MULTIPLE;
    return n >= n_decoding + PREFILL_TOKENS_MIN ? n - n_decoding : PREFILL_TOKENS_MIN;
}

static struct budget budget_init(const struct scheduler *s, uint32_t n_decoding, uint64_t now_ns)
{
    struct cache_counts room;
    cache_counts(s->cache, &room);
    return (struct budget){
        .tokens = s->config.max_batch_tokens,
        .prefill_tokens = prefill_budget(s, n_decoding),
        .requests = s->config.max_requests_per_batch,
        .reads = (int64_t)cache_reads_max(s->cache),
        .fast = s->config.max_blocks_per_request > 0,
        .below_margin = room.free_share < s->config.safety_margin,
        .now_ns = now_ns,
    };
}

static bool budget_is_spent(const struct budget *left)
{
    return left->tokens == 0 || left->requests == 0 || (left->reads <= 0 && !left->fast);
}

enum answer { TAKEN, PASSED_OVER, LIKE_IT_NONE };

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
    if (r->phase != REQUEST_DECODING && o.n_tokens > left->prefill_tokens)
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

/* Notes that r found no room. */
static void note_starved(struct scheduler *s, struct budget *left, struct request *r,
                         const struct offer *o)
{
    bool waits = r->phase == REQUEST_WAITING;
    if (!left->without_room)
        left->without_room = r;
    if (!waits) {
        r->starved_tokens = o->past + o->n_tokens;
        s->n_starved++;
    }
}

static void activate(struct scheduler *s, struct request *r, enum request_phase phase,
                     uint64_t now_ns)
{
    if (r->phase == REQUEST_WAITING) {
        list_remove(&r->link);
        list_append(&s->active, &r->link);
        s->n_waiting--;
        s->n_active++;
        if (r->end.started_ns == 0)
            r->end.started_ns = now_ns;
    }
    r->phase = phase;
}

static void count_hit(struct scheduler *s, struct request *r, const struct offer *o)
{
    if (o->n_found == 0)
        return;
    s->n_hits++;
    s->n_hit_tokens += o->past;
    if (r->n_soft_resets == 0)
        r->end.n_prefix_hit = o->past;
}

static void take(struct scheduler *s, struct batch *b, struct request *r, const struct offer *o,
                 uint32_t new_block, uint64_t now_ns)
{
    count_hit(s, r, o);
    r->past = o->past;
    batch_add(b, r, o->n_tokens, new_block);
    if (!r->is_suspect)
        cache_promise(s->cache, &r->table, &r->key, r->ids, r->past, r->past + o->n_tokens);
    activate(s, r, b->entries[b->n_entries - 1].yields ? REQUEST_DECODING : REQUEST_PREFILLING,
             now_ns);
}

/* There is no turn for it in this step, but its blocks are safe, and it comes before those who
 * wait. */
static void take_blocks_only(struct scheduler *s, struct request *r, const struct offer *o,
                             uint64_t now_ns)
{
    if (cache_admit(s->cache, &r->table, o->n_found, o->past))
        return;
    count_hit(s, r, o);
    r->past = o->past;
    activate(s, r, REQUEST_PREFILLING, now_ns);
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

/* Tries to take r into the batch. LIKE_IT_NONE: r was refused for a reason that holds for every
 * waiting request behind it as well. */
static enum answer ask(struct scheduler *s, struct batch *b, struct budget *left, struct request *r)
{
    bool decodes = r->phase == REQUEST_DECODING;
    if (r->parent || contradicts_itself(r))
        return PASSED_OVER;
    if (left->below_margin && b->n_entries > 0 && !decodes)
        return LIKE_IT_NONE;
    if (left->tokens == 0 || (!decodes && left->prefill_tokens == 0))
        return LIKE_IT_NONE;
    const struct offer o = offer_to(s, left, r);
    bool fast = left->fast && o.n_tokens == 1 &&
                o.past / s->config.page_size < s->config.max_blocks_per_request;
    if (!fast && o.n_reads > left->reads) {
        if (o.n_found > 0)
            take_blocks_only(s, r, &o, left->now_ns);
        return PASSED_OVER;
    }
    uint32_t new_block = r->table.n_blocks + r->aside.n_blocks + o.n_found;
    int err = take_room(s, r, &o);
    if (err < 0)
        return ask(s, b, left, r);
    if (err)
        note_starved(s, left, r, &o);
    if (err || r->table.n_blocks < table_blocks_for(o.past + o.n_tokens, s->config.page_size))
        return PASSED_OVER;
    take(s, b, r, &o, new_block, left->now_ns);
    left->tokens -= o.n_tokens;
    left->prefill_tokens -= decodes ? 0 : o.n_tokens;
    left->reads -= o.n_reads;
    left->requests--;
    left->fast = fast;
    return TAKEN;
}

/* The first from `link` on that has blocks aside, or that has none; or the head. */
static struct list *seek_waiting(struct scheduler *s, struct list *link, bool is_aside)
{
    if (is_aside && s->n_aside == 0)
        return &s->waiting;
    while (link != &s->waiting &&
           request_is_aside(list_entry(link, struct request, link)) != is_aside)
        link = link->next;
    return link;
}

/* Asks those who wait: in turn one with blocks aside and one without, each in the order of the
 * line. */
static void admit(struct scheduler *s, struct batch *b, struct budget *left)
{
    struct list *next[2] = {seek_waiting(s, s->waiting.next, true),
                            seek_waiting(s, s->waiting.next, false)};
    for (int turn = 0; !budget_is_spent(left); turn = !turn) {
        if (next[turn] == &s->waiting)
            turn = !turn;
        struct list *link = next[turn];
        if (link == &s->waiting)
            return;
        next[turn] = seek_waiting(s, link->next, turn == 0);
        if (ask(s, b, left, list_entry(link, struct request, link)) == LIKE_IT_NONE)
            return;
    }
}

/* One pass over the candidates. The first that found no room, or NULL. */
static struct request *fill(struct scheduler *s, struct batch *b, uint64_t now_ns)
{
    uint32_t n = s->config.policy->order(&s->active, s->order), n_decoding = 0;
    s->n_starved = 0;
    for (uint32_t i = 0; i < n; i++) {
        s->order[i]->starved_tokens = 0;
        n_decoding += s->order[i]->phase == REQUEST_DECODING;
    }
    struct budget left = budget_init(s, n_decoding, now_ns);
    for (uint32_t i = 0; i < n && !budget_is_spent(&left); i++)
        ask(s, b, &left, s->order[i]);
    if (!s->admission_shut)
        admit(s, b, &left);
    return left.without_room;
}

int scheduler_plan(struct scheduler *s, struct batch *b, uint64_t now_ns, struct request **stuckp)
{
    assert(b->n_entries == 0);
    if (s->n_starved > 0)
        relieve(s);
    struct request *without_room;
    do {
        without_room = fill(s, b, now_ns);
    } while (b->n_entries == 0 && without_room && relieve(s));
    if (b->n_entries > 0)
        return 0;
    *stuckp = without_room;
    return without_room ? SCHEDULER_STUCK : SCHEDULER_NOTHING;
}

void scheduler_advance(struct scheduler *s, const struct batch_entry *entry)
{
    struct request *r = entry->r;
    r->past = entry->past + entry->n_tokens;
    if (r->n_reached > entry->past)
        s->n_recomputed += (r->n_reached < r->past ? r->n_reached : r->past) - entry->past;
    if (r->n_reached < r->past)
        r->n_reached = r->past;
    cache_slide(s->cache, &r->table, r->past);
    if (!r->is_suspect)
        cache_settle(s->cache, &r->table, &r->key, r->ids, entry->past, r->past);
}

struct request *scheduler_fork(struct scheduler *s, struct request *r, uint64_t now_ns)
{
    while (!list_is_empty(&r->children) && r->past + 1 == r->n_ids) {
        struct request *child = list_entry(r->children.next, struct request, sibling);
        release_child(child);
        if (child->end.finish != FINISH_NONE ||
            cache_fork(s->cache, &r->table, &child->table, r->past))
            continue;
        child->past = r->past;
        child->end.n_prefix_hit = r->past;
        activate(s, child, REQUEST_PREFILLING, now_ns);
        s->n_forks++;
        return child;
    }
    return NULL;
}

void scheduler_observe(struct scheduler *s, const struct batch *b, uint64_t model_ns)
{
    uint32_t n_prefill = 0;
    for (uint32_t i = 0; i < b->n_entries; i++)
        n_prefill += b->entries[i].decodes ? 0 : b->entries[i].n_tokens;
    /* A step of few tokens costs what reading the weights costs: it says nothing of prefill. */
    if (n_prefill < PREFILL_TOKENS_MIN)
        return;
    double ns = (double)model_ns / b->n_tokens;
    s->ns_per_token = s->ns_per_token == 0 ? ns : s->ns_per_token + (ns - s->ns_per_token) / 4;
}

void scheduler_counts(const struct scheduler *s, struct scheduler_counts *counts)
{
    *counts = (struct scheduler_counts){
        .n_active = s->n_active,
        .n_waiting = s->n_waiting,
        .n_soft_resets = s->n_soft_resets,
        .n_restarts = s->n_restarts,
        .n_hits = s->n_hits,
        .n_hit_tokens = s->n_hit_tokens,
        .n_forks = s->n_forks,
        .n_offloads = s->n_offloads,
        .n_restores = s->n_restores,
        .n_recomputed = s->n_recomputed,
    };
}

const struct list *scheduler_active(const struct scheduler *s)
{
    return &s->active;
}

const struct list *scheduler_waiting(const struct scheduler *s)
{
    return &s->waiting;
}
