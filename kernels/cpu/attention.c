/* Attention over paged keys and values, by spans of 256 keys of absolute position.
 *
 * Every span gives a partial (maximum m, sum l, vector o) from a fresh state, and partials are
 * merged strictly left to right by one formula, whether one worker has all spans of a row or
 * several share them. So the bits do not depend on batch, chunking, page size or the number of
 * workers. Inside a span there is no online softmax: all scores of up to 8 rows are made, then
 * their maximum, then p, then p times V.
 *
 * A row is (query token, query head of a group); the heads of a group share K and V. An item of
 * work is up to 32 rows of one sequence and one KV head, with all their spans; where a step has
 * fewer items than keep the workers busy, an item is one span of those and the merging is a second
 * region.
 *
 * K and V lie so that a vector of 16 keys (K) or 16 dimensions (V) times a broadcast pair needs no
 * sum across lanes. Pairs are taken odd first, as vdpbf16ps does: level avx512bf16 uses it. */
#include "kernels/cpu/level.h"

#include <math.h>

#include "kernels/cpu/vec.h"

#define UNROLL _Pragma("GCC unroll 8")

enum {
    SPAN_BLOCKS = KERNELS_SPAN / 16,
    SUB_ROWS = 8, /* rows whose scores are made together: 8 KiB */
#if VEC_512
    SCORE_ROWS = 8,
    VALUE_VECTORS = 4
#else
    SCORE_ROWS = 4,
    VALUE_VECTORS = 1
#endif
};

struct attention_job {
    struct cpu_stream *s;
    const struct attention_args *args;
    const struct tensor *o, *q;
    const struct kv *kv;
    uint32_t group;        /* query heads a KV head */
    uint32_t o_stride;     /* floats of a partial's vector: head_dim rounded up to 16 */
    uint32_t split_spans;  /* 0: items have all their spans; else spans from split_first each */
    uint32_t partial_rows; /* split: rows reserved a (tile, head)                            */
};

/* A worker's scratch, carved from the stream's. */
struct scratch {
    uint8_t *q;   /* [32][head_dim] coefficients     */
    float *score; /* [8][256]                        */
    uint8_t *p;   /* [8][256] coefficients, in place */
    float *part;  /* [8][o_stride]                   */
    float *total; /* [32][o_stride]                  */
};

/* What is known of a row besides its vector. */
struct softmax {
    float m, l;
    bool seen; /* some key was visible */
};

/* A row of a tile, and its visible keys in the span at hand: [lo, hi). */
struct row {
    uint32_t token, head;
    uint32_t first, end; /* visible positions [first, end) */
    uint32_t lo, hi;
};

static struct scratch scratch_of(const struct attention_job *job, uint32_t worker)
{
    uint8_t *at = job->s->scratch + worker * job->s->scratch_bytes;
    size_t hd = job->args->head_dim, o_bytes = job->o_stride * sizeof(float);
    struct scratch c;

    c.q = at;
    /* The last row's store may run past its end by less than a vector. */
    at += (ATTENTION_ROWS * hd * sizeof(float) + 63) / 64 * 64 + 64;
    c.score = (float *)(void *)at;
    c.p = at;
    at += SUB_ROWS * KERNELS_SPAN * sizeof(float);
    c.part = (float *)(void *)at;
    at += SUB_ROWS * o_bytes;
    c.total = (float *)(void *)at;
    return c;
}

static void rows_of(const struct attention_job *job, const struct attention_tile *tile,
                    uint32_t kv_head, struct row *rows)
{
    const struct step *step = job->args->step;

    for (uint32_t i = 0; i < tile->n_rows; i++) {
        uint32_t row = tile->row_begin + i;
        uint32_t token = step->token_off[tile->seq_idx] + row / job->group;
        uint32_t end = (uint32_t)step->positions[token] + 1, window = job->args->window;
        uint32_t first = window && end > window ? end - window : 0;

        /* A row of padding has no keys at all. */
        end = end < step->n_keys[tile->seq_idx] ? end : step->n_keys[tile->seq_idx];
        rows[i] = (struct row){.token = token,
                               .head = kv_head * job->group + row % job->group,
                               .first = first,
                               .end = end};
    }
}

/* q, scaled in f32, then rounded as keys are. */
static void load_queries(const struct attention_job *job, const struct row *rows, uint32_t n_rows,
                         uint8_t *coef, const int plain)
{
    uint32_t hd = job->args->head_dim;
    v16 scale = v_set1(job->args->scale);

    for (uint32_t i = 0; i < n_rows; i++) {
        const float *q = tensor_row(job->q, rows[i].token) + (size_t)rows[i].head * hd;
        uint8_t *c = coef + (size_t)i * hd * COEF_BYTES(plain);

        for (uint32_t d = 0; d < hd; d += 16) {
            v16 a = v_mul(v_load_n(q + d, hd - d), scale);

            if (!plain)
                a = v_round_bf16(a);
            /* Past the row's end this runs into the next one, which is written after. */
            coef_store(c + d * COEF_BYTES(plain), a, plain);
        }
    }
}

/* Where the span's blocks of 16 keys are, for blocks [begin, end). */
static void find_blocks(const struct attention_job *job, uint32_t seq_idx, uint32_t kv_head,
                        uint32_t span, uint32_t begin, uint32_t end, const uint8_t **k,
                        const uint8_t **v)
{
    const struct step *step = job->args->step;
    const struct kv_shape *shape = &job->kv->shape;
    size_t block_bytes = (size_t)shape->head_dim * 16 * (shape->dtype == DTYPE_F32 ? 4 : 2);

    for (uint32_t b = begin; b < end; b++) {
        uint32_t position = span * KERNELS_SPAN + b * 16;
        uint32_t page = step->table[step->table_off[seq_idx] + position / shape->page_size];
        size_t offset = position % shape->page_size / 16 * block_bytes;

        /* The host checks page numbers; an unchecked one would read anywhere. */
        page = page < shape->n_pages ? page : 0;
        k[b] = kv_k(job->kv, page, job->args->layer, kv_head) + offset;
        v[b] = kv_v(job->kv, page, job->args->layer, kv_head) + offset;
    }
}

/* Scores of n_rows rows and n_blocks blocks of keys, both constants. */
INLINE void score_blocks(float *score, const uint8_t *q, const uint8_t *const *k, uint32_t hd,
                         const uint32_t n_rows, const uint32_t n_blocks, const int plain)
{
    const size_t pair_bytes = plain ? 128 : 64, q_bytes = hd * COEF_BYTES(plain);
    v16 acc[SCORE_ROWS][4];

    UNROLL for (uint32_t r = 0; r < n_rows; r++)
    {
        UNROLL for (uint32_t b = 0; b < n_blocks; b++) acc[r][b] = v_zero();
    }
    for (uint32_t d = 0; d < hd / 2; d++) {
        UNROLL for (uint32_t b = 0; b < n_blocks; b++)
        {
            pair key = pair_load(k[b] + d * pair_bytes, 64, plain);

            UNROLL for (uint32_t r = 0; r < n_rows; r++) acc[r][b] =
                pair_fma(acc[r][b], key, q + r * q_bytes + 2 * d * COEF_BYTES(plain), plain);
        }
    }
    UNROLL for (uint32_t r = 0; r < n_rows; r++)
    {
        UNROLL for (uint32_t b = 0; b < n_blocks; b++)
            v_store(score + r * KERNELS_SPAN + 16 * b, acc[r][b]);
    }
}

INLINE void score_rows(float *score, const uint8_t *q, const uint8_t *const *k, uint32_t begin,
                       uint32_t end, uint32_t hd, const uint32_t n_rows, const uint32_t n_blocks,
                       const int plain)
{
    uint32_t b = begin;

    for (; b + n_blocks <= end; b += n_blocks)
        score_blocks(score + 16 * b, q, k + b, hd, n_rows, n_blocks, plain);
    for (; b < end; b++)
        score_blocks(score + 16 * b, q, k + b, hd, n_rows, 1, plain);
}

INLINE void scores(float *score, const uint8_t *q, const uint8_t *const *k, uint32_t begin,
                   uint32_t end, uint32_t hd, uint32_t n_rows, const int plain)
{
    const size_t q_bytes = hd * COEF_BYTES(plain);

    while (n_rows) {
        uint32_t n = n_rows >= 8 && SCORE_ROWS == 8 ? 8 : n_rows >= 4 ? 4 : n_rows;

#if VEC_512
        switch (n) {
        case 8:
            score_rows(score, q, k, begin, end, hd, SCORE_ROWS, 2, plain);
            break;
        case 4:
            score_rows(score, q, k, begin, end, hd, 4, 4, plain);
            break;
        case 3:
            score_rows(score, q, k, begin, end, hd, 3, 4, plain);
            break;
        case 2:
            score_rows(score, q, k, begin, end, hd, 2, 4, plain);
            break;
        default:
            score_rows(score, q, k, begin, end, hd, 1, 4, plain);
            break;
        }
#else
        switch (n) {
        case 4:
            score_rows(score, q, k, begin, end, hd, 4, 1, plain);
            break;
        case 3:
            score_rows(score, q, k, begin, end, hd, 3, 1, plain);
            break;
        case 2:
            score_rows(score, q, k, begin, end, hd, 2, 2, plain);
            break;
        default:
            score_rows(score, q, k, begin, end, hd, 1, 4, plain);
            break;
        }
#endif
        score += n * KERNELS_SPAN;
        q += n * q_bytes;
        n_rows -= n;
    }
}

/* Scores of a row become p, in place, over blocks [begin, end): +0 where keys are not visible. */
static void softmax_row(const struct attention_job *job, const struct row *row, float *score,
                        uint32_t begin, uint32_t end, struct softmax *sm, const int plain)
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
            if (!plain)
                e = v_round_bf16(e);
            if (16 * b < row->lo || 16 * b + 16 > row->hi)
                e = v_select_range(e, v_zero(), row->lo > 16 * b ? row->lo - 16 * b : 0,
                                   row->hi - 16 * b);
            sum = v_add(sum, e);
        }
        /* Coefficients are no wider than scores, so a store never passes the next load. */
        coef_store(p + 16 * b * COEF_BYTES(plain), e, plain);
    }
    sm->l = v_tree(sum);
}

/* out[r] = sum of p * V over n_vectors * 16 dimensions; n_rows and n_vectors are constants. */
INLINE void value_block(float *out, uint32_t out_stride, const uint8_t *p, const uint8_t *const *v,
                        size_t v_off, uint32_t begin, uint32_t end, uint32_t hd,
                        const uint32_t n_rows, const uint32_t n_vectors, const int plain)
{
    const size_t pair_bytes = (size_t)hd * (plain ? 8 : 4), p_bytes = KERNELS_SPAN * sizeof(float);
    v16 acc[4][4];

    UNROLL for (uint32_t r = 0; r < n_rows; r++)
    {
        UNROLL for (uint32_t i = 0; i < n_vectors; i++) acc[r][i] = v_zero();
    }
    for (uint32_t b = begin; b < end; b++) {
        const uint8_t *value = v[b] + v_off, *coef = p + 16 * b * COEF_BYTES(plain);

        for (uint32_t j = 0; j < 8; j++) {
            UNROLL for (uint32_t i = 0; i < n_vectors; i++)
            {
                pair a = pair_load(value + j * pair_bytes + 64 * i, (size_t)hd * 4, plain);

                UNROLL for (uint32_t r = 0; r < n_rows; r++) acc[r][i] =
                    pair_fma(acc[r][i], a, coef + r * p_bytes + 2 * j * COEF_BYTES(plain), plain);
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
                       uint32_t begin, uint32_t end, uint32_t hd, const uint32_t n_rows,
                       const int plain)
{
    uint32_t d = 0;

    for (; d + 16 * VALUE_VECTORS <= out_stride; d += 16 * VALUE_VECTORS)
        value_block(out + d, out_stride, p, v, (size_t)d * 4, begin, end, hd, n_rows, VALUE_VECTORS,
                    plain);
    for (; d < out_stride; d += 16)
        value_block(out + d, out_stride, p, v, (size_t)d * 4, begin, end, hd, n_rows, 1, plain);
}

INLINE void values(float *out, uint32_t out_stride, const uint8_t *p, const uint8_t *const *v,
                   uint32_t begin, uint32_t end, uint32_t hd, uint32_t n_rows, const int plain)
{
    while (n_rows) {
        uint32_t n = n_rows >= 4 ? 4 : n_rows;

        switch (n) {
        case 4:
            value_rows(out, out_stride, p, v, begin, end, hd, 4, plain);
            break;
        case 3:
            value_rows(out, out_stride, p, v, begin, end, hd, 3, plain);
            break;
        case 2:
            value_rows(out, out_stride, p, v, begin, end, hd, 2, plain);
            break;
        default:
            value_rows(out, out_stride, p, v, begin, end, hd, 1, plain);
            break;
        }
        out += n * out_stride;
        p += n * KERNELS_SPAN * sizeof(float);
        n_rows -= n;
    }
}

/* total, sum <- merge with a later partial that saw a key. */
static void merge(struct softmax *total, float *total_o, const struct softmax *part,
                  const float *part_o, uint32_t n)
{
    v16 a, b;
    float m;

    if (!part->seen)
        return;
    if (!total->seen) {
        *total = *part;
        for (uint32_t d = 0; d < n; d += 16)
            v_store(total_o + d, v_load(part_o + d));
        return;
    }
    m = total->m > part->m ? total->m : part->m;
    a = v_exp(v_set1(total->m - m));
    b = v_exp(v_set1(part->m - m));
    total->l = v_first(v_fma(v_set1(total->l), a, v_mul(v_set1(part->l), b)));
    total->m = m;
    for (uint32_t d = 0; d < n; d += 16)
        v_store(total_o + d, v_fma(v_load(total_o + d), a, v_mul(v_load(part_o + d), b)));
}

/* The sink, if any, is a last span with l = 1 and o = 0. */
static void finish_row(const struct attention_job *job, const struct row *row,
                       struct softmax *total, float *total_o)
{
    uint32_t hd = job->args->head_dim;
    float *o = tensor_row(job->o, row->token) + (size_t)row->head * hd;
    v16 scale;

    if (!total->seen) {
        for (uint32_t d = 0; d < hd; d++)
            o[d] = 0.0f;
        return;
    }
    if (job->args->sinks) {
        float sink = job->args->sinks[row->head], m = total->m > sink ? total->m : sink;
        v16 a = v_exp(v_set1(total->m - m)), b = v_exp(v_set1(sink - m));

        total->l = v_first(v_fma(v_set1(total->l), a, b));
        for (uint32_t d = 0; d < hd; d += 16)
            v_store(total_o + d, v_fma(v_load(total_o + d), a, v_mul(v_zero(), b)));
    }
    scale = v_set1(1.0f / total->l);
    for (uint32_t d = 0; d < hd; d += 16)
        v_store_n(o + d, v_mul(v_load(total_o + d), scale), hd - d);
}

/* Partials of rows [0, n_rows), at most SUB_ROWS, over one span. Rows see keys [lo, hi) of it. */
INLINE void span_partials(const struct attention_job *job, const struct scratch *c,
                          const uint8_t *q, uint32_t seq_idx, uint32_t kv_head, uint32_t span,
                          struct row *rows, uint32_t n_rows, struct softmax *sm, const int plain)
{
    const uint8_t *k[SPAN_BLOCKS], *v[SPAN_BLOCKS];
    uint32_t base = span * KERNELS_SPAN, begin = SPAN_BLOCKS, end = 0, hd = job->args->head_dim;

    for (uint32_t i = 0; i < n_rows; i++) {
        struct row *row = &rows[i];

        row->lo = row->first > base ? row->first - base : 0;
        row->hi = row->end > base ? row->end - base : 0;
        row->hi = row->hi < KERNELS_SPAN ? row->hi : KERNELS_SPAN;
        sm[i] = (struct softmax){0};
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
    scores(c->score, q, k, begin, end, hd, n_rows, plain);
    for (uint32_t i = 0; i < n_rows; i++)
        softmax_row(job, &rows[i], c->score + i * KERNELS_SPAN, begin, end, &sm[i], plain);
    values(c->part, job->o_stride, c->p, v, begin, end, hd, n_rows, plain);
}

/* All spans of a tile for one KV head. */
INLINE void attend(const struct attention_job *job, const struct attention_tile *tile,
                   uint32_t kv_head, uint32_t worker, const int plain)
{
    struct scratch c = scratch_of(job, worker);
    struct row rows[ATTENTION_ROWS];
    struct softmax total[ATTENTION_ROWS] = {0}, part[SUB_ROWS];
    size_t q_bytes = job->args->head_dim * COEF_BYTES(plain);
    uint32_t first, end;

    rows_of(job, tile, kv_head, rows);
    load_queries(job, rows, tile->n_rows, c.q, plain);
    first = rows[0].first / KERNELS_SPAN;
    end = rows[tile->n_rows - 1].end;
    for (uint32_t span = first; span * KERNELS_SPAN < end; span++) {
        for (uint32_t r = 0; r < tile->n_rows; r += SUB_ROWS) {
            uint32_t n = tile->n_rows - r < SUB_ROWS ? tile->n_rows - r : SUB_ROWS;

            span_partials(job, &c, c.q + r * q_bytes, tile->seq_idx, kv_head, span, rows + r, n,
                          part, plain);
            for (uint32_t i = 0; i < n; i++)
                merge(&total[r + i], c.total + (size_t)(r + i) * job->o_stride, &part[i],
                      c.part + (size_t)i * job->o_stride, job->o_stride);
        }
    }
    for (uint32_t i = 0; i < tile->n_rows; i++)
        finish_row(job, &rows[i], &total[i], c.total + (size_t)i * job->o_stride);
}

static void attend_items(void *arg, uint32_t worker, uint32_t begin, uint32_t end)
{
    const struct attention_job *job = arg;
    uint32_t n_kv_heads = job->args->n_kv_heads;

    for (uint32_t item = begin; item < end; item++) {
        const struct attention_tile *tile = &job->s->tiles[item / n_kv_heads];

        if (job->kv->shape.dtype == DTYPE_F32)
            attend(job, tile, item % n_kv_heads, worker, 1);
        else
            attend(job, tile, item % n_kv_heads, worker, 0);
    }
}

/* ---- spans shared by workers ----------------------------------------------------------------- */

/* Where row `row` of item (tile, head) keeps its partial of a span: a struct softmax in the first
 * 16 floats, then the vector. */
static float *partial_of(const struct attention_job *job, uint32_t tile_head, uint32_t span,
                         uint32_t row)
{
    size_t idx = ((size_t)tile_head * job->split_spans + span) * job->partial_rows + row;

    return job->s->partials + idx * (16 + job->o_stride);
}

INLINE void attend_span(const struct attention_job *job, uint32_t tile_head, uint32_t span,
                        uint32_t worker, const int plain)
{
    const struct attention_tile *tile = &job->s->tiles[tile_head / job->args->n_kv_heads];
    uint32_t kv_head = tile_head % job->args->n_kv_heads;
    struct scratch c = scratch_of(job, worker);
    struct row rows[ATTENTION_ROWS];
    struct softmax part[SUB_ROWS];

    rows_of(job, tile, kv_head, rows);
    load_queries(job, rows, tile->n_rows, c.q, plain);
    for (uint32_t r = 0; r < tile->n_rows; r += SUB_ROWS) {
        uint32_t n = tile->n_rows - r < SUB_ROWS ? tile->n_rows - r : SUB_ROWS;

        span_partials(job, &c, c.q + (size_t)r * job->args->head_dim * COEF_BYTES(plain),
                      tile->seq_idx, kv_head, span, rows + r, n, part, plain);
        for (uint32_t i = 0; i < n; i++) {
            float *to = partial_of(job, tile_head, span, r + i);

            memcpy(to, &part[i], sizeof part[i]);
            for (uint32_t d = 0; d < job->o_stride && part[i].seen; d += 16)
                v_store(to + 16 + d, v_load(c.part + (size_t)i * job->o_stride + d));
        }
    }
}

static void span_items(void *arg, uint32_t worker, uint32_t begin, uint32_t end)
{
    const struct attention_job *job = arg;

    for (uint32_t item = begin; item < end; item++) {
        if (job->kv->shape.dtype == DTYPE_F32)
            attend_span(job, item / job->split_spans, item % job->split_spans, worker, 1);
        else
            attend_span(job, item / job->split_spans, item % job->split_spans, worker, 0);
    }
}

static void merge_items(void *arg, uint32_t worker, uint32_t begin, uint32_t end)
{
    const struct attention_job *job = arg;
    struct scratch c = scratch_of(job, worker);

    for (uint32_t item = begin; item < end; item++) {
        const struct attention_tile *tile = &job->s->tiles[item / job->args->n_kv_heads];
        struct row rows[ATTENTION_ROWS];

        rows_of(job, tile, item % job->args->n_kv_heads, rows);
        for (uint32_t i = 0; i < tile->n_rows; i++) {
            struct softmax total = {0}, part;

            for (uint32_t span = 0; span < job->split_spans; span++) {
                const float *from = partial_of(job, item, span, i);

                memcpy(&part, from, sizeof part);
                merge(&total, c.total, &part, from + 16, job->o_stride);
            }
            finish_row(job, &rows[i], &total, c.total);
        }
    }
}

/* Cuts the step in tiles of rows; returns how many. */
static uint32_t cut_tiles(const struct attention_job *job, uint32_t *rows_maxp,
                          uint32_t *spans_maxp)
{
    const struct step *step = job->args->step;
    uint32_t n = 0;

    *rows_maxp = *spans_maxp = 0;
    for (uint32_t seq = 0; seq < step->n_seqs; seq++) {
        uint32_t first = step->token_off[seq], n_tokens = step->token_off[seq + 1] - first;
        uint32_t n_rows = n_tokens * job->group, spans;

        if (!n_tokens)
            continue;
        spans = (uint32_t)step->positions[first + n_tokens - 1] / KERNELS_SPAN + 1;
        *spans_maxp = spans > *spans_maxp ? spans : *spans_maxp;
        for (uint32_t row = 0; row < n_rows; row += ATTENTION_ROWS) {
            uint32_t left = n_rows - row < ATTENTION_ROWS ? n_rows - row : ATTENTION_ROWS;

            job->s->tiles[n++] =
                (struct attention_tile){.seq_idx = seq, .row_begin = row, .n_rows = left};
            *rows_maxp = left > *rows_maxp ? left : *rows_maxp;
        }
    }
    return n;
}

int LEVEL(attention)(struct stream *stream, struct tensor *o, const struct tensor *q,
                     const struct kv *kv, const struct attention_args *args)
{
    struct cpu_stream *s = (struct cpu_stream *)stream;
    struct attention_job job = {.s = s,
                                .args = args,
                                .o = o,
                                .q = q,
                                .kv = kv,
                                .group = args->n_heads / args->n_kv_heads,
                                .o_stride = (args->head_dim + 15) / 16 * 16};
    struct pool *pool = s->backend->pool;
    uint32_t rows_max, spans_max,
        n_items = cut_tiles(&job, &rows_max, &spans_max) * args->n_kv_heads;
    size_t partials_bytes =
        (size_t)n_items * spans_max * rows_max * (16 + job.o_stride) * sizeof(float);

    if (n_items < 2 * pool_n_threads(pool) && pool_n_threads(pool) > 1 && spans_max > 1 &&
        partials_bytes <= s->partials_bytes) {
        job.split_spans = spans_max;
        job.partial_rows = rows_max;
        pool_run(pool, span_items, &job, n_items * spans_max, 8);
        pool_run(pool, merge_items, &job, n_items, 8);
    } else {
        pool_run(pool, attend_items, &job, n_items, 4);
    }
    return 0;
}
