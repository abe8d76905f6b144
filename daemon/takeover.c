/* Both waits are bounded: the first one may be suspended, or may not be what it seems. */
#include "daemon/takeover.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "daemon/base/refuse.h"
#include "shm/control.h"
#include "shm/status.h"

#define ANSWER_MS 10000
#define LEAVE_MS  60000
#define LOOK_NS   200000

static int say(int sock, const char *command, const char *argument)
{
    struct cb_admin record = {.head = {.magic = CB_RECORD_MAGIC, .type = CB_RECORD_ADMIN},
                              .command_bytes = (uint32_t)strlen(command),
                              .argument_bytes = (uint32_t)strlen(argument)};
    memcpy(record.command, command, record.command_bytes);
    memcpy(record.argument, argument, record.argument_bytes);
    return send(sock, &record, sizeof record, MSG_NOSIGNAL) < 0 ? -errno : 0;
}

/* Whether it does as it was told, all pieces of its answer being read: 0, -EAGAIN if it has too much
 * else to answer, -EPERM if it will not, or another error. */
static int hear(int sock, char *message)
{
    for (;;) {
        struct cb_reply reply;
        struct pollfd p = {sock, POLLIN, 0};
        int r = poll(&p, 1, ANSWER_MS);
        ssize_t n = r > 0 ? recv(sock, &reply, sizeof reply, 0) : -1;
        if (r == 0)
            return refuse(message, -ETIMEDOUT, "the daemon that serves does not answer");
        if (n < 0 && errno == EINTR)
            continue;
        if (n != (ssize_t)sizeof reply || reply.head.magic != CB_RECORD_MAGIC ||
            reply.head.type != CB_RECORD_REPLY)
            return refuse(message, -EPROTO, "the daemon that serves refuses to be asked");
        if (!reply.is_last)
            continue;
        if (reply.status == CB_BUSY)
            return refuse(message, -EAGAIN, "the daemon that serves is too busy to answer");
        if (reply.status)
            return refuse(message, -EPERM, "the daemon that serves refuses: status %d",
                          reply.status);
        return 0;
    }
}

int takeover_greet(const char *path, int *sockp, char *message)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct ucred peer;
    socklen_t bytes = sizeof peer;
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    *sockp = -1;
    int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (sock < 0)
        return refuse(message, -errno, "can't make a socket: %s", strerror(errno));
    const struct timeval patience = {.tv_sec = ANSWER_MS / 1000};
    int r = 0;
    (void)setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    if (connect(sock, (const struct sockaddr *)&address, sizeof address) < 0) {
        r = errno;
        close(sock);
        return r == ENOENT || r == ECONNREFUSED /* it has gone by itself */
                   ? 0
                   : refuse(message, -r, "can't connect to %s: %s", path, strerror(r));
    }
    if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) < 0 ||
        (peer.uid != geteuid() && geteuid() != 0))
        r = refuse(message, -EPERM, "the daemon at %s is of another user", path);
    else if (say(sock, "settings", "instance") < 0)
        r = refuse(message, -errno, "the daemon that serves has hung up");
    else
        r = hear(sock, message);
    if (r)
        close(sock);
    else
        *sockp = sock;
    return r;
}

int takeover_finish(int sock, int lock_fd, char *message)
{
    const struct timespec look = {.tv_nsec = LOOK_NS};
    struct timespec begun, now;
    int answer = sock < 0 ? 0 : -EAGAIN;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    while (flock(lock_fd, LOCK_EX | LOCK_NB) < 0) {
        int error = errno;
        /* Again while it is too busy to take it. If it hangs up, its lock says whether it goes. */
        if (answer == -EAGAIN)
            answer = say(sock, "stop", "hard") < 0 ? 0 : hear(sock, message);
        if (answer == -EPERM)
            return answer;
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (error != EWOULDBLOCK && error != EINTR)
            return refuse(message, -error, "can't take the lock: %s", strerror(error));
        if (now.tv_sec - begun.tv_sec > LEAVE_MS / 1000)
            return refuse(message, -ETIMEDOUT,
                          "the daemon that serves was told to stop, and does not");
        nanosleep(&look, NULL);
    }
    return 0;
}
