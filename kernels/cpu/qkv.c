/* Queries, keys and values: norm, product, bias, norm of each head, RoPE; q to its tensor, k and v
 * to their slots. An item is the fewest panels that hold whole heads (4 for heads of 64), so that
 * all that follows the product happens on a row of results that is still in the first-level
 * cache. */
#include "kernels/cpu/level.h"

#include <assert.h>

#include "kernels/cpu/rmsnorm.h"
#include "kernels/cpu/vec.h"

struct qkv_job {
    struct cpu_stream *s;
    const struct qkv_args *args;
    const struct tensor *q;
    struct kv *kv;
    struct act act;
    struct cut cut;
    uint32_t unit_panels;
};

/* A head's row as bf16; `half` has room for whole vectors. */
static void round_head(uint16_t *half, const float *x, uint32_t hd)
{
    for (uint32_t d = 0; d < hd; d += 16)
        v_store_bf16(half + d, v_round_bf16(v_load_n(x + d, hd - d)));
}

/* A head's row as codes, which half has room for; its scale and zero go to their place in a block's
 * half. */
static const uint8_t *code_head(uint16_t *half, const float *x, uint32_t hd, uint8_t *to,
                                uint32_t token)
{
    uint8_t *codes = (uint8_t *)half;
    v16 max = v_set1(x[0]), max_neg = v_neg(max), not_finite = v_zero();
    struct numeric_u8 u;

    for (uint32_t d = 0; d < hd; d += 16) {
        v16 a = v_select_range(v_load_n(x + d, hd - d), v_set1(x[0]), 0, hd - d);

        max = v_max(a, max);
        max_neg = v_max(v_neg(a), max_neg);
        not_finite = v_fma(a, v_zero(), not_finite);
    }
    u = numeric_u8(-v_max_tree(max_neg), v_max_tree(max), v_tree(not_finite));
    memcpy(to + token * sizeof u.scale, &u.scale, sizeof u.scale);
    memcpy(to + (16 + token) * sizeof u.zero, &u.zero, sizeof u.zero);
    for (uint32_t d = 0; d < hd; d += 16) {
        v16 a = v_sub(v_load_n(x + d, hd - d), v_set1(u.zero));

        v_store_low_bytes(codes + d, v_add(v_mul(a, v_set1(u.inverse)), v_set1(0x1.8p+23f)));
    }
    return codes;
}

static void write_key(const struct qkv_job *job, const float *x, uint16_t *half, uint32_t head,
                      uint32_t slot)
{
    uint32_t page_size = job->kv->shape.page_size, hd = job->args->head_dim;
    uint32_t at = slot % page_size;
    uint8_t *k = kv_block(job->kv, slot / page_size, job->args->layer, head, at);

    if (job->kv->shape.dtype == DTYPE_F32) {
        float *cell = (float *)(void *)k + at % 16;

        for (uint32_t d = 0; d < hd; d++)
            cell[d * 16] = x[d];
    } else if (job->kv->shape.dtype == DTYPE_U8) {
        const uint8_t *codes = code_head(half, x, hd, k, at % 16);
        uint8_t *cell = k + KV_FACTS_BYTES + at % 16 * 2;

        for (uint32_t d = 0; d < hd; d += 2)
            memcpy(cell + (size_t)d * 16, codes + d, 2);
    } else {
        uint8_t *cell = k + at % 16 * 2 * sizeof *half;

        round_head(half, x, hd);
        for (uint32_t d = 0; d < hd; d += 2)
            memcpy(cell + (size_t)d * 32, half + d, 2 * sizeof *half);
    }
}

/* Keys that are not visible enter with p = 0, but 0 times what another sequence left may be NaN. So
 * a step that begins a block of 16 zeroes the values behind its last token there. Nobody else of the
 * step writes those. */
static bool ends_new_block(const struct step *step, uint32_t token)
{
    const uint32_t *slots = step->slot_idx;
    uint32_t slot = slots[token], at = slot % 16;

    return at < 15 && token >= at && slots[token - at] == slot - at &&
           (token + 1 == step->n_tokens || slots[token + 1] != slot + 1);
}

/* Values of the block from offset `at` on; v: of the block, as they lie. */
static void zero_values(const struct qkv_job *job, uint8_t *v, uint32_t at)
{
    uint32_t hd = job->args->head_dim;

    if (job->kv->shape.dtype == DTYPE_F32) {
        memset(v + at * hd * sizeof(float), 0, (16 - at) * hd * sizeof(float));
    } else if (job->kv->shape.dtype == DTYPE_U8) { /* whatever the codes are */
        memset(v + at * sizeof(float), 0, (16 - at) * sizeof(float));
        memset(v + (16 + at) * sizeof(float), 0, (16 - at) * sizeof(float));
    } else {
        uint16_t *pairs = (uint16_t *)(void *)v;

        for (uint32_t d = 0; at % 2 && d < hd; d++)
            pairs[at / 2 * hd * 2 + 2 * d + 1] = 0;
        at += at % 2;
        at += at % 2;
        memset(pairs + at * hd, 0, (16 - at) * hd * sizeof *pairs);
    }
}

static void write_value(const struct qkv_job *job, const float *x, uint16_t *half, uint32_t head,
                        uint32_t token)
{
    uint32_t page_size = job->kv->shape.page_size, hd = job->args->head_dim;
    uint32_t slot = job->args->step->slot_idx[token], at = slot % page_size;
    uint8_t *v =
        kv_block(job->kv, slot / page_size, job->args->layer, head, at) + job->kv->half_bytes;

    if (job->kv->shape.dtype == DTYPE_F32) {
        memcpy(v + at % 16 * hd * sizeof *x, x, hd * sizeof *x);
    } else if (job->kv->shape.dtype == DTYPE_U8) {
        const uint8_t *codes = code_head(half, x, hd, v, at % 16);
        uint8_t *cell = v + KV_FACTS_BYTES + at % 16 / 2 * hd * 2 + at % 2;

        for (uint32_t d = 0; d < hd; d++)
            cell[2 * d] = codes[d];
    } else {
        uint16_t *cell = (uint16_t *)(void *)v + at % 16 / 2 * hd * 2;

        round_head(half, x, hd);
        /* The other token of the pair may be another worker's, so nothing but this one is
         * stored. */
        v_store_halves(cell, half, hd, at % 2);
    }
    if (ends_new_block(job->args->step, token))
        zero_values(job, v, at % 16 + 1);
}

/* Head `head` of one token, counted over q, k and v. */
static void finish_head(const struct qkv_job *job, float *x, uint16_t *half, uint32_t head,
                        uint32_t token)
{
    const struct qkv_args *a = job->args;
    const struct step *step = a->step;
    uint32_t hd = a->head_dim, slot = step->slot_idx[token], n_heads = a->n_heads;
    bool is_query = head < n_heads, is_key = !is_query && head < n_heads + a->n_kv_heads;
    const float *norm_w = is_query ? a->q_norm_w : is_key ? a->k_norm_w : NULL;

    if (a->bias) {
        for (uint32_t d = 0; d < hd; d++)
            x[d] += a->bias[(size_t)head * hd + d];
    }
    if (norm_w)
        BASE(rmsnorm_row)(x, x, norm_w, hd, rmsnorm_scale(x, hd, a->norm_eps));
    if (a->rope && a->rope->kind != ROPE_NONE && (is_query || is_key))
        BASE(rope_row)(x, a->rope, step->positions[token]);
    if (is_query) {
        memcpy(tensor_row(job->q, token) + (size_t)head * hd, x, hd * sizeof *x);
    } else if (slot / job->kv->shape.page_size < job->kv->shape.n_pages) {
        /* KERNELS_NO_SLOT and any slot beyond the pool write nothing. */
        if (is_key)
            write_key(job, x, half, head - n_heads, slot);
        else
            write_value(job, x, half, head - n_heads - a->n_kv_heads, token);
    }
}

/* The lines that heads of keys and values will write, while the product is made. Tokens of one block
 * write the same lines of keys. */
static void fetch_cells(const struct qkv_job *job, uint32_t head, uint32_t n_heads, uint32_t token,
                        uint32_t n_tokens)
{
    const struct qkv_args *a = job->args;
    const struct kv_shape *shape = &job->kv->shape;
    uint32_t first_key = a->n_heads, first_value = a->n_heads + a->n_kv_heads,
             last_block = UINT32_MAX;

    for (uint32_t t = token; t < token + n_tokens; t++) {
        uint32_t slot = a->step->slot_idx[t], page = slot / shape->page_size;

        if (slot / 16 == last_block || page >= shape->n_pages)
            continue;
        last_block = slot / 16;
        for (uint32_t h = head > first_key ? head : first_key; h < head + n_heads; h++) {
            bool is_value = h >= first_value;
            const uint8_t *at =
                kv_block(job->kv, page, a->layer, h - (is_value ? first_value : first_key),
                         slot % shape->page_size);

            for (size_t i = 0; i < job->kv->half_bytes; i += 64)
                __builtin_prefetch(at + (is_value ? job->kv->half_bytes : 0) + i, 1, 2);
        }
    }
}

static void qkv_items(void *arg, uint32_t worker, uint32_t begin, uint32_t end)
{
    const struct qkv_job *job = arg;
    const struct weight *w = job->args->w;
    uint32_t hd = job->args->head_dim, unit_rows = job->unit_panels * PANEL_ROWS;
    float *sums = (float *)(void *)(job->s->scratch + worker * job->s->scratch_bytes);
    uint16_t *half = (uint16_t *)(void *)(sums + MATMUL_TOKENS * unit_rows);
    const struct act act = act_of(&job->act, job->s, worker);

    LEVEL(matmul_begin)(&act);
    for (uint32_t item = begin; item < end; item++) {
        uint32_t token = item / job->cut.n_units * job->cut.block_tokens;
        uint32_t token_end = token + job->cut.block_tokens;
        struct unit u = weight_unit(w, job->unit_panels, item % job->cut.n_units);
        uint32_t head = (u.part->row_idx + u.panel_idx * PANEL_ROWS) / hd;
        uint32_t n_heads = unit_n_rows(&u) / hd;

        if (token_end > act.n_tokens)
            token_end = act.n_tokens;
        for (uint32_t n; token < token_end; token += n) {
            n = matmul_n_tokens(&act, token, token_end);
            fetch_cells(job, head, n_heads, token, n);
            LEVEL(matmul)(sums, unit_rows, u.part, u.panel_idx, u.n_panels, &act, token, n);
            for (uint32_t t = 0; t < n; t++) {
                for (uint32_t h = 0; h < n_heads; h++)
                    finish_head(job, sums + t * unit_rows + h * hd, half, head + h, token + t);
            }
        }
    }
    LEVEL(matmul_end)(&act);
}

int LEVEL(qkv)(struct stream *stream, struct tensor *q, struct kv *kv, const struct tensor *x,
               const struct qkv_args *args)
{
    struct cpu_stream *s = (struct cpu_stream *)stream;
    struct qkv_job job = {.s = s, .args = args, .q = q, .kv = kv};
    struct act_args act_args = {.x = x,
                                .n_tokens = x->n_rows,
                                .n_cols = args->w->n_cols,
                                .norm_w = args->norm_w,
                                .norm_eps = args->norm_eps};

    /* Heads may not straddle parts, and a stream has scratch for heads up to its head_dim. */
    assert(args->w->n_rows == (args->n_heads + 2 * args->n_kv_heads) * args->head_dim);
    assert(args->head_dim <= s->shape.head_dim);
    for (uint32_t i = 0; i < args->w->n_parts; i++)
        assert(args->w->parts[i].row_idx % args->head_dim == 0);

    job.unit_panels = heads_panels(args->head_dim);
    BASE(quant)(s, &job.act, args->w, &act_args);
    job.cut = cut_product(weight_n_units(args->w, job.unit_panels), &job.act,
                          pool_n_threads(s->backend->pool));
    pool_run(s->backend->pool, qkv_items, &job, job.cut.n_units * job.cut.n_blocks,
             job.cut.run_max);
    return 0;
}
