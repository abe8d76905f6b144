/* The fixtures of text_util.h. */
#include "tests/client/text_util.h"

#include <criterion/criterion.h>
#include <stdlib.h>

#include "daemon/model/gguf.h"
#include "daemon/model/model.h"

struct text_fixture fixture_of(struct vocab_image *image)
{
    struct text_fixture f = {.image = image, .vocab = vocab_image_view(image)};
    cr_assert_eq(cb_tokenizer_new(&f.tokenizer, f.vocab), 0);
    cr_assert_eq(cb_tokenizer_scratch_new(&f.scratch, f.tokenizer), 0);
    return f;
}

struct text_fixture fixture_default(void)
{
    const char *path = getenv("CBD_MODEL");
    char message[MODEL_MESSAGE_MAX];
    struct gguf *g;
    struct vocab_image *image;
    if (!path)
        path = "build/models/SmolLM2-135M-Instruct.Q4_1.gguf";
    cr_assert_eq(gguf_open(&g, path, message), 0, "%s", message);
    cr_assert_eq(vocab_image_from_gguf(&image, g, message), 0, "%s", message);
    gguf_free(g);
    return fixture_of(image);
}

struct text_fixture fixture_bytes(enum cb_vocab_pre pre, uint32_t flags)
{
    uint32_t text_off[258];
    uint8_t text[259], types[257];
    for (uint32_t i = 0; i < 256; i++) {
        text_off[i] = i;
        text[i] = (uint8_t)i;
        types[i] = CB_TOKEN_NORMAL;
    }
    text_off[256] = 256;
    text_off[257] = 259;
    memcpy(text + 256, "<s>", 3);
    types[256] = CB_TOKEN_CONTROL;
    struct vocab_spec spec = {
        .n_tokens = 257,
        .text_off = text_off,
        .text = text,
        .types = types,
        .pre = pre,
        .flags = flags,
        .bos = 256,
        .eos = CB_VOCAB_NONE,
        .eot = CB_VOCAB_NONE,
        .unk = CB_VOCAB_NONE,
    };
    struct vocab_image *image;
    cr_assert_eq(vocab_image_new(&image, &spec), 0);
    return fixture_of(image);
}

void fixture_fini(struct text_fixture *f)
{
    cb_tokenizer_scratch_free(f->scratch);
    cb_tokenizer_free(f->tokenizer);
    vocab_image_free(f->image);
}

size_t fixture_ids(struct text_fixture *f, const void *text, size_t n, uint32_t flags,
                   uint32_t **idsp)
{
    size_t n_ids, capacity = n + 1; /* no text makes more ids than bytes, and BOS */
    uint32_t *ids = malloc(capacity * sizeof *ids);
    cr_assert_eq(
        cb_tokenizer_encode(f->tokenizer, f->scratch, text, n, flags, ids, capacity, &n_ids), 0);
    *idsp = ids;
    return n_ids;
}
