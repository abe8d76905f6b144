/* A memfd, because only a memfd can be sealed: whoever can write a POSIX shm file can also truncate
 * it, and the daemon would die of SIGBUS. STATUS is a POSIX shm file all the same: nobody but the
 * daemon can open it for writing, and it must have a name. */
#include "shm/segment.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shm/segment_private.h"
#include "shm/stats.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

#define SEALS_SIZE (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

int segment_fail(struct cb_why *why, const char *what, const char *advice)
{
    int err = errno ? errno : EIO;

    snprintf(why->text, sizeof why->text, "%s: %s%s%s", what, strerror(err), advice ? "; " : "",
             advice ? advice : "");
    return -err;
}

static int close_fd(int *fdp)
{
    if (*fdp >= 0)
        close(*fdp);
    *fdp = -1;
    return -1;
}

void cb_segment_unmap(struct cb_segment *s)
{
    if (s->base)
        munmap(s->base, s->bytes);
    *s = (struct cb_segment){0};
}

/* Pages are there already, so populating only fills page tables; a child must not hold on to
 * them. */
static int map_fd(struct cb_segment *s, int fd, size_t bytes, int prot, struct cb_why *why)
{
    void *base = mmap(NULL, bytes, prot, MAP_SHARED | MAP_POPULATE, fd, 0);

    *s = (struct cb_segment){0};
    if (base == MAP_FAILED)
        return segment_fail(why, "can't map a segment",
                            "raise the limit of address space (ulimit -v)");
    *s = (struct cb_segment){.base = base, .bytes = bytes};
    if (madvise(base, bytes, MADV_DONTFORK) < 0) {
        int r = segment_fail(why, "can't keep a segment from being inherited", NULL);

        cb_segment_unmap(s);
        return r;
    }
    return 0;
}

int segment_open(const char *name, bool writable)
{
    return shm_open(name, (writable ? O_RDWR : O_RDONLY) | O_NONBLOCK | O_CLOEXEC, 0);
}

/* Every page, now and not at the first touch: where there is no room, this fails, and nobody dies
 * of SIGBUS later. 0, or -1 with errno. */
static int allocate(int fd, size_t bytes)
{
    int r;

    do {
        r = fallocate(fd, 0, 0, (off_t)bytes);
    } while (r < 0 && errno == EINTR);
    return r;
}

int segment_fill(struct cb_segment *s, int fd, size_t bytes, int prot, struct cb_why *why)
{
    char what[96];

    if (allocate(fd, bytes) == 0)
        return map_fd(s, fd, bytes, prot, why);
    snprintf(what, sizeof what, "no room in /dev/shm for %zu KiB", (bytes + 1023) / 1024);
    return segment_fail(why, what, "remove files there, or mount it larger (size=, --shm-size)");
}

/* A memfd of `bytes`, every page allocated, 0600, not yet sealed. */
static int make_memfd(int *fdp, const char *name, size_t bytes, struct cb_why *why)
{
    static const char advice[] = "lower lane_slots, lane_arena_bytes or lane_pool_tokens, or raise "
                                 "the memory limit (cgroup)";
    char what[96];
    int fd, r;

    snprintf(what, sizeof what, "no memory for a segment of %zu KiB", bytes / 1024);
    *fdp = -1;
    /* fallocate would go on until the machine has nothing left, and only then fail. */
    if (bytes / (size_t)sysconf(_SC_PAGESIZE) >= (size_t)sysconf(_SC_PHYS_PAGES)) {
        errno = ENOMEM;
        return segment_fail(why, what, advice);
    }
    fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    /* Older kernels don't know NOEXEC_SEAL, stricter ones insist on it. */
    if (fd < 0 && errno == EINVAL)
        fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    *fdp = fd;
    if (fd < 0)
        return segment_fail(why, "can't make shared memory",
                            errno == EMFILE || errno == ENFILE
                                ? "raise the limit of open files (ulimit -n)"
                                : NULL);
    if (allocate(fd, bytes) < 0) {
        r = segment_fail(why, what, advice);
        close_fd(fdp);
        return r;
    }
    /* A memfd is born 0777 and could be opened anew through /proc by any uid that holds it. */
    if (fchmod(fd, 0600) < 0) {
        r = segment_fail(why, "can't set the mode of shared memory", NULL);
        close_fd(fdp);
        return r;
    }
    return 0;
}

static int seal(int fd, int seals, struct cb_why *why)
{
    if (fcntl(fd, F_ADD_SEALS, seals) < 0)
        return segment_fail(why, "can't seal shared memory",
                            "cbd needs a kernel of at least 5.1, and memfd seals in its container");
    return 0;
}

/* Replaces the descriptor by a read-only one of the same file. */
static int reopen_readonly(int *fdp, struct cb_why *why)
{
    char path[32];
    int fd;

    snprintf(path, sizeof path, "/proc/self/fd/%d", *fdp);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return segment_fail(why, "can't open a segment read-only",
                            errno == EMFILE || errno == ENFILE
                                ? "raise the limit of open files (ulimit -n)"
                                : "cbd needs /proc");
    close(*fdp);
    *fdp = fd;
    return 0;
}

int cb_segment_make_up(struct cb_segment *s, int *fdp, size_t bytes, struct cb_why *why)
{
    int r = make_memfd(fdp, "cbd-up", bytes, why);

    *s = (struct cb_segment){0};
    if (!r)
        r = seal(*fdp, SEALS_SIZE, why);
    if (!r)
        r = map_fd(s, *fdp, bytes, PROT_READ, why);
    if (r)
        close_fd(fdp);
    return r;
}

int cb_segment_make_down(struct cb_segment *s, int *fdp, size_t bytes, struct cb_why *why)
{
    int r = make_memfd(fdp, "cbd-down", bytes, why);

    *s = (struct cb_segment){0};
    /* Mapped first: FUTURE_WRITE leaves this mapping writable, and none after it. */
    if (!r)
        r = map_fd(s, *fdp, bytes, PROT_READ | PROT_WRITE, why);
    if (!r)
        r = seal(*fdp, SEALS_SIZE | F_SEAL_FUTURE_WRITE, why);
    if (!r)
        r = reopen_readonly(fdp, why);
    if (r) {
        cb_segment_unmap(s);
        close_fd(fdp);
    }
    return r;
}

int cb_segment_make_sealable(struct cb_segment *s, int *fdp, const char *name, size_t bytes,
                             struct cb_why *why)
{
    int r = make_memfd(fdp, name, bytes, why);

    *s = (struct cb_segment){0};
    if (!r)
        r = map_fd(s, *fdp, bytes, PROT_READ | PROT_WRITE, why);
    if (r)
        close_fd(fdp);
    return r;
}

int cb_segment_seal(struct cb_segment *s, int *fdp, struct cb_why *why)
{
    size_t bytes = s->bytes;
    int r;

    /* F_SEAL_WRITE is refused while a writable mapping exists. */
    cb_segment_unmap(s);
    r = seal(*fdp, SEALS_SIZE | F_SEAL_WRITE, why);
    if (!r)
        r = reopen_readonly(fdp, why);
    if (!r)
        r = map_fd(s, *fdp, bytes, PROT_READ, why);
    if (r)
        close_fd(fdp);
    return r;
}

int cb_segment_map(struct cb_segment *s, int fd, size_t bytes, int writable, struct cb_why *why)
{
    struct stat st;
    int r;

    *s = (struct cb_segment){0};
    if (fstat(fd, &st) < 0)
        return segment_fail(why, "can't look at a segment", NULL);
    if (bytes == 0 || st.st_size < 0 || (uint64_t)st.st_size < bytes) {
        errno = EPROTO;
        return segment_fail(why, "a segment is smaller than was said", NULL);
    }
    r = map_fd(s, fd, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, why);
    /* For debugging it would be nice to have; but prompts don't belong into core dumps. */
    if (!r && madvise(s->base, bytes, MADV_DONTDUMP) < 0) {
        r = segment_fail(why, "can't keep a segment out of core dumps", NULL);
        cb_segment_unmap(s);
    }
    return r;
}

int cb_segment_private(struct cb_segment *s, size_t bytes, struct cb_why *why)
{
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

    *s = (struct cb_segment){0};
    if (base == MAP_FAILED)
        return segment_fail(why, "no memory for a lane's record", "lower lane_slots");
    *s = (struct cb_segment){.base = base, .bytes = bytes};
    return 0;
}

/* ---- STATUS ---------------------------------------------------------------------------------- */

static void plain_name(char *name, const char *instance)
{
    snprintf(name, CB_STATUS_NAME_MAX, "/cbd.%u.%.20s.status", (unsigned)getuid(), instance);
}

static int random_name(char *name, struct cb_why *why)
{
    uint64_t r[2];

    if (getrandom(r, sizeof r, 0) != sizeof r)
        return segment_fail(why, "can't get random bytes", NULL);
    snprintf(name, CB_STATUS_NAME_MAX, "/cbd.%016llx%016llx", (unsigned long long)r[0],
             (unsigned long long)r[1]);
    return 0;
}

/* Unlinks the name if the file is this uid's and its daemon is dead. Whether it may be tried
 * again. */
static bool sweep(const char *name)
{
    struct stat st;
    int fd = segment_open(name, false);
    bool swept = false;

    if (fd < 0)
        return errno == ENOENT;
    /* The lock can be had only if nobody lives who made the file. */
    if (fstat(fd, &st) == 0 && st.st_uid == geteuid() && flock(fd, LOCK_EX | LOCK_NB) == 0)
        swept = shm_unlink(name) == 0 || errno == ENOENT;
    close(fd);
    return swept;
}

static bool is_random_name(const char *name)
{
    return strncmp(name, "cbd.", 4) == 0 && strspn(name + 4, "0123456789abcdef") == 32 &&
           name[36] == 0;
}

/* Whether the page there says that it is this instance's. One that a starting daemon has not filled
 * yet says nothing. */
static bool says_instance(const char *name, const char *instance)
{
    struct cb_stats_page page = {0};
    int fd = segment_open(name, false);
    bool is_it =
        fd >= 0 &&
        pread(fd, &page, sizeof page, 0) >= (ssize_t)offsetof(struct cb_stats_page, counters) &&
        cb_load64(&page.magic, CB_RELAXED) == CB_STATS_MAGIC &&
        strncmp(page.boot.instance, instance, sizeof page.boot.instance) == 0;

    if (fd >= 0)
        close(fd);
    return is_it;
}

/* Removes what daemons of this instance left under random names. What can't be looked at stays. */
static void sweep_random(const char *instance)
{
    DIR *d = opendir("/dev/shm");
    struct dirent *e;

    while (d && (e = readdir(d))) {
        char name[CB_STATUS_NAME_MAX];

        if (!is_random_name(e->d_name))
            continue;
        snprintf(name, sizeof name, "/%.36s", e->d_name);
        if (says_instance(name, instance))
            (void)sweep(name);
    }
    if (d)
        closedir(d);
}

/* Opens the name exclusively, after sweeping a dead daemon's once; else under a random name. */
static int open_exclusive(struct cb_status_segment *s, const char *instance, struct cb_why *why)
{
    const int flags = O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC;
    int r = 0;

    sweep_random(instance);
    plain_name(s->name, instance);
    s->lock_fd = shm_open(s->name, flags, 0600);
    if (s->lock_fd < 0 && errno == EEXIST) {
        if (sweep(s->name))
            s->lock_fd = shm_open(s->name, flags, 0600);
        if (s->lock_fd < 0) {
            r = random_name(s->name, why);
            if (!r)
                s->lock_fd = shm_open(s->name, flags, 0600);
        }
    }
    if (!r && s->lock_fd < 0)
        r = segment_fail(why, "can't make the STATUS page in /dev/shm",
                         "is /dev/shm mounted and writable?");
    if (s->lock_fd < 0)
        s->name[0] = 0;
    return r;
}

/* Between open and lock another daemon of this uid may think the file dead and unlink it, or a
 * reader look whether it is: either holds the lock for a moment, and so far nobody else can open
 * the file. False: it has no name any more. */
static bool lock_new(int fd)
{
    struct stat st;
    int r;

    do {
        r = flock(fd, LOCK_EX);
    } while (r < 0 && errno == EINTR);
    return r == 0 && fstat(fd, &st) == 0 && st.st_nlink > 0;
}

int cb_status_segment_make(struct cb_status_segment *s, const char *instance, size_t bytes,
                           mode_t mode, gid_t group, struct cb_why *why)
{
    int r;

    *s = (struct cb_status_segment){.lock_fd = -1, .fd = -1};
    r = open_exclusive(s, instance, why);
    if (r)
        return r;
    if (!lock_new(s->lock_fd)) {
        s->name[0] = 0; /* by now it is the other daemon's, not ours to unlink */
        errno = EEXIST;
        r = segment_fail(why, "another daemon took the STATUS page at the same moment",
                         "start again");
    } else {
        r = segment_fill(&s->map, s->lock_fd, bytes, PROT_READ | PROT_WRITE, why);
    }
    if (!r) {
        s->fd = segment_open(s->name, false);
        if (s->fd < 0)
            r = segment_fail(why, "can't open the STATUS page read-only", NULL);
    }
    /* The group first: with the mode it could be read by the wrong one for a moment. */
    if (!r && group != (gid_t)-1 && fchown(s->lock_fd, (uid_t)-1, group) < 0)
        r = segment_fail(why, "can't give the STATUS page to its group",
                         "be a member of it, or root");
    if (!r && fchmod(s->lock_fd, mode) < 0)
        r = segment_fail(why, "can't set the mode of the STATUS page", NULL);
    if (r)
        cb_status_segment_fini(s);
    return r;
}

void cb_status_segment_fini(struct cb_status_segment *s)
{
    cb_segment_unmap(&s->map);
    /* Unlinked under the lock: nobody can have replaced the name meanwhile. */
    if (s->lock_fd >= 0 && s->name[0])
        shm_unlink(s->name);
    s->name[0] = 0;
    if (s->fd >= 0)
        close(s->fd);
    if (s->lock_fd >= 0)
        close(s->lock_fd);
    s->fd = s->lock_fd = -1;
}

static bool is_trusted(uid_t uid, const uid_t *trusted, size_t n)
{
    while (n > 0)
        if (trusted[--n] == uid)
            return true;
    return uid == 0 || uid == geteuid();
}

int cb_segment_open_status(struct cb_segment *s, const char *name, const uid_t *trusted, size_t n,
                           struct cb_status_maker *maker, struct cb_why *why)
{
    struct stat st;
    int fd = segment_open(name, false);
    int r = 0;

    *s = (struct cb_segment){0};
    if (fd < 0)
        return segment_fail(why, "can't open the STATUS page", "does the daemon run?");
    if (fstat(fd, &st) < 0) {
        r = segment_fail(why, "can't look at the STATUS page", NULL);
    } else if (!is_trusted(st.st_uid, trusted, n)) {
        errno = EPERM;
        r = segment_fail(why, "the STATUS page is another user's", "see trusted_uids");
    } else {
        r = cb_segment_map(s, fd, (size_t)st.st_size, 0, why);
        /* Its maker holds the other kind until it dies, however it does. */
        maker->is_live = flock(fd, LOCK_SH | LOCK_NB) < 0 && errno == EWOULDBLOCK;
        maker->uid = st.st_uid;
    }
    close(fd);
    return r;
}
