/* Segments under names: who can open them, when they go, and what others can do to that. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "shm/names.h"
#include "shm/names_private.h"

enum { BYTES = 65536, LISTED = 1234, OTHER = 65534 };

struct made {
    struct cb_names names;
    struct cb_segment up, down, bell;
};

/* ---- what others do meanwhile ------------------------------------------------------------------ */

static int n_squats; /* so often another one makes what is to be made after UP */
static bool cuts;    /* whoever is let in cuts it short at once */

int shm_open(const char *name, int flags, mode_t mode)
{
    typedef int opener(const char *, int, mode_t);
    opener *real = (opener *)dlsym(RTLD_NEXT, "shm_open");
    int fd = real(name, flags, mode);
    const char *suffix = strrchr(name, '.');

    if (fd >= 0 && flags & O_CREAT && n_squats > 0 && strcmp(suffix, ".up") == 0) {
        char taken[128];

        snprintf(taken, sizeof taken, n_squats % 2 ? "%.*s.down" : "/sem.%.*s.bell",
                 (int)(suffix - name) - (n_squats % 2 == 0), name + (n_squats % 2 == 0));
        close(real(taken, O_RDWR | O_CREAT | O_EXCL, 0600));
        n_squats--;
    }
    return fd;
}

int fsetxattr(int fd, const char *name, const void *value, size_t size, int flags)
{
    typedef int setter(int, const char *, const void *, size_t, int);
    setter *real = (setter *)dlsym(RTLD_NEXT, "fsetxattr");
    int r = real(fd, name, value, size, flags);

    return r == 0 && cuts ? ftruncate(fd, 0) : r;
}

static const char *instance_of(void)
{
    static char name[32];

    snprintf(name, sizeof name, "names-%d", (int)getpid());
    return name;
}

static void make(struct made *m, const char *instance, uid_t uid)
{
    const struct cb_names_lane lane = {instance, uid, BYTES, BYTES, true};
    struct cb_why why = {""};

    cr_assert_eq(cb_names_make_lane(&m->names, &lane, &m->up, &m->down, &m->bell, &why), 0, "%s",
                 why.text);
}

static void end(struct made *m)
{
    cb_names_unlink(&m->names);
    cb_segment_unmap(&m->up);
    cb_segment_unmap(&m->down);
    cb_segment_unmap(&m->bell);
}

/* Files in /dev/shm with this in their name. */
static int n_files(const char *part)
{
    DIR *d = opendir("/dev/shm");
    struct dirent *e;
    int n = 0;

    cr_assert_not_null(d);
    while ((e = readdir(d)))
        n += strstr(e->d_name, part) != NULL;
    closedir(d);
    return n;
}

static bool opens(const char *base, enum cb_names_part part, bool writable)
{
    struct cb_why why;
    int fd = cb_names_open(base, part, writable, geteuid(), &why);

    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

Test(names, a_lane_is_opened_by_them_and_outlives_them)
{
    struct made m;
    struct cb_segment up, down;
    struct cb_why why;

    make(&m, instance_of(), getuid());
    cr_expect_eq(n_files(instance_of()), 3);
    int up_fd = cb_names_open(m.names.base, CB_NAMES_UP, true, geteuid(), &why);
    int down_fd = cb_names_open(m.names.base, CB_NAMES_DOWN, false, geteuid(), &why);
    cr_assert_eq(cb_segment_map(&up, up_fd, BYTES, 1, &why), 0, "%s", why.text);
    cr_assert_eq(cb_segment_map(&down, down_fd, BYTES, 0, &why), 0, "%s", why.text);
    cb_names_unlink(&m.names);
    cb_names_unlink(&m.names);
    cr_expect_eq(n_files(instance_of()), 0);
    memset(up.base, 7, BYTES);
    memset(m.down.base, 8, BYTES);
    cr_expect_eq(((char *)m.up.base)[BYTES - 1], 7);
    cr_expect_eq(((char *)down.base)[BYTES - 1], 8);
    close(up_fd);
    close(down_fd);
    cb_segment_unmap(&up);
    cb_segment_unmap(&down);
    end(&m);
}

/* What a stranger finds there is a semaphore like any other. */
Test(names, the_bell_is_a_posix_semaphore)
{
    struct made m;
    char name[128];
    int value = -1;

    make(&m, instance_of(), getuid());
    snprintf(name, sizeof name, "%s.bell", m.names.base);
    sem_t *sem = sem_open(name, 0);
    cr_assert_neq(sem, SEM_FAILED);
    cr_assert_eq(sem_getvalue(sem, &value), 0);
    cr_assert_eq(value, 0);
    sem_close(sem);
    end(&m);
}

Test(names, without_a_bell_there_is_none)
{
    struct cb_names_lane lane = {instance_of(), getuid(), BYTES, BYTES, false};
    struct made m;
    struct cb_why why;

    cr_assert_eq(cb_names_make_lane(&m.names, &lane, &m.up, &m.down, &m.bell, &why), 0);
    cr_expect_null(m.bell.base);
    cr_expect_eq(n_files(instance_of()), 2);
    end(&m);
}

/* ---- who can open them ----------------------------------------------------------------------- */

static int as_user(uid_t uid, int (*fn)(const struct made *m), const struct made *m)
{
    int status;
    pid_t pid = fork();

    if (pid == 0)
        _exit(setgid(uid) < 0 || setuid(uid) < 0 ? 99 : fn(m));
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    return WEXITSTATUS(status);
}

/* A bit for each way that is open. The owner is root. */
static int ways(const struct made *m)
{
    struct cb_why why;
    int bits = 0;

    for (int part = 0; part <= CB_NAMES_BELL; part++)
        for (int writable = 0; writable < 2; writable++) {
            int fd = cb_names_open(m->names.base, (enum cb_names_part)part, writable, 0, &why);

            bits |= fd >= 0 ? 1 << (2 * part + writable) : 0;
        }
    return bits;
}

Test(names, only_the_user_they_are_for_opens_them_and_down_for_reading)
{
    struct made m;

    if (geteuid() != 0) {
        fprintf(stderr, "skipped: only root can become other users\n");
        return;
    }
    make(&m, instance_of(), LISTED);
    cr_expect_eq(as_user(LISTED, ways, &m), 0x37, "%x", as_user(LISTED, ways, &m));
    cr_expect_eq(as_user(OTHER, ways, &m), 0);
    end(&m);
    make(&m, instance_of(), 0);
    cr_expect_eq(as_user(LISTED, ways, &m), 0);
    end(&m);
}

static int reads_vocab(const struct made *m)
{
    struct cb_segment s;
    struct cb_why why;
    int fd = cb_names_open(m->names.base, CB_NAMES_VOCAB, false, 0, &why);

    if (fd < 0 || opens(m->names.base, CB_NAMES_VOCAB, true))
        return 1;
    return cb_segment_map(&s, fd, 6, 0, &why) || memcmp(s.base, "words", 6) ? 2 : 0;
}

Test(names, the_vocabulary_is_read_by_those_who_are_listed)
{
    const uid_t uids[] = {LISTED, LISTED + 1};
    struct made m = {.names = {.lock_fd = -1}};
    struct cb_why why;

    if (geteuid() != 0) {
        fprintf(stderr, "skipped: only root can become other users\n");
        return;
    }
    cr_assert_eq(cb_names_make_vocab(&m.names, instance_of(), uids, 2, "words", 6, &why), 0, "%s",
                 why.text);
    cr_expect_eq(as_user(LISTED, reads_vocab, &m), 0);
    cr_expect_eq(as_user(LISTED + 1, reads_vocab, &m), 0);
    cr_expect_eq(as_user(OTHER, reads_vocab, &m), 1);
    end(&m);
    cr_expect_eq(n_files(instance_of()), 0);
}

static int refuses_the_owner(const struct made *m)
{
    struct cb_why why;

    return cb_names_open(m->names.base, CB_NAMES_UP, false, LISTED, &why) == -EPERM &&
                   strstr(why.text, "another user's")
               ? 0
               : 1;
}

Test(names, what_is_another_user_s_is_not_opened)
{
    struct made m = {.names = {.lock_fd = -1}};
    char path[128];

    if (geteuid() != 0) {
        fprintf(stderr, "skipped: only root can give files away\n");
        return;
    }
    make(&m, instance_of(), LISTED);
    snprintf(path, sizeof path, "/dev/shm%s.up", m.names.base);
    cr_assert_eq(chown(path, OTHER, 0), 0);
    cr_assert_eq(chmod(path, 0666), 0);
    cr_expect_eq(as_user(LISTED, refuses_the_owner, &m), 0);
    end(&m);
}

/* ---- names that are taken -------------------------------------------------------------------- */

static void put_file(const char *path, uid_t uid)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);

    cr_assert_geq(fd, 0, "%s: %s", path, strerror(errno));
    cr_assert_eq(write(fd, "x", 1), 1);
    cr_assert(uid == geteuid() || fchown(fd, uid, (gid_t)-1) == 0);
    close(fd);
}

static void is_as_it_was(const char *path)
{
    struct stat st;

    cr_expect_eq(stat(path, &st), 0, "%s is gone", path);
    cr_expect_eq(st.st_size, 1);
    unlink(path);
}

Test(names, one_that_is_taken_is_left_alone)
{
    struct cb_names names = {.lock_fd = -1};
    char path[128];

    snprintf(names.base, sizeof names.base, "/cbd.%u.%s.%032x", (unsigned)getuid(), instance_of(),
             1);
    snprintf(path, sizeof path, "/dev/shm%s.up", names.base);
    put_file(path, geteuid() == 0 ? OTHER : geteuid());
    cr_expect_eq(names_take(&names, CB_NAMES_UP), -EEXIST);
    is_as_it_was(path);
    cr_assert_eq(symlink("/etc/passwd", path), 0);
    cr_expect_eq(names_take(&names, CB_NAMES_UP), -EEXIST);
    unlink(path);
    cr_expect_eq(names_take(&names, CB_NAMES_UP), 0);
    cb_names_unlink(&names);
    cr_expect_eq(n_files(instance_of()), 0);
}

/* A sweep that comes between making and locking takes the file for a dead one's. */
Test(names, one_that_somebody_else_holds_is_not_had)
{
    struct cb_names names = {.lock_fd = -1};
    struct made m;

    make(&m, instance_of(), getuid());
    snprintf(names.base, sizeof names.base, "%s", m.names.base);
    cr_expect_eq(names_take(&names, CB_NAMES_UP), -EEXIST);
    cr_expect(opens(m.names.base, CB_NAMES_UP, true));
    end(&m);
}

/* They see UP, and so what the other parts will be called. */
Test(names, one_that_is_taken_in_part_is_left_for_another)
{
    struct made m;

    n_squats = 3;
    make(&m, instance_of(), getuid());
    cr_expect_eq(n_squats, 0);
    cr_expect(opens(m.names.base, CB_NAMES_DOWN, false));
    cr_expect(opens(m.names.base, CB_NAMES_BELL, true));
    end(&m);
    cr_expect_eq(n_files(instance_of()), 0);
}

/* It is not guarded yet: to touch it then would kill. */
Test(names, one_that_is_cut_short_while_it_is_made_is_not_touched)
{
    const uid_t uid = getuid() == LISTED ? OTHER : LISTED;
    struct made m;

    cuts = true;
    make(&m, instance_of(), uid);
    cuts = false;
    end(&m);
    cr_expect_eq(n_files(instance_of()), 0);
}

/* ---- what was left --------------------------------------------------------------------------- */

/* As a daemon does that is killed before its client was ready. */
static void leave(const char *instance)
{
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        struct cb_names vocab;
        struct cb_why why;
        struct made m;

        make(&m, instance, getuid());
        cr_assert_eq(cb_names_make_vocab(&vocab, instance, NULL, 0, "words", 6, &why), 0);
        kill(getpid(), SIGKILL);
    }
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert(WIFSIGNALED(status));
}

Test(names, what_the_killed_left_is_swept_and_nothing_else)
{
    char other[40], paths[5][128];
    struct made alive;
    unsigned uid = (unsigned)getuid();

    snprintf(other, sizeof other, "%s.b", instance_of());
    leave(instance_of());
    leave(other);
    make(&alive, instance_of(), getuid());
    cr_assert_eq(n_files(instance_of()), 4 + 4 + 3);
    /* Like ours, but not quite. */
    snprintf(paths[0], 128, "/dev/shm/cbd.%u.%s.%031x.up", uid, instance_of(), 1);
    snprintf(paths[1], 128, "/dev/shm/cbd.%u.%s.%032x.upp", uid, instance_of(), 1);
    snprintf(paths[2], 128, "/dev/shm/cbd.%u.%s.%032x.bell", uid, instance_of(), 1);
    snprintf(paths[3], 128, "/dev/shm/cbd.%u.%s.x%031x.up", uid, instance_of(), 1);
    snprintf(paths[4], 128, "/dev/shm/cbd.%u.%s.%032x.up", uid + 1, instance_of(), 1);
    for (int i = 0; i < 5; i++)
        put_file(paths[i], geteuid());
    cb_names_sweep(instance_of());
    for (int i = 0; i < 5; i++)
        is_as_it_was(paths[i]);
    cr_expect_eq(n_files(instance_of()), 4 + 3);
    cr_expect(opens(alive.names.base, CB_NAMES_UP, true));
    cr_expect(opens(alive.names.base, CB_NAMES_DOWN, true));
    cr_expect(opens(alive.names.base, CB_NAMES_BELL, true));
    cb_names_sweep(other);
    cr_expect_eq(n_files(instance_of()), 3);
    end(&alive);
    cr_expect_eq(n_files(instance_of()), 0);
}

/* Others can see what was left, and make names after it. */
Test(names, others_names_neither_go_nor_keep_what_was_left)
{
    char base[CB_NAMES_BASE_MAX] = "", path[160], link_path[160];
    DIR *d = opendir("/dev/shm");
    struct dirent *e;

    if (geteuid() != 0) {
        fprintf(stderr, "skipped: only root can give files away\n");
        return;
    }
    leave(instance_of());
    while ((e = readdir(d)))
        if (strstr(e->d_name, instance_of()) && strstr(e->d_name, ".up"))
            snprintf(base, sizeof base, "/%.*s", (int)strlen(e->d_name) - 3, e->d_name);
    closedir(d);
    cr_assert_neq(base[0], 0);
    snprintf(path, sizeof path, "/dev/shm%s.up", base);
    cr_assert_eq(unlink(path), 0); /* and another one in its place */
    put_file(path, OTHER);
    int held = open(path, O_RDONLY | O_CLOEXEC);
    cr_assert_eq(flock(held, LOCK_EX), 0);
    snprintf(link_path, sizeof link_path, "/dev/shm/cbd.0.%s.%032x.down", instance_of(), 5);
    cr_assert_eq(symlink(path, link_path), 0);
    cr_assert_eq(lchown(link_path, OTHER, OTHER), 0);
    cb_names_sweep(instance_of());
    cr_expect_eq(n_files(instance_of()), 2);
    is_as_it_was(path);
    close(held);
    unlink(link_path);
}

/* Whoever opens a pipe waits for its other end. */
Test(names, a_pipe_in_the_place_of_what_was_left_keeps_no_sweep, .timeout = 20)
{
    char path[160], pipe_path[160];
    struct made m;
    int status;
    struct cb_why why;

    snprintf(path, sizeof path, "/dev/shm/cbd.%u.%s.%032x.down", (unsigned)getuid(), instance_of(),
             7);
    put_file(path, geteuid());
    snprintf(pipe_path, sizeof pipe_path, "%.*s.up", (int)strlen(path) - 5, path);
    cr_assert_eq(mkfifo(pipe_path, 0666), 0);
    cb_names_sweep(instance_of());
    unlink(path);
    unlink(pipe_path);
    /* Nor whoever is told a name. */
    make(&m, instance_of(), getuid());
    snprintf(path, sizeof path, "/dev/shm%s.down", m.names.base);
    cr_assert_eq(unlink(path), 0);
    cr_assert_eq(mkfifo(path, 0666), 0);
    status = cb_names_open(m.names.base, CB_NAMES_DOWN, false, geteuid(), &why);
    cr_expect_lt(status, 0);
    end(&m);
}

/* ---- no room --------------------------------------------------------------------------------- */

Test(names, a_full_dev_shm_is_said_and_nothing_is_left)
{
    struct made m;
    struct cb_why why = {""};
    uid_t uid = getuid();

    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("none", "/dev/shm", "tmpfs", 0, "size=64k")) {
        fprintf(stderr, "skipped: no mount namespace of one's own here\n");
        return;
    }
    cr_expect_eq(cb_names_room(), 65536);
    /* At each of the parts: UP, DOWN, the bell. */
    const size_t bytes[][2] = {{131072, 4096}, {32768, 65536}, {32768, 32768}};
    for (int i = 0; i < 3; i++) {
        const struct cb_names_lane lane = {instance_of(), uid, bytes[i][0], bytes[i][1], true};

        cr_expect_eq(cb_names_make_lane(&m.names, &lane, &m.up, &m.down, &m.bell, &why), -ENOSPC);
        cr_expect(strstr(why.text, "/dev/shm") && strstr(why.text, "--shm-size"), "%s", why.text);
        cr_expect_null(m.up.base);
        cr_expect_null(m.down.base);
        cr_expect_eq(n_files("cbd"), 0);
        cr_expect_eq(cb_names_room(), 65536);
    }
    cr_expect_eq(cb_names_make_vocab(&m.names, instance_of(), &uid, 1, "", 131072, &why), -ENOSPC);
    cr_expect_eq(n_files("cbd"), 0);
}
