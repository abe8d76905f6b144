/* Blocks of the Q formats hold 32 values. Nibbles are not neighbours: byte i holds value i in its
 * low half and value 16 + i in its high half. Scales are halves, read as bytes, for the blocks (18,
 * 20 or 34 bytes) leave nothing aligned. */
#include "kernels/dequant.h"

#include <assert.h>
#include <string.h>

#include "kernels/numeric.h"

enum { BLOCK = 32 };

static uint16_t read_u16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static void row_f16(float *restrict out, const uint8_t *restrict in, uint32_t n_cols)
{
    for (uint32_t i = 0; i < n_cols; i++)
        out[i] = numeric_from_half(read_u16(in + (size_t)2 * i));
}

static void row_bf16(float *restrict out, const uint8_t *restrict in, uint32_t n_cols)
{
    for (uint32_t i = 0; i < n_cols; i++)
        out[i] = numeric_from_bf16(read_u16(in + (size_t)2 * i));
}

/* d, 16 bytes of nibbles */
static void row_q4_0(float *restrict out, const uint8_t *restrict in, uint32_t n_cols)
{
    for (uint32_t b = 0; b < n_cols / BLOCK; b++, in += 18, out += BLOCK) {
        float d = numeric_from_half(read_u16(in));

        for (int i = 0; i < BLOCK / 2; i++) {
            out[i] = d * (float)((in[2 + i] & 15) - 8);
            out[i + BLOCK / 2] = d * (float)((in[2 + i] >> 4) - 8);
        }
    }
}

/* d, m, 16 bytes of nibbles. d * code is exact (11 + 4 bits), so the sum rounds once, as an fma
 * would. */
static void row_q4_1(float *restrict out, const uint8_t *restrict in, uint32_t n_cols)
{
    for (uint32_t b = 0; b < n_cols / BLOCK; b++, in += 20, out += BLOCK) {
        float d = numeric_from_half(read_u16(in)), m = numeric_from_half(read_u16(in + 2));

        for (int i = 0; i < BLOCK / 2; i++) {
            out[i] = d * (float)(in[4 + i] & 15) + m;
            out[i + BLOCK / 2] = d * (float)(in[4 + i] >> 4) + m;
        }
    }
}

/* d, 32 signed bytes */
static void row_q8_0(float *restrict out, const uint8_t *restrict in, uint32_t n_cols)
{
    for (uint32_t b = 0; b < n_cols / BLOCK; b++, in += 34, out += BLOCK) {
        float d = numeric_from_half(read_u16(in));

        for (int i = 0; i < BLOCK; i++)
            out[i] = d * (float)(int8_t)in[2 + i];
    }
}

void dequant_row(float *restrict out, const void *restrict row, enum dtype t, uint32_t n_cols)
{
    assert(n_cols == 0 || dtype_row_bytes(t, n_cols));
    switch (t) {
    case DTYPE_F32:
        memcpy(out, row, (size_t)n_cols * sizeof *out);
        break;
    case DTYPE_F16:
        row_f16(out, row, n_cols);
        break;
    case DTYPE_BF16:
        row_bf16(out, row, n_cols);
        break;
    case DTYPE_Q4_0:
        row_q4_0(out, row, n_cols);
        break;
    case DTYPE_Q4_1:
        row_q4_1(out, row, n_cols);
        break;
    case DTYPE_Q8_0:
        row_q8_0(out, row, n_cols);
        break;
    case DTYPE_COUNT:
        break;
    }
}
