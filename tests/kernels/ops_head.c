/* Checks of the head. */
#include "tests/kernels/ops_side.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N_TOKENS = 70, OUTPUTS_MAX = 65 };

struct head_case {
    uint32_t n_cols, n_vocab, n_outputs;
    enum input kind;
    bool is_normed;
    float softcap;
};

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

/* Rows that do not want their logits have the same facts, and those that do the same logits. */
static void check_wanted(const struct side *s, const struct tensor *all,
                         const struct head_row *rows, const struct tensor *x,
                         const struct weight *w, struct head_args args)
{
    uint8_t *some = malloc(all->n_rows * all->stride_bytes), want[OUTPUTS_MAX];
    struct tensor t = *all;
    struct head_row rows2[OUTPUTS_MAX];

    for (uint32_t r = 0; r < all->n_rows; r++)
        want[r] = r % 2;
    args.want_logits = want;
    t.data = some;
    memset(some, 0x11, all->n_rows * all->stride_bytes);
    s->ops->head(s->stream, &t, rows2, x, w, &args);
    for (uint32_t r = 0; r < all->n_rows; r++) {
        const uint8_t *got = some + r * t.stride_bytes;
        const uint8_t *full = (uint8_t *)all->data + r * all->stride_bytes;

        cr_expect(!memcmp(&rows[r], &rows2[r], sizeof rows[r]),
                  "head: row %u depends on who wants logits", r);
        for (size_t b = 0; b < all->n_cols * sizeof(float); b++) {
            if (got[b] != (want[r] ? full[b] : 0x11))
                cr_assert_fail("head: logits of row %u, wanted %d", r, want[r]);
        }
    }
    free(some);
}

/* A fault in one token reaches its own rows and no other. */
static void check_fault(const struct side *s, struct tensor *logits, const struct tensor *x,
                        const struct weight *w, const struct step *step, float fault)
{
    const uint32_t token = step->output_token_idx[step->n_outputs / 2];
    const struct head_args args = {.step = step};
    struct head_row rows[OUTPUTS_MAX];

    ((float *)((char *)x->data + token * x->stride_bytes))[x->n_cols / 2] = fault;
    s->ops->head(s->stream, logits, rows, x, w, &args);
    for (uint32_t r = 0; r < step->n_outputs; r++)
        cr_expect_eq(!!rows[r].not_finite, step->output_token_idx[r] == token,
                     "head: flag of row %u", r);
}

static void check_head(struct pair *p, enum dtype dtype, const struct head_case *c)
{
    uint32_t outputs[OUTPUTS_MAX], n_cols = cols_fit(dtype, c->n_cols), n = c->n_outputs;
    const struct step step = {.n_tokens = N_TOKENS, .n_outputs = n, .output_token_idx = outputs};
    enum ops_path path = path_of(OPS_HEAD, dtype_is_quantised(dtype), c->kind);
    struct both x = pair_rows(p, N_TOKENS, n_cols, c->kind);
    struct both logits = pair_rows(p, n, c->n_vocab, INPUT_NORMAL);
    struct both norm_w = pair_random(p, n_cols, 0.3, 1);
    struct head_row rows[2][OUTPUTS_MAX];
    struct tensor tx[2], tl[2];
    struct weight *w[2];

    for (uint32_t r = 0; r < n; r++)
        outputs[r] = ops_random(&p->random) % N_TOKENS;
    pair_weight(p, w, n % 2 ? WEIGHT_EMBED : WEIGHT_LINEAR, n_cols, 1, &c->n_vocab, &dtype);
    for (int i = 0; i < 2; i++) {
        const struct head_args args = {.step = &step,
                                       .norm_w = c->is_normed ? norm_w.data[i] : NULL,
                                       .norm_eps = 1e-5f,
                                       .softcap = c->softcap};

        tx[i] = pair_tensor(&x, i, N_TOKENS, n_cols);
        tl[i] = pair_tensor(&logits, i, n, c->n_vocab);
        cr_assert_eq(p->side[i].ops->head(p->side[i].stream, &tl[i], rows[i], &tx[i], w[i], &args),
                     0);
        check_head_rows(&tl[i], rows[i]);
        check_wanted(&p->side[i], &tl[i], rows[i], &tx[i], w[i], args);
    }
    check_rows(p, &tl[0], &tl[1], path, "head %s %ux%ux%u, kind %d, norm %d, cap %g",
               dtype_name(dtype), n, c->n_vocab, n_cols, c->kind, c->is_normed, (double)c->softcap);
    if (c->kind == INPUT_ROWS)
        check_each_row(p, &tl[0], &tl[1], path, "head");
    for (uint32_t r = 0; r < n && !p->subject->limits; r++)
        cr_expect(rows[0][r].argmax == rows[1][r].argmax && rows[0][r].max == rows[1][r].max,
                  "head: row %u is %u %a, should be %u %a", r, rows[0][r].argmax,
                  (double)rows[0][r].max, rows[1][r].argmax, (double)rows[1][r].max);
    for (int i = 0; i < 2; i++)
        check_fault(&p->side[i], &tl[i], &tx[i], w[i], &step, n % 2 ? INFINITY : NAN);
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
    static const enum dtype dtypes[] = {DTYPE_F32,  DTYPE_F16,  DTYPE_BF16,
                                        DTYPE_Q4_0, DTYPE_Q4_1, DTYPE_Q8_0};
    static const struct head_case cases[] = {
        {96, 1, 5, INPUT_NORMAL, false, 0},     {65, 3, 17, INPUT_NORMAL, true, 0},
        {33, 17, 33, INPUT_HEAVY, true, 1.5f},  {129, 31, 1, INPUT_SPIKES, false, 0},
        {31, 33, 65, INPUT_DENORMAL, false, 0}, {127, 65, 3, INPUT_TINY, false, 0},
        {64, 127, 31, INPUT_LARGE, true, 0},    {160, 129, 17, INPUT_OFFSET, false, 0},
        {17, 255, 16, INPUT_ZERO, true, 0},     {96, 257, 64, INPUT_ROWS, false, 0},
        {1, 1000, 2, INPUT_NORMAL, false, 0},   {576, 1030, 5, INPUT_NORMAL, true, 15},
        {576, 300, 40, INPUT_ROWS, true, 0},
    };
    struct pair p;

    for (int d = 0; d < 6; d++) {
        pair_open(&p, subject);
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
            check_head(&p, dtypes[d], &cases[i]);
        check_head_ties(&p);
        pair_close(&p);
    }
}
