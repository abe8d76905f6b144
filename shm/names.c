/* The maker's files are made through shm_open, also the semaphore's: sem_open(3) would allocate,
 * and make it under another name first. That one lies at /dev/shm/sem.NAME is what
 * sem_overview(7) says. */
#include "shm/names.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/posix_acl.h>
#include <linux/posix_acl_xattr.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "shm/doorbell.h"
#include "shm/names_private.h"
#include "shm/segment_private.h"

#define SHM_DIR "/dev/shm"

enum {
    PATH_MAX_BYTES = CB_NAMES_BASE_MAX + 16,
    RANDOM_DIGITS = 32,
    INSTANCE_DIGITS = 20, /* as many of an instance's name as a name has */
    TAKES_MAX = 4,
};

static const struct {
    const char *before, *suffix;
    enum cb_names_part first; /* whose lock says that the maker lives */
} parts[CB_NAMES_PARTS] = {
    [CB_NAMES_UP] = {"/", ".up", CB_NAMES_UP},
    [CB_NAMES_DOWN] = {"/", ".down", CB_NAMES_UP},
    [CB_NAMES_BELL] = {"/sem.", ".bell", CB_NAMES_UP},
    [CB_NAMES_VOCAB] = {"/", ".vocab", CB_NAMES_VOCAB},
};

/* What shm_open takes. The base begins with a slash. */
static void part_path(char path[PATH_MAX_BYTES], const char *base, enum cb_names_part part)
{
    snprintf(path, PATH_MAX_BYTES, "%s%.*s%s", parts[part].before, (int)CB_NAMES_BASE_MAX - 1,
             base + 1, parts[part].suffix);
}

uint64_t cb_names_room(void)
{
    struct statfs fs;

    return statfs(SHM_DIR, &fs) == 0 ? (uint64_t)fs.f_bavail * (uint64_t)fs.f_bsize : 0;
}

/* ---- made ------------------------------------------------------------------------------------ */

/* Lets the users open the file beside its owner, to whom and to root it is open anyway. */
static int let_in(int fd, const uid_t *uids, size_t n, uint16_t perm)
{
    struct {
        struct posix_acl_xattr_header header;
        struct posix_acl_xattr_entry entries[CB_NAMES_UIDS_MAX + 4];
    } list = {.header = {POSIX_ACL_XATTR_VERSION}};
    struct posix_acl_xattr_entry *e = list.entries;

    *e++ = (struct posix_acl_xattr_entry){ACL_USER_OBJ, ACL_READ | ACL_WRITE, ACL_UNDEFINED_ID};
    for (size_t i = 0; i < n && i < CB_NAMES_UIDS_MAX; i++)
        if (uids[i] != 0 && uids[i] != geteuid())
            *e++ = (struct posix_acl_xattr_entry){ACL_USER, perm, uids[i]};
    if (e == list.entries + 1)
        return 0;
    *e++ = (struct posix_acl_xattr_entry){ACL_GROUP_OBJ, 0, ACL_UNDEFINED_ID};
    *e++ = (struct posix_acl_xattr_entry){ACL_MASK, perm, ACL_UNDEFINED_ID};
    *e++ = (struct posix_acl_xattr_entry){ACL_OTHER, 0, ACL_UNDEFINED_ID};
    return fsetxattr(fd, "system.posix_acl_access", &list,
                     (size_t)((const char *)e - (const char *)&list), 0);
}

/* Under a umask that takes the owner's own rights away it would be nobody's. */
static int create(const char *base, enum cb_names_part part)
{
    char path[PATH_MAX_BYTES];

    part_path(path, base, part);
    int fd = shm_open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (fd >= 0 && fchmod(fd, 0600) < 0) {
        close(fd);
        shm_unlink(path);
        fd = -1;
    }
    return fd;
}

static void close_others(int fds[], int n)
{
    for (int i = 1; i < n; i++) {
        if (fds[i] >= 0)
            close(fds[i]);
        fds[i] = -1;
    }
}

int names_take(struct cb_names *names, enum cb_names_part first)
{
    struct stat st;

    names->lock_fd = create(names->base, first);
    if (names->lock_fd < 0)
        return -errno;
    /* A sweep holds the lock for a moment, and between open and lock takes the file for a dead
     * one's. */
    if (flock(names->lock_fd, LOCK_EX | LOCK_NB) == 0 && fstat(names->lock_fd, &st) == 0 &&
        st.st_nlink > 0)
        return 0;
    cb_names_unlink(names);
    return -EAGAIN;
}

/* The files of n parts under one name, before anything is done with the first: whoever sees that one
 * knows the names of the others. */
static int take_parts(struct cb_names *names, enum cb_names_part first, int n, int fds[])
{
    int r = names_take(names, first);

    if (r)
        return r;
    for (int i = 1; r == 0 && i < n; i++) {
        fds[i] = create(names->base, first + (enum cb_names_part)i);
        r = fds[i] < 0 ? -errno : 0;
    }
    if (r) {
        close_others(fds, n);
        cb_names_unlink(names);
    }
    return r;
}

/* Takes a name that nobody could know, for n parts from `first` on: names->lock_fd is the first one's
 * file, fds[1] to fds[n - 1] are the others'. */
static int take_any(struct cb_names *names, const char *instance, enum cb_names_part first, int n,
                    int fds[], struct cb_why *why)
{
    int r = -EAGAIN;

    *names = (struct cb_names){.lock_fd = -1};
    for (int i = 0; i < TAKES_MAX && (r == -EAGAIN || r == -EEXIST); i++) {
        uint64_t random[2];

        if (getrandom(random, sizeof random, GRND_NONBLOCK) != sizeof random)
            return segment_fail(why, "can't get random bytes", NULL);
        snprintf(names->base, sizeof names->base, "/cbd.%u.%.*s.%016llx%016llx",
                 (unsigned)geteuid(), INSTANCE_DIGITS, instance, (unsigned long long)random[0],
                 (unsigned long long)random[1]);
        r = take_parts(names, first, n, fds);
    }
    if (r == 0)
        return 0;
    names->base[0] = 0;
    errno = -r;
    return segment_fail(why, "can't make a name in " SHM_DIR,
                        r == -EMFILE || r == -ENFILE ? "raise the limit of open files (ulimit -n)"
                                                     : "is it mounted and writable?");
}

/* The last thing: from then on it can be cut short, and to touch it may kill. */
static int open_to(int fd, const uid_t *uids, size_t n, uint16_t perm, struct cb_why *why)
{
    if (let_in(fd, uids, n, perm) == 0)
        return 0;
    return segment_fail(why, "can't let another user open a name in " SHM_DIR,
                        "it needs a kernel with access lists on tmpfs; else only cbd's own user "
                        "can have lanes by name");
}

int cb_names_make_lane(struct cb_names *names, const struct cb_names_lane *lane,
                       struct cb_segment *up, struct cb_segment *down, struct cb_segment *bell,
                       struct cb_why *why)
{
    const int n = lane->has_bell ? 3 : 2; /* UP, DOWN and BELL, in this order */
    int fds[3] = {-1, -1, -1};
    int r = take_any(names, lane->instance, CB_NAMES_UP, n, fds, why);

    *up = *down = *bell = (struct cb_segment){0};
    if (r)
        return r;
    fds[0] = names->lock_fd;
    r = segment_fill(up, fds[0], lane->up_bytes, PROT_READ, why);
    if (r == 0)
        r = segment_fill(down, fds[1], lane->down_bytes, PROT_READ | PROT_WRITE, why);
    if (r == 0 && lane->has_bell)
        r = segment_fill(bell, fds[2], CB_PAGE, PROT_READ | PROT_WRITE, why);
    if (r == 0 && lane->has_bell)
        cb_semaphore_init(bell->base);
    for (int i = 0; r == 0 && i < n; i++)
        r = open_to(fds[i], &lane->uid, 1, i == CB_NAMES_DOWN ? ACL_READ : ACL_READ | ACL_WRITE,
                    why);
    close_others(fds, n);
    if (r == 0)
        return 0;
    cb_names_unlink(names);
    cb_segment_unmap(up);
    cb_segment_unmap(down);
    cb_segment_unmap(bell);
    return r;
}

int cb_names_make_vocab(struct cb_names *names, const char *instance, const uid_t *uids, size_t n,
                        const void *data, size_t bytes, struct cb_why *why)
{
    struct cb_segment s = {0};
    int r = take_any(names, instance, CB_NAMES_VOCAB, 1, NULL, why);

    if (r)
        return r;
    r = segment_fill(&s, names->lock_fd, bytes, PROT_READ | PROT_WRITE, why);
    if (r == 0) {
        memcpy(s.base, data, bytes);
        r = open_to(names->lock_fd, uids, n, ACL_READ, why);
    }
    cb_segment_unmap(&s);
    if (r)
        cb_names_unlink(names);
    return r;
}

/* ---- gone ------------------------------------------------------------------------------------ */

/* The file whose lock tells goes last. */
void cb_names_unlink(struct cb_names *names)
{
    static const enum cb_names_part order[] = {CB_NAMES_BELL, CB_NAMES_DOWN, CB_NAMES_UP,
                                               CB_NAMES_VOCAB};
    char path[PATH_MAX_BYTES];

    if (!names->base[0])
        return;
    for (size_t i = 0; i < CB_NAMES_PARTS; i++) {
        part_path(path, names->base, order[i]);
        (void)shm_unlink(path);
    }
    names->base[0] = 0;
    if (names->lock_fd >= 0)
        close(names->lock_fd);
    names->lock_fd = -1;
}

/* Whether a file of that name is one that names.c makes for this user and instance: then its base
 * and part. */
static bool parse(const char *file, const char *instance, char base[CB_NAMES_BASE_MAX],
                  enum cb_names_part *partp)
{
    char start[CB_NAMES_BASE_MAX];
    int n = snprintf(start, sizeof start, "/cbd.%u.%.*s.", (unsigned)geteuid(), INSTANCE_DIGITS,
                     instance);

    for (int part = 0; part < CB_NAMES_PARTS; part++) {
        const char *before = parts[part].before + 1; /* a file has no slash */
        size_t skip = strlen(before), suffix = strlen(parts[part].suffix), all = strlen(file);

        if (all != skip + (size_t)n - 1 + RANDOM_DIGITS + suffix ||
            strncmp(file, before, skip) != 0 ||
            strncmp(file + skip, start + 1, (size_t)n - 1) != 0 ||
            strcmp(file + all - suffix, parts[part].suffix) != 0 ||
            strspn(file + all - suffix - RANDOM_DIGITS, "0123456789abcdef") != RANDOM_DIGITS)
            continue;
        snprintf(base, CB_NAMES_BASE_MAX, "/%.*s", n - 1 + RANDOM_DIGITS, file + skip);
        *partp = (enum cb_names_part)part;
        return true;
    }
    return false;
}

static bool is_own(const struct stat *st)
{
    return S_ISREG(st->st_mode) && st->st_uid == geteuid();
}

enum { HELD = -1, NOBODYS = -2 };

/* The lock that says that the maker of this base is dead, as a descriptor: as long as it is held
 * nobody takes the name. HELD: he lives. NOBODYS: no file of ours is in the first one's place;
 * another user's says nothing, for names can be made up after those that were left behind. */
static int claim(const char *base, enum cb_names_part first)
{
    char path[PATH_MAX_BYTES];
    struct stat st;

    part_path(path, base, first);
    int fd = segment_open(path, false);
    if (fd < 0)
        return NOBODYS;
    bool own = fstat(fd, &st) == 0 && is_own(&st);
    if (own && flock(fd, LOCK_EX | LOCK_NB) == 0)
        return fd;
    close(fd);
    return own ? HELD : NOBODYS;
}

void cb_names_sweep(const char *instance)
{
    DIR *d = opendir(SHM_DIR);
    struct dirent *e;

    while (d && (e = readdir(d))) {
        char base[CB_NAMES_BASE_MAX], path[PATH_MAX_BYTES];
        enum cb_names_part part;
        struct stat st;

        if (!parse(e->d_name, instance, base, &part) ||
            fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !is_own(&st))
            continue;
        int lock_fd = claim(base, parts[part].first);
        if (lock_fd == HELD)
            continue;
        part_path(path, base, part);
        (void)shm_unlink(path);
        if (lock_fd >= 0)
            close(lock_fd);
    }
    if (d)
        closedir(d);
}

/* ---- opened ---------------------------------------------------------------------------------- */

int cb_names_open(const char *base, enum cb_names_part part, bool writable, uid_t owner,
                  struct cb_why *why)
{
    char path[PATH_MAX_BYTES];
    struct stat st;

    part_path(path, base, part);
    int fd = segment_open(path, writable);
    if (fd < 0)
        return segment_fail(why, "can't open what the daemon named in " SHM_DIR,
                            "both need the same " SHM_DIR);
    int r = fstat(fd, &st) < 0 ? segment_fail(why, "can't look at a segment", NULL) : 0;
    if (r == 0 &&
        (!S_ISREG(st.st_mode) || (owner != (uid_t)-1 && st.st_uid != 0 && st.st_uid != owner))) {
        errno = EPERM;
        r = segment_fail(why, "what the daemon named in " SHM_DIR " is another user's", NULL);
    }
    if (r) {
        close(fd);
        return r;
    }
    return fd;
}
