/* daemon/model/llama.c - the family of Llama: RMS norm, rotary positions, grouped attention,
 * SwiGLU.
 *
 * Also SmolLM, TinyLlama, Mistral before its windows, and what else is converted under this name.
 * In files of this family rows of q and k are ordered so that rotation takes neighbours
 * (ROPE_PAIRS). Llama 3 brings divisors of the frequencies as a tensor. */
#include "daemon/model/arch.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "daemon/model/forward.h"
#include "daemon/model/loader.h"
#include "daemon/model/message.h"

static int load_rope_factors(struct loader *l, struct weights *w)
{
    uint32_t n = l->config->rope_dims / 2;

    if (!loader_has(l, LOADER_NO_LAYER, "rope_freqs", "weight"))
        return 0;
    w->rope_factors = malloc(n * sizeof w->rope_factors[0]);
    if (!w->rope_factors)
        return model_refuse(l->message, -ENOMEM, "%s: no memory", gguf_path(l->g));
    return loader_host_vector(l, w->rope_factors, LOADER_NO_LAYER, "rope_freqs", "weight", n, 1e-6f,
                              1e6f);
}

static int load_layer(struct loader *l, struct layer *to, uint32_t i)
{
    const struct config *c = l->config;
    uint32_t q_rows = c->n_heads * c->head_dim, kv_rows = c->n_kv_heads * c->head_dim;
    const struct loader_part norm = {"attn_norm", c->n_embd}, ffn_norm = {"ffn_norm", c->n_embd};
    const struct loader_part qkv[] = {{"attn_q", q_rows}, {"attn_k", kv_rows}, {"attn_v", kv_rows}};
    const struct loader_part gate_up[] = {{"ffn_gate", c->n_ff}, {"ffn_up", c->n_ff}};
    const struct loader_part out = {"attn_output", c->n_embd}, down = {"ffn_down", c->n_embd};
    int r = loader_vector(l, &to->attn_norm, i, &norm, 1, "weight");

    if (!r)
        r = loader_weight(l, &to->qkv, WEIGHT_LINEAR, i, qkv, 3, c->n_embd);
    if (!r && loader_has(l, i, "attn_q", "bias"))
        r = loader_vector(l, &to->qkv_bias, i, qkv, 3, "bias");
    if (!r)
        r = loader_weight(l, &to->out, WEIGHT_LINEAR, i, &out, 1, q_rows);
    if (!r)
        r = loader_vector(l, &to->ffn_norm, i, &ffn_norm, 1, "weight");
    if (!r)
        r = loader_weight(l, &to->gate_up, WEIGHT_GATE_UP, i, gate_up, 2, c->n_embd);
    if (!r)
        r = loader_weight(l, &to->down, WEIGHT_LINEAR, i, &down, 1, c->n_ff);
    return r;
}

static int llama_load(struct loader *l, struct weights *w)
{
    const struct config *c = l->config;
    const struct loader_part embed = {"token_embd", c->n_vocab}, head = {"output", c->n_vocab};
    const struct loader_part norm = {"output_norm", c->n_embd};
    int r = loader_weight(l, &w->embed, WEIGHT_EMBED, LOADER_NO_LAYER, &embed, 1, c->n_embd);

    w->head = w->embed; /* tied, unless the file has a head of its own */
    if (!r && loader_has(l, LOADER_NO_LAYER, "output", "weight")) {
        w->head = NULL;
        r = loader_weight(l, &w->head, WEIGHT_LINEAR, LOADER_NO_LAYER, &head, 1, c->n_embd);
    }
    if (!r)
        r = loader_vector(l, &w->output_norm, LOADER_NO_LAYER, &norm, 1, "weight");
    if (!r)
        r = load_rope_factors(l, w);
    for (uint32_t i = 0; i < c->n_layers && !r; i++)
        r = load_layer(l, &w->layers[i], i);
    return r;
}

/* Queries, keys, values and attention of a layer: p->o, which is for the product of `next` alone,
 * unless that is NULL. */
static int step_attention(const struct pass *p, const struct step *step, uint32_t i,
                          const struct weight *next)
{
    const struct config *c = p->config;
    const struct layer *l = &p->weights->layers[i];
    const struct qkv_args qkv = {
        .step = step,
        .w = l->qkv,
        .norm_w = l->attn_norm,
        .norm_eps = c->norm_eps,
        .bias = l->qkv_bias,
        .rope = &p->weights->rope,
        .layer = i,
        .n_heads = c->n_heads,
        .n_kv_heads = c->n_kv_heads,
        .head_dim = c->head_dim,
    };
    const struct attention_args attention = {
        .step = step,
        .layer = i,
        .n_heads = c->n_heads,
        .n_kv_heads = c->n_kv_heads,
        .head_dim = c->head_dim,
        .scale = 1.0f / sqrtf((float)c->head_dim),
        .next = next,
    };
    int r = p->ops->qkv(p->stream, p->q, p->kv, p->x, &qkv);

    return r ? r : p->ops->attention(p->stream, p->o, p->q, p->kv, &attention);
}

/* The rest of a layer, row by row: x from x and attention's output o. */
static int step_rows(const struct pass *p, struct tensor *x, const struct tensor *o, uint32_t i)
{
    const struct layer *l = &p->weights->layers[i];
    const struct gate_up_args gate_up = {
        .norm_w = l->ffn_norm,
        .norm_eps = p->config->norm_eps,
        .act = ACT_SILU,
        .next = l->down,
    };
    const struct epilogue add = {.residual = x};
    int r = p->ops->linear(p->stream, x, o, l->out, &add);

    if (!r)
        r = p->ops->gate_up(p->stream, p->h, x, l->gate_up, &gate_up);
    if (!r)
        r = p->ops->linear(p->stream, x, p->h, l->down, &add);
    return r;
}

/* Behind the last layer's attention no row is of use but those that have an output. */
static int step_outputs(const struct pass *p, const struct step *step, uint32_t i)
{
    int r;

    if (step->n_outputs == 0)
        return 0;
    p->q->n_rows = p->h->n_rows = step->n_outputs; /* the queries are done with */
    r = p->ops->gather(p->stream, p->y, p->x, step->output_token_idx);
    if (!r)
        r = p->ops->gather(p->stream, p->q, p->o, step->output_token_idx);
    return r ? r : step_rows(p, p->y, p->q, i);
}

static int llama_step(const struct pass *p, const struct step *step)
{
    uint32_t last = p->config->n_layers - 1;
    int r = p->ops->embed(p->stream, p->x, p->weights->embed, step->tokens, 1.0f);

    for (uint32_t i = 0; i < last && !r; i++) {
        r = step_attention(p, step, i, p->weights->layers[i].out);
        if (!r)
            r = step_rows(p, p->x, p->o, i);
    }
    if (!r)
        r = step_attention(p, step, last, NULL);
    return r ? r : step_outputs(p, step, last);
}

const struct arch arch_llama = {
    .name = "llama",
    .rope = ROPE_PAIRS,
    .load = llama_load,
    .step = llama_step,
};
