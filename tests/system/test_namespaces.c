/* Daemon and clients that see different machines: other users, clocks, processes, file systems. Each is
 * really made; where one can't be, the test says why. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/system/environment.h"

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x80
#endif

TestSuite(namespaces, .timeout = 180);

/* ---- users ---------------------------------------------------------------------------------------- */

Test(namespaces, all_as_nobody)
{
    struct system s;
    if (!can(setgid(NOBODY) == 0 && setuid(NOBODY) == 0, "this user can't become nobody"))
        return;
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null"));
    expect_service(&s);
    system_fini(&s);
}

/* The daemon, root by number in a user namespace of its own that has no number for anybody else.
 * False, and said, if there can be none. */
static bool spawn_in_user_namespace(struct system *s)
{
    char path[512], map[32];
    int out[2], log = open(s->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    cr_assert(log >= 0 && pipe2(out, O_CLOEXEC) == 0);
    built("cbd", path);
    snprintf(map, sizeof map, "0 %u 1", (unsigned)geteuid());
    s->pid = fork();
    if (s->pid == 0) {
        char *const none[] = {NULL};
        char *const arguments[] = {path,        "--model",        "null", "--instance",
                                   s->instance, "--runtime_dir",  s->dir, "--socket_mode",
                                   "0666",      "--socket_trust", "true", NULL};
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (!can(unshare(CLONE_NEWUSER) == 0 && write_text("/proc/self/setgroups", "deny") &&
                     write_text("/proc/self/uid_map", map),
                 "no user namespace of one's own here"))
            _exit(125);
        dup2(out[1], STDOUT_FILENO);
        dup2(log, STDERR_FILENO);
        execve(path, arguments, none);
        _exit(126);
    }
    close(out[1]);
    close(log);
    s->out = out[0];
    return system_is_ready(s) || system_wait(s) != 125;
}

static void opens_from_a_namespace_inside(struct crowd *c, uint32_t i, void *arg)
{
    member_expect(c, unshare(CLONE_NEWUSER) == 0, "%s", strerror(errno));
    member_expect(c, geteuid() == NOBODY, "it has no number there");
    expects_open(c, i, arg);
}

/* Whom the daemon's namespace has no number for is a uid of its own, the overflow one. */
Test(namespaces, of_users)
{
    int ok = 0;
    struct system s;
    struct crowd c;
    system_init(&s);
    if (!spawn_in_user_namespace(&s))
        return;
    cr_assert(s.pid, "it does not serve there");
    system_note(&s);
    crowd_init(&c, &s);
    crowd_add(&c, expects_open, &ok);
    crowd_add(&c, opens_from_a_namespace_inside, &ok);
    if (geteuid() == 0) {
        struct cb_options options;
        struct cb_handle *h;
        crowd_add_as(&c, 1234, expects_open, &ok);
        cb_options_init(&options);
        cr_assert_eq(seteuid(1234), 0);
        int r = system_try_open(&s, &options, &h);
        cr_assert_eq(seteuid(0), 0);
        cr_assert_eq(r, 0, "%s", cb_message());
        json_t *reply = system_cbctl(&s, SETTINGS("clients"));
        json_t *list = json_is_array(reply) ? reply : json_object_get(reply, "clients");
        bool found = false;
        for (size_t i = 0; i < json_array_size(list); i++)
            found |= json_integer_value(json_object_get(json_array_get(list, i), "uid")) == NOBODY;
        cr_expect(found, "nobody has the overflow uid");
        json_decref(reply);
        cb_close(h);
    }
    crowd_join(&c);
    crowd_fini(&c);
    expect_service(&s);
    system_fini(&s);
}

/* ---- time ------------------------------------------------------------------------------------------ */

/* Daemon and client have clocks that are a day apart: what goes between them are durations. */
Test(namespaces, clocks_that_differ_by_a_day)
{
    struct system s;
    /* To set CLOCK_REALTIME would set it for the whole machine, and nothing reads it but for the
     * time of the start; the clock that is read has a namespace. It is of children only. */
    if (!can(unshare(CLONE_NEWTIME) == 0 &&
                 write_text("/proc/self/timens_offsets", "monotonic 86400 0\nboottime 86400 0\n"),
             "no time namespace of one's own here"))
        return;
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null", "--null_step_us", "1000"));
    expect_deadlines(&s); /* the client's clock is a day behind the daemon's */
    expect_service(&s);
    system_fini(&s);
}

static void with_a_clock_ahead(struct crowd *c, uint32_t i, void *arg)
{
    const struct system *s = c->system;
    (void)i;
    (void)arg;
    member_expect(c,
                  unshare(CLONE_NEWTIME) == 0 &&
                      write_text("/proc/self/timens_offsets", "monotonic 86400 0\n"),
                  "%s", strerror(errno));
    pid_t pid = fork();
    if (pid == 0) {
        struct cb_options options;
        struct cb_handle *h;
        struct cb_request r;
        struct cb_event event;
        const uint32_t prompt[2] = {1, 2};
        uint64_t id;
        cb_options_init(&options);
        cb_request_init(&r);
        r.ids = prompt;
        r.n_ids = 2;
        r.max_new_tokens = 100000;
        r.flags = CB_IGNORE_EOS;
        r.deadline_ms = 100;
        if (system_try_open(s, &options, &h) || cb_submit(h, &r, &id))
            _exit(1);
        do
            if (cb_wait(h, id, &event, HANG_MS) != 1)
                _exit(2);
        while (event.type == CB_EVENT_TOKENS);
        _exit(event.type == CB_EVENT_END && event.end == CB_END_DEADLINE ? 0 : 3);
    }
    int status;
    member_expect(c, waitpid(pid, &status, 0) == pid && status == 0, "it ended with %x",
                  (unsigned)status);
}

Test(namespaces, a_client_whose_clock_is_ahead)
{
    struct system s;
    struct crowd c;
    if (!can(access("/proc/self/timens_offsets", F_OK) == 0 && geteuid() == 0,
             "no time namespace of one's own here"))
        return;
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null", "--null_step_us", "1000"));
    crowd_init(&c, &s);
    crowd_add(&c, with_a_clock_ahead, NULL);
    crowd_join(&c);
    crowd_fini(&c);
    system_settle(&s);
    system_fini(&s);
}

/* ---- processes ------------------------------------------------------------------------------------- */

/* The child's copy of the handle is dead, one of its own works, and its end is not the parent's. */
Test(namespaces, a_client_forks)
{
    struct cb_event event;
    struct system s;
    int status;
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null", "--null_step_us", "1000"));
    struct cb_handle *h = system_open(&s, NULL);
    uint64_t id = service_submit(h, 200, 0);
    cr_assert_eq(cb_wait(h, id, &event, HANG_MS), 1);
    pid_t pid = fork();
    if (pid == 0) {
        struct cb_options options;
        struct cb_handle *own;
        struct cb_request r;
        const uint32_t prompt[2] = {8, 9};
        uint64_t other;
        cb_options_init(&options);
        if (cb_poll(h, &event) != CB_FORKED || cb_cancel(h, id) != CB_FORKED)
            _exit(1);
        cb_close(h);
        if (system_try_open(&s, &options, &own))
            _exit(2);
        cb_request_init(&r);
        r.ids = prompt;
        r.n_ids = 2;
        r.max_new_tokens = 10;
        r.flags = CB_IGNORE_EOS;
        if (cb_submit(own, &r, &other))
            _exit(3);
        do
            if (cb_wait(own, other, &event, HANG_MS) != 1)
                _exit(4);
        while (event.type == CB_EVENT_TOKENS);
        _exit(event.end == CB_END_LENGTH ? 0 : 5); /* without cb_close */
    }
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_expect_eq(status, 0, "the child ended with %x", (unsigned)status);
    cr_expect_eq(service_end(h, id), CB_END_LENGTH);
    cb_close(h);
    system_settle(&s);
    system_fini(&s);
}

/* Sees nothing of the machine but the directory of the socket: no /proc, no /dev/shm, no network, and
 * other numbers for processes. */
static void in_a_container(struct crowd *c, uint32_t i, void *arg)
{
    struct storm_member member = {.storm = arg, .n_rounds = 2};
    char root[100], inside[200], parent[200];
    snprintf(root, sizeof root, "%s/root-%u", c->system->dir, i);
    snprintf(inside, sizeof inside, "%s%s", root, c->system->dir);
    member_expect(
        c,
        unshare(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWNET | CLONE_NEWUTS) == 0 &&
            mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 && mkdir(root, 0755) == 0 &&
            mount("none", root, "tmpfs", 0, NULL) == 0,
        "%s", strerror(errno));
    snprintf(parent, sizeof parent, "%s/tmp", root);
    member_expect(c,
                  mkdir(parent, 0755) == 0 && mkdir(inside, 0755) == 0 &&
                      mount(c->system->dir, inside, NULL, MS_BIND, NULL) == 0 &&
                      chroot(root) == 0 && chdir("/") == 0,
                  "%s", strerror(errno));
    member_expect(c, access("/proc", F_OK) < 0 && access("/dev", F_OK) < 0, "it sees too much");
    pid_t pid = fork(); /* the first of its namespace */
    if (pid == 0) {
        storm_member_run(c, i, &member);
        _exit(0);
    }
    int status;
    member_expect(c, waitpid(pid, &status, 0) == pid && status == 0, "it ended with %x",
                  (unsigned)status);
}

Test(namespaces, a_container_with_nothing_but_the_directory_of_the_socket)
{
    struct storm st;
    struct system s;
    struct crowd c;
    if (geteuid() != 0) {
        fprintf(stderr, "skipped: only root can make namespaces without another user's\n");
        return;
    }
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null"));
    storm_init(&st, &environment_scale);
    storm_answer_all(&st, &s);
    crowd_init(&c, &s);
    for (uint32_t i = 0; i < 3; i++)
        crowd_add(&c, in_a_container, &st);
    struct storm_member member = {.storm = &st, .n_rounds = 2};
    crowd_add(&c, storm_member_run, &member);
    crowd_join(&c);
    crowd_fini(&c);
    system_settle(&s);
    storm_fini(&st);
    system_fini(&s);
}
