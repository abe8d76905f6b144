/* A request's text: stops held back, characters whole, the same by every road. */
#include "client/cbclient.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/client/fake.h"

#define HANG_MS 10000

struct outcome {
    char streamed[512], final[512], batch[512];
    size_t n;
    struct cb_result result;
    uint8_t tail[4];
    size_t n_tail;
};

static struct cb_handle *open_fake(struct fake *f)
{
    struct cb_options o;
    struct cb_handle *h;
    cb_options_init(&o);
    o.run_dir = fake_dir(f);
    cr_assert_eq(cb_open(&h, &o), 0, "%s", cb_message());
    return h;
}

static void wait_end(struct cb_handle *h, uint64_t id)
{
    struct cb_event e;
    do
        cr_assert_eq(cb_wait(h, id, &e, HANG_MS), 1, "%s", cb_message());
    while (e.type == CB_EVENT_TOKENS);
    cr_assert_eq(e.type, CB_EVENT_END);
}

static void copy_final(struct cb_handle *h, uint64_t id, char *out)
{
    const char *text;
    size_t n;
    wait_end(h, id);
    cr_assert_eq(cb_text_all(h, id, &text, &n), 0);
    cr_assert(n < 512 && text[n] == 0);
    memcpy(out, text, n + 1);
}

/* Runs one script by all roads: streamed token by token (asserting that what was shown was never
 * taken back and that no piece splits a character), final, and in a batch. */
static struct outcome run(const char *script, const char *const *stops, size_t n_stops,
                          uint32_t limit, uint32_t flags)
{
    struct fake *f = fake_start(&(struct fake_config){.script = script});
    struct cb_handle *h = open_fake(f);
    struct cb_string strings[16];
    struct cb_request r[3];
    struct outcome o = {0};
    uint64_t ids[3], id;
    static const uint32_t prompt[] = {1};
    struct cb_event e;
    for (size_t i = 0; i < n_stops; i++)
        strings[i] = (struct cb_string){stops[i], strlen(stops[i])};
    for (int i = 0; i < 3; i++) {
        cb_request_init(&r[i]);
        r[i].ids = prompt;
        r[i].n_ids = 1;
        r[i].max_new_tokens = limit;
        r[i].stops = strings;
        r[i].n_stops = n_stops;
        r[i].flags = flags;
    }
    fake_hold(f, true);
    cr_assert_eq(cb_submit(h, &r[0], &id), 0, "%s", cb_message());
    do {
        const char *text;
        size_t n;
        fake_step(f, 1);
        cr_assert_eq(cb_wait(h, id, &e, HANG_MS), 1);
        while (cb_text(h, id, &text, &n) == 1) {
            cr_assert((text[0] & 0xc0) != 0x80, "a piece begins inside a character");
            cr_assert(n > 0 && o.n + n < sizeof(o.streamed));
            memcpy(o.streamed + o.n, text, n);
            o.n += n;
        }
    } while (e.type != CB_EVENT_END);
    cr_assert_eq(cb_result(h, id, &o.result), 0);
    cr_assert_eq(cb_text_tail(h, id, o.tail, &o.n_tail), 0);
    cb_release(h, id);

    fake_hold(f, false);
    r[0].flags |= CB_FINAL_ONLY;
    cr_assert_eq(cb_submit(h, &r[0], &id), 0);
    copy_final(h, id, o.final);
    r[0].flags = flags;
    cr_assert_eq(cb_submit_many(h, r, 3, ids), 3);
    for (int i = 0; i < 3; i++) {
        copy_final(h, ids[i], o.batch);
        cr_assert_str_eq(o.batch, o.final);
    }
    cr_assert_str_eq(o.streamed, o.final);
    cb_close(h);
    fake_stop(f);
    return o;
}

/* Known fault: text held back because it begins a stop is lost at the end. */
Test(stops, what_was_held_is_released_at_the_end)
{
    static const char *const stops[] = {"END"};
    struct outcome o = run("hello EN", stops, 1, CB_NO_LIMIT, 0);
    cr_assert_str_eq(o.final, "hello EN");
    cr_assert_eq(o.result.end, CB_END_EOS);
    o = run("hello ENxyz", stops, 1, 8, 0);
    cr_assert_str_eq(o.final, "hello EN");
    cr_assert_eq(o.result.end, CB_END_LENGTH);
}

/* Known fault: of two stops that overlap, the one that ends first counts. */
Test(stops, the_earliest_match_wins_with_and_without_keeping_it)
{
    static const char *const stops[] = {"b,c", ",b,d"};
    struct outcome o = run("a,b,c and more", stops, 2, CB_NO_LIMIT, 0);
    cr_assert_str_eq(o.final, "a,");
    cr_assert(o.result.end == CB_END_STOP && o.result.stop_idx == 0 && !o.result.stop_is_id);
    cr_assert_eq(o.result.text_bytes, 2);
    o = run("a,b,c and more", stops, 2, CB_NO_LIMIT, CB_KEEP_STOP);
    cr_assert_str_eq(o.final, "a,b,c");
    o = run("a,b,d and more", stops, 2, CB_NO_LIMIT, 0);
    cr_assert_str_eq(o.final, "a");
    cr_assert_eq(o.result.stop_idx, 1);
}

/* Known fault: a limit inside a character. */
Test(stops, an_incomplete_character_at_the_end_is_reported_as_bytes)
{
    struct outcome o = run("ok \xf0\x9f\x98\x80!", NULL, 0, 6, 0);
    cr_assert_str_eq(o.final, "ok ");
    cr_assert(o.n_tail == 3 && !memcmp(o.tail, "\xf0\x9f\x98", 3));
    o = run("ok \xf0\x9f\x98\x80!", NULL, 0, CB_NO_LIMIT, 0);
    cr_assert_str_eq(o.final, "ok \xf0\x9f\x98\x80!");
    cr_assert_eq(o.n_tail, 0);
    o = run("a\xff\x62", NULL, 0, CB_NO_LIMIT, 0);
    cr_assert_str_eq(o.final, "a\xef\xbf\xbd"
                              "b");
}

Test(stops, inside_utf8_sequences)
{
    static const char *const stops[] = {"\xc3\xa9"}; /* e acute */
    struct outcome o = run("caf\xc3\xa9 au lait", stops, 1, CB_NO_LIMIT, 0);
    cr_assert_str_eq(o.final, "caf");
    o = run("caf\xc3\xa8\xc3\xa9", stops, 1, CB_NO_LIMIT, 0);
    cr_assert_str_eq(o.final, "caf\xc3\xa8");
}

Test(words, tokenize_and_detokenize_are_inverse)
{
    static const char text[] = "caf\xc3\xa9 \xf0\x9f\x98\x80 and words";
    struct fake *f = fake_start(&(struct fake_config){0});
    struct cb_handle *h = open_fake(f);
    struct cb_detokenizer *d;
    char back[64], pieces[64];
    uint32_t ids[64];
    const char *piece;
    size_t n, bytes, all = 0;
    cr_assert_eq(cb_tokenize(h, text, sizeof(text) - 1, 0, NULL, 0, &n), CB_TOO_SMALL);
    cr_assert_eq(cb_tokenize(h, text, sizeof(text) - 1, 0, ids, 64, &n), 0);
    cr_assert(n > 0);
    cr_assert_eq(cb_detokenize(h, ids, n, 0, back, 3, &bytes), CB_TOO_SMALL);
    cr_assert_eq(cb_detokenize(h, ids, n, 0, back, sizeof(back), &bytes), 0);
    cr_assert(bytes == sizeof(text) - 1 && !memcmp(back, text, bytes));
    cr_assert_eq(cb_detokenizer_new(h, 0, &d), 0);
    for (size_t i = 0; i < n; i++) {
        cr_assert_eq(cb_detokenizer_feed(d, &ids[i], 1, i + 1 == n, &piece, &bytes), 0);
        memcpy(pieces + all, piece, bytes);
        all += bytes;
    }
    cr_assert(all == sizeof(text) - 1 && !memcmp(pieces, text, all));
    ids[0] = 0xc3; /* a character cut short */
    cr_assert_eq(cb_detokenizer_feed(d, ids, 1, 1, &piece, &bytes), 0);
    cr_assert(bytes == 3 && !memcmp(piece, "\xef\xbf\xbd", 3));
    ids[0] = FAKE_VOCAB;
    cr_assert_eq(cb_detokenizer_feed(d, ids, 1, 1, &piece, &bytes), CB_BAD_TOKEN);
    cr_assert_eq(cb_detokenize(h, ids, 1, 0, back, sizeof(back), &bytes), CB_BAD_TOKEN);
    cb_detokenizer_free(d);
    cr_assert_eq(cb_tokenize(h, "a\0b", 3, 0, ids, 64, &n), CB_BAD_NUL);
    cr_assert_eq(cb_tokenize(h, "ab\xff", 3, 0, ids, 64, &n), CB_BAD_UTF8);
    cr_assert(strstr(cb_message(), "at byte 2"));
    cr_assert_eq(cb_tokenize(h, "", 0, 0, ids, 64, &n), 0);
    cr_assert_eq(n, 0);
    cr_assert_eq(cb_chat(h, &(struct cb_chat_message){"user", "x", 0}, 1, back, 64, &n),
                 CB_NO_TEMPLATE);
    cb_close(h);
    fake_stop(f);
}

Test(words, a_text_is_a_prompt)
{
    struct fake *f = fake_start(&(struct fake_config){.script = "yes"});
    struct cb_handle *h = open_fake(f);
    struct cb_request r;
    struct cb_result result;
    char out[512];
    uint64_t id;
    size_t n;
    cb_request_init(&r);
    r.text = "is it?";
    cr_assert_eq(cb_submit(h, &r, &id), 0, "%s", cb_message());
    copy_final(h, id, out);
    cr_assert_str_eq(out, "yes");
    cb_result(h, id, &result);
    cr_assert_eq(cb_tokenize(h, "is it?", 6, 0, NULL, 0, &n), CB_TOO_SMALL);
    cr_assert_eq(result.n_prompt, n);
    cb_close(h);
    fake_stop(f);
}

Test(words, every_status_has_words_and_messages_have_numbers)
{
    char out[8];
    uint32_t detail[2] = {1, 2};
    for (int s = 0; s > -60; s--)
        cr_assert(cb_strerror(s) && !strchr(cb_strerror(s), '%'), "%d", s);
    cr_assert_str_eq(cb_explain(CB_TOO_LONG, detail, out, sizeof(out)), "prompt ");
    cr_assert_str_eq(cb_strerror(7), "unknown status");
    cr_assert(cb_version()[0] == '1');
}
