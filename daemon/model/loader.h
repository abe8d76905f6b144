/* daemon/model/loader.h - moves tensors from a file to a backend: by name, with the shape they must
 * have.
 *
 * First a family says what it wants of the file and where it shall go; then it is read from front to
 * back, at once or bit by bit. Nothing is filled before. Every refusal names the tensor and its place in the
 * file. What is loaded is copied or repacked, so the file can be closed afterwards. A tensor that
 * nobody asked for is refused: a model that leaves one out (a bias, say) would run and answer
 * nonsense. */
#ifndef CB_DAEMON_MODEL_LOADER_H
#define CB_DAEMON_MODEL_LOADER_H

#include <stdbool.h>
#include <stdint.h>
#include <xxhash.h>

#include "daemon/model/config.h"
#include "daemon/model/gguf.h"
#include "kernels/kernels.h"

#define LOADER_NO_LAYER 0xffffffffu

struct loader_target;
struct loader_buffer;
struct reader;

/* Rows [row_idx, row_idx + n_rows) of a tensor. A vector is one row. */
struct loader_piece {
    const struct loader_target *target;
    uint32_t row_idx, n_rows;
    uint64_t file_off;
    size_t bytes;
};

struct loader_how {
    bool without_uring;
    /* Called after each piece, of which there are many; may be NULL. Not 0: the load ends. */
    int (*progress)(void *progress_ctx, uint64_t done_bytes, uint64_t total_bytes);
    void *progress_ctx;
};

struct loader {
    const struct gguf *g;
    const struct config *config;
    const struct backend_ops *ops;
    struct backend *backend;
    char *message;
    struct loader_target *targets; /* [gguf_n_tensors] where each tensor goes  */
    struct loader_buffer *buffers; /* [gguf_n_tensors] vectors in the backend's memory */
    uint32_t n_buffers;
    /* Of the pass over the file. */
    struct loader_how how;
    struct reader *reader;
    XXH3_state_t *digest;
    struct loader_piece asked, taken;
    bool more; /* to ask */
    uint64_t done_bytes, total_bytes;
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

/* Makes one weight of 1 to 3 parts of n_cols columns. 0 or a negative errno with message. */
int loader_weight(struct loader *l, struct weight **weightp, enum weight_use use, uint32_t layer,
                  const struct loader_part *parts, uint32_t n_parts, uint32_t n_cols);

/* A vector "NAME.SUFFIX" of F32, F16 or BF16, as f32 in memory of the backend; parts lie one after
 * the other. *vectorp is written when all is read. */
int loader_vector(struct loader *l, float **vectorp, uint32_t layer,
                  const struct loader_part *parts, uint32_t n_parts, const char *suffix);

/* The same into n floats of the caller's, each of which must be at least `least` and at most
 * `most`. */
int loader_host_vector(struct loader *l, float *values, uint32_t layer, const char *name,
                       const char *suffix, uint32_t n, float least, float most);

/* Begins to read what was asked for, once: 0; -ENOTSUP if the file has tensors that nobody asked for;
 * or another negative errno, all with message. */
int loader_begin(struct loader *l, const struct loader_how *how, XXH3_state_t *digest);

enum { LOADER_MORE = 1 };

/* Reads on, a piece or more until they are n_bytes, and adds them to the digest on the way: name,
 * type, shape and bytes of each tensor, by their places in the file. The bytes digested are those
 * loaded, whoever writes to the file meanwhile. 0: all is there; LOADER_MORE; or a negative errno with
 * message: then no more of it. */
int loader_some(struct loader *l, uint64_t n_bytes);

#endif
