/* Products in bf16, which the cpu backend makes of many tokens where results may depend on the
 * batch: the tile product itself, the operators against the double-precision oracle, and what must
 * not change: products of few tokens, and all of them where it is off or not to be had. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/amx.h"
#include "kernels/cpu/isa.h"
#include "kernels/numeric.h"
#include "tests/kernels/ops_side.h"
#include "tests/kernels/oracle.h"

TestSuite(cpu_bf16, .init = kernels_thread_init);

enum { BF16_TOKENS = 64 };

static const enum dtype all_dtypes[] = {DTYPE_F32,  DTYPE_F16,  DTYPE_BF16,
                                        DTYPE_Q4_0, DTYPE_Q4_1, DTYPE_Q8_0};
enum { N_DTYPES = sizeof all_dtypes / sizeof all_dtypes[0] };

/* ---- the tile product ------------------------------------------------------------------------ */

/* The one sum of a tile product of one row, one column and n_pairs pairs, on top of `start`. */
static float tile_sum(float start, uint32_t n_pairs, const uint16_t *left, const uint16_t *right)
{
    const struct tile_config config = {
        .palette = 1,
        .row_bytes = {4, (uint16_t)(4 * n_pairs), 4},
        .rows = {1, 1, (uint8_t)n_pairs},
    };
    float sum;

    tile_config(&config);
    tile_load(0, &start, 4);
    tile_load(1, left, 64);
    tile_load(2, right, 4);
    tile_dp_bf16(0, 1, 2);
    tile_store(0, &sum, 4);
    tile_release();
    return sum;
}

/* Values as their bf16. */
static uint16_t half(float x)
{
    cr_assert(numeric_round_bf16(x) == x || x != x);
    return (uint16_t)(numeric_bits(x) >> 16);
}

/* Two chains from zero, one for the even columns and one for the odd; then their sum; then what was
 * there. Each of these sums would be another in another order. */
Test(cpu_bf16, tile_product_adds_two_chains_then_the_sum)
{
    const uint16_t one = half(1), big = half(0x1p24f), minus = half(-0x1p24f), zero = 0;
    const uint16_t ones[] = {one, one, one, one, one, one};

    /* The even chain forgets its 1, as it adds to 2^24; the odd chain keeps its own. */
    cr_expect_eq(tile_sum(0, 3, (uint16_t[]){big, one, one, zero, minus, one}, ones), 2);
    /* One chain over all would give 2^24, then + 1 - 2^24: 0. */
    cr_expect_eq(tile_sum(0, 2, (uint16_t[]){big, one, minus, zero}, ones), 1);
    /* The sum begins at 0: 1 + 1 is added to 2^24 at once, and not 1 by 1. */
    cr_expect_eq(tile_sum(0x1p24f, 1, (uint16_t[]){one, one}, ones), 0x1p24f + 2);
    cr_expect_eq(tile_sum(0x1p24f, 1, (uint16_t[]){one, zero}, ones), 0x1p24f);
    /* To nearest even: 2^24 + 3 is half-way. */
    cr_expect_eq(tile_sum(0x1p24f, 1, (uint16_t[]){one, half(2)}, ones), 0x1p24f + 4);
    cr_expect_eq(tile_sum(0x1p24f, 1, (uint16_t[]){half(-1), zero}, ones), 0x1p24f - 1);
    /* A product that would be denormal alone is not, where it is added to more. */
    cr_expect_eq(tile_sum(0, 2, (uint16_t[]){half(0x1p-126f), zero, half(0x1p-80f), zero},
                          (uint16_t[]){one, zero, half(0x1p-60f), zero}),
                 0x1.0004p-126f);
}

Test(cpu_bf16, tile_product_takes_denormals_for_zeros)
{
    const uint16_t tiny = 0x0040, least = 0x0080, one = half(1), half_one = half(0.5f);

    cr_expect_eq(tile_sum(0, 1, (uint16_t[]){tiny, tiny}, (uint16_t[]){half(0x1p120f), one}), 0);
    cr_expect_eq(tile_sum(0, 1, (uint16_t[]){least, 0}, (uint16_t[]){half_one, one}), 0);
    cr_expect_eq(tile_sum(0, 1, (uint16_t[]){least, 0}, (uint16_t[]){one, one}), 0x1p-126f);
    cr_expect(isnan(tile_sum(0, 1, (uint16_t[]){half(INFINITY), 0}, (uint16_t[]){tiny, one})));
    cr_expect_eq(tile_sum(1, 1, (uint16_t[]){half(-INFINITY), one}, (uint16_t[]){one, one}),
                 -INFINITY);
}

/* Rows and columns, by whole numbers: sums that are exact in any order. */
Test(cpu_bf16, tile_product_is_a_product)
{
    enum { M = 11, N = 13, K = 9 };
    const struct tile_config config = {
        .palette = 1,
        .row_bytes = {4 * N, 4 * K, 4 * N},
        .rows = {M, M, K},
    };
    uint16_t a[M][2 * K], b[K][N][2];
    float c[M][N], want[M][N] = {{0}};
    uint64_t state = 3;

    for (int m = 0; m < M; m++)
        for (int k = 0; k < 2 * K; k++)
            a[m][k] = half((float)(int)(ops_random(&state) % 200) - 100);
    for (int k = 0; k < 2 * K; k++)
        for (int n = 0; n < N; n++)
            b[k / 2][n][k % 2] = half((float)(int)(ops_random(&state) % 200) - 100);
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++) {
            c[m][n] = want[m][n] = (float)(m * N + n);
            for (int k = 0; k < 2 * K; k++)
                want[m][n] += numeric_from_bf16(a[m][k]) * numeric_from_bf16(b[k / 2][n][k % 2]);
        }
    tile_config(&config);
    tile_load(0, c, sizeof c[0]);
    tile_load(1, a, sizeof a[0]);
    tile_load(2, b, sizeof b[0]);
    tile_dp_bf16(0, 1, 2);
    tile_store(0, c, sizeof c[0]);
    tile_release();
    cr_expect(!memcmp(c, want, sizeof c));
}

/* ---- operators ------------------------------------------------------------------------------- */

/* Of many tokens; qkv has products of few too, whose limits are the wider ones. */
static const struct ops_limit limits[OPS_N_PATHS] = {
    [OPS_LINEAR] = {{1.2e-5, 0.019}, {2e-5, 0.045}},
    [OPS_LINEAR_QUANTISED] = {{8.5e-6, 0.019}, {2e-5, 0.045}},
    [OPS_LINEAR_HEAVY] = {{7.7e-6, 0.023}, {2e-5, 0.045}},
    [OPS_GATED_HEAVY] = {{2.7e-5, 0.089}, {6e-5, 0.24}},
    [OPS_HEAD] = {{5.6e-6, 0.013}, {2e-5, 0.045}},
    [OPS_HEAD_QUANTISED] = {{5.7e-6, 0.017}, {2e-5, 0.045}},
    [OPS_QUERY] = {{6.6e-6, 0.023}, {2e-5, 0.045}},
    [OPS_QUERY_QUANTISED] = {{4.5e-5, 0.039}, {1e-4, 0.06}},
    [OPS_QUERY_HEAVY] = {{1.9e-4, 0.083}, {5e-4, 0.12}},
    [OPS_VALUE_F32] = {{5.5e-6, 0.017}, {2e-5, 0.045}},
    [OPS_VALUE_BF16] = {{1.3e-5, 0.031}, {2.5e-5, 0.0528}},
    [OPS_VALUE_U8] = {{1.9e-5, 0.031}, {2.2e-4, 0.0762}},
    [OPS_VALUE_F32_QUANTISED] = {{9e-6, 0.019}, {1e-4, 0.06}},
    [OPS_VALUE_BF16_QUANTISED] = {{5.1e-5, 0.032}, {1.05e-4, 0.0678}},
    [OPS_VALUE_U8_QUANTISED] = {{1.4e-4, 0.041}, {3e-4, 0.0912}},
    [OPS_VALUE_F32_HEAVY] = {{1.3e-4, 0.038}, {5e-4, 0.12}},
    [OPS_VALUE_BF16_HEAVY] = {{9.1e-5, 0.06}, {5e-4, 0.127}},
    [OPS_VALUE_U8_HEAVY] = {{2.3e-4, 0.062}, {7e-4, 0.15}},
    [OPS_KEY_F32] = {{1.2e-5, 0.034}, {2e-3, 0.45}},
    [OPS_KEY_BF16] = {{8.9e-5, 0.042}, {2e-3, 0.45}},
    [OPS_KEY_U8] = {{2.1e-6, 0.029}, {2e-3, 0.45}},
    [OPS_KEY_F32_QUANTISED] = {{1.7e-6, 0.013}, {1e-2, 0.6}},
    [OPS_KEY_BF16_QUANTISED] = {{3.3e-5, 0.029}, {1e-2, 0.66}},
    [OPS_KEY_U8_QUANTISED] = {{1.2e-4, 0.049}, {1e-2, 0.71}},
};

static void each_level(void (*check)(const struct ops_subject *))
{
    const struct level *level;
    const char *why;

    for (uint32_t i = 0; (level = isa_level_at(i)); i++) {
        const struct ops_subject subject = {
            .ops = &backend_cpu,
            .config = {.n_threads = 1 + i % 3, .isa = level->name, .batch_variant = true},
            .oracle = &oracle_backend,
            .limits = limits,
            .page_multiple = 16,
            .head_multiple = 2,
            .seed = 33,
        };

        if (isa_bf16_tokens(level, &why))
            ops_run(check, &subject);
    }
}

static void check_linear(struct pair *p, enum dtype dtype, uint32_t n_tokens, uint32_t n_cols,
                         uint32_t n_rows, enum input kind)
{
    struct both x = pair_rows(p, n_tokens, n_cols, kind), y = pair_rows(p, n_tokens, n_rows, 0);
    struct both residual = pair_rows(p, n_tokens, n_rows, INPUT_NORMAL);
    struct both bias = pair_random(p, n_rows, 1, 0);
    struct weight *w[2];
    struct tensor ty[2];

    pair_weight(p, w, WEIGHT_LINEAR, n_cols, 1, &n_rows, &dtype);
    for (int form = 0; form < 2; form++) {
        for (int i = 0; i < 2; i++) {
            struct tensor tx = pair_tensor(&x, i, n_tokens, n_cols);
            struct tensor tr = pair_tensor(&residual, i, n_tokens, n_rows);
            const struct epilogue e = {bias.data[i], &tr};

            ty[i] = pair_tensor(&y, i, n_tokens, n_rows);
            cr_assert_eq(
                p->side[i].ops->linear(p->side[i].stream, &ty[i], &tx, w[i], form ? &e : NULL), 0);
        }
        /* What is added is larger than a product of values about 1e-25. */
        check_rows(p, &ty[0], &ty[1], path_of(OPS_LINEAR, dtype_is_quantised(dtype), kind),
                   "linear %s %ux%ux%u kind %d form %d", dtype_name(dtype), n_tokens, n_rows,
                   n_cols, kind, form);
    }
    pair_weight_free(p, w);
}

static void check_linears(const struct ops_subject *subject)
{
    static const struct {
        uint32_t n_tokens, n_cols, n_rows;
    } sizes[] = {{64, 32, 1},    {65, 576, 48},  {79, 96, 17},  {80, 64, 33},   {96, 1536, 80},
                 {100, 544, 65}, {127, 320, 31}, {256, 352, 9}, {257, 160, 70}, {320, 64, 16}};
    struct pair p;

    for (int d = 0; d < N_DTYPES; d++) {
        pair_open(&p, subject);
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
            check_linear(&p, all_dtypes[d], sizes[i].n_tokens, sizes[i].n_cols, sizes[i].n_rows,
                         (enum input)(i % INPUT_BOTTOM));
        /* Columns that fill no group, an odd number of them among these. */
        for (uint32_t n_cols = 1; n_cols < 80 && !dtype_is_quantised(all_dtypes[d]); n_cols += 26)
            check_linear(&p, all_dtypes[d], 70, n_cols, 20, INPUT_NORMAL);
        pair_close(&p);
    }
}

Test(cpu_bf16, multiplies)
{
    each_level(check_linears);
}

/* gate_up of the normed x, and the product that follows it, of which h may be handed on. */
static void check_gate_up(struct pair *p, enum dtype gate, enum dtype up, enum dtype down,
                          uint32_t n_tokens, uint32_t n_cols)
{
    enum { N_H = 96, N_OUT = 40 };
    const enum dtype dtypes[] = {gate, up};
    static const uint32_t h_rows[] = {N_H, N_H}, out_rows = N_OUT;
    struct both x = pair_rows(p, n_tokens, n_cols, INPUT_HEAVY), h = pair_rows(p, n_tokens, N_H, 0);
    struct both norm_w = pair_random(p, n_cols, 0.3, 1);
    struct both y[2] = {pair_rows(p, n_tokens, N_OUT, 0), pair_rows(p, n_tokens, N_OUT, 0)};
    struct weight *w[2], *next[2];
    struct tensor th[2], ty[2];

    pair_weight(p, w, WEIGHT_GATE_UP, n_cols, 2, h_rows, dtypes);
    pair_weight(p, next, WEIGHT_LINEAR, N_H, 1, &out_rows, &down);
    for (int i = 0; i < 2; i++) {
        struct tensor tx = pair_tensor(&x, i, n_tokens, n_cols);
        const struct gate_up_args args = {norm_w.data[i], 1e-5f, ACT_SILU, NULL};

        th[i] = pair_tensor(&h, i, n_tokens, N_H);
        cr_assert_eq(p->side[i].ops->gate_up(p->side[i].stream, &th[i], &tx, w[i], &args), 0);
    }
    check_rows(p, &th[0], &th[1], OPS_GATED_HEAVY, "gate_up %s and %s, %u tokens", dtype_name(gate),
               dtype_name(up), n_tokens);
    for (int handed = 0; handed < 2; handed++) {
        struct tensor tx = pair_tensor(&x, 0, n_tokens, n_cols);
        const struct gate_up_args args = {norm_w.data[0], 1e-5f, ACT_SILU, handed ? next[0] : NULL};

        ty[handed] = pair_tensor(&y[handed], 0, n_tokens, N_OUT);
        p->side[0].ops->gate_up(p->side[0].stream, &th[0], &tx, w[0], &args);
        p->side[0].ops->linear(p->side[0].stream, &ty[handed], &th[0], next[0], NULL);
    }
    cr_expect(!memcmp(ty[0].data, ty[1].data, n_tokens * ty[0].stride_bytes),
              "gate_up: what is handed on to %s, %u tokens, is another", dtype_name(down),
              n_tokens);
    pair_weight_free(p, w);
    pair_weight_free(p, next);
}

static void check_gate_ups(const struct ops_subject *subject)
{
    static const uint32_t n_tokens[] = {64, 77, 128, 300};
    struct pair p;

    for (int d = 0; d < N_DTYPES; d++) {
        pair_open(&p, subject);
        for (int i = 0; i < 4; i++)
            check_gate_up(&p, all_dtypes[d], all_dtypes[i == 3 ? 5 - d : d],
                          all_dtypes[(d + i) % N_DTYPES], n_tokens[i], i % 2 ? 576 : 64);
        pair_close(&p);
    }
}

Test(cpu_bf16, gates)
{
    each_level(check_gate_ups);
}

/* A fault in one token reaches its own logits and no other; so does an infinity. */
static void check_head(struct pair *p, enum dtype dtype)
{
    enum {
        N_TOKENS = 150,
        N_OUTPUTS = 90,
        N_COLS = 96,
        N_VOCAB = 257,
        POISONED = 17,
        INFINITE = 40
    };
    struct both x = pair_rows(p, N_TOKENS, N_COLS, INPUT_NORMAL);
    struct both logits = pair_rows(p, N_OUTPUTS, N_VOCAB, INPUT_NORMAL);
    struct both norm_w = pair_random(p, N_COLS, 0.3, 1);
    struct head_row rows[2][N_OUTPUTS];
    uint32_t outputs[N_OUTPUTS], n_vocab = N_VOCAB;
    const struct step step = {
        .n_tokens = N_TOKENS, .n_outputs = N_OUTPUTS, .output_token_idx = outputs};
    struct weight *w[2];
    struct tensor t[2];

    for (uint32_t i = 0; i < N_OUTPUTS; i++)
        outputs[i] = (i * 7 + 3) % N_TOKENS;
    pair_weight(p, w, WEIGHT_EMBED, N_COLS, 1, &n_vocab, &dtype);
    for (int poisoned = 0; poisoned < 2; poisoned++) {
        for (int i = 0; i < 2; i++) {
            const struct head_args args = {&step, norm_w.data[i], 1e-5f, 30, NULL};
            struct tensor tx = pair_tensor(&x, i, N_TOKENS, N_COLS);

            if (poisoned) {
                x.data[i][outputs[POISONED] * pair_stride(N_COLS) + 5] = NAN;
                x.data[i][outputs[INFINITE] * pair_stride(N_COLS) + 50] = INFINITY;
            }
            t[i] = pair_tensor(&logits, i, N_OUTPUTS, N_VOCAB);
            cr_assert_eq(p->side[i].ops->head(p->side[i].stream, &t[i], rows[i], &tx, w[i], &args),
                         0);
        }
        if (!poisoned)
            check_rows(p, &t[0], &t[1], path_of(OPS_HEAD, dtype_is_quantised(dtype), INPUT_NORMAL),
                       "head %s", dtype_name(dtype));
        for (uint32_t o = 0; o < N_OUTPUTS; o++)
            cr_expect_eq(!!rows[0][o].not_finite, poisoned && (o == POISONED || o == INFINITE),
                         "head %s: flag of row %u", dtype_name(dtype), o);
    }
    pair_weight_free(p, w);
}

static void check_heads(const struct ops_subject *subject)
{
    struct pair p;

    pair_open(&p, subject);
    for (int d = 0; d < N_DTYPES; d++)
        check_head(&p, all_dtypes[d]);
    pair_close(&p);
}

Test(cpu_bf16, heads)
{
    each_level(check_heads);
}

Test(cpu_bf16, makes_queries_keys_values)
{
    each_level(ops_check_qkv);
}

Test(cpu_bf16, hands_on)
{
    each_level(ops_check_next);
}

/* ---- bits ------------------------------------------------------------------------------------ */

enum { N_X = 300, N_COLS = 416, N_ROWS = 50, OUT_STRIDE = 64 };

/* Rows [first, first + n_tokens) of x through one weight: out [n_tokens][OUT_STRIDE]. */
static void product(const struct backend_config *config, enum dtype dtype, const float *x,
                    uint32_t n_tokens, float *out)
{
    static const struct stream_shape shape = {N_X, 4, N_X, N_COLS, 64, 4, 16, 64};
    const uint32_t n_rows = N_ROWS;
    struct tensor tx = {(float *)x, DTYPE_F32, n_tokens, N_COLS, N_COLS * sizeof(float)};
    struct tensor ty = {out, DTYPE_F32, n_tokens, N_ROWS, OUT_STRIDE * sizeof(float)};
    struct weight_spec spec = {"random", WEIGHT_LINEAR, N_COLS, 1, {{0}}};
    size_t bytes = dtype_row_bytes(dtype, N_COLS) * n_rows;
    uint8_t *data = malloc(bytes);
    struct backend *b = NULL;
    struct weight *w = NULL;
    struct stream *s = NULL;
    const char *why = "";
    uint64_t state = 11;

    for (size_t i = 0; i < bytes; i++) /* no exponent is all ones, nor are many large */
        data[i] = (uint8_t)(ops_random(&state) % 0x3c);
    spec.parts[0] = (struct weight_part){data, dtype, n_rows};
    cr_assert_eq(backend_cpu.open(&b, config, &why), 0, "%s", why);
    cr_assert_eq(backend_cpu.stream_new(b, &s, &shape), 0);
    cr_assert_eq(backend_cpu.weight_new(b, &w, &spec, &why), 0, "%s", why);
    cr_assert_eq(backend_cpu.linear(s, &ty, &tx, w, NULL), 0);
    backend_cpu.weight_free(w);
    backend_cpu.stream_free(s);
    backend_cpu.close(b);
    free(data);
}

static uint32_t n_different(const float *a, const float *b, uint32_t n_tokens)
{
    uint32_t differ = 0;

    for (uint32_t t = 0; t < n_tokens; t++)
        differ += memcmp(a + t * OUT_STRIDE, b + t * OUT_STRIDE, N_ROWS * sizeof *a) != 0;
    return differ;
}

/* Where a product is in bf16, a row's bits do not depend on how many tokens are beside it, on
 * threads, nor on the level; where it is not, they are the contract's. */
Test(cpu_bf16, is_for_many_tokens_only_and_where_it_may)
{
    static float x[N_X * N_COLS], contract[N_X * OUT_STRIDE], bf16[N_X * OUT_STRIDE];
    static float got[N_X * OUT_STRIDE];
    const struct level *level;
    uint64_t state = 5;
    const char *why;

    for (size_t i = 0; i < N_X * N_COLS; i++)
        x[i] = (float)ops_random_normal(&state);
    for (int d = 0; d < N_DTYPES; d++) {
        struct backend_config config = {.n_threads = 1, .isa = "scalar"};
        bool have_bf16 = false;

        product(&config, all_dtypes[d], x, N_X, contract);
        for (uint32_t l = 0; (level = isa_level_at(l)); l++) {
            static const uint32_t n_tokens[] = {1, 63, 64, 95, 256, N_X};

            for (int i = 0; i < 12; i++) {
                uint32_t n = n_tokens[i / 2];
                bool variant = i % 2, in_bf16;

                config = (struct backend_config){
                    .n_threads = 1 + i % 5, .isa = level->name, .batch_variant = variant};
                in_bf16 = variant && n >= BF16_TOKENS && isa_bf16_tokens(level, &why);
                product(&config, all_dtypes[d], x, n, got);
                if (in_bf16 && !have_bf16) {
                    product(&config, all_dtypes[d], x, N_X, bf16);
                    have_bf16 = true;
                    cr_expect_eq(n_different(bf16, contract, N_X), N_X, "%s: not in bf16",
                                 dtype_name(all_dtypes[d]));
                }
                cr_expect_eq(n_different(got, in_bf16 ? bf16 : contract, n), 0,
                             "%s %s, %u tokens, variant %d", level->name, dtype_name(all_dtypes[d]),
                             n, variant);
            }
        }
    }
}

Test(cpu_bf16, says_whether_it_is_in_use)
{
    const struct level *level;
    const char *why;

    for (uint32_t l = 0; (level = isa_level_at(l)); l++) {
        cr_expect(!strstr(level->name, "emulated") || isa_bf16_tokens(level, &why), "%s",
                  level->name);
        for (int variant = 0; variant < 2; variant++) {
            const struct backend_config config = {
                .n_threads = 1, .isa = level->name, .batch_variant = variant};
            bool has = strstr(level->name, "amx") && isa_bf16_tokens(level, &why);
            struct backend_caps caps;
            struct backend *b = NULL;

            cr_assert_eq(backend_cpu.open(&b, &config, &why), 0, "%s", why);
            backend_cpu.caps(b, &caps);
            cr_expect_eq(caps.bf16_tokens, variant && has ? BF16_TOKENS : 0, "%s", level->name);
            cr_expect_eq(!!caps.bf16_refusal, variant && !has, "%s", level->name);
            backend_cpu.close(b);
        }
    }
}
