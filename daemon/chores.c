/* Who waits has his socket out of the loop's sight, or a loop that is level triggered would never rest;
 * a timer looks whether the time has come. Its end is seen by its process's descriptor, and by the
 * hang-up that is always told. */
#include "daemon/chores.h"

#include "daemon/base/clock.h"
#include "daemon/clients.h"

#define TURN_LEAST_NS 1000000u  /* for chores in a turn, ... */
#define TURN_MOST_NS  25000000u /* ... between these */
#define LOOK_NS       5000000u  /* from one look at those who wait to the next */

static void due(struct loop_timer *t);

void chores_init(struct chores *ch, struct loop *loop, const struct clock *clock,
                 struct quotas *quotas, struct cb_stats_page *stats)
{
    *ch = (struct chores){.loop = loop, .clock = clock, .quotas = quotas, .stats = stats};
    allowance_init(&ch->accepting, clock_now(clock));
    list_init(&ch->waiting);
    loop_timer_init(&ch->due, due);
}

/* Whether there is anybody to be harmed. */
static bool others_run(const struct chores *ch, const struct quota *q)
{
    return ch->quotas->n_requests > (q ? q->use.n_requests : 0);
}

static bool turn_is_over(const struct chores *ch)
{
    return ch->turn_ns >= ch->most_ns && others_run(ch, NULL);
}

static bool is_spent(struct chores *ch, struct quota *q)
{
    return others_run(ch, q) && allowance_is_spent(&q->time, clock_now(ch->clock));
}

static void look_later(struct chores *ch)
{
    if (ch->due.at_ns == 0)
        loop_timer_set(ch->loop, &ch->due, clock_now(ch->clock) + LOOK_NS);
}

/* Those whose time has come are read again. */
static void look(struct chores *ch)
{
    struct list *l, *after;
    list_for_each (l, after, &ch->waiting) {
        struct client *cl = list_entry(l, struct client, waiting);
        if (is_spent(ch, cl->quota))
            continue;
        list_remove(&cl->waiting);
        if (loop_change(ch->loop, &cl->sock, LOOP_READ))
            clients_close(cl->clients, cl, CB_CLOSED_BYE);
        else
            clients_wait(cl, false);
    }
    if (ch->listener_waits &&
        !(others_run(ch, NULL) && allowance_is_spent(&ch->accepting, clock_now(ch->clock))))
        ch->listener_waits = loop_change(ch->loop, ch->listener, LOOP_READ) != 0;
    if (ch->listener_waits || !list_is_empty(&ch->waiting))
        look_later(ch);
}

static void due(struct loop_timer *t)
{
    look(list_entry(t, struct chores, due));
}

void chores_begin_turn(struct chores *ch, uint64_t now_ns)
{
    uint64_t quarter_ns = (now_ns - ch->begun_ns) / 4;
    ch->begun_ns = now_ns;
    ch->most_ns = quarter_ns < TURN_LEAST_NS  ? TURN_LEAST_NS
                  : quarter_ns > TURN_MOST_NS ? TURN_MOST_NS
                                              : quarter_ns;
    ch->turn_ns = 0;
    if (!others_run(ch, NULL) && (ch->listener_waits || !list_is_empty(&ch->waiting)))
        look(ch);
}

bool chores_may_end(const struct chores *ch)
{
    return !turn_is_over(ch);
}

bool chores_may_serve(struct chores *ch, struct client *cl)
{
    if (turn_is_over(ch)) {
        clients_wait(cl, false); /* that it is not done yet is not its fault */
        return false;
    }
    if (!is_spent(ch, cl->quota))
        return true;
    if (list_is_empty(&cl->waiting) && loop_change(ch->loop, &cl->sock, 0) == 0) {
        clients_wait(cl, true);
        list_append(&ch->waiting, &cl->waiting);
        look_later(ch);
        cb_stats_add(ch->stats, CB_STAT_held_back, 1);
    }
    return false;
}

bool chores_may_accept(struct chores *ch)
{
    if (turn_is_over(ch))
        return false;
    if (!others_run(ch, NULL) || !allowance_is_spent(&ch->accepting, clock_now(ch->clock)))
        return true;
    ch->listener_waits = loop_change(ch->loop, ch->listener, 0) == 0;
    look_later(ch);
    cb_stats_add(ch->stats, CB_STAT_held_back, 1);
    return false;
}

bool chores_may_take(struct chores *ch, struct quota *q)
{
    return !is_spent(ch, q);
}

uint64_t chores_now(const struct chores *ch)
{
    return clock_now(ch->clock);
}

void chores_hold(struct quota *q)
{
    q->n_chores++;
}

void chores_let_go(struct chores *ch, struct quota *q)
{
    q->n_chores--;
    quotas_settle(ch->quotas, q);
}

void chores_charge(struct chores *ch, struct quota *q, uint64_t *since_ns)
{
    uint64_t now = clock_now(ch->clock), ns = now - *since_ns;
    allowance_take(q ? &q->time : &ch->accepting, now, ns);
    ch->turn_ns += ns;
    *since_ns = now;
}
