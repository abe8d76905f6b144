/* Attention by the contract: a span from a fresh state, one query row and one key at a time. */
#include "tests/kernels/contract.h"

#include <math.h>

#include "kernels/numeric.h"
#include "tests/kernels/oracle_memory.h"

/* A row's partial over the keys it sees, of one span or merged of several. */
struct partial {
    bool seen;
    float m, l, o[256];
};

/* One query row and what it looks at. */
struct view {
    const struct kv *kv;
    const struct attention_args *args;
    uint32_t seq, kv_head, first, end; /* visible positions [first, end) */
    float q[256];                      /* scaled, and rounded unless keys are f32 */
};

static bool is_f32(const struct view *v)
{
    return v->kv->shape.dtype == DTYPE_F32;
}

static const double *key_or_value(const struct view *v, int is_v, uint32_t position)
{
    const struct step *step = v->args->step;
    uint32_t page_size = v->kv->shape.page_size;
    uint32_t page = step->table[step->table_off[v->seq] + position / page_size];

    return oracle_kv_at(v->kv, v->args->layer, is_v, page * page_size + position % page_size) +
           v->kv_head * v->args->head_dim;
}

static float score_of(const struct view *v, uint32_t position)
{
    const double *k = key_or_value(v, 0, position);
    float acc = 0;

    for (uint32_t d = 0; d < v->args->head_dim; d += 2) {
        acc = fmaf(v->q[d + 1], (float)k[d + 1], acc);
        acc = fmaf(v->q[d], (float)k[d], acc);
    }
    return v->args->softcap != 0 ? numeric_softcap(acc, v->args->softcap) : acc;
}

static void add_value(struct partial *p, const struct view *v, uint32_t position, float weight)
{
    const double *value = key_or_value(v, 1, position);

    for (uint32_t d = 0; d < v->args->head_dim; d++)
        p->o[d] = fmaf(weight, (float)value[d], p->o[d]);
}

static struct partial span_of(const struct view *v, uint32_t begin)
{
    uint32_t first = v->first > begin ? v->first : begin;
    uint32_t end = v->end < begin + KERNELS_SPAN ? v->end : begin + KERNELS_SPAN;
    float p[KERNELS_SPAN] = {0}, lane[16] = {0};
    struct partial part = {.seen = first < end, .m = -INFINITY};

    if (!part.seen)
        return part;
    for (uint32_t i = first; i < end; i++) {
        p[i - begin] = score_of(v, i);
        part.m = fmaxf(part.m, p[i - begin]);
    }
    for (uint32_t i = first; i < end; i++) {
        float e = numeric_exp(p[i - begin] - part.m);

        p[i - begin] = is_f32(v) ? e : numeric_round_bf16(e);
        lane[i % 16] += p[i - begin];
    }
    part.l = numeric_tree(lane);
    for (uint32_t i = begin; i < end; i += 2) {
        if (i + 1 >= first && i + 1 < end)
            add_value(&part, v, i + 1, p[i + 1 - begin]);
        if (i >= first)
            add_value(&part, v, i, p[i - begin]);
    }
    for (uint32_t d = 0; d < v->args->head_dim; d++)
        part.o[d] += 0.0f;
    return part;
}

static void merge(struct partial *total, const struct partial *part, uint32_t hd)
{
    float m = fmaxf(total->m, part->m), a = numeric_exp(total->m - m), b = numeric_exp(part->m - m);

    if (!part->seen)
        return;
    if (!total->seen) {
        *total = *part;
        return;
    }
    total->m = m;
    total->l = fmaf(total->l, a, part->l * b);
    for (uint32_t d = 0; d < hd; d++)
        total->o[d] = fmaf(total->o[d], a, part->o[d] * b);
}

static void attend(float *o, const struct view *v, uint32_t head)
{
    uint32_t hd = v->args->head_dim;
    struct partial total = {0};

    for (uint32_t begin = 0; begin < v->end; begin += KERNELS_SPAN) {
        struct partial part = span_of(v, begin);

        merge(&total, &part, hd);
    }
    if (v->args->sinks && total.seen)
        merge(&total, &(struct partial){.seen = true, .m = v->args->sinks[head], .l = 1}, hd);
    for (uint32_t d = 0; d < hd; d++)
        o[d] = total.seen ? total.o[d] * (1 / total.l) : 0;
}

int contract_attention(struct stream *s, struct tensor *o, const struct tensor *q,
                       const struct kv *kv, const struct attention_args *args)
{
    const struct step *step = args->step;
    uint32_t hd = args->head_dim, group = args->n_heads / args->n_kv_heads;

    (void)s;
    for (uint32_t seq = 0; seq < step->n_seqs; seq++) {
        for (uint32_t t = step->token_off[seq]; t < step->token_off[seq + 1]; t++) {
            uint32_t after = (uint32_t)step->positions[t] + 1;
            struct view v = {.kv = kv, .args = args, .seq = seq};

            v.end = after < step->n_keys[seq] ? after : step->n_keys[seq];
            v.first = args->window && after > args->window ? after - args->window : 0;
            for (uint32_t h = 0; h < args->n_heads; h++) {
                v.kv_head = h / group;
                for (uint32_t d = 0; d < hd; d++) {
                    v.q[d] = oracle_row(q, t)[h * hd + d] * args->scale;
                    v.q[d] = is_f32(&v) ? v.q[d] : numeric_round_bf16(v.q[d]);
                }
                attend(oracle_row(o, t) + h * hd, &v, h);
            }
        }
    }
    return 0;
}
