/* daemon/place.h - where a daemon lives: its run directory, the lock that makes it the only one,
 * and the listening socket.
 *
 *   <runtime_dir>/<instance>/lock    flock: vanishes with the process, as no pid file does
 *   <runtime_dir>/<instance>/sock    SOCK_SEQPACKET; renamed into place once it listens
 *   <runtime_dir>/<instance>/status  a link to the STATUS page, which tells run directories apart
 *   <runtime_dir>/<instance>/next    flock: of who is about to take this daemon's place, and of who
 *                                    unlinks its socket, so that it is not the other's by then
 *
 * No descriptor may ever reach this daemon: to take, drop or close one can block it for ever. Where
 * the kernel can refuse them (SO_PASSRIGHTS, 6.16), it does so before listen. Where it can't, the
 * socket is 0600, so that only root and this uid get in, unless socket_trust is the operator's
 * word.
 *
 * Errors: negative errno, and one sentence in message (PLACE_MESSAGE_MAX bytes). At start only. */
#ifndef CB_DAEMON_PLACE_H
#define CB_DAEMON_PLACE_H

#include <stdbool.h>
#include <sys/socket.h>
#include <sys/types.h>

#include "daemon/base/refuse.h"
#include "daemon/settings.h"

#ifndef SO_PASSRIGHTS /* of Linux 6.16; headers may be older */
#define SO_PASSRIGHTS 83
#endif

#define PLACE_MESSAGE_MAX REFUSE_MESSAGE_MAX
#define PLACE_PATH_MAX    104 /* sockaddr_un holds 107 bytes; the name while it is made is longer */

struct place {
    char dir[PLACE_PATH_MAX];
    char path[PLACE_PATH_MAX]; /* the socket */
    int lock_fd;               /* -1: not taken */
    bool is_second;            /* another daemon has the lock: its place is to be taken */
    int next_fd;               /* locked while it is second; -1: not open */
    dev_t dev;                 /* of the socket: there may be another's by that name */
    ino_t ino;
    int listen_fd; /* -1: not listening */
    bool shows_status;
    bool is_handed;           /* the socket is the manager's (handed.h) */
    bool refuses_descriptors; /* by the kernel */
    mode_t mode;              /* in force      */
};

/* As root, for a daemon that will be another user: makes the directory and gives it to that one. */
int place_give(struct place *p, const struct settings *set, uid_t uid, gid_t gid, char *message);
/* Makes and locks the directory. -EBUSY: an instance of this name runs already; with the setting
 * takeover that is no error, and place_take_over is to follow. */
int place_take(struct place *p, const struct settings *set, gid_t group, char *message);
/* Links `status` to the page of that name, in /dev/shm, which is complete by now. */
int place_show_status(struct place *p, const char *name, char *message);
/* Listens; clients that connect from now on wait in the backlog. */
int place_listen(struct place *p, const struct settings *set, gid_t group, char *message);
/* Of one that is second, all else being ready: listens, tells the first to stop, and waits until it has
 * gone. From the moment that the socket has its new name those who come wait in our backlog. Bounded; on
 * an error the first serves on, unless it had been told to stop. */
int place_take_over(struct place *p, const struct settings *set, gid_t group, char *message);
/* Unlinks status and socket, if they are ours, closes, unlocks. Fine on one that was never taken. */
void place_release(struct place *p);

/* The group's number; (gid_t)-1 if name is empty. -ENOENT with message if there is none. */
int place_group(const char *name, const char *setting, gid_t *gidp, char *message);

#endif
