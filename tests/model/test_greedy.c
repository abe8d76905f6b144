/* The recorded greedy answers of the default model, all 16 in one batch. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <stdlib.h>

#include "tests/model/common.h"
#include "tests/util/feed.h"

#define N_CASES     (IS_SANITIZED ? 2u : 16u)
#define N_CASES_MAX 16u
#define STEP_TOKENS 512u
#define SEQ_TOKENS  320u

struct answer {
    const json_t *recorded;
    int32_t *ids; /* prompt, then what the model made */
    uint32_t n_prompt, n_wanted, n_made;
    double margin; /* recorded distance of the two best where it differed; negative: it did not */
};

static json_t *load(struct answer *answers)
{
    json_t *file = json_load_file("tests/data/smollm2/greedy.json", 0, NULL);
    const json_t *cases = json_object_get(file, "cases");

    cr_assert_eq(json_array_size(cases), N_CASES_MAX);
    for (uint32_t i = 0; i < N_CASES; i++) {
        struct answer *a = &answers[i];
        const json_t *prompt;

        *a = (struct answer){.recorded = json_array_get(cases, i), .margin = -1};
        prompt = json_object_get(a->recorded, "input_ids");
        a->n_prompt = (uint32_t)json_array_size(prompt);
        a->n_wanted = (uint32_t)json_array_size(json_object_get(a->recorded, "greedy_ids"));
        if (IS_SANITIZED && a->n_wanted > 8)
            a->n_wanted = 8;
        cr_assert(a->n_prompt >= 1 && a->n_wanted >= 1 && a->n_prompt + a->n_wanted <= SEQ_TOKENS);
        a->ids = calloc(a->n_prompt + a->n_wanted, sizeof a->ids[0]);
        cr_assert_not_null(a->ids);
        for (uint32_t j = 0; j < a->n_prompt; j++)
            a->ids[j] = (int32_t)json_integer_value(json_array_get(prompt, j));
    }
    return file;
}

/* Takes one made token; false: this case has ended. */
static bool take(struct answer *a, uint32_t token)
{
    const json_t *ids = json_object_get(a->recorded, "greedy_ids");
    const json_t *best = json_array_get(json_object_get(a->recorded, "top5_logprobs"), a->n_made);

    if ((json_int_t)token != json_integer_value(json_array_get(ids, a->n_made))) {
        a->margin =
            json_number_value(json_array_get(best, 0)) - json_number_value(json_array_get(best, 1));
        return false;
    }
    a->ids[a->n_prompt + a->n_made++] = (int32_t)token;
    return a->n_made < a->n_wanted;
}

/* Prompts go in by chunks of what a step has room for, together with what decodes already. */
static void run(struct model *m, struct answer *answers)
{
    struct feed *f = feed_new(m, N_CASES, SEQ_TOKENS, STEP_TOKENS);
    struct sample samples[N_CASES_MAX];
    uint32_t done[N_CASES_MAX] = {0},
             yields[N_CASES_MAX]; /* tokens fed; which case an output belongs to */
    bool live[N_CASES_MAX];

    for (uint32_t i = 0; i < N_CASES; i++)
        live[i] = true;
    for (;;) {
        uint32_t room = STEP_TOKENS, n_yields = 0;

        feed_begin(f);
        for (int prefill = 0; prefill < 2; prefill++)
            for (uint32_t i = 0; i < N_CASES; i++) {
                uint32_t n = answers[i].n_prompt + answers[i].n_made - done[i];
                uint32_t chunk = n < room ? n : room;

                if (!live[i] || chunk == 0 || (n > 1) != prefill)
                    continue;
                feed_add(f, i, answers[i].ids + done[i], done[i], chunk,
                         chunk == n ? FEED_LAST : FEED_NONE);
                done[i] += chunk;
                room -= chunk;
                if (chunk == n)
                    yields[n_yields++] = i;
            }
        if (feed_step(f)->n_tokens == 0)
            break;
        cr_assert_eq(feed_greedy(f, samples), 0);
        for (uint32_t i = 0; i < n_yields; i++) {
            cr_assert_eq(samples[i].not_finite, 0);
            live[yields[i]] = take(&answers[yields[i]], samples[i].token);
        }
    }
    feed_free(f);
}

static void run_backend(const char *backend, enum dtype kv_dtype, double margin_max,
                        double margin_once)
{
    struct answer answers[N_CASES_MAX];
    json_t *file = load(answers);
    struct model *m =
        open_model(default_model(), backend, kv_dtype, N_CASES, SEQ_TOKENS, STEP_TOKENS);
    uint32_t n_wide = 0;

    run(m, answers);
    for (uint32_t i = 0; i < N_CASES; i++) {
        if (answers[i].margin >= margin_max)
            n_wide++;
        cr_expect(answers[i].margin < margin_once,
                  "case %u differs at token %u, where the two best are %.4f apart", i,
                  answers[i].n_made, answers[i].margin);
        free(answers[i].ids);
    }
    cr_expect(n_wide <= (margin_once > margin_max), "%u cases differ at wide margins", n_wide);
    model_free(m);
    json_decref(file);
}

Test(greedy, reference_gives_the_recorded_ids)
{
    run_backend("reference", DTYPE_F32, 0.001, 0.001);
}

Test(greedy, cpu_differs_only_where_the_two_best_are_close)
{
    run_backend("cpu", DTYPE_BF16, 0.3, 0.5);
}

Test(greedy, cpu_with_8_bit_keys_and_values_likewise)
{
    run_backend("cpu", DTYPE_U8, 0.3, 0.5);
}
