/* daemon/model/forward.c - opens a file over a backend, and runs steps.
 *
 * Opening is one road of small stages, each of which fills a part of struct forward; whatever
 * fails, forward_free undoes the parts that are there. The file is closed in the end: nothing
 * points into it.
 *
 * The head is run for all outputs at once when no row of logits is wanted, else for LOGIT_ROWS at a
 * time, so that the logits, by far the widest rows, take a few MiB however many requests sample at
 * once. A row's result does not depend on its company, so this cannot be seen in the results. */
#include "daemon/model/forward.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/forward_state.h"
#include "daemon/model/gguf.h"
#include "daemon/model/memory.h"
#include "daemon/model/vocabulary.h"

#define LOGIT_ROWS 32u

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* Of one run of the head: whoever wants no logits is the only output of its sequence. */
static uint32_t max_outputs(const struct forward *f)
{
    return larger(f->max_seqs, LOGIT_ROWS);
}

static uint32_t qkv_rows(const struct config *c)
{
    return (c->n_heads + 2 * c->n_kv_heads) * c->head_dim;
}

static uint32_t widest_row(const struct config *c)
{
    return larger(larger(c->n_embd, c->n_ff), qkv_rows(c));
}

/* What opening needs and a step does not. */
struct opening {
    struct forward *f;
    const struct model_config *config;
    struct gguf *g;
    char *message;
};

/* ---- opening --------------------------------------------------------------------------------- */

static int open_vocab(struct opening *o)
{
    struct forward *f = o->f;
    const struct cb_vocab *v;
    uint32_t ends[2];
    int r = vocab_image_from_gguf(&f->vocab, o->g, o->message);

    if (r)
        return r;
    f->model.vocab = f->vocab;
    v = vocab_image_view(f->vocab);
    if (v->n_tokens != f->config.n_vocab)
        return model_refuse(o->message, -EINVAL,
                            "%s: tensor 'token_embd.weight' has %" PRIu32
                            " rows for the vocabulary's %" PRIu32
                            " tokens: convert the model again",
                            gguf_path(o->g), f->config.n_vocab, v->n_tokens);
    f->model.info.bos = v->header->bos;
    f->model.info.add_bos = (v->header->flags & CB_VOCAB_ADD_BOS) != 0;
    ends[0] = v->header->eos;
    ends[1] = v->header->eot;
    for (int i = 0; i < 2; i++)
        if (ends[i] != CB_VOCAB_NONE && (i == 0 || ends[1] != ends[0]))
            f->model.info.eos[f->model.info.n_eos++] = ends[i];
    return 0;
}

static int open_backend(struct opening *o)
{
    struct forward *f = o->f;
    const char *why = "cannot be opened";
    int r;

    f->ops = backend_find(o->config->backend);
    if (!f->ops)
        return model_refuse(o->message, -ENOTSUP, "backend '%s' is not known", o->config->backend);
    r = f->ops->open(&f->backend, &o->config->backend_config, &why);
    if (r)
        return model_refuse(o->message, r, "backend '%s': %s", f->ops->name, why);
    return 0;
}

/* Bytes of everything but the cache: close enough for the question whether it fits. The stream's
 * own scratch is the backend's secret; a few activations' worth stands for it. */
static uint64_t fixed_bytes(const struct opening *o)
{
    const struct config *c = &o->f->config;
    uint64_t row = 2 * scratch_row_stride(c->n_embd) + scratch_row_stride(c->n_ff) +
                   2 * scratch_row_stride(c->n_heads * c->head_dim) +
                   2 * scratch_row_stride(widest_row(c));
    uint64_t bytes = row * o->f->max_tokens;

    for (uint32_t i = 0; i < gguf_n_tensors(o->g); i++)
        bytes += gguf_tensor_at(o->g, i)->bytes;
    bytes += (uint64_t)LOGIT_ROWS * scratch_row_stride(c->n_vocab);
    return bytes + (uint64_t)c->n_context * c->rope_dims * sizeof(float);
}

/* The pool is the end of the same memory: one sweep moves a block there, or back. */
static uint32_t choose_pool(const struct opening *o, const struct memory_plan *plan)
{
    uint64_t used = plan->fixed_bytes + o->f->model.info.n_blocks * plan->block_bytes;
    struct memory_pool pool = {.available_bytes = plan->available_bytes,
                               .wanted_bytes = o->config->pool_bytes,
                               .share = o->config->pool_share,
                               .block_bytes = plan->block_bytes};

    if (pool.available_bytes != MEMORY_UNKNOWN)
        pool.available_bytes -= used < pool.available_bytes ? used : pool.available_bytes;
    return memory_choose_pool(&pool);
}

static int plan_cache(struct opening *o, struct kv_shape *shape)
{
    struct forward *f = o->f;
    struct model_info *info = &f->model.info;
    struct memory_plan plan;
    int r;

    *shape = (struct kv_shape){
        .n_layers = f->config.n_layers,
        .n_kv_heads = f->config.n_kv_heads,
        .head_dim = f->config.head_dim,
        .page_size = o->config->page_size,
        .n_pages = 1,
        .dtype = o->config->kv_dtype,
    };
    info->page_size = shape->page_size;
    info->block_bytes = f->ops->kv_page_bytes(shape);
    info->n_groups = 1;
    info->groups[0].blocks_per_sector = 1;
    plan = (struct memory_plan){
        .available_bytes = memory_available(""),
        .fixed_bytes = fixed_bytes(o),
        .block_bytes = info->block_bytes,
        .blocks_a_context = (f->config.n_context - 1) / shape->page_size + 1,
        .n_blocks = o->config->n_blocks,
        .max_memory_percent = o->config->max_memory_percent,
    };
    r = memory_choose(&plan, &info->n_blocks, o->message);
    if (r)
        return r;
    /* Slots are numbered in 32 bits, the last of which means none. */
    if (info->n_blocks > (KERNELS_NO_SLOT - 1) / shape->page_size) {
        if (o->config->n_blocks)
            return model_refuse(o->message, -EINVAL,
                                "num_blocks is %" PRIu32 "; up to %" PRIu32 " blocks of %" PRIu32
                                " tokens are possible",
                                info->n_blocks, (KERNELS_NO_SLOT - 1) / shape->page_size,
                                shape->page_size);
        info->n_blocks = (KERNELS_NO_SLOT - 1) / shape->page_size;
    }
    info->n_pool_blocks = choose_pool(o, &plan);
    shape->n_pages = info->n_blocks + info->n_pool_blocks;
    return 0;
}

static int load_weights(struct opening *o)
{
    struct forward *f = o->f;
    uint64_t n_positions = (uint64_t)f->model.info.n_blocks * f->model.info.page_size;
    const struct loader_how how = {.without_uring = o->config->without_uring,
                                   .progress = o->config->progress,
                                   .progress_ctx = o->config->progress_ctx};
    const struct forward_source source = {.g = o->g, .how = &how, .message = o->message};
    struct forward_loading loading;

    f->kv_dtype = o->config->kv_dtype;
    /* No sequence is longer than the whole cache. */
    if (n_positions > f->config.n_context)
        n_positions = f->config.n_context;
    int r = forward_load_begin(f, &loading, &source);
    if (!r)
        do
            r = forward_load_some(f, &loading, UINT64_MAX, (uint32_t)n_positions, o->message);
        while (r == LOADER_MORE);
    f->weights = loading.weights; /* half of it as well: forward_free frees it */
    loading.weights = (struct weights){0};
    memcpy(f->model.info.fingerprint, loading.fingerprint, sizeof loading.fingerprint);
    forward_load_drop(&loading);
    return r;
}

static int make_scratch(struct opening *o)
{
    struct forward *f = o->f;
    const struct config *c = &f->config;
    const struct stream_shape shape = {
        .max_tokens = f->max_tokens,
        .max_seqs = f->max_seqs,
        .max_outputs = max_outputs(f),
        .max_cols = widest_row(c),
        .n_vocab = c->n_vocab,
        .n_heads = c->n_heads,
        .head_dim = c->head_dim,
        .max_context = f->weights.rope.n_positions,
    };
    int r = f->ops->stream_new(f->backend, &f->stream, &shape);

    if (r)
        return model_refuse(o->message, r, "no memory for a stream of %" PRIu32 " tokens a step",
                            f->max_tokens);
    return scratch_init(&f->scratch, f->ops, f->backend, c, f->max_tokens, max_outputs(f),
                        LOGIT_ROWS, o->message);
}

/* The name is foreign bytes that others print. */
static int name_model(struct opening *o)
{
    struct model_info *info = &o->f->model.info;
    struct gguf_string name;
    const char *slash = strrchr(gguf_path(o->g), '/');
    int r = gguf_string(o->g, "general.name", &name, o->message);

    if (r < 0)
        return r;
    if (r == GGUF_MISSING) {
        name.data = slash ? slash + 1 : gguf_path(o->g);
        name.n = strlen(name.data);
    }
    for (size_t i = 0; i < name.n && i < sizeof info->name - 1; i++)
        info->name[i] = name.data[i] >= 0x20 && name.data[i] < 0x7f ? name.data[i] : '?';
    strncpy(info->arch, o->f->config.arch->name, sizeof info->arch - 1);
    info->n_vocab = o->f->config.n_vocab;
    info->n_context = o->f->config.n_context;
    info->n_layers = o->f->config.n_layers;
    return 0;
}

static int open_parts(struct opening *o)
{
    struct forward *f = o->f;
    struct kv_shape shape;
    const char *why = "the backend refused it";
    int r = config_read(&f->config, o->g, o->message);

    if (!r)
        r = name_model(o);
    if (!r)
        r = open_vocab(o);
    if (!r)
        r = open_backend(o);
    if (!r)
        r = plan_cache(o, &shape);
    if (r)
        return r;
    r = f->ops->kv_new(f->backend, &f->kv, &shape, &why);
    if (r)
        return model_refuse(
            o->message, r, "cache of %" PRIu32 " blocks of %" PRIu32 " tokens (%s): %s: %s",
            shape.n_pages, shape.page_size, dtype_name(shape.dtype), why, strerror(-r));
    f->model.info.pool_pin_error =
        -f->ops->kv_pin(f->kv, f->model.info.n_blocks, f->model.info.n_pool_blocks);
    r = load_weights(o);
    if (!r)
        r = make_scratch(o);
    if (r)
        return r;
    f->ops->caps(f->backend, &f->model.info.caps);
    f->model.info.weight_bytes = f->model.info.caps.weight_bytes;
    f->model.info.file_bytes = gguf_bytes(o->g);
    return 0;
}

/* ---- a step ---------------------------------------------------------------------------------- */

static struct forward *forward_of(struct model *m)
{
    return (struct forward *)m; /* first in it */
}

/* All layers: f->scratch.y holds the residual stream of the step's outputs. */
static int run_layers(struct forward *f, const struct step *step)
{
    const struct pass pass = {
        .config = &f->config,
        .weights = &f->weights,
        .ops = f->ops,
        .stream = f->stream,
        .kv = f->kv,
        .x = &f->scratch.x,
        .q = &f->scratch.q,
        .o = &f->scratch.o,
        .h = &f->scratch.h,
        .y = &f->scratch.y,
    };

    assert(step->n_tokens >= 1 && step->n_tokens <= f->max_tokens);
    assert(step->n_seqs <= f->max_seqs);
    f->scratch.x.n_rows = f->scratch.q.n_rows = f->scratch.o.n_rows = f->scratch.h.n_rows =
        step->n_tokens;
    f->scratch.y.n_rows = step->n_outputs;
    return f->config.arch->step(&pass, step);
}

/* The head over outputs [first, first + n) of the step, to rows and logits [0, n). */
static int run_head(struct forward *f, const struct step *step, uint32_t first, uint32_t n,
                    struct tensor *logits, const uint8_t *want_logits)
{
    struct step part = *step;
    const struct head_args args = {
        .step = &part,
        .norm_w = f->weights.output_norm,
        .norm_eps = f->config.norm_eps,
        .want_logits = want_logits,
    };

    part.output_token_idx = f->scratch.output_idx + first;
    part.n_outputs = n;
    logits->n_rows = n;
    return f->ops->head(f->stream, logits, f->scratch.rows, &f->scratch.y, f->weights.head, &args);
}

static int forward_step_submit(struct model *m, const struct step *step,
                               const struct sample_params *params, uint64_t *ticketp)
{
    struct forward *f = forward_of(m);
    uint32_t n_wanted = 0, n_chunk;
    int r;

    assert(step->n_outputs <= f->max_tokens);
    for (uint32_t i = 0; i < step->n_outputs; i++) {
        f->scratch.want_logits[i] = sample_reads_logits(&params[i]);
        n_wanted += f->scratch.want_logits[i];
    }
    n_chunk = n_wanted ? LOGIT_ROWS : step->n_outputs;
    assert(n_wanted || step->n_outputs <= max_outputs(f));
    r = run_layers(f, step);
    for (uint32_t i = 0; i < step->n_outputs && !r; i += n_chunk) {
        uint32_t n = step->n_outputs - i < n_chunk ? step->n_outputs - i : n_chunk;

        r = run_head(f, step, i, n, &f->scratch.logits, f->scratch.want_logits + i);
        if (!r)
            r = f->ops->sample(f->stream, f->scratch.samples + i, &f->scratch.logits,
                               f->scratch.rows, params + i, n);
    }
    if (r)
        return r;
    f->n_samples = step->n_outputs;
    *ticketp = ++f->ticket;
    return 0;
}

static int forward_step_poll(struct model *m, uint64_t ticket, struct sample *samples)
{
    struct forward *f = forward_of(m);

    assert(ticket == f->ticket);
    memcpy(samples, f->scratch.samples, f->n_samples * sizeof f->scratch.samples[0]);
    return 0;
}

static bool forward_errand(struct model *m, void (*fn)(void *arg), void *arg)
{
    struct forward *f = forward_of(m);

    if (f->ops->errand)
        return f->ops->errand(f->backend, fn, arg);
    fn(arg);
    return true;
}

static void forward_settle(struct model *m)
{
    struct forward *f = forward_of(m);

    if (f->ops->settle)
        f->ops->settle(f->backend);
}

static int forward_populate(struct model *m, uint32_t block_idx, uint32_t n_blocks)
{
    return forward_of(m)->ops->kv_populate(forward_of(m)->kv, block_idx, n_blocks);
}

static int forward_copy_block(struct model *m, uint32_t group, uint32_t from_idx, uint32_t to_idx)
{
    const struct page_copy copy = {.from_page = from_idx, .to_page = to_idx};

    assert(group == 0);
    return forward_of(m)->ops->kv_copy(forward_of(m)->kv, &copy, 1);
}

static void forward_free(struct model *m)
{
    struct forward *f = forward_of(m);

    if (f->backend) {
        scratch_fini(&f->scratch);
        if (f->stream)
            f->ops->stream_free(f->stream);
        if (f->kv)
            f->ops->kv_free(f->kv);
        forward_reload_drop(&f->model);
        weights_fini(&f->weights);
        f->ops->close(f->backend);
    }
    vocab_image_free(f->vocab);
    free(f);
}

static const struct model_ops forward_ops = {
    .free = forward_free,
    .populate = forward_populate,
    .copy_block = forward_copy_block,
    .step_submit = forward_step_submit,
    .step_poll = forward_step_poll,
    .errand = forward_errand,
    .settle = forward_settle,
    .reload_begin = forward_reload_begin,
    .reload_some = forward_reload_some,
    .reload_publish = forward_reload_publish,
    .reload_drop = forward_reload_drop,
};

int forward_open(struct model **modelp, const struct model_config *config, char *message)
{
    struct opening o = {.config = config, .message = message};
    int r;

    kernels_thread_init();
    o.f = calloc(1, sizeof *o.f);
    if (!o.f)
        return model_refuse(message, -ENOMEM, "%s: no memory", config->path);
    o.f->model.ops = &forward_ops;
    o.f->max_tokens = config->max_batch_tokens;
    o.f->max_seqs = config->max_batch_seqs;
    r = gguf_open(&o.g, config->path, message);
    if (!r)
        r = open_parts(&o);
    gguf_free(o.g);
    if (r) {
        forward_free(&o.f->model);
        return r;
    }
    *modelp = &o.f->model;
    return 0;
}

int forward_logits(struct model *m, const struct step *step, float *logits)
{
    struct forward *f = forward_of(m);
    int r;

    assert(m->ops == &forward_ops);
    r = run_layers(f, step);
    for (uint32_t i = 0; i < step->n_outputs && !r; i += LOGIT_ROWS) {
        uint32_t n = step->n_outputs - i < LOGIT_ROWS ? step->n_outputs - i : LOGIT_ROWS;
        struct tensor part = f->scratch.logits;

        r = run_head(f, step, i, n, &part, NULL);
        for (uint32_t j = 0; j < n && !r; j++)
            memcpy(logits + (size_t)(i + j) * f->config.n_vocab,
                   (const char *)part.data + j * part.stride_bytes,
                   f->config.n_vocab * sizeof *logits);
    }
    return r;
}
