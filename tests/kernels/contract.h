/* tests/kernels/contract.h - the numeric contract once more, word for word and a value at a time,
 * from the rows of the file: the bits that every level of the cpu backend owes. It shares with that
 * backend what kernels/numeric.h states, and no other code. */
#ifndef CB_TESTS_KERNELS_CONTRACT_H
#define CB_TESTS_KERNELS_CONTRACT_H

#include "kernels/kernels.h"

extern const struct backend_ops contract_backend;

/* Its attention, in a file of its own. */
int contract_attention(struct stream *s, struct tensor *o, const struct tensor *q,
                       const struct kv *kv, const struct attention_args *args);

#endif
