/* Results of the cpu backend depend on the row only: the same bits at every level, for every number
 * of threads, batch, chunking and page size. A small two-layer model is run over the same sequences
 * in many ways; single operators are run over odd sizes. The scalar level, one thread, one row at a
 * time (or one sequence at a time) is what all others must equal. NaNs are compared as such, not by
 * their payload. */
#include "kernels/kernels.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/isa.h"
#include "kernels/numeric.h"
#include "tests/kernels/ops_common.h"

TestSuite(cpu_bits, .init = kernels_thread_init);

/* Number of values that differ in their bits and are not both NaN. */
static size_t n_different(const float *a, const float *b, size_t n)
{
    size_t differ = 0;

    for (size_t i = 0; i < n; i++)
        differ += numeric_bits(a[i]) != numeric_bits(b[i]) && !(a[i] != a[i] && b[i] != b[i]);
    return differ;
}

/* ---- inputs ---------------------------------------------------------------------------------- */

/* Normal; every fifth value 20 times that; some denormal, some zero, some tiny. */
static float hard_value(uint64_t *state)
{
    float x = (float)ops_random_normal(state);

    switch (ops_random(state) % 16) {
    case 0:
    case 1:
    case 2:
        return x * 20;
    case 3:
        return numeric_from_bits(ops_random(state) & 0x807fffff);
    case 4:
        return x * 0x1p-80f;
    case 5:
        return 0.0f;
    default:
        return x;
    }
}

/* A weight in the file's layout, of a format, n_rows x n_cols; the caller frees it. */
static void *random_rows(uint64_t *state, enum dtype t, uint32_t n_rows, uint32_t n_cols)
{
    size_t bytes = dtype_row_bytes(t, n_cols) * n_rows, block = dtype_row_bytes(t, 32);
    bool quantised = t == DTYPE_Q4_0 || t == DTYPE_Q4_1 || t == DTYPE_Q8_0;
    uint8_t *data = malloc(bytes);

    for (size_t i = 0; i < bytes; i++)
        data[i] = (uint8_t)ops_random(state);
    for (size_t i = 0; quantised && i < bytes; i += block) {
        /* Scales: f16 of either sign, about 2^-7; now and then denormal. */
        for (int s = 0; s < (t == DTYPE_Q4_1 ? 2 : 1); s++) {
            uint16_t half = (uint16_t)(0x1c00 | (ops_random(state) & 0x87ff));

            if (ops_random(state) % 64 == 0)
                half &= 0x83ff;
            memcpy(data + i + 2 * (size_t)s, &half, 2);
        }
    }
    for (size_t i = 0; !quantised && i < (size_t)n_rows * n_cols; i++) {
        float x = (float)ops_random_normal(state) * 0.1f;
        uint16_t half = numeric_to_bf16(x);

        if (t == DTYPE_F32)
            memcpy(data + 4 * i, &x, 4);
        if (t == DTYPE_F16)
            half = (uint16_t)(0x2800 | (ops_random(state) & 0x87ff));
        if (t == DTYPE_F16 && ops_random(state) % 64 == 0)
            half &= 0x83ff;
        if (t != DTYPE_F32)
            memcpy(data + 2 * i, &half, 2);
    }
    return data;
}

static struct weight *random_weight(struct backend *b, uint64_t seed, enum weight_use use,
                                    uint32_t n_cols, uint32_t n_parts, const uint32_t *n_rows,
                                    const enum dtype *dtypes)
{
    struct weight_spec spec = {"random", use, n_cols, n_parts, {{0}}};
    struct weight *w = NULL;
    const char *why = "";
    void *data[3];

    for (uint32_t i = 0; i < n_parts; i++) {
        data[i] = random_rows(&seed, dtypes[i], n_rows[i], n_cols);
        spec.parts[i] = (struct weight_part){data[i], dtypes[i], n_rows[i]};
    }
    cr_assert_eq(backend_cpu.weight_new(b, &w, &spec, &why), 0, "%s", why);
    for (uint32_t i = 0; i < n_parts; i++)
        free(data[i]);
    return w;
}

static struct backend *open_level(const char *isa, uint32_t n_threads)
{
    const struct backend_config config = {.n_threads = n_threads, .isa = isa};
    struct backend *b = NULL;
    const char *why = "";

    cr_assert_eq(backend_cpu.open(&b, &config, &why), 0, "%s", why);
    return b;
}

/* ---- a model over the operators -------------------------------------------------------------- */

enum {
    N_EMBD = 96,
    N_FFN = 160,
    N_HEADS = 6,
    N_KV_HEADS = 2,
    HEAD_DIM = 24, /* not a multiple of 16: units of three panels hold two heads */
    N_Q = N_HEADS * HEAD_DIM,
    N_KV = N_KV_HEADS * HEAD_DIM,
    N_VOCAB = 203,
    N_LAYERS = 2,
    N_SEQS = 4,
    TOKENS_MAX = 700,
    LENGTH_MAX = 560
};
static const uint32_t lengths[N_SEQS] = {1, 37, 270, 530};

struct variant {
    enum dtype dtypes[3]; /* q, k, v; the first of them for all else */
    enum dtype kv_dtype, embed_dtype;
    uint32_t window;
    float softcap;
    bool sinks;
};

struct run {
    const struct variant *variant;
    struct backend *b;
    struct stream *s;
    struct kv *kv;
    uint32_t page_size;
    bool hands_on; /* gate_up makes what down's product wants */
    struct weight *embed, *qkv[N_LAYERS], *out[N_LAYERS], *gate_up[N_LAYERS], *down[N_LAYERS];
    float *x, *q, *h, *o, *logits, *norm, *bias, *sinks, *table;
    struct rope rope;
    float *result; /* [N_SEQS][LENGTH_MAX][N_VOCAB] logits of every token */
    struct head_row *rows;
};

static float *backend_floats(struct backend *b, size_t n, uint64_t *state)
{
    float *init = calloc(n, sizeof *init);
    void *data = NULL;

    for (size_t i = 0; state && i < n; i++)
        init[i] = (float)ops_random_normal(state);
    cr_assert_eq(backend_cpu.buffer_new(b, &data, n * sizeof *init, init), 0);
    free(init);
    return data;
}

static void run_open(struct run *r, const struct variant *v, const char *isa, uint32_t n_threads,
                     uint32_t page_size)
{
    const struct stream_shape shape = {TOKENS_MAX, N_SEQS,  TOKENS_MAX, 256,
                                       N_VOCAB,    N_HEADS, HEAD_DIM,   1024};
    const struct kv_shape kv_shape = {N_LAYERS,
                                      N_KV_HEADS,
                                      HEAD_DIM,
                                      page_size,
                                      N_SEQS * ((LENGTH_MAX + page_size - 1) / page_size),
                                      v->kv_dtype};
    const uint32_t qkv_rows[] = {N_Q, N_KV, N_KV}, ffn_rows[] = {N_FFN, N_FFN}, embd = N_EMBD,
                   vocab = N_VOCAB;
    const enum dtype gate_up[] = {v->dtypes[0], v->dtypes[1]};
    uint64_t state = 99;
    const char *why = "";

    *r = (struct run){.variant = v, .b = open_level(isa, n_threads), .page_size = page_size};
    cr_assert_eq(backend_cpu.stream_new(r->b, &r->s, &shape), 0);
    cr_assert_eq(backend_cpu.kv_new(r->b, &r->kv, &kv_shape, &why), 0, "%s", why);
    r->embed = random_weight(r->b, 1, WEIGHT_EMBED, N_EMBD, 1, &vocab, &v->embed_dtype);
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        r->qkv[l] = random_weight(r->b, 10 + l, WEIGHT_LINEAR, N_EMBD, 3, qkv_rows, v->dtypes);
        r->out[l] =
            random_weight(r->b, 20 + l, WEIGHT_LINEAR,
                          v->dtypes[0] < DTYPE_Q4_0 ? N_Q : N_Q / 32 * 32, 1, &embd, v->dtypes);
        r->gate_up[l] = random_weight(r->b, 30 + l, WEIGHT_GATE_UP, N_EMBD, 2, ffn_rows, gate_up);
        r->down[l] = random_weight(r->b, 40 + l, WEIGHT_LINEAR, N_FFN, 1, &embd, v->dtypes);
    }
    r->x = backend_floats(r->b, (size_t)TOKENS_MAX * N_EMBD, NULL);
    r->q = backend_floats(r->b, (size_t)TOKENS_MAX * N_Q, NULL);
    r->o = backend_floats(r->b, (size_t)TOKENS_MAX * N_Q, NULL);
    r->h = backend_floats(r->b, (size_t)TOKENS_MAX * N_FFN, NULL);
    r->logits = backend_floats(r->b, (size_t)TOKENS_MAX * 208, NULL);
    r->norm = backend_floats(r->b, 256, &state);
    r->bias = backend_floats(r->b, 256, &state);
    r->sinks = backend_floats(r->b, N_HEADS, &state);
    r->table = backend_floats(r->b, (size_t)LENGTH_MAX * HEAD_DIM, &state);
    r->rope = (struct rope){ROPE_HALVES, HEAD_DIM - 4, LENGTH_MAX, r->table};
    r->result = calloc((size_t)N_SEQS * LENGTH_MAX * N_VOCAB, sizeof(float));
    r->rows = calloc((size_t)N_SEQS * LENGTH_MAX, sizeof *r->rows);
}

static void run_close(struct run *r)
{
    float *buffers[] = {r->x, r->q, r->o, r->h, r->logits, r->norm, r->bias, r->sinks, r->table};

    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++)
        backend_cpu.buffer_free(r->b, buffers[i]);
    backend_cpu.weight_free(r->embed);
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        backend_cpu.weight_free(r->qkv[l]);
        backend_cpu.weight_free(r->out[l]);
        backend_cpu.weight_free(r->gate_up[l]);
        backend_cpu.weight_free(r->down[l]);
    }
    backend_cpu.kv_free(r->kv);
    backend_cpu.stream_free(r->s);
    backend_cpu.close(r->b);
    free(r->result);
    free(r->rows);
}

static struct tensor rows_of(float *data, uint32_t n_rows, uint32_t n_cols, uint32_t stride)
{
    return (struct tensor){data, DTYPE_F32, n_rows, n_cols, stride * sizeof(float)};
}

static void run_layer(struct run *r, const struct step *step, uint32_t layer)
{
    const struct variant *v = r->variant;
    uint32_t n = step->n_tokens, o_cols = v->dtypes[0] < DTYPE_Q4_0 ? N_Q : N_Q / 32 * 32;
    struct tensor x = rows_of(r->x, n, N_EMBD, N_EMBD), q = rows_of(r->q, n, N_Q, N_Q);
    struct tensor o = rows_of(r->o, n, N_Q, N_Q), h = rows_of(r->h, n, N_FFN, N_FFN);
    const struct qkv_args qkv = {.step = step,
                                 .w = r->qkv[layer],
                                 .norm_w = r->norm,
                                 .norm_eps = 1e-5f,
                                 .bias = r->bias,
                                 .q_norm_w = r->norm,
                                 .k_norm_w = r->norm,
                                 .rope = &r->rope,
                                 .layer = layer,
                                 .n_heads = N_HEADS,
                                 .n_kv_heads = N_KV_HEADS,
                                 .head_dim = HEAD_DIM};
    const struct attention_args attention = {.step = step,
                                             .layer = layer,
                                             .n_heads = N_HEADS,
                                             .n_kv_heads = N_KV_HEADS,
                                             .head_dim = HEAD_DIM,
                                             .scale = 0.2f,
                                             .window = v->window,
                                             .softcap = v->softcap,
                                             .sinks = v->sinks ? r->sinks : NULL};
    /* The oracle, one thread at the scalar level, hands nothing on. */
    const struct gate_up_args gate_up = {.norm_w = r->norm,
                                         .norm_eps = 1e-5f,
                                         .act = layer ? ACT_GELU_TANH : ACT_SILU,
                                         .next = r->hands_on ? r->down[layer] : NULL};
    const struct epilogue residual = {layer ? r->bias : NULL, &x};

    cr_assert_eq(backend_cpu.qkv(r->s, &q, r->kv, &x, &qkv), 0);
    cr_assert_eq(backend_cpu.attention(r->s, &o, &q, r->kv, &attention), 0);
    o.n_cols = o_cols;
    cr_assert_eq(backend_cpu.linear(r->s, &x, &o, r->out[layer], &residual), 0);
    cr_assert_eq(backend_cpu.gate_up(r->s, &h, &x, r->gate_up[layer], &gate_up), 0);
    cr_assert_eq(backend_cpu.linear(r->s, &x, &h, r->down[layer], &residual), 0);
}

/* One step: counts[i] tokens of sequence i from done[i] on. Its pages lie backwards in the pool. */
static void run_step(struct run *r, uint32_t done[N_SEQS], const uint32_t counts[N_SEQS])
{
    static int32_t tokens[TOKENS_MAX], positions[TOKENS_MAX];
    static uint32_t slots[TOKENS_MAX], outputs[TOKENS_MAX], table[N_SEQS * LENGTH_MAX];
    uint32_t off[N_SEQS + 1] = {0}, n_keys[N_SEQS], table_off[N_SEQS + 1] = {0}, n = 0, n_seqs = 0;
    uint32_t n_pages = (LENGTH_MAX + r->page_size - 1) / r->page_size, who[TOKENS_MAX];
    struct tensor x, logits;
    struct step step;

    for (uint32_t i = 0; i < N_SEQS; i++) {
        if (!counts[i])
            continue;
        for (uint32_t p = 0; p < n_pages; p++)
            table[table_off[n_seqs] + p] = (n_pages - 1 - p) * N_SEQS + i;
        for (uint32_t t = 0; t < counts[i]; t++, n++) {
            uint32_t at = done[i] + t;

            tokens[n] = (int32_t)((at * 31 + i * 17) % N_VOCAB);
            positions[n] = (int32_t)at;
            slots[n] =
                table[table_off[n_seqs] + at / r->page_size] * r->page_size + at % r->page_size;
            outputs[n] = n;
            who[n] = i * LENGTH_MAX + at;
        }
        done[i] += counts[i];
        n_keys[n_seqs] = done[i];
        table_off[n_seqs + 1] = table_off[n_seqs] + n_pages;
        off[++n_seqs] = n;
    }
    step = (struct step){.n_tokens = n,
                         .n_seqs = n_seqs,
                         .n_outputs = n,
                         .tokens = tokens,
                         .positions = positions,
                         .token_off = off,
                         .n_keys = n_keys,
                         .slot_idx = slots,
                         .table_off = table_off,
                         .table = table,
                         .output_token_idx = outputs};
    x = rows_of(r->x, n, N_EMBD, N_EMBD);
    logits = rows_of(r->logits, n, N_VOCAB, 208);
    cr_assert_eq(backend_cpu.embed(r->s, &x, r->embed, tokens, 1.5f), 0);
    for (uint32_t l = 0; l < N_LAYERS; l++)
        run_layer(r, &step, l);
    {
        const struct head_args head = {.step = &step, .norm_w = r->norm, .norm_eps = 1e-5f};
        struct head_row rows[TOKENS_MAX];

        cr_assert_eq(backend_cpu.head(r->s, &logits, rows, &x, r->embed, &head), 0);
        for (uint32_t t = 0; t < n; t++) {
            memcpy(r->result + (size_t)who[t] * N_VOCAB, r->logits + (size_t)t * 208,
                   N_VOCAB * sizeof(float));
            r->rows[who[t]] = rows[t];
        }
    }
}

/* All sequences to their ends: chunk[i] tokens of sequence i a step, 0: after all others are
 * done. */
static void run_all(struct run *r, const uint32_t chunk[N_SEQS])
{
    uint32_t done[N_SEQS] = {0};

    for (;;) {
        uint32_t counts[N_SEQS] = {0}, n = 0;

        for (uint32_t i = 0; i < N_SEQS; i++) {
            counts[i] = lengths[i] - done[i] < chunk[i] ? lengths[i] - done[i] : chunk[i];
            n += counts[i];
        }
        for (uint32_t i = 0; i < N_SEQS && !n; i++)
            n = counts[i] = lengths[i] - done[i];
        if (!n)
            return;
        run_step(r, done, counts);
    }
}

static const uint32_t chunkings[][N_SEQS] = {
    {0, 0, 0, 0}, {1, 37, 200, 400}, {1, 5, 64, 33}, {1, 16, 0, 129}, {0, 1, 7, 300}};

static void check_variant(const struct variant *v)
{
    static const uint32_t page_sizes[] = {256, 16, 48, 16, 256};
    const size_t n = (size_t)N_SEQS * LENGTH_MAX;
    const struct level *level;
    struct run want;

    run_open(&want, v, "scalar", 1, 256);
    run_all(&want, chunkings[0]);
    for (size_t i = 0; i < n; i++)
        cr_assert_eq(want.rows[i].not_finite, 0, "the model is not a sane one");
    for (uint32_t l = 0; (level = isa_level_at(l)); l++) {
        for (uint32_t c = l ? 0 : 2; c < (l ? 5 : 3); c++) {
            uint32_t n_threads = 1 + (c + l) % 4;
            struct run got;
            size_t differ;

            run_open(&got, v, level->name, n_threads, page_sizes[c]);
            got.hands_on = true;
            run_all(&got, chunkings[c]);
            differ = n_different(got.result, want.result, n * N_VOCAB);
            cr_expect_eq(differ, 0, "%s/%s kv %s: %s, %u threads, chunking %u: %zu logits differ",
                         dtype_name(v->dtypes[0]), dtype_name(v->dtypes[1]),
                         dtype_name(v->kv_dtype), level->name, n_threads, c, differ);
            for (size_t i = 0; i < n; i++)
                cr_expect(!memcmp(&got.rows[i], &want.rows[i], sizeof want.rows[i]),
                          "%s: row %zu: argmax %u, should be %u", level->name, i,
                          got.rows[i].argmax, want.rows[i].argmax);
            run_close(&got);
        }
    }
    run_close(&want);
}

Test(cpu_bits, model_q4_1)
{
    check_variant(&(struct variant){.dtypes = {DTYPE_Q4_1, DTYPE_Q4_1, DTYPE_Q4_1},
                                    .kv_dtype = DTYPE_BF16,
                                    .embed_dtype = DTYPE_Q8_0});
}

Test(cpu_bits, model_q4_0_window)
{
    check_variant(&(struct variant){.dtypes = {DTYPE_Q4_0, DTYPE_Q8_0, DTYPE_F16},
                                    .kv_dtype = DTYPE_BF16,
                                    .embed_dtype = DTYPE_Q4_0,
                                    .window = 100,
                                    .sinks = true});
}

Test(cpu_bits, model_q8_0_softcap)
{
    check_variant(&(struct variant){.dtypes = {DTYPE_Q8_0, DTYPE_F32, DTYPE_Q4_1},
                                    .kv_dtype = DTYPE_F32,
                                    .embed_dtype = DTYPE_Q4_1,
                                    .softcap = 20});
}

Test(cpu_bits, model_bf16)
{
    check_variant(&(struct variant){.dtypes = {DTYPE_BF16, DTYPE_F16, DTYPE_BF16},
                                    .kv_dtype = DTYPE_BF16,
                                    .embed_dtype = DTYPE_F32,
                                    .window = 290,
                                    .softcap = 50,
                                    .sinks = true});
}

Test(cpu_bits, model_u8_keys)
{
    check_variant(&(struct variant){.dtypes = {DTYPE_Q4_1, DTYPE_Q8_0, DTYPE_Q4_0},
                                    .kv_dtype = DTYPE_U8,
                                    .embed_dtype = DTYPE_Q8_0,
                                    .window = 310,
                                    .sinks = true});
}

/* ---- single operators over odd sizes --------------------------------------------------------- */

static const struct {
    uint32_t n_cols, n_rows;
} odd_sizes[] = {{32, 1}, {64, 15}, {96, 17}, {544, 33}, {160, 100}, {1056, 17}};

enum { N_ODD = 6, ODD_TOKENS = 89, ODD_STRIDE = 1152, OUT_STRIDE = 112 };

/* Rows of x through linear, gate_up and head at a level, `batch` tokens a call. */
static void run_odd(const char *isa, uint32_t n_threads, uint32_t batch, enum dtype t,
                    uint32_t size, float *x, float *out)
{
    static const struct stream_shape shape = {96, 96, 96, ODD_STRIDE, 256, 4, 64, 1024};
    uint32_t n_cols = odd_sizes[size].n_cols - (t < DTYPE_Q4_0 ? 3 : 0);
    uint32_t n_rows = odd_sizes[size].n_rows, rows2[] = {n_rows, n_rows};
    const enum dtype dtypes[] = {t, t};
    struct backend *b = open_level(isa, n_threads);
    struct weight *w = random_weight(b, 5, WEIGHT_LINEAR, n_cols, 1, rows2, dtypes);
    struct weight *g = random_weight(b, 6, WEIGHT_GATE_UP, n_cols, 2, rows2, dtypes);
    struct stream *s;
    float *rows[3] = {out, out + ODD_TOKENS * OUT_STRIDE, out + 2 * ODD_TOKENS * OUT_STRIDE};
    float bias[128], norm[ODD_STRIDE];

    for (uint32_t i = 0; i < 128; i++)
        bias[i] = (float)i - 40;
    for (uint32_t i = 0; i < ODD_STRIDE; i++)
        norm[i] = 1 + (float)i / 64;
    cr_assert_eq(backend_cpu.stream_new(b, &s, &shape), 0);
    for (uint32_t i = 0; i < ODD_TOKENS; i += batch) {
        uint32_t n = ODD_TOKENS - i < batch ? ODD_TOKENS - i : batch, outputs[ODD_TOKENS];
        struct tensor tx = rows_of(x + i * ODD_STRIDE, n, n_cols, ODD_STRIDE);
        struct tensor y = rows_of(rows[0] + i * OUT_STRIDE, n, n_rows, OUT_STRIDE);
        struct tensor h = rows_of(rows[1] + i * OUT_STRIDE, n, n_rows, OUT_STRIDE);
        struct tensor l = rows_of(rows[2] + i * OUT_STRIDE, n, n_rows, OUT_STRIDE);
        struct tensor normed;
        const struct tensor residual = rows_of(x + i * ODD_STRIDE + 64, n, n_rows, ODD_STRIDE);
        const struct epilogue e = {bias, &residual};
        const struct gate_up_args gate_up = {.norm_w = norm, .norm_eps = 1e-6f, .act = ACT_SILU};
        const struct step step = {.n_tokens = n, .n_outputs = n, .output_token_idx = outputs};
        const struct head_args head = {.step = &step, .softcap = 30};
        struct head_row head_rows[ODD_TOKENS];
        float normed_rows[ODD_TOKENS * ODD_STRIDE];

        for (uint32_t o = 0; o < n; o++)
            outputs[o] = o;
        cr_assert_eq(backend_cpu.linear(s, &y, &tx, w, &e), 0);
        cr_assert_eq(backend_cpu.gate_up(s, &h, &tx, g, &gate_up), 0);
        cr_assert_eq(backend_cpu.head(s, &l, head_rows, &tx, w, &head), 0);
        normed = rows_of(normed_rows, n, n_cols, ODD_STRIDE);
        cr_assert_eq(backend_cpu.rmsnorm(s, &normed, &tx, norm, 1e-6f), 0);
        for (uint32_t o = 0; o < n; o++) {
            float *to = out + 3 * ODD_TOKENS * OUT_STRIDE + (size_t)(i + o) * ODD_STRIDE;
            uint32_t best = 0;
            bool finite = true;

            memcpy(to, normed_rows + (size_t)o * ODD_STRIDE, n_cols * sizeof *to);
            for (uint32_t r = 0; r < n_rows; r++) {
                const float *row = rows[2] + (size_t)(i + o) * OUT_STRIDE;

                finite = finite && isfinite(row[r]);
                best = row[r] > row[best] ? r : best;
            }
            cr_expect_eq(!head_rows[o].not_finite, finite, "%s %s: row %u: flag %u", isa,
                         dtype_name(t), i + o, head_rows[o].not_finite);
            cr_expect(!finite || head_rows[o].argmax == best, "%s %s: row %u: argmax %u, not %u",
                      isa, dtype_name(t), i + o, head_rows[o].argmax, best);
        }
    }
    backend_cpu.weight_free(w);
    backend_cpu.weight_free(g);
    backend_cpu.stream_free(s);
    backend_cpu.close(b);
}

Test(cpu_bits, odd_sizes_and_poisoned_rows)
{
    enum { N_BATCHES = 12 };
    static const uint32_t batches[N_BATCHES] = {1, 2, 3, 4, 5, 6, 7, 8, 13, 24, 36, 89};
    const size_t n_out = 3 * ODD_TOKENS * OUT_STRIDE + ODD_TOKENS * ODD_STRIDE;
    float *x = calloc(ODD_TOKENS * ODD_STRIDE, sizeof *x), *want = malloc(n_out * sizeof *want);
    float *got = malloc(n_out * sizeof *got);
    uint64_t state = 7;

    for (uint32_t i = 0; i < ODD_TOKENS * ODD_STRIDE; i++)
        x[i] = hard_value(&state);
    /* Rows 9 and 20 are poisoned: no other may show it. */
    x[9 * ODD_STRIDE + 11] = NAN;
    x[20 * ODD_STRIDE + 3] = -INFINITY;
    for (int t = 0; t < DTYPE_COUNT; t++) {
        for (uint32_t size = 0; size < N_ODD; size++) {
            const struct level *level;

            memset(want, 0, n_out * sizeof *want);
            run_odd("scalar", 1, 1, (enum dtype)t, size, x, want);
            for (uint32_t i = 0; i < ODD_TOKENS; i++)
                cr_expect_eq(isfinite(want[i * OUT_STRIDE]), i != 9 && i != 20,
                             "%s: row %u is poisoned wrongly", dtype_name((enum dtype)t), i);
            for (uint32_t l = 0; (level = isa_level_at(l)); l++) {
                for (uint32_t i = l ? 0 : 8; i < N_BATCHES; i++) {
                    memset(got, 0, n_out * sizeof *got);
                    run_odd(level->name, 1 + i % 4, batches[i], (enum dtype)t, size, x, got);
                    cr_expect_eq(n_different(got, want, n_out), 0,
                                 "%s %s, size %u, batches of %u: %zu", level->name,
                                 dtype_name((enum dtype)t), size, batches[i],
                                 n_different(got, want, n_out));
                }
            }
        }
    }
    free(x);
    free(want);
    free(got);
}
