/* A row begins at a multiple of a cache line (of 64 bytes), as wide loads like it. */
#include "daemon/model/scratch.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "daemon/model/message.h"

size_t scratch_row_stride(uint32_t n_cols)
{
    return ((size_t)n_cols * sizeof(float) + 63) / 64 * 64;
}

static int make_rows(struct scratch *s, struct tensor *t, uint32_t n_rows, uint32_t n_cols,
                     char *message)
{
    size_t stride = scratch_row_stride(n_cols), bytes = n_rows * stride;
    int r;

    *t = (struct tensor){
        .dtype = DTYPE_F32, .n_rows = n_rows, .n_cols = n_cols, .stride_bytes = stride};
    r = s->ops->buffer_new(s->backend, &t->data, bytes, NULL);
    return r ? model_refuse(message, r, "no memory for %zu bytes of scratch", bytes) : 0;
}

int scratch_init(struct scratch *s, const struct backend_ops *ops, struct backend *backend,
                 const struct config *c, uint32_t max_tokens, uint32_t max_outputs,
                 uint32_t n_logits, char *message)
{
    void *rows = NULL;
    int r;

    *s = (struct scratch){.ops = ops, .backend = backend};
    r = make_rows(s, &s->x, max_tokens, c->n_embd, message);
    if (!r)
        r = make_rows(s, &s->q, max_tokens, c->n_heads * c->head_dim, message);
    if (!r)
        r = make_rows(s, &s->o, max_tokens, c->n_heads * c->head_dim, message);
    if (!r)
        r = make_rows(s, &s->h, max_tokens, c->n_ff, message);
    if (!r)
        r = make_rows(s, &s->y, max_tokens, c->n_embd, message);
    if (!r)
        r = make_rows(s, &s->logits, n_logits, c->n_vocab, message);
    if (r)
        return r;
    r = ops->buffer_new(backend, &rows, max_outputs * sizeof s->rows[0], NULL);
    s->rows = rows;
    s->want_logits = calloc(max_tokens, sizeof s->want_logits[0]);
    s->samples = calloc(max_tokens, sizeof s->samples[0]);
    s->output_idx = calloc(max_tokens, sizeof s->output_idx[0]);
    for (uint32_t i = 0; i < max_tokens && s->output_idx; i++)
        s->output_idx[i] = i;
    if (r || !s->want_logits || !s->samples || !s->output_idx)
        return model_refuse(message, -ENOMEM, "no memory for %" PRIu32 " outputs a step",
                            max_tokens);
    return 0;
}

void scratch_fini(struct scratch *s)
{
    void *const buffers[] = {s->rows,   s->logits.data, s->y.data, s->h.data,
                             s->o.data, s->q.data,      s->x.data};

    free(s->samples);
    free(s->want_logits);
    free(s->output_idx);
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++)
        if (buffers[i])
            s->ops->buffer_free(s->backend, buffers[i]);
    *s = (struct scratch){0};
}
