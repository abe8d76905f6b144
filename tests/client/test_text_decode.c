/* Streams against the whole, characters, faults, and stop strings held back. */
#include "client/text/decode.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/client/text_util.h"

/* Text so far, and how it came. */
struct reader {
    struct cb_decoder d;
    char text[4096];
    size_t n;
    int r;
};

static void start(struct reader *reader, const struct cb_vocab *vocab, const struct cb_stops *stops,
                  uint32_t flags)
{
    memset(reader, 0, sizeof *reader);
    cr_assert_eq(cb_decoder_init(&reader->d, vocab, stops, flags), 0);
}

/* Feeds the bytes of `text` as one-byte tokens. */
static void feed(struct reader *reader, const char *text, size_t n)
{
    for (size_t i = 0; i < n && reader->r == 0; i++) {
        uint32_t id = (uint8_t)text[i];
        size_t n_taken, n_out;
        reader->r = cb_decoder_feed(&reader->d, &id, 1, &n_taken, reader->text + reader->n,
                                    sizeof reader->text - reader->n, &n_out);
        reader->n += n_out;
    }
}

static void finish(struct reader *reader)
{
    size_t n_out;
    cr_assert_eq(cb_decoder_finish(&reader->d, reader->text + reader->n,
                                   sizeof reader->text - reader->n, &n_out),
                 0);
    reader->n += n_out;
}

static void expect(const struct reader *reader, const char *text)
{
    cr_assert(reader->n == strlen(text) && memcmp(reader->text, text, reader->n) == 0,
              "\"%.*s\", not \"%s\"", (int)reader->n, reader->text, text);
}

Test(decode, waits_for_whole_characters)
{
    struct text_fixture f = fixture_bytes(CB_PRE_GPT2, 0);
    struct reader r;
    size_t n;
    start(&r, f.vocab, NULL, 0);
    feed(&r, "a\xf0\x9f\x98", 4);
    expect(&r, "a");
    cb_decoder_tail(&r.d, &n);
    cr_assert_eq(n, 3);
    feed(&r, "\x80\xc3", 2);
    expect(&r, "a\U0001f600");
    feed(&r, "\xa9", 1);
    expect(&r, "a\U0001f600\u00e9");
    fixture_fini(&f);
}

/* As Python's bytes.decode("utf-8", "replace"), the incomplete end apart. */
Test(decode, replaces_each_fault_once)
{
    static const struct {
        const char *bytes, *text;
    } cases[] = {
        {"\xff", "\ufffd"},
        {"a\x80z", "a\ufffdz"},
        {"\xc3(", "\ufffd("},
        {"\xf0\x9f\x98(", "\ufffd("},
        {"\xf0\x9f\xf0\x9f\x98\x80", "\ufffd\U0001f600"},
        {"\xe0\x80\x80", "\ufffd\ufffd\ufffd"},
        {"\xed\xa0\x80", "\ufffd\ufffd\ufffd"},
        {"\xf4\x90\x80\x80", "\ufffd\ufffd\ufffd\ufffd"},
        {"\xe2\x82\xe2\x82\xac", "\ufffd\u20ac"},
        {"\xf1\x80\x80\xe1\x80\xc2\x62\x80\x63", "\ufffd\ufffd\ufffdb\ufffdc"},
    };
    struct text_fixture f = fixture_bytes(CB_PRE_GPT2, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct reader r;
        start(&r, f.vocab, NULL, 0);
        feed(&r, cases[i].bytes, strlen(cases[i].bytes));
        expect(&r, cases[i].text);
        start(&r, f.vocab, NULL, CB_DECODE_RAW);
        feed(&r, cases[i].bytes, strlen(cases[i].bytes));
        expect(&r, cases[i].bytes);
    }
    fixture_fini(&f);
}

/* An output limit cuts inside a character: nothing is invented, the bytes are there to be had. */
Test(decode, leaves_an_incomplete_end_as_bytes)
{
    struct text_fixture f = fixture_bytes(CB_PRE_GPT2, 0);
    struct reader r;
    size_t n;
    start(&r, f.vocab, NULL, 0);
    feed(&r, "ab\xf0\x9f", 4);
    finish(&r);
    expect(&r, "ab");
    const uint8_t *tail = cb_decoder_tail(&r.d, &n);
    cr_assert(n == 2 && memcmp(tail, "\xf0\x9f", 2) == 0);
    fixture_fini(&f);
}

Test(decode, shows_control_tokens_only_when_asked)
{
    struct text_fixture f = fixture_bytes(CB_PRE_GPT2, 0);
    static const uint32_t ids[] = {'a', 256, 'b', 257};
    struct reader r;
    size_t n_taken, n_out;
    start(&r, f.vocab, NULL, 0);
    cr_assert_eq(cb_decoder_feed(&r.d, ids, 4, &n_taken, r.text, sizeof r.text, &r.n), -EINVAL);
    cr_assert_eq(n_taken, 3, "257 is no token");
    expect(&r, "ab");
    start(&r, f.vocab, NULL, CB_DECODE_SPECIAL);
    cr_assert_eq(cb_decoder_feed(&r.d, ids, 3, &n_taken, r.text, sizeof r.text, &n_out), 0);
    r.n = n_out;
    expect(&r, "a<s>b");
    fixture_fini(&f);
}

static void stops_of(struct cb_stops *stops, const char *a, const char *b)
{
    cb_stops_init(stops);
    cr_assert_eq(cb_stops_add(stops, a, strlen(a)), 0);
    if (b)
        cr_assert_eq(cb_stops_add(stops, b, strlen(b)), 0);
}

Test(decode, releases_held_text_at_the_end)
{
    struct text_fixture f = fixture_bytes(CB_PRE_GPT2, 0);
    static struct cb_stops stops;
    struct reader r;
    stops_of(&stops, "STOP", NULL);
    start(&r, f.vocab, &stops, 0);
    feed(&r, "a STO", 5);
    expect(&r, "a ");
    finish(&r);
    expect(&r, "a STO");
    cr_assert_eq(cb_decoder_stop_idx(&r.d), CB_VOCAB_NONE);
    fixture_fini(&f);
}

Test(decode, ends_at_the_first_of_overlapping_stops)
{
    struct text_fixture f = fixture_bytes(CB_PRE_GPT2, 0);
    static struct cb_stops stops;
    struct reader r;
    stops_of(&stops, "b,c", ",b,d");
    start(&r, f.vocab, &stops, 0);
    feed(&r, "a,b,c", 5);
    expect(&r, "a,");
    cr_assert_eq(r.r, CB_DECODE_STOPPED);
    cr_assert_eq(cb_decoder_stop_idx(&r.d), 0);
    finish(&r);
    expect(&r, "a,");

    start(&r, f.vocab, &stops, CB_DECODE_KEEP_STOP);
    feed(&r, "a,b,cd", 6);
    finish(&r);
    expect(&r, "a,b,c");
    fixture_fini(&f);
}

Test(decode, takes_no_id_after_a_stop)
{
    struct text_fixture f = fixture_bytes(CB_PRE_GPT2, 0);
    static struct cb_stops stops;
    static const uint32_t ids[] = {'a', 'X', 'b', 'c'};
    struct cb_decoder d;
    char out[16];
    size_t n_taken, n_out;
    stops_of(&stops, "X", NULL);
    cr_assert_eq(cb_decoder_init(&d, f.vocab, &stops, 0), 0);
    cr_assert_eq(cb_decoder_feed(&d, ids, 4, &n_taken, out, sizeof out, &n_out), CB_DECODE_STOPPED);
    cr_assert(n_taken == 2 && n_out == 1);
    cr_assert_eq(cb_decoder_feed(&d, ids, 4, &n_taken, out, sizeof out, &n_out), CB_DECODE_STOPPED);
    cr_assert(n_taken == 0 && n_out == 0);
    cr_assert_eq(cb_decoder_init(&d, f.vocab, &stops, CB_DECODE_SPECIAL), -EINVAL);
    fixture_fini(&f);
}

/* The text that should come out, from the definition: cut the model's bytes at the stop, then
 * replace. */
static size_t naive(const uint8_t *bytes, size_t n, const struct cb_stops *stops, char *out)
{
    struct cb_stop_state state = {0};
    struct cb_stop_match match;
    size_t n_out = 0;
    if (cb_stop_feed(stops, &state, bytes, n, &match) == CB_STOP_FOUND)
        n = (size_t)match.text_bytes;
    for (size_t at = 0; at < n;) {
        int k = cb_utf8_scan(bytes + at, n - at);
        if (k == 0)
            break;
        if (k > 0) {
            memcpy(out + n_out, bytes + at, (size_t)k);
            n_out += (size_t)k;
            at += (size_t)k;
        } else {
            memcpy(out + n_out, "\xef\xbf\xbd", 3);
            n_out += 3;
            at += (size_t)-k;
        }
    }
    return n_out;
}

/* Random bytes as tokens, random stops, random pieces, random room: always the same text. */
Test(decode, gives_the_same_text_however_it_is_cut)
{
    static const char *const characters[] = {"a",    "b",        "\u00e9", "\u20ac", "\U0001f600",
                                             "\xff", "\xf0\x9f", "\xe2",   "\x80"};
    struct text_fixture f = fixture_bytes(CB_PRE_GPT2, 0);
    static struct cb_stops stops;
    srand(3);
    for (int round = 0; round < 20000; round++) {
        uint8_t bytes[256];
        uint32_t ids[256];
        size_t n = 0, wanted = (size_t)rand() % 60;
        while (n < wanted) {
            const char *c = characters[(size_t)rand() % 9];
            memcpy(bytes + n, c, strlen(c));
            n += strlen(c);
        }
        for (size_t i = 0; i < n; i++)
            ids[i] = bytes[i];
        cb_stops_init(&stops);
        for (int i = rand() % 4; i > 0; i--) {
            char stop[32] = "";
            for (int k = 1 + rand() % 4; k > 0; k--)
                strcat(stop, characters[(size_t)rand() % 5]);
            cr_assert_eq(cb_stops_add(&stops, stop, strlen(stop)), 0);
        }
        char expected[1024], text[1024];
        size_t n_expected = naive(bytes, n, &stops, expected), n_text = 0, n_out;
        struct cb_decoder d;
        int r = 0;
        cr_assert_eq(cb_decoder_init(&d, f.vocab, &stops, 0), 0);
        for (size_t at = 0, n_taken, room = 0; at < n && r != CB_DECODE_STOPPED; at += n_taken) {
            r = cb_decoder_feed(&d, ids + at, 1 + (size_t)rand() % (n - at), &n_taken,
                                text + n_text, room, &n_out);
            cr_assert_leq(n_out, room);
            cr_assert_eq(cb_utf8_valid((uint8_t *)text + n_text, n_out), n_out);
            n_text += n_out;
            room = r == CB_DECODE_ROOM && n_out == 0 ? room + 1 : (size_t)rand() % 8;
        }
        cr_assert_eq(cb_decoder_finish(&d, text + n_text, sizeof text - n_text, &n_out), 0);
        n_text += n_out;
        cr_assert_eq(n_text, n_expected);
        cr_assert_eq(memcmp(text, expected, n_text), 0);
    }
    fixture_fini(&f);
}

Test(decode, changes_nothing_when_the_end_does_not_fit)
{
    struct text_fixture f = fixture_bytes(CB_PRE_GPT2, 0);
    static struct cb_stops stops;
    struct reader r;
    size_t n_out;
    stops_of(&stops, "STOP", NULL);
    start(&r, f.vocab, &stops, 0);
    feed(&r, "STO", 3);
    cr_assert_eq(cb_decoder_finish(&r.d, r.text, 2, &n_out), CB_DECODE_ROOM);
    cr_assert_eq(n_out, 0);
    finish(&r);
    expect(&r, "STO");
    fixture_fini(&f);
}

/* Whatever the length of the answer, what waits in the decoder is what a stop may yet need. */
Test(decode, holds_no_more_after_60000_tokens)
{
    struct text_fixture f = fixture_bytes(CB_PRE_GPT2, 0);
    static const char text[] = "STSTO\xc3";
    static struct cb_stops stops;
    struct reader r;
    size_t n = 0;
    stops_of(&stops, "STOP", "TOS!");
    start(&r, f.vocab, &stops, 0);
    for (size_t i = 0; i < 60000; i++) {
        feed(&r, &text[i % (sizeof text - 1)], 1);
        n += r.n;
        r.n = 0; /* read, as a client does */
        cr_assert_leq(r.d.place.n_held, 3, "token %zu", i);
        cr_assert_lt(r.d.place.n_tail, CB_UTF8_BYTES_MAX, "token %zu", i);
    }
    cr_assert_gt(n, 60000u);
    cr_assert_eq(r.r, 0);
    fixture_fini(&f);
}
