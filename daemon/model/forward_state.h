/* daemon/model/forward_state.h - a model of forward.h from the inside, for forward.c and
 * forward_load.c. */
#ifndef CB_DAEMON_MODEL_FORWARD_STATE_H
#define CB_DAEMON_MODEL_FORWARD_STATE_H

#include "daemon/model/forward.h"
#include "daemon/model/loader.h"
#include "daemon/model/model_ops.h"
#include "daemon/model/scratch.h"

/* A set of weights on its way from a file to the backend. */
struct forward_loading {
    struct weights weights;
    struct loader loader;
    XXH3_state_t *digest;
    bool is_read; /* but for the rotations nothing is missing */
    uint64_t fingerprint[2];
};

struct forward {
    struct model model; /* first: model.h's calls are handed this */
    const struct backend_ops *ops;
    struct backend *backend;
    struct vocab_image *vocab;
    struct config config;
    struct weights weights;
    struct kv *kv;
    enum dtype kv_dtype;
    struct stream *stream;
    uint32_t max_tokens, max_seqs;
    struct scratch scratch;
    uint32_t n_samples;
    uint64_t ticket;               /* of the last step */
    struct forward_reload *reload; /* other weights on their way; NULL: none are */
};

/* ---- forward_load.c -------------------------------------------------------------------------- */

struct forward_source {
    const struct gguf *g;
    const struct loader_how *how;
    char *message;
};

/* Begins to load a whole set of weights of f's configuration: 0 or a negative errno with message.
 * *loading is the caller's to drop in any case; g must live as long. */
int forward_load_begin(struct forward *f, struct forward_loading *loading,
                       const struct forward_source *source);
/* Goes on, by about so many bytes: 0: all is there, rotations for n_positions and the digest of all
 * that decides its results too; LOADER_MORE; or a negative errno with message. */
int forward_load_some(struct forward *f, struct forward_loading *loading, uint64_t n_bytes,
                      uint32_t n_positions, char *message);
/* Frees all that is still there; zeroed is fine. */
void forward_load_drop(struct forward_loading *loading);

/* model_reload_* of such a model. */
int forward_reload_begin(struct model *m, int fd, const char *name, char *message);
int forward_reload_some(struct model *m, char *message);
void forward_reload_publish(struct model *m);
void forward_reload_drop(struct model *m);

#endif
