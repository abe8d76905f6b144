/* kernels/dequant.h - rows of a model file to f32.
 *
 * Exact where the format is (F32, F16, BF16), else one rounding: fma(d, u, m) for Q4_1, d * (u - 8)
 * for Q4_0, d * code for Q8_0. All backends and the tests read weights by this one function, so
 * "the dequantised weights" means one set of numbers. */
#ifndef CB_KERNELS_DEQUANT_H
#define CB_KERNELS_DEQUANT_H

#include "kernels/kernels.h"

/* out [n_cols] f32; row: dtype_row_bytes(t, n_cols) bytes in the GGUF layout, at any alignment.
 * n_cols fits the format's block. */
void dequant_row(float *restrict out, const void *restrict row, enum dtype t, uint32_t n_cols);

#endif
