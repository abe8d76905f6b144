/* What the engine itself costs a step: the null model, 32 requests at once. CSV, microseconds. */
#include <stdio.h>

#include "daemon/base/clock.h"
#include "daemon/engine.h"
#include "tests/bench/measure.h"

enum { N_REQUESTS = 32, N_PROMPT = 128, N_NEW = 1000, N_STEPS_MAX = 4096 };

static void on_token(void *ctx, struct request *r, void *owner, uint32_t index, uint32_t token,
                     uint64_t time_ns)
{
    (void)ctx;
    (void)r;
    (void)owner;
    (void)index;
    (void)token;
    (void)time_ns;
}

static void on_end(void *ctx, struct request *r, void *owner, const struct request_end *end)
{
    (void)ctx;
    (void)r;
    (void)owner;
    (void)end;
}

static int measure(uint32_t page_size, uint32_t n_blocks)
{
    static double own_us[N_STEPS_MAX];
    char message[MODEL_MESSAGE_MAX];
    struct model_config model_config = {.path = "null",
                                        .page_size = page_size,
                                        .n_blocks = n_blocks,
                                        .max_batch_tokens = 512,
                                        .max_batch_seqs = N_REQUESTS};
    struct engine_config config = {.max_requests = N_REQUESTS,
                                   .max_held_tokens = N_REQUESTS * (N_PROMPT + N_NEW),
                                   .max_batch_tokens = 512,
                                   .max_requests_per_batch = N_REQUESTS,
                                   .safety_margin = -1,
                                   .allow_block_sharing = true};
    struct engine_sink sink = {.token = on_token, .end = on_end};
    struct model *model;
    struct engine *engine;
    if (model_open(&model, &model_config, message)) {
        fprintf(stderr, "%s\n", message);
        return 1;
    }
    if (engine_new(&engine, &config, model, &sink, &clock_monotonic)) {
        model_free(model);
        return 1;
    }
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        uint32_t prompt[N_PROMPT];
        struct request *r;
        for (uint32_t k = 0; k < N_PROMPT; k++)
            prompt[k] = i * 1000 + k;
        struct request_spec spec = {.prompt = prompt,
                                    .n_prompt = N_PROMPT,
                                    .max_new_tokens = N_NEW,
                                    .ignore_eos = true,
                                    .top_p = 1};
        engine_submit(engine, &spec, &r);
    }
    size_t n = 0;
    struct engine_stats before, after;
    engine_stats(engine, &before);
    while (engine_step(engine) != ENGINE_IDLE && n < N_STEPS_MAX) {
        engine_stats(engine, &after);
        own_us[n++] = (double)(after.own_ns - before.own_ns) / 1e3;
        before = after;
    }
    bench_sort(own_us, n);
    printf("%d,%u,%zu,%.2f,%.2f,%.2f\n", N_REQUESTS, page_size, n, own_us[n / 10], own_us[n / 2],
           own_us[n * 9 / 10]);
    engine_free(engine);
    model_free(model);
    return 0;
}

int main(void)
{
    printf("requests,page_size,steps,own_us_p10,own_us_p50,own_us_p90\n");
    return measure(256, 256) || measure(16, 4096) || measure(4, 16384);
}
