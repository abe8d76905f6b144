/* kernels/numeric.h - numeric contract v1 in scalar form: the functions and orders of summation
 * that decide the bits of every result of the cpu backend.
 *
 * Vector code must give these bits, lane by lane. Whoever calls has flush-to-zero and
 * denormals-are-zero set (kernels_thread_init) and is built with -ffp-contract=off; fma is always
 * explicit, division and square root are the true ones. The cpu backend's scalar level, the sampler
 * and the tests use these forms. The reference backend does not: it answers for accuracy, not for
 * bits. */
#ifndef CB_KERNELS_NUMERIC_H
#define CB_KERNELS_NUMERIC_H

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline uint32_t numeric_bits(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float numeric_from_bits(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

/* ---- 16-bit formats: integer work only, so that denormals-are-zero cannot reach the halves'
 * denormals -- */

/* Exact for every bit pattern; a NaN keeps its payload. */
static inline float numeric_from_half(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = half & 0x7fff;
    /* A denormal half is an integer times 2^-24, which a float holds as a normal number. Masks and
     * not branches: loops over this are vectorised. */
    uint32_t small = numeric_bits((float)(int32_t)rest * 0x1p-24f);
    uint32_t is_small = 0u - (rest < 0x0400), is_large = 0u - (rest >= 0x7c00);
    uint32_t bits = (rest << 13) + (112u << 23);

    bits = (small & is_small) | (bits & ~is_small) | (0x7f800000 & is_large);
    return numeric_from_bits(sign | bits);
}

static inline float numeric_from_bf16(uint16_t bf16)
{
    return numeric_from_bits((uint32_t)bf16 << 16);
}

/* Nearest, ties to even; a NaN stays one (made quiet). x is a result under flush-to-zero: no
 * denormal. */
static inline uint16_t numeric_to_bf16(float x)
{
    uint32_t bits = numeric_bits(x);

    if ((bits & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline float numeric_round_bf16(float x)
{
    return numeric_from_bf16(numeric_to_bf16(x));
}

/* ---- keys and values in 8 bits --------------------------------------------------------------- */

/* How one head of a token is kept: code = rint((x - zero) * inverse), read as bf16(fma(code, scale,
 * zero)). A head with a value that is not finite, or with a range that is not, reads as NaN. */
struct numeric_u8 {
    float scale, zero, inverse;
};

/* not_finite: +-0, or NaN if one of the values is not finite (their sum times 0), for comparisons
 * hide it. */
static inline struct numeric_u8 numeric_u8(float min, float max, float not_finite)
{
    float range = max - min + not_finite;

    /* Adding +0 leaves neither a denormal nor -0. */
    if (range < 0x1p-100f)
        return (struct numeric_u8){0.0f, min + 0.0f, 0.0f};
    if (!(range <= 0x1.fffffep+127f))
        return (struct numeric_u8){numeric_from_bits(0x7fc00000), 0.0f, 0.0f};
    return (struct numeric_u8){range / 255.0f, min + 0.0f, 255.0f / range};
}

/* 1.5 * 2^23 + t has rint(t), ties to even, in its low bits. */
static inline uint8_t numeric_u8_code(float x, const struct numeric_u8 *u)
{
    return (uint8_t)numeric_bits((x - u->zero) * u->inverse + 0x1.8p+23f);
}

static inline float numeric_u8_value(uint8_t code, float scale, float zero)
{
    return numeric_round_bf16(fmaf((float)code, scale, zero));
}

/* ---- functions ------------------------------------------------------------------------------- */

/* Within 0.9 ulp on [-87, 88]; +0 below, exp(88) above; exp(0) is exactly 1; NaN passes. Never
 * denormal. */
static inline float numeric_exp(float x)
{
    /* Adding and taking away 1.5 * 2^23 rounds to the nearest integer, ties to even. */
    const float shift = 0x1.8p+23f;
    float n, f, p;

    if (x != x)
        return x;
    if (x < -87.0f)
        return 0.0f;
    if (x > 88.0f)
        x = 88.0f;
    n = x * 0x1.715476p+0f + shift - shift;
    f = fmaf(n, -0x1.62e4p-1f, x);
    f = fmaf(n, -0x1.7f7d1cp-20f, f);
    p = 0x1.6a23dp-10f;
    p = fmaf(p, f, 0x1.123a2p-7f);
    p = fmaf(p, f, 0x1.5558f2p-5f);
    p = fmaf(p, f, 0x1.555492p-3f);
    p = fmaf(p, f, 0x1.fffffcp-2f);
    p = fmaf(p, f, 1.0f);
    p = fmaf(p, f, 1.0f);
    return numeric_from_bits(numeric_bits(p) + ((uint32_t)(int32_t)n << 23));
}

static inline float numeric_silu(float x)
{
    return x / (1.0f + numeric_exp(-x));
}

static inline float numeric_gelu_tanh(float x)
{
    return x / (1.0f + numeric_exp(-x * fmaf(x * x, 0x1.2444f2p-4f, 0x1.988454p+0f)));
}

static inline float numeric_tanh(float x)
{
    return 1.0f - 2.0f / (1.0f + numeric_exp(2.0f * x));
}

static inline float numeric_softcap(float score, float cap)
{
    return cap * numeric_tanh(score / cap);
}

/* ---- sums over 16 lanes ---------------------------------------------------------------------- */

/* The tree: for h = 8, 4, 2, 1: lane[i] += lane[i + h]. Spoils lane[]; the sum is in lane[0]. */
static inline float numeric_tree(float lane[16])
{
    for (int h = 8; h; h /= 2) {
        for (int i = 0; i < h; i++)
            lane[i] += lane[i + h];
    }
    return lane[0];
}

static inline double numeric_tree_double(double lane[16])
{
    for (int h = 8; h; h /= 2) {
        for (int i = 0; i < h; i++)
            lane[i] += lane[i + h];
    }
    return lane[0];
}

/* fma of squares by lane (k mod 16), then the tree. */
static inline float numeric_sum_squares(const float *x, uint32_t n)
{
    float lane[16] = {0};

    for (uint32_t k = 0; k < n; k++)
        lane[k % 16] = fmaf(x[k], x[k], lane[k % 16]);
    return numeric_tree(lane);
}

/* What a row is multiplied by before its weights: y = (x * r) * w. */
static inline float numeric_rms_scale(float sum_squares, uint32_t n, float eps)
{
    return 1.0f / sqrtf(sum_squares / (float)n + eps);
}

#endif
