/* How tokens are chosen: each option of `cbctl run` against the real model, told by what comes out. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/system/fixture.h"

TestSuite(choices, .timeout = 240);

enum { N_NEW = 6 };
#define PROMPT "The capital of France is"

/* What a prompt gave. */
struct answer {
    json_t *line;
    size_t n;
    uint32_t ids[64];
};

/* One prompt, with --json and these arguments behind. */
static struct answer ask(const struct system *s, const char *input, const char *const *arguments)
{
    const char *all[40] = {"-i", s->instance, "run", "--json"};
    struct answer a = {0};
    json_error_t error;
    json_t *id;
    size_t i, k = 4;
    while (*arguments && k < 39)
        all[k++] = *arguments++;
    struct output o = system_run(s, input, "cbctl", all);
    cr_assert_eq(o.status, 0, "%s%s", o.out, o.err);
    a.line = json_loads(o.out, 0, &error);
    cr_assert(a.line, "%s: %s", error.text, o.out);
    json_array_foreach(json_object_get(a.line, "ids"), i, id)
    {
        cr_assert_lt(a.n, 64);
        a.ids[a.n++] = (uint32_t)json_integer_value(id);
    }
    output_free(&o);
    return a;
}

static void drop(struct answer *a)
{
    json_decref(a->line);
}

static bool same(const struct answer *a, const struct answer *b)
{
    return a->n == b->n && !memcmp(a->ids, b->ids, a->n * sizeof a->ids[0]);
}

/* Number k of list `key`; NAN: null. */
static double logprob(const struct answer *a, const char *key, size_t k)
{
    const json_t *value = json_array_get(json_object_get(a->line, key), k);
    cr_assert(value, "no %s of token %zu", key, k);
    return json_is_null(value) ? (double)NAN : json_real_value(value);
}

/* Best number b at token k. */
static uint32_t best(const struct answer *a, const char *key, size_t k, size_t b, double *logprobp)
{
    const json_t *one = json_array_get(json_array_get(json_object_get(a->line, key), k), b);
    cr_assert(one, "no %s %zu of token %zu", key, b, k);
    *logprobp = json_number_value(json_object_get(one, "logprob"));
    return (uint32_t)json_integer_value(json_object_get(one, "id"));
}

static struct answer base_of(const struct system *s)
{
    return ask(s, NULL, SETTINGS("-n", "6", "--logprobs", "20", PROMPT));
}

static bool begin(struct system *s)
{
    if (!default_model())
        return false;
    system_init(s);
    system_start(s, SETTINGS("--model", default_model()));
    return true;
}

static bool has(const struct answer *a, uint32_t id)
{
    for (size_t i = 0; i < a->n; i++)
        if (a->ids[i] == id)
            return true;
    return false;
}

static bool repeats(const struct answer *a)
{
    for (size_t i = 0; i < a->n; i++)
        for (size_t k = 0; k < i; k++)
            if (a->ids[i] == a->ids[k])
                return true;
    return false;
}

Test(choices, ids_are_banned_allowed_biased_and_given)
{
    struct system s;
    if (!begin(&s))
        cr_skip_test("no model");
    struct answer base = base_of(&s), a;
    double lp;
    char first[16], second[16], two[32], bias[32];
    uint32_t runner_up = best(&base, "top_logprobs", 0, 1, &lp);
    cr_assert_eq(base.n, N_NEW);
    snprintf(first, sizeof first, "%u", base.ids[0]);
    snprintf(second, sizeof second, "%u", runner_up);
    snprintf(two, sizeof two, "%s,%s", first, second);
    snprintf(bias, sizeof bias, "%s=100", second);

    a = ask(&s, NULL, SETTINGS("-n", "6", "--ban-ids", first, PROMPT));
    cr_expect_eq(a.ids[0], runner_up, "the best is banned, the second comes");
    cr_expect(!has(&a, base.ids[0]));
    drop(&a);
    a = ask(&s, NULL, SETTINGS("-n", "6", "--allow-ids", two, PROMPT));
    cr_expect_eq(a.ids[0], base.ids[0]);
    for (size_t i = 0; i < a.n; i++)
        cr_expect(a.ids[i] == base.ids[0] || a.ids[i] == runner_up);
    drop(&a);
    a = ask(&s, NULL, SETTINGS("-n", "6", "--allow-ids", two, "--ban-ids", first, PROMPT));
    for (size_t i = 0; i < a.n; i++)
        cr_expect_eq(a.ids[i], runner_up);
    drop(&a);
    a = ask(&s, NULL, SETTINGS("-n", "6", "--logit-bias", bias, PROMPT));
    for (size_t i = 0; i < a.n; i++)
        cr_expect_eq(a.ids[i], runner_up, "100 more than all others");
    drop(&a);
    a = ask(&s, NULL, SETTINGS("-n", "6", "--first-id", second, "--ban-ids", second, PROMPT));
    cr_expect_eq(a.ids[0], runner_up, "the first id comes whatever else");
    for (size_t i = 1; i < a.n; i++)
        cr_expect_neq(a.ids[i], runner_up);
    drop(&a);
    drop(&base);
    system_settle(&s);
    system_fini(&s);
}

Test(choices, penalties_and_ngrams_keep_tokens_from_coming_again)
{
    static const char *const ways[][2] = {{"--repetition-penalty", "1000"},
                                          {"--presence-penalty", "1000"},
                                          {"--frequency-penalty", "1000"},
                                          {"--no-repeat-ngram", "1"}};
    struct system s;
    if (!begin(&s))
        cr_skip_test("no model");
    struct answer a = ask(&s, NULL, SETTINGS("-n", "20", PROMPT));
    cr_assert(repeats(&a), "an answer in which nothing comes twice tells nothing");
    drop(&a);
    for (int i = 0; i < 4; i++) {
        a = ask(&s, NULL, SETTINGS("-n", "20", ways[i][0], ways[i][1], PROMPT));
        cr_expect(!repeats(&a), "%s", ways[i][0]);
        drop(&a);
    }
    a = ask(&s, NULL, SETTINGS("-n", "40", "--no-repeat-ngram", "2", PROMPT));
    for (size_t i = 1; i < a.n; i++)
        for (size_t k = 1; k < i; k++)
            cr_expect(a.ids[i - 1] != a.ids[k - 1] || a.ids[i] != a.ids[k], "twice in a row");
    drop(&a);
    system_settle(&s);
    system_fini(&s);
}

Test(choices, no_end_comes_before_min_new_tokens)
{
    struct system s;
    if (!begin(&s))
        cr_skip_test("no model");
    struct answer base = base_of(&s), a;
    char id[16];
    snprintf(id, sizeof id, "%u", base.ids[1]);
    a = ask(&s, NULL, SETTINGS("-n", "6", "--stop-id", id, PROMPT));
    cr_expect_eq(a.n, 2);
    drop(&a);
    a = ask(&s, NULL, SETTINGS("-n", "6", "--stop-id", id, "--min-new-tokens", "5", PROMPT));
    cr_expect_geq(a.n, 5);
    for (size_t i = 0; i < 5 && i < a.n; i++)
        cr_expect_neq(a.ids[i], base.ids[1]);
    drop(&a);
    drop(&base);
    system_settle(&s);
    system_fini(&s);
}

/* Each keeps one token at its narrowest: draws of any heat are then all the same. */
Test(choices, cuts_at_their_narrowest_leave_one_token)
{
    struct system s;
    if (!begin(&s))
        cr_skip_test("no model");
    struct answer base = base_of(&s), a, b;
    a = ask(&s, NULL, SETTINGS("-n", "6", "--temperature", "5", "--min-p", "1", PROMPT));
    cr_expect(same(&a, &base));
    drop(&a);
    a = ask(&s, NULL, SETTINGS("-n", "6", "--temperature", "5", "--seed", "1", PROMPT));
    b = ask(&s, NULL, SETTINGS("-n", "6", "--temperature", "5", "--seed", "2", PROMPT));
    cr_expect(!same(&a, &b), "so hot that the seed decides");
    drop(&a);
    drop(&b);
    a = ask(
        &s, NULL,
        SETTINGS("-n", "6", "--temperature", "5", "--typical-p", "1e-9", "--seed", "1", PROMPT));
    b = ask(
        &s, NULL,
        SETTINGS("-n", "6", "--temperature", "5", "--typical-p", "1e-9", "--seed", "2", PROMPT));
    cr_expect(same(&a, &b) && !same(&a, &base), "the least surprising is not the best");
    drop(&a);
    drop(&b);
    drop(&base);
    system_settle(&s);
    system_fini(&s);
}

Test(choices, log_probabilities_of_the_answer)
{
    struct system s;
    if (!begin(&s))
        cr_skip_test("no model");
    struct answer base = base_of(&s), a, b;
    double lp, before, sum;
    for (size_t i = 0; i < base.n; i++) {
        sum = before = 0;
        for (size_t k = 0; k < 20; k++) {
            uint32_t id = best(&base, "top_logprobs", i, k, &lp);
            cr_expect(lp <= before, "the best first");
            if (k == 0)
                cr_expect(id == base.ids[i] && lp == logprob(&base, "logprobs", i));
            before = lp;
            sum += exp(lp);
        }
        cr_expect(sum > 0.2 && sum < 1.000001, "20 of them make up %g", sum);
    }
    /* Raw ones don't know of heat; those of what is drawn from do. */
    a = ask(&s, NULL,
            SETTINGS("-n", "1", "--temperature", "2", "--logprobs", "2", "--raw-logprobs", PROMPT));
    b = ask(&s, NULL, SETTINGS("-n", "1", "--temperature", "2", "--logprobs", "2", PROMPT));
    uint32_t id = best(&a, "top_logprobs", 0, 0, &lp);
    cr_expect(id == base.ids[0] && lp == logprob(&base, "logprobs", 0));
    id = best(&b, "top_logprobs", 0, 0, &lp);
    cr_expect(id == base.ids[0] && lp < logprob(&base, "logprobs", 0) - 0.1);
    drop(&a);
    drop(&b);
    /* Of one token that is left, all is known. */
    a = ask(&s, NULL, SETTINGS("-n", "1", "--allow-ids", "17", "--logprobs", "3", PROMPT));
    cr_expect_eq(logprob(&a, "logprobs", 0), 0);
    cr_expect_eq(json_array_size(json_array_get(json_object_get(a.line, "top_logprobs"), 0)), 1);
    drop(&a);
    drop(&base);
    system_settle(&s);
    system_fini(&s);
}

/* What was generated, given as a prompt, has the log-probabilities that it had, to the last bit. */
Test(choices, log_probabilities_of_a_prompt_are_those_of_the_answer_that_it_was)
{
    struct system s;
    if (!begin(&s))
        cr_skip_test("no model");
    struct answer base = base_of(&s), a;
    const json_t *prompt = json_object_get(base.line, "prompt_ids");
    size_t n_prompt = json_array_size(prompt), i, n = 0;
    char ids[512] = "";
    json_t *id;
    double lp, own;
    json_array_foreach(prompt, i, id) n +=
        (size_t)snprintf(ids + n, sizeof ids - n, "%lld ", (long long)json_integer_value(id));
    for (i = 0; i < base.n; i++)
        n += (size_t)snprintf(ids + n, sizeof ids - n, "%u ", base.ids[i]);
    /* Twice: what is in the cache then must not keep it from being computed. */
    for (int again = 0; again < 2; again++) {
        a = ask(&s, NULL,
                SETTINGS("-n", "0", "--prompt-logprobs", "--logprobs", "20", "--ids-in", ids));
        cr_expect(a.n == 0 && isnan(logprob(&a, "prompt_logprobs", 0)));
        for (i = 0; i < base.n; i++) {
            cr_expect_eq(logprob(&a, "prompt_logprobs", n_prompt + i),
                         logprob(&base, "logprobs", i));
            for (size_t k = 0; k < 20; k++) {
                uint32_t theirs = best(&base, "top_logprobs", i, k, &lp);
                cr_expect_eq(best(&a, "prompt_top_logprobs", n_prompt + i, k, &own), theirs);
                cr_expect(own == lp && own < 0);
            }
        }
        drop(&a);
    }
    drop(&base);
    system_settle(&s);
    system_fini(&s);
}

Test(choices, lines_of_a_file_say_it_in_the_same_words)
{
    struct system s;
    if (!begin(&s))
        cr_skip_test("no model");
    struct answer a =
        ask(&s, NULL,
            SETTINGS("-n", "8", "--seed", "4", "--temperature", "1.5", "--min-p", "0.01",
                     "--typical-p", "0.9", "--repetition-penalty", "1.2", "--presence-penalty",
                     "0.5", "--frequency-penalty", "0.25", "--no-repeat-ngram", "3",
                     "--min-new-tokens", "4", "--on-new-weights", "restart", "--first-id", "260",
                     "--ban-ids", "30,28", "--logit-bias", "284=2,29=-1.5", "--logprobs", "2",
                     "--raw-logprobs", "--prompt-logprobs", PROMPT));
    struct answer b =
        ask(&s,
            "{\"text\": \"" PROMPT "\", \"max_new_tokens\": 8, \"seed\": 4, \"temperature\": 1.5,"
            " \"min_p\": 0.01, \"typical_p\": 0.9, \"repetition_penalty\": 1.2,"
            " \"presence_penalty\": 0.5, \"frequency_penalty\": 0.25, \"no_repeat_ngram\": 3, "
            "\"on_new_weights\": \"fail\","
            " \"min_new_tokens\": 4, \"first_id\": 260, \"banned_ids\": [30, 28],"
            " \"logit_bias\": {\"284\": 2, \"29\": -1.5}, \"top_logprobs\": 2,"
            " \"raw_logprobs\": true, \"prompt_logprobs\": true}\n",
            SETTINGS("--file", "-"));
    static const char *const keys[] = {"ids", "logprobs", "top_logprobs", "prompt_logprobs",
                                       "prompt_top_logprobs"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        cr_expect(json_object_get(a.line, keys[i]) && json_equal(json_object_get(a.line, keys[i]),
                                                                 json_object_get(b.line, keys[i])),
                  "%s differ", keys[i]);
    cr_expect_eq(a.ids[0], 260);
    drop(&a);
    /* A line takes back what the command line asks for. */
    a = ask(&s,
            "{\"text\": \"" PROMPT "\", \"logprobs\": false, \"top_logprobs\": 0, \"min_p\": 0}\n",
            SETTINGS("-n", "2", "--logprobs", "3", "--file", "-"));
    cr_expect_null(json_object_get(a.line, "logprobs"));
    drop(&a);
    drop(&b);
    system_settle(&s);
    system_fini(&s);
}

Test(choices, people_get_a_line_a_token)
{
    struct system s;
    size_t n_lines = 0;
    if (!begin(&s))
        cr_skip_test("no model");
    struct output o = system_run(&s, NULL, "cbctl",
                                 SETTINGS("-i", s.instance, "run", "-n", "3", "--logprobs", "1",
                                          "--prompt-logprobs", PROMPT));
    cr_expect_eq(o.status, 0, "%s", o.err);
    for (const char *p = o.out; (p = strchr(p, '\n')); p++)
        n_lines++;
    cr_expect_eq(n_lines, 5 + 3, "%s", o.out);
    cr_expect(!strncmp(o.out, "-5  504 - \"The\"\n-4  3575 -11.", 29), "%s", o.out);
    output_free(&o);
    system_settle(&s);
    system_fini(&s);
}

static void complains(const struct system *s, const char *const *words, int status,
                      const char *says)
{
    const char *all[24] = {"-i", s->instance, "run"};
    size_t k = 3;
    while (*words && k < 23)
        all[k++] = *words++;
    struct output o = system_run(s, NULL, "cbctl", all);
    cr_expect_eq(o.status, status, "%s: %s", says, o.err);
    cr_expect(strstr(o.err, says), "\"%s\" lacks \"%s\"", o.err, says);
    output_free(&o);
}

Test(choices, what_makes_no_sense_is_said)
{
    struct system s;
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null"));
    complains(&s, SETTINGS("--min-p", "x", "a"), 2, "--min-p is \"x\", which is no number");
    complains(&s, SETTINGS("--logit-bias", "3:1", "a"), 2, "which is no list like 3=1.5,17=-2");
    complains(&s, SETTINGS("--ban-ids", "3,", "a"), 2, "which is no list like 3,17");
    complains(&s, SETTINGS("--min-p", "1.5", "a"), 1,
              "prompt 1: min_p is 1.5; give a number from 0, which is off, to 1");
    complains(&s, SETTINGS("--logprobs", "21", "a"), 1, "top_logprobs is 21; give 0 to 20");
    complains(&s, SETTINGS("--on-new-weights", "later", "a"), 2,
              "--on-new-weights is \"later\"; give continue, restart or fail");
    complains(&s, SETTINGS("--first-id", "49152", "a"), 1,
              "token id 49152 is outside the vocabulary of 49152");
    complains(&s, SETTINGS("--logit-bias", "3=1,3=2", "a"), 1, "two logit biases for id 3");
    complains(&s, SETTINGS("--allow-ids", "3", "--ban-ids", "3", "a"), 1,
              "all 1 allowed ids are banned; leave one");
    /* A limit that the lane's results have no room for; without one it is as much as there is. */
    complains(&s, SETTINGS("--logprobs", "20", "-n", "100000", "a"), 1, "tokens of this lane's");
    complains(&s, SETTINGS("--logprobs", "20", "--ignore-eos", "a"), 0, "it was full");
    system_settle(&s);
    system_fini(&s);
}

/* Only once it runs out of tokens. */
Test(choices, a_request_that_has_nothing_left_to_choose_ends_with_that)
{
    struct system s;
    if (!begin(&s))
        cr_skip_test("no model");
    complains(&s, SETTINGS("--allow-ids", "260,28", "--no-repeat-ngram", "1", PROMPT), 1,
              "prompt 1: allowed, banned and repeated ids leave no token to choose");
    struct answer a = ask(&s, NULL, SETTINGS("-n", "2", PROMPT));
    cr_expect_eq(a.n, 2, "the daemon goes on");
    drop(&a);
    system_settle(&s);
    system_fini(&s);
}

/* What requests do not say, the operator does. */
Test(choices, defaults_of_the_operator)
{
    struct system s;
    if (!default_model())
        return;
    system_init(&s);
    system_start(&s, SETTINGS("--model", default_model(), "--return_logprobs", "true", "--seed",
                              "11", "--logprobs_mode", "raw"));
    const char *const drawn[] = {"-n", "6", "--temperature", "0.7", PROMPT, NULL};
    struct answer a = ask(&s, NULL, drawn), b = ask(&s, NULL, drawn);
    cr_expect(same(&a, &b), "each handle draws the same seeds");
    cr_expect_eq(json_integer_value(json_object_get(a.line, "seed")),
                 json_integer_value(json_object_get(b.line, "seed")));
    double raw = logprob(&a, "logprobs", 0);
    drop(&a);
    drop(&b);
    a = ask(&s, NULL, SETTINGS("-n", "6", "--temperature", "0.7", "--raw-logprobs", PROMPT));
    cr_expect_eq(logprob(&a, "logprobs", 0), raw);
    drop(&a);
    json_decref(system_cbctl(&s, SETTINGS("settings", "logprobs_mode", "processed")));
    a = ask(&s, NULL, drawn);
    cr_expect_neq(logprob(&a, "logprobs", 0), raw, "0.7 sharpens what is told");
    drop(&a);
    json_decref(system_cbctl(&s, SETTINGS("settings", "return_logprobs", "false")));
    a = ask(&s, NULL, drawn);
    cr_expect_null(json_object_get(a.line, "logprobs"));
    drop(&a);
    system_settle(&s);
    system_fini(&s);
}
