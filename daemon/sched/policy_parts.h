/* sched/policy_parts.h - what the parts of the policy share: policy.c, policy_priority.c and
 * policy_fair.c; nobody else includes it. */
#ifndef CB_DAEMON_SCHED_POLICY_PARTS_H
#define CB_DAEMON_SCHED_POLICY_PARTS_H

#include "daemon/sched/policy.h"

#define POLICY_LEVELS 256u

struct policy;

/* What a ranking policy says; the rest is common. Ranks count from 0, which comes first. */
struct policy_ranking {
    const char *name;
    struct queue *(*queue_of)(struct policy *p, const struct request *r);
    /* Begins a round: how many ranks there are in it. */
    uint32_t (*begin)(struct policy *p, const struct list *active);
    uint32_t (*rank_of_active)(const struct request *r);
    /* The queue whose cursor is the best candidate left, and its rank; NULL: none is left. */
    struct queue *(*pick)(struct policy *p, uint32_t *rankp);
    bool (*may_press)(const struct policy *p, const struct request *r);
    struct request *(*pressed_by)(struct policy *p, const struct list *active,
                                  const struct request *r, uint32_t n_blocks, uint32_t *n_blocksp);
    struct request *(*loser)(struct policy *p, const struct list *active);
    void (*ahead_of_new)(const struct policy *p, uint32_t uid, uint8_t priority, uint32_t n_tokens,
                         struct policy_ahead *ahead);
    void (*ahead_of)(const struct policy *p, const struct request *r, struct policy_ahead *ahead);
};

extern const struct policy_ranking policy_priority, policy_fair;

struct policy {
    enum scheduler_kind kind;
    const struct policy_ranking *ranking;    /* of this round; NULL: order of arrival */
    struct queue line;                       /* fifo, prefill_first: all who wait */
    struct queue *levels;                    /* [POLICY_LEVELS] priority: by priority; else NULL */
    uint64_t level_bits[POLICY_LEVELS / 64]; /* of those where somebody waits */
    struct shares *shares;                   /* fair, auto: by user; else NULL */
    uint64_t ageing_ns, now_ns;              /* now_ns: of the round */

    /* Of the round: the active ones in order, and where each rank's two phases begin. */
    struct request **order; /* [max_requests] */
    uint32_t *ranks;        /* [max_requests] of order */
    uint32_t *firsts;       /* [2 * most ranks + 1] */
    uint32_t n_order, next;
    bool skips_waiting;
    /* By order of arrival: the only queue, or NULL; the next of it without blocks aside and with;
     * and whose turn it is. */
    struct queue *only;
    struct list *cursors[2];
    bool any_aside, asides_turn;
    const struct list *pick_at; /* fair: the first share that may have candidates left */
};

/* The next level from i on where somebody waits; POLICY_LEVELS: there is none. */
static inline uint32_t policy_next_level(const struct policy *p, uint32_t i)
{
    while (i < POLICY_LEVELS) {
        uint64_t bits = p->level_bits[i / 64] >> i % 64;
        if (bits)
            return i + (uint32_t)__builtin_ctzll(bits);
        i = (i / 64 + 1) * 64;
    }
    return POLICY_LEVELS;
}

static inline struct request *policy_queued(const struct list *link)
{
    return list_entry(link, struct request, queue_link);
}

static inline void policy_count_ahead(struct policy_ahead *ahead, const struct request *r)
{
    if (request_is_paused(r))
        return;
    ahead->n_requests++;
    ahead->n_tokens += r->n_ids;
    ahead->n_limit += r->n_prompt + r->max_new_tokens - r->n_ids;
}

static inline void policy_count_queue(struct policy_ahead *ahead, const struct queue *q)
{
    ahead->n_requests += q->n_able;
    ahead->n_tokens += q->n_tokens;
    ahead->n_limit += q->n_limit;
}

#endif
