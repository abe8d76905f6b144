/* One ADMIN record out, REPLY records in until the last one; their pieces together are the JSON. */
#include "client/command.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/internal.h"

#define ANSWER_BYTES_MAX (16u << 20)

static int answer_add(struct cb_command_answer *a, const char *text, size_t bytes)
{
    if (a->n + bytes >= a->room) {
        size_t room = a->room ? a->room * 2 : 4096;
        char *larger = room <= ANSWER_BYTES_MAX ? realloc(a->text, room) : NULL;
        if (!larger)
            return cb_fail(CB_NO_MEMORY);
        a->text = larger;
        a->room = room;
    }
    memcpy(a->text + a->n, text, bytes);
    a->n += bytes;
    a->text[a->n] = 0;
    return 0;
}

static int send_command(int sock, const char *command, const char *argument)
{
    struct cb_admin record = {.head = {CB_RECORD_MAGIC, CB_RECORD_ADMIN, 0},
                              .command_bytes = (uint32_t)strlen(command),
                              .argument_bytes = (uint32_t)strlen(argument)};
    if (strlen(command) >= sizeof(record.command) || strlen(argument) >= sizeof(record.argument))
        return cb_fail_at("the command is too long", CB_INVALID, 0, 0);
    memcpy(record.command, command, record.command_bytes);
    memcpy(record.argument, argument, record.argument_bytes);
    /* Who hung up already may have said why: that is read next. */
    if (send(sock, &record, sizeof(record), MSG_NOSIGNAL) < 0 && errno != EPIPE &&
        errno != ECONNRESET)
        return cb_fail(CB_LOST);
    return 0;
}

/* One record, and a descriptor if one came: its bytes; 0 or -1 as recvmsg. */
static ssize_t receive(int sock, struct cb_reply *piece, int *fdp)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec iov = {.iov_base = piece, .iov_len = sizeof(*piece)};
    struct msghdr message = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};
    ssize_t n = recvmsg(sock, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    struct cmsghdr *c = n < 0 ? NULL : CMSG_FIRSTHDR(&message);
    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS &&
        c->cmsg_len == CMSG_LEN(sizeof(int)) && *fdp < 0)
        memcpy(fdp, CMSG_DATA(c), sizeof(int));
    return n;
}

/* All pieces. */
static int receive_all(int sock, int wait_ms, struct cb_command_answer *a)
{
    for (;;) {
        struct cb_reply piece;
        if (!cb_await_answer(sock, wait_ms))
            return cb_fail_silent(sock, (unsigned)wait_ms / 1000);
        ssize_t n = receive(sock, &piece, &a->fd);
        /* ECONNRESET, told once: it closed without reading. A refusal may lie behind it. */
        if (n < 0 && (errno == EINTR || errno == EAGAIN || errno == ECONNRESET))
            continue;
        if (n <= 0)
            return cb_fail(CB_LOST);
        if (n == sizeof(piece) && piece.head.magic == CB_RECORD_MAGIC &&
            piece.head.type == CB_RECORD_REFUSED) {
            struct cb_refused refused;
            memcpy(&refused, &piece, sizeof(refused));
            return cb_fail_with(refused.status, refused.detail[0], refused.detail[1]);
        }
        if (n != sizeof(piece) || piece.head.magic != CB_RECORD_MAGIC ||
            piece.head.type != CB_RECORD_REPLY || piece.bytes > sizeof(piece.text))
            return cb_fail_at("the daemon's answer", CB_BAD_RECORD, 0, 0);
        int r = answer_add(a, piece.text, piece.bytes);
        if (r)
            return r;
        if (piece.is_last) {
            a->status = piece.status;
            return a->status ? cb_fail(a->status) : 0;
        }
    }
}

int cb_command(int sock, const char *command, const char *argument, int wait_ms,
               struct cb_command_answer *answer)
{
    *answer = (struct cb_command_answer){.fd = -1};
    int r = send_command(sock, command, argument);
    return r ? r : receive_all(sock, wait_ms, answer);
}

void cb_command_free(struct cb_command_answer *answer)
{
    free(answer->text);
    if (answer->fd >= 0)
        close(answer->fd);
    *answer = (struct cb_command_answer){.fd = -1};
}
