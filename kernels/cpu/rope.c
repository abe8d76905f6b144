/* Rotary positions on one head: y0 = fma(x0, c, -(x1*s)), y1 = fma(x1, c, x0*s). Elementwise, so
 * the width changes no bit. */
#include "kernels/cpu/level.h"

#include <math.h>

#include "kernels/cpu/vec.h"

void LEVEL(rope_row)(float *restrict x, const struct rope *rope, int32_t position)
{
    uint32_t half = rope->n_dims / 2, at = position < 0 ? 0 : (uint32_t)position;
    const float *restrict table;

    /* The host checks positions; an unchecked one would read past the table. */
    if (at >= rope->n_positions)
        at = rope->n_positions - 1;
    table = rope->cos_sin + (size_t)at * half * 2;
    if (rope->kind == ROPE_PAIRS) {
        uint32_t i = 0;

#if VEC_512
        for (; i + 8 <= half; i += 8) {
            __m512 a = _mm512_loadu_ps(x + 2 * i), t = _mm512_loadu_ps(table + 2 * i);
            __m512 cross = _mm512_mul_ps(_mm512_permute_ps(a, 0xb1), _mm512_movehdup_ps(t));

            _mm512_storeu_ps(x + 2 * i, _mm512_fmaddsub_ps(a, _mm512_moveldup_ps(t), cross));
        }
#elif VEC_256
        for (; i + 4 <= half; i += 4) {
            __m256 a = _mm256_loadu_ps(x + 2 * i), t = _mm256_loadu_ps(table + 2 * i);
            __m256 cross = _mm256_mul_ps(_mm256_permute_ps(a, 0xb1), _mm256_movehdup_ps(t));

            _mm256_storeu_ps(x + 2 * i, _mm256_fmaddsub_ps(a, _mm256_moveldup_ps(t), cross));
        }
#endif
        for (; i < half; i++) {
            float x0 = x[2 * i], x1 = x[2 * i + 1], c = table[2 * i], s = table[2 * i + 1];

            x[2 * i] = fmaf(x0, c, -(x1 * s));
            x[2 * i + 1] = fmaf(x1, c, x0 * s);
        }
    } else if (rope->kind == ROPE_HALVES) {
        for (uint32_t i = 0; i < half; i++) {
            float x0 = x[i], x1 = x[half + i], c = table[2 * i], s = table[2 * i + 1];

            x[i] = fmaf(x0, c, -(x1 * s));
            x[half + i] = fmaf(x1, c, x0 * s);
        }
    }
}
