/* Checks of qkv with real weights: q is compared as it is, V through a window of one key, K through
 * the attention it leads to. */
#include "tests/kernels/ops_scene.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

enum { POSITIONS_MAX = 515 }; /* just as many as the longest schedule has */

struct qkv_case {
    uint32_t n_heads, n_kv_heads, head_dim, page_size;
    enum dtype kv_dtype;
    uint32_t n_cols;
    enum dtype dtypes[3];
    bool norm, bias, head_norms;
    enum rope_kind rope;
    uint32_t rope_dims;
    enum input kind;
    uint32_t schedule;
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

static enum ops_path by_pool(enum ops_path f32, enum dtype kv_dtype)
{
    return f32 + (kv_dtype == DTYPE_F32 ? 0u : kv_dtype == DTYPE_BF16 ? 1u : 2u);
}

/* The next step: q as it is, then V through a window of one key, K through attention. */
static void check_step(struct scene *s, const struct both *x, const struct qkv_case *c, int step)
{
    bool quantised = dtype_is_quantised(c->dtypes[0]) || dtype_is_quantised(c->dtypes[1]);
    bool heavy = path_of(0, quantised, c->kind) == 2;
    enum ops_path value = OPS_VALUE_F32 + 3 * path_of(0, quantised, c->kind);
    uint32_t n_tokens = s->plan.step.n_tokens;
    struct both v = pair_rows(s->p, n_tokens, s->n_q, INPUT_NORMAL);
    struct tensor q[2], o[2], tv[2];

    scene_step(s, x, q, o);
    for (int i = 0; i < 2; i++) {
        const struct side *side = &s->p->side[i];
        struct attention_args attention = scene_attention(s, i);

        attention.window = 1;
        tv[i] = pair_tensor(&v, i, n_tokens, s->n_q);
        cr_assert_eq(side->ops->attention(side->stream, &tv[i], &q[i], s->kv[i], &attention), 0);
    }
    check_rows(s->p, &q[0], &q[1], path_of(OPS_QUERY, quantised, c->kind),
               "qkv %s, heads of %u, %u columns, rope %d, kind %d, step %d: q",
               dtype_name(c->dtypes[0]), c->head_dim, c->n_cols, c->rope, c->kind, step);
    check_rows(s->p, &tv[0], &tv[1], by_pool(value, c->kv_dtype),
               "qkv %s, heads of %u, %u columns, kind %d, step %d: v", dtype_name(c->dtypes[0]),
               c->head_dim, c->n_cols, c->kind, step);
    /* Scores of heavy inputs are so large that a rounding decides which key takes all. */
    if (!s->p->subject->limits || !heavy)
        check_rows(s->p, &o[0], &o[1],
                   by_pool(quantised ? OPS_KEY_F32_QUANTISED : OPS_KEY_F32, c->kv_dtype),
                   "qkv %s, heads of %u, %u columns, rope %d, kind %d, step %d: k",
                   dtype_name(c->dtypes[0]), c->head_dim, c->n_cols, c->rope, c->kind, step);
}

static void check_qkv(const struct ops_subject *subject, const struct qkv_case *c)
{
    const struct attention_case attention = {
        .n_heads = c->n_heads,
        .n_kv_heads = c->n_kv_heads,
        .head_dim = c->head_dim,
        .page_size = c->page_size,
        .kv_dtype = c->kv_dtype,
    };
    uint32_t hd = c->head_dim, n_q = c->n_heads * hd, n_k = c->n_kv_heads * hd;
    struct both norm_w, q_norm_w, k_norm_w, bias, table;
    struct rope rope[2];
    struct scene s;
    struct pair p;

    pair_open(&p, subject);
    scene_open(&s, &p, &attention, SCHEDULE_TOKENS);
    s.n_cols = c->n_cols;
    pair_weight(&p, s.w, WEIGHT_LINEAR, c->n_cols, 3, (const uint32_t[]){n_q, n_k, n_k}, c->dtypes);
    norm_w = pair_random(&p, c->n_cols, 0.3, 1);
    q_norm_w = pair_random(&p, hd, 0.3, 1);
    k_norm_w = pair_random(&p, hd, 0.3, 1);
    bias = pair_random(&p, n_q + 2 * n_k, 0.5, 0);
    table = rope_table(&p, c->rope_dims);
    for (int i = 0; i < 2; i++) {
        rope[i] = (struct rope){c->rope, c->rope_dims, POSITIONS_MAX, table.data[i]};
        s.qkv[i].norm_w = c->norm ? norm_w.data[i] : NULL;
        s.qkv[i].norm_eps = 1e-5f;
        s.qkv[i].bias = c->bias ? bias.data[i] : NULL;
        s.qkv[i].q_norm_w = c->head_norms ? q_norm_w.data[i] : NULL;
        s.qkv[i].k_norm_w = c->head_norms ? k_norm_w.data[i] : NULL;
        s.qkv[i].rope = &rope[i];
    }
    for (int step = 0; step < N_STEPS; step++) {
        struct both x;

        plan_step(&s.plan, schedules[c->schedule][step]);
        x = pair_rows(&p, s.plan.step.n_tokens, c->n_cols, c->kind);
        check_step(&s, &x, c, step);
    }
    scene_close(&s);
    pair_close(&p);
}

#define F32  DTYPE_F32
#define F16  DTYPE_F16
#define BF16 DTYPE_BF16
#define U8   DTYPE_U8
#define Q4_0 DTYPE_Q4_0
#define Q4_1 DTYPE_Q4_1
#define Q8_0 DTYPE_Q8_0
#define SAME(t) \
    {           \
        t, t, t \
    }

void ops_check_qkv(const struct ops_subject *subject)
{
    static const struct qkv_case cases[] = {
        {4, 2, 32, 16, F32, 96, SAME(F32), 1, 1, 1, ROPE_PAIRS, 32, INPUT_NORMAL, MIXED},
        {4, 2, 32, 16, F32, 97, {BF16, F16, F32}, 0, 1, 0, ROPE_HALVES, 16, INPUT_NORMAL, EDGES},
        {2, 2, 32, 16, F32, 32, SAME(Q8_0), 1, 1, 0, ROPE_NONE, 32, INPUT_NORMAL, MIXED},
        {2, 1, 32, 16, F32, 64, SAME(Q4_1), 0, 1, 1, ROPE_PAIRS, 32, INPUT_SPIKES, EDGES},
        {3, 1, 64, 32, F32, 33, SAME(F16), 1, 0, 1, ROPE_PAIRS, 64, INPUT_SPIKES, EDGES},
        {3, 1, 64, 32, BF16, 192, SAME(Q4_1), 1, 0, 0, ROPE_PAIRS, 64, INPUT_NORMAL, EDGES},
        {2, 1, 64, 16, BF16, 64, {Q4_0, Q8_0, Q4_1}, 1, 1, 1, ROPE_HALVES, 32, INPUT_NORMAL, MIXED},
        {2, 2, 48, 16, BF16, 80, SAME(F16), 0, 0, 1, ROPE_PAIRS, 16, INPUT_NORMAL, MIXED},
        {6, 2, 24, 48, BF16, 576, SAME(Q4_0), 1, 0, 0, ROPE_HALVES, 20, INPUT_ROWS, EDGES},
        {6, 2, 6, 16, BF16, 1, SAME(BF16), 0, 1, 1, ROPE_PAIRS, 2, INPUT_NORMAL, MIXED},
        {1, 1, 2, 16, BF16, 129, SAME(F32), 1, 0, 0, ROPE_HALVES, 2, INPUT_DENORMAL, ALONE},
        {2, 1, 80, 48, BF16, 96, {F16, Q4_1, Q8_0}, 1, 1, 0, ROPE_NONE, 80, INPUT_NORMAL, EDGES},
        {3, 1, 64, 32, U8, 192, SAME(Q4_1), 1, 0, 0, ROPE_PAIRS, 64, INPUT_NORMAL, MIXED},
        {2, 2, 48, 16, U8, 80, SAME(F16), 0, 1, 1, ROPE_HALVES, 16, INPUT_NORMAL, EDGES},
        {2, 1, 40, 16, U8, 96, SAME(Q8_0), 0, 1, 0, ROPE_PAIRS, 38, INPUT_HEAVY, EDGES},
        {4, 4, 16, 32, U8, 64, SAME(Q4_0), 1, 0, 1, ROPE_HALVES, 16, INPUT_ZERO, MIXED},
        {4, 4, 16, 32, U8, 32, SAME(Q4_1), 1, 1, 1, ROPE_PAIRS, 16, INPUT_LARGE, MIXED},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        check_qkv(subject, &cases[i]);
}
