/* daemon/handed.h - a listening socket that the manager made and hands down (socket activation).
 *
 * $LISTEN_FDS and $LISTEN_PID, as in sd_listen_fds(3). It is taken only if it keeps the promise of
 * place.h: that no descriptor can come in through it. What queued before we could say so ourselves
 * keeps the right that the socket had, so it has to come with that right off; on kernels that can't
 * say so, with mode 0600; or socket_trust is the operator's word. */
#ifndef CB_DAEMON_HANDED_H
#define CB_DAEMON_HANDED_H

#include "daemon/place.h"

/* 0: p->listen_fd is the one handed down, or -1 if there is none. Negative errno, and a sentence in
 * message, if there is one that can't be used. */
int handed_listener(struct place *p, const struct settings *set, char *message);

#endif
