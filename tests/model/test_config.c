/* Keys to hyperparameters: defaults, bounds, messages. */
#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/config.h"
#include "daemon/model/model.h"
#include "tests/util/gguf_write.h"
#include "tests/util/tiny.h"

static const float zeros[512 * 64];

static int read_config(struct gguf_out *o, struct config *c, char *message)
{
    size_t n;
    void *file = gguf_out_finish(o, &n);
    struct gguf *g;
    int r = gguf_parse(&g, file, n, "FILE", message);

    cr_assert_eq(r, 0, "%s", message);
    r = config_read(c, g, message);
    gguf_free(g);
    free(file);
    gguf_out_free(o);
    return r;
}

/* Keys that must be there, but for `without`. */
static struct gguf_out *least(const char *without)
{
    static const struct {
        const char *key;
        uint32_t value;
    } keys[] = {
        {"llama.block_count", 3},           {"llama.embedding_length", 64},
        {"llama.feed_forward_length", 160}, {"llama.context_length", 100},
        {"llama.attention.head_count", 4},
    };
    struct gguf_out *o = gguf_out_new(3);

    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (strcmp(keys[i].key, without) != 0)
            gguf_out_u32(o, keys[i].key, keys[i].value);
    if (strcmp("llama.attention.layer_norm_rms_epsilon", without) != 0)
        gguf_out_f32(o, "llama.attention.layer_norm_rms_epsilon", 1e-6f);
    if (strcmp("token_embd.weight", without) != 0)
        gguf_out_tensor(o, "token_embd.weight", DTYPE_F32, 512, 64, zeros);
    if (strcmp("general.architecture", without) != 0)
        gguf_out_string(o, "general.architecture", "llama"); /* last: fault 36, order is free */
    return o;
}

Test(config, defaults_of_what_is_not_said)
{
    char message[MODEL_MESSAGE_MAX];
    struct config c;

    cr_assert_eq(read_config(least(""), &c, message), 0, "%s", message);
    cr_assert(c.arch == &arch_llama && c.n_layers == 3 && c.n_embd == 64 && c.n_ff == 160);
    cr_assert(c.n_vocab == 512 && c.n_context == 100);
    cr_assert(c.n_heads == 4 && c.n_kv_heads == 4 && c.head_dim == 16 && c.rope_dims == 16);
    cr_assert(c.rope_base == 10000 && c.rope_factor == 1);
}

Test(config, all_keys)
{
    char message[MODEL_MESSAGE_MAX];
    struct gguf_out *o = least("");
    struct config c;

    gguf_out_u32(o, "llama.attention.head_count_kv", 2);
    gguf_out_u32(o, "llama.attention.key_length", 32);
    gguf_out_u32(o, "llama.attention.value_length", 32);
    gguf_out_u32(o, "llama.rope.dimension_count", 8);
    gguf_out_f32(o, "llama.rope.freq_base", 500000);
    gguf_out_string(o, "llama.rope.scaling.type", "linear");
    gguf_out_f32(o, "llama.rope.scaling.factor", 4);
    cr_assert_eq(read_config(o, &c, message), 0, "%s", message);
    cr_assert(c.n_kv_heads == 2 && c.head_dim == 32 && c.rope_dims == 8);
    cr_assert(c.rope_base == 500000 && c.rope_factor == 4);
}

Test(config, missing_keys_are_named)
{
    static const char *const keys[] = {
        "general.architecture",
        "llama.block_count",
        "llama.embedding_length",
        "llama.feed_forward_length",
        "llama.context_length",
        "llama.attention.head_count",
        "llama.attention.layer_norm_rms_epsilon",
        "token_embd.weight",
    };
    char message[MODEL_MESSAGE_MAX];
    struct config c;

    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        cr_expect_eq(read_config(least(keys[i]), &c, message), -EINVAL);
        cr_expect(strstr(message, keys[i]) && strstr(message, "is missing"), "%s", message);
    }
}

/* Sampling adds up a row in 64 bits: a wider one would stop the daemon when it is drawn from. */
Test(config, a_vocabulary_wider_than_sampling_can_draw_from_is_refused)
{
    enum { ROWS = KERNELS_VOCAB_MAX + 1, COLS = 1 };
    char message[MODEL_MESSAGE_MAX];
    void *wide = calloc(ROWS, sizeof(float) * COLS);
    struct gguf_out *o = least("token_embd.weight");
    struct config c;

    cr_assert(wide);
    gguf_out_tensor(o, "token_embd.weight", DTYPE_F32, ROWS, COLS, wide);
    cr_assert_eq(read_config(o, &c, message), -EINVAL);
    cr_assert(strstr(message, "1048576 rows") && strstr(message, "1048575"), "%s", message);
    free(wide);
}

Test(config, unknown_architecture_is_named)
{
    char message[MODEL_MESSAGE_MAX];
    struct gguf_out *o = least("general.architecture");
    struct config c;

    gguf_out_string(o, "general.architecture", "mamba");
    cr_assert_eq(read_config(o, &c, message), -ENOTSUP);
    cr_assert(strstr(message, "'mamba' is not supported; supported: llama"), "%s", message);
}

static void refuse_u32(const char *key, uint32_t value, int error, const char *part)
{
    char message[MODEL_MESSAGE_MAX] = "";
    struct gguf_out *o = least(key);
    struct config c;

    gguf_out_u32(o, key, value);
    cr_expect_eq(read_config(o, &c, message), error, "%s %u", key, value);
    cr_expect(strstr(message, key) && strstr(message, part), "no '%s' in: %s", part, message);
}

static void refuse_f32(const char *key, float value)
{
    char message[MODEL_MESSAGE_MAX] = "";
    struct gguf_out *o = least(key);
    struct config c;

    gguf_out_f32(o, key, value);
    cr_expect_eq(read_config(o, &c, message), -EINVAL, "%s %g", key, (double)value);
    cr_expect(strstr(message, key), "%s", message);
}

Test(config, out_of_bounds)
{
    refuse_u32("llama.block_count", 0, -EINVAL, "1 to 1024");
    refuse_u32("llama.block_count", 4000000000u, -EINVAL, "4000000000");
    refuse_u32("llama.embedding_length", 0, -EINVAL, "is 0");
    refuse_u32("llama.embedding_length", 1u << 31, -EINVAL, "to 65536");
    refuse_u32("llama.feed_forward_length", 1u << 31, -EINVAL, "to 1048576");
    refuse_u32("llama.context_length", 0, -EINVAL, "is 0");
    refuse_u32("llama.attention.head_count", 0, -EINVAL, "is 0");
    refuse_u32("llama.attention.head_count", 64, -EINVAL,
               "even number"); /* heads of one dimension */
    refuse_u32("llama.attention.head_count", 3, -EINVAL, "even number"); /* 64 / 3 */
    refuse_u32("llama.attention.head_count_kv", 0, -EINVAL, "is 0");
    refuse_u32("llama.attention.head_count_kv", 3, -EINVAL, "does not divide head_count 4");
    refuse_u32("llama.attention.key_length", 15, -EINVAL, "even number");
    refuse_u32("llama.attention.value_length", 32, -ENOTSUP, "only what key_length is, 16");
    refuse_u32("llama.rope.dimension_count", 18, -EINVAL, "2 to 16");
    refuse_u32("llama.rope.dimension_count", 7, -EINVAL, "even number");
    refuse_u32("llama.expert_count", 8, -ENOTSUP, "mixtures of experts");
    refuse_f32("llama.attention.layer_norm_rms_epsilon", NAN);
    refuse_f32("llama.attention.layer_norm_rms_epsilon", -1);
    refuse_f32("llama.rope.freq_base", 0);
    refuse_f32("llama.rope.freq_base", INFINITY);
}

Test(config, scaling_that_is_not_known_is_named)
{
    char message[MODEL_MESSAGE_MAX] = "";
    struct gguf_out *o = least("");
    struct config c;

    gguf_out_string(o, "llama.rope.scaling.type", "yarn");
    cr_assert_eq(read_config(o, &c, message), -ENOTSUP);
    cr_assert(strstr(message, "'llama.rope.scaling.type' is 'yarn'"), "%s", message);
}
