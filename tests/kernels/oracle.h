/* tests/kernels/oracle.h - the operators once more, as plainly as they can be written: double
 * arithmetic, K and V as a list by slot, sampling by sorting. It shares dequant_row with the
 * backends (which has its own test) and, for the sampler, whose token must be exact, the contract's
 * exp and Philox. */
#ifndef CB_TESTS_KERNELS_ORACLE_H
#define CB_TESTS_KERNELS_ORACLE_H

#include "kernels/kernels.h"

extern const struct backend_ops oracle_backend;

/* Its row for sampling, in a file of its own. */
int oracle_sample(struct stream *s, struct sample *samples, struct tensor *logits,
                  const struct head_row *rows, const struct sample_params *params,
                  uint32_t n_outputs);

#endif
