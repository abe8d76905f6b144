/* tests/kernels/ops_common.h - one set of operator cases for any pair of backends.
 *
 * Each check makes random inputs, runs an operator on the backend under test and on the oracle, and
 * reports by cr_expect what leaves the limits: NMSE = |a-b|^2/|b|^2 over the whole output, and the
 * largest |a-b| in units of the oracle's rms, over all or over the row (the larger). Where the
 * oracle's output is all zeros, the other's must be too; a NaN or an infinity on one side only
 * never passes. Without limits the two must be the same bits. Call kernels_thread_init() first.
 *
 * OPS_SEEDS=n in the environment runs every check with n seeds and prints the largest errors, which
 * are then held to no limit. */
#ifndef CB_TESTS_KERNELS_OPS_COMMON_H
#define CB_TESTS_KERNELS_OPS_COMMON_H

#include "kernels/kernels.h"

/* What is compared, and what costs it precision: limits go by this. QUANTISED: weights in Q4_0,
 * Q4_1 or Q8_0, where a backend's activations may be int8; HEAVY: the same with a few values of the
 * input 20 or 1000 times the others. F32, BF16 and U8 are what keys and values are kept in. */
#define OPS_PATHS(X)                                                                          \
    X(EMBED)                                                                                  \
    X(NORM)                                                                                   \
    X(LINEAR)                                                                                 \
    X(LINEAR_QUANTISED)                                                                       \
    X(LINEAR_HEAVY)                                                                           \
    X(GATED)                                                                                  \
    X(GATED_QUANTISED)                                                                        \
    X(GATED_HEAVY)                                                                            \
    X(HEAD)                                                                                   \
    X(HEAD_QUANTISED)                                                                         \
    X(HEAD_HEAVY)                                                                             \
    X(QUERY)                                                                                  \
    X(QUERY_QUANTISED)                                                                        \
    X(QUERY_HEAVY)                                                                            \
    X(VALUE_F32) /* V as a window of one key shows it */                                      \
    X(VALUE_BF16)                                                                             \
    X(VALUE_U8)                                                                               \
    X(VALUE_F32_QUANTISED)                                                                    \
    X(VALUE_BF16_QUANTISED)                                                                   \
    X(VALUE_U8_QUANTISED)                                                                     \
    X(VALUE_F32_HEAVY)                                                                        \
    X(VALUE_BF16_HEAVY)                                                                       \
    X(VALUE_U8_HEAVY)                                                                         \
    X(KEY_F32) /* K as the attention that it leads to shows it */                             \
    X(KEY_BF16)                                                                               \
    X(KEY_U8)                                                                                 \
    X(KEY_F32_QUANTISED)                                                                      \
    X(KEY_BF16_QUANTISED)                                                                     \
    X(KEY_U8_QUANTISED)                                                                       \
    X(ATTENTION_F32) /* by the type of the pool; where that is U8 the oracle has the codes */ \
    X(ATTENTION_BF16)                                                                         \
    X(ATTENTION_U8)                                                                           \
    X(ATTENTION_HEAVY) /* BF16 or U8, a few of the values 1000 times the others */            \
    X(ATTENTION_CODED) /* U8 where the oracle has none */

#define OPS_PATH(name) OPS_##name,
enum ops_path { OPS_PATHS(OPS_PATH) OPS_N_PATHS };

struct ops_error {
    double nmse, max;
};

/* seen: the largest errors of many seeds, of outputs of 256 values and more. Three times that
 * passes there, but never more than most, which is what the project allows. */
struct ops_limit {
    struct ops_error seen, most;
};

/* By path: f32 everywhere; and 8-bit activations with bf16 K, V, q, p. */
extern const struct ops_limit ops_limits_f32[OPS_N_PATHS];
extern const struct ops_limit ops_limits_cpu[OPS_N_PATHS];

struct ops_subject {
    const struct backend_ops *ops; /* under test */
    struct backend_config config;
    const struct backend_ops *oracle; /* &oracle_backend, &contract_backend, &backend_reference */
    const struct ops_limit *limits;   /* [OPS_N_PATHS]; NULL: the same bits */
    uint32_t page_multiple; /* page sizes are multiples of it: 16 on cpu, 1 on reference */
    uint32_t head_multiple; /* and head dimensions of this: 2 on cpu, 1 on reference */
    uint32_t seed;
    struct ops_error *seen; /* [OPS_N_PATHS] the largest so far; NULL: the limits count */
};

/* Runs a check on a subject, with one seed or OPS_SEEDS. */
void ops_run(void (*check)(const struct ops_subject *s), const struct ops_subject *subject);

void ops_check_embed(const struct ops_subject *s);
void ops_check_rmsnorm(const struct ops_subject *s);
void ops_check_gather(const struct ops_subject *s);
void ops_check_next(const struct ops_subject *s); /* the same bits, handed on or not */
void ops_check_linear(const struct ops_subject *s);
void ops_check_gate_up(const struct ops_subject *s);
void ops_check_head(const struct ops_subject *s);
/* q; V through a window of one key; K through attention. */
void ops_check_qkv(const struct ops_subject *s);
/* Mixed steps, pages, windows, caps, sinks, heads that share keys. */
void ops_check_attention(const struct ops_subject *s);
/* NaN in a page of before. */
void ops_check_reused_pages(const struct ops_subject *s);
/* kv_copy: the same bits from the copy. */
void ops_check_copied_pages(const struct ops_subject *s);
/* A NaN among codes of 8 bits: its own sequence's alone. */
void ops_check_poisoned_keys(const struct ops_subject *s);
/* The same token and bits of log-probabilities. */
void ops_check_sample(const struct ops_subject *s);
void ops_check_sample_programs(const struct ops_subject *s);
/* Bad shapes are refused at load, with a reason. */
void ops_check_refusals(const struct ops_subject *s);

/* Random numbers for tests; any seed. */
uint32_t ops_random(uint64_t *state);
double ops_random_normal(uint64_t *state);

#endif
