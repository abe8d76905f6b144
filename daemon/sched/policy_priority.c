/* A queue for each priority, in order of arrival. Within one nobody overtakes, however they age, so
 * the best of all who wait is at the head of some queue, and a round looks at heads only. */
#include "daemon/sched/policy_parts.h"

static uint32_t level_of(const struct policy *p, const struct request *r)
{
    uint64_t waited_ns = p->now_ns > r->end.submitted_ns ? p->now_ns - r->end.submitted_ns : 0;
    uint64_t risen = p->ageing_ns ? waited_ns / p->ageing_ns : 0;
    return risen >= POLICY_LEVELS - r->priority ? POLICY_LEVELS - 1 : r->priority + (uint32_t)risen;
}

static struct queue *queue_of(struct policy *p, const struct request *r)
{
    return &p->levels[r->priority];
}

static uint32_t begin(struct policy *p, const struct list *active)
{
    (void)active;
    for (uint32_t i = policy_next_level(p, 0); i < POLICY_LEVELS; i = policy_next_level(p, i + 1))
        p->levels[i].cursor = p->levels[i].requests.next;
    return POLICY_LEVELS;
}

static uint32_t rank_of_active(const struct request *r)
{
    return POLICY_LEVELS - 1 - r->level;
}

static struct queue *pick(struct policy *p, uint32_t *rankp)
{
    struct queue *best = NULL;
    uint32_t best_level = 0;
    for (uint32_t i = policy_next_level(p, 0); i < POLICY_LEVELS; i = policy_next_level(p, i + 1)) {
        struct queue *q = &p->levels[i];
        if (q->cursor == &q->requests)
            continue;
        struct request *r = policy_queued(q->cursor);
        r->level = (uint8_t)level_of(p, r);
        if (!best || r->level > best_level ||
            (r->level == best_level &&
             r->end.submitted_ns < policy_queued(best->cursor)->end.submitted_ns)) {
            best = q;
            best_level = r->level;
        }
    }
    *rankp = POLICY_LEVELS - 1 - best_level;
    return best;
}

/* The last in the round's order has the lowest level. */
static bool may_press(const struct policy *p, const struct request *r)
{
    uint32_t n = p->n_order;
    while (n > 0 && (!p->order[n - 1] || p->order[n - 1]->phase == REQUEST_WAITING))
        n--;
    return n > 0 && p->order[n - 1]->level < level_of(p, r);
}

static struct request *pressed_by(struct policy *p, const struct list *active,
                                  const struct request *r, uint32_t n_blocks, uint32_t *n_blocksp)
{
    struct request *victim = NULL;
    uint32_t level = level_of(p, r);
    (void)n_blocks;
    for (const struct list *link = active->prev; link != active; link = link->prev) {
        struct request *other = list_entry(link, struct request, link);
        if (other->level >= level)
            continue;
        *n_blocksp += other->table.n_blocks;
        if (!victim || other->level < victim->level)
            victim = other;
    }
    return victim;
}

static struct request *loser(struct policy *p, const struct list *active)
{
    struct request *worst = NULL;
    (void)p;
    for (const struct list *link = active->prev; link != active; link = link->prev) {
        struct request *r = list_entry(link, struct request, link);
        if (!worst || r->level < worst->level ||
            (r->level == worst->level && worst->starved_tokens == 0 && r->starved_tokens != 0))
            worst = r;
    }
    return worst;
}

static void ahead_of_new(const struct policy *p, uint32_t uid, uint8_t priority, uint32_t n_tokens,
                         struct policy_ahead *ahead)
{
    (void)uid;
    (void)n_tokens;
    for (uint32_t i = 0; i < POLICY_LEVELS; i++) {
        const struct queue *q = &p->levels[i];
        if (q->n > 0 && (i >= priority || level_of(p, policy_queued(q->requests.prev)) >= priority))
            policy_count_queue(ahead, q);
    }
}

static void ahead_of(const struct policy *p, const struct request *r, struct policy_ahead *ahead)
{
    uint32_t level = level_of(p, r);
    for (uint32_t i = 0; i < POLICY_LEVELS; i++) {
        const struct queue *q = &p->levels[i];
        for (const struct list *link = q->requests.next; link != &q->requests; link = link->next) {
            const struct request *other = policy_queued(link);
            uint32_t of_other = level_of(p, other);
            if (other == r || of_other < level ||
                (of_other == level && other->end.submitted_ns > r->end.submitted_ns))
                break;
            policy_count_ahead(ahead, other);
        }
    }
}

const struct policy_ranking policy_priority = {
    .name = "priority",
    .queue_of = queue_of,
    .begin = begin,
    .rank_of_active = rank_of_active,
    .pick = pick,
    .may_press = may_press,
    .pressed_by = pressed_by,
    .loser = loser,
    .ahead_of_new = ahead_of_new,
    .ahead_of = ahead_of,
};
