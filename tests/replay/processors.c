/* Logits processing: parameters, prompt, generated ids and logits in; the processed row and its
 * log-probabilities out, null where a token was removed.
 *
 * The sampler never makes a processed row. But it tells the log-probabilities of as many best tokens
 * as one asks for, and the tokens that are not among all of them were removed. Then it draws, and
 * what it draws must be one of those that are left, with its log-probability. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/sample/sampler.h"
#include "kernels/sampling.h"
#include "kernels/sampling_sweep.h"
#include "tests/replay/replay.h"

enum { N_DRAWS = 100, IDS_MAX = 256 };

/* The file has five decimals of 32-bit arithmetic, in which scores are up to some thousands. */
#define TOLERANCE(x) (2e-5 + 2e-7 * fabs(x))

struct setting {
    uint32_t n_vocab, eos;
    struct sampler_scratch scratch;
    float *logits, *spoilt;     /* [n_vocab]                              */
    struct sample_best *best;   /* [n_vocab]                              */
    double *logprobs, *wanted;  /* [n_vocab] ours, theirs; NAN: removed   */
    struct sampler_lists lists; /* of the case                            */
};

struct one {
    struct sampler sampler;
    uint32_t ids[IDS_MAX], n_ids, n_prompt;
};

static double number(const json_t *o, const char *key, double otherwise)
{
    const json_t *value = json_object_get(o, key);

    return value ? json_number_value(value) : otherwise;
}

static uint32_t take_ids(const json_t *list, uint32_t *ids, uint32_t n_max)
{
    uint32_t n = 0;
    json_t *value;
    size_t i;

    json_array_foreach(list, i, value)
    {
        if (n < n_max)
            ids[n++] = (uint32_t)json_integer_value(value);
    }
    return n;
}

/* False: it asks for something that is not known here. */
static bool take_case(struct setting *s, struct replay *r, struct one *c, const json_t *from)
{
    static const char *const known[] = {"temperature",
                                        "top_k",
                                        "top_p",
                                        "min_p",
                                        "typical_p",
                                        "repetition_penalty",
                                        "presence_penalty",
                                        "frequency_penalty",
                                        "no_repeat_ngram_size",
                                        "min_new_tokens",
                                        "allowed_ids",
                                        "banned_ids",
                                        "logit_bias"};
    const json_t *p = json_object_get(from, "parameters");
    uint32_t allowed[IDS_MAX], banned[IDS_MAX];
    struct sample_bias biases[IDS_MAX];
    struct sampler_wishes w;
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)p, key, value)
    {
        size_t i = 0;

        while (i < sizeof known / sizeof known[0] && strcmp(key, known[i]))
            i++;
        if (i == sizeof known / sizeof known[0]) {
            replay_differs(r, "parameter %s is not known", key);
            return false;
        }
    }
    sampler_wishes_init(&w);
    w.min_p = (float)number(p, "min_p", 0);
    w.typical_p = (float)number(p, "typical_p", 1);
    w.repetition_penalty = (float)number(p, "repetition_penalty", 1);
    w.presence_penalty = (float)number(p, "presence_penalty", 0);
    w.frequency_penalty = (float)number(p, "frequency_penalty", 0);
    w.no_repeat_ngram = (uint32_t)number(p, "no_repeat_ngram_size", 0);
    w.min_new_tokens = (uint32_t)number(p, "min_new_tokens", 0);
    w.n_allowed = take_ids(json_object_get(p, "allowed_ids"), allowed, IDS_MAX);
    w.n_banned = take_ids(json_object_get(p, "banned_ids"), banned, IDS_MAX);
    json_object_foreach(json_object_get(p, "logit_bias"), key, value)
    {
        if (w.n_biases < IDS_MAX)
            biases[w.n_biases++] = (struct sample_bias){(uint32_t)strtoul(key, NULL, 10),
                                                        (float)json_number_value(value)};
    }
    w.allowed = allowed;
    w.banned = banned;
    w.biases = biases;
    w.logprobs = SAMPLE_PROCESSED;
    sampler_init(&c->sampler, (float)number(p, "temperature", 1), (uint32_t)number(p, "top_k", 0),
                 (float)number(p, "top_p", 1), 0, s->n_vocab);
    sampler_wish(&c->sampler, &w, &s->lists, &s->eos, 1);
    c->n_prompt = take_ids(json_object_get(from, "prompt"), c->ids, IDS_MAX);
    c->n_ids = c->n_prompt + take_ids(json_object_get(from, "generated"), c->ids + c->n_prompt,
                                      IDS_MAX - c->n_prompt);
    return true;
}

static void run_sampler(struct setting *s, const struct sample_params *params,
                        struct sample *sample)
{
    memcpy(s->spoilt, s->logits, s->n_vocab * sizeof *s->logits);
    sampling_row(sample, s->spoilt, s->n_vocab, NULL, params, &sampling_sweeps_plain, &s->scratch);
}

/* Every token's log-probability to s->logprobs. */
static void process(struct setting *s, struct replay *r, const struct one *c)
{
    struct sample_params params;
    struct sample sample;

    sampler_params(&c->sampler, c->ids, c->n_ids, c->n_prompt, s->best, &params);
    params.n_best = s->n_vocab;
    run_sampler(s, &params, &sample);
    if (sample.not_finite || sample.nothing_left)
        replay_differs(r, "%s", sample.not_finite ? "not finite" : "nothing is left");
    for (uint32_t i = 0; i < s->n_vocab; i++)
        s->logprobs[i] = (double)NAN;
    for (uint32_t i = 0; i < s->n_vocab; i++) {
        if (s->best[i].id < s->n_vocab)
            s->logprobs[s->best[i].id] = (double)s->best[i].logprob;
    }
}

static void compare(const struct setting *s, struct replay *r, const json_t *from)
{
    const json_t *processed = json_object_get(from, "processed");
    uint32_t best = 0;

    for (uint32_t i = 1; i < s->n_vocab; i++)
        best = isnan(s->wanted[best]) || s->wanted[i] > s->wanted[best] ? i : best;
    for (uint32_t i = 0; i < s->n_vocab; i++) {
        double ours = s->logprobs[i], theirs = s->wanted[i], gap;

        if (isnan(ours) != isnan(theirs))
            replay_differs(r, "token %u is %s, should be %s", i, isnan(ours) ? "removed" : "kept",
                           isnan(ours) ? "kept" : "removed");
        if (isnan(ours) || isnan(theirs))
            continue;
        if (!(fabs(ours - theirs) <= TOLERANCE(theirs)))
            replay_differs(r, "token %u has log-probability %.6f, should have %.6f", i, ours,
                           theirs);
        gap = json_number_value(json_array_get(processed, best)) -
              json_number_value(json_array_get(processed, i));
        if (!(fabs(s->logprobs[best] - ours - gap) <= TOLERANCE(gap)))
            replay_differs(r, "token %u is %.6f behind the best, should be %.6f", i,
                           s->logprobs[best] - ours, gap);
    }
}

static void draw(struct setting *s, struct replay *r, const struct one *c)
{
    for (uint32_t i = 0; i < N_DRAWS; i++) {
        struct sample_params params;
        struct sample sample;

        sampler_params(&c->sampler, c->ids, c->n_ids, c->n_prompt, s->best, &params);
        params.seed = i;
        run_sampler(s, &params, &sample);
        if (!((double)sample.logprob == s->logprobs[sample.token]))
            replay_differs(r, "draw %u is token %u of log-probability %.6f, which has %.6f", i,
                           sample.token, (double)sample.logprob, s->logprobs[sample.token]);
    }
}

static void run_case(struct setting *s, struct replay *r, const json_t *from)
{
    const json_t *logits = json_object_get(from, "logits"),
                 *wanted = json_object_get(from, "logprobs");
    static struct one one;

    if (json_array_size(logits) != s->n_vocab || json_array_size(wanted) != s->n_vocab) {
        replay_differs(r, "its rows are not of %u tokens", s->n_vocab);
        return;
    }
    for (uint32_t i = 0; i < s->n_vocab; i++) {
        const json_t *value = json_array_get(wanted, i);

        s->logits[i] = (float)json_number_value(json_array_get(logits, i));
        s->wanted[i] = json_is_null(value) ? (double)NAN : json_number_value(value);
    }
    if (!take_case(s, r, &one, from))
        return;
    process(s, r, &one);
    compare(s, r, from);
    draw(s, r, &one);
}

static bool matches(const json_t *root)
{
    return json_is_integer(json_object_get(root, "vocabulary")) &&
           json_is_array(json_object_get(root, "cases"));
}

static void run(struct replay *r, const json_t *root)
{
    uint32_t n = (uint32_t)number(root, "vocabulary", 0);
    struct setting *s = calloc(1, sizeof *s);
    void *memory = calloc(1, sampler_scratch_bytes(n) + 64);
    json_t *from;
    size_t i;

    s->n_vocab = n;
    s->eos = (uint32_t)number(root, "eos", 0);
    s->scratch = sampler_scratch_at((char *)memory + 64 - (uintptr_t)memory % 64, n);
    s->logits = calloc(n, sizeof *s->logits);
    s->spoilt = calloc(n, sizeof *s->spoilt);
    s->best = calloc(n, sizeof *s->best);
    s->logprobs = calloc(n, sizeof *s->logprobs);
    s->wanted = calloc(n, sizeof *s->wanted);
    json_array_foreach(json_object_get(root, "cases"), i, from)
    {
        const char *name = json_string_value(json_object_get(from, "name"));

        run_case(s, r, from);
        replay_case(r, name ? name : "a case without a name");
    }
    free(s->logits);
    free(s->spoilt);
    free(s->best);
    free(s->logprobs);
    free(s->wanted);
    free(s);
    free(memory);
}

const struct replay_form replay_processors = {"logits processing", matches, run};
