/* Requests that begin alike, over a scripted model whose keys and values can go bad: who shares
 * what, what is computed how often, and that one's misfortune is never another's. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/clock.h"
#include "daemon/engine.h"
#include "daemon/sched/batch.h"
#include "shm/status.h"
#include "tests/daemon/job.h"
#include "tests/fake_model.h"

enum { PAGE = 4, N_BLOCKS = 64, VOCAB = 512, CONTEXT = 200, SEQS_MAX = 16 };

#define SEED UINT64_C(17)
#define BAD  UINT64_C(1) /* a value that spoils all that is computed from it */

struct rig {
    struct fake_model *fake;
    struct engine *engine;
    struct virtual_clock time;
    struct clock clock;
    uint64_t kv[N_BLOCKS * PAGE]; /* the hash up to and with that position */
    uint32_t n_steps;
    uint32_t fail_step, spoil_step; /* from 1: it fails; it computes nonsense for spoil_seq */
    uint32_t spoil_seq;
    bool spoils_always;      /* whoever has id 500 in what is computed  */
    uint32_t no_memory_from; /* blocks from here on can't be populated  */
    struct job *cancel_in_look;
};

/* ---- the model ------------------------------------------------------------------------------- */

static size_t place_of(const struct step *s, uint32_t seq, uint32_t p)
{
    return (size_t)s->table[s->table_off[seq] + p / PAGE] * PAGE + p % PAGE;
}

static bool compute_seq(struct rig *g, const struct step *s, uint32_t seq)
{
    uint32_t t = s->token_off[seq], past = (uint32_t)s->positions[t];
    uint64_t hash = past > 0 ? g->kv[place_of(s, seq, past - 1)] : SEED;
    if (hash == 0)
        return false;
    for (; t < s->token_off[seq + 1]; t++) {
        bool spoilt = (g->n_steps == g->spoil_step && seq == g->spoil_seq) ||
                      (g->spoils_always && s->tokens[t] == 500);
        cr_assert_eq(g->kv[s->slot_idx[t]], 0, "a place is written twice");
        hash = hash == BAD || spoilt ? BAD : (hash * 31 + (uint64_t)s->tokens[t] + 7) | 2;
        g->kv[s->slot_idx[t]] = hash;
    }
    return true;
}

static int model_run(void *ctx, const struct step *s, const struct sample_params *params,
                     struct sample *samples)
{
    struct rig *g = ctx;
    bool done[SEQS_MAX] = {false};
    (void)params;
    g->n_steps++;
    if (g->n_steps == g->fail_step)
        return -EIO;
    for (uint32_t round = 0; round < s->n_seqs; round++)
        for (uint32_t i = 0; i < s->n_seqs; i++)
            done[i] = done[i] || compute_seq(g, s, i);
    for (uint32_t i = 0; i < s->n_seqs; i++)
        cr_assert(done[i], "a sequence goes on from what nobody computed");
    for (uint32_t i = 0; i < s->n_outputs; i++) {
        uint64_t hash = g->kv[s->slot_idx[s->output_token_idx[i]]];
        samples[i] =
            (struct sample){.token = (uint32_t)(hash >> 8) % 499, .not_finite = hash == BAD};
    }
    return 0;
}

static int model_prepare(void *ctx, uint32_t block_idx, bool clear)
{
    struct rig *g = ctx;
    if (clear)
        memset(&g->kv[block_idx * PAGE], 0, PAGE * sizeof *g->kv);
    return block_idx >= g->no_memory_from ? -ENOMEM : 0;
}

static int model_copy(void *ctx, uint32_t group, uint32_t from_idx, uint32_t to_idx)
{
    struct rig *g = ctx;
    (void)group;
    cr_assert_lt(to_idx, g->no_memory_from);
    memcpy(&g->kv[to_idx * PAGE], &g->kv[from_idx * PAGE], PAGE * sizeof *g->kv);
    return 0;
}

/* ---- the sink -------------------------------------------------------------------------------- */

static void on_look(void *ctx)
{
    struct rig *g = ctx;
    if (g->fake->step && g->cancel_in_look && g->cancel_in_look->r)
        engine_cancel(g->engine, g->cancel_in_look->r);
}

/* ---- the rig --------------------------------------------------------------------------------- */

static void rig_init(struct rig *g, uint32_t max_batch_tokens, uint32_t n_blocks)
{
    const struct engine_config config = {.max_requests = 32,
                                         .max_held_tokens = 32 * CONTEXT,
                                         .max_batch_tokens = max_batch_tokens,
                                         .max_requests_per_batch = SEQS_MAX,
                                         .safety_margin = 0,
                                         .allow_block_sharing = true};
    memset(g, 0, sizeof *g);
    const struct engine_sink sink = {.ctx = g, .look = on_look, .token = job_token, .end = job_end};
    g->no_memory_from = UINT32_MAX;
    g->fake = fake_model_new(VOCAB, n_blocks, PAGE, CONTEXT);
    cr_assert_not_null(g->fake);
    g->fake->ctx = g;
    g->fake->run = model_run;
    g->fake->prepare = model_prepare;
    g->fake->copy = model_copy;
    virtual_clock_init(&g->time, &g->clock);
    cr_assert_eq(engine_new(&g->engine, &config, &g->fake->model, &sink, &g->clock), 0);
}

static struct engine_stats stats_of(const struct rig *g)
{
    struct engine_stats stats;
    engine_stats(g->engine, &stats);
    return stats;
}

static void rig_fini(struct rig *g)
{
    struct engine_stats stats = stats_of(g);
    cr_assert_eq(stats.n_active + stats.n_waiting, 0);
    cr_assert_eq(stats.n_free_blocks, stats.n_blocks, "blocks are lost");
    engine_free(g->engine);
    model_free(&g->fake->model);
}

static void submit(struct rig *g, struct job *j)
{
    j->spec.prompt = j->prompt;
    j->spec.n_prompt = j->n_prompt;
    j->spec.top_p = 1;
    j->spec.ignore_eos = true;
    j->spec.owner = j;
    j->n_got = j->n_ends = 0;
    cr_assert_eq(engine_submit(g->engine, &j->spec, &j->r), 0);
}

static void step(struct rig *g)
{
    const char *why = "";
    engine_step(g->engine);
    cr_assert_eq(engine_check(g->engine, &why), 0, "%s", why);
}

static void run_dry(struct rig *g)
{
    for (int i = 0; stats_of(g).n_active + stats_of(g).n_waiting > 0; i++) {
        cr_assert_lt(i, 10000);
        step(g);
    }
}

/* ids 0, 3, 6, ... of which the last n_own are its own. */
static struct job job_of(uint32_t n_prompt, uint32_t n_own, uint32_t own)
{
    struct job j = {.n_prompt = n_prompt, .spec = {.max_new_tokens = 12}};
    for (uint32_t i = 0; i < n_prompt; i++)
        j.prompt[i] = i * 3 + (i >= n_prompt - n_own ? own : 0);
    return j;
}

static void check_against_alone(const struct job *j)
{
    static struct rig alone;
    static struct job a;
    a = *j;
    rig_init(&alone, 64, N_BLOCKS);
    submit(&alone, &a);
    run_dry(&alone);
    cr_assert_eq(j->end.finish, a.end.finish);
    cr_assert_eq(j->n_got, a.n_got);
    cr_assert_arr_eq(j->got, a.got, a.n_got * sizeof *a.got);
    rig_fini(&alone);
}

/* ---- what is shared -------------------------------------------------------------------------- */

Test(sharing, equal_prompts_that_come_together_are_computed_once)
{
    static struct rig g;
    static struct job j[4];
    rig_init(&g, 128, N_BLOCKS);
    for (uint32_t i = 0; i < 4; i++) {
        j[i] = job_of(42, 0, 0);
        submit(&g, &j[i]);
    }
    step(&g);
    cr_assert_eq(engine_batch(g.engine)->n_entries, 4);
    cr_assert_eq(engine_batch(g.engine)->n_tokens, 42 + 3 * 2);
    for (uint32_t i = 0; i < 4; i++)
        cr_assert_eq(j[i].n_got, 1);
    run_dry(&g);
    for (uint32_t i = 0; i < 4; i++) {
        cr_assert_eq(j[i].end.n_prefix_hit, i ? 40 : 0);
        check_against_alone(&j[i]);
    }
    rig_fini(&g);
}

Test(sharing, a_prompt_in_chunks_is_computed_once_for_all_who_wait_behind_it)
{
    static struct rig g;
    static struct job j[3];
    rig_init(&g, 16, N_BLOCKS);
    for (uint32_t i = 0; i < 3; i++) {
        j[i] = job_of(70 + 2 * i, 2 + 2 * i, i);
        submit(&g, &j[i]);
    }
    run_dry(&g);
    cr_assert_eq(stats_of(&g).n_prefill_tokens, 70 + (72 - 68) + (74 - 68));
    for (uint32_t i = 0; i < 3; i++)
        check_against_alone(&j[i]);
    rig_fini(&g);
}

/* A prompt of exactly whole blocks, twice: one token is computed, and the result is the same. */
Test(sharing, the_last_token_is_computed_even_if_all_blocks_are_there)
{
    static struct rig g;
    static struct job j[2];
    rig_init(&g, 64, N_BLOCKS);
    for (int i = 0; i < 2; i++) {
        j[i] = job_of(3 * PAGE, 0, 0);
        submit(&g, &j[i]);
        run_dry(&g);
    }
    cr_assert_eq(j[1].end.n_prefix_hit, 2 * PAGE);
    cr_assert_arr_eq(j[0].got, j[1].got, 12 * sizeof(uint32_t));
    rig_fini(&g);
}

Test(sharing, a_hit_and_a_miss_in_one_step_are_both_as_alone)
{
    static struct rig g;
    static struct job first, hit, miss;
    rig_init(&g, 128, N_BLOCKS);
    first = job_of(41, 0, 0);
    submit(&g, &first);
    run_dry(&g);
    hit = job_of(50, 9, 5);
    miss = job_of(45, 45, 200);
    submit(&g, &miss);
    submit(&g, &hit);
    step(&g);
    cr_assert_eq(engine_batch(g.engine)->n_entries, 2);
    run_dry(&g);
    cr_assert_eq(hit.end.n_prefix_hit, 40);
    cr_assert_eq(miss.end.n_prefix_hit, 0);
    check_against_alone(&hit);
    check_against_alone(&miss);
    rig_fini(&g);
}

/* The blocks of the step with which a request ends, and those of what it generated, are found. */
Test(sharing, the_next_turn_finds_the_answer_before_it)
{
    static struct rig g;
    static struct job turn[2];
    rig_init(&g, 64, N_BLOCKS);
    turn[0] = job_of(10, 0, 0);
    turn[0].spec.max_new_tokens = 7;
    submit(&g, &turn[0]);
    run_dry(&g);
    turn[1] = turn[0];
    memcpy(turn[1].prompt + 10, turn[0].got, 7 * sizeof(uint32_t));
    for (uint32_t i = 17; i < 22; i++)
        turn[1].prompt[i] = i;
    turn[1].n_prompt = 22;
    submit(&g, &turn[1]);
    run_dry(&g);
    cr_assert_eq(turn[1].end.n_prefix_hit, 16); /* the 17th was never computed */
    check_against_alone(&turn[1]);
    rig_fini(&g);
}

Test(sharing, users_share_only_what_both_salt_alike)
{
    static struct rig g;
    static struct job j[5];
    static const struct {
        uint32_t uid;
        const char *salt;
        uint32_t hit;
    } of[5] = {{1, NULL, 0}, {2, NULL, 0}, {1, NULL, 40}, {1, "s", 0}, {2, "s", 40}};
    rig_init(&g, 64, N_BLOCKS);
    for (int i = 0; i < 5; i++) {
        j[i] = job_of(41, 0, 0);
        j[i].spec.uid = of[i].uid;
        j[i].spec.cache_salt = of[i].salt;
        j[i].spec.n_cache_salt = of[i].salt ? 1 : 0;
        submit(&g, &j[i]);
        run_dry(&g);
        cr_assert_eq(j[i].end.n_prefix_hit, of[i].hit, "request %d", i);
        check_against_alone(&j[i]);
    }
    rig_fini(&g);
}

/* Together they would fill the cache four times; apart they hold one copy. */
Test(sharing, many_that_share_fit_where_alone_they_would_not)
{
    static struct rig g;
    static struct job j[8];
    rig_init(&g, 64, 8 + 8 * 4);
    for (uint32_t i = 0; i < 8; i++) {
        j[i] = job_of(34, 2, i);
        submit(&g, &j[i]);
    }
    run_dry(&g);
    cr_assert_eq(stats_of(&g).n_soft_resets, 0);
    for (uint32_t i = 0; i < 8; i++)
        check_against_alone(&j[i]);
    rig_fini(&g);
}

/* ---- misfortune ------------------------------------------------------------------------------ */

Test(sharing, who_shares_with_a_cancelled_request_goes_on)
{
    for (uint32_t at = 0; at < 6; at++) {
        static struct rig g;
        static struct job j[2];
        rig_init(&g, 16, N_BLOCKS);
        for (uint32_t i = 0; i < 2; i++) {
            j[i] = job_of(50, 3, i);
            submit(&g, &j[i]);
        }
        for (uint32_t i = 0; i < at; i++)
            step(&g);
        engine_cancel(g.engine, j[0].r);
        run_dry(&g);
        cr_assert_eq(j[0].end.finish, FINISH_CANCELLED);
        check_against_alone(&j[1]);
        /* What was computed until then was not lost. */
        cr_assert_eq(j[1].end.n_prefix_hit, at == 0 ? 0 : at < 3 ? at * 16 : 44);
        rig_fini(&g);
    }
}

/* Its end is decided while both are on the device. */
Test(sharing, who_shares_with_one_cancelled_in_flight_goes_on)
{
    static struct rig g;
    static struct job j[2];
    rig_init(&g, 128, N_BLOCKS);
    g.fake->polls_needed = 1;
    for (uint32_t i = 0; i < 2; i++) {
        j[i] = job_of(50, 3, i);
        submit(&g, &j[i]);
    }
    cr_assert_eq(engine_step(g.engine), ENGINE_RUNNING);
    g.cancel_in_look = &j[0];
    run_dry(&g);
    cr_assert_eq(j[0].end.finish, FINISH_CANCELLED);
    cr_assert_eq(j[0].n_got, 0);
    check_against_alone(&j[1]);
    rig_fini(&g);
}

Test(sharing, a_fault_of_one_step_is_computed_over_and_seen_by_nobody)
{
    for (uint32_t seq = 0; seq < 3; seq++)
        for (uint32_t at = 1; at < 9; at++) {
            static struct rig g;
            static struct job j[3];
            rig_init(&g, 24, N_BLOCKS);
            for (uint32_t i = 0; i < 3; i++) {
                j[i] = job_of(50, 3, i);
                submit(&g, &j[i]);
            }
            g.spoil_step = at;
            g.spoil_seq = seq;
            run_dry(&g);
            for (uint32_t i = 0; i < 3; i++) {
                cr_assert_eq(j[i].end.finish, FINISH_LENGTH, "request %u: %d", i, j[i].end.error);
                check_against_alone(&j[i]);
            }
            rig_fini(&g);
        }
}

Test(sharing, who_is_never_finite_fails_alone_and_leaves_nothing)
{
    static struct rig g;
    static struct job bad, good[3], later;
    rig_init(&g, 128, N_BLOCKS);
    bad = job_of(50, 3, 0);
    bad.prompt[48] = 500;
    good[0] = job_of(50, 3, 1);
    good[1] = job_of(30, 0, 0);
    good[2] = job_of(30, 30, 9);
    g.spoils_always = true;
    submit(&g, &bad);
    for (int i = 0; i < 3; i++)
        submit(&g, &good[i]);
    run_dry(&g);
    cr_assert_eq(bad.end.finish, FINISH_ERROR);
    cr_assert_eq(bad.end.error, CB_NOT_FINITE);
    cr_assert_eq(bad.n_got, 0);
    for (int i = 0; i < 3; i++)
        check_against_alone(&good[i]);
    /* The machine is repaired: the same prompt is now right, and finds nothing of the bad one's. */
    g.spoils_always = false;
    later = job_of(56, 9, 0);
    memcpy(later.prompt, bad.prompt, 50 * sizeof(uint32_t));
    submit(&g, &later);
    run_dry(&g);
    cr_assert_leq(later.end.n_prefix_hit, 44);
    check_against_alone(&later);
    rig_fini(&g);
}

Test(sharing, what_a_failed_step_was_to_compute_is_not_found)
{
    for (uint32_t at = 1; at < 5; at++) {
        static struct rig g;
        static struct job j, again;
        rig_init(&g, 16, N_BLOCKS);
        j = job_of(50, 0, 0);
        submit(&g, &j);
        g.fail_step = at;
        run_dry(&g);
        cr_assert_eq(j.end.finish, FINISH_ERROR);
        again = j;
        submit(&g, &again);
        run_dry(&g);
        cr_assert_eq(again.end.n_prefix_hit, 0);
        check_against_alone(&again);
        rig_fini(&g);
    }
}

/* It was cancelled, so it does not end with an error; but its step failed. */
Test(sharing, what_a_failed_step_was_to_compute_for_a_cancelled_request_is_not_found)
{
    static struct rig g;
    static struct job j, again;
    rig_init(&g, 64, N_BLOCKS);
    g.fake->polls_needed = 1;
    j = job_of(50, 0, 0);
    submit(&g, &j);
    g.fail_step = 1;
    cr_assert_eq(engine_step(g.engine), ENGINE_RUNNING);
    g.cancel_in_look = &j;
    run_dry(&g);
    cr_assert_eq(j.end.finish, FINISH_CANCELLED);
    again = job_of(50, 0, 0);
    g.cancel_in_look = NULL;
    submit(&g, &again);
    run_dry(&g);
    cr_assert_eq(again.end.n_prefix_hit, 0);
    check_against_alone(&again);
    rig_fini(&g);
}

/* The first can't have its last block; who took over its others in that step computes them. */
Test(sharing, who_shares_with_one_without_memory_goes_on)
{
    static struct rig g;
    static struct job j[3];
    rig_init(&g, 128, N_BLOCKS);
    g.no_memory_from = 12;
    j[0] = job_of(50, 3, 0);
    j[1] = job_of(30, 0, 0);
    j[2] = job_of(28, 0, 0);
    for (int i = 0; i < 3; i++) {
        j[i].spec.max_new_tokens = 3;
        submit(&g, &j[i]);
    }
    run_dry(&g);
    cr_assert_eq(j[0].end.finish, FINISH_ERROR);
    cr_assert_eq(j[0].end.error, CB_NO_MEMORY);
    check_against_alone(&j[1]);
    check_against_alone(&j[2]);
    rig_fini(&g);
}

Test(sharing, a_continuation_without_memory_fails_alone)
{
    static struct rig g;
    static struct job j[3];
    void *owners[3] = {&j[0], &j[1], &j[2]};
    struct request *requests[3];
    rig_init(&g, 128, N_BLOCKS);
    g.no_memory_from = 9; /* eight for the prompt, one for a child's last block */
    for (int i = 0; i < 3; i++) {
        j[i] = job_of(31, 0, 0);
        j[i].spec = (struct request_spec){.prompt = j[i].prompt,
                                          .n_prompt = 31,
                                          .max_new_tokens = 2,
                                          .top_p = 1,
                                          .ignore_eos = true};
    }
    cr_assert_eq(engine_submit_many(g.engine, &j[0].spec, 3, owners, requests), 0);
    for (int i = 0; i < 3; i++)
        j[i].r = requests[i];
    run_dry(&g);
    check_against_alone(&j[0]);
    check_against_alone(&j[1]);
    cr_assert_eq(j[2].end.error, CB_NO_MEMORY);
    rig_fini(&g);
}

/* It fails in mid-prompt: what it had computed by then is right, but goes with it. */
Test(sharing, who_fails_in_mid_prompt_leaves_nothing)
{
    static struct rig g;
    static struct job j, again;
    rig_init(&g, 16, N_BLOCKS);
    j = job_of(50, 0, 0);
    g.no_memory_from = 6;
    submit(&g, &j);
    run_dry(&g);
    cr_assert_eq(j.end.error, CB_NO_MEMORY);
    cr_assert_gt(g.n_steps, 0);
    g.no_memory_from = UINT32_MAX;
    again = job_of(50, 0, 0);
    submit(&g, &again);
    run_dry(&g);
    cr_assert_eq(again.end.n_prefix_hit, 0);
    check_against_alone(&again);
    rig_fini(&g);
}

/* Soft resets among sharers: the room is too small for all to grow. */
Test(sharing, who_is_reset_finds_its_blocks_again)
{
    static struct rig g;
    static struct job j[4];
    rig_init(&g, 64, 18);
    for (uint32_t i = 0; i < 4; i++) {
        j[i] = job_of(20, 2, i);
        j[i].spec.max_new_tokens = 40;
        submit(&g, &j[i]);
    }
    run_dry(&g);
    struct engine_stats stats = stats_of(&g);
    cr_assert_gt(stats.n_soft_resets, 0);
    cr_assert_gt(stats.n_prefix_hits, 3);
    for (uint32_t i = 0; i < 4; i++)
        check_against_alone(&j[i]);
    rig_fini(&g);
}
