/* shm/lease.h - who is at the other end of a socket, and does that process still live.
 *
 * A lease is taken at accept and asks the kernel alone: SO_PEERCRED (who called connect),
 * SO_PEERGROUPS, and a pidfd, which becomes readable at the process's death, even if a forked child
 * keeps the socket open. The pid is for display: it is 0 across pid namespaces, and numbers are
 * reused. */
#ifndef CB_SHM_LEASE_H
#define CB_SHM_LEASE_H

#include <stdbool.h>
#include <sys/types.h>

struct cb_lease {
    uid_t uid;
    gid_t gid;
    pid_t pid;
    int pidfd; /* -1: none to be had; then only the socket tells of death */
    bool weak; /* the pidfd came from the pid, which may have been reused before */
};

/* Fills *lease for a connected socket. 0 or negative errno. */
int cb_lease_take(struct cb_lease *lease, int sock);

/* Closes the pidfd. */
void cb_lease_release(struct cb_lease *lease);

/* Whether the peer's primary or one of its supplementary groups is `group`; by SO_PEERGROUPS. */
bool cb_lease_has_group(const struct cb_lease *lease, int sock, gid_t group);

/* False once the process has ended. True if there is no pidfd. */
bool cb_lease_alive(const struct cb_lease *lease);

#endif
