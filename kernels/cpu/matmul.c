/* Panels of 16 rows times tiles of up to 8 tokens: the micro-kernels.
 *
 * Quantised weights, a row and a token, groups of 32 columns in ascending order:
 *     s   = sum of u * q, exact in int32, started at -offset * sum(q) for formats with an offset
 *     acc = fma((float)s * dy, d, acc)
 *     acc = fma(sy, m, acc)                  only with minimums
 * Other weights: one chain of fma, columns ascending, on f32 activations. K is never split and
 * nothing is reassociated, so the bits depend on neither tile, nor level, nor who runs it.
 *
 * AVX-512: a vector of codes is the unsigned operand of vpdpbusd as it lies in memory, the four
 * activations are broadcast from memory; unpacking is shared by the tokens of a tile. AVX2:
 * vpmaddubsw adds pairs in 16 bits, which is exact for 4-bit codes over a whole group (15*127*16 <
 * 32768); 8-bit codes are multiplied as |u - 128| by q with its sign, for 255*127*2 would saturate
 * (128*127*2 does not). */
#include "kernels/cpu/level.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/vec.h"

#define UNROLL _Pragma("GCC unroll 16")

/* Bytes of the scales at the head of a group; the integer offset as a shift (8 and 128). */
INLINE uint32_t codes_off(enum dtype t)
{
    return t == DTYPE_Q4_1 ? 64 : 32;
}
INLINE int offset_shift(enum dtype t)
{
    return t == DTYPE_Q4_0 ? 3 : 7;
}

#if VEC_512

/* Weights come in a single stream from memory, panel after panel, so far ahead of its use. The
 * hardware's own prefetch stops at every 4 KiB and twice as often when two panels are read at once:
 * one stream with this prefetch reads 20 GB/s a core where two streams read 11. */
enum { PREFETCH_BYTES = 4096 };

/* Fewer tokens wait for their weights themselves. */
enum { AHEAD_TOKENS = 4, AHEAD_LINES = 2 };

/* A few lines of what is wanted later. */
INLINE void ahead_fetch(struct cpu_ahead *ahead)
{
    if (ahead->at >= ahead->end) {
        if (ahead->next == ahead->n)
            return;
        ahead->at = ahead->blocks[ahead->next++];
        ahead->end = ahead->at + ahead->block_bytes;
    }
    UNROLL for (size_t line = 0; line < AHEAD_LINES; line++)
        _mm_prefetch((const char *)ahead->at + 64 * line, _MM_HINT_T1);
    ahead->at += 64 * AHEAD_LINES;
}

/* n_tokens is a constant where this is expanded, and all arrays are registers. */
INLINE void tile_quantised(float *out, size_t out_stride, const uint8_t *panel, const uint8_t *x,
                           uint32_t n_groups, struct cpu_ahead *ahead, const enum dtype t,
                           const uint32_t n_tokens)
{
    const __m512i nibble = _mm512_set1_epi8(15);
    const size_t group_bytes = t == DTYPE_Q4_0 ? 288 : t == DTYPE_Q4_1 ? 320 : 544;
    __m512 acc[TILE_TOKENS];

    UNROLL for (uint32_t i = 0; i < n_tokens; i++) acc[i] = _mm512_setzero_ps();
    for (uint32_t g = 0; g < n_groups; g++) {
        const uint8_t *codes = panel + codes_off(t), *facts = x + n_tokens * GROUP_COLS;
        __m512i s[TILE_TOKENS];
        __m512 d;

        UNROLL for (size_t line = 0; line < group_bytes; line += 64)
            _mm_prefetch((const char *)panel + PREFETCH_BYTES + line, _MM_HINT_T1);
        if (n_tokens >= AHEAD_TOKENS)
            ahead_fetch(ahead);
        UNROLL for (uint32_t i = 0; i < n_tokens; i++)
        {
            s[i] =
                t == DTYPE_Q4_1
                    ? _mm512_setzero_si512()
                    : _mm512_slli_epi32(_mm512_set1_epi32(load_i32(facts + 8 * n_tokens + 4 * i)),
                                        (unsigned)offset_shift(t));
        }
        if (t == DTYPE_Q8_0) {
            UNROLL for (uint32_t j = 0; j < 8; j++)
            {
                __m512i u = _mm512_loadu_si512(codes + 64 * j);

                UNROLL for (uint32_t i = 0; i < n_tokens; i++) s[i] = _mm512_dpbusd_epi32(
                    s[i], u, _mm512_set1_epi32(load_i32(x + i * GROUP_COLS + 4 * j)));
            }
        } else {
            UNROLL for (uint32_t j = 0; j < 4; j++)
            {
                __m512i u = _mm512_loadu_si512(codes + 64 * j);
                __m512i lo = _mm512_and_si512(u, nibble);
                __m512i hi = _mm512_and_si512(_mm512_srli_epi16(u, 4), nibble);

                UNROLL for (uint32_t i = 0; i < n_tokens; i++) s[i] = _mm512_dpbusd_epi32(
                    s[i], lo, _mm512_set1_epi32(load_i32(x + i * GROUP_COLS + 4 * j)));
                UNROLL for (uint32_t i = 0; i < n_tokens; i++) s[i] = _mm512_dpbusd_epi32(
                    s[i], hi, _mm512_set1_epi32(load_i32(x + i * GROUP_COLS + 16 + 4 * j)));
            }
        }
        d = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)panel));
        UNROLL for (uint32_t i = 0; i < n_tokens; i++) acc[i] = _mm512_fmadd_ps(
            _mm512_mul_ps(_mm512_cvtepi32_ps(s[i]), _mm512_set1_ps(load_f32(facts + 4 * i))), d,
            acc[i]);
        if (t == DTYPE_Q4_1) {
            __m512 m = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(panel + 32)));

            UNROLL for (uint32_t i = 0; i < n_tokens; i++) acc[i] =
                _mm512_fmadd_ps(_mm512_set1_ps(load_f32(facts + 4 * n_tokens + 4 * i)), m, acc[i]);
        }
        panel += group_bytes;
        x += n_tokens * ACT_GROUP_BYTES;
    }
    UNROLL for (uint32_t i = 0; i < n_tokens; i++) _mm512_storeu_ps(out + i * out_stride, acc[i]);
}

#elif VEC_256

/* Rows 8*half.. of a panel, tokens first.. of the tile, four at most: what 16 registers hold. */
INLINE void quarter_quantised(float *out, size_t out_stride, const uint8_t *panel, const uint8_t *x,
                              uint32_t n_groups, const enum dtype t, uint32_t tile_tokens,
                              uint32_t first, const uint32_t n_tokens, const uint32_t half)
{
    const __m256i nibble = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
    const size_t group_bytes = t == DTYPE_Q4_0 ? 288 : t == DTYPE_Q4_1 ? 320 : 544;
    __m256 acc[4];

    UNROLL for (uint32_t i = 0; i < n_tokens; i++) acc[i] = _mm256_setzero_ps();
    for (uint32_t g = 0; g < n_groups; g++) {
        const uint8_t *codes = panel + codes_off(t) + 32 * half, *q = x + first * GROUP_COLS;
        const uint8_t *facts = x + tile_tokens * GROUP_COLS + 4 * first;
        __m256 d = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(panel + 16 * half)));
        __m256 m = _mm256_setzero_ps();
        __m256i s[4];

        UNROLL for (uint32_t i = 0; i < n_tokens; i++) s[i] = _mm256_setzero_si256();
        if (t == DTYPE_Q8_0) {
            UNROLL for (uint32_t j = 0; j < 8; j++)
            {
                __m256i u = _mm256_loadu_si256((const __m256i *)(codes + 64 * j));
                __m256i code = _mm256_xor_si256(u, _mm256_set1_epi8(-128));
                __m256i magnitude = _mm256_abs_epi8(code);

                UNROLL for (uint32_t i = 0; i < n_tokens; i++)
                {
                    __m256i four = _mm256_set1_epi32(load_i32(q + i * GROUP_COLS + 4 * j));
                    __m256i two = _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(four, code));

                    s[i] = _mm256_add_epi32(s[i], _mm256_madd_epi16(two, ones));
                }
            }
        } else {
            UNROLL for (uint32_t j = 0; j < 4; j++)
            {
                __m256i u = _mm256_loadu_si256((const __m256i *)(codes + 64 * j));
                __m256i lo = _mm256_and_si256(u, nibble);
                __m256i hi = _mm256_and_si256(_mm256_srli_epi16(u, 4), nibble);

                UNROLL for (uint32_t i = 0; i < n_tokens; i++)
                {
                    const uint8_t *qi = q + i * GROUP_COLS + 4 * j;

                    s[i] = _mm256_add_epi16(
                        s[i], _mm256_maddubs_epi16(lo, _mm256_set1_epi32(load_i32(qi))));
                    s[i] = _mm256_add_epi16(
                        s[i], _mm256_maddubs_epi16(hi, _mm256_set1_epi32(load_i32(qi + 16))));
                }
            }
            UNROLL for (uint32_t i = 0; i < n_tokens; i++) s[i] = _mm256_madd_epi16(s[i], ones);
        }
        if (t == DTYPE_Q4_1)
            m = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(panel + 32 + 16 * half)));
        UNROLL for (uint32_t i = 0; i < n_tokens; i++)
        {
            __m256 f;

            if (t == DTYPE_Q4_0) {
                int32_t start = load_i32(facts + 8 * tile_tokens + 4 * i) * (1 << offset_shift(t));

                s[i] = _mm256_add_epi32(s[i], _mm256_set1_epi32(start));
            }
            f = _mm256_mul_ps(_mm256_cvtepi32_ps(s[i]), _mm256_set1_ps(load_f32(facts + 4 * i)));
            acc[i] = _mm256_fmadd_ps(f, d, acc[i]);
            if (t == DTYPE_Q4_1)
                acc[i] = _mm256_fmadd_ps(_mm256_set1_ps(load_f32(facts + 4 * tile_tokens + 4 * i)),
                                         m, acc[i]);
        }
        panel += group_bytes;
        x += tile_tokens * ACT_GROUP_BYTES;
    }
    UNROLL for (uint32_t i = 0; i < n_tokens; i++)
        _mm256_storeu_ps(out + (first + i) * out_stride + 8 * half, acc[i]);
}

INLINE void tile_quantised(float *out, size_t out_stride, const uint8_t *panel, const uint8_t *x,
                           uint32_t n_groups, struct cpu_ahead *ahead, const enum dtype t,
                           const uint32_t n_tokens)
{
    (void)ahead;
    const uint32_t head = n_tokens > 4 ? 4 : n_tokens, tail = n_tokens - head;

    for (uint32_t half = 0; half < 2; half++) {
        quarter_quantised(out, out_stride, panel, x, n_groups, t, n_tokens, 0, head, half);
        if (tail)
            quarter_quantised(out, out_stride, panel, x, n_groups, t, n_tokens, 4, tail, half);
    }
}

#else

/* The oracle of bits: the formula above, word for word. */
static void tile_quantised(float *out, size_t out_stride, const uint8_t *panel, const uint8_t *x,
                           uint32_t n_groups, struct cpu_ahead *ahead, enum dtype t,
                           uint32_t n_tokens)
{
    (void)ahead;
    for (uint32_t i = 0; i < n_tokens; i++) {
        for (uint32_t r = 0; r < PANEL_ROWS; r++) {
            float acc = 0.0f;

            for (uint32_t g = 0; g < n_groups; g++) {
                const uint8_t *group = panel + g * panel_group_bytes(t);
                const uint8_t *codes = group + codes_off(t) + 4 * r;
                const uint8_t *share = x + (size_t)g * n_tokens * ACT_GROUP_BYTES;
                const int8_t *q = (const int8_t *)share + i * GROUP_COLS;
                const uint8_t *facts = share + n_tokens * GROUP_COLS + 4 * i;
                int32_t s =
                    t == DTYPE_Q4_1 ? 0 : load_i32(facts + 8 * n_tokens) * (1 << offset_shift(t));
                uint16_t d, m;

                for (uint32_t k = 0; k < GROUP_COLS; k++) {
                    if (t == DTYPE_Q8_0)
                        s += codes[k / 4 * 64 + k % 4] * q[k];
                    else if (k < 16)
                        s += (codes[k / 4 * 64 + k % 4] & 15) * q[k];
                    else
                        s += (codes[(k - 16) / 4 * 64 + k % 4] >> 4) * q[k];
                }
                memcpy(&d, group + 2 * r, 2);
                acc = fmaf((float)s * load_f32(facts), numeric_from_half(d), acc);
                if (t == DTYPE_Q4_1) {
                    memcpy(&m, group + 32 + 2 * r, 2);
                    acc = fmaf(load_f32(facts + 4 * n_tokens), numeric_from_half(m), acc);
                }
            }
            out[i * out_stride + r] = acc;
        }
    }
}

#endif

/* A pair of columns at a time; the last one of an odd count has no odd column. */
INLINE void tile_plain(float *out, size_t out_stride, const uint8_t *panel, const float *x,
                       size_t x_stride, uint32_t n_cols, const enum dtype t,
                       const uint32_t n_tokens)
{
    v16 acc[TILE_TOKENS];

    UNROLL for (uint32_t i = 0; i < n_tokens; i++) acc[i] = v_zero();
    for (uint32_t k = 0; k < n_cols; k += 2) {
        bool has_odd = k + 1 < n_cols;
        v16 even, odd = v_zero();

        if (t == DTYPE_BF16) {
            pair w = pair_widen((const uint16_t *)(const void *)panel + (size_t)k * PANEL_ROWS);

            even = w.even;
            odd = w.odd;
        } else if (t == DTYPE_F16) {
            const uint16_t *w = (const uint16_t *)(const void *)panel + (size_t)k * PANEL_ROWS;

            even = v_from_half(w);
            if (has_odd)
                odd = v_from_half(w + PANEL_ROWS);
        } else {
            const float *w = (const float *)(const void *)panel + (size_t)k * PANEL_ROWS;

            even = v_load(w);
            if (has_odd)
                odd = v_load(w + PANEL_ROWS);
        }
        UNROLL for (uint32_t i = 0; i < n_tokens; i++) acc[i] =
            v_fma(even, v_set1(x[i * x_stride + k]), acc[i]);
        if (!has_odd)
            break;
        UNROLL for (uint32_t i = 0; i < n_tokens; i++) acc[i] =
            v_fma(odd, v_set1(x[i * x_stride + k + 1]), acc[i]);
    }
    UNROLL for (uint32_t i = 0; i < n_tokens; i++) v_store(out + i * out_stride, acc[i]);
}

/* One function a format and a width: the widths are constants inside. */
#define QUANTISED(name, t)                                                                  \
    static void name(float *out, size_t out_stride, const uint8_t *panel, const uint8_t *x, \
                     uint32_t n_groups, struct cpu_ahead *ahead, uint32_t n_tokens)         \
    {                                                                                       \
        switch (n_tokens) {                                                                 \
            CASE_QUANTISED(t, 1)                                                            \
            CASE_QUANTISED(t, 2)                                                            \
            CASE_QUANTISED(t, 3)                                                            \
            CASE_QUANTISED(t, 4)                                                            \
            CASE_QUANTISED(t, 5)                                                            \
            CASE_QUANTISED(t, 6)                                                            \
            CASE_QUANTISED(t, 7)                                                            \
            CASE_QUANTISED(t, 8)                                                            \
        }                                                                                   \
    }
#define CASE_QUANTISED(t, n)                                              \
    case n:                                                               \
        tile_quantised(out, out_stride, panel, x, n_groups, ahead, t, n); \
        break;

QUANTISED(tile_q4_0, DTYPE_Q4_0)
QUANTISED(tile_q4_1, DTYPE_Q4_1)
QUANTISED(tile_q8_0, DTYPE_Q8_0)

#define PLAIN(name, t)                                                                    \
    static void name(float *out, size_t out_stride, const uint8_t *panel, const float *x, \
                     size_t x_stride, uint32_t n_cols, uint32_t n_tokens)                 \
    {                                                                                     \
        switch (n_tokens) {                                                               \
            CASE_PLAIN(t, 1)                                                              \
            CASE_PLAIN(t, 2)                                                              \
            CASE_PLAIN(t, 3)                                                              \
            CASE_PLAIN(t, 4)                                                              \
            CASE_PLAIN(t, 5)                                                              \
            CASE_PLAIN(t, 6)                                                              \
            CASE_PLAIN(t, 7)                                                              \
            CASE_PLAIN(t, 8)                                                              \
        }                                                                                 \
    }
#define CASE_PLAIN(t, n)                                               \
    case n:                                                            \
        tile_plain(out, out_stride, panel, x, x_stride, n_cols, t, n); \
        break;

PLAIN(tile_f32, DTYPE_F32)
PLAIN(tile_f16, DTYPE_F16)
PLAIN(tile_bf16, DTYPE_BF16)

void LEVEL(matmul)(float *out, size_t out_stride, const struct panels *p, uint32_t panel_idx,
                   uint32_t n_panels, const struct act *act, uint32_t token_idx, uint32_t n_tokens)
{
    uint32_t n_groups = act->n_cols / GROUP_COLS;
    const uint8_t *q = act->q + (size_t)token_idx * n_groups * ACT_GROUP_BYTES;
    const float *x = act->x + token_idx * act->x_stride;

    for (uint32_t i = 0; i < n_panels; i++) {
        const uint8_t *panel = p->panels + (panel_idx + i) * p->panel_stride;
        float *o = out + i * PANEL_ROWS;

        switch (p->dtype) {
        case DTYPE_Q4_0:
            tile_q4_0(o, out_stride, panel, q, n_groups, act->ahead, n_tokens);
            break;
        case DTYPE_Q4_1:
            tile_q4_1(o, out_stride, panel, q, n_groups, act->ahead, n_tokens);
            break;
        case DTYPE_Q8_0:
            tile_q8_0(o, out_stride, panel, q, n_groups, act->ahead, n_tokens);
            break;
        case DTYPE_F16:
            tile_f16(o, out_stride, panel, x, act->x_stride, act->n_cols, n_tokens);
            break;
        case DTYPE_BF16:
            tile_bf16(o, out_stride, panel, x, act->x_stride, act->n_cols, n_tokens);
            break;
        default:
            tile_f32(o, out_stride, panel, x, act->x_stride, act->n_cols, n_tokens);
            break;
        }
    }
}
