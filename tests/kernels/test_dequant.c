/* Against the formats' definitions, in double, with scales from a table of halves that needs no
 * conversion. */
#include "kernels/dequant.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "tests/kernels/ops_common.h"

TestSuite(dequant, .init = kernels_thread_init);

static const struct {
    uint16_t half;
    double value;
} scales[] = {
    {0x0000, 0},          {0x8000, 0},       {0x0001, 0x1p-24},   {0x8001, -0x1p-24},
    {0x03ff, 0x3ffp-24},  {0x0400, 0x1p-14}, {0x1555, 0x555p-20}, {0x3c00, 1},
    {0xbc01, -0x401p-10}, {0x7bff, 65504},   {0x2e66, 0x666p-14},
};
enum { N_SCALES = sizeof scales / sizeof scales[0], N_BLOCKS = 7, BLOCK = 32 };

static bool same(float got, double want)
{
    float rounded = (float)want;

    /* As bits: a comparison would take denormals for zeros. Zeros may have either sign. */
    return !memcmp(&got, &rounded, sizeof got) || (got == 0 && want == 0);
}

/* One row of N_BLOCKS blocks, checked value by value. */
static void check_quantised(enum dtype t, uint32_t header, uint32_t block_bytes)
{
    uint8_t row[N_BLOCKS * 34 + 1];
    float out[N_BLOCKS * BLOCK + 1];
    uint64_t random = 1;

    for (int trial = 0; trial < 200; trial++) {
        /* At an odd address: rows of a file lie anywhere. */
        uint8_t *in = row + 1;
        int d[N_BLOCKS], m[N_BLOCKS];

        for (int b = 0; b < N_BLOCKS; b++) {
            uint8_t *block = in + (size_t)b * block_bytes;

            for (uint32_t i = 0; i < block_bytes; i++)
                block[i] = (uint8_t)(ops_random(&random) >> 3);
            d[b] = (int)(ops_random(&random) % N_SCALES);
            m[b] = (int)(ops_random(&random) % N_SCALES);
            memcpy(block, &scales[d[b]].half, 2);
            if (header == 4)
                memcpy(block + 2, &scales[m[b]].half, 2);
        }
        out[N_BLOCKS * BLOCK] = 12345;
        dequant_row(out, in, t, N_BLOCKS * BLOCK);
        for (int i = 0; i < N_BLOCKS * BLOCK; i++) {
            const uint8_t *codes = in + (size_t)(i / BLOCK) * block_bytes + header;
            int at = i % BLOCK, nibble = at < 16 ? codes[at] % 16 : codes[at - 16] / 16;
            double want = scales[d[i / BLOCK]].value;

            if (t == DTYPE_Q8_0)
                want *= codes[at] < 128 ? codes[at] : codes[at] - 256;
            else if (t == DTYPE_Q4_0)
                want *= nibble - 8;
            else
                want = want * nibble + scales[m[i / BLOCK]].value;
            cr_assert(same(out[i], want), "%s, value %d: %a, should be %a", dtype_name(t), i,
                      (double)out[i], want);
        }
        cr_expect_eq(out[N_BLOCKS * BLOCK], 12345, "wrote past the row");
    }
}

Test(dequant, q4_0)
{
    check_quantised(DTYPE_Q4_0, 2, 18);
}

Test(dequant, q4_1)
{
    check_quantised(DTYPE_Q4_1, 4, 20);
}

Test(dequant, q8_0)
{
    check_quantised(DTYPE_Q8_0, 2, 34);
}

Test(dequant, floats_are_exact)
{
    uint16_t halves[N_SCALES], bf16s[] = {0x3f80, 0xc049, 0x0001, 0x7f7f, 0x8000, 0x0080, 0x4120};
    float f32s[] = {1, -2.5f, 0x1p-149f, 3e38f, 0}, out[N_SCALES];
    const double wide[] = {1, -3.140625, 0x1p-133, 0x1.fep127, -0.0, 0x1p-126, 10};

    for (int i = 0; i < N_SCALES; i++)
        halves[i] = scales[i].half;
    dequant_row(out, halves, DTYPE_F16, N_SCALES);
    for (int i = 0; i < N_SCALES; i++)
        cr_expect(same(out[i], scales[i].value), "half %#x", halves[i]);
    dequant_row(out, bf16s, DTYPE_BF16, 7);
    for (int i = 0; i < 7; i++) {
        uint32_t bits, want = (uint32_t)bf16s[i] << 16;

        memcpy(&bits, &out[i], sizeof bits);
        cr_expect_eq(bits, want);
        if (fabs(wide[i]) >= 0x1p-126)
            cr_expect(same(out[i], wide[i]), "bf16 %#x", bf16s[i]);
    }
    dequant_row(out, f32s, DTYPE_F32, 5);
    cr_expect_arr_eq(out, f32s, sizeof f32s);
}

Test(dequant, sizes_and_names)
{
    cr_expect_eq(dtype_row_bytes(DTYPE_F32, 5), 20);
    cr_expect_eq(dtype_row_bytes(DTYPE_F16, 5), 10);
    cr_expect_eq(dtype_row_bytes(DTYPE_BF16, 5), 10);
    cr_expect_eq(dtype_row_bytes(DTYPE_Q4_0, 64), 36);
    cr_expect_eq(dtype_row_bytes(DTYPE_Q4_1, 576), 360);
    cr_expect_eq(dtype_row_bytes(DTYPE_Q8_0, 32), 34);
    cr_expect_eq(dtype_row_bytes(DTYPE_Q8_0, 33), 0);
    cr_expect_eq(dtype_row_bytes(DTYPE_COUNT, 32), 0);
    cr_expect_eq(dtype_row_bytes(DTYPE_Q8_0, 0xffffffe0), (size_t)0x7ffffff * 34);
    cr_expect_str_eq(dtype_name(DTYPE_Q4_1), "Q4_1");
    cr_expect_str_eq(dtype_name(DTYPE_BF16), "BF16");
    cr_expect_str_eq(dtype_name((enum dtype)99), "unknown");
    cr_expect_eq(backend_find("reference"), &backend_reference);
    cr_expect_null(backend_find("referenc"));
}
