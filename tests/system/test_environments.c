/* Machines that lack something, each really made (mounts, limits, filters of system calls); where one
 * can't be, the test says why. Those that are apart from others: test_namespaces.c. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <seccomp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "tests/system/environment.h"
#include "tests/system/raw.h"
#include "tests/util/sanitized.h"

enum { PEERPIDFD = 77, PASSRIGHTS = 83 };

TestSuite(environments, .timeout = 180);

/* ---- memory -------------------------------------------------------------------------------------- */

/* Lanes never count against it: of these three alone would fill it. */
Test(environments, dev_shm_of_64_mib_and_then_full)
{
    enum { N = 12 };
    struct cb_handle *handles[N];
    struct cb_options options;
    struct system s;
    if (!can(unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
                 mount("none", "/dev/shm", "tmpfs", 0, "size=64m") == 0,
             "no mount namespace of one's own here"))
        return;
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null"));
    cb_options_init(&options);
    options.arena_bytes = 24 << 20;
    for (int i = 0; i < N; i++) {
        handles[i] = system_open(&s, &options);
        cr_expect_eq(service_end(handles[i], service_submit(handles[i], 5, 0)), CB_END_LENGTH);
    }
    for (int i = 0; i < N; i++)
        cb_close(handles[i]);
    system_settle(&s);
    int fd = open("/dev/shm/full", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    static const char zeros[65536];
    while (write(fd, zeros, sizeof zeros) > 0 || write(fd, zeros, 1) > 0)
        ;
    cr_expect_eq(errno, ENOSPC);
    close(fd);
    expect_service(&s);
    unlink("/dev/shm/full");
    system_fini(&s);
}

/* Pages of lanes are charged to the daemon, which touches them first: the bytes that a uid may have
 * are what keeps one user from having the whole group killed. */
Test(environments, memory_control_group)
{
    enum { N = 16 };
    struct cb_handle *handles[N], *more;
    struct cb_options options;
    struct system s;
    char name[4096];
    uint32_t n = 0;
    if (!memory_group_enter("268435456", name))
        return;
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null", "--uid_bytes", "128m"));
    cb_options_init(&options);
    options.arena_bytes = 24 << 20;
    while (n < N && system_try_open(&s, &options, &handles[n]) == 0)
        n++;
    cr_expect(n >= 2 && n < N, "%u lanes", n);
    cr_expect_eq(system_try_open(&s, &options, &more), CB_QUOTA);
    for (uint32_t i = 0; i < n; i++)
        cr_expect_eq(service_end(handles[i], service_submit(handles[i], 5, 0)), CB_END_LENGTH);
    for (uint32_t i = 0; i < n; i++)
        cb_close(handles[i]);
    system_settle(&s);
    expect_service(&s);
    cr_expect_eq(memory_group_fails(name), 0, "the group's limit was met");
    system_fini(&s);
    memory_group_leave(name);
}

/* ---- time ------------------------------------------------------------------------------------------ */

/* To set it would set it for the whole machine, so it is made to jump under the programs. What the
 * clock that is read does apart from others: test_namespaces.c. */
Test(environments, a_wall_clock_that_is_set_again_and_again)
{
    struct system s;
    char shim[512];
    if (IS_SANITIZED) {
        fprintf(stderr, "skipped: a sanitizer does not let itself be preloaded\n");
        return;
    }
    setenv("LD_PRELOAD", built("tests/clock_shim.so", shim), 1);
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null", "--null_step_us", "1000", "--net_ms", "100"));
    json_t *status = system_cbctl(&s, SETTINGS("status"));
    long long started = json_integer_value(json_object_get(status, "started_unix_s"));
    cr_assert_gt(llabs(started - (long long)time(NULL)), 3600, "the clock does not jump");
    json_decref(status);
    for (int i = 0; i < 5; i++)
        expect_deadlines(&s);
    struct output o = system_run(&s, NULL, "cbctl", SETTINGS("-i", s.instance, "bench"));
    cr_expect_eq(o.status, 0, "%s", o.err);
    output_free(&o);
    expect_service(&s);
    unsetenv("LD_PRELOAD");
    system_fini(&s);
}

/* ---- kernels and filters that lack something ------------------------------------------------------ */

static void expect_loop(const struct system *s, const char *name)
{
    json_t *status = system_cbctl(s, SETTINGS("status"));
    cr_expect_str_eq(json_string_value(json_object_get(status, "loop")), name);
    json_decref(status);
}

Test(environments, io_uring_refused)
{
    struct system s;
    if (!deny(SCMP_SYS(io_uring_setup), WHATEVER, 0, EPERM))
        return;
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null"));
    expect_loop(&s, "epoll");
    system_expect_log(&s, "io_uring is refused here");
    expect_service(&s);
    system_fini(&s);

    system_init(&s);
    system_spawn_as(&s, geteuid(), SETTINGS("--model", "null", "--loop", "uring"));
    cr_expect_not(system_is_ready(&s));
    cr_expect_eq(system_wait(&s), 1);
    system_expect_log(&s, "set loop to epoll");
    system_fini(&s);
}

Test(environments, epoll_without_nanoseconds)
{
    struct system s;
    if (!deny(SCMP_SYS(io_uring_setup), WHATEVER, 0, ENOSYS) ||
        !deny(SCMP_SYS(epoll_pwait2), WHATEVER, 0, ENOSYS))
        return;
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null"));
    expect_loop(&s, "epoll");
    expect_service(&s);
    system_fini(&s);
}

Test(environments, no_descriptor_of_the_peer_s_process)
{
    struct system s;
    if (!deny(SCMP_SYS(getsockopt), 2, PEERPIDFD, ENOPROTOOPT))
        return;
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null"));
    expect_service(&s); /* by a number that could have been used again */
    system_fini(&s);
    if (!deny(SCMP_SYS(pidfd_open), WHATEVER, 0, ENOSYS))
        return;
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null"));
    expect_service(&s); /* by the end of the socket alone */
    system_fini(&s);
}

static void nobody_opens(const struct system *s, int status)
{
    struct crowd c;
    crowd_init(&c, s);
    crowd_add_as(&c, NOBODY, expects_open, &status);
    crowd_join(&c);
    crowd_fini(&c);
}

/* Only root and the daemon's user then, whatever socket_mode says. */
Test(environments, descriptors_that_the_kernel_cannot_refuse)
{
    struct system s;
    if (geteuid() != 0) {
        fprintf(stderr, "skipped: only root can become another user\n");
        return;
    }
    if (!deny(SCMP_SYS(setsockopt), 2, PASSRIGHTS, ENOPROTOOPT))
        return;
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null", "--socket_mode", "0666"));
    system_expect_log(&s, "only root and this user may connect");
    nobody_opens(&s, CB_DENIED);
    expect_service(&s);
    system_fini(&s);
    system_init(&s);
    system_start(&s,
                 SETTINGS("--model", "null", "--socket_mode", "0666", "--socket_trust", "true"));
    nobody_opens(&s, 0);
    system_fini(&s);
}

Test(environments, memory_that_cannot_be_sealed)
{
    struct system s;
    if (!deny(SCMP_SYS(fcntl), 1, F_ADD_SEALS, EINVAL))
        return;
    system_init(&s);
    system_spawn_as(&s, geteuid(), SETTINGS("--model", "null"));
    cr_expect_not(system_is_ready(&s));
    cr_expect_eq(system_wait(&s), 1);
    system_expect_log(&s, "seal");
    system_fini(&s);
}

/* Where nothing is promised that is not there (vm.overcommit_memory 2, which is the whole machine's and so
 * is not touched here) the same is refused as by a limit of the address space: what is only reserved. */
Test(environments, address_space_that_is_counted)
{
    const struct rlimit little = {1 << 30, 1 << 30};
    struct system s;
    if (!can(!IS_SANITIZED, "a sanitizer reserves more than any limit") ||
        !can(setrlimit(RLIMIT_AS, &little) == 0, "can't limit the address space"))
        return;
    system_init(&s);
    system_spawn_as(&s, geteuid(), SETTINGS("--model", "null"));
    cr_expect_not(system_is_ready(&s));
    cr_expect_eq(system_wait(&s), 1);
    system_expect_log(&s, "requests (max_requests) of 131072 tokens");
    system_start(&s, SETTINGS("--model", "null", "--max-requests", "64"));
    expect_service(&s);
    system_fini(&s);
}

/* ---- descriptors ----------------------------------------------------------------------------------- */

/* Who comes when there are none is told so; who is there goes on; afterwards all is as before. */
Test(environments, limit_of_descriptors_reached)
{
    enum { N = 80 };
    static struct raw raws[N];
    const struct rlimit few = {64, 64};
    _Alignas(8) char record[CB_RECORD_BYTES];
    struct cb_hello hello = raw_hello();
    uint32_t n_refused = 0, n_welcome = 0;
    struct system s;
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null"));
    struct cb_handle *h = system_open(&s, NULL);
    if (!can(prlimit(s.pid, RLIMIT_NOFILE, &few, NULL) == 0, "can't limit the daemon")) {
        cb_close(h);
        system_fini(&s);
        return;
    }
    for (int i = 0; i < N; i++) /* who say nothing hold theirs until they are hung up on */
        cr_assert(raw_connect(&raws[i], &s));
    cr_expect_eq(service_end(h, service_submit(h, 50, 0)), CB_END_LENGTH);
    for (int i = 0; i < N; i++) {
        while (raw_receive(&raws[i], record) > 0)
            ;
        raw_close(&raws[i]);
    }
    system_expect_log(&s, "out of descriptors: a connection was refused");
    for (int i = 0; i < N; i++) {
        cr_assert(raw_connect(&raws[i], &s));
        (void)raw_send(&raws[i], &hello, sizeof hello);
        int type = raw_receive(&raws[i], record);
        n_welcome += type == CB_RECORD_WELCOME;
        n_refused += type == CB_RECORD_REFUSED;
    }
    cr_expect_eq(n_welcome + n_refused, N, "%u lanes, %u refusals", n_welcome, n_refused);
    cr_expect_gt(n_welcome, 10);
    cr_expect_gt(n_refused, 10);
    cr_expect_eq(service_end(h, service_submit(h, 50, 0)), CB_END_LENGTH);
    for (int i = 0; i < N; i++)
        raw_close(&raws[i]);
    cb_close(h);
    system_settle(&s);
    expect_service(&s);
    system_fini(&s);
}
