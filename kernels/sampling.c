/* A row is swept for its maxima first: of each 16th part of each block of 256 ids. They give the
 * largest logit, and a bound for the k-th largest: if k of the parts have a maximum of `least` or
 * more, so have k tokens. A second sweep then lists the ids that reach the bound, most blocks being
 * passed over, and the rest is work on that list. top_p and min_p without top_k have bounds of their
 * own; typical_p alone has none, and lists the row.
 *
 * Bounds are on logits and a little lower than need be, because a division may make two logits one
 * score; the cuts on the list are exact. */
#include "kernels/sampling.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <string.h>

#include "kernels/numeric.h"
#include "kernels/philox.h"
#include "kernels/sampling_cut.h"
#include "kernels/sampling_edit.h"
#include "kernels/sampling_sweep.h"

/* Below this many groups for each of k tokens the bound is found among larger groups: fewer
 * maxima. */
enum { FOLD = 4, FOLD_FROM = 16 };

/* A row that is being sampled. */
struct row {
    const float *logits; /* edited; removed ones are -INFINITY */
    uint32_t n;
    float largest; /* logit */
    uint32_t best; /* its lowest id */
    const struct sample_params *params;
    const struct sampling_sweeps *sweeps;
    const struct sampler_scratch *scratch; /* whose maxima are this row's */
};

/* What probabilities are relative to: exp(score - max), which sum to exp(log_total). */
struct distribution {
    float temperature, max;
    double log_total;
};

/* ---- scratch --------------------------------------------------------------------------------- */

static size_t n_groups(uint32_t n_vocab)
{
    return (size_t)sampling_n_blocks(n_vocab) * SAMPLING_LANES;
}

static size_t part_bytes(size_t n, size_t bytes)
{
    return (n * bytes + 63) / 64 * 64;
}

size_t sampler_scratch_bytes(uint32_t n_vocab)
{
    return 7 * part_bytes(n_vocab, 4) + part_bytes(n_groups(n_vocab), sizeof(float)) +
           part_bytes(sampling_n_blocks(n_vocab), sizeof(double));
}

static void *carve(uint8_t **atp, size_t bytes)
{
    void *part = *atp;

    *atp += bytes;
    return part;
}

struct sampler_scratch sampler_scratch_at(void *memory, uint32_t n_vocab)
{
    size_t bytes = part_bytes(n_vocab, 4);
    uint8_t *at = memory;

    return (struct sampler_scratch){
        .row = carve(&at, bytes),
        .counts = carve(&at, bytes),
        .ids = carve(&at, bytes),
        .keys = carve(&at, bytes),
        .order = carve(&at, bytes),
        .scores = carve(&at, bytes),
        .weights = carve(&at, bytes),
        .maxima = carve(&at, part_bytes(n_groups(n_vocab), sizeof(float))),
        .sums = carve(&at, part_bytes(sampling_n_blocks(n_vocab), sizeof(double))),
    };
}

/* ---- lists of candidates --------------------------------------------------------------------- */

/* Sweeps a row for its maxima; false: not finite. */
static bool row_sweep(struct row *r)
{
    const float *maxima = r->scratch->maxima;
    bool finite = r->sweeps->maxima(r->logits, r->n, r->scratch->maxima);
    uint32_t group = 0;

    r->largest = -INFINITY;
    for (uint32_t i = 0; i < n_groups(r->n); i++) {
        if (maxima[i] > r->largest) {
            r->largest = maxima[i];
            group = i;
        }
    }
    r->best = group / SAMPLING_LANES * SAMPLING_BLOCK;
    while (r->logits[r->best] != r->largest && r->best < r->n - 1)
        r->best++;
    return finite;
}

static struct sampling_list list_of(const struct row *r, uint32_t n)
{
    return (struct sampling_list){.n = n,
                                  .ids = r->scratch->ids,
                                  .scores = r->scratch->scores,
                                  .weights = r->scratch->weights,
                                  .keys = r->scratch->keys,
                                  .order = r->scratch->order};
}

/* No token that is left out has a higher score than the k best of those with least or more. */
static float bound_of_top_k(const struct row *r, float temperature, uint32_t k)
{
    const struct sampler_scratch *s = r->scratch;
    uint32_t n = (uint32_t)n_groups(r->n);
    const float *maxima = s->maxima;
    float kth;

    if (k > n / 2)
        return -FLT_MAX;
    if (k <= n / FOLD / FOLD_FROM) {
        n /= FOLD; /* what is left over at the end is not needed: it only lowers the bound */
        for (uint32_t i = 0; i < n; i++) {
            float a = maxima[i], b = maxima[i + n], c = maxima[i + 2 * n], d = maxima[i + 3 * n];

            a = a > b ? a : b;
            c = c > d ? c : d;
            s->scores[i] = a > c ? a : c;
        }
        maxima = s->scores;
    }
    kth = sampling_kth_largest(maxima, n, k, s->keys, s->order);
    return kth - fabsf(kth) * 0x1p-21f - temperature * 0x1p-125f;
}

/* No token that is left out has a weight above `weight`, or half of it where rounding is coarse. */
static float bound_of_weight(const struct distribution *d, double weight)
{
    double max = (double)d->max;

    return (float)((double)d->temperature * (max + log(weight) - fabs(max) * 0x1p-20));
}

static void collect(const struct row *r, struct sampling_list *l, float least)
{
    const struct sampler_scratch *s = r->scratch;

    l->n =
        r->sweeps->collect(r->logits, r->n, s->maxima, least > -FLT_MAX ? least : -FLT_MAX, l->ids);
}

/* Adding zero turns a negative zero into the positive one: they are equal scores. */
static void score(const struct row *r, struct sampling_list *l, float temperature)
{
    for (uint32_t i = 0; i < l->n; i++)
        l->scores[i] = r->logits[l->ids[i]] / temperature + 0.0f;
}

static void weigh(const struct row *r, struct sampling_list *l, float max)
{
    for (uint32_t i = 0; i < l->n; i++)
        l->scores[i] -= max;
    r->sweeps->weights(l->scores, l->n, l->weights);
}

/* ---- log-probabilities ----------------------------------------------------------------------- */

static float logprob_of(const struct distribution *d, float score)
{
    return (float)((double)(score - d->max) - d->log_total);
}

static bool wants_processed(const struct row *r)
{
    return r->params->logprobs == SAMPLE_PROCESSED;
}

/* The best n_best of a list, whose scores are less the largest. */
static void tell_best(const struct sample_params *params, const struct distribution *d,
                      const struct sampling_list *l)
{
    struct sample_best *best = params->best;
    uint32_t n = 0;

    /* Scores stand in the place of log-probabilities until all are there. */

    for (uint32_t i = 0; i < l->n; i++) {
        uint32_t at;

        if (n == params->n_best && (!n || l->scores[i] <= best[n - 1].logprob))
            continue;
        at = n < params->n_best ? n++ : n - 1;
        for (; at > 0 && best[at - 1].logprob < l->scores[i]; at--)
            best[at] = best[at - 1];
        best[at] = (struct sample_best){l->ids[i], l->scores[i]};
    }
    for (uint32_t i = 0; i < n; i++)
        best[i].logprob = (float)((double)best[i].logprob - d->log_total);
    for (uint32_t i = n; i < params->n_best; i++)
        best[i] = (struct sample_best){SAMPLE_NO_ID, -INFINITY};
}

static void tell_only(const struct sample_params *params, uint32_t id)
{
    for (uint32_t i = 0; i < params->n_best; i++)
        params->best[i] = (struct sample_best){SAMPLE_NO_ID, -INFINITY};
    if (params->n_best)
        params->best[0] = (struct sample_best){id, 0};
}

/* Sums the weights of a whole row; scratch->sums are its blocks' then. */
static double total_of_row(const struct row *r, const struct distribution *d)
{
    double total = 0;

    r->sweeps->sums(r->logits, r->n, d->temperature, d->max, r->scratch->sums);
    for (uint32_t b = 0; b < sampling_n_blocks(r->n); b++)
        total += r->scratch->sums[b];
    return total;
}

/* The best of a whole row. */
static void tell_best_of_row(const struct row *r, const struct distribution *d)
{
    struct sampling_list l = list_of(r, 0);
    float least;

    if (!r->params->n_best)
        return;
    /* Scores that differ by a rounding of the largest are equal once it is taken away. */
    least = bound_of_top_k(r, d->temperature, r->params->n_best) - fabsf(r->largest) * 0x1p-21f;
    collect(r, &l, least);
    score(r, &l, d->temperature);
    for (uint32_t i = 0; i < l.n; i++)
        l.scores[i] -= d->max;
    tell_best(r->params, d, &l);
}

/* The row's own distribution at this temperature, and its best if they are asked for. */
static struct distribution tell_row(const struct row *r, float temperature)
{
    struct distribution d = {.temperature = temperature, .max = r->largest / temperature + 0.0f};

    d.log_total = log(total_of_row(r, &d));
    tell_best_of_row(r, &d);
    return d;
}

/* ---- one token ------------------------------------------------------------------------------- */

static double uniform(const struct sample_params *p)
{
    return philox_uniform(p->seed, p->child_idx, p->token_idx, 0);
}

/* The whole row is kept: a draw needs no more than its blocks' sums and one block. */
static void draw_of_row(struct sample *out, const struct row *r, struct distribution *d)
{
    struct sampling_list l = list_of(r, 0);
    double total = total_of_row(r, d), target = uniform(r->params) * total, before = 0;
    uint32_t block = 0;

    while (before + r->scratch->sums[block] <= target) {
        before += r->scratch->sums[block++];
        assert(block < sampling_n_blocks(r->n));
    }
    for (uint32_t i = block * SAMPLING_BLOCK; i < r->n && l.n < SAMPLING_BLOCK; i++)
        l.ids[l.n++] = i;
    score(r, &l, d->temperature);
    weigh(r, &l, d->max);
    out->token = l.ids[sampling_list_pick_in(&l, 0, l.n, target - before)];
    if (!wants_processed(r))
        return;
    d->log_total = log(total);
    out->logprob = logprob_of(d, r->logits[out->token] / d->temperature + 0.0f);
    tell_best_of_row(r, d);
}

static bool has_cuts(const struct row *r)
{
    const struct sample_params *p = r->params;

    return (p->top_k && p->top_k < r->n) || p->top_p < 1 ||
           (p->program && (p->program->min_p > 0 || p->program->typical_p < 1));
}

/* Lists all that the cuts may keep. Returns the mass of the row where top_p needs it, else 0. */
static uint64_t list_candidates(const struct row *r, const struct distribution *d,
                                struct sampling_list *l)
{
    const struct sample_params *p = r->params;
    double weight = p->program ? (double)p->program->min_p / 2 : 0;
    uint64_t mass = 0;

    if (p->top_k && p->top_k < r->n) {
        collect(r, l, bound_of_top_k(r, d->temperature, p->top_k));
        return 0;
    }
    if (p->top_p < 1) {
        /* All of less weight than this make up half of what top_p cuts, at most. */
        double least = (1 - (double)p->top_p) / 2 / r->n;

        mass = r->sweeps->mass(r->logits, r->n, d->temperature, d->max);
        least *= (double)mass * 0x1p-44;
        weight = least > weight ? least : weight;
    }
    collect(r, l, weight > 0 ? bound_of_weight(d, weight) : -FLT_MAX);
    return mass;
}

static void draw_of_list(struct sample *out, const struct row *r, struct distribution *d,
                         struct sampling_list *l, uint64_t all_mass)
{
    const struct sample_params *p = r->params;
    double total;
    uint32_t at;

    score(r, l, d->temperature);
    if (p->top_k)
        sampling_cut_top_k(l, p->top_k);
    weigh(r, l, d->max);
    if (p->top_p < 1)
        sampling_cut_top_p(l, p->top_p, all_mass);
    if (p->program && p->program->min_p > 0)
        sampling_cut_min_p(l, p->program->min_p);
    if (p->program && p->program->typical_p < 1)
        sampling_cut_typical(l, p->program->typical_p);
    total = sampling_list_sum(l, NULL);
    at = sampling_list_pick(l, uniform(p) * total);
    out->token = l->ids[at];
    if (!wants_processed(r))
        return;
    d->log_total = log(total);
    out->logprob = (float)((double)l->scores[at] - d->log_total);
    tell_best(p, d, l);
}

/* The best token, whether greedy or because the temperature is next to nothing. */
static void take_best(struct sample *out, const struct row *r, struct sampling_list *allowed)
{
    struct distribution d = {.temperature = 1, .max = r->largest + 0.0f};

    out->token = r->best;
    if (!wants_processed(r))
        return;
    if (r->params->temperature > 0) {
        tell_only(r->params, r->best);
    } else if (allowed) {
        score(r, allowed, 1);
        weigh(r, allowed, d.max);
        d.log_total = log(sampling_list_sum(allowed, NULL));
        tell_best(r->params, &d, allowed);
        out->logprob = logprob_of(&d, d.max);
    } else {
        d = tell_row(r, 1);
        out->logprob = logprob_of(&d, d.max);
    }
}

/* allowed: the ids that were not removed, if a list says so; NULL: the row's. */
static void choose(struct sample *out, const struct row *r, struct sampling_list *allowed)
{
    const struct sample_params *p = r->params;
    struct distribution d = {.temperature = p->temperature};
    struct sampling_list l = list_of(r, 0);
    uint64_t mass = 0;

    if (r->largest == -INFINITY) {
        out->nothing_left = 1;
        return;
    }
    d.max = r->largest / p->temperature + 0.0f;
    if (p->temperature == 0 || !isfinite(d.max)) {
        take_best(out, r, allowed);
        return;
    }
    if (!allowed && !has_cuts(r)) {
        draw_of_row(out, r, &d);
        return;
    }
    if (!allowed)
        mass = list_candidates(r, &d, &l);
    draw_of_list(out, r, &d, allowed ? allowed : &l, mass);
}

/* Edits the row, and sweeps it again unless only a list of its ids is left. Returns that list, or
 * NULL. `logits` of a row whose raw log-probabilities are asked for stay as they are. */
static struct sampling_list *edit(struct row *r, float *logits, struct sampling_list *list)
{
    const struct sample_program *p = r->params->program;

    if (r->params->logprobs == SAMPLE_RAW)
        logits = memcpy(r->scratch->row, logits, r->n * sizeof *logits);
    sampling_edit(logits, r->n, r->params, r->scratch->counts);
    r->logits = logits;
    if (!p->n_allowed) {
        row_sweep(r);
        return NULL;
    }
    r->largest = -INFINITY;
    for (uint32_t i = 0; i < p->n_allowed; i++) {
        uint32_t id = p->allowed[i];

        if (id >= r->n || logits[id] == -INFINITY)
            continue;
        list->ids[list->n++] = id;
        if (logits[id] > r->largest) {
            r->largest = logits[id];
            r->best = id;
        }
    }
    return list;
}

static void sample_logits(struct sample *out, struct row *r, float *logits)
{
    const struct sample_params *params = r->params;
    struct sampling_list list = list_of(r, 0), *allowed = NULL;
    struct distribution raw = {0};

    if (!row_sweep(r)) {
        out->not_finite = 1;
        return;
    }
    if (params->logprobs == SAMPLE_RAW)
        raw = tell_row(r, 1);
    if (params->is_given) {
        out->token = params->given_id < r->n ? params->given_id : r->n - 1;
        if (wants_processed(r))
            tell_only(params, out->token);
    } else {
        if (params->program)
            allowed = edit(r, logits, &list);
        choose(out, r, allowed);
    }
    if (params->logprobs == SAMPLE_RAW && !out->nothing_left)
        out->logprob = logprob_of(&raw, logits[out->token] + 0.0f);
}

void sampling_row(struct sample *out, float *logits, uint32_t n_vocab, const struct head_row *head,
                  const struct sample_params *params, const struct sampling_sweeps *sweeps,
                  const struct sampler_scratch *scratch)
{
    struct row r = {
        .logits = logits, .n = n_vocab, .params = params, .sweeps = sweeps, .scratch = scratch};

    assert(n_vocab >= 1 && n_vocab <= KERNELS_VOCAB_MAX);
    *out = (struct sample){0};
    if (sample_reads_logits(params)) {
        sample_logits(out, &r, logits);
    } else {
        out->token = params->is_given ? params->given_id : head->argmax;
        out->not_finite = head->not_finite;
    }
}
