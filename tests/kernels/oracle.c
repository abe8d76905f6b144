#include "tests/kernels/oracle.h"

#include <math.h>
#include <stdlib.h>

#include "tests/kernels/oracle_memory.h"

/* As a bf16 pool keeps it: 8 bits of mantissa, ties to even. Values here are far from both ends. */
static double as_bf16(double x)
{
    int exponent;
    double mantissa;

    x = (double)(float)x;
    if (x == 0 || !isfinite(x))
        return x;
    mantissa = frexp(x, &exponent);
    return ldexp(rint(ldexp(mantissa, 8)), exponent - 8);
}

/* As a u8 pool keeps one head, in place. What a code is gets decided in the contract's own f32: a
 * value between two codes goes to either side by the last bit. */
static void as_codes(double *x, uint32_t n)
{
    float min = (float)x[0], max = min, range;

    for (uint32_t i = 0; i < n; i++) {
        min = fminf(min, (float)x[i]);
        max = fmaxf(max, (float)x[i]);
        if (!isfinite(x[i])) {
            min = -INFINITY;
            max = INFINITY;
        }
    }
    range = max - min;
    for (uint32_t i = 0; i < n; i++) {
        float inverse = 255 / range, above = (float)x[i] - min;

        if (!isfinite(range))
            x[i] = NAN;
        else if (range < 0x1p-100f)
            x[i] = as_bf16((double)min);
        else
            x[i] = as_bf16(rint((double)(above * inverse)) * (double)(range / 255) + (double)min);
    }
}

/* A row that goes into a product. */
struct input {
    double *x;
    bool is_finite;
};

static struct input normed(const float *x, uint32_t n, const float *norm_w, double eps)
{
    struct input in = {oracle_zeroed(n, sizeof *in.x), true};
    double sum = 0;

    for (uint32_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    for (uint32_t i = 0; i < n; i++) {
        in.x[i] = norm_w ? (double)x[i] / sqrt(sum / n + eps) * (double)norm_w[i] : (double)x[i];
        in.is_finite = in.is_finite && isfinite(in.x[i]);
    }
    return in;
}

static double product(const struct weight *w, uint32_t row, const struct input *in)
{
    struct oracle_cols cols = oracle_cols(w, row, in->is_finite);
    double sum = 0;

    for (uint32_t i = cols.begin; i < cols.end; i++)
        sum += w->values[(size_t)row * w->n_cols + i] * in->x[i];
    return sum;
}

static int oracle_embed(struct stream *s, struct tensor *x, const struct weight *e,
                        const int32_t *tokens, float scale)
{
    (void)s;
    for (uint32_t t = 0; t < x->n_rows; t++) {
        int64_t id = tokens[t];

        id = id < 0 ? 0 : id >= e->n_rows ? e->n_rows - 1 : id;
        for (uint32_t i = 0; i < e->n_cols; i++)
            oracle_row(x, t)[i] = (float)(e->values[(size_t)id * e->n_cols + i] * (double)scale);
    }
    return 0;
}

static int oracle_rmsnorm(struct stream *s, struct tensor *y, const struct tensor *x,
                          const float *w, float eps)
{
    (void)s;
    for (uint32_t t = 0; t < x->n_rows; t++) {
        struct input in = normed(oracle_row(x, t), x->n_cols, w, (double)eps);

        for (uint32_t i = 0; i < x->n_cols; i++)
            oracle_row(y, t)[i] = (float)in.x[i];
        free(in.x);
    }
    return 0;
}

static void finish_head(double *head, const struct qkv_args *args, const float *norm_w,
                        int32_t position)
{
    uint32_t hd = args->head_dim;
    const struct rope *rope = args->rope;
    double sum = 0;

    if (norm_w) {
        for (uint32_t i = 0; i < hd; i++)
            sum += head[i] * head[i];
        for (uint32_t i = 0; i < hd; i++)
            head[i] = head[i] / sqrt(sum / hd + (double)args->norm_eps) * (double)norm_w[i];
    }
    if (!rope || rope->kind == ROPE_NONE)
        return;
    for (uint32_t i = 0; i < rope->n_dims / 2; i++) {
        const float *cs = rope->cos_sin + ((size_t)position * (rope->n_dims / 2) + i) * 2;
        uint32_t a = rope->kind == ROPE_PAIRS ? 2 * i : i;
        uint32_t b = rope->kind == ROPE_PAIRS ? 2 * i + 1 : i + rope->n_dims / 2;
        double x0 = head[a], x1 = head[b];

        head[a] = x0 * (double)cs[0] - x1 * (double)cs[1];
        head[b] = x1 * (double)cs[0] + x0 * (double)cs[1];
    }
}

static int oracle_qkv(struct stream *s, struct tensor *q, struct kv *kv, const struct tensor *x,
                      const struct qkv_args *args)
{
    uint32_t hd = args->head_dim, n_q = args->n_heads * hd, n_k = args->n_kv_heads * hd;
    double *all = oracle_zeroed(args->w->n_rows, sizeof *all);

    (void)s;
    for (uint32_t t = 0; t < args->step->n_tokens; t++) {
        struct input in = normed(oracle_row(x, t), x->n_cols, args->norm_w, (double)args->norm_eps);
        int32_t position = args->step->positions[t];
        uint32_t slot_idx = args->step->slot_idx[t];

        for (uint32_t r = 0; r < args->w->n_rows; r++)
            all[r] = product(args->w, r, &in) + (args->bias ? (double)args->bias[r] : 0);
        for (uint32_t h = 0; h < args->n_heads; h++)
            finish_head(all + h * hd, args, args->q_norm_w, position);
        for (uint32_t h = 0; h < args->n_kv_heads; h++)
            finish_head(all + n_q + h * hd, args, args->k_norm_w, position);
        for (uint32_t i = 0; i < n_q; i++)
            oracle_row(q, t)[i] = (float)all[i];
        for (uint32_t h = 0; kv->shape.dtype == DTYPE_U8 && h < 2 * args->n_kv_heads; h++)
            as_codes(all + n_q + h * hd, hd);
        for (uint32_t i = 0; slot_idx != KERNELS_NO_SLOT && i < 2 * n_k; i++) {
            double value = kv->shape.dtype == DTYPE_BF16 ? as_bf16(all[n_q + i]) : all[n_q + i];

            oracle_kv_at(kv, args->layer, i >= n_k, slot_idx)[i % n_k] = value;
        }
        free(in.x);
    }
    free(all);
    return 0;
}

/* One head of one token: gathers what it sees into flat lists, then softmax by the book. */
static void attend(float *o, const float *q, const struct kv *kv, const struct attention_args *args,
                   uint32_t seq, int64_t position, uint32_t head)
{
    const struct step *step = args->step;
    uint32_t hd = args->head_dim, page_size = kv->shape.page_size, n = 0;
    uint32_t kv_head = head / (args->n_heads / args->n_kv_heads);
    const double **v = oracle_zeroed(step->n_keys[seq] + 1, sizeof *v);
    double *score = oracle_zeroed(step->n_keys[seq] + 1, sizeof *score), max = -INFINITY, sum = 0;
    double *out = oracle_zeroed(hd, sizeof *out);

    for (int64_t p = 0; p < step->n_keys[seq] && p <= position; p++) {
        uint32_t page, slot_idx;
        const double *k;

        if (args->window && p <= position - args->window)
            continue;
        page = step->table[step->table_off[seq] + p / page_size];
        slot_idx = page * page_size + (uint32_t)(p % page_size);
        k = oracle_kv_at(kv, args->layer, 0, slot_idx) + kv_head * hd;
        v[n] = oracle_kv_at(kv, args->layer, 1, slot_idx) + kv_head * hd;
        for (uint32_t i = 0; i < hd; i++)
            score[n] += (double)q[i] * (double)args->scale * k[i];
        if (args->softcap > 0)
            score[n] = (double)args->softcap * tanh(score[n] / (double)args->softcap);
        max = fmax(max, score[n]);
        n++;
    }
    if (args->sinks)
        max = fmax(max, (double)args->sinks[head]);
    for (uint32_t j = 0; j < n; j++)
        sum += score[j] = exp(score[j] - max);
    if (args->sinks)
        sum += exp((double)args->sinks[head] - max);
    for (uint32_t j = 0; j < n; j++) {
        score[j] /= sum;
        for (uint32_t i = 0; i < hd; i++)
            out[i] += score[j] * v[j][i];
    }
    for (uint32_t i = 0; i < hd; i++)
        o[i] = (float)out[i];
    free(v);
    free(score);
    free(out);
}

static int oracle_attention(struct stream *s, struct tensor *o, const struct tensor *q,
                            const struct kv *kv, const struct attention_args *args)
{
    const struct step *step = args->step;

    (void)s;
    for (uint32_t seq = 0; seq < step->n_seqs; seq++) {
        for (uint32_t t = step->token_off[seq]; t < step->token_off[seq + 1]; t++) {
            for (uint32_t h = 0; h < args->n_heads; h++)
                attend(oracle_row(o, t) + h * args->head_dim, oracle_row(q, t) + h * args->head_dim,
                       kv, args, seq, step->positions[t], h);
        }
    }
    return 0;
}

static int oracle_linear(struct stream *s, struct tensor *y, const struct tensor *x,
                         const struct weight *w, const struct epilogue *e)
{
    (void)s;
    for (uint32_t t = 0; t < x->n_rows; t++) {
        struct input in = normed(oracle_row(x, t), x->n_cols, NULL, 0);

        for (uint32_t r = 0; r < w->n_rows; r++) {
            double out = product(w, r, &in);

            if (e && e->bias)
                out += (double)e->bias[r];
            if (e && e->residual)
                out += (double)oracle_row(e->residual, t)[r];
            oracle_row(y, t)[r] = (float)out;
        }
        free(in.x);
    }
    return 0;
}

static int oracle_gate_up(struct stream *s, struct tensor *h, const struct tensor *x,
                          const struct weight *w, const struct gate_up_args *args)
{
    (void)s;
    for (uint32_t t = 0; t < x->n_rows; t++) {
        struct input in = normed(oracle_row(x, t), x->n_cols, args->norm_w, (double)args->norm_eps);

        for (uint32_t r = 0; r < w->n_rows / 2; r++) {
            double g = product(w, r, &in), up = product(w, w->n_rows / 2 + r, &in);

            if (args->act == ACT_SILU)
                g = g / (1 + exp(-g));
            else
                g = g / 2 * (1 + tanh(sqrt(2 / acos(-1)) * (g + 0.044715 * pow(g, 3))));
            oracle_row(h, t)[r] = (float)(g * up);
        }
        free(in.x);
    }
    return 0;
}

static int oracle_head(struct stream *s, struct tensor *logits, struct head_row *rows,
                       const struct tensor *x, const struct weight *w, const struct head_args *args)
{
    (void)s;
    for (uint32_t i = 0; i < args->step->n_outputs; i++) {
        struct input in = normed(oracle_row(x, args->step->output_token_idx[i]), x->n_cols,
                                 args->norm_w, (double)args->norm_eps);

        rows[i] = (struct head_row){.max = -INFINITY};
        for (uint32_t r = 0; r < w->n_rows; r++) {
            double out = product(w, r, &in);

            if (args->softcap > 0)
                out = (double)args->softcap * tanh(out / (double)args->softcap);
            rows[i].not_finite |= !isfinite((float)out);
            if ((float)out > rows[i].max)
                rows[i] = (struct head_row){r, (float)out, rows[i].not_finite};
            if (!args->want_logits || args->want_logits[i])
                oracle_row(logits, i)[r] = (float)out;
        }
        free(in.x);
    }
    return 0;
}

const struct backend_ops oracle_backend = {
    .name = "oracle",
    ORACLE_MEMORY,
    .embed = oracle_embed,
    .rmsnorm = oracle_rmsnorm,
    .qkv = oracle_qkv,
    .attention = oracle_attention,
    .linear = oracle_linear,
    .gate_up = oracle_gate_up,
    .head = oracle_head,
    .sample = oracle_sample,
};
