/* Attach accepts what the daemon makes and survives what nobody should have made. */
#include "shm/vocab.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/vocabulary.h"

/* "a", "b", "ab", "<s>", "abab", "" */
static struct vocab_image *small_image(void)
{
    static const uint32_t text_off[] = {0, 1, 2, 4, 7, 11, 11};
    static const uint8_t types[] = {1, 1, 1, CB_TOKEN_CONTROL, 1, CB_TOKEN_USER};
    static const struct cb_vocab_merge merges[] = {{0, 1, 2}, {2, 2, 4}};
    struct vocab_spec spec = {
        .n_tokens = 6,
        .text_off = text_off,
        .text = (const uint8_t *)"abab<s>abab",
        .types = types,
        .n_merges = 2,
        .merges = merges,
        .pre = CB_PRE_GPT2,
        .flags = CB_VOCAB_ADD_BOS,
        .bos = 3,
        .eos = CB_VOCAB_NONE,
        .eot = CB_VOCAB_NONE,
        .unk = CB_VOCAB_NONE,
        .chat_template = "{{ x }}",
        .template_bytes = 7,
        .name = "small",
        .name_bytes = 5,
    };
    struct vocab_image *image;
    cr_assert_eq(vocab_image_new(&image, &spec), 0);
    return image;
}

Test(vocab, says_what_it_was_made_of)
{
    struct vocab_image *image = small_image();
    const struct cb_vocab *v = vocab_image_view(image);
    uint32_t n;
    cr_assert_eq(v->n_tokens, 6);
    cr_assert_eq(memcmp(cb_vocab_bytes(v, 4, &n), "abab", 4), 0);
    cr_assert_eq(n, 4);
    cb_vocab_bytes(v, 3, &n);
    cr_assert_eq(n, 3);
    cb_vocab_text(v, 3, &n);
    cr_assert_eq(n, 0, "a control token is no text");
    cr_assert_eq(cb_vocab_merge_rank(v, 0, 1), 0);
    cr_assert_eq(cb_vocab_merge_rank(v, 2, 2), 1);
    cr_assert_eq(cb_vocab_merge_rank(v, 1, 0), CB_VOCAB_NONE);
    cr_assert_eq(cb_vocab_find(v, "ab", 2), 2);
    cr_assert_eq(cb_vocab_find(v, "ba", 2), CB_VOCAB_NONE);
    cr_assert_eq(v->n_specials, 1, "an empty token is none");
    cr_assert_eq(v->special_ids[0], 3);
    cr_assert_eq(v->header->byte_ids['a'], 0);
    cr_assert_eq(v->header->byte_ids['c'], CB_VOCAB_NONE);
    cr_assert_eq(v->template_bytes, 7);
    cr_assert_eq(memcmp(v->name, "small", 5), 0);
    vocab_image_free(image);
}

Test(vocab, of_equal_tokens_the_lowest_normal_one_is_found)
{
    static const uint32_t text_off[] = {0, 1, 2, 3};
    static const uint8_t types[] = {CB_TOKEN_CONTROL, 1, 1};
    struct vocab_spec spec = {.n_tokens = 3,
                              .text_off = text_off,
                              .text = (const uint8_t *)"xxx",
                              .types = types,
                              .pre = CB_PRE_GPT2,
                              .bos = CB_VOCAB_NONE,
                              .eos = CB_VOCAB_NONE,
                              .eot = CB_VOCAB_NONE,
                              .unk = CB_VOCAB_NONE};
    struct vocab_image *image;
    cr_assert_eq(vocab_image_new(&image, &spec), 0);
    cr_assert_eq(cb_vocab_find(vocab_image_view(image), "x", 1), 1);
    cr_assert_eq(vocab_image_view(image)->header->byte_ids['x'], 1);
    vocab_image_free(image);
}

Test(vocab, is_refused_when_cut_anywhere)
{
    struct vocab_image *image = small_image();
    size_t bytes = vocab_image_bytes(image);
    for (size_t n = 0; n < bytes; n++) {
        void *cut = aligned_alloc(8, (n + 8) & ~(size_t)7);
        struct cb_vocab v;
        memcpy(cut, vocab_image_data(image), n);
        cr_assert_eq(cb_vocab_attach(&v, cut, n), -EBADMSG, "cut to %zu", n);
        free(cut);
    }
    vocab_image_free(image);
}

/* Uses everything that attach promises to be safe. */
static void use(const struct cb_vocab *v)
{
    uint32_t n, sum = 0;
    for (uint32_t id = 0; id < v->n_tokens; id++) {
        const uint8_t *bytes = cb_vocab_bytes(v, id, &n);
        for (uint32_t i = 0; i < n; i++)
            sum += bytes[i];
        sum += cb_vocab_find(v, bytes, n);
        sum += cb_vocab_merge_rank(v, id, id ^ 1);
    }
    for (uint32_t i = 0; i < v->n_specials; i++)
        sum += *cb_vocab_bytes(v, v->special_ids[i], &n);
    for (uint32_t i = 0; i < v->template_bytes; i++)
        sum += (uint8_t)v->chat_template[i];
    for (uint32_t i = 0; i < v->name_bytes; i++)
        sum += (uint8_t)v->name[i];
    cr_assert(sum + 1 > 0 || sum == UINT32_MAX);
}

Test(vocab, with_any_word_changed_is_refused_or_safe)
{
    static const uint32_t values[] = {0, 1, 2, 7, 0x7fffffff, 0x80000000, 0xfffffff8, UINT32_MAX};
    struct vocab_image *image = small_image();
    size_t bytes = vocab_image_bytes(image);
    uint32_t n_refused = 0;
    for (size_t at = 0; at + 4 <= bytes; at += 4) {
        for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
            uint8_t *copy = aligned_alloc(8, bytes); /* its own block: a step outside is seen */
            struct cb_vocab v;
            memcpy(copy, vocab_image_data(image), bytes);
            memcpy(copy + at, &values[i], 4);
            if (cb_vocab_attach(&v, copy, bytes) == 0)
                use(&v);
            else
                n_refused++;
            free(copy);
        }
    }
    cr_assert_gt(n_refused, 500);
    vocab_image_free(image);
}

static void set(struct vocab_image *image, size_t at, uint32_t value, int expect)
{
    size_t bytes = vocab_image_bytes(image);
    uint8_t *copy = aligned_alloc(8, bytes);
    struct cb_vocab v;
    memcpy(copy, vocab_image_data(image), bytes);
    memcpy(copy + at, &value, 4);
    cr_assert_eq(cb_vocab_attach(&v, copy, bytes), expect, "%u at %zu", value, at);
    free(copy);
}

Test(vocab, each_check_of_attach_refuses)
{
    struct vocab_image *image = small_image();
    const struct cb_vocab_header *h = vocab_image_data(image);
    const struct cb_vocab_part *parts = h->parts;
    set(image, 0, 0, -EBADMSG);
    set(image, offsetof(struct cb_vocab_header, version), 2, -EPROTONOSUPPORT);
    set(image, offsetof(struct cb_vocab_header, header_bytes), 1240, -EBADMSG);
    set(image, offsetof(struct cb_vocab_header, n_tokens), 0, -EBADMSG);
    set(image, offsetof(struct cb_vocab_header, n_tokens), CB_VOCAB_TOKENS_MAX + 1, -EBADMSG);
    set(image, offsetof(struct cb_vocab_header, merge_slots), 3, -EBADMSG);
    set(image, offsetof(struct cb_vocab_header, token_slots), 0, -EBADMSG);
    set(image, offsetof(struct cb_vocab_header, token_bytes_max), 3, -EBADMSG);
    set(image, offsetof(struct cb_vocab_header, bos), 6, -EBADMSG);
    set(image, offsetof(struct cb_vocab_header, unk), 6, -EBADMSG);
    set(image, offsetof(struct cb_vocab_header, byte_ids), 6, -EBADMSG);
    for (int i = 0; i < CB_VOCAB_PARTS; i++) {
        size_t at = offsetof(struct cb_vocab_header, parts) + (size_t)i * sizeof *parts;
        uint32_t total = (uint32_t)h->total_bytes;
        set(image, at, (uint32_t)parts[i].off + 4, -EBADMSG); /* not aligned */
        set(image, at, total, -EBADMSG);                      /* nothing is left there */
        set(image, at, total + 8, -EBADMSG);
        set(image, at + 8, total - (uint32_t)parts[i].off + 1, -EBADMSG);
        set(image, at + 12, 1, -EBADMSG); /* 4 GiB more */
    }
    set(image, parts[CB_VOCAB_TEXT_OFF].off, 1, -EBADMSG);
    set(image, parts[CB_VOCAB_TEXT_OFF].off + 8, 5, -EBADMSG); /* then the next is lower */
    set(image, parts[CB_VOCAB_TYPES].off, 0x01010107, -EBADMSG);
    set(image, parts[CB_VOCAB_MERGES].off + 8, 6, -EBADMSG);
    set(image, parts[CB_VOCAB_SPECIALS].off, 6, -EBADMSG);
    set(image, parts[CB_VOCAB_SPECIALS].off, 5, -EBADMSG); /* empty */
    for (uint32_t i = 0; i < h->token_slots; i++)
        set(image, parts[CB_VOCAB_TOKEN_SLOTS].off + 4 * i, 6, -EBADMSG);
    vocab_image_free(image);
}

/* Offsets that climb through all 32 bits, wrap, and end where the text does: each step is legal, but
 * nearly every token lies outside. */
Test(vocab, with_offsets_that_wrap_is_refused)
{
    const uint32_t n_tokens = (1u << 20) + 1;
    struct vocab_image *image = small_image();
    struct cb_vocab_header h = *(const struct cb_vocab_header *)vocab_image_data(image);
    uint64_t end = sizeof h;
    h.n_tokens = n_tokens;
    h.n_merges = h.n_specials = 0;
    h.merge_slots = h.token_slots = 2;
    h.token_bytes_max = CB_VOCAB_TOKEN_BYTES_MAX;
    const uint64_t bytes[CB_VOCAB_PARTS] = {[CB_VOCAB_TEXT_OFF] = 4 * (n_tokens + 1ull),
                                            [CB_VOCAB_TEXT] = 4096,
                                            [CB_VOCAB_TYPES] = n_tokens,
                                            [CB_VOCAB_MERGE_SLOTS] = 8,
                                            [CB_VOCAB_TOKEN_SLOTS] = 8};
    for (int i = 0; i < CB_VOCAB_PARTS; i++) {
        h.parts[i] = (struct cb_vocab_part){end, bytes[i]};
        end += (bytes[i] + 7) & ~7ull;
    }
    h.total_bytes = end;

    uint8_t *base = calloc(1, end);
    memcpy(base, &h, sizeof h);
    uint32_t *text_off = (uint32_t *)(void *)(base + h.parts[CB_VOCAB_TEXT_OFF].off);
    for (uint32_t i = 0; i <= n_tokens; i++)
        text_off[i] = i * 4096u;
    memset(base + h.parts[CB_VOCAB_TYPES].off, CB_TOKEN_NORMAL, n_tokens);
    memset(base + h.parts[CB_VOCAB_MERGE_SLOTS].off, 0xff, 8);
    memset(base + h.parts[CB_VOCAB_TOKEN_SLOTS].off, 0xff, 8);
    struct cb_vocab v;
    cr_assert_eq(text_off[n_tokens], 4096, "back where the text ends");
    cr_assert_eq(cb_vocab_attach(&v, base, end), -EBADMSG);
    free(base);
    vocab_image_free(image);
}

Test(vocab, without_an_empty_slot_is_refused)
{
    struct vocab_image *image = small_image();
    struct cb_vocab_header *h = (void *)vocab_image_data(image);
    memset((char *)h + h->parts[CB_VOCAB_MERGE_SLOTS].off, 0, 4 * h->merge_slots);
    struct cb_vocab v;
    cr_assert_eq(cb_vocab_attach(&v, h, vocab_image_bytes(image)), -EBADMSG);
    vocab_image_free(image);
}

Test(vocab, of_the_null_model_holds_all_bytes_and_different_words)
{
    static const uint32_t sizes[] = {1, 2, 64, 511, 512, 49152};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct vocab_image *image;
        cr_assert_eq(vocab_image_null(&image, sizes[i]), 0);
        const struct cb_vocab *v = vocab_image_view(image);
        cr_assert_eq(v->n_tokens, sizes[i]);
        for (uint32_t id = 0; id < sizes[i]; id++) {
            uint32_t n;
            const uint8_t *bytes = cb_vocab_text(v, id, &n);
            cr_assert_gt(n, 0);
            cr_assert_eq(cb_vocab_find(v, bytes, n), id, "two tokens are the same word");
        }
        for (uint32_t b = 0; sizes[i] >= 512 && b < 256; b++)
            cr_assert_eq(v->header->byte_ids[b], b);
        vocab_image_free(image);
    }
    struct vocab_image *image;
    cr_assert_eq(vocab_image_null(&image, 0), -EINVAL);
    cr_assert_eq(vocab_image_null(&image, CB_VOCAB_TOKENS_MAX + 1), -EINVAL);
}
