/* SO_PEERPIDFD (kernel 6.5) names the very process that connected. Without it, pidfd_open on the
 * pid is the next best: the number may have been reused between connect and now, which is said in
 * `weak`. */
#include "shm/lease.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

#define GROUPS_MAX 1024 /* more than this many supplementary groups: the rest does not count */

int cb_lease_take(struct cb_lease *lease, int sock)
{
    struct ucred cred;
    socklen_t len = sizeof cred;
    int pidfd = -1;

    *lease = (struct cb_lease){.pidfd = -1};
    if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &cred, &len) < 0)
        return -errno;
    lease->uid = cred.uid;
    lease->gid = cred.gid;
    lease->pid = cred.pid;
    len = sizeof pidfd;
    if (getsockopt(sock, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &len) == 0) {
        lease->pidfd = pidfd;
    } else if (cred.pid > 0) {
        lease->pidfd = (int)syscall(SYS_pidfd_open, cred.pid, 0);
        lease->weak = true;
    }
    return 0;
}

void cb_lease_release(struct cb_lease *lease)
{
    if (lease->pidfd >= 0)
        close(lease->pidfd);
    lease->pidfd = -1;
}

bool cb_lease_has_group(const struct cb_lease *lease, int sock, gid_t group)
{
    gid_t groups[GROUPS_MAX];
    socklen_t len = sizeof groups;

    if (lease->gid == group)
        return true;
    if (getsockopt(sock, SOL_SOCKET, SO_PEERGROUPS, groups, &len) < 0)
        return false;
    for (size_t i = 0; i < len / sizeof groups[0]; i++) {
        if (groups[i] == group)
            return true;
    }
    return false;
}

bool cb_lease_alive(const struct cb_lease *lease)
{
    struct pollfd p = {.fd = lease->pidfd, .events = POLLIN};

    return lease->pidfd < 0 || poll(&p, 1, 0) <= 0;
}
