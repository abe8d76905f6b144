/* daemon/engine.h - one step: take what runs, run it, sample, hand tokens out.
 *
 * The engine owns requests, scheduler, cache, batch; it knows nothing of lanes, sockets or clients. What
 * it produces goes to a sink (deliver.c; in tests, an array). Loop thread only. Nothing allocates after
 * engine_new: requests come from a pool of max_requests, their ids from an arena of fixed size. */
#ifndef CB_DAEMON_ENGINE_H
#define CB_DAEMON_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/model/model.h"

struct engine;
struct request;
struct clock;    /* daemon/base/clock.h */
struct cb_stops; /* shm/stop.h */

enum finish { /* why a request ended; the same numbers go over the lane (shm/format.h) */
    FINISH_NONE = 0,
    FINISH_EOS = 1,
    FINISH_STOP = 2,   /* a stop id or a stop string */
    FINISH_LENGTH = 3,
    FINISH_CANCELLED = 4,
    FINISH_DEADLINE = 5,
    FINISH_ERROR = 6,
};

/* What intake checked and hands over. Arrays are copied by engine_submit. */
struct request_spec {
    const uint32_t *prompt;
    uint32_t n_prompt;            /* at least 1                                                   */
    uint32_t max_new_tokens;      /* already bounded by context - prompt; 0: ends at once, LENGTH */
    const uint32_t *stop_ids;     /* besides the model's eos; an id here ends with FINISH_STOP    */
    uint32_t n_stop_ids;
    bool ignore_eos;
    const struct cb_stops *stops; /* compiled stop strings (shm/stop.h), or NULL; copied          */
    float temperature;            /* 0: greedy */
    uint32_t top_k;
    float top_p;
    uint64_t seed;
    uint64_t deadline_ns;         /* by daemon/base/clock.h; 0: none */
    uint8_t priority;             /* 0-255; kept, not yet used       */
    uint32_t uid;                 /* whose quota                     */
    void *owner;                  /* the sink's: which lane and slot */
};

struct request_end {
    enum finish finish;
    int32_t error;           /* FINISH_ERROR: an enum cb_status (shm/format.h)                     */
    uint32_t n_generated;    /* tokens handed out, the ending one included                         */
    uint32_t stop_idx;       /* FINISH_STOP: which string, or which id (by `stop_is_id`)           */
    bool stop_is_id;
    uint32_t text_bytes;     /* FINISH_STOP by string: bytes of generated text before the stop     */
    uint64_t started_ns, first_token_ns, ended_ns; /* 0: not reached                              */
    uint32_t n_prompt, n_prefix_hit;
};

struct engine_sink {
    void *ctx;
    /* Token `index` (from 0) of the request was made. */
    void (*token)(void *ctx, struct request *r, void *owner, uint32_t index, uint32_t token);
    /* The request ended: exactly once for each accepted one. The engine frees r after this returns. */
    void (*end)(void *ctx, struct request *r, void *owner, const struct request_end *end);
};

enum scheduler_kind { SCHEDULER_FIFO, SCHEDULER_PREFILL_FIRST };

struct engine_config {
    enum scheduler_kind scheduler;
    uint32_t max_requests;        /* accepted and not ended, waiting ones included */
    uint32_t max_waiting_tokens;  /* prompt ids held for all of them               */
    uint32_t max_batch_tokens, max_requests_per_batch;
    double safety_margin;         /* negative: the scheduler's default             */
    uint32_t step_ms_max;         /* 0: off                                        */
};

enum { ENGINE_IDLE = 1, ENGINE_FULL = 2 };

int engine_new(struct engine **enginep, const struct engine_config *config, struct model *model,
               const struct engine_sink *sink, const struct clock *clock);
struct engine *engine_free(struct engine *e);

/* 0; ENGINE_FULL: no room for it now; *requestp is valid until its end was reported. */
int engine_submit(struct engine *e, const struct request_spec *spec, struct request **requestp);

/* Ends the request at the next step boundary; its end is reported from engine_step. */
void engine_cancel(struct engine *e, struct request *r);

/* One step: 0 if something ran or ended, ENGINE_IDLE if there is nothing to do. Never fails as a whole:
 * what a step breaks ends with FINISH_ERROR. */
int engine_step(struct engine *e);

/* Ends everything now with FINISH_ERROR and this status. */
void engine_fail_all(struct engine *e, int32_t error);

struct engine_stats {
    uint64_t n_steps, n_prefill_tokens, n_decode_tokens;
    uint64_t model_ns, own_ns;   /* time in the model; everything else in engine_step */
    uint32_t n_active, n_waiting, n_free_blocks, n_blocks;
    uint64_t n_soft_resets;
};
void engine_stats(const struct engine *e, struct engine_stats *stats);

#endif
