/* daemon/model/model_ops.h - what a body of model.h implements; only model.c and the bodies include
 * it.
 *
 * A body puts `struct model` first in its own struct, fills ops, info and vocab in its open
 * function, and frees all of it in ops->free. Meanings of the calls are model.h's. */
#ifndef CB_DAEMON_MODEL_MODEL_OPS_H
#define CB_DAEMON_MODEL_MODEL_OPS_H

#include "daemon/model/message.h"
#include "daemon/model/model.h"

struct model_ops {
    void (*free)(struct model *m); /* the body's whole struct; never NULL */
    int (*populate)(struct model *m, uint32_t block_idx, uint32_t n_blocks);
    /* NULL: a block may hold anything. */
    int (*clear_block)(struct model *m, uint32_t group, uint32_t block_idx);
    int (*copy_block)(struct model *m, uint32_t group, uint32_t from_idx, uint32_t to_idx);
    int (*step_submit)(struct model *m, const struct step *step, const struct sample_params *params,
                       uint64_t *ticketp);
    int (*step_poll)(struct model *m, uint64_t ticket, struct sample *samples);
    /* Both NULL: errands are run at once. */
    bool (*errand)(struct model *m, void (*fn)(void *arg), void *arg);
    void (*settle)(struct model *m);
    int (*reload_begin)(struct model *m, int fd, const char *name, char *message);
    int (*reload_some)(struct model *m, char *message);
    void (*reload_publish)(struct model *m);
    void (*reload_drop)(struct model *m);
};

struct model {
    const struct model_ops *ops;
    struct model_info info;
    const struct vocab_image *vocab; /* the body's to free */
};

/* model.c chooses: path "null" is null.c's, anything else a file for forward.c. 0 or a negative
 * errno with message; on 0 *modelp is to be freed by ops->free. */
int null_open(struct model **modelp, const struct model_config *config, char *message);
int forward_open(struct model **modelp, const struct model_config *config, char *message);

#endif
