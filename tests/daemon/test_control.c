/* The control socket from the client's end, record by record: handshakes good and bad, commands,
 * and who may give them. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shm/doorbell.h"
#include "shm/message.h"
#include "tests/daemon/peer.h"

#define TEXT_MAX 65536

static struct sim_report report;
static char text[TEXT_MAX];

static struct sim *fresh(void)
{
    struct sim *s = sim_new(1, false, &report);
    cr_assert(s);
    return s;
}

static void nothing_left(struct sim *s)
{
    for (int i = 0; i < 40; i++)
        daemon_turn(s->daemon);
    sim_audit(s);
    cr_assert_str_empty(report.error, "%s", report.error);
    cr_assert_eq(s->daemon->clients->n_connections, 0);
    cr_assert_eq(s->daemon->clients->lane_bytes, 0);
    sim_free(s);
}

static void plain(struct peer *p, enum cb_record_type type)
{
    struct cb_plain_record record;
    cb_record_plain(&record, type);
    peer_send(p, &record, sizeof record);
}

Test(control, hello_is_answered_with_a_lane)
{
    struct sim *s = fresh();
    struct peer p;
    struct cb_hello hello = peer_hello();
    hello.n_slots = 3;
    /* Two offered that are not agreed. */
    hello.features = CB_FEATURE_LOGPROBS | 1ull << 20 | 1ull << 21;
    peer_open(&p, s, 1000, &hello);
    cr_assert_eq(p.welcome.format, 1);
    cr_assert_eq(p.welcome.features, CB_FEATURE_LOGPROBS);
    cr_assert_eq(p.welcome.geometry.n_slots, 3);
    cr_assert_eq(cb_geometry_check(&p.welcome.geometry), 0);
    for (int i = 0; i < 4; i++)
        cr_assert_geq(p.fds[i], 0);
    cr_assert_eq(fcntl(p.fds[0], F_GETFL) & O_ACCMODE, O_RDWR);
    cr_assert_eq(fcntl(p.fds[1], F_GETFL) & O_ACCMODE, O_RDONLY);
    cr_assert_eq(s->daemon->clients->n_lanes, 1);
    plain(&p, CB_RECORD_BYE);
    char record[CB_RECORD_BYTES];
    cr_assert_eq(peer_receive(&p, record), -1);
    cr_assert_eq(cb_lane_client_closed(p.lc), CB_CLOSED_BYE);
    peer_close(&p);
    nothing_left(s);
}

static void refusal(struct sim *s, const struct cb_hello *hello, size_t n,
                    struct cb_refused *refused)
{
    struct peer p;
    char more[CB_RECORD_BYTES];
    peer_connect(&p, s, 1000);
    peer_send(&p, hello, n);
    cr_assert_eq(peer_receive(&p, refused), CB_RECORD_REFUSED);
    cr_assert_eq(peer_receive(&p, more), -1);
    peer_close(&p);
}

static void expect_refusal(struct sim *s, const struct cb_hello *hello, size_t n, int status)
{
    struct cb_refused refused;
    refusal(s, hello, n, &refused);
    cr_assert_eq(refused.status, status, "%d instead of %d", refused.status, status);
}

static void expect_over(struct sim *s, const struct cb_hello *hello, enum cb_limit limit,
                        uint64_t most)
{
    struct cb_refused refused;
    refusal(s, hello, sizeof *hello, &refused);
    cr_assert_eq(refused.status, CB_QUOTA, "%d", refused.status);
    cr_assert_eq(refused.detail[0], limit, "limit %u instead of %u", refused.detail[0], limit);
    cr_assert_eq(refused.detail[1], most, "%u", refused.detail[1]);
}

Test(control, bad_hellos_are_refused_with_the_reason)
{
    struct sim *s = fresh();
    struct cb_hello h = peer_hello();
    h.format_min = h.format_max = 2;
    expect_refusal(s, &h, sizeof h, CB_VERSION);
    h = peer_hello();
    h.format_min = 0;
    h.format_max = 0;
    expect_refusal(s, &h, sizeof h, CB_VERSION);
    h = peer_hello();
    h.word_size = 4;
    expect_refusal(s, &h, sizeof h, CB_VERSION);
    h = peer_hello();
    h.endian = 0x04030201;
    expect_refusal(s, &h, sizeof h, CB_VERSION);
    h = peer_hello();
    h.features = 1ull << 63;
    expect_refusal(s, &h, sizeof h, CB_VERSION);
    h = peer_hello();
    h.wake = 2;
    expect_refusal(s, &h, sizeof h, CB_BAD_RECORD);
    h = peer_hello();
    h.head.magic ^= 1;
    expect_refusal(s, &h, sizeof h, CB_BAD_RECORD);
    h = peer_hello();
    h.head.type = CB_RECORD_WELCOME;
    expect_refusal(s, &h, sizeof h, CB_BAD_RECORD);
    h = peer_hello();
    h.head.reserved = 1;
    expect_refusal(s, &h, sizeof h, CB_BAD_RECORD);
    for (size_t i = 0; i < sizeof h.reserved; i += 17) {
        h = peer_hello();
        h.reserved[i] = 1;
        expect_refusal(s, &h, sizeof h, CB_BAD_RECORD);
    }
    h = peer_hello();
    expect_refusal(s, &h, sizeof h - 1, CB_BAD_RECORD);
    expect_refusal(s, &h, 1, CB_BAD_RECORD);
    h.n_slots = 65;
    expect_over(s, &h, CB_LIMIT_LANE_SLOTS, 64);
    h = peer_hello();
    h.arena_bytes = UINT64_MAX;
    expect_over(s, &h, CB_LIMIT_LANE_ARENA_KIB, s->settings.lane_arena_bytes_max >> 10);
    h = peer_hello();
    h.pool_bytes = UINT64_MAX;
    expect_over(s, &h, CB_LIMIT_LANE_POOL, s->settings.lane_pool_tokens_max);
    nothing_left(s);
}

Test(control, an_oversized_or_empty_record_ends_the_connection)
{
    struct sim *s = fresh();
    struct peer p;
    char record[300] = "";
    peer_connect(&p, s, 1000);
    peer_send(&p, record, sizeof record);
    cr_assert_eq(peer_receive(&p, record), CB_RECORD_REFUSED);
    peer_close(&p);
    peer_connect(&p, s, 1000);
    peer_send(&p, record, 0);
    cr_assert_eq(peer_receive(&p, record), -1);
    peer_close(&p);
    nothing_left(s);
}

/* In the simulation nothing keeps descriptors away, as on an old kernel: the record itself is an
 * offence. */
Test(control, a_descriptor_ends_the_connection)
{
    struct sim *s = fresh();
    struct peer p;
    struct cb_hello hello = peer_hello();
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control;
    memset(&control, 0, sizeof control);
    struct iovec iov = {.iov_base = &hello, .iov_len = sizeof hello};
    struct msghdr message = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    struct cmsghdr *cmsg = CMSG_FIRSTHDR(&message);
    cmsg->cmsg_level = SOL_SOCKET;
    cmsg->cmsg_type = SCM_RIGHTS;
    cmsg->cmsg_len = CMSG_LEN(sizeof(int));
    int fd = 0;
    memcpy(CMSG_DATA(cmsg), &fd, sizeof fd);
    peer_connect(&p, s, 1000);
    cr_assert_eq(sendmsg(p.sock, &message, 0), (ssize_t)sizeof hello);
    char record[CB_RECORD_BYTES];
    cr_assert_eq(peer_receive(&p, record), -1);
    peer_close(&p);
    nothing_left(s);
}

Test(control, a_handshake_lasts_two_seconds_at_most)
{
    struct sim *s = fresh();
    struct peer silent, half;
    struct cb_hello hello = peer_hello();
    char record[CB_RECORD_BYTES];
    peer_connect(&silent, s, 1000);
    peer_connect(&half, s, 1000);
    peer_send(&half, &hello, sizeof hello);
    cr_assert_eq(peer_receive(&half, record), CB_RECORD_WELCOME);
    uint64_t begun = s->time.now_ns;
    s->holds_time = false;
    for (int i = 0; i < 1000 && s->daemon->clients->n_connections; i++)
        daemon_turn(s->daemon);
    cr_assert_eq(s->daemon->clients->n_connections, 0);
    cr_assert_leq(s->time.now_ns - begun, 2100000000ull);
    cr_assert_eq(peer_receive(&silent, record), -1);
    cr_assert_eq(peer_receive(&half, record), -1);
    peer_close(&silent);
    peer_close(&half);
    nothing_left(s);
}

Test(control, two_offences_close_a_lane)
{
    struct sim *s = fresh();
    struct peer p;
    const struct cb_hello hello = peer_hello();
    char record[CB_RECORD_BYTES];
    peer_open(&p, s, 1000, &hello);
    peer_send(&p, &hello, sizeof hello);
    cr_assert_eq(peer_receive(&p, record), 0, "one is forgiven");
    plain(&p, CB_RECORD_READY);
    cr_assert_eq(peer_receive(&p, record), -1);
    cr_assert_eq(cb_lane_client_closed(p.lc), CB_CLOSED_BROKEN);
    peer_close(&p);
    cr_assert_eq(cb_stats_get(s->stats.base, CB_STAT_lane_broken), 1);
    expect_refusal(s, &hello, sizeof hello, CB_BUSY); /* and its uid is held off for a while */
    peer_connect(&p, s, 1000);
    cr_assert_eq(peer_admin(&p, "clients", "", text, sizeof text), CB_OK, "but may look");
    peer_close(&p);
    struct peer other;
    peer_open(&other, s, 1001, &hello); /* nobody else is */
    peer_close(&other);
    s->time.now_ns += 5000000000ull;
    peer_open(&p, s, 1000, &hello);
    peer_close(&p);
    nothing_left(s);
}

Test(control, limits_of_lanes_and_connections_hold_a_uid_and_in_all)
{
    struct sim *s = fresh();
    struct peer p[8];
    char message[SETTINGS_MESSAGE_MAX];
    const struct cb_hello hello = peer_hello();
    cr_assert_eq(settings_set(&s->settings, "uid_lanes", "2", SETTINGS_OPERATOR, NULL, message), 0);
    peer_open(&p[0], s, 1000, &hello);
    peer_open(&p[1], s, 1000, &hello);
    expect_over(s, &hello, CB_LIMIT_UID_LANES, 2);
    for (uint32_t i = 2; i < 8; i++)
        peer_open(&p[i], s, 2000 + i, &hello);
    cr_assert_eq(settings_set(&s->settings, "uid_lanes", "100", SETTINGS_OPERATOR, NULL, message),
                 0);
    expect_over(s, &hello, CB_LIMIT_LANES, 8); /* max_lanes is 8 */
    peer_close(&p[7]);
    peer_open(&p[7], s, 1000, &hello);
    for (int i = 0; i < 8; i++)
        peer_close(&p[i]);
    nothing_left(s);
}

/* `cbctl` of a user whose programs use up what he may have was refused together with them. */
Test(control, a_uid_at_its_limits_can_still_give_commands)
{
    struct sim *s = fresh();
    struct peer p[2], admin[CLIENTS_ADMINS_A_UID], more;
    struct cb_refused refused;
    struct cb_admin record = {.head = {.magic = CB_RECORD_MAGIC, .type = CB_RECORD_ADMIN},
                              .command_bytes = 8,
                              .command = "requests"};
    char message[SETTINGS_MESSAGE_MAX];
    const struct cb_hello hello = peer_hello();
    cr_assert_eq(
        settings_set(&s->settings, "uid_connections", "2", SETTINGS_OPERATOR, NULL, message), 0);
    peer_open(&p[0], s, 1000, &hello);
    peer_open(&p[1], s, 1000, &hello);
    expect_over(s, &hello, CB_LIMIT_UID_CONNECTIONS, 2);
    for (int i = 0; i < CLIENTS_ADMINS_A_UID; i++) {
        peer_connect(&admin[i], s, 1000);
        cr_assert_eq(peer_admin(&admin[i], "requests", "", text, sizeof text), CB_OK);
    }
    peer_connect(&more, s, 1000);
    peer_send(&more, &record, sizeof record);
    cr_assert_eq(peer_receive(&more, &refused), CB_RECORD_REFUSED);
    cr_assert_eq(refused.status, CB_QUOTA);
    cr_assert_eq(refused.detail[0], CB_LIMIT_UID_ADMINS);
    cr_assert_eq(refused.detail[1], CLIENTS_ADMINS_A_UID);
    peer_close(&more);
    peer_close(&p[1]);
    peer_turn(&p[0], 20);
    peer_open(&p[1], s, 1000, &hello); /* commands take no lane's place */
    peer_close(&admin[0]);
    peer_turn(&admin[1], 20);
    peer_connect(&more, s, 1000);
    cr_assert_eq(peer_admin(&more, "requests", "", text, sizeof text), CB_OK);
    peer_close(&more);
    for (int i = 1; i < CLIENTS_ADMINS_A_UID; i++)
        peer_close(&admin[i]);
    peer_close(&p[0]);
    peer_close(&p[1]);
    nothing_left(s);
}

Test(control, bytes_of_a_uid_are_limited)
{
    struct sim *s = fresh();
    struct peer p;
    char message[SETTINGS_MESSAGE_MAX];
    struct cb_hello hello = peer_hello();
    cr_assert_eq(settings_set(&s->settings, "uid_bytes", "3m", SETTINGS_OPERATOR, NULL, message),
                 0);
    hello.arena_bytes = 2 << 20;
    peer_open(&p, s, 1000, &hello);
    expect_over(s, &hello, CB_LIMIT_UID_MIB, 3);
    peer_close(&p);
    peer_turn(&p, 20);
    peer_open(&p, s, 1000, &hello);
    peer_close(&p);
    nothing_left(s);
}

/* ---- commands -------------------------------------------------------------------------------- */

static json_t *ask(struct sim *s, uint32_t uid, const char *command, const char *argument,
                   int status)
{
    struct peer p;
    json_error_t error;
    peer_connect(&p, s, uid);
    int got = peer_admin(&p, command, argument, text, sizeof text);
    cr_assert_eq(got, status, "%s %s: %d: %s", command, argument, got, text);
    json_t *json = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    cr_assert(json, "%s: %s", error.text, text);
    cr_assert_eq(json_object_get(json, "error") != NULL, status != CB_OK, "%s", text);
    peer_close(&p);
    return json;
}

Test(control, answers_are_json_and_complete)
{
    struct sim *s = fresh();
    json_t *j = ask(s, 1000, "settings", "", CB_OK);
    cr_assert_eq(json_array_size(json_object_get(j, "settings")), SETTINGS_COUNT);
    json_decref(j);
    json_decref(ask(s, 1000, "clients", "", CB_OK));
    json_decref(ask(s, 1000, "requests", "", CB_OK));
    json_decref(ask(s, 1000, "nonsense", "", CB_BAD_COMMAND));
    json_decref(ask(s, 1000, "", "", CB_BAD_COMMAND));
    json_decref(ask(s, 1000, "clientsx", "", CB_BAD_COMMAND));
    nothing_left(s);
}

Test(control, one_connection_may_ask_many_times)
{
    struct sim *s = fresh();
    struct peer p;
    peer_connect(&p, s, 1000);
    for (int i = 0; i < 10; i++)
        cr_assert_eq(peer_admin(&p, i % 2 ? "settings" : "clients", "", text, sizeof text), CB_OK);
    peer_close(&p);
    nothing_left(s);
}

/* Asks again and again without reading, until no more is taken from the socket. */
static void ask_and_never_read(struct peer *p)
{
    struct cb_admin record = {.head = {.magic = CB_RECORD_MAGIC, .type = CB_RECORD_ADMIN},
                              .command_bytes = 8,
                              .command = "settings"};
    for (int i = 0; i < 1000; i++) {
        if (send(p->sock, &record, sizeof record, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
            return;
        daemon_turn(p->sim->daemon);
    }
    cr_assert_fail("a thousand answers found room");
}

/* Four of these kept every operator out for as long as they liked. */
Test(control, who_does_not_read_an_answer_is_closed)
{
    struct sim *s = fresh();
    struct peer deaf[4], p;
    for (int i = 0; i < 4; i++) {
        peer_connect(&deaf[i], s, 1000);
        ask_and_never_read(&deaf[i]);
    }
    peer_connect(&p, s, 0);
    cr_assert_eq(peer_admin(&p, "clients", "", text, sizeof text), CB_BUSY);
    s->time.now_ns += 2100000000ull;
    peer_turn(&p, 20);
    cr_assert_eq(s->daemon->clients->n_connections, 1);
    cr_assert_eq(peer_admin(&p, "clients", "", text, sizeof text), CB_OK);
    peer_close(&p);
    for (int i = 0; i < 4; i++)
        peer_close(&deaf[i]);
    nothing_left(s);
}

Test(control, a_uid_gives_few_commands_a_turn_however_many_connections_it_has)
{
    enum { N = 20 };
    struct sim *s = fresh();
    struct peer p[N];
    struct cb_admin record = {.head = {.magic = CB_RECORD_MAGIC, .type = CB_RECORD_ADMIN},
                              .command_bytes = 8,
                              .command = "requests"};
    uint32_t n_done = 0, n_turns = 0;
    for (int i = 0; i < N; i++) {
        peer_connect(&p[i], s, 1000);
        cr_assert_eq(peer_admin(&p[i], "requests", "", text, sizeof text), CB_OK);
    }
    for (int i = 0; i < N; i++)
        for (int k = 0; k < 4; k++)
            peer_send(&p[i], &record, sizeof record);
    while (n_done < 4 * N && n_turns++ < 10000) {
        char reply[CB_RECORD_BYTES];
        uint32_t n = 0;
        daemon_turn(s->daemon);
        for (int i = 0; i < N; i++)
            while (recv(p[i].sock, reply, sizeof reply, MSG_DONTWAIT) > 0)
                n++;
        cr_assert_leq(n, 4);
        n_done += n;
    }
    cr_assert_eq(n_done, 4 * N);
    for (int i = 0; i < N; i++)
        peer_close(&p[i]);
    nothing_left(s);
}

Test(control, the_last_connections_are_for_those_who_may_administer)
{
    struct sim *s = fresh();
    struct peer p[CLIENTS_SPARE + 8], root;
    const uint32_t n = s->daemon->clients->n_clients - CLIENTS_RESERVED;
    cr_assert_lt(n, sizeof p / sizeof *p);
    for (uint32_t i = 0; i < n; i++) {
        peer_connect(&p[i], s, 1000 + i % 2);
        cr_assert_eq(peer_admin(&p[i], "requests", "", text, sizeof text), CB_OK);
    }
    struct cb_refused refused;
    peer_connect(&p[n], s, 1002);
    cr_assert_eq(peer_receive(&p[n], &refused), CB_RECORD_REFUSED);
    cr_assert_eq(refused.status, CB_QUOTA);
    cr_assert_eq(refused.detail[0], CB_LIMIT_CONNECTIONS);
    cr_assert_eq(refused.detail[1], n);
    peer_close(&p[n]);
    peer_connect(&root, s, 0);
    cr_assert_eq(peer_admin(&root, "clients", "", text, sizeof text), CB_OK);
    peer_close(&root);
    for (uint32_t i = 0; i < n; i++)
        peer_close(&p[i]);
    nothing_left(s);
}

Test(control, what_touches_others_needs_authority)
{
    struct sim *s = fresh();
    json_decref(ask(s, 1000, "set", "spin_us=1", CB_DENIED));
    json_decref(ask(s, 1000, "drain", "", CB_DENIED));
    json_decref(ask(s, 1000, "stop", "", CB_DENIED));
    cr_assert_eq(s->daemon->state, DAEMON_SERVING);
    json_decref(ask(s, 0, "set", "spin_us=1", CB_OK));
    cr_assert_eq(s->settings.spin_us, 1);
    json_decref(ask(s, 0, "set", "spin_us 2", CB_OK));
    json_decref(ask(s, 0, "set", "page_size=4", CB_BAD_SETTING));
    json_decref(ask(s, 0, "set", "nothing=4", CB_BAD_SETTING));
    json_decref(ask(s, 0, "set", "spin_us", CB_BAD_SETTING));
    nothing_left(s);
}

Test(control, who_connects_later_hears_of_a_changed_setting)
{
    struct sim *s = fresh();
    struct peer p;
    const struct cb_hello hello = peer_hello();
    json_decref(ask(s, 0, "set", "spin_us=7", CB_OK));
    peer_open(&p, s, 1000, &hello);
    cr_assert_eq(p.welcome.spin_us, 7);
    peer_close(&p);
    nothing_left(s);
}

/* A request that runs until it is cancelled: as long as a context. */
static void submit_long(struct peer *p)
{
    struct cb_request_entry e;
    const uint32_t ids[3] = {1, 2, 3};
    cb_message_init(&e);
    e.n_prompt = 3;
    e.flags = CB_FLAG_IGNORE_EOS;
    peer_submit(p, &e, ids, 3);
    plain(p, CB_RECORD_BELL);
    peer_turn(p, 4);
}

Test(control, users_see_and_cancel_their_own_only)
{
    struct sim *s = fresh();
    struct peer p;
    char lane[32];
    struct cb_result_entry e = {.type = 0};
    const struct cb_hello hello = peer_hello();
    peer_open(&p, s, 1000, &hello);
    submit_long(&p);
    snprintf(lane, sizeof lane, "%u:0", p.welcome.lane_id);
    json_t *j = ask(s, 1001, "requests", "", CB_OK);
    cr_assert_eq(json_array_size(json_object_get(j, "requests")), 0);
    json_decref(j);
    j = ask(s, 1000, "clients", "", CB_OK);
    cr_assert_eq(json_array_size(json_object_get(j, "clients")), 2, "the lane and the asker");
    json_decref(j);
    json_decref(ask(s, 1001, "cancel", lane, CB_DENIED));
    json_decref(ask(s, 1000, "cancel", "x", CB_INVALID));
    json_decref(ask(s, 1000, "cancel", "", CB_INVALID));
    json_decref(ask(s, 1000, "cancel", "1:", CB_INVALID));
    json_decref(ask(s, 1000, "cancel", "99999", CB_NOT_FOUND));
    while (e.type != CB_RESULT_FINISHED)
        cr_assert(peer_result(&p, &e));
    cb_lane_client_free(p.lc, e.slot);
    peer_close(&p);
    nothing_left(s);
}

Test(control, a_drain_refuses_the_new_and_ends_the_old)
{
    struct sim *s = fresh();
    struct peer p;
    struct cb_result_entry e = {.type = 0};
    const struct cb_hello hello = peer_hello();
    peer_open(&p, s, 1000, &hello);
    submit_long(&p);
    json_decref(ask(s, 0, "drain", "", CB_OK));
    cr_assert(cb_lane_client_notice(p.lc) & CB_NOTICE_DRAINING);
    for (int i = 0; i < 1000 && s->daemon->state != DAEMON_STOPPED; i++)
        daemon_turn(s->daemon);
    cr_assert_eq(s->daemon->state, DAEMON_STOPPED);
    while (cb_lane_client_poll(p.lc, &e) & CB_LANE_ENTRY && e.type != CB_RESULT_FINISHED)
        ;
    cr_assert_eq(e.type, CB_RESULT_FINISHED);
    sim_free(s);
    cr_assert_eq(cb_lane_client_closed(p.lc), CB_CLOSED_STOPPED);
    peer_close(&p);
}

/* It may go on with the next daemon: who reads the lane ends it, or does not. */
Test(control, what_a_stop_cuts_short_has_no_end)
{
    struct sim *s = fresh();
    struct peer p;
    struct cb_result_entry e = {.type = 0};
    struct cb_slot_view view;
    const struct cb_hello hello = peer_hello();
    peer_open(&p, s, 1000, &hello);
    submit_long(&p);
    json_decref(ask(s, 0, "stop", "hard", CB_OK));
    cr_assert_eq(s->daemon->state, DAEMON_STOPPED);
    sim_free(s);
    while (cb_lane_client_poll(p.lc, &e) & CB_LANE_ENTRY)
        cr_assert(e.type < CB_RESULT_FINISHED || e.type == CB_RESULT_LANE, "%u", e.type);
    cb_lane_client_slot(p.lc, 0, &view);
    cr_assert_eq(view.state, CB_SLOT_RUNNING);
    cr_assert_gt(view.emitted, 0);
    cr_assert_eq(cb_lane_client_closed(p.lc), CB_CLOSED_STOPPED);
    peer_close(&p);
}
