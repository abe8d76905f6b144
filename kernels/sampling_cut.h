/* kernels/sampling_cut.h - a list of tokens that may be kept, and what cuts it. */
#ifndef CB_KERNELS_SAMPLING_CUT_H
#define CB_KERNELS_SAMPLING_CUT_H

#include <stdint.h>

/* n tokens by ascending id. keys and order [n] are scratch. */
struct sampling_list {
    uint32_t n;
    uint32_t *ids;
    float *scores;  /* logit / temperature; from the weights on, less the largest */
    float *weights; /* exp(scores), once there */
    uint32_t *keys, *order;
};

/* The k-th largest of n values, 1 <= k <= n. */
float sampling_kth_largest(const float *values, uint32_t n, uint32_t k, uint32_t *keys,
                           uint32_t *order);

/* Each takes from the list what its parameter does not keep, as sampling.h says. top_k: by scores.
 * The others need weights. For top_p all_mass is that of all tokens, of which those on the list are
 * the first in rank, or 0: the list is all there is. */
void sampling_cut_top_k(struct sampling_list *l, uint32_t top_k);
void sampling_cut_top_p(struct sampling_list *l, float top_p, uint64_t all_mass);
void sampling_cut_min_p(struct sampling_list *l, float min_p);
void sampling_cut_typical(struct sampling_list *l, float typical_p);

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
