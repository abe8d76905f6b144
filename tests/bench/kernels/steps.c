/* The operators are called as the llama family calls them (daemon/model/), with a clock between them. */
#include "tests/bench/kernels/steps.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/measure.h"

enum {
    N_EMBD = 576,
    N_FFN = 1536,
    N_HEADS = 9,
    N_KV_HEADS = 3,
    HEAD_DIM = 64,
    N_QKV = (N_HEADS + 2 * N_KV_HEADS) * HEAD_DIM,
    N_VOCAB = 49152,
    N_LAYERS = 30,
    N_CONTEXT = 8192,
    PAGE = 256,
    PAGES_MAX = N_CONTEXT / PAGE
};

const char *const op_names[N_OPS] = {
    [OP_QKV] = "qkv",   [OP_ATTENTION] = "attention", [OP_OUT] = "out",   [OP_GATE_UP] = "gate_up",
    [OP_DOWN] = "down", [OP_EMBED] = "embed",         [OP_HEAD] = "head",
};

/* Weights of an operator in all layers. */
static const double op_weights[N_OPS] = {
    [OP_QKV] = (double)N_LAYERS * N_EMBD * N_QKV,   [OP_OUT] = (double)N_LAYERS * N_EMBD * N_EMBD,
    [OP_GATE_UP] = 2.0 * N_LAYERS * N_EMBD * N_FFN, [OP_DOWN] = (double)N_LAYERS * N_EMBD * N_FFN,
    [OP_HEAD] = (double)N_VOCAB * N_EMBD,
};

struct steps {
    struct backend *b;
    struct stream *s;
    struct kv *kv;
    struct weight *w[N_LAYERS][N_OPS], *embed;
    float *x, *q, *o, *h, *logits, *norm;
    struct rope rope;
};

/* ---- the model ------------------------------------------------------------------------------- */

static void check(int r, const char *what)
{
    if (!r)
        return;
    fprintf(stderr, "%s: %s\n", what, strerror(-r));
    exit(1);
}

static struct weight *weight(struct backend *b, enum weight_use use, enum dtype t, uint32_t n_cols,
                             uint32_t n_rows, uint32_t n_parts)
{
    size_t bytes = dtype_row_bytes(t, n_cols) * n_rows, block = dtype_row_bytes(t, 32);
    struct weight_spec spec = {"bench", use, n_cols, n_parts, {{0}}};
    uint8_t *data = malloc(bytes);
    const char *why = NULL;
    struct weight *w;

    for (size_t i = 0; i < bytes; i++)
        data[i] = (uint8_t)(i * 2654435761u >> 13);
    for (size_t i = 0; i < bytes; i += block) {
        memcpy(data + i, &(uint16_t){0x1c00}, 2);
        if (t == DTYPE_Q4_1)
            memcpy(data + i + 2, &(uint16_t){0x9c00}, 2);
    }
    for (uint32_t i = 0; i < n_parts; i++)
        spec.parts[i] = (struct weight_part){data + bytes / n_parts * i, t, n_rows / n_parts};
    check(backend_cpu.weight_new(b, &w, &spec, &why), why ? why : "weight");
    free(data);
    return w;
}

static float *floats(struct backend *b, size_t n)
{
    void *data;

    check(backend_cpu.buffer_new(b, &data, n * sizeof(float), NULL), "buffer");
    for (size_t i = 0; i < n; i++)
        ((float *)data)[i] = (float)((int)(i * 2654435761u >> 20) % 255 - 127) / 127;
    return data;
}

static uint32_t point_pages(const struct point *p)
{
    return p->prefill ? 1 : p->n_tokens * (p->n_past / PAGE + 1);
}

struct steps *steps_new(const struct backend_config *config, const struct point *points,
                        int n_points)
{
    const struct stream_shape shape = {STEP_TOKENS_MAX, STEP_TOKENS_MAX, STEP_TOKENS_MAX,
                                       N_FFN,           N_VOCAB,         N_HEADS,
                                       HEAD_DIM,        N_CONTEXT};
    struct kv_shape kv_shape = {N_LAYERS, N_KV_HEADS, HEAD_DIM, PAGE, 1, DTYPE_BF16};
    struct steps *s = calloc(1, sizeof *s);
    const char *why = NULL;

    if (!s)
        exit(1);
    for (int i = 0; i < n_points; i++) {
        if (point_pages(&points[i]) > kv_shape.n_pages)
            kv_shape.n_pages = point_pages(&points[i]);
    }
    check(backend_cpu.open(&s->b, config, &why), why ? why : "open");
    check(backend_cpu.stream_new(s->b, &s->s, &shape), "stream");
    check(backend_cpu.kv_new(s->b, &s->kv, &kv_shape, &why), why ? why : "kv");
    check(backend_cpu.kv_populate(s->kv, 0, kv_shape.n_pages), "populate");
    for (int l = 0; l < N_LAYERS; l++) {
        s->w[l][OP_QKV] = weight(s->b, WEIGHT_LINEAR, DTYPE_Q4_1, N_EMBD, N_QKV, 1);
        s->w[l][OP_OUT] = weight(s->b, WEIGHT_LINEAR, DTYPE_Q4_1, N_EMBD, N_EMBD, 1);
        s->w[l][OP_GATE_UP] = weight(s->b, WEIGHT_GATE_UP, DTYPE_Q4_1, N_EMBD, 2 * N_FFN, 2);
        s->w[l][OP_DOWN] = weight(s->b, WEIGHT_LINEAR, DTYPE_Q4_1, N_FFN, N_EMBD, 1);
    }
    s->embed = weight(s->b, WEIGHT_EMBED, DTYPE_Q8_0, N_EMBD, N_VOCAB, 1);
    s->x = floats(s->b, (size_t)STEP_TOKENS_MAX * N_EMBD);
    s->q = floats(s->b, (size_t)STEP_TOKENS_MAX * N_EMBD);
    s->o = floats(s->b, (size_t)STEP_TOKENS_MAX * N_EMBD);
    s->h = floats(s->b, (size_t)STEP_TOKENS_MAX * N_FFN);
    s->logits = floats(s->b, (size_t)STEP_TOKENS_MAX * N_VOCAB);
    s->norm = floats(s->b, N_EMBD);
    s->rope =
        (struct rope){ROPE_PAIRS, HEAD_DIM, N_CONTEXT, floats(s->b, (size_t)N_CONTEXT * HEAD_DIM)};
    return s;
}

struct steps *steps_free(struct steps *s)
{
    float *buffers[] = {s->x, s->q, s->o, s->h, s->logits, s->norm, (float *)s->rope.cos_sin};

    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++)
        backend_cpu.buffer_free(s->b, buffers[i]);
    for (int l = 0; l < N_LAYERS; l++) {
        for (int op = 0; op < N_OPS; op++)
            backend_cpu.weight_free(s->w[l][op]);
    }
    backend_cpu.weight_free(s->embed);
    backend_cpu.kv_free(s->kv);
    backend_cpu.stream_free(s->s);
    backend_cpu.close(s->b);
    free(s);
    return NULL;
}

void steps_caps(const struct steps *s, struct backend_caps *caps)
{
    backend_cpu.caps(s->b, caps);
}

/* ---- a step ---------------------------------------------------------------------------------- */

/* The arrays that a struct step points to. */
struct arrays {
    int32_t tokens[STEP_TOKENS_MAX], positions[STEP_TOKENS_MAX];
    uint32_t off[STEP_TOKENS_MAX + 1], n_keys[STEP_TOKENS_MAX], slots[STEP_TOKENS_MAX];
    uint32_t table_off[STEP_TOKENS_MAX + 1], table[STEP_SEQS_MAX * PAGES_MAX];
    uint32_t output[STEP_TOKENS_MAX];
};

static struct step step_make(struct arrays *a, const struct point *point)
{
    uint32_t n = point->n_tokens, n_seqs = point->prefill ? 1 : n;
    uint32_t pages = point_pages(point) / n_seqs;

    a->off[0] = a->table_off[0] = 0;
    for (uint32_t i = 0; i < n_seqs; i++) {
        a->off[i + 1] = point->prefill ? n : i + 1;
        a->n_keys[i] = point->prefill ? n : point->n_past + 1;
        a->table_off[i + 1] = (i + 1) * pages;
        a->output[i] = a->off[i + 1] - 1;
    }
    for (uint32_t i = 0; i < n_seqs * pages; i++)
        a->table[i] = i;
    for (uint32_t i = 0; i < n; i++) {
        a->tokens[i] = (int32_t)(i * 377 % N_VOCAB);
        a->positions[i] = (int32_t)(point->prefill ? i : point->n_past);
        a->slots[i] = point->prefill ? i : i * pages * PAGE + point->n_past;
    }
    return (struct step){.n_tokens = n,
                         .n_seqs = n_seqs,
                         .n_outputs = n_seqs,
                         .n_decode_seqs = point->prefill ? 0 : n,
                         .tokens = a->tokens,
                         .positions = a->positions,
                         .token_off = a->off,
                         .n_keys = a->n_keys,
                         .slot_idx = a->slots,
                         .table_off = a->table_off,
                         .table = a->table,
                         .output_token_idx = a->output};
}

static struct tensor rows(float *data, uint32_t n_rows, uint32_t n_cols)
{
    return (struct tensor){data, DTYPE_F32, n_rows, n_cols, n_cols * sizeof(float)};
}

static void lap(double *took, double *since)
{
    double t = bench_now();

    *took += t - *since;
    *since = t;
}

void steps_run(struct steps *s, const struct point *point, double *seconds)
{
    struct arrays arrays;
    const struct step step = step_make(&arrays, point);
    uint32_t n = step.n_tokens;
    struct tensor x = rows(s->x, n, N_EMBD), q = rows(s->q, n, N_EMBD), o = rows(s->o, n, N_EMBD);
    struct tensor h = rows(s->h, n, N_FFN), logits = rows(s->logits, step.n_outputs, N_VOCAB);
    const struct epilogue residual = {NULL, &x};
    const uint8_t want[STEP_TOKENS_MAX] = {0};
    const struct head_args head = {
        .step = &step, .norm_w = s->norm, .norm_eps = 1e-5f, .want_logits = want};
    struct head_row head_rows[STEP_TOKENS_MAX];
    double since = bench_now();

    memset(seconds, 0, N_OPS * sizeof *seconds);
    backend_cpu.embed(s->s, &x, s->embed, step.tokens, 1);
    lap(&seconds[OP_EMBED], &since);
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        const struct qkv_args qkv = {.step = &step,
                                     .w = s->w[l][OP_QKV],
                                     .norm_w = s->norm,
                                     .norm_eps = 1e-5f,
                                     .rope = &s->rope,
                                     .layer = l,
                                     .n_heads = N_HEADS,
                                     .n_kv_heads = N_KV_HEADS,
                                     .head_dim = HEAD_DIM};
        const struct gate_up_args gate_up = {s->norm, 1e-5f, ACT_SILU, s->w[l][OP_DOWN]};
        const struct attention_args attention = {.step = &step,
                                                 .layer = l,
                                                 .n_heads = N_HEADS,
                                                 .n_kv_heads = N_KV_HEADS,
                                                 .head_dim = HEAD_DIM,
                                                 .scale = 0.125f,
                                                 .next = s->w[l][OP_OUT]};

        backend_cpu.qkv(s->s, &q, s->kv, &x, &qkv);
        lap(&seconds[OP_QKV], &since);
        backend_cpu.attention(s->s, &o, &q, s->kv, &attention);
        lap(&seconds[OP_ATTENTION], &since);
        backend_cpu.linear(s->s, &x, &o, s->w[l][OP_OUT], &residual);
        lap(&seconds[OP_OUT], &since);
        backend_cpu.gate_up(s->s, &h, &x, s->w[l][OP_GATE_UP], &gate_up);
        lap(&seconds[OP_GATE_UP], &since);
        backend_cpu.linear(s->s, &x, &h, s->w[l][OP_DOWN], &residual);
        lap(&seconds[OP_DOWN], &since);
    }
    backend_cpu.head(s->s, &logits, head_rows, &x, s->embed, &head);
    lap(&seconds[OP_HEAD], &since);
}

/* ---- what a step must do --------------------------------------------------------------------- */

/* Keys and values, bf16: read once a step, multiplied once a query that sees them. */
static struct work attention_work(const struct point *point)
{
    const double layer_macs = 2.0 * N_HEADS * HEAD_DIM,
                 layer_bytes = 2.0 * N_KV_HEADS * HEAD_DIM * 2;
    double n = point->n_tokens, keys, seen;

    if (point->prefill) {
        keys = n;
        seen = n * (n + 1) / 2;
    } else {
        keys = seen = n * (point->n_past + 1);
    }
    return (struct work){N_LAYERS * layer_macs * seen, N_LAYERS * layer_bytes * keys, LIMIT_BF16};
}

struct work op_work(enum op op, const struct point *point)
{
    double weight_bytes = op == OP_HEAD ? 34.0 / 32 : 20.0 / 32;
    double n = op == OP_HEAD && point->prefill ? 1 : point->n_tokens;

    if (op == OP_ATTENTION)
        return attention_work(point);
    return (struct work){op_weights[op] * n, op_weights[op] * weight_bytes, LIMIT_DOT8};
}
