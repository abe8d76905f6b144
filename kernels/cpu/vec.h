/* kernels/cpu/vec.h - sixteen f32 lanes, for the files compiled once an instruction set.
 *
 * The numeric contract speaks of 16 lanes, so every level computes on the same `v16` and gives the
 * same bits: one register under AVX-512, two under AVX2, a plain array in the scalar level. Only
 * correctly rounded operations are here. v_max and v_min answer their second argument when a NaN is
 * involved, as the instructions do.
 *
 * A `pair` holds two values a lane (two dimensions of a key, two tokens of a value); pair_fma takes
 * the odd one first, which is the order of vdpbf16ps. */
#ifndef CB_KERNELS_CPU_VEC_H
#define CB_KERNELS_CPU_VEC_H

#include <immintrin.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "kernels/kernels.h"
#include "kernels/numeric.h"

#define INLINE static inline __attribute__((always_inline))

#if defined(CPU_LEVEL_avx512vnni) || defined(CPU_LEVEL_avx512bf16) || defined(CPU_LEVEL_amx) || \
    defined(CPU_LEVEL_amx512_emulated)
#define VEC_512 1
#elif defined(CPU_LEVEL_avx2) || defined(CPU_LEVEL_amx_emulated)
#define VEC_256 1
#else
#define VEC_SCALAR 1
#endif

/* What lies among bytes, at any address. */
INLINE int32_t load_i32(const void *p)
{
    int32_t x;

    memcpy(&x, p, sizeof x);
    return x;
}

INLINE float load_f32(const void *p)
{
    float x;

    memcpy(&x, p, sizeof x);
    return x;
}

#if VEC_512

typedef __m512 v16;

INLINE v16 v_zero(void)
{
    return _mm512_setzero_ps();
}
INLINE v16 v_set1(float x)
{
    return _mm512_set1_ps(x);
}
INLINE v16 v_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
INLINE void v_store(float *p, v16 a)
{
    _mm512_storeu_ps(p, a);
}
/* Lanes n and up are +0; n may be more than 16. */
INLINE v16 v_load_n(const float *p, uint32_t n)
{
    return n >= 16 ? v_load(p) : _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
}
INLINE void v_store_n(float *p, v16 a, uint32_t n)
{
    const __mmask16 lanes = (__mmask16)(n >= 16 ? 0xffffu : (1u << n) - 1);
    _mm512_mask_storeu_ps(p, lanes, a);
}
INLINE v16 v_add(v16 a, v16 b)
{
    return _mm512_add_ps(a, b);
}
INLINE v16 v_sub(v16 a, v16 b)
{
    return _mm512_sub_ps(a, b);
}
INLINE v16 v_mul(v16 a, v16 b)
{
    return _mm512_mul_ps(a, b);
}
INLINE v16 v_div(v16 a, v16 b)
{
    return _mm512_div_ps(a, b);
}
INLINE v16 v_fma(v16 a, v16 b, v16 c)
{
    return _mm512_fmadd_ps(a, b, c);
}
INLINE v16 v_max(v16 a, v16 b)
{
    return _mm512_max_ps(a, b);
}
/* A bit a lane: a >= b. */
INLINE uint32_t v_not_below(v16 a, v16 b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ);
}
/* Lanes lo <= i < hi of a, the others of b. */
INLINE v16 v_select_range(v16 a, v16 b, uint32_t lo, uint32_t hi)
{
    uint32_t mask = ((1u << (hi > 16 ? 16 : hi)) - 1) & ~((1u << (lo > 16 ? 16 : lo)) - 1);

    return _mm512_mask_blend_ps((__mmask16)mask, b, a);
}
INLINE float v_tree(v16 a)
{
    __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));

    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}
INLINE v16 v_from_half(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
INLINE v16 v_exp(v16 x)
{
    v16 z = _mm512_min_ps(_mm512_set1_ps(88.0f), x);
    v16 n = _mm512_roundscale_ps(_mm512_mul_ps(z, _mm512_set1_ps(0x1.715476p+0f)),
                                 _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    v16 f = _mm512_fmadd_ps(n, _mm512_set1_ps(-0x1.62e4p-1f), z);
    v16 p = _mm512_set1_ps(0x1.6a23dp-10f);

    f = _mm512_fmadd_ps(n, _mm512_set1_ps(-0x1.7f7d1cp-20f), f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.123a2p-7f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.5558f2p-5f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.555492p-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.fffffcp-2f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    p = _mm512_scalef_ps(p, n);
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.0f), _CMP_LT_OQ), p,
                                _mm512_setzero_ps());
}
/* To the nearest bf16, ties to even, still as f32; a NaN stays one. By integers: the conversion
 * instruction would also flush what is stored. */
INLINE v16 v_round_bf16(v16 a)
{
    __m512i u = _mm512_castps_si512(a);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i r = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));

    r = _mm512_mask_or_epi32(r, _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), u,
                             _mm512_set1_epi32(0x400000));
    return _mm512_castsi512_ps(_mm512_and_si512(r, _mm512_set1_epi32((int)0xffff0000)));
}
/* Upper halves of 16 values that v_round_bf16 made. */
INLINE void v_store_bf16(uint16_t *p, v16 a)
{
    _mm256_storeu_si256((__m256i *)p,
                        _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(a), 16)));
}

#elif VEC_256

typedef struct {
    __m256 lo, hi;
} v16;

INLINE v16 v_zero(void)
{
    return (v16){_mm256_setzero_ps(), _mm256_setzero_ps()};
}
INLINE v16 v_set1(float x)
{
    return (v16){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
INLINE v16 v_load(const float *p)
{
    return (v16){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
INLINE void v_store(float *p, v16 a)
{
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}
INLINE v16 v_load_n(const float *p, uint32_t n)
{
    float lane[16] = {0};

    if (n >= 16)
        return v_load(p);
    memcpy(lane, p, n * sizeof *p);
    return v_load(lane);
}
INLINE void v_store_n(float *p, v16 a, uint32_t n)
{
    float lane[16];

    if (n >= 16) {
        v_store(p, a);
        return;
    }
    v_store(lane, a);
    memcpy(p, lane, n * sizeof *p);
}
INLINE v16 v_add(v16 a, v16 b)
{
    return (v16){_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
INLINE v16 v_sub(v16 a, v16 b)
{
    return (v16){_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
INLINE v16 v_mul(v16 a, v16 b)
{
    return (v16){_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
INLINE v16 v_div(v16 a, v16 b)
{
    return (v16){_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
INLINE v16 v_fma(v16 a, v16 b, v16 c)
{
    return (v16){_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
INLINE v16 v_max(v16 a, v16 b)
{
    return (v16){_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
INLINE uint32_t v_not_below(v16 a, v16 b)
{
    return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_GE_OQ)) |
           (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_GE_OQ)) << 8;
}
INLINE v16 v_select_range(v16 a, v16 b, uint32_t lo, uint32_t hi)
{
    const __m256i first = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i second = _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15);
    const __m256i from = _mm256_set1_epi32((int)(lo > 16 ? 16 : lo) - 1);
    const __m256i to = _mm256_set1_epi32((int)(hi > 16 ? 16 : hi));
    __m256i in_lo =
        _mm256_and_si256(_mm256_cmpgt_epi32(first, from), _mm256_cmpgt_epi32(to, first));
    __m256i in_hi =
        _mm256_and_si256(_mm256_cmpgt_epi32(second, from), _mm256_cmpgt_epi32(to, second));

    return (v16){_mm256_blendv_ps(b.lo, a.lo, _mm256_castsi256_ps(in_lo)),
                 _mm256_blendv_ps(b.hi, a.hi, _mm256_castsi256_ps(in_hi))};
}
INLINE float v_tree(v16 a)
{
    __m256 b = _mm256_add_ps(a.lo, a.hi);
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));

    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}
INLINE v16 v_from_half(const uint16_t *p)
{
    return (v16){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)),
                 _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8)))};
}
INLINE __m256 v_exp_half(__m256 x)
{
    __m256 z = _mm256_min_ps(_mm256_set1_ps(88.0f), x);
    __m256 n = _mm256_round_ps(_mm256_mul_ps(z, _mm256_set1_ps(0x1.715476p+0f)),
                               _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 f = _mm256_fmadd_ps(n, _mm256_set1_ps(-0x1.62e4p-1f), z);
    __m256 p = _mm256_set1_ps(0x1.6a23dp-10f);

    f = _mm256_fmadd_ps(n, _mm256_set1_ps(-0x1.7f7d1cp-20f), f);
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.123a2p-7f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.5558f2p-5f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.555492p-3f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.fffffcp-2f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f));
    /* NaN converts to 0x80000000, which the shift makes 0: it passes. */
    p = _mm256_castsi256_ps(
        _mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23)));
    return _mm256_blendv_ps(p, _mm256_setzero_ps(),
                            _mm256_cmp_ps(x, _mm256_set1_ps(-87.0f), _CMP_LT_OQ));
}
INLINE v16 v_exp(v16 x)
{
    return (v16){v_exp_half(x.lo), v_exp_half(x.hi)};
}
INLINE __m256 v_round_bf16_half(__m256 a)
{
    __m256i u = _mm256_castps_si256(a);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i r = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));

    r = _mm256_blendv_epi8(r, _mm256_or_si256(u, _mm256_set1_epi32(0x400000)), nan);
    return _mm256_castsi256_ps(_mm256_and_si256(r, _mm256_set1_epi32((int)0xffff0000)));
}
INLINE v16 v_round_bf16(v16 a)
{
    return (v16){v_round_bf16_half(a.lo), v_round_bf16_half(a.hi)};
}

#else /* the scalar level: numeric.h lane by lane */

typedef struct {
    float f[16];
} v16;

#define LANES for (int i = 0; i < 16; i++)

INLINE v16 v_set1(float x)
{
    v16 r;

    LANES r.f[i] = x;
    return r;
}
INLINE v16 v_zero(void)
{
    return v_set1(0.0f);
}
INLINE v16 v_load(const float *p)
{
    v16 r;

    memcpy(&r, p, sizeof r);
    return r;
}
INLINE void v_store(float *p, v16 a)
{
    memcpy(p, &a, sizeof a);
}
INLINE v16 v_load_n(const float *p, uint32_t n)
{
    v16 r = v_zero();

    memcpy(&r, p, (n < 16 ? n : 16) * sizeof *p);
    return r;
}
INLINE void v_store_n(float *p, v16 a, uint32_t n)
{
    memcpy(p, &a, (n < 16 ? n : 16) * sizeof *p);
}
INLINE v16 v_add(v16 a, v16 b)
{
    LANES a.f[i] += b.f[i];
    return a;
}
INLINE v16 v_sub(v16 a, v16 b)
{
    LANES a.f[i] -= b.f[i];
    return a;
}
INLINE v16 v_mul(v16 a, v16 b)
{
    LANES a.f[i] *= b.f[i];
    return a;
}
INLINE v16 v_div(v16 a, v16 b)
{
    LANES a.f[i] /= b.f[i];
    return a;
}
INLINE v16 v_fma(v16 a, v16 b, v16 c)
{
    LANES c.f[i] = fmaf(a.f[i], b.f[i], c.f[i]);
    return c;
}
INLINE v16 v_max(v16 a, v16 b)
{
    LANES a.f[i] = a.f[i] > b.f[i] ? a.f[i] : b.f[i];
    return a;
}
INLINE uint32_t v_not_below(v16 a, v16 b)
{
    uint32_t mask = 0;

    LANES mask |= (uint32_t)(a.f[i] >= b.f[i]) << i;
    return mask;
}
INLINE v16 v_select_range(v16 a, v16 b, uint32_t lo, uint32_t hi)
{
    LANES a.f[i] = (uint32_t)i >= lo && (uint32_t)i < hi ? a.f[i] : b.f[i];
    return a;
}
INLINE float v_tree(v16 a)
{
    return numeric_tree(a.f);
}
INLINE v16 v_from_half(const uint16_t *p)
{
    v16 r;

    LANES r.f[i] = numeric_from_half(p[i]);
    return r;
}
INLINE v16 v_exp(v16 x)
{
    LANES x.f[i] = numeric_exp(x.f[i]);
    return x;
}
INLINE v16 v_round_bf16(v16 a)
{
    LANES a.f[i] = numeric_round_bf16(a.f[i]);
    return a;
}

#endif

/* ---- what follows from the above, the same for all levels ------------------------------------ */

#if !VEC_512
INLINE void v_store_bf16(uint16_t *p, v16 a)
{
    float lane[16];

    v_store(lane, a);
    for (int i = 0; i < 16; i++)
        p[i] = (uint16_t)(numeric_bits(lane[i]) >> 16);
}
#endif

/* Every second of 2n values: the even ones, or the odd ones, from n values; the others are not
 * touched. `half` has room for whole vectors. */
INLINE void v_store_halves(uint16_t *p, const uint16_t *half, uint32_t n, bool odd)
{
    uint32_t i = 0;

#if VEC_512
    for (; i + 16 <= n; i += 16) {
        __m512i a = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(half + i)));

        _mm512_mask_storeu_epi16(p + 2 * i, odd ? 0xaaaaaaaa : 0x55555555,
                                 odd ? _mm512_slli_epi32(a, 16) : a);
    }
#endif
    for (; i < n; i++)
        p[2 * i + odd] = half[i];
}

/* The low byte of each lane's bits. */
INLINE void v_store_low_bytes(uint8_t *p, v16 a)
{
#if VEC_512
    _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(_mm512_castps_si512(a)));
#else
    float lane[16];

    v_store(lane, a);
    for (int i = 0; i < 16; i++)
        p[i] = (uint8_t)numeric_bits(lane[i]);
#endif
}

INLINE v16 v_neg(v16 a)
{
    return v_sub(v_set1(-0.0f), a);
}

INLINE v16 v_silu(v16 x)
{
    return v_div(x, v_add(v_set1(1.0f), v_exp(v_neg(x))));
}

INLINE v16 v_gelu_tanh(v16 x)
{
    v16 inner = v_fma(v_mul(x, x), v_set1(0x1.2444f2p-4f), v_set1(0x1.988454p+0f));

    return v_div(x, v_add(v_set1(1.0f), v_exp(v_mul(v_neg(x), inner))));
}

/* cap * tanh(x / cap) */
INLINE v16 v_softcap(v16 x, float cap)
{
    v16 z = v_div(x, v_set1(cap)), one = v_set1(1.0f), two = v_set1(2.0f);

    z = v_sub(one, v_div(two, v_add(one, v_exp(v_mul(two, z)))));
    return v_mul(v_set1(cap), z);
}

INLINE float v_first(v16 a)
{
    float lane[16];

    v_store(lane, a);
    return lane[0];
}

/* The largest lane by the tree of v_max. */
INLINE float v_max_tree(v16 a)
{
#if VEC_512 || VEC_256
#if VEC_512
    __m256 b = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
#else
    __m256 b = _mm256_max_ps(a.lo, a.hi);
#endif
    __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));

    c = _mm_max_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
#else
    for (int h = 8; h; h /= 2) {
        for (int i = 0; i < h; i++)
            a.f[i] = a.f[i] > a.f[i + h] ? a.f[i] : a.f[i + h];
    }
    return a.f[0];
#endif
}

/* ---- pairs ----------------------------------------------------------------------------------- */

/* `t` is the type of keys and values, a constant where these are expanded: the two columns of f32
 * lie apart. The coefficients (queries, probabilities) of a pair are two f32, or two bf16 where the
 * machine's own pair product takes them. */
#ifdef CPU_LEVEL_avx512bf16
#define PAIR_NATIVE(t) ((t) != DTYPE_F32)
#else
#define PAIR_NATIVE(t) 0
#endif
#define COEF_BYTES(t) (PAIR_NATIVE(t) ? 2u : 4u)

typedef struct {
    v16 even, odd;
#ifdef CPU_LEVEL_avx512bf16
    __m512bh both;
#endif
} pair;

/* 16 lanes of (even, odd) bf16, the even one in the low half. */
INLINE pair pair_widen(const uint16_t *p)
{
    pair r;

#if VEC_512
    __m512i u = _mm512_loadu_si512(p);

    r.even = _mm512_castsi512_ps(_mm512_slli_epi32(u, 16));
    r.odd = _mm512_castsi512_ps(_mm512_and_si512(u, _mm512_set1_epi32((int)0xffff0000)));
#elif VEC_256
    const __m256i upper = _mm256_set1_epi32((int)0xffff0000);
    __m256i lo = _mm256_loadu_si256((const __m256i *)p);
    __m256i hi = _mm256_loadu_si256((const __m256i *)(p + 16));

    r.even.lo = _mm256_castsi256_ps(_mm256_slli_epi32(lo, 16));
    r.even.hi = _mm256_castsi256_ps(_mm256_slli_epi32(hi, 16));
    r.odd.lo = _mm256_castsi256_ps(_mm256_and_si256(lo, upper));
    r.odd.hi = _mm256_castsi256_ps(_mm256_and_si256(hi, upper));
#else
    for (int i = 0; i < 16; i++) {
        r.even.f[i] = numeric_from_bf16(p[2 * i]);
        r.odd.f[i] = numeric_from_bf16(p[2 * i + 1]);
    }
#endif
    return r;
}

/* Two columns of 16 lanes: interleaved bf16 at p, or f32 at p and, odd_bytes on, at the odd one. */
INLINE pair pair_load(const uint8_t *p, size_t odd_bytes, const enum dtype t)
{
    if (t == DTYPE_F32) {
        pair r;

        r.even = v_load((const float *)(const void *)p);
        r.odd = v_load((const float *)(const void *)(p + odd_bytes));
        return r;
    }
#ifdef CPU_LEVEL_avx512bf16
    pair r;

    r.both = (__m512bh)_mm512_loadu_si512(p);
    return r;
#else
    return pair_widen((const uint16_t *)(const void *)p);
#endif
}

/* What codes of 16 lanes of pairs are unpacked by. Where the machine's own pair product takes them
 * [0] is for the first 8 lanes and [1] for the others, interleaved as the pairs are; else [0] is for
 * the even columns and [1] for the odd ones. */
typedef struct {
    v16 scale[2], zero[2];
} unpacker;

/* Keys: lanes are tokens. `facts`: scale[16], zero[16] of the block. */
INLINE unpacker unpacker_keys(const float *facts)
{
    unpacker u;

#ifdef CPU_LEVEL_avx512bf16
    const __m512i low = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));

    for (int i = 0; i < 2; i++) {
        u.scale[i] = _mm512_permutexvar_ps(i ? high : low, v_load(facts));
        u.zero[i] = _mm512_permutexvar_ps(i ? high : low, v_load(facts + 16));
    }
#else
    u.scale[0] = u.scale[1] = v_load(facts);
    u.zero[0] = u.zero[1] = v_load(facts + 16);
#endif
    return u;
}

/* Values: lanes are dimensions of a pair of tokens. */
INLINE unpacker unpacker_values(const float *facts, uint32_t pair_idx)
{
    unpacker u;

    facts += 2 * pair_idx;
#ifdef CPU_LEVEL_avx512bf16
    double scales, zeros;

    memcpy(&scales, facts, sizeof scales);
    memcpy(&zeros, facts + 16, sizeof zeros);
    u.scale[0] = u.scale[1] = _mm512_castpd_ps(_mm512_set1_pd(scales));
    u.zero[0] = u.zero[1] = _mm512_castpd_ps(_mm512_set1_pd(zeros));
#else
    for (int i = 0; i < 2; i++) {
        u.scale[i] = v_set1(facts[i]);
        u.zero[i] = v_set1(facts[16 + i]);
    }
#endif
    return u;
}

/* Two columns of 16 lanes, interleaved codes at p. */
INLINE pair pair_unpack(const uint8_t *p, const unpacker *u)
{
    pair r;

#ifdef CPU_LEVEL_avx512bf16
    __m512 half[2];

    for (int i = 0; i < 2; i++) {
        __m512i code = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(p + 16 * i)));

        half[i] = v_fma(_mm512_cvtepi32_ps(code), u->scale[i], u->zero[i]);
    }
    /* As v_round_bf16 does: no result of an fma is denormal here. */
    r.both = _mm512_cvtne2ps_pbh(half[1], half[0]);
#else
#if VEC_512
    __m512i codes = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));

    r.even = _mm512_cvtepi32_ps(_mm512_and_si512(codes, _mm512_set1_epi32(0xff)));
    r.odd = _mm512_cvtepi32_ps(_mm512_srli_epi32(codes, 8));
#elif VEC_256
    const __m256i byte = _mm256_set1_epi32(0xff);
    __m256i lo = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    __m256i hi = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(p + 16)));

    r.even.lo = _mm256_cvtepi32_ps(_mm256_and_si256(lo, byte));
    r.even.hi = _mm256_cvtepi32_ps(_mm256_and_si256(hi, byte));
    r.odd.lo = _mm256_cvtepi32_ps(_mm256_srli_epi32(lo, 8));
    r.odd.hi = _mm256_cvtepi32_ps(_mm256_srli_epi32(hi, 8));
#else
    for (int i = 0; i < 16; i++) {
        r.even.f[i] = p[2 * i];
        r.odd.f[i] = p[2 * i + 1];
    }
#endif
    r.even = v_round_bf16(v_fma(r.even, u->scale[0], u->zero[0]));
    r.odd = v_round_bf16(v_fma(r.odd, u->scale[1], u->zero[1]));
#endif
    return r;
}

/* acc + the odd product, then + the even one, each with one rounding. */
INLINE v16 pair_fma(v16 acc, pair a, const uint8_t *coef, const enum dtype t)
{
#ifdef CPU_LEVEL_avx512bf16
    if (t != DTYPE_F32) {
        int32_t both;

        memcpy(&both, coef, sizeof both);
        return _mm512_dpbf16_ps(acc, a.both, (__m512bh)_mm512_set1_epi32(both));
    }
#endif
    float c[2];

    (void)t;
    memcpy(c, coef, sizeof c);
    return v_fma(v_set1(c[0]), a.even, v_fma(v_set1(c[1]), a.odd, acc));
}

/* Stores 16 coefficients; unless keys and values are f32 they are rounded already. */
INLINE void coef_store(uint8_t *p, v16 a, const enum dtype t)
{
#ifdef CPU_LEVEL_avx512bf16
    if (t != DTYPE_F32) {
        v_store_bf16((uint16_t *)(void *)p, a);
        return;
    }
#endif
    (void)t;
    v_store((float *)(void *)p, a);
}

#endif
