/* daemon/daemon.h - the whole daemon on one loop: what main runs, and the simulation.
 *
 * Made of a loop, a model and the segments that every client gets, and told who answers operators;
 * makes engine, clients, intake, deliver and control, and turns them. One thread, one writer of all
 * state. Nothing allocates after daemon_new, but where other weights are loaded.
 *
 *   SERVING ──drain──▶ DRAINING ──nothing left, or drain_timeout──▶ STOPPED
 *       └────────────────stop─────────────────────────────────────────▲
 *
 * DRAINING: no new lane, no new request; what was accepted ends, and no pause keeps it from that but
 * its client's own. STOPPED with requests unfinished:
 * daemon_free closes their lanes as stopped and writes no end for them: what there is of them can go on
 * with the next daemon. */
#ifndef CB_DAEMON_DAEMON_H
#define CB_DAEMON_DAEMON_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/clients.h"
#include "daemon/control.h"
#include "daemon/deliver.h"
#include "daemon/engine.h"
#include "daemon/intake.h"
#include "daemon/loading.h"
#include "daemon/pause.h"
#include "daemon/settings_resolve.h"

struct daemon_config {
    struct settings *settings;
    const struct clock *clock;
    struct log *log;
    struct loop *loop;
    struct model *model;
    struct cb_stats_page *stats; /* filled by daemon_boot */
    const char *status_name;
    const char *vocab_name; /* as control.h has it */
    int status_fd, vocab_fd;
    int status_guard; /* of stats (daemon/guard.h); -1: none */
    uint64_t status_bytes, vocab_bytes;
    uint64_t boot_id[2];
    uint64_t first_cursor;
    gid_t admin_group;
    struct uids named_uids;  /* as clients.h has it */
    control_command command; /* answers operators (daemon/admin.h) */
    const char *sandbox;     /* in words (sandbox.h), for daemon_boot only; NULL: off */
};

enum daemon_state { DAEMON_SERVING, DAEMON_DRAINING, DAEMON_STOPPED };

struct daemon {
    struct daemon_config config;
    enum daemon_state state;
    struct engine *engine;
    struct clients *clients;
    struct intake *intake;
    struct control *control;
    struct deliver deliver;
    struct pauses pauses;
    struct loading loading; /* of other weights */
    struct loop_timer drain_due, watchdog;
    struct engine_stats seen; /* at the last turn */
    uint64_t progress_ns;     /* when work last moved, or there was none */
    uint64_t idle_since_ns;   /* 0: it works */
    double step_us;           /* average of recent steps, for the spin */
    uint64_t worked_ns;       /* when the last turn with work ended */
    bool is_status_lost;      /* somebody cut the STATUS page short, which was said */
    bool is_populated;        /* every cache block has memory */
    bool may_spin;            /* there are cores to spin on   */
    bool is_woken;            /* what ended the sleep is seen to in the turn after this one */
};

/* What the settings depend on, as far as the model tells (NULL: it is not open yet). */
struct settings_facts daemon_facts(const struct model *model);

/* Whether the pool beside the cache, which the model has, is kept from being swapped out, and why not:
 * into text [bytes]. */
void daemon_say_pinned(const struct model_info *info, char *text, size_t bytes);

/* Facts of this boot for the STATUS page. */
void daemon_boot(const struct daemon_config *config, const char *version, uint64_t unix_s,
                 struct cb_stats_boot *boot);

/* 0 or negative errno, logged. All of config stays the caller's and outlives the daemon. */
int daemon_new(struct daemon **daemonp, const struct daemon_config *config);
struct daemon *daemon_free(struct daemon *d); /* NULL is fine; returns NULL */

/* One turn: serve, take, step, deliver; if there is nothing to do, sleep until something
 * happens. */
void daemon_turn(struct daemon *d);

/* Ends it: after what was accepted is done, or at once. Twice is fine. */
void daemon_drain(struct daemon *d, const char *why);
void daemon_stop(struct daemon *d);

/* LIVE rows of the settings were changed: what depends on them follows. */
void daemon_settings_changed(struct daemon *d);

/* 0, or -EUCLEAN and *whyp a sentence: engine, clients, lanes, and that they agree. For tests. */
int daemon_check(const struct daemon *d, const char **whyp);

#endif
