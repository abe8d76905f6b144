/* One query row at a time, over the keys it sees, with the softmax and the weighted sum in double.
 * Neither q nor the probabilities are rounded: what other backends lose by that is measured against
 * this. */
#include "kernels/reference/reference.h"

#include <assert.h>
#include <math.h>

/* Slot of a position of a sequence; false: its page was given back, or is none. */
static bool find_slot(uint32_t *slotp, const struct step *step, const struct kv *kv, uint32_t seq,
                      uint32_t position)
{
    uint32_t page_size = kv->shape.page_size, entry = position / page_size;
    uint32_t page_idx;

    if (entry >= step->table_off[seq + 1] - step->table_off[seq])
        return false;
    page_idx = step->table[step->table_off[seq] + entry];
    if (page_idx >= kv->shape.n_pages)
        return false;
    *slotp = page_idx * page_size + position % page_size;
    return true;
}

static double dot(const float *a, const float *b, uint32_t n)
{
    double lane[8] = {0}, sum = 0;
    uint32_t i = 0;

    for (; i + 8 <= n; i += 8) {
        for (int j = 0; j < 8; j++)
            lane[j] += (double)a[i + j] * (double)b[i + j];
    }
    for (int j = 0; j < 8; j++)
        sum += lane[j];
    for (; i < n; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

/* o [head_dim] of one head of one token, which sees positions [first, last]. */
static void attend(struct reference_stream *s, float *o, const float *q, const struct kv *kv,
                   const struct attention_args *args, uint32_t seq, uint32_t head, uint32_t first,
                   uint32_t last)
{
    uint32_t hd = args->head_dim, kv_head = head / (args->n_heads / args->n_kv_heads), slot_idx;
    double max = args->sinks ? (double)args->sinks[head] : -HUGE_VAL, total;

    for (uint32_t i = 0; i < hd; i++)
        s->query[i] = q[i] * args->scale;
    for (uint32_t p = first; p <= last; p++) {
        double *score = &s->scores[p - first];

        *score = -HUGE_VAL;
        if (!find_slot(&slot_idx, args->step, kv, seq, p))
            continue;
        reference_kv_get(s->head_kv, kv, args->layer, false, slot_idx, kv_head);
        *score = dot(s->query, s->head_kv, hd);
        if (args->softcap != 0)
            *score = (double)args->softcap * tanh(*score / (double)args->softcap);
        /* A NaN must reach the output: no comparison would let it pass as the maximum. */
        if (*score > max || *score != *score)
            max = *score;
    }
    total = args->sinks ? exp((double)args->sinks[head] - max) : 0;
    for (uint32_t i = 0; i < hd; i++)
        s->sums[i] = 0;
    for (uint32_t p = first; p <= last; p++) {
        double weight;

        if (s->scores[p - first] == -HUGE_VAL || !find_slot(&slot_idx, args->step, kv, seq, p))
            continue;
        weight = exp(s->scores[p - first] - max);
        total += weight;
        reference_kv_get(s->head_kv, kv, args->layer, true, slot_idx, kv_head);
        for (uint32_t i = 0; i < hd; i++)
            s->sums[i] += weight * (double)s->head_kv[i];
    }
    for (uint32_t i = 0; i < hd; i++)
        o[i] = total == 0 ? 0 : (float)(s->sums[i] / total);
}

int reference_attention(struct stream *stream, struct tensor *o, const struct tensor *q,
                        const struct kv *kv, const struct attention_args *args)
{
    struct reference_stream *s = (struct reference_stream *)stream;
    const struct step *step = args->step;
    uint32_t hd = args->head_dim;

    assert(hd == kv->shape.head_dim && hd <= s->shape.head_dim);
    for (uint32_t seq = 0; seq < step->n_seqs; seq++) {
        for (uint32_t t = step->token_off[seq]; t < step->token_off[seq + 1]; t++) {
            uint32_t last = (uint32_t)step->positions[t], first = 0;

            if (last >= step->n_keys[seq])
                last = step->n_keys[seq] - 1;
            /* The window ends at the query's own position, whether or not that key is present. */
            if (args->window && (uint32_t)step->positions[t] >= args->window)
                first = (uint32_t)step->positions[t] - args->window + 1;
            if (!step->n_keys[seq] || first > last) {
                for (uint32_t i = 0; i < args->n_heads * hd; i++)
                    tensor_row(o, t)[i] = 0;
                continue;
            }
            assert(last - first < s->shape.max_context);
            for (uint32_t h = 0; h < args->n_heads; h++)
                attend(s, tensor_row(o, t) + (size_t)h * hd, tensor_row(q, t) + (size_t)h * hd, kv,
                       args, seq, h, first, last);
        }
    }
    return 0;
}
