/* What late steps say of the next one's prefill, and the scheduler that cuts prompts by it. */
#include <criterion/criterion.h>

#include "daemon/sched/pace.h"
#include "daemon/sched/scheduler.h"

enum { STEP_MS = 50, GUESS = 64 }; /* GUESS: where nothing was measured */

/* A step of so many prompt tokens on a machine of 0.39 ms a token and 6 ms a step. */
static void step(struct pace *p, uint32_t n_tokens)
{
    pace_observe(p, n_tokens, n_tokens, 6000000 + n_tokens * UINT64_C(390000));
}

Test(pace, small_steps_do_not_make_the_next_ones_small)
{
    struct pace p = {0};
    cr_assert_eq(pace_prefill_tokens(&p, STEP_MS, 0), GUESS);
    for (int i = 0; i < 20; i++) {
        step(&p, 112);
        step(&p, 16);
    }
    /* 128 tokens in 61.9 ms: some 103 in 50. Each step for as much as the other would say 78. */
    cr_assert_eq(pace_prefill_tokens(&p, STEP_MS, 0), 96);
}

Test(pace, a_machine_that_slows_down_is_followed_within_some_steps)
{
    struct pace p = {0};
    for (int i = 0; i < 20; i++)
        step(&p, 128);
    for (int i = 0; i < 12; i++)
        pace_observe(&p, 128, 128, UINT64_C(128) * 1560000);
    cr_assert_eq(pace_prefill_tokens(&p, STEP_MS, 0), 32);
}

/* Tokens are slow where the context is long, and a step holds few. */
Test(pace, steps_take_little_longer_than_they_may_however_slow_tokens_are)
{
    for (uint64_t ns = 200000; ns < 2000000; ns += 10000) {
        struct pace p = {0};
        pace_observe(&p, 64, 64, 64 * ns);
        for (uint32_t n_decoding = 0; n_decoding <= 8; n_decoding += 8) {
            double n = n_decoding + pace_prefill_tokens(&p, STEP_MS, n_decoding);
            cr_expect_lt(n * (double)ns, 1.17 * STEP_MS * 1e6, "%g tokens of %g ms", n,
                         (double)ns / 1e6);
        }
    }
}

/* Tokens that a step takes of a new prompt of n_prompt, beside n_decoding (0 or 1) who decode. */
static uint32_t first_share(uint32_t n_prompt, uint32_t n_decoding)
{
    enum { PAGE = 4, N_BLOCKS = 64, MAX_TOKENS = 128, MAX_REQUESTS = 4 };
    struct scheduler_config config = {.policy = SCHEDULER_FIFO,
                                      .max_requests = MAX_REQUESTS,
                                      .max_batch_tokens = MAX_TOKENS,
                                      .max_requests_per_batch = MAX_REQUESTS,
                                      .page_size = PAGE,
                                      .safety_margin = 0,
                                      .step_ms_max = STEP_MS};
    struct cache *cache;
    struct requests *requests;
    struct scheduler *scheduler;
    struct batch *batch;
    struct request *stuck;
    uint32_t prompt[N_BLOCKS * PAGE] = {0}, n_tokens = 0;

    cr_assert_eq(cache_new(&cache, &(struct cache_config){N_BLOCKS, PAGE, 1, {{1, 0}}, false}), 0);
    cr_assert_eq(requests_new(&requests, MAX_REQUESTS, N_BLOCKS * PAGE, 1, N_BLOCKS), 0);
    cr_assert_eq(scheduler_new(&scheduler, &config, cache), 0);
    cr_assert_eq(batch_new(&batch, MAX_TOKENS, MAX_REQUESTS, 1, N_BLOCKS), 0);
    for (uint32_t i = 0; i <= n_decoding; i++) {
        struct request_spec spec = {.prompt = prompt,
                                    .n_prompt = i < n_decoding ? 1 : n_prompt,
                                    .max_new_tokens = 4,
                                    .top_p = 1};
        struct request *r =
            requests_take(requests, &spec, &(struct request_vocab){.n_vocab = 100}, 1);
        cr_assert_not_null(r);
        r->key = cache_key(cache, 0, NULL, 0);
        scheduler_add(scheduler, r);
        if (i == n_decoding)
            break;
        cr_assert_eq(scheduler_plan(scheduler, batch, 1, &stuck), 0);
        scheduler_advance(scheduler, &batch->entries[batch->n_entries - 1]);
        cr_assert_eq(r->phase, REQUEST_DECODING);
        cr_assert_eq(request_append(r, 7, NULL, 0, NULL, 0, 1), FINISH_NONE);
        batch_clear(batch);
    }
    cr_assert_eq(scheduler_plan(scheduler, batch, 1, &stuck), 0);
    for (uint32_t e = 0; e < batch->n_entries; e++)
        n_tokens += batch->entries[e].decodes ? 0 : batch->entries[e].n_tokens;
    batch_free(batch);
    scheduler_free(scheduler);
    requests_free(requests);
    cache_free(cache);
    return n_tokens;
}

Test(pace, the_last_tokens_of_a_prompt_go_along_where_nobody_decodes)
{
    cr_expect_eq(first_share(GUESS, 0), GUESS);
    cr_expect_eq(first_share(GUESS + GUESS / 4, 0), GUESS + GUESS / 4);
    cr_expect_eq(first_share(GUESS + GUESS / 4 + 1, 0), GUESS);
    cr_expect_eq(first_share(GUESS + 1, 1), GUESS, "one waits for its next token");
}
