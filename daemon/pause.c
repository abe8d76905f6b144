/* Nothing is told to this module when a connection ends: the clients count holders, and the count is
 * looked at once a turn. So no end of a connection can be forgotten here. */
#include "daemon/pause.h"

#include "daemon/engine.h"
#include "shm/status.h"

#define KEPT_MAX 1000000u

void pauses_init(struct pauses *p, struct engine *engine, struct clients *clients)
{
    *p = (struct pauses){.engine = engine, .clients = clients};
}

void pauses_settle(struct pauses *p)
{
    bool on = pauses_n_holders(p) > 0;
    if (on == p->is_on)
        return;
    p->is_on = on;
    engine_pause(p->engine, on);
    cb_stats_set(p->clients->config.stats, CB_STAT_paused, on);
    clients_notice(p->clients, CB_NOTICE_PAUSED, on);
}

int pauses_keep(struct pauses *p)
{
    if (p->n_kept == KEPT_MAX)
        return CB_PAUSED;
    p->n_kept++;
    pauses_settle(p);
    return 0;
}

int pauses_hold(struct pauses *p, struct client *cl)
{
    if (cl->holds_pause)
        return CB_PAUSED;
    clients_hold_pause(p->clients, cl, true);
    pauses_settle(p);
    return 0;
}

int pauses_end_one(struct pauses *p, struct client *cl)
{
    if (cl->holds_pause)
        clients_hold_pause(p->clients, cl, false);
    else if (p->n_kept > 0)
        p->n_kept--;
    else
        return CB_NOT_PAUSED;
    pauses_settle(p);
    return 0;
}

void pauses_end_all(struct pauses *p)
{
    p->n_kept = 0;
    for (uint32_t i = 0; i < p->clients->n_clients; i++)
        clients_hold_pause(p->clients, &p->clients->table[i], false);
    pauses_settle(p);
}
