/* fake_model.h - a model whose steps a test scripts, for tests that drive the engine.
 *
 * Each step is recorded and passed to the test's own function, which writes the samples. All of it
 * is static: every .c that includes it has its own. */
#ifndef CB_TESTS_FAKE_MODEL_H
#define CB_TESTS_FAKE_MODEL_H

#include <stdlib.h>

#include "daemon/model/model_ops.h"
#include "daemon/model/vocabulary.h"

struct fake_model {
    struct model model; /* first */
    struct vocab_image *vocab;
    void *ctx;
    /* Samples of a step: 0, or a negative errno that the step fails with. */
    int (*run)(void *ctx, const struct step *step, const struct sample_params *params,
               struct sample *samples);
    /* May be NULL: what populate and clear_block return; then they return 0. */
    int (*prepare)(void *ctx, uint32_t block_idx, bool clear); /* of group 0 */
    /* May be NULL: what copy_block returns; then it returns 0. */
    int (*copy)(void *ctx, uint32_t group, uint32_t from_idx, uint32_t to_idx);
    const struct step *step; /* in flight */
    const struct sample_params *params;
    uint32_t polls_needed; /* polls that answer RUNNING before a step is done */
    uint32_t polls_left;
    uint64_t ticket;
};

static void fake_free(struct model *m)
{
    struct fake_model *f = (struct fake_model *)m;
    vocab_image_free(f->vocab);
    free(f);
}

static int fake_populate(struct model *m, uint32_t block_idx, uint32_t n_blocks)
{
    struct fake_model *f = (struct fake_model *)m;
    for (uint32_t i = 0; i < n_blocks; i++) {
        int r = f->prepare ? f->prepare(f->ctx, block_idx + i, false) : 0;
        if (r)
            return r;
    }
    return 0;
}

static int fake_clear_block(struct model *m, uint32_t group, uint32_t block_idx)
{
    struct fake_model *f = (struct fake_model *)m;
    return f->prepare && group == 0 ? f->prepare(f->ctx, block_idx, true) : 0;
}

static int fake_copy_block(struct model *m, uint32_t group, uint32_t from_idx, uint32_t to_idx)
{
    struct fake_model *f = (struct fake_model *)m;
    return f->copy ? f->copy(f->ctx, group, from_idx, to_idx) : 0;
}

static int fake_step_submit(struct model *m, const struct step *step,
                            const struct sample_params *params, uint64_t *ticketp)
{
    struct fake_model *f = (struct fake_model *)m;
    f->step = step;
    f->params = params;
    f->polls_left = f->polls_needed;
    *ticketp = ++f->ticket;
    return 0;
}

static int fake_step_poll(struct model *m, uint64_t ticket, struct sample *samples)
{
    struct fake_model *f = (struct fake_model *)m;
    if (ticket != f->ticket)
        return -1;
    if (f->polls_left > 0) {
        f->polls_left--;
        return MODEL_STEP_RUNNING;
    }
    return f->run(f->ctx, f->step, f->params, samples);
}

/* NULL: no memory. model_free() frees it. */
static struct fake_model *fake_model_new(uint32_t n_vocab, uint32_t n_blocks, uint32_t page_size,
                                         uint32_t n_context)
{
    static const struct model_ops ops = {.free = fake_free,
                                         .populate = fake_populate,
                                         .clear_block = fake_clear_block,
                                         .copy_block = fake_copy_block,
                                         .step_submit = fake_step_submit,
                                         .step_poll = fake_step_poll};
    struct fake_model *f = calloc(1, sizeof *f);
    if (!f || vocab_image_null(&f->vocab, n_vocab)) {
        free(f);
        return NULL;
    }
    f->model.ops = &ops;
    f->model.vocab = f->vocab;
    f->model.info = (struct model_info){.name = "fake",
                                        .arch = "fake",
                                        .n_vocab = n_vocab,
                                        .n_context = n_context,
                                        .n_blocks = n_blocks,
                                        .page_size = page_size,
                                        .block_bytes = page_size,
                                        .n_groups = 1,
                                        .groups = {{.blocks_per_sector = 1}},
                                        .bos = UINT32_MAX};
    return f;
}

#endif
