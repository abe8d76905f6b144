/* Nothing is sorted. A cut is found by selection on the bits of what tokens are ranked by, mapped to
 * integers that ascend from the first rank: 11, 11 and 10 bits at a time, a histogram of what agrees
 * with the bits fixed so far, and a walk down to the bucket that holds the cut. A histogram counts
 * tokens, or adds probabilities. */
#include "kernels/sampling_cut.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>

#include "kernels/numeric.h"
#include "kernels/sampling_sweep.h"

enum { BUCKETS = 2048 };

/* ---- selection ------------------------------------------------------------------------------- */

/* The smallest key such that what has this key or a smaller one amounts to `goal` at least, or
 * UINT32_MAX if all together do not; *beforep is what has a smaller one, which is less than the
 * goal, which is above 0. `weights` NULL: every token amounts to 1. No key is UINT32_MAX. */
static uint32_t select_key(uint64_t *beforep, const uint32_t *keys, const float *weights,
                           uint32_t n, uint64_t goal, uint32_t *order)
{
    static const struct {
        int shift, width;
    } passes[] = {{21, 11}, {10, 11}, {0, 10}};
    uint32_t key = 0;
    uint64_t before = 0;

    for (int pass = 0; pass < 3; pass++) {
        int shift = passes[pass].shift;
        uint32_t mask = (1u << passes[pass].width) - 1, bucket = 0, n_left = 0;
        uint64_t amounts[BUCKETS] = {0};

        for (uint32_t i = 0; i < n; i++) {
            uint32_t at = pass ? order[i] : i;

            amounts[keys[at] >> shift & mask] += weights ? sampling_mass(weights[at]) : 1;
        }
        while (before + amounts[bucket] < goal) {
            before += amounts[bucket];
            if (bucket++ == mask)
                return UINT32_MAX;
        }
        key |= bucket << shift;
        /* From here on only what is in the bucket. */
        for (uint32_t i = 0; i < n; i++) {
            uint32_t at = pass ? order[i] : i;

            order[n_left] = at;
            n_left += (keys[at] >> shift & mask) == bucket;
        }
        n = n_left;
    }
    *beforep = before;
    return key;
}

/* An integer that ascends as the score falls. Scores hold no NaN and no negative zero. */
static uint32_t key_of_score(float score)
{
    uint32_t bits = numeric_bits(score);

    return ~(bits & 0x80000000 ? ~bits : bits | 0x80000000);
}

float sampling_kth_largest(const float *values, uint32_t n, uint32_t k, uint32_t *keys,
                           uint32_t *order)
{
    uint64_t before;
    uint32_t key;

    for (uint32_t i = 0; i < n; i++)
        keys[i] = key_of_score(values[i]);
    key = ~select_key(&before, keys, NULL, n, k, order);
    return numeric_from_bits(key & 0x80000000 ? key & 0x7fffffff : ~key);
}

/* ---- cuts ------------------------------------------------------------------------------------ */

/* Moves token i to place *np, which is taken if it is kept. No branch: nobody could predict it. */
static inline void keep(struct sampling_list *l, uint32_t *np, uint32_t i, bool is_kept)
{
    uint32_t n = *np;

    l->ids[n] = l->ids[i];
    l->scores[n] = l->scores[i];
    l->weights[n] = l->weights[i];
    *np = n + is_kept;
}

uint64_t sampling_list_mass(const struct sampling_list *l)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < l->n; i++)
        sum += sampling_mass(l->weights[i]);
    return sum;
}

uint64_t sampling_share(uint64_t mass, float share)
{
    uint64_t goal = (uint64_t)ceil((double)mass * (double)share);

    return goal ? goal : 1;
}

void sampling_cut_top_k(struct sampling_list *l, uint32_t top_k)
{
    uint64_t before;
    uint32_t n = 0, key;

    if (top_k >= l->n)
        return;
    for (uint32_t i = 0; i < l->n; i++)
        l->keys[i] = key_of_score(l->scores[i]);
    key = select_key(&before, l->keys, NULL, l->n, top_k, l->order);
    for (uint32_t i = 0; i < l->n; i++)
        keep(l, &n, i, l->keys[i] <= key);
    l->n = n;
}

/* There are no denormals among distances: they compare as their bits do. */
void sampling_reach(const struct sampling_list *l, struct sampling_reach *reach)
{
    uint32_t key;

    for (uint32_t i = 0; i < l->n; i++)
        l->keys[i] = numeric_bits(fabsf(l->scores[i] - reach->mean));
    key = select_key(&reach->before, l->keys, l->weights, l->n, reach->goal, l->order);
    reach->distance = key == UINT32_MAX ? INFINITY : numeric_from_bits(key);
}

static void keep_reached(struct sampling_list *l, const struct sampling_reach *reach)
{
    if (reach->distance < INFINITY)
        l->n = l->sweeps->keep(l->ids, l->scores, l->weights, l->n, reach->mean, reach->distance);
}

/* Of those at the cut, which have one weight, later ones go if the first ones are enough. */
void sampling_cut_top_p(struct sampling_list *l, const struct sampling_reach *reach)
{
    uint64_t before = reach->before;
    uint32_t n = 0;

    keep_reached(l, reach);
    for (uint32_t i = 0; i < l->n; i++) {
        bool is_at_cut = fabsf(l->scores[i]) == reach->distance;
        bool is_kept = !is_at_cut || before < reach->goal;

        if (is_at_cut)
            before += sampling_mass(l->weights[i]);
        keep(l, &n, i, is_kept);
    }
    l->n = n;
}

void sampling_cut_min_p(struct sampling_list *l, float min_p)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < l->n; i++)
        keep(l, &n, i, l->weights[i] >= min_p);
    l->n = n;
}

/* With d = score - largest, -log p less its mean is the mean of d less d. */
void sampling_cut_typical(struct sampling_list *l, const struct sampling_reach *reach)
{
    keep_reached(l, reach);
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* The sum of block l->ids[*atp] / 256, whose tokens begin at *atp; *atp moves behind them. */
static double block_sum(const struct sampling_list *l, const float *factors, uint32_t *atp)
{
    double lane[SAMPLING_LANES] = {0};
    uint32_t block = l->ids[*atp] / SAMPLING_BLOCK;

    for (; *atp < l->n && l->ids[*atp] / SAMPLING_BLOCK == block; ++*atp) {
        double weight = (double)l->weights[*atp];

        /* A score of no weight may be so far below the largest that the difference is infinite. */
        if (factors)
            weight = weight > 0 ? weight * (double)factors[*atp] : 0;
        lane[l->ids[*atp] % SAMPLING_LANES] += weight;
    }
    return numeric_tree_double(lane);
}

double sampling_list_sum(const struct sampling_list *l, const float *factors)
{
    double sum = 0;

    for (uint32_t at = 0; at < l->n;)
        sum += block_sum(l, factors, &at);
    return sum;
}

uint32_t sampling_list_pick_in(const struct sampling_list *l, uint32_t first, uint32_t end,
                               double rest)
{
    double running = 0;
    uint32_t token = first;

    for (uint32_t i = first; i < end; i++) {
        if (l->weights[i] == 0)
            continue;
        token = i;
        running += (double)l->weights[i];
        if (running > rest)
            break;
    }
    return token;
}

/* Some block does exceed it: the sums are sampling_list_sum's own, and u * total, with u at most
 * 1 - 2^-53, rounds to less than total. */
uint32_t sampling_list_pick(const struct sampling_list *l, double target)
{
    double before = 0;

    for (uint32_t first = 0, end = 0;; first = end) {
        double sum;

        assert(end < l->n);
        sum = before + block_sum(l, NULL, &end);
        if (sum > target)
            return sampling_list_pick_in(l, first, end, target - before);
        before = sum;
    }
}
