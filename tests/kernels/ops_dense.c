/* Checks of what works on rows alone: embedding, norm, products, head. */
#include "tests/kernels/ops_side.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const enum dtype all_dtypes[] = {DTYPE_F32,  DTYPE_F16,  DTYPE_BF16,
                                        DTYPE_Q4_0, DTYPE_Q4_1, DTYPE_Q8_0};
enum { N_DTYPES = sizeof all_dtypes / sizeof all_dtypes[0] };

static uint32_t fit(const struct ops_subject *s, enum dtype t, uint32_t n_cols)
{
    uint32_t unit = dtype_is_quantised(t) ? 32 : s->dim_multiple;

    return (n_cols + unit - 1) / unit * unit;
}

void ops_check_embed(const struct ops_subject *subject)
{
    static const int32_t ids[] = {0, 1, 99, 98, 50, 50, -1, 100, INT32_MIN, INT32_MAX, 7};
    enum { N = sizeof ids / sizeof ids[0] };
    static const float scales[] = {1, 24.5f};
    struct pair p;

    pair_open(&p, subject);
    for (int d = 0; d < N_DTYPES; d++) {
        uint32_t n_cols = fit(subject, all_dtypes[d], d % 2 ? 37 : 576), n_rows = 100;
        struct both x = pair_rows(&p, N, n_cols, INPUT_NORMAL);
        struct weight *w[2];

        pair_weight(&p, w, WEIGHT_EMBED, n_cols, 1, &n_rows, &all_dtypes[d]);
        for (int scale = 0; scale < 2; scale++) {
            struct tensor t[2];

            for (int i = 0; i < 2; i++) {
                t[i] = pair_tensor(&x, i, N, n_cols);
                cr_assert_eq(
                    p.side[i].ops->embed(p.side[i].stream, &t[i], w[i], ids, scales[scale]), 0);
            }
            check_rows(&t[0], &t[1], &(struct ops_limit){1e-14, 1e-6}, "embed %s x%g",
                       dtype_name(all_dtypes[d]), (double)scales[scale]);
        }
        pair_weight_free(&p, w);
    }
    pair_close(&p);
}

void ops_check_rmsnorm(const struct ops_subject *subject)
{
    static const uint32_t lengths[] = {1, 16, 50, 576, 1536};
    struct pair p;

    pair_open(&p, subject);
    for (int l = 0; l < 5; l++) {
        for (int kind = 0; kind < INPUT_COUNT; kind++) {
            uint32_t n_cols = fit(subject, DTYPE_F32, lengths[l]), n_rows = l % 2 ? 1 : 7;
            struct both x = pair_rows(&p, n_rows, n_cols, (enum input)kind);
            struct both y = pair_rows(&p, n_rows, n_cols, INPUT_NORMAL);
            struct both w = pair_random(&p, n_cols, 0.3, 1);
            struct tensor tx[2], ty[2];
            /* A rms far below sqrt(eps) takes the other branch of the sum under the root. */
            float eps = kind == INPUT_TINY ? 1e-30f : 1e-5f;

            for (int i = 0; i < 2; i++) {
                tx[i] = pair_tensor(&x, i, n_rows, n_cols);
                ty[i] = pair_tensor(&y, i, n_rows, n_cols);
                p.side[i].ops->rmsnorm(p.side[i].stream, &ty[i], &tx[i], w.data[i], eps);
            }
            check_rows(&ty[0], &ty[1], &subject->limits->norm, "rmsnorm %u kind %d", n_cols, kind);
            for (int i = 0; i < 2; i++)
                p.side[i].ops->rmsnorm(p.side[i].stream, &tx[i], &tx[i], w.data[i], eps);
            check_rows(&tx[0], &ty[1], &subject->limits->norm, "rmsnorm in place %u", n_cols);
        }
    }
    pair_close(&p);
}

void ops_check_gather(const struct ops_subject *subject)
{
    static const uint32_t rows[] = {4, 0, 0, 3, 5, UINT32_MAX, 1};
    enum { N = sizeof rows / sizeof rows[0], N_X = 5, N_COLS = 50 };
    struct pair p;

    pair_open(&p, subject);
    struct both x = pair_rows(&p, N_X, N_COLS, INPUT_NORMAL);
    struct both y = pair_rows(&p, N, N_COLS, INPUT_NORMAL);
    struct tensor tx = pair_tensor(&x, 0, N_X, N_COLS), ty = pair_tensor(&y, 0, N, N_COLS);

    cr_assert_eq(p.side[0].ops->gather(p.side[0].stream, &ty, &tx, rows), 0);
    for (uint32_t i = 0; i < N; i++) {
        uint32_t row = rows[i] < N_X ? rows[i] : 0;

        cr_assert_arr_eq((char *)ty.data + i * ty.stride_bytes,
                         (char *)tx.data + row * tx.stride_bytes, N_COLS * sizeof(float), "row %u",
                         i);
    }
    pair_close(&p);
}

/* ---- products -------------------------------------------------------------------------------- */

static const struct ops_limit *linear_limit(const struct ops_subject *s, enum dtype t,
                                            enum input kind)
{
    if (!dtype_is_quantised(t))
        return &s->limits->linear;
    return kind == INPUT_HEAVY ? &s->limits->quantised_heavy : &s->limits->quantised;
}

static void check_linear(struct pair *p, enum dtype dtype, uint32_t n_tokens, uint32_t n_cols,
                         uint32_t n_rows, enum input kind)
{
    struct both x = pair_rows(p, n_tokens, n_cols, kind);
    struct both residual = pair_rows(p, n_tokens, n_rows, INPUT_NORMAL);
    struct both bias = pair_random(p, n_rows, 1, 0);
    struct weight *w[2];
    struct tensor tx[2], ty[2], tr[2];
    const char *name = dtype_name(dtype);
    const struct ops_limit *limit = linear_limit(p->subject, dtype, kind);

    pair_weight(p, w, WEIGHT_LINEAR, n_cols, 1, &n_rows, &dtype);
    for (int form = 0; form < 4; form++) {
        struct both y = pair_rows(p, n_tokens, n_rows, INPUT_NORMAL);

        for (int i = 0; i < 2; i++) {
            struct epilogue e = {form & 1 ? bias.data[i] : NULL, form & 2 ? &tr[i] : NULL};

            tx[i] = pair_tensor(&x, i, n_tokens, n_cols);
            ty[i] = pair_tensor(&y, i, n_tokens, n_rows);
            tr[i] = pair_tensor(&residual, i, n_tokens, n_rows);
            cr_assert_eq(
                p->side[i].ops->linear(p->side[i].stream, &ty[i], &tx[i], w[i], form ? &e : NULL),
                0);
        }
        check_rows(&ty[0], &ty[1], limit, "linear %s %ux%ux%u kind %d form %d", name, n_tokens,
                   n_rows, n_cols, kind, form);
    }
    /* y may be the residual itself, as in every layer. */
    for (int i = 0; i < 2; i++) {
        struct epilogue e = {NULL, &tr[i]};

        p->side[i].ops->linear(p->side[i].stream, &tr[i], &tx[i], w[i], &e);
    }
    check_rows(&tr[0], &tr[1], limit, "linear %s into its residual", name);
    pair_weight_free(p, w);
}

void ops_check_linear(const struct ops_subject *subject)
{
    static const struct {
        uint32_t n_tokens, n_cols, n_rows;
    } sizes[] = {{1, 32, 1},    {1, 576, 192}, {2, 96, 17},   {3, 64, 33},   {5, 544, 65},
                 {8, 1536, 48}, {9, 64, 100},  {17, 160, 31}, {31, 576, 16}, {67, 96, 80}};
    struct pair p;

    pair_open(&p, subject);
    for (int d = 0; d < N_DTYPES; d++) {
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
            check_linear(&p, all_dtypes[d], sizes[i].n_tokens, sizes[i].n_cols, sizes[i].n_rows,
                         (enum input)(i % 2 ? (i + (size_t)d) % INPUT_COUNT : INPUT_NORMAL));
        for (int kind = 0; kind < INPUT_COUNT; kind++)
            check_linear(&p, all_dtypes[d], 6, 576, 40, (enum input)kind);
    }
    check_linear(&p, DTYPE_F32, 4, fit(subject, DTYPE_F32, 50), 9, INPUT_NORMAL);
    check_linear(&p, DTYPE_BF16, 4, fit(subject, DTYPE_BF16, 77), 9, INPUT_NORMAL);
    pair_close(&p);
}

void ops_check_gate_up(const struct ops_subject *subject)
{
    static const uint32_t tokens[] = {1, 2, 7, 12, 33};
    struct pair p;

    pair_open(&p, subject);
    for (int d = 0; d < N_DTYPES; d++) {
        for (int form = 0; form < 5; form++) {
            const enum dtype dtypes[2] = {all_dtypes[d], all_dtypes[form == 4 ? 5 - d : d]};
            uint32_t n_tokens = tokens[form], n_cols = form % 2 ? 576 : 64;
            uint32_t n_rows[2] = {form % 2 ? 48 : 45, form % 2 ? 48 : 45};
            bool quantised = dtype_is_quantised(dtypes[0]) || dtype_is_quantised(dtypes[1]);
            struct both x = pair_rows(&p, n_tokens, n_cols, (enum input)form);
            struct both h = pair_rows(&p, n_tokens, n_rows[0], INPUT_NORMAL);
            struct both norm_w = pair_random(&p, n_cols, 0.3, 1);
            struct tensor th[2];
            struct weight *w[2];

            pair_weight(&p, w, WEIGHT_GATE_UP, n_cols, 2, n_rows, dtypes);
            for (int act = 0; act < 2; act++) {
                for (int i = 0; i < 2; i++) {
                    struct tensor tx = pair_tensor(&x, i, n_tokens, n_cols);
                    struct gate_up_args args = {.norm_w = form % 2 ? norm_w.data[i] : NULL,
                                                .norm_eps = 1e-5f,
                                                .act = act ? ACT_GELU_TANH : ACT_SILU};

                    th[i] = pair_tensor(&h, i, n_tokens, n_rows[0]);
                    cr_assert_eq(p.side[i].ops->gate_up(p.side[i].stream, &th[i], &tx, w[i], &args),
                                 0);
                }
                /* The product of two outputs about 1e-25 is a denormal and flushed. */
                if (form == INPUT_TINY && !(form % 2))
                    continue;
                check_rows(&th[0], &th[1],
                           quantised ? &subject->limits->gated_quantised : &subject->limits->gated,
                           "gate_up %s and %s, %u tokens, act %d", dtype_name(dtypes[0]),
                           dtype_name(dtypes[1]), n_tokens, act);
            }
            pair_weight_free(&p, w);
        }
    }
    pair_close(&p);
}

/* ---- head ------------------------------------------------------------------------------------ */

/* What the rows say must be what the same side's logits say. */
static void check_head_rows(const struct tensor *logits, const struct head_row *rows)
{
    for (uint32_t r = 0; r < logits->n_rows; r++) {
        const float *row = (const float *)((char *)logits->data + r * logits->stride_bytes);
        uint32_t best = 0;

        for (uint32_t i = 1; i < logits->n_cols; i++)
            best = row[i] > row[best] ? i : best;
        cr_expect(rows[r].argmax == best && rows[r].max == row[best] && !rows[r].not_finite,
                  "head row %u: says %u %g, is %u %g", r, rows[r].argmax, (double)rows[r].max, best,
                  (double)row[best]);
    }
}

static void check_head(struct pair *p, enum dtype dtype, uint32_t n_vocab, int form)
{
    enum { N_TOKENS = 11, N_OUTPUTS = 5 };
    static const uint32_t outputs[N_OUTPUTS] = {0, 3, 4, 4, 10};
    static const uint8_t want[N_OUTPUTS] = {0, 1, 0, 1, 0};
    const struct step step = {
        .n_tokens = N_TOKENS, .n_outputs = N_OUTPUTS, .output_token_idx = outputs};
    uint32_t n_cols = 96;
    enum input kind = form == 2 ? INPUT_HEAVY : INPUT_NORMAL;
    struct both x = pair_rows(p, N_TOKENS, n_cols, kind);
    struct both all = pair_rows(p, N_OUTPUTS, n_vocab, INPUT_NORMAL);
    struct both some = pair_rows(p, N_OUTPUTS, n_vocab, INPUT_NORMAL);
    struct both norm_w = pair_random(p, n_cols, 0.3, 1);
    struct head_row rows[2][N_OUTPUTS], rows2[2][N_OUTPUTS];
    struct tensor tx[2], t_all[2], t_some[2];
    struct weight *w[2];

    pair_weight(p, w, form ? WEIGHT_EMBED : WEIGHT_LINEAR, n_cols, 1, &n_vocab, &dtype);
    for (int i = 0; i < 2; i++) {
        struct head_args args = {&step, form ? norm_w.data[i] : NULL, 1e-5f, form == 2 ? 1.5f : 0,
                                 NULL};
        const struct backend_ops *ops = p->side[i].ops;

        tx[i] = pair_tensor(&x, i, N_TOKENS, n_cols);
        t_all[i] = pair_tensor(&all, i, N_OUTPUTS, n_vocab);
        t_some[i] = pair_tensor(&some, i, N_OUTPUTS, n_vocab);
        cr_assert_eq(ops->head(p->side[i].stream, &t_all[i], rows[i], &tx[i], w[i], &args), 0);
        check_head_rows(&t_all[i], rows[i]);
        args.want_logits = want;
        memset(t_some[i].data, 0x11, N_OUTPUTS * t_some[i].stride_bytes);
        ops->head(p->side[i].stream, &t_some[i], rows2[i], &tx[i], w[i], &args);
        for (uint32_t r = 0; r < N_OUTPUTS; r++) {
            const uint8_t *got = (uint8_t *)t_some[i].data + r * t_some[i].stride_bytes;
            const uint8_t *full = (uint8_t *)t_all[i].data + r * t_all[i].stride_bytes;

            cr_expect(!memcmp(&rows[i][r], &rows2[i][r], sizeof rows[i][r]),
                      "head: row %u depends on who wants logits", r);
            for (size_t b = 0; b < n_vocab * sizeof(float); b++) {
                if (got[b] != (want[r] ? full[b] : 0x11))
                    cr_assert_fail("head: logits of row %u, wanted %d", r, want[r]);
            }
        }
    }
    check_rows(&t_all[0], &t_all[1], linear_limit(p->subject, dtype, kind), "head %s %u form %d",
               dtype_name(dtype), n_vocab, form);
    /* A fault in one token reaches its own rows and no other. */
    for (int i = 0; i < 2; i++) {
        struct head_args args = {&step, NULL, 0, 0, want};

        ((float *)((char *)tx[i].data + 4 * tx[i].stride_bytes))[form * 40] =
            form == 1 ? INFINITY : NAN;
        p->side[i].ops->head(p->side[i].stream, &t_some[i], rows[i], &tx[i], w[i], &args);
        for (uint32_t r = 0; r < N_OUTPUTS; r++)
            cr_expect_eq(!!rows[i][r].not_finite, outputs[r] == 4, "head: flag of row %u", r);
    }
    pair_weight_free(p, w);
}

/* Equal rows of the weight give equal logits: the lower id wins. */
static void check_head_ties(struct pair *p)
{
    enum { N_VOCAB = 1030, N_COLS = 32 };
    static const uint32_t ties[3] = {257, 258, 1029}, output = 0;
    const struct step step = {.n_tokens = 1, .n_outputs = 1, .output_token_idx = &output};
    float *data = calloc((size_t)N_VOCAB * N_COLS, sizeof *data);
    struct weight_spec spec = {"ties", WEIGHT_EMBED, N_COLS, 1, {{data, DTYPE_F32, N_VOCAB}}};
    struct both x = pair_rows(p, 1, N_COLS, INPUT_NORMAL);
    struct both logits = pair_rows(p, 1, N_VOCAB, INPUT_NORMAL);
    struct head_row row;
    struct weight *w;
    const char *why;

    for (int i = 0; i < 3; i++) {
        for (int c = 0; c < N_COLS; c++)
            data[ties[i] * N_COLS + (uint32_t)c] = x.data[0][c];
    }
    for (int i = 0; i < 2; i++) {
        struct head_args args = {.step = &step};
        struct tensor tx = pair_tensor(&x, i, 1, N_COLS);
        struct tensor tl = pair_tensor(&logits, i, 1, N_VOCAB);

        cr_assert_eq(p->side[i].ops->weight_new(p->side[i].backend, &w, &spec, &why), 0);
        p->side[i].ops->head(p->side[i].stream, &tl, &row, &tx, w, &args);
        cr_expect_eq(row.argmax, 257, "head: among equals %s takes %u", p->side[i].ops->name,
                     row.argmax);
        p->side[i].ops->weight_free(w);
    }
    free(data);
}

void ops_check_head(const struct ops_subject *subject)
{
    static const uint32_t sizes[] = {1, 255, 257, 1030};
    struct pair p;

    pair_open(&p, subject);
    for (int d = 0; d < N_DTYPES; d++) {
        for (int form = 0; form < 3; form++)
            check_head(&p, all_dtypes[d], sizes[(d + form) % 4], form);
    }
    check_head_ties(&p);
    pair_close(&p);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void refused(const struct side *s, int expected, int r, const char *why, const char *what)
{
    cr_expect_eq(r, expected, "%s with %s: %d", s->ops->name, what, r);
    cr_expect(why && strlen(why) > 5, "%s with %s gives no reason", s->ops->name, what);
}

void ops_check_refusals(const struct ops_subject *subject)
{
    static const float data[64 * 64];
    struct weight_part f32 = {data, DTYPE_F32, 2}, q4 = {data, DTYPE_Q4_0, 2};
    struct weight_part longer = {data, DTYPE_F32, 3};
    struct kv_shape shape = {1, 1, 16, 16, 4, DTYPE_F16};
    struct backend_config config = {.isa = "no such set"};
    struct backend *b = NULL;
    struct weight *w;
    struct kv *kv;
    struct pair p;
    const char *why = NULL;
    struct side *s = &p.side[0];
    int r;

    pair_open(&p, subject);
    r = s->ops->open(&b, &config, &why);
    refused(s, -ENOTSUP, r, why, "an unknown instruction set");
    why = NULL;
    r = s->ops->weight_new(s->backend, &w, &(struct weight_spec){"a", WEIGHT_LINEAR, 48, 1, {q4}},
                           &why);
    refused(s, -EINVAL, r, why, "48 columns of Q4_0");
    why = NULL;
    r = s->ops->weight_new(s->backend, &w,
                           &(struct weight_spec){"a", WEIGHT_GATE_UP, 32, 2, {f32, longer}}, &why);
    refused(s, -EINVAL, r, why, "gate and up of different shape");
    why = NULL;
    r = s->ops->weight_new(s->backend, &w,
                           &(struct weight_spec){"a", WEIGHT_EMBED, 32, 2, {f32, f32}}, &why);
    refused(s, -EINVAL, r, why, "an embedding in two parts");
    why = NULL;
    r = s->ops->kv_new(s->backend, &kv, &shape, &why);
    refused(s, -EINVAL, r, why, "keys in F16");
    shape.dtype = DTYPE_BF16;
    shape.page_size = subject->page_multiple > 1 ? subject->page_multiple + 1 : 3;
    why = NULL;
    r = s->ops->kv_new(s->backend, &kv, &shape, &why);
    refused(s, -EINVAL, r, why, "an odd page size");
    pair_close(&p);
}
