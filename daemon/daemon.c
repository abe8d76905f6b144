/* The loop of style 8: what a turn is, and what it does with time nobody else wants: after the start
 * that goes into giving the cache its memory, a few MiB a turn. How it falls asleep is in
 * sleep.c. */
#include "daemon/daemon.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "daemon/guard.h"
#include "daemon/model/model.h"
#include "daemon/sleep.h"
#include "shm/status.h"

#define POPULATE_BYTES (4u << 20)
#define DEVICE_POLL_NS 20000u /* between two looks at a step that runs on a device */
#define MS             1000000ull

/* Of all groups together: where there are several, info counts sectors, of which each group makes
 * blocks of its own. */
static uint32_t whole_blocks(const struct model_info *info)
{
    uint64_t all = 1, parts = 0;
    for (uint32_t g = 0; g < info->n_groups; g++)
        all *= info->groups[g].blocks_per_sector;
    for (uint32_t g = 0; g < info->n_groups; g++)
        parts += all / info->groups[g].blocks_per_sector;
    return parts ? (uint32_t)(info->n_blocks * all / parts) : info->n_blocks;
}

struct settings_facts daemon_facts(const struct model *model)
{
    const struct model_info *info = model ? model_info(model) : NULL;
    struct settings_facts facts = {0};
    if (!info)
        return facts;
    facts.n_blocks = whole_blocks(info);
    facts.pool_gib = (double)info->n_pool_blocks * (double)info->block_bytes / 0x1p30;
    facts.bf16_refusal = info->caps.bf16_tokens ? NULL : info->caps.bf16_refusal;
    facts.n_threads = info->caps.n_threads;
    facts.isa = info->caps.isa;
    for (uint32_t g = 0; g < info->n_groups; g++)
        facts.has_windows |= info->groups[g].window != 0;
    return facts;
}

void daemon_say_pinned(const struct model_info *info, char *text, size_t bytes)
{
    struct rlimit limit = {0};
    uint64_t pool_bytes = (uint64_t)info->n_pool_blocks * info->block_bytes;
    (void)getrlimit(RLIMIT_MEMLOCK, &limit);
    if (info->pool_pin_error == 0)
        snprintf(text, bytes, "pinned");
    else if (limit.rlim_cur < pool_bytes)
        snprintf(text, bytes,
                 "not pinned, it may be swapped out: RLIMIT_MEMLOCK lets %" PRIu64
                 " KiB be locked, and it has %" PRIu64 "; raise that (ulimit -l, LimitMEMLOCK=)",
                 (uint64_t)limit.rlim_cur >> 10, pool_bytes >> 10);
    else
        snprintf(text, bytes, "not pinned, it may be swapped out: %s",
                 strerror(info->pool_pin_error));
}

static void set_weights(struct daemon *d)
{
    struct share_weights weights;
    char message[SETTINGS_MESSAGE_MAX];
    if (share_weights_parse(d->config.settings->uid_weights, &weights, message) == 0)
        engine_set_weights(d->engine, &weights);
}

void daemon_boot(const struct daemon_config *config, const char *version, uint64_t unix_s,
                 struct cb_stats_boot *boot)
{
    const struct model_info *info = model_info(config->model);
    const struct settings_facts facts = daemon_facts(config->model);
    struct settings_resolved set;
    settings_resolve(config->settings, &facts, &set);
    *boot = (struct cb_stats_boot){
        .boot_id = {config->boot_id[0], config->boot_id[1]},
        .fingerprint = {info->fingerprint[0], info->fingerprint[1]},
        .started_unix_s = unix_s,
        .pid = (uint64_t)getpid(),
        .n_vocab = info->n_vocab,
        .n_context = info->n_context,
        .page_size = info->page_size,
        .max_batch_tokens = set.max_batch_tokens,
        .n_threads = info->caps.n_threads,
    };
    snprintf(boot->instance, sizeof boot->instance, "%s", config->settings->instance);
    snprintf(boot->model, sizeof boot->model, "%s", info->name);
    snprintf(boot->arch, sizeof boot->arch, "%s", info->arch);
    snprintf(boot->backend, sizeof boot->backend, "%s",
             info->caps.name[0] ? info->caps.name : "null");
    snprintf(boot->isa, sizeof boot->isa, "%s", info->caps.isa);
    snprintf(boot->loop, sizeof boot->loop, "%s", loop_name(config->loop));
    snprintf(boot->version, sizeof boot->version, "%s", version);
    snprintf(boot->sandbox, sizeof boot->sandbox, "%s", config->sandbox ? config->sandbox : "off");
    if (config->settings->batch_invariant)
        snprintf(boot->batch_invariant, sizeof boot->batch_invariant, "true");
    else if (info->caps.bf16_tokens)
        snprintf(boot->batch_invariant, sizeof boot->batch_invariant,
                 "false, products of %u tokens and more are in bf16", info->caps.bf16_tokens);
    else
        snprintf(boot->batch_invariant, sizeof boot->batch_invariant, "false, idle: %s",
                 info->caps.bf16_refusal);
}

/* ---- timers ---------------------------------------------------------------------------------- */

static void drain_due(struct loop_timer *t)
{
    struct daemon *d = list_entry(t, struct daemon, drain_due);
    log_warnx(d->config.log, "drain_timeout: %u requests are stopped",
              d->seen.n_active + d->seen.n_waiting);
    daemon_stop(d);
}

/* Whether there is work that nobody has paused. */
static bool should_move(const struct daemon *d, const struct engine_stats *now)
{
    return !d->pauses.is_on && now->n_active + now->n_waiting > d->clients->n_paused;
}

/* Set only while there is work, so an idle daemon is not woken by it. */
static void watchdog_due(struct loop_timer *t)
{
    struct daemon *d = list_entry(t, struct daemon, watchdog);
    uint64_t now = clock_now(d->config.clock);
    uint64_t limit_ns = d->config.settings->watchdog_ms * MS;
    if (!should_move(d, &d->seen))
        return;
    if (now - d->progress_ns >= limit_ns) {
        cb_stats_add(d->config.stats, CB_STAT_watchdog, 1);
        log_error(d->config.log, "%u requests run and %u wait, but nothing moved for %llu ms",
                  d->seen.n_active, d->seen.n_waiting,
                  (unsigned long long)((now - d->progress_ns) / MS));
        d->progress_ns = now;
    }
    loop_timer_set(d->config.loop, t, d->progress_ns + limit_ns);
}

/* ---- made and unmade ------------------------------------------------------------------------- */

static int make_parts(struct daemon *d)
{
    const struct settings *set = d->config.settings;
    const struct model_info *info = model_info(d->config.model);
    const struct settings_facts facts = daemon_facts(d->config.model);
    struct settings_resolved resolved;
    settings_resolve(set, &facts, &resolved);
    const struct clients_config clients = {
        .settings = set,
        .clock = d->config.clock,
        .log = d->config.log,
        .loop = d->config.loop,
        .stats = d->config.stats,
        .n_vocab = info->n_vocab,
        .n_context = info->n_context,
        .boot_id = {d->config.boot_id[0], d->config.boot_id[1]},
        .fingerprint = {info->fingerprint[0], info->fingerprint[1]},
        .first_cursor = d->config.first_cursor,
        .admin_group = d->config.admin_group,
        .named_uids = d->config.named_uids,
    };
    int r = clients_new(&d->clients, &clients);
    if (r)
        return r;
    deliver_init(&d->deliver, d->clients, d->config.stats, d->config.clock);
    const struct engine_sink sink = deliver_sink(&d->deliver);
    const struct engine_config engine = {
        .scheduler = resolved.scheduler,
        .ageing_ms = (uint32_t)set->priority_ageing_ms,
        .max_requests = (uint32_t)set->max_requests,
        .max_held_tokens = set->max_held_tokens,
        .max_batch_tokens = resolved.max_batch_tokens,
        .max_requests_per_batch = resolved.max_requests_per_batch,
        .max_blocks_per_request = resolved.max_blocks_per_request,
        .safety_margin = resolved.safety_margin,
        .allow_block_sharing = set->allow_block_sharing,
        .step_ms_max = (uint32_t)set->step_ms_max,
    };
    r = engine_new(&d->engine, &engine, d->config.model, &sink, d->config.clock);
    if (r)
        return r;
    set_weights(d);
    d->clients->engine = d->deliver.engine = d->engine;
    d->clients->bells.model = d->config.model;
    pauses_init(&d->pauses, d->engine, d->clients);
    const struct intake_config intake = {
        .settings = set,
        .clock = d->config.clock,
        .clients = d->clients,
        .engine = d->engine,
        .stats = d->config.stats,
        .n_vocab = info->n_vocab,
        .n_context = info->n_context,
        .page_size = info->page_size,
    };
    r = intake_new(&d->intake, &intake);
    if (r)
        return r;
    const struct control_config control = {
        .command = d->config.command,
        .daemon = d,
        .clients = d->clients,
        .loop = d->config.loop,
        .log = d->config.log,
        .stats = d->config.stats,
        .status_fd = d->config.status_fd,
        .vocab_fd = d->config.vocab_fd,
        .status_bytes = d->config.status_bytes,
        .vocab_bytes = d->config.vocab_bytes,
        .status_name = d->config.status_name,
        .vocab_name = d->config.vocab_name,
    };
    r = control_new(&d->control, &control);
    if (r == 0)
        d->clients->control = d->control;
    return r;
}

/* What takes address space by far the most is room for each request's ids, reserved and not touched. */
static void complain_of_tables(const struct daemon_config *config, int r)
{
    if (r == -ENOMEM)
        log_error(config->log,
                  "no memory for the tables of %" PRIu64 " requests (max_requests) of %u tokens: "
                  "ask for fewer, or raise the limit (ulimit -v, vm.overcommit_memory)",
                  config->settings->max_requests, model_info(config->model)->n_context);
    else
        log_error(config->log, "can't make the daemon's tables: %s", strerror(-r));
}

int daemon_new(struct daemon **daemonp, const struct daemon_config *config)
{
    struct daemon *d = calloc(1, sizeof *d);
    if (!d)
        return -ENOMEM;
    d->config = *config;
    loading_init(&d->loading);
    loop_timer_init(&d->drain_due, drain_due);
    loop_timer_init(&d->watchdog, watchdog_due);
    int r = make_parts(d);
    if (r) {
        complain_of_tables(config, r);
        daemon_free(d);
        return r;
    }
    d->may_spin = sysconf(_SC_NPROCESSORS_ONLN) > 2;
    d->progress_ns = clock_now(config->clock);
    engine_stats(d->engine, &d->seen);
    cb_stats_set(config->stats, CB_STAT_blocks_total, d->seen.n_blocks);
    cb_stats_set(config->stats, CB_STAT_blocks_free, d->seen.n_free_blocks);
    cb_stats_set(config->stats, CB_STAT_pool_pinned,
                 d->seen.n_pool_blocks > 0 && model_info(config->model)->pool_pin_error == 0);
    *daemonp = d;
    return 0;
}

struct daemon *daemon_free(struct daemon *d)
{
    if (!d)
        return NULL;
    loop_timer_clear(&d->drain_due);
    loop_timer_clear(&d->watchdog);
    /* What has not ended has no end in its lane, which says `stopped`: whoever wants to goes on with
     * the next daemon. Flushed before the lanes close: who sees that sees all tokens. */
    if (d->control) {
        engine_fail_all(d->engine, CB_STOPPED);
        deliver_flush(&d->deliver);
        bells_settle(&d->clients->bells);
    }
    control_free(d->control);
    loading_drop(d);
    intake_free(d->intake);
    engine_free(d->engine);
    clients_free(d->clients);
    free(d);
    return NULL;
}

/* ---- the end of service ---------------------------------------------------------------------- */

void daemon_drain(struct daemon *d, const char *why)
{
    if (d->state != DAEMON_SERVING)
        return;
    d->state = DAEMON_DRAINING;
    log_info(d->config.log, "draining (%s): no new requests; %u run, %u wait", why,
             d->seen.n_active, d->seen.n_waiting);
    cb_stats_set(d->config.stats, CB_STAT_draining, 1);
    control_refuse_all(d->control);
    intake_refuse_all(d->intake);
    pauses_end_all(&d->pauses);
    clients_notice(d->clients, CB_NOTICE_DRAINING, true);
    d->clients->has_credit = true; /* what waits for credit is refused now */
    loop_timer_set(d->config.loop, &d->drain_due,
                   clock_now(d->config.clock) + d->config.settings->drain_timeout * 1000 * MS);
}

void daemon_stop(struct daemon *d)
{
    d->state = DAEMON_STOPPED;
}

void daemon_settings_changed(struct daemon *d)
{
    static const struct {
        const char *word;
        enum log_level level;
    } levels[] = {{"error", LOG_LEVEL_ERROR},
                  {"warning", LOG_LEVEL_WARNING},
                  {"info", LOG_LEVEL_INFO},
                  {"debug", LOG_LEVEL_DEBUG}};
    for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++)
        if (strcmp(levels[i].word, d->config.settings->log_level) == 0)
            d->config.log->level = levels[i].level;
    set_weights(d);
    d->clients->has_credit = true; /* a quota may have grown */
}

/* ---- a turn ---------------------------------------------------------------------------------- */

/* Logged the first time, the second, the fourth, and so on: one bug may show at every step. */
static void count_violations(struct daemon *d, const struct engine_stats *now)
{
    uint64_t n = now->n_violations;
    if (n == d->seen.n_violations)
        return;
    cb_stats_add(d->config.stats, CB_STAT_violations, n - d->seen.n_violations);
    if ((n & (n - 1)) == 0)
        log_warnx(d->config.log,
                  "the bookkeeping contradicted itself, time %" PRIu64 ", and was repaired; "
                  "requests may have failed with CB_INTERNAL (%s): please report this",
                  n, now->violation);
}

/* The counters go on in memory of our own, but nobody sees them there. */
static void look_after_status(struct daemon *d)
{
    if (d->is_status_lost || !guard_is_broken(d->config.status_guard))
        return;
    d->is_status_lost = true;
    log_warnx(d->config.log, "the STATUS page was cut short by a process of this user: it shows "
                             "nothing until a restart; all else goes on");
}

/* Publishes what the engine counted since the last turn, which began then; notes whether anything
 * moved. */
static void count(struct daemon *d, uint64_t begun_ns)
{
    struct engine_stats now;
    struct cb_stats_page *page = d->config.stats;
    engine_stats(d->engine, &now);
    look_after_status(d);
    cb_stats_add(page, CB_STAT_steps, now.n_steps - d->seen.n_steps);
    cb_stats_add(page, CB_STAT_tokens_prefill, now.n_prefill_tokens - d->seen.n_prefill_tokens);
    cb_stats_add(page, CB_STAT_tokens_decode, now.n_decode_tokens - d->seen.n_decode_tokens);
    cb_stats_add(page, CB_STAT_tokens_prefix_hit,
                 now.n_prefix_hit_tokens - d->seen.n_prefix_hit_tokens);
    cb_stats_add(page, CB_STAT_prefix_hits, now.n_prefix_hits - d->seen.n_prefix_hits);
    cb_stats_add(page, CB_STAT_soft_resets, now.n_soft_resets - d->seen.n_soft_resets);
    cb_stats_add(page, CB_STAT_forks, now.n_forks - d->seen.n_forks);
    cb_stats_add(page, CB_STAT_offloads, now.n_offloads - d->seen.n_offloads);
    cb_stats_add(page, CB_STAT_restores, now.n_restores - d->seen.n_restores);
    cb_stats_add(page, CB_STAT_tokens_recomputed,
                 now.n_recomputed_tokens - d->seen.n_recomputed_tokens);
    cb_stats_set(page, CB_STAT_blocks_aside, now.n_pool_blocks - now.n_free_pool_blocks);
    count_violations(d, &now);
    cb_stats_add(page, CB_STAT_restarts, now.n_restarts - d->seen.n_restarts);
    cb_stats_add(page, CB_STAT_blocks_evicted, now.n_evicted_blocks - d->seen.n_evicted_blocks);
    cb_stats_add(page, CB_STAT_model_ns, now.model_ns - d->seen.model_ns);
    cb_stats_set(page, CB_STAT_requests_active, now.n_active);
    cb_stats_set(page, CB_STAT_requests_waiting, now.n_waiting);
    cb_stats_set(page, CB_STAT_blocks_free, now.n_free_blocks);
    cb_stats_set(page, CB_STAT_blocks_cached, now.n_cached_blocks);
    cb_stats_set(page, CB_STAT_requests_paused, d->clients->n_paused);
    bool has_work = should_move(d, &now);
    if (now.n_steps != d->seen.n_steps)
        d->progress_ns = clock_now(d->config.clock);
    else if (!has_work)
        d->progress_ns = begun_ns;
    if (has_work && d->watchdog.at_ns == 0)
        loop_timer_set(d->config.loop, &d->watchdog,
                       d->progress_ns + d->config.settings->watchdog_ms * MS);
    else if (!has_work)
        loop_timer_clear(&d->watchdog);
    d->seen = now;
}

/* The engine has other weights: whoever is to know is told. */
static void weights_changed(struct daemon *d)
{
    const struct model_info *info = model_info(d->config.model);
    memcpy(d->clients->config.fingerprint, info->fingerprint, sizeof info->fingerprint);
    cb_stats_set_fingerprint(d->config.stats, info->fingerprint);
    /* Requests may have ended: the sums that STATUS shows hold now, not a turn later. */
    count(d, clock_now(d->config.clock));
    d->clients->config.weight_epoch = d->seen.weight_epoch;
    clients_notice(d->clients, CB_NOTICE_WEIGHTS, d->seen.weight_epoch & 1);
}

/* Where the time of a turn went that had work; `before`: what was seen before it. */
static void count_time(struct daemon *d, const struct engine_stats *before, uint64_t turn_ns)
{
    struct cb_stats_page *page = d->config.stats;
    uint64_t n_steps = d->seen.n_steps - before->n_steps;
    uint64_t model_ns = d->seen.model_ns - before->model_ns;
    uint64_t own_ns = turn_ns > model_ns ? turn_ns - model_ns : 0;
    uint64_t schedule_ns = d->seen.schedule_ns - before->schedule_ns;
    uint64_t deliver_ns = d->seen.own_ns - before->own_ns - schedule_ns + d->deliver.flush_ns;
    uint64_t known_ns = schedule_ns + deliver_ns;
    cb_stats_add(page, CB_STAT_own_ns, own_ns);
    cb_stats_add(page, CB_STAT_schedule_ns, schedule_ns);
    cb_stats_add(page, CB_STAT_deliver_ns, deliver_ns);
    cb_stats_add(page, CB_STAT_intake_ns, own_ns > known_ns ? own_ns - known_ns : 0);
    if (n_steps) {
        cb_stats_observe(page, CB_TIMING_step_model_ns, model_ns / n_steps, n_steps);
        cb_stats_observe(page, CB_TIMING_step_own_ns, own_ns, 1);
    }
}

void daemon_turn(struct daemon *d)
{
    uint64_t begun_ns = clock_now(d->config.clock);
    struct engine_stats before = d->seen;
    control_begin_turn(d->control, begun_ns);
    /* Who has just rung waits. His bell's record is no part of that: it is read when he is served. */
    bool was_woken = d->is_woken;
    if (!was_woken)
        (void)loop_serve(d->config.loop);
    d->is_woken = false;
    if (d->state == DAEMON_STOPPED)
        return;
    pauses_settle(&d->pauses);
    loading_settle(d);
    bool more = intake_drain(d->intake);
    int r = engine_step(d->engine);
    deliver_flush(&d->deliver);
    count(d, begun_ns);
    bool works = r != ENGINE_IDLE || more;
    uint64_t turn_ns = works ? clock_now(d->config.clock) - begun_ns : 0;
    bool loads = loading_turn(d, weights_changed);
    if (works) {
        d->step_us += ((double)turn_ns / 1000 - d->step_us) / 16;
        d->idle_since_ns = 0;
        d->worked_ns = begun_ns + turn_ns;
        count_time(d, &before, turn_ns);
        if (r == ENGINE_RUNNING && strcmp(d->config.settings->wait_mode, "spin") != 0) {
            bells_settle(&d->clients->bells);
            (void)loop_sleep(d->config.loop, DEVICE_POLL_NS);
        }
        return;
    }
    if (loads || was_woken)
        return;
    if (d->state == DAEMON_DRAINING && d->seen.n_active + d->seen.n_waiting == 0) {
        daemon_stop(d);
        return;
    }
    /* A block takes milliseconds. Who sends one request after the other would wait for one each. */
    if (!d->is_populated && begun_ns - d->worked_ns >= SLEEP_QUIET_NS) {
        d->is_populated = engine_populate_some(d->engine, POPULATE_BYTES) != ENGINE_MORE;
        return;
    }
    /* Credit that came back since intake looked may be what a lane waits for, and nobody rings. */
    if (!d->clients->has_credit && !sleep_is_early(d, begun_ns))
        sleep_until_something(d);
}

int daemon_check(const struct daemon *d, const char **whyp)
{
    uint32_t n_running = 0;
    int r = engine_check(d->engine, whyp);
    if (r == 0)
        r = clients_check(d->clients, whyp);
    for (uint32_t i = 0; i < d->clients->n_clients; i++)
        if (d->clients->table[i].state != CLIENT_FREE)
            n_running += d->clients->table[i].n_running;
    if (r == 0 && n_running != d->seen.n_active + d->seen.n_waiting) {
        struct engine_stats now;
        engine_stats(d->engine, &now);
        if (n_running != now.n_active + now.n_waiting) {
            *whyp = "engine and clients disagree about how many requests run";
            r = -EUCLEAN;
        }
    }
    return r;
}
