/* daemon/model/loader.h - moves tensors from a file to a backend: by name, with the shape they must
 * have.
 *
 * Every refusal names the tensor and its place in the file. What is loaded is copied or repacked,
 * so the file can be closed afterwards. A tensor that nobody asked for is refused in the end: a
 * model that leaves one out (a bias, say) would run and answer nonsense. */
#ifndef CB_DAEMON_MODEL_LOADER_H
#define CB_DAEMON_MODEL_LOADER_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/model/config.h"
#include "daemon/model/gguf.h"
#include "kernels/kernels.h"

#define LOADER_NO_LAYER 0xffffffffu

struct loader {
    const struct gguf *g;
    const struct config *config;
    const struct backend_ops *ops;
    struct backend *backend;
    char *message;
    bool *used; /* [gguf_n_tensors] */
};

/* One part of a weight: the tensor "NAME.weight", in layer i "blk.i.NAME.weight". */
struct loader_part {
    const char *name;
    uint32_t n_rows;
};

/* 0 or -ENOMEM with message. config and g are kept. */
int loader_init(struct loader *l, const struct gguf *g, const struct config *config,
                const struct backend_ops *ops, struct backend *backend, char *message);
void loader_fini(struct loader *l);

bool loader_has(const struct loader *l, uint32_t layer, const char *name, const char *suffix);

/* Packs 1 to 3 parts of n_cols columns into one weight. 0 or a negative errno with message. */
int loader_weight(struct loader *l, struct weight **weightp, enum weight_use use, uint32_t layer,
                  const struct loader_part *parts, uint32_t n_parts, uint32_t n_cols);

/* A vector "NAME.SUFFIX" of F32, F16 or BF16, as f32 in memory of the backend; parts lie one after
 * the other. */
int loader_vector(struct loader *l, float **vectorp, uint32_t layer,
                  const struct loader_part *parts, uint32_t n_parts, const char *suffix);

/* The same into n floats of the caller's. */
int loader_host_vector(struct loader *l, float *values, uint32_t layer, const char *name,
                       const char *suffix, uint32_t n);

/* After the last: 0, or -ENOTSUP with message if the file has more. */
int loader_check_all_used(struct loader *l);

#endif
