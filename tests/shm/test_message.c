#include <criterion/criterion.h>
#include <float.h>
#include <math.h>
#include <string.h>
#include <xmmintrin.h>

#include "shm/control.h"
#include "shm/message.h"

static const struct cb_message_limits limits = {
    .arena_bytes = 4096, .n_slots = 8, .n_vocab = 100, .n_context = 64, .features = CB_FEATURES};

static struct cb_request_entry good(void)
{
    struct cb_request_entry e;

    cb_message_init(&e);
    e.slot = 3;
    e.gen = 1;
    e.n_prompt = 10;
    e.prompt_off = 64;
    return e;
}

static uint32_t detail[2];

static enum cb_status check(struct cb_request_entry e)
{
    detail[0] = detail[1] = 0;
    return cb_message_check(&e, &limits, detail);
}

#define REFUSED(status, a, b, ...)                                                         \
    do {                                                                                   \
        struct cb_request_entry e = good();                                                \
        __VA_ARGS__;                                                                       \
        cr_assert_eq(check(e), status, #__VA_ARGS__);                                      \
        cr_assert(detail[0] == (a) && detail[1] == (b), #__VA_ARGS__ ": %u %u", detail[0], \
                  detail[1]);                                                              \
    } while (0)
#define TAKEN(...)                                   \
    do {                                             \
        struct cb_request_entry e = good();          \
        __VA_ARGS__;                                 \
        cr_assert_eq(check(e), CB_OK, #__VA_ARGS__); \
    } while (0)

Test(message, every_bad_field_has_its_status)
{
    TAKEN();
    REFUSED(CB_BAD_OPTION, 0, 0, e.op = 0);
    REFUSED(CB_BAD_OPTION, 2, 0, e.op = 2);
    TAKEN(e.flags = 0x80000000u | CB_FLAG_FINAL_ONLY | CB_FLAG_IGNORE_EOS | CB_FLAG_RAW_LOGPROBS);
    REFUSED(CB_BAD_OPTION, 9, 0, e.reserved[0] = 9);
    REFUSED(CB_BAD_OPTION, UINT32_MAX, 0, e.reserved[2] = 1ull << 40);
    REFUSED(CB_BAD_SLOT, 8, 8, e.slot = 8);
    REFUSED(CB_BAD_SLOT, UINT32_MAX, 8, e.slot = UINT32_MAX);
    REFUSED(CB_BAD_GENERATION, 0, 0, e.gen = 0);
    REFUSED(CB_BAD_GENERATION, 1u << 24, 0, e.gen = 1u << 24);
    REFUSED(CB_BAD_OPTION, 0, 0, e.n_children = 0);
    REFUSED(CB_BAD_OPTION, CB_CHILDREN_MAX + 1, 0, e.n_children = CB_CHILDREN_MAX + 1);
    REFUSED(CB_BAD_OPTION, UINT32_MAX, 0, e.n_children = UINT32_MAX);
    REFUSED(CB_BAD_SLOT, 8, 8, (e.slot = 6, e.n_children = 3));
    REFUSED(CB_BAD_OPTION, UINT32_MAX, 0, e.child_idx = UINT32_MAX);
    REFUSED(CB_BAD_OPTION, 1, 0, e.reserved_half = 1);
    REFUSED(CB_BAD_OPTION, 3, 3, e.resume_from = e.n_prompt = 3);
    REFUSED(CB_BAD_OPTION, 3, 2, (e.resume_from = 3, e.n_prompt = 5, e.max_new_tokens = 2));
    REFUSED(CB_BAD_OPTION, 1, 2, (e.resume_from = 1, e.n_children = 2, e.n_prompt = 5));
    TAKEN(e.resume_from = 2, e.n_prompt = 5, e.max_new_tokens = 2);
    REFUSED(CB_BAD_PLANES, 0x20, 0, e.planes = 0x20);
    TAKEN(e.planes = CB_PLANE_EPOCHS);
    TAKEN(e.flags = CB_FLAG_ON_WEIGHTS);
    REFUSED(CB_BAD_OPTION, 0x20, 0, e.flags = 0x20);
    REFUSED(CB_BAD_PLANES, 0x10001, 0, e.planes = 0x10001);
    TAKEN(e.planes = CB_PLANE_TIMES);
    TAKEN(e.planes = CB_PLANE_LOGPROBS | CB_PLANE_PROMPT);
    TAKEN(e.planes = CB_PLANE_LOGPROBS | CB_PLANE_TOPK | CB_TOPK_MAX << 16);
    REFUSED(CB_BAD_PARAMETER, CB_PARAMETER_TOP_LOGPROBS, CB_TOPK_MAX + 1,
            e.planes = CB_PLANE_LOGPROBS | CB_PLANE_TOPK | (CB_TOPK_MAX + 1) << 16);
    REFUSED(CB_BAD_PARAMETER, CB_PARAMETER_TOP_LOGPROBS, 0,
            e.planes = CB_PLANE_LOGPROBS | CB_PLANE_TOPK);
    REFUSED(CB_BAD_PLANES, CB_PLANE_TOPK | 1u << 16, 0, e.planes = CB_PLANE_TOPK | 1u << 16);
    TAKEN(e.priority = 255);
    REFUSED(CB_BAD_OPTION, 256, 0, e.priority = 256);
}

Test(message, planes_of_a_feature_that_is_not_agreed_are_refused)
{
    struct cb_message_limits old = limits;
    struct cb_request_entry e = good();

    old.features = CB_FEATURE_SAMPLING;
    e.planes = CB_PLANE_TIMES;
    cr_assert_eq(cb_message_check(&e, &old, detail), CB_OK);
    e.planes = CB_PLANE_LOGPROBS;
    cr_assert_eq(cb_message_check(&e, &old, detail), CB_BAD_PLANES);
    e.planes = CB_PLANE_EPOCHS;
    cr_assert_eq(cb_message_check(&e, &old, detail), CB_BAD_PLANES);
    old.features = CB_FEATURE_EPOCHS;
    cr_assert_eq(cb_message_check(&e, &old, detail), CB_OK);
}

Test(message, lengths_and_places)
{
    REFUSED(CB_EMPTY_PROMPT, 0, 0, e.n_prompt = 0);
    TAKEN(e.n_prompt = 64);
    REFUSED(CB_TOO_LONG, 65, 64, e.n_prompt = 65);
    TAKEN(e.max_new_tokens = 54);
    REFUSED(CB_TOO_LONG, 65, 64, e.max_new_tokens = 55);
    REFUSED(CB_TOO_LONG, UINT32_MAX, 64, e.n_prompt = UINT32_MAX);
    REFUSED(CB_TOO_LONG, UINT32_MAX, 64, e.max_new_tokens = UINT32_MAX - 1);
    TAKEN(e.max_new_tokens = 0);
    TAKEN(e.prompt_off = 4096 - 40);
    REFUSED(CB_BAD_BOUNDS, 0, 0, e.prompt_off = 4096 - 36);
    REFUSED(CB_BAD_BOUNDS, 0, 0, e.prompt_off = 4096);
    REFUSED(CB_BAD_BOUNDS, 0, 0, e.prompt_off = UINT64_MAX - 3);
    REFUSED(CB_BAD_BOUNDS, 0, 0, e.prompt_off = 65);
    TAKEN(e.opt_len = 8; e.opt_off = 4088);
    REFUSED(CB_BAD_BOUNDS, 0, 0, e.opt_len = 16; e.opt_off = 4088);
    REFUSED(CB_BAD_BOUNDS, 0, 0, e.opt_len = 8; e.opt_off = 4084);
    REFUSED(CB_BAD_BOUNDS, 0, 0, e.opt_len = 9);
    REFUSED(CB_BAD_BOUNDS, 0, 0, e.opt_len = 8; e.opt_off = UINT64_MAX - 7);
    REFUSED(CB_BAD_BOUNDS, 0, 0, e.opt_len = UINT32_MAX - 7);
}

Test(message, options_longer_than_allowed_are_refused_even_if_the_arena_holds_them)
{
    const struct cb_message_limits wide = {
        .arena_bytes = 1 << 20, .n_slots = 8, .n_vocab = 100, .n_context = 64};
    struct cb_request_entry e = good();

    e.opt_len = CB_OPTIONS_MAX;
    cr_assert_eq(cb_message_check(&e, &wide, detail), CB_OK);
    e.opt_len = CB_OPTIONS_MAX + 8;
    cr_assert_eq(cb_message_check(&e, &wide, detail), CB_BAD_BOUNDS);
}

Test(message, sampling_parameters)
{
    REFUSED(CB_BAD_TEMPERATURE, 0, 0, e.temperature = NAN);
    REFUSED(CB_BAD_TEMPERATURE, 0, 0, e.temperature = INFINITY);
    REFUSED(CB_BAD_TEMPERATURE, 0, 0, e.temperature = -INFINITY);
    REFUSED(CB_BAD_TEMPERATURE, 0, 0, e.temperature = -1e-40f);
    TAKEN(e.temperature = -0.0f);
    TAKEN(e.temperature = 1e-40f);
    REFUSED(CB_BAD_TOP_P, 0, 0, e.top_p = NAN);
    REFUSED(CB_BAD_TOP_P, 0, 0, e.top_p = 0.0f);
    REFUSED(CB_BAD_TOP_P, 0, 0, e.top_p = -0.0f);
    REFUSED(CB_BAD_TOP_P, 0, 0, e.top_p = 1.0001f);
    TAKEN(e.top_p = 1e-30f);
    TAKEN(e.top_k = UINT32_MAX);
}

/* The daemon's threads take denormal numbers for zero: a top_p that the library let pass was refused
 * there, and a negative temperature taken. */
Test(message, denormal_parameters_whatever_the_thread_makes_of_them)
{
    for (int as_zero = 0; as_zero < 2; as_zero++) {
        struct cb_request_entry tiny = good();

        if (as_zero)
            _mm_setcsr(_mm_getcsr() | 0x8040);
        tiny.temperature = 0x1p-149f;
        tiny.top_p = 0x1p-149f;
        cr_assert_eq(cb_message_check(&tiny, &limits, detail), CB_OK);
        cr_assert_geq(tiny.top_p, FLT_MIN);
        REFUSED(CB_BAD_TEMPERATURE, 0, 0, e.temperature = -0x1p-149f);
        REFUSED(CB_BAD_TOP_P, 0, 0, e.top_p = -0x1p-149f);
        TAKEN(e.top_p = 1.0f);
    }
}

Test(message, what_is_normalised)
{
    struct cb_request_entry e = good();

    e.temperature = -0.0f;
    e.top_k = 101;
    cr_assert_eq(cb_message_check(&e, &limits, detail), CB_OK);
    cr_assert_not(signbit(e.temperature));
    cr_assert_eq(e.top_k, 100);
    cr_assert_eq(e.max_new_tokens, 54, "no limit is what the context leaves");
}

Test(message, ids_are_below_the_vocabulary)
{
    const uint32_t ids[] = {0, 99, 100};

    cr_assert_eq(cb_message_check_ids(ids, 2, 100, detail), CB_OK);
    cr_assert_eq(cb_message_check_ids(ids, 3, 100, detail), CB_BAD_TOKEN);
    cr_assert(detail[0] == 100 && detail[1] == 100);
}

/* ---- option blocks --------------------------------------------------------------------------- */

static uint64_t block[CB_OPTIONS_MAX / 8 + 64];
static struct cb_message_parsed parsed;

static unsigned char *head(uint16_t type, uint32_t bytes)
{
    const struct cb_option_head h = {.type = type, .bytes = bytes};

    memset(block, 0, sizeof block);
    memcpy(block, &h, sizeof h);
    return (unsigned char *)block + sizeof h;
}

static enum cb_status parse(size_t bytes)
{
    return cb_message_parse_options(block, bytes, 100, &parsed, detail);
}

static size_t build(const uint32_t *ids, uint32_t n_ids, const struct cb_message_text *stops,
                    uint32_t n_stops)
{
    const struct cb_message_options options = {
        .stop_ids = ids, .n_stop_ids = n_ids, .stops = stops, .n_stops = n_stops};
    size_t bytes = cb_message_options_bytes(&options);

    cr_assert_eq(bytes % 8, 0);
    memset(block, 0xee, sizeof block);
    cb_message_options_build(&options, block);
    cr_assert_eq(((unsigned char *)block)[bytes], 0xee, "it writes what it said");
    return bytes;
}

Test(message, options_come_back_as_they_were_built)
{
    const uint32_t ids[] = {5, 6, 99};
    const struct cb_message_text stops[] = {{"a", 1}, {"\n\nUser:", 7}, {"\xc3\xa4gypten", 8}};
    struct cb_stops expected;
    size_t bytes;

    cr_assert_eq(build(NULL, 0, NULL, 0), 0);
    cr_assert_eq(parse(0), CB_OK);
    cr_assert(parsed.n_stop_ids == 0 && parsed.stops.n_stops == 0);
    bytes = build(ids, 3, stops, 3);
    cr_assert_eq(parse(bytes), CB_OK);
    cr_assert_eq(parsed.n_stop_ids, 3);
    cr_assert_eq(memcmp(parsed.stop_ids, ids, sizeof ids), 0);
    cb_stops_init(&expected);
    for (int i = 0; i < 3; i++)
        cb_stops_add(&expected, stops[i].bytes, stops[i].n);
    cr_assert_eq(parsed.stops.n_stops, 3);
    cr_assert_eq(memcmp(parsed.stops.first, expected.first, 4 * sizeof expected.first[0]), 0);
    cr_assert_eq(parsed.n_cache_salt, 0);
}

Test(message, a_cache_salt_comes_back_behind_stops_of_any_length)
{
    static const char salt[CB_SALT_MAX + 8] =
        "0123456789012345678901234567890123456789012345678901234567890123456789";
    for (uint32_t n_stop = 1; n_stop < 10; n_stop++)
        for (uint32_t n = 1; n <= CB_SALT_MAX; n++) {
            const struct cb_message_text stop = {"abcdefghij", n_stop};
            const struct cb_message_options options = {
                .stops = &stop, .n_stops = 1, .cache_salt = {salt, n}};
            size_t bytes = cb_message_options_bytes(&options);
            cb_message_options_build(&options, block);
            cr_assert_eq(parse(bytes), CB_OK);
            cr_assert_eq(parsed.stops.n_stops, 1);
            cr_assert_eq(parsed.n_cache_salt, n);
            cr_assert_eq(memcmp(parsed.cache_salt, salt, n), 0);
        }
}

Test(message, a_cache_salt_of_no_or_too_many_bytes_is_refused)
{
    for (uint32_t n = 0; n <= CB_SALT_MAX + 8; n++) {
        head(CB_OPTION_CACHE_SALT, n);
        cr_assert_eq(parse(8 + (n + 7) / 8 * 8), n == 0 || n > CB_SALT_MAX ? CB_BAD_OPTION : CB_OK,
                     "%u bytes", n);
    }
}

Test(message, blocks_cut_at_any_byte_are_refused_or_whole)
{
    const uint32_t ids[] = {5, 6, 7};
    const struct cb_message_text stops[] = {{"abc", 3}, {"defgh", 5}};
    size_t bytes = build(ids, 3, stops, 2);

    for (size_t n = 1; n < bytes; n++) {
        enum cb_status status = parse(n);

        cr_assert_eq(status, n == 24 ? CB_OK : CB_BAD_OPTION, "%zu of %zu bytes", n, bytes);
    }
}

Test(message, bad_records)
{
    unsigned char *value;
    uint32_t n;

    head(0x7fff, 8);
    cr_assert_eq(parse(16), CB_OK, "an unknown type that may be ignored");
    head(0xffff, 8);
    cr_assert_eq(parse(16), CB_BAD_OPTION, "one that must be understood");
    cr_assert_eq(detail[0], 0xffff);
    head(CB_OPTION_RESUME, 8);
    cr_assert_eq(parse(16), CB_BAD_OPTION, "half of one");
    head(1, UINT32_MAX);
    cr_assert_eq(parse(16), CB_BAD_OPTION);
    head(1, UINT32_MAX - 6);
    cr_assert_eq(parse(16), CB_BAD_OPTION);
    head(1, 9);
    cr_assert_eq(parse(16), CB_BAD_OPTION);
    value = head(1, 7);
    cr_assert_eq(parse(16), CB_OK);
    value[7] = 1;
    cr_assert_eq(parse(16), CB_BAD_OPTION, "padding is zero");
    ((unsigned char *)block)[offsetof(struct cb_option_head, reserved)] = 1;
    value[7] = 0;
    cr_assert_eq(parse(16), CB_BAD_OPTION, "reserved is zero");

    value = head(7, 0);
    memcpy(value, block, 8);
    cr_assert_eq(parse(16), CB_BAD_OPTION, "a type twice");
    cr_assert_eq(detail[0], 7);

    head(CB_OPTION_STOP_IDS, 6);
    cr_assert_eq(parse(16), CB_BAD_OPTION);
    value = head(CB_OPTION_STOP_IDS, 4);
    n = 100;
    memcpy(value, &n, 4);
    cr_assert_eq(parse(16), CB_BAD_TOKEN);
    cr_assert(detail[0] == 100 && detail[1] == 100);
    head(CB_OPTION_STOP_IDS, 4 * CB_STOP_IDS_MAX);
    cr_assert_eq(parse(8 + 4 * CB_STOP_IDS_MAX), CB_OK);
    head(CB_OPTION_STOP_IDS, 4 * CB_STOP_IDS_MAX + 4);
    cr_assert_eq(parse(16 + 4 * CB_STOP_IDS_MAX), CB_BAD_STOP);
    cr_assert(detail[0] == CB_STOP_IDS_MAX + 1 && detail[1] == CB_STOP_IDS_MAX);
}

Test(message, bad_stop_strings)
{
    static char text[CB_STOP_BYTES_MAX + 1];
    struct cb_message_text many[CB_STOPS_MAX + 1];
    unsigned char *value;
    const uint32_t lengths[] = {5, 8, 0x7fffffff, UINT32_MAX, UINT32_MAX - 2};

    memset(text, 'x', sizeof text);
    many[0] = (struct cb_message_text){text, CB_STOP_BYTES_MAX};
    cr_assert_eq(parse(build(NULL, 0, many, 1)), CB_OK);
    many[0].n++;
    cr_assert_eq(parse(build(NULL, 0, many, 1)), CB_BAD_STOP);
    cr_assert(detail[0] == CB_STOP_BYTES_MAX + 1 && detail[1] == CB_STOP_BYTES_MAX);
    many[0].n = 0;
    cr_assert_eq(parse(build(NULL, 0, many, 1)), CB_BAD_STOP, "an empty one");
    for (size_t i = 0; i <= CB_STOPS_MAX; i++)
        many[i] = (struct cb_message_text){text, i + 1};
    cr_assert_eq(parse(build(NULL, 0, many, CB_STOPS_MAX)), CB_OK);
    cr_assert_eq(parse(build(NULL, 0, many, CB_STOPS_MAX + 1)), CB_BAD_STOP);
    cr_assert(detail[0] == CB_STOPS_MAX + 1 && detail[1] == CB_STOPS_MAX);
    many[0] = (struct cb_message_text){"ab\xff", 3};
    cr_assert_eq(parse(build(NULL, 0, many, 1)), CB_BAD_UTF8);
    cr_assert_eq(detail[0], 2);

    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        value = head(CB_OPTION_STOP_STRINGS, 8);
        memcpy(value, &lengths[i], 4);
        cr_assert_lt(parse(16), 0, "%u bytes in 4", lengths[i]);
    }
    value = head(CB_OPTION_STOP_STRINGS, 8);
    memcpy(value, (const unsigned char[]){3, 0, 0, 0, 'a', 'b', 'c', 'd'}, 8);
    cr_assert_eq(parse(16), CB_BAD_OPTION, "padding is zero");
    head(CB_OPTION_STOP_STRINGS, 2);
    cr_assert_eq(parse(16), CB_BAD_OPTION);
}
