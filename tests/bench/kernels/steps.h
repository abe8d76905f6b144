/* tests/bench/kernels/steps.h - steps of a 135M-parameter llama (Q4_1, Q8_0 head), timed operator by
 * operator.
 *
 * Weights are random; shapes, formats and number of layers are SmolLM2-135M's, so that the weights
 * stream from memory as in the real model. Every sequence has pages of its own. */
#ifndef CB_BENCH_STEPS_H
#define CB_BENCH_STEPS_H

#include "kernels/kernels.h"
#include "tests/bench/kernels/limits.h"

enum { STEP_TOKENS_MAX = 128, STEP_SEQS_MAX = 64 };

enum op { OP_QKV, OP_ATTENTION, OP_OUT, OP_GATE_UP, OP_DOWN, OP_EMBED, OP_HEAD, N_OPS };
extern const char *const op_names[N_OPS];

/* Decode: one token for each of n_tokens sequences that have n_past keys. Prefill: n_tokens of one
 * new sequence. */
struct point {
    bool prefill;
    uint32_t n_tokens, n_past;
};

struct steps;

/* Ready for the given points; ends the program if that can't be had. */
struct steps *steps_new(const struct backend_config *config, const struct point *points,
                        int n_points);
struct steps *steps_free(struct steps *s);
void steps_caps(const struct steps *s, struct backend_caps *caps);

/* Runs one step; seconds[N_OPS] in all layers. */
void steps_run(struct steps *s, const struct point *point, double *seconds);

/* What an operator must do at least in a step, whoever computes it. */
struct work {
    double macs, bytes;
    enum limit unit; /* who does the multiply-adds */
};
struct work op_work(enum op op, const struct point *point);

#endif
