/* The daemon as a service: what it gives up, and what it says to and takes from its manager. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/sandbox.h"
#include "shm/segment.h"
#include "shm/stats.h"
#include "tests/system/crowd.h"

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83
#endif

TestSuite(service, .timeout = 120);

static bool is_root(void)
{
    if (geteuid() == 0)
        return true;
    fprintf(stderr, "skipped: only root can become another user\n");
    return false;
}

/* ---- what it gives up -------------------------------------------------------------------------- */

/* A line of /proc/PID/task/TID/status. */
static void fact_of(pid_t pid, const char *task, const char *name, char value[64])
{
    char path[300], line[256];
    snprintf(path, sizeof path, "/proc/%d/task/%s/status", (int)pid, task);
    FILE *f = fopen(path, "re");
    value[0] = 0;
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, name, strlen(name)) == 0 && line[strlen(name)] == ':')
            sscanf(line + strlen(name) + 1, "%63s", value);
    if (f)
        fclose(f);
}

static void expect_of_all_threads(pid_t pid, const char *name, const char *right, int least)
{
    char path[64], value[64];
    int n = 0;
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *d = opendir(path);
    const struct dirent *e;
    cr_assert(d);
    while ((e = readdir(d)))
        if (e->d_name[0] != '.') {
            fact_of(pid, e->d_name, name, value);
            cr_expect_str_eq(value, right, "%s of thread %s is %s", name, e->d_name, value);
            n++;
        }
    closedir(d);
    cr_expect_geq(n, least, "%d threads", n);
}

static void expect_status(const struct system *s, const char *part)
{
    json_t *status = system_cbctl(s, SETTINGS("status"));
    const char *words = json_string_value(json_object_get(status, "sandbox"));
    cr_expect(words && strstr(words, part), "sandbox: %s", words);
    json_decref(status);
}

/* With threads, where there is a model for them. */
Test(service, all_its_threads_are_in_the_sandbox)
{
    const char *model = default_model();
    struct system s;
    system_init(&s);
    system_start(&s, SETTINGS("--model", model ? model : "null", "--threads", "2", "--num_blocks",
                              "4", "--max_memory_percent", "none"));
    int n_threads = model ? 2 : 1;
    expect_of_all_threads(s.pid, "NoNewPrivs", "1", n_threads);
    expect_of_all_threads(s.pid, "CapEff", "0000000000000000", n_threads);
    expect_of_all_threads(s.pid, "CapPrm", "0000000000000000", n_threads);
    if (sandbox_is_possible()) {
        expect_of_all_threads(s.pid, "Seccomp", "2", n_threads);
        expect_status(&s, "on: uid ");
    } else {
        expect_status(&s, "sanitizer");
    }
    system_fini(&s);
}

Test(service, without_a_sandbox_it_says_so)
{
    char right[64];
    struct system s;
    snprintf(right, sizeof right, "%d", prctl(PR_GET_SECCOMP));
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null", "--sandbox", "false"));
    expect_of_all_threads(s.pid, "Seccomp", right, 1);
    expect_status(&s, "off");
    system_fini(&s);
}

/* ---- whom it becomes --------------------------------------------------------------------------- */

#define STRANGER 1234

static void asks_for_tokens(struct crowd *c, uint32_t i, void *arg)
{
    const uint32_t prompt[2] = {3, 4};
    struct cb_request r;
    struct cb_event event;
    uint64_t id;
    (void)i;
    (void)arg;
    struct cb_handle *h = crowd_open(c, NULL); /* trusts nobody by name */
    cb_request_init(&r);
    r.ids = prompt;
    r.n_ids = 2;
    r.max_new_tokens = 5;
    member_expect(c, cb_submit(h, &r, &id) == 0, "%s", cb_message());
    do
        member_expect(c, cb_wait(h, id, &event, HANG_MS) == 1, "%s", cb_message());
    while (event.type != CB_EVENT_END);
    cb_close(h);
}

Test(service, started_by_root_it_becomes_its_user_and_others_trust_it)
{
    const struct passwd *nobody = getpwnam("nobody");
    char path[128], uid[16];
    struct system s;
    struct crowd c;
    struct stat st;
    if (!is_root() || !nobody)
        return;
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null", "--user", "nobody", "--socket_mode", "0666",
                              "--socket_trust", "true"));
    snprintf(uid, sizeof uid, "%u", (unsigned)nobody->pw_uid);
    expect_of_all_threads(s.pid, "Uid", uid, 1);
    expect_of_all_threads(s.pid, "CapEff", "0000000000000000", 1);
    cr_assert_eq(stat(s.dir, &st), 0);
    cr_expect_eq(st.st_uid, 0);
    snprintf(path, sizeof path, "%s/%s", s.dir, s.instance);
    cr_assert_eq(stat(path, &st), 0);
    cr_expect_eq(st.st_uid, nobody->pw_uid);
    crowd_init(&c, &s);
    crowd_add(&c, asks_for_tokens, NULL);
    crowd_add_as(&c, STRANGER, asks_for_tokens, NULL);
    crowd_join(&c);
    crowd_fini(&c);
    system_settle(&s);
    system_fini(&s);
}

/* Root, who started it, puts another in its place, which is that user too: before it runs anything. */
Test(service, root_upgrades_one_that_became_another_user)
{
    const struct passwd *nobody = getpwnam("nobody");
    char uid[16];
    struct system s;
    struct crowd c;
    if (!is_root() || !nobody)
        return;
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null", "--user", "nobody", "--socket_mode", "0666",
                              "--socket_trust", "true"));
    for (int k = 0; k < 2; k++) /* every other one has not the plain name in /dev/shm */
        system_upgrade(&s, SETTINGS("-i", s.instance, "upgrade", "--json"));
    snprintf(uid, sizeof uid, "%u", (unsigned)nobody->pw_uid);
    expect_of_all_threads(s.pid, "Uid", uid, 1);
    expect_of_all_threads(s.pid, "CapEff", "0000000000000000", 1);
    crowd_init(&c, &s);
    crowd_add(&c, asks_for_tokens, NULL);
    crowd_add_as(&c, STRANGER, asks_for_tokens, NULL);
    crowd_join(&c);
    crowd_fini(&c);
    system_settle(&s);
    system_fini(&s);
}

/* As whoever the daemon became: a page that names a process of root's, until stopped. */
static pid_t forge_page(const struct system *s, const struct passwd *user, pid_t named)
{
    struct cb_status_segment page;
    struct cb_why why = {""};
    char path[128], target[128];
    int made[2];
    char byte;
    snprintf(path, sizeof path, "%s/%s", s->dir, s->instance);
    cr_assert(mkdir(path, 0755) == 0 && chown(path, user->pw_uid, user->pw_gid) == 0);
    cr_assert_eq(pipe2(made, O_CLOEXEC), 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct cb_stats_boot boot = {.pid = (uint64_t)named};
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (setgid(user->pw_gid) || setuid(user->pw_uid) ||
            cb_status_segment_make(&page, s->instance, sizeof(struct cb_stats_page), 0644,
                                   (gid_t)-1, &why))
            _exit(1);
        cb_stats_init(page.map.base, &boot);
        snprintf(path, sizeof path, "%s/%s/status", s->dir, s->instance);
        snprintf(target, sizeof target, "/dev/shm%s", page.name);
        if (symlink(target, path) || write(made[1], "m", 1) != 1)
            _exit(1);
        pause();
    }
    close(made[1]);
    cr_assert_eq(read(made[0], &byte, 1), 1, "no page was made");
    close(made[0]);
    return pid;
}

/* A process of root's that tells in a file whenever one is started as it was. */
static pid_t root_s_process(const char *mark)
{
    char script[128];
    int held[2];
    snprintf(script, sizeof script, "touch %s; read line", mark);
    cr_assert_eq(pipe2(held, O_CLOEXEC), 0); /* its input, which never comes */
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(held[0], STDIN_FILENO);
        execl("/bin/sh", "sh", "-c", script, (char *)NULL);
        _exit(126);
    }
    for (int ms = 0; access(mark, F_OK) && ms < HANG_MS; ms++)
        usleep(1000);
    cr_assert_eq(unlink(mark), 0);
    return pid;
}

/* Root takes nobody's word for what to run as root. */
Test(service, root_puts_nothing_in_the_place_of_a_process_that_another_user_names)
{
    const struct passwd *nobody = getpwnam("nobody");
    char mark[80], name[96];
    struct system s;
    if (!is_root() || !nobody)
        return;
    system_init(&s);
    snprintf(mark, sizeof mark, "%s/mark", s.dir);
    pid_t victim = root_s_process(mark), forger = forge_page(&s, nobody, victim);
    struct output o = system_run(&s, NULL, "cbctl", SETTINGS("-i", s.instance, "upgrade"));
    cr_expect_eq(o.status, 1);
    cr_expect(strstr(o.err, "does not run as that user"), "%s", o.err);
    cr_expect_neq(access(mark, F_OK), 0, "what was named was started, as root");
    output_free(&o);
    kill(forger, SIGKILL);
    kill(victim, SIGKILL);
    waitpid(forger, NULL, 0);
    waitpid(victim, NULL, 0);
    snprintf(name, sizeof name, "/cbd.%u.%.20s.status", (unsigned)nobody->pw_uid, s.instance);
    shm_unlink(name);
    system_fini(&s);
}

/* The directory above has to be root's alone, or anybody could have let that user in. */
static void is_distrusted(struct crowd *c, uint32_t i, void *arg)
{
    struct cb_options options;
    struct cb_handle *h;
    (void)i;
    (void)arg;
    cb_options_init(&options);
    int r = system_try_open(c->system, &options, &h);
    member_expect(c, r == CB_UNTRUSTED, "cb_open gives %d", r);
}

Test(service, in_a_directory_that_others_can_write_it_is_not_trusted)
{
    struct system s;
    struct crowd c;
    if (!is_root() || !getpwnam("nobody"))
        return;
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null", "--user", "nobody", "--socket_mode", "0666",
                              "--socket_trust", "true"));
    cr_assert_eq(chmod(s.dir, 0777), 0);
    crowd_init(&c, &s);
    crowd_add_as(&c, STRANGER, is_distrusted, NULL);
    crowd_join(&c);
    crowd_fini(&c);
    cr_assert_eq(chmod(s.dir, 0755), 0);
    system_fini(&s);
}

static void expect_refusal(uid_t uid, const char *user, const char *part)
{
    struct system s;
    system_init(&s);
    if (uid)
        cr_assert_eq(chown(s.dir, uid, uid), 0);
    int log = open(s.log, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    close(log);
    system_spawn_as(&s, uid, SETTINGS("--model", "null", "--user", user));
    cr_expect_not(system_is_ready(&s));
    cr_expect_eq(system_wait(&s), 1);
    system_expect_log(&s, part);
    system_fini(&s);
}

/* Anybody could have made the instance's directory there, with whatever is in it. */
Test(service, becomes_nobody_else_in_a_directory_that_others_can_write)
{
    struct system s;
    if (!is_root() || !getpwnam("nobody"))
        return;
    system_init(&s);
    cr_assert_eq(chmod(s.dir, 01777), 0);
    system_spawn_as(&s, 0, SETTINGS("--model", "null", "--user", "nobody"));
    cr_expect_not(system_is_ready(&s));
    if (s.pid)
        cr_expect_eq(system_wait(&s), 1);
    system_expect_log(&s, "root's alone to write");
    system_fini(&s);
}

Test(service, users_that_it_cannot_become)
{
    if (!is_root())
        return;
    expect_refusal(0, "no-such-user", "there is no such user");
    expect_refusal(STRANGER, "root", "only root can become another user");
}

/* ---- what it says to its manager ----------------------------------------------------------------- */

enum { MANAGER_FD = 3 };

/* As a manager would start it: with these variables, and `handed` as descriptor 3 if it is one. */
static void spawn_managed(struct system *s, const char *const *variables, int handed,
                          const char *const *settings)
{
    const char *environment[8] = {0}, *arguments[24] = {0};
    char path[512], listen_pid[32];
    size_t n = 0, n_set = 0;
    int out[2], log = open(s->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    cr_assert(log >= 0 && pipe2(out, O_CLOEXEC) == 0);
    const char *const fixed[] = {built("cbd", path), "--model",       "null", "--instance",
                                 s->instance,        "--runtime_dir", s->dir};
    for (; n < sizeof fixed / sizeof fixed[0]; n++)
        arguments[n] = fixed[n];
    while (*settings)
        arguments[n++] = *settings++;
    while (*variables)
        environment[n_set++] = *variables++;
    s->pid = fork();
    if (s->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        snprintf(listen_pid, sizeof listen_pid, "LISTEN_PID=%d", (int)getpid());
        environment[n_set] = listen_pid;
        dup2(out[1], STDOUT_FILENO);
        dup2(log, STDERR_FILENO);
        if (handed >= 0 && handed != MANAGER_FD)
            dup2(handed, MANAGER_FD);
        else if (handed >= 0)
            fcntl(handed, F_SETFD, 0);
        execve(path, (char *const *)arguments, (char *const *)environment);
        _exit(126);
    }
    cr_assert_gt(s->pid, 0);
    close(out[1]);
    close(log);
    s->out = out[0];
}

/* Datagrams until one is `line`. */
static void await_line(int sock, const char *line)
{
    char got[256];
    struct pollfd p = {sock, POLLIN, 0};
    do {
        cr_assert_eq(poll(&p, 1, HANG_MS), 1, "no %s came", line);
        ssize_t n = recv(sock, got, sizeof got - 1, 0);
        cr_assert_gt(n, 0);
        got[n] = 0;
    } while (strcmp(got, line) != 0);
}

static void hears_of_it(bool is_abstract)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char variable[160], path[100];
    struct system s;
    int sock = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    system_init(&s);
    snprintf(path, sizeof path, "%s%s/notify", is_abstract ? "@" : "", s.dir);
    memcpy(address.sun_path, path, strlen(path));
    if (is_abstract)
        address.sun_path[0] = 0;
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path));
    cr_assert_eq(bind(sock, (struct sockaddr *)&address, size), 0);
    snprintf(variable, sizeof variable, "NOTIFY_SOCKET=%s", path);
    spawn_managed(&s, SETTINGS(variable, "WATCHDOG_USEC=100000"), -1, SETTINGS());
    await_line(sock, "READY=1");
    await_line(sock, "WATCHDOG=1");
    await_line(sock, "WATCHDOG=1"); /* again and again, though nobody asks anything of it */
    cr_expect(system_is_ready(&s));
    system_signal(&s, SIGTERM);
    await_line(sock, "STOPPING=1");
    cr_expect_eq(system_wait(&s), 0);
    close(sock);
    system_fini(&s);
}

Test(service, says_that_it_is_ready_lives_and_stops)
{
    hears_of_it(false);
    hears_of_it(true);
}

/* ---- a socket that is handed down --------------------------------------------------------------- */

/* A listener at the place where clients look, through which descriptors may come or not. */
static int listener_at(const struct system *s, const char *name, int type, int passes, mode_t mode)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
    char dir[100];
    snprintf(dir, sizeof dir, "%s/%s", s->dir, s->instance);
    cr_assert(mkdir(dir, 0755) == 0 || errno == EEXIST);
    snprintf(address.sun_path, sizeof address.sun_path, "%s/%s", dir, name);
    unlink(address.sun_path);
    (void)setsockopt(fd, SOL_SOCKET, SO_PASSRIGHTS, &passes, sizeof passes);
    cr_assert_eq(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    cr_assert_eq(chmod(address.sun_path, mode), 0);
    cr_assert_eq(listen(fd, 8), 0);
    return fd;
}

static bool kernel_can_refuse(void)
{
    int value, fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    socklen_t size = sizeof value;
    bool can = getsockopt(fd, SOL_SOCKET, SO_PASSRIGHTS, &value, &size) == 0;
    close(fd);
    return can;
}

Test(service, serves_who_waits_at_the_socket_that_is_handed_down)
{
    char path[128];
    struct system s;
    struct crowd c;
    system_init(&s);
    int fd = listener_at(&s, "sock", SOCK_SEQPACKET, 0, 0600);
    crowd_init(&c, &s);
    crowd_add(&c, asks_for_tokens, NULL); /* connects before there is a daemon */
    spawn_managed(&s, SETTINGS("LISTEN_FDS=1"), fd, SETTINGS());
    cr_assert(system_is_ready(&s));
    crowd_join(&c);
    crowd_fini(&c);
    system_signal(&s, SIGTERM);
    cr_expect_eq(system_wait(&s), 0);
    snprintf(path, sizeof path, "%s/%s/sock", s.dir, s.instance);
    cr_expect_eq(access(path, F_OK), 0, "it unlinked the manager's socket");
    close(fd);
    system_fini(&s);
}

static void expect_not_used(int type, const char *name, int passes, const char *n_fds,
                            const char *part)
{
    struct system s;
    system_init(&s);
    int fd = listener_at(&s, name, type, passes, 0660);
    spawn_managed(&s, SETTINGS(n_fds), fd, SETTINGS());
    cr_expect_not(system_is_ready(&s), "it serves; expected: %s", part);
    cr_expect_eq(system_wait(&s), 1);
    system_expect_log(&s, part);
    close(fd);
    system_fini(&s);
}

Test(service, a_socket_that_it_cannot_use_is_a_message)
{
    bool can = kernel_can_refuse();
    expect_not_used(SOCK_SEQPACKET, "sock", 1, "LISTEN_FDS=1",
                    can ? "AcceptFileDescriptors=no" : "SocketMode=0600");
    expect_not_used(SOCK_STREAM, "sock", 0, "LISTEN_FDS=1", "ListenSequentialPacket=");
    expect_not_used(SOCK_SEQPACKET, "other", 0, "LISTEN_FDS=1", "clients look for");
    expect_not_used(SOCK_SEQPACKET, "sock", 0, "LISTEN_FDS=2", "2 sockets are handed down");
}

/* The operator's word is enough. */
Test(service, a_socket_that_lets_descriptors_in_with_socket_trust)
{
    struct system s;
    struct crowd c;
    system_init(&s);
    int fd = listener_at(&s, "sock", SOCK_SEQPACKET, 1, 0660);
    spawn_managed(&s, SETTINGS("LISTEN_FDS=1"), fd, SETTINGS("--socket_trust", "true"));
    cr_assert(system_is_ready(&s));
    crowd_init(&c, &s);
    crowd_add(&c, asks_for_tokens, NULL);
    crowd_join(&c);
    crowd_fini(&c);
    system_signal(&s, SIGTERM);
    cr_expect_eq(system_wait(&s), 0);
    close(fd);
    system_fini(&s);
}

/* ---- its unit ------------------------------------------------------------------------------------ */

static int shell(const char *format, const char *a, const char *b)
{
    char command[1024];
    snprintf(command, sizeof command, format, a, b);
    return system(command);
}

Test(service, what_is_installed_is_a_unit_that_systemd_takes)
{
    static const char install[] = "tools/install.sh install '' '%s/usr' '%s'";
    static const char uninstall[] = "tools/install.sh uninstall '' '%s/usr' '%s'";
    char build[512];
    struct system s;
    system_init(&s);
    built("", build);
    cr_assert_eq(shell(install, s.dir, build), 0);
    cr_expect_eq(
        shell("grep -q '^ExecStart=%s/usr/sbin/cbd ' '%s'/usr/lib/systemd/system/*", s.dir, s.dir),
        0);
    if (system("command -v systemd-analyze >/dev/null") == 0)
        cr_expect_eq(shell("systemd-analyze verify --man=no "
                           "'%s/usr/lib/systemd/system/cbd@test.service' >'%s/said' 2>&1",
                           s.dir, s.dir),
                     0);
    else
        fprintf(stderr, "skipped in part: there is no systemd-analyze\n");
    cr_expect_neq(shell("test -s '%s/said' && cat '%s/said' >&2", s.dir, s.dir), 0);
    cr_assert_eq(shell(uninstall, s.dir, build), 0);
    cr_expect_eq(shell("test -z \"$(find '%s/usr' -type f)%s\"", s.dir, ""), 0, "files are left");
    system_fini(&s);
}
