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
                        uint32_t *ids)
{
    uint32_t n_ids = 0;

    (void)maxima;
    for (uint32_t i = 0; i < n; i++) {
        if (row[i] >= least)
            ids[n_ids++] = i;
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

static void weights(const float *x, uint32_t n, float *weights)
{
    for (uint32_t i = 0; i < n; i++)
        weights[i] = numeric_exp(x[i]);
}

const struct sampling_sweeps sampling_sweeps_plain = {maxima, collect, sums, mass, weights};
