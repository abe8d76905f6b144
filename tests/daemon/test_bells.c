/* Bells of sockets: each sleep of a client has its own, also where the loop tells late what became of
 * the one before. */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/base/clock.h"
#include "daemon/base/log.h"

#include "shm/doorbell.h"
#include "shm/message.h"
#include "tests/daemon/peer.h"

static struct sim_report report;

static uint32_t n_bells(struct peer *p)
{
    unsigned char record[CB_RECORD_BYTES];
    uint32_t n = 0;
    while (recv(p->sock, record, sizeof record, MSG_DONTWAIT) > 0)
        n++;
    return n;
}

static void sleep_anew(struct peer *p)
{
    struct cb_result_entry e;
    uint32_t bell;
    while (cb_lane_client_poll(p->lc, &e) > 0)
        ;
    cb_lane_client_unpark(p->lc);
    cr_assert_eq(cb_lane_client_park(p->lc, &bell), CB_LANE_NOTHING);
}

/* A step and its delivery, without a look at the loop. */
static void step(struct sim *s)
{
    (void)engine_step(s->daemon->engine);
    deliver_flush(&s->daemon->deliver);
}

Test(bells, a_sleep_that_follows_a_bell_at_once_has_its_own)
{
    static const uint32_t ids[4] = {1, 2, 3, 4};
    struct sim *s = sim_new(1, false, &report);
    struct cb_hello hello = peer_hello(); /* its wake: the socket */
    struct cb_request_entry e;
    struct peer p;
    cr_assert(s);
    hello.pool_bytes = 4096;
    peer_open(&p, s, 1000, &hello);
    cb_message_init(&e);
    e.n_prompt = 4;
    e.max_new_tokens = 60;
    e.flags = CB_FLAG_IGNORE_EOS;
    peer_submit(&p, &e, ids, 4);
    (void)cb_doorbell_send(p.sock, CB_RECORD_BELL);
    peer_turn(&p, 8);
    cr_assert_gt(cb_lane_client_emitted(p.lc, e.slot), 0);
    (void)n_bells(&p);
    for (int i = 0; i < 5; i++) {
        sleep_anew(&p);
        step(s);
        cr_assert_eq(n_bells(&p), 1, "sleep %d has no bell", i);
        if (i % 2)
            (void)loop_serve(s->daemon->config.loop);
        step(s);
        cr_assert_eq(n_bells(&p), 0, "sleep %d has two", i);
    }
    peer_close(&p);
    peer_turn(&p, 40);
    sim_audit(s);
    cr_assert_str_empty(report.error, "%s", report.error);
    sim_free(s);
}

/* ---- of many clients at once ------------------------------------------------------------------ */

enum { N_RUNG = 300 }; /* more than the least of a ring */

static uint32_t n_submissions;

/* In place of liburing's, which it calls. */
int io_uring_submit(struct io_uring *ring)
{
    int (*submit)(struct io_uring * r);
    *(void **)&submit = dlsym(RTLD_NEXT, "io_uring_submit");
    n_submissions++;
    return submit(ring);
}

struct rung {
    struct loop_watch watch;
    int peer;
    uint32_t n;
};

static void ready(struct loop_watch *w, uint32_t events)
{
    (void)w;
    (void)events;
}

static void note_rung(struct loop_watch *w, int result)
{
    if (result == 0)
        list_entry(w, struct rung, watch)->n++;
}

/* Rings all. How many submissions it took, and how many were told of. */
static void ring_many(enum loop_kind kind, uint32_t *n_submittedp, uint32_t *n_toldp)
{
    static struct rung rung[N_RUNG];
    struct log log;
    struct loop *l;
    log_init(&log, -1, LOG_LEVEL_ERROR, &clock_monotonic);
    int r = loop_new(&l, kind, 2 * N_RUNG, &clock_monotonic, &log);
    if (kind == LOOP_URING && (r == -EPERM || r == -ENOSYS || r == -ENOTSUP)) {
        *n_submittedp = 1; /* this machine refuses io_uring */
        *n_toldp = N_RUNG;
        return;
    }
    cr_assert_eq(r, 0);
    for (int i = 0; i < N_RUNG; i++) {
        int pair[2];
        cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, pair), 0);
        rung[i] = (struct rung){.watch = {.fd = pair[0], .ready = ready, .rung = note_rung},
                                .peer = pair[1]};
        cr_assert_eq(loop_watch(l, &rung[i].watch, LOOP_READ), 0);
    }
    (void)loop_serve(l); /* arms them */
    for (int i = 0; i < N_RUNG; i++)
        loop_ring(l, &rung[i].watch);
    n_submissions = 0;
    loop_ring_flush(l);
    *n_submittedp = n_submissions;
    *n_toldp = 0;
    for (int i = 0; i < N_RUNG; i++) {
        unsigned char record[CB_RECORD_BYTES];
        cr_assert_eq(recv(rung[i].peer, record, sizeof record, 0), CB_RECORD_BYTES,
                     "bell %d is not out", i);
    }
    for (int turn = 0; turn < 20; turn++)
        (void)loop_serve(l);
    for (int i = 0; i < N_RUNG; i++) {
        *n_toldp += rung[i].n;
        loop_unwatch(l, &rung[i].watch);
        close(rung[i].watch.fd);
        close(rung[i].peer);
    }
    loop_free(l);
}

Test(bells, of_a_step_go_in_one_submission, .timeout = 30)
{
    struct rlimit files;
    uint32_t n_submitted, n_told;
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &files), 0);
    files.rlim_cur = files.rlim_max;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &files), 0);
    ring_many(LOOP_URING, &n_submitted, &n_told);
    cr_expect_eq(n_submitted, 1, "%u submissions", n_submitted);
    cr_expect_eq(n_told, N_RUNG, "%u were told of", n_told);
    ring_many(LOOP_EPOLL, &n_submitted, &n_told);
    cr_expect_eq(n_submitted, 0);
    cr_expect_eq(n_told, N_RUNG, "%u were told of", n_told);
}
