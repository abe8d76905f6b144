/* A set of weights, at the start or later. A later one is loaded beside the one that runs, bit by bit
 * between steps, and takes its place only when all of it is there: until then nothing that a step
 * reads is touched. By the thread that runs the steps, and its pool: another one would take the cores
 * from both, and what is packed in a slice is packed by all of them. */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "daemon/model/forward_state.h"
#include "daemon/model/gguf.h"
#include "daemon/model/memory.h"
#include "daemon/model/vocabulary.h"

#define NUMERIC_CONTRACT      1u /* of kernels/numeric.h: other bits, another fingerprint */
#define NUMERIC_CONTRACT_NONE 0u /* the bits of a row depend on the batch                */
#define MIB                   1048576.0

static uint32_t numeric_contract(const struct forward *f)
{
    struct backend_caps caps;

    f->ops->caps(f->backend, &caps);
    return caps.bf16_tokens ? NUMERIC_CONTRACT_NONE : NUMERIC_CONTRACT;
}

/* Begins the fingerprint with what decides the bits of keys and values beside the weights, so that
 * nobody takes those of another model for ours. */
static void begin_digest(const struct forward *f, XXH3_state_t *digest)
{
    const struct config *c = &f->config;
    const struct {
        double rope_base, rope_factor;
        uint32_t contract, kv_dtype, n_heads, n_kv_heads, rope_dims, rope_kind;
        float norm_eps;
        uint32_t zero; /* no padding: all bytes are hashed */
    } facts = {
        .rope_base = c->rope_base,
        .rope_factor = c->rope_factor,
        .contract = numeric_contract(f),
        .kv_dtype = f->kv_dtype,
        .n_heads = c->n_heads,
        .n_kv_heads = c->n_kv_heads,
        .rope_dims = c->rope_dims,
        .rope_kind = c->arch->rope,
        .norm_eps = c->norm_eps,
    };

    XXH3_128bits_reset(digest);
    XXH3_128bits_update(digest, &facts, sizeof facts);
    XXH3_128bits_update(digest, f->ops->name, strlen(f->ops->name) + 1);
    XXH3_128bits_update(digest, c->arch->name, strlen(c->arch->name) + 1);
}

int forward_load_begin(struct forward *f, struct forward_loading *loading,
                       const struct forward_source *source)
{
    *loading = (struct forward_loading){.digest = XXH3_createState()};
    int r = loading->digest
                ? weights_init(&loading->weights, f->ops, f->backend, f->config.n_layers)
                : -ENOMEM;

    if (r)
        return model_refuse(source->message, r, "%s: no memory", gguf_path(source->g));
    begin_digest(f, loading->digest);
    r = loader_init(&loading->loader, source->g, &f->config, f->ops, f->backend, source->message);
    if (!r)
        r = f->config.arch->load(&loading->loader, &loading->weights);
    return r ? r : loader_begin(&loading->loader, source->how, loading->digest);
}

int forward_load_some(struct forward *f, struct forward_loading *loading, uint64_t n_bytes,
                      uint32_t n_positions, char *message)
{
    XXH128_hash_t hash;
    int r;

    loading->loader.message = message;
    if (!loading->is_read) {
        r = loader_some(&loading->loader, n_bytes);
        loading->is_read = r == 0;
        return r ? r : LOADER_MORE;
    }
    hash = XXH3_128bits_digest(loading->digest);
    loading->fingerprint[0] = hash.low64;
    loading->fingerprint[1] = hash.high64;
    r = weights_make_rope(&loading->weights, &f->config, n_positions);
    return r ? model_refuse(message, r, "no memory for %" PRIu32 " positions", n_positions) : 0;
}

void forward_load_drop(struct forward_loading *loading)
{
    loader_fini(&loading->loader);
    XXH3_freeState(loading->digest);
    weights_fini(&loading->weights);
    *loading = (struct forward_loading){0};
}

/* ---- other weights later --------------------------------------------------------------------- */

/* Whether the file says of its model what the running one's said. */
static int compare_configs(const struct config *has, const struct config *runs, const char *name,
                           char *message)
{
    const struct {
        const char *key;
        double has, runs;
    } keys[] = {
        {"block_count", has->n_layers, runs->n_layers},
        {"embedding_length", has->n_embd, runs->n_embd},
        {"feed_forward_length", has->n_ff, runs->n_ff},
        {"attention.head_count", has->n_heads, runs->n_heads},
        {"attention.head_count_kv", has->n_kv_heads, runs->n_kv_heads},
        {"attention.key_length", has->head_dim, runs->head_dim},
        {"vocab_size", has->n_vocab, runs->n_vocab},
        {"context_length", has->n_context, runs->n_context},
        {"attention.layer_norm_rms_epsilon", (double)has->norm_eps, (double)runs->norm_eps},
        {"rope.dimension_count", has->rope_dims, runs->rope_dims},
        {"rope.freq_base", has->rope_base, runs->rope_base},
        {"rope.scaling.factor", has->rope_factor, runs->rope_factor},
    };

    if (has->arch != runs->arch)
        return model_refuse(
            message, -EINVAL,
            "%s: the architecture is '%s', what runs is '%s': other weights must be "
            "of the same model",
            name, has->arch->name, runs->arch->name);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (memcmp(&keys[i].has, &keys[i].runs, sizeof keys[i].has) != 0)
            return model_refuse(
                message, -EINVAL,
                "%s: %s.%s is %.9g, of the model that runs it is %.9g: other weights "
                "must have the same shapes",
                name, has->arch->name, keys[i].key, keys[i].has, keys[i].runs);
    return 0;
}

/* Whether its vocabulary is, to the byte, the one that clients were given. */
static int compare_vocabs(const struct gguf *g, const struct forward *f, char *message)
{
    struct vocab_image *image;
    const struct cb_vocab *has, *runs = vocab_image_view(f->vocab);
    uint32_t n_has, n_runs;
    int r = vocab_image_from_gguf(&image, g, message);

    if (r)
        return r;
    has = vocab_image_view(image);
    if (has->n_tokens != runs->n_tokens)
        r = model_refuse(message, -EINVAL,
                         "%s: the vocabulary has %" PRIu32 " tokens, that of the model that runs "
                         "%" PRIu32,
                         gguf_path(g), has->n_tokens, runs->n_tokens);
    for (uint32_t i = 0; !r && i < has->n_tokens; i++) {
        const uint8_t *a = cb_vocab_text(has, i, &n_has), *b = cb_vocab_text(runs, i, &n_runs);

        if (n_has != n_runs || memcmp(a, b, n_has) != 0)
            r = model_refuse(message, -EINVAL,
                             "%s: token %" PRIu32 " is not that of the model that runs: other "
                             "weights must have the same vocabulary",
                             gguf_path(g), i);
    }
    if (!r && (vocab_image_bytes(image) != vocab_image_bytes(f->vocab) ||
               memcmp(vocab_image_data(image), vocab_image_data(f->vocab),
                      vocab_image_bytes(image)) != 0))
        r = model_refuse(message, -EINVAL,
                         "%s: merges, special tokens, name or chat template are not those of the "
                         "model that runs: other weights must have the same vocabulary",
                         gguf_path(g));
    vocab_image_free(image);
    return r;
}

/* Before any of it is taken, and while it is: running out might end the whole daemon. */
static int check_memory(const struct gguf *g, uint64_t done_bytes, char *message)
{
    uint64_t available = memory_available(""), all = 0;

    for (uint32_t i = 0; i < gguf_n_tensors(g); i++)
        all += gguf_tensor_at(g, i)->bytes;
    if (available == MEMORY_UNKNOWN || all - done_bytes <= available)
        return 0;
    return model_refuse(message, -ENOMEM,
                        "%s: a second set of weights takes about %.0f MiB, %.0f of them already "
                        "there, and %.0f MiB are free: free memory, or restart with the new file",
                        gguf_path(g), (double)all / MIB, (double)done_bytes / MIB,
                        (double)available / MIB);
}

/* A slice: whatever the file's size there are some hundred of them, and a step between any two. */
#define SLICES 256

struct forward_reload {
    struct gguf *g;
    bool is_begun; /* `loading` is, for the file is of this model */
    struct forward_loading loading;
};

int forward_reload_begin(struct model *m, int fd, const char *name, char *message)
{
    struct forward *f = (struct forward *)m; /* first in it */
    struct config config;
    int r;

    assert(!f->reload);
    f->reload = calloc(1, sizeof *f->reload);
    if (!f->reload)
        return model_refuse(message, -ENOMEM, "%s: no memory", name);
    r = gguf_open_fd(&f->reload->g, fd, name, message);
    if (!r)
        r = config_read(&config, f->reload->g, message);
    if (!r)
        r = compare_configs(&config, &f->config, name, message);
    if (!r)
        r = check_memory(f->reload->g, 0, message);
    if (r)
        forward_reload_drop(m);
    return r;
}

static int reload_some(struct forward *f, struct forward_reload *reload, char *message)
{
    const struct loader_how how = {.without_uring = true}; /* the file is in memory already */
    const struct forward_source source = {.g = reload->g, .how = &how, .message = message};
    struct loader *l = &reload->loading.loader;
    int r;

    if (!reload->is_begun) { /* a slice of its own, for it takes as long as one */
        reload->is_begun = true;
        r = compare_vocabs(reload->g, f, message);
        if (!r)
            r = forward_load_begin(f, &reload->loading, &source);
        return r ? r : MODEL_RELOAD_MORE;
    }
    r = check_memory(reload->g, l->done_bytes, message);
    if (!r)
        r = forward_load_some(f, &reload->loading, l->total_bytes / SLICES,
                              f->weights.rope.n_positions, message);
    return r == LOADER_MORE ? MODEL_RELOAD_MORE : r;
}

int forward_reload_some(struct model *m, char *message)
{
    struct forward *f = (struct forward *)m;
    int r;

    assert(f->reload);
    r = reload_some(f, f->reload, message);
    if (r < 0)
        forward_reload_drop(m);
    return r;
}

void forward_reload_publish(struct model *m)
{
    struct forward *f = (struct forward *)m;
    struct forward_loading *loading = &f->reload->loading;
    struct weights old = f->weights;
    struct backend_caps caps;

    f->weights = loading->weights;
    loading->weights = old;
    memcpy(f->model.info.fingerprint, loading->fingerprint, sizeof loading->fingerprint);
    forward_reload_drop(m);
    f->ops->caps(f->backend, &caps);
    f->model.info.weight_bytes = caps.weight_bytes;
}

void forward_reload_drop(struct model *m)
{
    struct forward *f = (struct forward *)m;

    if (!f->reload)
        return;
    forward_load_drop(&f->reload->loading);
    gguf_free(f->reload->g);
    free(f->reload);
    f->reload = NULL;
}
