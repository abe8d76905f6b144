/* Checks of attention and of pages. No operator writes keys and values but qkv, so the unit matrix
 * is its weight: then q, k and v are pieces of x, to the bit, on both sides. */
#include "tests/kernels/ops_scene.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

enum { N_KV_TYPES = 3 };
static const enum dtype kv_types[N_KV_TYPES] = {DTYPE_F32, DTYPE_BF16, DTYPE_U8};

/* ---- attention ------------------------------------------------------------------------------- */

static void check_attention(struct pair *p, const struct attention_case *c)
{
    struct scene s;

    scene_open(&s, p, c, SCHEDULE_TOKENS);
    pair_unit_weight(p, s.w, s.n_cols, 1);
    for (int step = 0; step < N_STEPS; step++) {
        struct tensor o[2];
        struct both x;

        plan_step(&s.plan, schedule[step]);
        x = pair_rows(p, s.plan.step.n_tokens, s.n_cols, c->kind);
        scene_step(&s, &x, o);
        check_rows(&o[0], &o[1], attention_limit(p, c->kv_dtype),
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
        {4, 2, 32, 16, DTYPE_U8, 0, 0, false, INPUT_NORMAL},
        {9, 3, 16, 4, DTYPE_U8, 0, 0, true, INPUT_NORMAL},
        {3, 1, 64, 256, DTYPE_U8, 0, 0, false, INPUT_NORMAL},
        {8, 1, 80, 48, DTYPE_U8, 100, 30, false, INPUT_NORMAL},
        {2, 2, 96, 16, DTYPE_U8, 1, 0, false, INPUT_HEAVY},
        {4, 2, 32, 16, DTYPE_U8, 0, 0, true, INPUT_DENORMAL},
        {4, 2, 32, 16, DTYPE_U8, 0, 0, true, INPUT_ZERO},
        {4, 2, 24, 16, DTYPE_U8, 0, 0, false, INPUT_OFFSET},
    };
    /* What codes cost, with nothing but the written values as the measure. */
    static const struct attention_case coded[] = {
        {3, 1, 64, 256, DTYPE_U8, 0, 0, false, INPUT_NORMAL},
        {2, 1, 128, 16, DTYPE_U8, 0, 0, false, INPUT_NORMAL},
        {2, 1, 32, 16, DTYPE_U8, 1, 0, false, INPUT_NORMAL},
    };
    struct pair p;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct attention_case c = cases[i];

        c.page_size = page_fit(subject, c.page_size);
        pair_open(&p, subject);
        check_attention(&p, &c);
        pair_close(&p);
    }
    for (size_t i = 0; i < sizeof coded / sizeof coded[0]; i++) {
        struct attention_case c = coded[i];

        c.page_size = page_fit(subject, c.page_size);
        pair_open(&p, subject);
        p.uncoded = true;
        check_attention(&p, &c);
        pair_close(&p);
    }
    if (subject->dim_multiple == 1) {
        const struct attention_case odd[] = {{3, 1, 7, 5, DTYPE_BF16, 50, 0, false, INPUT_NORMAL},
                                             {3, 1, 7, 5, DTYPE_U8, 50, 0, false, INPUT_NORMAL}};

        for (int i = 0; i < 2; i++) {
            pair_open(&p, subject);
            check_attention(&p, &odd[i]);
            pair_close(&p);
        }
    }
}

/* ---- pages with a past ----------------------------------------------------------------------- */

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
    for (size_t type = 0; type < N_KV_TYPES; type++) {
        const struct attention_case c = {4, 2,     32, page_fit(subject, 16), kv_types[type], 0,
                                         0, false, 0};
        static const uint32_t first[SEQS_MAX] = {40, 70}, second[SEQS_MAX] = {0, 0, 21, 1, 39};
        struct tensor o[2];
        struct scene s;
        struct both x;
        struct pair p;
        uint32_t n_taken;

        pair_open(&p, subject);
        scene_open(&s, &p, &c, 120);
        pair_unit_weight(&p, s.w, s.n_cols, 1);
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
            check_rows(&o[0], &o[1], attention_limit(&p, c.kv_dtype),
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
    for (size_t type = 0; type < N_KV_TYPES; type++) {
        const struct attention_case c = {4, 2,     32, page_fit(subject, 16), kv_types[type], 0,
                                         0, false, 0};
        static const uint32_t prompt[SEQS_MAX] = {37}, both[SEQS_MAX] = {1, 1};
        struct page_copy copies[PAGES_MAX];
        struct plan *plan;
        struct scene s;
        struct tensor o[2];
        struct both x;
        struct pair p;

        pair_open(&p, subject);
        scene_open(&s, &p, &c, 120);
        pair_unit_weight(&p, s.w, s.n_cols, 1);
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
            check_rows(&o[0], &o[1], attention_limit(&p, c.kv_dtype), "attention, copies");
            cr_expect_arr_eq((char *)o[0].data + o[0].stride_bytes,
                             (char *)o[0].data + 2 * o[0].stride_bytes, s.n_q * sizeof(float),
                             "attention over copied pages differs");
        }
        scene_close(&s);
        pair_close(&p);
    }
}

/* ---- poison ---------------------------------------------------------------------------------- */

/* One NaN among the values of each head of a chunk, which no comparison sees. */
static void check_lone_nan(const struct ops_subject *subject, uint32_t col)
{
    static const uint32_t first[SEQS_MAX] = {0, 0, 20}, second[SEQS_MAX] = {1, 0, 1, 18};
    const struct attention_case c = {.n_heads = 4,
                                     .n_kv_heads = 2,
                                     .head_dim = 32,
                                     .page_size = page_fit(subject, 16),
                                     .kv_dtype = DTYPE_U8};
    struct both x, bias;
    struct tensor o[2];
    struct scene s;
    struct pair p;

    pair_open(&p, subject);
    scene_open(&s, &p, &c, 120);
    pair_unit_weight(&p, s.w, s.n_cols, 1);
    bias = pair_floats(&p, s.n_cols, NULL);
    for (int i = 0; i < 2; i++) {
        bias.data[i][col] = NAN;
        s.bias[i] = bias.data[i];
    }
    plan_step(&s.plan, first);
    x = pair_rows(&p, s.plan.step.n_tokens, s.n_cols, INPUT_NORMAL);
    scene_step(&s, &x, o);
    s.bias[0] = s.bias[1] = NULL;
    plan_step(&s.plan, second);
    x = pair_rows(&p, s.plan.step.n_tokens, s.n_cols, INPUT_NORMAL);
    scene_step(&s, &x, o);
    for (uint32_t r = 0; r < s.plan.step.n_tokens; r++) {
        const float *row = (const float *)((const char *)o[0].data + r * o[0].stride_bytes);

        for (uint32_t i = 0; i < s.n_q; i++)
            cr_expect_eq(isfinite(row[i]), r != 2 || i >= s.n_q / 2,
                         "NaN at %u: row %u, value %u is %g", col, r, i, (double)row[i]);
    }
    scene_close(&s);
    pair_close(&p);
}

/* A head of keys, or of values, is not finite when it is coded, or wider than a float: its sequence
 * sees NaN from there on in the heads that share it, and no other does. */
void ops_check_poisoned_keys(const struct ops_subject *subject)
{
    enum { BEGIN = 2, ROW = 9, END = 22 }; /* rows of the sequence, and the token among them */
    static const uint32_t counts[SEQS_MAX] = {1, 0, 20, 18};
    static const struct {
        uint32_t col; /* of q, then K, then V, in heads of 32 */
        float a, b;   /* there and in the next one, times 4 */
        bool all;     /* the row's q, K and V, all heads of them */
    } cases[] = {{4 * 32 + 5, 1e38f, 0, false},
                 {6 * 32 + 5, -1e38f, 0, false},
                 {4 * 32 + 30, 8e37f, -8e37f, false},
                 {6 * 32, -8e37f, 8e37f, false},
                 {6 * 32 + 11, NAN, 0, true}};

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct attention_case c = {.n_heads = 4,
                                         .n_kv_heads = 2,
                                         .head_dim = 32,
                                         .page_size = page_fit(subject, 16),
                                         .kv_dtype = DTYPE_U8};
        struct tensor o[2];
        struct scene s;
        struct both x;
        struct pair p;

        pair_open(&p, subject);
        scene_open(&s, &p, &c, 120);
        pair_unit_weight(&p, s.w, s.n_cols, 4);
        plan_step(&s.plan, counts);
        x = pair_rows(&p, s.plan.step.n_tokens, s.n_cols, INPUT_NORMAL);
        for (int side = 0; side < 2; side++) {
            float *row = x.data[side] + ROW * pair_stride(s.n_cols);

            row[cases[i].col] = cases[i].a;
            row[cases[i].col + 1] = cases[i].b;
        }
        scene_step(&s, &x, o);
        for (uint32_t r = 0; r < s.plan.step.n_tokens; r++) {
            const float *row = (const float *)((const char *)o[0].data + r * o[0].stride_bytes);

            for (uint32_t col = 0; col < s.n_q; col++) {
                bool poisoned = r >= ROW && r < END && (col < s.n_q / 2 || cases[i].all);

                /* Its own earlier rows of the step may take values they do not see with p = 0. */
                if (r >= BEGIN && r < ROW)
                    continue;
                cr_expect_eq(isfinite(row[col]), !poisoned, "poison %zu: row %u, value %u is %g", i,
                             r, col, (double)row[col]);
            }
        }
        scene_close(&s);
        pair_close(&p);
    }
    check_lone_nan(subject, 4 * 32 + 5);
    check_lone_nan(subject, 6 * 32 + 5);
}
