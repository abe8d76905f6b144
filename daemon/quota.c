/* Entries are found by walking the ones in use: there are as many as users connected. The table is
 * as large as that of the clients, so that only uids held off can fill it. */
#include "daemon/quota.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define BACKOFF_NS   1000000000ull /* after a broken lane, times how many there were */
#define BACKOFF_MOST 30u

int quotas_new(struct quotas **quotasp, uint32_t n, const struct clock *clock)
{
    struct quotas *qs = calloc(1, sizeof *qs);
    if (!qs)
        return -ENOMEM;
    qs->clock = clock;
    qs->table = calloc(n, sizeof *qs->table);
    if (!qs->table) {
        quotas_free(qs);
        return -ENOMEM;
    }
    list_init(&qs->used);
    list_init(&qs->free);
    for (uint32_t i = 0; i < n; i++) {
        list_init(&qs->table[i].live);
        list_append(&qs->free, &qs->table[i].link);
    }
    *quotasp = qs;
    return 0;
}

struct quotas *quotas_free(struct quotas *qs)
{
    if (qs) {
        free(qs->table);
        free(qs);
    }
    return NULL;
}

static bool is_idle(const struct quota *q)
{
    return q->use.n_connections == 0 && q->use.n_requests == 0 && q->use.bytes == 0 &&
           q->n_chores == 0;
}

static void release(struct quotas *qs, struct quota *q)
{
    list_remove(&q->link);
    memset(q, 0, sizeof *q);
    list_init(&q->live);
    list_append(&qs->free, &q->link);
}

struct quota *quotas_of(struct quotas *qs, uid_t uid)
{
    struct list *l, *after;
    struct quota *idle = NULL;
    list_for_each (l, after, &qs->used) {
        struct quota *q = list_entry(l, struct quota, link);
        if (q->uid == uid)
            return q;
        if (is_idle(q))
            idle = q;
    }
    if (list_is_empty(&qs->free) && idle)
        release(qs, idle);
    if (list_is_empty(&qs->free))
        return NULL;
    struct quota *q = list_entry(qs->free.next, struct quota, link);
    list_remove(&q->link);
    q->uid = uid;
    allowance_init(&q->time, clock_now(qs->clock));
    list_append(&qs->used, &q->link);
    return q;
}

void quotas_settle(struct quotas *qs, struct quota *q)
{
    if (is_idle(q) && !quotas_holds_off(qs, q) &&
        allowance_is_whole(&q->time, clock_now(qs->clock)))
        release(qs, q);
}

void quotas_hold_off(struct quotas *qs, struct quota *q)
{
    if (q->n_broken < BACKOFF_MOST)
        q->n_broken++;
    q->backoff_until_ns = clock_now(qs->clock) + q->n_broken * BACKOFF_NS;
}

bool quotas_holds_off(const struct quotas *qs, const struct quota *q)
{
    return clock_now(qs->clock) < q->backoff_until_ns;
}

int quota_check(const struct quota *q, const struct quota_use *counted, const char **whyp)
{
    const struct quota_use *u = &q->use;
    *whyp = counted->n_connections != u->n_connections ? "a uid's connections are miscounted"
            : counted->n_half_open != u->n_half_open
                ? "a uid's half-open connections are miscounted"
            : counted->n_admins != u->n_admins     ? "a uid's commanding connections are miscounted"
            : counted->n_lanes != u->n_lanes       ? "a uid's lanes are miscounted"
            : counted->n_requests != u->n_requests ? "a uid's requests are miscounted"
            : counted->bytes != u->bytes           ? "a uid's bytes are miscounted"
            : counted->waiting_tokens != u->waiting_tokens ? "a uid's waiting tokens are miscounted"
                                                           : NULL;
    return *whyp ? -EUCLEAN : 0;
}
