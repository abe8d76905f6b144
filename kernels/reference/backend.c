/* The table, buffers and streams of the reference backend. */
#include "kernels/reference/reference.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/sampling.h"
#include "kernels/sampling_sweep.h"

void *reference_alloc(size_t bytes)
{
    void *data;

    if (bytes > SIZE_MAX - REFERENCE_ALIGN)
        return NULL;
    bytes = reference_round_up(bytes ? bytes : 1, REFERENCE_ALIGN);
    data = aligned_alloc(REFERENCE_ALIGN, bytes);
    if (data)
        memset(data, 0, bytes);
    return data;
}

static int reference_open(struct backend **backendp, const struct backend_config *config,
                          const char **why)
{
    const char *isa = config->isa;

    if (isa && strcmp(isa, "auto") && strcmp(isa, "scalar")) {
        *why = "the reference backend knows no instruction set but scalar";
        return -ENOTSUP;
    }
    if (!__builtin_cpu_supports("fma")) {
        *why = "this processor has no fma instruction";
        return -ENOTSUP;
    }
    *why = "no memory for the reference backend";
    *backendp = calloc(1, sizeof **backendp);
    if (!*backendp)
        return -ENOMEM;
    *why = NULL;
    return 0;
}

static struct backend *reference_close(struct backend *b)
{
    free(b);
    return NULL;
}

static void reference_caps(const struct backend *b, struct backend_caps *caps)
{
    *caps = (struct backend_caps){
        .name = "reference",
        .isa = "scalar",
        .n_threads = 1,
        .weight_bytes = b->weight_bytes,
        .bf16_refusal = "the reference backend has one way to multiply",
    };
}

static int reference_buffer_new(struct backend *b, void **datap, size_t bytes, const void *init)
{
    (void)b;
    *datap = reference_alloc(bytes);
    if (!*datap)
        return -ENOMEM;
    if (init)
        memcpy(*datap, init, bytes);
    return 0;
}

static void *reference_buffer_free(struct backend *b, void *data)
{
    (void)b;
    free(data);
    return NULL;
}

static struct stream *reference_stream_free(struct stream *stream)
{
    struct reference_stream *s = (struct reference_stream *)stream;

    if (s) {
        free(s->normed);
        free(s->rows);
        free(s->tile);
        free(s->tile2);
        free(s->keys);
        free(s->scores);
        free(s->sums);
        free(s->query);
        free(s->head_kv);
        free(s->sampler);
        free(s);
    }
    return NULL;
}

static int reference_stream_new(struct backend *b, struct stream **streamp,
                                const struct stream_shape *shape)
{
    size_t n = shape->max_tokens > shape->max_outputs ? shape->max_tokens : shape->max_outputs;
    size_t cols = shape->max_cols, f = sizeof(float);
    struct reference_stream *s = calloc(1, sizeof *s);

    (void)b;
    if (!s)
        return -ENOMEM;
    s->stream.ops = &backend_reference;
    s->shape = *shape;
    s->normed = reference_alloc(n * cols * f);
    s->rows = reference_alloc(REFERENCE_TILE * cols * f);
    s->tile = reference_alloc(n * REFERENCE_TILE * f);
    s->tile2 = reference_alloc(n * REFERENCE_TILE * f);
    s->keys = reference_alloc(shape->max_tokens * 2 * cols * f);
    s->scores = reference_alloc(shape->max_context * sizeof *s->scores);
    s->sums = reference_alloc(shape->head_dim * sizeof *s->sums);
    s->query = reference_alloc(shape->head_dim * f);
    s->head_kv = reference_alloc(shape->head_dim * f);
    s->sampler = reference_alloc(sampler_scratch_bytes(shape->n_vocab));
    if (!s->normed || !s->rows || !s->tile || !s->tile2 || !s->keys || !s->scores || !s->sums ||
        !s->query || !s->head_kv || !s->sampler) {
        reference_stream_free(&s->stream);
        return -ENOMEM;
    }
    *streamp = &s->stream;
    return 0;
}

int reference_sample(struct stream *stream, struct sample *samples, struct tensor *logits,
                     const struct head_row *rows, const struct sample_params *params,
                     uint32_t n_outputs)
{
    struct reference_stream *s = (struct reference_stream *)stream;
    const struct sampler_scratch scratch = sampler_scratch_at(s->sampler, s->shape.n_vocab);

    for (uint32_t i = 0; i < n_outputs; i++)
        sampling_row(&samples[i], tensor_row(logits, i), logits->n_cols, &rows[i], &params[i],
                     &sampling_sweeps_plain, &scratch);
    return 0;
}

const struct backend_ops backend_reference = {
    .name = "reference",
    .open = reference_open,
    .close = reference_close,
    .caps = reference_caps,
    .buffer_new = reference_buffer_new,
    .buffer_free = reference_buffer_free,
    .weight_new = reference_weight_new,
    .weight_fill = reference_weight_fill,
    .weight_free = reference_weight_free,
    .kv_new = reference_kv_new,
    .kv_free = reference_kv_free,
    .kv_page_bytes = reference_kv_page_bytes,
    .kv_populate = reference_kv_populate,
    .kv_pin = reference_kv_pin,
    .kv_copy = reference_kv_copy,
    .stream_new = reference_stream_new,
    .stream_free = reference_stream_free,
    .embed = reference_embed,
    .rmsnorm = reference_rmsnorm,
    .qkv = reference_qkv,
    .attention = reference_attention,
    .linear = reference_linear,
    .gate_up = reference_gate_up,
    .gather = kernels_gather,
    .head = reference_head,
    .sample = reference_sample,
};
