/* Repacks a model file's rows into panels (cpu.h says how they lie), in parallel, so that the pages
 * of a panel are first touched by the workers. Every format keeps its own size and its exact
 * values: nothing is requantised.
 *
 * For gate and up the panels alternate, gate first, so that one item of work has both halves of its
 * rows in one stream of memory; for stacked parts they follow each other, and every part begins
 * with a panel of its own. */
#include "kernels/cpu/cpu.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

bool panel_is_quantised(enum dtype t)
{
    return t == DTYPE_Q4_0 || t == DTYPE_Q4_1 || t == DTYPE_Q8_0;
}

size_t panel_group_bytes(enum dtype t)
{
    switch (t) {
    case DTYPE_Q4_0:
        return 32 + 256;
    case DTYPE_Q4_1:
        return 64 + 256;
    case DTYPE_Q8_0:
        return 32 + 512;
    default:
        return 0;
    }
}

size_t panel_bytes(enum dtype t, uint32_t n_cols)
{
    switch (t) {
    case DTYPE_F32:
        return (size_t)n_cols * PANEL_ROWS * 4;
    case DTYPE_F16:
        return (size_t)n_cols * PANEL_ROWS * 2;
    case DTYPE_BF16:
        return (size_t)(n_cols + 1) / 2 * PANEL_ROWS * 4;
    default:
        return (size_t)(n_cols / GROUP_COLS) * panel_group_bytes(t);
    }
}

/* One row of one group from a block of the file: d, m if there is one, then the codes. */
static void pack_group(uint8_t *group, enum dtype t, const uint8_t *block, uint32_t r)
{
    uint8_t *codes = group + (t == DTYPE_Q4_1 ? 64 : 32) + 4 * r;
    const uint8_t *source = block + (t == DTYPE_Q4_1 ? 4 : 2);
    uint32_t n_vectors = t == DTYPE_Q8_0 ? 8 : 4;

    memcpy(group + 2 * r, block, 2);
    if (t == DTYPE_Q4_1)
        memcpy(group + 32 + 2 * r, block + 2, 2);
    for (uint32_t j = 0; j < n_vectors; j++) {
        uint32_t four;

        memcpy(&four, source + 4 * j, 4);
        if (t == DTYPE_Q8_0)
            four ^= 0x80808080;
        memcpy(codes + 64 * j, &four, 4);
    }
}

static void pack_row(uint8_t *panel, enum dtype t, const uint8_t *row, uint32_t n_cols, uint32_t r)
{
    if (panel_is_quantised(t)) {
        size_t block_bytes = dtype_row_bytes(t, GROUP_COLS);

        for (uint32_t g = 0; g < n_cols / GROUP_COLS; g++)
            pack_group(panel + g * panel_group_bytes(t), t, row + g * block_bytes, r);
        return;
    }
    for (uint32_t k = 0; k < n_cols; k++) {
        switch (t) {
        case DTYPE_F32:
            memcpy(panel + 4 * ((size_t)k * PANEL_ROWS + r), row + 4 * (size_t)k, 4);
            break;
        case DTYPE_F16:
            memcpy(panel + 2 * ((size_t)k * PANEL_ROWS + r), row + 2 * (size_t)k, 2);
            break;
        default: /* BF16, by pairs of columns */
            memcpy(panel + 4 * ((size_t)(k / 2) * PANEL_ROWS + r) + 2 * (k % 2),
                   row + 2 * (size_t)k, 2);
            break;
        }
    }
}

struct packing {
    uint8_t *panels; /* the part's first */
    const struct panels *part;
    uint32_t n_cols, row_idx, n_rows; /* the rows at hand */
    const uint8_t *rows;
};

/* Items are the panels that have a row at hand. */
static void pack_panels(void *arg, uint32_t worker, uint32_t begin, uint32_t end)
{
    const struct packing *job = arg;
    const struct panels *p = job->part;
    size_t row_bytes = dtype_row_bytes(p->dtype, job->n_cols);
    uint32_t end_row = job->row_idx + job->n_rows;

    (void)worker;
    for (uint32_t item = begin; item < end; item++) {
        uint32_t panel_idx = job->row_idx / PANEL_ROWS + item;
        uint8_t *panel = job->panels + panel_idx * p->panel_stride;

        for (uint32_t r = 0; r < PANEL_ROWS; r++) {
            uint32_t row = panel_idx * PANEL_ROWS + r;

            if (row >= job->row_idx && row < end_row)
                pack_row(panel, p->dtype, job->rows + (row - job->row_idx) * row_bytes, job->n_cols,
                         r);
        }
    }
}

static const char *spec_fault(const struct weight_spec *spec)
{
    if (spec->n_parts < 1 || spec->n_parts > 3 || !spec->n_cols)
        return "a weight has 1 to 3 parts and at least one column";
    for (uint32_t i = 0; i < spec->n_parts; i++) {
        const struct weight_part *part = &spec->parts[i];

        if ((unsigned)part->dtype >= DTYPE_COUNT)
            return "a weight's format is not one that the cpu backend knows";
        if (!dtype_row_bytes(part->dtype, spec->n_cols))
            return "a quantised weight's columns are not a multiple of 32";
        if (!part->n_rows)
            return "a weight's part is empty";
    }
    if (spec->use == WEIGHT_GATE_UP &&
        (spec->n_parts != 2 || spec->parts[0].n_rows != spec->parts[1].n_rows))
        return "gate and up are not two parts of equal shape";
    if (spec->use == WEIGHT_EMBED && spec->n_parts != 1)
        return "an embedding has one part";
    return NULL;
}

int cpu_weight_new(struct backend *b, struct weight **weightp, const struct weight_spec *spec,
                   const char **why)
{
    struct weight *w;
    size_t offset = 0;

    *why = spec_fault(spec);
    if (*why)
        return -EINVAL;
    *why = "no memory for a weight";
    w = calloc(1, sizeof *w);
    if (!w)
        return -ENOMEM;
    *w = (struct weight){
        .backend = b, .use = spec->use, .n_cols = spec->n_cols, .n_parts = spec->n_parts};
    for (uint32_t i = 0; i < w->n_parts; i++) {
        uint32_t part_panels = (spec->parts[i].n_rows + PANEL_ROWS - 1) / PANEL_ROWS;

        w->bytes += part_panels * panel_bytes(spec->parts[i].dtype, w->n_cols);
    }
    /* Prefetches run past the last panel, which is harmless; the slack is for the last vector
     * load. */
    w->bytes += 64;
    w->data = arena_take(&b->weights, w->bytes);
    if (!w->data) {
        cpu_weight_free(w);
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < w->n_parts; i++) {
        const struct weight_part *part = &spec->parts[i];
        struct panels *p = &w->parts[i];
        size_t bytes = panel_bytes(part->dtype, w->n_cols);

        *p = (struct panels){.panels = w->data + offset,
                             .panel_stride = bytes,
                             .dtype = part->dtype,
                             .n_panels = (part->n_rows + PANEL_ROWS - 1) / PANEL_ROWS,
                             .row_idx = w->n_rows,
                             .n_rows = part->n_rows};
        w->n_rows += part->n_rows;
        if (spec->use == WEIGHT_GATE_UP) {
            p->panel_stride = panel_bytes(spec->parts[0].dtype, w->n_cols) +
                              panel_bytes(spec->parts[1].dtype, w->n_cols);
            offset += bytes;
        } else {
            offset += bytes * p->n_panels;
        }
        if (panel_is_quantised(p->dtype))
            w->has_quantised = true;
        else
            w->has_plain = true;
    }
    for (uint32_t i = 0; i < w->n_parts; i++)
        if (spec->parts[i].data)
            cpu_weight_fill(w, i, 0, spec->parts[i].n_rows, spec->parts[i].data);
    atomic_fetch_add_explicit(&b->weight_bytes, w->bytes, memory_order_relaxed);
    *why = NULL;
    *weightp = w;
    return 0;
}

void cpu_weight_fill(struct weight *w, uint32_t part_idx, uint32_t row_idx, uint32_t n_rows,
                     const void *rows)
{
    const struct panels *p = &w->parts[part_idx];
    struct packing job = {.panels = w->data + (p->panels - w->data),
                          .part = p,
                          .n_cols = w->n_cols,
                          .row_idx = row_idx,
                          .n_rows = n_rows,
                          .rows = rows};

    assert(part_idx < w->n_parts && n_rows && row_idx < p->n_rows && n_rows <= p->n_rows - row_idx);
    pool_run(w->backend->pool, pack_panels, &job,
             (row_idx + n_rows - 1) / PANEL_ROWS - row_idx / PANEL_ROWS + 1, 64);
}

struct weight *cpu_weight_free(struct weight *w)
{
    if (!w)
        return NULL;
    if (w->data)
        atomic_fetch_sub_explicit(&w->backend->weight_bytes, w->bytes, memory_order_relaxed);
    arena_give(&w->backend->weights, w->data);
    free(w);
    return NULL;
}
