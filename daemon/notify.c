#include "daemon/notify.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* Microseconds, if they are meant for this process. */
static uint64_t watchdog_us(void)
{
    const char *pid = getenv("WATCHDOG_PID"), *us = getenv("WATCHDOG_USEC");
    if (!us || (pid && strtoull(pid, NULL, 10) != (unsigned long long)getpid()))
        return 0;
    return strtoull(us, NULL, 10);
}

void notify_open(struct notify *n)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *path = getenv("NOTIFY_SOCKET");
    size_t len = path ? strlen(path) : 0;
    *n = (struct notify){.fd = -1};
    if (len < 2 || len >= sizeof address.sun_path || (path[0] != '/' && path[0] != '@'))
        return;
    memcpy(address.sun_path, path, len);
    if (path[0] == '@')
        address.sun_path[0] = 0; /* a name that is in no directory */
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
    n->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (n->fd >= 0 && connect(n->fd, (struct sockaddr *)&address, size) < 0)
        notify_close(n);
    if (n->fd >= 0)
        n->interval_ns = watchdog_us() * 1000u / 2;
}

void notify_close(struct notify *n)
{
    if (n->fd >= 0)
        close(n->fd);
    *n = (struct notify){.fd = -1};
}

void notify_send(const struct notify *n, const char *text)
{
    if (n->fd >= 0)
        (void)!send(n->fd, text, strlen(text), MSG_DONTWAIT | MSG_NOSIGNAL);
}
