/* Attention over paged keys and values, by spans of 256 keys of absolute position.
 *
 * Every span gives a partial (maximum m, sum l, vector o) from a fresh state, and partials are
 * merged strictly left to right by one formula, whether one worker has all spans of a row or
 * several share them. So the bits do not depend on batch, chunking, page size or the number of
 * workers. What a span's partial is, attention_span.c knows.
 *
 * A row is (query token, query head of a group); the heads of a group share K and V. An item of
 * work is up to 32 rows of one sequence and one KV head, with all their spans; where a step has
 * fewer items than keep the workers busy, an item is one span of those and the merging is a second
 * region. */
#include "kernels/cpu/attention.h"

#include <string.h>

#include "kernels/cpu/quant.h"
#include "kernels/cpu/vec.h"

static struct attention_scratch scratch_of(const struct attention_job *job, uint32_t worker)
{
    uint8_t *at = job->s->scratch + worker * job->s->scratch_bytes;
    size_t hd = job->args->head_dim, o_bytes = job->o_stride * sizeof(float);
    struct attention_scratch c = {0};

    c.q = at;
    /* The last row's store may run past its end by less than a vector. */
    at += (ATTENTION_ROWS * hd * sizeof(float) + 63) / 64 * 64 + 64;
    c.score = (float *)(void *)at;
    c.p = at;
    at += ATTENTION_SUB_ROWS * KERNELS_SPAN * sizeof(float);
    c.part = (float *)(void *)at;
    at += ATTENTION_SUB_ROWS * o_bytes;
    c.total = (float *)(void *)at;
    return c;
}

static void rows_of(const struct attention_job *job, const struct attention_tile *tile,
                    uint32_t kv_head, struct attention_row *rows)
{
    const struct step *step = job->args->step;

    for (uint32_t i = 0; i < tile->n_rows; i++) {
        uint32_t row = tile->row_begin + i;
        uint32_t token = step->token_off[tile->seq_idx] + row / job->group;
        uint32_t end = (uint32_t)step->positions[token] + 1, window = job->args->window;
        uint32_t first = window && end > window ? end - window : 0;

        /* A row of padding has no keys at all. */
        end = end < step->n_keys[tile->seq_idx] ? end : step->n_keys[tile->seq_idx];
        rows[i] = (struct attention_row){.token = token,
                                         .head = kv_head * job->group + row % job->group,
                                         .first = first,
                                         .end = end};
    }
}

/* Where a layer's blocks of keys [first, end) of a sequence are, n_max at most: how many. */
static uint32_t blocks_of(const struct attention_job *job, uint32_t layer, uint32_t seq_idx,
                          uint32_t kv_head, uint32_t first, uint32_t end, const uint8_t **blocks,
                          uint32_t n_max)
{
    const struct step *step = job->args->step;
    const struct kv_shape *shape = &job->kv->shape;
    uint32_t n = 0;

    for (uint32_t at = first / 16 * 16; at < end && n < n_max; at += 16) {
        uint32_t page = step->table[step->table_off[seq_idx] + at / shape->page_size];

        if (page >= shape->n_pages)
            break;
        blocks[n++] = kv_block(job->kv, page, layer, kv_head, at % shape->page_size);
    }
    return n;
}

/* What the worker takes of a sequence's head in the next layer, if there is room to say so. */
static void note_ahead(const struct attention_job *job, uint32_t worker, uint32_t seq_idx,
                       uint32_t kv_head, uint32_t first, uint32_t end)
{
    struct cpu_ahead *ahead = &job->s->ahead[worker];
    uint32_t next = job->args->layer + 1;

    if (next < job->kv->shape.n_layers)
        ahead->n += blocks_of(job, next, seq_idx, kv_head, first, end, ahead->blocks + ahead->n,
                              AHEAD_BLOCKS - ahead->n);
}

/* What follows a span of an item: its next span, or the first one of the item after it. */
static void look_ahead(const struct attention_job *job, uint32_t item, uint32_t span,
                       const struct attention_row *last, struct attention_ahead *ahead)
{
    uint32_t n_heads = job->args->n_kv_heads, next = (span + 1) * KERNELS_SPAN, end;
    const struct attention_tile *tile = &job->s->tiles[item / n_heads];
    struct attention_row row = *last;

    ahead->n_blocks = 0;
    if (next >= last->end) {
        if (++item >= job->n_items)
            return;
        tile = &job->s->tiles[item / n_heads];
        rows_of(job, &(struct attention_tile){tile->seq_idx, tile->row_begin, 1}, item % n_heads,
                &row);
        next = row.first;
    }
    /* As far as the span of the first one goes. */
    end = (next / KERNELS_SPAN + 1) * KERNELS_SPAN;
    ahead->n_blocks = blocks_of(job, job->args->layer, tile->seq_idx, item % n_heads, next,
                                row.end < end ? row.end : end, ahead->blocks, KERNELS_SPAN / 16);
}

/* total, sum <- merge with a later partial that saw a key. */
static void merge(struct attention_softmax *total, float *total_o,
                  const struct attention_softmax *part, const float *part_o, uint32_t n)
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

/* total_o becomes the row's output. The sink, if any, is a last span with l = 1 and o = 0. */
static void finish_row(const struct attention_job *job, const struct attention_row *row,
                       struct attention_softmax *total, float *total_o)
{
    uint32_t hd = job->args->head_dim;
    v16 scale;

    if (!total->seen) {
        for (uint32_t d = 0; d < hd; d += 16)
            v_store(total_o + d, v_zero());
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
        v_store(total_o + d, v_mul(v_load(total_o + d), scale));
}

static void write_row(const struct attention_job *job, const struct attention_row *row,
                      const float *total_o)
{
    uint32_t hd = job->args->head_dim;
    float *o = tensor_row(job->o, row->token) + (size_t)row->head * hd;

    for (uint32_t d = 0; d < hd && !job->is_quantised; d += 16)
        v_store_n(o + d, v_load(total_o + d), hd - d);
    for (uint32_t d = 0; d < hd && job->is_quantised; d += GROUP_COLS)
        quant_next(job->s, job->args->n_heads * hd / GROUP_COLS, job->args->step->n_tokens,
                   row->token, (row->head * hd + d) / GROUP_COLS, total_o + d);
}

/* All spans of a tile for one KV head. */
static void attend(const struct attention_job *job, uint32_t item, uint32_t worker)
{
    const struct attention_tile *tile = &job->s->tiles[item / job->args->n_kv_heads];
    uint32_t kv_head = item % job->args->n_kv_heads;
    struct attention_scratch c = scratch_of(job, worker);
    struct attention_row rows[ATTENTION_ROWS];
    struct attention_softmax total[ATTENTION_ROWS] = {0}, part[ATTENTION_SUB_ROWS];
    size_t q_bytes = job->args->head_dim * COEF_BYTES(job->kv->shape.dtype);
    uint32_t first, end;

    rows_of(job, tile, kv_head, rows);
    LEVEL(attention_queries)(job, &c, rows, tile->n_rows);
    first = rows[0].first / KERNELS_SPAN;
    end = rows[tile->n_rows - 1].end;
    if (tile->n_rows <= FEW_ROWS)
        note_ahead(job, worker, tile->seq_idx, kv_head, rows[0].first, end);
    for (uint32_t span = first; span * KERNELS_SPAN < end; span++) {
        if (tile->n_rows <= FEW_ROWS)
            look_ahead(job, item, span, &rows[tile->n_rows - 1], &c.ahead);
        for (uint32_t r = 0; r < tile->n_rows; r += ATTENTION_SUB_ROWS) {
            uint32_t n =
                tile->n_rows - r < ATTENTION_SUB_ROWS ? tile->n_rows - r : ATTENTION_SUB_ROWS;

            LEVEL(attention_span)
            (job, &c, c.q + r * q_bytes, tile->seq_idx, kv_head, span, rows + r, n, part);
            for (uint32_t i = 0; i < n; i++)
                merge(&total[r + i], c.total + (size_t)(r + i) * job->o_stride, &part[i],
                      c.part + (size_t)i * job->o_stride, job->o_stride);
        }
    }
    /* In two loops: each is a chain of latencies a row, and rows run side by side. */
    for (uint32_t i = 0; i < tile->n_rows; i++)
        finish_row(job, &rows[i], &total[i], c.total + (size_t)i * job->o_stride);
    for (uint32_t i = 0; i < tile->n_rows; i++)
        write_row(job, &rows[i], c.total + (size_t)i * job->o_stride);
}

static void attend_items(void *arg, uint32_t worker, uint32_t begin, uint32_t end)
{
    const struct attention_job *job = arg;

    for (uint32_t item = begin; item < end; item++)
        attend(job, item, worker);
}

/* ---- spans shared by workers ----------------------------------------------------------------- */

/* Where row `row` of item (tile, head) keeps its partial of a span: a struct attention_softmax in
 * the first 16 floats, then the vector. */
static float *partial_of(const struct attention_job *job, uint32_t tile_head, uint32_t span,
                         uint32_t row)
{
    size_t idx = ((size_t)tile_head * job->split_spans + span) * job->partial_rows + row;

    return job->s->partials + idx * (16 + job->o_stride);
}

static void attend_span(const struct attention_job *job, uint32_t tile_head, uint32_t span,
                        uint32_t worker)
{
    const struct attention_tile *tile = &job->s->tiles[tile_head / job->args->n_kv_heads];
    uint32_t kv_head = tile_head % job->args->n_kv_heads;
    struct attention_scratch c = scratch_of(job, worker);
    struct attention_row rows[ATTENTION_ROWS];
    struct attention_softmax part[ATTENTION_SUB_ROWS];

    rows_of(job, tile, kv_head, rows);
    if (tile->n_rows <= FEW_ROWS)
        look_ahead(job, tile_head, span, &rows[tile->n_rows - 1], &c.ahead);
    LEVEL(attention_queries)(job, &c, rows, tile->n_rows);
    for (uint32_t r = 0; r < tile->n_rows; r += ATTENTION_SUB_ROWS) {
        uint32_t n = tile->n_rows - r < ATTENTION_SUB_ROWS ? tile->n_rows - r : ATTENTION_SUB_ROWS;

        LEVEL(attention_span)
        (job, &c, c.q + (size_t)r * job->args->head_dim * COEF_BYTES(job->kv->shape.dtype),
         tile->seq_idx, kv_head, span, rows + r, n, part);
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

    for (uint32_t item = begin; item < end; item++)
        attend_span(job, item / job->split_spans, item % job->split_spans, worker);
}

static void merge_items(void *arg, uint32_t worker, uint32_t begin, uint32_t end)
{
    const struct attention_job *job = arg;
    struct attention_scratch c = scratch_of(job, worker);

    for (uint32_t item = begin; item < end; item++) {
        const struct attention_tile *tile = &job->s->tiles[item / job->args->n_kv_heads];
        struct attention_row rows[ATTENTION_ROWS];

        rows_of(job, tile, item % job->args->n_kv_heads, rows);
        for (uint32_t i = 0; i < tile->n_rows; i++) {
            struct attention_softmax total = {0}, part;

            for (uint32_t span = 0; span < job->split_spans; span++) {
                const float *from = partial_of(job, item, span, i);

                memcpy(&part, from, sizeof part);
                merge(&total, c.total, &part, from + 16, job->o_stride);
            }
            finish_row(job, &rows[i], &total, c.total);
            write_row(job, &rows[i], c.total);
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
                                .o_stride = (args->head_dim + 15) / 16 * 16,
                                .is_quantised =
                                    args->head_dim % GROUP_COLS == 0 &&
                                    quant_is_wanted(args->next, args->n_heads * args->head_dim)};
    struct pool *pool = s->backend->pool;
    uint32_t rows_max, spans_max, n_items;
    size_t partials_bytes;

    for (uint32_t i = 0; i < pool_n_threads(pool); i++) {
        struct cpu_ahead *ahead = &s->ahead[i];

        ahead->n = ahead->next = 0;
        ahead->at = ahead->end = NULL;
        ahead->block_bytes = 2 * kv->half_bytes;
    }
    job.n_items = n_items = cut_tiles(&job, &rows_max, &spans_max) * args->n_kv_heads;
    partials_bytes = (size_t)n_items * spans_max * rows_max * (16 + job.o_stride) * sizeof(float);
    if (n_items < 2 * pool_n_threads(pool) && pool_n_threads(pool) > 1 && spans_max > 1 &&
        partials_bytes <= s->partials_bytes) {
        job.split_spans = spans_max;
        job.partial_rows = rows_max;
        pool_run(pool, span_items, &job, n_items * spans_max, 8);
        pool_run(pool, merge_items, &job, n_items, 8);
    } else {
        pool_run(pool, attend_items, &job, n_items, 4);
    }
    s->next = (struct cpu_next){job.is_quantised ? args->next : NULL, o->data, o->n_rows};
    return 0;
}
