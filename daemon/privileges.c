/* capset by its number: libcap would be a library for one call. Threads have capabilities of their
 * own, so this runs while there is one. */
#include "daemon/privileges.h"

#include <errno.h>
#include <grp.h>
#include <linux/capability.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { GROUPS_MAX = 256, CAPABILITIES_MAX = 64 };

int privileges_find(struct privileges *p, const char *user, char *message)
{
    *p = (struct privileges){.uid = (uid_t)-1, .gid = (gid_t)-1};
    if (!*user)
        return 0;
    errno = 0;
    const struct passwd *entry = getpwnam(user);
    if (!entry)
        return refuse(message, -ENOENT, "user is '%s': there is no such user", user);
    if (entry->pw_uid == geteuid())
        return 0;
    if (geteuid() != 0)
        return refuse(message, -EPERM, "user is '%s': only root can become another user", user);
    p->uid = entry->pw_uid;
    p->gid = entry->pw_gid;
    snprintf(p->name, sizeof p->name, "%s", user);
    return 0;
}

static int drop_capabilities(void)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[2] = {{0, 0, 0}, {0, 0, 0}};
    /* The bounding set holds for what is executed, and nothing is; it goes where it may. */
    for (int i = 0; i < CAPABILITIES_MAX; i++)
        (void)prctl(PR_CAPBSET_DROP, i, 0, 0, 0);
    (void)prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    return syscall(SYS_capset, &head, none) < 0 ? -errno : 0;
}

/* Those of the user, or ours, and one more. */
static int set_groups(const struct privileges *p, gid_t group)
{
    gid_t groups[GROUPS_MAX + 1];
    int n = GROUPS_MAX;
    if (p->uid != (uid_t)-1) {
        if (getgrouplist(p->name, p->gid, groups, &n) < 0)
            n = GROUPS_MAX; /* the first of them */
    } else {
        n = getgroups(GROUPS_MAX, groups);
        if (n < 0)
            return -errno;
    }
    if (group != (gid_t)-1)
        groups[n++] = group;
    return setgroups((size_t)n, groups) < 0 ? -errno : 0;
}

int privileges_drop(const struct privileges *p, gid_t group, bool for_good, char *message)
{
    bool changes = p->uid != (uid_t)-1;
    int r = 0;
    /* Where a user namespace forbids to set groups, there is no one more. */
    if (geteuid() == 0 && (changes || group != (gid_t)-1))
        r = set_groups(p, group);
    if (r && (changes || r != -EPERM))
        return refuse(message, r, "can't set the groups of user '%s': %s", p->name, strerror(-r));
    if (changes && (setresgid(p->gid, p->gid, p->gid) || setresuid(p->uid, p->uid, p->uid)))
        return refuse(message, -errno, "can't become user '%s': %s", p->name, strerror(errno));
    if (!for_good)
        return 0;
    r = drop_capabilities();
    if (r == 0 && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        r = -errno;
    return r ? refuse(message, r, "can't give up privileges: %s; set sandbox to false to keep them",
                      strerror(-r))
             : 0;
}
