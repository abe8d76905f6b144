/* Weights switched every few steps under load: requests that share, fork, are preempted, put aside and
 * cancelled, under each policy. What each was told, tokens, log-probabilities and epochs, is then
 * replayed: alone, with a cache that shares nothing, whole prompts in a step, and weights switched
 * where the epochs say. All bits must come again. Over the null model, and over real arithmetic. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/clock.h"
#include "daemon/engine.h"
#include "shm/status.h"
#include "tests/util/memory_file.h"
#include "tests/util/tiny.h"

enum {
    PAGE = 16,
    CONTEXT = 192,
    PROMPT_MAX = 100,
    NEW_MAX = 40,
    N_JOBS = 60,
    N_HELD = 24,
    N_SETS = 3,
    EPOCHS_MAX = 4000,
    VOCAB = TINY_VOCAB
};

struct job {
    uint32_t prompt[PROMPT_MAX], n_prompt, n_new, child_idx;
    uint32_t n_given; /* ids behind the prompt that another daemon made */
    float temperature;
    uint64_t seed;
    enum on_new_weights wish;
    bool scores;
    struct request *r; /* NULL: not accepted, or ended */
    uint32_t got[NEW_MAX], epochs[NEW_MAX], n_got;
    float logprobs[NEW_MAX], prompt_logprobs[PROMPT_MAX];
    uint32_t n_ends;
    struct request_end end;
};

struct rig {
    struct model *model;
    struct engine *engine;
    struct virtual_clock time;
    struct clock clock;
};

struct sets {
    char paths[N_SETS][MEMORY_FILE_PATH_MAX];
    int fds[N_SETS];
    const char *model;
};

struct counts {
    uint64_t n_switches, n_anew, n_mixed, n_failed, n_cancelled, n_hits, n_forks;
    uint64_t n_soft_resets, n_restores, n_restarts, n_scored;
};

static void sets_init(struct sets *s, bool is_null)
{
    for (uint32_t i = 0; i < N_SETS; i++) {
        if (is_null) {
            char text[32];
            int n = snprintf(text, sizeof text, "null weights %u\n", i);
            s->fds[i] = memory_file(text, (size_t)n, s->paths[i]);
        } else {
            struct tiny t = tiny_default();
            t.dtype = t.embed_dtype = i == 2 ? DTYPE_Q8_0 : DTYPE_Q4_1; /* types may differ */
            t.seed += i;
            t.n_context = CONTEXT;
            s->fds[i] = memory_file_gguf(tiny_new(&t), s->paths[i]);
        }
    }
    s->model = is_null ? "null" : s->paths[0];
}

static void sets_fini(struct sets *s)
{
    for (uint32_t i = 0; i < N_SETS; i++)
        close(s->fds[i]);
}

static void on_logprobs(void *ctx, struct request *r, void *owner, bool of_prompt, uint32_t index,
                        const struct engine_logprobs *l)
{
    struct job *j = owner;
    (void)ctx;
    (void)r;
    if (of_prompt)
        j->prompt_logprobs[index] = l->logprob;
    else
        j->logprobs[index] = l->logprob;
}

static void on_token(void *ctx, struct request *r, void *owner, uint32_t index, uint32_t token,
                     uint64_t time_ns)
{
    struct job *j = owner;
    (void)ctx;
    (void)time_ns;
    cr_assert_eq(index, j->n_got);
    j->epochs[j->n_got] = r->token_epoch;
    j->got[j->n_got++] = token;
}

static void on_end(void *ctx, struct request *r, void *owner, const struct request_end *end)
{
    struct job *j = owner;
    (void)ctx;
    (void)r;
    cr_assert_eq(j->n_ends++, 0);
    j->end = *end;
    j->r = NULL;
}

static void rig_init(struct rig *g, const struct sets *sets, uint32_t n_blocks,
                     uint32_t n_pool_blocks, bool shares, uint32_t budget)
{
    char message[MODEL_MESSAGE_MAX];
    const struct model_config model = {.path = sets->model,
                                       .backend = "cpu",
                                       .backend_config = {.n_threads = 1},
                                       .kv_dtype = DTYPE_BF16,
                                       .page_size = PAGE,
                                       .n_blocks = n_blocks,
                                       .pool_bytes = n_pool_blocks ? (uint64_t)64 << 10 : 0,
                                       .pool_share = 1,
                                       .max_batch_tokens = budget,
                                       .max_batch_seqs = N_HELD,
                                       .null_vocab = VOCAB,
                                       .null_context = CONTEXT};
    const struct engine_config config = {.max_requests = N_HELD,
                                         .max_held_tokens = N_HELD * CONTEXT,
                                         .max_batch_tokens = budget,
                                         .max_requests_per_batch = N_HELD,
                                         .safety_margin = 0,
                                         .allow_block_sharing = shares};
    const struct engine_sink sink = {.logprobs = on_logprobs, .token = on_token, .end = on_end};
    cr_assert_eq(model_open(&g->model, &model, message), 0, "%s", message);
    virtual_clock_init(&g->time, &g->clock);
    cr_assert_eq(engine_new(&g->engine, &config, g->model, &sink, &g->clock), 0);
}

static struct engine_stats rig_fini(struct rig *g)
{
    struct engine_stats stats;
    engine_stats(g->engine, &stats);
    cr_assert_eq(stats.n_active + stats.n_waiting, 0);
    cr_assert_eq(stats.n_free_blocks, stats.n_blocks, "blocks are lost");
    cr_assert_eq(stats.n_free_pool_blocks, stats.n_pool_blocks, "the pool's blocks are lost");
    cr_assert_eq(stats.n_violations, 0, "%s", stats.violation);
    engine_free(g->engine);
    model_free(g->model);
    return stats;
}

/* All at once. */
static void load(struct rig *g, const struct sets *sets, uint32_t set,
                 enum on_new_weights otherwise)
{
    char message[MODEL_MESSAGE_MAX];
    int r = engine_load_begin(g->engine, sets->fds[set], "other weights", message);
    while (r == 0 && (r = engine_load_some(g->engine, message)) == ENGINE_MORE)
        r = 0;
    cr_assert_eq(r, 0, "%s", message);
    engine_load_publish(g->engine, otherwise);
}

static void step(struct rig *g)
{
    const char *why;
    g->time.now_ns += 1000;
    engine_step(g->engine);
    cr_assert_eq(engine_check(g->engine, &why), 0, "%s", why);
}

static void draw_job(struct job *j, uint32_t family)
{
    *j = (struct job){.n_prompt = 1 + (uint32_t)rand() % PROMPT_MAX,
                      .n_new = 1 + (uint32_t)rand() % NEW_MAX,
                      .temperature = rand() % 2 ? 0.8f : 0,
                      .seed = (uint64_t)rand(),
                      .wish = (enum on_new_weights)(rand() % 4),
                      .scores = rand() % 6 == 0};
    /* Most begin as others do: the same ids up to where they differ. */
    uint32_t n_alike = rand() % 4 ? (uint32_t)rand() % (j->n_prompt + 1) : 0;
    for (uint32_t i = 0; i < j->n_prompt; i++)
        j->prompt[i] = i < n_alike ? (family * 131 + i * 7) % (VOCAB - 3) + 3
                                   : (uint32_t)rand() % (VOCAB - 3) + 3;
}

/* n jobs: continuations of one prompt. Whether there was room. */
static bool submit(struct rig *g, struct job *jobs, uint32_t n, enum on_new_weights wish)
{
    struct sampler_wishes wishes;
    struct request *requests[3];
    void *owners[3];
    sampler_wishes_init(&wishes);
    wishes.logprobs = SAMPLE_PROCESSED;
    wishes.prompt_logprobs = jobs->scores;
    const struct request_spec spec = {.prompt = jobs->prompt,
                                      .n_prompt = jobs->n_prompt,
                                      .n_given = jobs->n_given,
                                      .max_new_tokens = jobs->n_new,
                                      .ignore_eos = true,
                                      .temperature = jobs->temperature,
                                      .top_p = 1,
                                      .seed = jobs->seed,
                                      .wishes = &wishes,
                                      .on_new_weights = wish,
                                      .child_idx = jobs->child_idx};
    for (uint32_t i = 0; i < n; i++)
        owners[i] = &jobs[i];
    if (engine_submit_many(g->engine, &spec, n, owners, requests))
        return false;
    for (uint32_t i = 0; i < n; i++)
        jobs[i].r = requests[i];
    return true;
}

/* All of a storm; set_of says which set each epoch was. */
static void rage(struct rig *g, const struct sets *sets, struct job *jobs, uint8_t *set_of,
                 enum on_new_weights otherwise, struct counts *c)
{
    uint32_t n_sent = 0, n_ended = 0;
    set_of[0] = 0;
    while (n_ended < N_JOBS) {
        while (n_sent < N_JOBS && rand() % 2) {
            uint32_t n = 1 + (uint32_t)rand() % 3;
            n = n < N_JOBS - n_sent ? n : N_JOBS - n_sent;
            draw_job(&jobs[n_sent], (uint32_t)rand() % 2);
            for (uint32_t i = 1; i < n; i++) {
                jobs[n_sent + i] = jobs[n_sent];
                jobs[n_sent + i].child_idx = i;
            }
            if (!submit(g, &jobs[n_sent], n, jobs[n_sent].wish))
                break;
            n_sent += n;
        }
        if (n_sent && rand() % 12 == 0) {
            struct job *j = &jobs[(uint32_t)rand() % n_sent];
            if (j->r)
                engine_cancel(g->engine, j->r);
        }
        if (rand() % 5 == 0 && c->n_switches < EPOCHS_MAX) {
            struct engine_stats stats;
            uint32_t set = (uint32_t)rand() % N_SETS;
            load(g, sets, set, otherwise);
            engine_stats(g->engine, &stats);
            set_of[stats.weight_epoch] = (uint8_t)set;
            c->n_switches++;
        }
        step(g);
        n_ended = 0;
        for (uint32_t i = 0; i < n_sent; i++)
            n_ended += jobs[i].n_ends;
    }
}

/* What a job was told, told again by what it says of epochs. */
static void replay(struct rig *g, const struct sets *sets, const struct job *j,
                   const uint8_t *set_of, uint32_t *setp, uint32_t seed)
{
    struct job alone = {.n_prompt = j->n_prompt,
                        .n_new = j->n_new,
                        .temperature = j->temperature,
                        .seed = j->seed,
                        .child_idx = j->child_idx,
                        .scores = j->scores};
    memcpy(alone.prompt, j->prompt, sizeof alone.prompt);
    for (uint32_t i = 0; i < j->n_got; i++) {
        uint32_t set = set_of[j->epochs[i] & ~CB_EPOCH_ANEW];
        bool is_anew = j->epochs[i] & CB_EPOCH_ANEW;
        cr_assert(i > 0 || !is_anew);
        if (set != *setp || is_anew)
            load(g, sets, set, is_anew ? ON_NEW_WEIGHTS_RESTART : ON_NEW_WEIGHTS_CONTINUE);
        *setp = set;
        if (i == 0)
            cr_assert(submit(g, &alone, 1, ON_NEW_WEIGHTS_DEFAULT));
        step(g);
        cr_assert_eq(alone.n_got, i + 1);
        cr_assert_eq(alone.got[i], j->got[i], "seed %u: token %u of %u (prompt %u, epoch %x)", seed,
                     i, j->n_new, j->n_prompt, j->epochs[i]);
        cr_assert_eq(memcmp(&alone.logprobs[i], &j->logprobs[i], sizeof(float)), 0);
    }
    if (j->n_got > 0 && j->scores)
        cr_assert_eq(memcmp(alone.prompt_logprobs + 1, j->prompt_logprobs + 1,
                            (j->n_prompt - 1) * sizeof(float)),
                     0, "seed %u: log-probabilities of a prompt", seed);
    if (alone.r)
        engine_cancel(g->engine, alone.r);
    step(g);
}

static void count(const struct job *j, struct counts *c)
{
    bool is_mixed = false;
    for (uint32_t i = 0; i < j->n_got; i++) {
        c->n_anew += (j->epochs[i] & CB_EPOCH_ANEW) != 0;
        is_mixed |= i > 0 && !(j->epochs[i] & CB_EPOCH_ANEW) && j->epochs[i] != j->epochs[0];
    }
    c->n_mixed += is_mixed;
    c->n_failed += j->end.error == CB_NEW_WEIGHTS;
    c->n_cancelled += j->end.finish == FINISH_CANCELLED;
    c->n_scored += j->scores && j->n_got > 0;
}

static void storms(bool is_null, uint32_t n_seeds)
{
    struct counts c = {0};
    struct sets sets;
    sets_init(&sets, is_null);
    for (uint32_t seed = 1; seed <= n_seeds; seed++) {
        static struct job jobs[N_JOBS];
        static uint8_t set_of[EPOCHS_MAX + 1];
        struct rig g, alone;
        uint32_t set = 0;
        enum on_new_weights otherwise = (enum on_new_weights)(1 + seed % 3);
        srand(seed);
        memset(jobs, 0, sizeof jobs);
        rig_init(&g, &sets, 24, seed % 2 ? 1 : 0, seed % 4 != 0, seed % 3 ? 64 : N_HELD);
        rage(&g, &sets, jobs, set_of, otherwise, &c);
        struct engine_stats stats = rig_fini(&g);
        rig_init(&alone, &sets, 12, 0, false, CONTEXT);
        for (uint32_t i = 0; i < N_JOBS; i++) {
            enum on_new_weights wish = jobs[i].wish ? jobs[i].wish : otherwise;
            const struct request_end *end = &jobs[i].end;
            cr_assert(end->finish == FINISH_LENGTH || end->finish == FINISH_CANCELLED ||
                          (end->finish == FINISH_ERROR && end->error == CB_NEW_WEIGHTS),
                      "seed %u: ended by %d, %d", seed, end->finish, end->error);
            cr_assert(end->error != CB_NEW_WEIGHTS ||
                      (wish == ON_NEW_WEIGHTS_FAIL && jobs[i].n_got > 0));
            /* Who fails, or begins anew, never has keys of two epochs. */
            for (uint32_t k = 1; wish == ON_NEW_WEIGHTS_FAIL && k < jobs[i].n_got; k++)
                cr_assert_eq(jobs[i].epochs[k], jobs[i].epochs[0]);
            for (uint32_t k = 1; wish == ON_NEW_WEIGHTS_RESTART && k < jobs[i].n_got; k++)
                cr_assert_eq((jobs[i].epochs[k] & CB_EPOCH_ANEW) != 0,
                             (jobs[i].epochs[k] & ~CB_EPOCH_ANEW) !=
                                 (jobs[i].epochs[k - 1] & ~CB_EPOCH_ANEW));
            replay(&alone, &sets, &jobs[i], set_of, &set, seed);
            count(&jobs[i], &c);
        }
        rig_fini(&alone);
        c.n_hits += stats.n_prefix_hits;
        c.n_forks += stats.n_forks;
        c.n_soft_resets += stats.n_soft_resets;
        c.n_restores += stats.n_restores;
        c.n_restarts += stats.n_restarts;
    }
    sets_fini(&sets);
    cr_log_info(
        "%lu switches, %lu anew, %lu mixed, %lu failed, %lu cancelled, %lu hits, %lu forks, "
        "%lu soft resets, %lu restores, %lu restarts, %lu scored\n",
        c.n_switches, c.n_anew, c.n_mixed, c.n_failed, c.n_cancelled, c.n_hits, c.n_forks,
        c.n_soft_resets, c.n_restores, c.n_restarts, c.n_scored);
    cr_expect(c.n_switches && c.n_anew && c.n_mixed && c.n_failed && c.n_cancelled && c.n_hits &&
              c.n_forks && c.n_soft_resets && c.n_restores && c.n_restarts && c.n_scored);
}

Test(weights, null_model_storms)
{
    storms(true, 200);
}

Test(weights, real_arithmetic_storms)
{
    storms(false, 8);
}

/* All but the last id of a repetition were computed, by weights that no token tells of. */
Test(weights, who_stands_before_the_end_of_a_repetition_begins_anew)
{
    struct job j = {.n_prompt = 7, .n_new = 10, .prompt = {5, 6, 7, 8, 9, 10, 11}};
    static const uint8_t set_of[] = {0, 1, 2};
    struct rig g, alone;
    struct sets sets;
    uint32_t set = 0;
    sets_init(&sets, true);
    rig_init(&g, &sets, 24, 0, true, 8);
    cr_assert(submit(&g, &j, 1, ON_NEW_WEIGHTS_DEFAULT));
    step(&g);
    step(&g);
    cr_assert_eq(j.n_got, 2);
    load(&g, &sets, 1, ON_NEW_WEIGHTS_RESTART);
    step(&g); /* 8 of 9 ids */
    cr_assert_eq(j.n_got, 2);
    load(&g, &sets, 2, ON_NEW_WEIGHTS_CONTINUE);
    while (!j.n_ends)
        step(&g);
    cr_expect_eq(j.epochs[2], 2 | CB_EPOCH_ANEW);
    cr_expect_eq(j.epochs[3], 2);
    rig_fini(&g);
    rig_init(&alone, &sets, 12, 0, false, CONTEXT);
    replay(&alone, &sets, &j, set_of, &set, 0);
    rig_fini(&alone);
    sets_fini(&sets);
}

/* Preempted and computed again, piece by piece, by the weights it had: others come between two. */
Test(weights, who_stands_in_a_repetition_by_the_same_weights_begins_anew)
{
    struct job jobs[] = {{.n_prompt = 4, .n_new = NEW_MAX, .prompt = {5, 6, 7, 8}},
                         {.n_prompt = 4, .n_new = NEW_MAX, .prompt = {9, 10, 11, 12}}};
    static const uint8_t set_of[] = {0, 1};
    struct job *again = NULL;
    struct rig g, alone;
    struct sets sets;
    uint32_t set = 0;
    sets_init(&sets, true);
    rig_init(&g, &sets, 4, 0, false, 8); /* each of the two comes to three blocks */
    for (int i = 0; i < 2; i++)
        cr_assert(submit(&g, &jobs[i], 1, ON_NEW_WEIGHTS_DEFAULT));
    for (int n = 0; n < 300 && !again; n++) {
        step(&g);
        for (int i = 0; i < 2; i++) {
            struct request_info info = {.n_soft_resets = 0};
            if (jobs[i].r)
                engine_request_info(jobs[i].r, &info);
            if (info.n_soft_resets > 0 && info.n_cached > 0 &&
                info.n_cached + 1 < info.n_prompt + info.n_generated)
                again = &jobs[i];
        }
    }
    cr_assert(again, "nobody is computed again");
    uint32_t n_had = again->n_got;
    load(&g, &sets, 1, ON_NEW_WEIGHTS_CONTINUE);
    while (!jobs[0].n_ends || !jobs[1].n_ends)
        step(&g);
    cr_expect_eq(again->epochs[n_had - 1], 0);
    cr_expect_eq(again->epochs[n_had], 1 | CB_EPOCH_ANEW);
    rig_fini(&g);
    rig_init(&alone, &sets, 12, 0, false, CONTEXT);
    for (int i = 0; i < 2; i++)
        replay(&alone, &sets, &jobs[i], set_of, &set, 0);
    rig_fini(&alone);
    sets_fini(&sets);
}

/* A device's step is waited for: its tokens are of the weights that it began with. */
Test(weights, a_step_on_the_device_ends_first)
{
    struct job j = {.n_prompt = 3, .n_new = 4, .prompt = {5, 6, 7}};
    const struct engine_config config = {.max_requests = 1,
                                         .max_held_tokens = CONTEXT,
                                         .max_batch_tokens = 8,
                                         .max_requests_per_batch = 1};
    const struct engine_sink sink = {.token = on_token, .end = on_end};
    const struct model_config model = {.path = "null",
                                       .page_size = PAGE,
                                       .n_blocks = 4,
                                       .max_batch_tokens = 8,
                                       .max_batch_seqs = 1,
                                       .null_vocab = VOCAB,
                                       .null_context = CONTEXT,
                                       .null_step_us = 2000};
    char message[MODEL_MESSAGE_MAX];
    struct rig g;
    struct sets sets;
    sets_init(&sets, true);
    cr_assert_eq(model_open(&g.model, &model, message), 0, "%s", message);
    virtual_clock_init(&g.time, &g.clock);
    cr_assert_eq(engine_new(&g.engine, &config, g.model, &sink, &g.clock), 0);
    cr_assert(submit(&g, &j, 1, ON_NEW_WEIGHTS_DEFAULT));
    cr_assert_eq(engine_step(g.engine), ENGINE_RUNNING);
    load(&g, &sets, 1, ON_NEW_WEIGHTS_CONTINUE);
    cr_assert_eq(j.n_got, 1);
    while (!j.n_ends)
        engine_step(g.engine);
    cr_expect(j.epochs[0] == 0 && j.epochs[1] == 1 && j.epochs[3] == 1);
    rig_fini(&g);
    sets_fini(&sets);
}

/* What came back and ends before its next token is of the weights of those it came with. */
Test(weights, what_came_back_and_ends_at_once_is_of_the_present_weights)
{
    struct job jobs[2] = {{.prompt = {3, 4, 5}, .n_prompt = 3, .n_new = 1},
                          {.prompt = {3, 4, 5}, .n_prompt = 2, .n_given = 1, .n_new = 3}};
    struct rig g;
    struct sets sets;
    sets_init(&sets, true);
    rig_init(&g, &sets, 24, 0, true, 64);
    load(&g, &sets, 1, ON_NEW_WEIGHTS_FAIL);
    cr_assert(submit(&g, &jobs[0], 1, ON_NEW_WEIGHTS_DEFAULT)); /* its step begins the epoch */
    while (!jobs[0].n_ends)
        step(&g);
    cr_assert(submit(&g, &jobs[1], 1, ON_NEW_WEIGHTS_DEFAULT));
    engine_cancel(g.engine, jobs[1].r);
    while (!jobs[1].n_ends)
        step(&g);
    cr_expect(jobs[1].n_got == 0 && jobs[1].end.weight_epoch == 1);
    rig_fini(&g);
    sets_fini(&sets);
}

/* What is refused changes nothing: not even who finds whose blocks. */
Test(weights, what_is_refused_is_as_if_it_had_not_come)
{
    struct job jobs[2] = {{.n_prompt = 2 * PAGE + 1, .n_new = 1},
                          {.n_prompt = 2 * PAGE + 1, .n_new = 1}};
    char path[MEMORY_FILE_PATH_MAX], message[MODEL_MESSAGE_MAX];
    struct engine_stats stats;
    struct rig g;
    struct sets sets;
    int fd = memory_file("null weights", 12, path);
    sets_init(&sets, true);
    rig_init(&g, &sets, 24, 0, true, 64);
    for (int i = 0; i < 2; i++) {
        cr_assert(submit(&g, &jobs[i], 1, ON_NEW_WEIGHTS_DEFAULT));
        while (!jobs[i].n_ends)
            step(&g);
        cr_expect_eq(engine_load_begin(g.engine, fd, "weights", message), -EINVAL);
    }
    engine_stats(g.engine, &stats);
    cr_expect_eq(stats.weight_epoch, 0);
    cr_expect_eq(jobs[1].end.n_prefix_hit, 2 * PAGE);
    load(&g, &sets, 0, ON_NEW_WEIGHTS_FAIL); /* the same: but who knows that? */
    jobs[1] = (struct job){.n_prompt = 2 * PAGE + 1, .n_new = 1};
    cr_assert(submit(&g, &jobs[1], 1, ON_NEW_WEIGHTS_DEFAULT));
    while (!jobs[1].n_ends)
        step(&g);
    cr_expect_eq(jobs[1].end.n_prefix_hit, 0);
    cr_expect_eq(jobs[1].end.weight_epoch, 1);
    rig_fini(&g);
    sets_fini(&sets);
    close(fd);
}
