/* Activations of a product: an RMS norm if wanted, then int8 a token and 32 columns at a time, once
 * for all parts of the weight. max is an integer maximum over the bits of |x|, which sees NaN and
 * infinities; below 2^-100 (127/max would overflow soon) the group is zeros; not finite, q is 0 and
 * dy NaN, so that the fault reaches this token's outputs and no other's. */
#include "kernels/cpu/level.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/vec.h"

enum { PARALLEL_TOKENS = 16 }; /* below this a second region costs more than it saves */

/* What a token's share of a group says besides q. */
struct group_facts {
    float dy, sy;
    int32_t nsq;
};

/* 127/max or 0, and dy, for a largest |x| with these bits. */
INLINE float group_scale(uint32_t max_bits, float *dyp)
{
    float max = numeric_from_bits(max_bits);

    if (max_bits >= 0x7f800000) {
        *dyp = numeric_from_bits(0x7fc00000);
        return 0.0f;
    }
    if (max < 0x1p-100f) {
        *dyp = 0.0f;
        return 0.0f;
    }
    *dyp = max / 127.0f;
    return 127.0f / max;
}

#if VEC_512

INLINE struct group_facts quant_group(int8_t *q, const float *x)
{
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    __m512 a = _mm512_loadu_ps(x), b = _mm512_loadu_ps(x + 16), scale;
    __m512i bits = _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(a), magnitude),
                                    _mm512_and_si512(_mm512_castps_si512(b), magnitude));
    struct group_facts f;
    __m512i qa, qb;
    __m256i both;
    __m128i sum;
    int32_t total;

    scale = _mm512_set1_ps(group_scale((uint32_t)_mm512_reduce_max_epi32(bits), &f.dy));
    /* A zero scale means zeros even where x is infinite or NaN. */
    qa = _mm512_maskz_cvtps_epi32(_mm512_cmp_ps_mask(scale, _mm512_setzero_ps(), _CMP_NEQ_OQ),
                                  _mm512_mul_ps(a, scale));
    qb = _mm512_maskz_cvtps_epi32(_mm512_cmp_ps_mask(scale, _mm512_setzero_ps(), _CMP_NEQ_OQ),
                                  _mm512_mul_ps(b, scale));
    both = _mm256_set_m128i(_mm512_cvtepi32_epi8(qb), _mm512_cvtepi32_epi8(qa));
    _mm256_storeu_si256((__m256i *)q, both);
    both = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), both);
    sum = _mm_add_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1));
    total = _mm_cvtsi128_si32(sum);
    f.sy = f.dy * (float)total;
    f.nsq = -total;
    return f;
}

#else

INLINE struct group_facts quant_group(int8_t *q, const float *x)
{
    struct group_facts f;
    uint32_t max_bits = 0;
    int32_t total = 0;
    float scale;

    for (int k = 0; k < GROUP_COLS; k++) {
        uint32_t bits = numeric_bits(x[k]) & 0x7fffffff;

        max_bits = bits > max_bits ? bits : max_bits;
    }
    scale = group_scale(max_bits, &f.dy);
    if (scale == 0.0f) {
        memset(q, 0, GROUP_COLS);
    } else {
        for (int k = 0; k < GROUP_COLS; k++) {
            q[k] = (int8_t)(int32_t)rintf(x[k] * scale);
            total += q[k];
        }
    }
    f.sy = f.dy * (float)total;
    f.nsq = -total;
    return f;
}

#endif

/* Token t of a tile n_tokens wide. */
static void quant_row(uint8_t *tile, uint32_t t, uint32_t n_tokens, const float *x,
                      uint32_t n_groups)
{
    for (uint32_t g = 0; g < n_groups; g++) {
        uint8_t *group = tile + (size_t)g * n_tokens * ACT_GROUP_BYTES;
        uint8_t *facts = group + n_tokens * GROUP_COLS + 4 * t;
        struct group_facts f = quant_group((int8_t *)group + t * GROUP_COLS, x + g * GROUP_COLS);

        memcpy(facts, &f.dy, 4);
        memcpy(facts + 4 * n_tokens, &f.sy, 4);
        memcpy(facts + 8 * n_tokens, &f.nsq, 4);
    }
}

struct quant_job {
    struct cpu_stream *s;
    const struct act_args *args;
    bool quantise;
};

/* Items are tiles. A normed row goes to the stream's f32 rows, from where it is quantised. */
static void quant_tiles(void *arg, uint32_t worker, uint32_t begin, uint32_t end)
{
    const struct quant_job *job = arg;
    const struct act_args *args = job->args;
    uint32_t n_groups = args->n_cols / GROUP_COLS;

    (void)worker;
    for (uint32_t item = begin; item < end; item++) {
        uint32_t first = item * TILE_TOKENS;
        uint32_t n = args->n_tokens - first < TILE_TOKENS ? args->n_tokens - first : TILE_TOKENS;
        uint8_t *tile = job->s->q + (size_t)first * n_groups * ACT_GROUP_BYTES;

        for (uint32_t t = 0; t < n; t++) {
            uint32_t row = args->rows ? args->rows[first + t] : first + t;
            const float *x = tensor_row(args->x, row);

            if (args->norm_w || args->rows) {
                float *y = job->s->x + (size_t)(first + t) * job->s->x_stride;

                if (args->norm_w)
                    LEVEL(rmsnorm_row)(y, x, args->norm_w, args->n_cols, args->norm_eps);
                else
                    memcpy(y, x, args->n_cols * sizeof *y);
                x = y;
            }
            if (job->quantise)
                quant_row(tile, t, n, x, n_groups);
        }
    }
}

void LEVEL(quant)(struct cpu_stream *s, struct act *act, const struct weight *w,
                  const struct act_args *args)
{
    struct quant_job job = {.s = s, .args = args, .quantise = w->has_quantised};
    uint32_t n_tiles = (args->n_tokens + TILE_TOKENS - 1) / TILE_TOKENS;
    bool moved = args->norm_w || args->rows;

    *act = (struct act){.q = s->q,
                        .x = moved ? s->x : (const float *)args->x->data,
                        .x_stride = moved ? s->x_stride : args->x->stride_bytes / sizeof(float),
                        .n_tokens = args->n_tokens,
                        .n_cols = args->n_cols};
    if (!moved && !job.quantise)
        return;
    if (args->n_tokens < PARALLEL_TOKENS)
        quant_tiles(&job, 0, 0, n_tiles);
    else
        pool_run(s->backend->pool, quant_tiles, &job, n_tiles, 4);
}
