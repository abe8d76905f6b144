/* The cpu backend's table. Operators go to the level that was chosen at open; what does not depend
 * on the instruction set is here or in the modules named in cpu.h. */
#include "kernels/cpu/cpu.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cores.h"
#include "kernels/cpu/isa.h"

static struct backend *backend_close(struct backend *b)
{
    if (!b)
        return NULL;
    pool_free(b->pool);
    free(b);
    return NULL;
}

static int backend_open(struct backend **backendp, const struct backend_config *config,
                        const char **why)
{
    uint32_t n_threads = config->n_threads ? config->n_threads : cores_usable();
    struct backend *b;
    int r;

    if (n_threads > POOL_THREADS_MAX) {
        *why = "threads: at most 256";
        return -EINVAL;
    }
    kernels_thread_init();
    b = calloc(1, sizeof *b);
    if (!b) {
        *why = "no memory for the backend";
        return -ENOMEM;
    }
    b->bf16_tokens = UINT32_MAX;
    b->level = isa_level(config->isa, config->batch_variant, why);
    if (!b->level) {
        backend_close(b);
        return -ENOTSUP;
    }
    if (config->batch_variant) {
        uint32_t n_tokens = isa_bf16_tokens(b->level, &b->bf16_refusal);

        b->bf16_tokens = n_tokens ? n_tokens : UINT32_MAX;
    }
    r = pool_new(&b->pool, n_threads, config->spin_us);
    if (r) {
        *why = "the system refuses the threads asked for";
        backend_close(b);
        return r;
    }
    r = config->pin_threads ? pool_pin(b->pool) : 0;
    if (r) {
        *why = r == -EBUSY ? "pin_threads: there are fewer cores than threads"
                           : "pin_threads: the system refuses to bind a thread to a core";
        backend_close(b);
        return r;
    }
    *backendp = b;
    return 0;
}

static void backend_caps(const struct backend *b, struct backend_caps *caps)
{
    *caps = (struct backend_caps){.name = "cpu",
                                  .n_threads = pool_n_threads(b->pool),
                                  .weight_bytes =
                                      atomic_load_explicit(&b->weight_bytes, memory_order_relaxed),
                                  .bf16_tokens = b->bf16_tokens == UINT32_MAX ? 0 : b->bf16_tokens,
                                  .bf16_refusal = b->bf16_refusal};
    snprintf(caps->isa, sizeof caps->isa, "%s", b->level->name);
}

static bool backend_errand(struct backend *b, void (*fn)(void *arg), void *arg)
{
    return pool_errand(b->pool, fn, arg);
}

static void backend_settle(struct backend *b)
{
    pool_settle(b->pool);
}

static int buffer_new(struct backend *b, void **datap, size_t bytes, const void *init)
{
    size_t rounded = (bytes + 63) / 64 * 64;
    void *data;

    (void)b;
    data = aligned_alloc(64, rounded ? rounded : 64);
    if (!data)
        return -ENOMEM;
    if (init)
        memcpy(data, init, bytes);
    else
        memset(data, 0, bytes);
    *datap = data;
    return 0;
}

static void *buffer_free(struct backend *b, void *data)
{
    (void)b;
    free(data);
    return NULL;
}

static const struct level *level_of(const struct stream *s)
{
    return ((const struct cpu_stream *)s)->backend->level;
}

static int op_embed(struct stream *s, struct tensor *x, const struct weight *e,
                    const int32_t *tokens, float scale)
{
    return level_of(s)->embed(s, x, e, tokens, scale);
}

static int op_rmsnorm(struct stream *s, struct tensor *y, const struct tensor *x, const float *w,
                      float eps)
{
    return level_of(s)->rmsnorm(s, y, x, w, eps);
}

static int op_qkv(struct stream *s, struct tensor *q, struct kv *kv, const struct tensor *x,
                  const struct qkv_args *args)
{
    return level_of(s)->qkv(s, q, kv, x, args);
}

static int op_attention(struct stream *s, struct tensor *o, const struct tensor *q,
                        const struct kv *kv, const struct attention_args *args)
{
    return level_of(s)->attention(s, o, q, kv, args);
}

static int op_linear(struct stream *s, struct tensor *y, const struct tensor *x,
                     const struct weight *w, const struct epilogue *e)
{
    return level_of(s)->linear(s, y, x, w, e);
}

static int op_gate_up(struct stream *s, struct tensor *h, const struct tensor *x,
                      const struct weight *w, const struct gate_up_args *args)
{
    return level_of(s)->gate_up(s, h, x, w, args);
}

static int op_head(struct stream *s, struct tensor *logits, struct head_row *rows,
                   const struct tensor *x, const struct weight *w, const struct head_args *args)
{
    return level_of(s)->head(s, logits, rows, x, w, args);
}

const struct backend_ops backend_cpu = {
    .name = "cpu",
    .open = backend_open,
    .close = backend_close,
    .caps = backend_caps,
    .errand = backend_errand,
    .settle = backend_settle,
    .buffer_new = buffer_new,
    .buffer_free = buffer_free,
    .weight_new = cpu_weight_new,
    .weight_fill = cpu_weight_fill,
    .weight_free = cpu_weight_free,
    .kv_new = cpu_kv_new,
    .kv_free = cpu_kv_free,
    .kv_page_bytes = cpu_kv_page_bytes,
    .kv_populate = cpu_kv_populate,
    .kv_pin = cpu_kv_pin,
    .kv_copy = cpu_kv_copy,
    .stream_new = cpu_stream_new,
    .stream_free = cpu_stream_free,
    .embed = op_embed,
    .rmsnorm = op_rmsnorm,
    .qkv = op_qkv,
    .attention = op_attention,
    .linear = op_linear,
    .gate_up = op_gate_up,
    .gather = kernels_gather,
    .head = op_head,
    .sample = cpu_sample,
};
