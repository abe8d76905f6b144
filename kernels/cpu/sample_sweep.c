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

static uint32_t collect(const float *row, uint32_t n, const float *maxima, float least,
                        uint32_t *ids)
{
    const v16 bound = v_set1(least);
    uint32_t n_ids = 0;

    for (uint32_t begin = 0; begin < n; begin += SAMPLING_BLOCK, maxima += SAMPLING_LANES) {
        if (!v_not_below(v_load(maxima), bound))
            continue;
        for (uint32_t i = begin; i < begin + SAMPLING_BLOCK && i < n; i += SAMPLING_LANES) {
            uint32_t lanes = v_not_below(load_ids(row, i, n), bound);

            for (; lanes; lanes &= lanes - 1)
                ids[n_ids++] = i + (uint32_t)__builtin_ctz(lanes);
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

static void weights(const float *x, uint32_t n, float *weights)
{
    for (uint32_t i = 0; i < n; i += SAMPLING_LANES)
        v_store_n(weights + i, v_exp(v_load_n(x + i, n - i)), n - i);
}

const struct sampling_sweeps LEVEL(sampling_sweeps) = {maxima, collect, sums, mass, weights};
