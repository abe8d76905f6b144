#include "tests/kernels/ops_scene.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

const uint32_t schedules[N_SCHEDULES][N_STEPS][SEQS_MAX] = {
    [MIXED] = {{1, 0, 37, 5, 0, 0},
               {1, 64, 1, 0, 0, 16},
               {1, 190, 1, 90, 1, 17},
               {1, 1, 1, 1, 1, 1},
               {2, 250, 1, 1, 1, 3},
               {1, 1, 1, 1, 1, 1},
               {1, 9, 0, 1, 0, 0}},
    [EDGES] = {{14, 238, 0, 30, 15, 16},
               {1, 16, 255, 2, 2, 16},
               {1, 1, 256, 16, 15, 1},
               {1, 1, 1, 1, 1, 15},
               {1, 1, 1, 1, 1, 1},
               {1, 1, 1, 1, 1, 1},
               {0, 1, 1, 0, 0, 1}},
    [ALONE] = {{0, 250}, {0, 5}, {0, 1}, {0, 1}, {0, 254}, {0, 1}, {0, 1}},
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

void plan_grow(struct plan *plan, uint32_t seq, uint32_t n_keys)
{
    while (plan->n_table[seq] * plan->page_size < n_keys) {
        cr_assert_lt(plan->n_taken, plan->n_pages);
        plan->tables[seq][plan->n_table[seq]++] = plan->order[plan->n_taken++];
    }
}

void plan_free_behind(struct plan *plan, uint32_t window)
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

void plan_step(struct plan *plan, const uint32_t counts[SEQS_MAX])
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

static void kv_open(struct pair *p, struct kv *kv[2], const struct attention_case *c,
                    uint32_t n_pages)
{
    for (int i = 0; i < 2; i++) {
        const struct backend_ops *ops = p->side[i].ops;
        const struct kv_shape shape = {.n_layers = 2,
                                       .n_kv_heads = c->n_kv_heads,
                                       .head_dim = c->head_dim,
                                       .page_size = c->page_size,
                                       .n_pages = n_pages,
                                       .dtype = i && p->uncoded ? DTYPE_F32 : c->kv_dtype};
        const char *why = "?";
        int r = ops->kv_new(p->side[i].backend, &kv[i], &shape, &why);

        cr_assert_eq(r, 0, "%s refuses a pool: %s", ops->name, why);
        cr_assert_eq(ops->kv_populate(kv[i], 0, n_pages), 0);
        cr_assert_geq(ops->kv_page_bytes(&shape), (size_t)(shape.dtype == DTYPE_U8 ? 2 : 4) *
                                                      shape.n_layers * shape.page_size *
                                                      shape.n_kv_heads * shape.head_dim);
    }
}

void scene_open(struct scene *s, struct pair *p, const struct attention_case *c, uint32_t n_tokens)
{
    uint32_t n_pages = n_tokens / c->page_size + SEQS_MAX + 1;

    memset(s, 0, sizeof *s);
    s->p = p;
    s->c = *c;
    s->n_q = c->n_heads * c->head_dim;
    s->n_cols = s->n_q + 2 * c->n_kv_heads * c->head_dim;
    s->sinks = pair_random(p, c->n_heads, 2, 0);
    for (int i = 0; i < 2; i++)
        s->qkv[i] = (struct qkv_args){.step = &s->plan.step,
                                      .layer = 1,
                                      .n_heads = c->n_heads,
                                      .n_kv_heads = c->n_kv_heads,
                                      .head_dim = c->head_dim};
    plan_init(&s->plan, p, c->page_size, n_pages);
    kv_open(p, s->kv, c, n_pages);
}

void scene_close(struct scene *s)
{
    for (int i = 0; i < 2; i++)
        s->p->side[i].ops->kv_free(s->kv[i]);
    pair_weight_free(s->p, s->w);
}

struct attention_args scene_attention(const struct scene *s, int side)
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

struct both scene_rows(struct scene *s)
{
    uint32_t n_tokens = s->plan.step.n_tokens, n_k = s->c.n_kv_heads * s->c.head_dim;
    struct both x = pair_rows(s->p, n_tokens, s->n_cols, s->c.kind);
    struct both v = pair_rows(s->p, n_tokens, n_k, s->c.v_kind);

    for (uint32_t t = 0; t < n_tokens; t++) {
        for (int i = 0; i < 2; i++)
            memcpy(x.data[i] + t * pair_stride(s->n_cols) + s->n_q + n_k,
                   v.data[i] + t * pair_stride(n_k), n_k * sizeof(float));
    }
    return x;
}

void scene_step(struct scene *s, const struct both *x, struct tensor q[2], struct tensor o[2])
{
    uint32_t n_tokens = s->plan.step.n_tokens;
    struct both q_rows = pair_rows(s->p, n_tokens, s->n_q, INPUT_NORMAL);
    struct both o_rows = pair_rows(s->p, n_tokens, s->n_q, INPUT_NORMAL);

    for (int i = 0; i < 2; i++) {
        const struct backend_ops *ops = s->p->side[i].ops;
        struct stream *stream = s->p->side[i].stream;
        struct tensor tx = pair_tensor(x, i, n_tokens, s->n_cols);
        struct attention_args attention = scene_attention(s, i);

        q[i] = pair_tensor(&q_rows, i, n_tokens, s->n_q);
        o[i] = pair_tensor(&o_rows, i, n_tokens, s->n_q);
        s->qkv[i].w = s->w[i];
        cr_assert_eq(ops->qkv(stream, &q[i], s->kv[i], &tx, &s->qkv[i]), 0);
        cr_assert_eq(ops->attention(stream, &o[i], &q[i], s->kv[i], &attention), 0);
    }
}

enum ops_path scene_path(const struct scene *s)
{
    if (s->p->uncoded)
        return OPS_ATTENTION_CODED;
    if (s->c.kv_dtype == DTYPE_F32)
        return OPS_ATTENTION_F32;
    if (s->c.v_kind == INPUT_SPIKES || s->c.v_kind == INPUT_ROWS)
        return OPS_ATTENTION_HEAVY;
    return s->c.kv_dtype == DTYPE_BF16 ? OPS_ATTENTION_BF16 : OPS_ATTENTION_U8;
}
