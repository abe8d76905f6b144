/* Other weights while the daemon runs: a client asks for memory, fills it, and says so. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/admin_parts.h"
#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "daemon/replies.h"
#include "shm/status.h"

#define LEAST_BYTES_MAX (UINT64_C(1) << 20)

/* How large a file may be. */
static uint64_t bytes_max(const struct daemon *d)
{
    uint64_t twice = 2 * model_info(d->config.model)->file_bytes;
    if (d->config.settings->weights_bytes_max)
        return d->config.settings->weights_bytes_max;
    return twice > LEAST_BYTES_MAX ? twice : LEAST_BYTES_MAX;
}

int admin_stage_weights(struct daemon *d, struct client *who, const char *argument,
                        struct buf *reply)
{
    char why[STAGING_WHY_MAX], *end;
    uint64_t bytes = strtoull(argument, &end, 10);
    if (*argument < '0' || *argument > '9' || *end)
        return admin_fail(reply, CB_INVALID, "give the size of the file in bytes");
    if (bytes == 0)
        return admin_fail(reply, CB_BAD_WEIGHTS, "the file is empty");
    if (bytes > bytes_max(d)) {
        snprintf(why, sizeof why,
                 "the file has %" PRIu64 " bytes, and %" PRIu64 " are taken (weights_bytes_max)",
                 bytes, bytes_max(d));
        return admin_fail(reply, CB_BAD_WEIGHTS, why);
    }
    int status = staging_begin(&d->staging, who, bytes, why);
    if (status)
        return admin_fail(reply, status, why);
    replies_give(who, d->staging.fd);
    buf_u64(reply, "bytes", bytes);
    return CB_OK;
}

static enum on_new_weights wish_of(const struct settings *set)
{
    return strcmp(set->on_new_weights, "restart") == 0 ? ON_NEW_WEIGHTS_RESTART
           : strcmp(set->on_new_weights, "fail") == 0  ? ON_NEW_WEIGHTS_FAIL
                                                       : ON_NEW_WEIGHTS_CONTINUE;
}

static int refused(struct daemon *d, const struct client *who, struct buf *reply, int status,
                   const char *why)
{
    cb_stats_add(d->config.stats, CB_STAT_weights_refused, 1);
    log_warnx(d->config.log, "weights of uid %u were refused: %s", (unsigned)who->lease.uid, why);
    return admin_fail(reply, status, why);
}

/* 32 digits. */
static bool parse_hash(const char *text, uint64_t hash[2])
{
    char half[17];
    if (strlen(text) != 32 || strspn(text, "0123456789abcdef") != 32)
        return false;
    memcpy(half, text, 16);
    half[16] = 0;
    hash[0] = strtoull(half, NULL, 16);
    hash[1] = strtoull(text + 16, NULL, 16);
    return true;
}

int admin_load_weights(struct daemon *d, struct client *who, const char *argument,
                       struct buf *reply)
{
    char why[STAGING_WHY_MAX], message[MODEL_MESSAGE_MAX];
    struct engine_stats before, after;
    uint64_t hash[2], begun_ns = clock_now(d->config.clock);
    if (!parse_hash(argument, hash))
        return admin_fail(reply, CB_INVALID, "give the file's XXH3-128 as 32 hexadecimal digits");
    int status = staging_seal(&d->staging, who, hash, why);
    if (status == CB_BUSY || status == CB_INVALID)
        return admin_fail(reply, status, why);
    if (status)
        return refused(d, who, reply, status, why);
    engine_stats(d->engine, &before);
    int r = engine_load_weights(d->engine, d->staging.fd, "new weights",
                                wish_of(d->config.settings), message);
    staging_end(&d->staging);
    if (r)
        return refused(d, who, reply, r == -ENOMEM ? CB_NO_MEMORY : CB_BAD_WEIGHTS, message);
    engine_stats(d->engine, &after);
    daemon_weights_changed(d);
    uint64_t ms = (clock_now(d->config.clock) - begun_ns) / 1000000u;
    cb_stats_add(d->config.stats, CB_STAT_weights_loaded, 1);
    cb_stats_set(d->config.stats, CB_STAT_weight_epoch, after.weight_epoch);
    log_info(d->config.log, "weights %u, of uid %u, after %" PRIu64 " ms without a step",
             after.weight_epoch, (unsigned)who->lease.uid, ms);
    buf_u64(reply, "weight_epoch", after.weight_epoch);
    buf_u64(reply, "stall_ms", ms);
    buf_u64(reply, "restarted", after.n_restarts - before.n_restarts);
    return CB_OK;
}
