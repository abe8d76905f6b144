/* Other weights while requests run, turn by turn: after each step a slice of the file is checked or
 * read, and nothing changes before the last one. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <xxhash.h>

#include "shm/doorbell.h"
#include "shm/message.h"
#include "tests/daemon/peer.h"

enum { N_NEW = 60, TURNS_MOST = 80 };

static struct sim_report report;
static const char weights[] = "null weights 7\n";
enum { N_WEIGHTS = sizeof weights - 1 };

static struct sim *fresh(void)
{
    struct sim *s = sim_new(1, false, &report);
    cr_assert(s);
    return s;
}

static struct engine_stats stats_of(const struct sim *s)
{
    struct engine_stats stats;
    engine_stats(s->daemon->engine, &stats);
    return stats;
}

/* A lane with a request that runs, beside those who command. */
static struct cb_request_entry begin(struct peer *p, struct sim *s)
{
    static const uint32_t ids[4] = {1, 2, 3, 4};
    struct cb_hello hello = peer_hello();
    struct cb_request_entry e;
    hello.pool_bytes = 4096;
    peer_open(p, s, 1000, &hello);
    cb_message_init(&e);
    e.n_prompt = 4;
    e.max_new_tokens = N_NEW;
    e.flags = CB_FLAG_IGNORE_EOS;
    peer_submit(p, &e, ids, 4);
    (void)cb_doorbell_send(p->sock, CB_RECORD_BELL);
    return e;
}

static void stage(struct peer *p)
{
    char size[8], text[512];
    snprintf(size, sizeof size, "%d", N_WEIGHTS);
    cr_assert_eq(peer_admin(p, "stage-weights", size, text, sizeof text), CB_OK, "%s", text);
    cr_assert_eq(pwrite(p->fds[0], weights, N_WEIGHTS, 0), N_WEIGHTS);
}

static void ask(struct peer *p, const char *command, const char *argument)
{
    struct cb_admin record = {.head = {.magic = CB_RECORD_MAGIC, .type = CB_RECORD_ADMIN},
                              .command_bytes = (uint32_t)strlen(command),
                              .argument_bytes = (uint32_t)strlen(argument)};
    memcpy(record.command, command, record.command_bytes);
    memcpy(record.argument, argument, record.argument_bytes);
    peer_send(p, &record, sizeof record);
}

/* What has come, and who has gone, is heard, without a turn of the daemon. */
static void hear(struct sim *s)
{
    for (int i = 0; i < 20; i++)
        (void)loop_serve(s->daemon->config.loop);
}

/* Says that what was staged is complete, in truth or not, and is heard. */
static void ask_to_load(struct peer *p, size_t n_bytes)
{
    XXH128_hash_t h = XXH3_128bits(weights, n_bytes);
    char hash[33];
    snprintf(hash, sizeof hash, "%016llx%016llx", (unsigned long long)h.high64,
             (unsigned long long)h.low64);
    ask(p, "load-weights", hash);
    hear(p->sim);
    cr_assert(p->sim->daemon->loading.client);
}

/* The next answer, if it is there; text 0-terminated. */
static bool answer(struct peer *p, struct cb_reply *reply)
{
    if (recv(p->sock, reply, sizeof *reply, MSG_DONTWAIT) != sizeof *reply)
        return false;
    reply->text[reply->bytes] = 0;
    return true;
}

static void nothing_left(struct sim *s)
{
    for (int i = 0; i < 20; i++)
        daemon_turn(s->daemon);
    sim_audit(s);
    cr_assert_str_empty(report.error, "%s", report.error);
    cr_assert_eq(s->daemon->clients->n_connections, 0);
    sim_free(s);
}

/* Each turn of the load has its step and its token; the epoch changes with the last of them. */
Test(loading, steps_go_on_until_it_is_published)
{
    struct sim *s = fresh();
    struct peer p, operator;
    struct cb_request_entry e = begin(&p, s);
    struct cb_reply reply = {0};
    char steps[32];
    uint32_t n_turns = 0;
    peer_connect(&operator, s, 0);
    stage(&operator);
    uint64_t first = stats_of(s).n_steps;
    uint32_t n_before = cb_lane_client_emitted(p.lc, e.slot);
    cr_assert_lt(n_before + 10, N_NEW);
    ask_to_load(&operator, N_WEIGHTS);
    while (!answer(&operator, & reply)) {
        cr_assert_eq(stats_of(s).weight_epoch, 0);
        peer_turn(&p, 1);
        cr_assert_lt(++n_turns, TURNS_MOST);
        cr_assert_eq(cb_lane_client_emitted(p.lc, e.slot), n_before + n_turns);
    }
    cr_assert_eq(reply.status, CB_OK, "%s", reply.text);
    cr_expect_geq(n_turns, 6, "the null model's has four slices, and two its checksum");
    cr_expect_eq(stats_of(s).weight_epoch, 1);
    snprintf(steps, sizeof steps, "\"steps\":%u,", n_turns);
    cr_expect_eq(stats_of(s).n_steps, first + n_turns);
    cr_expect(strstr(reply.text, steps), "no %s in %s", steps, reply.text);
    peer_turn(&p, 60);
    cr_expect_eq(cb_lane_client_emitted(p.lc, e.slot), N_NEW);
    peer_close(&operator);
    peer_close(&p);
    nothing_left(s);
}

/* While it waits for its answer, further commands of a connection wait too; others' do not, but they
 * can't load. */
Test(loading, commands_behind_it_are_answered_after_it)
{
    struct sim *s = fresh();
    struct peer p, other;
    struct cb_reply reply;
    peer_connect(&p, s, 0);
    peer_connect(&other, s, 0);
    stage(&p);
    ask_to_load(&p, N_WEIGHTS);
    ask(&p, "drain", "");
    ask(&other, "stage-weights", "15");
    hear(s);
    cr_assert(answer(&other, &reply));
    cr_expect_eq(reply.status, CB_BUSY);
    cr_expect(strstr(reply.text, "another connection is loading weights"), "%s", reply.text);
    cr_assert_not(answer(&p, &reply));
    for (int i = 0; !answer(&p, &reply); i++) {
        cr_assert_lt(i, TURNS_MOST);
        cr_expect_eq(s->daemon->state, DAEMON_SERVING);
        daemon_turn(s->daemon);
    }
    cr_expect(strstr(reply.text, "\"weight_epoch\":1"), "%s", reply.text);
    hear(s);
    cr_assert(answer(&p, &reply));
    cr_expect_neq(s->daemon->state, DAEMON_SERVING);
    peer_close(&p);
    peer_close(&other);
    nothing_left(s);
}

/* At each slice: nothing has changed, and the next one may load. */
Test(loading, who_goes_gives_it_up)
{
    for (int n_turns = 0; n_turns < 7; n_turns++) {
        struct sim *s = fresh();
        struct peer p, next;
        struct cb_reply reply;
        peer_connect(&p, s, 0);
        stage(&p);
        ask_to_load(&p, N_WEIGHTS);
        for (int i = 0; i < n_turns; i++)
            daemon_turn(s->daemon);
        cr_assert_not(answer(&p, &reply), "after %d turns", n_turns);
        peer_close(&p);
        hear(s);
        peer_turn(&p, 20);
        cr_expect_eq(stats_of(s).weight_epoch, 0, "after %d turns", n_turns);
        peer_connect(&next, s, 0);
        stage(&next);
        ask_to_load(&next, N_WEIGHTS);
        peer_turn(&next, 20);
        cr_assert(answer(&next, &reply) && reply.status == CB_OK);
        cr_expect_eq(stats_of(s).weight_epoch, 1);
        peer_close(&next);
        nothing_left(s);
    }
}

/* The checksum is known late. Until then as after it nothing has changed. */
Test(loading, a_torn_one_is_refused_when_that_is_known)
{
    struct sim *s = fresh();
    struct peer p, operator;
    struct cb_request_entry e = begin(&p, s);
    struct cb_reply reply;
    peer_connect(&operator, s, 0);
    stage(&operator);
    ask_to_load(&operator, N_WEIGHTS - 2);
    peer_turn(&p, 20);
    cr_assert(answer(&operator, & reply));
    cr_expect_eq(reply.status, CB_BAD_WEIGHTS);
    cr_expect(strstr(reply.text, "the file is torn"), "%s", reply.text);
    cr_expect_eq(stats_of(s).weight_epoch, 0);
    cr_expect_eq(cb_stats_get(s->stats.base, CB_STAT_weights_refused), 1);
    stage(&operator);
    ask_to_load(&operator, N_WEIGHTS);
    peer_turn(&p, 60);
    cr_assert(answer(&operator, & reply) && reply.status == CB_OK);
    cr_expect_eq(cb_lane_client_emitted(p.lc, e.slot), N_NEW);
    peer_close(&operator);
    peer_close(&p);
    nothing_left(s);
}

Test(loading, a_daemon_that_ends_meanwhile_leaves_nothing)
{
    struct sim *s = fresh();
    struct peer p;
    peer_connect(&p, s, 0);
    stage(&p);
    ask_to_load(&p, N_WEIGHTS);
    peer_turn(&p, 4);
    sim_free(s);
    peer_close(&p);
}
