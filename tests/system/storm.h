/* tests/system/storm.h - many requests whose right results are known.
 *
 * A storm is STORM_REQUESTS requests drawn from a seed: lengths, ids, limits, greedy and sampled,
 * stop ids and strings, streamed and not. What each of them gives alone is found out once, one
 * after another on a daemon of its own; from then on any result can be held against that, from any
 * process and any configuration, because a result depends on the request only. */
#ifndef CB_TESTS_SYSTEM_STORM_H
#define CB_TESTS_SYSTEM_STORM_H

#include <stdint.h>

#include "tests/system/crowd.h"
#include "tests/system/pace.h"

enum { STORM_CLIENTS = 32, STORM_EACH = 8, STORM_PROMPT_MAX = 600, STORM_NEW_MAX = 200 };

struct storm_scale {
    uint64_t seed;
    uint32_t n_vocab;
    uint32_t n_distinct;              /* requests; clients share them           */
    uint32_t prompt_usual, new_usual; /* most are about as long,                */
    uint32_t prompt_max, new_max;     /* one in eight anything up to these      */
};

struct storm_answer {
    uint32_t n, end, stop_idx, stop_is_id, text_bytes, n_text;
    uint64_t text_hash;
    uint32_t ids[STORM_NEW_MAX];
};

struct storm {
    struct storm_scale scale;
    struct storm_answer *answers; /* [n_distinct], seen by all processes */
};

/* A request, with what it points to. */
struct storm_request {
    struct cb_request request;
    uint32_t prompt[STORM_PROMPT_MAX];
    uint32_t stop_ids[3];
    struct cb_string stops[2];
};

void storm_init(struct storm *st, const struct storm_scale *scale);
void storm_fini(struct storm *st);
/* The i-th, i below n_distinct. */
void storm_request(const struct storm *st, uint32_t i, struct storm_request *r);
/* Fills the answers, one request at a time. */
void storm_answer_all(struct storm *st, const struct system *s);

/* An ended request of a member's against its answer: the same, or, if it was cancelled, a
 * prefix. */
void storm_check(struct crowd *c, const struct storm *st, struct cb_handle *h, uint64_t id,
                 uint32_t i, uint32_t end);

/* What a client of a storm does: opens, sends STORM_EACH requests in its own order and pace,
 * cancels some, checks each, closes. */
struct storm_member {
    const struct storm *storm;
    uint32_t n_rounds;
    bool cancels;
    uint32_t kind;     /* enum cb_kind */
    uint32_t named;    /* as in cb_options */
    struct pace *pace; /* of all its tokens; NULL: not measured */
};
void storm_member_run(struct crowd *c, uint32_t i, void *member);

/* STORM_CLIENTS of these against a daemon with the settings; then all is as before. Returns how
 * often a request was preempted and computed again. */
uint64_t storm_rage(const struct storm *st, const char *const *settings);

uint32_t draw(uint64_t *random, uint32_t n); /* below n */

#endif
