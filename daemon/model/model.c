/* daemon/model/model.c - chooses a body and passes calls on. */
#include "daemon/model/model.h"

#include <string.h>

#include "daemon/model/model_ops.h"

int model_open(struct model **modelp, const struct model_config *config, char *message)
{
    message[0] = '\0';
    if (strcmp(config->path, "null") == 0)
        return null_open(modelp, config, message);
    return forward_open(modelp, config, message);
}

struct model *model_free(struct model *m)
{
    if (m)
        m->ops->free(m);
    return NULL;
}

const struct model_info *model_info(const struct model *m)
{
    return &m->info;
}

const struct vocab_image *model_vocab(const struct model *m)
{
    return m->vocab;
}

int model_populate(struct model *m, uint32_t block_idx, uint32_t n_blocks)
{
    return m->ops->populate(m, block_idx, n_blocks);
}

int model_clear_block(struct model *m, uint32_t group, uint32_t block_idx)
{
    return m->ops->clear_block ? m->ops->clear_block(m, group, block_idx) : 0;
}

int model_copy_block(struct model *m, uint32_t group, uint32_t from_idx, uint32_t to_idx)
{
    return m->ops->copy_block(m, group, from_idx, to_idx);
}

int model_step_submit(struct model *m, const struct step *step, const struct sample_params *params,
                      uint64_t *ticketp)
{
    return m->ops->step_submit(m, step, params, ticketp);
}

int model_step_poll(struct model *m, uint64_t ticket, struct sample *samples)
{
    return m->ops->step_poll(m, ticket, samples);
}

int model_reload_begin(struct model *m, int fd, const char *name, char *message)
{
    message[0] = '\0';
    return m->ops->reload_begin(m, fd, name, message);
}

int model_reload_some(struct model *m, char *message)
{
    return m->ops->reload_some(m, message);
}

void model_reload_publish(struct model *m)
{
    m->ops->reload_publish(m);
}

void model_reload_drop(struct model *m)
{
    m->ops->reload_drop(m);
}

bool model_errand(struct model *m, void (*fn)(void *arg), void *arg)
{
    if (m->ops->errand)
        return m->ops->errand(m, fn, arg);
    fn(arg);
    return true;
}

void model_settle(struct model *m)
{
    if (m->ops->settle)
        m->ops->settle(m);
}
