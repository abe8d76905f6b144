/* Checks of qkv with real weights: q is compared as it is, V through a window of one key, K through
 * the attention it leads to. */
#include "tests/kernels/ops_scene.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

enum { POSITIONS_MAX = 1024 };

struct qkv_case {
    struct attention_case c;
    uint32_t n_cols;
    enum dtype dtypes[3];
    bool norm, bias, head_norms;
    enum rope_kind rope;
    uint32_t rope_dims;
};

static struct both rope_table(struct pair *p, uint32_t n_dims)
{
    float *table = malloc((size_t)POSITIONS_MAX * n_dims * sizeof *table);
    struct both b;

    for (uint32_t position = 0; position < POSITIONS_MAX; position++) {
        for (uint32_t i = 0; i < n_dims / 2; i++) {
            double angle = position * pow(10000, -2.0 * i / n_dims);

            table[position * n_dims + 2 * i] = (float)cos(angle);
            table[position * n_dims + 2 * i + 1] = (float)sin(angle);
        }
    }
    b = pair_floats(p, (size_t)POSITIONS_MAX * n_dims, table);
    free(table);
    return b;
}

static void check_qkv(struct pair *p, const struct qkv_case *c)
{
    const struct ops_limits *limits = p->subject->limits;
    uint32_t hd = c->c.head_dim, n_k = c->c.n_kv_heads * hd;
    bool quantised = dtype_is_quantised(c->dtypes[0]);
    struct ops_limit linear = quantised ? limits->quantised : limits->linear, v = linear, k;
    struct both norm_w = pair_random(p, c->n_cols, 0.3, 1), table = rope_table(p, c->rope_dims);
    struct both q_norm_w = pair_random(p, hd, 0.3, 1), k_norm_w = pair_random(p, hd, 0.3, 1);
    struct both bias;
    struct scene s;

    /* K is seen through a softmax only, which moves by as much as the scores do. */
    k = *attention_limit(p, c->c.kv_dtype);
    k.nmse += 100 * linear.nmse;
    k.max += 10 * linear.max;
    if (c->c.kv_dtype == DTYPE_BF16) {
        v = (struct ops_limit){v.nmse + limits->stored_bf16.nmse, v.max + limits->stored_bf16.max};
        k = (struct ops_limit){k.nmse + 5e-5, k.max + 0.03};
    }
    if (c->c.kv_dtype == DTYPE_U8) {
        v = (struct ops_limit){v.nmse + limits->stored_u8.nmse, v.max + limits->stored_u8.max};
        k = (struct ops_limit){k.nmse + limits->attention_u8.nmse,
                               k.max + limits->attention_u8.max};
    }
    scene_open(&s, p, &c->c, SCHEDULE_TOKENS);
    pair_weight(p, s.w, WEIGHT_LINEAR, c->n_cols, 3, (const uint32_t[]){s.n_q, n_k, n_k},
                c->dtypes);
    bias = pair_random(p, s.n_q + 2 * n_k, 0.5, 0);
    for (int step = 0; step < N_STEPS; step++) {
        struct tensor tq[2], to[2], tv[2];
        struct both x, q, o, vs;
        uint32_t n_tokens;

        plan_step(&s.plan, schedule[step]);
        n_tokens = s.plan.step.n_tokens;
        x = pair_rows(p, n_tokens, c->n_cols, INPUT_NORMAL);
        q = pair_rows(p, n_tokens, s.n_q, INPUT_NORMAL);
        o = pair_rows(p, n_tokens, s.n_q, INPUT_NORMAL);
        vs = pair_rows(p, n_tokens, s.n_q, INPUT_NORMAL);
        for (int i = 0; i < 2; i++) {
            const struct backend_ops *ops = p->side[i].ops;
            struct tensor tx = pair_tensor(&x, i, n_tokens, c->n_cols);
            struct attention_args attention = scene_attention(&s, i);
            struct rope rope = {c->rope, c->rope_dims, POSITIONS_MAX, table.data[i]};
            struct qkv_args qkv = {
                .step = &s.plan.step,
                .w = s.w[i],
                .norm_w = c->norm ? norm_w.data[i] : NULL,
                .norm_eps = 1e-5f,
                .bias = c->bias ? bias.data[i] : NULL,
                .q_norm_w = c->head_norms ? q_norm_w.data[i] : NULL,
                .k_norm_w = c->head_norms ? k_norm_w.data[i] : NULL,
                .rope = &rope,
                .layer = 1,
                .n_heads = c->c.n_heads,
                .n_kv_heads = c->c.n_kv_heads,
                .head_dim = hd,
            };

            tq[i] = pair_tensor(&q, i, n_tokens, s.n_q);
            to[i] = pair_tensor(&o, i, n_tokens, s.n_q);
            tv[i] = pair_tensor(&vs, i, n_tokens, s.n_q);
            cr_assert_eq(ops->qkv(p->side[i].stream, &tq[i], s.kv[i], &tx, &qkv), 0);
            ops->attention(p->side[i].stream, &to[i], &tq[i], s.kv[i], &attention);
            attention.window = 1;
            ops->attention(p->side[i].stream, &tv[i], &tq[i], s.kv[i], &attention);
        }
        check_rows(&tq[0], &tq[1], &linear, "qkv %s, rope %d, step %d: q", dtype_name(c->dtypes[0]),
                   c->rope, step);
        check_rows(&tv[0], &tv[1], &v, "qkv %s, rope %d, step %d: v", dtype_name(c->dtypes[0]),
                   c->rope, step);
        check_rows(&to[0], &to[1], &k, "qkv %s, rope %d, step %d: k", dtype_name(c->dtypes[0]),
                   c->rope, step);
    }
    scene_close(&s);
}

void ops_check_qkv(const struct ops_subject *subject)
{
    static const struct qkv_case cases[] = {
        {{4, 2, 32, 16, DTYPE_F32, 0, 0, false, 0},
         96,
         {DTYPE_F32, DTYPE_F32, DTYPE_F32},
         true,
         true,
         true,
         ROPE_PAIRS,
         32},
        {{4, 2, 32, 16, DTYPE_F32, 0, 0, false, 0},
         96,
         {DTYPE_BF16, DTYPE_F16, DTYPE_F32},
         false,
         true,
         false,
         ROPE_HALVES,
         16},
        {{3, 1, 64, 32, DTYPE_BF16, 0, 0, false, 0},
         192,
         {DTYPE_Q4_1, DTYPE_Q4_1, DTYPE_Q4_1},
         true,
         false,
         false,
         ROPE_PAIRS,
         64},
        {{2, 1, 64, 16, DTYPE_BF16, 0, 0, false, 0},
         64,
         {DTYPE_Q4_0, DTYPE_Q8_0, DTYPE_Q4_1},
         true,
         true,
         true,
         ROPE_HALVES,
         32},
        {{2, 2, 48, 16, DTYPE_BF16, 0, 0, false, 0},
         80,
         {DTYPE_F16, DTYPE_F16, DTYPE_F16},
         false,
         false,
         true,
         ROPE_PAIRS,
         16},
        {{2, 2, 32, 16, DTYPE_F32, 0, 0, false, 0},
         32,
         {DTYPE_Q8_0, DTYPE_Q8_0, DTYPE_Q8_0},
         true,
         true,
         false,
         ROPE_NONE,
         32},
        {{3, 1, 64, 32, DTYPE_U8, 0, 0, false, 0},
         192,
         {DTYPE_Q4_1, DTYPE_Q4_1, DTYPE_Q4_1},
         true,
         false,
         false,
         ROPE_PAIRS,
         64},
        {{2, 2, 48, 16, DTYPE_U8, 0, 0, false, 0},
         80,
         {DTYPE_F16, DTYPE_F16, DTYPE_F16},
         false,
         true,
         true,
         ROPE_HALVES,
         16},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct pair p;

        pair_open(&p, subject);
        check_qkv(&p, &cases[i]);
        pair_close(&p);
    }
}
