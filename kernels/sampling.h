/* kernels/sampling.h - from one row of logits to one token: the core that CPU backends share.
 *
 * For given logits, parameters and random number the token is one and the same everywhere. In
 * order: scores = logits / temperature; top_k keeps the scores that are not below the k-th largest
 * (ties stay); top_p keeps, best first (among equals the lower id first), a token while the
 * probability of those before it is below top_p, which is never nothing; then one draw over what is
 * kept, as numeric contract v1 says: exp(score - largest), summed in double, by blocks of 256 ids.
 *
 * Probabilities for the top_p cut are integers, exp(score - largest) in units of 2^-44 of the
 * largest, so that no order of summation can move the cut. A row of KERNELS_VOCAB_MAX of them fits
 * 64 bits. */
#ifndef CB_KERNELS_SAMPLING_H
#define CB_KERNELS_SAMPLING_H

#include "kernels/kernels.h"

/* logits [n_vocab] become scores; weights [n_vocab] is scratch. n_vocab is at least 1 and at most
 * KERNELS_VOCAB_MAX. A row that holds a NaN or an infinity sets not_finite and draws nothing. The
 * temperature is above 0; one so small that the largest score is not a number any more acts as
 * greedy. */
void sampling_draw(struct sample *out, float *logits, float *weights, uint32_t n_vocab,
                   const struct sample_params *params);

/* What temperature 0 means: the head's own answer. */
void sampling_greedy(struct sample *out, const struct head_row *row);

#endif
