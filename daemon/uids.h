/* daemon/uids.h - a list of users, as a setting gives it: "1000,1001". */
#ifndef CB_DAEMON_UIDS_H
#define CB_DAEMON_UIDS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "shm/names.h"

#define UIDS_MAX CB_NAMES_UIDS_MAX

struct uids {
    uint32_t n;
    uid_t of[UIDS_MAX];
};

/* 0, or -EINVAL with message (REFUSE_MESSAGE_MAX bytes): what is wrong with the setting of that
 * name, and what to write. */
int uids_parse(const char *setting, const char *text, struct uids *uids, char *message);

bool uids_have(const struct uids *uids, uid_t uid);

#endif
