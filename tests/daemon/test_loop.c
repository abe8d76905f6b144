/* Every test runs on all three bodies: what loop.h promises holds whichever waits. */
#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "daemon/loop_sim.h"
#include "shm/control.h"

#define N_WATCHES 8

enum { URING, EPOLL, SIM, N_BODIES };

struct rig {
    struct loop *loop;
    struct virtual_clock time;
    struct clock clock;
    struct log log;
    int body;
};

static bool nobody_acts(void *ctx)
{
    (void)ctx;
    return false;
}

static uint64_t never(void *ctx)
{
    (void)ctx;
    return LOOP_FOREVER;
}

/* False: this machine refuses io_uring, and then that body is no one's. */
static bool rig_init(struct rig *g, int body)
{
    const struct loop_world world = {.act = nobody_acts, .next_ns = never};
    g->body = body;
    virtual_clock_init(&g->time, &g->clock);
    if (body != SIM)
        g->clock = clock_monotonic;
    log_init(&g->log, -1, LOG_LEVEL_ERROR, &g->clock);
    int r = body == SIM ? loop_sim_new(&g->loop, N_WATCHES, &g->time, &g->clock, &g->log, 1, &world)
                        : loop_new(&g->loop, body == URING ? LOOP_URING : LOOP_EPOLL, N_WATCHES,
                                   &g->clock, &g->log);
    if (body == URING && (r == -EPERM || r == -ENOSYS || r == -ENOTSUP))
        return false;
    cr_assert_eq(r, 0);
    return true;
}

struct seen {
    struct loop_watch watch;
    struct loop_timer timer;
    struct rig *rig;
    struct seen *other;
    uint32_t n, events, n_rung;
    int result;
    bool reads, leaves, removes_other;
};

static void on_ready(struct loop_watch *w, uint32_t events)
{
    struct seen *s = list_entry(w, struct seen, watch);
    uint64_t value;
    s->n++;
    s->events |= events;
    if (s->reads)
        (void)!read(w->fd, &value, sizeof value);
    if (s->leaves)
        loop_unwatch(s->rig->loop, w);
    if (s->removes_other)
        loop_unwatch(s->rig->loop, &s->other->watch);
}

static void on_rung(struct loop_watch *w, int result)
{
    struct seen *s = list_entry(w, struct seen, watch);
    s->n_rung++;
    s->result = result;
}

static void seen_init(struct seen *s, struct rig *g, int fd)
{
    memset(s, 0, sizeof *s);
    s->rig = g;
    s->watch.fd = fd;
    s->watch.ready = on_ready;
    s->watch.rung = on_rung;
}

static int event_fd(uint64_t value)
{
    int fd = eventfd((unsigned)value, EFD_CLOEXEC | EFD_NONBLOCK);
    cr_assert_geq(fd, 0);
    return fd;
}

static void post(int fd)
{
    const uint64_t one = 1;
    cr_assert_eq(write(fd, &one, sizeof one), (ssize_t)sizeof one);
}

static void pair_of(int pair[2])
{
    cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
}

/* Turns until *n has reached at least `want`; simulation may keep news back, others deliver at once
 * or soon. */
static void turn_until(struct rig *g, const uint32_t *n, uint32_t want)
{
    for (int i = 0; i < 1000 && *n < want; i++)
        (void)loop_sleep(g->loop, 10000000);
    cr_assert_geq(*n, want);
}

#define ON_ALL_BODIES(g)                        \
    for (int body = 0; body < N_BODIES; body++) \
        if (rig_init(&(g), body))

Test(loop, tells_of_a_ready_descriptor_again_and_again, .timeout = 10)
{
    struct rig g;
    ON_ALL_BODIES(g)
    {
        struct seen s;
        seen_init(&s, &g, event_fd(1));
        cr_assert_eq(loop_watch(g.loop, &s.watch, LOOP_READ), 0);
        turn_until(&g, &s.n, 5); /* never read: still ready */
        cr_assert_eq(s.events, LOOP_READ);
        s.reads = true;
        turn_until(&g, &s.n, s.n + 1);
        uint32_t n = s.n;
        for (int i = 0; i < 20; i++)
            (void)loop_serve(g.loop);
        cr_assert_eq(s.n, n, "%s: told of what was read", loop_name(g.loop));
        post(s.watch.fd);
        turn_until(&g, &s.n, n + 1);
        loop_unwatch(g.loop, &s.watch);
        close(s.watch.fd);
        loop_free(g.loop);
    }
}

Test(loop, does_not_wait_when_it_serves, .timeout = 10)
{
    struct rig g;
    ON_ALL_BODIES(g)
    {
        cr_assert_eq(loop_serve(g.loop), 0);
        loop_free(g.loop);
    }
}

Test(loop, forgets_what_is_unwatched, .timeout = 10)
{
    struct rig g;
    ON_ALL_BODIES(g)
    {
        struct seen a, b;
        seen_init(&a, &g, event_fd(1));
        cr_assert_eq(loop_watch(g.loop, &a.watch, LOOP_READ), 0);
        (void)loop_serve(g.loop); /* armed, perhaps told already */
        loop_unwatch(g.loop, &a.watch);
        loop_unwatch(g.loop, &a.watch);
        uint32_t n = a.n;
        seen_init(&b, &g, event_fd(0)); /* takes its place: late news must not reach it */
        cr_assert_eq(loop_watch(g.loop, &b.watch, LOOP_READ), 0);
        for (int i = 0; i < 20; i++)
            (void)loop_serve(g.loop);
        cr_assert_eq(a.n, n);
        cr_assert_eq(b.n, 0);
        close(a.watch.fd);
        loop_unwatch(g.loop, &b.watch);
        close(b.watch.fd);
        loop_free(g.loop);
    }
}

Test(loop, handlers_may_remove_themselves_and_others, .timeout = 10)
{
    struct rig g;
    ON_ALL_BODIES(g)
    {
        struct seen a, b;
        seen_init(&a, &g, event_fd(1));
        seen_init(&b, &g, event_fd(1));
        a.other = &b;
        b.other = &a;
        a.leaves = b.leaves = a.removes_other = b.removes_other = true;
        cr_assert_eq(loop_watch(g.loop, &a.watch, LOOP_READ), 0);
        cr_assert_eq(loop_watch(g.loop, &b.watch, LOOP_READ), 0);
        for (int i = 0; i < 100; i++)
            (void)loop_serve(g.loop);
        cr_assert_eq(a.n + b.n, 1, "%s", loop_name(g.loop));
        close(a.watch.fd);
        close(b.watch.fd);
        loop_free(g.loop);
    }
}

Test(loop, tells_of_a_peer_that_hangs_up, .timeout = 10)
{
    struct rig g;
    ON_ALL_BODIES(g)
    {
        struct seen s;
        int pair[2];
        pair_of(pair);
        seen_init(&s, &g, pair[0]);
        cr_assert_eq(loop_watch(g.loop, &s.watch, LOOP_READ), 0);
        (void)loop_serve(g.loop);
        cr_assert_eq(s.n, 0);
        close(pair[1]);
        turn_until(&g, &s.n, 1);
        cr_assert(s.events & LOOP_HUP);
        loop_unwatch(g.loop, &s.watch);
        close(pair[0]);
        loop_free(g.loop);
    }
}

/* A poll that is still in the ring would hold the socket open behind the peer's back. */
Test(loop, lets_go_of_a_descriptor_at_once, .timeout = 10)
{
    struct rig g;
    ON_ALL_BODIES(g)
    {
        struct seen s;
        int pair[2];
        char byte;
        pair_of(pair);
        seen_init(&s, &g, pair[0]);
        cr_assert_eq(loop_watch(g.loop, &s.watch, LOOP_READ), 0);
        (void)loop_serve(g.loop);
        loop_unwatch(g.loop, &s.watch);
        close(pair[0]);
        cr_assert_eq(recv(pair[1], &byte, 1, 0), 0, "%s: the peer sees no end", loop_name(g.loop));
        close(pair[1]);
        loop_free(g.loop);
    }
}

Test(loop, changes_what_it_watches_for, .timeout = 10)
{
    struct rig g;
    ON_ALL_BODIES(g)
    {
        struct seen s;
        int pair[2];
        pair_of(pair);
        seen_init(&s, &g, pair[0]);
        cr_assert_eq(loop_watch(g.loop, &s.watch, LOOP_READ), 0);
        (void)loop_serve(g.loop);
        cr_assert_eq(loop_change(g.loop, &s.watch, LOOP_WRITE), 0);
        turn_until(&g, &s.n, 1);
        cr_assert_eq(s.events, LOOP_WRITE);
        cr_assert_eq(loop_change(g.loop, &s.watch, LOOP_READ), 0);
        uint32_t n = s.n;
        for (int i = 0; i < 20; i++)
            (void)loop_serve(g.loop);
        cr_assert_eq(s.n, n, "%s", loop_name(g.loop));
        cr_assert_eq(send(pair[1], "x", 1, 0), 1);
        turn_until(&g, &s.n, n + 1);
        loop_unwatch(g.loop, &s.watch);
        close(pair[0]);
        close(pair[1]);
        loop_free(g.loop);
    }
}

Test(loop, refuses_more_watches_than_it_has_places, .timeout = 10)
{
    struct rig g;
    ON_ALL_BODIES(g)
    {
        struct seen s[N_WATCHES + 1];
        for (int i = 0; i <= N_WATCHES; i++) {
            seen_init(&s[i], &g, event_fd(0));
            cr_assert_eq(loop_watch(g.loop, &s[i].watch, LOOP_READ), i < N_WATCHES ? 0 : -ENOSPC);
        }
        loop_unwatch(g.loop, &s[0].watch);
        cr_assert_eq(loop_watch(g.loop, &s[N_WATCHES].watch, LOOP_READ), 0);
        for (int i = 0; i <= N_WATCHES; i++) {
            loop_unwatch(g.loop, &s[i].watch);
            close(s[i].watch.fd);
        }
        loop_free(g.loop);
    }
}

static void on_due(struct loop_timer *t)
{
    struct seen *s = list_entry(t, struct seen, timer);
    static uint32_t order;
    s->n++;
    s->events = ++order;
}

Test(loop, timers_come_due_in_their_order_and_not_before, .timeout = 10)
{
    struct rig g;
    ON_ALL_BODIES(g)
    {
        struct seen a, b, c;
        seen_init(&a, &g, -1);
        seen_init(&b, &g, -1);
        seen_init(&c, &g, -1);
        uint64_t now = clock_now(&g.clock);
        loop_timer_init(&a.timer, on_due);
        loop_timer_init(&b.timer, on_due);
        loop_timer_init(&c.timer, on_due);
        loop_timer_set(g.loop, &a.timer, now + 20000000);
        loop_timer_set(g.loop, &b.timer, now + 10000000);
        loop_timer_set(g.loop, &c.timer, now + 15000000);
        loop_timer_clear(&c.timer);
        (void)loop_serve(g.loop);
        for (int i = 0; i < 100 && a.n == 0; i++)
            (void)loop_sleep(g.loop, LOOP_FOREVER);
        cr_assert_eq(a.n, 1);
        cr_assert_eq(b.n, 1);
        cr_assert_eq(c.n, 0);
        cr_assert_lt(b.events, a.events);
        cr_assert_geq(clock_now(&g.clock), now + 20000000);
        loop_timer_set(g.loop, &a.timer, now); /* long past: due at once */
        cr_assert_eq(loop_serve(g.loop), 1);
        cr_assert_eq(a.n, 2);
        loop_free(g.loop);
    }
}

Test(loop, rings_each_once_a_flush, .timeout = 10)
{
    struct rig g;
    ON_ALL_BODIES(g)
    {
        struct seen s, gone;
        int pair[2], other[2];
        struct cb_plain_record record;
        pair_of(pair);
        pair_of(other);
        seen_init(&s, &g, pair[0]);
        seen_init(&gone, &g, other[0]);
        cr_assert_eq(loop_watch(g.loop, &s.watch, LOOP_READ), 0);
        cr_assert_eq(loop_watch(g.loop, &gone.watch, LOOP_READ), 0);
        loop_ring(g.loop, &s.watch);
        loop_ring(g.loop, &gone.watch);
        loop_ring(g.loop, &s.watch);
        loop_unwatch(g.loop, &gone.watch);
        loop_ring_flush(g.loop);
        loop_ring_flush(g.loop);
        for (int i = 0; i < 1000 && s.n_rung == 0; i++)
            (void)loop_serve(g.loop);
        cr_assert_eq(s.n_rung, 1);
        cr_assert_eq(s.result, 0);
        cr_assert_eq(gone.n_rung, 0);
        cr_assert_eq(recv(pair[1], &record, sizeof record, 0), (ssize_t)sizeof record);
        cr_assert_eq(record.head.type, CB_RECORD_BELL);
        cr_assert_eq(recv(pair[1], &record, sizeof record, 0), -1, "%s", loop_name(g.loop));
        loop_unwatch(g.loop, &s.watch);
        for (int i = 0; i < 2; i++) {
            close(pair[i]);
            close(other[i]);
        }
        loop_free(g.loop);
    }
}

/* A client that reads nothing: its full socket is readable, which is as good as a bell. */
Test(loop, a_full_socket_counts_as_rung_and_a_dead_one_not, .timeout = 10)
{
    struct rig g;
    ON_ALL_BODIES(g)
    {
        struct seen s;
        int pair[2];
        char record[CB_RECORD_BYTES] = "";
        pair_of(pair);
        while (send(pair[0], record, sizeof record, MSG_DONTWAIT) > 0)
            ;
        seen_init(&s, &g, pair[0]);
        cr_assert_eq(loop_watch(g.loop, &s.watch, LOOP_READ), 0);
        loop_ring(g.loop, &s.watch);
        loop_ring_flush(g.loop);
        for (int i = 0; i < 1000 && s.n_rung == 0; i++)
            (void)loop_serve(g.loop);
        cr_assert_eq(s.n_rung, 1);
        cr_assert_eq(s.result, 0, "%s: %d", loop_name(g.loop), s.result);
        close(pair[1]);
        loop_ring(g.loop, &s.watch);
        loop_ring_flush(g.loop);
        for (int i = 0; i < 1000 && s.n_rung == 1; i++)
            (void)loop_serve(g.loop);
        cr_assert_eq(s.n_rung, 2);
        cr_assert_lt(s.result, 0);
        loop_unwatch(g.loop, &s.watch);
        close(pair[0]);
        loop_free(g.loop);
    }
}
