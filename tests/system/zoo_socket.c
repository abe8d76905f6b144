/* Beasts of the socket, of time, and of what there is not enough of. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/system/zoo.h"

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83
#endif

enum { FDS_MAX = 253 }; /* in one message, says the kernel */

/* ---- descriptors --------------------------------------------------------------------------------- */

/* A record with so many copies of fd; whether the kernel takes it. */
static bool send_fds(int sock, const void *record, size_t n, int fd, int n_fds)
{
    static union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(FDS_MAX * sizeof(int))];
    } control;
    struct iovec piece = {(void *)record, n};
    struct msghdr message = {.msg_iov = &piece,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = CMSG_SPACE((size_t)n_fds * sizeof(int))};
    struct cmsghdr *cmsg = CMSG_FIRSTHDR(&message);
    cmsg->cmsg_level = SOL_SOCKET;
    cmsg->cmsg_type = SCM_RIGHTS;
    cmsg->cmsg_len = CMSG_LEN((size_t)n_fds * sizeof(int));
    for (int i = 0; i < n_fds; i++)
        memcpy(CMSG_DATA(cmsg) + (size_t)i * sizeof fd, &fd, sizeof fd);
    return sendmsg(sock, &message, MSG_NOSIGNAL) >= 0;
}

/* In any record, before it is accepted and after the end: plain files, and a socket that would hold
 * for an hour whoever closes it last. Where the kernel can't refuse them, the lane ends. */
static void sends_descriptors(struct crowd *c, uint32_t i, void *arg)
{
    const struct linger hour = {1, 3600};
    struct cb_hello hello = raw_hello();
    struct cb_plain_record bell = {.head = {CB_RECORD_MAGIC, CB_RECORD_BELL, 0}};
    int fds[2] = {open("/dev/null", O_RDONLY | O_CLOEXEC),
                  socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    int value, probe = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    socklen_t size = sizeof value;
    bool can_refuse = getsockopt(probe, SOL_SOCKET, SO_PASSRIGHTS, &value, &size) == 0;
    (void)i;
    (void)arg;
    close(probe);
    if (fds[1] >= 0)
        (void)setsockopt(fds[1], SOL_SOCKET, SO_LINGER, &hour, sizeof hour);
    for (int n = 0; n < 24; n++) {
        int fd = fds[n % 2], n_fds = n % 4 < 2 ? 1 : FDS_MAX;
        struct raw r;
        if (fd < 0)
            continue;
        member_expect(c, raw_connect(&r, c->system), "no connection");
        bool first = send_fds(r.sock, &hello, sizeof hello, fd, n_fds);
        member_expect(c, first || errno == EPERM, "refused with %s", strerror(errno));
        member_expect(c, !first || !can_refuse, "a HELLO with one");
        if (!first) {
            _Alignas(8) char record[CB_RECORD_BYTES];
            raw_send(&r, &hello, sizeof hello);
            if (raw_receive(&r, record) == CB_RECORD_WELCOME && n % 3 == 0)
                raw_send_plain(&r, CB_RECORD_READY);
            member_expect(c, !send_fds(r.sock, &bell, sizeof bell, fd, n_fds), "a BELL with one");
            raw_send_plain(&r, CB_RECORD_BYE);
            member_expect(c, !send_fds(r.sock, &bell, sizeof bell, fd, n_fds), "one after BYE");
        }
        raw_close(&r);
        crowd_move(c);
    }
}

/* ---- the socket ------------------------------------------------------------------------------------ */

static void talks_after_bye(struct crowd *c, uint32_t i, void *arg)
{
    (void)arg;
    for (int n = 0; n < ZOO_ROUNDS; n++) {
        struct cage k;
        if (!cage_open(&k, c, i))
            return;
        struct cb_request_entry e = cage_entry(&k, 5);
        (void)cage_submit(&k, &e);
        raw_send_plain(&k.raw, CB_RECORD_BYE);
        for (int more = 0; more < 20; more++) {
            (void)raw_send_plain(&k.raw, (enum cb_record_type)(more % 9 + 1));
            (void)cage_submit(&k, &e);
        }
        cage_close(&k);
        crowd_move(c);
    }
}

/* Its client is dead when the process is, whoever holds the socket open. */
static void leaves_the_socket_to_a_child(struct crowd *c, uint32_t i, void *arg)
{
    (void)arg;
    for (int n = 0; n < 8; n++) {
        int ready[2];
        char byte;
        member_expect(c, pipe(ready) == 0, "no pipe");
        pid_t pid = fork();
        if (pid == 0) {
            struct cage k;
            if (!cage_open(&k, c, i))
                _exit(0);
            struct cb_request_entry e = cage_entry(&k, 5);
            e.max_new_tokens = CB_NO_LIMIT;
            (void)cage_submit(&k, &e);
            (void)raw_send_plain(&k.raw, CB_RECORD_BELL);
            if (fork() == 0) {
                nap(); /* its parent is gone by then */
                nap();
                (void)raw_send_plain(&k.raw, CB_RECORD_BELL);
                close(ready[1]);
                _exit(0);
            }
            _exit(0);
        }
        close(ready[1]);
        member_expect(c, pid > 0 && waitpid(pid, NULL, 0) == pid, "no child");
        while (read(ready[0], &byte, 1) > 0)
            ;
        close(ready[0]);
        crowd_move(c);
    }
}

/* Half a HELLO, then nothing; and nothing at all. */
static void says_half_a_hello(struct crowd *c, uint32_t i, void *arg)
{
    struct cb_hello hello = raw_hello();
    struct raw r[16];
    (void)i;
    (void)arg;
    for (int n = 0; n < 16; n++)
        if (raw_connect(&r[n], c->system) && n % 2)
            (void)raw_send(&r[n], &hello, sizeof hello / 2);
    for (int n = 0; n < 16; n++) {
        _Alignas(8) char record[CB_RECORD_BYTES];
        while (raw_receive(&r[n], record) > 0) /* until it is hung up on */
            ;
        raw_close(&r[n]);
        crowd_move(c);
    }
}

static void connects_and_drops(struct crowd *c, uint32_t i, void *arg)
{
    struct cb_hello hello = raw_hello();
    (void)i;
    (void)arg;
    for (int n = 0; n < 10 * ZOO_ROUNDS; n++) {
        struct raw r;
        if (raw_connect(&r, c->system) && n % 3)
            (void)raw_send(&r, &hello, n % 3 == 1 ? sizeof hello : 3);
        raw_close(&r);
        crowd_move(c);
    }
}

static void rings_at_full_speed(struct crowd *c, uint32_t i, void *arg)
{
    struct cage k;
    (void)arg;
    if (!cage_open(&k, c, i))
        return;
    for (int n = 0; n < 100 * ZOO_ROUNDS; n++) {
        struct cb_plain_record bell = {.head = {CB_RECORD_MAGIC, CB_RECORD_BELL, 0}};
        (void)send(k.raw.sock, &bell, sizeof bell, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n % 100 == 0)
            crowd_move(c);
    }
    cage_close(&k);
}

/* ---- time -------------------------------------------------------------------------------------------- */

/* Sends, stops, and is killed as it stands, asleep or not. */
static void stops_and_is_killed(struct crowd *c, uint32_t i, void *arg)
{
    (void)arg;
    for (int n = 0; n < 8; n++) {
        pid_t pid = fork();
        if (pid == 0) {
            struct cage k;
            uint32_t bell;
            if (!cage_open(&k, c, i))
                _exit(0);
            struct cb_request_entry e = cage_entry(&k, 5);
            e.max_new_tokens = n % 2 ? CB_NO_LIMIT : 30;
            (void)cage_submit(&k, &e);
            (void)raw_send_plain(&k.raw, CB_RECORD_BELL);
            if (n % 4 > 1)
                (void)cb_lane_client_park(k.lc, &bell);
            raise(SIGSTOP);
            _exit(0);
        }
        int status;
        member_expect(c, pid > 0 && waitpid(pid, &status, WUNTRACED) == pid, "no child");
        for (int naps = 0; naps < 20; naps++)
            nap();
        if (WIFSTOPPED(status)) {
            kill(pid, SIGKILL);
            waitpid(pid, NULL, 0);
        }
        crowd_move(c);
    }
}

/* ---- what there is not enough of ----------------------------------------------------------------------- */

/* The largest prompts, without limit, always cancelled; every slot filled, none freed. */
static void asks_for_everything(struct crowd *c, uint32_t i, void *arg)
{
    (void)arg;
    for (int n = 0; n < 6; n++) {
        struct cage k;
        if (!cage_open(&k, c, i))
            return;
        struct cb_request_entry e = cage_entry(&k, 64);
        const struct cb_geometry *g = &k.raw.welcome.geometry;
        uint64_t most = g->up_arena_bytes / 4;
        e.n_prompt = (uint32_t)(most < g->n_context ? most : g->n_context) - 1;
        e.max_new_tokens = CB_NO_LIMIT;
        while (cage_submit(&k, &e))
            if (n % 2)
                (void)cb_lane_client_cancel(k.lc, e.slot, e.gen);
        for (int turns = 0; turns < 30; turns++) { /* reads no result, frees no slot */
            (void)raw_send_plain(&k.raw, CB_RECORD_BELL);
            nap();
        }
        cage_close(&k); /* with all of it under way */
        crowd_move(c);
    }
}

/* As many lanes as it gets, each with a request, then dies. */
static void takes_all_lanes(struct crowd *c, uint32_t i, void *arg)
{
    (void)arg;
    for (int n = 0; n < 2; n++) {
        pid_t pid = fork();
        if (pid == 0) {
            static struct raw lanes[150];
            struct cb_hello hello = raw_hello();
            _Alignas(8) char record[CB_RECORD_BYTES];
            for (uint32_t l = 0; l < 150; l++) {
                if (!raw_connect(&lanes[l], c->system) ||
                    !raw_send(&lanes[l], &hello, sizeof hello) ||
                    raw_receive(&lanes[l], record) != CB_RECORD_WELCOME)
                    break;
                raw_send_plain(&lanes[l], CB_RECORD_READY);
                crowd_move(c);
            }
            (void)i;
            _exit(0);
        }
        member_expect(c, pid > 0 && waitpid(pid, NULL, 0) == pid, "no child");
    }
}

/* n children each, until the ring has no place for their answers. */
static void has_children(struct crowd *c, uint32_t i, void *arg)
{
    struct cage k;
    (void)arg;
    if (!cage_open(&k, c, i))
        return;
    for (int n = 0; n < ZOO_ROUNDS; n++) {
        struct cb_request_entry e = cage_entry(&k, 20);
        e.n_children = 1 + draw(&k.random, 40);
        e.temperature = 0.7f;
        while (cage_submit(&k, &e))
            e.n_children = 1 + draw(&k.random, 40);
        (void)raw_send_plain(&k.raw, CB_RECORD_BELL);
        if (n % 3 == 0 && !cage_turn(&k))
            break;
        crowd_move(c);
    }
    cage_close(&k);
}

const struct beast zoo_socket[] = {
    {"1 and 253 descriptors, before accept and after BYE: must fail", sends_descriptors, 0},
    {"send on after BYE", talks_after_bye, 0},
    {"close one end only, keep a fork's child", leaves_the_socket_to_a_child, 0},
    {"half a HELLO, then silence; connect flood, never HELLO", says_half_a_hello, 0},
    {"connect and drop at full speed", connects_and_drops, 0},
    {"bells at full speed", rings_at_full_speed, 0},
    {"submit and stop; stop while parked; killed so", stops_and_is_killed, 0},
    {"largest prompts, limit none, cancelled; every slot filled, none freed", asks_for_everything,
     0},
    {"lanes to the limit, then die", takes_all_lanes, 0},
    {"n children on a nearly full ring", has_children, 0},
    {NULL, NULL, 0},
};
