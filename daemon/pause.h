/* daemon/pause.h - who keeps the whole daemon from running steps.
 *
 * Holders are counted, and steps run again when there is none left. Some pauses are kept: they last
 * until somebody takes one back. Others are held by a connection, and end with it, however it
 * ends. Meanwhile requests are taken in and wait; cancels and deadlines end them as ever; lanes say
 * CB_NOTICE_PAUSED. Loop thread only. */
#ifndef CB_DAEMON_PAUSE_H
#define CB_DAEMON_PAUSE_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/clients.h"

struct pauses {
    struct engine *engine;
    struct clients *clients; /* which count the connections that hold one */
    uint32_t n_kept;
    bool is_on; /* as the engine was told */
};

void pauses_init(struct pauses *p, struct engine *engine, struct clients *clients);

/* One more; for `cl`, that its connection holds. At once: no step runs any more. 0, or CB_PAUSED: the
 * connection holds one already, or as many are kept as can be counted. */
int pauses_keep(struct pauses *p);
int pauses_hold(struct pauses *p, struct client *cl);

/* One less: the one that `cl` holds, else one that was kept. 0, or CB_NOT_PAUSED: neither is there. */
int pauses_end_one(struct pauses *p, struct client *cl);
void pauses_end_all(struct pauses *p);

/* Makes the engine do what the holders want. Once a turn, for connections that ended. */
void pauses_settle(struct pauses *p);

static inline uint32_t pauses_n_holders(const struct pauses *p)
{
    return p->n_kept + p->clients->n_holders;
}

#endif
