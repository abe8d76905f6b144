/* tests/daemon/storm.h - random requests through engine, model and kernels: each alone, then all in
 * storms.
 *
 * A storm's requests are drawn from its seed: prompts from 1 token to some hundred, most of which
 * begin as others do, some continued several times over, greedy and sampled, limits from 0, stop ids
 * and strings, and for a half of them whatever else may be asked of the choice of tokens. storm_alone
 * finds out what each gets alone: a model of its own with an empty cache, one thread, the scalar
 * level, the whole prompt in one step. storm_rage runs all of them in one engine of any shape, in an
 * order and at a pace drawn from the seed, some cancelled, some going on from where another engine is
 * said to have left them; every token, the bits of its
 * log-probability and of the best ones', those of the prompt where asked for, and the end must be
 * those of the request alone, a cancelled one's tokens a prefix of them. The clock is drawn as well,
 * so that the same steps come again. A failure says which storm it was and how to run it again. */
#ifndef CB_TESTS_DAEMON_STORM_H
#define CB_TESTS_DAEMON_STORM_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/engine.h"
#include "tests/util/tiny.h"

enum {
    STORM_REQUESTS = 200,
    STORM_PROMPT_MAX = 700,
    STORM_NEW_MAX = 100,
    STORM_TOKENS_MAX = STORM_PROMPT_MAX + STORM_NEW_MAX
};

struct storm_kind {
    const char *test; /* as Criterion's --filter takes it */
    uint64_t seed;
    struct tiny tiny; /* the model; with bad_from, one prompt in four holds such an id */
    enum dtype kv_dtype;
    uint32_t n_requests;   /* at most STORM_REQUESTS           */
    uint32_t prompt_usual; /* most have up to so many tokens   */
};

/* One way to run them. An isa that the machine has not is "auto". */
struct storm_shape {
    uint32_t max_batch_tokens, page_size, cache_tokens, max_requests_per_batch, n_threads;
    const char *isa;
    enum scheduler_kind scheduler;
    uint32_t step_ms_max;
    bool shares;          /* blocks                 */
    uint32_t pool_tokens; /* of room beside the cache */
};

/* How often what a storm is about has happened. */
struct storm_counts {
    uint32_t n_finishes[7]; /* by enum finish                                   */
    uint32_t n_cut;         /* cancelled with some, but not all of their tokens */
    uint32_t n_pauses;      /* of families of requests */
    uint32_t n_given;       /* that went on from tokens of theirs                       */
    uint32_t n_scored;      /* prompts with log-probabilities, up to their first token */
    uint64_t n_soft_resets, n_restores, n_prefix_hits, n_forks;
};

struct storm;

struct storm *storm_new(const struct storm_kind *kind);
struct storm *storm_free(struct storm *st); /* NULL is fine; returns NULL */
void storm_alone(struct storm *st, struct storm_counts *counts);
/* The storm of that number; adds to counts. */
void storm_rage(struct storm *st, uint32_t number, const struct storm_shape *shape,
                struct storm_counts *counts);

#endif
