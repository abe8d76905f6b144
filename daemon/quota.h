/* daemon/quota.h - what each uid uses of the daemon, and whether it is held off.
 *
 * An entry for each uid that is connected, from a table made at start. clients charges and gives
 * back; intake and control keep here what is fair between uids. What a uid may use is the settings'
 * business: nothing here refuses, but for the table being full.
 *
 * A broken lane holds its uid off for a second, the next one for two, up to BACKOFF_MOST. An entry
 * outlives its last connection only for that, or until it owes the loop no time (daemon/chores.h),
 * and gives way when the table is full: with it the count is forgotten. Loop thread only. */
#ifndef CB_DAEMON_QUOTA_H
#define CB_DAEMON_QUOTA_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/allowance.h"
#include "daemon/base/clock.h"
#include "daemon/base/list.h"

struct quota_use {
    uint32_t n_connections, n_half_open, n_admins, n_lanes, n_requests;
    uint64_t waiting_tokens, bytes;
};

struct quota {
    uid_t uid;
    struct quota_use use; /* clients charges it                      */
    uint32_t n_broken;    /* lanes closed for a broken rule          */
    uint64_t backoff_until_ns;
    struct allowance time;  /* of the loop, and ... */
    uint32_t n_chores;      /* ... what is being done for it now: chores' */
    uint64_t commands_turn; /* control's: n_commands were given in this turn */
    uint32_t n_commands;
    int64_t deficit;  /* intake's: what it may still take in this round */
    struct list link; /* of all quotas in use                           */
    struct list live; /* its live clients; intake turns it              */
};

struct quotas {
    const struct clock *clock;
    struct quota *table;
    uint32_t n_requests;    /* of all: clients' */
    struct list used, free; /* intake turns `used` */
};

/* A table of n entries; the clock outlives it. 0 or -ENOMEM. */
int quotas_new(struct quotas **quotasp, uint32_t n, const struct clock *clock);
struct quotas *quotas_free(struct quotas *qs); /* NULL is fine; returns NULL */

/* The uid's entry, a fresh one if it has none: to be charged, or given to quotas_settle. NULL: all
 * are in use. */
struct quota *quotas_of(struct quotas *qs, uid_t uid);

/* Something was given back, or was not charged after all: an entry without use is released, unless
 * its uid is held off, or owes time. */
void quotas_settle(struct quotas *qs, struct quota *q);

/* A lane of its was closed for a broken rule: no new one for a while. */
void quotas_hold_off(struct quotas *qs, struct quota *q);
bool quotas_holds_off(const struct quotas *qs, const struct quota *q);

/* Whether the entry says what was counted: 0, or -EUCLEAN and *whyp a sentence. */
int quota_check(const struct quota *q, const struct quota_use *counted, const char **whyp);

#endif
