/* kernels/sampling_sweep.h - what the sampler does to whole rows: few and plain, so that each
 * instruction set can have its own; all of them give the same bits. */
#ifndef CB_KERNELS_SAMPLING_SWEEP_H
#define CB_KERNELS_SAMPLING_SWEEP_H

#include <stdbool.h>
#include <stdint.h>

enum { SAMPLING_LANES = 16, SAMPLING_BLOCK = 256 };

static inline uint32_t sampling_n_blocks(uint32_t n)
{
    return (n + SAMPLING_BLOCK - 1) / SAMPLING_BLOCK;
}

/* Of maxima. */
static inline uint32_t sampling_n_groups(uint32_t n)
{
    return sampling_n_blocks(n) * SAMPLING_LANES;
}

/* A token's share of the cuts' integers; its weight is in [0, 1]. */
static inline uint64_t sampling_mass(float weight)
{
    /* Signed, which a machine converts to at once. */
    return (uint64_t)(int64_t)((double)weight * 0x1p44);
}

/* What the weights of a row come to. */
struct sampling_moments {
    double sum, product;
    uint64_t mass;
};

struct sampling_sweeps {
    /* maxima[16 * b + l] = the largest logit of block b (256 ids) whose id is l modulo 16, -INFINITY
     * where there is none; for all blocks. Returns whether all n are finite. */
    bool (*maxima)(const float *row, uint32_t n, float *maxima);
    /* The ids with row[id] >= least, ascending, and their logits. maxima are the row's. Returns how
     * many. */
    uint32_t (*collect)(const float *row, uint32_t n, const float *maxima, float least,
                        uint32_t *ids, float *logits);
    /* sums[b] = block b's sum of the weights exp(row / temperature - max): in double, lane by lane
     * (id modulo 16), then the tree. */
    void (*sums)(const float *row, uint32_t n, float temperature, float max, double *sums);
    /* The same weights' sampling_mass, all together. */
    uint64_t (*mass)(const float *row, uint32_t n, float temperature, float max);
    /* All of it: the sum of the weights, that of weights times scores (less max; a weight of 0 adds
     * nothing), both block by block as in sums, and the mass. */
    struct sampling_moments (*moments)(const float *row, uint32_t n, float temperature, float max);
    /* scores = x / temperature + 0 - max, as such scores are made. */
    void (*scores)(const float *x, uint32_t n, float temperature, float max, float *scores);
    /* weights = exp(x). */
    void (*weights)(const float *x, uint32_t n, float *weights);
    /* Of a list of n tokens keeps those whose score is within `distance` of `mean`, in their order.
     * Returns how many. */
    uint32_t (*keep)(uint32_t *ids, float *scores, float *weights, uint32_t n, float mean,
                     float distance);
};

/* In plain C, which is what the others are held to. */
extern const struct sampling_sweeps sampling_sweeps_plain;

#endif
