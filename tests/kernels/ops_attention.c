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
        struct tensor q[2], o[2];
        struct both x;

        plan_step(&s.plan, schedules[c->schedule][step]);
        x = scene_rows(&s);
        scene_step(&s, &x, q, o);
        check_rows(p, &o[0], &o[1], scene_path(&s),
                   "attention %s, schedule %u, step %d: heads %u/%u of %u, pages of %u, window %u, "
                   "cap %g, sinks %d, kinds %d %d",
                   dtype_name(c->kv_dtype), c->schedule, step, c->n_heads, c->n_kv_heads,
                   c->head_dim, c->page_size, c->window, (double)c->softcap, c->sinks, c->kind,
                   c->v_kind);
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

static void check_cases(const struct ops_subject *subject, const struct attention_case *cases,
                        size_t n, bool uncoded)
{
    for (size_t i = 0; i < n; i++) {
        struct attention_case c = cases[i];
        struct pair p;

        c.page_size = page_fit(subject, c.page_size);
        if (c.head_dim % subject->head_multiple)
            continue;
        pair_open(&p, subject);
        p.uncoded = uncoded;
        check_attention(&p, &c);
        pair_close(&p);
    }
}

#define N(cases) (sizeof cases / sizeof cases[0])

void ops_check_attention(const struct ops_subject *subject)
{
    static const struct attention_case cases[] = {
        {4, 2, 32, 16, DTYPE_F32, 0, 0, false, INPUT_NORMAL, INPUT_NORMAL, MIXED},
        {9, 3, 16, 256, DTYPE_F32, 0, 0, false, INPUT_NORMAL, INPUT_NORMAL, EDGES},
        {2, 1, 80, 16, DTYPE_F32, 16, 0, false, INPUT_NORMAL, INPUT_SPIKES, MIXED},
        {8, 1, 16, 32, DTYPE_F32, 0, 1.5f, true, INPUT_NORMAL, INPUT_NORMAL, EDGES},
        {4, 2, 32, 16, DTYPE_F32, 0, 0, false, INPUT_DENORMAL, INPUT_DENORMAL, MIXED},
        {1, 1, 256, 16, DTYPE_F32, 0, 0, false, INPUT_NORMAL, INPUT_NORMAL, ALONE},
        {6, 2, 2, 48, DTYPE_F32, 17, 0, false, INPUT_NORMAL, INPUT_ROWS, EDGES},
        {3, 1, 66, 16, DTYPE_F32, 257, 0, true, INPUT_TINY, INPUT_TINY, ALONE},
        {2, 2, 34, 32, DTYPE_F32, 255, 0, false, INPUT_NORMAL, INPUT_LARGE, EDGES},
        {2, 2, 64, 16, DTYPE_F32, 256, 0, false, INPUT_ZERO, INPUT_HEAVY, EDGES},
        {4, 2, 32, 16, DTYPE_BF16, 0, 0, false, INPUT_NORMAL, INPUT_NORMAL, EDGES},
        {9, 3, 16, 4, DTYPE_BF16, 0, 0, false, INPUT_NORMAL, INPUT_NORMAL, MIXED},
        {1, 1, 64, 48, DTYPE_BF16, 100, 0, false, INPUT_NORMAL, INPUT_NORMAL, EDGES},
        {2, 1, 128, 256, DTYPE_BF16, 300, 30, false, INPUT_NORMAL, INPUT_SPIKES, MIXED},
        {3, 3, 64, 7, DTYPE_BF16, 33, 0, true, INPUT_NORMAL, INPUT_NORMAL, EDGES},
        {2, 2, 96, 16, DTYPE_BF16, 1, 0, false, INPUT_HEAVY, INPUT_HEAVY, MIXED},
        {4, 2, 32, 16, DTYPE_BF16, 0, 0, true, INPUT_DENORMAL, INPUT_DENORMAL, EDGES},
        {4, 2, 32, 16, DTYPE_BF16, 0, 0, true, INPUT_ZERO, INPUT_ZERO, MIXED},
        {7, 1, 24, 16, DTYPE_BF16, 15, 0, false, INPUT_NORMAL, INPUT_LARGE, EDGES},
        {5, 1, 2, 32, DTYPE_BF16, 16, 0, false, INPUT_NORMAL, INPUT_ROWS, MIXED},
        {3, 1, 64, 48, DTYPE_BF16, 256, 0, false, INPUT_TINY, INPUT_OFFSET, EDGES},
        {2, 1, 130, 16, DTYPE_BF16, 0, 0, true, INPUT_NORMAL, INPUT_NORMAL, ALONE},
        {4, 1, 64, 256, DTYPE_BF16, 257, 0, false, INPUT_NORMAL, INPUT_NORMAL, ALONE},
        {4, 2, 32, 16, DTYPE_U8, 0, 0, false, INPUT_NORMAL, INPUT_NORMAL, EDGES},
        {9, 3, 16, 4, DTYPE_U8, 0, 0, true, INPUT_NORMAL, INPUT_NORMAL, MIXED},
        {3, 1, 64, 256, DTYPE_U8, 0, 0, false, INPUT_NORMAL, INPUT_NORMAL, ALONE},
        {8, 1, 80, 48, DTYPE_U8, 100, 30, false, INPUT_NORMAL, INPUT_SPIKES, EDGES},
        {2, 2, 96, 16, DTYPE_U8, 1, 0, false, INPUT_HEAVY, INPUT_HEAVY, MIXED},
        {4, 2, 32, 16, DTYPE_U8, 0, 0, true, INPUT_DENORMAL, INPUT_DENORMAL, EDGES},
        {4, 2, 32, 16, DTYPE_U8, 0, 0, true, INPUT_ZERO, INPUT_ZERO, MIXED},
        {4, 2, 24, 16, DTYPE_U8, 0, 0, false, INPUT_OFFSET, INPUT_OFFSET, EDGES},
        {6, 2, 2, 32, DTYPE_U8, 17, 0, false, INPUT_NORMAL, INPUT_ROWS, EDGES},
        {1, 1, 128, 48, DTYPE_U8, 255, 0, false, INPUT_NORMAL, INPUT_LARGE, MIXED},
        {2, 1, 40, 16, DTYPE_U8, 257, 0, true, INPUT_TINY, INPUT_TINY, ALONE},
        {3, 1, 7, 5, DTYPE_BF16, 50, 0, false, INPUT_NORMAL, INPUT_NORMAL, MIXED},
        {3, 1, 7, 5, DTYPE_U8, 50, 0, false, INPUT_NORMAL, INPUT_NORMAL, EDGES},
        {2, 2, 1, 5, DTYPE_F32, 5, 0, false, INPUT_NORMAL, INPUT_NORMAL, EDGES},
    };
    /* What codes cost, with nothing but the written values as the measure. */
    static const struct attention_case coded[] = {
        {3, 1, 64, 256, DTYPE_U8, 0, 0, false, INPUT_NORMAL, INPUT_NORMAL, MIXED},
        {2, 1, 128, 16, DTYPE_U8, 0, 0, false, INPUT_NORMAL, INPUT_NORMAL, EDGES},
        {2, 1, 32, 16, DTYPE_U8, 1, 0, false, INPUT_NORMAL, INPUT_NORMAL, MIXED},
    };
    /* Scores so large that one key takes all: which one is up to a rounding of q, but for whoever
     * rounds the same. */
    static const struct attention_case extreme[] = {
        {4, 2, 32, 16, DTYPE_F32, 0, 0, false, INPUT_SPIKES, INPUT_SPIKES, EDGES},
        {4, 2, 32, 16, DTYPE_BF16, 0, 0, true, INPUT_SPIKES, INPUT_ROWS, EDGES},
        {4, 2, 32, 16, DTYPE_U8, 0, 0, true, INPUT_SPIKES, INPUT_SPIKES, EDGES},
        {3, 1, 80, 32, DTYPE_F32, 16, 15, false, INPUT_ROWS, INPUT_ROWS, MIXED},
        {3, 1, 80, 32, DTYPE_BF16, 256, 15, false, INPUT_ROWS, INPUT_SPIKES, EDGES},
        {3, 1, 80, 48, DTYPE_U8, 257, 0, false, INPUT_ROWS, INPUT_ROWS, EDGES},
        {2, 1, 64, 16, DTYPE_F32, 0, 0, true, INPUT_LARGE, INPUT_LARGE, ALONE},
        {2, 1, 64, 16, DTYPE_BF16, 0, 0, false, INPUT_LARGE, INPUT_HEAVY, ALONE},
        {2, 1, 64, 16, DTYPE_U8, 0, 0, false, INPUT_HEAVY, INPUT_LARGE, ALONE},
        {4, 2, 32, 16, DTYPE_U8, 0, 0, false, INPUT_BOTTOM, INPUT_BOTTOM, EDGES},
    };

    check_cases(subject, cases, N(cases), false);
    if (subject->limits)
        check_cases(subject, coded, N(coded), true);
    else
        check_cases(subject, extreme, N(extreme), false);
}

/* ---- pages with a past ----------------------------------------------------------------------- */

/* Pages full of NaN from a request of before are given to others: nothing shines through, though
 * slots of a page, also between two that are read at once, are not written yet or never. */
void ops_check_reused_pages(const struct ops_subject *subject)
{
    static const uint32_t page_sizes[N_KV_TYPES] = {16, 32, 48};

    for (size_t type = 0; type < N_KV_TYPES; type++) {
        const struct attention_case c = {.n_heads = 4,
                                         .n_kv_heads = 2,
                                         .head_dim = 32,
                                         .page_size = page_fit(subject, page_sizes[type]),
                                         .kv_dtype = kv_types[type]};
        static const uint32_t first[SEQS_MAX] = {60, 90}, second[SEQS_MAX] = {0, 0, 21, 1, 38},
                              one_each[SEQS_MAX] = {0, 0, 1, 1, 1};
        struct tensor q[2], o[2];
        struct scene s;
        struct both x;
        struct pair p;

        pair_open(&p, subject);
        scene_open(&s, &p, &c, 120);
        pair_unit_weight(&p, s.w, s.n_cols, 1);
        plan_step(&s.plan, first);
        x = scene_rows(&s);
        for (int i = 0; i < 2; i++) {
            for (size_t j = 0; j < s.plan.step.n_tokens * pair_stride(s.n_cols); j++)
                x.data[i][j] = j % 3 ? NAN : INFINITY;
        }
        scene_step(&s, &x, q, o);
        s.plan.n_taken = 0;
        for (int step = 0; step < 20; step++) {
            plan_step(&s.plan, step % 19 ? one_each : second);
            x = scene_rows(&s);
            scene_step(&s, &x, q, o);
            check_rows(&p, &o[0], &o[1], scene_path(&s),
                       "attention over pages taken again, step %d", step);
        }
        scene_close(&s);
        pair_close(&p);
    }
}

static void check_copied(const struct ops_subject *subject, enum dtype kv_dtype, uint32_t n_prompt)
{
    const struct attention_case c = {.n_heads = 4,
                                     .n_kv_heads = 2,
                                     .head_dim = 32,
                                     .page_size = page_fit(subject, 16),
                                     .kv_dtype = kv_dtype};
    const uint32_t prompt[SEQS_MAX] = {n_prompt}, both[SEQS_MAX] = {1, 1};
    struct page_copy copies[PAGES_MAX];
    struct plan *plan;
    struct scene s;
    struct tensor q[2], o[2];
    struct both x;
    struct pair p;

    pair_open(&p, subject);
    scene_open(&s, &p, &c, 120);
    pair_unit_weight(&p, s.w, s.n_cols, 1);
    plan = &s.plan;
    plan_step(plan, prompt);
    x = scene_rows(&s);
    scene_step(&s, &x, q, o);
    plan_grow(plan, 1, n_prompt);
    plan->n_past[1] = n_prompt;
    for (uint32_t i = 0; i < plan->n_table[1]; i++)
        copies[i] = (struct page_copy){plan->tables[0][i], plan->tables[1][i]};
    for (int i = 0; i < 2; i++)
        cr_assert_eq(p.side[i].ops->kv_copy(s.kv[i], copies, plan->n_table[1]), 0);
    for (int step = 0; step < 20; step++) {
        plan_step(plan, both);
        x = scene_rows(&s);
        for (int i = 0; i < 2; i++)
            memcpy(x.data[i] + 2 * pair_stride(s.n_cols), x.data[i] + pair_stride(s.n_cols),
                   s.n_cols * sizeof(float));
        scene_step(&s, &x, q, o);
        check_rows(&p, &o[0], &o[1], scene_path(&s), "attention, copies of %u keys", n_prompt);
        cr_expect_arr_eq((char *)o[0].data + o[0].stride_bytes,
                         (char *)o[0].data + 2 * o[0].stride_bytes, s.n_q * sizeof(float),
                         "attention over copied pages differs");
    }
    scene_close(&s);
    pair_close(&p);
}

/* A sequence goes on from copies of another's pages, of which the last is full or is not: the same
 * bits. */
void ops_check_copied_pages(const struct ops_subject *subject)
{
    for (size_t type = 0; type < N_KV_TYPES; type++) {
        for (uint32_t n_prompt = 31; n_prompt <= 33; n_prompt++)
            check_copied(subject, kv_types[type], n_prompt);
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
    struct tensor q[2], o[2];
    struct scene s;
    struct pair p;

    pair_open(&p, subject);
    scene_open(&s, &p, &c, 120);
    pair_unit_weight(&p, s.w, s.n_cols, 1);
    bias = pair_floats(&p, s.n_cols, NULL);
    for (int i = 0; i < 2; i++) {
        bias.data[i][col] = NAN;
        s.qkv[i].bias = bias.data[i];
    }
    plan_step(&s.plan, first);
    x = scene_rows(&s);
    scene_step(&s, &x, q, o);
    s.qkv[0].bias = s.qkv[1].bias = NULL;
    plan_step(&s.plan, second);
    x = scene_rows(&s);
    scene_step(&s, &x, q, o);
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
        struct tensor q[2], o[2];
        struct scene s;
        struct both x;
        struct pair p;

        pair_open(&p, subject);
        scene_open(&s, &p, &c, 120);
        pair_unit_weight(&p, s.w, s.n_cols, 4);
        plan_step(&s.plan, counts);
        x = scene_rows(&s);
        for (int side = 0; side < 2; side++) {
            float *row = x.data[side] + ROW * pair_stride(s.n_cols);

            row[cases[i].col] = cases[i].a;
            row[cases[i].col + 1] = cases[i].b;
        }
        scene_step(&s, &x, q, o);
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
