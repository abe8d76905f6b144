/* sched/pace.h - how fast steps are of late, and what that says of those to come.
 *
 * Measured from the model's time for each batch; nothing here looks at a clock. What it says is a
 * guess, for sizing prefill and for predictions: no result depends on it. Engine thread only. */
#ifndef CB_DAEMON_SCHED_PACE_H
#define CB_DAEMON_SCHED_PACE_H

#include <stdbool.h>
#include <stdint.h>

/* Prefill of a step is never cut below this. */
#define PACE_PREFILL_TOKENS_MIN 16u

/* All zero: nothing measured. */
struct pace {
    /* Of late steps that held prefill, an older one's for less. Their quotient weighs a step by its
     * tokens: a few tokens cost more each, and would make the next steps small as well. */
    double prefill_ns, prefill_tokens;
    double step_ns; /* of late steps, whatever they held      */
    double unused;  /* of the limits of late ends, this share */
};

/* A batch of n_tokens in all, n_prefill of them of prompts, took model_ns. */
void pace_observe(struct pace *p, uint32_t n_tokens, uint32_t n_prefill, uint64_t model_ns);

/* A request came to an end of its own after n_generated tokens of its limit. */
void pace_observe_end(struct pace *p, uint32_t n_generated, uint32_t limit);

/* How much prefill a step of about step_ms_max (0: any) may hold beside those who decode. */
uint32_t pace_prefill_tokens(const struct pace *p, uint32_t step_ms_max, uint32_t n_decoding);

/* Whether there is enough to predict from. */
bool pace_is_known(const struct pace *p);
/* How long these take: prompt tokens, at least a step, and steps of decoding; and how many tokens requests with
 * limits of `limit` in all will generate, as far as they use them of late. */
double pace_prefill_ns(const struct pace *p, uint64_t n_tokens);
double pace_decode_ns(const struct pace *p, double n_steps);
double pace_expected(const struct pace *p, uint64_t limit);

#endif
