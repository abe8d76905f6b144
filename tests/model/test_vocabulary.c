/* VOCAB from GGUF metadata: what is undone and resolved, and what each bad key says. */
#include "daemon/model/vocabulary.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/gguf.h"
#include "daemon/model/model.h"
#include "tests/util/gguf_write.h"

/* A small tokenizer; each case changes one thing of it. NULL or 0 leaves the key out. */
struct keys {
    const char *model, *pre;
    const char *const *tokens;
    size_t n_tokens;
    const int32_t *types;
    size_t n_types;
    const char *const *merges;
    size_t n_merges;
    uint32_t bos;
    int add_bos; /* -1: not given */
};

static const char *const tokens[] = {"<s>",    "a",      "\u0120",     "\u0120a",
                                     "\u00e9", "\u0143", "[PAD\u20ac]"};
static const int32_t types[] = {3, 1, 1, 1, 1, 1, 5};
static const char *const merges[] = {"\u0120 a"};

static struct keys good(void)
{
    return (struct keys){"gpt2", "gpt-2", tokens, 7, types, 7, merges, 1, 0, -1};
}

static int make(const struct keys *k, struct vocab_image **imagep, char *message)
{
    struct gguf_out *out = gguf_out_new(3);
    gguf_out_string(out, "general.architecture", "llama");
    if (k->model)
        gguf_out_string(out, "tokenizer.ggml.model", k->model);
    if (k->pre)
        gguf_out_string(out, "tokenizer.ggml.pre", k->pre);
    if (k->tokens)
        gguf_out_strings(out, "tokenizer.ggml.tokens", k->tokens, k->n_tokens);
    if (k->types)
        gguf_out_i32s(out, "tokenizer.ggml.token_type", k->types, k->n_types);
    if (k->merges)
        gguf_out_strings(out, "tokenizer.ggml.merges", k->merges, k->n_merges);
    if (k->bos != CB_VOCAB_NONE)
        gguf_out_u32(out, "tokenizer.ggml.bos_token_id", k->bos);
    if (k->add_bos >= 0)
        gguf_out_bool(out, "tokenizer.ggml.add_bos_token", k->add_bos);
    gguf_out_string(out, "tokenizer.chat_template", "{{ x }}");
    gguf_out_string(out, "general.name", "tiny");

    size_t bytes;
    void *data = gguf_out_finish(out, &bytes);
    struct gguf *g;
    cr_assert_eq(gguf_parse(&g, data, bytes, "test.gguf", message), 0, "%s", message);
    int r = vocab_image_from_gguf(imagep, g, message);
    gguf_free(g);
    gguf_out_free(out);
    free(data);
    return r;
}

static void refuse(struct keys k, int error, const char *words)
{
    struct vocab_image *image = NULL;
    char message[MODEL_MESSAGE_MAX] = "";
    cr_assert_eq(make(&k, &image, message), error, "for \"%s\"", words);
    cr_assert_null(image);
    cr_assert(strstr(message, words), "\"%s\" lacks \"%s\"", message, words);
    cr_assert(strstr(message, "test.gguf"), "\"%s\" does not name the file", message);
}

static void expect_bytes(const struct cb_vocab *v, uint32_t id, const char *bytes)
{
    uint32_t n;
    const uint8_t *p = cb_vocab_bytes(v, id, &n);
    cr_assert(n == strlen(bytes) && memcmp(p, bytes, n) == 0, "token %u", id);
}

Test(vocabulary, holds_real_bytes_and_resolved_merges)
{
    struct vocab_image *image;
    char message[MODEL_MESSAGE_MAX] = "";
    struct keys k = good();
    cr_assert_eq(make(&k, &image, message), 0, "%s", message);
    const struct cb_vocab *v = vocab_image_view(image);
    expect_bytes(v, 0, "<s>");
    expect_bytes(v, 2, " ");
    expect_bytes(v, 3, " a");
    expect_bytes(v, 4, "\xe9");
    expect_bytes(v, 5, "\xad");
    expect_bytes(v, 6, "[PAD\u20ac]"); /* not so written: as it stands */
    cr_assert_eq(v->header->byte_ids[0xe9], 4);
    uint32_t rank = cb_vocab_merge_rank(v, 2, 1);
    cr_assert_eq(rank, 0);
    cr_assert_eq(v->merges[rank].result, 3);
    cr_assert_eq(v->types[0], CB_TOKEN_CONTROL);
    cr_assert_eq(v->header->bos, 0);
    cr_assert_eq(v->header->eos, CB_VOCAB_NONE);
    cr_assert_eq(v->header->pre, CB_PRE_GPT2);
    cr_assert_eq(v->header->flags, 0);
    cr_assert_eq(v->template_bytes, 7);
    cr_assert_eq(v->name_bytes, 4);
    vocab_image_free(image);
}

Test(vocabulary, takes_the_bos_rule_from_the_file_or_from_the_kind)
{
    static const struct {
        const char *pre;
        int add_bos;
        uint32_t flags;
    } cases[] = {
        {"gpt-2", -1, 0},
        {"smollm", 1, CB_VOCAB_ADD_BOS},
        {"llama-bpe", -1, CB_VOCAB_ADD_BOS | CB_VOCAB_IGNORE_MERGES},
        {"llama-bpe", 0, CB_VOCAB_IGNORE_MERGES},
        {"qwen2", 0, CB_VOCAB_NFC},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct vocab_image *image;
        char message[MODEL_MESSAGE_MAX] = "";
        struct keys k = good();
        k.pre = cases[i].pre;
        k.add_bos = cases[i].add_bos;
        cr_assert_eq(make(&k, &image, message), 0, "%s", message);
        cr_assert_eq(vocab_image_view(image)->header->flags, cases[i].flags, "case %zu", i);
        vocab_image_free(image);
    }
}

Test(vocabulary, says_which_key_is_wrong)
{
    static const int32_t bad_type[] = {3, 1, 1, 1, 1, 1, 9};
    static const char *const bad_merges[][1] = {{"a"}, {"a a"}, {"a x"}, {" a"}, {"a "}, {""}};
    struct keys k = good();
    k.model = "llama";
    refuse(k, -ENOTSUP, "tokenizer.ggml.model is \"llama\"");
    k = good();
    k.model = NULL;
    refuse(k, -ENOTSUP, "tokenizer.ggml.model is \"\"");
    k = good();
    k.pre = "tekken";
    refuse(k, -ENOTSUP, "tokenizer.ggml.pre is \"tekken\"");
    k = good();
    k.tokens = NULL;
    refuse(k, -EINVAL, "tokenizer.ggml.tokens is missing");
    k = good();
    k.n_types = 6;
    refuse(k, -EINVAL, "token_type has 6 elements for 7 tokens");
    k = good();
    k.types = bad_type;
    refuse(k, -EINVAL, "token 6 has type 9");
    k = good();
    k.merges = NULL;
    refuse(k, -EINVAL, "tokenizer.ggml.merges is missing");
    for (size_t i = 0; i < sizeof bad_merges / sizeof *bad_merges; i++) {
        k = good();
        k.merges = bad_merges[i];
        refuse(k, -EINVAL, "merges: element 0");
    }
    k = good();
    k.bos = 7;
    refuse(k, -EINVAL, "bos_token_id is 7");
    k = good();
    k.bos = CB_VOCAB_NONE;
    k.add_bos = 1;
    refuse(k, -EINVAL, "no tokenizer.ggml.bos_token_id");
}

Test(vocabulary, refuses_a_token_of_endless_length)
{
    static char endless[CB_VOCAB_TOKEN_BYTES_MAX + 2];
    memset(endless, 'x', sizeof endless - 1);
    const char *const list[] = {"a", endless};
    struct keys k = good();
    k.tokens = list;
    k.n_tokens = 2;
    k.types = NULL;
    k.merges = merges;
    k.n_merges = 0;
    refuse(k, -EINVAL, "token 1 has 4097 bytes");
}
