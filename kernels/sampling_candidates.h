/* kernels/sampling_candidates.h - a row that is being sampled, and lists of those of its tokens that
 * may be drawn. For sampling.c. */
#ifndef CB_KERNELS_SAMPLING_CANDIDATES_H
#define CB_KERNELS_SAMPLING_CANDIDATES_H

#include "kernels/sampling.h"
#include "kernels/sampling_cut.h"
#include "kernels/sampling_sweep.h"

/* A row that is being sampled. */
struct sampled_row {
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

/* Sweeps a row for its maxima, its largest logit and who has that; false: not finite. */
bool candidates_sweep(struct sampled_row *r);

/* An empty list, in the row's scratch: a row has one list at a time. */
struct sampling_list candidates_none(const struct sampled_row *r);

/* Gives a list of ids its scores and weights. */
void candidates_weigh(const struct sampled_row *r, const struct distribution *d,
                      struct sampling_list *l);

/* Lists all that may be among the k best, with scores. */
void candidates_best(const struct sampled_row *r, const struct distribution *d, uint32_t k,
                     struct sampling_list *l);

/* Lists what the cuts that are asked for keep: of all, or of the ids that the list has. */
void candidates_cut(const struct sampled_row *r, const struct distribution *d,
                    struct sampling_list *l, bool has_ids);

#endif
