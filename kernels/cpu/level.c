/* The table of one level. */
#include "kernels/cpu/level.h"

#include "kernels/cpu/vec.h"

static void pairs(float out[16], const uint16_t *k, const uint16_t *q, uint32_t n_pairs)
{
    v16 acc = v_zero();

    for (uint32_t i = 0; i < n_pairs; i++) {
        float wide[2] = {numeric_from_bf16(q[2 * i]), numeric_from_bf16(q[2 * i + 1])};
        const void *coef = PAIR_NATIVE(DTYPE_BF16) ? (const void *)(q + 2 * i) : wide;

        acc = pair_fma(acc, pair_load((const uint8_t *)(k + 32 * i), 0, DTYPE_BF16), coef,
                       DTYPE_BF16);
    }
    v_store(out, acc);
}

static void product(float *out, const struct panels *p, const struct act *act)
{
    LEVEL(matmul_begin)(act);
    for (uint32_t n, t = 0; t < act->n_tokens; t += n) {
        n = matmul_n_tokens(act, t, act->n_tokens);
        LEVEL(matmul)(out + (size_t)t * PANEL_ROWS, PANEL_ROWS, p, 0, 1, act, t, n);
    }
    LEVEL(matmul_end)(act);
}

#define NAME2(level) #level
#define NAME(level)  NAME2(level)

const struct level LEVEL(level) = {
    .name = NAME(CPU_LEVEL),
    .matmul_tokens = MATMUL_TOKENS,
#if LEVEL_TILES
    .bf16_tokens = 64, /* matmul_bf16.c */
#endif
    .embed = BASE(embed),
    .rmsnorm = BASE(rmsnorm),
    .qkv = LEVEL(qkv),
    .attention = BASE(attention),
    .linear = LEVEL(linear),
    .gate_up = LEVEL(gate_up),
    .head = LEVEL(head),
    .sampling_sweeps = &BASE(sampling_sweeps),
    .pairs = pairs,
    .product = product,
};
