/* Bells of sockets: each sleep of a client has its own, also where the loop tells late what became of
 * the one before. */
#include <criterion/criterion.h>
#include <string.h>
#include <sys/socket.h>

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
