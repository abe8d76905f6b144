/* Numbers only: names would have to be looked up, and could come to mean somebody else. */
#include "daemon/uids.h"

#include <errno.h>

#include "daemon/base/refuse.h"

bool uids_have(const struct uids *uids, uid_t uid)
{
    for (uint32_t i = 0; i < uids->n; i++)
        if (uids->of[i] == uid)
            return true;
    return false;
}

int uids_parse(const char *setting, const char *text, struct uids *uids, char *message)
{
    struct uids u = {0};
    const char *c = text;
    while (*c) {
        const char *start = c;
        uint64_t uid = 0;
        for (; *c >= '0' && *c <= '9' && uid < UINT32_MAX; c++)
            uid = uid * 10 + (uint64_t)(*c - '0');
        /* The last number means nobody: (uid_t)-1. */
        if (c == start || uid >= UINT32_MAX || (*c && *c != ',') || (*c == ',' && !c[1]))
            return refuse(message, -EINVAL,
                          "%s makes no sense from '%.40s' on; give numbers of users, as in "
                          "1000,1001",
                          setting, start);
        if (uids_have(&u, (uid_t)uid))
            return refuse(message, -EINVAL, "%s names user %u twice", setting, (unsigned)uid);
        if (u.n == UIDS_MAX)
            return refuse(message, -EINVAL, "%s names more than %d users", setting, UIDS_MAX);
        u.of[u.n++] = (uid_t)uid;
        c += *c == ',';
    }
    *uids = u;
    return 0;
}
