/* The world acts only inside wait and tell, which is where a real daemon can be overtaken without noticing:
 * all else it does is one thread's work on its own state and on shared words, whose races are the
 * business of the memory model's explorer. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>

#include "daemon/base/clock.h"
#include "daemon/loop_body.h"
#include "daemon/loop_sim.h"
#include "shm/doorbell.h"

#define TURN_NS_MOST  50000u /* virtual time that a turn of the loop takes */
#define ACTS_MOST     6u     /* acts of others between two turns */
#define ACTS_IN_SLEEP 1000u  /* then the loop is woken in any case, as by a signal */

struct loop_sim {
    struct loop base;
    struct virtual_clock *time;
    struct loop_world world;
    uint64_t random;
    struct pollfd *fds; /* [n_slots] scratch */
    uint32_t *idxs, *gens;
    uint32_t n_ready; /* of these, that a sleep found and nobody was told of */
    struct sim_rung { /* bells that nobody was told of, either */
        uint32_t idx, gen;
        int result;
    } * rung; /* [n_slots] */
    uint32_t n_rung;
};

static uint32_t draw(struct loop_sim *s, uint32_t n)
{
    s->random = s->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((s->random >> 33) % n);
}

static void sim_free(struct loop *l)
{
    struct loop_sim *s = (struct loop_sim *)l;
    loop_fini(l);
    free(s->fds);
    free(s->idxs);
    free(s->gens);
    free(s->rung);
    free(s);
}

static int sim_arm(struct loop *l, uint32_t idx, bool is_new)
{
    (void)l;
    (void)idx;
    (void)is_new;
    return 0;
}

static void sim_disarm(struct loop *l, uint32_t idx)
{
    (void)l;
    (void)idx;
}

/* How many watches are ready now; fds, idxs and gens hold them first. */
static uint32_t poll_all(struct loop_sim *s)
{
    uint32_t n = 0, n_ready = 0;
    for (uint32_t i = 0; i < s->base.n_slots; i++) {
        const struct loop_watch *w = s->base.slots[i].watch;
        if (!w || !w->is_active)
            continue;
        s->fds[n] =
            (struct pollfd){.fd = w->fd,
                            .events = (short)((w->events & LOOP_READ ? POLLIN | POLLRDHUP : 0) |
                                              (w->events & LOOP_WRITE ? POLLOUT : 0))};
        s->idxs[n] = i;
        s->gens[n++] = s->base.slots[i].gen;
    }
    if (poll(s->fds, n, 0) <= 0)
        return 0;
    for (uint32_t i = 0; i < n; i++)
        if (s->fds[i].revents) {
            s->fds[n_ready] = s->fds[i];
            s->idxs[n_ready] = s->idxs[i];
            s->gens[n_ready++] = s->gens[i];
        }
    return n_ready;
}

/* Calls the handlers of the n ready ones in a drawn order. Unless all must be told, some are kept
 * for later: they will still be ready then. */
static void tell(struct loop_sim *s, uint32_t n, bool all)
{
    while (n > 0) {
        uint32_t i = draw(s, n);
        short got = s->fds[i].revents;
        uint32_t idx = s->idxs[i], gen = s->gens[i];
        n--;
        s->fds[i] = s->fds[n];
        s->idxs[i] = s->idxs[n];
        s->gens[i] = s->gens[n];
        if (all || draw(s, 3))
            loop_ready(&s->base, idx, gen,
                       (got & POLLIN ? (uint32_t)LOOP_READ : 0u) |
                           (got & POLLOUT ? (uint32_t)LOOP_WRITE : 0u) |
                           (got & (POLLHUP | POLLERR | POLLRDHUP) ? (uint32_t)LOOP_HUP : 0u));
    }
}

static bool sim_wait(struct loop *l, uint64_t timeout_ns)
{
    struct loop_sim *s = (struct loop_sim *)l;
    uint64_t end_ns =
        timeout_ns > LOOP_FOREVER - s->time->now_ns ? LOOP_FOREVER : s->time->now_ns + timeout_ns;
    for (uint32_t i = 0;; i++) {
        s->n_ready = poll_all(s);
        if (s->n_ready || i >= ACTS_IN_SLEEP)
            return s->n_ready > 0;
        if (s->world.act(s->world.ctx)) {
            s->time->now_ns += draw(s, TURN_NS_MOST);
            continue;
        }
        uint64_t next_ns = s->world.next_ns(s->world.ctx);
        uint64_t at_ns = next_ns < end_ns ? next_ns : end_ns;
        if (at_ns == LOOP_FOREVER || at_ns <= s->time->now_ns)
            return false;
        s->time->now_ns = at_ns;
        if (at_ns == end_ns)
            return false;
    }
}

static void sim_tell(struct loop *l)
{
    struct loop_sim *s = (struct loop_sim *)l;
    uint32_t n_ready = s->n_ready, n_rung = s->n_rung;
    s->n_ready = s->n_rung = 0;
    for (uint32_t i = 0; i < n_rung; i++)
        loop_rung(l, s->rung[i].idx, s->rung[i].gen, s->rung[i].result);
    if (n_ready) {
        tell(s, n_ready, true);
        return;
    }
    s->time->now_ns += 1 + draw(s, TURN_NS_MOST);
    for (uint32_t i = draw(s, ACTS_MOST); i > 0 && s->world.act(s->world.ctx); i--)
        ;
    tell(s, poll_all(s), false);
}

static void sim_ring(struct loop *l, const uint32_t *idxs, uint32_t n)
{
    struct loop_sim *s = (struct loop_sim *)l;
    for (uint32_t i = 0; i < n; i++) {
        int result = cb_doorbell_send(l->slots[idxs[i]].watch->fd, CB_RECORD_BELL);
        if (s->n_rung < l->n_slots)
            s->rung[s->n_rung++] = (struct sim_rung){idxs[i], l->slots[idxs[i]].gen, result};
    }
}

static const struct loop_ops sim_ops = {
    .name = "simulation",
    .free = sim_free,
    .arm = sim_arm,
    .disarm = sim_disarm,
    .wait = sim_wait,
    .tell = sim_tell,
    .ring = sim_ring,
};

int loop_sim_new(struct loop **loopp, uint32_t n_watches, struct virtual_clock *time,
                 const struct clock *clock, struct log *log, uint64_t seed,
                 const struct loop_world *world)
{
    struct loop_sim *s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    s->time = time;
    s->world = *world;
    s->random = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    s->fds = calloc(n_watches, sizeof *s->fds);
    s->idxs = calloc(n_watches, sizeof *s->idxs);
    s->gens = calloc(n_watches, sizeof *s->gens);
    s->rung = calloc(n_watches, sizeof *s->rung);
    int r = s->fds && s->idxs && s->gens && s->rung
                ? loop_init(&s->base, &sim_ops, n_watches, clock, log)
                : -ENOMEM;
    if (r) {
        free(s->fds);
        free(s->idxs);
        free(s->gens);
        free(s->rung);
        free(s);
        return r;
    }
    *loopp = &s->base;
    return 0;
}
