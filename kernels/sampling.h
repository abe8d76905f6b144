/* kernels/sampling.h - from one row of logits to one token: the core that CPU backends share.
 *
 * For given logits, parameters, history and random number the result is one and the same
 * everywhere, bit for bit. In order:
 *
 *   the row     removals, bias and penalties of the program (sampling_edit.h)
 *   scores      logit / temperature
 *   top_k       keeps the scores that are not below the k-th largest: ties stay
 *   top_p       keeps, best first (among equals the lower id first), a token while the probability
 *               of those before it is below top_p, which is never nothing
 *   min_p       keeps what is at least min_p times as probable as the best
 *   typical_p   keeps, nearest first, those whose -log p is nearest to the mean of it, until they
 *               make up typical_p: ties stay
 *   one draw    over what is kept, as numeric contract v1 says: exp(score - largest), summed in
 *               double, by blocks of 256 ids
 *
 * Probabilities for the cuts are integers, exp(score - largest) in units of 2^-44 of the largest, so
 * that no order of summation can move a cut. A row of KERNELS_VOCAB_MAX of them fits 64 bits.
 *
 * No row is sorted, and after two or three sweeps over it (sampling_sweep.h) only a list of the few
 * tokens that can still be kept is looked at. */
#ifndef CB_KERNELS_SAMPLING_H
#define CB_KERNELS_SAMPLING_H

#include <stddef.h>

#include "kernels/kernels.h"

struct sampling_sweeps; /* sampling_sweep.h */

/* What one worker needs: scratch carved from memory that is its owner's. */
struct sampler_scratch {
    float *row;                   /* [n_vocab] a row whose logits are still wanted */
    float *maxima;                /* [n_groups]                                    */
    double *sums;                 /* [n_blocks]                                    */
    uint32_t *counts;             /* [n_vocab] zeros between calls                 */
    uint32_t *ids, *keys, *order; /* [n_vocab] each                                */
    float *scores, *weights;      /* [n_vocab] each                                */
};

/* Bytes for one worker, a multiple of 64. */
size_t sampler_scratch_bytes(uint32_t n_vocab);

/* In memory of so many bytes, 64-byte aligned, zeroed before its first use and ever after used for
 * this only. */
struct sampler_scratch sampler_scratch_at(void *memory, uint32_t n_vocab);

/* The sample of one row. logits [n_vocab], 1 to KERNELS_VOCAB_MAX of them, are spoilt; NULL unless
 * sample_reads_logits. head is what the head said of the row, for params that don't read it. A row
 * that holds a NaN or an infinity sets not_finite and draws nothing. A temperature so small that the
 * largest score is not a number any more acts as greedy, and so does a denormal one, which counts
 * as 0. */
void sampling_row(struct sample *out, float *logits, uint32_t n_vocab, const struct head_row *head,
                  const struct sample_params *params, const struct sampling_sweeps *sweeps,
                  const struct sampler_scratch *scratch);

#endif
