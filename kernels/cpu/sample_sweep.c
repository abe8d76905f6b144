/* The sampler's sweeps over whole rows, sixteen ids at a time. A block of 256 ids is 16 vectors, so
 * its lanes are the contract's. */
#include "kernels/cpu/level.h"

#include <math.h>

#include "kernels/cpu/vec.h"
#include "kernels/sampling_sweep.h"

/* ---- sixteen lanes of 64 bits ---------------------------------------------------------------- */

#if VEC_512

typedef struct {
    __m512d lo, hi;
} d16;
typedef struct {
    __m512i lo, hi;
} u16x64;

INLINE d16 d_widen(v16 a)
{
    return (d16){_mm512_cvtps_pd(_mm512_castps512_ps256(a)),
                 _mm512_cvtps_pd(_mm512_extractf32x8_ps(a, 1))};
}
INLINE d16 d_add(d16 a, d16 b)
{
    return (d16){_mm512_add_pd(a.lo, b.lo), _mm512_add_pd(a.hi, b.hi)};
}
INLINE d16 d_mul(d16 a, d16 b)
{
    return (d16){_mm512_mul_pd(a.lo, b.lo), _mm512_mul_pd(a.hi, b.hi)};
}
INLINE void d_store(double *p, d16 a)
{
    _mm512_storeu_pd(p, a.lo);
    _mm512_storeu_pd(p + 8, a.hi);
}
/* a + sampling_mass(b) */
INLINE u16x64 u_add_mass(u16x64 a, d16 b)
{
    const __m512d unit = _mm512_set1_pd(0x1p44);

    return (u16x64){_mm512_add_epi64(a.lo, _mm512_cvttpd_epu64(_mm512_mul_pd(b.lo, unit))),
                    _mm512_add_epi64(a.hi, _mm512_cvttpd_epu64(_mm512_mul_pd(b.hi, unit)))};
}

#elif VEC_256

typedef struct {
    __m256d a[4];
} d16;
typedef struct {
    __m256i a[4];
} u16x64;

INLINE d16 d_widen(v16 a)
{
    return (d16){{_mm256_cvtps_pd(_mm256_castps256_ps128(a.lo)),
                  _mm256_cvtps_pd(_mm256_extractf128_ps(a.lo, 1)),
                  _mm256_cvtps_pd(_mm256_castps256_ps128(a.hi)),
                  _mm256_cvtps_pd(_mm256_extractf128_ps(a.hi, 1))}};
}
INLINE d16 d_add(d16 a, d16 b)
{
    for (int i = 0; i < 4; i++)
        a.a[i] = _mm256_add_pd(a.a[i], b.a[i]);
    return a;
}
INLINE d16 d_mul(d16 a, d16 b)
{
    for (int i = 0; i < 4; i++)
        a.a[i] = _mm256_mul_pd(a.a[i], b.a[i]);
    return a;
}
INLINE void d_store(double *p, d16 a)
{
    for (int i = 0; i < 4; i++)
        _mm256_storeu_pd(p + 4 * i, a.a[i]);
}
/* There is no conversion to 64 bits: 2^52 + a whole number has it in its low bits. */
INLINE u16x64 u_add_mass(u16x64 a, d16 b)
{
    const __m256d unit = _mm256_set1_pd(0x1p44), shift = _mm256_set1_pd(0x1p52);

    for (int i = 0; i < 4; i++) {
        __m256d whole = _mm256_floor_pd(_mm256_mul_pd(b.a[i], unit));
        __m256i bits = _mm256_castpd_si256(_mm256_add_pd(whole, shift));

        a.a[i] = _mm256_add_epi64(a.a[i], _mm256_sub_epi64(bits, _mm256_castpd_si256(shift)));
    }
    return a;
}

#else

typedef struct {
    double a[SAMPLING_LANES];
} d16;
typedef struct {
    uint64_t a[SAMPLING_LANES];
} u16x64;

INLINE d16 d_widen(v16 a)
{
    d16 r;

    LANES r.a[i] = (double)a.f[i];
    return r;
}
INLINE d16 d_add(d16 a, d16 b)
{
    LANES a.a[i] += b.a[i];
    return a;
}
INLINE d16 d_mul(d16 a, d16 b)
{
    LANES a.a[i] *= b.a[i];
    return a;
}
INLINE void d_store(double *p, d16 a)
{
    memcpy(p, a.a, sizeof a.a);
}
INLINE u16x64 u_add_mass(u16x64 a, d16 b)
{
    LANES a.a[i] += (uint64_t)(b.a[i] * 0x1p44);
    return a;
}

#endif

/* ---- sweeps ---------------------------------------------------------------------------------- */

/* The vector at id i, -INFINITY beyond n. */
INLINE v16 load_ids(const float *row, uint32_t i, uint32_t n)
{
    if (n - i >= SAMPLING_LANES)
        return v_load(row + i);
    return v_select_range(v_load_n(row + i, n - i), v_set1(-INFINITY), 0, n - i);
}

static bool maxima(const float *row, uint32_t n, float *maxima)
{
    v16 not_finite = v_zero();

    for (uint32_t begin = 0; begin < n; begin += SAMPLING_BLOCK, maxima += SAMPLING_LANES) {
        v16 max = v_set1(-INFINITY);

        for (uint32_t i = begin; i < begin + SAMPLING_BLOCK && i < n; i += SAMPLING_LANES) {
            /* What is not finite makes NaN, which stays in the sum: a maximum hides it. */
            v16 x = n - i >= SAMPLING_LANES ? v_load(row + i) : v_load_n(row + i, n - i);

            not_finite = v_add(not_finite, v_sub(x, x));
            max = v_max(max, load_ids(row, i, n));
        }
        v_store(maxima, max);
    }
    return v_tree(not_finite) == 0;
}

/* Writes the lanes of a that are set in `lanes`, side by side, and may spoil what is behind them, of
 * sixteen in all. */
INLINE void store_lanes(float *p, v16 a, uint32_t lanes)
{
#if VEC_512
    _mm512_storeu_ps(p, _mm512_maskz_compress_ps((__mmask16)lanes, a));
#else
    float lane[SAMPLING_LANES];

    v_store(lane, a);
    for (uint32_t n = 0; lanes; lanes &= lanes - 1)
        p[n++] = lane[__builtin_ctz(lanes)];
#endif
}

/* Likewise begin and what follows it. */
INLINE void store_ids(uint32_t *p, uint32_t begin, uint32_t lanes)
{
#if VEC_512
    const __m512i count = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);

    _mm512_storeu_si512(
        p, _mm512_maskz_compress_epi32((__mmask16)lanes,
                                       _mm512_add_epi32(count, _mm512_set1_epi32((int)begin))));
#else
    for (uint32_t n = 0; lanes; lanes &= lanes - 1)
        p[n++] = begin + (uint32_t)__builtin_ctz(lanes);
#endif
}

/* At place i no more than i have been found, and there is room for whole vectors: whatever a store
 * spoils is not there yet. */
static uint32_t collect(const float *row, uint32_t n, const float *maxima, float least,
                        uint32_t *ids, float *logits)
{
    const v16 bound = v_set1(least);
    uint32_t n_ids = 0;

    for (uint32_t begin = 0; begin < n; begin += SAMPLING_BLOCK, maxima += SAMPLING_LANES) {
        if (!v_not_below(v_load(maxima), bound))
            continue;
        for (uint32_t i = begin; i < begin + SAMPLING_BLOCK && i < n; i += SAMPLING_LANES) {
            v16 x = load_ids(row, i, n);
            uint32_t lanes = v_not_below(x, bound);

            store_ids(ids + n_ids, i, lanes);
            store_lanes(logits + n_ids, x, lanes);
            n_ids += (uint32_t)__builtin_popcount(lanes);
        }
    }
    return n_ids;
}

INLINE v16 weight(v16 x, v16 temperature, v16 max)
{
    return v_exp(v_sub(v_div(x, temperature), max));
}

static void sums(const float *row, uint32_t n, float temperature, float max, double *sums)
{
    const v16 t = v_set1(temperature), m = v_set1(max);

    for (uint32_t begin = 0; begin < n; begin += SAMPLING_BLOCK) {
        d16 lane = d_widen(v_zero());
        double lanes[SAMPLING_LANES];

        for (uint32_t i = begin; i < begin + SAMPLING_BLOCK && i < n; i += SAMPLING_LANES)
            lane = d_add(lane, d_widen(weight(load_ids(row, i, n), t, m)));
        d_store(lanes, lane);
        *sums++ = numeric_tree_double(lanes);
    }
}

static uint64_t mass(const float *row, uint32_t n, float temperature, float max)
{
    const v16 t = v_set1(temperature), m = v_set1(max);
    uint64_t lanes[SAMPLING_LANES], sum = 0;
    u16x64 lane = {0};

    for (uint32_t i = 0; i < n; i += SAMPLING_LANES)
        lane = u_add_mass(lane, d_widen(weight(load_ids(row, i, n), t, m)));
    memcpy(lanes, &lane, sizeof lanes);
    for (int i = 0; i < SAMPLING_LANES; i++)
        sum += lanes[i];
    return sum;
}

INLINE v16 score(v16 x, v16 temperature, v16 max)
{
    return v_sub(v_add(v_div(x, temperature), v_zero()), max);
}

static struct sampling_moments moments(const float *row, uint32_t n, float temperature, float max)
{
    const v16 t = v_set1(temperature), m = v_set1(max);
    struct sampling_moments all = {0};
    uint64_t mass[SAMPLING_LANES];
    u16x64 mass_lane = {0};

    for (uint32_t begin = 0; begin < n; begin += SAMPLING_BLOCK) {
        d16 lane = d_widen(v_zero()), product = d_widen(v_zero());
        double lanes[SAMPLING_LANES];

        for (uint32_t i = begin; i < begin + SAMPLING_BLOCK && i < n; i += SAMPLING_LANES) {
            v16 s = score(load_ids(row, i, n), t, m), weight = v_exp(s);
            d16 wide = d_widen(weight);

            /* Below -87 the weight is 0: a score of any size will do there, so long as it is a
             * number. */
            lane = d_add(lane, wide);
            product = d_add(product, d_mul(wide, d_widen(v_max(s, v_set1(-128.0f)))));
            mass_lane = u_add_mass(mass_lane, wide);
        }
        d_store(lanes, lane);
        all.sum += numeric_tree_double(lanes);
        d_store(lanes, product);
        all.product += numeric_tree_double(lanes);
    }
    memcpy(mass, &mass_lane, sizeof mass);
    for (int i = 0; i < SAMPLING_LANES; i++)
        all.mass += mass[i];
    return all;
}

static void scores(const float *x, uint32_t n, float temperature, float max, float *scores)
{
    for (uint32_t i = 0; i < n; i += SAMPLING_LANES)
        v_store_n(scores + i, score(v_load_n(x + i, n - i), v_set1(temperature), v_set1(max)),
                  n - i);
}

static void weights(const float *x, uint32_t n, float *weights)
{
    for (uint32_t i = 0; i < n; i += SAMPLING_LANES)
        v_store_n(weights + i, v_exp(v_load_n(x + i, n - i)), n - i);
}

static uint32_t keep(uint32_t *ids, float *scores, float *weights, uint32_t n, float mean,
                     float distance)
{
    uint32_t n_kept = 0;

    for (uint32_t i = 0; i < n; i += SAMPLING_LANES) {
        v16 score = v_load_n(scores + i, n - i), weight = v_load_n(weights + i, n - i);
        v16 id = v_load_n((const float *)(const void *)(ids + i), n - i);
        v16 from_mean = v_sub(score, v_set1(mean));
        uint32_t lanes = v_not_below(v_set1(distance), v_max(from_mean, v_neg(from_mean)));

        if (n - i < SAMPLING_LANES)
            lanes &= (1u << (n - i)) - 1;
        store_lanes((float *)(void *)(ids + n_kept), id, lanes);
        store_lanes(scores + n_kept, score, lanes);
        store_lanes(weights + n_kept, weight, lanes);
        n_kept += (uint32_t)__builtin_popcount(lanes);
    }
    return n_kept;
}

const struct sampling_sweeps LEVEL(sampling_sweeps) = {maxima,  collect, sums,    mass,
                                                       moments, scores,  weights, keep};
