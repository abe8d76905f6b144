#include "kernels/numeric.h"

#include <criterion/criterion.h>
#include <math.h>

#include "kernels/kernels.h"

TestSuite(numeric, .init = kernels_thread_init);

/* |got - want| in units of want's last place as a float. */
static double ulps(float got, double want)
{
    int exponent;

    frexp(want, &exponent);
    return fabs((double)got - want) / ldexp(1, exponent - 24);
}

Test(numeric, exp_is_within_0_9_ulp)
{
    double worst = 0;
    float worst_x = 0;

    /* Evenly over the range, and evenly over the floats below 1 in magnitude. */
    for (double d = -87; d <= 88; d += 0.0003) {
        float x = (float)d;
        double u = ulps(numeric_exp(x), exp((double)x));

        if (u > worst) {
            worst = u;
            worst_x = x;
        }
    }
    for (uint32_t bits = 0x30000000; bits < 0x3f800000; bits += 997) {
        for (int sign = 0; sign < 2; sign++) {
            float x = numeric_from_bits(bits | (uint32_t)sign << 31);
            double u = ulps(numeric_exp(x), exp((double)x));

            if (u > worst) {
                worst = u;
                worst_x = x;
            }
        }
    }
    cr_expect_leq(worst, 0.9, "exp(%a) is off by %g ulp", (double)worst_x, worst);
    cr_expect_geq(worst, 0.5, "the sweep saw nothing");
}

/* Each value within half a step and a bf16's half place of what it was; both ends exact but for the
 * latter. */
Test(numeric, u8_codes_are_the_nearest)
{
    for (int e = -90; e <= 100; e += 10) {
        float x[64], min = 1, max = 0;
        struct numeric_u8 u;

        for (int i = 0; i < 64; i++) {
            x[i] = ldexpf((float)(i * 37 % 64) / 7 - 3, e);
            min = i == 0 || x[i] < min ? x[i] : min;
            max = i == 0 || x[i] > max ? x[i] : max;
        }
        u = numeric_u8(min, max, 0);
        cr_expect_eq(numeric_u8_code(min, &u), 0);
        cr_expect_eq(numeric_u8_code(max, &u), 255);
        for (int i = 0; i < 64; i++) {
            float back = numeric_u8_value(numeric_u8_code(x[i], &u), u.scale, u.zero);
            double off = fabs((double)back - (double)x[i]);

            cr_expect(off <= 0.501 * (double)u.scale + 0x1p-8 * fabs((double)back),
                      "%g comes back as %g, with steps of %g", (double)x[i], (double)back,
                      (double)u.scale);
        }
    }
}

Test(numeric, u8_at_its_edges)
{
    const float tiny = 0x1p-101f, most = 0x1.fffffep+127f;
    struct numeric_u8 u = numeric_u8(3, 3, 0);

    cr_expect(u.scale == 0 && u.zero == 3 && numeric_u8_code(3, &u) == 0);
    u = numeric_u8(-tiny / 2, tiny / 2, -0.0f);
    cr_expect(u.scale == 0 && numeric_u8_code(tiny / 2, &u) == 0);
    u = numeric_u8(0, 0x1p-100f, 0);
    cr_expect(u.scale > 0 && numeric_u8_code(0x1p-100f, &u) == 255);
    u = numeric_u8(-0.0f, 0, 0);
    cr_expect_eq(numeric_bits(u.zero), 0);
    u = numeric_u8(0, most, 0);
    cr_expect(isfinite(u.scale) && numeric_u8_code(most, &u) == 255);
    cr_expect(isnan(numeric_u8(-most, most, 0).scale));
    cr_expect(isnan(numeric_u8(0, 1, NAN).scale));
    cr_expect(isnan(numeric_u8(0, INFINITY, NAN).scale));
    cr_expect(isnan(numeric_u8(NAN, NAN, NAN).scale));
    cr_expect(isnan(numeric_u8_value(7, numeric_u8(0, 1, NAN).scale, 0)));
}

Test(numeric, exp_at_its_edges)
{
    cr_expect_eq(numeric_exp(0.0f), 1.0f);
    cr_expect_eq(numeric_exp(-0.0f), 1.0f);
    cr_expect_eq(numeric_exp(numeric_from_bits(1)), 1.0f);
    cr_expect_eq(numeric_bits(numeric_exp(-INFINITY)), 0);
    cr_expect_eq(numeric_bits(numeric_exp(nextafterf(-87.0f, -90.0f))), 0);
    cr_expect_geq(numeric_exp(-87.0f), 0x1p-126f);
    cr_expect_eq(numeric_exp(INFINITY), numeric_exp(88.0f));
    cr_expect_eq(numeric_exp(100.0f), numeric_exp(88.0f));
    cr_expect(isfinite(numeric_exp(88.0f)));
    cr_expect(isnan(numeric_exp(NAN)));
}

/* Bits of a few values: whoever changes them makes contract v2. */
Test(numeric, exp_is_frozen)
{
    static const struct {
        float x;
        uint32_t bits;
    } cases[] = {
        {0x1p+0f, 0x402df854},         {-0x1p+0f, 0x3ebc5ab2},    {0x1p-1f, 0x3fd3094c},
        {-0x1.62eb1cp-2f, 0x3f3503ba}, {0x1.4p+3f, 0x46ac14ef},   {-0x1.5cp+6f, 0x00b33687},
        {0x1.6p+6f, 0x7ef882b7},       {-0x1.42p+4f, 0x30f9ff06}, {0x1.921fb6p+1f, 0x41b92024}};

    uint32_t digest = 0x811c9dc5;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        cr_expect_eq(numeric_bits(numeric_exp(cases[i].x)), cases[i].bits, "exp(%a) is %#x",
                     (double)cases[i].x, numeric_bits(numeric_exp(cases[i].x)));
    for (int i = -87 * 1024; i <= 88 * 1024; i++)
        digest = (digest ^ numeric_bits(numeric_exp((float)i / 1024))) * 0x01000193;
    cr_expect_eq(digest, 0x459291ae, "digest of exp is %#x", digest);
}

Test(numeric, activations)
{
    for (double d = -30; d < 30; d += 0.0037) {
        float x = (float)d;
        double wide = (double)x,
               gate = 1 + tanh(0.79788456080286536 * (wide + 0.044715 * pow(wide, 3)));
        double silu = wide / (1 + exp(-wide)), gelu = 0.5 * wide * gate;

        cr_expect_float_eq((double)numeric_silu(x), silu, 4e-7 * fabs(silu) + 1e-30, "silu(%a)",
                           wide);
        /* exp's argument grows with x cubed, and its rounding error with it. */
        cr_expect_float_eq((double)numeric_gelu_tanh(x), gelu, 2e-6 * fabs(gelu) + 1e-7, "gelu(%a)",
                           wide);
        cr_expect_float_eq((double)numeric_tanh(x), tanh(wide), 2e-7, "tanh(%a)", wide);
        cr_expect_float_eq((double)numeric_softcap(x, 15), 15 * tanh(wide / 15), 3e-6,
                           "softcap(%a)", wide);
    }
    cr_expect_eq(numeric_silu(0), 0);
    cr_expect_eq(numeric_gelu_tanh(0), 0);
    cr_expect_eq(numeric_tanh(0), 0);
    cr_expect_eq(numeric_tanh(1000), 1);
    cr_expect_eq(numeric_tanh(-1000), -1);
    cr_expect(fabsf(numeric_silu(-1000)) < 1e-30f);
    cr_expect_eq(numeric_silu(1000), 1000);
    cr_expect(isnan(numeric_silu(NAN)) && isnan(numeric_gelu_tanh(NAN)) &&
              isnan(numeric_tanh(NAN)));
}

/* Against the definition: value = (-1)^s 2^(e-15) (1 + m/1024), 2^-14 m/1024 if e is 0. */
Test(numeric, halves_are_exact)
{
    for (uint32_t h = 0; h < 0x10000; h++) {
        int e = h >> 10 & 31, m = h & 1023;
        double want = e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
        float got = numeric_from_half((uint16_t)h);

        if (e == 31) {
            cr_expect(m ? isnan(got) : isinf(got), "half %#x", h);
            cr_expect_eq(numeric_bits(got) >> 31, h >> 15);
            continue;
        }
        /* Bits, for denormals-are-zero would make a denormal result equal to 0. */
        cr_expect_eq(numeric_bits(got), numeric_bits((float)(h & 0x8000 ? -want : want)),
                     "half %#x", h);
    }
}

Test(numeric, bf16_rounds_to_nearest_even)
{
    static const struct {
        uint32_t bits;
        uint16_t bf16;
    } cases[] = {
        {0x3f800000, 0x3f80}, {0x3f807fff, 0x3f80}, {0x3f808000, 0x3f80}, {0x3f808001, 0x3f81},
        {0x3f818000, 0x3f82}, {0x3f817fff, 0x3f81}, {0xbf818000, 0xbf82}, {0x7f7fffff, 0x7f80},
        {0x7f800000, 0x7f80}, {0xff800000, 0xff80}, {0x00000000, 0x0000}, {0x80000000, 0x8000},
        {0x7f800001, 0x7fc0}, {0xffc12345, 0xffc1}, {0x7fffffff, 0x7fff},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        cr_expect_eq(numeric_to_bf16(numeric_from_bits(cases[i].bits)), cases[i].bf16, "%#x",
                     cases[i].bits);
    for (uint32_t h = 0; h < 0x10000; h++) {
        if ((h & 0x7fff) <= 0x7f80)
            cr_expect_eq(numeric_to_bf16(numeric_from_bf16((uint16_t)h)), h);
    }
    cr_expect_eq(numeric_round_bf16(1.005f), 1.0078125f);
}

/* Numbers whose sum shows the order: each pair (i, i + 8) first. */
Test(numeric, the_tree_adds_halves)
{
    float lane[16] = {0};
    double wide[16];

    lane[0] = 0x1p30f;
    lane[8] = -0x1p30f;
    lane[1] = 1;
    lane[9] = 0x1p-20f;
    lane[4] = 0x1p-24f;
    cr_expect_eq(numeric_tree(lane), (1 + 0x1p-20f) + 0x1p-24f);
    for (int i = 0; i < 16; i++)
        wide[i] = i;
    cr_expect_eq(numeric_tree_double(wide), 120);
}

Test(numeric, sum_of_squares)
{
    float x[37];
    double want = 0;

    for (int i = 0; i < 37; i++) {
        x[i] = (float)(i - 18) * 0.25f;
        want += (double)x[i] * (double)x[i];
    }
    cr_expect_eq((double)numeric_sum_squares(x, 37), want);
    cr_expect_float_eq((double)numeric_rms_scale(16.0f, 4, 0), 0.5, 1e-7);
}
