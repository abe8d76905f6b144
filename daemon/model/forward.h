/* daemon/model/forward.h - any transformer that config.c knows, as a model (model.h) over a
 * backend.
 *
 * Model code outside forward.c and the families' files uses model.h; this header is for the
 * families and for tests. */
#ifndef CB_DAEMON_MODEL_FORWARD_H
#define CB_DAEMON_MODEL_FORWARD_H

#include "daemon/model/model.h"
#include "daemon/model/weights.h"

/* What a family's step works with. Rows of x, q, o and h are the step's tokens; forward.c sets
 * n_rows. */
struct pass {
    const struct config *config;
    const struct weights *weights;
    const struct backend_ops *ops;
    struct stream *stream;
    struct kv *kv;
    struct tensor *x; /* [n_tokens, n_embd] the residual stream           */
    struct tensor *q; /* [n_tokens, n_heads * head_dim]                   */
    struct tensor *o; /* [n_tokens, n_heads * head_dim] attention's output */
    struct tensor *h; /* [n_tokens, n_ff]                                 */
    struct tensor *y; /* [n_outputs, n_embd] what becomes of x's rows that have an output */
};

/* Runs a step of a model that forward.c opened, and writes the logits of all its outputs,
 * [n_outputs] [info.n_vocab] f32, instead of sampling. n_outputs is not
 * bounded by max_batch_seqs here. 0 or a negative errno. */
int forward_logits(struct model *m, const struct step *step, float *logits);

#endif
