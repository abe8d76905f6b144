/* bench_kernels [threads] [isa]: this machine's limits, then the operators of a 135M-parameter
 * llama (Q4_1, Q8_0 head) at 1, 8, 32 and 128 tokens a step, as time, share of the binding limit and
 * tokens a second. Weights are random; the shapes, formats and number of layers are SmolLM2-135M's,
 * so that the weights stream from memory as in the real model. Every figure is the median of a few
 * runs; the widths take turns, so that a slow moment of the machine spoils no
 * single one. */
#include <errno.h>
#include <immintrin.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/cpu/cores.h"
#include "kernels/cpu/pool.h"
#include "kernels/kernels.h"

enum {
    N_EMBD = 576,
    N_FFN = 1536,
    N_HEADS = 9,
    N_KV_HEADS = 3,
    HEAD_DIM = 64,
    N_QKV = (N_HEADS + 2 * N_KV_HEADS) * HEAD_DIM,
    N_VOCAB = 49152,
    N_LAYERS = 30,
    PAGE = 256,
    N_PAST = 128, /* keys before a step */
    MAX_TOKENS = 128,
    DECODE_MAX = 32, /* wider steps are one new sequence */
    N_RUNS = 9,
    READ_BYTES = 96 << 20
};

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *times, int n)
{
    qsort(times, (size_t)n, sizeof *times, compare);
    return times[n / 2];
}

static void check(int r, const char *what)
{
    if (!r)
        return;
    fprintf(stderr, "%s: %s\n", what, strerror(-r));
    exit(1);
}

/* ---- limits ---------------------------------------------------------------------------------- */

enum { DOT_ROUNDS = 2000000, DOT_CHAINS = 12 };

/* Twelve chains hide the latency. An array of them would live in memory under -O2. */
__attribute__((target("avx512f,avx512vnni"))) static void dot_items(void *arg, uint32_t worker,
                                                                    uint32_t begin, uint32_t end)
{
    (void)arg;
    (void)worker;
    for (uint32_t round = 0; round < (end - begin) * DOT_ROUNDS; round++)
        __asm__ volatile(
            "vpdpbusd %%zmm30, %%zmm31, %%zmm0\n\tvpdpbusd %%zmm30, %%zmm31, %%zmm1\n\t"
            "vpdpbusd %%zmm30, %%zmm31, %%zmm2\n\tvpdpbusd %%zmm30, %%zmm31, %%zmm3\n\t"
            "vpdpbusd %%zmm30, %%zmm31, %%zmm4\n\tvpdpbusd %%zmm30, %%zmm31, %%zmm5\n\t"
            "vpdpbusd %%zmm30, %%zmm31, %%zmm6\n\tvpdpbusd %%zmm30, %%zmm31, %%zmm7\n\t"
            "vpdpbusd %%zmm30, %%zmm31, %%zmm8\n\tvpdpbusd %%zmm30, %%zmm31, %%zmm9\n\t"
            "vpdpbusd %%zmm30, %%zmm31, %%zmm10\n\tvpdpbusd %%zmm30, %%zmm31, %%zmm11" ::
                : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
                  "xmm10", "xmm11");
}

struct reading {
    const uint8_t *data;
    size_t item_bytes;
    volatile int sink[POOL_THREADS_MAX * 16]; /* so that the compiler keeps the loads */
};

static void read_items(void *arg, uint32_t worker, uint32_t begin, uint32_t end)
{
    struct reading *r = arg;
    const __m128i *p = (const __m128i *)(const void *)(r->data + begin * r->item_bytes);
    size_t n = (end - begin) * r->item_bytes / sizeof *p;
    __m128i a = _mm_setzero_si128(), b = a, c = a, d = a;

    for (size_t i = 0; i < n; i += 4) {
        a = _mm_xor_si128(a, p[i]);
        b = _mm_xor_si128(b, p[i + 1]);
        c = _mm_xor_si128(c, p[i + 2]);
        d = _mm_xor_si128(d, p[i + 3]);
    }
    a = _mm_xor_si128(_mm_xor_si128(a, b), _mm_xor_si128(c, d));
    r->sink[worker * 16] = _mm_cvtsi128_si32(_mm_add_epi32(a, _mm_srli_si128(a, 8)));
}

/* int8 multiply-adds a second, by all threads; 0 where there is no VNNI. */
static double dot_rate(struct pool *pool)
{
    double times[3];

    if (!__builtin_cpu_supports("avx512vnni"))
        return 0;
    for (int i = 0; i < 3; i++) {
        double start = now();

        pool_run(pool, dot_items, NULL, pool_n_threads(pool), 1);
        times[i] = now() - start;
    }
    qsort(times, 3, sizeof times[0], compare);
    return 64.0 * DOT_CHAINS * DOT_ROUNDS * pool_n_threads(pool) / times[0];
}

static double read_rate(struct pool *pool)
{
    static struct reading r = {.item_bytes = 1 << 16};
    uint8_t *data = aligned_alloc(4096, READ_BYTES);
    double times[N_RUNS];

    memset(data, 1, READ_BYTES);
    r.data = data;
    for (int i = 0; i < N_RUNS; i++) {
        double start = now();

        pool_run(pool, read_items, &r, (uint32_t)(READ_BYTES / r.item_bytes), 16);
        times[i] = now() - start;
    }
    free(data);
    qsort(times, N_RUNS, sizeof times[0], compare);
    return READ_BYTES / times[0];
}

/* ---- the model ------------------------------------------------------------------------------- */

enum part { QKV, ATTENTION, OUT, GATE_UP, DOWN, EMBED, HEAD, N_OPS };
static const char *const op_names[N_OPS] = {"qkv",  "attention", "out", "gate_up",
                                            "down", "embed",     "head"};

/* Weights of an operator in all layers: multiply-adds a token, bytes. */
static const double op_macs[N_OPS] = {
    [QKV] = (double)N_LAYERS * N_EMBD * N_QKV,   [OUT] = (double)N_LAYERS * N_EMBD * N_EMBD,
    [GATE_UP] = 2.0 * N_LAYERS * N_EMBD * N_FFN, [DOWN] = (double)N_LAYERS * N_EMBD * N_FFN,
    [HEAD] = (double)N_VOCAB * N_EMBD,
};

struct model {
    struct backend *b;
    struct stream *s;
    struct kv *kv;
    struct weight *w[N_LAYERS][N_OPS], *embed;
    float *x, *q, *o, *h, *logits, *norm;
    struct rope rope;
};

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

static float *floats(struct backend *b, size_t n, float value)
{
    void *data;

    check(backend_cpu.buffer_new(b, &data, n * sizeof(float), NULL), "buffer");
    for (size_t i = 0; i < n; i++)
        ((float *)data)[i] = value * (float)((int)(i * 2654435761u >> 20) % 255 - 127) / 127;
    return data;
}

static void model_open(struct model *m, uint32_t n_threads, const char *isa)
{
    const struct backend_config config = {.n_threads = n_threads, .isa = isa};
    const struct stream_shape shape = {MAX_TOKENS, MAX_TOKENS, MAX_TOKENS, N_FFN,
                                       N_VOCAB,    N_HEADS,    HEAD_DIM,   8192};
    const struct kv_shape kv_shape = {N_LAYERS, N_KV_HEADS, HEAD_DIM, PAGE, DECODE_MAX, DTYPE_BF16};
    const char *why = NULL;

    check(backend_cpu.open(&m->b, &config, &why), why ? why : "open");
    check(backend_cpu.stream_new(m->b, &m->s, &shape), "stream");
    check(backend_cpu.kv_new(m->b, &m->kv, &kv_shape, &why), why ? why : "kv");
    check(backend_cpu.kv_populate(m->kv, 0, DECODE_MAX), "populate");
    for (int l = 0; l < N_LAYERS; l++) {
        m->w[l][QKV] = weight(m->b, WEIGHT_LINEAR, DTYPE_Q4_1, N_EMBD, N_QKV, 1);
        m->w[l][OUT] = weight(m->b, WEIGHT_LINEAR, DTYPE_Q4_1, N_EMBD, N_EMBD, 1);
        m->w[l][GATE_UP] = weight(m->b, WEIGHT_GATE_UP, DTYPE_Q4_1, N_EMBD, 2 * N_FFN, 2);
        m->w[l][DOWN] = weight(m->b, WEIGHT_LINEAR, DTYPE_Q4_1, N_FFN, N_EMBD, 1);
    }
    m->embed = weight(m->b, WEIGHT_EMBED, DTYPE_Q8_0, N_EMBD, N_VOCAB, 1);
    m->x = floats(m->b, (size_t)MAX_TOKENS * N_EMBD, 1);
    m->q = floats(m->b, (size_t)MAX_TOKENS * N_EMBD, 1);
    m->o = floats(m->b, (size_t)MAX_TOKENS * N_EMBD, 1);
    m->h = floats(m->b, (size_t)MAX_TOKENS * N_FFN, 1);
    m->logits = floats(m->b, (size_t)MAX_TOKENS * N_VOCAB, 1);
    m->norm = floats(m->b, N_EMBD, 1);
    m->rope = (struct rope){ROPE_PAIRS, HEAD_DIM, 1024, floats(m->b, (size_t)1024 * HEAD_DIM, 1)};
}

static struct tensor rows(float *data, uint32_t n_rows, uint32_t n_cols)
{
    return (struct tensor){data, DTYPE_F32, n_rows, n_cols, n_cols * sizeof(float)};
}

static void lap(double *took, double *since)
{
    double t = now();

    *took += t - *since;
    *since = t;
}

/* One step of n tokens: 128 of one new sequence, else one each of n sequences with N_PAST keys.
 * Adds the seconds of each operator to took. */
static void run_step(struct model *m, uint32_t n, double took[N_OPS])
{
    int32_t tokens[MAX_TOKENS], positions[MAX_TOKENS];
    uint32_t off[MAX_TOKENS + 1] = {0}, n_keys[MAX_TOKENS], slots[MAX_TOKENS];
    uint32_t table_off[MAX_TOKENS + 1] = {0}, table[MAX_TOKENS], output[MAX_TOKENS];
    bool prefill = n > DECODE_MAX;
    struct step step = {.n_tokens = n,
                        .n_seqs = prefill ? 1 : n,
                        .n_outputs = prefill ? 1 : n,
                        .tokens = tokens,
                        .positions = positions,
                        .token_off = off,
                        .n_keys = n_keys,
                        .slot_idx = slots,
                        .table_off = table_off,
                        .table = table,
                        .output_token_idx = output};
    struct tensor x = rows(m->x, n, N_EMBD), q = rows(m->q, n, N_EMBD), o = rows(m->o, n, N_EMBD);
    struct tensor h = rows(m->h, n, N_FFN), logits = rows(m->logits, step.n_outputs, N_VOCAB);
    const struct epilogue residual = {NULL, &x};
    const uint8_t want[MAX_TOKENS] = {0};
    const struct head_args head = {
        .step = &step, .norm_w = m->norm, .norm_eps = 1e-5f, .want_logits = want};
    struct head_row head_rows[MAX_TOKENS];
    double since;

    for (uint32_t i = 0; i < n; i++) {
        tokens[i] = (int32_t)(i * 377 % N_VOCAB);
        positions[i] = prefill ? (int32_t)i : N_PAST;
        slots[i] = prefill ? i : i * PAGE + N_PAST;
        table[i] = i;
        off[i + 1] = table_off[i + 1] = prefill ? n : i + 1;
        n_keys[i] = prefill ? n : N_PAST + 1;
        output[i] = prefill ? n - 1 : i;
    }
    since = now();
    backend_cpu.embed(m->s, &x, m->embed, tokens, 1);
    lap(&took[EMBED], &since);
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        const struct qkv_args qkv = {.step = &step,
                                     .w = m->w[l][QKV],
                                     .norm_w = m->norm,
                                     .norm_eps = 1e-5f,
                                     .rope = &m->rope,
                                     .layer = l,
                                     .n_heads = N_HEADS,
                                     .n_kv_heads = N_KV_HEADS,
                                     .head_dim = HEAD_DIM};
        const struct gate_up_args gate_up = {m->norm, 1e-5f, ACT_SILU, m->w[l][DOWN]};
        const struct attention_args attention = {.step = &step,
                                                 .layer = l,
                                                 .n_heads = N_HEADS,
                                                 .n_kv_heads = N_KV_HEADS,
                                                 .head_dim = HEAD_DIM,
                                                 .scale = 0.125f,
                                                 .next = m->w[l][OUT]};

        backend_cpu.qkv(m->s, &q, m->kv, &x, &qkv);
        lap(&took[QKV], &since);
        backend_cpu.attention(m->s, &o, &q, m->kv, &attention);
        lap(&took[ATTENTION], &since);
        backend_cpu.linear(m->s, &x, &o, m->w[l][OUT], &residual);
        lap(&took[OUT], &since);
        backend_cpu.gate_up(m->s, &h, &x, m->w[l][GATE_UP], &gate_up);
        lap(&took[GATE_UP], &since);
        backend_cpu.linear(m->s, &x, &h, m->w[l][DOWN], &residual);
        lap(&took[DOWN], &since);
    }
    backend_cpu.head(m->s, &logits, head_rows, &x, m->embed, &head);
    lap(&took[HEAD], &since);
}

static double op_bytes(int op)
{
    return op_macs[op] * (op == HEAD ? 34.0 / 32 : 20.0 / 32);
}

int main(int argc, char **argv)
{
    static const uint32_t widths[] = {1, 8, 32, MAX_TOKENS};
    enum { N_WIDTHS = sizeof widths / sizeof widths[0] };
    static double took[N_WIDTHS][N_OPS + 1][N_RUNS];
    uint32_t n_threads = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 0;
    struct backend_caps caps;
    double dots, reads;
    struct pool *pool;
    struct model m;

    kernels_thread_init();
    check(pool_new(&pool, n_threads ? n_threads : cores_usable(), 0), "threads");
    dots = dot_rate(pool);
    reads = read_rate(pool);
    pool_free(pool);
    model_open(&m, n_threads, argc > 2 ? argv[2] : NULL);
    backend_cpu.caps(m.b, &caps);
    printf("%s, %u threads: int8 dot %.0f GOPS, reads %.1f GB/s\n", caps.isa, caps.n_threads,
           2 * dots / 1e9, reads / 1e9);

    for (int run = -1; run < N_RUNS; run++) {
        for (int i = 0; i < N_WIDTHS; i++) {
            double ops[N_OPS] = {0}, all = 0;

            run_step(&m, widths[i], ops);
            for (int op = 0; op < N_OPS && run >= 0; op++) {
                took[i][op][run] = ops[op];
                all += ops[op];
            }
            if (run >= 0)
                took[i][N_OPS][run] = all;
        }
    }
    for (int i = 0; i < N_WIDTHS; i++) {
        double limit_all = 0, all = median(took[i][N_OPS], N_RUNS), n = widths[i];

        printf("\n%4u tokens a step       ms   of limit   GOPS   GB/s\n", widths[i]);
        for (int op = 0; op < N_OPS; op++) {
            double t = median(took[i][op], N_RUNS), rows_n = op == HEAD && n > DECODE_MAX ? 1 : n;
            double compute = dots > 0 ? op_macs[op] * rows_n / dots : 0,
                   memory = op_bytes(op) / reads;
            double limit = compute > memory ? compute : memory;

            limit_all += limit;
            printf("%18s %12.3f", op_names[op], t * 1e3);
            if (op_macs[op] > 0)
                printf(" %9.0f%% %6.0f %6.1f", 100 * limit / t, 2 * op_macs[op] * rows_n / t / 1e9,
                       op_bytes(op) / t / 1e9);
            printf("\n");
        }
        printf("%18s %12.3f %9.0f%%   %.0f tok/s\n", "step", all * 1e3, 100 * limit_all / all,
               n / all);
    }
    return 0;
}
