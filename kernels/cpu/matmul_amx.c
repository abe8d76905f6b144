/* Products with 16 tokens and more on tiles (amx.h): the same formula as in matmul.c, with the sum
 * over a group's 32 columns by one tile product. Such a sum is exact, and what follows is the same
 * two fma, so the bits are the same.
 *
 * A tile has one stride between its rows, and tokens lie in tiles of 8 (struct act): two tiles of 8
 * tokens times one tile of codes make 16 tokens x 16 rows, whose chains of fma fill 16 registers of
 * 512 bits. All the codes of a run of groups are first unpacked to a byte each, into a buffer that
 * stays in the first-level cache while all tokens of the call pass; between runs the chains wait in
 * `out`. The tile products of a group are on their way while the fma of the one before are done. */
#include "kernels/cpu/amx.h"
#include "kernels/cpu/level.h"

#include <stdalign.h>
#include <string.h>

#include "kernels/cpu/vec.h"

#define UNROLL _Pragma("GCC unroll 16")

enum {
    WIDE_TOKENS = 2 * TILE_TOKENS,
    RUN_GROUPS = 32, /* 16 KiB of codes */
    CODES_BYTES = GROUP_COLS * PANEL_ROWS,
    PREFETCH_BYTES = 4096 /* see matmul.c */
};

/* The tiles, by number. */
#define CODES     0
#define LOW       1
#define HIGH      2
#define LOW_SUMS  3
#define HIGH_SUMS 4

static const struct tile_config config = {
    .palette = 1,
    .row_bytes = {[CODES] = 64, [LOW] = 32, [HIGH] = 32, [LOW_SUMS] = 64, [HIGH_SUMS] = 64},
    .rows = {[CODES] = 8, [LOW] = 8, [HIGH] = 8, [LOW_SUMS] = 8, [HIGH_SUMS] = 8},
};

void LEVEL(matmul_begin)(const struct act *act)
{
    if (act->bf16)
        LEVEL(matmul_bf16_begin)();
    else if (act->n_tokens >= WIDE_TOKENS)
        tile_config(&config);
}

void LEVEL(matmul_end)(const struct act *act)
{
    if (act->bf16 || act->n_tokens >= WIDE_TOKENS)
        tile_release();
}

/* (float)(p[i] + start) */
#if VEC_512
INLINE v16 v_from_sums(const int32_t *p, int32_t start)
{
    return _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_load_si512(p), _mm512_set1_epi32(start)));
}
#else
INLINE v16 v_from_sums(const int32_t *p, int32_t start)
{
    float f[PANEL_ROWS];

    for (uint32_t r = 0; r < PANEL_ROWS; r++)
        f[r] = (float)(p[r] + start);
    return v_load(f);
}
#endif

/* Codes of n_groups groups as rows of tiles: [8 times 4 columns][16 rows][4]. */
INLINE void unpack(uint8_t *codes, const uint8_t *panel, uint32_t n_groups, const enum dtype t)
{
    const size_t group_bytes = t == DTYPE_Q4_0 ? 288 : t == DTYPE_Q4_1 ? 320 : 544;

    for (uint32_t g = 0; g < n_groups; g++, codes += CODES_BYTES, panel += group_bytes) {
        const uint8_t *from = panel + (t == DTYPE_Q4_1 ? 64 : 32);

        for (size_t line = 0; line < group_bytes; line += 64)
            __builtin_prefetch(panel + PREFETCH_BYTES + line, 0, 2);
        if (t == DTYPE_Q8_0) {
            memcpy(codes, from, CODES_BYTES);
            continue;
        }
        for (uint32_t i = 0; i < CODES_BYTES / 2; i++) {
            codes[i] = from[i] & 15;
            codes[CODES_BYTES / 2 + i] = from[i] >> 4;
        }
    }
}

INLINE void multiply_group(int32_t sums[WIDE_TOKENS][PANEL_ROWS], const uint8_t *codes,
                           const uint8_t *low, const uint8_t *high)
{
    tile_load(CODES, codes, 64);
    tile_load(LOW, low, GROUP_COLS);
    tile_load(HIGH, high, GROUP_COLS);
    tile_zero(LOW_SUMS);
    tile_zero(HIGH_SUMS);
    tile_dp_s8u8(LOW_SUMS, LOW, CODES);
    tile_dp_s8u8(HIGH_SUMS, HIGH, CODES);
    tile_store(LOW_SUMS, sums[0], sizeof sums[0]);
    tile_store(HIGH_SUMS, sums[TILE_TOKENS], sizeof sums[0]);
}

/* The chains of 16 tokens go on from `out`, or begin. low and high: the first group of two tiles of
 * 8 tokens. */
INLINE void run_groups(float *out, size_t out_stride, bool begin, const uint8_t *panel,
                       const uint8_t *codes, const uint8_t *low, const uint8_t *high,
                       uint32_t n_groups, const enum dtype t)
{
    const size_t group_bytes = t == DTYPE_Q4_0 ? 288 : t == DTYPE_Q4_1 ? 320 : 544;
    const size_t tile_bytes = TILE_TOKENS * ACT_GROUP_BYTES;
    const int32_t offset = t == DTYPE_Q4_0 ? 8 : 128;
    alignas(64) int32_t sums[2][WIDE_TOKENS][PANEL_ROWS];
    v16 acc[WIDE_TOKENS];

    UNROLL for (uint32_t i = 0; i < WIDE_TOKENS; i++) acc[i] =
        begin ? v_zero() : v_load(out + i * out_stride);
    multiply_group(sums[0], codes, low, high);
    for (uint32_t g = 0; g < n_groups; g++) {
        const uint8_t *facts[2] = {low + TILE_TOKENS * GROUP_COLS, high + TILE_TOKENS * GROUP_COLS};
        v16 d = v_from_half((const uint16_t *)(const void *)panel), m = v_zero();

        codes += CODES_BYTES;
        low += tile_bytes;
        high += tile_bytes;
        if (g + 1 < n_groups)
            multiply_group(sums[(g + 1) % 2], codes, low, high);
        if (t == DTYPE_Q4_1)
            m = v_from_half((const uint16_t *)(const void *)(panel + 32));
        UNROLL for (uint32_t i = 0; i < WIDE_TOKENS; i++)
        {
            const uint8_t *dy = facts[i / TILE_TOKENS] + i % TILE_TOKENS * 4;
            int32_t start = t == DTYPE_Q4_1 ? 0 : load_i32(dy + (size_t)8 * TILE_TOKENS) * offset;

            acc[i] =
                v_fma(v_mul(v_from_sums(sums[g % 2][i], start), v_set1(load_f32(dy))), d, acc[i]);
            if (t == DTYPE_Q4_1)
                acc[i] = v_fma(v_set1(load_f32(dy + (size_t)4 * TILE_TOKENS)), m, acc[i]);
        }
        panel += group_bytes;
    }
    UNROLL for (uint32_t i = 0; i < WIDE_TOKENS; i++) v_store(out + i * out_stride, acc[i]);
}

/* One panel times n_tokens tokens, a multiple of 16; x is their first tile of n_groups groups. */
INLINE void panel_quantised(float *out, size_t out_stride, const uint8_t *panel, const uint8_t *x,
                            uint32_t n_groups, uint32_t n_tokens, const enum dtype t)
{
    const size_t group_bytes = t == DTYPE_Q4_0 ? 288 : t == DTYPE_Q4_1 ? 320 : 544;
    const size_t tile_bytes = TILE_TOKENS * ACT_GROUP_BYTES;
    alignas(64) uint8_t codes[RUN_GROUPS * CODES_BYTES];

    for (uint32_t g = 0; g < n_groups; g += RUN_GROUPS) {
        uint32_t n = n_groups - g < RUN_GROUPS ? n_groups - g : RUN_GROUPS;

        unpack(codes, panel, n, t);
        for (uint32_t i = 0; i < n_tokens; i += WIDE_TOKENS) {
            const uint8_t *low = x + ((size_t)i / TILE_TOKENS * n_groups + g) * tile_bytes;

            run_groups(out + i * out_stride, out_stride, g == 0, panel, codes, low,
                       low + n_groups * tile_bytes, n, t);
        }
        panel += n * group_bytes;
    }
}

/* One function a format: it is a constant inside. */
#define QUANTISED(name, t)                                                                  \
    static void name(float *out, size_t out_stride, const uint8_t *panel, const uint8_t *x, \
                     uint32_t n_groups, uint32_t n_tokens)                                  \
    {                                                                                       \
        panel_quantised(out, out_stride, panel, x, n_groups, n_tokens, t);                  \
    }
QUANTISED(panel_q4_0, DTYPE_Q4_0)
QUANTISED(panel_q4_1, DTYPE_Q4_1)
QUANTISED(panel_q8_0, DTYPE_Q8_0)

void LEVEL(matmul)(float *out, size_t out_stride, const struct panels *p, uint32_t panel_idx,
                   uint32_t n_panels, const struct act *act, uint32_t token_idx, uint32_t n_tokens)
{
    uint32_t n_groups = act->n_cols / GROUP_COLS;
    uint32_t n_wide = panel_is_quantised(p->dtype) ? n_tokens / WIDE_TOKENS * WIDE_TOKENS : 0;
    const uint8_t *q = act->q + (size_t)token_idx * n_groups * ACT_GROUP_BYTES;

    if (act->bf16) {
        LEVEL(matmul_bf16)(out, out_stride, p, panel_idx, n_panels, act, token_idx, n_tokens);
        return;
    }
    for (uint32_t i = 0; i < n_panels && n_wide; i++) {
        const uint8_t *panel = p->panels + (panel_idx + i) * p->panel_stride;
        float *o = out + i * PANEL_ROWS;

        if (p->dtype == DTYPE_Q4_0)
            panel_q4_0(o, out_stride, panel, q, n_groups, n_wide);
        else if (p->dtype == DTYPE_Q4_1)
            panel_q4_1(o, out_stride, panel, q, n_groups, n_wide);
        else
            panel_q8_0(o, out_stride, panel, q, n_groups, n_wide);
    }
    /* The rest, and other weights, by the tiles of 8 tokens of the level this one is built on. */
    for (uint32_t t = n_wide; t < n_tokens; t += TILE_TOKENS) {
        uint32_t n = tile_n_tokens(t, n_tokens);
        float *o = out + t * out_stride;

        BASE(matmul)(o, out_stride, p, panel_idx, n_panels, act, token_idx + t, n);
    }
}
