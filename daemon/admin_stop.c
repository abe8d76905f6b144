/* Commands that change whether the daemon works at all. */
#include <stdio.h>
#include <string.h>

#include "daemon/admin_parts.h"
#include "daemon/base/log.h"
#include "shm/status.h"

static void put_holders(const struct daemon *d, struct buf *reply)
{
    buf_string(reply, "state", d->pauses.is_on ? "paused" : "running");
    buf_u64(reply, "holders", pauses_n_holders(&d->pauses));
    buf_u64(reply, "kept", d->pauses.n_kept);
}

int admin_pause(struct daemon *d, struct client *who, const char *argument, struct buf *reply)
{
    bool holds = strcmp(argument, "hold") == 0;
    if (*argument && !holds)
        return admin_fail(reply, CB_INVALID, "give nothing, or hold");
    if (d->state != DAEMON_SERVING)
        return admin_fail(reply, CB_DRAINING, NULL);
    int status = holds ? pauses_hold(&d->pauses, who) : pauses_keep(&d->pauses);
    if (status)
        return admin_fail(reply, status, "this connection holds a pause already");
    log_info(d->config.log, "paused by uid %u%s; %u holders", (unsigned)who->lease.uid,
             holds ? ", for as long as it stays" : "", pauses_n_holders(&d->pauses));
    put_holders(d, reply);
    return CB_OK;
}

int admin_resume(struct daemon *d, struct client *who, const char *argument, struct buf *reply)
{
    bool all = strcmp(argument, "all") == 0;
    char why[160];
    if (*argument && !all)
        return admin_fail(reply, CB_INVALID, "give nothing, or all");
    if (all && pauses_n_holders(&d->pauses) > 0) {
        pauses_end_all(&d->pauses);
    } else if (all || pauses_end_one(&d->pauses, who)) {
        snprintf(why, sizeof why, "nobody left the daemon paused; %u connections hold it so now",
                 pauses_n_holders(&d->pauses));
        return admin_fail(reply, CB_NOT_PAUSED, pauses_n_holders(&d->pauses) ? why : NULL);
    }
    log_info(d->config.log, "resumed by uid %u; %u holders are left", (unsigned)who->lease.uid,
             pauses_n_holders(&d->pauses));
    put_holders(d, reply);
    return CB_OK;
}

/* No new requests; what was accepted ends. While it is paused that would never be. */
static int flush(struct daemon *d, const char *why, struct buf *reply)
{
    if (d->pauses.is_on)
        return admin_fail(reply, CB_PAUSED, NULL);
    daemon_drain(d, why);
    buf_string(reply, "state", "draining");
    buf_u64(reply, "active", d->seen.n_active);
    buf_u64(reply, "waiting", d->seen.n_waiting);
    return CB_OK;
}

int admin_drain(struct daemon *d, struct client *who, const char *argument, struct buf *reply)
{
    (void)who;
    (void)argument;
    return flush(d, "by command", reply);
}

int admin_stop(struct daemon *d, struct client *who, const char *argument, struct buf *reply)
{
    if (!*argument)
        return flush(d, "stopped by command", reply);
    if (strcmp(argument, "hard") != 0)
        return admin_fail(reply, CB_INVALID, "give nothing, or hard");
    log_info(d->config.log, "stopped hard by uid %u", (unsigned)who->lease.uid);
    daemon_stop(d);
    buf_string(reply, "state", "stopped");
    return CB_OK;
}
