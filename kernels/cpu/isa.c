/* Levels are an order: each needs what the one before needs. CPUID says what the processor has,
 * XCR0 what the system saves. Level avx512bf16 differs from avx512vnni only in attention; it is
 * taken by itself only where vdpbf16ps is faster than the two fma it replaces (on some processors
 * it has half their rate) and gives their bits. */
#include "kernels/cpu/isa.h"

#include <cpuid.h>
#include <string.h>
#include <time.h>

#include "kernels/numeric.h"

enum { SCALAR, AVX2, AVX512VNNI, AVX512BF16, N_LEVELS };

static const struct level *const levels[N_LEVELS] = {
    [SCALAR] = &cpu_level_scalar,
    [AVX2] = &cpu_level_avx2,
    [AVX512VNNI] = &cpu_level_avx512vnni,
    [AVX512BF16] = &cpu_level_avx512bf16,
};

static const char *const refusals[N_LEVELS] = {
    [SCALAR] = "isa: this machine has: scalar",
    [AVX2] = "isa: this machine has: scalar, avx2",
    [AVX512VNNI] = "isa: this machine has: scalar, avx2, avx512vnni",
    [AVX512BF16] = "isa: this machine has: scalar, avx2, avx512vnni, avx512bf16",
};

static uint64_t read_xcr0(void)
{
    uint32_t low, high;

    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static bool has(uint32_t word, uint32_t bits)
{
    return (word & bits) == bits;
}

/* Number of levels this machine has. */
static int n_levels(void)
{
    enum { XCR0_YMM = 0x6, XCR0_ZMM = 0xe6 };
    const uint32_t avx512 = bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ;
    uint32_t a, b, c, d, b7 = 0, c7 = 0, a7 = 0;
    uint64_t xcr0;

    if (!__get_cpuid(1, &a, &b, &c, &d) || !has(c, bit_OSXSAVE | bit_AVX | bit_FMA))
        return 0;
    xcr0 = read_xcr0();
    if ((xcr0 & XCR0_YMM) != XCR0_YMM)
        return 0;
    if (!has(c, bit_F16C) || !__get_cpuid_count(7, 0, &a, &b7, &c7, &d) || !has(b7, bit_AVX2))
        return AVX2;
    if ((xcr0 & XCR0_ZMM) != XCR0_ZMM || !has(b7, avx512) || !has(c7, bit_AVX512VNNI))
        return AVX512VNNI;
    if (!__get_cpuid_count(7, 1, &a7, &b, &c, &d) || !has(a7, bit_AVX512BF16))
        return AVX512BF16;
    return N_LEVELS;
}

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Shortest of a few runs: other processes can only make one longer. */
static uint64_t time_pairs(const struct level *level, float out[16], const uint16_t *k,
                           const uint16_t *q, uint32_t n_pairs)
{
    uint64_t best = UINT64_MAX;

    for (int i = 0; i < 40; i++) {
        uint64_t start = now_ns();

        level->pairs(out, k, q, n_pairs);
        start = now_ns() - start;
        best = start < best ? start : best;
    }
    return best;
}

/* Fixed cases: magnitudes over the whole range, so that sums overflow, cancel and flush. */
static bool bf16_is_better(void)
{
    enum { N_PAIRS = 256 };
    _Alignas(64) uint16_t k[N_PAIRS * 32], q[N_PAIRS * 2];
    uint32_t state = 1;
    uint64_t fma_ns, native_ns;

    for (uint32_t i = 0; i < N_PAIRS * 34; i++) {
        uint16_t *to = i < N_PAIRS * 32 ? &k[i] : &q[i - N_PAIRS * 32];

        state = state * 1664525u + 1013904223u;
        *to = numeric_to_bf16(((float)(state >> 8) - 0x1p23f) * 0x1p-23f);
        if (i % 1024 >= 960) /* all exponents, denormals too; no infinity or NaN */
            *to = (uint16_t)((state >> 16) % 0x7f80 | (state >> 15 & 0x8000));
    }
    for (uint32_t n = 1; n <= N_PAIRS; n += 15) {
        float a[16], b[16];

        cpu_level_avx512vnni.pairs(a, k, q, n);
        cpu_level_avx512bf16.pairs(b, k, q, n);
        for (int i = 0; i < 16; i++) {
            if (numeric_bits(a[i]) != numeric_bits(b[i]) && (a[i] == a[i] || b[i] == b[i]))
                return false;
        }
    }
    {
        float out[16];

        fma_ns = time_pairs(&cpu_level_avx512vnni, out, k, q, N_PAIRS);
        native_ns = time_pairs(&cpu_level_avx512bf16, out, k, q, N_PAIRS);
    }
    return native_ns < fma_ns;
}

const struct level *isa_level_at(uint32_t i)
{
    return (int)i < n_levels() ? levels[i] : NULL;
}

const struct level *isa_level(const char *name, const char **why)
{
    int n = n_levels();

    if (!n) {
        *why = "isa: the cpu backend needs a processor and a system with fma";
        return NULL;
    }
    if (!name || !strcmp(name, "auto"))
        return levels[n == N_LEVELS && !bf16_is_better() ? AVX512VNNI : n - 1];
    for (int i = 0; i < n; i++) {
        if (!strcmp(levels[i]->name, name))
            return levels[i];
    }
    *why = refusals[n - 1];
    return NULL;
}
