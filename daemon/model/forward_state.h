/* daemon/model/forward_state.h - a model of forward.h from the inside, for forward.c and
 * forward_load.c. */
#ifndef CB_DAEMON_MODEL_FORWARD_STATE_H
#define CB_DAEMON_MODEL_FORWARD_STATE_H

#include "daemon/model/forward.h"
#include "daemon/model/model_ops.h"
#include "daemon/model/scratch.h"

struct gguf;

struct forward {
    struct model model; /* first: model.h's calls are handed this */
    const struct backend_ops *ops;
    struct backend *backend;
    struct vocab_image *vocab;
    struct config config;
    struct weights weights;
    struct kv *kv;
    enum dtype kv_dtype;
    bool without_uring;
    struct stream *stream;
    uint32_t max_tokens, max_seqs;
    struct scratch scratch;
    uint32_t n_samples;
    uint64_t ticket; /* of the last step */
};

/* ---- forward_load.c -------------------------------------------------------------------------- */

struct forward_source {
    const struct gguf *g;
    int (*progress)(void *progress_ctx, uint64_t done_bytes, uint64_t total_bytes);
    void *progress_ctx;
    char *message;
};

/* Loads a whole set of weights of f's configuration, with rotations for n_positions, and the digest of
 * all that decides its results. 0 or a negative errno with message; *w is the caller's in any case. */
int forward_load(struct forward *f, struct weights *w, const struct forward_source *source,
                 uint32_t n_positions, uint64_t fingerprint[2]);

/* model_reload of such a model. */
int forward_reload(struct model *m, int fd, const char *name, char *message);

#endif
