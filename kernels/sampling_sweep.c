#include "kernels/sampling_sweep.h"

#include <math.h>

#include "kernels/numeric.h"

static bool maxima(const float *row, uint32_t n, float *maxima)
{
    bool finite = true;

    for (uint32_t i = 0; i < sampling_n_blocks(n) * SAMPLING_LANES; i++)
        maxima[i] = -INFINITY;
    for (uint32_t i = 0; i < n; i++) {
        float *max = &maxima[i / SAMPLING_BLOCK * SAMPLING_LANES + i % SAMPLING_LANES];

        finite &= (numeric_bits(row[i]) & 0x7f800000) != 0x7f800000;
        *max = row[i] > *max ? row[i] : *max;
    }
    return finite;
}

static uint32_t collect(const float *row, uint32_t n, const float *maxima, float least,
                        uint32_t *ids, float *logits)
{
    uint32_t n_ids = 0;

    (void)maxima;
    for (uint32_t i = 0; i < n; i++) {
        if (row[i] >= least) {
            logits[n_ids] = row[i];
            ids[n_ids++] = i;
        }
    }
    return n_ids;
}

static void sums(const float *row, uint32_t n, float temperature, float max, double *sums)
{
    for (uint32_t b = 0; b < sampling_n_blocks(n); b++) {
        double lane[SAMPLING_LANES] = {0};
        uint32_t end = (b + 1) * SAMPLING_BLOCK < n ? (b + 1) * SAMPLING_BLOCK : n;

        for (uint32_t i = b * SAMPLING_BLOCK; i < end; i++)
            lane[i % SAMPLING_LANES] += (double)numeric_exp(row[i] / temperature - max);
        sums[b] = numeric_tree_double(lane);
    }
}

static uint64_t mass(const float *row, uint32_t n, float temperature, float max)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < n; i++)
        sum += sampling_mass(numeric_exp(row[i] / temperature - max));
    return sum;
}

static struct sampling_moments moments(const float *row, uint32_t n, float temperature, float max)
{
    struct sampling_moments m = {.mass = mass(row, n, temperature, max)};

    for (uint32_t begin = 0; begin < n; begin += SAMPLING_BLOCK) {
        double lane[SAMPLING_LANES] = {0}, product[SAMPLING_LANES] = {0};

        for (uint32_t i = begin; i < begin + SAMPLING_BLOCK && i < n; i++) {
            float score = row[i] / temperature + 0.0f - max;
            double weight = (double)numeric_exp(score);

            lane[i % SAMPLING_LANES] += weight;
            product[i % SAMPLING_LANES] += weight > 0 ? weight * (double)score : 0;
        }
        m.sum += numeric_tree_double(lane);
        m.product += numeric_tree_double(product);
    }
    return m;
}

static void scores(const float *x, uint32_t n, float temperature, float max, float *scores)
{
    for (uint32_t i = 0; i < n; i++)
        scores[i] = x[i] / temperature + 0.0f - max;
}

static void weights(const float *x, uint32_t n, float *weights)
{
    for (uint32_t i = 0; i < n; i++)
        weights[i] = numeric_exp(x[i]);
}

static uint32_t keep(uint32_t *ids, float *scores, float *weights, uint32_t n, float mean,
                     float distance)
{
    uint32_t n_kept = 0;

    for (uint32_t i = 0; i < n; i++) {
        bool is_kept = fabsf(scores[i] - mean) <= distance;

        ids[n_kept] = ids[i];
        scores[n_kept] = scores[i];
        weights[n_kept] = weights[i];
        n_kept += is_kept;
    }
    return n_kept;
}

const struct sampling_sweeps sampling_sweeps_plain = {maxima,  collect, sums,    mass,
                                                      moments, scores,  weights, keep};
