/* Checks of the sampler: everything that is asked for at random, against the sampler by the book,
 * which must agree in every bit. */
#include <criterion/criterion.h>
#include <float.h>
#include <math.h>
#include <string.h>

#include "kernels/numeric.h"
#include "tests/kernels/ops_side.h"

enum { N_ROWS = 8, N_KINDS = 8, N_IDS_MAX = 60, N_LIST_MAX = 40 };

/* What the params of a row point to. */
struct asked {
    struct sample_program program;
    uint32_t ids[N_IDS_MAX];
    struct sample_bias biases[N_LIST_MAX];
    uint32_t allowed[5000], banned[N_LIST_MAX], ends[2];
    struct sample_best best[2][SAMPLE_BEST_MAX]; /* a side each */
};

static float one_of(uint64_t *random, const float *values, uint32_t n)
{
    return values[ops_random(random) % n];
}
#define ONE_OF(random, ...)                      \
    one_of(random, (const float[]){__VA_ARGS__}, \
           sizeof((const float[]){__VA_ARGS__}) / sizeof(float))

static uint32_t random_ids(uint64_t *random, uint32_t *ids, uint32_t n_vocab)
{
    uint32_t n = ops_random(random) % N_LIST_MAX;

    for (uint32_t i = 0; i < n; i++)
        ids[i] = ops_random(random) % n_vocab;
    return n;
}

/* A third of the programs has none of a kind of wish, a third all. */
static void ask_program(struct asked *a, uint64_t *random, uint32_t n_vocab)
{
    struct sample_program *g = &a->program;
    uint32_t wishes = ops_random(random) % 3 ? ops_random(random) & ops_random(random) : 0xff;

    *g = (struct sample_program){.typical_p = 1,
                                 .repetition_penalty = 1,
                                 .biases = a->biases,
                                 .allowed = a->allowed,
                                 .banned = a->banned,
                                 .ends = a->ends};
    if (wishes & 1)
        g->min_p = ONE_OF(random, 1e-6f, 0.02f, 0.3f, 1);
    if (wishes & 2)
        g->typical_p = ONE_OF(random, 1e-6f, 0.2f, 0.5f, 0.95f);
    if (wishes & 4)
        g->repetition_penalty = ONE_OF(random, 0.5f, 1.3f, 1e-3f, 1000);
    if (wishes & 8) {
        g->presence_penalty = ONE_OF(random, 0, -1.5f, 0.7f, 1000);
        g->frequency_penalty = ONE_OF(random, 0, 0.25f, -0.3f);
    }
    if (wishes & 16)
        g->no_repeat_ngram = 1 + ops_random(random) % 4;
    if (wishes & 32) {
        g->n_banned = random_ids(random, a->banned, n_vocab);
        g->min_new_tokens = ops_random(random) % 200;
        g->n_ends = 2;
        a->ends[0] = ops_random(random) % n_vocab;
        a->ends[1] = n_vocab - 1;
    }
    if (wishes & 64) {
        uint32_t every = 1 + ops_random(random) % 50;

        for (uint32_t id = ops_random(random) % every; id < n_vocab; id += every)
            a->allowed[g->n_allowed++] = id;
    }
    if (wishes & 128) {
        for (uint32_t id = ops_random(random) % 7; id < n_vocab && g->n_biases < N_LIST_MAX;
             id += 1 + ops_random(random) % (1 + n_vocab / N_LIST_MAX))
            a->biases[g->n_biases++] = (struct sample_bias){id, ONE_OF(random, 5, -100, 1.5f)};
    }
}

static void ask(struct asked *a, struct sample_params *params, uint64_t *random, uint32_t n_vocab)
{
    static const uint32_t top_ks[] = {0, 0, 1, 3, 40, 5000};

    *params = (struct sample_params){
        .temperature = ONE_OF(random, 0, 1, 0.7f, 1e-8f, 3, 1e-44f),
        .top_k = top_ks[ops_random(random) % 6],
        .top_p = ONE_OF(random, 1, 0.9f, 0.3f, 1e-9f, 0.99999f),
        .seed = (uint64_t)ops_random(random) << 32 | ops_random(random),
        .child_idx = ops_random(random) % 3,
        .token_idx = ops_random(random) % 300,
        .ids = a->ids,
        .n_ids = ops_random(random) % (N_IDS_MAX + 1),
        .logprobs = ops_random(random) % 3,
    };
    /* Few different ones, so that n-grams come again. */
    for (uint32_t i = 0; i < params->n_ids; i++)
        a->ids[i] = ops_random(random) % (ops_random(random) % 3 ? 5 : n_vocab) % n_vocab;
    params->n_prompt = params->n_ids ? ops_random(random) % params->n_ids : 0;
    if (params->logprobs != SAMPLE_NO_LOGPROBS)
        params->n_best = ops_random(random) % (SAMPLE_BEST_MAX + 1);
    params->is_given = ops_random(random) % 10 == 0;
    params->given_id = ops_random(random) % n_vocab;
    if (ops_random(random) % 4) {
        ask_program(a, random, n_vocab);
        params->program = &a->program;
    }
}

/* Rows with many ties, nearly flat ones, and what a sum, a cut or a division could trip over. */
static void fill_row(float *row, uint32_t n_vocab, uint32_t kind)
{
    for (uint32_t i = 0; i < n_vocab; i++) {
        float x = row[i];

        switch (kind) {
        case 0:
            row[i] = roundf(4 * x) / 4;
            break;
        case 1:
            row[i] = x / 50;
            break;
        case 2: /* nearly all in a few */
            row[i] = i % 50 ? x : 1000 * x;
            break;
        case 3: /* all equal */
            row[i] = x < 0 ? 0.0f : -0.0f;
            break;
        case 4: /* denormal */
            row[i] = numeric_from_bits(numeric_bits(x) & 0x807fffff);
            break;
        case 5:
            row[i] = x < 0 ? -FLT_MAX : FLT_MAX;
            break;
        case 6: /* what is 87 below the largest has no weight at all */
            row[i] = i == n_vocab / 2 ? 0 : -85 - (float)(i % 5);
            break;
        default:
            row[i] = 3 * x;
            break;
        }
    }
}

static void compare(const struct sample *a, const struct sample *b, const struct sample_params *p,
                    const struct asked *asked, uint32_t n_vocab, uint32_t trial)
{
    cr_expect(!a->not_finite == !b->not_finite && !a->nothing_left == !b->nothing_left,
              "trial %u of %u: flags %u %u, should be %u %u", trial, n_vocab, a->not_finite,
              a->nothing_left, b->not_finite, b->nothing_left);
    if (b->not_finite || b->nothing_left)
        return;
    cr_expect(a->token == b->token && a->logprob == b->logprob,
              "trial %u of %u, t %g k %u p %g: %u %.9g, should be %u %.9g", trial, n_vocab,
              (double)p->temperature, p->top_k, (double)p->top_p, a->token, (double)a->logprob,
              b->token, (double)b->logprob);
    for (uint32_t i = 0; i < p->n_best; i++) {
        const struct sample_best *x = &asked->best[0][i], *y = &asked->best[1][i];

        cr_expect(x->id == y->id && x->logprob == y->logprob,
                  "trial %u of %u, t %g k %u p %g: best %u is %u %.9g, should be %u %.9g", trial,
                  n_vocab, (double)p->temperature, p->top_k, (double)p->top_p, i, x->id,
                  (double)x->logprob, y->id, (double)y->logprob);
    }
}

static void trial(struct pair *p, uint32_t n_vocab, uint32_t trial, bool with_programs)
{
    static struct asked asked[N_ROWS];
    struct both logits = pair_rows(p, N_ROWS, n_vocab, INPUT_NORMAL);
    struct sample_params params[N_ROWS];
    struct head_row rows[N_ROWS];
    struct sample samples[2][N_ROWS];

    for (uint32_t r = 0; r < N_ROWS; r++) {
        float *row = logits.data[0] + r * pair_stride(n_vocab);

        fill_row(row, n_vocab, (r + trial) % N_KINDS);
        if (trial % 10 == 9 && r == 4)
            row[n_vocab / 2] = trial % 20 == 9 ? NAN : -INFINITY;
        memcpy(logits.data[1] + r * pair_stride(n_vocab), row, n_vocab * sizeof *row);
        rows[r] = (struct head_row){r % n_vocab, row[0], r == 2};
        ask(&asked[r], &params[r], &p->random, n_vocab);
        if (!with_programs)
            params[r].program = NULL;
    }
    for (int i = 0; i < 2; i++) {
        struct tensor t = pair_tensor(&logits, i, N_ROWS, n_vocab);

        for (uint32_t r = 0; r < N_ROWS; r++)
            params[r].best = asked[r].best[i];
        p->side[i].ops->sample(p->side[i].stream, samples[i], &t, rows, params, N_ROWS);
    }
    for (uint32_t r = 0; r < N_ROWS; r++)
        compare(&samples[0][r], &samples[1][r], &params[r], &asked[r], n_vocab, trial);
}

void ops_check_sample(const struct ops_subject *subject)
{
    static const uint32_t vocabs[] = {1, 3, 17, 31, 33, 65, 127, 129, 256, 257, 1000, 5000};
    struct pair p;

    pair_open(&p, subject);
    for (uint32_t i = 0; i < 132; i++)
        trial(&p, vocabs[i % 12], i, false);
    pair_close(&p);
}

void ops_check_sample_programs(const struct ops_subject *subject)
{
    static const uint32_t vocabs[] = {1, 5, 31, 64, 129, 300, 5000};
    struct pair p;

    pair_open(&p, subject);
    for (uint32_t i = 0; i < 301; i++)
        trial(&p, vocabs[i % 7], i, true);
    pair_close(&p);
}
