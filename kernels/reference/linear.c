/* Operators that multiply by a weight, and the embedding. Each goes through the weight in tiles of
 * rows: all tokens times a tile, then the tile's epilogue, so that y may be the residual itself. */
#include "kernels/reference/reference.h"

#include <assert.h>
#include <math.h>
#include <string.h>

static uint32_t tile_rows(uint32_t n_rows, uint32_t row0)
{
    return n_rows - row0 < REFERENCE_TILE ? n_rows - row0 : REFERENCE_TILE;
}

/* Where an operator's input rows lie: x itself, or the scratch after a norm. */
struct rows {
    const float *data;
    size_t stride; /* f32s */
};

static struct rows input_rows(struct reference_stream *s, const struct tensor *x,
                              const float *norm_w, float norm_eps)
{
    if (!norm_w)
        return (struct rows){x->data, x->stride_bytes / sizeof(float)};
    assert(x->n_cols <= s->shape.max_cols && x->n_rows <= s->shape.max_tokens);
    for (uint32_t t = 0; t < x->n_rows; t++)
        reference_rmsnorm_row(s->normed + (size_t)t * x->n_cols, tensor_row(x, t), norm_w,
                              x->n_cols, norm_eps);
    return (struct rows){s->normed, x->n_cols};
}

int reference_embed(struct stream *stream, struct tensor *x, const struct weight *e,
                    const int32_t *tokens, float scale)
{
    (void)stream;
    for (uint32_t t = 0; t < x->n_rows; t++) {
        float *row = tensor_row(x, t);
        uint32_t id = tokens[t] < 0 ? 0 : (uint32_t)tokens[t];

        reference_weight_row(row, e, id < e->n_rows ? id : e->n_rows - 1);
        for (uint32_t i = 0; i < e->n_cols; i++)
            row[i] *= scale;
    }
    return 0;
}

int reference_rmsnorm(struct stream *stream, struct tensor *y, const struct tensor *x,
                      const float *w, float eps)
{
    (void)stream;
    for (uint32_t t = 0; t < x->n_rows; t++)
        reference_rmsnorm_row(tensor_row(y, t), tensor_row(x, t), w, x->n_cols, eps);
    return 0;
}

static void finish_heads(float *row, uint32_t n_heads, const float *norm_w,
                         const struct qkv_args *args, int32_t position)
{
    uint32_t hd = args->head_dim;

    for (uint32_t h = 0; h < n_heads; h++, row += hd) {
        if (norm_w)
            reference_rmsnorm_row(row, row, norm_w, hd, args->norm_eps);
        if (args->rope)
            reference_rope_head(row, args->rope, position);
    }
}

int reference_qkv(struct stream *stream, struct tensor *q, struct kv *kv, const struct tensor *x,
                  const struct qkv_args *args)
{
    struct reference_stream *s = (struct reference_stream *)stream;
    const struct step *step = args->step;
    const struct weight *w = args->w;
    uint32_t n_q = args->n_heads * args->head_dim, n_k = args->n_kv_heads * args->head_dim;
    struct rows in = input_rows(s, x, args->norm_w, args->norm_eps);

    assert(w->n_rows == n_q + 2 * n_k && n_k <= s->shape.max_cols);
    for (uint32_t row0 = 0; row0 < w->n_rows; row0 += REFERENCE_TILE) {
        uint32_t n = tile_rows(w->n_rows, row0);

        reference_weight_multiply(s, s->tile, w, row0, n, in.data, in.stride, step->n_tokens);
        for (uint32_t t = 0; t < step->n_tokens; t++) {
            const float *tile = s->tile + (size_t)t * REFERENCE_TILE;
            float *kv_row = s->keys + (size_t)t * 2 * n_k;

            for (uint32_t i = 0, row = row0; i < n; i++, row++) {
                float y = tile[i] + (args->bias ? args->bias[row] : 0);

                if (row < n_q)
                    tensor_row(q, t)[row] = y;
                else
                    kv_row[row - n_q] = y;
            }
        }
    }
    for (uint32_t t = 0; t < step->n_tokens; t++) {
        float *k = s->keys + (size_t)t * 2 * n_k;

        finish_heads(tensor_row(q, t), args->n_heads, args->q_norm_w, args, step->positions[t]);
        finish_heads(k, args->n_kv_heads, args->k_norm_w, args, step->positions[t]);
        reference_kv_put(kv, args->layer, step->slot_idx[t], k, k + n_k);
    }
    return 0;
}

int reference_linear(struct stream *stream, struct tensor *y, const struct tensor *x,
                     const struct weight *w, const struct epilogue *e)
{
    struct reference_stream *s = (struct reference_stream *)stream;
    struct rows in = input_rows(s, x, NULL, 0);

    assert(x->n_rows <= s->shape.max_tokens);
    for (uint32_t row0 = 0; row0 < w->n_rows; row0 += REFERENCE_TILE) {
        uint32_t n = tile_rows(w->n_rows, row0);

        reference_weight_multiply(s, s->tile, w, row0, n, in.data, in.stride, x->n_rows);
        for (uint32_t t = 0; t < x->n_rows; t++) {
            const float *tile = s->tile + (size_t)t * REFERENCE_TILE;
            const float *residual = e && e->residual ? tensor_row(e->residual, t) + row0 : NULL;
            float *out = tensor_row(y, t) + row0;

            for (uint32_t i = 0; i < n; i++) {
                float v = tile[i] + (e && e->bias ? e->bias[row0 + i] : 0);

                out[i] = residual ? v + residual[i] : v;
            }
        }
    }
    return 0;
}

/* In double: this backend answers for the contract's own polynomials as well. */
static double activate(double x, enum activation act)
{
    const double root_2_over_pi = 0.79788456080286535588;

    if (act == ACT_SILU)
        return x / (1 + exp(-x));
    return 0.5 * x * (1 + tanh(root_2_over_pi * (x + 0.044715 * x * x * x)));
}

int reference_gate_up(struct stream *stream, struct tensor *h, const struct tensor *x,
                      const struct weight *w, const struct gate_up_args *args)
{
    struct reference_stream *s = (struct reference_stream *)stream;
    struct rows in = input_rows(s, x, args->norm_w, args->norm_eps);
    uint32_t n_rows = w->n_rows / 2;

    assert(w->use == WEIGHT_GATE_UP && x->n_rows <= s->shape.max_tokens);
    for (uint32_t row0 = 0; row0 < n_rows; row0 += REFERENCE_TILE) {
        uint32_t n = tile_rows(n_rows, row0);

        reference_weight_multiply(s, s->tile, w, row0, n, in.data, in.stride, x->n_rows);
        reference_weight_multiply(s, s->tile2, w, n_rows + row0, n, in.data, in.stride, x->n_rows);
        for (uint32_t t = 0; t < x->n_rows; t++) {
            const float *gate = s->tile + (size_t)t * REFERENCE_TILE;
            const float *up = s->tile2 + (size_t)t * REFERENCE_TILE;
            float *out = tensor_row(h, t) + row0;

            for (uint32_t i = 0; i < n; i++)
                out[i] = (float)(activate((double)gate[i], args->act) * (double)up[i]);
        }
    }
    return 0;
}

/* Takes logits [id0, id0 + n) of one output row into account. */
static void head_row_update(struct head_row *row, const float *logits, uint32_t id0, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (!isfinite(logits[i]))
            row->not_finite = 1;
        if (logits[i] > row->max) {
            row->max = logits[i];
            row->argmax = id0 + i;
        }
    }
}

int reference_head(struct stream *stream, struct tensor *logits, struct head_row *rows,
                   const struct tensor *x, const struct weight *w, const struct head_args *args)
{
    struct reference_stream *s = (struct reference_stream *)stream;
    const struct step *step = args->step;
    uint32_t n_cols = x->n_cols;
    float cap = args->softcap;

    assert(step->n_outputs <= s->shape.max_outputs && n_cols <= s->shape.max_cols);
    for (uint32_t i = 0; i < step->n_outputs; i++) {
        const float *from = tensor_row(x, step->output_token_idx[i]);
        float *row = s->normed + (size_t)i * n_cols;

        if (args->norm_w)
            reference_rmsnorm_row(row, from, args->norm_w, n_cols, args->norm_eps);
        else
            memcpy(row, from, n_cols * sizeof *row);
        rows[i] = (struct head_row){.max = -HUGE_VALF};
    }
    for (uint32_t row0 = 0; row0 < w->n_rows; row0 += REFERENCE_TILE) {
        uint32_t n = tile_rows(w->n_rows, row0);

        reference_weight_multiply(s, s->tile, w, row0, n, s->normed, n_cols, step->n_outputs);
        for (uint32_t i = 0; i < step->n_outputs; i++) {
            float *tile = s->tile + (size_t)i * REFERENCE_TILE;

            for (uint32_t j = 0; cap != 0 && j < n; j++)
                tile[j] = (float)((double)cap * tanh((double)tile[j] / (double)cap));
            head_row_update(&rows[i], tile, row0, n);
            if (!args->want_logits || args->want_logits[i])
                memcpy(tensor_row(logits, i) + row0, tile, n * sizeof *tile);
        }
    }
    return 0;
}
