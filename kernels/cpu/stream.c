/* Scratch of a stream, sized once for its largest step. Most of it is address space that only large
 * steps touch. */
#include <errno.h>
#include <stdlib.h>

#include "kernels/cpu/level.h"
#include "kernels/sampling.h"

enum {
    PARTIALS_BYTES = 4 << 20, /* 128 decode rows of 64 at 8k keys; beyond, spans are not split */
    LINE_BYTES = 64
};

static size_t round_up(size_t bytes)
{
    return (bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
}

static size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* What attention.c carves, and qkv.c's sums of whole heads and a head in bf16. */
static size_t scratch_bytes(const struct stream_shape *shape, uint32_t matmul_tokens)
{
    size_t hd = shape->head_dim, o_bytes = round_up(hd * sizeof(float));
    size_t attention = round_up(ATTENTION_ROWS * hd * sizeof(float)) + LINE_BYTES +
                       8 * KERNELS_SPAN * sizeof(float) + (8 + ATTENTION_ROWS) * o_bytes;
    size_t heads = 0;

    /* Layers may have smaller heads than the largest, which can need more panels: 3 for 24, 2 for
     * 32. */
    for (uint32_t i = 2; i <= shape->head_dim; i += 2)
        heads = max_size(heads, matmul_tokens * heads_panels(i) * PANEL_ROWS * sizeof(float));
    heads += round_up(shape->head_dim * sizeof(uint16_t)) + LINE_BYTES;
    /* Not a power of two, or the workers' scratch would fall into the same cache sets. */
    return round_up(max_size(attention, heads)) + 3 * LINE_BYTES;
}

/* Quantised activations, or where there are such, those in bf16, which are larger. */
static size_t act_bytes(const struct backend *b, uint32_t n_rows, uint32_t n_cols)
{
    size_t n_groups = (n_cols + GROUP_COLS - 1) / GROUP_COLS;
    size_t n_blocks = ((size_t)n_rows + BF16_BLOCK_TOKENS - 1) / BF16_BLOCK_TOKENS;

    if (b->bf16_tokens == UINT32_MAX)
        return n_rows * n_groups * ACT_GROUP_BYTES;
    return n_blocks * (BF16_BLOCK_TOKENS / BF16_TILE_TOKENS) * n_groups * BF16_TILE_BYTES;
}

int cpu_stream_new(struct backend *b, struct stream **streamp, const struct stream_shape *shape)
{
    uint32_t n_threads = pool_n_threads(b->pool), n_rows;
    struct cpu_stream *s;

    if (!shape->max_tokens || !shape->max_cols || !shape->n_heads || !shape->head_dim)
        return -EINVAL;
    s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    n_rows = shape->max_tokens > shape->max_outputs ? shape->max_tokens : shape->max_outputs;
    *s = (struct cpu_stream){.stream = {.ops = &backend_cpu},
                             .backend = b,
                             .shape = *shape,
                             .x_stride = round_up(shape->max_cols * sizeof(float)) / sizeof(float),
                             .scratch_bytes = scratch_bytes(shape, b->level->matmul_tokens),
                             .partials_bytes = PARTIALS_BYTES};
    /* A tile is 32 rows but for the last of each sequence, and a token has at most n_heads rows. */
    s->max_tiles = shape->max_tokens * ((shape->n_heads + ATTENTION_ROWS - 1) / ATTENTION_ROWS);
    s->q_bytes = act_bytes(b, n_rows, shape->max_cols);
    s->x_bytes = n_rows * s->x_stride * sizeof(float);
    s->tracks_bytes = (size_t)n_threads * shape->max_outputs * sizeof *s->tracks;
    /* Not a power of two either. */
    s->sampler_bytes = sampler_scratch_bytes(shape->n_vocab) + LINE_BYTES;
    s->q = memory_new(s->q_bytes);
    s->next_q = memory_new(s->q_bytes);
    s->x = memory_new(s->x_bytes);
    s->tiles = calloc(s->max_tiles, sizeof *s->tiles);
    s->partials = memory_new(s->partials_bytes);
    s->tracks = memory_new(s->tracks_bytes);
    s->ahead = memory_new(n_threads * sizeof *s->ahead);
    s->scratch = memory_new(n_threads * s->scratch_bytes);
    s->sampler = memory_new(n_threads * s->sampler_bytes);
    if (!s->q || !s->next_q || !s->x || !s->tiles || !s->partials || !s->tracks || !s->ahead ||
        !s->scratch || !s->sampler) {
        cpu_stream_free(&s->stream);
        return -ENOMEM;
    }
    *streamp = &s->stream;
    return 0;
}

struct stream *cpu_stream_free(struct stream *stream)
{
    struct cpu_stream *s = (struct cpu_stream *)stream;

    if (!s)
        return NULL;
    memory_free(s->sampler, pool_n_threads(s->backend->pool) * s->sampler_bytes);
    memory_free(s->scratch, pool_n_threads(s->backend->pool) * s->scratch_bytes);
    memory_free(s->ahead, pool_n_threads(s->backend->pool) * sizeof *s->ahead);
    memory_free(s->tracks, s->tracks_bytes);
    memory_free(s->partials, s->partials_bytes);
    free(s->tiles);
    memory_free(s->x, s->x_bytes);
    memory_free(s->next_q, s->q_bytes);
    memory_free(s->q, s->q_bytes);
    free(s);
    return NULL;
}
