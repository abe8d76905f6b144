/* The sampler by the book: every token of the vocabulary is looked at for every question, what must
 * be ranked is sorted, and cut, and sorted back. */
#include "tests/kernels/oracle.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/numeric.h"
#include "kernels/philox.h"

struct candidate {
    float logit, score, weight; /* score: less the largest, from the weights on */
    float rank;                 /* ascending */
    uint32_t id;
};

struct candidates {
    struct candidate *list;
    uint32_t n;
    float max; /* score */
};

static int by_rank(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;

    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

static int by_id(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;

    return x->id < y->id ? -1 : x->id > y->id;
}

static uint64_t mass_of(const struct candidate *c)
{
    return (uint64_t)((double)c->weight * 0x1p44);
}

static uint64_t goal_of(const struct candidates *c, float share)
{
    uint64_t sum = 0, goal;

    for (uint32_t i = 0; i < c->n; i++)
        sum += mass_of(&c->list[i]);
    goal = (uint64_t)ceil((double)sum * (double)share);
    return goal ? goal : 1;
}

/* The tree over 16 lanes of one block of 256 ids, of the candidates (sorted by id) from *atp on. */
static double block_sum(const struct candidates *c, bool times_score, uint32_t *atp, uint32_t block)
{
    double lane[16] = {0};

    for (; *atp < c->n && c->list[*atp].id / 256 == block; ++*atp) {
        const struct candidate *k = &c->list[*atp];

        if (k->weight > 0)
            lane[k->id % 16] += (double)k->weight * (times_score ? (double)k->score : 1);
    }
    return numeric_tree_double(lane);
}

static double sum(const struct candidates *c, bool times_score)
{
    double total = 0;
    uint32_t at = 0;

    for (uint32_t block = 0; at < c->n; block++)
        total += block_sum(c, times_score, &at, block);
    return total;
}

/* ---- before temperature ---------------------------------------------------------------------- */

static uint32_t count(const uint32_t *ids, uint32_t n, uint32_t id)
{
    uint32_t found = 0;

    for (uint32_t i = 0; i < n; i++)
        found += ids[i] == id;
    return found;
}

static bool makes_ngram_again(const struct sample_params *p, uint32_t id)
{
    uint32_t n = p->program->no_repeat_ngram;

    for (uint32_t i = 0; n && i + n <= p->n_ids; i++) {
        bool same = p->ids[i + n - 1] == id;

        for (uint32_t k = 0; k + 1 < n; k++)
            same &= p->ids[i + k] == p->ids[p->n_ids - (n - 1) + k];
        if (same)
            return true;
    }
    return false;
}

static bool is_removed(const struct sample_params *p, uint32_t id)
{
    const struct sample_program *g = p->program;

    return (g->n_allowed && !count(g->allowed, g->n_allowed, id)) ||
           count(g->banned, g->n_banned, id) || makes_ngram_again(p, id) ||
           (p->token_idx < g->min_new_tokens && count(g->ends, g->n_ends, id));
}

static float edited(float x, const struct sample_params *p, uint32_t id)
{
    const struct sample_program *g = p->program;
    uint32_t n_generated = count(p->ids + p->n_prompt, p->n_ids - p->n_prompt, id);

    for (uint32_t i = 0; i < g->n_biases; i++) {
        if (g->biases[i].id == id)
            x = fmaxf(-FLT_MAX, fminf(FLT_MAX, x + g->biases[i].bias));
    }
    if (count(p->ids, p->n_ids, id))
        x = x < 0 ? x * g->repetition_penalty : x / g->repetition_penalty;
    x = fmaxf(-FLT_MAX, fminf(FLT_MAX, x));
    if (n_generated)
        x = x - g->frequency_penalty * (float)n_generated - g->presence_penalty;
    return fmaxf(-FLT_MAX, fminf(FLT_MAX, x));
}

/* ---- from scores on -------------------------------------------------------------------------- */

static void cut(struct candidates *c, const struct sample_params *p)
{
    float min_p = p->program ? p->program->min_p : 0;
    float typical_p = p->program ? p->program->typical_p : 1;
    uint64_t goal, before = 0;
    uint32_t n = 0;

    if (p->top_k && p->top_k < c->n) {
        for (uint32_t i = 0; i < c->n; i++)
            c->list[i].rank = -c->list[i].score;
        qsort(c->list, c->n, sizeof *c->list, by_rank);
        for (n = p->top_k; n < c->n && c->list[n].rank == c->list[p->top_k - 1].rank;)
            n++;
        c->n = n;
    }
    for (uint32_t i = 0; i < c->n; i++) {
        c->list[i].score -= c->max;
        c->list[i].weight = numeric_exp(c->list[i].score);
        c->list[i].rank = -c->list[i].score;
    }
    if (p->top_p < 1) {
        qsort(c->list, c->n, sizeof *c->list, by_rank);
        goal = goal_of(c, p->top_p);
        for (n = 0; n < c->n && before < goal; n++)
            before += mass_of(&c->list[n]);
        c->n = n;
    }
    n = 0;
    for (uint32_t i = 0; i < c->n; i++) {
        if (c->list[i].weight >= min_p)
            c->list[n++] = c->list[i];
    }
    c->n = n;
    if (typical_p < 1) {
        float mean;

        qsort(c->list, c->n, sizeof *c->list, by_id);
        mean = (float)(sum(c, true) / sum(c, false));
        for (uint32_t i = 0; i < c->n; i++)
            c->list[i].rank = fabsf(c->list[i].score - mean);
        qsort(c->list, c->n, sizeof *c->list, by_rank);
        goal = goal_of(c, typical_p);
        for (n = 0, before = 0; before < goal; n++)
            before += mass_of(&c->list[n]);
        while (n < c->n && c->list[n].rank == c->list[n - 1].rank)
            n++;
        c->n = n;
    }
    qsort(c->list, c->n, sizeof *c->list, by_id);
}

static uint32_t pick(const struct candidates *c, double target)
{
    double running = 0;
    uint32_t at = 0, token = 0;

    for (uint32_t block = 0;; block++) {
        uint32_t first = at;
        double inside = 0, all = block_sum(c, false, &at, block);

        if (running + all <= target) {
            running += all;
            continue;
        }
        for (uint32_t i = first; i < at && inside <= target - running; i++) {
            inside += (double)c->list[i].weight;
            if (c->list[i].weight > 0)
                token = c->list[i].id;
        }
        return token;
    }
}

static void tell(struct sample *out, const struct candidates *c, const struct sample_params *p)
{
    struct candidate *ranked = malloc((c->n ? c->n : 1) * sizeof *ranked);
    double log_total = log(sum(c, false));

    memcpy(ranked, c->list, c->n * sizeof *ranked);
    for (uint32_t i = 0; i < c->n; i++) {
        if (ranked[i].id == out->token)
            out->logprob = (float)((double)ranked[i].score - log_total);
        ranked[i].rank = -ranked[i].score;
    }
    qsort(ranked, c->n, sizeof *ranked, by_rank);
    for (uint32_t i = 0; i < p->n_best; i++) {
        p->best[i] = (struct sample_best){SAMPLE_NO_ID, -INFINITY};
        if (i < c->n)
            p->best[i] =
                (struct sample_best){ranked[i].id, (float)((double)ranked[i].score - log_total)};
    }
    free(ranked);
}

/* One token alone is left, of probability 1. */
static void tell_only(const struct sample_params *p, uint32_t id)
{
    for (uint32_t i = 0; i < p->n_best; i++)
        p->best[i] =
            i ? (struct sample_best){SAMPLE_NO_ID, -INFINITY} : (struct sample_best){id, 0};
}

/* The largest score, its lowest id, and the scores, at this temperature. */
static uint32_t rank_all(struct candidates *c, float temperature)
{
    uint32_t best = 0;

    for (uint32_t i = 0; i < c->n; i++) {
        c->list[i].score = c->list[i].logit / temperature + 0.0f;
        if (c->list[i].logit > c->list[best].logit)
            best = i;
    }
    c->max = c->list[best].score;
    return c->list[best].id;
}

static const struct sample_params uncut = {.top_p = 1};

static void draw(struct sample *out, struct candidates *c, const struct sample_params *p)
{
    bool greedy = p->temperature == 0;

    out->token = rank_all(c, greedy ? 1 : p->temperature);
    if (!greedy && !isfinite(c->max)) {
        if (p->logprobs == SAMPLE_PROCESSED)
            tell_only(p, out->token);
        return;
    }
    cut(c, greedy ? &uncut : p);
    if (!greedy)
        out->token =
            pick(c, sum(c, false) * philox_uniform(p->seed, p->child_idx, p->token_idx, 0));
    if (p->logprobs == SAMPLE_PROCESSED)
        tell(out, c, p);
}

static void sample_row(struct sample *out, const float *logits, uint32_t n,
                       const struct sample_params *p)
{
    struct candidates raw = {calloc(n, sizeof *raw.list), n, 0};
    struct candidates c = {calloc(n, sizeof *c.list), 0, 0};

    *out = (struct sample){0};
    for (uint32_t i = 0; i < n; i++) {
        out->not_finite |= !isfinite(logits[i]);
        raw.list[i] = (struct candidate){.logit = logits[i], .id = i};
        if (p->program && is_removed(p, i))
            continue;
        c.list[c.n++] =
            (struct candidate){.logit = p->program ? edited(logits[i], p, i) : logits[i], .id = i};
    }
    if (out->not_finite)
        goto out;
    if (p->is_given) {
        out->token = p->given_id;
        if (p->logprobs == SAMPLE_PROCESSED)
            tell_only(p, p->given_id);
    } else if (c.n == 0) {
        out->nothing_left = 1;
    } else {
        draw(out, &c, p);
    }
    if (p->logprobs == SAMPLE_RAW && (p->is_given || c.n)) {
        rank_all(&raw, 1);
        cut(&raw, &uncut);
        tell(out, &raw, p);
    }
out:
    free(raw.list);
    free(c.list);
}

int oracle_sample(struct stream *s, struct sample *samples, struct tensor *logits,
                  const struct head_row *rows, const struct sample_params *params,
                  uint32_t n_outputs)
{
    (void)s;
    for (uint32_t i = 0; i < n_outputs; i++) {
        if (sample_reads_logits(&params[i]))
            sample_row(&samples[i],
                       (const float *)((const char *)logits->data + i * logits->stride_bytes),
                       logits->n_cols, &params[i]);
        else
            samples[i] =
                (struct sample){.token = params[i].is_given ? params[i].given_id : rows[i].argmax,
                                .not_finite = rows[i].not_finite};
    }
    return 0;
}
