/* Results depend on the request only: 200 random requests alone, then in twenty storms, each of its
 * own shape: chunks, pages, threads, instruction sets, shared blocks, caches too small for all. One
 * test a type of keys and values. All levels of the cpu backend, avx512bf16 among them, have the
 * same bits by contract (kernels/numeric.h), so all are held to the scalar one. */
#include <criterion/criterion.h>
#include <stdlib.h>

#include "kernels/kernels.h"
#include "tests/daemon/storm.h"
#include "tests/util/sanitized.h"

TestSuite(storm, .init = kernels_thread_init, .timeout = 400);

#define FIFO  SCHEDULER_FIFO
#define FIRST SCHEDULER_PREFILL_FIRST
#define PRIO  SCHEDULER_PRIORITY
#define FAIR  SCHEDULER_FAIR
#define AUTO  SCHEDULER_AUTO

enum { N_SHAPES = 20, ROOMY = 1 << 15 };

/* A cache of some 850 tokens just holds the longest request. Tokens a step, page, cache, requests a
 * step, threads, isa, scheduler, step_ms_max, sharing, tokens of room beside the cache: */
static const struct storm_shape shapes[N_SHAPES] = {
    {16, 16, 832, 16, 1, "avx512vnni", FIFO, 0, true, 800},
    {2048, 64, ROOMY, 64, 2, "avx2", FIRST, 0, true, 0},
    {7, 48, 864, 7, 3, "avx512vnni", PRIO, 0, true, 3000},
    {300, 16, 832, 40, 4, "amx_emulated", FIRST, 0, true, 150},
    {1, 256, 1024, 1, 1, "auto", FAIR, 0, false, 0},
    {64, 16, 832, 64, 2, "avx512bf16", FAIR, 0, true, 10000},
    {2048, 256, ROOMY, 100, 1, "amx_emulated", FIFO, 0, false, 0},
    {16, 64, 832, 16, 4, "avx2", PRIO, 0, true, 3000},
    {300, 48, ROOMY, 20, 3, "auto", AUTO, 1, true, 0},
    {2, 16, 832, 2, 2, "avx2", PRIO, 0, true, 0},
    {64, 256, 1024, 10, 3, "amx", FIRST, 0, false, 0},
    {7, 16, 832, 7, 1, "avx512bf16", FIRST, 0, true, 400},
    {2048, 16, 832, 200, 3, "avx512vnni", FAIR, 0, true, 20000},
    {16, 256, ROOMY, 16, 2, "amx_emulated", FIFO, 0, false, 0},
    {300, 64, 832, 64, 1, "avx2", FAIR, 1, true, 500},
    {64, 48, 864, 33, 4, "scalar", PRIO, 0, true, 2000},
    {2, 64, ROOMY, 2, 3, "avx512vnni", FIRST, 0, true, 0},
    {2048, 16, 832, 64, 2, "auto", AUTO, 1, true, 0},
    {64, 64, ROOMY, 64, 4, "amx", PRIO, 0, true, 0},
    {300, 16, 832, 64, 2, "auto", FAIR, 0, true, 3000},
};

/* Each stride-th storm. False: only the one that CB_STORM names. */
static bool rage(struct storm *st, uint32_t stride, struct storm_counts *counts)
{
    const char *only = getenv("CB_STORM");
    for (uint32_t i = 0; i < N_SHAPES; i += only ? 1 : stride)
        if (!only || strtoul(only, NULL, 10) == i)
            storm_rage(st, i, &shapes[i], counts);
    return !only;
}

static void check(const char *test, uint64_t seed, enum dtype kv_dtype, enum dtype dtype,
                  enum dtype embed_dtype)
{
    struct storm_kind kind = {.test = test,
                              .seed = seed,
                              .tiny = tiny_default(),
                              .prompt_usual = 30,
                              .n_requests = IS_SANITIZED ? 40 : STORM_REQUESTS,
                              .kv_dtype = kv_dtype};
    struct storm_counts alone = {0}, counts = {0};
    if (!IS_SANITIZED) {
        kind.tiny.n_embd = 96;
        kind.tiny.n_heads = 6; /* three over one of keys and values */
        kind.tiny.n_ff = 224;
    }
    kind.tiny.n_context = 1024;
    kind.tiny.tied = kv_dtype == DTYPE_BF16;
    kind.tiny.dtype = dtype;
    kind.tiny.embed_dtype = embed_dtype;
    struct storm *st = storm_new(&kind);
    storm_alone(st, &alone);
    bool whole = rage(st, IS_SANITIZED ? 6 : 1, &counts);
    storm_free(st);
    cr_expect_eq(counts.n_finishes[FINISH_ERROR], 0);
    if (!whole || IS_SANITIZED)
        return;
    for (int f = FINISH_STOP; f <= FINISH_LENGTH; f++)
        cr_expect_gt(alone.n_finishes[f], 0, "no request ends with %d", f);
    cr_expect_gt(counts.n_soft_resets, 0, "no cache was too small");
    cr_expect_gt(counts.n_restores, 0, "nothing was taken up again");
    cr_expect_gt(counts.n_prefix_hits, 0, "no block was shared");
    cr_expect_gt(counts.n_forks, 0, "no prompt was continued twice");
    cr_expect_gt(counts.n_cut, 0, "no cancel came in between");
    cr_expect_gt(counts.n_pauses, 100, "only %u pauses", counts.n_pauses);
    cr_expect_gt(counts.n_scored, 0, "no prompt was scored");
    cr_expect_gt(counts.n_given, 100, "only %u went on", counts.n_given);
}

Test(storm, bf16)
{
    check("storm/bf16", 1, DTYPE_BF16, DTYPE_Q4_1, DTYPE_Q8_0);
}

Test(storm, u8)
{
    check("storm/u8", 2, DTYPE_U8, DTYPE_Q4_0, DTYPE_Q4_1);
}

Test(storm, f32)
{
    check("storm/f32", 3, DTYPE_F32, DTYPE_F16, DTYPE_BF16);
}

/* Who meets an id whose embedding is not finite, in the prompt or as a token of its own, fails with
 * its own status; all others get what they get alone, in the same steps and in the same blocks
 * afterwards. */
static void check_spoilt(const char *test, enum dtype kv_dtype, enum dtype dtype)
{
    struct storm_kind kind = {.test = test,
                              .seed = 4,
                              .tiny = tiny_default(),
                              .prompt_usual = 100,
                              .n_requests = IS_SANITIZED ? 30 : 120,
                              .kv_dtype = kv_dtype};
    struct storm_counts alone = {0}, counts = {0};
    kind.tiny.n_context = 1024;
    kind.tiny.dtype = dtype;
    kind.tiny.tied = false;
    kind.tiny.bad_from = TINY_VOCAB - 3; /* a NaN, +infinity, -infinity */
    struct storm *st = storm_new(&kind);
    storm_alone(st, &alone);
    bool whole = rage(st, IS_SANITIZED ? 6 : 1, &counts);
    storm_free(st);
    if (!whole || IS_SANITIZED)
        return;
    cr_expect_gt(counts.n_finishes[FINISH_ERROR], kind.n_requests / 8);
    cr_expect_gt(counts.n_finishes[FINISH_LENGTH], kind.n_requests / 2);
    cr_expect_gt(counts.n_soft_resets, 0, "no cache was too small");
    cr_expect_gt(counts.n_restores, 0, "nothing was taken up again");
    cr_expect_gt(counts.n_prefix_hits, 0, "no block was shared");
    cr_expect_gt(counts.n_forks, 0, "no prompt was continued twice");
}

Test(storm, what_is_not_finite_bf16)
{
    check_spoilt("storm/what_is_not_finite_bf16", DTYPE_BF16, DTYPE_Q4_1);
}

Test(storm, what_is_not_finite_u8)
{
    check_spoilt("storm/what_is_not_finite_u8", DTYPE_U8, DTYPE_Q8_0);
}

Test(storm, what_is_not_finite_f32)
{
    check_spoilt("storm/what_is_not_finite_f32", DTYPE_F32, DTYPE_BF16);
}
