/* Whoever keeps the loop busy waits while others' requests run, and only then. Each look at the clock
 * takes 5 ms here, so that a few chores use an allowance up. */
#include <criterion/criterion.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/allowance.h"
#include "shm/doorbell.h"
#include "shm/message.h"
#include "tests/daemon/peer.h"

#define MS 1000000ull

enum { ALICE = 1000, BOB = 1001 };

static struct sim_report report;

struct scene {
    struct sim *sim;
    struct peer alice, bob; /* who asks for a request, and who keeps the loop busy */
};

static void submit(struct peer *p, uint32_t n_prompt)
{
    static const uint32_t ids[4] = {1, 2, 3, 4};
    struct cb_request_entry e;
    cb_message_init(&e);
    e.n_prompt = n_prompt;
    e.max_new_tokens = 8;
    e.flags = CB_FLAG_IGNORE_EOS;
    peer_submit(p, &e, ids, 4);
    (void)cb_doorbell_send(p->sock, CB_RECORD_BELL);
}

/* A request of `whose`, which does not end: no step is run. */
static void begin(struct scene *s, uint32_t whose)
{
    struct cb_hello hello = peer_hello();
    s->sim = sim_new(1, false, &report);
    cr_assert(s->sim);
    peer_open(&s->alice, s->sim, ALICE, &hello);
    peer_open(&s->bob, s->sim, BOB, &hello);
    (void)pauses_keep(&s->sim->daemon->pauses);
    submit(whose == ALICE ? &s->alice : &s->bob, 4);
    peer_turn(&s->alice, 4);
    cr_assert_eq(s->sim->daemon->clients->quotas->n_requests, 1);
    s->sim->tick_ns = 5 * MS;
}

static void end(struct scene *s)
{
    peer_close(&s->alice);
    peer_close(&s->bob);
    peer_turn(&s->alice, 20);
    cr_expect_eq(s->sim->daemon->clients->n_connections, 0);
    sim_free(s->sim);
}

static uint64_t stat_of(const struct scene *s, enum cb_stat stat)
{
    return cb_stats_get(s->sim->stats.base, stat);
}

/* n turns, with a bell of Bob's before each; in how many he was listened to. */
static int ring(struct scene *s, int n)
{
    int n_heard = 0;
    for (int i = 0; i < n; i++) {
        uint64_t heard = stat_of(s, CB_STAT_bells_received);
        (void)cb_doorbell_send(s->bob.sock, CB_RECORD_BELL);
        peer_turn(&s->bob, 1);
        n_heard += stat_of(s, CB_STAT_bells_received) > heard;
    }
    return n_heard;
}

Test(chores, an_allowance_comes_back_with_time)
{
    struct allowance a;
    uint64_t now = 7 * MS;
    allowance_init(&a, now);
    cr_expect(allowance_is_whole(&a, now));
    allowance_take(&a, now, ALLOWANCE_SAVED_NS - 1);
    cr_expect_not(allowance_is_spent(&a, now));
    cr_expect_not(allowance_is_whole(&a, now));
    allowance_take(&a, now, 1 + 3 * MS);
    cr_expect(allowance_is_spent(&a, now));
    for (int i = 0; i < 3 * ALLOWANCE_SHARE; i++) { /* also in parts too small for the division */
        cr_expect(allowance_is_spent(&a, now), "after %d ms", i);
        for (int k = 0; k < 100; k++)
            (void)allowance_is_spent(&a, now += MS / 100);
    }
    now += ALLOWANCE_SHARE;
    cr_expect_not(allowance_is_spent(&a, now));
    now += ALLOWANCE_SHARE * ALLOWANCE_SAVED_NS;
    cr_expect(allowance_is_whole(&a, now));
    allowance_take(&a, now, ALLOWANCE_SAVED_NS);
    cr_expect(allowance_is_spent(&a, now), "no more is saved than that");
}

Test(chores, who_keeps_the_loop_busy_waits_while_others_run)
{
    struct scene s;
    begin(&s, ALICE);
    (void)ring(&s, 40);
    cr_expect_geq(stat_of(&s, CB_STAT_held_back), 1);
    cr_expect_lt(ring(&s, 40), 20);
    /* Her request goes: now all is heard. */
    uint64_t heard = stat_of(&s, CB_STAT_bells_received);
    peer_close(&s.alice);
    peer_turn(&s.bob, 40);
    cr_expect_eq(s.sim->daemon->clients->quotas->n_requests, 0);
    cr_expect_gt(stat_of(&s, CB_STAT_bells_received), heard);
    heard = stat_of(&s, CB_STAT_bells_received);
    (void)ring(&s, 40);
    peer_turn(&s.bob, 20);
    cr_expect_eq(stat_of(&s, CB_STAT_bells_received) - heard, 40);
    end(&s);
}

Test(chores, nobody_waits_for_requests_of_their_own)
{
    struct scene s;
    begin(&s, BOB);
    uint64_t heard = stat_of(&s, CB_STAT_bells_received);
    (void)ring(&s, 100);
    peer_turn(&s.bob, 20);
    cr_expect_eq(stat_of(&s, CB_STAT_bells_received) - heard, 100);
    cr_expect_eq(stat_of(&s, CB_STAT_held_back), 0);
    end(&s);
}

Test(chores, the_end_of_one_who_waits_is_seen)
{
    struct scene s;
    begin(&s, ALICE);
    for (int i = 0; i < 100 && stat_of(&s, CB_STAT_held_back) == 0; i++)
        (void)ring(&s, 1);
    cr_assert_eq(stat_of(&s, CB_STAT_held_back), 1);
    cr_assert_eq(s.sim->daemon->clients->n_connections, 2);
    peer_close(&s.bob);
    peer_turn(&s.alice, 20);
    cr_expect_eq(s.sim->daemon->clients->n_connections, 1);
    end(&s);
}

/* Or to connect anew would be to begin anew. */
Test(chores, what_a_user_took_is_remembered_without_a_connection)
{
    struct cb_hello hello = peer_hello();
    struct cb_welcome record;
    struct scene s;
    begin(&s, ALICE);
    s.sim->tick_ns = 50 * MS; /* he will owe much */
    for (int i = 0; i < 100 && stat_of(&s, CB_STAT_held_back) == 0; i++)
        (void)ring(&s, 1);
    peer_close(&s.bob);
    s.sim->tick_ns = 1; /* no time passes */
    peer_turn(&s.alice, 20);
    cr_assert_eq(s.sim->daemon->clients->n_connections, 1);
    peer_connect(&s.bob, s.sim, BOB);
    peer_send(&s.bob, &hello, sizeof hello);
    cr_expect_eq(peer_receive(&s.bob, &record), 0);
    cr_expect_geq(stat_of(&s, CB_STAT_held_back), 2);
    for (int i = 0; i < 60; i++) { /* also longer than the patience with a handshake lasts */
        s.sim->time.now_ns += 500 * MS;
        peer_turn(&s.bob, 1);
    }
    cr_expect_eq(peer_receive(&s.bob, &record), CB_RECORD_WELCOME);
    end(&s);
}

Test(chores, requests_that_come_to_nothing_are_taken_in_their_users_time)
{
    struct scene s;
    begin(&s, ALICE);
    uint64_t before = stat_of(&s, CB_STAT_requests_rejected);
    uint32_t n_sent = 0;
    for (int i = 0; i < 200; i++) {
        struct cb_result_entry e;
        struct cb_request_entry bad;
        cb_message_init(&bad); /* without a prompt */
        n_sent += cb_lane_client_submit(s.bob.lc, &bad) >= 0;
        peer_turn(&s.bob, 1);
        while (cb_lane_client_poll(s.bob.lc, &e) & CB_LANE_ENTRY)
            if (e.type == CB_RESULT_REJECTED)
                cb_lane_client_free(s.bob.lc, e.slot);
    }
    uint64_t n_rejected = stat_of(&s, CB_STAT_requests_rejected) - before;
    cr_expect_gt(n_rejected, 5);
    cr_expect_lt(n_rejected, 100, "%d of %u", (int)n_rejected, n_sent);
    /* And the others' are taken at once. */
    submit(&s.alice, 4);
    peer_turn(&s.alice, 2);
    cr_expect_eq(s.sim->daemon->clients->quotas->n_requests, 2);
    end(&s);
}

/* Nobody knows yet whose they are: they are accepted little by little, and in the end all. */
Test(chores, a_flood_of_connections_is_accepted_little_by_little)
{
    enum { FLOOD = 100 };
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    socklen_t n = offsetof(struct sockaddr_un, sun_path) + 24;
    int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), fds[FLOOD];
    struct scene s;
    begin(&s, ALICE);
    snprintf(address.sun_path + 1, 23, "cbd-test-chores-%d", (int)getpid());
    cr_assert_eq(bind(listener, (struct sockaddr *)&address, n), 0);
    cr_assert_eq(listen(listener, FLOOD), 0);
    cr_assert_eq(control_listen(s.sim->daemon->control, listener), 0);
    s.sim->tick_ns = 0;
    for (int i = 0; i < FLOOD; i++) {
        fds[i] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        cr_assert_eq(connect(fds[i], (struct sockaddr *)&address, n), 0);
    }
    s.sim->tick_ns = 2 * MS; /* of what is saved there will be enough for some of them */
    uint64_t refused = stat_of(&s, CB_STAT_lanes_refused);
    uint32_t n_there = s.sim->daemon->clients->n_connections;
    for (int i = 0; i < 200 && stat_of(&s, CB_STAT_held_back) == 0; i++)
        peer_turn(&s.alice, 1);
    uint64_t n_accepted = stat_of(&s, CB_STAT_lanes_refused) - refused +
                          s.sim->daemon->clients->n_connections - n_there;
    cr_expect_gt(n_accepted, 2);
    cr_expect_lt(n_accepted, FLOOD);
    cr_expect_eq(stat_of(&s, CB_STAT_held_back), 1);
    for (int i = 0; i < FLOOD; i++)
        close(fds[i]);
    peer_close(&s.alice);
    peer_turn(&s.bob, 200);
    int again = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    cr_expect_eq(connect(again, (struct sockaddr *)&address, n), 0);
    n_there = s.sim->daemon->clients->n_connections;
    peer_turn(&s.bob, 20);
    cr_expect_eq(s.sim->daemon->clients->n_connections, n_there + 1);
    close(again);
    peer_turn(&s.bob, 20);
    end(&s);
    close(listener);
}
