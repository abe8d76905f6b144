/* Buffers are few and large: commands are an operator's, and come one at a time. Whose connection
 * ended gives its buffer back when the next one looks for one; nobody has to tell us. */
#include "daemon/replies.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "daemon/base/clock.h"

#define N_REPLIES   4
#define REPLY_BYTES (256u << 10)

struct replies {
    struct clients *clients;
    struct reply all[N_REPLIES];
    char *bytes; /* [N_REPLIES][REPLY_BYTES] */
};

int replies_new(struct replies **repliesp, struct clients *clients)
{
    struct replies *rs = calloc(1, sizeof *rs);
    if (!rs)
        return -ENOMEM;
    rs->clients = clients;
    rs->bytes = malloc(N_REPLIES * REPLY_BYTES);
    if (!rs->bytes) {
        replies_free(rs);
        return -ENOMEM;
    }
    *repliesp = rs;
    return 0;
}

struct replies *replies_free(struct replies *rs)
{
    if (rs) {
        free(rs->bytes);
        free(rs);
    }
    return NULL;
}

static bool is_free(const struct reply *r)
{
    return !r->client || r->client->lane_id != r->lane_id || r->client->state != CLIENT_ADMIN;
}

struct reply *replies_take(struct replies *rs, struct client *cl)
{
    for (uint32_t i = 0; i < N_REPLIES; i++) {
        struct reply *r = &rs->all[i];
        if (!is_free(r))
            continue;
        *r = (struct reply){.client = cl, .lane_id = cl->lane_id, .fd = -1};
        buf_init(&r->text, rs->bytes + i * REPLY_BYTES, REPLY_BYTES);
        cl->reply = r;
        return r;
    }
    return NULL;
}

void replies_give(struct client *cl, int fd)
{
    struct reply *r = cl->reply;
    if (r)
        r->fd = fd;
}

/* As sendmsg; fd -1: without a descriptor. */
static ssize_t send_with(int sock, struct cb_reply *record, int fd)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {{0}};
    struct iovec iov = {.iov_base = record, .iov_len = sizeof *record};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
    if (fd >= 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof control.bytes;
        struct cmsghdr *cmsg = CMSG_FIRSTHDR(&message);
        cmsg->cmsg_level = SOL_SOCKET;
        cmsg->cmsg_type = SCM_RIGHTS;
        cmsg->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(cmsg), &fd, sizeof fd);
    }
    return sendmsg(sock, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* One piece: 1: more to send; 0: that was all; -EAGAIN: the socket is full; else it is gone. */
static int send_piece(struct client *cl, int status, const char *text, size_t left, int fd)
{
    struct cb_reply record = {.head = {.magic = CB_RECORD_MAGIC, .type = CB_RECORD_REPLY}};
    size_t n = left < sizeof record.text ? left : sizeof record.text;
    memcpy(record.text, text, n);
    record.bytes = (uint16_t)n;
    record.is_last = n == left;
    record.status = record.is_last ? status : CB_OK;
    if (send_with(cl->sock.fd, &record, fd) < 0)
        return errno == EAGAIN || errno == ENOBUFS ? -EAGAIN : -EPIPE;
    return !record.is_last;
}

void replies_send(struct replies *rs, struct client *cl)
{
    const struct clients_config *config = &rs->clients->config;
    struct reply *reply = cl->reply;
    int r;
    do {
        r = send_piece(cl, reply->status, reply->text.data + reply->sent,
                       reply->text.n - reply->sent, reply->fd);
        if (r >= 0)
            reply->fd = -1;
        if (r == 1)
            reply->sent += sizeof((struct cb_reply *)0)->text;
    } while (r == 1);
    if (r == -EAGAIN) { /* on with it when the socket has room */
        loop_timer_set(config->loop, &cl->patience, clock_now(config->clock) + CLIENTS_PATIENCE_NS);
        if (loop_change(config->loop, &cl->sock, LOOP_WRITE) == 0)
            return;
        r = -EPIPE;
    }
    loop_timer_clear(&cl->patience);
    reply->client = NULL;
    cl->reply = NULL;
    if (r < 0 || loop_change(config->loop, &cl->sock, LOOP_READ) < 0)
        clients_close(rs->clients, cl, CB_CLOSED_NO);
}

void replies_send_status(struct replies *rs, struct client *cl, int status)
{
    if (send_piece(cl, status, "", 0, -1) < 0)
        clients_close(rs->clients, cl, CB_CLOSED_NO);
}
