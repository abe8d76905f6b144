#include "tests/kernels/oracle_memory.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/dequant.h"

struct backend {
    int unused;
};

void *oracle_zeroed(size_t n, size_t size)
{
    void *data = calloc(n ? n : 1, size);

    if (!data)
        abort();
    return data;
}

int oracle_open(struct backend **backendp, const struct backend_config *config, const char **why)
{
    (void)config;
    *why = NULL;
    *backendp = oracle_zeroed(1, sizeof **backendp);
    return 0;
}

struct backend *oracle_close(struct backend *b)
{
    free(b);
    return NULL;
}

void oracle_caps(const struct backend *b, struct backend_caps *caps)
{
    (void)b;
    *caps = (struct backend_caps){.name = "oracle", .n_threads = 1};
}

int oracle_buffer_new(struct backend *b, void **datap, size_t bytes, const void *init)
{
    (void)b;
    *datap = aligned_alloc(64, (bytes + 64) / 64 * 64);
    if (!*datap)
        abort();
    memset(*datap, 0, bytes);
    if (init)
        memcpy(*datap, init, bytes);
    return 0;
}

void *oracle_buffer_free(struct backend *b, void *data)
{
    (void)b;
    free(data);
    return NULL;
}

int oracle_weight_new(struct backend *b, struct weight **weightp, const struct weight_spec *spec,
                      const char **why)
{
    struct weight *w = oracle_zeroed(1, sizeof *w);
    float *row = oracle_zeroed(spec->n_cols, sizeof *row);
    double *out;

    (void)b;
    *why = NULL;
    for (uint32_t i = 0; i < spec->n_parts; i++)
        w->n_rows += spec->parts[i].n_rows;
    w->n_cols = spec->n_cols;
    w->n_parts = spec->n_parts;
    w->values = out = oracle_zeroed((size_t)w->n_rows * w->n_cols, sizeof *w->values);
    for (uint32_t i = 0; i < spec->n_parts; i++) {
        size_t row_bytes = dtype_row_bytes(spec->parts[i].dtype, spec->n_cols);
        void *rows = oracle_zeroed(spec->parts[i].n_rows, row_bytes);

        memcpy(rows, spec->parts[i].data, spec->parts[i].n_rows * row_bytes);
        w->parts[i] = spec->parts[i];
        w->parts[i].data = rows;
        for (uint32_t r = 0; r < spec->parts[i].n_rows; r++) {
            dequant_row(row, (const char *)spec->parts[i].data + r * row_bytes,
                        spec->parts[i].dtype, spec->n_cols);
            for (uint32_t c = 0; c < spec->n_cols; c++)
                *out++ = (double)row[c];
        }
    }
    free(row);
    w->begin = oracle_zeroed(w->n_rows, sizeof *w->begin);
    w->end = oracle_zeroed(w->n_rows, sizeof *w->end);
    for (uint32_t r = 0; r < w->n_rows; r++) {
        const double *values = w->values + (size_t)r * w->n_cols;

        for (w->end[r] = w->n_cols; w->end[r] && values[w->end[r] - 1] == 0; w->end[r]--)
            ;
        for (; w->begin[r] < w->end[r] && values[w->begin[r]] == 0; w->begin[r]++)
            ;
    }
    *weightp = w;
    return 0;
}

struct oracle_cols oracle_cols(const struct weight *w, uint32_t row, bool x_is_finite)
{
    if (x_is_finite)
        return (struct oracle_cols){w->begin[row], w->end[row]};
    return (struct oracle_cols){0, w->n_cols};
}

struct weight *oracle_weight_free(struct weight *w)
{
    for (uint32_t i = 0; w && i < w->n_parts; i++)
        free((void *)w->parts[i].data);
    if (w) {
        free(w->values);
        free(w->begin);
        free(w->end);
    }
    free(w);
    return NULL;
}

static size_t plane(const struct kv_shape *shape)
{
    return (size_t)shape->page_size * shape->n_kv_heads * shape->head_dim;
}

double *oracle_kv_at(const struct kv *kv, uint32_t layer, int is_v, uint32_t slot_idx)
{
    size_t per_plane = plane(&kv->shape) * kv->shape.n_pages;

    return kv->values + (2 * layer + (uint32_t)is_v) * per_plane +
           (size_t)slot_idx * kv->shape.n_kv_heads * kv->shape.head_dim;
}

size_t oracle_kv_page_bytes(const struct kv_shape *shape)
{
    return 2 * plane(shape) * shape->n_layers * sizeof(double);
}

int oracle_kv_new(struct backend *b, struct kv **kvp, const struct kv_shape *shape,
                  const char **why)
{
    struct kv *kv = oracle_zeroed(1, sizeof *kv);

    (void)b;
    *why = NULL;
    kv->shape = *shape;
    kv->values = oracle_zeroed(oracle_kv_page_bytes(shape) / sizeof(double) * shape->n_pages,
                               sizeof(double));
    *kvp = kv;
    return 0;
}

struct kv *oracle_kv_free(struct kv *kv)
{
    if (kv)
        free(kv->values);
    free(kv);
    return NULL;
}

int oracle_kv_populate(struct kv *kv, uint32_t page_idx, uint32_t n_pages)
{
    (void)kv;
    (void)page_idx;
    (void)n_pages;
    return 0;
}

int oracle_kv_copy(struct kv *kv, const struct page_copy *copies, uint32_t n_copies)
{
    uint32_t page_size = kv->shape.page_size;

    for (uint32_t i = 0; i < n_copies; i++) {
        for (uint32_t layer = 0; layer < kv->shape.n_layers; layer++) {
            for (int is_v = 0; is_v < 2; is_v++)
                memcpy(oracle_kv_at(kv, layer, is_v, copies[i].to_page * page_size),
                       oracle_kv_at(kv, layer, is_v, copies[i].from_page * page_size),
                       plane(&kv->shape) * sizeof(double));
        }
    }
    return 0;
}

int oracle_stream_new(struct backend *b, struct stream **streamp, const struct stream_shape *shape)
{
    (void)b;
    (void)shape;
    *streamp = oracle_zeroed(1, sizeof **streamp);
    return 0;
}

struct stream *oracle_stream_free(struct stream *s)
{
    free(s);
    return NULL;
}
