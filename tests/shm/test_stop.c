/* The matcher against a naive one, and the faults that others had. */
#include "shm/stop.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct naive {
    const char *strings[CB_STOPS_MAX];
    size_t lengths[CB_STOPS_MAX];
    uint32_t n;
};

/* The definition, word by word: the earliest end, then the earliest begin, then the lowest
 * index. */
static int naive_find(const struct naive *stops, const char *text, size_t n,
                      struct cb_stop_match *match)
{
    for (size_t end = 1; end <= n; end++) {
        for (size_t begin = 0; begin < end; begin++) {
            for (uint32_t i = 0; i < stops->n; i++) {
                if (stops->lengths[i] == end - begin &&
                    memcmp(stops->strings[i], text + begin, end - begin) == 0) {
                    *match = (struct cb_stop_match){i, begin, end};
                    return CB_STOP_FOUND;
                }
            }
        }
    }
    return 0;
}

/* The longest end of text [n] that is a proper beginning of a stop. */
static uint32_t naive_held(const struct naive *stops, const char *text, size_t n)
{
    size_t held = 0;
    for (uint32_t i = 0; i < stops->n; i++) {
        for (size_t k = 1; k < stops->lengths[i] && k <= n; k++) {
            if (k > held && memcmp(stops->strings[i], text + n - k, k) == 0)
                held = k;
        }
    }
    return (uint32_t)held;
}

static void add(struct cb_stops *stops, const char *s)
{
    cr_assert_eq(cb_stops_add(stops, s, strlen(s)), 0);
}

Test(stop, agrees_with_the_naive_matcher)
{
    static struct cb_stops stops;
    srand(1);
    for (int round = 0; round < 20000; round++) {
        char strings[CB_STOPS_MAX][12], text[64];
        struct naive naive = {.n = 1 + (uint32_t)rand() % 5};
        int letters = 1 + rand() % 3;
        cb_stops_init(&stops);
        for (uint32_t i = 0; i < naive.n; i++) {
            naive.lengths[i] = 1 + (size_t)rand() % 8;
            for (size_t k = 0; k < naive.lengths[i]; k++)
                strings[i][k] = (char)('a' + rand() % letters);
            naive.strings[i] = strings[i];
            cr_assert_eq(cb_stops_add(&stops, strings[i], naive.lengths[i]), 0);
        }
        size_t n = (size_t)rand() % sizeof text, at = 0;
        for (size_t i = 0; i < n; i++)
            text[i] = (char)('a' + rand() % (letters + 1));

        struct cb_stop_match expected = {0}, match = {0};
        int expect = naive_find(&naive, text, n, &expected), found = 0;
        struct cb_stop_state state = {0};
        while (at < n && !found) {
            size_t piece = 1 + (size_t)rand() % (n - at);
            found = cb_stop_feed(&stops, &state, text + at, piece, &match);
            at += piece;
            if (!found)
                cr_assert_eq(cb_stop_held(&stops, &state), naive_held(&naive, text, at));
        }
        cr_assert_eq(found, expect);
        cr_assert_eq(match.stop_idx, expected.stop_idx);
        cr_assert_eq(match.text_bytes, expected.text_bytes);
        cr_assert_eq(match.end_bytes, expected.end_bytes);
    }
}

Test(stop, of_overlapping_stops_the_first_to_end_counts)
{
    static struct cb_stops stops;
    struct cb_stop_state state = {0};
    struct cb_stop_match match;
    cb_stops_init(&stops);
    add(&stops, "b,c");
    add(&stops, ",b,d");
    cr_assert_eq(cb_stop_feed(&stops, &state, "a,b,", 4, &match), 0);
    cr_assert_eq(cb_stop_held(&stops, &state), 3, "\",b,\" may go on with d");
    cr_assert_eq(cb_stop_feed(&stops, &state, "c", 1, &match), CB_STOP_FOUND);
    cr_assert_eq(match.stop_idx, 0);
    cr_assert_eq(match.text_bytes, 2);
    cr_assert_eq(match.end_bytes, 5);
}

Test(stop, of_stops_that_end_together_the_longest_counts_then_the_first_added)
{
    static struct cb_stops stops;
    struct cb_stop_state state = {0};
    struct cb_stop_match match;
    cb_stops_init(&stops);
    add(&stops, "c");
    add(&stops, "abc");
    add(&stops, "abc");
    add(&stops, "bc");
    cr_assert_eq(cb_stop_feed(&stops, &state, "xabcabc", 7, &match), CB_STOP_FOUND);
    cr_assert_eq(match.stop_idx, 1);
    cr_assert_eq(match.text_bytes, 1);
}

Test(stop, may_begin_inside_a_broken_character)
{
    static struct cb_stops stops;
    struct cb_stop_state state = {0};
    struct cb_stop_match match;
    cb_stops_init(&stops);
    add(&stops, "\xf0\x9f\x98\x80");
    cr_assert_eq(cb_stop_feed(&stops, &state, "\xf0\x9f\xf0\x9f", 4, &match), 0);
    cr_assert_eq(cb_stop_held(&stops, &state), 2);
    cr_assert_eq(cb_stop_feed(&stops, &state, "\x98\x80", 2, &match), CB_STOP_FOUND);
    cr_assert_eq(match.text_bytes, 2);
}

Test(stop, limits_are_what_the_header_says)
{
    static struct cb_stops stops;
    char longest[CB_STOP_BYTES_MAX + 1];
    memset(longest, 'x', sizeof longest);
    cb_stops_init(&stops);
    cr_assert_eq(cb_stops_add(&stops, "", 0), -EINVAL);
    cr_assert_eq(cb_stops_add(&stops, longest, sizeof longest), -E2BIG);
    cr_assert_eq(cb_stops_add(&stops, "a\xff", 2), -EILSEQ);
    cr_assert_eq(cb_stops_add(&stops, "\xf0\x9f\x98", 3), -EILSEQ);
    for (int i = 0; i < CB_STOPS_MAX; i++)
        cr_assert_eq(cb_stops_add(&stops, longest, CB_STOP_BYTES_MAX), 0);
    cr_assert_eq(cb_stops_add(&stops, "a", 1), -ENOSPC);

    struct cb_stop_state state = {0};
    struct cb_stop_match match;
    cr_assert_eq(cb_stop_feed(&stops, &state, longest, CB_STOP_BYTES_MAX - 1, &match), 0);
    cr_assert_eq(cb_stop_held(&stops, &state), CB_STOP_BYTES_MAX - 1);
    cr_assert_eq(cb_stop_feed(&stops, &state, "x", 1, &match), CB_STOP_FOUND);
    cr_assert_eq(match.text_bytes, 0);
}

Test(stop, a_set_without_strings_finds_and_holds_nothing)
{
    static struct cb_stops stops;
    struct cb_stop_state state = {0};
    struct cb_stop_match match;
    cb_stops_init(&stops);
    cr_assert_eq(cb_stop_feed(&stops, &state, "abc", 3, &match), 0);
    cr_assert_eq(cb_stop_feed(&stops, &state, NULL, 0, &match), 0);
    cr_assert_eq(cb_stop_held(&stops, &state), 0);
    cr_assert_eq(state.fed_bytes, 3);
}
