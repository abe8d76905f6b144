#include "tests/system/raw.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

bool raw_connect(struct raw *r, const struct system *s)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    *r = (struct raw){.sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), .fds = {-1, -1}};
    snprintf(address.sun_path, sizeof address.sun_path, "%s/%s/sock", s->dir, s->instance);
    return r->sock >= 0 && connect(r->sock, (struct sockaddr *)&address, sizeof address) == 0;
}

void raw_close(struct raw *r)
{
    if (r->sock >= 0)
        close(r->sock);
    r->sock = -1;
    for (int i = 0; i < 2; i++) {
        if (r->fds[i] >= 0)
            close(r->fds[i]);
        r->fds[i] = -1;
    }
    cb_segment_unmap(&r->up);
    cb_segment_unmap(&r->down);
}

struct cb_hello raw_hello(void)
{
    return (struct cb_hello){
        .head = {CB_RECORD_MAGIC, CB_RECORD_HELLO, 0},
        .format_min = CB_FORMAT,
        .format_max = CB_FORMAT,
        .word_size = CB_WORD_SIZE,
        .endian = CB_ENDIAN,
        .libc = "none",
        .name = "raw",
    };
}

bool raw_send(struct raw *r, const void *bytes, size_t n)
{
    return send(r->sock, bytes, n, MSG_NOSIGNAL) == (ssize_t)n;
}

bool raw_send_plain(struct raw *r, enum cb_record_type type)
{
    struct cb_plain_record record = {.head = {CB_RECORD_MAGIC, (uint16_t)type, 0}};
    return raw_send(r, &record, sizeof record);
}

int raw_receive(struct raw *r, void *out)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(4 * sizeof(int))];
    } control;
    struct iovec piece = {out, CB_RECORD_BYTES};
    struct msghdr message = {.msg_iov = &piece,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control};
    struct pollfd p = {r->sock, POLLIN, 0};
    struct cb_record_head head;
    if (poll(&p, 1, HANG_MS) <= 0)
        return -1;
    if (recvmsg(r->sock, &message, MSG_CMSG_CLOEXEC) != CB_RECORD_BYTES)
        return 0;
    memcpy(&head, out, sizeof head);
    const struct cmsghdr *cmsg = CMSG_FIRSTHDR(&message);
    if (head.type == CB_RECORD_WELCOME && cmsg && cmsg->cmsg_len == CMSG_LEN(4 * sizeof(int))) {
        int fds[4];
        struct cb_why why;
        memcpy(fds, CMSG_DATA(cmsg), sizeof fds);
        memcpy(&r->welcome, out, sizeof r->welcome);
        int bad = cb_segment_map(&r->up, fds[0], r->welcome.geometry.up_bytes, 1, &why) |
                  cb_segment_map(&r->down, fds[1], r->welcome.geometry.down_bytes, 0, &why);
        memcpy(r->fds, fds, sizeof r->fds);
        close(fds[2]);
        close(fds[3]);
        if (bad)
            return -1;
    }
    return head.type;
}

bool raw_open(struct raw *r, const struct system *s)
{
    struct cb_hello hello = raw_hello();
    _Alignas(8) char record[CB_RECORD_BYTES];
    return raw_connect(r, s) && raw_send(r, &hello, sizeof hello) &&
           raw_receive(r, record) == CB_RECORD_WELCOME && raw_send_plain(r, CB_RECORD_READY);
}
