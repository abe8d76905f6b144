/* Rotary positions on one head: y0 = fma(x0, c, -(x1*s)), y1 = fma(x1, c, x0*s). Elementwise, so
 * plain loops: the compiler may use any width without changing a bit. */
#include "kernels/cpu/level.h"

#include <math.h>

void LEVEL(rope_row)(float *restrict x, const struct rope *rope, int32_t position)
{
    uint32_t half = rope->n_dims / 2, at = position < 0 ? 0 : (uint32_t)position;
    const float *restrict table;

    /* The host checks positions; an unchecked one would read past the table. */
    if (at >= rope->n_positions)
        at = rope->n_positions - 1;
    table = rope->cos_sin + (size_t)at * half * 2;
    if (rope->kind == ROPE_PAIRS) {
        for (uint32_t i = 0; i < half; i++) {
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
