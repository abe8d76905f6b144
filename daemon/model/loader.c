/* daemon/model/loader.c - a table of where each tensor goes, then one pass over the file.
 *
 * The pass is in the order of the file, whatever the order of asking, in pieces of whole rows: while
 * the backend packs one piece, the reader brings the next ones. So the disk is read front to back,
 * no page of the file is needed twice, and beside the packed weights there are only the reader's
 * buffers, where a mapped file would lie in memory as a whole until its last tensor is packed. */
#include "daemon/model/loader.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/message.h"
#include "daemon/model/reader.h"
#include "kernels/dequant.h"

/* Long enough for a disk and for all threads to have panels to pack, short enough to stay in a
 * core's cache from reading to packing. */
#define PIECE_BYTES ((size_t)1 << 20)

/* A part of a weight, or else values of a vector; neither: nobody asked. */
struct loader_target {
    const struct gguf_tensor *tensor;
    struct weight *weight;
    uint32_t part_idx;
    float *values;
    float least, most;
};

struct loader_buffer {
    float **vectorp;
    float *values;
    size_t n;
};

int loader_init(struct loader *l, const struct gguf *g, const struct config *config,
                const struct backend_ops *ops, struct backend *backend, char *message)
{
    *l = (struct loader){
        .g = g, .config = config, .ops = ops, .backend = backend, .message = message};
    l->targets = calloc(gguf_n_tensors(g) + 1u, sizeof l->targets[0]);
    l->buffers = calloc(gguf_n_tensors(g) + 1u, sizeof l->buffers[0]);
    if (!l->targets || !l->buffers) {
        loader_fini(l);
        return model_refuse(message, -ENOMEM, "%s: no memory", gguf_path(g));
    }
    for (uint32_t i = 0; i < gguf_n_tensors(g); i++)
        l->targets[i].tensor = gguf_tensor_at(g, i);
    return 0;
}

void loader_fini(struct loader *l)
{
    for (uint32_t i = 0; i < l->n_buffers; i++)
        free(l->buffers[i].values);
    l->reader = reader_free(l->reader);
    free(l->buffers);
    free(l->targets);
    *l = (struct loader){0};
}

static void build_name(char full[GGUF_NAME_MAX + 1], uint32_t layer, const char *name,
                       const char *suffix)
{
    if (layer == LOADER_NO_LAYER)
        snprintf(full, GGUF_NAME_MAX + 1, "%s.%s", name, suffix);
    else
        snprintf(full, GGUF_NAME_MAX + 1, "blk.%" PRIu32 ".%s.%s", layer, name, suffix);
}

bool loader_has(const struct loader *l, uint32_t layer, const char *name, const char *suffix)
{
    char full[GGUF_NAME_MAX + 1];

    build_name(full, layer, name, suffix);
    return gguf_tensor(l->g, full) != NULL;
}

/* Where the tensor of that name and shape goes, or NULL with message. n_rows 1 is a vector. */
static struct loader_target *find(struct loader *l, uint32_t layer, const char *name,
                                  const char *suffix, uint32_t n_rows, uint32_t n_cols)
{
    char full[GGUF_NAME_MAX + 1];
    const struct gguf_tensor *t;

    build_name(full, layer, name, suffix);
    t = gguf_tensor(l->g, full);
    if (!t) {
        model_refuse(l->message, -EINVAL,
                     "%s: tensor '%s' is missing: the file is no complete %s model; convert it "
                     "again",
                     gguf_path(l->g), full, l->config->arch->name);
        return NULL;
    }
    if (t->dims[0] != n_cols || t->dims[1] != n_rows || t->dims[2] != 1 || t->dims[3] != 1) {
        model_refuse(l->message, -EINVAL,
                     "%s: tensor '%s' at byte %" PRIu64 " has the shape [%" PRIu64 ", %" PRIu64
                     ", %" PRIu64 ", %" PRIu64 "]; the keys of the file ask for [%" PRIu32
                     ", %" PRIu32 "]",
                     gguf_path(l->g), full, t->file_off, t->dims[0], t->dims[1], t->dims[2],
                     t->dims[3], n_cols, n_rows);
        return NULL;
    }
    return &l->targets[t - gguf_tensor_at(l->g, 0)];
}

int loader_weight(struct loader *l, struct weight **weightp, enum weight_use use, uint32_t layer,
                  const struct loader_part *parts, uint32_t n_parts, uint32_t n_cols)
{
    char full[GGUF_NAME_MAX + 1];
    struct weight_spec spec = {.name = full, .use = use, .n_cols = n_cols, .n_parts = n_parts};
    struct loader_target *targets[3];
    const char *why = "the backend refused it";
    int r;

    for (uint32_t i = 0; i < n_parts; i++) {
        targets[i] = find(l, layer, parts[i].name, "weight", parts[i].n_rows, n_cols);
        if (!targets[i])
            return -EINVAL;
        spec.parts[i] =
            (struct weight_part){.dtype = targets[i]->tensor->dtype, .n_rows = parts[i].n_rows};
    }
    build_name(full, layer, parts[0].name, "weight");
    r = l->ops->weight_new(l->backend, weightp, &spec, &why);
    if (r)
        return model_refuse(l->message, r, "%s: tensor '%s' (%s): %s: %s", gguf_path(l->g), full,
                            dtype_name(spec.parts[0].dtype), why, strerror(-r));
    for (uint32_t i = 0; i < n_parts; i++) {
        targets[i]->weight = *weightp;
        targets[i]->part_idx = i;
    }
    return 0;
}

int loader_vector(struct loader *l, float **vectorp, uint32_t layer,
                  const struct loader_part *parts, uint32_t n_parts, const char *suffix)
{
    struct loader_buffer *b = &l->buffers[l->n_buffers];
    float *values;
    size_t n = 0;

    for (uint32_t i = 0; i < n_parts; i++)
        n += parts[i].n_rows;
    values = malloc(n * sizeof *values);
    if (!values)
        return model_refuse(l->message, -ENOMEM, "%s: no memory", gguf_path(l->g));
    *b = (struct loader_buffer){.vectorp = vectorp, .values = values, .n = n};
    l->n_buffers++; /* no more than tensors: no two take the same one */
    for (uint32_t i = 0; i < n_parts; i++) {
        int r = loader_host_vector(l, values, layer, parts[i].name, suffix, parts[i].n_rows,
                                   -INFINITY, INFINITY);

        if (r)
            return r;
        values += parts[i].n_rows;
    }
    return 0;
}

int loader_host_vector(struct loader *l, float *values, uint32_t layer, const char *name,
                       const char *suffix, uint32_t n, float least, float most)
{
    struct loader_target *to = find(l, layer, name, suffix, 1, n);
    const struct gguf_tensor *t;

    if (!to)
        return -EINVAL;
    t = to->tensor;
    if (t->dtype != DTYPE_F32 && t->dtype != DTYPE_F16 && t->dtype != DTYPE_BF16)
        return model_refuse(l->message, -ENOTSUP,
                            "%s: tensor '%s' at byte %" PRIu64
                            " is a vector of type %s, which is not supported; supported: F32, F16, "
                            "BF16",
                            gguf_path(l->g), t->name, t->file_off, dtype_name(t->dtype));
    to->values = values;
    to->least = least;
    to->most = most;
    return 0;
}

/* ---- the pass over the file ------------------------------------------------------------------ */

static uint32_t rows_of(const struct loader_target *to)
{
    return to->weight ? (uint32_t)to->tensor->dims[1] : 1;
}

static size_t row_bytes(const struct loader_target *to)
{
    return to->tensor->bytes / rows_of(to);
}

/* Makes *p what follows it in the file; a zeroed one: the first. False: nothing does. */
static bool next_piece(const struct loader *l, struct loader_piece *p)
{
    const struct loader_target *to = p->target ? p->target : l->targets;
    uint32_t row_idx = p->row_idx + p->n_rows;
    size_t n_rows, bytes;

    if (p->target && row_idx == rows_of(to)) {
        to++;
        row_idx = 0;
    }
    if (to == l->targets + gguf_n_tensors(l->g))
        return false;
    bytes = row_bytes(to);
    n_rows = bytes < PIECE_BYTES ? PIECE_BYTES / bytes : 1;
    if (n_rows > rows_of(to) - row_idx)
        n_rows = rows_of(to) - row_idx;
    *p = (struct loader_piece){.target = to,
                               .row_idx = row_idx,
                               .n_rows = (uint32_t)n_rows,
                               .file_off = to->tensor->file_off + row_idx * bytes,
                               .bytes = n_rows * bytes};
    return true;
}

static int fill(struct loader *l, const struct loader_piece *p, const void *data)
{
    const struct loader_target *to = p->target;
    uint32_t n = (uint32_t)to->tensor->dims[0];

    if (to->weight) {
        l->ops->weight_fill(to->weight, to->part_idx, p->row_idx, p->n_rows, data);
        return 0;
    }
    dequant_row(to->values, data, to->tensor->dtype, n);
    /* Unbounded ones may be anything, NaN too. */
    for (uint32_t i = 0; i < n && to->least > -INFINITY; i++)
        if (!(to->values[i] >= to->least && to->values[i] <= to->most))
            return model_refuse(l->message, -EINVAL,
                                "%s: tensor '%s': value %" PRIu32 " is %g; %g to %g is possible",
                                gguf_path(l->g), to->tensor->name, i, (double)to->values[i],
                                (double)to->least, (double)to->most);
    return 0;
}

static void add_to_digest(XXH3_state_t *digest, const struct loader_piece *p, const void *data)
{
    const struct gguf_tensor *t = p->target->tensor;

    if (p->row_idx == 0) {
        XXH3_128bits_update(digest, t->name, strlen(t->name) + 1);
        XXH3_128bits_update(digest, &t->dtype, sizeof t->dtype);
        XXH3_128bits_update(digest, t->dims, sizeof t->dims);
    }
    XXH3_128bits_update(digest, data, p->bytes);
}

/* The next piece, which there is. */
static int read_piece(struct loader *l)
{
    const struct loader_piece *p = &l->taken;
    const void *data;

    for (; l->more && reader_has_room(l->reader); l->more = next_piece(l, &l->asked))
        reader_ask(l->reader, l->asked.file_off, l->asked.bytes);
    ssize_t n = reader_take(l->reader, &data);
    if (n < 0)
        return model_refuse(l->message, (int)n,
                            "%s: tensor '%s': cannot read at byte %" PRIu64 ": %s", gguf_path(l->g),
                            p->target->tensor->name, p->file_off, strerror((int)-n));
    if ((size_t)n < p->bytes)
        return model_refuse(l->message, -EINVAL,
                            "%s: tensor '%s' at byte %" PRIu64
                            ": the file had %zu bytes when it was opened, and no more than "
                            "%" PRIu64 " when they were read; fetch it again",
                            gguf_path(l->g), p->target->tensor->name, p->target->tensor->file_off,
                            gguf_bytes(l->g), p->file_off + (uint64_t)n);
    add_to_digest(l->digest, p, data);
    int r = fill(l, p, data);
    if (r)
        return r;
    l->done_bytes += p->bytes;
    if (l->how.progress && l->how.progress(l->how.progress_ctx, l->done_bytes, l->total_bytes))
        return model_refuse(l->message, -ECANCELED, "%s: the load was ended", gguf_path(l->g));
    return 0;
}

static int make_buffers(struct loader *l)
{
    for (uint32_t i = 0; i < l->n_buffers; i++) {
        const struct loader_buffer *b = &l->buffers[i];
        size_t bytes = b->n * sizeof b->values[0];
        void *data;
        int r = l->ops->buffer_new(l->backend, &data, bytes, b->values);

        if (r)
            return model_refuse(l->message, r, "%s: no memory for a vector of %zu bytes",
                                gguf_path(l->g), bytes);
        *b->vectorp = data;
    }
    return 0;
}

static int check_all_asked(const struct loader *l)
{
    for (uint32_t i = 0; i < gguf_n_tensors(l->g); i++) {
        const struct gguf_tensor *t = l->targets[i].tensor;

        if (!l->targets[i].weight && !l->targets[i].values)
            return model_refuse(l->message, -ENOTSUP,
                                "%s: tensor '%s' at byte %" PRIu64
                                " is none that a %s model has here; this variant is not supported",
                                gguf_path(l->g), t->name, t->file_off, l->config->arch->name);
    }
    return 0;
}

static int compare_places(const void *a, const void *b)
{
    const struct loader_target *x = a, *y = b;

    return (x->tensor->file_off > y->tensor->file_off) -
           (x->tensor->file_off < y->tensor->file_off);
}

int loader_begin(struct loader *l, const struct loader_how *how, XXH3_state_t *digest)
{
    size_t piece_bytes = PIECE_BYTES;
    int r = check_all_asked(l);

    if (r)
        return r;
    for (uint32_t i = 0; i < gguf_n_tensors(l->g); i++) {
        l->total_bytes += l->targets[i].tensor->bytes;
        if (row_bytes(&l->targets[i]) > piece_bytes)
            piece_bytes = row_bytes(&l->targets[i]);
    }
    qsort(l->targets, gguf_n_tensors(l->g), sizeof l->targets[0], compare_places);
    l->how = *how;
    l->digest = digest;
    l->more = next_piece(l, &l->asked);
    r = reader_new(&l->reader, gguf_fd(l->g), piece_bytes, how->without_uring);
    return r ? model_refuse(l->message, r, "%s: no memory for pieces of %zu bytes", gguf_path(l->g),
                            piece_bytes)
             : 0;
}

int loader_some(struct loader *l, uint64_t n_bytes)
{
    uint64_t until = n_bytes < l->total_bytes ? l->done_bytes + n_bytes : l->total_bytes;

    do {
        if (!next_piece(l, &l->taken))
            return make_buffers(l);
        int r = read_piece(l);

        if (r)
            return r;
    } while (l->done_bytes < until);
    return LOADER_MORE;
}
