/* daemon/model/weights.h - a model's tensors in the backend's hands, and the table of rotations. */
#ifndef CB_DAEMON_MODEL_WEIGHTS_H
#define CB_DAEMON_MODEL_WEIGHTS_H

#include "daemon/model/config.h"
#include "kernels/kernels.h"

struct layer {
    struct weight *qkv;     /* rows of q over k over v, [.., n_embd]  */
    struct weight *out;     /* [n_embd, n_heads * head_dim]           */
    struct weight *gate_up; /* two of [n_ff, n_embd]                  */
    struct weight *down;    /* [n_embd, n_ff]                         */
    float *attn_norm;       /* [n_embd]                               */
    float *ffn_norm;        /* [n_embd]                               */
    float *qkv_bias;        /* [rows of qkv]; NULL: the file has none */
};

struct weights {
    const struct backend_ops *ops;
    struct backend *backend;
    struct weight *embed;
    struct weight *head; /* the same as embed where they are tied                    */
    float *output_norm;  /* [n_embd]                                                 */
    float *rope_factors; /* [rope_dims / 2] divisors of frequencies (host); NULL: none */
    float *cos_sin;      /* struct rope's table, by weights_make_rope                */
    struct rope rope;
    struct layer *layers; /* [n_layers] */
    uint32_t n_layers;
};

/* Storage for n_layers, all empty. 0 or -ENOMEM. */
int weights_init(struct weights *w, const struct backend_ops *ops, struct backend *backend,
                 uint32_t n_layers);
/* Frees whatever is there, also half of it; zeroed weights are fine. */
void weights_fini(struct weights *w);

/* Fills w->rope for positions [0, n_positions). 0 or a negative errno. */
int weights_make_rope(struct weights *w, const struct config *c, uint32_t n_positions);

#endif
