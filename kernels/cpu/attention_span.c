/* One span of 256 keys, for up to 8 rows: all scores are made, then their maximum, then p, then p
 * times V. There is no online softmax inside a span.
 *
 * K and V lie so that a vector of 16 keys (K) or 16 dimensions (V) times a broadcast pair needs no
 * sum across lanes. Pairs are taken odd first, as vdpbf16ps does: level avx512bf16 uses it.
 *
 * Codes of 8 bits become bf16 in registers, anew for each run of rows that passes over them: few
 * rows have one run and wait for memory, where a copy would only be more to move. */
#include "kernels/cpu/attention.h"

#include <math.h>

#include "kernels/cpu/vec.h"

#define UNROLL _Pragma("GCC unroll 8")

enum {
    SPAN_BLOCKS = KERNELS_SPAN / 16,
#if VEC_512
    SCORE_ROWS = 8,
    VALUE_VECTORS = 4,
#else
    SCORE_ROWS = 4,
    VALUE_VECTORS = 1,
#endif
    FETCH_LEVEL = 2
};

/* Blocks of keys at once, for so many rows: as many sums as there are registers. */
#if VEC_512
#define SCORE_BLOCKS(n_rows) ((n_rows) > 4 ? 2u : 4u)
#else
#define SCORE_BLOCKS(n_rows) ((n_rows) > 2 ? 1u : (n_rows) == 2 ? 2u : 4u)
#endif

/* Goes through what is ahead, a few lines a turn: in order, which memory likes best. */
struct fetcher {
    const uint8_t *const *block, *const *end;
    size_t at, block_bytes;
    uint32_t n_lines; /* a turn */
};

/* Spreads what is ahead over the turns that n_blocks blocks take: a pair of dimensions of their
 * keys, then a pair of keys of their values. */
static struct fetcher fetcher_of(const struct attention_ahead *ahead, size_t block_bytes,
                                 uint32_t n_blocks, uint32_t n_rows, uint32_t hd)
{
    uint32_t at_once = SCORE_BLOCKS(n_rows), n_lines = (uint32_t)(block_bytes / 64);
    uint32_t n_turns = (n_blocks / at_once + n_blocks % at_once) * (hd / 2) + n_blocks * 8;
    uint32_t n = (ahead->n_blocks * n_lines + n_turns - 1) / n_turns;

    return (struct fetcher){.block = ahead->blocks,
                            .end = ahead->blocks + ahead->n_blocks,
                            .block_bytes = block_bytes,
                            .n_lines = n < n_lines ? n : n_lines};
}

INLINE void fetch(struct fetcher *f)
{
    if (f->block == f->end)
        return;
    for (uint32_t line = 0; line < f->n_lines; line++)
        __builtin_prefetch(*f->block + f->at + 64 * line, 0, FETCH_LEVEL);
    f->at += 64 * f->n_lines;
    if (f->at >= f->block_bytes) {
        f->at = 0;
        f->block++;
    }
}

INLINE void queries(const struct attention_job *job, const struct attention_row *rows,
                    uint32_t n_rows, uint8_t *coef, const enum dtype t)
{
    uint32_t hd = job->args->head_dim;
    v16 scale = v_set1(job->args->scale);

    for (uint32_t i = 0; i < n_rows; i++) {
        const float *q = tensor_row(job->q, rows[i].token) + (size_t)rows[i].head * hd;
        uint8_t *c = coef + (size_t)i * hd * COEF_BYTES(t);

        for (uint32_t d = 0; d < hd; d += 16) {
            v16 a = v_mul(v_load_n(q + d, hd - d), scale);

            if (t != DTYPE_F32)
                a = v_round_bf16(a);
            /* Past the row's end this runs into the next one, which is written after. */
            coef_store(c + d * COEF_BYTES(t), a, t);
        }
    }
}

void LEVEL(attention_queries)(const struct attention_job *job, const struct attention_scratch *c,
                              const struct attention_row *rows, uint32_t n_rows)
{
    if (job->kv->shape.dtype == DTYPE_F32)
        queries(job, rows, n_rows, c->q, DTYPE_F32);
    else
        queries(job, rows, n_rows, c->q, DTYPE_BF16);
}

/* Where the span's blocks of 16 keys are, for blocks [begin, end). */
static void find_blocks(const struct attention_job *job, uint32_t seq_idx, uint32_t kv_head,
                        uint32_t span, uint32_t begin, uint32_t end, const uint8_t **k,
                        const uint8_t **v)
{
    const struct step *step = job->args->step;
    const struct kv_shape *shape = &job->kv->shape;

    for (uint32_t b = begin; b < end; b++) {
        uint32_t position = span * KERNELS_SPAN + b * 16;
        uint32_t page = step->table[step->table_off[seq_idx] + position / shape->page_size];

        /* The host checks page numbers; an unchecked one would read anywhere. */
        page = page < shape->n_pages ? page : 0;
        k[b] = kv_block(job->kv, page, job->args->layer, kv_head, position % shape->page_size);
        v[b] = k[b] + job->kv->half_bytes;
    }
}

/* Scores of n_rows rows and n_blocks blocks of keys, both constants. */
INLINE void score_blocks(float *score, const uint8_t *q, const uint8_t *const *k,
                         struct fetcher *ahead, uint32_t hd, const uint32_t n_rows,
                         const uint32_t n_blocks, const enum dtype t)
{
    const size_t pair_bytes = t == DTYPE_F32 ? 128 : t == DTYPE_U8 ? 32 : 64;
    const size_t q_bytes = hd * COEF_BYTES(t);
    v16 acc[SCORE_ROWS][4];
    unpacker u[4];

    UNROLL for (uint32_t r = 0; r < n_rows; r++)
    {
        UNROLL for (uint32_t b = 0; b < n_blocks; b++) acc[r][b] = v_zero();
    }
    UNROLL for (uint32_t b = 0; b < n_blocks && t == DTYPE_U8; b++)
    {
        u[b] = unpacker_keys((const float *)(const void *)k[b]);
    }
    for (uint32_t d = 0; d < hd / 2; d++) {
        if (n_rows <= FEW_ROWS)
            fetch(ahead);
        UNROLL for (uint32_t b = 0; b < n_blocks; b++)
        {
            pair key = t == DTYPE_U8 ? pair_unpack(k[b] + KV_FACTS_BYTES + d * pair_bytes, &u[b])
                                     : pair_load(k[b] + d * pair_bytes, 64, t);

            UNROLL for (uint32_t r = 0; r < n_rows; r++) acc[r][b] =
                pair_fma(acc[r][b], key, q + r * q_bytes + 2 * d * COEF_BYTES(t), t);
        }
    }
    UNROLL for (uint32_t r = 0; r < n_rows; r++)
    {
        UNROLL for (uint32_t b = 0; b < n_blocks; b++)
            v_store(score + r * KERNELS_SPAN + 16 * b, acc[r][b]);
    }
}

INLINE void score_rows(float *score, const uint8_t *q, const uint8_t *const *k, uint32_t begin,
                       uint32_t end, struct fetcher *ahead, uint32_t hd, const uint32_t n_rows,
                       const uint32_t n_blocks, const enum dtype t)
{
    uint32_t b = begin;

    for (; b + n_blocks <= end; b += n_blocks)
        score_blocks(score + 16 * b, q, k + b, ahead, hd, n_rows, n_blocks, t);
    for (; b < end; b++)
        score_blocks(score + 16 * b, q, k + b, ahead, hd, n_rows, 1, t);
}

INLINE void scores(float *score, const uint8_t *q, const uint8_t *const *k, uint32_t begin,
                   uint32_t end, struct fetcher *ahead, uint32_t hd, uint32_t n_rows,
                   const enum dtype t)
{
    const size_t q_bytes = hd * COEF_BYTES(t);

    while (n_rows) {
        uint32_t n = n_rows >= 8 && SCORE_ROWS == 8 ? 8 : n_rows >= 4 ? 4 : n_rows;

        switch (n) {
#if VEC_512
        case 8:
            score_rows(score, q, k, begin, end, ahead, hd, 8, SCORE_BLOCKS(8), t);
            break;
#endif
        case 4:
            score_rows(score, q, k, begin, end, ahead, hd, 4, SCORE_BLOCKS(4), t);
            break;
        case 3:
            score_rows(score, q, k, begin, end, ahead, hd, 3, SCORE_BLOCKS(3), t);
            break;
        case 2:
            score_rows(score, q, k, begin, end, ahead, hd, 2, SCORE_BLOCKS(2), t);
            break;
        default:
            score_rows(score, q, k, begin, end, ahead, hd, 1, SCORE_BLOCKS(1), t);
            break;
        }
        score += n * KERNELS_SPAN;
        q += n * q_bytes;
        n_rows -= n;
    }
}

/* Scores of a row become p, in place, over blocks [begin, end): +0 where keys are not visible. */
static void softmax_row(const struct attention_job *job, const struct attention_row *row,
                        float *score, uint32_t begin, uint32_t end, struct attention_softmax *sm,
                        const enum dtype t)
{
    uint32_t first = row->lo / 16, last = (row->hi + 15) / 16;
    uint8_t *p = (uint8_t *)(void *)score;
    v16 max = v_set1(-INFINITY), sum = v_zero(), m;

    sm->seen = row->lo < row->hi;
    if (!sm->seen)
        first = last = end;
    for (uint32_t b = first; b < last; b++) {
        v16 s = v_load(score + 16 * b);

        if (job->args->softcap != 0.0f) {
            s = v_softcap(s, job->args->softcap);
            v_store(score + 16 * b, s);
        }
        if (16 * b < row->lo || 16 * b + 16 > row->hi)
            s = v_select_range(s, v_set1(-INFINITY), row->lo > 16 * b ? row->lo - 16 * b : 0,
                               row->hi - 16 * b);
        max = v_max(max, s);
    }
    sm->m = v_max_tree(max);
    m = v_set1(sm->m);
    for (uint32_t b = begin; b < end; b++) {
        v16 e = v_zero();

        if (b >= first && b < last) {
            e = v_exp(v_sub(v_load(score + 16 * b), m));
            if (t != DTYPE_F32)
                e = v_round_bf16(e);
            if (16 * b < row->lo || 16 * b + 16 > row->hi)
                e = v_select_range(e, v_zero(), row->lo > 16 * b ? row->lo - 16 * b : 0,
                                   row->hi - 16 * b);
            sum = v_add(sum, e);
        }
        /* Coefficients are no wider than scores, so a store never passes the next load. */
        coef_store(p + 16 * b * COEF_BYTES(t), e, t);
    }
    sm->l = v_tree(sum);
}

/* out[r] = sum of p * V over n_vectors * 16 dimensions; n_rows and n_vectors are constants. */
INLINE void value_block(float *out, uint32_t out_stride, const uint8_t *p, const uint8_t *const *v,
                        uint32_t d, uint32_t begin, uint32_t end, uint32_t hd,
                        struct fetcher *ahead, const uint32_t n_rows, const uint32_t n_vectors,
                        const enum dtype t)
{
    const size_t cell_bytes = t == DTYPE_U8 ? 2 : 4; /* of a pair, or of an f32 */
    const size_t pair_bytes = (size_t)hd * (t == DTYPE_F32 ? 8 : cell_bytes);
    const size_t p_bytes = KERNELS_SPAN * sizeof(float);
    v16 acc[4][4];

    UNROLL for (uint32_t r = 0; r < n_rows; r++)
    {
        UNROLL for (uint32_t i = 0; i < n_vectors; i++) acc[r][i] = v_zero();
    }
    for (uint32_t b = begin; b < end; b++) {
        const uint8_t *value = v[b] + d * cell_bytes, *coef = p + 16 * b * COEF_BYTES(t);

        for (uint32_t j = 0; j < 8; j++) {
            const uint8_t *at = value + j * pair_bytes;
            unpacker u;

            if (n_rows <= FEW_ROWS && d == 0)
                fetch(ahead);
            if (t == DTYPE_U8)
                u = unpacker_values((const float *)(const void *)v[b], j);
            UNROLL for (uint32_t i = 0; i < n_vectors; i++)
            {
                pair a = t == DTYPE_U8 ? pair_unpack(at + KV_FACTS_BYTES + 32 * i, &u)
                                       : pair_load(at + 64 * i, (size_t)hd * 4, t);

                UNROLL for (uint32_t r = 0; r < n_rows; r++) acc[r][i] =
                    pair_fma(acc[r][i], a, coef + r * p_bytes + 2 * j * COEF_BYTES(t), t);
            }
        }
    }
    UNROLL for (uint32_t r = 0; r < n_rows; r++)
    {
        /* Adding 0 makes a -0 of skipped or zero products +0, whichever they were. */
        UNROLL for (uint32_t i = 0; i < n_vectors; i++)
            v_store(out + r * out_stride + 16 * i, v_add(acc[r][i], v_zero()));
    }
}

INLINE void value_rows(float *out, uint32_t out_stride, const uint8_t *p, const uint8_t *const *v,
                       uint32_t begin, uint32_t end, uint32_t hd, struct fetcher *ahead,
                       const uint32_t n_rows, const enum dtype t)
{
    uint32_t d = 0;

    for (; d + 16 * VALUE_VECTORS <= out_stride; d += 16 * VALUE_VECTORS)
        value_block(out + d, out_stride, p, v, d, begin, end, hd, ahead, n_rows, VALUE_VECTORS, t);
    for (; d < out_stride; d += 16)
        value_block(out + d, out_stride, p, v, d, begin, end, hd, ahead, n_rows, 1, t);
}

INLINE void values(float *out, uint32_t out_stride, const uint8_t *p, const uint8_t *const *v,
                   uint32_t begin, uint32_t end, uint32_t hd, struct fetcher *ahead,
                   uint32_t n_rows, const enum dtype t)
{
    while (n_rows) {
        uint32_t n = n_rows >= 4 ? 4 : n_rows;

        switch (n) {
        case 4:
            value_rows(out, out_stride, p, v, begin, end, hd, ahead, 4, t);
            break;
        case 3:
            value_rows(out, out_stride, p, v, begin, end, hd, ahead, 3, t);
            break;
        case 2:
            value_rows(out, out_stride, p, v, begin, end, hd, ahead, 2, t);
            break;
        default:
            value_rows(out, out_stride, p, v, begin, end, hd, ahead, 1, t);
            break;
        }
        out += n * out_stride;
        p += n * KERNELS_SPAN * sizeof(float);
        n_rows -= n;
    }
}

/* Rows see keys [lo, hi) of the span. */
INLINE void partials(const struct attention_job *job, const struct attention_scratch *c,
                     const uint8_t *q, uint32_t seq_idx, uint32_t kv_head, uint32_t span,
                     struct attention_row *rows, uint32_t n_rows, struct attention_softmax *sm,
                     const enum dtype t)
{
    const uint8_t *k[SPAN_BLOCKS], *v[SPAN_BLOCKS];
    uint32_t base = span * KERNELS_SPAN, begin = SPAN_BLOCKS, end = 0, hd = job->args->head_dim;
    struct fetcher ahead;

    for (uint32_t i = 0; i < n_rows; i++) {
        struct attention_row *row = &rows[i];

        row->lo = row->first > base ? row->first - base : 0;
        row->hi = row->end > base ? row->end - base : 0;
        row->hi = row->hi < KERNELS_SPAN ? row->hi : KERNELS_SPAN;
        sm[i] = (struct attention_softmax){0};
        if (row->lo >= row->hi) {
            row->lo = row->hi = 0;
            continue;
        }
        begin = row->lo / 16 < begin ? row->lo / 16 : begin;
        end = (row->hi + 15) / 16 > end ? (row->hi + 15) / 16 : end;
    }
    if (begin >= end)
        return;
    find_blocks(job, seq_idx, kv_head, span, begin, end, k, v);
    ahead = fetcher_of(&c->ahead, 2 * job->kv->half_bytes, end - begin, n_rows, hd);
    scores(c->score, q, k, begin, end, &ahead, hd, n_rows, t);
    for (uint32_t i = 0; i < n_rows; i++)
        softmax_row(job, &rows[i], c->score + i * KERNELS_SPAN, begin, end, &sm[i], t);
    values(c->part, job->o_stride, c->p, v, begin, end, hd, &ahead, n_rows, t);
}

void LEVEL(attention_span)(const struct attention_job *job, const struct attention_scratch *c,
                           const uint8_t *q, uint32_t seq_idx, uint32_t kv_head, uint32_t span,
                           struct attention_row *rows, uint32_t n_rows,
                           struct attention_softmax *sm)
{
    switch (job->kv->shape.dtype) {
    case DTYPE_F32:
        partials(job, c, q, seq_idx, kv_head, span, rows, n_rows, sm, DTYPE_F32);
        break;
    case DTYPE_U8:
        partials(job, c, q, seq_idx, kv_head, span, rows, n_rows, sm, DTYPE_U8);
        break;
    default:
        partials(job, c, q, seq_idx, kv_head, span, rows, n_rows, sm, DTYPE_BF16);
        break;
    }
}
