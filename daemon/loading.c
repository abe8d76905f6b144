/* In the loop's thread. One beside it would be in the way of the steps all the same, for both want all
 * cores; and here it is plain that a step sees the one set of weights or the other. */
#include "daemon/loading.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "daemon/admin_parts.h"
#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "shm/status.h"

void loading_init(struct loading *l)
{
    *l = (struct loading){.client = NULL};
    staging_init(&l->staging);
}

/* Nothing is loaded any more. */
static void forget(struct daemon *d)
{
    if (d->loading.client)
        engine_load_drop(d->engine);
    staging_end(&d->loading.staging);
    loading_init(&d->loading);
}

static int refused(struct daemon *d, const struct client *who, struct buf *reply, int status,
                   const char *why)
{
    cb_stats_add(d->config.stats, CB_STAT_weights_refused, 1);
    log_warnx(d->config.log, "weights of uid %u were refused: %s", (unsigned)who->lease.uid, why);
    return admin_fail(reply, status, why);
}

/* The answer is complete, and nothing is loaded any more. */
static void answer(struct daemon *d, int status)
{
    struct client *who = d->loading.client;
    forget(d);
    buf_close(control_reply(who), '}');
    control_answer(d->control, who, status);
}

static void refuse_late(struct daemon *d, int status, const char *why)
{
    struct client *who = d->loading.client;
    refused(d, who, control_reply(who), status, why);
    answer(d, status);
}

int loading_begin(struct daemon *d, struct client *who, const uint64_t hash[2], struct buf *reply)
{
    struct loading *l = &d->loading;
    char why[STAGING_WHY_MAX];
    struct engine_stats now;
    int status = staging_seal(&l->staging, who, hash, why);
    if (status == CB_BUSY || status == CB_INVALID)
        return admin_fail(reply, status, why);
    if (status)
        return refused(d, who, reply, status, why);
    engine_stats(d->engine, &now);
    l->client = who;
    l->n_steps = now.n_steps;
    return CONTROL_LATER;
}

static enum on_new_weights wish_of(const struct settings *set)
{
    return strcmp(set->on_new_weights, "restart") == 0 ? ON_NEW_WEIGHTS_RESTART
           : strcmp(set->on_new_weights, "fail") == 0  ? ON_NEW_WEIGHTS_FAIL
                                                       : ON_NEW_WEIGHTS_CONTINUE;
}

static void publish(struct daemon *d, void (*changed)(struct daemon *d))
{
    struct loading l = d->loading;
    struct engine_stats before, after;
    uint64_t begun_ns = clock_now(d->config.clock);
    engine_stats(d->engine, &before);
    engine_load_publish(d->engine, wish_of(d->config.settings));
    engine_stats(d->engine, &after);
    changed(d);
    uint64_t took_ns = clock_now(d->config.clock) - begun_ns;
    uint64_t stall_ms = (took_ns > l.stall_ns ? took_ns : l.stall_ns) / 1000000u;
    uint64_t n_steps = after.n_steps - l.n_steps;
    cb_stats_add(d->config.stats, CB_STAT_weights_loaded, 1);
    cb_stats_set(d->config.stats, CB_STAT_weight_epoch, after.weight_epoch);
    log_info(d->config.log,
             "weights %u, of uid %u: %" PRIu64 " steps ran meanwhile, none for %" PRIu64
             " ms at most",
             after.weight_epoch, (unsigned)l.client->lease.uid, n_steps, stall_ms);
    struct buf *reply = control_reply(l.client);
    buf_u64(reply, "weight_epoch", after.weight_epoch);
    buf_u64(reply, "stall_ms", stall_ms);
    buf_u64(reply, "steps", n_steps);
    buf_u64(reply, "restarted", after.n_restarts - before.n_restarts);
    answer(d, CB_OK);
}

/* 0: all is there; above: there is more; below: it was refused. */
static int slice(struct daemon *d)
{
    struct loading *l = &d->loading;
    char why[STAGING_WHY_MAX], message[MODEL_MESSAGE_MAX];
    int r;
    if (!l->is_checked) {
        int status = staging_check(&l->staging, why);
        if (status < 0)
            refuse_late(d, status, why);
        if (status)
            return status;
        l->is_checked = true;
        r = engine_load_begin(d->engine, l->staging.fd, "new weights", message);
        r = r ? r : ENGINE_MORE;
    } else {
        r = engine_load_some(d->engine, message);
    }
    if (r < 0)
        refuse_late(d, r == -ENOMEM ? CB_NO_MEMORY : CB_BAD_WEIGHTS, message);
    return r;
}

bool loading_turn(struct daemon *d, void (*changed)(struct daemon *d))
{
    struct loading *l = &d->loading;
    if (!l->client)
        return false;
    uint64_t begun_ns = clock_now(d->config.clock);
    int r = slice(d);
    uint64_t took_ns = clock_now(d->config.clock) - begun_ns;
    if (l->client && took_ns > l->stall_ns)
        l->stall_ns = took_ns;
    if (r == 0)
        publish(d, changed);
    return true;
}

void loading_settle(struct daemon *d)
{
    struct loading *l = &d->loading;
    staging_settle(&l->staging);
    if (!l->client || l->staging.fd >= 0)
        return;
    log_info(d->config.log, "who was loading other weights has gone: they are given up");
    forget(d);
}

void loading_drop(struct daemon *d)
{
    forget(d);
}
