#include "daemon/handed.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { FIRST_FD = 3 }; /* by the convention */

static unsigned long number_of(const char *variable)
{
    const char *text = getenv(variable);
    return text ? strtoul(text, NULL, 10) : 0;
}

static int option_of(int fd, int option)
{
    int value = -1;
    socklen_t size = sizeof value;
    return getsockopt(fd, SOL_SOCKET, option, &value, &size) < 0 ? -errno : value;
}

/* That it is a socket which clients find and can talk to. */
static int check_kind(int fd, const struct place *p, char *message)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    socklen_t size = sizeof address - 1; /* a NUL stays behind the path */
    if (option_of(fd, SO_DOMAIN) != AF_UNIX || option_of(fd, SO_TYPE) != SOCK_SEQPACKET ||
        option_of(fd, SO_ACCEPTCONN) != 1)
        return refuse(message, -EPROTOTYPE,
                      "the socket handed down is no listening unix socket of records; set "
                      "ListenSequentialPacket=%s in its unit",
                      p->path);
    if (getsockname(fd, (struct sockaddr *)&address, &size) < 0 ||
        strcmp(address.sun_path, p->path) != 0)
        return refuse(message, -EADDRNOTAVAIL,
                      "the socket handed down is '%s', and clients look for %s; set "
                      "ListenSequentialPacket= in its unit, or runtime_dir and instance",
                      address.sun_path, p->path);
    return 0;
}

static int check_rights(int fd, struct place *p, const struct settings *set, char *message)
{
    int passes = option_of(fd, SO_PASSRIGHTS);
    struct stat st;
    if (stat(p->path, &st) < 0)
        return refuse(message, -errno, "can't look at %s: %s", p->path, strerror(errno));
    p->mode = st.st_mode & 07777;
    p->refuses_descriptors = passes == 0;
    if (passes == 0 || set->socket_trust)
        return 0;
    if (passes > 0)
        return refuse(message, -EPERM,
                      "the socket handed down lets descriptors in, by which a client could block "
                      "the daemon; set AcceptFileDescriptors=no in its unit (systemd 258), or stop "
                      "that unit so that cbd makes the socket, or set socket_trust");
    return p->mode == 0600 ? 0
                           : refuse(message, -EPERM,
                                    "the socket handed down has mode %04o, and this kernel can't "
                                    "keep descriptors away from it; set SocketMode=0600 in its "
                                    "unit, or socket_trust",
                                    (unsigned)p->mode);
}

int handed_listener(struct place *p, const struct settings *set, char *message)
{
    unsigned long n = number_of("LISTEN_FDS");
    if (n == 0 || number_of("LISTEN_PID") != (unsigned long)getpid())
        return 0;
    if (n > 1)
        return refuse(message, -EINVAL, "%lu sockets are handed down, and cbd has use for one", n);
    int r = check_kind(FIRST_FD, p, message);
    if (r == 0)
        r = check_rights(FIRST_FD, p, set, message);
    if (r)
        return r;
    if (fcntl(FIRST_FD, F_SETFD, FD_CLOEXEC) < 0 || fcntl(FIRST_FD, F_SETFL, O_NONBLOCK) < 0)
        return refuse(message, -errno, "can't set up the socket handed down: %s", strerror(errno));
    p->listen_fd = FIRST_FD;
    p->is_handed = true;
    return 0;
}
