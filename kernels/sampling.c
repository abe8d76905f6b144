/* Nothing is sorted. Both cuts are found by selection on the bits of the scores, mapped to integers
 * of the same order: 11, 11 and 10 bits at a time, a histogram of what agrees with the bits fixed
 * so far, and a walk from the best bucket down to the one that holds the cut. A histogram counts
 * tokens for top_k and adds probabilities for top_p. */
#include "kernels/sampling.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>

#include "kernels/numeric.h"
#include "kernels/philox.h"

enum { BLOCK = 256, LANES = 16, BUCKETS = 2048 };

/* An integer of the same order. Scores hold no NaN and no negative zero. */
static uint32_t key_of(float score)
{
    uint32_t bits = numeric_bits(score);

    return bits & 0x80000000 ? ~bits : bits | 0x80000000;
}

static uint64_t mass_of(float weight)
{
    return (uint64_t)((double)weight * 0x1p44);
}

/* The largest key such that what has this key or a larger one amounts to `goal` at least; *abovep
 * is what has a larger one, which is less than the goal. `weights` NULL: every token amounts to 1.
 * All together amount to the goal or more, and the goal is above 0. */
static uint32_t select_key(uint64_t *abovep, const float *scores, const float *weights, uint32_t n,
                           uint64_t goal)
{
    static const struct {
        int shift, width;
    } passes[] = {{21, 11}, {10, 11}, {0, 10}};
    uint32_t key = 0;
    uint64_t above = 0;

    for (int pass = 0; pass < 3; pass++) {
        int shift = passes[pass].shift, width = passes[pass].width;
        uint32_t mask = (1u << width) - 1, bucket = mask;
        uint64_t amounts[BUCKETS] = {0};

        for (uint32_t i = 0; i < n; i++) {
            uint32_t k = key_of(scores[i]);

            if (((uint64_t)k ^ key) >> (shift + width))
                continue;
            amounts[k >> shift & mask] += weights ? mass_of(weights[i]) : 1;
        }
        while (above + amounts[bucket] < goal) {
            assert(bucket > 0);
            above += amounts[bucket--];
        }
        key |= bucket << shift;
    }
    *abovep = above;
    return key;
}

/* scores = logits / temperature; *maxp the largest score, *bestp its lowest id. False: not
 * finite. */
static bool scale_row(float *logits, uint32_t n, float temperature, float *maxp, uint32_t *bestp)
{
    uint32_t largest_bits = 0, best = 0;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t bits = numeric_bits(logits[i]) & 0x7fffffff;

        largest_bits = bits > largest_bits ? bits : largest_bits;
    }
    if (largest_bits >= 0x7f800000)
        return false;
    for (uint32_t i = 1; i < n; i++) {
        if (logits[i] > logits[best])
            best = i;
    }
    /* Adding zero turns a negative zero into the positive one: they are equal scores. */
    for (uint32_t i = 0; i < n; i++)
        logits[i] = logits[i] / temperature + 0.0f;
    *maxp = logits[best];
    *bestp = best;
    return true;
}

/* Takes the weight of every token behind the top_p cut. */
static void cut_top_p(float *weights, const float *scores, uint32_t n, float top_p)
{
    uint64_t total = 0, goal, before;
    uint32_t key;

    for (uint32_t i = 0; i < n; i++)
        total += mass_of(weights[i]);
    goal = (uint64_t)ceil((double)total * (double)top_p);
    if (!goal)
        goal = 1;
    key = select_key(&before, scores, weights, n, goal);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t k = key_of(scores[i]);

        if (k < key || (k == key && before >= goal))
            weights[i] = 0;
        else if (k == key)
            before += mass_of(weights[i]);
    }
}

static double block_sum(const float *weights, uint32_t n)
{
    double lane[LANES] = {0};

    for (uint32_t i = 0; i < n; i++)
        lane[i % LANES] += (double)weights[i];
    return numeric_tree_double(lane);
}

static uint32_t block_length(uint32_t n, uint32_t block)
{
    return n - block < BLOCK ? n - block : BLOCK;
}

static double row_sum(const float *weights, uint32_t n)
{
    double sum = 0;

    for (uint32_t block = 0; block < n; block += BLOCK)
        sum += block_sum(weights + block, block_length(n, block));
    return sum;
}

/* The first block whose running sum exceeds target, in it the first token whose running sum exceeds
 * the rest, else its last one that can be drawn at all. Some block does exceed it: the sums are
 * row_sum's own, and u * total, with u at most 1 - 2^-53, rounds to less than total. */
static uint32_t pick(const float *weights, uint32_t n, double target)
{
    double before = 0, running = 0;
    uint32_t block = 0, token = 0;

    for (;; block += BLOCK) {
        double sum;

        assert(block < n);
        sum = before + block_sum(weights + block, block_length(n, block));
        if (sum > target)
            break;
        before = sum;
    }
    for (uint32_t i = block; i < block + block_length(n, block); i++) {
        if (weights[i] == 0)
            continue;
        token = i;
        running += (double)weights[i];
        if (running > target - before)
            break;
    }
    return token;
}

void sampling_draw(struct sample *out, float *logits, float *weights, uint32_t n_vocab,
                   const struct sample_params *params)
{
    uint32_t best, least = 0;
    float max;
    double total, u;

    assert(n_vocab >= 1 && n_vocab <= KERNELS_VOCAB_MAX);
    *out = (struct sample){0};
    if (!scale_row(logits, n_vocab, params->temperature, &max, &best)) {
        out->not_finite = 1;
        return;
    }
    if (!isfinite(max)) {
        out->token = best;
        return;
    }
    if (params->top_k && params->top_k < n_vocab) {
        uint64_t above;

        least = select_key(&above, logits, NULL, n_vocab, params->top_k);
    }
    for (uint32_t i = 0; i < n_vocab; i++)
        weights[i] = key_of(logits[i]) >= least ? numeric_exp(logits[i] - max) : 0.0f;
    if (params->top_p < 1)
        cut_top_p(weights, logits, n_vocab, params->top_p);
    total = row_sum(weights, n_vocab);
    u = philox_uniform(params->seed, params->child_idx, params->token_idx, 0);
    out->token = pick(weights, n_vocab, u * total);
    out->logprob = (float)((double)(logits[out->token] - max) - log(total));
}

void sampling_greedy(struct sample *out, const struct head_row *row)
{
    *out = (struct sample){.token = row->argmax, .not_finite = row->not_finite};
}
