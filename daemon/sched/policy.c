/* What all policies have in common: queues, and the merging of active and waiting requests by rank.
 * Active ones are laid out by counting how many there are of each rank and phase, which costs what
 * there are; of those who wait only the heads of queues are looked at, however many there are. */
#include "daemon/sched/policy.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/sched/policy_parts.h"

int policy_new(struct policy **policyp, enum scheduler_kind kind, uint32_t max_requests,
               uint32_t ageing_ms)
{
    uint32_t most_ranks = max_requests > POLICY_LEVELS ? max_requests : POLICY_LEVELS;
    struct policy *p = calloc(1, sizeof *p);
    if (!p)
        return -ENOMEM;
    p->kind = kind;
    p->ageing_ns = (uint64_t)ageing_ms * 1000000u;
    queue_clear(&p->line);
    p->order = calloc(max_requests, sizeof(struct request *));
    p->ranks = calloc(max_requests, sizeof *p->ranks);
    p->firsts = calloc(2 * (size_t)most_ranks + 1, sizeof *p->firsts);
    bool complete = p->order && p->ranks && p->firsts;
    if (kind == SCHEDULER_PRIORITY) {
        p->levels = calloc(POLICY_LEVELS, sizeof *p->levels);
        for (uint32_t i = 0; i < POLICY_LEVELS && p->levels; i++)
            queue_clear(&p->levels[i]);
        complete = complete && p->levels;
        p->ranking = &policy_priority;
    } else if (kind == SCHEDULER_FAIR || kind == SCHEDULER_AUTO) {
        complete = shares_new(&p->shares, max_requests) == 0 && complete;
        p->ranking = kind == SCHEDULER_FAIR ? &policy_fair : NULL;
    }
    if (!complete) {
        policy_free(p);
        return -ENOMEM;
    }
    *policyp = p;
    return 0;
}

struct policy *policy_free(struct policy *p)
{
    if (p) {
        free(p->order);
        free(p->ranks);
        free(p->firsts);
        free(p->levels);
        shares_free(p->shares);
        free(p);
    }
    return NULL;
}

double policy_safety_margin(enum scheduler_kind kind)
{
    /* The margin keeps room for those who decode to grow; prefill_first has none to keep. */
    return kind == SCHEDULER_PREFILL_FIRST ? 0.0 : 0.15;
}

void policy_set_weights(struct policy *p, const struct share_weights *weights)
{
    if (p->shares)
        shares_set_weights(p->shares, weights);
}

/* ---- who is there ---------------------------------------------------------------------------- */

static struct queue *queue_of(struct policy *p, const struct request *r)
{
    return r->share ? &r->share->queue : p->levels ? &p->levels[r->priority] : &p->line;
}

/* Somebody waits there, or no more. */
static void note_level(struct policy *p, uint8_t priority)
{
    uint64_t bit = UINT64_C(1) << priority % 64;
    if (p->levels && p->levels[priority].n > 0)
        p->level_bits[priority / 64] |= bit;
    else
        p->level_bits[priority / 64] &= ~bit;
}

/* Into its queue's sums, unless it is paused: then nobody waits for it. */
static void count_in(struct queue *q, struct request *r)
{
    r->is_counted = !request_is_paused(r);
    if (!r->is_counted)
        return;
    q->n_able++;
    q->n_tokens += r->n_ids;
    q->n_limit += r->n_prompt + r->max_new_tokens - r->n_ids;
}

static void count_out(struct queue *q, const struct request *r)
{
    if (!r->is_counted)
        return;
    q->n_able--;
    q->n_tokens -= r->n_ids;
    q->n_limit -= r->n_prompt + r->max_new_tokens - r->n_ids;
}

/* In front of the link `before`. */
static void enqueue(struct policy *p, struct request *r, struct list *before)
{
    struct queue *q = queue_of(p, r);
    list_append(before, &r->queue_link);
    q->n++;
    note_level(p, r->priority);
    count_in(q, r);
}

void policy_enter(struct policy *p, struct request *r)
{
    if (p->shares)
        r->share = shares_enter(p->shares, r->uid);
    enqueue(p, r, &queue_of(p, r)->requests);
}

void policy_leave(struct policy *p, struct request *r)
{
    if (r->share)
        shares_leave(p->shares, r->share);
    r->share = NULL;
}

void policy_unqueue(struct policy *p, struct request *r)
{
    struct queue *q = queue_of(p, r);
    if (list_is_empty(&r->queue_link))
        return;
    if (q->cursor == &r->queue_link)
        q->cursor = r->queue_link.next;
    list_remove(&r->queue_link);
    q->n--;
    note_level(p, r->priority);
    count_out(q, r);
    if (q->n == 0 && r->share)
        shares_note_empty(p->shares, r->share);
}

void policy_note_pause(struct policy *p, struct request *r)
{
    struct queue *q = queue_of(p, r);
    if (list_is_empty(&r->queue_link))
        return;
    count_out(q, r);
    count_in(q, r);
}

void policy_queue_first(struct policy *p, struct request *r)
{
    enqueue(p, r, queue_of(p, r)->requests.next);
}

void policy_queue_again(struct policy *p, struct request *r)
{
    struct list *head = &queue_of(p, r)->requests, *at = head;
    if (p->ranking) /* it has waited before, so it is among the first */
        for (at = head->next; at != head; at = at->next)
            if (policy_queued(at)->end.submitted_ns > r->end.submitted_ns)
                break;
    enqueue(p, r, at);
    /* In this round it may come once more, as one that waits; and be admitted: then it must not
     * come a third time, as one that was active when the round began. */
    for (uint32_t i = p->next; i < p->n_order; i++)
        if (p->order[i] == r)
            p->order[i] = NULL;
}

void policy_rebuild(struct policy *p, const struct list *waiting, const struct list *active)
{
    const struct list *const heads[] = {waiting, active};
    queue_clear(&p->line);
    memset(p->level_bits, 0, sizeof p->level_bits);
    for (uint32_t i = 0; p->levels && i < POLICY_LEVELS; i++)
        queue_clear(&p->levels[i]);
    if (p->shares)
        shares_forget_requests(p->shares);
    for (int i = 0; i < 2; i++)
        for (const struct list *link = heads[i]->next; link != heads[i]; link = link->next) {
            struct request *r = list_entry(link, struct request, link);
            list_init(&r->queue_link);
            if (p->shares)
                r->share = shares_enter(p->shares, r->uid);
            if (i == 0)
                enqueue(p, r, &queue_of(p, r)->requests);
        }
}

void policy_charge(struct request *r, uint32_t n_tokens)
{
    uint32_t begin = r->past > r->n_reached ? r->past : r->n_reached, end = r->past + n_tokens;
    if (end <= begin)
        return;
    uint32_t n_prompt = begin >= r->n_prompt ? 0 : (end < r->n_prompt ? end : r->n_prompt) - begin;
    if (r->share)
        share_charge(r->share, n_prompt, end - begin - n_prompt);
}

/* ---- one step -------------------------------------------------------------------------------- */

static uint32_t class_of(const struct policy *p, const struct request *r)
{
    bool second = (r->phase == REQUEST_PREFILLING) == (p->kind != SCHEDULER_PREFILL_FIRST);
    return 2 * (p->ranking ? p->ranking->rank_of_active(r) : 0) + second;
}

/* The active ones by rank, of one rank by phase, of one phase by age. */
static void lay_out(struct policy *p, const struct list *active, uint32_t n_ranks)
{
    const struct list *link;
    uint32_t n_classes = 2 * n_ranks, n = 0;
    memset(p->firsts, 0, (n_classes + 1) * sizeof *p->firsts);
    for (link = active->next; link != active; link = link->next)
        p->firsts[class_of(p, list_entry(link, struct request, link)) + 1]++;
    for (uint32_t i = 0; i < n_classes; i++)
        p->firsts[i + 1] += p->firsts[i];
    for (link = active->next; link != active; link = link->next) {
        struct request *r = list_entry(link, struct request, link);
        uint32_t class = class_of(p, r);
        p->order[p->firsts[class]] = r;
        p->ranks[p->firsts[class]++] = class / 2;
        n++;
    }
    p->n_order = n;
}

/* By order of arrival those with blocks aside and the others take turns: the first from `link` on
 * of the one kind or the other, or the queue's head. */
static struct list *seek(const struct policy *p, struct list *link, bool is_aside)
{
    struct list *head = &p->only->requests;
    if (is_aside && !p->any_aside)
        return head;
    while (link != head && request_is_aside(policy_queued(link)) != is_aside)
        link = link->next;
    return link;
}

/* The queue where there is no rank; NULL: nobody is there. */
static struct queue *only_queue(struct policy *p)
{
    if (!p->shares)
        return &p->line;
    const struct list *all = shares_all(p->shares);
    return all->next == all ? NULL : &list_entry(all->next, struct share, link)->queue;
}

void policy_begin(struct policy *p, const struct list *active, bool any_aside, uint64_t now_ns)
{
    uint32_t n_ranks = 1;
    p->now_ns = now_ns;
    p->next = 0;
    p->skips_waiting = false;
    if (p->kind == SCHEDULER_AUTO)
        p->ranking = shares_n(p->shares) > 1 ? &policy_fair : NULL;
    if (p->ranking) {
        n_ranks = p->ranking->begin(p, active);
    } else {
        p->any_aside = any_aside;
        p->asides_turn = true;
        p->only = only_queue(p);
        for (int aside = 0; aside < 2 && p->only; aside++)
            p->cursors[aside] = seek(p, p->only->requests.next, aside);
    }
    lay_out(p, active, n_ranks);
}

static struct request *next_in_line(struct policy *p)
{
    if (!p->only)
        return NULL;
    if (p->cursors[p->asides_turn] == &p->only->requests)
        p->asides_turn = !p->asides_turn;
    struct list *link = p->cursors[p->asides_turn];
    if (link == &p->only->requests)
        return NULL;
    p->cursors[p->asides_turn] = seek(p, link->next, p->asides_turn);
    p->asides_turn = !p->asides_turn;
    return policy_queued(link);
}

struct request *policy_next(struct policy *p)
{
    struct queue *q = NULL;
    uint32_t rank = 0;
    while (p->next < p->n_order && !p->order[p->next])
        p->next++; /* it gave way in this round */
    if (p->ranking && !p->skips_waiting)
        q = p->ranking->pick(p, &rank);
    if (p->next < p->n_order && (!q || p->ranks[p->next] <= rank))
        return p->order[p->next++];
    if (p->skips_waiting)
        return NULL;
    if (!p->ranking)
        return next_in_line(p);
    if (!q)
        return NULL;
    struct request *r = policy_queued(q->cursor);
    q->cursor = q->cursor->next;
    return r;
}

void policy_skip_waiting(struct policy *p)
{
    p->skips_waiting = true;
}

bool policy_is_ranked(const struct policy *p)
{
    return p->ranking != NULL;
}

bool policy_asks_all(const struct policy *p)
{
    return p->kind == SCHEDULER_FIFO || p->kind == SCHEDULER_PREFILL_FIRST;
}

bool policy_may_press(const struct policy *p, const struct request *r)
{
    return p->ranking && p->ranking->may_press(p, r);
}

struct request *policy_pressed_by(struct policy *p, const struct list *active,
                                  const struct request *r, uint32_t n_blocks, uint32_t *n_blocksp)
{
    *n_blocksp = 0;
    return p->ranking ? p->ranking->pressed_by(p, active, r, n_blocks, n_blocksp) : NULL;
}

struct request *policy_loser(struct policy *p, const struct list *active)
{
    if (p->ranking)
        return p->ranking->loser(p, active);
    for (const struct list *link = active->prev; link != active; link = link->prev) {
        struct request *r = list_entry(link, struct request, link);
        if (r->starved_tokens != 0)
            return r;
    }
    return NULL;
}

/* ---- watching -------------------------------------------------------------------------------- */

void policy_ahead_of_new(const struct policy *p, uint32_t uid, uint8_t priority, uint32_t n_tokens,
                         uint64_t now_ns, struct policy_ahead *ahead)
{
    struct policy at = *p;
    *ahead = (struct policy_ahead){0};
    at.now_ns = now_ns;
    if (p->shares)
        policy_fair.ahead_of_new(&at, uid, priority, n_tokens, ahead);
    else if (p->levels)
        policy_priority.ahead_of_new(&at, uid, priority, n_tokens, ahead);
    else
        policy_count_queue(ahead, &p->line);
}

void policy_ahead_of(const struct policy *p, const struct request *r, uint64_t now_ns,
                     struct policy_ahead *ahead)
{
    struct policy at = *p;
    *ahead = (struct policy_ahead){0};
    at.now_ns = now_ns;
    if (p->shares)
        policy_fair.ahead_of(&at, r, ahead);
    else if (p->levels)
        policy_priority.ahead_of(&at, r, ahead);
    else
        for (const struct list *link = p->line.requests.next; link != &r->queue_link;
             link = link->next)
            policy_count_ahead(ahead, policy_queued(link));
}

const char *policy_name(const struct policy *p)
{
    return p->ranking                           ? p->ranking->name
           : p->kind == SCHEDULER_PREFILL_FIRST ? "prefill_first"
                                                : "fifo";
}

/* Audits one queue; adds what it holds. */
static bool queue_is_clean(const struct queue *q, uint32_t *np)
{
    uint64_t n_tokens = 0;
    uint32_t n = 0, n_able = 0;
    for (const struct list *link = q->requests.next; link != &q->requests; link = link->next) {
        const struct request *r = policy_queued(link);
        if (link->next->prev != link || r->phase != REQUEST_WAITING || n > q->n)
            return false;
        n++;
        n_able += r->is_counted;
        n_tokens += r->is_counted ? r->n_ids : 0;
    }
    *np += n;
    return n == q->n && n_able == q->n_able && n_tokens == q->n_tokens;
}

int policy_check(const struct policy *p, uint32_t n_waiting, const char **whyp)
{
    uint32_t n = 0;
    bool clean = queue_is_clean(&p->line, &n);
    for (uint32_t i = 0; p->levels && i < POLICY_LEVELS; i++)
        clean = clean && queue_is_clean(&p->levels[i], &n);
    if (p->shares)
        for (const struct list *all = shares_all(p->shares), *link = all->next; link != all;
             link = link->next)
            clean = clean && queue_is_clean(&list_entry(link, const struct share, link)->queue, &n);
    if (!clean || n != n_waiting) {
        *whyp = "policy: a queue is not what waits in it";
        return -EUCLEAN;
    }
    return 0;
}
