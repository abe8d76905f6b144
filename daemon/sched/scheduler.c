/* Two intrusive lists, and nothing remembered between steps but who found no room (starved) and
 * whether admission is shut, so there is no state that could disagree with the requests themselves.
 * A step costs what is active plus the waiting requests that are asked, whatever the cache's size;
 * in which order is the policy's matter (policy.h). */
#include "daemon/sched/scheduler.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "daemon/sched/scheduler_state.h"

int scheduler_new(struct scheduler **schedulerp, const struct scheduler_config *config,
                  struct cache *c)
{
    assert(config->max_batch_tokens > 0 && config->max_requests_per_batch > 0);
    struct scheduler *s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    s->config = *config;
    s->cache = c;
    s->n_groups = cache_n_groups(c);
    list_init(&s->active);
    list_init(&s->waiting);
    s->turn = &s->active;
    s->order = calloc(config->max_requests, sizeof *s->order);
    int r = policy_new(&s->policy, config->policy, config->max_requests, config->ageing_ms);
    if (r || !s->order) {
        scheduler_free(s);
        return -ENOMEM;
    }
    if (s->config.safety_margin < 0)
        s->config.safety_margin = policy_safety_margin(s->config.policy);
    *schedulerp = s;
    return 0;
}

struct scheduler *scheduler_free(struct scheduler *s)
{
    if (s) {
        policy_free(s->policy);
        free(s->order);
        free(s);
    }
    return NULL;
}

void scheduler_set_weights(struct scheduler *s, const struct share_weights *weights)
{
    policy_set_weights(s->policy, weights);
}

void scheduler_add(struct scheduler *s, struct request *r)
{
    assert(r->phase == REQUEST_WAITING);
    assert(s->n_active + s->n_waiting < s->config.max_requests);
    list_append(&s->waiting, &r->link);
    s->n_waiting++;
    policy_enter(s->policy, r);
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

void scheduler_remove(struct scheduler *s, struct request *r)
{
    release_children(r);
    if (r->parent)
        release_child(r);
    if (r->phase == REQUEST_WAITING) {
        scheduler_stop_waiting(s, r);
    } else {
        scheduler_deactivate(s, r);
        s->admission_shut = false;
    }
    if (r->end.finish == FINISH_EOS || r->end.finish == FINISH_STOP ||
        r->end.finish == FINISH_LENGTH)
        pace_observe_end(&s->pace, r->end.n_generated, r->max_new_tokens);
    policy_leave(s->policy, r);
    scheduler_drop_aside(s, r);
    if (r->end.finish == FINISH_ERROR)
        cache_forget_own(s->cache, &r->table);
    cache_clear(s->cache, &r->table);
}

void scheduler_note_pause(struct scheduler *s, struct request *r)
{
    s->load.is_known = false;
    policy_note_pause(s->policy, r);
}

void scheduler_restart(struct scheduler *s, struct request *r)
{
    scheduler_deactivate(s, r);
    s->admission_shut = false;
    request_soft_reset(r, s->cache);
    list_prepend(&s->waiting, &r->link);
    s->n_waiting++;
    s->n_restarts++;
    policy_queue_first(s->policy, r);
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

int scheduler_plan(struct scheduler *s, struct batch *b, uint64_t now_ns, struct request **stuckp)
{
    assert(b->n_entries == 0);
    s->load.is_known = false;
    if (!(s->wants_room && scheduler_yield(s)) && s->n_starved > 0)
        scheduler_relieve(s);
    struct request *without_room;
    do {
        without_room = scheduler_fill(s, b, now_ns);
    } while (b->n_entries == 0 && without_room && (scheduler_yield(s) || scheduler_relieve(s)));
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
    if (scheduler_shares(s, r))
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
        child->kv_epoch = r->kv_epoch;
        child->end.n_prefix_hit = r->past;
        child->level = r->level;
        scheduler_activate(s, child, REQUEST_PREFILLING, now_ns);
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
    pace_observe(&s->pace, b->n_tokens, n_prefill, model_ns);
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
