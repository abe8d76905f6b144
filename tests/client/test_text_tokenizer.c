/* Merging against the naive rule; special tokens, BOS, refusals; texts that break careless
 * tokenizers. */
#include "client/text/tokenizer.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/text/bpe.h"
#include "tests/client/text_util.h"

/* The rule as it is told: look for the lowest rank, merge the leftmost, begin again. */
static size_t naive_merge(const struct cb_vocab *vocab, uint32_t *ids, size_t n)
{
    for (;;) {
        uint32_t lowest = CB_VOCAB_NONE;
        size_t at = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            uint32_t rank = cb_vocab_merge_rank(vocab, ids[i], ids[i + 1]);
            if (rank < lowest) {
                lowest = rank;
                at = i;
            }
        }
        if (lowest == CB_VOCAB_NONE)
            return n;
        ids[at] = vocab->merges[lowest].result;
        memmove(ids + at + 1, ids + at + 2, (n - at - 2) * sizeof *ids);
        n--;
    }
}

Test(tokenizer, merges_words_of_any_length_as_the_naive_rule_does)
{
    struct text_fixture f = fixture_default();
    struct cb_bpe bpe = {0};
    srand(2);
    for (int round = 0; round < 3000; round++) {
        uint8_t word[300];
        uint32_t ids[300], expected[300];
        size_t n = 1 + (size_t)rand() % (round % 2 ? 40 : sizeof word), n_expected = 0;
        const char *letters = round % 3 == 0 ? "ab" : round % 3 == 1 ? "etaoinshr " : " -=\n";
        for (size_t i = 0; i < n; i++) {
            word[i] = (uint8_t)letters[(size_t)rand() % strlen(letters)];
            if (round % 7 == 0 && rand() % 8 == 0)
                word[i] = (uint8_t)rand();
            if (f.vocab->header->byte_ids[word[i]] != CB_VOCAB_NONE)
                expected[n_expected++] = f.vocab->header->byte_ids[word[i]];
        }
        n_expected = naive_merge(f.vocab, expected, n_expected);
        struct cb_ids out = {ids, 300, 0};
        cr_assert_eq(cb_bpe_word(&bpe, f.vocab, word, n, &out), 0);
        cr_assert_eq(out.n, n_expected);
        cr_assert_eq(memcmp(ids, expected, n_expected * sizeof *ids), 0);
    }
    cb_bpe_fini(&bpe);
    fixture_fini(&f);
}

static void expect(struct text_fixture *f, const char *text, uint32_t flags,
                   const uint32_t *expected, size_t n_expected)
{
    uint32_t *ids;
    size_t n = fixture_ids(f, text, strlen(text), flags, &ids);
    cr_assert_eq(n, n_expected, "\"%s\": %zu ids", text, n);
    for (size_t i = 0; i < n; i++)
        cr_assert_eq(ids[i], expected[i], "\"%s\": id %zu is %u", text, i, ids[i]);
    free(ids);
}
#define EXPECT(f, text, flags, ...)                         \
    expect(f, text, flags, (const uint32_t[]){__VA_ARGS__}, \
           sizeof((uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t))

Test(tokenizer, finds_control_tokens_only_when_asked)
{
    struct text_fixture f = fixture_bytes(CB_PRE_GPT2, 0);
    EXPECT(&f, "a<s>b", CB_TOKENIZE_SPECIAL, 'a', 256, 'b');
    EXPECT(&f, "a<s>b", 0, 'a', '<', 's', '>', 'b');
    EXPECT(&f, "<<s<s><s", CB_TOKENIZE_SPECIAL, '<', '<', 's', 256, '<', 's');
    fixture_fini(&f);
}

/* Ids 0-255 bytes; 256 "<a>", 257 "<a>b" control, 258 "<ab" user-defined, 259 "<a" control. */
Test(tokenizer, finds_the_leftmost_then_longest_special_token)
{
    uint32_t text_off[261];
    uint8_t text[300], types[260];
    static const char *specials[] = {"<a>", "<a>b", "<ab", "<a"};
    for (uint32_t i = 0; i < 256; i++) {
        text_off[i] = i;
        text[i] = (uint8_t)i;
    }
    text_off[256] = 256;
    for (uint32_t i = 0; i < 4; i++) {
        memcpy(text + text_off[256 + i], specials[i], strlen(specials[i]));
        text_off[257 + i] = text_off[256 + i] + (uint32_t)strlen(specials[i]);
    }
    memset(types, CB_TOKEN_NORMAL, sizeof types);
    types[256] = types[257] = types[259] = CB_TOKEN_CONTROL;
    types[258] = CB_TOKEN_USER;
    struct vocab_spec spec = {.n_tokens = 260,
                              .text_off = text_off,
                              .text = text,
                              .types = types,
                              .pre = CB_PRE_GPT2,
                              .bos = CB_VOCAB_NONE,
                              .eos = CB_VOCAB_NONE,
                              .eot = CB_VOCAB_NONE,
                              .unk = CB_VOCAB_NONE};
    struct vocab_image *image;
    cr_assert_eq(vocab_image_new(&image, &spec), 0);
    struct text_fixture f = fixture_of(image);
    EXPECT(&f, "<a>b<a>c", CB_TOKENIZE_SPECIAL, 257, 256, 'c');
    EXPECT(&f, "<ax", CB_TOKENIZE_SPECIAL, 259, 'x');
    EXPECT(&f, "<<ab<", CB_TOKENIZE_SPECIAL, '<', 258, '<');
    EXPECT(&f, "<<ab<", 0, '<', 258, '<'); /* user-defined ones without asking */
    EXPECT(&f, "<a>b", 0, '<', 'a', '>', 'b');
    EXPECT(&f, "<a", CB_TOKENIZE_SPECIAL, 259);
    fixture_fini(&f);
}

Test(tokenizer, puts_bos_as_the_vocabulary_says_unless_told)
{
    struct text_fixture with = fixture_bytes(CB_PRE_GPT2, CB_VOCAB_ADD_BOS);
    struct text_fixture without = fixture_bytes(CB_PRE_GPT2, 0);
    EXPECT(&with, "a", 0, 256, 'a');
    EXPECT(&with, "a", CB_TOKENIZE_NO_BOS, 'a');
    EXPECT(&with, "a", CB_TOKENIZE_BOS, 256, 'a');
    EXPECT(&without, "a", 0, 'a');
    EXPECT(&without, "a", CB_TOKENIZE_BOS, 256, 'a');
    EXPECT(&with, "", 0, 256);
    size_t n;
    cr_assert_eq(cb_tokenizer_encode(with.tokenizer, with.scratch, "a", 1,
                                     CB_TOKENIZE_BOS | CB_TOKENIZE_NO_BOS, NULL, 0, &n),
                 -EINVAL);
    fixture_fini(&with);
    fixture_fini(&without);

    struct vocab_image *image;
    cr_assert_eq(vocab_image_null(&image, 512), 0);
    struct text_fixture none = fixture_of(image);
    cr_assert_eq(
        cb_tokenizer_encode(none.tokenizer, none.scratch, "a", 1, CB_TOKENIZE_BOS, NULL, 0, &n),
        -EINVAL);
    fixture_fini(&none);
}

Test(tokenizer, says_how_many_ids_it_needs)
{
    struct text_fixture f = fixture_bytes(CB_PRE_GPT2, 0);
    uint32_t ids[3] = {7, 7, 7};
    size_t n;
    cr_assert_eq(cb_tokenizer_encode(f.tokenizer, f.scratch, "abc", 3, 0, NULL, 0, &n),
                 CB_TOKENIZE_ROOM);
    cr_assert_eq(n, 3);
    cr_assert_eq(cb_tokenizer_encode(f.tokenizer, f.scratch, "abc", 3, 0, ids, 2, &n),
                 CB_TOKENIZE_ROOM);
    cr_assert(n == 3 && ids[0] == 'a' && ids[1] == 'b' && ids[2] == 7);
    cr_assert_eq(cb_tokenizer_encode(f.tokenizer, f.scratch, "abc", 3, 0, ids, 3, &n), 0);
    cr_assert_eq(cb_tokenizer_encode(f.tokenizer, f.scratch, NULL, 0, 0, NULL, 0, &n), 0);
    cr_assert_eq(n, 0);
    fixture_fini(&f);
}

Test(tokenizer, tells_where_text_is_not_utf8_and_takes_nul)
{
    struct text_fixture f = fixture_bytes(CB_PRE_GPT2, 0);
    static const struct {
        const char *text;
        size_t n, at;
    } bad[] = {
        {"abc\xff", 4, 3}, {"\xc3\xa9\xc3", 3, 2}, {"12345678\xed\xa0\x80", 11, 8}, {"\x80", 1, 0}};
    size_t n;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cr_assert_eq(
            cb_tokenizer_encode(f.tokenizer, f.scratch, bad[i].text, bad[i].n, 0, NULL, 0, &n),
            -EILSEQ);
        cr_assert_eq(n, bad[i].at);
    }
    uint32_t ids[3];
    cr_assert_eq(cb_tokenizer_encode(f.tokenizer, f.scratch, "a\0b", 3, 0, ids, 3, &n), 0);
    cr_assert(n == 3 && ids[0] == 'a' && ids[1] == 0 && ids[2] == 'b');
    cr_assert_eq(
        cb_tokenizer_encode(f.tokenizer, f.scratch, "a", CB_TOKENIZE_TEXT_MAX + 1, 0, NULL, 0, &n),
        -E2BIG);
    fixture_fini(&f);
}

Test(tokenizer, brings_text_into_form_c_if_the_vocabulary_says_so)
{
    struct text_fixture f = fixture_bytes(CB_PRE_QWEN2, CB_VOCAB_NFC);
    EXPECT(&f, "e\u0301", 0, 0xc3, 0xa9);
    EXPECT(&f, "e\u0301<s>e\u0301", CB_TOKENIZE_SPECIAL, 0xc3, 0xa9, 256, 0xc3, 0xa9);
    fixture_fini(&f);
    f = fixture_bytes(CB_PRE_QWEN2, 0);
    EXPECT(&f, "e\u0301", 0, 'e', 0xcc, 0x81);
    fixture_fini(&f);
}

/* A word that is a token: 257 "ab" of "a" and "b", for which there is no merge. */
Test(tokenizer, takes_a_whole_word_without_merges_if_the_vocabulary_says_so)
{
    static const uint32_t text_off[] = {0, 1, 2, 4, 6};
    static const uint8_t types[] = {1, 1, 1, CB_TOKEN_CONTROL};
    struct vocab_spec spec = {.n_tokens = 4,
                              .text_off = text_off,
                              .text = (const uint8_t *)"abab"
                                                       "ba",
                              .types = types,
                              .pre = CB_PRE_LLAMA3,
                              .flags = CB_VOCAB_IGNORE_MERGES,
                              .bos = CB_VOCAB_NONE,
                              .eos = CB_VOCAB_NONE,
                              .eot = CB_VOCAB_NONE,
                              .unk = CB_VOCAB_NONE};
    struct vocab_image *image;
    cr_assert_eq(vocab_image_new(&image, &spec), 0);
    struct text_fixture f = fixture_of(image);
    EXPECT(&f, "ab", 0, 2);
    EXPECT(&f, "aba", 0, 0, 1, 0);
    EXPECT(&f, "ba", 0, 1, 0);  /* never a control token by accident */
    EXPECT(&f, "axb", 0, 0, 1); /* no token for x */
    fixture_fini(&f);
}

/* Words of a quarter megabyte; as many beginnings of special tokens. Anything quadratic takes
 * minutes. */
Test(tokenizer, takes_hard_text_of_any_kind, .timeout = 30)
{
    static const char *const pieces[] = {"a", "ab", "<",  "<|", "<|im_",
                                         "-", " ",  "\n", "=a", "\u0301"};
    struct text_fixture f = fixture_default();
    size_t n = 1u << 18;
    char *text = malloc(n + 8);
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        size_t length = strlen(pieces[i]), used = n - n % length;
        for (size_t at = 0; at < used; at += length)
            memcpy(text + at, pieces[i], length);
        uint32_t *ids;
        cr_assert_gt(fixture_ids(&f, text, used, CB_TOKENIZE_SPECIAL, &ids), 0);
        free(ids);
    }
    free(text);
    fixture_fini(&f);
}
