/* Work on single rows: products, norms, rotations. Loops over 16 independent lanes are what the
 * compiler turns into vector code without being allowed to reorder a sum. */
#include "kernels/reference/reference.h"

#include <math.h>

enum { LANES = 16 };

static float sum_lanes(const float lane[LANES])
{
    double sum = 0;

    for (int i = 0; i < LANES; i++)
        sum += (double)lane[i];
    return (float)sum;
}

/* Four rows at once, so that each piece of x is loaded once for four products. */
void reference_dot4(float out[4], const float *rows, const float *x, uint32_t n)
{
    float a0[LANES] = {0}, a1[LANES] = {0}, a2[LANES] = {0}, a3[LANES] = {0};
    const float *r0 = rows, *r1 = r0 + n, *r2 = r1 + n, *r3 = r2 + n;
    uint32_t k = 0;

    for (; k + LANES <= n; k += LANES) {
        for (int i = 0; i < LANES; i++)
            a0[i] = fmaf(r0[k + i], x[k + i], a0[i]);
        for (int i = 0; i < LANES; i++)
            a1[i] = fmaf(r1[k + i], x[k + i], a1[i]);
        for (int i = 0; i < LANES; i++)
            a2[i] = fmaf(r2[k + i], x[k + i], a2[i]);
        for (int i = 0; i < LANES; i++)
            a3[i] = fmaf(r3[k + i], x[k + i], a3[i]);
    }
    for (int i = 0; k < n; k++, i++) {
        a0[i] = fmaf(r0[k], x[k], a0[i]);
        a1[i] = fmaf(r1[k], x[k], a1[i]);
        a2[i] = fmaf(r2[k], x[k], a2[i]);
        a3[i] = fmaf(r3[k], x[k], a3[i]);
    }
    out[0] = sum_lanes(a0);
    out[1] = sum_lanes(a1);
    out[2] = sum_lanes(a2);
    out[3] = sum_lanes(a3);
}

void reference_rmsnorm_row(float *y, const float *x, const float *w, uint32_t n, float eps)
{
    double sum = 0, scale;

    for (uint32_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    scale = 1 / sqrt(sum / n + (double)eps);
    for (uint32_t i = 0; i < n; i++)
        y[i] = (float)((double)x[i] * scale * (double)w[i]);
}

void reference_rope_head(float *head, const struct rope *rope, int32_t position)
{
    uint32_t half = rope->n_dims / 2;
    const float *angles;

    if (rope->kind == ROPE_NONE)
        return;
    if (position < 0)
        position = 0;
    if ((uint32_t)position >= rope->n_positions)
        position = (int32_t)(rope->n_positions - 1);
    angles = rope->cos_sin + (size_t)position * half * 2;
    for (uint32_t i = 0; i < half; i++) {
        float *a = rope->kind == ROPE_PAIRS ? &head[2 * i] : &head[i];
        float *b = rope->kind == ROPE_PAIRS ? &head[2 * i + 1] : &head[i + half];
        double c = (double)angles[2 * i], s = (double)angles[2 * i + 1];
        double x0 = (double)*a, x1 = (double)*b;

        *a = (float)(x0 * c - x1 * s);
        *b = (float)(x1 * c + x0 * s);
    }
}
