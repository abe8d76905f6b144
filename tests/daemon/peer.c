#include "tests/daemon/peer.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shm/doorbell.h"
#include "shm/message.h"

void peer_connect(struct peer *p, struct sim *s, uint32_t uid)
{
    memset(p, 0, sizeof *p);
    p->sim = s;
    p->sock = p->death = -1;
    for (int i = 0; i < 4; i++)
        p->fds[i] = -1;
    sim_connect(s, uid, &p->sock, &p->death);
    cr_assert_geq(p->sock, 0);
}

void peer_close(struct peer *p)
{
    for (int i = 0; i < 4; i++)
        if (p->fds[i] >= 0)
            close(p->fds[i]);
    cb_segment_unmap(&p->up);
    cb_segment_unmap(&p->down);
    free(p->lc);
    if (p->sock >= 0)
        close(p->sock);
    if (p->death >= 0)
        close(p->death);
    p->sock = p->death = -1;
    p->lc = NULL;
}

struct cb_hello peer_hello(void)
{
    return (struct cb_hello){
        .head = {.magic = CB_RECORD_MAGIC, .type = CB_RECORD_HELLO},
        .format_min = 1,
        .format_max = 1,
        .word_size = CB_WORD_SIZE,
        .endian = CB_ENDIAN,
        .wake = CB_WAKE_SOCKET,
    };
}

void peer_send(struct peer *p, const void *record, size_t n)
{
    cr_assert_eq(send(p->sock, record, n, MSG_DONTWAIT | MSG_NOSIGNAL), (ssize_t)n);
}

void peer_turn(struct peer *p, int n)
{
    for (int i = 0; i < n; i++)
        daemon_turn(p->sim->daemon);
    sim_audit(p->sim);
    cr_assert_str_empty(p->sim->report->error, "%s", p->sim->report->error);
}

int peer_receive(struct peer *p, void *record)
{
    union {
        char bytes[CMSG_SPACE(4 * sizeof(int))];
        struct cmsghdr align;
    } control;
    peer_turn(p, 30);
    struct iovec iov = {.iov_base = record, .iov_len = CB_RECORD_BYTES};
    struct msghdr message = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    ssize_t n = recvmsg(p->sock, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0)
        return errno == EAGAIN ? 0 : -1;
    if (n == 0)
        return -1;
    cr_assert_eq(n, CB_RECORD_BYTES);
    struct cmsghdr *cmsg = CMSG_FIRSTHDR(&message);
    if (cmsg)
        memcpy(p->fds, CMSG_DATA(cmsg), cmsg->cmsg_len - CMSG_LEN(0));
    return ((const struct cb_record_head *)record)->type;
}

void peer_open(struct peer *p, struct sim *s, uint32_t uid, const struct cb_hello *hello)
{
    struct cb_plain_record ready;
    struct cb_why why;
    peer_connect(p, s, uid);
    peer_send(p, hello, sizeof *hello);
    cr_assert_eq(peer_receive(p, &p->welcome), CB_RECORD_WELCOME);
    const struct cb_geometry *g = &p->welcome.geometry;
    cr_assert_eq(cb_segment_map(&p->up, p->fds[0], g->up_bytes, 1, &why), 0, "%s", why.text);
    cr_assert_eq(cb_segment_map(&p->down, p->fds[1], g->down_bytes, 0, &why), 0, "%s", why.text);
    cr_assert_eq(cb_lane_client_init(&p->lc, calloc(1, cb_lane_client_bytes(g)), g, p->up.base,
                                     p->down.base),
                 0);
    cb_record_plain(&ready, CB_RECORD_READY);
    peer_send(p, &ready, sizeof ready);
    peer_turn(p, 20);
}

int peer_admin(struct peer *p, const char *command, const char *argument, char *text, size_t n)
{
    struct cb_admin record = {.head = {.magic = CB_RECORD_MAGIC, .type = CB_RECORD_ADMIN},
                              .command_bytes = (uint32_t)strlen(command),
                              .argument_bytes = (uint32_t)strlen(argument)};
    struct cb_reply reply;
    size_t at = 0;
    memcpy(record.command, command, record.command_bytes);
    memcpy(record.argument, argument, record.argument_bytes);
    peer_send(p, &record, sizeof record);
    do {
        cr_assert_eq(peer_receive(p, &reply), CB_RECORD_REPLY, "to %s", command);
        cr_assert_lt(at + reply.bytes, n);
        memcpy(text + at, reply.text, reply.bytes);
        at += reply.bytes;
    } while (!reply.is_last);
    text[at] = 0;
    return reply.status;
}

void peer_submit(struct peer *p, struct cb_request_entry *e, const uint32_t *ids, uint32_t n)
{
    cb_lane_client_write_arena(p->lc, 0, ids, n * sizeof *ids);
    cr_assert_geq(cb_lane_client_submit(p->lc, e), 0);
}

bool peer_result(struct peer *p, struct cb_result_entry *e)
{
    for (int i = 0; i < 50; i++) {
        int r = cb_lane_client_poll(p->lc, e);
        cr_assert_geq(r, 0);
        if (r & CB_LANE_ENTRY)
            return true;
        (void)cb_doorbell_send(p->sock, CB_RECORD_BELL);
        peer_turn(p, 1);
    }
    return false;
}
