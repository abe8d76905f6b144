/* Log-probabilities on their way through the engine: each of a prompt's once, in order, before the
 * first token, however the prompt is cut and whatever happens meanwhile. */
#include <criterion/criterion.h>
#include <string.h>

#include "daemon/base/clock.h"
#include "daemon/engine.h"
#include "daemon/sched/batch.h"
#include "shm/status.h"
#include "tests/fake_model.h"

enum { TOKENS_MAX = 128, JOBS_MAX = 16, VOCAB = 512, CONTEXT = 128, PAGE = 4 };

struct job {
    uint32_t prompt[TOKENS_MAX];
    struct sampler_wishes wishes;
    struct request_spec spec;
    struct request *r; /* NULL: ended */
    uint32_t n_scored; /* the next index of the prompt that is due */
    float scores[TOKENS_MAX], logprobs[TOKENS_MAX];
    uint32_t n_logprobs, n_got, n_ends;
    struct request_end end;
};

struct rig {
    struct model *model;
    struct engine *engine;
    struct virtual_clock time;
    struct clock clock;
};

static void on_logprobs(void *ctx, struct request *r, void *owner, bool of_prompt, uint32_t index,
                        const struct engine_logprobs *l)
{
    struct job *j = owner;
    (void)ctx;
    cr_assert_eq(r, j->r);
    cr_assert_eq(l->n_best, j->wishes.logprobs ? j->wishes.n_best : 0);
    if (of_prompt) {
        cr_assert_eq(index, j->n_scored, "index %u where %u was due", index, j->n_scored);
        cr_assert_eq(j->n_got, 0, "after a token");
        j->scores[j->n_scored++] = l->logprob;
    } else {
        cr_assert(index == j->n_logprobs && index == j->n_got, "before its token");
        j->logprobs[j->n_logprobs++] = l->logprob;
    }
}

static void on_token(void *ctx, struct request *r, void *owner, uint32_t index, uint32_t token,
                     uint64_t time_ns)
{
    struct job *j = owner;
    (void)ctx;
    (void)r;
    (void)token;
    (void)time_ns;
    cr_assert_eq(index, j->n_got++);
    cr_assert_eq(j->n_scored, j->wishes.prompt_logprobs ? j->spec.n_prompt : 1);
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

static void rig_engine(struct rig *g, uint32_t max_batch_tokens)
{
    const struct engine_config config = {.max_requests = JOBS_MAX,
                                         .max_held_tokens = JOBS_MAX * CONTEXT,
                                         .max_batch_tokens = max_batch_tokens,
                                         .max_requests_per_batch = JOBS_MAX,
                                         .safety_margin = 0,
                                         .allow_block_sharing = true};
    const struct engine_sink sink = {.logprobs = on_logprobs, .token = on_token, .end = on_end};
    virtual_clock_init(&g->time, &g->clock);
    cr_assert_eq(engine_new(&g->engine, &config, g->model, &sink, &g->clock), 0);
}

static void rig_init(struct rig *g, uint32_t max_batch_tokens, uint32_t n_blocks)
{
    char message[MODEL_MESSAGE_MAX];
    const struct model_config model = {.path = "null",
                                       .page_size = PAGE,
                                       .n_blocks = n_blocks,
                                       .max_batch_tokens = max_batch_tokens,
                                       .max_batch_seqs = JOBS_MAX,
                                       .null_vocab = VOCAB,
                                       .null_context = CONTEXT};
    cr_assert_eq(model_open(&g->model, &model, message), 0, "%s", message);
    rig_engine(g, max_batch_tokens);
}

static void rig_fini(struct rig *g)
{
    engine_free(g->engine);
    model_free(g->model);
}

static void job_init(struct job *j, uint32_t n_prompt, uint32_t n_new)
{
    memset(j, 0, sizeof *j);
    for (uint32_t i = 0; i < n_prompt; i++)
        j->prompt[i] = 1 + i;
    sampler_wishes_init(&j->wishes);
    j->wishes.prompt_logprobs = true;
    j->n_scored = 1;
    j->spec = (struct request_spec){.prompt = j->prompt,
                                    .n_prompt = n_prompt,
                                    .max_new_tokens = n_new,
                                    .ignore_eos = true,
                                    .top_p = 1,
                                    .wishes = &j->wishes,
                                    .owner = j};
}

static void submit(struct rig *g, struct job *j)
{
    cr_assert_eq(engine_submit(g->engine, &j->spec, &j->r), 0);
}

static struct engine_stats run_dry(struct rig *g)
{
    struct engine_stats stats;
    const char *why = "";
    for (int i = 0; engine_step(g->engine) != ENGINE_IDLE; i++) {
        cr_assert_lt(i, 10000);
        cr_assert_eq(engine_check(g->engine, &why), 0, "%s", why);
    }
    engine_stats(g->engine, &stats);
    return stats;
}

static void expect_same(const struct job *a, const struct job *b)
{
    cr_expect_eq(a->n_scored, a->spec.n_prompt);
    cr_expect_eq(b->n_scored, b->spec.n_prompt);
    cr_expect_eq(memcmp(a->scores, b->scores, sizeof a->scores), 0);
}

Test(scores, chunks_of_any_size_tell_the_same)
{
    static struct job whole, cut;
    struct rig g;
    rig_init(&g, CONTEXT, 64);
    job_init(&whole, 50, 3);
    whole.wishes.logprobs = SAMPLE_PROCESSED;
    whole.wishes.n_best = 4;
    submit(&g, &whole);
    run_dry(&g);
    rig_fini(&g);
    cr_expect_eq(whole.n_logprobs, 3);
    for (uint32_t n = 1; n < 60; n += 7) {
        rig_init(&g, n, 64);
        job_init(&cut, 50, 3);
        cut.wishes = whole.wishes;
        submit(&g, &cut);
        run_dry(&g);
        rig_fini(&g);
        expect_same(&cut, &whole);
        cr_expect_eq(memcmp(cut.logprobs, whole.logprobs, sizeof cut.logprobs), 0);
    }
}

/* A hit would leave nothing to score; but who comes later may hit what was computed. */
Test(scores, a_prompt_in_the_cache_is_computed_again)
{
    static struct job first, again, plain;
    struct rig g;
    rig_init(&g, CONTEXT, 64);
    job_init(&first, 33, 2);
    submit(&g, &first);
    run_dry(&g);
    job_init(&again, 33, 2);
    submit(&g, &again);
    run_dry(&g);
    expect_same(&again, &first);
    cr_expect_eq(again.end.n_prefix_hit, 0);
    job_init(&plain, 33, 2);
    plain.wishes.prompt_logprobs = false;
    submit(&g, &plain);
    run_dry(&g);
    cr_expect_eq(plain.end.n_prefix_hit, 32);
    rig_fini(&g);
}

Test(scores, without_a_token_it_ends_when_all_are_told)
{
    static struct job j, one, none;
    struct rig g;
    rig_init(&g, 8, 64);
    job_init(&j, 30, 0);
    job_init(&one, 1, 0);
    job_init(&none, 30, 0);
    none.wishes.prompt_logprobs = false;
    submit(&g, &j);
    submit(&g, &one);
    submit(&g, &none);
    run_dry(&g);
    cr_expect(j.end.finish == FINISH_LENGTH && j.n_scored == 30 && j.n_got == 0);
    cr_expect(one.end.finish == FINISH_LENGTH, "there is nothing to score");
    cr_expect(none.end.finish == FINISH_LENGTH && none.n_scored == 1);
    rig_fini(&g);
}

Test(scores, a_soft_reset_goes_on_where_it_stood)
{
    static struct job jobs[6], alone[6];
    struct engine_stats stats;
    struct rig g;
    rig_init(&g, CONTEXT, 64);
    for (uint32_t i = 0; i < 6; i++) {
        job_init(&alone[i], 40, 20);
        alone[i].prompt[0] = 100 + i;
        submit(&g, &alone[i]);
        run_dry(&g);
    }
    rig_fini(&g);
    /* Room for two of them and a half. */
    rig_init(&g, 16, 40);
    for (uint32_t i = 0; i < 6; i++) {
        job_init(&jobs[i], 40, 20);
        jobs[i].prompt[0] = 100 + i;
        submit(&g, &jobs[i]);
    }
    stats = run_dry(&g);
    cr_expect_gt(stats.n_soft_resets, 0);
    for (int i = 0; i < 6; i++)
        expect_same(&jobs[i], &alone[i]);
    rig_fini(&g);
}

Test(scores, each_continuation_of_a_prompt_is_told_its_own)
{
    static struct job jobs[3];
    struct request *requests[3];
    void *owners[3];
    struct rig g;
    rig_init(&g, CONTEXT, 64);
    for (int i = 0; i < 3; i++) {
        job_init(&jobs[i], 30, 4);
        owners[i] = &jobs[i];
    }
    cr_assert_eq(engine_submit_many(g.engine, &jobs[0].spec, 3, owners, requests), 0);
    for (int i = 0; i < 3; i++)
        jobs[i].r = requests[i];
    run_dry(&g);
    for (int i = 0; i < 3; i++) {
        expect_same(&jobs[i], &jobs[0]);
        cr_expect_eq(jobs[i].n_got, 4);
    }
    rig_fini(&g);
}

/* ---- rows that make no sense ----------------------------------------------------------------- */

struct script {
    struct rig rig;
    struct fake_model *fake;
    int32_t bad_token; /* what follows it is not finite, */
    uint32_t n_bad;    /* so many times                  */
    bool nothing_left;
};

static int script_run(void *ctx, const struct step *step, const struct sample_params *params,
                      struct sample *samples)
{
    struct script *s = ctx;
    for (uint32_t i = 0; i < step->n_outputs; i++) {
        bool is_bad = step->tokens[step->output_token_idx[i]] == s->bad_token && s->n_bad;
        s->n_bad -= is_bad;
        samples[i] = (struct sample){.token = params[i].is_given ? params[i].given_id : 7,
                                     .not_finite = is_bad,
                                     .nothing_left = s->nothing_left,
                                     .logprob = -1};
    }
    return 0;
}

static void script_init(struct script *s)
{
    memset(s, 0, sizeof *s);
    s->fake = fake_model_new(VOCAB, 64, PAGE, CONTEXT);
    cr_assert_not_null(s->fake);
    s->fake->ctx = s;
    s->fake->run = script_run;
    s->bad_token = -1;
    s->rig.model = &s->fake->model;
    rig_engine(&s->rig, 8);
}

/* Computed once more, from the start, it goes on being told from where it stood. */
Test(scores, a_row_that_is_not_finite_once_is_told_in_the_end)
{
    static struct script s;
    static struct job j;
    script_init(&s);
    s.bad_token = 12;
    s.n_bad = 1;
    job_init(&j, 20, 2);
    submit(&s.rig, &j);
    run_dry(&s.rig);
    cr_expect(j.end.finish == FINISH_LENGTH && j.n_scored == 20 && j.n_got == 2);
    rig_fini(&s.rig);
}

Test(scores, a_row_that_is_not_finite_twice_fails_its_request_alone)
{
    static struct script s;
    static struct job j, other;
    script_init(&s);
    s.bad_token = 12;
    s.n_bad = UINT32_MAX;
    job_init(&j, 20, 2);
    job_init(&other, 10, 2);
    submit(&s.rig, &j);
    submit(&s.rig, &other);
    run_dry(&s.rig);
    cr_expect(j.end.finish == FINISH_ERROR && j.end.error == CB_NOT_FINITE && j.n_got == 0);
    cr_expect(other.end.finish == FINISH_LENGTH && other.n_scored == 10);
    rig_fini(&s.rig);
}

/* That is no fault of the machine: it is not tried again. */
Test(scores, who_has_nothing_left_to_choose_ends_with_that)
{
    static struct script s;
    static struct job j;
    script_init(&s);
    job_init(&j, 5, 3);
    j.wishes.prompt_logprobs = false;
    submit(&s.rig, &j);
    engine_step(s.rig.engine);
    cr_assert_eq(j.n_got, 1);
    s.nothing_left = true;
    engine_step(s.rig.engine);
    cr_expect(j.end.finish == FINISH_ERROR && j.end.error == CB_NOTHING_LEFT);
    rig_fini(&s.rig);
}
