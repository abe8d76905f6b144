/* Logits of the rows a step asks for. Each worker keeps, for every row, the best logit of each of
 * 16 lanes over the panels it had; the caller merges them by (value, lower id), so that greedy rows
 * need no pass over their logits, which are not even written. A maximum hides NaN: a flag beside it
 * does not. */
#include "kernels/cpu/product.h"

#include <math.h>

struct head_job {
    struct product product;
    struct cpu_stream *s;
    const struct head_args *args;
    const struct tensor *logits;
};

struct head_worker {
    struct head_track *tracks;
    const struct tensor *logits;
    const uint8_t *want_logits;
    float softcap;
};

/* logit [n_rows <= 16] of the panel that begins at row row_idx. Panels come in any order: of equal
 * ones the lower row stays. */
#if VEC_512
INLINE void track_panel(struct head_track *track, const float *logit, uint32_t n_rows,
                        uint32_t row_idx)
{
    const __m512i exponent = _mm512_set1_epi32(0x7f800000);
    __mmask16 rows = (__mmask16)(n_rows >= 16 ? 0xffffu : (1u << n_rows) - 1);
    __m512 a = _mm512_maskz_loadu_ps(rows, logit), best = _mm512_loadu_ps(track->best);
    __m512i bits = _mm512_and_si512(_mm512_castps_si512(a), exponent);
    __m512i row = _mm512_set1_epi32((int)row_idx), best_row = _mm512_loadu_si512(track->row);
    __mmask16 equal = _mm512_mask_cmp_ps_mask(rows, a, best, _CMP_EQ_OQ);
    __mmask16 better = _mm512_mask_cmp_ps_mask(rows, a, best, _CMP_GT_OQ) |
                       _mm512_mask_cmplt_epu32_mask(equal, row, best_row);

    track->not_finite |= _mm512_cmpeq_epi32_mask(bits, exponent);
    _mm512_storeu_ps(track->best, _mm512_mask_mov_ps(best, better, a));
    _mm512_storeu_si512(track->row, _mm512_mask_mov_epi32(best_row, better, row));
}
#else
INLINE void track_panel(struct head_track *track, const float *logit, uint32_t n_rows,
                        uint32_t row_idx)
{
    uint32_t not_finite = 0;

    for (uint32_t r = 0; r < n_rows; r++) {
        bool better =
            logit[r] > track->best[r] || (logit[r] == track->best[r] && row_idx < track->row[r]);

        not_finite |= (numeric_bits(logit[r]) & 0x7f800000) == 0x7f800000;
        track->best[r] = better ? logit[r] : track->best[r];
        track->row[r] = better ? row_idx : track->row[r];
    }
    track->not_finite |= not_finite;
}
#endif

static void finish_row(const void *arg, float *sums, uint32_t token, uint32_t row_idx,
                       uint32_t n_rows)
{
    const struct head_worker *w = arg;

    for (uint32_t r = 0; r < n_rows; r += PANEL_ROWS) {
        uint32_t left = n_rows - r < PANEL_ROWS ? n_rows - r : PANEL_ROWS;

        if (w->softcap != 0.0f)
            v_store(sums + r, v_softcap(v_load(sums + r), w->softcap));
        track_panel(&w->tracks[token], sums + r, left, row_idx + r);
        if (!w->want_logits || w->want_logits[token])
            v_store_n(tensor_row(w->logits, token) + row_idx + r, v_load(sums + r), left);
    }
}

static void head_items(void *arg, uint32_t worker, uint32_t begin, uint32_t end)
{
    const struct head_job *job = arg;
    const struct head_worker w = {
        .tracks = job->s->tracks + (size_t)worker * job->s->shape.max_outputs,
        .logits = job->logits,
        .want_logits = job->args->want_logits,
        .softcap = job->args->softcap,
    };

    product_items(&job->product, worker, begin, end, finish_row, &w);
}

static struct head_row merge_row(const struct cpu_stream *s, uint32_t output)
{
    struct head_row row = {.max = -INFINITY};
    uint32_t n_threads = pool_n_threads(s->backend->pool);

    for (uint32_t i = 0; i < n_threads; i++) {
        const struct head_track *track = s->tracks + (size_t)i * s->shape.max_outputs + output;

        row.not_finite |= track->not_finite;
        for (uint32_t r = 0; r < PANEL_ROWS; r++) {
            uint32_t id = track->row[r] + r;

            if (track->best[r] > row.max || (track->best[r] == row.max && id < row.argmax)) {
                row.max = track->best[r];
                row.argmax = id;
            }
        }
    }
    return row;
}

int LEVEL(head)(struct stream *stream, struct tensor *logits, struct head_row *rows,
                const struct tensor *x, const struct weight *w, const struct head_args *args)
{
    struct cpu_stream *s = (struct cpu_stream *)stream;
    struct head_job job = {.product.w = w, .s = s, .args = args, .logits = logits};
    uint32_t n_outputs = args->step->n_outputs, n_threads = pool_n_threads(s->backend->pool);
    const struct act_args act_args = {.x = x,
                                      .rows = args->step->output_token_idx,
                                      .n_tokens = n_outputs,
                                      .n_cols = w->n_cols,
                                      .norm_w = args->norm_w,
                                      .norm_eps = args->norm_eps};

    for (uint32_t i = 0; i < n_threads; i++) {
        for (uint32_t o = 0; o < n_outputs; o++) {
            struct head_track *track = s->tracks + (size_t)i * s->shape.max_outputs + o;

            *track = (struct head_track){0};
            for (uint32_t r = 0; r < PANEL_ROWS; r++)
                track->best[r] = -INFINITY;
        }
    }
    product_run(&job.product, s, &act_args, head_items, &job);
    for (uint32_t o = 0; o < n_outputs; o++)
        rows[o] = merge_row(s, o);
    return 0;
}
