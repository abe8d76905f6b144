/* A run ends in one of three drawn ways: all clients leave and the daemon is idle, a drain, a
 * stop. */
#include "tests/util/sim.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/admin.h"
#include "daemon/loop_sim.h"
#include "daemon/model/model.h"
#include "daemon/model/vocabulary.h"
#include "shm/lane_private.h"

#define TURNS_MOST 20000

uint32_t sim_draw(uint64_t *random, uint32_t n)
{
    *random = *random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((*random >> 33) % n);
}

void sim_fail(struct sim *s, const char *format, ...)
{
    va_list args;
    if (s->report->error[0])
        return; /* the first one tells most */
    va_start(args, format);
    vsnprintf(s->report->error, sizeof s->report->error, format, args);
    va_end(args);
}

void sim_note(struct sim *s, uint64_t what)
{
    s->report->digest = (s->report->digest ^ what) * UINT64_C(0x100000001b3);
}

/* ---- the world ------------------------------------------------------------------------------- */

void sim_connect(struct sim *s, uint32_t uid, int *sockp, int *deathp)
{
    int pair[2];
    struct cb_lease lease = {.uid = uid, .gid = uid, .pid = 1};
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0) {
        sim_fail(s, "no socket pair");
        return;
    }
    lease.pidfd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    *deathp = dup(lease.pidfd);
    *sockp = pair[0];
    control_adopt(s->daemon->control, pair[1], &lease);
}

static bool world_act(void *ctx)
{
    struct sim *s = ctx;
    if (s->n_clients == 0)
        return false;
    uint32_t n = s->n_clients + s->n_operators, first = sim_draw(&s->random, n);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t who = (first + i) % n;
        struct sim_operator *o = who < s->n_clients ? NULL : &s->operators[who - s->n_clients];
        if (o ? sim_operator_can_act(o) : sim_client_can_act(&s->clients[who])) {
            if (o)
                sim_operator_act(o);
            else
                sim_client_act(&s->clients[who]);
            return true;
        }
    }
    return false;
}

static uint64_t world_next_ns(void *ctx)
{
    struct sim *s = ctx;
    uint64_t next_ns = s->holds_time ? s->time.now_ns : LOOP_FOREVER;
    for (uint32_t i = 0; i < s->n_clients; i++) {
        uint64_t at_ns = sim_client_next_ns(&s->clients[i]);
        if (at_ns < next_ns)
            next_ns = at_ns;
    }
    for (uint32_t i = 0; i < s->n_operators; i++) {
        uint64_t at_ns = sim_operator_next_ns(&s->operators[i]);
        if (at_ns < next_ns)
            next_ns = at_ns;
    }
    return next_ns;
}

static void set(struct sim *s, const char *name, const char *format, uint32_t value)
{
    char text[32], message[SETTINGS_MESSAGE_MAX];
    snprintf(text, sizeof text, format, value);
    if (settings_set(&s->settings, name, text, SETTINGS_COMMAND_LINE, NULL, message))
        sim_fail(s, "%s", message);
}

static uint64_t ticking_now(void *ctx)
{
    struct sim *s = ctx;
    s->time.now_ns += s->tick_ns;
    return s->time.now_ns;
}

/* For tests that drive the daemon by hand: nothing drawn, room for a few small requests. */
static void fixed_settings(struct sim *s)
{
    settings_init(&s->settings);
    set(s, "model", "null", 0);
    set(s, "wait_mode", "eco", 0);
    set(s, "page_size", "%u", 16);
    set(s, "num_blocks", "%u", 16);
    set(s, "max_batch_tokens", "%u", 32);
    set(s, "max_requests", "%u", 32);
    set(s, "max_held_tokens", "%u", 4096);
    set(s, "max_lanes", "%u", 8);
    set(s, "lane_slots", "%u", 4);
    set(s, "lane_slots_max", "%u", 64);
    set(s, "lane_pool_tokens", "%u", 16);
}

static void draw_settings(struct sim *s)
{
    static const char *const schedulers[] = {"fifo", "prefill_first", "priority", "fair", "auto"};
    uint64_t *r = &s->random;
    uint32_t page_size = 4u << sim_draw(r, 3);
    uint32_t context_blocks = SIM_CONTEXT / page_size;
    static const char *const wishes[] = {"continue", "restart", "fail"};
    bool is_wide = sim_draw(r, 4) == 0;  /* room for the largest families */
    bool is_tight = sim_draw(r, 4) == 0; /* many for few blocks, which are computed in pieces */
    settings_init(&s->settings);
    set(s, "model", "null", 0);
    set(s, "wait_mode", "eco", 0);
    set(s, "page_size", "%u", page_size);
    set(s, "num_blocks", "%u",
        context_blocks / 2 + 1 + sim_draw(r, is_tight ? context_blocks : 3 * context_blocks));
    set(s, "max_batch_tokens", "%u", 2 + sim_draw(r, is_tight ? 10 : 40));
    set(s, "max_requests_per_batch", "%u", (is_tight ? 4 : 1) + sim_draw(r, 8));
    if (is_tight)
        set(s, "safety_margin", "0", 0);
    set(s, "allow_block_sharing", sim_draw(r, 8) ? "true" : "false", 0);
    set(s, "scheduler", schedulers[sim_draw(r, 5)], 0);
    set(s, "priority_ageing_ms", "%u", sim_draw(r, 4));
    set(s, "uid_weights", sim_draw(r, 2) ? "1000=3" : "", 0);
    set(s, "on_new_weights", wishes[sim_draw(r, 3)], 0);
    set(s, "max_requests", "%u", is_wide || is_tight ? 24 + sim_draw(r, 80) : 1 + sim_draw(r, 24));
    set(s, "max_held_tokens", "%u", 1024);
    set(s, "max_lanes", "%u", 1 + sim_draw(r, SIM_CLIENTS_MAX));
    set(s, "lane_slots_max", "%u", 64);
    set(s, "uid_requests", "%u", is_wide || is_tight ? 16 + sim_draw(r, 80) : 1 + sim_draw(r, 16));
    set(s, "uid_waiting_tokens", "%u",
        is_wide || is_tight ? 200 + sim_draw(r, 800) : 20 + sim_draw(r, 200));
    if (sim_draw(r, 4) == 0)
        set(s, "max_queue_size", "%u", 1 + sim_draw(r, 4));
    set(s, "lane_pool_tokens", "%u", 16);
    s->tick_ns = sim_draw(r, 3) ? 1 + sim_draw(r, 60000) : 0;
}

static int open_parts(struct sim *s)
{
    char message[MODEL_MESSAGE_MAX];
    struct cb_why why;
    struct cb_stats_boot boot;
    const struct loop_world world = {.ctx = s, .act = world_act, .next_ns = world_next_ns};
    const struct settings_facts facts = daemon_facts(NULL);
    struct settings_resolved set;
    settings_resolve(&s->settings, &facts, &set);
    struct model_config model = sim_null_config(set.page_size, (uint32_t)s->settings.num_blocks,
                                                set.max_batch_tokens, set.max_requests_per_batch);
    struct loop *loop;
    s->oracle = sim_oracle_new();
    model.pool_bytes = s->seed % 2 * 2048;
    model.pool_share = 1;
    if (!s->oracle || model_open(&s->model, &model, message) ||
        cb_segment_make_sealable(&s->stats, &s->stats_fd, "sim", sizeof(struct cb_stats_page),
                                 &why) ||
        cb_segment_make_sealable(&s->vocab, &s->vocab_fd, "sim",
                                 vocab_image_bytes(model_vocab(s->model)), &why) ||
        loop_sim_new(&loop, 256, &s->time, &s->clock, &s->log, s->seed, &world))
        return -1;
    struct daemon_config config = {
        .settings = &s->settings,
        .clock = &s->clock,
        .log = &s->log,
        .loop = loop,
        .model = s->model,
        .stats = s->stats.base,
        .status_name = "/sim",
        .vocab_name = "/sim",
        .status_fd = s->stats_fd,
        .status_guard = -1,
        .vocab_fd = s->vocab_fd,
        .status_bytes = s->stats.bytes,
        .vocab_bytes = s->vocab.bytes,
        .boot_id = {s->seed, 1},
        .first_cursor = sim_draw(&s->random, 2) ? 0 : UINT64_MAX - sim_draw(&s->random, 100),
        .admin_group = (gid_t)-1,
        .command = admin_command,
    };
    daemon_boot(&config, "sim", 0, &boot);
    cb_stats_init(config.stats, &boot);
    if (daemon_new(&s->daemon, &config) == 0)
        return 0;
    loop_free(loop);
    return -1;
}

static bool all_over(const struct sim *s)
{
    for (uint32_t i = 0; i < s->n_clients; i++)
        if (s->clients[i].state != SIM_OVER)
            return false;
    return true;
}

/* Whatever a request does there are words for it, and they keep within their bounds. */
static void check_words(struct sim *s)
{
    const struct clients *c = s->daemon->clients;
    for (uint32_t i = 0; i < c->n_clients; i++)
        for (uint32_t k = 0; c->table[i].lane && k < c->table[i].geometry.n_slots; k++) {
            char text[601];
            const struct request *r = c->table[i].slots[k].request;
            size_t bytes = 1 + (s->time.now_ns + k) % 600;
            if (!r)
                continue;
            memset(text, 'x', sizeof text);
            engine_request_why(s->daemon->engine, r, text, bytes);
            if (text[bytes] != 'x' || strlen(text) >= bytes || (bytes > 1 && !text[0]))
                sim_fail(s, "a request's words are none, or too many");
        }
}

void sim_audit(struct sim *s)
{
    const char *why = "";
    if (daemon_check(s->daemon, &why))
        sim_fail(s, "audit: %s", why);
    if (cb_stats_get(s->stats.base, CB_STAT_wake_missed))
        sim_fail(s, "the daemon slept while work waited");
    if (cb_stats_get(s->stats.base, CB_STAT_watchdog))
        sim_fail(s, "work waited and nothing moved");
    check_words(s);
}

/* Nobody is there any more: nothing may be left but what is kept to be found again. */
static void check_empty(struct sim *s)
{
    struct engine_stats stats;
    engine_stats(s->daemon->engine, &stats);
    const struct clients *c = s->daemon->clients;
    if (stats.n_active + stats.n_waiting)
        sim_fail(s, "%u requests are left", stats.n_active + stats.n_waiting);
    if (stats.n_free_blocks != stats.n_blocks)
        sim_fail(s, "%u blocks are lost", stats.n_blocks - stats.n_free_blocks);
    if (stats.n_free_pool_blocks != stats.n_pool_blocks)
        sim_fail(s, "blocks aside are lost");
    if (stats.n_violations)
        sim_fail(s, "the bookkeeping contradicted itself: %s", stats.violation);
    if (s->daemon->loading.staging.fd >= 0)
        sim_fail(s, "memory for weights is left");
    if (c->n_connections || c->n_lanes || c->lane_bytes)
        sim_fail(s, "%u connections and %u lanes are left", c->n_connections, c->n_lanes);
}

/* With nothing in the engine all credit is free, so no lane may still wait for some. */
static void check_credit(struct sim *s)
{
    struct engine_stats stats;
    const struct clients *c = s->daemon->clients;
    engine_stats(s->daemon->engine, &stats);
    for (uint32_t i = 0; i < c->n_clients; i++)
        if (c->table[i].lane && c->table[i].waits && !c->has_credit &&
            stats.n_active + stats.n_waiting == 0)
            sim_fail(s, "a lane waits for credit that nobody holds");
}

/* The number that a file of weights under way brings. */
static uint32_t staged(const struct daemon *d)
{
    char text[SIM_WEIGHTS_TEXT] = "";
    unsigned weights = 0;
    if (d->loading.staging.fd >= 0 && pread(d->loading.staging.fd, text, sizeof text - 1, 0) > 0)
        (void)sscanf(text, "null weights %u", &weights);
    return weights;
}

/* After a turn, at whose end what was loaded may have taken effect: with how many tokens of each
 * request the new epoch begins. */
static void notice_switch(struct sim *s, uint32_t weights)
{
    struct engine_stats stats;
    engine_stats(s->daemon->engine, &stats);
    if (stats.weight_epoch == s->epoch)
        return;
    if (stats.weight_epoch != s->epoch + 1 || s->epoch + 1 == SIM_EPOCHS_MAX) {
        sim_fail(s, "epoch %u began behind epoch %u", stats.weight_epoch, s->epoch);
        return;
    }
    s->weights[++s->epoch] = weights;
    for (uint32_t i = 0; i < s->n_clients; i++)
        sim_client_note_epoch(&s->clients[i], s->epoch);
    s->report->n_switches++;
    sim_note(s, s->epoch);
}

/* Families that wait for as many places in the ring of results as they may need. */
static void count_room_waits(struct sim *s)
{
    const struct clients *c = s->daemon->clients;
    for (uint32_t i = 0; i < c->n_clients; i++) {
        const struct cb_lane *lane = c->table[i].lane;
        s->report->n_room_waits += lane && lane->wait == WAIT_ROOM && lane->n_children > 1;
    }
}

static void turn(struct sim *s)
{
    const struct clients *c = s->daemon->clients;
    uint32_t gone[SIM_CLIENTS_MAX + 64] = {0}; /* connections that ended before this turn */
    for (uint32_t i = 0; i < c->n_clients; i++)
        gone[i] = c->table[i].state == CLIENT_GONE ? c->table[i].lane_id : 0;
    bool is_paused = s->daemon->pauses.is_on;
    uint64_t n_steps = cb_stats_get(s->stats.base, CB_STAT_steps);
    uint32_t weights = staged(s->daemon);
    daemon_turn(s->daemon);
    notice_switch(s, weights);
    if (is_paused && cb_stats_get(s->stats.base, CB_STAT_steps) != n_steps)
        sim_fail(s, "a step ran while the daemon was paused");
    for (uint32_t i = 0; i < c->n_clients && s->daemon->state != DAEMON_STOPPED; i++)
        if (gone[i] && c->table[i].state == CLIENT_GONE && c->table[i].lane_id == gone[i])
            sim_fail(s, "a dead client still holds requests after a step");
    check_credit(s);
    count_room_waits(s);
    if (s->report->n_turns++ % 8 == 0)
        sim_audit(s);
}

/* An operator pauses all, or takes a pause back. */
static void operate(struct sim *s)
{
    struct pauses *p = &s->daemon->pauses;
    struct client nobody = {0};
    if (p->n_kept > 0 && sim_draw(&s->random, 3)) {
        (void)pauses_end_one(p, &nobody);
    } else if (p->n_kept < 3) {
        (void)pauses_keep(p);
        s->report->n_pauses++;
    }
}

/* Whatever was taken in is somewhere, once. */
static void check_sums(struct sim *s)
{
    static const enum cb_stat parts[] = {CB_STAT_requests_finished, CB_STAT_requests_cancelled,
                                         CB_STAT_requests_deadline, CB_STAT_requests_failed,
                                         CB_STAT_requests_dropped,  CB_STAT_requests_active,
                                         CB_STAT_requests_waiting};
    uint64_t accepted = cb_stats_get(s->stats.base, CB_STAT_requests_accepted), sum = 0;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        sum += cb_stats_get(s->stats.base, parts[i]);
    if (sum != accepted)
        sim_fail(s, "%llu requests were accepted, and %llu ended, run or wait",
                 (unsigned long long)accepted, (unsigned long long)sum);
}

/* Clients that all stayed to the end were told of each request that was counted. */
static void check_counts(struct sim *s)
{
    uint64_t accepted = cb_stats_get(s->stats.base, CB_STAT_requests_accepted);
    uint64_t rejected = cb_stats_get(s->stats.base, CB_STAT_requests_rejected);
    if (s->is_unread)
        return;
    if (accepted != s->n_told || rejected != s->report->n_rejected)
        sim_fail(s, "%llu were accepted and %llu rejected, of which %llu and %llu were told",
                 (unsigned long long)accepted, (unsigned long long)rejected,
                 (unsigned long long)s->n_told, (unsigned long long)s->report->n_rejected);
}

static void run(struct sim *s)
{
    uint32_t ending = sim_draw(&s->random, 3); /* 0: all leave; 1: drain; 2: stop */
    uint32_t patience = ending ? 20 + sim_draw(&s->random, 300) : TURNS_MOST;
    for (uint32_t i = 0; i < patience && !all_over(s) && !s->report->error[0]; i++) {
        if (sim_draw(&s->random, s->daemon->pauses.is_on ? 8 : 40) == 0)
            operate(s);
        turn(s);
        check_sums(s);
    }
    if (ending == 0 && !all_over(s))
        sim_fail(s, "after %u turns some clients still wait", TURNS_MOST);
    s->is_ending = true;
    if (ending == 1)
        daemon_drain(s->daemon, "the seed");
    for (uint32_t i = 0; ending == 1 && s->daemon->state != DAEMON_STOPPED && !s->report->error[0];
         i++) {
        turn(s);
        if (i > TURNS_MOST)
            sim_fail(s, "the drain does not end");
    }
    for (uint32_t i = 0; i < s->n_operators && ending != 2; i++)
        sim_operator_fini(&s->operators[i]);
    for (uint32_t i = 0; i < s->n_clients; i++)
        if (ending != 2 && s->clients[i].state != SIM_OVER && s->clients[i].state != SIM_AWAY)
            sim_client_die(&s->clients[i]);
    if (s->daemon->state == DAEMON_STOPPED || ending == 2)
        return; /* who is still connected is told by the end of its lane */
    for (int i = 0; i < 200 && !s->report->error[0]; i++)
        turn(s);
    check_sums(s);
    check_empty(s);
    check_counts(s);
}

struct sim *sim_free(struct sim *s)
{
    if (!s)
        return NULL;
    struct loop *loop = s->daemon ? s->daemon->config.loop : NULL;
    s->daemon = daemon_free(s->daemon);
    for (uint32_t i = 0; i < s->n_clients; i++) {
        struct sim_client *c = &s->clients[i];
        if (c->state == SIM_LIVE && !cb_lane_client_closed(c->lc))
            sim_fail(s, "client %u was not told that the daemon stopped", i);
        sim_client_fini(c);
    }
    for (uint32_t i = 0; i < s->n_operators; i++)
        sim_operator_fini(&s->operators[i]);
    loop_free(loop);
    model_free(s->model);
    sim_oracle_free(s->oracle);
    cb_segment_unmap(&s->stats);
    cb_segment_unmap(&s->vocab);
    if (s->stats_fd >= 0)
        close(s->stats_fd);
    if (s->vocab_fd >= 0)
        close(s->vocab_fd);
    free(s);
    return NULL;
}

struct sim *sim_new(uint64_t seed, bool is_drawn, struct sim_report *report)
{
    struct sim *s = calloc(1, sizeof *s);
    memset(report, 0, sizeof *report);
    report->digest = UINT64_C(0xcbf29ce484222325);
    if (!s)
        return NULL;
    s->seed = seed;
    s->random = seed * UINT64_C(0x9e3779b97f4a7c15) + 7;
    s->report = report;
    s->stats_fd = s->vocab_fd = -1;
    virtual_clock_init(&s->time, &s->clock);
    s->clock = (struct clock){.now_ns = ticking_now, .ctx = s};
    log_init(&s->log, -1, LOG_LEVEL_ERROR, &s->clock);
    s->holds_time = !is_drawn;
    if (is_drawn)
        draw_settings(s);
    else
        fixed_settings(s);
    return open_parts(s) ? sim_free(s) : s;
}

int sim_run(uint64_t seed, struct sim_report *report)
{
    struct sim *s = sim_new(seed, true, report);
    if (!s) {
        snprintf(report->error, sizeof report->error, "can't make the daemon");
        return -1;
    }
    s->n_clients = 1 + sim_draw(&s->random, SIM_CLIENTS_MAX);
    s->n_operators = sim_draw(&s->random, SIM_OPERATORS_MAX + 1);
    for (uint32_t i = 0; i < s->n_operators; i++)
        sim_operator_init(&s->operators[i], s, i, s->random + i * 2000003u);
    for (uint32_t i = 0; i < s->n_clients; i++) {
        sim_client_init(&s->clients[i], s, i, s->random + i * 1000003u);
        report->n_hostile += s->clients[i].is_hostile;
    }
    run(s);
    report->n_prefix_hits = cb_stats_get(s->stats.base, CB_STAT_prefix_hits);
    report->n_evicted = cb_stats_get(s->stats.base, CB_STAT_blocks_evicted);
    report->n_forks = cb_stats_get(s->stats.base, CB_STAT_forks);
    report->n_soft_resets = cb_stats_get(s->stats.base, CB_STAT_soft_resets);
    report->n_past_deadline = cb_stats_get(s->stats.base, CB_STAT_requests_deadline);
    sim_note(s, s->time.now_ns);
    sim_free(s);
    return report->error[0] ? -1 : 0;
}
