/* engine_state.h - what the files of the engine have in common; for them only.
 *
 *   engine.c        requests come and go; a step is planned, submitted, waited for
 *   engine_ends.c   what ends is decided, then carried out
 *   engine_apply.c  what a step computed becomes tokens, restarts and ends
 *   engine_audit.c  the bookkeeping is checked at each step and made good again */
#ifndef CB_DAEMON_ENGINE_STATE_H
#define CB_DAEMON_ENGINE_STATE_H

#include "daemon/backing.h"
#include "daemon/base/clock.h"
#include "daemon/cache/cache.h"
#include "daemon/engine.h"
#include "daemon/sched/batch.h"
#include "daemon/sched/scheduler.h"
#include "shm/status.h"

struct engine {
    struct engine_config config;
    struct model *model;
    const struct model_info *info;
    const struct cb_vocab *vocab;
    struct engine_sink sink;
    const struct clock *clock;
    uint32_t tokens_max; /* of a request */

    struct cache_config cache_config;
    struct cache *cache;
    struct cache *pool; /* beside it; NULL: none */
    struct requests *requests;
    struct scheduler *scheduler;
    struct batch *batch;
    struct table probe; /* room for what a forecast finds */
    uint32_t *probe_blocks;
    struct list ending; /* end decided, not yet carried out */

    bool is_paused;
    bool in_flight; /* the batch is on the device, as `ticket` */
    uint64_t ticket;
    uint64_t submit_ns; /* when it went there                                      */
    struct backing backing;
    uint32_t epoch;            /* of the model's weights                                  */
    uint64_t n_held_tokens;    /* prompt and limit of all accepted                        */
    uint64_t next_deadline_ns; /* no deadline is earlier; UINT64_MAX: there is none       */
    struct engine_stats stats;
};

/* Decides a request's end, unless it is decided already. */
void engine_decide(struct engine *e, struct request *r, enum finish finish, int32_t error);
/* Carries out all decided ends; says whether there were any. Only between steps. */
bool engine_end_decided(struct engine *e);
/* Waits until nothing is on the device; what it computed is in the batch's samples. 0, or as
 * model_step_poll failed. */
int engine_settle(struct engine *e);
/* What came from outside since the last look: cancels and the time. */
void engine_look(struct engine *e);

/* Applies what the device did; step_error: nothing, it failed. */
void engine_apply(struct engine *e, int step_error);

/* Looks for contradictions and repairs what it finds. Only between steps. */
void engine_audit(struct engine *e);

#endif
