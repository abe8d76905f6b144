/* kernels/cpu/amx.h - tiles: registers of up to 16 rows of 64 bytes, and the product of two.
 *
 *   tile_config(c)             sizes of this thread's tiles; needed before all others
 *   tile_release()             ends their use: a thread without tiles is switched at less cost
 *   tile_zero(t)
 *   tile_load(t, p, stride)    rows of tile t from p, p + stride, ...
 *   tile_store(t, p, stride)
 *   tile_dp_s8u8(c, a, b)      c[m][n] += sum of a[m][4*k + i] * b[k][4*n + i], over k and i < 4, in
 *                              int32; a holds signed bytes, b unsigned ones
 *   tile_dp_bf16(c, a, b)      c[m][n] += sum of a[m][2*k + i] * b[k][2*n + i], over k and i < 2, in
 *                              f32; a and b hold bf16
 *
 * The sum of tile_dp_bf16 begins at 0 with a chain of fma over k for i = 0, and one for i = 1; the
 * two are added, and then c. Each step is rounded to nearest even, denormals are zeros, and no
 * exception is raised, whatever the thread has set.
 *
 * Tiles are literal numbers 0 to 7. Level amx has the instructions; amx_emulated (on AVX2) and
 * amx512_emulated (with amx's own vector code) the same in plain C, with the sizes checked as the processor checks them, so that what is written with these calls
 * runs on machines that have no tiles; its threads have flush-to-zero and denormals-are-zero set
 * (kernels_thread_init). */
#ifndef CB_KERNELS_CPU_AMX_H
#define CB_KERNELS_CPU_AMX_H

#include <stdint.h>

/* The 64 bytes of ldtilecfg; palette 1: eight tiles of 1 KiB. */
struct tile_config {
    uint8_t palette, start_row, unused[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

#ifdef CPU_LEVEL_amx

#include <immintrin.h>

#define tile_config(c) _tile_loadconfig(c)
#define tile_release() _tile_release()
#define tile_zero(t)   _tile_zero(t)
/* The intrinsic may be an assembler line that does not say it reads memory. */
#define tile_load(t, p, stride)                   \
    do {                                          \
        __asm__ volatile("" ::"r"(p) : "memory"); \
        _tile_loadd(t, p, stride);                \
    } while (0)
#define tile_store(t, p, stride) _tile_stored(t, p, stride)
#define tile_dp_s8u8(c, a, b)    _tile_dpbsud(c, a, b)
#define tile_dp_bf16(c, a, b)    _tile_dpbf16ps(c, a, b)

#else

#include <assert.h>
#include <math.h>
#include <string.h>

#include "kernels/numeric.h"

/* What a thread's registers hold. */
struct tile_file {
    struct tile_config config;
    uint8_t tiles[8][16][64];
};
static _Thread_local struct tile_file tile_file;

static inline void tile_config(const struct tile_config *c)
{
    assert(c->palette == 1);
    tile_file = (struct tile_file){.config = *c};
}

static inline void tile_release(void)
{
    tile_file.config.palette = 0;
}

static inline void tile_zero(uint32_t t)
{
    assert(tile_file.config.palette == 1 && tile_file.config.rows[t]);
    memset(tile_file.tiles[t], 0, sizeof tile_file.tiles[t]);
}

static inline void tile_load(uint32_t t, const void *p, size_t stride)
{
    tile_zero(t);
    for (uint32_t r = 0; r < tile_file.config.rows[t]; r++)
        memcpy(tile_file.tiles[t][r], (const uint8_t *)p + r * stride,
               tile_file.config.row_bytes[t]);
}

static inline void tile_store(uint32_t t, void *p, size_t stride)
{
    assert(tile_file.config.palette == 1 && tile_file.config.rows[t]);
    for (uint32_t r = 0; r < tile_file.config.rows[t]; r++)
        memcpy((uint8_t *)p + r * stride, tile_file.tiles[t][r], tile_file.config.row_bytes[t]);
}

static inline void tile_dp_s8u8(uint32_t c, uint32_t a, uint32_t b)
{
    const struct tile_config *f = &tile_file.config;

    assert(f->palette == 1 && f->rows[c] == f->rows[a] && f->row_bytes[c] == f->row_bytes[b]);
    assert(f->row_bytes[a] == 4 * f->rows[b] && f->row_bytes[b] % 4 == 0);
    for (uint32_t m = 0; m < f->rows[c]; m++) {
        int32_t sums[16];

        memcpy(sums, tile_file.tiles[c][m], sizeof sums);
        for (uint32_t k = 0; k < f->rows[b]; k++) {
            for (uint32_t n = 0; n < f->row_bytes[c] / 4u; n++) {
                for (uint32_t i = 0; i < 4; i++)
                    sums[n] +=
                        (int8_t)tile_file.tiles[a][m][4 * k + i] * tile_file.tiles[b][k][4 * n + i];
            }
        }
        memcpy(tile_file.tiles[c][m], sums, sizeof sums);
    }
}

static inline void tile_dp_bf16(uint32_t c, uint32_t a, uint32_t b)
{
    const struct tile_config *f = &tile_file.config;

    assert(f->palette == 1 && f->rows[c] == f->rows[a] && f->row_bytes[c] == f->row_bytes[b]);
    assert(f->row_bytes[a] == 4 * f->rows[b] && f->row_bytes[b] % 4 == 0);
    for (uint32_t m = 0; m < f->rows[c]; m++) {
        float sums[16], low[16] = {0}, high[16] = {0};
        uint32_t left[16], right[16];

        memcpy(sums, tile_file.tiles[c][m], sizeof sums);
        memcpy(left, tile_file.tiles[a][m], sizeof left);
        for (uint32_t k = 0; k < f->rows[b]; k++) {
            float l = numeric_from_bits(left[k] << 16), h = numeric_from_bits(left[k] & 0xffff0000);

            memcpy(right, tile_file.tiles[b][k], sizeof right);
            for (uint32_t n = 0; n < f->row_bytes[c] / 4u; n++) {
                low[n] = fmaf(l, numeric_from_bits(right[n] << 16), low[n]);
                high[n] = fmaf(h, numeric_from_bits(right[n] & 0xffff0000), high[n]);
            }
        }
        for (uint32_t n = 0; n < f->row_bytes[c] / 4u; n++)
            sums[n] += low[n] + high[n];
        memcpy(tile_file.tiles[c][m], sums, sizeof sums);
    }
}

#endif
#endif
