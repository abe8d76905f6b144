#include "tests/kernels/contract.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/numeric.h"
#include "tests/kernels/oracle.h"
#include "tests/kernels/oracle_memory.h"

enum { GROUP = 32 };

/* ---- products -------------------------------------------------------------------------------- */

/* 32 columns of a token in int8. */
struct group {
    int32_t q[GROUP], sum;
    float dy, sy;
};

/* The input of a product: f32 after the norm, and the same in int8 (as far as whole groups go). */
struct input {
    float *x;
    bool is_finite;
    struct group *groups;
};

static struct group quantise(const float *x)
{
    struct group g = {0};
    uint32_t bits = 0;
    float max;

    for (int k = 0; k < GROUP; k++) {
        uint32_t b = numeric_bits(x[k]) & 0x7fffffff;

        bits = b > bits ? b : bits;
    }
    max = numeric_from_bits(bits);
    if (bits >= 0x7f800000) {
        g.dy = g.sy = NAN;
    } else if (max >= 0x1p-100f) {
        g.dy = max / 127;
        for (int k = 0; k < GROUP; k++) {
            g.q[k] = (int32_t)rintf(x[k] * (127 / max));
            g.sum += g.q[k];
        }
        g.sy = g.dy * (float)g.sum;
    }
    return g;
}

static struct input input_new(const float *x, uint32_t n, const float *norm_w, float eps)
{
    struct input in = {.x = oracle_zeroed(n, sizeof *in.x),
                       .is_finite = true,
                       .groups = oracle_zeroed(n / GROUP, sizeof *in.groups)};
    float scale = norm_w ? numeric_rms_scale(numeric_sum_squares(x, n), n, eps) : 0;

    for (uint32_t k = 0; k < n; k++) {
        in.x[k] = norm_w ? x[k] * scale * norm_w[k] : x[k];
        in.is_finite = in.is_finite && isfinite(in.x[k]);
    }
    for (uint32_t g = 0; g < n / GROUP; g++)
        in.groups[g] = quantise(in.x + g * GROUP);
    return in;
}

static void input_free(struct input *in)
{
    free(in->x);
    free(in->groups);
}

static float read_half(const uint8_t *p)
{
    uint16_t half;

    memcpy(&half, p, sizeof half);
    return numeric_from_half(half);
}

/* Code k of a block, which stands for d times it (Q4_0, Q8_0) or d times it plus m. */
static int32_t code_of(const uint8_t *block, enum dtype t, int k)
{
    if (t == DTYPE_Q8_0)
        return (int8_t)block[2 + k];
    block += t == DTYPE_Q4_1 ? 4 : 2;
    return (block[k % 16] >> (k < 16 ? 0 : 4) & 15) - (t == DTYPE_Q4_0 ? 8 : 0);
}

static float value_of(const uint8_t *row, enum dtype t, uint32_t k)
{
    const uint8_t *block = row + k / GROUP * dtype_row_bytes(t, GROUP);
    uint16_t bf16;
    float x;

    switch (t) {
    case DTYPE_F32:
        memcpy(&x, row + (size_t)4 * k, sizeof x);
        return x;
    case DTYPE_F16:
        return read_half(row + (size_t)2 * k);
    case DTYPE_BF16:
        memcpy(&bf16, row + (size_t)2 * k, sizeof bf16);
        return numeric_from_bf16(bf16);
    case DTYPE_Q4_1:
        return fmaf(read_half(block), (float)code_of(block, t, k % GROUP), read_half(block + 2));
    default:
        return read_half(block) * (float)code_of(block, t, k % GROUP);
    }
}

static const uint8_t *row_of(const struct weight *w, uint32_t row, enum dtype *tp)
{
    const struct weight_part *part = w->parts;

    for (; row >= part->n_rows; part++)
        row -= part->n_rows;
    *tp = part->dtype;
    return (const uint8_t *)part->data + row * dtype_row_bytes(part->dtype, w->n_cols);
}

static float product(const struct weight *w, uint32_t row, const struct input *in)
{
    struct oracle_cols cols = oracle_cols(w, row, in->is_finite);
    enum dtype t;
    const uint8_t *at = row_of(w, row, &t);
    float acc = 0;

    for (uint32_t k = cols.begin; t < DTYPE_Q4_0 && k < cols.end; k++)
        acc = fmaf(value_of(at, t, k), in->x[k], acc);
    for (uint32_t g = 0; t >= DTYPE_Q4_0 && g < w->n_cols / GROUP; g++) {
        const struct group *group = &in->groups[g];
        int32_t s = 0;

        for (int k = 0; k < GROUP; k++)
            s += code_of(at, t, k) * group->q[k];
        acc = fmaf((float)s * group->dy, read_half(at), acc);
        if (t == DTYPE_Q4_1)
            acc = fmaf(group->sy, read_half(at + 2), acc);
        at += dtype_row_bytes(t, GROUP);
    }
    return acc;
}

/* ---- operators on rows ----------------------------------------------------------------------- */

static int contract_embed(struct stream *s, struct tensor *x, const struct weight *e,
                          const int32_t *tokens, float scale)
{
    (void)s;
    for (uint32_t t = 0; t < x->n_rows; t++) {
        uint32_t id = tokens[t] < 0 ? 0 : (uint32_t)tokens[t];
        enum dtype type;
        const uint8_t *row = row_of(e, id < e->n_rows ? id : e->n_rows - 1, &type);

        for (uint32_t k = 0; k < e->n_cols; k++)
            oracle_row(x, t)[k] = value_of(row, type, k) * scale;
    }
    return 0;
}

static int contract_rmsnorm(struct stream *s, struct tensor *y, const struct tensor *x,
                            const float *w, float eps)
{
    (void)s;
    for (uint32_t t = 0; t < x->n_rows; t++) {
        struct input in = input_new(oracle_row(x, t), x->n_cols, w, eps);

        memcpy(oracle_row(y, t), in.x, x->n_cols * sizeof *in.x);
        input_free(&in);
    }
    return 0;
}

static int contract_linear(struct stream *s, struct tensor *y, const struct tensor *x,
                           const struct weight *w, const struct epilogue *e)
{
    (void)s;
    for (uint32_t t = 0; t < x->n_rows; t++) {
        struct input in = input_new(oracle_row(x, t), w->n_cols, NULL, 0);

        for (uint32_t r = 0; r < w->n_rows; r++) {
            float out = product(w, r, &in);

            if (e && e->bias)
                out += e->bias[r];
            if (e && e->residual)
                out += oracle_row(e->residual, t)[r];
            oracle_row(y, t)[r] = out;
        }
        input_free(&in);
    }
    return 0;
}

static int contract_gate_up(struct stream *s, struct tensor *h, const struct tensor *x,
                            const struct weight *w, const struct gate_up_args *args)
{
    (void)s;
    for (uint32_t t = 0; t < x->n_rows; t++) {
        struct input in = input_new(oracle_row(x, t), w->n_cols, args->norm_w, args->norm_eps);

        for (uint32_t r = 0; r < w->n_rows / 2; r++) {
            float gate = product(w, r, &in), up = product(w, w->n_rows / 2 + r, &in);

            gate = args->act == ACT_SILU ? numeric_silu(gate) : numeric_gelu_tanh(gate);
            oracle_row(h, t)[r] = gate * up;
        }
        input_free(&in);
    }
    return 0;
}

static int contract_head(struct stream *s, struct tensor *logits, struct head_row *rows,
                         const struct tensor *x, const struct weight *w,
                         const struct head_args *args)
{
    (void)s;
    for (uint32_t i = 0; i < args->step->n_outputs; i++) {
        const float *row = oracle_row(x, args->step->output_token_idx[i]);
        struct input in = input_new(row, w->n_cols, args->norm_w, args->norm_eps);

        rows[i] = (struct head_row){.max = -INFINITY};
        for (uint32_t r = 0; r < w->n_rows; r++) {
            float out = product(w, r, &in);

            if (args->softcap != 0)
                out = numeric_softcap(out, args->softcap);
            rows[i].not_finite |= !isfinite(out);
            if (out > rows[i].max)
                rows[i] = (struct head_row){r, out, rows[i].not_finite};
            if (!args->want_logits || args->want_logits[i])
                oracle_row(logits, i)[r] = out;
        }
        input_free(&in);
    }
    return 0;
}

/* ---- queries, keys, values ------------------------------------------------------------------- */

static void finish_head(float *x, const struct qkv_args *args, const float *norm_w,
                        int32_t position)
{
    const struct rope *rope = args->rope;
    uint32_t hd = args->head_dim, half;

    if (norm_w) {
        float scale = numeric_rms_scale(numeric_sum_squares(x, hd), hd, args->norm_eps);

        for (uint32_t i = 0; i < hd; i++)
            x[i] = x[i] * scale * norm_w[i];
    }
    if (!rope || rope->kind == ROPE_NONE)
        return;
    half = rope->n_dims / 2;
    for (uint32_t i = 0; i < half; i++) {
        const float *cos_sin = rope->cos_sin + ((size_t)position * half + i) * 2;
        float *a = x + (rope->kind == ROPE_PAIRS ? 2 * i : i);
        float *b = x + (rope->kind == ROPE_PAIRS ? 2 * i + 1 : i + half), x0 = *a, x1 = *b;

        *a = fmaf(x0, cos_sin[0], -(x1 * cos_sin[1]));
        *b = fmaf(x1, cos_sin[0], x0 * cos_sin[1]);
    }
}

/* One head as it reads after it was written. */
static void keep(double *to, const float *x, uint32_t n, enum dtype t)
{
    float min = x[0], max = x[0], not_finite = 0;
    struct numeric_u8 u;

    for (uint32_t i = 0; i < n; i++) {
        min = x[i] < min ? x[i] : min;
        max = x[i] > max ? x[i] : max;
        not_finite += x[i] * 0;
    }
    u = numeric_u8(min, max, not_finite);
    for (uint32_t i = 0; i < n; i++) {
        if (t == DTYPE_U8)
            to[i] = (double)numeric_u8_value(numeric_u8_code(x[i], &u), u.scale, u.zero);
        else
            to[i] = (double)(t == DTYPE_BF16 ? numeric_round_bf16(x[i]) : x[i]);
    }
}

static int contract_qkv(struct stream *s, struct tensor *q, struct kv *kv, const struct tensor *x,
                        const struct qkv_args *args)
{
    uint32_t hd = args->head_dim, n_q = args->n_heads, n_k = args->n_kv_heads;
    float *all = oracle_zeroed(args->w->n_rows, sizeof *all);

    (void)s;
    for (uint32_t t = 0; t < args->step->n_tokens; t++) {
        struct input in = input_new(oracle_row(x, t), x->n_cols, args->norm_w, args->norm_eps);
        int32_t position = args->step->positions[t];
        uint32_t slot_idx = args->step->slot_idx[t];

        for (uint32_t r = 0; r < args->w->n_rows; r++)
            all[r] = product(args->w, r, &in) + (args->bias ? args->bias[r] : 0);
        for (uint32_t h = 0; h < n_q + n_k; h++)
            finish_head(all + h * hd, args, h < n_q ? args->q_norm_w : args->k_norm_w, position);
        memcpy(oracle_row(q, t), all, n_q * hd * sizeof *all);
        for (uint32_t h = 0; slot_idx != KERNELS_NO_SLOT && h < 2 * n_k; h++) {
            double *slot = oracle_kv_at(kv, args->layer, h >= n_k, slot_idx);

            keep(slot + h % n_k * hd, all + (n_q + h) * hd, hd, kv->shape.dtype);
        }
        input_free(&in);
    }
    free(all);
    return 0;
}

const struct backend_ops contract_backend = {
    .name = "contract",
    ORACLE_MEMORY,
    .embed = contract_embed,
    .rmsnorm = contract_rmsnorm,
    .qkv = contract_qkv,
    .attention = contract_attention,
    .linear = contract_linear,
    .gate_up = contract_gate_up,
    .head = contract_head,
    .sample = oracle_sample,
};
