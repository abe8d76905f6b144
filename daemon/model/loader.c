/* daemon/model/loader.c */
#include "daemon/model/loader.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/message.h"
#include "kernels/dequant.h"

int loader_init(struct loader *l, const struct gguf *g, const struct config *config,
                const struct backend_ops *ops, struct backend *backend, char *message)
{
    *l = (struct loader){
        .g = g, .config = config, .ops = ops, .backend = backend, .message = message};
    l->used = calloc(gguf_n_tensors(g) + 1u, sizeof l->used[0]);
    if (!l->used)
        return model_refuse(message, -ENOMEM, "%s: no memory", gguf_path(g));
    return 0;
}

void loader_fini(struct loader *l)
{
    free(l->used);
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

/* The tensor of that name and shape, or NULL with message. n_rows 1 is a vector. */
static const struct gguf_tensor *find(struct loader *l, uint32_t layer, const char *name,
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
    l->used[t - gguf_tensor_at(l->g, 0)] = true;
    return t;
}

int loader_weight(struct loader *l, struct weight **weightp, enum weight_use use, uint32_t layer,
                  const struct loader_part *parts, uint32_t n_parts, uint32_t n_cols)
{
    char full[GGUF_NAME_MAX + 1];
    struct weight_spec spec = {.name = full, .use = use, .n_cols = n_cols, .n_parts = n_parts};
    const char *why = "the backend refused it";
    int r;

    for (uint32_t i = 0; i < n_parts; i++) {
        const struct gguf_tensor *t =
            find(l, layer, parts[i].name, "weight", parts[i].n_rows, n_cols);

        if (!t)
            return -EINVAL;
        spec.parts[i] =
            (struct weight_part){.data = t->data, .dtype = t->dtype, .n_rows = parts[i].n_rows};
    }
    build_name(full, layer, parts[0].name, "weight");
    r = l->ops->weight_new(l->backend, weightp, &spec, &why);
    if (r)
        return model_refuse(l->message, r, "%s: tensor '%s' (%s): %s: %s", gguf_path(l->g), full,
                            dtype_name(spec.parts[0].dtype), why, strerror(-r));
    return 0;
}

int loader_host_vector(struct loader *l, float *values, uint32_t layer, const char *name,
                       const char *suffix, uint32_t n)
{
    const struct gguf_tensor *t = find(l, layer, name, suffix, 1, n);

    if (!t)
        return -EINVAL;
    if (t->dtype != DTYPE_F32 && t->dtype != DTYPE_F16 && t->dtype != DTYPE_BF16)
        return model_refuse(l->message, -ENOTSUP,
                            "%s: tensor '%s' at byte %" PRIu64
                            " is a vector of type %s, which is not supported; supported: F32, F16, "
                            "BF16",
                            gguf_path(l->g), t->name, t->file_off, dtype_name(t->dtype));
    dequant_row(values, t->data, t->dtype, n);
    return 0;
}

int loader_vector(struct loader *l, float **vectorp, uint32_t layer,
                  const struct loader_part *parts, uint32_t n_parts, const char *suffix)
{
    size_t n = 0, at = 0;
    float *values;
    void *data;
    int r = 0;

    for (uint32_t i = 0; i < n_parts; i++)
        n += parts[i].n_rows;
    values = malloc(n * sizeof *values);
    if (!values)
        return model_refuse(l->message, -ENOMEM, "%s: no memory", gguf_path(l->g));
    for (uint32_t i = 0; i < n_parts && !r; i++) {
        r = loader_host_vector(l, values + at, layer, parts[i].name, suffix, parts[i].n_rows);
        at += parts[i].n_rows;
    }
    if (!r) {
        r = l->ops->buffer_new(l->backend, &data, n * sizeof *values, values);
        if (r)
            model_refuse(l->message, r, "%s: no memory for '%s'", gguf_path(l->g), parts[0].name);
        else
            *vectorp = data;
    }
    free(values);
    return r;
}

int loader_check_all_used(struct loader *l)
{
    for (uint32_t i = 0; i < gguf_n_tensors(l->g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(l->g, i);

        if (!l->used[i])
            return model_refuse(l->message, -ENOTSUP,
                                "%s: tensor '%s' at byte %" PRIu64
                                " is none that a %s model has here; this variant is not supported",
                                gguf_path(l->g), t->name, t->file_off, l->config->arch->name);
    }
    return 0;
}
