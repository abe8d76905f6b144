/* Weights stay in the file's format and a row becomes f32 when a step needs it: once a step, with
 * the loop over tokens inside. Keeping f32 copies instead would cost seven times the memory of a
 * 4-bit model and gain little, for a step with one token is bound by reading them. */
#include "kernels/reference/reference.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/dequant.h"

static const char *spec_fault(const struct weight_spec *spec)
{
    if (spec->n_parts < 1 || spec->n_parts > 3)
        return "a weight has one to three parts";
    if (spec->use == WEIGHT_EMBED && spec->n_parts != 1)
        return "an embedding is one matrix";
    if (spec->use == WEIGHT_GATE_UP &&
        (spec->n_parts != 2 || spec->parts[0].n_rows != spec->parts[1].n_rows))
        return "gate and up are two matrices of one shape";
    if (!spec->n_cols)
        return "a weight without columns";
    for (uint32_t i = 0; i < spec->n_parts; i++) {
        if (!spec->parts[i].n_rows)
            return "a weight without rows";
        if (!dtype_row_bytes(spec->parts[i].dtype, spec->n_cols))
            return "the row length does not fit the format's blocks of 32";
    }
    return NULL;
}

int reference_weight_new(struct backend *b, struct weight **weightp, const struct weight_spec *spec,
                         const char **why)
{
    uint64_t n_rows = 0;
    size_t n_bytes = 0;
    struct weight *w;

    *why = spec_fault(spec);
    if (*why)
        return -EINVAL;
    for (uint32_t i = 0; i < spec->n_parts; i++) {
        size_t part_bytes;

        n_rows += spec->parts[i].n_rows;
        if (__builtin_mul_overflow(spec->parts[i].n_rows,
                                   dtype_row_bytes(spec->parts[i].dtype, spec->n_cols),
                                   &part_bytes) ||
            __builtin_add_overflow(n_bytes, part_bytes, &n_bytes) || n_rows > UINT32_MAX) {
            *why = "a weight of more rows or bytes than can be counted";
            return -EINVAL;
        }
    }
    *why = "no memory for a weight";
    w = calloc(1, sizeof *w);
    if (!w)
        return -ENOMEM;
    w->bytes = reference_alloc(n_bytes);
    if (!w->bytes) {
        free(w);
        return -ENOMEM;
    }
    w->backend = b;
    w->use = spec->use;
    w->n_cols = spec->n_cols;
    w->n_rows = (uint32_t)n_rows;
    w->n_parts = spec->n_parts;
    w->n_bytes = n_bytes;
    n_bytes = 0;
    for (uint32_t i = 0; i < spec->n_parts; i++) {
        size_t row_bytes = dtype_row_bytes(spec->parts[i].dtype, spec->n_cols);
        size_t part_bytes = row_bytes * spec->parts[i].n_rows;

        w->parts[i].dtype = spec->parts[i].dtype;
        w->parts[i].n_rows = spec->parts[i].n_rows;
        w->parts[i].row_bytes = row_bytes;
        w->parts[i].data = w->bytes + n_bytes;
        n_bytes += part_bytes;
        if (spec->parts[i].data)
            reference_weight_fill(w, i, 0, spec->parts[i].n_rows, spec->parts[i].data);
    }
    b->weight_bytes += w->n_bytes;
    *why = NULL;
    *weightp = w;
    return 0;
}

void reference_weight_fill(struct weight *w, uint32_t part_idx, uint32_t row_idx, uint32_t n_rows,
                           const void *rows)
{
    size_t row_bytes = w->parts[part_idx].row_bytes;
    size_t at = (size_t)(w->parts[part_idx].data - w->bytes) + row_idx * row_bytes;

    assert(part_idx < w->n_parts && row_idx <= w->parts[part_idx].n_rows &&
           n_rows <= w->parts[part_idx].n_rows - row_idx);
    memcpy(w->bytes + at, rows, n_rows * row_bytes);
}

struct weight *reference_weight_free(struct weight *w)
{
    if (w) {
        w->backend->weight_bytes -= w->n_bytes;
        free(w->bytes);
        free(w);
    }
    return NULL;
}

void reference_weight_row(float *out, const struct weight *w, uint32_t row)
{
    uint32_t part = 0;

    assert(row < w->n_rows);
    while (row >= w->parts[part].n_rows)
        row -= w->parts[part++].n_rows;
    dequant_row(out, w->parts[part].data + (size_t)row * w->parts[part].row_bytes,
                w->parts[part].dtype, w->n_cols);
}

void reference_weight_multiply(struct reference_stream *s, float *tile, const struct weight *w,
                               uint32_t row0, uint32_t n_rows, const float *x, size_t x_stride,
                               uint32_t n_tokens)
{
    uint32_t n_fours = (n_rows + 3) / 4;

    assert(n_rows <= REFERENCE_TILE && w->n_cols <= s->shape.max_cols);
    for (uint32_t i = 0; i < 4 * n_fours; i++) {
        float *row = s->rows + (size_t)i * w->n_cols;

        if (i < n_rows)
            reference_weight_row(row, w, row0 + i);
        else
            memset(row, 0, w->n_cols * sizeof *row);
    }
    for (uint32_t i = 0; i < n_fours; i++) {
        for (uint32_t t = 0; t < n_tokens; t++)
            reference_dot4(tile + (size_t)t * REFERENCE_TILE + 4 * i,
                           s->rows + (size_t)4 * i * w->n_cols, x + t * x_stride, w->n_cols);
    }
}
