/* A queue for each user; the users in order of what they got (shares.h). All of one user come
 * before anyone of the next, also those who decode: a newcomer has its turn in the very next step,
 * however many run. What keeps that from hurting the others is that a user's counter grows by its
 * turn.
 *
 * Who holds more of the cache than the asker would with its request gives way, and only then: what
 * moves is the difference between two users, which shrinks, so it never goes back and forth. */
#include "daemon/sched/policy_parts.h"

static struct queue *queue_of(struct policy *p, const struct request *r)
{
    (void)p;
    return &r->share->queue;
}

static struct share *share_at(const struct list *link)
{
    return list_entry(link, struct share, link);
}

static void count_held(struct policy *p, const struct list *active)
{
    const struct list *all = shares_all(p->shares);
    for (const struct list *link = all->next; link != all; link = link->next)
        share_at(link)->n_held = 0;
    for (const struct list *link = active->next; link != active; link = link->next) {
        const struct request *r = list_entry(link, struct request, link);
        r->share->n_held += r->table.n_blocks;
    }
}

static uint32_t begin(struct policy *p, const struct list *active)
{
    const struct list *all = shares_all(p->shares);
    uint32_t n = shares_rank(p->shares);
    for (const struct list *link = all->next; link != all; link = link->next) {
        struct queue *q = &share_at(link)->queue;
        q->cursor = q->requests.next;
    }
    count_held(p, active);
    p->pick_at = all->next;
    return n;
}

static uint32_t rank_of_active(const struct request *r)
{
    return r->share->rank;
}

static struct queue *pick(struct policy *p, uint32_t *rankp)
{
    const struct list *all = shares_all(p->shares);
    for (; p->pick_at != all; p->pick_at = p->pick_at->next) {
        struct share *share = share_at(p->pick_at);
        if (share->queue.cursor == &share->queue.requests)
            continue;
        *rankp = share->rank;
        return &share->queue;
    }
    return NULL;
}

static bool holds_more(const struct share *a, const struct share *b, uint32_t n_more)
{
    return a->n_held * b->weight > (b->n_held + n_more) * a->weight;
}

/* By what was held when the round began. */
static bool may_press(const struct policy *p, const struct request *r)
{
    const struct list *all = shares_all(p->shares);
    for (const struct list *link = all->prev; link != all; link = link->prev)
        if (share_at(link)->rank > r->share->rank && holds_more(share_at(link), r->share, 1))
            return true;
    return false;
}

static struct request *pressed_by(struct policy *p, const struct list *active,
                                  const struct request *r, uint32_t n_blocks, uint32_t *n_blocksp)
{
    struct share *worst = NULL;
    const struct list *all = shares_all(p->shares);
    count_held(p, active);
    for (const struct list *link = all->next; link != all; link = link->next) {
        struct share *share = share_at(link);
        if (share->rank <= r->share->rank || !holds_more(share, r->share, n_blocks))
            continue;
        *n_blocksp += (uint32_t)share->n_held;
        if (!worst || holds_more(share, worst, 0))
            worst = share;
    }
    for (const struct list *link = active->prev; worst && link != active; link = link->prev) {
        struct request *other = list_entry(link, struct request, link);
        if (other->share == worst)
            return other;
    }
    return NULL;
}

/* Of the user who holds most, the newest that found no room, or else the newest. */
static struct request *loser(struct policy *p, const struct list *active)
{
    const struct list *all = shares_all(p->shares);
    const struct share *most = NULL;
    struct request *worst = NULL;
    count_held(p, active);
    for (const struct list *link = all->next; link != all; link = link->next)
        if (share_at(link)->n_held > 0 && (!most || holds_more(share_at(link), most, 0)))
            most = share_at(link);
    for (const struct list *link = active->prev; link != active; link = link->prev) {
        struct request *r = list_entry(link, struct request, link);
        if (r->share == most && (!worst || (worst->starved_tokens == 0 && r->starved_tokens != 0)))
            worst = r;
    }
    return worst;
}

/* Of another user's queue as much as its turns come to while n_tokens are computed. */
static void count_turns(struct policy_ahead *ahead, const struct share *other, double n_tokens,
                        uint32_t weight)
{
    const struct queue *q = &other->queue;
    double most = n_tokens * other->weight / weight;
    double part = q->n_tokens == 0 || most >= (double)q->n_tokens ? 1 : most / (double)q->n_tokens;
    ahead->n_requests += (uint32_t)(q->n_able * part);
    ahead->n_tokens += (uint64_t)((double)q->n_tokens * part);
    ahead->n_limit += (uint64_t)((double)q->n_limit * part);
}

static void count_others(const struct policy *p, const struct share *own, uint64_t n_tokens,
                         uint32_t weight, struct policy_ahead *ahead)
{
    const struct list *all = shares_all(p->shares);
    for (const struct list *link = all->next; link != all; link = link->next)
        if (share_at(link) != own)
            count_turns(ahead, share_at(link), (double)n_tokens, weight);
}

static void ahead_of_new(const struct policy *p, uint32_t uid, uint8_t priority, uint32_t n_tokens,
                         struct policy_ahead *ahead)
{
    const struct share *own = shares_find(p->shares, uid);
    (void)priority;
    if (own)
        policy_count_queue(ahead, &own->queue);
    /* Who has nobody waiting has the next turn, and owes nothing before. */
    if (ahead->n_requests > 0)
        count_others(p, own, ahead->n_tokens + n_tokens, own->weight, ahead);
}

static void ahead_of(const struct policy *p, const struct request *r, struct policy_ahead *ahead)
{
    const struct share *own = r->share;
    const struct list *link = own->queue.requests.next;
    for (; link != &r->queue_link && link != &own->queue.requests; link = link->next)
        policy_count_ahead(ahead, policy_queued(link));
    if (ahead->n_requests > 0)
        count_others(p, own, ahead->n_tokens + r->n_ids, own->weight, ahead);
}

const struct policy_ranking policy_fair = {
    .name = "fair",
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
