/* kernels/sampling_cut.h - a list of tokens that may be kept, and what cuts it. */
#ifndef CB_KERNELS_SAMPLING_CUT_H
#define CB_KERNELS_SAMPLING_CUT_H

#include <stdint.h>

struct sampling_sweeps; /* sampling_sweep.h */

/* n tokens by ascending id. keys and order [n] are scratch. */
struct sampling_list {
    uint32_t n;
    uint32_t *ids;
    float *scores;  /* logit / temperature; from the weights on, less the largest */
    float *weights; /* exp(scores), once there */
    uint32_t *keys, *order;
    const struct sampling_sweeps *sweeps;
};

/* The k-th largest of n values, 1 <= k <= n. */
float sampling_kth_largest(const float *values, uint32_t n, uint32_t k, uint32_t *keys,
                           uint32_t *order);

/* The integers of the cuts: what a list amounts to, and what a share of so much is, which is never
 * nothing. */
uint64_t sampling_list_mass(const struct sampling_list *l);
uint64_t sampling_share(uint64_t mass, float share);

/* A cut by shares keeps the tokens whose scores are nearest to `mean` until they amount to `goal`:
 * those within `distance`, and what is nearer amounts to `before`. A distance of INFINITY: all
 * together do not amount to it. */
struct sampling_reach {
    float mean, distance;
    uint64_t goal, before;
};
/* Finds distance and before. */
void sampling_reach(const struct sampling_list *l, struct sampling_reach *reach);

/* Each takes from the list what its parameter does not keep, as sampling.h says. top_k: by scores.
 * The others need weights; those that were given a reach found it on this list, or are on a list of
 * all those within it. top_p's mean is 0. */
void sampling_cut_top_k(struct sampling_list *l, uint32_t top_k);
void sampling_cut_top_p(struct sampling_list *l, const struct sampling_reach *reach);
void sampling_cut_min_p(struct sampling_list *l, float min_p);
void sampling_cut_typical(struct sampling_list *l, const struct sampling_reach *reach);

/* The sum of the weights, each times its factor if there are factors [n], as the contract sums a
 * row: in double, by blocks of 256 ids, lane by lane in each. */
double sampling_list_sum(const struct sampling_list *l, const float *factors);

/* The first block whose running sum exceeds target, in it the first token whose running sum exceeds
 * the rest, else its last one that can be drawn at all: an index in the list. target is below the
 * sum of the weights. */
uint32_t sampling_list_pick(const struct sampling_list *l, double target);
/* The latter part of it: within [first, end) of the list. */
uint32_t sampling_list_pick_in(const struct sampling_list *l, uint32_t first, uint32_t end,
                               double rest);

#endif
