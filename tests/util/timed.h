/* tests/util/timed.h - the engine over a scripted model whose steps take time by what is in them,
 * on a clock that stands still otherwise: steps and times are exact, and the same on every machine.
 *
 * A step takes STEP_NS and TOKEN_NS for each of its tokens. It holds up to 64 tokens and 8
 * requests. Every step is audited unless `is_fast`. A job is a request with what became of it. */
#ifndef CB_TESTS_UTIL_TIMED_H
#define CB_TESTS_UTIL_TIMED_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/clock.h"
#include "daemon/engine.h"

enum {
    TIMED_PAGE = 16,
    TIMED_USERS = 4,
    TIMED_STEP_NS = 1000000,
    TIMED_TOKEN_NS = 10000,
    TIMED_BATCH_TOKENS = 64,
    TIMED_PROMPT_MAX = 1024
};

struct timed_job {
    uint32_t user, n_prompt, limit, priority;
    uint64_t submitted_step; /* steps done when it was sent       */
    uint64_t first_step;     /* the step that gave its first token */
    uint64_t end_step;
    uint64_t start_ns, first_ns, end_ns; /* from when it was sent */
    enum finish finish;
    uint32_t n_resets, n_tokens;
    struct request *r; /* NULL: not sent, or ended */
};

struct timed_shape {
    enum scheduler_kind scheduler;
    uint32_t n_blocks, ageing_ms, max_requests; /* n_blocks 0: plenty; max_requests 0: 256 */
};

struct timed {
    struct fake_model *fake;
    struct engine *engine;
    struct virtual_clock time;
    struct clock clock;
    char why[128]; /* what the audit, or the bookkeeping of tests, found; empty: nothing */
    uint64_t n_steps;
    uint64_t service[TIMED_USERS]; /* 1 for a prompt's token, 2 for a generated one, once each */
    uint64_t n_ended[TIMED_USERS];
    uint32_t n_there; /* sent and not ended */
    uint32_t next_id; /* no two prompts begin alike */
    bool is_fast;
};

/* 0 or -ENOMEM. */
int timed_init(struct timed *t, const struct timed_shape *shape);
void timed_fini(struct timed *t);

/* The job as a request; prompt [TIMED_PROMPT_MAX] is written and must live as long. */
struct request_spec timed_spec(struct timed *t, struct timed_job *j, uint32_t *prompt);
void timed_send(struct timed *t, struct timed_job *j);
/* n of them: continuations of one prompt, all like jobs[0]. */
void timed_send_many(struct timed *t, struct timed_job *jobs, uint32_t n);
/* Sends those of n jobs that are not there, as `like`. */
void timed_keep_busy(struct timed *t, struct timed_job *jobs, uint32_t n,
                     const struct timed_job *like);
void timed_step(struct timed *t);
/* Until nobody is there, or something was found. */
void timed_finish_all(struct timed *t);

/* By how much two users who are busy all the time may ever differ in service by weight (shares.h),
 * in a cache of n_blocks with prompts of up to n_prompt tokens; weight is the smaller one. */
uint64_t timed_bound(uint32_t n_prompt, uint32_t n_blocks, uint32_t weight);

#endif
