/* Checks of what works on rows alone: embedding, norm, products. */
#include "tests/kernels/ops_side.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const enum dtype all_dtypes[] = {DTYPE_F32,  DTYPE_F16,  DTYPE_BF16,
                                        DTYPE_Q4_0, DTYPE_Q4_1, DTYPE_Q8_0};
static const uint32_t odd_sizes[] = {1, 3, 17, 31, 33, 65, 127, 129, 576, 1000};
enum { N_DTYPES = sizeof all_dtypes / sizeof all_dtypes[0], N_ODD = 10 };

void ops_check_embed(const struct ops_subject *subject)
{
    static const float scales[] = {1, 24.5f, -0x1p-70f};
    struct pair p;

    pair_open(&p, subject);
    for (int d = 0; d < N_DTYPES; d++) {
        for (uint32_t i = 0; i < N_ODD; i++) {
            uint32_t n_cols = cols_fit(all_dtypes[d], odd_sizes[i]);
            uint32_t n_rows = odd_sizes[(i + 7) % N_ODD];
            const int32_t last = (int32_t)n_rows - 1;
            const int32_t ids[] = {0, last, last / 2, last, -1, last + 1, INT32_MIN, INT32_MAX, 0};
            const uint32_t n = sizeof ids / sizeof ids[0];
            struct both x = pair_rows(&p, n, n_cols, INPUT_NORMAL);
            struct tensor t[2];
            struct weight *w[2];

            pair_weight(&p, w, WEIGHT_EMBED, n_cols, 1, &n_rows, &all_dtypes[d]);
            for (int side = 0; side < 2; side++) {
                t[side] = pair_tensor(&x, side, n, n_cols);
                cr_assert_eq(p.side[side].ops->embed(p.side[side].stream, &t[side], w[side], ids,
                                                     scales[i % 3]),
                             0);
            }
            check_rows(&p, &t[0], &t[1], OPS_EMBED, "embed %s of %ux%u, times %g",
                       dtype_name(all_dtypes[d]), n_rows, n_cols, (double)scales[i % 3]);
            pair_weight_free(&p, w);
        }
    }
    pair_close(&p);
}

static void check_rmsnorm(struct pair *p, uint32_t n_rows, uint32_t n_cols, enum input kind)
{
    struct both x = pair_rows(p, n_rows, n_cols, kind);
    struct both y = pair_rows(p, n_rows, n_cols, INPUT_NORMAL);
    struct both w = pair_rows(p, 1, n_cols, n_rows % 2 ? INPUT_OFFSET : INPUT_DENORMAL);
    struct tensor tx[2], ty[2];
    /* A rms far below sqrt(eps) takes the other branch of the sum under the root. */
    float eps = kind == INPUT_TINY ? 1e-30f : kind == INPUT_LARGE ? 0 : 1e-5f;

    for (int i = 0; i < 2; i++) {
        tx[i] = pair_tensor(&x, i, n_rows, n_cols);
        ty[i] = pair_tensor(&y, i, n_rows, n_cols);
        p->side[i].ops->rmsnorm(p->side[i].stream, &ty[i], &tx[i], w.data[i], eps);
    }
    check_rows(p, &ty[0], &ty[1], OPS_NORM, "rmsnorm %ux%u kind %d", n_rows, n_cols, kind);
    if (kind == INPUT_ROWS)
        check_each_row(p, &ty[0], &ty[1], OPS_NORM, "rmsnorm");
    for (int i = 0; i < 2; i++)
        p->side[i].ops->rmsnorm(p->side[i].stream, &tx[i], &tx[i], w.data[i], eps);
    check_rows(p, &tx[0], &ty[1], OPS_NORM, "rmsnorm in place %ux%u", n_rows, n_cols);
}

void ops_check_rmsnorm(const struct ops_subject *subject)
{
    static const uint32_t n_rows[] = {7, 1, 33, 4};

    for (uint32_t i = 0; i < N_ODD; i++) {
        struct pair p;

        pair_open(&p, subject);
        for (int kind = 0; kind < inputs_of(subject); kind++)
            check_rmsnorm(&p, n_rows[(i + (uint32_t)kind) % 4], odd_sizes[i], (enum input)kind);
        check_rmsnorm(&p, 129, odd_sizes[i] + 15, INPUT_ROWS);
        pair_close(&p);
    }
}

void ops_check_gather(const struct ops_subject *subject)
{
    static const uint32_t rows[] = {4, 0, 0, 3, 5, UINT32_MAX, 1};
    enum { N = sizeof rows / sizeof rows[0], N_X = 5 };
    struct pair p;

    pair_open(&p, subject);
    for (uint32_t n = 0; n < N_ODD; n++) {
        uint32_t n_cols = odd_sizes[n];
        struct both x = pair_rows(&p, N_X, n_cols, INPUT_ROWS);
        struct both y = pair_rows(&p, N, n_cols, INPUT_NORMAL);
        struct tensor tx = pair_tensor(&x, 0, N_X, n_cols), ty = pair_tensor(&y, 0, N, n_cols);

        cr_assert_eq(p.side[0].ops->gather(p.side[0].stream, &ty, &tx, rows), 0);
        for (uint32_t i = 0; i < N; i++) {
            uint32_t row = rows[i] < N_X ? rows[i] : 0;

            cr_assert_arr_eq((char *)ty.data + i * ty.stride_bytes,
                             (char *)tx.data + row * tx.stride_bytes, n_cols * sizeof(float),
                             "row %u of %u columns", i, n_cols);
        }
    }
    pair_close(&p);
}

/* ---- products -------------------------------------------------------------------------------- */

/* form: bit 0: with a bias, bit 1: with a residual. */
static void check_linear(struct pair *p, enum dtype dtype, uint32_t n_tokens, uint32_t n_cols,
                         uint32_t n_rows, enum input kind, int form)
{
    struct both x, y, residual, bias;
    struct weight *w[2];
    struct tensor tx[2], ty[2], tr[2];
    enum ops_path path = path_of(OPS_LINEAR, dtype_is_quantised(dtype), kind);

    n_cols = cols_fit(dtype, n_cols);
    x = pair_rows(p, n_tokens, n_cols, kind);
    y = pair_rows(p, n_tokens, n_rows, INPUT_NORMAL);
    residual = pair_rows(p, n_tokens, n_rows, INPUT_DENORMAL);
    bias = pair_random(p, n_rows, 1, 0);
    p->extreme = kind == INPUT_EXTREME;
    pair_weight(p, w, WEIGHT_LINEAR, n_cols, 1, &n_rows, &dtype);
    for (int i = 0; i < 2; i++) {
        struct epilogue e = {form & 1 ? bias.data[i] : NULL, form & 2 ? &tr[i] : NULL};

        tx[i] = pair_tensor(&x, i, n_tokens, n_cols);
        ty[i] = pair_tensor(&y, i, n_tokens, n_rows);
        tr[i] = pair_tensor(&residual, i, n_tokens, n_rows);
        cr_assert_eq(
            p->side[i].ops->linear(p->side[i].stream, &ty[i], &tx[i], w[i], form ? &e : NULL), 0);
    }
    check_rows(p, &ty[0], &ty[1], path, "linear %s %ux%ux%u kind %d form %d", dtype_name(dtype),
               n_tokens, n_rows, n_cols, kind, form);
    if (kind == INPUT_ROWS && !form)
        check_each_row(p, &ty[0], &ty[1], path, "linear");
    /* y may be the residual itself, as in every layer. */
    for (int i = 0; i < 2 && form == 2; i++) {
        struct epilogue e = {NULL, &tr[i]};

        p->side[i].ops->linear(p->side[i].stream, &tr[i], &tx[i], w[i], &e);
    }
    if (form == 2)
        check_rows(p, &tr[0], &tr[1], path, "linear %s into its residual", dtype_name(dtype));
    pair_weight_free(p, w);
}

void ops_check_linear(const struct ops_subject *subject)
{
    static const struct {
        uint32_t n_tokens, n_cols, n_rows;
    } sizes[] = {{1, 1, 1000},  {3, 3, 129},    {17, 17, 127}, {31, 31, 65},    {33, 33, 33},
                 {65, 65, 31},  {127, 127, 17}, {129, 129, 3}, {1000, 1000, 1}, {1, 1, 1},
                 {1, 576, 192}, {5, 544, 65},   {8, 1536, 48}, {16, 1000, 16},  {64, 96, 80}};
    struct pair p;

    for (int d = 0; d < N_DTYPES; d++) {
        pair_open(&p, subject);
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            bool is_plain = i % 2 == 0 || sizes[i].n_tokens * sizes[i].n_rows < 16;

            check_linear(&p, all_dtypes[d], sizes[i].n_tokens, sizes[i].n_cols, sizes[i].n_rows,
                         (enum input)(is_plain ? INPUT_NORMAL : (i + (size_t)d) % INPUT_BOTTOM),
                         (int)i % 4);
        }
        for (int kind = 0; kind < inputs_of(subject); kind++) {
            check_linear(&p, all_dtypes[d], 7, 576, 40, (enum input)kind, 0);
            check_linear(&p, all_dtypes[d], 35, 160, 33, (enum input)kind, kind % 4);
        }
        for (int form = 0; form < 4; form++)
            check_linear(&p, all_dtypes[d], 9, 65, 100, INPUT_NORMAL, form);
        pair_close(&p);
    }
}

static void check_gate_up(struct pair *p, const enum dtype dtypes[2], uint32_t n_tokens,
                          uint32_t n_cols, uint32_t n_rows, enum input kind, bool is_normed)
{
    bool quantised = dtype_is_quantised(dtypes[0]) || dtype_is_quantised(dtypes[1]);
    enum ops_path path = path_of(OPS_GATED, quantised, kind);
    const uint32_t part_rows[2] = {n_rows, n_rows};
    struct both x, h, norm_w;
    struct weight *w[2];

    n_cols = cols_fit(quantised ? DTYPE_Q4_0 : DTYPE_F32, n_cols);
    x = pair_rows(p, n_tokens, n_cols, kind);
    h = pair_rows(p, n_tokens, n_rows, INPUT_NORMAL);
    norm_w = pair_random(p, n_cols, 0.3, 1);
    pair_weight(p, w, WEIGHT_GATE_UP, n_cols, 2, part_rows, dtypes);
    for (int act = 0; act < 2; act++) {
        struct tensor th[2];

        for (int i = 0; i < 2; i++) {
            struct tensor tx = pair_tensor(&x, i, n_tokens, n_cols);
            struct gate_up_args args = {.norm_w = is_normed ? norm_w.data[i] : NULL,
                                        .norm_eps = 1e-5f,
                                        .act = act ? ACT_GELU_TANH : ACT_SILU};

            th[i] = pair_tensor(&h, i, n_tokens, n_rows);
            cr_assert_eq(p->side[i].ops->gate_up(p->side[i].stream, &th[i], &tx, w[i], &args), 0);
        }
        check_rows(p, &th[0], &th[1], path, "gate_up %s and %s, %ux%ux%u, kind %d, norm %d, act %d",
                   dtype_name(dtypes[0]), dtype_name(dtypes[1]), n_tokens, n_rows, n_cols, kind,
                   is_normed, act);
        if (kind == INPUT_ROWS && !quantised)
            check_each_row(p, &th[0], &th[1], path, "gate_up");
    }
    pair_weight_free(p, w);
}

void ops_check_gate_up(const struct ops_subject *subject)
{
    static const struct {
        uint32_t n_tokens, n_cols, n_rows;
    } sizes[] = {{1, 1, 1000},  {3, 31, 129},  {7, 576, 48}, {17, 17, 127}, {33, 65, 33},
                 {65, 129, 17}, {129, 127, 3}, {12, 64, 45}, {1000, 33, 1}};
    struct pair p;

    for (int d = 0; d < N_DTYPES; d++) {
        const enum dtype same[2] = {all_dtypes[d], all_dtypes[d]};
        const enum dtype mixed[2] = {all_dtypes[d], all_dtypes[N_DTYPES - 1 - d]};

        pair_open(&p, subject);
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
            check_gate_up(&p, i % 4 == 3 ? mixed : same, sizes[i].n_tokens, sizes[i].n_cols,
                          sizes[i].n_rows, INPUT_NORMAL, i % 2);
        for (int kind = 0; kind < inputs_of(subject); kind++) {
            check_gate_up(&p, same, 7, 576, 40, (enum input)kind, true);
            /* Without a norm a product of two heavy rows is heavier still, and its errors. */
            if (path_of(0, dtype_is_quantised(all_dtypes[d]), (enum input)kind) < 2 ||
                !subject->limits)
                check_gate_up(&p, same, 35, 160, 33, (enum input)kind, false);
        }
        pair_close(&p);
    }
}
