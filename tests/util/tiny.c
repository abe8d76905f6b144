/* tests/util/tiny.c */
#include "tests/util/tiny.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/util/safetensors.h"

struct tiny tiny_default(void)
{
    return (struct tiny){
        .n_layers = 2,
        .n_embd = 64,
        .n_ff = 160,
        .n_heads = 4,
        .n_kv_heads = 2,
        .head_dim = 16,
        .n_context = 256,
        .rope_base = 10000,
        .norm_eps = 1e-5f,
        .tied = true,
        .dtype = DTYPE_F32,
        .embed_dtype = DTYPE_F32,
        .seed = 1,
    };
}

void tiny_keys(struct gguf_out *o, const struct tiny *t)
{
    gguf_out_string(o, "general.architecture", "llama");
    gguf_out_string(o, "general.name", "tiny");
    gguf_out_u32(o, "llama.block_count", t->n_layers);
    gguf_out_u32(o, "llama.embedding_length", t->n_embd);
    gguf_out_u32(o, "llama.feed_forward_length", t->n_ff);
    gguf_out_u32(o, "llama.context_length", t->n_context);
    gguf_out_u32(o, "llama.attention.head_count", t->n_heads);
    gguf_out_u32(o, "llama.attention.head_count_kv", t->n_kv_heads);
    gguf_out_u32(o, "llama.attention.key_length", t->head_dim);
    gguf_out_u32(o, "llama.attention.value_length", t->head_dim);
    gguf_out_u32(o, "llama.rope.dimension_count", t->head_dim);
    gguf_out_f32(o, "llama.rope.freq_base", t->rope_base);
    gguf_out_f32(o, "llama.attention.layer_norm_rms_epsilon", t->norm_eps);
}

/* GPT-2's printable stand-in for a byte, as UTF-8. */
static void byte_text(unsigned byte, char text[3])
{
    unsigned c = byte;

    if (byte <= 0x20)
        c = 0x100 + byte;
    else if (byte >= 0x7f && byte <= 0xa0)
        c = 0x121 + byte - 0x7f;
    else if (byte == 0xad)
        c = 0x143;
    memset(text, 0, 3);
    if (c < 0x80) {
        text[0] = (char)c;
    } else {
        text[0] = (char)(0xc0 | c >> 6);
        text[1] = (char)(0x80 | (c & 0x3f));
    }
}

void tiny_vocab(struct gguf_out *o)
{
    static const char specials[3][16] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    char text[TINY_VOCAB][16] = {{0}}, pairs[TINY_VOCAB][16] = {{0}};
    const char *tokens[TINY_VOCAB], *merges[TINY_VOCAB];
    int32_t types[TINY_VOCAB];
    uint32_t n_merges = 0;

    for (uint32_t i = 0; i < TINY_VOCAB; i++) {
        types[i] = i < 3 ? 3 : 1; /* control, normal */
        tokens[i] = text[i];
        if (i < 3) {
            memcpy(text[i], specials[i], sizeof text[i]);
        } else if (i < 259) {
            byte_text(i - 3, text[i]);
        } else {
            unsigned pair = i - 259, a = 'a' + pair / 26, b = 'a' + pair % 26;

            snprintf(text[i], sizeof text[i], "%c%c", a, b);
            snprintf(pairs[n_merges], sizeof pairs[0], "%c %c", a, b);
            merges[n_merges] = pairs[n_merges];
            n_merges++;
        }
    }
    gguf_out_string(o, "tokenizer.ggml.model", "gpt2");
    gguf_out_string(o, "tokenizer.ggml.pre", "smollm");
    gguf_out_strings(o, "tokenizer.ggml.tokens", tokens, TINY_VOCAB);
    gguf_out_i32s(o, "tokenizer.ggml.token_type", types, TINY_VOCAB);
    gguf_out_strings(o, "tokenizer.ggml.merges", merges, n_merges);
    gguf_out_u32(o, "tokenizer.ggml.eos_token_id", 0);
    gguf_out_bool(o, "tokenizer.ggml.add_bos_token", false);
}

/* ---- random tensors -------------------------------------------------------------------------- */

static uint64_t mix(uint64_t *state) /* splitmix64 */
{
    uint64_t z = *state += 0x9e3779b97f4a7c15;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

/* About normal: the sum of four uniforms. */
static float draw(uint64_t *state)
{
    double sum = -2;

    for (int i = 0; i < 4; i++)
        sum += (double)(mix(state) >> 11) * 0x1p-53;
    return (float)(sum * 1.7320508);
}

/* Rows from bad_from on hold in one place, by turns, what no sum gets rid of. */
static void spoiled_tensor(struct gguf_out *o, const char *name, enum dtype dtype, uint32_t n_rows,
                           uint32_t n_cols, float middle, float spread, uint64_t *state,
                           uint32_t bad_from)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    size_t n = (size_t)(n_rows ? n_rows : 1) * n_cols;
    float *values = malloc(n * sizeof *values);

    if (!values)
        abort();
    for (size_t i = 0; i < n; i++)
        values[i] = middle + spread * draw(state);
    for (uint32_t i = bad_from; i < n_rows; i++)
        values[(size_t)i * n_cols + i * 7 % n_cols] = bad[i % 3];
    gguf_out_tensor(o, name, dtype, n_rows, n_cols, values);
    free(values);
}

static void random_tensor(struct gguf_out *o, const char *name, enum dtype dtype, uint32_t n_rows,
                          uint32_t n_cols, float middle, float spread, uint64_t *state)
{
    spoiled_tensor(o, name, dtype, n_rows, n_cols, middle, spread, state, n_rows);
}

void tiny_tensors(struct gguf_out *o, const struct tiny *t)
{
    uint32_t q_rows = t->n_heads * t->head_dim, kv_rows = t->n_kv_heads * t->head_dim;
    const struct {
        const char *name;
        uint32_t n_rows, n_cols;
    } layer[] = {
        {"attn_norm", 0, t->n_embd},        {"attn_q", q_rows, t->n_embd},
        {"attn_k", kv_rows, t->n_embd},     {"attn_v", kv_rows, t->n_embd},
        {"attn_output", t->n_embd, q_rows}, {"ffn_norm", 0, t->n_embd},
        {"ffn_gate", t->n_ff, t->n_embd},   {"ffn_up", t->n_ff, t->n_embd},
        {"ffn_down", t->n_embd, t->n_ff},
    };
    uint64_t state = t->seed;

    spoiled_tensor(o, "token_embd.weight", t->embed_dtype, TINY_VOCAB, t->n_embd, 0, 0.5f, &state,
                   t->bad_from ? t->bad_from : TINY_VOCAB);
    for (uint32_t i = 0; i < t->n_layers; i++)
        for (size_t j = 0; j < sizeof layer / sizeof layer[0]; j++) {
            char name[64];
            bool norm = layer[j].n_rows == 0;

            snprintf(name, sizeof name, "blk.%u.%s.weight", i, layer[j].name);
            random_tensor(o, name, norm ? DTYPE_F32 : t->dtype, layer[j].n_rows, layer[j].n_cols,
                          norm ? 1 : 0, norm ? 0.1f : 1.0f / sqrtf((float)layer[j].n_cols), &state);
        }
    random_tensor(o, "output_norm.weight", DTYPE_F32, 0, t->n_embd, 1, 0.1f, &state);
    if (!t->tied)
        random_tensor(o, "output.weight", t->embed_dtype, TINY_VOCAB, t->n_embd, 0, 0.5f, &state);
    for (uint32_t i = 0; t->has_bias && i < t->n_layers; i++)
        for (uint32_t j = 0; j < 3; j++) {
            char name[64];

            snprintf(name, sizeof name, "blk.%u.attn_%c.bias", i, "qkv"[j]);
            random_tensor(o, name, DTYPE_F32, 0, j ? kv_rows : q_rows, 0, t->bias_spread, &state);
        }
}

struct gguf_out *tiny_new(const struct tiny *t)
{
    struct gguf_out *o = gguf_out_new(3);

    tiny_keys(o, t);
    tiny_vocab(o);
    tiny_tensors(o, t);
    return o;
}

/* ---- conversion ------------------------------------------------------------------------------ */

/* Rows of q and k: checkpoints rotate (i, i + n/2), the file's family neighbours. */
static void convert_heads(struct gguf_out *o, const char *name, const float *x, uint32_t n_heads,
                          uint32_t head_dim, uint32_t n_cols)
{
    float *y = malloc((size_t)n_heads * head_dim * n_cols * sizeof *y);

    if (!y)
        abort();
    for (uint32_t h = 0; h < n_heads; h++)
        for (uint32_t i = 0; i < head_dim; i++) {
            uint32_t from = h * head_dim + i;
            uint32_t to = h * head_dim + (i % (head_dim / 2)) * 2 + i / (head_dim / 2);

            memcpy(y + (size_t)to * n_cols, x + (size_t)from * n_cols, n_cols * sizeof *y);
        }
    gguf_out_tensor(o, name, DTYPE_F32, n_heads * head_dim, n_cols, y);
    free(y);
}

static double number(const json_t *config, const char *key)
{
    return json_number_value(json_object_get(config, key));
}

/* Llama 3's rule for stretching low frequencies, as the file's divisors. */
static void convert_rope(struct gguf_out *o, const json_t *rope, uint32_t head_dim)
{
    const double pi = 3.14159265358979323846;
    double base = number(rope, "rope_theta"), factor = number(rope, "factor");
    double low = number(rope, "low_freq_factor"), high = number(rope, "high_freq_factor");
    double context = number(rope, "original_max_position_embeddings");
    const char *type = json_string_value(json_object_get(rope, "rope_type"));
    float factors[512];

    gguf_out_f32(o, "llama.rope.freq_base", (float)base);
    if (!type || strcmp(type, "llama3") != 0 || head_dim > 1024)
        return;
    for (uint32_t i = 0; i < head_dim / 2; i++) {
        double wave = 2 * pi * pow(base, 2.0 * i / head_dim);
        double smooth = (context / wave - low) / (high - low);

        if (wave < context / high)
            factors[i] = 1;
        else if (wave > context / low)
            factors[i] = (float)factor;
        else
            factors[i] = (float)(1 / ((1 - smooth) / factor + smooth));
    }
    gguf_out_tensor(o, "rope_freqs.weight", DTYPE_F32, 0, head_dim / 2, factors);
}

static void convert_tensors(struct gguf_out *o, const struct safetensors *s, const struct tiny *t)
{
    static const char *const names[][2] = {
        {"self_attn.q_proj", "attn_q"},
        {"self_attn.k_proj", "attn_k"},
        {"self_attn.v_proj", "attn_v"},
        {"self_attn.o_proj", "attn_output"},
        {"mlp.gate_proj", "ffn_gate"},
        {"mlp.up_proj", "ffn_up"},
        {"mlp.down_proj", "ffn_down"},
        {"input_layernorm", "attn_norm"},
        {"post_attention_layernorm", "ffn_norm"},
    };
    const char *name;

    for (size_t i = 0; (name = safetensors_name(s, i)); i++) {
        uint32_t shape[4], layer;
        const float *x = safetensors_get(s, name, "F32", shape);
        char to[96] = "", part[64] = "";

        if (!x)
            abort();
        if (strcmp(name, "model.embed_tokens.weight") == 0)
            strcpy(to, "token_embd.weight");
        else if (strcmp(name, "model.norm.weight") == 0)
            strcpy(to, "output_norm.weight");
        else if (strcmp(name, "lm_head.weight") == 0)
            strcpy(to, "output.weight");
        else if (sscanf(name, "model.layers.%u.%63s", &layer, part) == 2)
            for (size_t j = 0; j < sizeof names / sizeof names[0]; j++)
                if (strncmp(part, names[j][0], strlen(names[j][0])) == 0)
                    snprintf(to, sizeof to, "blk.%u.%s.weight", layer, names[j][1]);
        if (strstr(to, "attn_q."))
            convert_heads(o, to, x, t->n_heads, t->head_dim, shape[1]);
        else if (strstr(to, "attn_k."))
            convert_heads(o, to, x, t->n_kv_heads, t->head_dim, shape[1]);
        else if (strstr(name, "norm"))
            gguf_out_tensor(o, to, DTYPE_F32, 0, shape[0], x);
        else
            gguf_out_tensor(o, to, DTYPE_F32, shape[0], shape[1], x);
    }
}

struct gguf_out *tiny_convert(const char *folder)
{
    char path[512];
    struct safetensors *s;
    struct gguf_out *o;
    json_t *config;
    const json_t *rope;
    struct tiny t;

    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    s = safetensors_open(path);
    snprintf(path, sizeof path, "%s/config.json", folder);
    config = json_load_file(path, 0, NULL);
    if (!s || !config) {
        json_decref(config);
        safetensors_close(s);
        return NULL;
    }
    rope = json_object_get(config, "rope_parameters");
    t = (struct tiny){
        .n_layers = (uint32_t)number(config, "num_hidden_layers"),
        .n_embd = (uint32_t)number(config, "hidden_size"),
        .n_ff = (uint32_t)number(config, "intermediate_size"),
        .n_heads = (uint32_t)number(config, "num_attention_heads"),
        .n_kv_heads = (uint32_t)number(config, "num_key_value_heads"),
        .head_dim = (uint32_t)number(config, "head_dim"),
        .n_context = (uint32_t)number(config, "max_position_embeddings"),
        .norm_eps = (float)number(config, "rms_norm_eps"),
    };
    o = gguf_out_new(3);
    gguf_out_string(o, "general.architecture", "llama");
    gguf_out_u32(o, "llama.block_count", t.n_layers);
    gguf_out_u32(o, "llama.embedding_length", t.n_embd);
    gguf_out_u32(o, "llama.feed_forward_length", t.n_ff);
    gguf_out_u32(o, "llama.context_length", t.n_context);
    gguf_out_u32(o, "llama.attention.head_count", t.n_heads);
    gguf_out_u32(o, "llama.attention.head_count_kv", t.n_kv_heads);
    gguf_out_u32(o, "llama.attention.key_length", t.head_dim);
    gguf_out_f32(o, "llama.attention.layer_norm_rms_epsilon", t.norm_eps);
    convert_rope(o, rope, t.head_dim);
    tiny_vocab(o);
    convert_tensors(o, s, &t);
    json_decref(config);
    safetensors_close(s);
    return o;
}
