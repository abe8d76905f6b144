/* Checks of `next`: rows that one operator hands on in the form that the next product wants give
 * what the same rows give when they are written and read, to the bit. */
#include "tests/kernels/ops_scene.h"

#include <criterion/criterion.h>
#include <string.h>

static const enum dtype all_dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_Q4_0, DTYPE_Q4_1, DTYPE_Q8_0};
enum { N_DTYPES = sizeof all_dtypes / sizeof all_dtypes[0], N_OUT = 40 };

static void check_same(const struct tensor *got, const struct tensor *want, const char *what,
                       enum dtype t)
{
    for (uint32_t i = 0; i < want->n_rows; i++)
        cr_expect(!memcmp((char *)got->data + i * got->stride_bytes,
                          (char *)want->data + i * want->stride_bytes,
                          want->n_cols * sizeof(float)),
                  "%s, %s: row %u of %u differs", what, dtype_name(t), i, want->n_rows);
}

static void check_gate_up(struct pair *p, enum dtype t, uint32_t n_tokens, enum input kind)
{
    enum { N_COLS = 64, N_H = 160 };
    static const uint32_t h_rows[] = {N_H, N_H}, out_rows[] = {N_OUT};
    const enum dtype dtypes[] = {t, t};
    const struct backend_ops *ops = p->side[0].ops;
    struct stream *s = p->side[0].stream;
    struct both x = pair_rows(p, n_tokens, N_COLS, kind);
    struct both other = pair_rows(p, n_tokens, N_COLS, INPUT_NORMAL);
    struct both h = pair_rows(p, n_tokens, N_H, INPUT_NORMAL);
    struct both y[2] = {pair_rows(p, n_tokens, N_OUT, INPUT_NORMAL),
                        pair_rows(p, n_tokens, N_OUT, INPUT_NORMAL)};
    struct tensor tx = pair_tensor(&x, 0, n_tokens, N_COLS), th = pair_tensor(&h, 0, n_tokens, N_H);
    struct tensor tother = pair_tensor(&other, 0, n_tokens, N_COLS), ty[2];
    struct gate_up_args args = {.act = ACT_SILU};
    struct weight *w[2], *down[2];

    pair_weight(p, w, WEIGHT_GATE_UP, N_COLS, 2, h_rows, dtypes);
    pair_weight(p, down, WEIGHT_LINEAR, N_H, 1, out_rows, dtypes);
    for (int i = 0; i < 2; i++) {
        args.next = i ? down[0] : NULL;
        ty[i] = pair_tensor(&y[i], 0, n_tokens, N_OUT);
        cr_assert_eq(ops->gate_up(s, &th, &tx, w[0], &args), 0);
        cr_assert_eq(ops->linear(s, &ty[i], &th, down[0], NULL), 0);
    }
    check_same(&ty[1], &ty[0], "gate_up", t);

    /* Handed on, but then made anew in the same place: what was handed on is void. */
    for (int i = 0; i < 2; i++) {
        args.next = down[0];
        if (i)
            cr_assert_eq(ops->gate_up(s, &th, &tx, w[0], &args), 0);
        args.next = NULL;
        cr_assert_eq(ops->gate_up(s, &th, &tother, w[0], &args), 0);
        cr_assert_eq(ops->linear(s, &ty[i], &th, down[0], NULL), 0);
    }
    check_same(&ty[1], &ty[0], "gate_up, made anew", t);
    pair_weight_free(p, w);
    pair_weight_free(p, down);
}

static void check_attention(struct pair *p, const struct attention_case *c, enum dtype t)
{
    static const uint32_t out_rows[] = {N_OUT};
    const struct backend_ops *ops = p->side[0].ops;
    struct stream *s = p->side[0].stream;
    struct weight *out[2];
    struct scene scene;

    scene_open(&scene, p, c, SCHEDULE_TOKENS);
    pair_unit_weight(p, scene.w, scene.n_cols, 1);
    pair_weight(p, out, WEIGHT_LINEAR, scene.n_q, 1, out_rows, &t);
    for (int step = 0; step < N_STEPS; step++) {
        struct attention_args args;
        struct tensor o[2], q[2], ty[2];
        struct both x, y[2];
        uint32_t n;

        plan_step(&scene.plan, schedules[c->schedule][step]);
        n = scene.plan.step.n_tokens;
        x = scene_rows(&scene);
        scene_step(&scene, &x, q, o);
        args = scene_attention(&scene, 0);
        for (int i = 0; i < 2; i++) {
            y[i] = pair_rows(p, n, N_OUT, INPUT_NORMAL);
            ty[i] = pair_tensor(&y[i], 0, n, N_OUT);
            args.next = i ? out[0] : NULL;
            cr_assert_eq(ops->attention(s, &o[0], &q[0], scene.kv[0], &args), 0);
            cr_assert_eq(ops->linear(s, &ty[i], &o[0], out[0], NULL), 0);
        }
        check_same(&ty[1], &ty[0], "attention", t);
    }
    pair_weight_free(p, out);
    scene_close(&scene);
}

void ops_check_next(const struct ops_subject *subject)
{
    static const uint32_t n_tokens[] = {1, 7, 8, 9, 17, 41, 129};
    static const struct attention_case cases[] = {
        {4, 2, 32, 16, DTYPE_BF16, 0, 0, false, INPUT_NORMAL, INPUT_NORMAL, MIXED},
        {2, 1, 80, 32, DTYPE_F32, 100, 0, true, INPUT_NORMAL, INPUT_NORMAL, EDGES},
        {2, 1, 64, 48, DTYPE_U8, 256, 0, false, INPUT_NORMAL, INPUT_ROWS, ALONE},
    };
    struct pair p;

    for (int t = 0; t < N_DTYPES; t++) {
        pair_open(&p, subject);
        for (size_t i = 0; i < sizeof n_tokens / sizeof n_tokens[0]; i++)
            check_gate_up(&p, all_dtypes[t], n_tokens[i], i % 2 ? INPUT_ROWS : INPUT_HEAVY);
        pair_close(&p);
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            pair_open(&p, subject);
            check_attention(&p, &cases[i], all_dtypes[t]);
            pair_close(&p);
        }
    }
}
