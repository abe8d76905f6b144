/* kernels/cpu/quant.h - activations as int8 or bf16, for the files compiled once an instruction set.
 *
 * In int8 a group is 32 columns of a token: q = rint(x * 127/max), dy = max/127. max is an integer maximum
 * over the bits of |x|, which sees NaN and infinities; below 2^-100 (127/max would overflow soon)
 * the group is zeros; not finite, q is 0 and dy NaN, so that the fault reaches this token's outputs
 * and no other's. */
#ifndef CB_KERNELS_CPU_QUANT_H
#define CB_KERNELS_CPU_QUANT_H

#include "kernels/cpu/level.h"
#include "kernels/cpu/vec.h"

/* What a token's share of a group says besides q. */
struct group_facts {
    float dy, sy;
    int32_t nsq;
};

#if VEC_512

/* Without branches, and all in vector registers: this is a chain of latencies. */
INLINE struct group_facts quant_group(int8_t *q, const float *x)
{
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    __m512 a = _mm512_loadu_ps(x), b = _mm512_loadu_ps(x + 16), scale;
    __m512i all = _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(a), magnitude),
                                   _mm512_and_si512(_mm512_castps_si512(b), magnitude));
    __m256i half = _mm256_max_epi32(_mm512_castsi512_si256(all), _mm512_extracti32x8_epi32(all, 1));
    __m128i bits = _mm_max_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    __m128 max, dy, inverse;
    __mmask8 is_finite, is_large;
    struct group_facts f;
    __m256i both;
    __m128i sum;

    bits = _mm_max_epi32(bits, _mm_shuffle_epi32(bits, 0x4e));
    bits = _mm_max_epi32(bits, _mm_shuffle_epi32(bits, 0xb1));
    max = _mm_castsi128_ps(bits);
    is_finite = _mm_cmplt_epi32_mask(bits, _mm_set1_epi32(0x7f800000));
    is_large = _mm_mask_cmp_ps_mask(is_finite, max, _mm_set1_ps(0x1p-100f), _CMP_GE_OQ);
    inverse = _mm_maskz_div_ps(is_large, _mm_set1_ps(127.0f), max);
    dy = _mm_maskz_div_ps(is_large, max, _mm_set1_ps(127.0f));
    dy = _mm_mask_mov_ps(_mm_castsi128_ps(_mm_set1_epi32(0x7fc00000)), is_finite, dy);
    scale = _mm512_broadcastss_ps(inverse);
    /* Infinite or NaN times 0 converts to 0x80000000, of which the low byte is 0, as it should. */
    both = _mm256_set_m128i(_mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(b, scale))),
                            _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(a, scale))));
    _mm256_storeu_si256((__m256i *)q, both);
    both = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), both);
    sum = _mm_add_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1));
    f.dy = _mm_cvtss_f32(dy);
    f.sy = _mm_cvtss_f32(_mm_mul_ss(dy, _mm_cvtepi32_ps(sum)));
    f.nsq = _mm_cvtsi128_si32(_mm_sub_epi32(_mm_setzero_si128(), sum));
    return f;
}

#else

/* 127/max or 0, and dy, for a largest |x| with these bits. */
INLINE float group_scale(uint32_t max_bits, float *dyp)
{
    float max = numeric_from_bits(max_bits);

    if (max_bits >= 0x7f800000) {
        *dyp = numeric_from_bits(0x7fc00000);
        return 0.0f;
    }
    if (max < 0x1p-100f) {
        *dyp = 0.0f;
        return 0.0f;
    }
    *dyp = max / 127.0f;
    return 127.0f / max;
}

INLINE struct group_facts quant_group(int8_t *q, const float *x)
{
    struct group_facts f;
    uint32_t max_bits = 0;
    int32_t total = 0;
    float scale;

    for (int k = 0; k < GROUP_COLS; k++) {
        uint32_t bits = numeric_bits(x[k]) & 0x7fffffff;

        max_bits = bits > max_bits ? bits : max_bits;
    }
    scale = group_scale(max_bits, &f.dy);
    if (scale == 0.0f) {
        memset(q, 0, GROUP_COLS);
    } else {
        for (int k = 0; k < GROUP_COLS; k++) {
            q[k] = (int8_t)(int32_t)rintf(x[k] * scale);
            total += q[k];
        }
    }
    f.sy = f.dy * (float)total;
    f.nsq = -total;
    return f;
}

#endif

/* Token t of a group of a tile n_tokens wide, from its 32 columns. */
INLINE void quant_put(uint8_t *group, uint32_t t, uint32_t n_tokens, const float *x)
{
    uint8_t *facts = group + n_tokens * GROUP_COLS + 4 * t;
    struct group_facts f = quant_group((int8_t *)group + t * GROUP_COLS, x);

    memcpy(facts, &f.dy, 4);
    memcpy(facts + 4 * n_tokens, &f.sy, 4);
    memcpy(facts + 8 * n_tokens, &f.nsq, 4);
}

/* Whether a product of so many tokens takes bf16. */
INLINE bool act_is_bf16(const struct cpu_stream *s, uint32_t n_tokens)
{
    return n_tokens >= s->backend->bf16_tokens;
}

/* Group `group` (n_groups a token) of `token` in tiles of bf16, from its n <= 32 columns. */
INLINE void bf16_put(uint8_t *tiles, uint32_t n_groups, uint32_t token, uint32_t group,
                     const float *x, uint32_t n)
{
    size_t tile = (size_t)token / BF16_TILE_TOKENS * n_groups + group;
    uint16_t *to = (uint16_t *)(void *)(tiles + tile * BF16_TILE_BYTES) +
                   token % BF16_TILE_TOKENS * GROUP_COLS;

    v_store_bf16(to, v_round_bf16(v_load_n(x, n)));
    v_store_bf16(to + 16, v_round_bf16(n > 16 ? v_load_n(x + 16, n - 16) : v_zero()));
}

/* True if the rows that an operator makes, n_cols wide, are wanted by the product of w alone and
 * not in f32: then it puts them where quant_next says, group by group, and need not write them. */
INLINE bool quant_is_wanted(const struct weight *w, uint32_t n_cols)
{
    return w && w->has_quantised && !w->has_plain && w->n_cols == n_cols;
}

/* Group `group` (n_groups a token) of `token`, of n_tokens in all, of the next product's
 * activations. */
INLINE void quant_next(struct cpu_stream *s, uint32_t n_groups, uint32_t n_tokens, uint32_t token,
                       uint32_t group, const float *x)
{
    uint32_t first = token / TILE_TOKENS * TILE_TOKENS, n = tile_n_tokens(first, n_tokens);
    uint8_t *tile = s->next_q + (size_t)first * n_groups * ACT_GROUP_BYTES;

    if (act_is_bf16(s, n_tokens)) {
        bf16_put(s->next_q, n_groups, token, group, x, GROUP_COLS);
        return;
    }
    quant_put(tile + (size_t)group * n * ACT_GROUP_BYTES, token - first, n, x);
}

#endif
