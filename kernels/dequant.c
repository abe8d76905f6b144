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
    uint16_t x;

    memcpy(&x, p, sizeof x);
    return x;
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

/* The 32 codes of 16 bytes, eight at a time. Bytes to bytes first, then bytes to floats: the second
 * loop is one that compilers vectorise, and both in one is not. */
static void unpack(uint8_t codes[BLOCK], const uint8_t nibbles[BLOCK / 2])
{
    const uint64_t low = 0x0f0f0f0f0f0f0f0f;
    uint64_t in[2], out[4];

    memcpy(in, nibbles, sizeof in);
    out[0] = in[0] & low;
    out[1] = in[1] & low;
    out[2] = in[0] >> 4 & low;
    out[3] = in[1] >> 4 & low;
    memcpy(codes, out, sizeof out);
}

/* d, 16 bytes of nibbles */
static void row_q4_0(float *restrict out, const uint8_t *restrict in, uint32_t n_cols)
{
    uint8_t codes[BLOCK];

    for (uint32_t b = 0; b < n_cols / BLOCK; b++, in += 18, out += BLOCK) {
        float d = numeric_from_half(read_u16(in));

        unpack(codes, in + 2);
        for (int i = 0; i < BLOCK; i++)
            out[i] = d * (float)(codes[i] - 8);
    }
}

/* d, m, 16 bytes of nibbles. d * code is exact (11 + 4 bits), so the sum rounds once, as an fma
 * would. */
static void row_q4_1(float *restrict out, const uint8_t *restrict in, uint32_t n_cols)
{
    uint8_t codes[BLOCK];

    for (uint32_t b = 0; b < n_cols / BLOCK; b++, in += 20, out += BLOCK) {
        float d = numeric_from_half(read_u16(in)), m = numeric_from_half(read_u16(in + 2));

        unpack(codes, in + 4);
        for (int i = 0; i < BLOCK; i++)
            out[i] = d * (float)codes[i] + m;
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
    case DTYPE_U8:
        break;
    }
}
