#include "shm/sampling.h"

#include <criterion/criterion.h>
#include <float.h>
#include <math.h>
#include <string.h>
#include <xmmintrin.h>

#include "shm/message.h"

enum { VOCAB = 100 };

static uint32_t detail[2];

static uint32_t bits_of(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    return bits;
}

#define TAKEN(...)                                                               \
    do {                                                                         \
        struct cb_sampling s;                                                    \
        cb_sampling_init(&s);                                                    \
        __VA_ARGS__;                                                             \
        cr_assert_eq(cb_sampling_check(&s, VOCAB, detail), CB_OK, #__VA_ARGS__); \
    } while (0)
#define REFUSED(which, field, ...)                                                             \
    do {                                                                                       \
        const float values[] = {__VA_ARGS__};                                                  \
        for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {                        \
            struct cb_sampling s;                                                              \
            cb_sampling_init(&s);                                                              \
            s.field = values[i];                                                               \
            cr_assert_eq(cb_sampling_check(&s, VOCAB, detail), CB_BAD_PARAMETER, #field " %g", \
                         (double)values[i]);                                                   \
            cr_assert(detail[0] == which && detail[1] == bits_of(values[i]), #field);          \
        }                                                                                      \
    } while (0)

/* Threads that take denormal numbers for zero answer the same. */
Test(sampling, parameters_and_their_bounds)
{
    for (int as_zero = 0; as_zero < 2; as_zero++) {
        if (as_zero)
            _mm_setcsr(_mm_getcsr() | 0x8040);
        TAKEN();
        TAKEN(s.min_p = -0.0f);
        TAKEN(s.min_p = 1);
        TAKEN(s.min_p = 0x1p-149f);
        REFUSED(CB_PARAMETER_MIN_P, min_p, 1.0001f, -1, -0x1p-149f, NAN, INFINITY);
        TAKEN(s.typical_p = 0x1p-149f);
        REFUSED(CB_PARAMETER_TYPICAL_P, typical_p, 0, -0.0f, 1.0001f, -1, NAN, INFINITY);
        TAKEN(s.repetition_penalty = 0.001f);
        TAKEN(s.repetition_penalty = 1000);
        REFUSED(CB_PARAMETER_REPETITION, repetition_penalty, 0, 0.0009f, 1000.1f, -1.5f, NAN,
                INFINITY);
        TAKEN(s.presence_penalty = -1000);
        REFUSED(CB_PARAMETER_PRESENCE, presence_penalty, 1000.1f, -1000.1f, NAN, -INFINITY);
        TAKEN(s.frequency_penalty = 1000);
        REFUSED(CB_PARAMETER_FREQUENCY, frequency_penalty, 1000.1f, -1000.1f, NAN, -INFINITY);
        TAKEN(s.no_repeat_ngram = UINT32_MAX);
        TAKEN(s.min_new_tokens = UINT32_MAX);
        TAKEN(s.first_id = VOCAB - 1);
    }
}

Test(sampling, a_first_id_is_below_the_vocabulary)
{
    struct cb_sampling s;

    cb_sampling_init(&s);
    s.first_id = VOCAB;
    cr_assert_eq(cb_sampling_check(&s, VOCAB, detail), CB_BAD_TOKEN);
    cr_assert(detail[0] == VOCAB && detail[1] == VOCAB);
}

/* The kernels divide by them, or compare, on threads to which denormals are zero. */
Test(sampling, denormal_shares_become_normal)
{
    struct cb_sampling s;

    cb_sampling_init(&s);
    s.min_p = s.typical_p = 0x1p-149f;
    cr_assert_eq(cb_sampling_check(&s, VOCAB, detail), CB_OK);
    cr_assert(s.min_p == FLT_MIN && s.typical_p == FLT_MIN);
}

static void bias_refused(enum cb_status status, uint32_t a, uint32_t b, struct cb_logit_bias first,
                         struct cb_logit_bias second)
{
    const struct cb_logit_bias biases[] = {first, second};

    cr_assert_eq(cb_sampling_check_biases(biases, 2, VOCAB, detail), status);
    cr_assert(detail[0] == a && detail[1] == b, "%u %u", detail[0], detail[1]);
}

Test(sampling, biases)
{
    static const struct cb_logit_bias good[] = {{0, -10000}, {7, 0}, {99, 10000}};
    static struct cb_logit_bias many[CB_BIASES_MAX + 1];
    struct cb_logit_bias fine = {3, 1};

    cr_assert_eq(cb_sampling_check_biases(good, 3, VOCAB, detail), CB_OK);
    bias_refused(CB_BAD_TOKEN, 100, VOCAB, fine, (struct cb_logit_bias){100, 0});
    bias_refused(CB_BAD_PARAMETER, CB_PARAMETER_BIAS_TWICE, 3, fine, fine);
    bias_refused(CB_BAD_PARAMETER, CB_PARAMETER_IDS_ORDER, 2, fine, (struct cb_logit_bias){2, 1});
    bias_refused(CB_BAD_PARAMETER, CB_PARAMETER_BIAS, bits_of(10001), fine,
                 (struct cb_logit_bias){4, 10001});
    bias_refused(CB_BAD_PARAMETER, CB_PARAMETER_BIAS, bits_of(NAN), fine,
                 (struct cb_logit_bias){4, NAN});
    for (uint32_t i = 0; i <= CB_BIASES_MAX; i++)
        many[i].id = i;
    cr_assert_eq(cb_sampling_check_biases(many, CB_BIASES_MAX, 5000, detail), CB_OK);
    cr_assert_eq(cb_sampling_check_biases(many, CB_BIASES_MAX + 1, 5000, detail), CB_BAD_PARAMETER);
    cr_assert(detail[0] == CB_PARAMETER_BIASES && detail[1] == CB_BIASES_MAX + 1);
}

Test(sampling, lists_of_ids)
{
    static const uint32_t good[] = {0, 1, 99}, twice[] = {4, 5, 5}, down[] = {4, 6, 5},
                          out[] = {100};
    static uint32_t many[CB_IDS_MAX + 1];

    for (int i = 0; i < 2; i++) {
        enum cb_parameter which = i ? CB_PARAMETER_ALLOWED : CB_PARAMETER_BANNED;

        cr_assert_eq(cb_sampling_check_ids(good, 3, VOCAB, which, detail), CB_OK);
        cr_assert_eq(cb_sampling_check_ids(good, 0, VOCAB, which, detail), CB_BAD_PARAMETER);
        cr_assert(detail[0] == which && detail[1] == 0);
        cr_assert_eq(cb_sampling_check_ids(twice, 3, VOCAB, which, detail), CB_BAD_PARAMETER);
        cr_assert(detail[0] == CB_PARAMETER_IDS_ORDER && detail[1] == 5);
        cr_assert_eq(cb_sampling_check_ids(down, 3, VOCAB, which, detail), CB_BAD_PARAMETER);
        cr_assert(detail[0] == CB_PARAMETER_IDS_ORDER && detail[1] == 5);
        cr_assert_eq(cb_sampling_check_ids(out, 1, VOCAB, which, detail), CB_BAD_TOKEN);
        cr_assert(detail[0] == 100 && detail[1] == VOCAB);
        for (uint32_t k = 0; k <= CB_IDS_MAX; k++)
            many[k] = k;
        cr_assert_eq(cb_sampling_check_ids(many, CB_IDS_MAX, 5000, which, detail), CB_OK);
        cr_assert_eq(cb_sampling_check_ids(many, CB_IDS_MAX + 1, 5000, which, detail),
                     CB_BAD_PARAMETER);
        cr_assert(detail[0] == which && detail[1] == CB_IDS_MAX + 1);
    }
}

Test(sampling, an_allowed_id_must_be_left)
{
    static const uint32_t allowed[] = {3, 5, 9}, banned[] = {1, 3, 4, 5, 8, 9, 10};

    cr_assert_eq(cb_sampling_check_rest(allowed, 3, banned, 7, detail), CB_BAD_PARAMETER);
    cr_assert(detail[0] == CB_PARAMETER_ALL_BANNED && detail[1] == 3);
    cr_assert_eq(cb_sampling_check_rest(allowed, 3, banned, 5, detail), CB_OK);
    cr_assert_eq(cb_sampling_check_rest(allowed, 3, NULL, 0, detail), CB_OK);
    cr_assert_eq(cb_sampling_check_rest(NULL, 0, banned, 7, detail), CB_OK);
}

/* ---- in an option block ---------------------------------------------------------------------- */

static uint64_t block[CB_OPTIONS_MAX / 8];
static struct cb_message_parsed parsed;

Test(sampling, the_longest_block_there_can_be_is_allowed)
{
    static uint32_t ids[CB_IDS_MAX], banned[CB_IDS_MAX], stop_ids[CB_STOP_IDS_MAX];
    static struct cb_logit_bias biases[CB_BIASES_MAX];
    static char text[CB_STOP_BYTES_MAX];
    struct cb_message_text stops[CB_STOPS_MAX];
    struct cb_sampling sampling;
    struct cb_message_options options = {.stop_ids = stop_ids,
                                         .n_stop_ids = CB_STOP_IDS_MAX,
                                         .stops = stops,
                                         .n_stops = CB_STOPS_MAX,
                                         .cache_salt = {text, CB_SALT_MAX},
                                         .sampling = &sampling,
                                         .biases = biases,
                                         .n_biases = CB_BIASES_MAX,
                                         .allowed_ids = ids,
                                         .n_allowed_ids = CB_IDS_MAX,
                                         .banned_ids = banned,
                                         .n_banned_ids = CB_IDS_MAX};
    size_t bytes;

    memset(text, 'x', sizeof text);
    cb_sampling_init(&sampling);
    sampling.min_p = 0.25f;
    sampling.first_id = 4;
    for (uint32_t i = 0; i < CB_STOPS_MAX; i++)
        stops[i] = (struct cb_message_text){text, CB_STOP_BYTES_MAX};
    for (uint32_t i = 0; i < CB_IDS_MAX; i++) {
        ids[i] = 2 * i;
        banned[i] = 2 * i + 1;
    }
    for (uint32_t i = 0; i < CB_BIASES_MAX; i++)
        biases[i] = (struct cb_logit_bias){3 * i, (float)i / 2};
    bytes = cb_message_options_bytes(&options);
    cr_assert_leq(bytes, CB_OPTIONS_MAX);
    cb_message_options_build(&options, block);
    cr_assert_eq(cb_message_parse_options(block, bytes, 10000, &parsed, detail), CB_OK);
    cr_assert_eq(memcmp(&parsed.sampling, &sampling, sizeof sampling), 0);
    cr_assert(parsed.n_allowed_ids == CB_IDS_MAX && parsed.n_banned_ids == CB_IDS_MAX);
    cr_assert_eq(memcmp(parsed.allowed_ids, ids, sizeof ids), 0);
    cr_assert_eq(memcmp(parsed.banned_ids, banned, sizeof banned), 0);
    cr_assert(parsed.n_biases == CB_BIASES_MAX && parsed.biases[1].bias == 0.5f);
    cr_assert_eq(memcmp(parsed.biases, biases, sizeof biases), 0);
}

Test(sampling, a_block_without_them_asks_for_nothing)
{
    struct cb_sampling none;

    cb_sampling_init(&none);
    cr_assert_eq(cb_message_parse_options(block, 0, VOCAB, &parsed, detail), CB_OK);
    cr_assert_eq(memcmp(&parsed.sampling, &none, sizeof none), 0);
    cr_assert(!parsed.n_biases && !parsed.n_allowed_ids && !parsed.n_banned_ids);
}

static enum cb_status parse_one(uint16_t type, const void *value, uint32_t bytes)
{
    struct cb_option_head head = {.type = type, .bytes = bytes};

    memset(block, 0, 64);
    memcpy(block, &head, sizeof head);
    memcpy(block + 1, value, bytes);
    return cb_message_parse_options(block, 8 + (bytes + 7) / 8 * 8, VOCAB, &parsed, detail);
}

Test(sampling, records_of_a_wrong_size_are_refused)
{
    static const uint16_t types[] = {CB_OPTION_SAMPLING, CB_OPTION_BIASES, CB_OPTION_ALLOWED_IDS,
                                     CB_OPTION_BANNED_IDS};
    static const uint32_t wrong[] = {28, 4, 6, 7};
    const uint32_t value[8] = {0};

    for (int i = 0; i < 4; i++) {
        cr_assert_eq(parse_one(types[i], value, wrong[i]), CB_BAD_OPTION, "%d", i);
        cr_assert_eq(detail[0], types[i]);
    }
    cr_assert_eq(parse_one(CB_OPTION_BIASES, value, 0), CB_BAD_OPTION);
    cr_assert_eq(parse_one(CB_OPTION_ALLOWED_IDS, value, 0), CB_BAD_PARAMETER);
    cr_assert_eq(parse_one(CB_OPTION_ALLOWED_IDS, value, 8), CB_BAD_PARAMETER);
    cr_assert_eq(parse_one(CB_OPTION_SAMPLING, value, 32), CB_BAD_PARAMETER);
    cr_assert_eq(detail[0], CB_PARAMETER_TYPICAL_P);
}
