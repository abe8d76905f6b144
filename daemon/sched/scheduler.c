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
    struct blocks *blocks;
    struct list active, waiting;
    struct request **order; /* [max_requests] */
    uint32_t n_active, n_waiting;
    uint32_t n_starved;  /* active requests with starved_tokens != 0             */
    bool admission_shut; /* after a soft reset, until an active request leaves   */
    double ns_per_token; /* of late steps that held prefill; 0: none measured    */
    uint64_t n_soft_resets;
    uint8_t *held; /* [n_blocks] scratch of scheduler_check */
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
                  struct blocks *b)
{
    assert(config->max_batch_tokens > 0 && config->max_requests_per_batch > 0);
    struct scheduler *s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    s->config = *config;
    if (s->config.safety_margin < 0)
        s->config.safety_margin = config->policy->safety_margin;
    s->blocks = b;
    list_init(&s->active);
    list_init(&s->waiting);
    s->order = calloc(config->max_requests, sizeof *s->order);
    s->held = calloc(blocks_n_total(b), sizeof *s->held);
    if (!s->order || !s->held) {
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
        free(s->held);
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

void scheduler_remove(struct scheduler *s, struct request *r)
{
    list_remove(&r->link);
    if (r->phase == REQUEST_WAITING) {
        s->n_waiting--;
        return;
    }
    s->n_active--;
    s->n_starved -= r->starved_tokens != 0;
    s->admission_shut = false;
    table_clear(&r->table, s->blocks);
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
    uint32_t n_free = blocks_n_free(s->blocks);
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
        request_soft_reset(list_entry(link, struct request, link), s->blocks);
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
    uint32_t n_blocks = blocks_n_total(s->blocks);
    return (struct budget){
        .tokens = s->config.max_batch_tokens,
        .prefill_tokens = prefill_budget(s, n_decoding),
        .requests = s->config.max_requests_per_batch,
        .reads = (int64_t)n_blocks * s->config.page_size,
        .fast = s->config.max_blocks_per_request > 0,
        .below_margin = (double)blocks_n_free(s->blocks) / n_blocks < s->config.safety_margin,
    };
}

static bool budget_is_spent(const struct budget *left)
{
    return left->tokens == 0 || left->requests == 0 || (left->reads <= 0 && !left->fast);
}

enum answer { TAKEN, PASSED_OVER, LIKE_IT_NONE };

/* Tries to take r into the batch. LIKE_IT_NONE: r was refused for a reason that holds for every
 * waiting request behind it as well. */
static enum answer ask(struct scheduler *s, struct batch *b, struct budget *left, struct request *r)
{
    bool decodes = r->phase == REQUEST_DECODING;
    if (left->below_margin && b->n_entries > 0 && !decodes)
        return LIKE_IT_NONE;
    uint32_t n = r->n_ids - r->past;
    if (n > left->tokens)
        n = left->tokens;
    if (!decodes && n > left->prefill_tokens)
        n = left->prefill_tokens;
    if (n == 0)
        return LIKE_IT_NONE;
    bool fast =
        left->fast && n == 1 && r->past / s->config.page_size < s->config.max_blocks_per_request;
    if (!fast && r->past > left->reads)
        return PASSED_OVER;
    uint32_t new_block = r->table.n_blocks;
    if (table_grow(&r->table, s->blocks, r->past + n, s->config.page_size)) {
        if (!left->without_room)
            left->without_room = r;
        if (r->phase != REQUEST_WAITING) {
            r->starved_tokens = r->past + n;
            s->n_starved++;
        }
        return PASSED_OVER;
    }
    batch_add(b, r, n, new_block);
    left->tokens -= n;
    left->prefill_tokens -= decodes ? 0 : n;
    left->reads -= r->past;
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
        .n_active = s->n_active, .n_waiting = s->n_waiting, .n_soft_resets = s->n_soft_resets};
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
            if (r->table.block_idx[i] >= blocks_n_total(s->blocks))
                return unclean(whyp, "scheduler: a table names a block that is not there");
            if (s->held[r->table.block_idx[i]]++)
                return unclean(whyp, "scheduler: a block stands in two tables");
        }
        *np += 1;
        *n_starvedp += r->starved_tokens != 0;
    }
    return 0;
}

int scheduler_check(const struct scheduler *s, bool between_steps, const char **whyp)
{
    uint32_t n_active = 0, n_waiting = 0, n_starved = 0;
    for (uint32_t i = 0; i < blocks_n_total(s->blocks); i++)
        s->held[i] = 0;
    int err = check_list(s, &s->active, false, between_steps, &n_active, &n_starved, whyp);
    if (!err)
        err = check_list(s, &s->waiting, true, between_steps, &n_waiting, &n_starved, whyp);
    if (err)
        return err;
    if (n_active != s->n_active || n_waiting != s->n_waiting || n_starved != s->n_starved)
        return unclean(whyp, "scheduler: a count is not its list's length");
    if (s->admission_shut && n_active == 0)
        return unclean(whyp, "scheduler: admission is shut and nobody is there to open it");
    return blocks_check(s->blocks, s->held, whyp);
}
