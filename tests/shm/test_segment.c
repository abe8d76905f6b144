#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/segment.h"
#include "shm/stats.h"

enum { BYTES = 65536 };

static int reopen(int fd, int flags)
{
    char path[64];

    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return open(path, flags | O_CLOEXEC);
}

static void cannot_resize(int fd)
{
    cr_assert_lt(ftruncate(fd, BYTES / 2), 0);
    cr_assert_lt(ftruncate(fd, BYTES * 2), 0);
    cr_assert_lt(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), 0, "no more seals");
}

static void cannot_write(int fd)
{
    cr_assert_lt(pwrite(fd, "x", 1, 0), 0);
    cr_assert_eq(mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
    cr_assert_lt(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
}

Test(segment, up_is_writable_and_keeps_its_size)
{
    struct cb_segment daemon, client;
    struct cb_why why = {""};
    struct stat st;
    int fd;

    cr_assert_eq(cb_segment_make_up(&daemon, &fd, BYTES, &why), 0, "%s", why.text);
    cr_assert_eq(fstat(fd, &st), 0);
    cr_assert_eq(st.st_mode & 0777, 0600);
    cr_assert_geq(st.st_blocks * 512, BYTES, "every page is there");
    cr_assert_eq(cb_segment_map(&client, fd, BYTES, 1, &why), 0, "%s", why.text);
    memset(client.base, 7, BYTES);
    cr_assert_eq(((char *)daemon.base)[BYTES - 1], 7);
    cannot_resize(fd);
    cannot_resize(reopen(fd, O_RDWR));
    cr_assert(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    cb_segment_unmap(&client);
    cb_segment_unmap(&daemon);
    cb_segment_unmap(&daemon);
    close(fd);
}

/* As whoever runs this, root included. */
Test(segment, down_can_be_written_by_the_daemon_only)
{
    struct cb_segment daemon, client;
    struct cb_why why = {""};
    int fd, again;

    cr_assert_eq(cb_segment_make_down(&daemon, &fd, BYTES, &why), 0, "%s", why.text);
    cr_assert_eq(fcntl(fd, F_GETFL) & O_ACCMODE, O_RDONLY);
    cr_assert_eq(cb_segment_map(&client, fd, BYTES, 0, &why), 0, "%s", why.text);
    cannot_write(fd);
    cannot_resize(fd);
    cr_assert_lt(mprotect(client.base, BYTES, PROT_READ | PROT_WRITE), 0);
    again = reopen(fd, O_RDWR);
    if (again >= 0) {
        cannot_write(again);
        cannot_resize(again);
        close(again);
    }
    cr_assert_lt(cb_segment_map(&(struct cb_segment){0}, fd, BYTES, 1, &why), 0);
    ((char *)daemon.base)[BYTES - 1] = 9;
    cr_assert_eq(((char *)client.base)[BYTES - 1], 9, "the daemon's mapping still writes");
    cb_segment_unmap(&client);
    cb_segment_unmap(&daemon);
    close(fd);
}

Test(segment, a_sealed_one_never_changes_again)
{
    struct cb_segment s;
    struct cb_why why = {""};
    int fd, again;

    cr_assert_eq(cb_segment_make_sealable(&s, &fd, "cbd-vocab", BYTES, &why), 0, "%s", why.text);
    memcpy(s.base, "words", 6);
    cr_assert_eq(cb_segment_seal(&s, &fd, &why), 0, "%s", why.text);
    cr_assert_str_eq(s.base, "words");
    cr_assert_eq(fcntl(fd, F_GETFL) & O_ACCMODE, O_RDONLY);
    cannot_write(fd);
    cannot_resize(fd);
    again = reopen(fd, O_RDWR);
    if (again >= 0) {
        cannot_write(again);
        close(again);
    }
    cb_segment_unmap(&s);
    close(fd);
}

Test(segment, another_uid_cannot_open_it_anew_for_writing)
{
    struct cb_segment s;
    struct cb_why why = {""};
    int fd, status;
    pid_t child;

    if (geteuid() != 0)
        cr_skip_test("needs root to become somebody else");
    cr_assert_eq(cb_segment_make_down(&s, &fd, BYTES, &why), 0, "%s", why.text);
    child = fork();
    if (child == 0) {
        if (setresgid(65534, 65534, 65534) < 0 || setresuid(65534, 65534, 65534) < 0)
            _exit(2);
        _exit(reopen(fd, O_RDWR) >= 0);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(status, 0);
    cb_segment_unmap(&s);
    close(fd);
}

Test(segment, a_child_inherits_no_mapping)
{
    struct cb_segment s;
    struct cb_why why = {""};
    int fd, status;
    pid_t child;

    cr_assert_eq(cb_segment_make_up(&s, &fd, BYTES, &why), 0);
    child = fork();
    if (child == 0) {
        unsigned char there;

        _exit(mincore(s.base, 4096, &there) == 0);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(status, 0);
    cb_segment_unmap(&s);
    close(fd);
}

Test(segment, what_is_too_large_is_refused_in_words)
{
    struct cb_segment s;
    struct cb_why why = {""};
    int fd;

    cr_assert_lt(cb_segment_make_up(&s, &fd, (size_t)1 << 60, &why), 0);
    cr_assert_eq(fd, -1);
    cr_assert_null(s.base);
    cr_assert(strstr(why.text, "lane_arena"), "%s", why.text);
    cr_assert_eq(cb_segment_make_up(&s, &fd, BYTES, &why), 0);
    cr_assert_eq(cb_segment_map(&(struct cb_segment){0}, fd, BYTES + 1, 0, &why), -EPROTO);
    cb_segment_unmap(&s);
    close(fd);
}

Test(segment, status_is_found_by_name_and_vanishes)
{
    struct cb_status_segment s;
    struct cb_segment reader;
    struct cb_why why = {""};
    char name[CB_STATUS_NAME_MAX];
    struct cb_status_maker maker = {0};

    cr_assert_eq(cb_status_segment_make(&s, "test-a", 8192, 0640, (gid_t)-1, &why), 0, "%s",
                 why.text);
    memcpy(name, s.name, sizeof name);
    cr_assert(strstr(name, "test-a.status"), "%s", name);
    ((char *)s.map.base)[100] = 5;
    cr_assert_eq(cb_segment_open_status(&reader, name, NULL, 0, &maker, &why), 0, "%s", why.text);
    cr_assert(maker.is_live);
    cr_assert_eq(maker.uid, geteuid());
    cr_assert_eq(((char *)reader.base)[100], 5);
    cr_assert_eq(reader.bytes, 8192);
    cr_assert_lt(mprotect(reader.base, 4096, PROT_READ | PROT_WRITE), 0);
    cb_segment_unmap(&reader);
    cb_status_segment_fini(&s);
    cb_status_segment_fini(&s);
    cr_assert_eq(cb_segment_open_status(&reader, name, NULL, 0, &maker, &why), -ENOENT);
}

static void die(struct cb_status_segment *s)
{
    cb_segment_unmap(&s->map);
    close(s->fd);
    close(s->lock_fd);
    s->lock_fd = s->fd = -1;
}

static bool is_there(const char *name)
{
    int fd = shm_open(name, O_RDONLY | O_CLOEXEC, 0);

    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

Test(segment, a_killed_daemons_status_is_told_from_a_living_ones)
{
    struct cb_status_segment s;
    struct cb_segment reader;
    struct cb_why why = {""};
    struct cb_status_maker maker;

    cr_assert_eq(cb_status_segment_make(&s, "test-d", 4096, 0644, (gid_t)-1, &why), 0);
    ((char *)s.map.base)[9] = 3;
    for (int i = 0; i < 3; i++) { /* to look changes nothing */
        maker.is_live = false;
        cr_assert_eq(cb_segment_open_status(&reader, s.name, NULL, 0, &maker, &why), 0);
        cr_expect(maker.is_live);
        cb_segment_unmap(&reader);
    }
    die(&s);
    cr_assert_eq(cb_segment_open_status(&reader, s.name, NULL, 0, &maker, &why), 0);
    cr_expect_not(maker.is_live);
    cr_expect_eq(((char *)reader.base)[9], 3);
    cb_segment_unmap(&reader);
    shm_unlink(s.name);
}

Test(segment, another_users_status_is_not_read)
{
    static const uid_t trusted[] = {12, 65534};
    struct cb_status_segment s;
    struct cb_segment reader;
    struct cb_why why = {""};
    struct cb_status_maker maker;

    if (geteuid() != 0)
        cr_skip_test("needs root to give a file away");
    cr_assert_eq(cb_status_segment_make(&s, "test-e", 4096, 0644, (gid_t)-1, &why), 0);
    cr_assert_eq(fchown(s.lock_fd, 65534, (gid_t)-1), 0);
    cr_expect_eq(cb_segment_open_status(&reader, s.name, NULL, 0, &maker, &why), -EPERM);
    cr_expect_eq(cb_segment_open_status(&reader, s.name, trusted, 1, &maker, &why), -EPERM);
    cr_expect_null(reader.base);
    cr_expect_eq(cb_segment_open_status(&reader, s.name, trusted, 2, &maker, &why), 0);
    cb_segment_unmap(&reader);
    cb_status_segment_fini(&s);
}

/* Only a dead daemon's own name was swept: these stayed for ever. */
Test(segment, status_left_under_random_names_is_removed)
{
    enum { LIVE, DEAD, OTHER, EMPTY, N };
    struct cb_status_segment plain, s[N], next;
    struct cb_why why = {""};
    struct cb_stats_boot boot = {.pid = 1};

    cr_assert_eq(cb_status_segment_make(&plain, "test-c", 4096, 0644, (gid_t)-1, &why), 0);
    for (int i = 0; i < N; i++) {
        cr_assert_eq(cb_status_segment_make(&s[i], "test-c", 4096, 0644, (gid_t)-1, &why), 0);
        cr_assert_null(strstr(s[i].name, "test-c"));
        strcpy(boot.instance, i == OTHER ? "test-cd" : "test-c");
        if (i != EMPTY)
            cb_stats_init(s[i].map.base, &boot);
    }
    die(&s[DEAD]);
    die(&s[OTHER]);
    die(&s[EMPTY]);
    cr_assert_eq(cb_status_segment_make(&next, "test-c", 4096, 0644, (gid_t)-1, &why), 0);
    cr_expect(is_there(s[LIVE].name));
    cr_expect_not(is_there(s[DEAD].name));
    cr_expect(is_there(s[OTHER].name), "its own instance's next daemon removes it");
    cr_expect(is_there(s[EMPTY].name));
    shm_unlink(s[OTHER].name);
    shm_unlink(s[EMPTY].name);
    cb_status_segment_fini(&s[LIVE]);
    cb_status_segment_fini(&next);
    cb_status_segment_fini(&plain);
}

/* Whoever opens a pipe waits for its other end, and anybody can put one there. */
Test(segment, a_pipe_under_its_names_keeps_no_daemon_from_starting, .timeout = 20)
{
    static const char strays[] = "/dev/shm/cbd.00000000000000000000000000c0ffee";
    struct cb_status_segment s;
    struct cb_segment reader;
    struct cb_why why = {""};
    char path[96];
    struct cb_status_maker maker;

    snprintf(path, sizeof path, "/dev/shm/cbd.%u.test-f.status", (unsigned)getuid());
    cr_assert_eq(mkfifo(path, 0666), 0);
    cr_assert_eq(mkfifo(strays, 0666), 0);
    cr_expect_lt(cb_segment_open_status(&reader, path + strlen("/dev/shm"), NULL, 0, &maker, &why),
                 0);
    if (geteuid() == 0)
        cr_assert_eq(chown(path, 65534, 65534), 0);
    cr_expect_eq(cb_status_segment_make(&s, "test-f", 4096, 0644, (gid_t)-1, &why), 0, "%s",
                 why.text);
    cb_status_segment_fini(&s);
    unlink(path);
    unlink(strays);
}

Test(segment, status_of_a_live_daemon_is_left_alone_and_of_a_dead_one_replaced)
{
    struct cb_status_segment live, second;
    struct cb_why why = {""};
    char name[CB_STATUS_NAME_MAX];

    cr_assert_eq(cb_status_segment_make(&live, "test-b", 4096, 0644, (gid_t)-1, &why), 0);
    memcpy(name, live.name, sizeof name);
    ((char *)live.map.base)[0] = 42;
    cr_assert_eq(cb_status_segment_make(&second, "test-b", 4096, 0644, (gid_t)-1, &why), 0, "%s",
                 why.text);
    cr_assert_str_neq(second.name, name);
    cb_status_segment_fini(&second);

    /* Dead: the lock, which mappings hold too, is gone, the name is not. */
    cb_segment_unmap(&live.map);
    close(live.fd);
    close(live.lock_fd);
    live.lock_fd = live.fd = -1;
    cr_assert_eq(cb_status_segment_make(&second, "test-b", 4096, 0644, (gid_t)-1, &why), 0, "%s",
                 why.text);
    cr_assert_str_eq(second.name, name);
    cr_assert_eq(((char *)second.map.base)[0], 0, "fresh memory");
    cb_status_segment_fini(&second);
    cb_status_segment_fini(&live);
}
