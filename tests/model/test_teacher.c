/* The default model's distributions over 8 recorded texts, fed the recorded tokens. */
#include <criterion/criterion.h>
#include <math.h>

#include "tests/model/common.h"
#include "tests/util/score.h"

/* Of the first n_texts; 0: all. */
static struct score score_as(const char *backend, const struct backend_config *config,
                             enum dtype kv_dtype, uint32_t n_texts)
{
    char message[MODEL_MESSAGE_MAX];
    struct score s;

    cr_assert_eq(score_model(&s, default_model(), backend, config, kv_dtype,
                             "tests/data/smollm2/teacher.safetensors", n_texts, message),
                 0, "%s", message);
    cr_assert_eq(s.n_positions, n_texts ? 256 * n_texts : 2048);
    return s;
}

static struct score score(const char *backend, enum dtype kv_dtype)
{
    const struct backend_config config = {0};

    return score_as(backend, &config, kv_dtype, IS_SANITIZED ? 1 : 0);
}

Test(teacher, reference_has_the_recorded_distributions)
{
    struct score s = score("reference", DTYPE_F32);

    cr_expect(s.mean_kl <= 1e-5, "mean KL %g", s.mean_kl);
    cr_expect(s.top1_agreement >= 0.999, "agreement %g", s.top1_agreement);
    cr_expect(fabs(s.ppl / s.ref_ppl - 1) <= 1e-4, "perplexity %g, recorded %g", s.ppl, s.ref_ppl);
    cr_expect_eq(s.n_disagree_wide, 0);
}

Test(teacher, cpu_is_as_close_as_8_bit_activations_allow)
{
    struct score s = score("cpu", DTYPE_BF16);

    cr_expect(s.mean_kl <= 0.0033, "mean KL %g", s.mean_kl);
    cr_expect(s.top1_agreement >= 0.945, "agreement %g", s.top1_agreement);
    cr_expect(fabs(s.ppl / s.ref_ppl - 1) <= 0.01, "perplexity %g, recorded %g", s.ppl, s.ref_ppl);
    cr_expect(s.n_disagree_wide <= 2, "%u wide disagreements", s.n_disagree_wide);
}

Test(teacher, cpu_with_8_bit_keys_and_values_is_little_further)
{
    struct score s = score("cpu", DTYPE_U8);

    cr_expect(s.mean_kl <= 0.004, "mean KL %g", s.mean_kl);
    if (IS_SANITIZED) /* the first text alone is too short for bounds on shares */
        return;
    cr_expect(s.top1_agreement >= 0.945, "agreement %g", s.top1_agreement);
    cr_expect(fabs(s.ppl / s.ref_ppl - 1) <= 0.01, "perplexity %g, recorded %g", s.ppl, s.ref_ppl);
    cr_expect(s.n_disagree_wide <= 2, "%u wide disagreements", s.n_disagree_wide);
}

/* With products in bf16, on the tiles in plain C: closer than with 8-bit activations. */
Test(teacher, cpu_in_bf16_is_closer)
{
    const struct backend_config bf16 = {.isa = "amx_emulated", .batch_variant = true}, int8 = {0};
    struct score s = score_as("cpu", &bf16, DTYPE_BF16, 1);

    cr_expect(s.mean_kl <= 0.0025, "mean KL %g", s.mean_kl);
    cr_expect(s.mean_kl < score_as("cpu", &int8, DTYPE_BF16, 1).mean_kl / 2, "mean KL %g",
              s.mean_kl);
    cr_expect(fabs(s.ppl / s.ref_ppl - 1) <= 0.005, "perplexity %g, recorded %g", s.ppl, s.ref_ppl);
    cr_expect_eq(s.n_disagree_wide, 0);
}
