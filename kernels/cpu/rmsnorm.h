/* kernels/cpu/rmsnorm.h - the scale of an RMS norm, for the files compiled once an instruction set:
 * the sum of squares in 16 lanes (k mod 16) and the tree, a real square root and division. Then y =
 * (x * scale) * w. */
#ifndef CB_KERNELS_CPU_RMSNORM_H
#define CB_KERNELS_CPU_RMSNORM_H

#include <math.h>

#include "kernels/cpu/vec.h"

INLINE float rmsnorm_scale(const float *x, uint32_t n, float eps)
{
    v16 sum = v_zero();

    for (uint32_t k = 0; k < n; k += 16) {
        v16 a = v_load_n(x + k, n - k);

        sum = v_fma(a, a, sum);
    }
    return 1.0f / sqrtf(v_tree(sum) / (float)n + eps);
}

#endif
