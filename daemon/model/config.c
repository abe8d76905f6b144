/* daemon/model/config.c - keys to hyperparameters. */
#include "daemon/model/config.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "daemon/model/message.h"

#define KEY_MAX 128

static const struct arch *const archs[] = {&arch_llama};
#define N_ARCHS (sizeof archs / sizeof archs[0])

/* One read in progress: where keys come from and where the sentence goes. */
struct reader {
    const struct gguf *g;
    const char *arch;
    char *message;
};

static void name_key(const struct reader *r, char *key, const char *suffix)
{
    snprintf(key, KEY_MAX, "%s.%s", r->arch, suffix);
}

static int missing(const struct reader *r, const char *key)
{
    return model_refuse(r->message, -EINVAL,
                        "%s: key '%s' is missing: the file is no complete model; convert it again",
                        gguf_path(r->g), key);
}

/* Reads ARCH.suffix within [least, most]. `value` keeps its default if the key may be missing. */
enum presence { REQUIRED, OPTIONAL };

static int read_u32(const struct reader *r, const char *suffix, enum presence presence,
                    uint32_t least, uint32_t most, uint32_t *value)
{
    char key[KEY_MAX];
    int err;

    name_key(r, key, suffix);
    err = gguf_u32(r->g, key, value, r->message);
    if (err == GGUF_MISSING)
        return presence == OPTIONAL ? 0 : missing(r, key);
    if (err)
        return err;
    if (*value < least || *value > most)
        return model_refuse(r->message, -EINVAL,
                            "%s: key '%s' is %" PRIu32 "; %" PRIu32 " to %" PRIu32 " is possible",
                            gguf_path(r->g), key, *value, least, most);
    return 0;
}

static int read_f32(const struct reader *r, const char *suffix, enum presence presence, float least,
                    float most, float *value)
{
    char key[KEY_MAX];
    int err;

    name_key(r, key, suffix);
    err = gguf_f32(r->g, key, value, r->message);
    if (err == GGUF_MISSING)
        return presence == OPTIONAL ? 0 : missing(r, key);
    if (err)
        return err;
    if (!(*value >= least && *value <= most)) /* NaN is out of bounds */
        return model_refuse(r->message, -EINVAL, "%s: key '%s' is %g; %g to %g is possible",
                            gguf_path(r->g), key, (double)*value, (double)least, (double)most);
    return 0;
}

static int find_arch(struct config *c, const struct gguf *g, char *message)
{
    struct gguf_string name;
    char known[256] = "";
    int r = gguf_string(g, "general.architecture", &name, message);

    if (r == GGUF_MISSING)
        return model_refuse(message, -EINVAL,
                            "%s: key 'general.architecture' is missing: the file is no complete "
                            "model; convert it again",
                            gguf_path(g));
    if (r)
        return r;
    for (size_t i = 0; i < N_ARCHS; i++) {
        size_t n = strlen(known);

        if (name.n == strlen(archs[i]->name) && memcmp(name.data, archs[i]->name, name.n) == 0) {
            c->arch = archs[i];
            return 0;
        }
        snprintf(known + n, sizeof known - n, "%s%s", i ? ", " : "", archs[i]->name);
    }
    return model_refuse(message, -ENOTSUP,
                        "%s: architecture '%.*s' is not supported; supported: %s", gguf_path(g),
                        (int)(name.n < 64 ? name.n : 64), name.data, known);
}

/* Which scaling of positions the file asks for, and its factor. */
static int read_scaling(const struct reader *r, struct config *c)
{
    char key[KEY_MAX];
    struct gguf_string type;
    float factor = 1;
    int err;

    /* The key of older files; it means linear. */
    err = read_f32(r, "rope.scale_linear", OPTIONAL, 1e-3f, 1e6f, &factor);
    if (err)
        return err;
    name_key(r, key, "rope.scaling.type");
    err = gguf_string(r->g, key, &type, r->message);
    if (err < 0)
        return err;
    if (err != GGUF_MISSING) {
        if (type.n == 4 && memcmp(type.data, "none", 4) == 0) {
            factor = 1;
        } else if (type.n == 6 && memcmp(type.data, "linear", 6) == 0) {
            err = read_f32(r, "rope.scaling.factor", REQUIRED, 1e-3f, 1e6f, &factor);
            if (err)
                return err;
        } else {
            return model_refuse(r->message, -ENOTSUP,
                                "%s: key '%s' is '%.*s', which is not supported; supported: none, "
                                "linear",
                                gguf_path(r->g), key, (int)(type.n < 64 ? type.n : 64), type.data);
        }
    }
    c->rope_factor = (double)factor;
    return 0;
}

static int read_heads(const struct reader *r, struct config *c)
{
    uint32_t value_length;
    int err = read_u32(r, "attention.head_count", REQUIRED, 1, 1024, &c->n_heads);

    c->n_kv_heads = c->n_heads;
    if (!err)
        err = read_u32(r, "attention.head_count_kv", OPTIONAL, 1, 1024, &c->n_kv_heads);
    if (err)
        return err;
    if (c->n_heads % c->n_kv_heads != 0)
        return model_refuse(r->message, -EINVAL,
                            "%s: key '%s.attention.head_count_kv' is %" PRIu32
                            ", which does not divide head_count %" PRIu32,
                            gguf_path(r->g), r->arch, c->n_kv_heads, c->n_heads);
    c->head_dim = c->n_embd % c->n_heads == 0 ? c->n_embd / c->n_heads : 0; /* 0: refused below */
    err = read_u32(r, "attention.key_length", OPTIONAL, 2, 1024, &c->head_dim);
    value_length = c->head_dim;
    if (!err)
        err = read_u32(r, "attention.value_length", OPTIONAL, 2, 1024, &value_length);
    if (err)
        return err;
    if (c->head_dim < 2 || c->head_dim > 1024 || c->head_dim % 2 != 0)
        return model_refuse(r->message, -EINVAL,
                            "%s: heads need an even number of dimensions, 2 to 1024: neither key "
                            "'%s.attention.key_length' nor embedding_length %" PRIu32
                            " / '%s.attention.head_count' %" PRIu32 " gives one",
                            gguf_path(r->g), r->arch, c->n_embd, r->arch, c->n_heads);
    if (value_length != c->head_dim)
        return model_refuse(r->message, -ENOTSUP,
                            "%s: key '%s.attention.value_length' is %" PRIu32
                            ", which is not supported: only what key_length is, %" PRIu32,
                            gguf_path(r->g), r->arch, value_length, c->head_dim);
    return 0;
}

static int read_rope(const struct reader *r, struct config *c)
{
    float base = 10000;
    int err;

    c->rope_dims = c->head_dim;
    err = read_u32(r, "rope.dimension_count", OPTIONAL, 2, c->head_dim, &c->rope_dims);
    if (!err)
        err = read_f32(r, "rope.freq_base", OPTIONAL, 1, 1e15f, &base);
    if (!err)
        err = read_scaling(r, c);
    if (err)
        return err;
    if (c->rope_dims % 2 != 0)
        return model_refuse(r->message, -EINVAL,
                            "%s: key '%s.rope.dimension_count' is %" PRIu32
                            "; an even number is needed",
                            gguf_path(r->g), r->arch, c->rope_dims);
    c->rope_base = (double)base;
    return 0;
}

/* The vocabulary's size is that of the embedding: the key for it is missing in many files. */
static int read_vocab(const struct reader *r, struct config *c)
{
    const struct gguf_tensor *t = gguf_tensor(r->g, "token_embd.weight");

    if (!t)
        return model_refuse(r->message, -EINVAL,
                            "%s: tensor 'token_embd.weight' is missing: the file is no complete "
                            "model; convert it again",
                            gguf_path(r->g));
    if (t->dims[1] > KERNELS_VOCAB_MAX)
        return model_refuse(r->message, -EINVAL,
                            "%s: tensor 'token_embd.weight' at byte %" PRIu64 " has %" PRIu64
                            " rows; up to %u tokens are possible",
                            gguf_path(r->g), t->file_off, t->dims[1], KERNELS_VOCAB_MAX);
    c->n_vocab = (uint32_t)t->dims[1];
    return 0;
}

int config_read(struct config *c, const struct gguf *g, char *message)
{
    struct reader r = {.g = g, .message = message};
    uint32_t n_experts = 0;
    int err;

    *c = (struct config){0};
    err = find_arch(c, g, message);
    if (err)
        return err;
    r.arch = c->arch->name;
    err = read_u32(&r, "block_count", REQUIRED, 1, 1024, &c->n_layers);
    if (!err)
        err = read_u32(&r, "embedding_length", REQUIRED, 8, 65536, &c->n_embd);
    if (!err)
        err = read_u32(&r, "feed_forward_length", REQUIRED, 8, 1u << 20, &c->n_ff);
    if (!err)
        err = read_u32(&r, "context_length", REQUIRED, 1, 1u << 24, &c->n_context);
    if (!err)
        err = read_f32(&r, "attention.layer_norm_rms_epsilon", REQUIRED, 0, 1, &c->norm_eps);
    if (!err)
        err = read_u32(&r, "expert_count", OPTIONAL, 0, UINT32_MAX, &n_experts);
    if (!err && n_experts > 0)
        err = model_refuse(message, -ENOTSUP,
                           "%s: key '%s.expert_count' is %" PRIu32
                           ": mixtures of experts are not supported; use a dense model",
                           gguf_path(g), r.arch, n_experts);
    if (!err)
        err = read_heads(&r, c);
    if (!err)
        err = read_rope(&r, c);
    if (!err)
        err = read_vocab(&r, c);
    return err;
}
