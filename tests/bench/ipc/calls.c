/* What the kernel offers to sleeping processes: a pipe each way, a pair of SEQPACKET sockets, POSIX
 * message queues. A byte goes there and comes back. */
#include <errno.h>
#include <mqueue.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/bench/ipc/peer.h"
#include "tests/bench/ipc/way.h"

enum { PIPE, SOCKET, MQUEUE };

struct channel {
    int variant;
    int there[2], back[2]; /* [0] is read from; of a queue both are the same */
};

struct calls {
    uint32_t n_lanes;
    pid_t peer;
    struct channel channels[];
};

static void put(const struct channel *c, int fd)
{
    char byte = 1;
    if ((c->variant == MQUEUE ? mq_send(fd, &byte, 1, 0) : write(fd, &byte, 1)) < 0)
        peer_fail("send");
}

static void get(const struct channel *c, int fd)
{
    char byte;
    if ((c->variant == MQUEUE ? mq_receive(fd, &byte, 1, NULL) : read(fd, &byte, 1)) < 0)
        peer_fail("receive");
}

static void serve(void *shared, uint32_t lane)
{
    const struct channel *c = &((struct calls *)shared)->channels[lane];
    for (;;) {
        get(c, c->there[0]);
        put(c, c->back[1]);
    }
}

static void round_calls(void *ctx, uint32_t lane)
{
    const struct channel *c = &((struct calls *)ctx)->channels[lane];
    put(c, c->there[1]);
    get(c, c->back[0]);
}

static bool open_queue(int fds[2])
{
    struct mq_attr attr = {.mq_maxmsg = 1, .mq_msgsize = 1};
    char name[64];
    snprintf(name, sizeof name, "/bench_ipc.%ld", (long)getpid());
    fds[0] = mq_open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600, &attr);
    fds[1] = fds[0];
    if (fds[0] >= 0)
        mq_unlink(name);
    return fds[0] >= 0;
}

static bool open_channel(struct channel *c, int variant)
{
    int ends[2];
    *c = (struct channel){variant, {-1, -1}, {-1, -1}};
    if (variant == PIPE)
        return pipe(c->there) == 0 && pipe(c->back) == 0;
    if (variant == MQUEUE)
        return open_queue(c->there) && open_queue(c->back);
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends))
        return false;
    c->there[1] = c->back[0] = ends[0];
    c->there[0] = c->back[1] = ends[1];
    return true;
}

static void close_calls(void *ctx)
{
    struct calls *calls = ctx;
    peer_end(calls->peer);
    for (uint32_t i = 0; i < calls->n_lanes; i++) {
        const struct channel *c = &calls->channels[i];
        const int fds[] = {c->there[0], c->there[1], c->back[0], c->back[1]};
        int n = c->variant == PIPE ? 4 : 2;
        for (int k = 0; k < n; k++) {
            int fd = c->variant == MQUEUE ? fds[2 * k] : fds[k];
            if (fd >= 0)
                close(fd);
        }
    }
    free(calls);
}

static void *open_calls(struct place *place, const struct way *way, uint32_t n_lanes)
{
    struct calls *calls = calloc(1, sizeof *calls + n_lanes * sizeof calls->channels[0]);
    struct rlimit files;
    if (!calls)
        peer_fail("calls");
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
    for (; calls->n_lanes < n_lanes; calls->n_lanes++)
        if (!open_channel(&calls->channels[calls->n_lanes], way->variant)) {
            snprintf(place->why, sizeof place->why, "%s after %u lanes", strerror(errno),
                     calls->n_lanes);
            calls->n_lanes++;
            close_calls(calls);
            return NULL;
        }
    calls->peer = peer_fork(place->there);
    if (calls->peer == 0)
        peer_serve(n_lanes, serve, calls);
    return calls;
}

#define CALLS(words, kind)                                                                  \
    {                                                                                       \
        .name = words, .sleeps = true, .n_lanes = 256, .variant = kind, .open = open_calls, \
        .round = round_calls, .close = close_calls                                          \
    }
const struct way way_pipe = CALLS("pipe", PIPE);
const struct way way_socket = CALLS("unix socket", SOCKET);
const struct way way_mqueue = CALLS("POSIX message queue", MQUEUE);
