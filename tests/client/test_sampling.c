/* How a request asks for the choice of its tokens, and gets their log-probabilities. */
#include "client/cbclient.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "tests/client/pair.h"

static struct pair start_old(void)
{
    return start(&(struct fake_config){.is_old = true}, CB_KIND_LATENCY, CB_WAIT_BALANCED);
}

/* Submits, and waits for the end. */
static uint64_t submit_all(struct pair p, const struct cb_request *r)
{
    uint64_t id;
    cr_assert_eq(cb_submit(p.h, r, &id), 0, "%s", cb_message());
    cr_assert_eq(take_all(p.h, id, r->ids[0]).end, CB_END_LENGTH);
    return id;
}

Test(sampling, what_is_asked_for_reaches_the_daemon)
{
    static const uint32_t allowed[] = {9, 3, 9, 5}, banned[] = {500, 2};
    static const struct cb_bias biases[] = {{7, -2.5f}, {4, 100}};
    struct pair p = start_plain();
    struct cb_request r = request_of(ids3, 3, 2);
    struct fake_wishes w;
    submit_all(p, &r);
    fake_wishes(p.f, &w);
    cr_assert(w.sampling.typical_p == 1 && w.sampling.repetition_penalty == 1);
    cr_assert(w.sampling.first_id == CB_NO_TOKEN && !w.planes && !w.n_allowed && !w.n_biases);

    r.min_p = 0.25f;
    r.typical_p = 0.5f;
    r.repetition_penalty = 1.5f;
    r.presence_penalty = -1;
    r.frequency_penalty = 2;
    r.no_repeat_ngram = 3;
    r.min_new_tokens = 4;
    r.first_id = 5;
    r.allowed_ids = allowed;
    r.n_allowed_ids = 4;
    r.banned_ids = banned;
    r.n_banned_ids = 2;
    r.biases = biases;
    r.n_biases = 2;
    r.flags = CB_RAW_LOGPROBS | CB_PROMPT_LOGPROBS;
    r.top_logprobs = 7;
    submit_all(p, &r);
    fake_wishes(p.f, &w);
    cr_assert(w.sampling.min_p == 0.25f && w.sampling.typical_p == 0.5f);
    cr_assert(w.sampling.repetition_penalty == 1.5f && w.sampling.presence_penalty == -1);
    cr_assert(w.sampling.frequency_penalty == 2 && w.sampling.no_repeat_ngram == 3);
    cr_assert(w.sampling.min_new_tokens == 4 && w.sampling.first_id == 5);
    cr_assert(w.n_allowed == 3 && w.allowed[0] == 3 && w.allowed[1] == 5 && w.allowed[2] == 9);
    cr_assert(w.n_banned == 2 && w.banned[0] == 2 && w.banned[1] == 500);
    cr_assert(w.n_biases == 2 && w.biases[0].id == 4 && w.biases[1].bias == -2.5f);
    cr_assert_eq(w.flags, CB_FLAG_RAW_LOGPROBS);
    cr_assert_eq(w.planes, CB_PLANE_LOGPROBS | CB_PLANE_TOPK | CB_PLANE_PROMPT | 7u << 16);
    stop(p);
}

Test(sampling, lists_may_be_as_long_as_is_said)
{
    static uint32_t allowed[4096], banned[4096];
    static struct cb_bias biases[1024];
    struct pair p = start_plain();
    struct cb_request r = request_of(ids3, 3, 2);
    struct fake_wishes w;
    /* The fake has 600 ids: they come again and again. */
    for (uint32_t i = 0; i < 4096; i++) {
        allowed[i] = 2 * i % 600;
        banned[i] = (2 * i + 1) % 600;
    }
    for (uint32_t i = 0; i < 600; i++)
        biases[i] = (struct cb_bias){599 - i, (float)i};
    r.allowed_ids = allowed;
    r.banned_ids = banned;
    r.n_allowed_ids = r.n_banned_ids = 4096;
    r.biases = biases;
    r.n_biases = 600;
    submit_all(p, &r);
    fake_wishes(p.f, &w);
    cr_assert(w.n_allowed == 300 && w.n_banned == 300 && w.n_biases == 600);
    stop(p);
}

static void refused(struct pair p, const struct cb_request *r, int status, const char *words)
{
    uint64_t id;
    cr_assert_eq(cb_submit(p.h, r, &id), status, "%s", words);
    cr_assert(strstr(cb_message(), words), "\"%s\" lacks \"%s\"", cb_message(), words);
}

#define REFUSED(status, words, ...)                   \
    do {                                              \
        struct cb_request r = request_of(ids3, 3, 2); \
        __VA_ARGS__;                                  \
        refused(p, &r, status, words);                \
    } while (0)

Test(sampling, what_is_out_of_bounds_is_said_with_its_value_and_bounds)
{
    static const uint32_t ids[] = {3, 4}, outside[] = {3, 600};
    static const struct cb_bias twice[] = {{3, 1}, {4, 1}, {3, 2}}, huge[] = {{3, 1e9f}},
                                away[] = {{600, 1}};
    static struct cb_bias many[1025];
    struct pair p = start_plain();
    REFUSED(CB_BAD_PARAMETER, "min_p is 1.5; give a number from 0", r.min_p = 1.5f);
    REFUSED(CB_BAD_PARAMETER, "min_p is nan", r.min_p = NAN);
    REFUSED(CB_BAD_PARAMETER, "typical_p is 0; give", r.typical_p = 0);
    REFUSED(CB_BAD_PARAMETER, "repetition_penalty is 0; give a number from 0.001 to 1000",
            r.repetition_penalty = 0);
    REFUSED(CB_BAD_PARAMETER, "presence_penalty is inf", r.presence_penalty = INFINITY);
    REFUSED(CB_BAD_PARAMETER, "frequency_penalty is -1001", r.frequency_penalty = -1001);
    REFUSED(CB_BAD_PARAMETER, "top_logprobs is 21; give 0 to 20", r.top_logprobs = 21);
    REFUSED(CB_BAD_TOKEN, "600 is outside the vocabulary of 600", r.first_id = 600);
    REFUSED(CB_BAD_TOKEN, "600 is outside", r.allowed_ids = outside; r.n_allowed_ids = 2);
    REFUSED(CB_BAD_TOKEN, "600 is outside", r.banned_ids = outside; r.n_banned_ids = 2);
    REFUSED(CB_BAD_TOKEN, "600 is outside", r.biases = away; r.n_biases = 1);
    REFUSED(CB_BAD_PARAMETER, "there are 0 allowed ids; give 1 to 4096", r.allowed_ids = ids);
    REFUSED(CB_BAD_PARAMETER, "all 2 allowed ids are banned", r.allowed_ids = r.banned_ids = ids;
            r.n_allowed_ids = r.n_banned_ids = 2);
    REFUSED(CB_BAD_PARAMETER, "two logit biases for id 3", r.biases = twice; r.n_biases = 3);
    REFUSED(CB_BAD_PARAMETER, "a logit bias is 1e+09", r.biases = huge; r.n_biases = 1);
    REFUSED(CB_BAD_PARAMETER, "there are 1025 logit biases; give at most 1024", r.biases = many;
            r.n_biases = 1025);
    stop(p);
}

Test(sampling, log_probabilities_lie_beside_their_tokens)
{
    struct pair p = start_plain();
    struct cb_request r = request_of(ids3, 3, 50);
    const struct cb_top_logprob *top;
    const float *logprobs;
    uint64_t id;
    size_t n;
    r.top_logprobs = 3;
    r.flags = CB_PROMPT_LOGPROBS;
    id = submit_all(p, &r);
    cr_assert_eq(cb_logprobs(p.h, id, &logprobs, &top, &n), 0);
    cr_assert(n == 50 && logprobs[0] == 0 && logprobs[49] == -49);
    cr_assert(top[0].id == 0 && top[49 * 3 + 2].id == 51 && top[49 * 3 + 2].logprob == -49.5f);
    cr_assert_eq(cb_logprobs(p.h, id, &logprobs, NULL, &n), 0);
    cr_assert_eq(cb_prompt_logprobs(p.h, id, &logprobs, &top, &n), 0);
    cr_assert(n == 3 && isnan(logprobs[0]) && logprobs[1] == -101 && logprobs[2] == -102);
    cr_assert(top[0].id == CB_NO_TOKEN && top[3].id == 101 && top[8].id == 104);
    cb_release(p.h, id);
    cr_assert_eq(cb_logprobs(p.h, id, &logprobs, &top, &n), CB_NOT_FOUND);
    stop(p);
}

Test(sampling, whose_weights_made_them_lies_beside_tokens)
{
    struct pair p = start_plain();
    struct cb_request r = request_of(ids3, 3, 5);
    struct cb_result result;
    struct fake_wishes w;
    const uint32_t *epochs;
    uint64_t id;
    size_t n;
    r.flags = CB_EPOCHS;
    r.on_new_weights = CB_WEIGHTS_FAIL;
    id = submit_all(p, &r);
    cr_assert_eq(cb_epochs(p.h, id, &epochs, &n), 0);
    cr_assert(n == 5 && epochs[0] == 0 && epochs[1] == CB_EPOCH_ANEW);
    cr_assert(epochs[2] == 1 && epochs[4] == 2);
    cr_assert_eq(cb_result(p.h, id, &result), 0);
    cr_assert_eq(result.weight_epoch, 7);
    fake_wishes(p.f, &w);
    cr_assert(w.flags == CB_FLAG_ON_WEIGHTS && w.planes == CB_PLANE_EPOCHS);
    cb_release(p.h, id);
    cr_assert_eq(cb_epochs(p.h, id, &epochs, &n), CB_NOT_FOUND);
    r.flags = 0;
    r.on_new_weights = CB_WEIGHTS_DEFAULT;
    id = submit_all(p, &r);
    cr_assert_eq(cb_epochs(p.h, id, &epochs, &n), CB_INVALID);
    fake_wishes(p.f, &w);
    cr_assert(w.flags == 0 && w.planes == 0);
    r.on_new_weights = CB_WEIGHTS_FAIL + 1;
    cr_assert_eq(cb_submit(p.h, &r, &id), CB_INVALID);
    cr_assert(strstr(cb_message(), "on_new_weights"), "%s", cb_message());
    stop(p);
}

Test(sampling, those_of_the_prompt_come_with_the_first_token)
{
    struct pair p = start_plain();
    struct cb_request r = request_of(ids3, 3, 2);
    const float *logprobs;
    uint64_t id;
    size_t n = 9;
    fake_hold(p.f, true);
    r.flags = CB_PROMPT_LOGPROBS;
    cr_assert_eq(cb_submit(p.h, &r, &id), 0);
    cr_assert_eq(cb_prompt_logprobs(p.h, id, &logprobs, NULL, &n), 0);
    cr_assert(n == 0 && !logprobs);
    fake_hold(p.f, false);
    take_all(p.h, id, ids3[0]);
    cr_assert_eq(cb_prompt_logprobs(p.h, id, &logprobs, NULL, &n), 0);
    cr_assert(n == 3 && logprobs[2] == -102);
    stop(p);
}

Test(sampling, a_request_without_tokens_may_have_its_prompt_scored)
{
    struct pair p = start_plain();
    struct cb_request r = request_of(ids3, 3, 0);
    const float *logprobs;
    struct cb_event e;
    uint64_t id;
    size_t n;
    r.flags = CB_PROMPT_LOGPROBS;
    cr_assert_eq(cb_submit(p.h, &r, &id), 0);
    cr_assert_eq(cb_wait(p.h, id, &e, HANG_MS), 1);
    cr_assert(e.type == CB_EVENT_END && e.end == CB_END_LENGTH && e.n_ids == 0);
    cr_assert_eq(cb_prompt_logprobs(p.h, id, &logprobs, NULL, &n), 0);
    cr_assert(n == 3 && logprobs[2] == -102);
    stop(p);
}

Test(sampling, who_did_not_ask_is_told_so)
{
    struct pair p = start_plain();
    struct cb_request r = request_of(ids3, 3, 2);
    const struct cb_top_logprob *top;
    const float *logprobs;
    uint64_t id;
    size_t n;
    id = submit_all(p, &r);
    cr_assert_eq(cb_logprobs(p.h, id, &logprobs, &top, &n), CB_INVALID);
    cr_assert_eq(cb_prompt_logprobs(p.h, id, &logprobs, &top, &n), CB_INVALID);
    r.flags = CB_LOGPROBS;
    id = submit_all(p, &r);
    cr_assert_eq(cb_logprobs(p.h, id, &logprobs, &top, &n), 0);
    cr_assert(n == 2 && logprobs[1] == -1 && !top);
    stop(p);
}

/* It would refuse what it does not know, but only after it was sent. */
Test(sampling, an_older_daemon_is_not_asked)
{
    static const struct cb_bias bias = {1, 1};
    struct pair p = start_old();
    struct cb_request plain = request_of(ids3, 3, 2);
    plain.flags = CB_TIMES;
    plain.temperature = 1;
    submit_all(p, &plain);
    REFUSED(CB_VERSION, "this daemon knows of no penalties", r.presence_penalty = 1);
    REFUSED(CB_VERSION, "this daemon knows of no penalties", r.biases = &bias; r.n_biases = 1);
    REFUSED(CB_VERSION, "this daemon gives no log-probabilities", r.flags = CB_LOGPROBS);
    REFUSED(CB_VERSION, "this daemon gives no log-probabilities", r.flags = CB_PROMPT_LOGPROBS);
    stop(p);
}

/* ---- the operator's defaults ----------------------------------------------------------------- */

static void with_seed(struct cb_welcome *w)
{
    w->defaults = CB_DEFAULT_SEED;
    w->seed = 99;
}

static void with_raw_logprobs(struct cb_welcome *w)
{
    w->defaults = CB_DEFAULT_LOGPROBS | CB_DEFAULT_RAW_LOGPROBS;
}

static struct pair start_with(void (*spoil)(struct cb_welcome *))
{
    return start(&(struct fake_config){.spoil = spoil}, CB_KIND_LATENCY, CB_WAIT_BALANCED);
}

/* The same requests on a new handle get the same seeds, each its own; who brings one keeps it. */
Test(sampling, seeds_are_drawn_from_the_daemons)
{
    uint64_t seeds[2][3];
    for (int round = 0; round < 2; round++) {
        struct pair p = start_with(with_seed);
        for (int i = 0; i < 3; i++) {
            struct cb_request r = request_of(ids3, 3, 1);
            struct cb_result result;
            if (i == 1) {
                r.flags = CB_HAS_SEED;
                r.seed = 5;
            }
            cr_assert_eq(cb_result(p.h, submit_all(p, &r), &result), 0);
            seeds[round][i] = result.seed;
        }
        stop(p);
    }
    cr_assert(seeds[0][0] == seeds[1][0] && seeds[0][2] == seeds[1][2]);
    cr_assert(seeds[0][0] != seeds[0][2] && seeds[0][1] == 5);
}

Test(sampling, log_probabilities_are_the_daemons_default)
{
    struct pair p = start_with(with_raw_logprobs);
    struct cb_request r = request_of(ids3, 3, 4);
    struct fake_wishes w;
    submit_all(p, &r);
    fake_wishes(p.f, &w);
    cr_assert_eq(w.planes, CB_PLANE_LOGPROBS);
    cr_assert(w.flags & CB_FLAG_RAW_LOGPROBS);
    r.flags = CB_PROCESSED_LOGPROBS;
    submit_all(p, &r);
    fake_wishes(p.f, &w);
    cr_assert_eq(w.planes, CB_PLANE_LOGPROBS);
    cr_assert_not(w.flags & CB_FLAG_RAW_LOGPROBS);
    r.flags = CB_PROCESSED_LOGPROBS | CB_RAW_LOGPROBS;
    uint64_t id;
    cr_assert_eq(cb_submit(p.h, &r, &id), CB_INVALID);
    expect_message("CB_PROCESSED_LOGPROBS");
    stop(p);
}
