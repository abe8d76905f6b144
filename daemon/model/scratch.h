/* daemon/model/scratch.h - the rows of one step between its operators: made once, as large as any
 * step needs, and used by one step at a time. */
#ifndef CB_DAEMON_MODEL_SCRATCH_H
#define CB_DAEMON_MODEL_SCRATCH_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/model/config.h"
#include "kernels/kernels.h"

/* Tensors are f32, in the backend's memory; whoever runs a step sets their n_rows. */
struct scratch {
    const struct backend_ops *ops;
    struct backend *backend;
    struct tensor x;        /* [max_tokens, n_embd]                            */
    struct tensor q, o;     /* [max_tokens, n_heads * head_dim]                */
    struct tensor h;        /* [max_tokens, n_ff]                              */
    struct tensor y;        /* [max_tokens, n_embd]                            */
    struct tensor logits;   /* [n_logits, n_vocab]                             */
    uint32_t *output_idx;   /* [max_tokens] 0, 1, 2, ...: outputs as rows of y */
    struct head_row *rows;  /* [max_outputs] in the backend's memory           */
    uint8_t *want_logits;   /* [max_tokens] an output each                     */
    struct sample *samples; /* [max_tokens] of the step in flight              */
};

/* max_outputs: of one run of the head. 0, or a negative errno with message; scratch_fini undoes a half-made one too. */
int scratch_init(struct scratch *s, const struct backend_ops *ops, struct backend *backend,
                 const struct config *c, uint32_t max_tokens, uint32_t max_outputs,
                 uint32_t n_logits, char *message);
void scratch_fini(struct scratch *s); /* fine on a zeroed one */

/* Bytes of a row. */
size_t scratch_row_stride(uint32_t n_cols);

#endif
