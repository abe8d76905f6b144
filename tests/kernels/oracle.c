#include "tests/kernels/oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/dequant.h"

struct backend {
    int unused;
};

struct weight {
    uint32_t n_rows, n_cols;
    double *values;
};

struct kv {
    struct kv_shape shape;
    double *values; /* [n_layers][2][n_slots][n_kv_heads * head_dim] */
};

static void *zeroed(size_t n, size_t size)
{
    void *data = calloc(n ? n : 1, size);

    if (!data)
        abort();
    return data;
}

static float *row_of(const struct tensor *t, uint32_t row)
{
    return (float *)((char *)t->data + row * t->stride_bytes);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static int oracle_open(struct backend **backendp, const struct backend_config *config,
                       const char **why)
{
    (void)config;
    *why = NULL;
    *backendp = zeroed(1, sizeof **backendp);
    return 0;
}

static struct backend *oracle_close(struct backend *b)
{
    free(b);
    return NULL;
}

static void oracle_caps(const struct backend *b, struct backend_caps *caps)
{
    (void)b;
    *caps = (struct backend_caps){.name = "oracle", .n_threads = 1};
}

static int oracle_buffer_new(struct backend *b, void **datap, size_t bytes, const void *init)
{
    (void)b;
    *datap = aligned_alloc(64, (bytes + 64) / 64 * 64);
    if (!*datap)
        abort();
    memset(*datap, 0, bytes);
    if (init)
        memcpy(*datap, init, bytes);
    return 0;
}

static void *oracle_buffer_free(struct backend *b, void *data)
{
    (void)b;
    free(data);
    return NULL;
}

static int oracle_weight_new(struct backend *b, struct weight **weightp,
                             const struct weight_spec *spec, const char **why)
{
    struct weight *w = zeroed(1, sizeof *w);
    float *row = zeroed(spec->n_cols, sizeof *row);
    double *out;

    (void)b;
    *why = NULL;
    for (uint32_t i = 0; i < spec->n_parts; i++)
        w->n_rows += spec->parts[i].n_rows;
    w->n_cols = spec->n_cols;
    w->values = out = zeroed((size_t)w->n_rows * w->n_cols, sizeof *w->values);
    for (uint32_t i = 0; i < spec->n_parts; i++) {
        size_t row_bytes = dtype_row_bytes(spec->parts[i].dtype, spec->n_cols);

        for (uint32_t r = 0; r < spec->parts[i].n_rows; r++) {
            dequant_row(row, (const char *)spec->parts[i].data + r * row_bytes,
                        spec->parts[i].dtype, spec->n_cols);
            for (uint32_t c = 0; c < spec->n_cols; c++)
                *out++ = (double)row[c];
        }
    }
    free(row);
    *weightp = w;
    return 0;
}

static struct weight *oracle_weight_free(struct weight *w)
{
    if (w)
        free(w->values);
    free(w);
    return NULL;
}

static size_t plane(const struct kv_shape *shape)
{
    return (size_t)shape->page_size * shape->n_kv_heads * shape->head_dim;
}

static double *kv_at(const struct kv *kv, uint32_t layer, int is_v, uint32_t slot_idx)
{
    size_t per_plane = plane(&kv->shape) * kv->shape.n_pages;

    return kv->values + (2 * layer + (uint32_t)is_v) * per_plane +
           (size_t)slot_idx * kv->shape.n_kv_heads * kv->shape.head_dim;
}

static size_t oracle_kv_page_bytes(const struct kv_shape *shape)
{
    return 2 * plane(shape) * shape->n_layers * sizeof(double);
}

static int oracle_kv_new(struct backend *b, struct kv **kvp, const struct kv_shape *shape,
                         const char **why)
{
    struct kv *kv = zeroed(1, sizeof *kv);

    (void)b;
    *why = NULL;
    kv->shape = *shape;
    kv->values =
        zeroed(oracle_kv_page_bytes(shape) / sizeof(double) * shape->n_pages, sizeof(double));
    *kvp = kv;
    return 0;
}

static struct kv *oracle_kv_free(struct kv *kv)
{
    if (kv)
        free(kv->values);
    free(kv);
    return NULL;
}

static int oracle_kv_populate(struct kv *kv, uint32_t page_idx, uint32_t n_pages)
{
    (void)kv;
    (void)page_idx;
    (void)n_pages;
    return 0;
}

static int oracle_kv_clear(struct kv *kv, uint32_t page_idx)
{
    for (uint32_t layer = 0; layer < kv->shape.n_layers; layer++)
        memset(kv_at(kv, layer, 1, page_idx * kv->shape.page_size), 0,
               plane(&kv->shape) * sizeof(double));
    return 0;
}

static int oracle_kv_copy(struct kv *kv, const struct page_copy *copies, uint32_t n_copies)
{
    uint32_t page_size = kv->shape.page_size;

    for (uint32_t i = 0; i < n_copies; i++) {
        for (uint32_t layer = 0; layer < kv->shape.n_layers; layer++) {
            for (int is_v = 0; is_v < 2; is_v++)
                memcpy(kv_at(kv, layer, is_v, copies[i].to_page * page_size),
                       kv_at(kv, layer, is_v, copies[i].from_page * page_size),
                       plane(&kv->shape) * sizeof(double));
        }
    }
    return 0;
}

static int oracle_stream_new(struct backend *b, struct stream **streamp,
                             const struct stream_shape *shape)
{
    (void)b;
    (void)shape;
    *streamp = zeroed(1, sizeof **streamp);
    (*streamp)->ops = &oracle_backend;
    return 0;
}

static struct stream *oracle_stream_free(struct stream *s)
{
    free(s);
    return NULL;
}

/* ---- operators ------------------------------------------------------------------------------- */

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

static double *normed(const float *x, uint32_t n, const float *norm_w, double eps)
{
    double *y = zeroed(n, sizeof *y), sum = 0;

    for (uint32_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    for (uint32_t i = 0; i < n; i++)
        y[i] = norm_w ? (double)x[i] / sqrt(sum / n + eps) * (double)norm_w[i] : (double)x[i];
    return y;
}

static double product(const struct weight *w, uint32_t row, const double *x)
{
    double sum = 0;

    for (uint32_t i = 0; i < w->n_cols; i++)
        sum += w->values[(size_t)row * w->n_cols + i] * x[i];
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
            row_of(x, t)[i] = (float)(e->values[(size_t)id * e->n_cols + i] * (double)scale);
    }
    return 0;
}

static int oracle_rmsnorm(struct stream *s, struct tensor *y, const struct tensor *x,
                          const float *w, float eps)
{
    (void)s;
    for (uint32_t t = 0; t < x->n_rows; t++) {
        double *row = normed(row_of(x, t), x->n_cols, w, (double)eps);

        for (uint32_t i = 0; i < x->n_cols; i++)
            row_of(y, t)[i] = (float)row[i];
        free(row);
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
    double *all = zeroed(args->w->n_rows, sizeof *all);

    (void)s;
    for (uint32_t t = 0; t < args->step->n_tokens; t++) {
        double *in = normed(row_of(x, t), x->n_cols, args->norm_w, (double)args->norm_eps);
        int32_t position = args->step->positions[t];
        uint32_t slot_idx = args->step->slot_idx[t];

        for (uint32_t r = 0; r < args->w->n_rows; r++)
            all[r] = product(args->w, r, in) + (args->bias ? (double)args->bias[r] : 0);
        for (uint32_t h = 0; h < args->n_heads; h++)
            finish_head(all + h * hd, args, args->q_norm_w, position);
        for (uint32_t h = 0; h < args->n_kv_heads; h++)
            finish_head(all + n_q + h * hd, args, args->k_norm_w, position);
        for (uint32_t i = 0; i < n_q; i++)
            row_of(q, t)[i] = (float)all[i];
        for (uint32_t h = 0; kv->shape.dtype == DTYPE_U8 && h < 2 * args->n_kv_heads; h++)
            as_codes(all + n_q + h * hd, hd);
        for (uint32_t i = 0; slot_idx != KERNELS_NO_SLOT && i < 2 * n_k; i++) {
            double value = kv->shape.dtype == DTYPE_BF16 ? as_bf16(all[n_q + i]) : all[n_q + i];

            kv_at(kv, args->layer, i >= n_k, slot_idx)[i % n_k] = value;
        }
        free(in);
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
    const double **v = zeroed(step->n_keys[seq] + 1, sizeof *v);
    double *score = zeroed(step->n_keys[seq] + 1, sizeof *score), max = -INFINITY, sum = 0;

    for (int64_t p = 0; p < step->n_keys[seq] && p <= position; p++) {
        uint32_t page, slot_idx;
        const double *k;

        if (args->window && p <= position - args->window)
            continue;
        page = step->table[step->table_off[seq] + p / page_size];
        slot_idx = page * page_size + (uint32_t)(p % page_size);
        k = kv_at(kv, args->layer, 0, slot_idx) + kv_head * hd;
        v[n] = kv_at(kv, args->layer, 1, slot_idx) + kv_head * hd;
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
        sum += exp(score[j] - max);
    if (args->sinks)
        sum += exp((double)args->sinks[head] - max);
    for (uint32_t i = 0; i < hd; i++) {
        double out = 0;

        for (uint32_t j = 0; j < n; j++)
            out += exp(score[j] - max) / sum * v[j][i];
        o[i] = (float)out;
    }
    free(v);
    free(score);
}

static int oracle_attention(struct stream *s, struct tensor *o, const struct tensor *q,
                            const struct kv *kv, const struct attention_args *args)
{
    const struct step *step = args->step;

    (void)s;
    for (uint32_t seq = 0; seq < step->n_seqs; seq++) {
        for (uint32_t t = step->token_off[seq]; t < step->token_off[seq + 1]; t++) {
            for (uint32_t h = 0; h < args->n_heads; h++)
                attend(row_of(o, t) + h * args->head_dim, row_of(q, t) + h * args->head_dim, kv,
                       args, seq, step->positions[t], h);
        }
    }
    return 0;
}

static int oracle_linear(struct stream *s, struct tensor *y, const struct tensor *x,
                         const struct weight *w, const struct epilogue *e)
{
    (void)s;
    for (uint32_t t = 0; t < x->n_rows; t++) {
        double *in = normed(row_of(x, t), x->n_cols, NULL, 0);

        for (uint32_t r = 0; r < w->n_rows; r++) {
            double out = product(w, r, in);

            if (e && e->bias)
                out += (double)e->bias[r];
            if (e && e->residual)
                out += (double)row_of(e->residual, t)[r];
            row_of(y, t)[r] = (float)out;
        }
        free(in);
    }
    return 0;
}

static int oracle_gate_up(struct stream *s, struct tensor *h, const struct tensor *x,
                          const struct weight *w, const struct gate_up_args *args)
{
    (void)s;
    for (uint32_t t = 0; t < x->n_rows; t++) {
        double *in = normed(row_of(x, t), x->n_cols, args->norm_w, (double)args->norm_eps);

        for (uint32_t r = 0; r < w->n_rows / 2; r++) {
            double g = product(w, r, in), up = product(w, w->n_rows / 2 + r, in);

            if (args->act == ACT_SILU)
                g = g / (1 + exp(-g));
            else
                g = g / 2 * (1 + tanh(sqrt(2 / acos(-1)) * (g + 0.044715 * pow(g, 3))));
            row_of(h, t)[r] = (float)(g * up);
        }
        free(in);
    }
    return 0;
}

static int oracle_head(struct stream *s, struct tensor *logits, struct head_row *rows,
                       const struct tensor *x, const struct weight *w, const struct head_args *args)
{
    (void)s;
    for (uint32_t i = 0; i < args->step->n_outputs; i++) {
        double *in = normed(row_of(x, args->step->output_token_idx[i]), x->n_cols, args->norm_w,
                            (double)args->norm_eps);

        rows[i] = (struct head_row){.max = -INFINITY};
        for (uint32_t r = 0; r < w->n_rows; r++) {
            double out = product(w, r, in);

            if (args->softcap > 0)
                out = (double)args->softcap * tanh(out / (double)args->softcap);
            rows[i].not_finite |= !isfinite((float)out);
            if ((float)out > rows[i].max)
                rows[i] = (struct head_row){r, (float)out, rows[i].not_finite};
            if (!args->want_logits || args->want_logits[i])
                row_of(logits, i)[r] = (float)out;
        }
        free(in);
    }
    return 0;
}

const struct backend_ops oracle_backend = {
    .name = "oracle",
    .open = oracle_open,
    .close = oracle_close,
    .caps = oracle_caps,
    .buffer_new = oracle_buffer_new,
    .buffer_free = oracle_buffer_free,
    .weight_new = oracle_weight_new,
    .weight_free = oracle_weight_free,
    .kv_new = oracle_kv_new,
    .kv_free = oracle_kv_free,
    .kv_page_bytes = oracle_kv_page_bytes,
    .kv_populate = oracle_kv_populate,
    .kv_clear = oracle_kv_clear,
    .kv_copy = oracle_kv_copy,
    .stream_new = oracle_stream_new,
    .stream_free = oracle_stream_free,
    .embed = oracle_embed,
    .rmsnorm = oracle_rmsnorm,
    .qkv = oracle_qkv,
    .attention = oracle_attention,
    .linear = oracle_linear,
    .gate_up = oracle_gate_up,
    .head = oracle_head,
    .sample = oracle_sample,
};
