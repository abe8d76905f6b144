/* Each step looks at sums, which see at once that something is wrong, and at one request and one
 * block in turn, which sees what sums don't. What goes wrong in between is found after as many steps
 * as there are requests; until then who contradicts himself is not run (scheduler.c).
 *
 * A repair believes tables, of which there is one for each request: pool, prefixes and sums are made
 * anew from them. It does not believe those that the cache did not write, or that name what another
 * one may not share; their requests pay. */
#include <errno.h>
#include <string.h>

#include "daemon/sched/scheduler_state.h"

/* What is too much for every step is audited every so many steps, and up to so many blocks. */
enum { AUDITED_STEPS = 8, AUDITED_BLOCKS = 64 };

/* ---- each step ------------------------------------------------------------------------------- */

static int unclean(const char **whyp, const char *why)
{
    *whyp = why;
    return -EUCLEAN;
}

static uint32_t n_entries_of(const struct scheduler *s, const struct table *t)
{
    uint32_t n = 0;
    for (uint32_t g = 0; g < s->n_groups; g++)
        n += t->n_blocks - t->n_gone[g];
    return n;
}

/* One request, and one of its blocks. */
static int audit_request(struct scheduler *s, const struct request *r, const char **whyp)
{
    int err = request_check(r, s->config.page_size, true, whyp);
    if (err || r->table.n_blocks == 0 || r->end.finish != FINISH_NONE)
        return err;
    uint32_t i = s->n_rounds % r->table.n_blocks;
    bool is_complete = scheduler_shares(s, r) && i < r->past / s->config.page_size;
    /* A long table's turn comes less often: a step costs the same. */
    if (s->n_rounds % (r->table.n_blocks / AUDITED_BLOCKS + 1) == 0)
        err = cache_audit_sum(s->cache, &r->table, whyp);
    if (!err)
        err = cache_audit_entry(s->cache, &r->table, i, is_complete, whyp);
    if (!err && is_complete && s->n_audits % AUDITED_STEPS == 3)
        err = cache_audit_ids(s->cache, &r->table, i, &r->key, r->ids, whyp);
    return err;
}

/* All active requests together: as many as are counted, with as many blocks as the cache gave. */
static int audit_sums(struct scheduler *s, const char **whyp)
{
    uint64_t n_entries = 0;
    uint32_t n_active = 0;
    for (const struct list *link = s->active.next; link != &s->active; link = link->next) {
        n_entries += n_entries_of(s, &list_entry(link, struct request, link)->table);
        if (++n_active > s->n_active)
            break;
    }
    if (n_active != s->n_active)
        return unclean(whyp, "scheduler: there are more or fewer active requests than it counts");
    if (n_entries != cache_n_entries(s->cache))
        return unclean(whyp, "scheduler: tables are longer or shorter than the cache made them");
    return 0;
}

/* What is aside: as many requests as are counted, with as many blocks as the pool gave, and one of
 * them. */
static int audit_aside(const struct scheduler *s, const char **whyp)
{
    const struct cache *pool = s->config.pool.cache;
    uint64_t n_entries = 0;
    uint32_t n_aside = 0;
    int err = cache_audit(pool, whyp);
    for (const struct list *link = s->waiting.next; !err && link != &s->waiting;
         link = link->next) {
        const struct request *r = list_entry(link, struct request, link);
        if (!request_is_aside(r) || n_aside == s->n_aside)
            continue;
        n_entries += n_entries_of(s, &r->aside);
        if (n_aside++ == s->n_rounds % s->n_aside)
            err = cache_audit_sum(pool, &r->aside, whyp);
    }
    if (!err && (n_aside != s->n_aside || n_entries != cache_n_entries(pool)))
        return unclean(whyp, "scheduler: more or fewer blocks are aside than the pool gave");
    return err;
}

/* The next active request's turn. */
static int audit_next(struct scheduler *s, const char **whyp)
{
    if (s->turn == &s->active) {
        s->turn = s->active.next;
        s->n_rounds++;
    }
    if (s->turn == &s->active)
        return 0;
    const struct request *r = list_entry(s->turn, struct request, link);
    s->turn = s->turn->next;
    return audit_request(s, r, whyp);
}

int scheduler_audit(struct scheduler *s, const char **whyp)
{
    int err = cache_audit(s->cache, whyp);
    if (!err && !list_is_empty(&s->waiting))
        err = request_check(list_entry(s->waiting.next, struct request, link), s->config.page_size,
                            true, whyp);
    if (err)
        return err;
    if (s->n_audits++ % AUDITED_STEPS == 0)
        return audit_sums(s, whyp);
    if (s->n_audits % AUDITED_STEPS == 5 && s->config.pool.cache)
        return audit_aside(s, whyp);
    return s->n_audits % 2 ? audit_next(s, whyp) : cache_audit_block(s->cache, whyp);
}

/* ---- after a fault --------------------------------------------------------------------------- */

/* Whether two requests may both hold what each of them has at entry i. */
static bool may_share(const struct scheduler *s, const struct request *a, const struct request *b,
                      uint32_t group, uint32_t i)
{
    uint32_t n_ids = (i + 1) * s->config.page_size;
    return i < b->table.n_blocks && a->table.block_idx[group][i] == b->table.block_idx[group][i] &&
           n_ids <= a->past && n_ids <= b->past && memcmp(&a->key, &b->key, sizeof a->key) == 0 &&
           memcmp(a->ids, b->ids, n_ids * sizeof *a->ids) == 0;
}

/* Looks who else names the blocks of request `nth` of order[]; both are broken if they may not. */
static void compare_with_others(struct scheduler *s, uint32_t nth)
{
    struct request *r = s->order[nth];
    for (uint32_t g = 0; g < s->n_groups; g++)
        for (uint32_t i = r->table.n_gone[g]; i < r->table.n_blocks; i++) {
            uint32_t *note = cache_note(s->cache, g, r->table.block_idx[g][i]);
            struct request *other = note && *note ? s->order[*note - 1] : NULL;
            if (!note)
                r->is_broken = true;
            else if (!other)
                *note = nth + 1;
            else if (other == r || !may_share(s, r, other, g, i))
                r->is_broken = other->is_broken = true;
        }
}

/* Whether entry i of r names a block that r never took, or is the one that should. */
static void judge_entry(struct scheduler *s, struct request *r, uint32_t group, uint32_t i)
{
    if (cache_is_right(s->cache, &r->table, group, i, NULL))
        return;
    for (uint32_t k = 0; k < s->n_active; k++)
        if (cache_is_right(s->cache, &r->table, group, i, &s->order[k]->table)) {
            s->order[k]->is_broken = true;
            /* It may have written there. */
            r->is_broken |= s->order[k]->past < (i + 1) * s->config.page_size;
            return;
        }
    r->is_broken = true;
}

/* The requests of a list, each judged on its own; how many. */
static uint32_t judge_list(struct scheduler *s, const struct list *head, bool waiting)
{
    uint32_t n = 0;
    const char *why;
    for (const struct list *link = head->next; link != head; link = link->next) {
        struct request *r = list_entry(link, struct request, link);
        r->is_broken = (r->phase == REQUEST_WAITING) != waiting ||
                       request_check(r, s->config.page_size, true, &why) ||
                       cache_audit_table(s->cache, &r->table, &why) ||
                       cache_check_table(s->cache, &r->table, &r->key, r->ids, r->past, &why);
        r->starved_tokens = 0;
        s->order[n++] = r;
    }
    return n;
}

static void empty(struct table *t)
{
    t->n_blocks = t->sum = 0;
    memset(t->n_gone, 0, sizeof t->n_gone);
}

/* Its table says nothing that could be given back. */
static void drop(struct request *r, enum request_phase phase)
{
    r->phase = phase;
    empty(&r->table);
}

/* Marks as broken who names what is not his: by what the cache knows of who took it, and by what
 * others name. */
static void judge_tables(struct scheduler *s)
{
    for (uint32_t k = 0; k < s->n_active; k++)
        for (uint32_t g = 0; g < s->n_groups && !s->order[k]->is_broken; g++)
            for (uint32_t i = s->order[k]->table.n_gone[g]; i < s->order[k]->table.n_blocks; i++)
                judge_entry(s, s->order[k], g, i);
    cache_audit_begin(s->cache);
    for (uint32_t k = 0; k < s->n_active; k++)
        if (!s->order[k]->is_broken)
            compare_with_others(s, k);
}

static void find_again(const struct list *head)
{
    for (const struct list *link = head->next; link != head; link = link->next)
        list_entry(link, struct request, link)->is_lost = false;
}

/* Requests that no list has any more go where their phase says they were. */
static void take_lost_back(struct scheduler *s, struct requests *all)
{
    struct request *r;
    requests_recount(all);
    find_again(&s->active);
    find_again(&s->waiting);
    while ((r = requests_find_lost(all)) != NULL) {
        r->is_lost = false;
        list_init(&r->link);
        list_append(r->phase == REQUEST_WAITING ? &s->waiting : &s->active, &r->link);
    }
}

/* Nothing is aside any more: who waits with a past begins anew. */
static void empty_pool(struct scheduler *s)
{
    for (const struct list *link = s->waiting.next; link != &s->waiting; link = link->next) {
        struct request *r = list_entry(link, struct request, link);
        if (request_is_aside(r))
            r->past = 0;
        empty(&r->aside);
    }
    for (const struct list *link = s->active.next; link != &s->active; link = link->next)
        empty(&list_entry(link, struct request, link)->aside);
    cache_audit_begin(s->config.pool.cache);
    cache_rebuild(s->config.pool.cache);
    s->n_aside = 0;
}

void scheduler_repair(struct scheduler *s, struct requests *all)
{
    const char *why;
    take_lost_back(s, all);
    if (s->config.pool.cache)
        empty_pool(s);
    s->n_starved = 0;
    s->admission_shut = false;
    s->turn = &s->active;
    cache_audit_begin(s->cache);
    s->n_waiting = judge_list(s, &s->waiting, true);
    for (uint32_t i = 0; i < s->n_waiting; i++)
        if (s->order[i]->is_broken)
            drop(s->order[i], REQUEST_WAITING);
    s->n_active = judge_list(s, &s->active, false);
    judge_tables(s);
    cache_audit_begin(s->cache);
    for (uint32_t i = 0; i < s->n_active; i++) {
        if (s->order[i]->is_broken)
            drop(s->order[i], REQUEST_PREFILLING);
        (void)cache_audit_table(s->cache, &s->order[i]->table, &why);
    }
    cache_rebuild(s->cache);
    policy_rebuild(s->policy, &s->waiting, &s->active);
    for (uint32_t i = 0; i < s->n_active; i++) {
        struct request *r = s->order[i];
        if (!r->is_broken && scheduler_shares(s, r))
            cache_settle(s->cache, &r->table, &r->key, r->ids, 0, r->past);
    }
}

/* ---- all of it ------------------------------------------------------------------------------- */

/* Audits the requests of one list and tells the cache of their tables. */
static int check_list(const struct scheduler *s, const struct list *head, bool waiting,
                      bool between_steps, uint32_t *np, uint32_t *n_starvedp, const char **whyp)
{
    uint32_t n_aside = 0;
    for (const struct list *link = head->next; link != head; link = link->next) {
        if (link->next->prev != link || link->prev->next != link)
            return unclean(whyp, "scheduler: a list is broken");
        const struct request *r = list_entry(link, struct request, link);
        if ((r->phase == REQUEST_WAITING) != waiting)
            return unclean(whyp, "scheduler: a request is in the wrong list");
        if (r->parent && (!waiting || list_is_empty(&r->sibling)))
            return unclean(whyp, "scheduler: a child is active or unknown to its parent");
        for (const struct list *c = r->children.next; c != &r->children; c = c->next)
            if (list_entry(c, struct request, sibling)->parent != r)
                return unclean(whyp, "scheduler: a parent has another's child");
        int err = request_check(r, s->config.page_size, between_steps, whyp);
        if (err)
            return err;
        err = cache_audit_table(s->cache, &r->table, whyp);
        if (err)
            return err;
        if (request_is_aside(r)) {
            n_aside++;
            err = s->config.pool.cache ? cache_audit_table(s->config.pool.cache, &r->aside, whyp)
                                       : unclean(whyp, "scheduler: blocks aside, and no pool");
            if (err)
                return err;
        }
        err = cache_check_table(s->cache, &r->table, &r->key, r->ids,
                                between_steps && r->end.finish == FINISH_NONE ? r->past : r->n_ids,
                                whyp);
        if (err)
            return err;
        *np += 1;
        *n_starvedp += r->starved_tokens != 0;
    }
    if (n_aside != (waiting ? s->n_aside : 0))
        return unclean(whyp, "scheduler: more or fewer requests are aside than it counts");
    return 0;
}

int scheduler_check(const struct scheduler *s, bool between_steps, const char **whyp)
{
    uint32_t n_active = 0, n_waiting = 0, n_starved = 0;
    cache_audit_begin(s->cache);
    if (s->config.pool.cache)
        cache_audit_begin(s->config.pool.cache);
    int err = check_list(s, &s->active, false, between_steps, &n_active, &n_starved, whyp);
    if (!err)
        err = check_list(s, &s->waiting, true, between_steps, &n_waiting, &n_starved, whyp);
    if (err)
        return err;
    if (n_active != s->n_active || n_waiting != s->n_waiting || n_starved != s->n_starved)
        return unclean(whyp, "scheduler: a count is not its list's length");
    if (s->admission_shut && n_active == 0)
        return unclean(whyp, "scheduler: admission is shut and nobody is there to open it");
    err = policy_check(s->policy, n_waiting, whyp);
    if (!err)
        err = cache_audit_end(s->cache, whyp);
    return err || !s->config.pool.cache ? err : cache_audit_end(s->config.pool.cache, whyp);
}
