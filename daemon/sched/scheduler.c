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

/* Prefill of a step is never cut below this, and starts from the guess until something was
 * measured. */
enum { PREFILL_TOKENS_MIN = 16, PREFILL_TOKENS_GUESS = 64, STEP_TOKENS_MULTIPLE = 16 };

struct scheduler {
    struct scheduler_config config;
    struct cache *cache;
    struct list active, waiting;
    struct request **order; /* [max_requests] */
    uint32_t n_active, n_waiting;
    uint32_t n_starved;  /* active requests with starved_tokens != 0             */
    bool admission_shut; /* after a soft reset, until an active request leaves   */
    double ns_per_token; /* of late steps that held prefill; 0: none measured    */
    uint64_t n_soft_resets, n_restarts, n_hits, n_hit_tokens;
    uint32_t n_blocks;
    uint32_t *holders; /* [n_blocks] scratch of scheduler_check and scheduler_distrust */
};

/* What is left of a step's budgets while a plan is made. */
struct budget {
    uint32_t tokens, prefill_tokens, requests;
    int64_t reads;     /* cached tokens that may be read; goes below 0 on the fast path only */
    bool fast;         /* so far every sequence fits the decode fast path                    */
    bool below_margin; /* little of the cache is free: judged once a plan                    */
    struct request *without_room; /* the first that found no room */
};

int scheduler_new(struct scheduler **schedulerp, const struct scheduler_config *config,
                  struct cache *c)
{
    struct cache_counts room;
    assert(config->max_batch_tokens > 0 && config->max_requests_per_batch > 0);
    struct scheduler *s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    s->config = *config;
    if (s->config.safety_margin < 0)
        s->config.safety_margin = config->policy->safety_margin;
    s->cache = c;
    cache_counts(c, &room);
    s->n_blocks = room.n_blocks;
    list_init(&s->active);
    list_init(&s->waiting);
    s->order = calloc(config->max_requests, sizeof *s->order);
    s->holders = calloc(s->n_blocks, sizeof *s->holders);
    if (!s->order || !s->holders) {
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
        free(s->holders);
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

/* An active request leaves the list; whoever waits for that to be admitted may be. */
static void deactivate(struct scheduler *s, struct request *r)
{
    list_remove(&r->link);
    s->n_active--;
    s->n_starved -= r->starved_tokens != 0;
    s->admission_shut = false;
}

void scheduler_remove(struct scheduler *s, struct request *r)
{
    if (r->phase == REQUEST_WAITING) {
        list_remove(&r->link);
        s->n_waiting--;
        return;
    }
    deactivate(s, r);
    if (r->end.finish == FINISH_ERROR)
        cache_forget(s->cache, &r->table, 0);
    cache_clear(s->cache, &r->table);
}

void scheduler_restart(struct scheduler *s, struct request *r)
{
    deactivate(s, r);
    request_soft_reset(r, s->cache);
    list_prepend(&s->waiting, &r->link);
    s->n_waiting++;
    s->n_restarts++;
}

/* The first of its blocks that is marked, or n_blocks. */
static uint32_t first_marked(const struct scheduler *s, const struct table *t)
{
    uint32_t i = 0;
    while (i < t->n_blocks && !s->holders[t->block_idx[i]])
        i++;
    return i;
}

void scheduler_distrust(struct scheduler *s, struct request *r, uint32_t first_block)
{
    const struct table *t = &r->table;
    struct list *link, *after;
    for (uint32_t i = 0; i < s->n_blocks; i++)
        s->holders[i] = 0;
    for (uint32_t i = first_block; i < t->n_blocks; i++)
        s->holders[t->block_idx[i]] = 1;
    cache_forget(s->cache, t, first_block);
    list_for_each (link, after, &s->active) {
        struct request *other = list_entry(link, struct request, link);
        uint32_t first = first_marked(s, &other->table);
        if (other == r || other->end.finish != FINISH_NONE || first == other->table.n_blocks)
            continue;
        cache_forget(s->cache, &other->table, first);
        scheduler_restart(s, other);
    }
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
    struct cache_counts room;
    cache_counts(s->cache, &room);
    uint32_t n_free = room.n_unheld;
    for (const struct list *link = s->active.next; link != &s->active; link = link->next) {
        const struct request *r = list_entry(link, struct request, link);
        if (r->starved_tokens == 0)
            continue;
        uint32_t n = table_blocks_for(r->starved_tokens, s->config.page_size) - r->table.n_blocks;
        if (n > n_free)
            return false;
        n_free -= n;
    }
    return true;
}

/* Soft resets starved requests, the newest first, until the rest fit or one active request is left.
 * They wait at the end of the line, the oldest first. Says whether anything was reset. */
static bool relieve(struct scheduler *s)
{
    struct list victims, *link, *after;
    list_init(&victims);
    while (s->n_starved > 0 && s->n_active > 1 && !starved_fit(s)) {
        for (link = s->active.prev; link != &s->active; link = link->prev)
            if (list_entry(link, struct request, link)->starved_tokens != 0)
                break;
        assert(link != &s->active);
        list_remove(link);
        list_prepend(&victims, link);
        request_soft_reset(list_entry(link, struct request, link), s->cache);
        s->n_starved--;
        s->n_active--;
        s->n_soft_resets++;
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

static struct budget budget_init(const struct scheduler *s, uint32_t n_decoding)
{
    struct cache_counts room;
    cache_counts(s->cache, &room);
    return (struct budget){
        .tokens = s->config.max_batch_tokens,
        .prefill_tokens = prefill_budget(s, n_decoding),
        .requests = s->config.max_requests_per_batch,
        .reads = (int64_t)room.n_blocks * s->config.page_size,
        .fast = s->config.max_blocks_per_request > 0,
        .below_margin = (double)room.n_unheld / room.n_blocks < s->config.safety_margin,
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
    uint32_t n_tokens; /* that it would compute                 */
};

static struct offer offer_to(const struct scheduler *s, const struct budget *left,
                             struct request *r)
{
    struct offer o = {.past = r->past};
    if (r->phase == REQUEST_WAITING && !r->is_suspect) {
        o.n_found = cache_find(s->cache, &r->key, r->ids, r->n_ids, &r->table);
        o.past = o.n_found * s->config.page_size;
    }
    o.n_tokens = r->n_ids - o.past;
    if (o.n_tokens > left->tokens)
        o.n_tokens = left->tokens;
    if (r->phase != REQUEST_DECODING && o.n_tokens > left->prefill_tokens)
        o.n_tokens = left->prefill_tokens;
    return o;
}

/* Takes the blocks: whether there were enough. */
static bool make_room(struct scheduler *s, struct budget *left, struct request *r,
                      const struct offer *o)
{
    uint32_t n_tokens = o->past + o->n_tokens;
    bool waits = r->phase == REQUEST_WAITING;
    if ((waits ? cache_admit(s->cache, &r->table, o->n_found, n_tokens)
               : cache_grow(s->cache, &r->table, n_tokens)) == 0)
        return true;
    if (!left->without_room)
        left->without_room = r;
    if (!waits) {
        r->starved_tokens = n_tokens;
        s->n_starved++;
    }
    return false;
}

static void take(struct scheduler *s, struct batch *b, struct request *r, const struct offer *o,
                 uint32_t new_block)
{
    if (o->n_found > 0) {
        s->n_hits++;
        s->n_hit_tokens += o->past;
        if (r->n_soft_resets == 0)
            r->end.n_prefix_hit = o->past;
    }
    r->past = o->past;
    batch_add(b, r, o->n_tokens, new_block);
    if (!r->is_suspect)
        cache_promise(s->cache, &r->table, &r->key, r->ids, r->past, r->past + o->n_tokens);
}

/* Tries to take r into the batch. LIKE_IT_NONE: r was refused for a reason that holds for every
 * waiting request behind it as well. */
static enum answer ask(struct scheduler *s, struct batch *b, struct budget *left, struct request *r)
{
    bool decodes = r->phase == REQUEST_DECODING;
    if (left->below_margin && b->n_entries > 0 && !decodes)
        return LIKE_IT_NONE;
    if (left->tokens == 0 || (!decodes && left->prefill_tokens == 0))
        return LIKE_IT_NONE;
    const struct offer o = offer_to(s, left, r);
    bool fast = left->fast && o.n_tokens == 1 &&
                o.past / s->config.page_size < s->config.max_blocks_per_request;
    if (!fast && o.past > left->reads)
        return PASSED_OVER;
    uint32_t new_block = r->table.n_blocks + o.n_found;
    if (!make_room(s, left, r, &o))
        return PASSED_OVER;
    take(s, b, r, &o, new_block);
    left->tokens -= o.n_tokens;
    left->prefill_tokens -= decodes ? 0 : o.n_tokens;
    left->reads -= o.past;
    left->requests--;
    left->fast = fast;
    return TAKEN;
}

static void activate(struct scheduler *s, struct request *r, uint64_t now_ns)
{
    list_remove(&r->link);
    list_append(&s->active, &r->link);
    s->n_waiting--;
    s->n_active++;
    if (r->end.started_ns == 0)
        r->end.started_ns = now_ns;
}

/* Moves the phases of what was taken; waiting ones become active in the order in which they
 * were. */
static void commit(struct scheduler *s, const struct batch *b, uint64_t now_ns)
{
    for (uint32_t i = 0; i < b->n_entries; i++) {
        struct request *r = b->entries[i].r;
        if (r->phase == REQUEST_WAITING)
            activate(s, r, now_ns);
        r->phase = b->entries[i].yields ? REQUEST_DECODING : REQUEST_PREFILLING;
    }
}

/* One pass over the candidates. The first that found no room, or NULL. */
static struct request *fill(struct scheduler *s, struct batch *b, uint64_t now_ns)
{
    uint32_t n = s->config.policy->order(&s->active, s->order), n_decoding = 0;
    assert(n == s->n_active);
    s->n_starved = 0;
    for (uint32_t i = 0; i < n; i++) {
        s->order[i]->starved_tokens = 0;
        n_decoding += s->order[i]->phase == REQUEST_DECODING;
    }
    struct budget left = budget_init(s, n_decoding);
    for (uint32_t i = 0; i < n && !budget_is_spent(&left); i++)
        ask(s, b, &left, s->order[i]);
    if (!s->admission_shut) {
        const struct list *link = s->waiting.next;
        for (; link != &s->waiting && !budget_is_spent(&left); link = link->next)
            if (ask(s, b, &left, list_entry(link, struct request, link)) == LIKE_IT_NONE)
                break;
    }
    commit(s, b, now_ns);
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
    if (!r->is_suspect)
        cache_settle(s->cache, &r->table, &r->key, r->ids, entry->past, r->past);
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

/* ---- audit ----------------------------------------------------------------------------------- */

static int unclean(const char **whyp, const char *why)
{
    *whyp = why;
    return -EUCLEAN;
}

/* Audits the requests of one list and counts the holders of blocks. */
static int check_list(const struct scheduler *s, const struct list *head, bool waiting,
                      bool between_steps, uint32_t *np, uint32_t *n_starvedp, const char **whyp)
{
    for (const struct list *link = head->next; link != head; link = link->next) {
        if (link->next->prev != link || link->prev->next != link)
            return unclean(whyp, "scheduler: a list is broken");
        const struct request *r = list_entry(link, struct request, link);
        if ((r->phase == REQUEST_WAITING) != waiting)
            return unclean(whyp, "scheduler: a request is in the wrong list");
        int err = request_check(r, s->config.page_size, between_steps, whyp);
        if (err)
            return err;
        for (uint32_t i = 0; i < r->table.n_blocks; i++) {
            if (r->table.block_idx[i] >= s->n_blocks)
                return unclean(whyp, "scheduler: a table names a block that is not there");
            s->holders[r->table.block_idx[i]]++;
        }
        err = cache_check_table(s->cache, &r->table, &r->key, r->ids,
                                between_steps && r->end.finish == FINISH_NONE ? r->past : r->n_ids,
                                whyp);
        if (err)
            return err;
        *np += 1;
        *n_starvedp += r->starved_tokens != 0;
    }
    return 0;
}

int scheduler_check(const struct scheduler *s, bool between_steps, const char **whyp)
{
    uint32_t n_active = 0, n_waiting = 0, n_starved = 0;
    for (uint32_t i = 0; i < s->n_blocks; i++)
        s->holders[i] = 0;
    int err = check_list(s, &s->active, false, between_steps, &n_active, &n_starved, whyp);
    if (!err)
        err = check_list(s, &s->waiting, true, between_steps, &n_waiting, &n_starved, whyp);
    if (err)
        return err;
    if (n_active != s->n_active || n_waiting != s->n_waiting || n_starved != s->n_starved)
        return unclean(whyp, "scheduler: a count is not its list's length");
    if (s->admission_shut && n_active == 0)
        return unclean(whyp, "scheduler: admission is shut and nobody is there to open it");
    return cache_check(s->cache, s->holders, whyp);
}
