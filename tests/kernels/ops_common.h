/* tests/kernels/ops_common.h - one set of operator cases for any pair of backends.
 *
 * Each check makes random inputs, runs an operator on the backend under test and on the oracle, and
 * reports by cr_expect what leaves the limits: NMSE = |a-b|^2/|b|^2 over the whole output, and the
 * largest |a-b| in units of the oracle's rms, over all or over the row (the larger). Where the
 * oracle's output is all zeros, the other's must be too; a NaN or an infinity on one side only
 * never passes. Call kernels_thread_init() first. */
#ifndef CB_TESTS_KERNELS_OPS_COMMON_H
#define CB_TESTS_KERNELS_OPS_COMMON_H

#include "kernels/kernels.h"

struct ops_limit {
    double nmse, max;
};

struct ops_limits {
    struct ops_limit norm;
    struct ops_limit linear;          /* F32, F16 and BF16 weights                        */
    struct ops_limit quantised;       /* Q4_0, Q4_1 and Q8_0 weights                      */
    struct ops_limit quantised_heavy; /* the same, a few channels of the input times 20   */
    struct ops_limit gated;           /* gate_up: F32, F16 and BF16 weights               */
    struct ops_limit gated_quantised; /* gate_up: the others, any input                   */
    struct ops_limit stored_bf16;     /* V as stored in a BF16 pool                       */
    struct ops_limit stored_u8;       /* in a U8 pool, if its codes were other codes      */
    struct ops_limit attention_f32;   /* by the pool's type                               */
    struct ops_limit attention_bf16;  /* U8 too: the oracle has the same codes            */
    struct ops_limit attention_u8;    /* the same where the oracle has no codes           */
};

/* Section by section what the project allows: f32 everywhere; and 8-bit activations with bf16 K, V,
 * q, p. */
extern const struct ops_limits ops_limits_f32;
extern const struct ops_limits ops_limits_cpu;

struct ops_subject {
    const struct backend_ops *ops; /* under test */
    struct backend_config config;
    const struct backend_ops *oracle; /* &oracle_backend, or &backend_reference */
    const struct ops_limits *limits;
    uint32_t page_multiple; /* page sizes are multiples of it: 16 on cpu, 1 on reference    */
    uint32_t dim_multiple;  /* row lengths and head dimensions likewise: 16 on cpu, 1        */
    uint32_t seed;
};

void ops_check_embed(const struct ops_subject *s);
void ops_check_rmsnorm(const struct ops_subject *s);
void ops_check_gather(const struct ops_subject *s);
void ops_check_next(const struct ops_subject *s);
void ops_check_linear(const struct ops_subject *s);
void ops_check_gate_up(const struct ops_subject *s);
void ops_check_qkv(
    const struct ops_subject *s); /* q; V through a window of one key; K through attention */
void ops_check_attention(
    const struct ops_subject *s); /* mixed steps, pages, windows, caps, sinks, GQA         */
void ops_check_reused_pages(const struct ops_subject *s); /* NaN in a page of before; kv_clear */
void ops_check_copied_pages(const struct ops_subject *s); /* kv_copy: same bits from the copy */
void ops_check_poisoned_keys(
    const struct ops_subject *s); /* a NaN in U8: its own sequence's alone */
void ops_check_head(const struct ops_subject *s);
void ops_check_sample(
    const struct ops_subject *s); /* the same token and bits of log-probabilities */
void ops_check_sample_programs(const struct ops_subject *s);
void ops_check_refusals(
    const struct ops_subject *s); /* bad shapes are refused at load, with a reason  */

/* Random numbers for tests; any seed. */
uint32_t ops_random(uint64_t *state);
double ops_random_normal(uint64_t *state);

#endif
