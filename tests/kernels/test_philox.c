#include "kernels/philox.h"

#include <criterion/criterion.h>
#include <math.h>

/* The known answers that Random123 publishes for philox4x32 with 10 rounds. */
Test(philox, known_answers)
{
    static const struct {
        uint32_t counter[4], key[2], answer[4];
    } cases[] = {
        {{0}, {0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };

    for (int i = 0; i < 3; i++) {
        uint32_t words[4] = {cases[i].counter[0], cases[i].counter[1], cases[i].counter[2],
                             cases[i].counter[3]};

        philox4x32_10(words, cases[i].key);
        cr_expect_arr_eq(words, cases[i].answer, sizeof words, "known answer %d", i);
    }
}

/* The mapping of arguments to key and counter is part of the contract: seeds of before must draw
 * again what they drew. */
Test(philox, uniform_is_the_first_53_bits)
{
    uint32_t words[4] = {7, 1000, 3, 0};
    const uint32_t key[2] = {0x89abcdef, 0x01234567};

    cr_expect_eq(philox_uniform(0, 0, 0, 0), (0x6627e8d5e169c58d >> 11) * 0x1p-53);
    philox4x32_10(words, key);
    cr_expect_eq(philox_uniform(0x0123456789abcdef, 7, 1000, 3),
                 (double)(((uint64_t)words[0] << 32 | words[1]) >> 11) * 0x1p-53);
}

Test(philox, uniform_is_flat)
{
    enum { N = 100000, BINS = 100 };
    uint32_t counts[BINS] = {0};
    double chi2 = 0;

    for (uint32_t i = 0; i < N; i++) {
        double u = philox_uniform(5, 0, i, 0);

        cr_assert(u >= 0 && u < 1);
        counts[(int)(u * BINS)]++;
    }
    for (int i = 0; i < BINS; i++)
        chi2 += pow(counts[i] - (double)N / BINS, 2) / ((double)N / BINS);
    cr_expect_lt(chi2, 148.2, "chi-square %g of 99 degrees", chi2); /* p = 0.001 */
}
