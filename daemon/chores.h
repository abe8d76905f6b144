/* daemon/chores.h - what the loop does for clients between two steps, so that it costs others nothing.
 *
 * To accept, shake hands, make a lane and take it down, read records and requests: all of that is
 * done on the thread that runs the steps, at the asking of whoever cares to ask. So its time is taken
 * from an allowance: each uid has one (daemon/quota.h), and there is one for accepting, when nobody
 * knows yet who it is. While others' requests run, a uid whose allowance is spent waits, its sockets
 * unread, until some has come back. And of a turn chores take a quarter at the most: those that find
 * it gone come in the next.
 *
 * Nobody waits for long in a daemon that has nothing else to do: without a request of somebody else
 * all are served at once, and before the loop sleeps nobody waits. Loop thread only. */
#ifndef CB_DAEMON_CHORES_H
#define CB_DAEMON_CHORES_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/allowance.h"
#include "daemon/base/list.h"
#include "daemon/loop.h"
#include "daemon/quota.h"
#include "shm/stats.h"

struct client;

struct chores {
    struct loop *loop;
    const struct clock *clock;
    struct quotas *quotas;
    struct cb_stats_page *stats;
    struct allowance accepting;
    struct loop_watch *listener; /* NULL: there is none */
    bool listener_waits;
    struct list waiting; /* clients whose sockets are not read */
    struct loop_timer due;
    uint64_t turn_ns;  /* taken in this turn, ... */
    uint64_t most_ns;  /* ... which begins no more when it is so much */
    uint64_t begun_ns; /* when it began */
};

void chores_init(struct chores *ch, struct loop *loop, const struct clock *clock,
                 struct quotas *quotas, struct cb_stats_page *stats);
/* Before each serve of the loop. */
void chores_begin_turn(struct chores *ch, uint64_t now_ns);

/* Whether a client's socket may be read now. False: in the next turn, or it is made to wait; its end
 * is told all the same. */
bool chores_may_serve(struct chores *ch, struct client *cl);
/* Whether one may be taken down now; if not, in the next turn. */
bool chores_may_end(const struct chores *ch);
/* Whether one more connection may be accepted now. */
bool chores_may_accept(struct chores *ch);
/* Whether a uid's requests may be taken in now. */
bool chores_may_take(struct chores *ch, struct quota *q);

uint64_t chores_now(const struct chores *ch);
/* The quota stays until it is let go, whatever comes of its clients. */
void chores_hold(struct quota *q);
void chores_let_go(struct chores *ch, struct quota *q);
/* All the time since then was taken for this uid, or, NULL, for accepting; *since_ns is now. */
void chores_charge(struct chores *ch, struct quota *q, uint64_t *since_ns);

#endif
