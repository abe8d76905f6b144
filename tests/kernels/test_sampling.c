#include "kernels/sampling.h"

#include <criterion/criterion.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/sampling_sweep.h"
#include "tests/kernels/ops_common.h"

TestSuite(sampling, .init = kernels_thread_init);

enum { VOCAB_MAX = 50000 };

static float spoilt[VOCAB_MAX];

/* Draw number i of a row that stays as it is. */
static struct sample draw(const float *logits, uint32_t n, struct sample_params params, uint32_t i)
{
    static void *memory;
    struct sampler_scratch scratch;
    struct sample s;

    if (!memory)
        memory = calloc(1, sampler_scratch_bytes(VOCAB_MAX) + 64);
    scratch = sampler_scratch_at((char *)memory + 64 - (uintptr_t)memory % 64, VOCAB_MAX);
    memcpy(spoilt, logits, n * sizeof *logits);
    params.token_idx = i;
    params.logprobs = SAMPLE_PROCESSED;
    sampling_row(&s, spoilt, n, NULL, &params, &sampling_sweeps_plain, &scratch);
    return s;
}

/* Chi-square of 1e5 draws against these probabilities; ids of probability 0 must not come. A result
 * above the bound has a chance of 1e-3 (Wilson and Hilferty's approximation). */
static void check_distribution(const float *logits, const double *probs, uint32_t n,
                               struct sample_params params)
{
    enum { N = 100000 };
    uint32_t *counts = calloc(n, sizeof *counts);
    double chi2 = 0, degrees = -1, rest = 0, bound;
    uint32_t rest_count = 0;

    for (uint32_t i = 0; i < N; i++)
        counts[draw(logits, n, params, i).token]++;
    for (uint32_t i = 0; i < n; i++) {
        if (probs[i] == 0) {
            cr_expect_eq(counts[i], 0, "id %u was removed, and drawn %u times", i, counts[i]);
        } else if (probs[i] * N < 5) {
            rest += probs[i];
            rest_count += counts[i];
        } else {
            chi2 += pow(counts[i] - probs[i] * N, 2) / (probs[i] * N);
            degrees++;
        }
    }
    if (rest * N >= 5) {
        chi2 += pow(rest_count - rest * N, 2) / (rest * N);
        degrees++;
    }
    bound = degrees * pow(1 - 2 / (9 * degrees) + 3.0902 * sqrt(2 / (9 * degrees)), 3);
    cr_expect_lt(chi2, bound, "chi-square %g of %g degrees", chi2, degrees);
    free(counts);
}

static void softmax(double *probs, const float *logits, const bool *kept, uint32_t n, double t)
{
    double sum = 0;

    for (uint32_t i = 0; i < n; i++)
        sum += probs[i] = !kept || kept[i] ? exp((double)logits[i] / t) : 0;
    for (uint32_t i = 0; i < n; i++)
        probs[i] /= sum;
}

Test(sampling, draws_the_softmax)
{
    enum { N = 600 };
    struct sample_params params = {.temperature = 0.8f, .top_p = 1, .seed = 3};
    uint64_t random = 1;
    float logits[N];
    double probs[N];

    for (int i = 0; i < N; i++)
        logits[i] = (float)(2 * ops_random_normal(&random));
    softmax(probs, logits, NULL, N, (double)0.8f);
    check_distribution(logits, probs, N, params);
    for (uint32_t i = 0; i < 50; i++) {
        struct sample s = draw(logits, N, params, i);

        cr_expect_float_eq((double)s.logprob, log(probs[s.token]), 1e-5);
    }
}

/* The third largest is shared by three ids: all stay. */
Test(sampling, top_k_keeps_ties)
{
    static const float logits[] = {0, 3, 1, 2, 1, -5, 1, 0.5f, -0.0f};
    const bool kept[] = {false, true, true, true, true, false, true, false, false};
    struct sample_params params = {.temperature = 1, .top_k = 3, .top_p = 1, .seed = 4};
    double probs[9];

    softmax(probs, logits, kept, 9, 1);
    check_distribution(logits, probs, 9, params);
}

/* Zeros of both signs are equal scores. */
Test(sampling, top_k_takes_zeros_for_equal)
{
    static const float logits[] = {-1, -0.0f, 0, -2};
    const bool kept[] = {false, true, true, false};
    struct sample_params params = {.temperature = 1, .top_k = 1, .top_p = 1, .seed = 4};
    double probs[4];

    softmax(probs, logits, kept, 4, 1);
    check_distribution(logits, probs, 4, params);
}

/* Probabilities 0.4 0.3 0.2 0.1: what is before the third sums to 0.7. */
Test(sampling, top_p_keeps_the_least_set)
{
    static const struct {
        float top_p;
        int n_kept;
    } cases[] = {{0.69f, 2}, {0.71f, 3},   {0.39f, 1}, {0.41f, 2},
                 {1e-9f, 1}, {FLT_MIN, 1}, {0, 1},     {0.95f, 4}};
    static const int rank[] = {2, 0, 3, 1};
    float logits[4];
    double probs[4];

    for (int i = 0; i < 4; i++)
        logits[i] = (float)log(0.4 - 0.1 * rank[i]);
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        struct sample_params params = {.temperature = 1, .top_p = cases[c].top_p, .seed = c};
        bool kept[4];

        for (int i = 0; i < 4; i++)
            kept[i] = rank[i] < cases[c].n_kept;
        softmax(probs, logits, kept, 4, 1);
        if (cases[c].n_kept > 1)
            check_distribution(logits, probs, 4, params);
        for (uint32_t i = 0; cases[c].n_kept == 1 && i < 100; i++)
            cr_expect_eq(draw(logits, 4, params, i).token, 1);
    }
}

/* Equal probabilities are cut by id: 3 of 8 are the lowest three. top_k comes first. */
Test(sampling, top_p_among_equals_and_after_top_k)
{
    float logits[300] = {0};
    bool kept[300] = {false};
    double probs[300];
    struct sample_params params = {.temperature = 1, .top_p = 0.3f, .seed = 9};

    kept[0] = kept[1] = kept[2] = true;
    softmax(probs, logits, kept, 8, 1);
    check_distribution(logits, probs, 8, params);
    for (int i = 290; i < 294; i++)
        logits[i] = 1;
    params.top_k = 4;
    params.top_p = 0.5f;
    memset(kept, 0, sizeof kept);
    kept[290] = kept[291] = true;
    softmax(probs, logits, kept, 300, 1);
    check_distribution(logits, probs, 300, params);
}

/* The last two are denormal: they count as 0. */
Test(sampling, tiny_temperatures_are_greedy)
{
    static const float temperatures[] = {1e-8f, 1e-30f, 1e-38f, 0x1p-149f};
    uint64_t random = 5;
    float logits[1000];
    uint32_t best = 0;

    for (uint32_t i = 0; i < 1000; i++) {
        logits[i] = (float)(8 * ops_random_normal(&random));
        best = logits[i] > logits[best] ? i : best;
    }
    for (int negative = 0; negative < 2; negative++) {
        for (int t = 0; t < 4; t++) {
            struct sample_params params = {
                .temperature = temperatures[t], .top_p = 0.9f, .top_k = 50};

            for (uint32_t i = 0; i < 20; i++) {
                struct sample s = draw(logits, 1000, params, i);
                float logprob =
                    t < 2 ? 0 : draw(logits, 1000, (struct sample_params){0}, 0).logprob;

                cr_expect(s.token == best && !s.not_finite && s.logprob == logprob,
                          "temperature %g: %u, not %u", (double)temperatures[t], s.token, best);
            }
        }
        for (uint32_t i = 0; i < 1000; i++)
            logits[i] -= 100;
    }
}

/* Less the largest, the logits of ids 0 and 2 are one score: the lower id is the better. */
Test(sampling, best_among_scores_that_became_equal)
{
    static const float logits[] = {0x1p-10f, 32, 0x1.001p-10f, -5, -6};
    struct sample_best best[4];

    for (uint32_t n_best = 2; n_best <= 4; n_best++) {
        struct sample_params params = {
            .temperature = 1, .top_p = 1, .n_best = n_best, .best = best};

        draw(logits, 5, params, 0);
        cr_expect(best[0].id == 1 && best[1].id == 0, "of %u best: %u, %u", n_best, best[0].id,
                  best[1].id);
        cr_expect(n_best < 3 || (best[2].id == 2 && best[2].logprob == best[1].logprob));
    }
}

/* Divided by the temperature the last is infinitely far below, and its part in the mean is none. Of
 * the others' probabilities, 0.73 and 0.27, the first is the typical one. */
Test(sampling, typical_p_beside_an_infinite_distance)
{
    static const float logits[] = {0, -0x1p-120f, -300};
    struct sample_program program = {.typical_p = 0.5f, .repetition_penalty = 1};
    struct sample_params params = {
        .temperature = 0x1p-120f, .top_p = 1, .seed = 3, .program = &program};

    for (uint32_t i = 0; i < 100; i++)
        cr_expect_eq(draw(logits, 3, params, i).token, 0);
}

Test(sampling, bounds_of_top_k)
{
    uint64_t random = 6;
    struct sample_params params = {.temperature = 1, .top_p = 1, .seed = 2};
    float logits[700];
    uint32_t best = 0;

    for (uint32_t i = 0; i < 700; i++) {
        logits[i] = (float)ops_random_normal(&random);
        best = logits[i] > logits[best] ? i : best;
    }
    for (uint32_t i = 0; i < 200; i++) {
        static const uint32_t off[] = {699, 700, 701, 0xffffffff};
        struct sample want, got;

        params.top_k = 0;
        want = draw(logits, 700, params, i);
        for (int k = 1; k < 4; k++) {
            params.top_k = off[k];
            got = draw(logits, 700, params, i);
            cr_expect(got.token == want.token && got.logprob == want.logprob);
        }
        params.top_k = 1;
        cr_expect_eq(draw(logits, 700, params, i).token, best);
        cr_expect_eq(draw(logits, 1, params, i).token, 0);
    }
}

Test(sampling, what_is_not_finite_is_said)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY, -NAN};
    struct sample_params params = {.temperature = 1, .top_k = 3, .top_p = 0.5f}, greedy = {0};
    struct head_row row = {.argmax = 4, .not_finite = 1};
    struct sample s;
    float logits[40] = {0};

    for (int i = 0; i < 4; i++) {
        logits[i * 13] = bad[i];
        cr_expect_neq(draw(logits, 40, params, 0).not_finite, 0, "%g", (double)bad[i]);
        logits[i * 13] = 0;
    }
    cr_expect_eq(draw(logits, 40, params, 0).not_finite, 0);
    sampling_row(&s, NULL, 40, &row, &greedy, &sampling_sweeps_plain, NULL);
    cr_expect(s.not_finite && s.token == 4 && s.logprob == 0);
}

/* The numbers depend on seed, child and token index, and on nothing else. */
Test(sampling, draws_repeat)
{
    enum { N = 49152 };
    float *logits = malloc(N * sizeof *logits);
    struct sample_params params = {.temperature = 1, .top_p = 0.9f, .seed = 11, .child_idx = 2};
    struct sample first[20];
    uint64_t random = 8;
    uint32_t n_same = 0;

    for (uint32_t i = 0; i < N; i++)
        logits[i] = (float)(3 * ops_random_normal(&random));
    for (uint32_t i = 0; i < 20; i++)
        first[i] = draw(logits, N, params, i);
    for (uint32_t i = 20; i-- > 0;) {
        struct sample again = draw(logits, N, params, i);

        cr_expect(!memcmp(&again, &first[i], sizeof again));
    }
    params.child_idx = 3;
    for (uint32_t i = 0; i < 20; i++)
        n_same += draw(logits, N, params, i).token == first[i].token;
    cr_expect_lt(n_same, 5);
    free(logits);
}
