/* kernels/sampling_edit.h - what a program does to a row before temperature.
 *
 * All of it touches few ids, so the row is edited in place. The history's counts are made anew for
 * each row, from the ids themselves: that costs a nanosecond or two an id, next to attention over
 * the same ids, and leaves nothing that could disagree with them after a reset, a fork or a
 * restart. */
#ifndef CB_KERNELS_SAMPLING_EDIT_H
#define CB_KERNELS_SAMPLING_EDIT_H

#include "kernels/kernels.h"

/* Bias, penalties, then -INFINITY for what is removed, but for ids outside a list of allowed ones,
 * which is for the caller. Results that are too large for a float become its largest. counts
 * [n_vocab] are zeros, and zeros again on return. Ids outside the vocabulary change nothing. */
void sampling_edit(float *row, uint32_t n_vocab, const struct sample_params *params,
                   uint32_t *counts);

#endif
