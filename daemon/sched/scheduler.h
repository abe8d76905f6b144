/* sched/scheduler.h - who runs this step, within the budgets of a step and the room in the cache.
 *
 * Owns two lists: active requests (they hold blocks) in the order of activation, and waiting ones.
 * A policy (policy.h) says in which order they are asked. A request takes what the token budget
 * leaves, so that prompts are computed in chunks beside decoding.
 *
 * A waiting request that begins like others takes over the blocks they share (cache.h), also those
 * that the very step it is taken into computes: then its own tokens are the rest.
 *
 * When active requests find no room, the newest of those, or by rank the one who is to lose, has
 * to wait again; from then on nobody is admitted until an active request leaves, but who may press
 * others to give way. Its blocks are put aside in a pool beside the cache and copied back when its
 * turn comes, so that nothing is computed twice. Where there is no such pool, or no room in it, the
 * request is soft reset. One request always stays, and any that was accepted fits alone, so there
 * is always progress. Engine thread only; never allocates after new. */
#ifndef CB_DAEMON_SCHED_SCHEDULER_H
#define CB_DAEMON_SCHED_SCHEDULER_H

#include <stdint.h>

#include "daemon/cache/cache.h"
#include "daemon/sched/batch.h"
#include "daemon/sched/policy.h"
#include "daemon/sched/request.h"

/* The pool beside the cache: blocks of the same groups, and who copies them. */
struct scheduler_pool {
    struct cache *cache; /* shares nothing; NULL: there is no pool */
    /* Copies what the blocks of `from` hold to those of `to`: from the cache to the pool, or back.
     * 0 or a negative errno. Called while nothing is on the device. */
    int (*copy)(void *ctx, const struct table *from, const struct table *to, bool to_pool);
    void *ctx;
};

struct scheduler_config {
    enum scheduler_kind policy;
    uint32_t ageing_ms;        /* of priority; 0: none ages                                       */
    uint32_t max_requests;     /* that may ever be held at once                                  */
    uint32_t max_batch_tokens; /* at least 1                                                     */
    uint32_t max_requests_per_batch; /* at least 1 */
    /* A step of single tokens with at most so many blocks of past each is free of the read budget;
     * 0: none is. */
    uint32_t max_blocks_per_request;
    uint32_t page_size;
    double safety_margin; /* negative: the policy's */
    uint32_t step_ms_max; /* 0: off                 */
    struct scheduler_pool pool;
};

struct scheduler;

/* Schedules over the cache c, which must outlive it. 0 or -ENOMEM. */
int scheduler_new(struct scheduler **schedulerp, const struct scheduler_config *config,
                  struct cache *c);
struct scheduler *scheduler_free(struct scheduler *s); /* NULL is fine; returns NULL */

/* What users' requests weigh from now on, where the policy is fair or auto. */
void scheduler_set_weights(struct scheduler *s, const struct share_weights *weights);

/* Puts a WAITING request at the end of the line. */
void scheduler_add(struct scheduler *s, struct request *r);

/* Puts r behind all, as another child of `parent`, which was just added and has the same prompt.
 * When the parent has computed its prompt but for the last id, scheduler_fork gives the child what
 * that left in the cache; until then it waits, unless its parent ends before. Where the prompt but
 * for the last id ends with a block that can be found, no such help is needed, and where its
 * log-probabilities are asked for it is no help: then r is added as any other. */
void scheduler_add_child(struct scheduler *s, struct request *parent, struct request *r);

/* Takes the request out, wherever it stands, and its blocks back; if it ended with an error, nobody
 * finds them any more. Never while it is on the device. */
void scheduler_remove(struct scheduler *s, struct request *r);

/* Whether r is paused has changed: those who wait behind it are told so. */
void scheduler_note_pause(struct scheduler *s, struct request *r);

/* What is in r's blocks from that one on is not what its ids say: nobody finds them any more, and
 * who took them over begins anew. Between steps, or between planning one and submitting it. */
void scheduler_distrust(struct scheduler *s, struct request *r, uint32_t first_block);

/* Makes the active request wait again, before all others. Likewise. */
void scheduler_restart(struct scheduler *s, struct request *r);

enum { SCHEDULER_NOTHING = 1, SCHEDULER_STUCK = 2 };

/* The model has weights of that epoch from now on: nothing that was computed before is found by
 * anybody. A request that only decodes, and may go on, does; where a request says nothing of it,
 * `otherwise` says. Every other one begins anew, its tokens stay. Between steps. */
void scheduler_switch(struct scheduler *s, uint32_t epoch, enum on_new_weights otherwise);

/* Fills the empty batch b and moves phases: 0; SCHEDULER_NOTHING: nobody is there; SCHEDULER_STUCK:
 * no request can run and none can be reset, which only a fault in the bookkeeping can bring about;
 * then *stuckp is the one to give up. Call it between steps only. */
int scheduler_plan(struct scheduler *s, struct batch *b, uint64_t now_ns, struct request **stuckp);

/* The batch's entry was computed: moves its past, and its complete blocks are shared. */
void scheduler_advance(struct scheduler *s, const struct batch_entry *entry);

/* After scheduler_advance: the next of r's children for which it is time and room, active behind
 * all others, with a table that shares r's complete blocks; what r's blocks hold that are not in
 * both tables is still to be copied. NULL: there is none. Those without room wait on their own. */
struct request *scheduler_fork(struct scheduler *s, struct request *r, uint64_t now_ns);

/* Says what the model took for a batch: the measure for step_ms_max. */
void scheduler_observe(struct scheduler *s, const struct batch *b, uint64_t model_ns);

/* A request as it would be. */
struct scheduler_wish {
    uint32_t uid;
    uint8_t priority;
    uint32_t n_prompt; /* to be computed: without what it would find in the cache */
    uint32_t limit;    /* of tokens                                               */
};

/* From now on; a guess from late steps, what waits before it, and how much of their limits late
 * requests used. Not is_known: nothing was measured yet. */
struct scheduler_forecast {
    bool is_known;
    uint64_t start_ns, first_token_ns, finish_ns;
};
void scheduler_forecast(struct scheduler *s, const struct scheduler_wish *wish, uint64_t now_ns,
                        struct scheduler_forecast *f);

/* Says in words what r does, or what it waits for, all of it: text [bytes], 0-terminated, cut if
 * need be; 600 bytes are enough. A clause or several, without a capital or a full stop. */
void scheduler_why(const struct scheduler *s, const struct request *r, uint64_t now_ns, char *text,
                   size_t bytes);

struct scheduler_counts {
    uint32_t n_active, n_waiting;
    uint64_t n_soft_resets, n_restarts;
    uint64_t n_hits, n_hit_tokens;   /* requests that took blocks over, tokens in these */
    uint64_t n_forks;                /* children that began where their parent stood */
    uint64_t n_offloads, n_restores; /* requests put aside, and taken up again */
    uint64_t n_recomputed; /* tokens that had been computed before: after a reset or a restart */
};
void scheduler_counts(const struct scheduler *s, struct scheduler_counts *counts);

/* The lists, for walks over all requests. */
const struct list *scheduler_active(const struct scheduler *s);
const struct list *scheduler_waiting(const struct scheduler *s);

/* What is cheap enough for every step, between two of them: sums of requests and of their blocks,
 * and all that is kept of one request, another one each time. 0, or -EUCLEAN and *whyp a
 * sentence. */
int scheduler_audit(struct scheduler *s, const char **whyp);

/* After an audit that failed: requests that contradict themselves or each other become is_broken
 * and lose their blocks; they are to be ended. All sums, those of the pool of requests too, and the
 * cache are made anew from the others. */
void scheduler_repair(struct scheduler *s, struct requests *all);

/* Audits lists, requests, tables and the pool together: 0, or -EUCLEAN and *whyp a sentence. */
int scheduler_check(const struct scheduler *s, bool between_steps, const char **whyp);

#endif
