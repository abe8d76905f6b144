/* A set of weights, at the start or later. A later one is loaded beside the one that runs, and takes
 * its place only when all of it is there: until then nothing that a step reads is touched. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <xxhash.h>

#include "daemon/model/forward_state.h"
#include "daemon/model/gguf.h"
#include "daemon/model/loader.h"
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

static int read_weights(struct forward *f, struct weights *w, const struct forward_source *source,
                        XXH3_state_t *digest)
{
    const struct loader_how how = {.without_uring = f->without_uring,
                                   .progress = source->progress,
                                   .progress_ctx = source->progress_ctx};
    struct loader l;
    int r = loader_init(&l, source->g, &f->config, f->ops, f->backend, source->message);

    if (r)
        return r;
    r = f->config.arch->load(&l, w);
    if (!r)
        r = loader_read(&l, &how, digest);
    loader_fini(&l);
    return r;
}

int forward_load(struct forward *f, struct weights *w, const struct forward_source *source,
                 uint32_t n_positions, uint64_t fingerprint[2])
{
    int r = weights_init(w, f->ops, f->backend, f->config.n_layers);
    XXH3_state_t *digest = r ? NULL : XXH3_createState();
    XXH128_hash_t hash;

    if (!digest)
        return model_refuse(source->message, -ENOMEM, "%s: no memory", gguf_path(source->g));
    begin_digest(f, digest);
    r = read_weights(f, w, source, digest);
    hash = XXH3_128bits_digest(digest);
    XXH3_freeState(digest);
    if (r)
        return r;
    fingerprint[0] = hash.low64;
    fingerprint[1] = hash.high64;
    r = weights_make_rope(w, &f->config, n_positions);
    return r ? model_refuse(source->message, r, "no memory for %" PRIu32 " positions", n_positions)
             : 0;
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

/* Before any of it is taken: running out later might end the whole daemon. */
static int check_memory(const struct gguf *g, char *message)
{
    uint64_t available = memory_available(""), needed = 0;

    for (uint32_t i = 0; i < gguf_n_tensors(g); i++)
        needed += gguf_tensor_at(g, i)->bytes;
    if (available == MEMORY_UNKNOWN || needed <= available)
        return 0;
    return model_refuse(message, -ENOMEM,
                        "%s: a second set of weights takes about %.0f MiB, and %.0f MiB are free: "
                        "free memory, or restart with the new file",
                        gguf_path(g), (double)needed / MIB, (double)available / MIB);
}

static int load_beside(struct forward *f, const struct gguf *g, char *message)
{
    const struct forward_source source = {.g = g, .message = message};
    struct weights other = {0}, old = f->weights;
    struct config config;
    uint64_t fingerprint[2];
    int r = config_read(&config, g, message);

    if (!r)
        r = compare_configs(&config, &f->config, gguf_path(g), message);
    if (!r)
        r = compare_vocabs(g, f, message);
    if (!r)
        r = check_memory(g, message);
    if (!r)
        r = forward_load(f, &other, &source, old.rope.n_positions, fingerprint);
    if (r) {
        weights_fini(&other);
        return r;
    }
    f->weights = other;
    weights_fini(&old);
    memcpy(f->model.info.fingerprint, fingerprint, sizeof fingerprint);
    return 0;
}

int forward_reload(struct model *m, int fd, const char *name, char *message)
{
    struct forward *f = (struct forward *)m; /* first in it */
    struct gguf *g;
    struct backend_caps caps;
    int r = gguf_open_fd(&g, fd, name, message);

    if (r)
        return r;
    r = load_beside(f, g, message);
    gguf_free(g);
    f->ops->caps(f->backend, &caps);
    f->model.info.weight_bytes = caps.weight_bytes;
    return r;
}
