/* daemon/engine.h - one step: take what runs, run it, sample, hand tokens out.
 *
 * The engine owns requests, scheduler, cache, batch; it knows nothing of lanes, sockets or clients.
 * What it produces goes to a sink (deliver.c; in tests, an array). Loop thread only. Nothing
 * allocates after engine_new: requests come from a pool of max_requests; their ids and block tables
 * lie in address space reserved then, of which only what is written ever takes memory.
 *
 * Every accepted request ends exactly once, and always from within engine_step or engine_fail_all.
 * What a request gets depends on the request only: never on what else runs, on chunks, soft resets
 * or time. */
#ifndef CB_DAEMON_ENGINE_H
#define CB_DAEMON_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/model/model.h"

struct engine;
struct request;
struct batch;    /* daemon/sched/batch.h */
struct clock;    /* daemon/base/clock.h */
struct cb_stops; /* shm/stop.h */

#define ENGINE_STOP_IDS_MAX 64 /* intake refuses longer lists */

enum finish { /* why a request ended; the same numbers go over the lane (shm/format.h) */
              FINISH_NONE = 0,
              FINISH_EOS = 1,
              FINISH_STOP = 2, /* a stop id or a stop string */
              FINISH_LENGTH = 3,
              FINISH_CANCELLED = 4,
              FINISH_DEADLINE = 5,
              FINISH_ERROR = 6,
};

/* What intake checked and hands over. Arrays are copied by engine_submit. */
struct request_spec {
    const uint32_t *prompt;   /* ids within the vocabulary                                    */
    uint32_t n_prompt;        /* at least 1                                                   */
    uint32_t max_new_tokens;  /* prompt and these within engine_tokens_max; 0: ends at once   */
    const uint32_t *stop_ids; /* besides the model's eos; an id here ends with FINISH_STOP    */
    uint32_t n_stop_ids;      /* at most ENGINE_STOP_IDS_MAX                                  */
    bool ignore_eos;
    const struct cb_stops *stops; /* compiled stop strings (shm/stop.h), or NULL; copied          */
    float temperature;            /* 0: greedy */
    uint32_t top_k;
    float top_p;
    uint64_t seed;
    uint64_t deadline_ns; /* by daemon/base/clock.h; 0: none */
    uint8_t priority;     /* 0-255; kept, not yet used       */
    uint32_t uid;         /* whose quota                     */
    void *owner;          /* the sink's: which lane and slot */
};

struct request_end {
    enum finish finish;
    int32_t error;        /* FINISH_ERROR: an enum cb_status (shm/format.h)                     */
    uint32_t n_generated; /* tokens handed out, the ending one included                         */
    uint32_t stop_idx;    /* FINISH_STOP: which string, or which id (by `stop_is_id`)           */
    bool stop_is_id;
    uint32_t text_bytes; /* FINISH_STOP by string: bytes of generated text before the stop     */
    uint64_t submitted_ns, started_ns, first_token_ns, ended_ns; /* 0: not reached              */
    uint32_t n_prompt, n_prefix_hit;
};

/* A callback may call engine_submit and engine_cancel, nothing else of the engine. */
struct engine_sink {
    void *ctx;
    /* Looks for cancels (lanes' cancel words) and calls engine_cancel for them. Called before a
     * step is scheduled and again before its results are applied. NULL: nobody looks. */
    void (*look)(void *ctx);
    /* Token `index` (from 0) of the request was made, at time_ns. */
    void (*token)(void *ctx, struct request *r, void *owner, uint32_t index, uint32_t token,
                  uint64_t time_ns);
    /* The request ended: exactly once for each accepted one. The engine frees r after this returns.
     */
    void (*end)(void *ctx, struct request *r, void *owner, const struct request_end *end);
};

enum scheduler_kind { SCHEDULER_FIFO, SCHEDULER_PREFILL_FIRST };

struct engine_config {
    enum scheduler_kind scheduler;
    uint32_t max_requests;    /* accepted and not ended, waiting ones included                    */
    uint64_t max_held_tokens; /* sum of prompt and limit over all of them                         */
    uint32_t max_batch_tokens;       /* query tokens a step; at most the model's       */
    uint32_t max_requests_per_batch; /* sequences a step; capped to max_batch_tokens */
    uint32_t max_blocks_per_request; /* decode fast path: such steps are free of the read budget; 0:
                                        none */
    double safety_margin; /* free share of the cache below which new prefills wait; negative: */
                          /* the scheduler's default (fifo 0.15, prefill_first 0)             */
    uint32_t step_ms_max; /* prefill of a step is cut to last about this long; 0: off         */
};

enum {
    ENGINE_IDLE = 1, /* nothing to do                                                            */
    ENGINE_FULL = 2, /* no room for this request now                                             */
    ENGINE_TOO_BIG = 3, /* no room for it ever: prompt and limit above engine_tokens_max */
    ENGINE_RUNNING = 4, /* a step is on the device: serve others, then call again; never on CPUs */
    ENGINE_MORE = 5, /* engine_populate_some: not all blocks have memory yet                     */
};

/* The model's max_batch_tokens and max_batch_seqs are at least the configuration's. 0 or negative
 * errno. */
int engine_new(struct engine **enginep, const struct engine_config *config, struct model *model,
               const struct engine_sink *sink, const struct clock *clock);
/* Requests that have not ended are dropped without a word. NULL is fine; returns NULL. */
struct engine *engine_free(struct engine *e);

/* The most tokens, prompt and limit together, that one request may have: context or whole cache. */
uint32_t engine_tokens_max(const struct engine *e);

/* 0, ENGINE_FULL or ENGINE_TOO_BIG; on 0 *requestp is valid until its end was reported. */
int engine_submit(struct engine *e, const struct request_spec *spec, struct request **requestp);

/* Ends the request at the next step boundary; its end is reported from engine_step. Cancelling
 * twice is fine. */
void engine_cancel(struct engine *e, struct request *r);

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
    uint32_t n_active, n_waiting, n_free_blocks, n_blocks;
    uint64_t n_soft_resets;
};
void engine_stats(const struct engine *e, struct engine_stats *stats);

enum request_phase { REQUEST_WAITING, REQUEST_PREFILLING, REQUEST_DECODING };

struct request_info { /* what an operator asks about one */
    enum request_phase phase;
    uint32_t uid, n_prompt, n_generated, max_new_tokens;
    uint32_t n_cached, n_blocks; /* tokens with keys in the cache; blocks held */
    uint32_t n_soft_resets;
    uint64_t submitted_ns;
    void *owner;
};
void engine_request_info(const struct request *r, struct request_info *info);

/* The batch of the last step, in the scheduler's order; empty after an idle one. */
const struct batch *engine_batch(const struct engine *e);

/* Audits every invariant of requests, lists, tables and blocks: 0, or -EUCLEAN and *whyp a
 * sentence. Walks everything: for tests and after a suspected fault, not for each step. */
int engine_check(const struct engine *e, const char **whyp);

#endif
