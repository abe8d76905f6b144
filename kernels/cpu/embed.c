/* Rows of an embedding, gathered from panels: fma(d, u, m), or d * (u - offset), then times
 * scale. */
#include "kernels/cpu/level.h"

#include <math.h>
#include <string.h>

#include "kernels/numeric.h"

static float load_half(const uint8_t *p)
{
    uint16_t half;

    memcpy(&half, p, sizeof half);
    return numeric_from_half(half);
}

/* Column k of row r of a 4-bit group's codes. */
static uint32_t code4(const uint8_t *codes, uint32_t r, uint32_t k)
{
    uint32_t byte = codes[k % 16 / 4 * 64 + 4 * r + k % 4];

    return k < 16 ? byte & 15 : byte >> 4;
}

static void gather_group(float *x, const uint8_t *group, enum dtype t, uint32_t r)
{
    float d = load_half(group + 2 * r);

    for (uint32_t k = 0; k < GROUP_COLS; k++) {
        switch (t) {
        case DTYPE_Q4_0:
            x[k] = d * (float)((int32_t)code4(group + 32, r, k) - 8);
            break;
        case DTYPE_Q4_1:
            x[k] = fmaf(d, (float)code4(group + 64, r, k), load_half(group + 32 + 2 * r));
            break;
        default:
            x[k] = d * (float)((int32_t)group[32 + k / 4 * 64 + 4 * r + k % 4] - 128);
            break;
        }
    }
}

static void gather_row(float *x, const struct panels *p, uint32_t n_cols, uint32_t row_idx)
{
    const uint8_t *panel = p->panels + row_idx / PANEL_ROWS * p->panel_stride;
    uint32_t r = row_idx % PANEL_ROWS;

    if (panel_is_quantised(p->dtype)) {
        for (uint32_t k = 0; k < n_cols; k += GROUP_COLS)
            gather_group(x + k, panel + k / GROUP_COLS * panel_group_bytes(p->dtype), p->dtype, r);
        return;
    }
    for (uint32_t k = 0; k < n_cols; k++) {
        uint16_t half;

        if (p->dtype == DTYPE_F32) {
            memcpy(&x[k], panel + 4 * ((size_t)k * PANEL_ROWS + r), 4);
        } else if (p->dtype == DTYPE_F16) {
            x[k] = load_half(panel + 2 * ((size_t)k * PANEL_ROWS + r));
        } else {
            memcpy(&half, panel + 4 * ((size_t)(k / 2) * PANEL_ROWS + r) + 2 * (k % 2), 2);
            x[k] = numeric_from_bf16(half);
        }
    }
}

struct embed_job {
    const struct tensor *x;
    const struct weight *e;
    const int32_t *tokens;
    float scale;
};

static void embed_rows(void *arg, uint32_t worker, uint32_t begin, uint32_t end)
{
    const struct embed_job *job = arg;
    const struct panels *p = &job->e->parts[0];

    (void)worker;
    for (uint32_t i = begin; i < end; i++) {
        float *x = tensor_row(job->x, i);
        uint32_t token = job->tokens[i] < 0 ? 0 : (uint32_t)job->tokens[i];

        gather_row(x, p, job->e->n_cols, token < p->n_rows ? token : p->n_rows - 1);
        for (uint32_t k = 0; k < job->e->n_cols; k++)
            x[k] *= job->scale;
    }
}

int LEVEL(embed)(struct stream *s, struct tensor *x, const struct weight *e, const int32_t *tokens,
                 float scale)
{
    struct embed_job job = {.x = x, .e = e, .tokens = tokens, .scale = scale};

    pool_run(((struct cpu_stream *)s)->backend->pool, embed_rows, &job, x->n_rows, 16);
    return 0;
}
