#include <criterion/criterion.h>
#include <string.h>

#include "daemon/sample/sampler.h"

enum { VOCAB = 1000 };

static const uint32_t ids[12];

static struct sample_params params_of(float temperature, uint32_t top_k, float top_p)
{
    struct sampler s;
    struct sample_params p;
    sampler_init(&s, temperature, top_k, top_p, 99, VOCAB);
    sampler_params(&s, ids, 12, 5, NULL, &p);
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

/* What a sampler with these wishes says of generated token token_idx, its ends being 8 and 9. */
static struct sample_params wished(float temperature, const struct sampler_wishes *w,
                                   uint32_t token_idx)
{
    static struct sampler_lists lists;
    static struct sampler s;
    static const uint32_t ends[] = {8, 9};
    struct sample_params p;
    sampler_init(&s, temperature, 0, 1, 99, VOCAB);
    sampler_wish(&s, w, &lists, ends, 2);
    sampler_params(&s, ids, 5 + token_idx, 5, NULL, &p);
    return p;
}

/* Then the head need not write the row. */
Test(sampler, greedy_asks_for_no_row_without_need)
{
    struct sampler_wishes w;
    sampler_wishes_init(&w);
    cr_assert_not(
        sample_reads_logits(&(struct sample_params){.program = wished(0, &w, 0).program}));
    w.min_p = 0.5f;
    w.typical_p = 0.5f;
    cr_assert_null(wished(0, &w, 0).program);
    cr_assert_float_eq(wished(1, &w, 0).program->min_p, 0.5f, 0);
    w.presence_penalty = 0.1f;
    cr_assert_not_null(wished(0, &w, 0).program);
    cr_assert(wished(0, &w, 0).program->min_p == 0 && wished(0, &w, 0).program->typical_p == 1);
}

Test(sampler, ends_are_kept_away_while_there_are_too_few_tokens)
{
    struct sampler_wishes w;
    sampler_wishes_init(&w);
    w.min_new_tokens = 3;
    for (uint32_t i = 0; i < 3; i++) {
        const struct sample_program *p = wished(0, &w, i).program;
        cr_assert(p && p->n_ends == 2 && p->ends[0] == 8 && p->ends[1] == 9);
    }
    cr_assert_null(wished(0, &w, 3).program);
}

Test(sampler, the_first_id_is_given_once)
{
    struct sampler_wishes w;
    sampler_wishes_init(&w);
    cr_assert_not(wished(0, &w, 0).is_given);
    w.first_id = 0;
    cr_assert(wished(0, &w, 0).is_given && wished(0, &w, 0).given_id == 0);
    cr_assert_not(wished(0, &w, 1).is_given);
}

Test(sampler, lists_are_copied)
{
    uint32_t allowed[] = {1, 4}, banned[] = {4};
    struct sample_bias biases[] = {{4, 2.5f}};
    struct sampler_wishes w;
    const struct sample_program *p;
    sampler_wishes_init(&w);
    w.n_allowed = 2;
    w.n_banned = w.n_biases = 1;
    w.allowed = allowed;
    w.banned = banned;
    w.biases = biases;
    p = wished(0, &w, 0).program;
    memset(allowed, 0, sizeof allowed);
    memset(banned, 0, sizeof banned);
    memset(biases, 0, sizeof biases);
    cr_assert(p->allowed[0] == 1 && p->allowed[1] == 4 && p->banned[0] == 4);
    cr_assert(p->biases[0].id == 4 && p->biases[0].bias == 2.5f);
}

Test(sampler, a_prompt_token_is_scored_raw)
{
    struct sampler_wishes w;
    struct sampler_lists lists;
    struct sample_params p;
    struct sampler s;
    sampler_wishes_init(&w);
    w.presence_penalty = 1;
    w.prompt_logprobs = true;
    sampler_init(&s, 1, 5, 0.5f, 99, VOCAB);
    sampler_wish(&s, &w, &lists, NULL, 0);
    sampler_score_params(&s, 17, NULL, &p);
    cr_assert(p.is_given && p.given_id == 17 && p.logprobs == SAMPLE_RAW && !p.program);
}

Test(sampler, a_row_that_is_not_finite_and_an_id_outside_are_no_tokens)
{
    uint32_t token = 5;
    cr_assert_eq(sampler_token(&(struct sample){.token = 3, .not_finite = 1}, VOCAB, &token),
                 SAMPLER_NOT_FINITE);
    cr_assert_eq(sampler_token(&(struct sample){.token = 3, .nothing_left = 1}, VOCAB, &token),
                 SAMPLER_NOTHING_LEFT);
    cr_assert_eq(sampler_token(&(struct sample){.token = VOCAB}, VOCAB, &token), SAMPLER_BAD_TOKEN);
    cr_assert_eq(token, 5);
    cr_assert_eq(sampler_token(&(struct sample){.token = 3}, VOCAB, &token), 0);
    cr_assert_eq(token, 3);
}
