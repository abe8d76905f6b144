/* daemon/engine.h - one step: take what runs, run it, sample, hand tokens out.
 *
 * The engine owns requests, scheduler, cache, batch; it knows nothing of lanes, sockets or clients.
 * What it produces goes to a sink (deliver.c; in tests, an array). Loop thread only. Nothing
 * allocates after engine_new: requests come from a pool of max_requests; their ids and block tables
 * lie in address space reserved then, of which only what is written ever takes memory.
 *
 * Every accepted request ends exactly once, and always from within engine_step, engine_fail_all or
 * engine_load_publish. What a request gets depends on the request only: never on what else runs, on
 * chunks, soft resets or time; and, where weights are switched, on the epochs that its tokens are
 * told with.
 *
 * Before each step the engine audits its bookkeeping, cheaply. Where that contradicts itself, the
 * requests concerned end with CB_INTERNAL, the rest is made good, and the engine goes on. */
#ifndef CB_DAEMON_ENGINE_H
#define CB_DAEMON_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/model/model.h"
#include "daemon/sched/policy.h"  /* enum scheduler_kind */
#include "daemon/sched/request.h" /* request_spec, request_end, enum finish */

struct engine;
struct batch; /* daemon/sched/batch.h */
struct clock; /* daemon/base/clock.h  */

struct engine_logprobs {
    float logprob;
    const struct sample_best *best; /* [n_best] dies with the callback's return */
    uint32_t n_best;
};

/* A callback may call engine_submit and engine_cancel, nothing else of the engine. */
struct engine_sink {
    void *ctx;
    /* Looks for cancels (lanes' cancel words) and calls engine_cancel for them. Called before a
     * step is scheduled and again before its results are applied. NULL: nobody looks. */
    void (*look)(void *ctx);
    /* The log-probabilities of token `index` of the request, before it is told; or of token `index`
     * of its prompt, from 1 on, all of them before its first token or its end. Where asked for.
     * NULL: nobody wants them. */
    void (*logprobs)(void *ctx, struct request *r, void *owner, bool of_prompt, uint32_t index,
                     const struct engine_logprobs *l);
    /* Token `index` (from 0) of the request was made, at time_ns, with weights r->token_epoch. */
    void (*token)(void *ctx, struct request *r, void *owner, uint32_t index, uint32_t token,
                  uint64_t time_ns);
    /* The request ended: exactly once for each accepted one. The engine frees r after this
     * returns. */
    void (*end)(void *ctx, struct request *r, void *owner, const struct request_end *end);
};

struct engine_config {
    enum scheduler_kind scheduler;
    uint32_t ageing_ms;       /* priority: a level more for so much waiting; 0: no ageing         */
    uint32_t max_requests;    /* accepted and not ended, waiting ones included                    */
    uint64_t max_held_tokens; /* sum of prompt and limit over all of them                         */
    uint32_t max_batch_tokens;       /* query tokens a step; at most the model's         */
    uint32_t max_requests_per_batch; /* sequences a step; capped to max_batch_tokens     */
    /* Decode fast path: steps of so few blocks each are free of the read budget; 0: none. */
    uint32_t max_blocks_per_request;
    /* Free share of the cache below which new prefills wait; negative: the scheduler's default
     * (0.15, but 0 for prefill_first). */
    double safety_margin;
    bool
        allow_block_sharing; /* requests that begin alike share blocks                            */
    uint32_t step_ms_max;    /* prefill of a step is cut to last about this long; 0: off */
};

enum {
    ENGINE_IDLE = 1,    /* nothing to do                                                        */
    ENGINE_FULL = 2,    /* no room for this request now                                         */
    ENGINE_TOO_BIG = 3, /* no room for it ever: prompt and limit above engine_tokens_max        */
    ENGINE_RUNNING = 4, /* a step is on the device: serve others, then call again; never on CPUs */
    ENGINE_MORE = 5,    /* engine_populate_some, engine_load_some: there is more to do           */
    ENGINE_ENDED = 6,   /* it would have ended before the last of the tokens that are given     */
};

/* The model's max_batch_tokens and max_batch_seqs are at least the configuration's. 0 or negative
 * errno. */
int engine_new(struct engine **enginep, const struct engine_config *config, struct model *model,
               const struct engine_sink *sink, const struct clock *clock);
/* Requests that have not ended are dropped without a word. NULL is fine; returns NULL. */
struct engine *engine_free(struct engine *e);

/* The most tokens, prompt and limit together, that one request may have: context, whole cache or
 * max_held_tokens, whichever is least. What is refused as ENGINE_FULL fits one day. */
uint32_t engine_tokens_max(const struct engine *e);

/* 0, ENGINE_FULL, ENGINE_TOO_BIG or ENGINE_ENDED; on 0 *requestp is valid until its end was reported.
 * Tokens that spec gives count as its own, in every respect, but are not handed out: if they are the
 * whole answer, only the end is. */
int engine_submit(struct engine *e, const struct request_spec *spec, struct request **requestp);

/* The same for n continuations of one prompt: child i has spec's child_idx plus i and belongs to
 * owners[i]. The prompt is computed once; then each is a request of its own. All are accepted or
 * none. Tokens can be given to one alone. */
int engine_submit_many(struct engine *e, const struct request_spec *spec, uint32_t n,
                       void *const *owners, struct request **requests);

/* What users' requests weigh from now on, where the scheduler is fair or auto. */
void engine_set_weights(struct engine *e, const struct share_weights *weights);

/* When a request of this spec, which is not too big, would start, have its first token and end: a
 * guess (scheduler.h). */
struct engine_forecast {
    bool is_known; /* something was measured to guess from, and it is not paused          */
    uint64_t start_ns, first_token_ns, finish_ns; /* from now on */
};
void engine_forecast(struct engine *e, const struct request_spec *spec, struct engine_forecast *f);

/* Says in words what the request does or what it waits for, into text [bytes] (scheduler.h). */
void engine_request_why(const struct engine *e, const struct request *r, char *text, size_t bytes);

/* Takes other weights of the same model from a file, as model_reload_* does, while steps go on:
 *   begin    0, or a negative errno with message (MODEL_MESSAGE_MAX bytes)
 *   some     a slice, between two steps: 0: all is there; ENGINE_MORE; or a negative errno with
 *            message, and nothing has changed
 *   publish  after 0: the next epoch begins, after the step that is on the device. Nothing computed
 *            before is found by others any more. Requests that have tokens go on, begin anew or end
 *            with CB_NEW_WEIGHTS, as they wish; who says nothing, as `otherwise` says, which is not
 *            DEFAULT. Those without begin anew, so that a prompt is always of one epoch.
 *   drop     instead; fine if none was begun
 * The only calls that use the heap. */
int engine_load_begin(struct engine *e, int fd, const char *name, char *message);
int engine_load_some(struct engine *e, char *message);
void engine_load_publish(struct engine *e, enum on_new_weights otherwise);
void engine_load_drop(struct engine *e);

/* Ends the request at the next step boundary; its end is reported from engine_step. Cancelling
 * twice is fine. */
void engine_cancel(struct engine *e, struct request *r);

/* What request_spec.paused points to has changed. Not to say so harms forecasts only. */
void engine_note_pause(struct engine *e, struct request *r);

/* While it is paused no step runs; requests come and go, cancels and deadlines end them as ever.
 * Waits for a step on the device. */
void engine_pause(struct engine *e, bool paused);

/* When something ends by itself though nothing runs: the next deadline, or UINT64_MAX. */
uint64_t engine_next_ns(const struct engine *e);

/* One step: 0 if something ran or ended, else ENGINE_IDLE or ENGINE_RUNNING. Never fails as a
 * whole: what a step breaks ends with FINISH_ERROR. */
int engine_step(struct engine *e);

/* Ends everything now with FINISH_ERROR and this status; waits for a step on the device. */
void engine_fail_all(struct engine *e, int32_t error);

/* For idle time: backs some more blocks of the cache with memory, about `bytes` of them, at least
 * one. 0: all have; ENGINE_MORE: call again; negative errno: the machine refuses (logged by the
 * model). */
int engine_populate_some(struct engine *e, size_t bytes);

struct engine_stats {
    uint64_t n_steps, n_prefill_tokens, n_decode_tokens;
    uint64_t model_ns, own_ns; /* time in the model; everything else in engine_step */
    uint64_t schedule_ns;      /* of own_ns: until a step was submitted             */
    uint32_t n_active, n_waiting;
    uint64_t n_held_tokens;                            /* prompts and limits of these */
    uint32_t n_blocks, n_free_blocks, n_cached_blocks; /* free: held by nobody, cached ones too */
    uint64_t n_soft_resets;
    uint64_t n_offloads, n_restores; /* requests put aside in the pool, and taken up from there */
    uint64_t n_recomputed_tokens;    /* that had been computed: after a soft reset or a restart */
    uint32_t n_pool_blocks, n_free_pool_blocks;
    uint64_t n_restarts; /* requests computed anew: a row was not finite, theirs or a sharer's, or
                            weights were switched */
    uint64_t n_prefix_hits, n_prefix_hit_tokens; /* requests that took blocks over; tokens there */
    uint64_t n_evicted_blocks;
    uint64_t n_violations; /* steps at which the bookkeeping contradicted itself: was repaired */
    const char *violation; /* the last one, a sentence; NULL: none                             */
    uint32_t weight_epoch;
    uint64_t n_forks; /* continuations that began where their prompt's first one stood */
};
void engine_stats(const struct engine *e, struct engine_stats *stats);

/* What it has accepted, of this only what is asked for at every turn. */
struct engine_held {
    uint32_t n_requests, n_waiting; /* of these */
    uint64_t n_tokens;              /* their prompts and limits */
};
void engine_held(const struct engine *e, struct engine_held *held);

struct request_info { /* what an operator asks about one */
    enum request_phase phase;
    uint32_t uid, n_prompt, n_generated, max_new_tokens;
    uint32_t n_cached, n_blocks; /* tokens with keys in the cache; blocks held */
    uint8_t priority;
    bool is_paused;
    uint32_t n_soft_resets;
    uint64_t submitted_ns;
    void *owner;
};
void engine_request_info(const struct request *r, struct request_info *info);

/* The batch of the last step, in the scheduler's order; empty after an idle one. Requests in it
 * that have ended are as they ended, until the next engine_submit. */
const struct batch *engine_batch(const struct engine *e);

/* Audits every invariant of requests, lists, tables and blocks: 0, or -EUCLEAN and *whyp a
 * sentence. Walks everything: for tests and after a fault, not for each step. */
int engine_check(const struct engine *e, const char **whyp);

#endif
