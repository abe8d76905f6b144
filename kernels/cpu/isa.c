/* Levels are an order: each needs what the one before needs. CPUID says what the processor has,
 * XCR0 what the system saves. The last ones are built on avx512vnni, and are taken by themselves
 * only where a short timing shows that they are faster and give its bits: amx in wide products;
 * avx512bf16 in attention (on some processors vdpbf16ps has half the rate of the two fma it
 * replaces). The tiles of amx are memory that the system gives a process only if asked, before it
 * starts threads. Where products in bf16 are allowed, amx is timed by one of those, and its bits are
 * nobody's concern. The emulated levels are for tests, and never taken by themselves. */
#include "kernels/cpu/isa.h"

#include <cpuid.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "kernels/numeric.h"

enum { SCALAR, AVX2, AMX_EMULATED, AVX512VNNI, AVX512BF16, AMX512_EMULATED, AMX, N_LEVELS };

static const struct level *const levels[N_LEVELS] = {
    [SCALAR] = &cpu_level_scalar,
    [AVX2] = &cpu_level_avx2,
    [AMX_EMULATED] = &cpu_level_amx_emulated,
    [AVX512VNNI] = &cpu_level_avx512vnni,
    [AVX512BF16] = &cpu_level_avx512bf16,
    [AMX512_EMULATED] = &cpu_level_amx512_emulated,
    [AMX] = &cpu_level_amx,
};

#define HAS_SCALAR "isa: this machine has: scalar"
#define HAS_AVX2   HAS_SCALAR ", avx2, amx_emulated"
#define HAS_VNNI   HAS_AVX2 ", avx512vnni"
#define HAS_BF16   HAS_VNNI ", avx512bf16, amx512_emulated"
#define HAS_AMX    HAS_BF16 ", amx"

/* By the last level there is. */
static const char *const refusals[N_LEVELS] = {
    [SCALAR] = HAS_SCALAR,        [AMX_EMULATED] = HAS_AVX2, [AVX512VNNI] = HAS_VNNI,
    [AMX512_EMULATED] = HAS_BF16, [AMX] = HAS_AMX,
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

/* Asks the system to keep tiles for this process; asking again is harmless. */
static bool may_use_tiles(uint64_t xcr0)
{
    enum { XCR0_TILES = 0x60000, ARCH_REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18 };

    return (xcr0 & XCR0_TILES) == XCR0_TILES &&
           syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA) == 0;
}

/* Number of levels this machine has. */
static int n_levels(void)
{
    enum { XCR0_YMM = 0x6, XCR0_ZMM = 0xe6 };
    const uint32_t amx = 1u << 24 | 1u << 25; /* amx-tile, amx-int8 */
    const uint32_t avx512 = bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ;
    uint32_t a, b, c, d, b7 = 0, c7 = 0, d7 = 0, a7 = 0;
    uint64_t xcr0;

    if (!__get_cpuid(1, &a, &b, &c, &d) || !has(c, bit_OSXSAVE | bit_AVX | bit_FMA))
        return 0;
    xcr0 = read_xcr0();
    if ((xcr0 & XCR0_YMM) != XCR0_YMM)
        return 0;
    if (!has(c, bit_F16C) || !__get_cpuid_count(7, 0, &a, &b7, &c7, &d7) || !has(b7, bit_AVX2))
        return AVX2;
    if ((xcr0 & XCR0_ZMM) != XCR0_ZMM || !has(b7, avx512) || !has(c7, bit_AVX512VNNI))
        return AVX512VNNI;
    if (!__get_cpuid_count(7, 1, &a7, &b, &c, &d) || !has(a7, bit_AVX512BF16))
        return AVX512BF16;
    if (!has(d7, amx) || !may_use_tiles(xcr0))
        return AMX;
    return N_LEVELS;
}

/* Whether the processor multiplies tiles of bf16. */
static bool has_bf16_tiles(void)
{
    const uint32_t amx_bf16 = 1u << 22;
    uint32_t a, b, c, d;

    return n_levels() > AMX && __get_cpuid_count(7, 0, &a, &b, &c, &d) && has(d, amx_bf16);
}

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Shortest of a few runs: other processes can only make one longer. */
static uint64_t time_runs(void (*run)(const struct level *level, const void *input, float *out),
                          const struct level *level, const void *input, float *out)
{
    uint64_t best = UINT64_MAX;

    for (int i = 0; i < 40; i++) {
        uint64_t start = now_ns();

        run(level, input, out);
        start = now_ns() - start;
        best = start < best ? start : best;
    }
    return best;
}

static bool same_bits(const float *a, const float *b, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (numeric_bits(a[i]) != numeric_bits(b[i]) && (a[i] == a[i] || b[i] == b[i]))
            return false;
    }
    return true;
}

enum { N_PAIRS = 256 };

struct pairs_input {
    _Alignas(64) uint16_t k[N_PAIRS * 32];
    uint16_t q[N_PAIRS * 2];
};

static void run_pairs(const struct level *level, const void *input, float *out)
{
    const struct pairs_input *in = input;

    level->pairs(out, in->k, in->q, N_PAIRS);
}

/* Fixed cases: magnitudes over the whole range, so that sums overflow, cancel and flush. */
static bool bf16_is_better(void)
{
    struct pairs_input in;
    uint32_t state = 1;
    float a[16], b[16];

    for (uint32_t i = 0; i < N_PAIRS * 34; i++) {
        uint16_t *to = i < N_PAIRS * 32 ? &in.k[i] : &in.q[i - N_PAIRS * 32];

        state = state * 1664525u + 1013904223u;
        *to = numeric_to_bf16(((float)(state >> 8) - 0x1p23f) * 0x1p-23f);
        if (i % 1024 >= 960) /* all exponents, denormals too; no infinity or NaN */
            *to = (uint16_t)((state >> 16) % 0x7f80 | (state >> 15 & 0x8000));
    }
    for (uint32_t n = 1; n <= N_PAIRS; n += 15) {
        cpu_level_avx512vnni.pairs(a, in.k, in.q, n);
        cpu_level_avx512bf16.pairs(b, in.k, in.q, n);
        if (!same_bits(a, b, 16))
            return false;
    }
    return time_runs(run_pairs, &cpu_level_avx512bf16, &in, b) <
           time_runs(run_pairs, &cpu_level_avx512vnni, &in, a);
}

struct product_input {
    struct panels panels;
    struct act act;
};

static void run_product(const struct level *level, const void *input, float *out)
{
    const struct product_input *in = input;

    level->product(out, &in->panels, &in->act);
}

/* One panel of Q4_1 with 1280 columns times 64 tokens: random codes, f16 scales below 1. In bf16 the
 * same bytes are the activations. */
static bool amx_is_better(bool bf16)
{
    enum { N_TOKENS = 64, N_GROUPS = 40, GROUP_BYTES = 320, TILE_BYTES = 8 * ACT_GROUP_BYTES };
    _Alignas(64) uint8_t panel[N_GROUPS * GROUP_BYTES];
    _Alignas(64) uint8_t q[N_TOKENS / BF16_TILE_TOKENS * N_GROUPS * BF16_TILE_BYTES];
    const struct product_input in = {
        {.panels = panel, .panel_stride = sizeof panel, .dtype = DTYPE_Q4_1, .n_panels = 1},
        {.q = q, .n_tokens = N_TOKENS, .n_cols = N_GROUPS * GROUP_COLS},
    };
    struct product_input amx_in = in;
    float a[N_TOKENS * PANEL_ROWS], b[N_TOKENS * PANEL_ROWS];
    uint32_t state = 1;

    for (size_t i = 0; i < sizeof panel; i++) {
        state = state * 1664525u + 1013904223u;
        panel[i] = (uint8_t)(state >> 24);
        if (i % GROUP_BYTES < 64 && i % 2)
            panel[i] = (uint8_t)(panel[i] % 0x3c);
    }
    for (size_t i = 0; i < sizeof q; i++) {
        state = state * 1664525u + 1013904223u;
        q[i] = (uint8_t)(state >> 24);
        if (i % TILE_BYTES >= 8 * GROUP_COLS && i % 4 == 3)
            q[i] = 0x3f; /* dy and sy of 0.5 to 2 */
    }
    if (bf16)
        amx_in.act.bf16 = (const uint16_t *)(const void *)q;
    run_product(&cpu_level_avx512vnni, &in, a);
    run_product(&cpu_level_amx, &amx_in, b);
    return (bf16 || same_bits(a, b, N_TOKENS * PANEL_ROWS)) &&
           time_runs(run_product, &cpu_level_amx, &amx_in, b) <
               time_runs(run_product, &cpu_level_avx512vnni, &in, a);
}

/* The best of the first n levels. */
static const struct level *best_level(int n, bool bf16)
{
    if (n > AMX && amx_is_better(bf16 && has_bf16_tiles()))
        return levels[AMX];
    if (n > AVX512BF16 && bf16_is_better())
        return levels[AVX512BF16];
    if (n > AVX512VNNI)
        return levels[AVX512VNNI];
    return levels[n > AVX2 ? AVX2 : SCALAR];
}

const struct level *isa_level_at(uint32_t i)
{
    return (int)i < n_levels() ? levels[i] : NULL;
}

uint32_t isa_bf16_tokens(const struct level *level, const char **why)
{
    if (level->bf16_tokens && (level != levels[AMX] || has_bf16_tiles()))
        return level->bf16_tokens;
    *why = has_bf16_tiles() ? "only isa amx multiplies in bf16"
                            : "this machine has no AMX tiles of bf16";
    return 0;
}

const struct level *isa_level(const char *name, bool bf16, const char **why)
{
    int n = n_levels();

    if (!n) {
        *why = "isa: the cpu backend needs a processor and a system with fma";
        return NULL;
    }
    if (!name || !strcmp(name, "auto"))
        return best_level(n, bf16);
    for (int i = 0; i < n; i++) {
        if (!strcmp(levels[i]->name, name))
            return levels[i];
    }
    *why = refusals[n - 1];
    return NULL;
}
