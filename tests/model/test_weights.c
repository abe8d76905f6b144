/* The table of rotations against angles worked out one by one. */
#include <criterion/criterion.h>
#include <math.h>

#include "daemon/model/weights.h"

static void check(double base, double factor, float *divisors)
{
    const struct backend_config backend_config = {0};
    const struct config c = {
        .arch = &arch_llama, .rope_dims = 8, .rope_base = base, .rope_factor = factor};
    struct backend *b;
    struct weights w;
    const char *why;

    cr_assert_eq(backend_reference.open(&b, &backend_config, &why), 0);
    cr_assert_eq(weights_init(&w, &backend_reference, b, 1), 0);
    w.rope_factors = divisors;
    cr_assert_eq(weights_make_rope(&w, &c, 100001), 0);
    cr_assert(w.rope.kind == ROPE_PAIRS && w.rope.n_dims == 8 && w.rope.n_positions == 100001);
    for (uint32_t p = 0; p <= 100000; p += 12500)
        for (uint32_t i = 0; i < 4; i++) {
            const float *pair = w.rope.cos_sin + (p * 4 + i) * 2;
            long double angle = p * powl((long double)base, -(long double)i / 4) /
                                (long double)factor / (divisors ? (long double)divisors[i] : 1);

            cr_expect_float_eq(pair[0], cosl(angle), 1e-7, "cos, position %u, pair %u", p, i);
            cr_expect_float_eq(pair[1], sinl(angle), 1e-7, "sin, position %u, pair %u", p, i);
        }
    w.rope_factors = NULL; /* ours */
    weights_fini(&w);
    backend_reference.close(b);
}

Test(weights, rotations_are_exact_at_far_positions)
{
    float divisors[] = {1, 1, 2.5f, 8};

    check(10000, 1, NULL);
    check(500000, 4, NULL);
    check(500000, 1, divisors);
}
