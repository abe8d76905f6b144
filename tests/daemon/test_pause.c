/* Requests that stand still: what they keep, what others may take from them, and that nobody is held
 * up for it. In the engine, where a word of the owner says so; in a lane, where the client does; and
 * in the whole daemon, where operators do. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/clock.h"
#include "daemon/engine.h"
#include "shm/doorbell.h"
#include "shm/message.h"
#include "tests/daemon/peer.h"

/* ---- in the engine --------------------------------------------------------------------------- */

enum { TOKENS_MAX = 64, N_JOBS = 4 };

struct job {
    uint32_t prompt[TOKENS_MAX], got[TOKENS_MAX], n_got, n_ends;
    enum finish finish;
    struct request *r;
    bool paused;
};

struct rig {
    struct model *model;
    struct engine *engine;
    struct virtual_clock time;
    struct clock clock;
    struct job jobs[N_JOBS];
};

static void on_token(void *ctx, struct request *r, void *owner, uint32_t index, uint32_t token,
                     uint64_t time_ns)
{
    struct job *j = owner;
    (void)ctx, (void)r, (void)time_ns;
    cr_assert(!j->paused, "a token of a paused request");
    cr_assert_eq(index, j->n_got);
    j->got[j->n_got++] = token;
}

static void on_end(void *ctx, struct request *r, void *owner, const struct request_end *end)
{
    struct job *j = owner;
    (void)ctx, (void)r;
    j->n_ends++;
    j->finish = end->finish;
    j->r = NULL;
}

/* A cache of n_blocks of 4 tokens, shared by nobody. */
static struct rig *rig_new(uint32_t n_blocks, double safety_margin)
{
    static const struct engine_sink sink = {.token = on_token, .end = on_end};
    char message[MODEL_MESSAGE_MAX];
    struct rig *g = calloc(1, sizeof *g);
    const struct model_config model = {.path = "null",
                                       .page_size = 4,
                                       .n_blocks = n_blocks,
                                       .max_batch_tokens = 64,
                                       .max_batch_seqs = 8,
                                       .null_vocab = 512,
                                       .null_context = TOKENS_MAX};
    const struct engine_config config = {.max_requests = N_JOBS,
                                         .max_held_tokens = 1024,
                                         .max_batch_tokens = 64,
                                         .max_requests_per_batch = 8,
                                         .safety_margin = safety_margin};
    virtual_clock_init(&g->time, &g->clock);
    cr_assert_eq(model_open(&g->model, &model, message), 0, "%s", message);
    cr_assert_eq(engine_new(&g->engine, &config, g->model, &sink, &g->clock), 0);
    return g;
}

static struct job *add(struct rig *g, uint32_t idx, uint32_t n_prompt, uint32_t n_new)
{
    struct job *j = &g->jobs[idx];
    for (uint32_t i = 0; i < n_prompt; i++)
        j->prompt[i] = 1 + idx + 7 * i;
    const struct request_spec spec = {.prompt = j->prompt,
                                      .n_prompt = n_prompt,
                                      .max_new_tokens = n_new,
                                      .ignore_eos = true,
                                      .top_p = 1,
                                      .paused = &j->paused,
                                      .owner = j};
    cr_assert_eq(engine_submit(g->engine, &spec, &j->r), 0);
    return j;
}

static int steps(struct rig *g, int n)
{
    const char *why = "";
    int r = 0;
    for (int i = 0; i < n; i++) {
        g->time.now_ns += 1000000;
        r = engine_step(g->engine);
        cr_assert_eq(engine_check(g->engine, &why), 0, "%s", why);
    }
    return r;
}

static struct engine_stats stats_of(const struct rig *g)
{
    struct engine_stats stats;
    engine_stats(g->engine, &stats);
    return stats;
}

/* Runs what is left; each job has what one that was never paused gets. */
static void finish(struct rig *g)
{
    for (int i = 0; i < N_JOBS; i++)
        g->jobs[i].paused = false;
    cr_assert_eq(steps(g, 500), ENGINE_IDLE);
    cr_assert_eq(stats_of(g).n_free_blocks, stats_of(g).n_blocks);
    for (uint32_t i = 0; i < N_JOBS; i++) {
        const struct job *j = &g->jobs[i];
        uint32_t n_prompt = 0;
        while (j->prompt[n_prompt])
            n_prompt++;
        if (j->n_ends == 0 || j->finish != FINISH_LENGTH)
            continue;
        struct rig *alone = rig_new(16, 0);
        struct job *same = add(alone, i, n_prompt, j->n_got);
        steps(alone, 100);
        cr_assert_eq(same->n_got, j->n_got);
        cr_assert_arr_eq(same->got, j->got, sizeof j->got);
        engine_free(alone->engine);
        model_free(alone->model);
        free(alone);
    }
    engine_free(g->engine);
    model_free(g->model);
    free(g);
}

Test(paused, requests_keep_their_blocks_and_wait)
{
    struct rig *g = rig_new(16, 0);
    struct job *a = add(g, 0, 8, 20), *b = add(g, 1, 8, 20);
    steps(g, 5);
    a->paused = true;
    uint32_t n_got = a->n_got, n_free = stats_of(g).n_free_blocks;
    cr_assert_eq(steps(g, 3), 0);
    cr_assert_eq(a->n_got, n_got);
    cr_assert_eq(b->n_got, n_got + 3);
    b->paused = true;
    cr_assert_eq(steps(g, 10), ENGINE_IDLE);
    cr_assert_geq(n_free, stats_of(g).n_free_blocks);
    uint64_t n_steps = stats_of(g).n_steps;
    steps(g, 5);
    cr_assert_eq(stats_of(g).n_steps, n_steps);
    a->paused = b->paused = false;
    finish(g);
}

Test(paused, requests_give_way_to_who_waits_for_room)
{
    struct rig *g = rig_new(8, 0);
    struct job *a = add(g, 0, 16, 12), *b;
    steps(g, 4);
    a->paused = true;
    b = add(g, 1, 16, 8); /* 4 to 6 blocks, of which 3 are free */
    steps(g, 20);
    cr_assert_eq(b->n_ends, 1);
    cr_assert_eq(a->n_ends, 0);
    cr_assert_eq(stats_of(g).n_soft_resets, 1);
    finish(g);
}

Test(paused, requests_give_way_to_who_grows_before_anybody_else_does)
{
    struct rig *g = rig_new(12, 0);
    struct job *a = add(g, 0, 15, 12), *b = add(g, 1, 11, 12), *c = add(g, 2, 11, 12);
    steps(g, 2);
    a->paused = true; /* the oldest, whom a shortage would spare */
    steps(g, 20);
    struct request_info info;
    engine_request_info(a->r, &info);
    cr_assert_eq(info.n_soft_resets, 1);
    cr_assert(b->n_ends == 1 && c->n_ends == 1);
    cr_assert_eq(stats_of(g).n_soft_resets, 1);
    finish(g);
}

/* One that was reset waits until a running one ends; if those that run are paused, nobody does. */
Test(paused, requests_do_not_keep_the_door_shut)
{
    struct rig *g = rig_new(8, 0);
    struct job *a = add(g, 0, 8, 20), *b = add(g, 1, 8, 20);
    while (stats_of(g).n_soft_resets == 0)
        steps(g, 1);
    struct job *waits = NULL, *runs = NULL;
    for (int i = 0; i < 2; i++) {
        struct request_info info;
        engine_request_info(g->jobs[i].r, &info);
        *(info.phase == REQUEST_WAITING ? &waits : &runs) = &g->jobs[i];
    }
    cr_assert(waits && runs);
    runs->paused = true;
    uint32_t n_got = waits->n_got;
    steps(g, 3);
    cr_assert_gt(waits->n_got, n_got);
    steps(g, 60);
    cr_assert_eq(waits->n_ends, 1);
    (void)a, (void)b;
    finish(g);
}

/* Below the margin prompts run one at a time; those that are paused must not keep it there. */
Test(paused, requests_do_not_keep_others_below_the_margin)
{
    struct rig *g = rig_new(16, 0.6);
    struct job *a = add(g, 0, 30, 20), *b, *c;
    steps(g, 2);
    a->paused = true;
    b = add(g, 1, 4, 20);
    c = add(g, 2, 4, 20);
    steps(g, 3);
    cr_assert(b->n_got > 0 && c->n_got > 0);
    finish(g);
}

Test(paused, requests_end_by_cancels_and_deadlines)
{
    struct rig *g = rig_new(16, 0);
    struct job *a = add(g, 0, 8, 20), *b = &g->jobs[1];
    b->prompt[0] = 3;
    const struct request_spec spec = {.prompt = b->prompt,
                                      .n_prompt = 1,
                                      .max_new_tokens = 9,
                                      .top_p = 1,
                                      .deadline_ns = g->time.now_ns + 50000000,
                                      .paused = &b->paused,
                                      .owner = b};
    cr_assert_eq(engine_submit(g->engine, &spec, &b->r), 0);
    a->paused = b->paused = true;
    cr_assert_eq(steps(g, 10), ENGINE_IDLE);
    cr_assert_eq(engine_next_ns(g->engine), spec.deadline_ns);
    engine_cancel(g->engine, a->r);
    steps(g, 1);
    cr_assert_eq(a->finish, FINISH_CANCELLED);
    steps(g, 60);
    cr_assert_eq(b->finish, FINISH_DEADLINE);
    cr_assert_eq(engine_next_ns(g->engine), UINT64_MAX);
    finish(g);
}

static uint64_t ticking(void *ctx)
{
    struct virtual_clock *time = ctx;
    return time->now_ns += 10000;
}

/* Else a deadline could be refused for the sake of what may never go on. */
Test(paused, requests_are_not_waited_for_in_forecasts)
{
    struct rig *g = rig_new(8, 0);
    static const uint32_t ids[16] = {9, 8, 7};
    const struct request_spec next = {.prompt = ids, .n_prompt = 16, .max_new_tokens = 4};
    struct engine_forecast f;
    g->clock.now_ns = ticking;
    struct job *a = add(g, 0, 16, 12);
    steps(g, 4);
    engine_forecast(g->engine, &next, &f);
    cr_assert(f.is_known);
    uint64_t start_ns = f.start_ns;
    a->paused = true;
    steps(g, 1);
    engine_forecast(g->engine, &next, &f);
    cr_assert_lt(f.start_ns, start_ns);
    finish(g);
}

Test(paused, an_engine_runs_no_step_and_lets_requests_come_and_go)
{
    struct rig *g = rig_new(16, 0);
    struct job *a = add(g, 0, 8, 20), *b;
    steps(g, 3);
    engine_pause(g->engine, true);
    uint64_t n_steps = stats_of(g).n_steps;
    b = add(g, 1, 8, 20);
    struct job *c = add(g, 2, 8, 20);
    engine_cancel(g->engine, c->r);
    cr_assert_eq(steps(g, 10), ENGINE_IDLE);
    cr_assert_eq(c->n_ends, 1);
    cr_assert_eq(stats_of(g).n_steps, n_steps);
    engine_pause(g->engine, false);
    steps(g, 1);
    cr_assert_eq(stats_of(g).n_steps, n_steps + 1);
    steps(g, 40);
    cr_assert(a->n_ends == 1 && b->n_ends == 1);
    finish(g);
}

/* ---- in a lane ------------------------------------------------------------------------------- */

static struct sim_report report;
static char text[65536];

static struct sim *fresh(void)
{
    struct sim *s = sim_new(1, false, &report);
    cr_assert(s);
    return s;
}

static void nothing_left(struct sim *s)
{
    for (int i = 0; i < 20; i++)
        daemon_turn(s->daemon);
    sim_audit(s);
    cr_assert_str_empty(report.error, "%s", report.error);
    cr_assert_eq(s->daemon->clients->n_connections, 0);
    cr_assert_eq(s->daemon->pauses.is_on, s->daemon->pauses.n_kept > 0);
    sim_free(s);
}

static struct cb_request_entry submit(struct peer *p, uint32_t n_new)
{
    static const uint32_t ids[4] = {1, 2, 3, 4};
    struct cb_request_entry e;
    cb_message_init(&e);
    e.n_prompt = 4;
    e.max_new_tokens = n_new;
    e.flags = CB_FLAG_IGNORE_EOS;
    peer_submit(p, &e, ids, 4);
    (void)cb_doorbell_send(p->sock, CB_RECORD_BELL);
    return e;
}

static void lane_pause(struct peer *p, bool on)
{
    if (cb_lane_client_pause(p->lc, on) & CB_LANE_RING)
        (void)cb_doorbell_send(p->sock, CB_RECORD_BELL);
}

static uint64_t stat(const struct sim *s, enum cb_stat which)
{
    return cb_stats_get(s->stats.base, which);
}

Test(paused, lanes_stand_still_and_others_go_on)
{
    struct sim *s = fresh();
    struct peer a, b;
    struct cb_hello hello = peer_hello();
    hello.pool_bytes = 4096;
    peer_open(&a, s, 1000, &hello);
    peer_open(&b, s, 1000, &hello);
    struct cb_request_entry ea = submit(&a, 40), eb = submit(&b, 40);
    peer_turn(&a, 5);
    lane_pause(&a, true);
    peer_turn(&a, 1);
    cr_assert(cb_lane_client_is_paused(a.lc));
    cr_assert_not(cb_lane_client_is_paused(b.lc));
    uint32_t n = cb_lane_client_emitted(a.lc, ea.slot), m = cb_lane_client_emitted(b.lc, eb.slot);
    cr_assert_gt(n, 0);
    struct cb_request_entry later = submit(&a, 3);
    peer_turn(&a, 5);
    cr_assert_eq(cb_lane_client_emitted(a.lc, ea.slot), n);
    cr_assert_eq(cb_lane_client_emitted(a.lc, later.slot), 0);
    cr_assert_eq(cb_lane_client_emitted(b.lc, eb.slot), m + 5);
    cr_assert_eq(stat(s, CB_STAT_requests_paused), 2);
    peer_turn(&a, 60);
    cr_assert_eq(cb_lane_client_emitted(b.lc, eb.slot), 40);
    lane_pause(&a, false);
    peer_turn(&a, 60);
    cr_assert_not(cb_lane_client_is_paused(a.lc));
    cr_assert_eq(cb_lane_client_emitted(a.lc, ea.slot), 40);
    cr_assert_eq(cb_lane_client_emitted(a.lc, later.slot), 3);
    cr_assert_eq(stat(s, CB_STAT_requests_paused), 0);
    peer_close(&a);
    peer_close(&b);
    nothing_left(s);
}

/* The daemon sleeps when all that is there is paused; each of these wakes it. */
Test(paused, lanes_are_heard_by_a_daemon_that_sleeps)
{
    struct sim *s = fresh();
    struct peer p;
    struct cb_hello hello = peer_hello();
    struct cb_slot_view view;
    hello.pool_bytes = 4096;
    peer_open(&p, s, 1000, &hello);
    struct cb_request_entry a = submit(&p, 40), b = submit(&p, 40);
    peer_turn(&p, 5);
    lane_pause(&p, true);
    peer_turn(&p, 5);
    /* As the loop does just before it blocks; the client then acts unheard. */
    struct cb_lane *lane = clients_find(s->daemon->clients, p.welcome.lane_id)->lane;
    cb_lane_doze(lane);
    cr_assert_eq(cb_lane_look_again(lane, true), CB_LANE_NOTHING);
    cr_assert_eq(cb_lane_client_cancel(p.lc, a.slot, a.gen), CB_LANE_RING);
    cr_assert_eq(cb_lane_look_again(lane, true), CB_LANE_ENTRY);
    cb_lane_undoze(lane);
    peer_turn(&p, 2);
    cb_lane_client_slot(p.lc, a.slot, &view);
    cr_assert_eq(view.state, CB_SLOT_CANCELLED);
    cb_lane_doze(lane);
    cr_assert_eq(cb_lane_look_again(lane, true), CB_LANE_NOTHING);
    cr_assert_eq(cb_lane_client_pause(p.lc, false), CB_LANE_RING);
    cr_assert_eq(cb_lane_look_again(lane, false), CB_LANE_ENTRY);
    cb_lane_undoze(lane);
    peer_turn(&p, 60);
    cr_assert_eq(cb_lane_client_emitted(p.lc, b.slot), 40);
    peer_close(&p);
    nothing_left(s);
}

Test(paused, lanes_that_die_leave_nothing)
{
    struct sim *s = fresh();
    struct peer p;
    const struct cb_hello hello = peer_hello();
    peer_open(&p, s, 1000, &hello);
    submit(&p, 8);
    lane_pause(&p, true);
    peer_turn(&p, 5);
    cr_assert_eq(stat(s, CB_STAT_requests_paused), 1);
    peer_close(&p);
    nothing_left(s);
}

Test(paused, lanes_fill_the_queue_for_themselves_only)
{
    struct sim *s = fresh();
    struct peer a, b;
    struct cb_result_entry result;
    char message[SETTINGS_MESSAGE_MAX];
    uint32_t n_busy = 0, n_accepted = 0;
    const struct cb_hello hello = peer_hello();
    cr_assert_eq(
        settings_set(&s->settings, "max_queue_size", "2", SETTINGS_OPERATOR, NULL, message), 0);
    peer_open(&a, s, 1000, &hello);
    peer_open(&b, s, 1001, &hello);
    lane_pause(&a, true);
    peer_turn(&a, 3);
    for (int i = 0; i < 3; i++)
        submit(&a, 3);
    while (peer_result(&a, &result)) {
        n_accepted += result.type == CB_RESULT_ACCEPTED;
        n_busy += result.type == CB_RESULT_REJECTED && (int)result.count == CB_BUSY;
    }
    cr_assert(n_accepted == 2 && n_busy == 1);
    struct cb_request_entry e = submit(&b, 3);
    peer_turn(&b, 10);
    cr_assert_eq(cb_lane_client_emitted(b.lc, e.slot), 3);
    peer_close(&a);
    peer_close(&b);
    nothing_left(s);
}

/* Takes all results there are, and gives the slots of those that are over back. */
static void free_over(struct peer *p)
{
    struct cb_result_entry result;
    while (peer_result(p, &result))
        if (result.type != CB_RESULT_ACCEPTED && result.type != CB_RESULT_TOKENS)
            cb_lane_client_free(p->lc, result.slot);
}

/* When the next request of this lane would start, as ACCEPTED tells it, in us; it is cancelled. */
static uint32_t told_start(struct peer *p)
{
    struct cb_result_entry result = {0};
    struct cb_request_entry e = submit(p, 3);
    cr_assert(peer_result(p, &result) && result.type == CB_RESULT_ACCEPTED);
    uint32_t start_us = result.first;
    cb_lane_client_cancel(p->lc, e.slot, e.gen);
    (void)cb_doorbell_send(p->sock, CB_RECORD_BELL);
    free_over(p);
    return start_us;
}

/* No step runs meanwhile, so that all stay where they are: in line. */
Test(paused, lanes_make_nobody_late)
{
    struct sim *s = fresh();
    struct peer a, b;
    const struct cb_hello hello = peer_hello();
    s->tick_ns = 200000;
    peer_open(&a, s, 1000, &hello);
    peer_open(&b, s, 1000, &hello);
    for (int i = 0; i < 4; i++) { /* what there is to guess from */
        uint32_t ids[32] = {(uint32_t)i + 1};
        struct cb_request_entry e;
        cb_message_init(&e);
        e.n_prompt = 32;
        e.max_new_tokens = 3;
        peer_submit(&a, &e, ids, 32);
        free_over(&a);
    }
    engine_pause(s->daemon->engine, true);
    uint32_t alone_us = told_start(&b);
    for (int i = 0; i < 3; i++)
        submit(&a, 8);
    peer_turn(&a, 3);
    uint32_t behind_us = told_start(&b);
    cr_assert_gt(behind_us, alone_us);
    lane_pause(&a, true);
    peer_turn(&a, 3);
    cr_assert_eq(told_start(&b), alone_us);
    lane_pause(&a, false);
    peer_turn(&a, 3);
    cr_assert_eq(told_start(&b), behind_us);
    engine_pause(s->daemon->engine, false);
    peer_turn(&a, 60);
    peer_close(&a);
    peer_close(&b);
    nothing_left(s);
}

/* Work that is paused is no work that hangs. */
Test(paused, lanes_do_not_bark_up_the_watchdog)
{
    struct sim *s = fresh();
    struct peer p;
    const struct cb_hello hello = peer_hello();
    peer_open(&p, s, 1000, &hello);
    lane_pause(&p, true);
    submit(&p, 8);
    peer_turn(&p, 5);
    for (int i = 0; i < 10; i++) {
        s->time.now_ns += s->settings.watchdog_ms * 1000000;
        peer_turn(&p, 2);
    }
    cr_assert_eq(stat(s, CB_STAT_watchdog), 0);
    peer_close(&p);
    nothing_left(s);
}

/* ---- the whole daemon ------------------------------------------------------------------------ */

static json_t *ask_on(struct peer *p, const char *command, const char *argument, int status)
{
    json_error_t error;
    int r = peer_admin(p, command, argument, text, sizeof text);
    cr_assert_eq(r, status, "%s %s: %d, %s", command, argument, r, text);
    json_t *reply = json_loads(text, 0, &error);
    cr_assert(reply, "%s", text);
    return reply;
}

static void ask(struct sim *s, uint32_t uid, const char *command, const char *argument, int status)
{
    struct peer p;
    peer_connect(&p, s, uid);
    json_decref(ask_on(&p, command, argument, status));
    peer_close(&p);
}

Test(paused, daemons_take_requests_in_and_run_none)
{
    struct sim *s = fresh();
    struct peer p, late;
    struct cb_hello hello = peer_hello();
    hello.pool_bytes = 4096;
    peer_open(&p, s, 1000, &hello);
    struct cb_request_entry a = submit(&p, 40), b;
    peer_turn(&p, 5);
    ask(s, 1000, "pause", "", CB_DENIED);
    ask(s, 1000, "resume", "", CB_DENIED);
    ask(s, 0, "resume", "", CB_NOT_PAUSED);
    ask(s, 0, "pause", "now", CB_INVALID);
    ask(s, 0, "resume", "now", CB_INVALID);
    ask(s, 0, "pause", "", CB_OK);
    uint64_t n_steps = stat(s, CB_STAT_steps);
    b = submit(&p, 10);
    peer_open(&late, s, 1000, &hello);
    peer_turn(&p, 20);
    cr_assert_eq(stat(s, CB_STAT_steps), n_steps);
    cr_assert_eq(stat(s, CB_STAT_requests_accepted), 2);
    cr_assert_eq(stat(s, CB_STAT_paused), 1);
    cr_assert_eq(cb_lane_client_notice(p.lc), CB_NOTICE_PAUSED);
    cr_assert_eq(cb_lane_client_notice(late.lc), CB_NOTICE_PAUSED);
    ask(s, 0, "resume", "", CB_OK);
    cr_assert_eq(cb_lane_client_notice(p.lc), 0);
    peer_turn(&p, 60);
    cr_assert_eq(stat(s, CB_STAT_paused), 0);
    cr_assert_eq(cb_lane_client_emitted(p.lc, a.slot), 40);
    cr_assert_eq(cb_lane_client_emitted(p.lc, b.slot), 10);
    peer_close(&p);
    peer_close(&late);
    nothing_left(s);
}

Test(paused, daemons_go_on_when_the_last_holder_is_gone)
{
    struct sim *s = fresh();
    struct peer a, b, p;
    const struct cb_hello hello = peer_hello();
    peer_open(&p, s, 1000, &hello);
    peer_connect(&a, s, 0);
    peer_connect(&b, s, 0);
    json_t *reply = ask_on(&a, "pause", "hold", CB_OK);
    cr_assert_eq(json_integer_value(json_object_get(reply, "holders")), 1);
    json_decref(reply);
    json_decref(ask_on(&a, "pause", "hold", CB_PAUSED));
    json_decref(ask_on(&b, "pause", "hold", CB_OK));
    ask(s, 0, "pause", "", CB_OK);
    ask(s, 0, "pause", "", CB_OK);
    struct cb_request_entry e = submit(&p, 8);
    peer_close(&a); /* dies */
    peer_turn(&p, 3);
    ask(s, 0, "resume", "", CB_OK);
    ask(s, 0, "resume", "", CB_OK);
    ask(s, 0, "resume", "", CB_NOT_PAUSED); /* what is left is b's */
    cr_assert_eq(cb_lane_client_emitted(p.lc, e.slot), 0);
    json_decref(ask_on(&b, "resume", "", CB_OK)); /* its own, the last */
    peer_turn(&p, 20);
    cr_assert_eq(cb_lane_client_emitted(p.lc, e.slot), 8);
    json_decref(ask_on(&b, "pause", "hold", CB_OK));
    ask(s, 0, "pause", "", CB_OK);
    ask(s, 0, "resume", "all", CB_OK);
    cr_assert_not(s->daemon->pauses.is_on);
    ask(s, 0, "resume", "all", CB_NOT_PAUSED);
    peer_close(&b);
    peer_close(&p);
    nothing_left(s);
}

Test(paused, daemons_are_not_drained_by_command_but_by_a_signal)
{
    struct sim *s = fresh();
    struct peer p;
    const struct cb_hello hello = peer_hello();
    peer_open(&p, s, 1000, &hello);
    ask(s, 0, "pause", "", CB_OK);
    struct cb_request_entry e = submit(&p, 8);
    peer_turn(&p, 5);
    ask(s, 0, "drain", "", CB_PAUSED);
    ask(s, 0, "stop", "", CB_PAUSED);
    ask(s, 0, "stop", "softly", CB_INVALID);
    cr_assert_eq(s->daemon->state, DAEMON_SERVING);
    daemon_drain(s->daemon, "as SIGTERM does");
    ask(s, 0, "pause", "", CB_DRAINING);
    for (int i = 0; i < 100 && s->daemon->state != DAEMON_STOPPED; i++)
        daemon_turn(s->daemon);
    cr_assert_eq(s->daemon->state, DAEMON_STOPPED);
    cr_assert_eq(cb_lane_client_emitted(p.lc, e.slot), 8);
    sim_free(s);
    peer_close(&p);
}

Test(paused, requests_say_so_when_asked_why)
{
    struct sim *s = fresh();
    struct peer p, admin;
    const struct cb_hello hello = peer_hello();
    char id[40], lane[16];
    peer_open(&p, s, 1000, &hello);
    peer_connect(&admin, s, 0);
    submit(&p, 8);
    lane_pause(&p, true);
    peer_turn(&p, 3);
    snprintf(lane, sizeof lane, "%u", p.welcome.lane_id);
    snprintf(id, sizeof id, "%s:0", lane);
    json_t *reply = ask_on(&admin, "why", id, CB_OK);
    cr_assert(strstr(json_string_value(json_object_get(reply, "why")), "client has paused"));
    json_decref(reply);
    reply = ask_on(&admin, "requests", "", CB_OK);
    const json_t *row = json_array_get(json_object_get(reply, "requests"), 0);
    cr_assert_str_eq(json_string_value(json_object_get(row, "state")), "paused");
    cr_assert_str_eq(json_string_value(json_object_get(row, "id")), id);
    json_decref(reply);
    reply = ask_on(&admin, "why", lane, CB_OK);
    cr_assert(strstr(json_string_value(json_object_get(reply, "why")), "nothing waits"));
    json_decref(reply);
    json_decref(ask_on(&admin, "pause", "hold", CB_OK));
    reply = ask_on(&admin, "why", id, CB_OK);
    cr_assert(strstr(json_string_value(json_object_get(reply, "why")), "daemon is paused"));
    json_decref(reply);
    ask(s, 1000, "why", id, CB_OK);
    ask(s, 1001, "why", id, CB_DENIED);
    ask(s, 1000, "why", "77:0", CB_NOT_FOUND);
    ask(s, 1000, "why", "x", CB_INVALID);
    peer_close(&admin);
    peer_close(&p);
    nothing_left(s);
}
