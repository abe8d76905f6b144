/* sched/scheduler_state.h - a scheduler from the inside, for scheduler.c and scheduler_audit.c. */
#ifndef CB_DAEMON_SCHED_SCHEDULER_STATE_H
#define CB_DAEMON_SCHED_SCHEDULER_STATE_H

#include "daemon/sched/scheduler.h"

struct scheduler {
    struct scheduler_config config;
    struct cache *cache;
    struct list active, waiting;
    struct request **order; /* [max_requests] */
    uint32_t n_groups;
    uint32_t n_audits, n_rounds;
    const struct list *turn; /* in `active`: whose turn it is to be audited, or the head */
    uint32_t n_active, n_waiting;
    uint32_t n_starved;  /* active requests with starved_tokens != 0             */
    bool admission_shut; /* after a soft reset, until an active request leaves   */
    double ns_per_token; /* of late steps that held prefill; 0: none measured    */
    uint64_t n_soft_resets, n_restarts, n_hits, n_hit_tokens, n_forks;
};

#endif
