/* Recorded tiny checkpoints, and random ones of every type on both backends. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/forward.h"
#include "kernels/numeric.h"
#include "tests/model/common.h"
#include "tests/util/feed.h"
#include "tests/util/safetensors.h"
#include "tests/util/tiny.h"

#define N_TOKENS 80u
#define EOS      2u /* of the recorded checkpoints */

/* Logits of all tokens of one sequence, fed in chunks. */
static void run_all(struct model *m, const int32_t *ids, uint32_t n, uint32_t chunk, float *logits)
{
    struct feed *f = feed_new(m, 1, n, chunk);

    for (uint32_t at = 0; at < n; at += chunk) {
        uint32_t size = n - at < chunk ? n - at : chunk;

        feed_begin(f);
        feed_add(f, 0, ids + at, at, size, FEED_ALL);
        cr_assert_eq(forward_logits(m, feed_step(f), logits + (size_t)at * TINY_VOCAB), 0);
    }
    feed_free(f);
}

/* ---- recorded -------------------------------------------------------------------------------- */

static void check_logits(struct model *m, const char *folder, const int32_t *ids,
                         const uint16_t *recorded, float slack)
{
    static float logits[N_TOKENS * TINY_VOCAB];
    uint32_t n_off = 0;

    run_all(m, ids, N_TOKENS, 32, logits);
    for (size_t i = 0; i < N_TOKENS * TINY_VOCAB; i++) {
        float r = numeric_from_half(recorded[i]);

        /* The recorded ones were rounded to half precision. */
        n_off += !(fabsf(logits[i] - r) <= slack + fabsf(r) * 0x1p-11f);
    }
    cr_expect_eq(n_off, 0, "%s: %u of %u logits are off", folder, n_off, N_TOKENS * TINY_VOCAB);
}

/* Greedy from the first 20 ids, two sequences in one batch; EOS was never chosen. In a random model
 * the two best may be closer than f32 arithmetic tells apart: then either will do. */
static void check_greedy(struct model *m, const char *folder, const int32_t *ids,
                         const int32_t *recorded, float slack)
{
    struct feed *f = feed_new(m, 2, N_TOKENS, 2 * 20);
    float logits[2 * TINY_VOCAB], worst = 0;

    for (uint32_t made = 0; made < 60; made++) {
        feed_begin(f);
        for (uint32_t i = 0; i < 2; i++) {
            if (made == 0)
                feed_add(f, i, ids + i * N_TOKENS, 0, 20, FEED_LAST);
            else
                feed_add(f, i, recorded + i * 60 + made - 1, 20 + made - 1, 1, FEED_LAST);
        }
        cr_assert_eq(forward_logits(m, feed_step(f), logits), 0);
        for (uint32_t i = 0; i < 2; i++)
            for (uint32_t j = 0; j < TINY_VOCAB; j++)
                if (j != EOS)
                    worst = fmaxf(worst, logits[i * TINY_VOCAB + j] -
                                             logits[i * TINY_VOCAB + recorded[i * 60 + made]]);
    }
    cr_expect(worst <= slack, "%s: a recorded token is %g below the best", folder, (double)worst);
    feed_free(f);
}

static void check_recorded(const char *folder, const char *backend)
{
    char path[256];
    uint32_t shape[4];
    struct safetensors *expected;
    const int32_t *ids, *greedy;
    const uint16_t *logits;
    struct gguf_out *o = tiny_convert(folder);
    struct model *m;

    cr_assert_not_null(o);
    m = open_built(o, backend, DTYPE_F32, 2, N_TOKENS, 64);
    snprintf(path, sizeof path, "%s/expected.safetensors", folder);
    expected = safetensors_open(path);
    cr_assert_not_null(expected);
    ids = safetensors_get(expected, "input_ids", "I32", shape);
    cr_assert(ids && shape[0] == 2 && shape[1] == N_TOKENS);
    logits = safetensors_get(expected, "logits", "F16", shape);
    cr_assert(logits && shape[1] == N_TOKENS && shape[2] == TINY_VOCAB);
    greedy = safetensors_get(expected, "greedy_from_20", "I32", shape);
    cr_assert(greedy && shape[1] == 60);
    for (uint32_t i = 0; i < 2; i++)
        check_logits(m, folder, ids + i * N_TOKENS, logits + (size_t)i * N_TOKENS * TINY_VOCAB,
                     1e-4f);
    check_greedy(m, folder, ids, greedy, 1e-5f);
    safetensors_close(expected);
    model_free(m);
}

Test(tiny, recorded_llama)
{
    check_recorded("tests/data/tiny/llama", "reference");
    check_recorded("tests/data/tiny/llama", "cpu");
}

/* Tied head, heads wider than the embedding's share, Llama 3's frequencies. */
Test(tiny, recorded_llama3)
{
    check_recorded("tests/data/tiny/llama-tied-hd32-rope-llama3", "reference");
    check_recorded("tests/data/tiny/llama-tied-hd32-rope-llama3", "cpu");
}

/* ---- every type on both backends ------------------------------------------------------------- */

static void fill_ids(int32_t *ids, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        ids[i] = (int32_t)((i * 97 + i * i * 13) % TINY_VOCAB);
}

static void run_tiny(const struct tiny *t, const char *backend, enum dtype kv_dtype, uint32_t chunk,
                     float *logits)
{
    int32_t ids[N_TOKENS];
    struct model *m = open_built(tiny_new(t), backend, kv_dtype, 1, N_TOKENS, 128);

    fill_ids(ids, N_TOKENS);
    run_all(m, ids, N_TOKENS, chunk, logits);
    model_free(m);
}

/* What each type may differ by between exact and 8-bit activations. */
static double limit_of(enum dtype dtype)
{
    return dtype == DTYPE_F32 || dtype == DTYPE_F16 || dtype == DTYPE_BF16 ? 1e-9 : 2e-3;
}

Test(tiny, backends_agree_on_every_type)
{
    static float reference[N_TOKENS * TINY_VOCAB], cpu[N_TOKENS * TINY_VOCAB];

    for (int type = 0; type < DTYPE_COUNT; type++)
        for (uint32_t variant = 0; variant < 3; variant++) {
            struct tiny t = tiny_default();
            double off;

            t.dtype = t.embed_dtype = (enum dtype)type;
            t.tied = variant != 1;
            t.n_kv_heads = variant == 0 ? 4 : variant == 1 ? 2 : 1;
            t.seed = 10 * (uint64_t)type + variant;
            if (variant == 2) { /* mixed types in one weight's company, heads of 32 */
                t.embed_dtype = DTYPE_Q8_0;
                t.head_dim = 32;
            }
            run_tiny(&t, "reference", DTYPE_F32, 128, reference);
            run_tiny(&t, "cpu", DTYPE_F32, 128, cpu);
            off = nmse(cpu, reference, N_TOKENS * TINY_VOCAB);
            cr_expect(off <= (variant == 2 ? 2e-3 : limit_of((enum dtype)type)),
                      "%s, variant %u: NMSE %g", dtype_name((enum dtype)type), variant, off);
        }
}

Test(tiny, biases_of_q_k_and_v_count)
{
    static float without[N_TOKENS * TINY_VOCAB], with[N_TOKENS * TINY_VOCAB];
    static float cpu[N_TOKENS * TINY_VOCAB];
    struct tiny t = tiny_default();

    run_tiny(&t, "reference", DTYPE_F32, 128, without);
    t.has_bias = true; /* of zeros */
    run_tiny(&t, "reference", DTYPE_F32, 128, with);
    cr_expect(memcmp(with, without, sizeof with) == 0);
    t.bias_spread = 0.5f;
    run_tiny(&t, "reference", DTYPE_F32, 128, with);
    cr_expect(nmse(with, without, N_TOKENS * TINY_VOCAB) > 1e-3);
    run_tiny(&t, "cpu", DTYPE_F32, 128, cpu);
    cr_expect(nmse(cpu, with, N_TOKENS * TINY_VOCAB) <= 1e-9);
}

Test(tiny, cpu_gives_the_same_bits_by_any_chunks)
{
    static float whole[N_TOKENS * TINY_VOCAB], parts[N_TOKENS * TINY_VOCAB];
    static const uint32_t chunks[] = {1, 7, 31, 32, 33};
    struct tiny t = tiny_default();

    t.dtype = t.embed_dtype = DTYPE_Q4_1;
    run_tiny(&t, "cpu", DTYPE_BF16, 128, whole);
    for (size_t i = 0; i < sizeof chunks / sizeof chunks[0]; i++) {
        run_tiny(&t, "cpu", DTYPE_BF16, chunks[i], parts);
        cr_expect(memcmp(whole, parts, sizeof whole) == 0, "chunks of %u", chunks[i]);
    }
}
