/* Logits of the rows a step asks for. Each worker keeps, for every row, the best logit of each of
 * 16 lanes over the panels it had; the caller merges them by (value, lower id), so that greedy rows
 * need no pass over their logits, which are not even written. A maximum hides NaN: a flag beside it
 * does not. */
#include "kernels/cpu/level.h"

#include <math.h>
#include <stdalign.h>

#include "kernels/cpu/vec.h"

enum { UNIT_PANELS = 2, UNIT_ROWS = UNIT_PANELS * PANEL_ROWS };

struct head_job {
    struct cpu_stream *s;
    const struct weight *w;
    const struct head_args *args;
    const struct tensor *logits;
    struct act act;
    struct cut cut;
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

static void head_items(void *arg, uint32_t worker, uint32_t begin, uint32_t end)
{
    const struct head_job *job = arg;
    struct head_track *tracks = job->s->tracks + (size_t)worker * job->s->shape.max_outputs;
    const uint8_t *want = job->args->want_logits;
    alignas(64) float sums[MATMUL_TOKENS][UNIT_ROWS];

    LEVEL(matmul_begin)(job->act.n_tokens);
    for (uint32_t item = begin; item < end; item++) {
        uint32_t token = item / job->cut.n_units * job->cut.block_tokens;
        uint32_t token_end = token + job->cut.block_tokens;
        struct unit u = weight_unit(job->w, UNIT_PANELS, item % job->cut.n_units);
        uint32_t row_idx = u.part->row_idx + u.panel_idx * PANEL_ROWS, n_rows = unit_n_rows(&u);

        if (token_end > job->act.n_tokens)
            token_end = job->act.n_tokens;
        for (; token < token_end; token += MATMUL_TOKENS) {
            uint32_t n = matmul_n_tokens(token, token_end);

            LEVEL(matmul)(sums[0], UNIT_ROWS, u.part, u.panel_idx, u.n_panels, &job->act, token, n);
            for (uint32_t t = 0; t < n; t++) {
                for (uint32_t r = 0; r < n_rows; r += PANEL_ROWS) {
                    uint32_t left = n_rows - r < PANEL_ROWS ? n_rows - r : PANEL_ROWS;

                    if (job->args->softcap != 0.0f)
                        v_store(sums[t] + r, v_softcap(v_load(sums[t] + r), job->args->softcap));
                    track_panel(&tracks[token + t], sums[t] + r, left, row_idx + r);
                    if (!want || want[token + t])
                        v_store_n(tensor_row(job->logits, token + t) + row_idx + r,
                                  v_load(sums[t] + r), left);
                }
            }
        }
    }
    LEVEL(matmul_end)(job->act.n_tokens);
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
    struct head_job job = {.s = s, .w = w, .args = args, .logits = logits};
    uint32_t n_outputs = args->step->n_outputs, n_threads = pool_n_threads(s->backend->pool);
    struct act_args act_args = {.x = x,
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
    BASE(quant)(s, &job.act, w, &act_args);
    job.cut = cut_product(weight_n_units(w, UNIT_PANELS), n_outputs, n_threads);
    pool_run(s->backend->pool, head_items, &job, job.cut.n_units * job.cut.n_blocks,
             job.cut.run_max);
    for (uint32_t o = 0; o < n_outputs; o++)
        rows[o] = merge_row(s, o);
    return 0;
}
