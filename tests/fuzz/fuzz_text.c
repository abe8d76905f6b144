/* Any text, each pre-tokenizer: ids decode to the text again, valid ones only, in pieces too.
 * The vocabulary has all bytes, "<s>" and "<s" as control tokens, and merges that make runs of
 * "a" and of spaces. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/text/decode.h"
#include "client/text/tokenizer.h"
#include "daemon/model/vocabulary.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static struct vocab_image *image_of(enum cb_vocab_pre pre)
{
    static const char *const more[] = {"aa", "aaaa", "aaa", "  ", "    ", " a", "<s>", "<s"};
    static const struct cb_vocab_merge merges[] = {
        {'a', 'a', 256}, {256, 256, 257}, {256, 'a', 258},
        {' ', ' ', 259}, {259, 259, 260}, {' ', 'a', 261},
    };
    enum { N_MORE = sizeof more / sizeof *more, N = 256 + N_MORE };
    uint32_t text_off[N + 1] = {0};
    uint8_t text[N + 64], types[N];
    memset(types, CB_TOKEN_NORMAL, sizeof types);
    types[N - 1] = types[N - 2] = CB_TOKEN_CONTROL;
    for (uint32_t id = 0; id < N; id++) {
        uint8_t byte = (uint8_t)id;
        size_t length = id < 256 ? 1 : strlen(more[id - 256]);
        memcpy(text + text_off[id], id < 256 ? (const void *)&byte : more[id - 256], length);
        text_off[id + 1] = text_off[id] + (uint32_t)length;
    }
    struct vocab_spec spec = {.n_tokens = N,
                              .text_off = text_off,
                              .text = text,
                              .types = types,
                              .n_merges = sizeof merges / sizeof *merges,
                              .merges = merges,
                              .pre = pre,
                              .bos = CB_VOCAB_NONE,
                              .eos = CB_VOCAB_NONE,
                              .eot = CB_VOCAB_NONE,
                              .unk = CB_VOCAB_NONE};
    struct vocab_image *image;
    int r = vocab_image_new(&image, &spec);
    assert(r == 0);
    return image;
}

/* Feeds piece by piece with little room; true if what comes out is text [n]. */
static int comes_back(const struct cb_vocab *vocab, const uint32_t *ids, size_t n_ids,
                      const uint8_t *text, size_t n)
{
    struct cb_decoder d;
    size_t at = 0, n_taken, n_out, room = 1;
    cb_decoder_init(&d, vocab, NULL, CB_DECODE_SPECIAL);
    for (size_t i = 0; i < n_ids; i += n_taken) {
        char piece[64];
        int r = cb_decoder_feed(&d, ids + i, n_ids - i, &n_taken, piece, room, &n_out);
        if (cb_utf8_valid((uint8_t *)piece, n_out) != n_out || at + n_out > n ||
            memcmp(text + at, piece, n_out) != 0)
            return 0;
        at += n_out;
        room = r == CB_DECODE_ROOM && n_taken == 0 ? room + 1 : 1 + i % 16;
    }
    return at == n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static struct vocab_image *images[CB_PRE_QWEN2 + 1];
    static struct cb_tokenizer *tokenizers[CB_PRE_QWEN2 + 1];
    static struct cb_tokenizer_scratch *scratches[CB_PRE_QWEN2 + 1];
    uint32_t *ids = malloc((n + 1) * sizeof *ids);
    assert(ids);
    for (int pre = CB_PRE_GPT2; pre <= CB_PRE_QWEN2; pre++) {
        if (!images[pre]) {
            images[pre] = image_of((enum cb_vocab_pre)pre);
            cb_tokenizer_new(&tokenizers[pre], vocab_image_view(images[pre]));
            cb_tokenizer_scratch_new(&scratches[pre], tokenizers[pre]);
        }
        for (uint32_t flags = 0; flags <= CB_TOKENIZE_SPECIAL; flags++) {
            size_t n_ids;
            int r = cb_tokenizer_encode(tokenizers[pre], scratches[pre], data, n, flags, ids, n,
                                        &n_ids);
            if (r == -EILSEQ) {
                assert(n_ids < n && n_ids == cb_utf8_valid(data, n));
                continue;
            }
            assert(r == 0);
            assert(comes_back(vocab_image_view(images[pre]), ids, n_ids, data, n));
        }
    }
    free(ids);
    return 0;
}
