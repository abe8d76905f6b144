/* A row is swept for its maxima first: of each 16th part of each block of 256 ids. They give the
 * largest logit, and a bound for the k-th largest: if k of the parts have a maximum of `least` or
 * more, so have k tokens. A second sweep then lists the ids that reach the bound, most blocks being
 * passed over, and the rest is work on that list.
 *
 * min_p has a bound of its own. Where top_p or typical_p ends is guessed from maxima and a sample;
 * the list shows whether it was guessed well, else there is a second one.
 *
 * Bounds are on logits and a little lower than need be, because a division may make two logits one
 * score; the cuts on the list are exact. */
#include "kernels/sampling_candidates.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* Below this many groups for each of k tokens the bound is found among larger groups: fewer
 * maxima. */
enum { FOLD = 4, FOLD_FROM = 16 };
/* A shorter row is listed sooner than a guess is made where to end, from one of so many tokens.
 * Buckets of a guess, and how many there are to a distance of 1. */
enum { GUESS_FROM = 2048, GUESS_OF = 64, GUESS_BUCKETS = 1024, GUESS_A_UNIT = 32 };

bool candidates_sweep(struct sampled_row *r)
{
    const float *maxima = r->scratch->maxima;
    bool finite = r->sweeps->maxima(r->logits, r->n, r->scratch->maxima);
    uint32_t group = 0;

    r->largest = -INFINITY;
    for (uint32_t i = 0; i < sampling_n_groups(r->n); i++) {
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

struct sampling_list candidates_none(const struct sampled_row *r)
{
    return (struct sampling_list){.ids = r->scratch->ids,
                                  .scores = r->scratch->scores,
                                  .weights = r->scratch->weights,
                                  .keys = r->scratch->keys,
                                  .order = r->scratch->order,
                                  .sweeps = r->sweeps};
}

/* The largest of each FOLD maxima. Returns how many. What is left over at the end is not there. */
static uint32_t fold_maxima(const struct sampled_row *r, float *folded)
{
    uint32_t n = sampling_n_groups(r->n) / FOLD;
    const float *maxima = r->scratch->maxima;

    for (uint32_t i = 0; i < n; i++) {
        float a = maxima[i], b = maxima[i + n], c = maxima[i + 2 * n], d = maxima[i + 3 * n];

        a = a > b ? a : b;
        c = c > d ? c : d;
        folded[i] = a > c ? a : c;
    }
    return n;
}

/* No token that is left out has a higher score than the k best of those with least or more. */
static float bound_of_top_k(const struct sampled_row *r, float temperature, uint32_t k)
{
    const struct sampler_scratch *s = r->scratch;
    uint32_t n = sampling_n_groups(r->n);
    const float *maxima = s->maxima;
    float kth;

    if (k > n / 2)
        return -FLT_MAX;
    if (k <= n / FOLD / FOLD_FROM) {
        n = fold_maxima(r, s->scores); /* fewer only lower the bound */
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

/* Lists those of at least the logit `least`; their logits are in the place of scores. */
static void collect(const struct sampled_row *r, struct sampling_list *l, float least)
{
    l->n = r->sweeps->collect(r->logits, r->n, r->scratch->maxima,
                              least > -FLT_MAX ? least : -FLT_MAX, l->ids, l->scores);
}

static void look_up(const struct sampled_row *r, struct sampling_list *l)
{
    for (uint32_t i = 0; i < l->n; i++)
        l->scores[i] = r->logits[l->ids[i]];
}

/* Logits become scores, less `max`. */
static void score(const struct sampled_row *r, struct sampling_list *l, float temperature,
                  float max)
{
    r->sweeps->scores(l->scores, l->n, temperature, max, l->scores);
}

static void weigh(const struct sampled_row *r, struct sampling_list *l)
{
    r->sweeps->weights(l->scores, l->n, l->weights);
}

void candidates_weigh(const struct sampled_row *r, const struct distribution *d,
                      struct sampling_list *l)
{
    look_up(r, l);
    score(r, l, d->temperature, d->max);
    weigh(r, l);
}

/* Scores that differ by a rounding of the largest are equal once it is taken away. */
void candidates_best(const struct sampled_row *r, const struct distribution *d, uint32_t k,
                     struct sampling_list *l)
{
    collect(r, l, bound_of_top_k(r, d->temperature, k) - fabsf(r->largest) * 0x1p-21f);
    score(r, l, d->temperature, d->max);
}

/* ---- cuts ------------------------------------------------------------------------------------ */

/* What top_k keeps of a list of logits, which becomes one with weights. Scores may be equal before
 * the largest is taken away and not after. */
static void cut_top_k(const struct sampled_row *r, const struct distribution *d,
                      struct sampling_list *l)
{
    score(r, l, d->temperature, 0);
    if (r->params->top_k)
        sampling_cut_top_k(l, r->params->top_k);
    for (uint32_t i = 0; i < l->n; i++)
        l->scores[i] -= d->max;
    weigh(r, l);
}

/* How far from the mean a share's tokens are at most, as a good guess: by the largest maxima, for the
 * best tokens have nearly all a part of a block to themselves, and one of GUESS_OF tokens. These tell
 * well what is cut, which is many tokens of little weight; a quarter of it is looked through. */
static float guess_distance(const struct sampled_row *r, const struct distribution *d,
                            const struct sampling_reach *reach, uint64_t mass)
{
    struct sampling_list l = candidates_none(r);
    float amounts[GUESS_BUCKETS] = {0}, rest;
    uint32_t bucket = GUESS_BUCKETS, n = fold_maxima(r, l.scores);

    l.n = n;
    for (uint32_t i = 0; i + GUESS_OF * SAMPLING_LANES <= r->n; i += GUESS_OF * SAMPLING_LANES) {
        uint32_t vector = i / SAMPLING_BLOCK * 7 % GUESS_OF; /* others of each block */

        memcpy(l.scores + l.n, r->logits + i + vector * SAMPLING_LANES,
               SAMPLING_LANES * sizeof *l.scores);
        l.n += SAMPLING_LANES;
    }
    score(r, &l, d->temperature, d->max);
    weigh(r, &l);
    for (uint32_t i = 0; i < l.n; i++) {
        float at = fabsf(l.scores[i] - reach->mean) * GUESS_A_UNIT;

        amounts[at < GUESS_BUCKETS - 1 ? (int)at : GUESS_BUCKETS - 1] +=
            i < n ? l.weights[i] : GUESS_OF * l.weights[i];
    }
    rest = (float)(mass - reach->goal) * (0.75f * 0x1p-44f);
    while (bucket > 1 && (rest -= amounts[bucket - 1]) > 0)
        bucket--;
    return (float)bucket / GUESS_A_UNIT;
}

/* No token that is left out is within so much of the mean. */
static float bound_of_distance(const struct distribution *d, float mean, float distance)
{
    double low = (double)mean - (double)distance;
    double slack = (fabs(low) + fabs((double)d->max)) * 0x1p-20 + 0x1p-125;

    return (float)((double)d->temperature * ((double)d->max + low - slack));
}

static void list_from(const struct sampled_row *r, const struct distribution *d,
                      struct sampling_list *l, float least)
{
    collect(r, l, least);
    score(r, l, d->temperature, d->max);
    weigh(r, l);
}

/* Lists all that a cut may keep, of those of at least the logit `least`, and finds its reach. A guess
 * was right if on the list that is within the distance that was guessed: so far all are on it. */
static void list_share(const struct sampled_row *r, const struct distribution *d,
                       struct sampling_list *l, struct sampling_reach *reach, uint64_t mass,
                       float least)
{
    if (r->n >= GUESS_FROM && reach->goal < mass) {
        float distance = guess_distance(r, d, reach, mass);
        float bound = bound_of_distance(d, reach->mean, distance);

        if (bound > least) {
            list_from(r, d, l, bound);
            sampling_reach(l, reach);
            if (reach->distance <= distance)
                return;
        }
    }
    list_from(r, d, l, least);
    sampling_reach(l, reach);
}

/* Lists all that the cuts may keep. The first of the cuts by shares had to find its reach for that,
 * which is *reach then; else its goal is 0. */
static void list_candidates(const struct sampled_row *r, const struct distribution *d,
                            struct sampling_list *l, struct sampling_reach *reach)
{
    const struct sample_params *p = r->params;
    float min_p = p->program ? p->program->min_p : 0;
    float least = min_p > 0 ? bound_of_weight(d, (double)min_p / 2) : -FLT_MAX;

    if (p->top_k && p->top_k < r->n) {
        collect(r, l, bound_of_top_k(r, d->temperature, p->top_k));
        cut_top_k(r, d, l);
    } else if (p->top_p < 1) {
        uint64_t mass = r->sweeps->mass(r->logits, r->n, d->temperature, d->max);
        /* All of less weight than this make up half of what top_p cuts, at most. */
        double weight = (1 - (double)p->top_p) / 2 / r->n * (double)mass * 0x1p-44;

        reach->goal = sampling_share(mass, p->top_p);
        list_share(r, d, l, reach, mass, fmaxf(least, bound_of_weight(d, weight)));
    } else if (min_p > 0) {
        list_from(r, d, l, least);
    } else {
        struct sampling_moments all = r->sweeps->moments(r->logits, r->n, d->temperature, d->max);

        reach->mean = (float)(all.product / all.sum);
        reach->goal = sampling_share(all.mass, p->program->typical_p);
        list_share(r, d, l, reach, all.mass, least);
    }
}

/* The cuts; reach: what the first of those by shares found, if its goal is not 0. */
static void cut(const struct sample_params *p, struct sampling_list *l, struct sampling_reach reach)
{
    if (p->top_p < 1) {
        if (!reach.goal) {
            reach.goal = sampling_share(sampling_list_mass(l), p->top_p);
            sampling_reach(l, &reach);
        }
        sampling_cut_top_p(l, &reach);
        reach.goal = 0;
    }
    if (!p->program)
        return;
    if (p->program->min_p > 0)
        sampling_cut_min_p(l, p->program->min_p);
    if (p->program->typical_p < 1) {
        if (!reach.goal) {
            reach.mean = (float)(sampling_list_sum(l, l->scores) / sampling_list_sum(l, NULL));
            reach.goal = sampling_share(sampling_list_mass(l), p->program->typical_p);
            sampling_reach(l, &reach);
        }
        sampling_cut_typical(l, &reach);
    }
}

void candidates_cut(const struct sampled_row *r, const struct distribution *d,
                    struct sampling_list *l, bool has_ids)
{
    struct sampling_reach reach = {0};

    if (has_ids) {
        look_up(r, l);
        cut_top_k(r, d, l);
    } else {
        list_candidates(r, d, l, &reach);
    }
    cut(r->params, l, reach);
}
