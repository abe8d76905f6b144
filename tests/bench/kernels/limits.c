/* Instructions are written as assembly: compilers fold chains that compute nothing, and keep arrays
 * of accumulators in memory. Twelve chains hide the latency of any of them. */
#include "tests/bench/kernels/limits.h"

#include <immintrin.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/measure.h"

enum { N_REPEATS = 9, ROUNDS = 2000000, READ_BYTES = 96 << 20, READ_ITEM_BYTES = 1 << 16 };

struct rate rate_of(double *values, int n)
{
    bench_sort(values, (size_t)n);
    return (struct rate){values[n / 2], values[0], values[n - 1]};
}

/* ---- arithmetic ------------------------------------------------------------------------------ */

#define ZMM(op, i) op " %0, %0, %%zmm" #i "\n\t"
#define YMM(op, i) op " %0, %0, %%ymm" #i "\n\t"
#define TWELVE(f, op)                                                                         \
    f(op, 0) f(op, 1) f(op, 2) f(op, 3) f(op, 4) f(op, 5) f(op, 6) f(op, 7) f(op, 8) f(op, 9) \
        f(op, 10) f(op, 11)

/* Without VNNI: products of bytes in pairs, pairs of those, and the sum. */
#define YMM_DOT8(sum, part)                                                         \
    "vpmaddubsw %0, %0, %%ymm" #part "\n\tvpmaddwd %0, %%ymm" #part ", %%ymm" #part \
    "\n\tvpaddd %%ymm" #part ", %%ymm" #sum ", %%ymm" #sum "\n\t"

#define ARITHMETIC(name, isa, vector, body)                                                    \
    __attribute__((target(isa))) static void name(void *arg, uint32_t worker, uint32_t begin,  \
                                                  uint32_t end)                                \
    {                                                                                          \
        vector zero = {0};                                                                     \
                                                                                               \
        (void)arg;                                                                             \
        (void)worker;                                                                          \
        for (uint32_t round = 0; round < (end - begin) * ROUNDS; round++)                      \
            __asm__ volatile(body ::"x"(zero)                                                  \
                             : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", \
                               "xmm8", "xmm9", "xmm10", "xmm11");                              \
    }

ARITHMETIC(dot8_512, "avx512f", __m512i, TWELVE(ZMM, "vpdpbusd"))
ARITHMETIC(bf16_512, "avx512f", __m512i, TWELVE(ZMM, "vdpbf16ps"))
ARITHMETIC(fma_512, "avx512f", __m512i, TWELVE(ZMM, "vfmadd231ps"))
ARITHMETIC(fma_256, "avx2", __m256i, TWELVE(YMM, "vfmadd231ps"))
ARITHMETIC(dot8_256, "avx2", __m256i,
           YMM_DOT8(0, 6) YMM_DOT8(1, 7) YMM_DOT8(2, 8) YMM_DOT8(3, 9) YMM_DOT8(4, 10)
               YMM_DOT8(5, 11))

static struct rate arithmetic(struct pool *pool, pool_fn *fn, double macs_a_round)
{
    double rates[N_REPEATS];

    for (int i = 0; i < N_REPEATS; i++) {
        double start = bench_now();

        pool_run(pool, fn, NULL, pool_n_threads(pool), 1);
        rates[i] = macs_a_round * ROUNDS * pool_n_threads(pool) / (bench_now() - start);
    }
    return rate_of(rates, N_REPEATS);
}

/* ---- memory ---------------------------------------------------------------------------------- */

struct reading {
    const uint8_t *data;
    volatile int sink[POOL_THREADS_MAX * 16]; /* so that the compiler keeps the loads */
};

static void read_items(void *arg, uint32_t worker, uint32_t begin, uint32_t end)
{
    struct reading *r = arg;
    const __m128i *p = (const __m128i *)(const void *)(r->data + (size_t)begin * READ_ITEM_BYTES);
    size_t n = (size_t)(end - begin) * READ_ITEM_BYTES / sizeof *p;
    __m128i a = _mm_setzero_si128(), b = a, c = a, d = a;

    for (size_t i = 0; i < n; i += 4) {
        a = _mm_xor_si128(a, p[i]);
        b = _mm_xor_si128(b, p[i + 1]);
        c = _mm_xor_si128(c, p[i + 2]);
        d = _mm_xor_si128(d, p[i + 3]);
    }
    a = _mm_xor_si128(_mm_xor_si128(a, b), _mm_xor_si128(c, d));
    r->sink[worker * 16] = _mm_cvtsi128_si32(_mm_add_epi32(a, _mm_srli_si128(a, 8)));
}

static struct rate reads(struct pool *pool)
{
    static struct reading r;
    uint8_t *data = aligned_alloc(4096, READ_BYTES);
    double rates[N_REPEATS];

    if (!data) {
        perror("the buffer to read");
        exit(1);
    }
    memset(data, 1, READ_BYTES);
    r.data = data;
    for (int i = 0; i < N_REPEATS; i++) {
        double start = bench_now();

        pool_run(pool, read_items, &r, READ_BYTES / READ_ITEM_BYTES, 16);
        rates[i] = READ_BYTES / (bench_now() - start);
    }
    free(data);
    return rate_of(rates, N_REPEATS);
}

/* ---- all of them ----------------------------------------------------------------------------- */

static const struct {
    const char *name, *unit;
    double scale;
} limits[N_LIMITS] = {
    [LIMIT_READ] = {"reads", "GB/s", 1e-9},
    [LIMIT_DOT8] = {"int8 dot", "GOPS", 2e-9},
    [LIMIT_BF16] = {"bf16 dot", "GFLOPS", 2e-9},
    [LIMIT_FMA] = {"f32 fma", "GFLOPS", 2e-9},
};

const char *limit_name(enum limit limit)
{
    return limits[limit].name;
}

const char *limit_unit(enum limit limit)
{
    return limits[limit].unit;
}

double limit_scale(enum limit limit)
{
    return limits[limit].scale;
}

void limits_measure(struct pool *pool, struct rate *rates)
{
    memset(rates, 0, N_LIMITS * sizeof *rates);
    rates[LIMIT_READ] = reads(pool);
    if (__builtin_cpu_supports("avx512vnni"))
        rates[LIMIT_DOT8] = arithmetic(pool, dot8_512, 12 * 64);
    else if (__builtin_cpu_supports("avx2"))
        rates[LIMIT_DOT8] = arithmetic(pool, dot8_256, 6 * 32);
    if (__builtin_cpu_supports("avx512bf16"))
        rates[LIMIT_BF16] = arithmetic(pool, bf16_512, 12 * 32);
    if (__builtin_cpu_supports("avx512f"))
        rates[LIMIT_FMA] = arithmetic(pool, fma_512, 12 * 16);
    else if (__builtin_cpu_supports("fma"))
        rates[LIMIT_FMA] = arithmetic(pool, fma_256, 12 * 8);
}
