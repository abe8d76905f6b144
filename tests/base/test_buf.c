/* Bounded text: nothing past the end, JSON that a strict reader takes, whatever bytes go in. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "daemon/base/buf.h"

Test(buf, writes_json_that_a_strict_reader_takes)
{
    char data[512];
    struct buf b;
    buf_init(&b, data, sizeof data);
    buf_open(&b, NULL, '{');
    buf_u64(&b, "big", UINT64_MAX / 4);
    buf_i64(&b, "small", -7);
    buf_f64(&b, "half", 0.5);
    buf_f64(&b, "none", NAN);
    buf_bool(&b, "yes", true);
    buf_null(&b, "nothing");
    buf_open(&b, "list", '[');
    buf_open(&b, NULL, '{');
    buf_close(&b, '}');
    buf_string(&b, NULL, "ends with a colon:");
    buf_string(&b, NULL, "[{");
    buf_u64(&b, NULL, 3);
    buf_close(&b, ']');
    buf_string(&b, "hard", "\"\\\n\x01\x7f \xc3\xa9 \xff \xed\xa0\x80 \xf0\x9f\x98\x80 \xc3");
    buf_bytes(&b, "cut", "ab\0cd", 5);
    buf_close(&b, '}');
    cr_assert_not(b.is_cut);
    json_error_t error;
    json_t *j = json_loads(data, JSON_REJECT_DUPLICATES, &error);
    cr_assert(j, "%s: %s", error.text, data);
    cr_assert_eq(json_array_size(json_object_get(j, "list")), 4);
    cr_assert(json_is_null(json_object_get(j, "none")));
    cr_assert_str_eq(json_string_value(json_object_get(j, "hard")),
                     "\"\\\n\x01\x7f \xc3\xa9 ? ??? \xf0\x9f\x98\x80 ?");
    cr_assert_str_eq(json_string_value(json_object_get(j, "cut")), "ab");
    json_decref(j);
}

Test(buf, stops_at_its_end_and_says_so)
{
    for (size_t cap = 1; cap < 40; cap++) {
        char data[64];
        struct buf b;
        memset(data, 'x', sizeof data);
        buf_init(&b, data, cap);
        buf_add(&b, "%s-%d", "twelve", 123456);
        buf_string(&b, "key", "a\"b");
        cr_assert_lt(b.n, cap);
        cr_assert_eq(data[b.n], 0);
        cr_assert_eq(strlen(data), b.n);
        cr_assert_eq(data[cap], 'x', "past the end at %zu", cap);
        cr_assert_eq(b.is_cut, cap < 27, "%zu: %s", cap, data);
    }
}
