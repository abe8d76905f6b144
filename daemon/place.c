/* The directory may lie in /tmp, where anyone can prepare a name for us: what is found there must
 * be a directory, not a link, and belong to this uid (or root), or it is refused. */
#include "daemon/place.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/takeover.h"

#define BACKLOG 128

int place_group(const char *name, const char *setting, gid_t *gidp, char *message)
{
    *gidp = (gid_t)-1;
    if (!*name)
        return 0;
    const struct group *group = getgrnam(name);
    if (!group)
        return refuse(message, -ENOENT, "%s is '%s': there is no such group", setting, name);
    *gidp = group->gr_gid;
    return 0;
}

/* Makes one directory or accepts the one that is there, if it can be used that way. */
static int dir_make(const char *path, int use, char *message)
{
    struct stat st;
    if (mkdir(path, 0755) < 0 && errno != EEXIST)
        return refuse(message, -errno, "can't make the run directory %s: %s; see runtime_dir", path,
                      strerror(errno));
    if (lstat(path, &st) < 0)
        return refuse(message, -errno, "can't look at the run directory %s: %s", path,
                      strerror(errno));
    if (!S_ISDIR(st.st_mode))
        return refuse(message, -ENOTDIR,
                      "the run directory %s is no directory; remove it, or set "
                      "runtime_dir",
                      path);
    if (st.st_uid != geteuid() && st.st_uid != 0)
        return refuse(message, -EPERM,
                      "the run directory %s belongs to uid %u, not to this user or "
                      "root; remove it, or set runtime_dir",
                      path, (unsigned)st.st_uid);
    if (access(path, use) < 0)
        return refuse(message, -errno, "the run directory %s is not writable: %s; see runtime_dir",
                      path, strerror(errno));
    return 0;
}

static int base_dir(const struct settings *set, char *dir, size_t n, char *message)
{
    const char *xdg = getenv("XDG_RUNTIME_DIR");
    int len;
    if (set->runtime_dir[0])
        len = snprintf(dir, n, "%s", set->runtime_dir);
    else if (geteuid() == 0)
        len = snprintf(dir, n, "/run/cbd");
    else if (xdg && xdg[0] == '/')
        len = snprintf(dir, n, "%s/cbd", xdg);
    else
        len = snprintf(dir, n, "/tmp/cbd-%u", (unsigned)geteuid());
    return (size_t)len < n ? 0
                           : refuse(message, -ENAMETOOLONG,
                                    "the run directory's name is longer than "
                                    "%zu bytes; set a shorter runtime_dir",
                                    n - 1);
}

/* A file of the directory that is there to be locked. */
static int open_lock(const struct place *p, const char *name, int *fdp, char *message)
{
    char path[PLACE_PATH_MAX + 8];
    snprintf(path, sizeof path, "%s/%s", p->dir, name);
    *fdp = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    return *fdp < 0 ? refuse(message, -errno, "can't open %s: %s", path, strerror(errno)) : 0;
}

/* There is one that serves: we alone are to take its place. */
static int be_next(struct place *p, const struct settings *set, char *message)
{
    if (flock(p->next_fd, LOCK_EX | LOCK_NB) < 0)
        return refuse(message, -EBUSY,
                      "instance %s is being taken over already, or stops (%s/next is locked)",
                      set->instance, p->dir);
    p->is_second = true;
    return 0;
}

static int find(struct place *p, const struct settings *set, char base[PLACE_PATH_MAX],
                char *message)
{
    *p = (struct place){.lock_fd = -1, .listen_fd = -1, .next_fd = -1};
    int r = base_dir(set, base, PLACE_PATH_MAX, message);
    if (r)
        return r;
    if (snprintf(p->dir, sizeof p->dir, "%s/%s", base, set->instance) >= (int)sizeof p->dir ||
        snprintf(p->path, sizeof p->path, "%s/sock", p->dir) >= (int)sizeof p->path)
        return refuse(message, -ENAMETOOLONG,
                      "the socket's name would be longer than %d bytes; set a shorter runtime_dir "
                      "or instance",
                      PLACE_PATH_MAX - 1);
    return 0;
}

int place_give(struct place *p, const struct settings *set, uid_t uid, gid_t gid, char *message)
{
    char base[PLACE_PATH_MAX];
    struct stat st;
    int r = find(p, set, base, message);
    if (r == 0)
        r = dir_make(base, W_OK | X_OK, message);
    if (r)
        return r;
    /* Else the directory may be one that others made, locks and all, with an access list that keeps
     * them in. */
    if (lstat(base, &st) < 0 || st.st_uid != 0 || st.st_mode & (S_IWGRP | S_IWOTH))
        return refuse(
            message, -EPERM,
            "the run directory %s is not root's alone to write, so nobody else can be let "
            "in there; see runtime_dir",
            base);
    if (mkdir(p->dir, 0755) < 0 && errno != EEXIST)
        return refuse(message, -errno, "can't make the run directory %s: %s; see runtime_dir",
                      p->dir, strerror(errno));
    int fd = open(p->dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    r = fd < 0 || fchown(fd, uid, gid) < 0 ? -errno : 0;
    if (fd >= 0)
        close(fd);
    return r ? refuse(message, r, "can't give %s to the daemon's user: %s", p->dir, strerror(-r))
             : 0;
}

static int give_to_group(const struct place *p, const struct settings *set, gid_t group,
                         char *message)
{
    if (group != (gid_t)-1 && chown(p->dir, (uid_t)-1, group) < 0)
        return refuse(message, -errno, "can't give %s to socket_group %s: %s", p->dir,
                      set->socket_group, strerror(errno));
    return 0;
}

int place_take(struct place *p, const struct settings *set, gid_t group, char *message)
{
    char base[PLACE_PATH_MAX];
    int r = find(p, set, base, message);
    if (r)
        return r;
    /* Who was given a directory of its own has no business in the one above. */
    r = dir_make(base, access(p->dir, W_OK | X_OK) ? W_OK | X_OK : X_OK, message);
    if (r == 0)
        r = dir_make(p->dir, W_OK | X_OK, message);
    if (r == 0)
        r = open_lock(p, "lock", &p->lock_fd, message);
    if (r == 0)
        r = open_lock(p, "next", &p->next_fd, message);
    if (r)
        return r;
    if (flock(p->lock_fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK && set->takeover)
        return be_next(p, set, message);
    if (flock(p->lock_fd, LOCK_EX | LOCK_NB) < 0) {
        r = errno == EWOULDBLOCK
                ? refuse(message, -EBUSY,
                         "instance %s is already running (%s/lock is locked); stop it, or "
                         "choose another --instance",
                         set->instance, p->dir)
                : refuse(message, -errno, "can't lock %s/lock: %s", p->dir, strerror(errno));
        close(p->lock_fd);
        p->lock_fd = -1;
        return r;
    }
    return give_to_group(p, set, group, message);
}

int place_show_status(struct place *p, const char *name, char *message)
{
    char path[PLACE_PATH_MAX + 8], target[PLACE_PATH_MAX];
    snprintf(path, sizeof path, "%s/status", p->dir);
    snprintf(target, sizeof target, "/dev/shm%s", name);
    /* What a killed daemon left may go at once: nobody else writes here, for we hold the lock. */
    if ((unlink(path) < 0 && errno != ENOENT) || symlink(target, path) < 0)
        return refuse(message, -errno, "can't make %s: %s", path, strerror(errno));
    p->shows_status = true;
    return 0;
}

/* The name that a socket has until it listens; then the one whose place it took has it. */
static void name_aside(const struct place *p, char path[PLACE_PATH_MAX + 3])
{
    /* With a byte to spare below sun_path's 108. */
    snprintf(path, PLACE_PATH_MAX + 3, "%s.x", p->path);
}

/* Everything that decides who gets in comes before listen: until then no connect succeeds. */
static int listen_at(struct place *p, const char *path, gid_t group)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct stat st;
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    if (unlink(path) < 0 && errno != ENOENT)
        return -errno;
    if (bind(p->listen_fd, (const struct sockaddr *)&address, sizeof address) < 0)
        return -errno;
    if (group != (gid_t)-1 && chown(path, (uid_t)-1, group) < 0)
        return -errno;
    if (chmod(path, p->mode) < 0 || listen(p->listen_fd, BACKLOG) < 0 || stat(path, &st) < 0)
        return -errno;
    p->dev = st.st_dev;
    p->ino = st.st_ino;
    /* There may be none yet, or the file system may not know how. */
    if (renameat2(AT_FDCWD, path, AT_FDCWD, p->path, RENAME_EXCHANGE) == 0)
        return 0;
    return rename(path, p->path) < 0 ? -errno : 0;
}

static int listen_aside(struct place *p, const struct settings *set, gid_t group, char *message)
{
    char path[PLACE_PATH_MAX + 3];
    int off = 0;
    p->listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (p->listen_fd < 0)
        return refuse(message, -errno, "can't make a socket: %s", strerror(errno));
    p->refuses_descriptors =
        setsockopt(p->listen_fd, SOL_SOCKET, SO_PASSRIGHTS, &off, sizeof off) == 0;
    p->mode = p->refuses_descriptors || set->socket_trust ? (mode_t)set->socket_mode : 0600;
    name_aside(p, path);
    mode_t mask = umask(0177);
    int r = listen_at(p, path, group);
    umask(mask);
    if (r) {
        close(p->listen_fd);
        p->listen_fd = -1;
        return refuse(message, r, "can't listen at %s: %s", p->path, strerror(-r));
    }
    return 0;
}

int place_listen(struct place *p, const struct settings *set, gid_t group, char *message)
{
    char path[PLACE_PATH_MAX + 3];
    int r = listen_aside(p, set, group, message);
    name_aside(p, path);
    if (r == 0)
        (void)unlink(path); /* what a killed one left */
    return r;
}

int place_take_over(struct place *p, const struct settings *set, gid_t group, char *message)
{
    char path[PLACE_PATH_MAX + 3];
    int first;
    name_aside(p, path);
    int r = takeover_greet(p->path, &first, message);
    if (r == 0)
        r = give_to_group(p, set, group, message);
    if (r == 0)
        r = listen_aside(p, set, group, message);
    if (r == 0) {
        r = takeover_finish(first, p->lock_fd, message);
        /* One that does not go, or will not, has its name back; those who came here come again. */
        if (r)
            (void)rename(path, p->path);
        else
            (void)unlink(path);
    }
    if (first >= 0)
        close(first);
    if (r)
        return r;
    p->is_second = false;
    (void)flock(p->next_fd, LOCK_UN);
    return 0;
}

/* While we hold the lock nobody else writes here, but for one that takes our place: if there is such
 * a one, the name is its own to replace, and there can be none while we hold `next` too. */
static void unlink_ours(const struct place *p)
{
    struct stat st;
    if (flock(p->next_fd, LOCK_EX | LOCK_NB) == 0 && stat(p->path, &st) == 0 &&
        st.st_dev == p->dev && st.st_ino == p->ino)
        (void)unlink(p->path);
}

void place_release(struct place *p)
{
    char path[PLACE_PATH_MAX + 8];
    if (p->shows_status) {
        snprintf(path, sizeof path, "%s/status", p->dir);
        (void)unlink(path);
    }
    p->shows_status = false;
    if (p->listen_fd >= 0) {
        if (!p->is_handed)
            unlink_ours(p);
        close(p->listen_fd);
    }
    if (p->next_fd >= 0)
        close(p->next_fd);
    if (p->lock_fd >= 0)
        close(p->lock_fd);
    p->lock_fd = p->listen_fd = p->next_fd = -1;
}
