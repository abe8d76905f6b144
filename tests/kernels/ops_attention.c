/* Checks of what has to do with keys and values. No operator writes them but qkv, so attention
 * alone is checked with the unit matrix as weight: then q, k and v are pieces of x, to the bit, on
 * both sides. */
#include "tests/kernels/ops_side.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SEQS_MAX = 6, PAGES_MAX = 512, TOKENS_MAX = 320, POSITIONS_MAX = 1024 };

/* Sequences that grow step by step over one pool, and the current step's arrays. */
struct plan {
    uint32_t page_size, n_pages, n_taken;
    uint32_t order[PAGES_MAX]; /* pages in the order they are given out: shuffled */
    uint32_t n_past[SEQS_MAX], n_table[SEQS_MAX], tables[SEQS_MAX][PAGES_MAX];
    struct step step;
    int32_t tokens[TOKENS_MAX], positions[TOKENS_MAX];
    uint32_t slots[TOKENS_MAX];
    uint32_t token_off[SEQS_MAX + 2], n_keys[SEQS_MAX + 1], table_off[SEQS_MAX + 2];
    uint32_t table[SEQS_MAX * PAGES_MAX];
};

static void plan_init(struct plan *plan, struct pair *p, uint32_t page_size, uint32_t n_pages)
{
    memset(plan, 0, sizeof *plan);
    cr_assert_leq(n_pages, PAGES_MAX);
    plan->page_size = page_size;
    plan->n_pages = n_pages;
    for (uint32_t i = 0; i < n_pages; i++) {
        uint32_t j = ops_random(&p->random) % (i + 1);

        plan->order[i] = plan->order[j];
        plan->order[j] = i;
    }
}

static void plan_grow(struct plan *plan, uint32_t seq, uint32_t n_keys)
{
    while (plan->n_table[seq] * plan->page_size < n_keys) {
        cr_assert_lt(plan->n_taken, plan->n_pages);
        plan->tables[seq][plan->n_table[seq]++] = plan->order[plan->n_taken++];
    }
}

/* Gives up the pages that no later query can see. */
static void plan_free_behind(struct plan *plan, uint32_t window)
{
    for (uint32_t seq = 0; seq < SEQS_MAX; seq++) {
        for (uint32_t i = 0; i < plan->n_table[seq]; i++) {
            if (window && (i + 1) * plan->page_size + window <= plan->n_past[seq] + 1)
                plan->tables[seq][i] = KERNELS_NO_SLOT;
        }
    }
}

static void plan_add(struct plan *plan, uint32_t seq, uint32_t count)
{
    struct step *step = &plan->step;
    uint32_t s = step->n_seqs++, n_table = plan->table_off[s];

    plan_grow(plan, seq, plan->n_past[seq] + count);
    for (uint32_t i = 0; i < count; i++, step->n_tokens++) {
        uint32_t position = plan->n_past[seq]++, entry = position / plan->page_size;

        cr_assert_lt(step->n_tokens, TOKENS_MAX);
        plan->positions[step->n_tokens] = (int32_t)position;
        plan->slots[step->n_tokens] =
            plan->tables[seq][entry] * plan->page_size + position % plan->page_size;
    }
    plan->n_keys[s] = plan->n_past[seq];
    memcpy(plan->table + n_table, plan->tables[seq], plan->n_table[seq] * sizeof(uint32_t));
    plan->table_off[s + 1] = n_table + plan->n_table[seq];
    plan->token_off[s + 1] = step->n_tokens;
}

/* The next step: counts[seq] new tokens; sequences with one token come first, and first of all a
 * row of padding that writes nothing and sees nothing. */
static void plan_step(struct plan *plan, const uint32_t counts[SEQS_MAX])
{
    plan->step = (struct step){
        .n_tokens = 1,
        .n_seqs = 1,
        .n_decode_seqs = 1,
        .tokens = plan->tokens,
        .positions = plan->positions,
        .token_off = plan->token_off,
        .n_keys = plan->n_keys,
        .slot_idx = plan->slots,
        .table_off = plan->table_off,
        .table = plan->table,
    };
    plan->positions[0] = 0;
    plan->slots[0] = KERNELS_NO_SLOT;
    plan->token_off[0] = plan->table_off[0] = plan->table_off[1] = plan->n_keys[0] = 0;
    plan->token_off[1] = 1;
    for (uint32_t seq = 0; seq < SEQS_MAX; seq++) {
        if (counts[seq] == 1) {
            plan->step.n_decode_seqs++;
            plan_add(plan, seq, 1);
        }
    }
    for (uint32_t seq = 0; seq < SEQS_MAX; seq++) {
        if (counts[seq] > 1)
            plan_add(plan, seq, counts[seq]);
    }
}

/* ---- one pool on each side
 * -------------------------------------------------------------------------- */

static void kv_open(struct pair *p, struct kv *kv[2], const struct kv_shape *shape)
{
    for (int i = 0; i < 2; i++) {
        const char *why = "?";
        int r = p->side[i].ops->kv_new(p->side[i].backend, &kv[i], shape, &why);

        cr_assert_eq(r, 0, "%s refuses a pool: %s", p->side[i].ops->name, why);
        cr_assert_eq(p->side[i].ops->kv_populate(kv[i], 0, shape->n_pages), 0);
        cr_assert_geq(p->side[i].ops->kv_page_bytes(shape),
                      (size_t)4 * shape->n_layers * shape->page_size * shape->n_kv_heads *
                          shape->head_dim);
    }
}

struct attention_case {
    uint32_t n_heads, n_kv_heads, head_dim, page_size;
    enum dtype kv_dtype;
    uint32_t window;
    float softcap;
    bool sinks;
    enum input kind;
};

/* A pool on each side, a plan over it, and a weight to fill it by. Two layers; layer 1 is used, for
 * the other must not be touched. */
struct scene {
    struct pair *p;
    struct attention_case c;
    struct plan plan;
    struct kv *kv[2];
    struct weight *w[2];
    struct both sinks;
    uint32_t n_cols, n_q;
};

static void scene_open(struct scene *s, struct pair *p, const struct attention_case *c,
                       uint32_t n_tokens)
{
    uint32_t n_pages = n_tokens / c->page_size + SEQS_MAX + 1;
    const struct kv_shape shape = {2,       c->n_kv_heads, c->head_dim, c->page_size,
                                   n_pages, c->kv_dtype};

    memset(s, 0, sizeof *s);
    s->p = p;
    s->c = *c;
    s->n_q = c->n_heads * c->head_dim;
    s->n_cols = s->n_q + 2 * c->n_kv_heads * c->head_dim;
    s->sinks = pair_random(p, c->n_heads, 2, 0);
    plan_init(&s->plan, p, c->page_size, n_pages);
    kv_open(p, s->kv, &shape);
}

static void scene_close(struct scene *s)
{
    for (int i = 0; i < 2; i++)
        s->p->side[i].ops->kv_free(s->kv[i]);
    pair_weight_free(s->p, s->w);
}

static struct attention_args scene_attention(const struct scene *s, int side)
{
    return (struct attention_args){
        .step = &s->plan.step,
        .layer = 1,
        .n_heads = s->c.n_heads,
        .n_kv_heads = s->c.n_kv_heads,
        .head_dim = s->c.head_dim,
        .scale = 1 / sqrtf((float)s->c.head_dim),
        .window = s->c.window,
        .softcap = s->c.softcap,
        .sinks = s->c.sinks ? s->sinks.data[side] : NULL,
    };
}

/* The planned step through qkv with the unit weight, then attention: o[2]. */
static void scene_step(struct scene *s, struct both *x, struct tensor o[2])
{
    uint32_t n_tokens = s->plan.step.n_tokens;
    struct both q = pair_rows(s->p, n_tokens, s->n_q, INPUT_ZERO);
    struct both out = pair_rows(s->p, n_tokens, s->n_q, INPUT_NORMAL);

    for (int i = 0; i < 2; i++) {
        struct stream *stream = s->p->side[i].stream;
        struct tensor tx = pair_tensor(x, i, n_tokens, s->n_cols);
        struct tensor tq = pair_tensor(&q, i, n_tokens, s->n_q);
        struct attention_args attention = scene_attention(s, i);
        struct qkv_args qkv = {
            .step = &s->plan.step,
            .w = s->w[i],
            .layer = 1,
            .n_heads = s->c.n_heads,
            .n_kv_heads = s->c.n_kv_heads,
            .head_dim = s->c.head_dim,
        };

        o[i] = pair_tensor(&out, i, n_tokens, s->n_q);
        cr_assert_eq(s->p->side[i].ops->qkv(stream, &tq, s->kv[i], &tx, &qkv), 0);
        cr_assert_eq(s->p->side[i].ops->attention(stream, &o[i], &tq, s->kv[i], &attention), 0);
    }
}

static const struct ops_limit *attention_limit(const struct ops_subject *s, enum dtype kv_dtype)
{
    return kv_dtype == DTYPE_F32 ? &s->limits->attention_f32 : &s->limits->attention_bf16;
}

/* ---- attention
 * --------------------------------------------------------------------------------------- */

/* Prefill in chunks beside decoding, over page and span boundaries. */
static const uint32_t schedule[][SEQS_MAX] = {
    {1, 0, 37, 5, 0, 0},  {1, 64, 1, 0, 0, 16}, {1, 190, 1, 90, 1, 17}, {1, 1, 1, 1, 1, 1},
    {2, 250, 1, 1, 1, 3}, {1, 1, 1, 1, 1, 1},   {1, 9, 0, 1, 0, 0},
};
enum { N_STEPS = sizeof schedule / sizeof schedule[0], SCHEDULE_TOKENS = 720 };

static void check_attention(struct pair *p, const struct attention_case *c)
{
    struct scene s;

    scene_open(&s, p, c, SCHEDULE_TOKENS);
    pair_unit_weight(p, s.w, s.n_cols);
    for (int step = 0; step < N_STEPS; step++) {
        struct tensor o[2];
        struct both x;

        plan_step(&s.plan, schedule[step]);
        x = pair_rows(p, s.plan.step.n_tokens, s.n_cols, c->kind);
        scene_step(&s, &x, o);
        check_rows(&o[0], &o[1], attention_limit(p->subject, c->kv_dtype),
                   "attention %s, step %d: heads %u/%u of %u, pages of %u, window %u, cap %g, "
                   "sinks %d, kind %d",
                   dtype_name(c->kv_dtype), step, c->n_heads, c->n_kv_heads, c->head_dim,
                   c->page_size, c->window, (double)c->softcap, c->sinks, c->kind);
        for (uint32_t i = 0; i < s.n_q; i++)
            cr_expect_eq(((float *)o[0].data)[i], 0, "attention: the row of padding is not 0");
        plan_free_behind(&s.plan, c->window);
    }
    scene_close(&s);
}

static uint32_t page_fit(const struct ops_subject *s, uint32_t page_size)
{
    return (page_size + s->page_multiple - 1) / s->page_multiple * s->page_multiple;
}

void ops_check_attention(const struct ops_subject *subject)
{
    static const struct attention_case cases[] = {
        {4, 2, 32, 16, DTYPE_F32, 0, 0, false, INPUT_NORMAL},
        {4, 2, 32, 16, DTYPE_BF16, 0, 0, false, INPUT_NORMAL},
        {9, 3, 16, 4, DTYPE_BF16, 0, 0, false, INPUT_NORMAL},
        {9, 3, 16, 256, DTYPE_F32, 0, 0, false, INPUT_NORMAL},
        {1, 1, 64, 48, DTYPE_BF16, 100, 0, false, INPUT_NORMAL},
        {2, 1, 80, 16, DTYPE_F32, 16, 0, false, INPUT_NORMAL},
        {2, 1, 128, 256, DTYPE_BF16, 300, 30, false, INPUT_NORMAL},
        {8, 1, 16, 32, DTYPE_F32, 0, 1.5f, true, INPUT_NORMAL},
        {3, 3, 64, 7, DTYPE_BF16, 33, 0, true, INPUT_NORMAL},
        {2, 2, 96, 16, DTYPE_BF16, 1, 0, false, INPUT_NORMAL},
        {4, 2, 32, 16, DTYPE_F32, 0, 0, false, INPUT_DENORMAL},
        {4, 2, 32, 16, DTYPE_BF16, 0, 0, true, INPUT_DENORMAL},
        {4, 2, 32, 16, DTYPE_BF16, 0, 0, true, INPUT_ZERO},
        {1, 1, 256, 16, DTYPE_F32, 0, 0, false, INPUT_NORMAL},
    };
    struct pair p;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct attention_case c = cases[i];

        c.page_size = page_fit(subject, c.page_size);
        pair_open(&p, subject);
        check_attention(&p, &c);
        pair_close(&p);
    }
    if (subject->dim_multiple == 1) {
        const struct attention_case odd = {3, 1, 7, 5, DTYPE_BF16, 50, 0, false, INPUT_NORMAL};

        pair_open(&p, subject);
        check_attention(&p, &odd);
        pair_close(&p);
    }
}

/* ---- pages with a past
 * -------------------------------------------------------------------------------- */

/* A cleared page's V reads as zeros: seen by a query that writes nothing itself. */
static void check_cleared(struct scene *s)
{
    static const uint32_t one[SEQS_MAX] = {0, 0, 0, 0, 0, 1};
    struct plan *plan = &s->plan;
    struct tensor o[2];
    struct both x;

    for (int round = 0; round < 2; round++) {
        plan_step(plan, one);
        x = pair_rows(s->p, plan->step.n_tokens, s->n_cols, INPUT_NORMAL);
        for (int i = 0; round && i < 2; i++) {
            for (uint32_t page = 0; page < plan->n_table[5]; page++)
                s->p->side[i].ops->kv_clear(s->kv[i], plan->tables[5][page]);
        }
        plan->slots[1] = round ? KERNELS_NO_SLOT : plan->slots[1];
        scene_step(s, &x, o);
        for (uint32_t i = 0; i < s->n_q; i++)
            cr_expect_eq(((float *)((char *)o[0].data + o[0].stride_bytes))[i] == 0, round,
                         "attention over a cleared page, value %u", i);
    }
}

/* Pages full of NaN from a request of before are cleared and given to another: nothing shines
 * through, though a page's last slots are never written. */
void ops_check_reused_pages(const struct ops_subject *subject)
{
    for (int bf16 = 0; bf16 < 2; bf16++) {
        const struct attention_case c = {
            4, 2, 32, page_fit(subject, 16), bf16 ? DTYPE_BF16 : DTYPE_F32, 0, 0, false, 0};
        static const uint32_t first[SEQS_MAX] = {40, 70}, second[SEQS_MAX] = {0, 0, 21, 1, 39};
        struct tensor o[2];
        struct scene s;
        struct both x;
        struct pair p;
        uint32_t n_taken;

        pair_open(&p, subject);
        scene_open(&s, &p, &c, 120);
        pair_unit_weight(&p, s.w, s.n_cols);
        plan_step(&s.plan, first);
        x = pair_rows(&p, s.plan.step.n_tokens, s.n_cols, INPUT_NORMAL);
        for (int i = 0; i < 2; i++) {
            for (size_t j = 0; j < s.plan.step.n_tokens * pair_stride(s.n_cols); j++)
                x.data[i][j] = j % 3 ? NAN : INFINITY;
        }
        scene_step(&s, &x, o);
        n_taken = s.plan.n_taken;
        for (uint32_t page = 0; page < n_taken; page++) {
            for (int i = 0; i < 2; i++)
                p.side[i].ops->kv_clear(s.kv[i], s.plan.order[page]);
        }
        s.plan.n_taken = 0;
        for (int step = 0; step < 2; step++) {
            plan_step(&s.plan, second);
            x = pair_rows(&p, s.plan.step.n_tokens, s.n_cols, INPUT_NORMAL);
            scene_step(&s, &x, o);
            check_rows(&o[0], &o[1], attention_limit(subject, c.kv_dtype),
                       "attention over pages taken again, step %d", step);
        }
        check_cleared(&s);
        scene_close(&s);
        pair_close(&p);
    }
}

/* A sequence goes on from copies of another's pages: the same bits. */
void ops_check_copied_pages(const struct ops_subject *subject)
{
    for (int bf16 = 0; bf16 < 2; bf16++) {
        const struct attention_case c = {
            4, 2, 32, page_fit(subject, 16), bf16 ? DTYPE_BF16 : DTYPE_F32, 0, 0, false, 0};
        static const uint32_t prompt[SEQS_MAX] = {37}, both[SEQS_MAX] = {1, 1};
        struct page_copy copies[PAGES_MAX];
        struct plan *plan;
        struct scene s;
        struct tensor o[2];
        struct both x;
        struct pair p;

        pair_open(&p, subject);
        scene_open(&s, &p, &c, 120);
        pair_unit_weight(&p, s.w, s.n_cols);
        plan = &s.plan;
        plan_step(plan, prompt);
        x = pair_rows(&p, plan->step.n_tokens, s.n_cols, INPUT_NORMAL);
        scene_step(&s, &x, o);
        plan_grow(plan, 1, 37);
        plan->n_past[1] = 37;
        for (uint32_t i = 0; i < plan->n_table[1]; i++)
            copies[i] = (struct page_copy){plan->tables[0][i], plan->tables[1][i]};
        for (int i = 0; i < 2; i++)
            cr_assert_eq(p.side[i].ops->kv_copy(s.kv[i], copies, plan->n_table[1]), 0);
        for (int step = 0; step < 20; step++) {
            plan_step(plan, both);
            x = pair_rows(&p, plan->step.n_tokens, s.n_cols, INPUT_NORMAL);
            for (int i = 0; i < 2; i++)
                memcpy(x.data[i] + 2 * pair_stride(s.n_cols), x.data[i] + pair_stride(s.n_cols),
                       s.n_cols * sizeof(float));
            scene_step(&s, &x, o);
            check_rows(&o[0], &o[1], attention_limit(subject, c.kv_dtype), "attention, copies");
            cr_expect_arr_eq((char *)o[0].data + o[0].stride_bytes,
                             (char *)o[0].data + 2 * o[0].stride_bytes, s.n_q * sizeof(float),
                             "attention over copied pages differs");
        }
        scene_close(&s);
        pair_close(&p);
    }
}

/* ---- qkv
 * -----------------------------------------------------------------------------------------------
 */

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
    k = *attention_limit(p->subject, c->c.kv_dtype);
    k.nmse += 100 * linear.nmse;
    k.max += 10 * linear.max;
    if (c->c.kv_dtype == DTYPE_BF16) {
        v = (struct ops_limit){v.nmse + limits->stored_bf16.nmse, v.max + limits->stored_bf16.max};
        k = (struct ops_limit){k.nmse + 5e-5, k.max + 0.03};
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
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct pair p;

        pair_open(&p, subject);
        check_qkv(&p, &cases[i]);
        pair_close(&p);
    }
}
