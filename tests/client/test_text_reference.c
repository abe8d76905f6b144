/* The default model's own vocabulary against what the reference implementation recorded: the ids
 * of every text, the text of these ids, at once and streamed, and rendered chats. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "client/text/chat.h"
#include "client/text/decode.h"
#include "tests/client/text_util.h"

static json_t *load(const char *path)
{
    json_error_t error;
    json_t *root = json_load_file(path, JSON_ALLOW_NUL, &error);
    cr_assert(root, "%s: %s", path, error.text);
    return root;
}

static void expect_ids(const json_t *expected, const uint32_t *ids, size_t n, const char *what,
                       size_t i)
{
    cr_assert_eq(n, json_array_size(expected), "%s %zu: %zu ids, not %zu", what, i, n,
                 json_array_size(expected));
    for (size_t k = 0; k < n; k++)
        cr_assert_eq(ids[k], json_integer_value(json_array_get(expected, k)), "%s %zu: id %zu",
                     what, i, k);
}

/* Whole text, in one call, what is incomplete at the end as U+FFFD. Returns its length; *textp
 * to be freed. */
static size_t decode(const struct cb_vocab *vocab, const uint32_t *ids, size_t n, char **textp)
{
    struct cb_decoder d;
    size_t capacity = 3 + 3 * (size_t)vocab->header->token_bytes_max * n, n_taken, n_out, n_more,
           n_tail;
    char *text = malloc(capacity);
    cr_assert_eq(cb_decoder_init(&d, vocab, NULL, CB_DECODE_SPECIAL), 0);
    cr_assert_eq(cb_decoder_feed(&d, ids, n, &n_taken, text, capacity, &n_out), 0);
    cr_assert_eq(n_taken, n);
    cr_assert_eq(cb_decoder_finish(&d, text + n_out, capacity - n_out, &n_more), 0);
    n_out += n_more;
    cb_decoder_tail(&d, &n_tail);
    if (n_tail > 0) {
        memcpy(text + n_out, "\xef\xbf\xbd", 3);
        n_out += 3;
    }
    *textp = text;
    return n_out;
}

/* The same in the smallest steps, with room for one character at a time. Each piece is whole
 * characters. */
static void expect_stream(const struct cb_vocab *vocab, const uint32_t *ids, size_t n,
                          const char *text, size_t n_text)
{
    struct cb_decoder d;
    size_t at = 0, capacity = 1;
    cr_assert_eq(cb_decoder_init(&d, vocab, NULL, CB_DECODE_SPECIAL), 0);
    for (size_t i = 0; i < n;) {
        char piece[3 * 1024];
        size_t n_taken, n_out;
        cr_assert_leq(capacity, sizeof piece);
        int r = cb_decoder_feed(&d, ids + i, 1, &n_taken, piece, capacity, &n_out);
        if (r == CB_DECODE_ROOM) {
            cr_assert_eq(n_taken + n_out, 0);
            capacity++;
            continue;
        }
        cr_assert_eq(r, 0);
        cr_assert_eq(cb_utf8_valid((uint8_t *)piece, n_out), n_out, "a character was split");
        cr_assert_leq(at + n_out, n_text);
        cr_assert_eq(memcmp(text + at, piece, n_out), 0);
        at += n_out;
        capacity = 1;
        i += n_taken;
    }
    size_t n_tail;
    cb_decoder_tail(&d, &n_tail);
    cr_assert_eq(at + (n_tail > 0 ? 3 : 0), n_text);
}

Test(text_reference, all_recorded_texts_make_the_same_ids_and_come_back)
{
    struct text_fixture f = fixture_default();
    json_t *root = load("tests/data/tokens.json");
    json_t *texts = json_object_get(root, "texts");
    json_t *model = json_object_get(json_object_get(root, "models"), "smollm2");
    json_t *all_ids = json_object_get(model, "ids"), *decoded = json_object_get(model, "decoded");
    cr_assert_eq(json_array_size(texts), 265);
    for (size_t i = 0; i < json_array_size(texts); i++) {
        const json_t *text = json_array_get(texts, i), *back = json_array_get(decoded, i);
        uint32_t *ids;
        size_t n = fixture_ids(&f, json_string_value(text), json_string_length(text),
                               CB_TOKENIZE_SPECIAL, &ids);
        expect_ids(json_array_get(all_ids, i), ids, n, "text", i);
        char *whole;
        size_t n_whole = decode(f.vocab, ids, n, &whole);
        cr_assert_eq(n_whole, json_string_length(back), "text %zu", i);
        cr_assert_eq(memcmp(whole, json_string_value(back), n_whole), 0, "text %zu", i);
        expect_stream(f.vocab, ids, n, whole, n_whole);
        free(whole);
        free(ids);
    }
    json_decref(root);
    fixture_fini(&f);
}

static size_t render(const struct cb_vocab *vocab, const json_t *messages, char *out,
                     size_t capacity)
{
    struct cb_chat_turn turns[16];
    size_t n = json_array_size(messages), n_out;
    cr_assert_leq(n, sizeof turns / sizeof *turns);
    for (size_t i = 0; i < n; i++) {
        const json_t *message = json_array_get(messages, i), *content;
        content = json_object_get(message, "content");
        turns[i].role = json_string_value(json_object_get(message, "role"));
        turns[i].content = json_string_value(content);
        turns[i].content_bytes = json_string_length(content);
    }
    cr_assert_eq(cb_chat_render(vocab, turns, n, true, out, capacity, &n_out), 0);
    return n_out;
}

Test(text_reference, chats_are_rendered_as_recorded_and_make_the_recorded_ids)
{
    struct text_fixture f = fixture_default();
    json_t *root = load("tests/data/smollm2/greedy.json");
    json_t *cases = json_object_get(root, "cases");
    size_t n_chats = 0;
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i), *text = json_object_get(c, "text");
        const json_t *messages = json_object_get(c, "messages");
        if (json_is_array(messages)) {
            static char out[1 << 16];
            size_t n = render(f.vocab, messages, out, sizeof out);
            cr_assert_eq(n, json_string_length(text), "case %zu", i);
            cr_assert_eq(memcmp(out, json_string_value(text), n), 0, "case %zu", i);
            n_chats++;
        }
        uint32_t *ids;
        size_t n = fixture_ids(&f, json_string_value(text), json_string_length(text),
                               CB_TOKENIZE_SPECIAL, &ids);
        expect_ids(json_object_get(c, "input_ids"), ids, n, "case", i);
        free(ids);
    }
    cr_assert_eq(n_chats, 8);
    json_decref(root);
    fixture_fini(&f);
}
