#include <criterion/criterion.h>

#include "daemon/sample/sampler.h"

enum { VOCAB = 1000 };

static struct sample_params params_of(float temperature, uint32_t top_k, float top_p)
{
    struct sampler s;
    struct sample_params p;
    sampler_init(&s, temperature, top_k, top_p, 99, VOCAB);
    sampler_params(&s, 7, &p);
    return p;
}

Test(sampler, top_k_of_0_or_the_vocabulary_or_more_is_off)
{
    cr_assert_eq(params_of(1, 0, 1).top_k, 0);
    cr_assert_eq(params_of(1, VOCAB, 1).top_k, 0);
    cr_assert_eq(params_of(1, UINT32_MAX, 1).top_k, 0);
    cr_assert_eq(params_of(1, VOCAB - 1, 1).top_k, VOCAB - 1);
    cr_assert_eq(params_of(1, 1, 1).top_k, 1);
}

Test(sampler, greedy_has_no_other_parameter)
{
    struct sample_params p = params_of(0, 5, 0.5f);
    cr_assert(p.temperature == 0 && p.top_p == 1);
    cr_assert(p.top_k == 0 && p.seed == 0);
}

Test(sampler, a_tiny_temperature_is_passed_on)
{
    struct sample_params p = params_of(1e-8f, 5, 0.5f);
    cr_assert(p.temperature == 1e-8f && p.top_p == 0.5f);
    cr_assert(p.top_k == 5 && p.seed == 99 && p.token_idx == 7);
}

Test(sampler, a_row_that_is_not_finite_and_an_id_outside_are_no_tokens)
{
    uint32_t token = 5;
    cr_assert_eq(sampler_token(&(struct sample){.token = 3, .not_finite = 1}, VOCAB, &token),
                 SAMPLER_NOT_FINITE);
    cr_assert_eq(sampler_token(&(struct sample){.token = VOCAB}, VOCAB, &token), SAMPLER_BAD_TOKEN);
    cr_assert_eq(token, 5);
    cr_assert_eq(sampler_token(&(struct sample){.token = 3}, VOCAB, &token), 0);
    cr_assert_eq(token, 3);
}
