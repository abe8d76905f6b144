/* daemon/clients.h - who is connected: their lanes, and their death.
 *
 * A fixed table, made at start; lanes themselves are fresh memory from the kernel, never the heap.
 * Each connection belongs to a uid, and everything it uses is charged to that uid's quota
 * (daemon/quota.h) before it is used and given back on every path: connections, half-open ones,
 * lanes, bytes, requests, prompt tokens that wait. What it may have is asked when it wants a lane,
 * not when it connects: who only gives commands is held by a limit of his own, so that a user with
 * all his lanes in use, or held off for broken ones, can still look and cancel.
 *
 *   FREE ─▶ CONNECTED ─▶ WELCOMED ─▶ LIVE ─▶ GONE ─▶ FREE
 *                │                            ▲
 *                └▶ ADMIN      every state ───┘
 *
 * GONE: socket and segments are closed, quota of the lane is returned; requests that the engine
 * still holds were cancelled, and the entry is free once their ends were reported.
 *
 * A client's death is its pidfd, the end of its socket, a broken rule, or an administrator: never
 * its silence. Loop thread only. */
#ifndef CB_DAEMON_CLIENTS_H
#define CB_DAEMON_CLIENTS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/base/list.h"
#include "daemon/bells.h"
#include "daemon/chores.h"
#include "daemon/lane_memory.h"
#include "daemon/loop.h"
#include "daemon/quota.h"
#include "daemon/settings.h"
#include "daemon/uids.h"
#include "shm/control.h"
#include "shm/lane.h"
#include "shm/lease.h"
#include "shm/stats.h"

/* Connections beside all lanes: for handshakes and commands, and the last of them only for those
 * who may administer. */
#define CLIENTS_SPARE        64
#define CLIENTS_RESERVED     8
#define CLIENTS_ADMINS_A_UID 32 /* connections that give commands; no other limit holds them */
#define CLIENTS_PATIENCE_NS  2000000000ull /* for a handshake, or to take a piece of an answer */

struct control;
struct engine;
struct request;

enum client_state {
    CLIENT_FREE,
    CLIENT_CONNECTED, /* nothing but a socket; two seconds to change that */
    CLIENT_ADMIN,     /* sent a command                                   */
    CLIENT_WELCOMED,  /* has a lane, READY is awaited                     */
    CLIENT_LIVE,
    CLIENT_GONE,
};

/* A lane's slot while the engine has its request; the engine's `owner`. */
struct client_slot {
    struct client *client;
    struct request *request; /* NULL: none runs */
    uint64_t accepted_ns;
    uint64_t last_token_ns; /* 0: it has none yet */
    uint32_t slot, n_prompt;
};

struct client {
    struct clients *clients;
    enum client_state state;
    uint32_t lane_id; /* counts connections; never 0, never used twice in a boot */
    uint32_t n_offences;
    struct loop_watch sock, pid;
    struct loop_timer patience; /* it owes its handshake, or to take its answer */
    struct cb_lease lease;
    struct quota *quota;
    bool may_admin;
    bool holds_pause; /* while it is connected, no step runs (daemon/pause.h) */

    struct cb_lane *lane; /* WELCOMED and LIVE only */
    struct lane_memory memory;
    struct client_slot *slots; /* [geometry.n_slots], in memory.record */
    struct cb_geometry geometry;
    uint32_t wake;     /* enum cb_wake                         */
    uint64_t features; /* agreed: of what shm/control.h offers */
    uint32_t n_running;
    uint64_t bytes; /* charged */
    bool waits;     /* cb_lane_wait was called: for credit outside the lane */
    bool is_paused; /* its requests are not run: its own wish */

    void *reply;         /* control's: the answer being sent */
    struct list waiting; /* chores': among those whose socket is not read now */
    struct list link;    /* of the quota's live clients, else of the free ones */
};

struct clients_config {
    const struct settings *settings;
    const struct clock *clock;
    struct log *log;
    struct loop *loop;
    struct cb_stats_page *stats;
    uint32_t n_vocab, n_context;
    uint64_t boot_id[2], fingerprint[2];
    uint32_t weight_epoch;  /* of fingerprint */
    uint64_t first_cursor;  /* tests begin near 2^64 */
    gid_t admin_group;      /* (gid_t)-1: none       */
    struct uids named_uids; /* who may have lanes by name */
};

struct clients {
    struct clients_config config;
    struct engine *engine;   /* set once it exists */
    struct control *control; /* whose handlers the sockets have; set once it exists */
    struct client *table;
    struct quotas *quotas;
    uint32_t n_clients, n_connections, n_lanes, n_named, last_lane_id;
    uint64_t lane_bytes;
    uint32_t n_paused;  /* requests of lanes that are paused, at the last look */
    uint32_t n_holders; /* clients with holds_pause */
    uint32_t notice;    /* state bits of every lane */
    struct list free;
    bool has_credit; /* some request ended since intake last looked */
    struct bells bells;
    struct chores chores;
};

/* 0 or -ENOMEM. */
int clients_new(struct clients **clientsp, const struct clients_config *config);
struct clients *clients_free(struct clients *c); /* closes all; no request runs any more */

/* Takes a connected socket with its lease. 0 and *clientp; or a negative cb_status with detail[2],
 * and socket and lease are still the caller's. `ready` is control's handler of the socket. */
int clients_connect(struct clients *c, int fd, const struct cb_lease *lease,
                    void (*ready)(struct loop_watch *w, uint32_t events), struct client **clientp,
                    uint32_t detail[2]);

/* Its socket is not read for a while, and is again: of its patience with the handshake nothing is lost. */
void clients_wait(struct client *cl, bool waits);

/* Gives a CONNECTED client the lane that hello (checked by control) asks for: WELCOMED. 0, and
 * fds[2] (UP, DOWN) are the caller's to pass and close, unless the lane has names
 * (memory.names); or a negative cb_status with detail[2]. */
int clients_lane_open(struct clients *c, struct client *cl, const struct cb_hello *hello,
                      int fds[2], uint32_t detail[2]);
/* READY came. */
void clients_lane_live(struct clients *c, struct client *cl);

/* It sent a command: no longer half-open. 0, or CB_QUOTA with detail[2]: its uid has too many that
 * do. */
int clients_is_admin(struct clients *c, struct client *cl, uint32_t detail[2]);

/* Ends it: why is CB_CLOSED_NO for one without a lane. Its running requests are cancelled. Fine on
 * one that is GONE. */
void clients_close(struct clients *c, struct client *cl, enum cb_closed why);

/* Publishes what happened in a lane and rings its client if it sleeps; closes it if it is
 * broken. */
void clients_flush(struct clients *c, struct client *cl);

/* The slot's request is over (deliver), or was accepted (intake): charges. */
void clients_request_taken(struct clients *c, struct client_slot *s, struct request *request,
                           uint32_t n_prompt, uint64_t now_ns);
void clients_request_over(struct clients *c, struct client_slot *s);

/* Sets or clears a state bit of every lane, also of those to come. */
void clients_notice(struct clients *c, uint32_t bit, bool on);

/* Whether its connection keeps steps from running. */
void clients_hold_pause(struct clients *c, struct client *cl, bool holds);

/* The client of that lane, or NULL. */
struct client *clients_find(struct clients *c, uint32_t lane_id);

/* 0, or -EUCLEAN and *whyp a sentence: counts against the table, and every lane's own audit. */
int clients_check(const struct clients *c, const char **whyp);

#endif
