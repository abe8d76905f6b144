/* sched/scheduler_state.h - a scheduler from the inside, for scheduler.c and scheduler_*.c. */
#ifndef CB_DAEMON_SCHED_SCHEDULER_STATE_H
#define CB_DAEMON_SCHED_SCHEDULER_STATE_H

#include "daemon/sched/pace.h"
#include "daemon/sched/policy.h"
#include "daemon/sched/scheduler.h"

struct scheduler {
    struct scheduler_config config;
    struct cache *cache;
    struct policy *policy;
    struct pace pace;
    struct list active;     /* in the order of activation                      */
    struct list waiting;    /* all; the policy has them in an order of its own */
    struct request **order; /* [max_requests] a repair's                       */
    uint32_t n_groups;
    uint32_t epoch; /* of the model's weights */
    uint32_t n_audits, n_rounds;
    const struct list *turn; /* in `active`: whose turn it is to be audited, or the head */
    uint32_t n_active, n_waiting;
    uint32_t n_aside;    /* waiting requests whose blocks are in the pool        */
    uint32_t n_starved;  /* active requests with starved_tokens != 0             */
    bool admission_shut; /* after a soft reset, until an active request leaves   */
    bool wants_room;     /* the last plan left somebody out for want of room     */
    /* What active requests have before them, but for those that are paused: they are no hindrance,
     * for who needs their room takes it. */
    struct {
        bool is_known;    /* since the last plan */
        uint32_t n_able;  /* not paused          */
        uint32_t n_loose; /* blocks of the paused */
        uint64_t n_tokens, n_limit;
    } load;
    uint64_t n_soft_resets, n_restarts, n_hits, n_hit_tokens, n_forks;
    uint64_t n_offloads, n_restores, n_recomputed;
};

/* Whether blocks of r are for others to find: what they hold is what the model makes of its ids. */
static inline bool scheduler_shares(const struct scheduler *s, const struct request *r)
{
    return !r->is_suspect && r->kv_epoch == s->epoch;
}

/* scheduler_lists.c: r, if it waits, is active from now on, in that phase; one that waits, or is active,
 * leaves its list. */
void scheduler_activate(struct scheduler *s, struct request *r, enum request_phase phase,
                        uint64_t now_ns);
void scheduler_stop_waiting(struct scheduler *s, struct request *r);
void scheduler_deactivate(struct scheduler *s, struct request *r);

/* scheduler_turn.c: one pass over the candidates fills b. The first that found no room, or NULL. */
struct request *scheduler_fill(struct scheduler *s, struct batch *b, uint64_t now_ns);

/* scheduler_room.c. Soft resets active requests until the starved ones that are left fit, or one
 * active one is left: whether any was. They wait again, and admission is shut. */
bool scheduler_relieve(struct scheduler *s);
/* The newest active request that is paused gives way, and waits again: whether there is one. Nobody
 * waits for it to end, for it may not go on. */
bool scheduler_yield(struct scheduler *s);
/* Soft resets one whom r, which waits, may press for n_blocks more: whether there is one, and it is
 * of use. */
bool scheduler_press(struct scheduler *s, const struct request *r, uint32_t n_blocks);

/* ---- scheduler_pool.c ------------------------------------------------------------------------ */

/* Copies the blocks of an active request that is in no list to the pool, lets them go and makes it
 * wait; false: it is as it was, for want of a pool or of room there. */
bool scheduler_put_aside(struct scheduler *s, struct request *r);

/* Gives a request with blocks aside room for n_tokens in all, and copies them back: 0;
 * CACHE_EXHAUSTED; or a negative errno: nothing is aside any more, it is soft reset. */
int scheduler_take_up(struct scheduler *s, struct request *r, uint32_t n_tokens);

/* Lets what is aside go, if anything is: the request is to be computed from its first id. */
void scheduler_drop_aside(struct scheduler *s, struct request *r);

/* As scheduler_distrust, for those whose blocks are in the pool. */
void scheduler_distrust_aside(struct scheduler *s, const struct request *r, uint32_t first_block);

#endif
