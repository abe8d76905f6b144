/* The scanner against the definition: every sequence of two bytes, every character, and known
 * faults. */
#include "shm/utf8.h"

#include <criterion/criterion.h>
#include <stdbool.h>
#include <string.h>

/* Encodes c without asking whether it may be encoded. */
static int encode(uint32_t c, uint8_t *out)
{
    if (c < 0x80) {
        out[0] = (uint8_t)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (uint8_t)(0xc0 | c >> 6);
        out[1] = (uint8_t)(0x80 | (c & 0x3f));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (uint8_t)(0xe0 | c >> 12);
        out[1] = (uint8_t)(0x80 | (c >> 6 & 0x3f));
        out[2] = (uint8_t)(0x80 | (c & 0x3f));
        return 3;
    }
    out[0] = (uint8_t)(0xf0 | c >> 18);
    out[1] = (uint8_t)(0x80 | (c >> 12 & 0x3f));
    out[2] = (uint8_t)(0x80 | (c >> 6 & 0x3f));
    out[3] = (uint8_t)(0x80 | (c & 0x3f));
    return 4;
}

Test(utf8, knows_every_character_and_its_beginnings)
{
    for (uint32_t c = 0; c < 0x140000; c++) {
        uint8_t bytes[4];
        int n = encode(c, bytes);
        bool valid = c <= 0x10ffff && (c < 0xd800 || c > 0xdfff);
        cr_assert_eq(cb_utf8_scan(bytes, (size_t)n), valid ? n : -1, "U+%04X", c);
        for (int k = 1; valid && k < n; k++)
            cr_assert_eq(cb_utf8_scan(bytes, (size_t)k), 0, "U+%04X cut at %d", c, k);
    }
}

Test(utf8, one_fault_is_the_longest_beginning_of_a_character)
{
    static const struct {
        const char *bytes;
        size_t n;
        int expect;
    } cases[] = {
        {"\x80", 1, -1},         {"\xc0\xaf", 2, -1},         {"\xc1\xbf", 2, -1},
        {"\xe0\x9f\xbf", 3, -1}, {"\xe2\x28\xa1", 3, -1},     {"\xe2\x82\x28", 3, -2},
        {"\xed\xa0\x80", 3, -1}, {"\xf0\x8f\xbf\xbf", 4, -1}, {"\xf0\x9f\x98\x28", 4, -3},
        {"\xf0\x9f\x28", 3, -2}, {"\xf4\x90\x80\x80", 4, -1}, {"\xf5\x80\x80\x80", 4, -1},
        {"\xff", 1, -1},         {"\xf0\x9f\x98", 3, 0},      {"\xc3(", 2, -1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        cr_assert_eq(cb_utf8_scan((const uint8_t *)cases[i].bytes, cases[i].n), cases[i].expect,
                     "case %zu", i);
}

Test(utf8, valid_stops_at_the_first_byte_that_is_no_part_of_a_character)
{
    uint8_t text[64];
    for (size_t at = 0; at < sizeof text; at++) {
        memset(text, 'a', sizeof text);
        text[at] = 0xff;
        cr_assert_eq(cb_utf8_valid(text, sizeof text), at);
        text[at] = 0xc3; /* a lead byte: at the end incomplete, else followed by no continuation */
        cr_assert_eq(cb_utf8_valid(text, sizeof text), at);
        text[at] = 0;
        cr_assert_eq(cb_utf8_valid(text, sizeof text), sizeof text);
    }
    cr_assert_eq(cb_utf8_valid(NULL, 0), 0);
}
