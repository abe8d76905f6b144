/* Products of many tokens in bf16 on tiles (amx.h), for backends whose results may depend on the
 * batch. Weights of any type are rounded to bf16, and so are activations; sums are f32, over all
 * columns in ascending runs of 32 (amx.h says in which order), and never split. So a row's bits
 * depend on nothing but that its product was made here: on the number of its tokens.
 *
 * Why not in int8 as in matmul_amx.c: there each group of 32 columns has scales of its own. Its tile
 * product fills half of a tile's depth, and must leave the tiles: 16 rows of sums stored, converted,
 * multiplied and added by 3 or 4 vector instructions each. Here the scales are in the weights, and a
 * sum stays in its tile. In cycles, for a group of a panel, counted and not measured, with a tile
 * product every 16 cycles, two vector instructions, two loads and a store a cycle:
 *     int8   16 tokens:  two products of 8 rows, 16 stores, 64 vector instructions: 34 to 48
 *     bf16   16 tokens:  one product: 16; tiles are loaded meanwhile (below)
 *            a call:     512 weights unpacked, scaled, rounded, interleaved: 80 to 100
 *     tokens          16     32     64    128    256
 *     int8            40     80    160    320    640   about
 *     bf16           106    122    154    218    346
 * So it takes over at 64 tokens, and with 256 has 380 products a cycle of 512 that there are. (int8
 * without a group's own scales would have 1024: with one scale a row and a token, which is no longer
 * the model that the file holds.)
 *
 * Two panels times two tiles of 16 tokens: four sums of 16 x 16, with four loads of 8 cycles
 * each beside four products of 16. A run of groups is unpacked at a time, as long as leaves room
 * in the first-level cache for it and for the activations that pass; between runs the sums wait in
 * `out`, which costs a run 64 loads and 64 stores a block of 32 tokens. */
#include "kernels/cpu/amx.h"
#include "kernels/cpu/level.h"

#include <stdalign.h>

#include "kernels/cpu/vec.h"

#define UNROLL _Pragma("GCC unroll 16")

enum {
    RUN_GROUPS = 10,                        /* 20 KiB of two panels */
    GROUP_VALUES = GROUP_COLS * PANEL_ROWS, /* a tile: [16 pairs of columns][16 rows][2] */
    TILE_VALUES = BF16_TILE_TOKENS * GROUP_COLS,
    PREFETCH_BYTES = 4096 /* see matmul.c */
};

/* The tiles, by number. */
#define LOW        0 /* 16 tokens x 32 columns; HIGH: the 16 tokens behind */
#define HIGH       1
#define FIRST      2 /* 32 columns x 16 rows of a panel; SECOND: the panel behind */
#define SECOND     3
#define LOW_SUMS   4 /* of the first panel */
#define LOW_SUMS2  5
#define HIGH_SUMS  6
#define HIGH_SUMS2 7

static const struct tile_config config = {
    .palette = 1,
    .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
    .rows = {16, 16, 16, 16, 16, 16, 16, 16},
};

void LEVEL(matmul_bf16_begin)(void)
{
    tile_config(&config);
}

/* ---- panels to bf16 -------------------------------------------------------------------------- */

/* Two columns of 16 rows, rounded to bf16, as a row of a tile. */
INLINE void store_pair(uint16_t *p, v16 even, v16 odd)
{
#if VEC_512
    const __m512i order =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);

    _mm512_storeu_si512(p,
                        _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(odd, even)));
#else
    float e[PANEL_ROWS], o[PANEL_ROWS];

    v_store(e, v_round_bf16(even));
    v_store(o, v_round_bf16(odd));
    for (uint32_t r = 0; r < PANEL_ROWS; r++) {
        p[2 * r] = (uint16_t)(numeric_bits(e[r]) >> 16);
        p[2 * r + 1] = (uint16_t)(numeric_bits(o[r]) >> 16);
    }
#endif
}

/* The codes of column k of a group, without the format's offset. Under AVX-512 four bits look their
 * value up: the permutation sees no others. */
INLINE v16 column_codes(const uint8_t *codes, uint32_t k, const enum dtype t)
{
    const uint32_t shift = k % 4 * 8 + (t != DTYPE_Q8_0 && k >= 16 ? 4 : 0);
    const uint8_t *from = codes + (t == DTYPE_Q8_0 ? k : k % 16) / 4 * 64;

#if VEC_512
    __m512i u = _mm512_loadu_si512(from);

    if (t == DTYPE_Q8_0) {
        u = _mm512_xor_si512(_mm512_slli_epi32(u, 24 - shift), _mm512_set1_epi32(INT32_MIN));
        return _mm512_cvtepi32_ps(_mm512_srai_epi32(u, 24));
    }
    const v16 values =
        _mm512_sub_ps(_mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                      _mm512_set1_ps(t == DTYPE_Q4_0 ? 8 : 0));

    return _mm512_permutexvar_ps(_mm512_srli_epi32(u, shift), values);
#else
    const int offset = t == DTYPE_Q4_0 ? 8 : t == DTYPE_Q8_0 ? 128 : 0;
    float f[PANEL_ROWS];

    for (uint32_t r = 0; r < PANEL_ROWS; r++) {
        uint8_t u = (uint8_t)(from[4 * r + shift / 8] >> shift % 8);

        f[r] = (float)((t == DTYPE_Q8_0 ? u : u & 15) - offset);
    }
    return v_load(f);
#endif
}

INLINE void unpack_quantised(uint16_t *to, const uint8_t *group, uint32_t n_groups,
                             const enum dtype t)
{
    const size_t group_bytes = t == DTYPE_Q4_0 ? 288 : t == DTYPE_Q4_1 ? 320 : 544;

    for (uint32_t g = 0; g < n_groups; g++, group += group_bytes, to += GROUP_VALUES) {
        const uint8_t *codes = group + (t == DTYPE_Q4_1 ? 64 : 32);
        v16 d = v_from_half((const uint16_t *)(const void *)group), m = v_zero();

        for (size_t line = 0; line < group_bytes; line += 64)
            __builtin_prefetch(group + PREFETCH_BYTES + line, 0, 2);
        if (t == DTYPE_Q4_1)
            m = v_from_half((const uint16_t *)(const void *)(group + 32));
        UNROLL for (uint32_t k = 0; k < GROUP_COLS; k += 2)
        {
            v16 even = column_codes(codes, k, t), odd = column_codes(codes, k + 1, t);

            even = t == DTYPE_Q4_1 ? v_fma(even, d, m) : v_mul(even, d);
            odd = t == DTYPE_Q4_1 ? v_fma(odd, d, m) : v_mul(odd, d);
            store_pair(to + k * PANEL_ROWS, even, odd);
        }
    }
}

/* Columns [col, col_end) of a panel of F32, F16 or BF16, and zeros up to n_groups groups. */
INLINE void unpack_plain(uint16_t *to, const uint8_t *panel, uint32_t col, uint32_t col_end,
                         uint32_t n_groups, const enum dtype t)
{
    uint16_t *end = to + n_groups * GROUP_VALUES;

    for (; col < col_end; col += 2, to += 2 * PANEL_ROWS) {
        const uint16_t *half = (const uint16_t *)(const void *)panel + (size_t)col * PANEL_ROWS;
        const float *full = (const float *)(const void *)panel + (size_t)col * PANEL_ROWS;
        bool has_odd = col + 1 < col_end;

        if (t == DTYPE_BF16)
            memcpy(to, half, 2 * PANEL_ROWS * sizeof *to);
        else if (t == DTYPE_F16)
            store_pair(to, v_from_half(half), has_odd ? v_from_half(half + PANEL_ROWS) : v_zero());
        else
            store_pair(to, v_load(full), has_odd ? v_load(full + PANEL_ROWS) : v_zero());
    }
    if (to < end)
        memset(to, 0, (size_t)(end - to) * sizeof *to);
}

/* Groups [group, group + n_groups) of a panel of n_cols columns, as tiles. */
static void unpack(uint16_t *to, const struct panels *p, const uint8_t *panel, uint32_t n_cols,
                   uint32_t group, uint32_t n_groups)
{
    const uint8_t *at = panel + group * panel_group_bytes(p->dtype);
    uint32_t col = group * GROUP_COLS, col_end = col + n_groups * GROUP_COLS;

    col_end = col_end < n_cols ? col_end : n_cols;
    switch (p->dtype) {
    case DTYPE_Q4_0:
        unpack_quantised(to, at, n_groups, DTYPE_Q4_0);
        break;
    case DTYPE_Q4_1:
        unpack_quantised(to, at, n_groups, DTYPE_Q4_1);
        break;
    case DTYPE_Q8_0:
        unpack_quantised(to, at, n_groups, DTYPE_Q8_0);
        break;
    case DTYPE_F16:
        unpack_plain(to, panel, col, col_end, n_groups, DTYPE_F16);
        break;
    case DTYPE_BF16:
        unpack_plain(to, panel, col, col_end, n_groups, DTYPE_BF16);
        break;
    default:
        unpack_plain(to, panel, col, col_end, n_groups, DTYPE_F32);
        break;
    }
}

/* ---- tiles ----------------------------------------------------------------------------------- */

/* Sums of 32 tokens and one panel, or two, go on from `out`, or begin. first: the first panel's
 * tiles; the second's lie RUN_GROUPS behind. */
INLINE void multiply(float *out, size_t out_stride, bool begin, const uint16_t *first,
                     const uint16_t *low, const uint16_t *high, uint32_t n_groups, const bool two)
{
    const uint16_t *second = first + RUN_GROUPS * GROUP_VALUES;
    const size_t stride = out_stride * sizeof *out;
    float *out_high = out + BF16_TILE_TOKENS * out_stride;

    if (begin) {
        tile_zero(LOW_SUMS);
        tile_zero(HIGH_SUMS);
        tile_zero(LOW_SUMS2);
        tile_zero(HIGH_SUMS2);
    } else {
        tile_load(LOW_SUMS, out, stride);
        tile_load(HIGH_SUMS, out_high, stride);
        if (two) {
            tile_load(LOW_SUMS2, out + PANEL_ROWS, stride);
            tile_load(HIGH_SUMS2, out_high + PANEL_ROWS, stride);
        }
    }
    for (uint32_t g = 0; g < n_groups; g++) {
        tile_load(FIRST, first + g * GROUP_VALUES, 64);
        tile_load(LOW, low + g * TILE_VALUES, 64);
        tile_load(HIGH, high + g * TILE_VALUES, 64);
        tile_dp_bf16(LOW_SUMS, LOW, FIRST);
        tile_dp_bf16(HIGH_SUMS, HIGH, FIRST);
        if (two) {
            tile_load(SECOND, second + g * GROUP_VALUES, 64);
            tile_dp_bf16(LOW_SUMS2, LOW, SECOND);
            tile_dp_bf16(HIGH_SUMS2, HIGH, SECOND);
        }
    }
    tile_store(LOW_SUMS, out, stride);
    tile_store(HIGH_SUMS, out_high, stride);
    if (two) {
        tile_store(LOW_SUMS2, out + PANEL_ROWS, stride);
        tile_store(HIGH_SUMS2, out_high + PANEL_ROWS, stride);
    }
}

/* A panel, or two, times n_tokens tokens, the first of which begin x. */
INLINE void panels_bf16(float *out, size_t out_stride, const struct panels *p, uint32_t panel_idx,
                        const uint16_t *x, uint32_t n_cols, uint32_t n_tokens, const bool two)
{
    const uint8_t *panel = p->panels + panel_idx * p->panel_stride;
    uint32_t n_groups = (n_cols + GROUP_COLS - 1) / GROUP_COLS;
    uint32_t n_runs = (n_groups + RUN_GROUPS - 1) / RUN_GROUPS;
    uint32_t run = (n_groups + n_runs - 1) / n_runs;
    const size_t tile_row = (size_t)n_groups * TILE_VALUES;
    alignas(64) uint16_t values[2][RUN_GROUPS * GROUP_VALUES];

    for (uint32_t g = 0; g < n_groups; g += run) {
        uint32_t n = n_groups - g < run ? n_groups - g : run;

        unpack(values[0], p, panel, n_cols, g, n);
        if (two)
            unpack(values[1], p, panel + p->panel_stride, n_cols, g, n);
        for (uint32_t t = 0; t < n_tokens; t += BF16_BLOCK_TOKENS) {
            const uint16_t *low = x + t / BF16_TILE_TOKENS * tile_row + (size_t)g * TILE_VALUES;

            multiply(out + t * out_stride, out_stride, g == 0, values[0], low, low + tile_row, n,
                     two);
        }
    }
}

void LEVEL(matmul_bf16)(float *out, size_t out_stride, const struct panels *p, uint32_t panel_idx,
                        uint32_t n_panels, const struct act *act, uint32_t token_idx,
                        uint32_t n_tokens)
{
    uint32_t n_groups = (act->n_cols + GROUP_COLS - 1) / GROUP_COLS;
    const uint16_t *x = act->bf16 + (size_t)token_idx / BF16_TILE_TOKENS * n_groups * TILE_VALUES;

    for (uint32_t i = 0; i < n_panels; i += 2, out += 2 * PANEL_ROWS) {
        if (i + 1 < n_panels)
            panels_bf16(out, out_stride, p, panel_idx + i, x, act->n_cols, n_tokens, true);
        else
            panels_bf16(out, out_stride, p, panel_idx + i, x, act->n_cols, n_tokens, false);
    }
}
