/* daemon/privileges.h - a daemon started as root gives up what root may do before it opens a file.
 *
 * With the setting `user` it becomes that user, once root has made its run directory: <run directory>
 * stays root's, <instance> in it is the user's, which is how clients know that root let that user in
 * (client/find.c). Without, it stays root by number and has no capability: it may do with files what
 * their owner root may, and nothing else.
 *
 * Errors: negative errno, and one sentence in message. At start only, before any thread is made. */
#ifndef CB_DAEMON_PRIVILEGES_H
#define CB_DAEMON_PRIVILEGES_H

#include <stdbool.h>
#include <sys/types.h>

#include "daemon/base/refuse.h"

#define PRIVILEGES_MESSAGE_MAX REFUSE_MESSAGE_MAX

struct privileges {
    uid_t uid; /* (uid_t)-1: nobody else, stay who we are */
    gid_t gid;
    char name[64];
};

/* Who is to be: the user of that name, if it is not empty and not who we are already. */
int privileges_find(struct privileges *p, const char *user, char *message);
/* Becomes that user, with its groups and `group` ((gid_t)-1: none) as one more, so that files can be
 * given to it. Without capabilities from then on, and with no_new_privs, if `for_good`. */
int privileges_drop(const struct privileges *p, gid_t group, bool for_good, char *message);

#endif
