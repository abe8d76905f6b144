/* What the engine itself costs a step: the null model, 32 requests at once; then with 4,000 more
 * that wait for room in the cache, of two users. CSV, microseconds. */
#include <stdio.h>

#include "daemon/base/clock.h"
#include "daemon/engine.h"
#include "tests/bench/measure.h"

enum { N_REQUESTS = 32, N_WAITING = 4000, N_PROMPT = 128, N_NEW = 1000, N_STEPS_MAX = 4096 };

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

static int measure(const char *name, enum scheduler_kind scheduler, uint32_t n_requests,
                   uint32_t page_size, uint32_t n_blocks)
{
    static double own_us[N_STEPS_MAX];
    char message[MODEL_MESSAGE_MAX];
    struct model_config model_config = {.path = "null",
                                        .page_size = page_size,
                                        .n_blocks = n_blocks,
                                        .max_batch_tokens = 512,
                                        .max_batch_seqs = 2 * N_REQUESTS};
    struct engine_config config = {.scheduler = scheduler,
                                   .max_requests = n_requests,
                                   .max_held_tokens = (uint64_t)n_requests * (N_PROMPT + N_NEW),
                                   .max_batch_tokens = 512,
                                   .max_requests_per_batch = 2 * N_REQUESTS,
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
    for (uint32_t i = 0; i < n_requests; i++) {
        uint32_t prompt[N_PROMPT];
        struct request *r;
        for (uint32_t k = 0; k < N_PROMPT; k++)
            prompt[k] = k == 0 ? i : k; /* no two begin alike */
        struct request_spec spec = {.prompt = prompt,
                                    .n_prompt = N_PROMPT,
                                    .max_new_tokens = N_NEW,
                                    .ignore_eos = true,
                                    .top_p = 1,
                                    .uid = i % 2};
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
    printf("%s,%u,%u,%zu,%.2f,%.2f,%.2f\n", name, n_requests, page_size, n, own_us[n / 10],
           own_us[n / 2], own_us[n * 9 / 10]);
    engine_free(engine);
    model_free(model);
    return 0;
}

int main(void)
{
    static const struct {
        const char *name;
        enum scheduler_kind kind;
    } schedulers[] = {{"fifo", SCHEDULER_FIFO},
                      {"prefill_first", SCHEDULER_PREFILL_FIRST},
                      {"priority", SCHEDULER_PRIORITY},
                      {"fair", SCHEDULER_FAIR}};
    printf("scheduler,requests,page_size,steps,own_us_p10,own_us_p50,own_us_p90\n");
    if (measure("fifo", SCHEDULER_FIFO, N_REQUESTS, 256, 256) ||
        measure("fifo", SCHEDULER_FIFO, N_REQUESTS, 16, 4096) ||
        measure("fifo", SCHEDULER_FIFO, N_REQUESTS, 4, 16384))
        return 1;
    for (size_t i = 0; i < sizeof schedulers / sizeof schedulers[0]; i++)
        if (measure(schedulers[i].name, schedulers[i].kind, N_REQUESTS, 16, 2400) ||
            measure(schedulers[i].name, schedulers[i].kind, N_REQUESTS + N_WAITING, 16, 2400))
            return 1;
    return 0;
}
