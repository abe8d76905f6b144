/* tests/util/feed.h - builds steps for tests: sequences with blocks of their own, no cache behind.
 *
 * Sequence i has blocks [i * blocks_a_seq, (i + 1) * blocks_a_seq) of the model. */
#ifndef CB_TESTS_UTIL_FEED_H
#define CB_TESTS_UTIL_FEED_H

#include <stdint.h>

#include "daemon/model/model.h"

struct feed;

enum feed_outputs { FEED_NONE, FEED_LAST, FEED_ALL };

/* For n_seqs sequences of up to seq_tokens, with steps of up to step_tokens; backs the blocks with
 * memory. Aborts if the model has too few. */
struct feed *feed_new(struct model *m, uint32_t n_seqs, uint32_t seq_tokens, uint32_t step_tokens);
struct feed *feed_free(struct feed *f);

/* The step being built: emptied, then sequences added (those of one token first), then used. */
void feed_begin(struct feed *f);
void feed_add(struct feed *f, uint32_t seq, const int32_t *tokens, uint32_t position, uint32_t n,
              enum feed_outputs outputs);
const struct step *feed_step(const struct feed *f);

/* Runs the step greedily; samples [n_outputs]. 0 or a negative errno. */
int feed_greedy(struct feed *f, struct sample *samples);

#endif
