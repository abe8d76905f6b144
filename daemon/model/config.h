/* daemon/model/config.h - the hyperparameters of a model file, checked.
 *
 * What config_read returns is within bounds that keep every product of two fields below 2^32 and
 * make every division exact; the rest of the model code relies on it. */
#ifndef CB_DAEMON_MODEL_CONFIG_H
#define CB_DAEMON_MODEL_CONFIG_H

#include <stdint.h>

#include "daemon/model/arch.h"
#include "daemon/model/gguf.h"

struct config {
    const struct arch *arch;
    uint32_t n_layers, n_embd, n_ff, n_vocab;
    uint32_t n_heads, n_kv_heads; /* n_heads is a multiple of n_kv_heads */
    uint32_t head_dim;
    uint32_t n_context;
    float norm_eps;
    uint32_t rope_dims; /* even, at most head_dim                              */
    double rope_base;
    double rope_factor; /* linear scaling: positions are divided by it; 1: none */
};

/* 0; -ENOTSUP: an architecture or a variant that we do not know, named in message; -EINVAL: keys
 * are missing or out of bounds, named in message. */
int config_read(struct config *c, const struct gguf *g, char *message);

#endif
