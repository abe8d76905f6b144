/* cbctl upgrade: starts a cbd that takes the place of the one that serves.
 *
 * The daemon itself starts no processes. What the new one needs of the old one, its command line,
 * directory, environment and where its log goes, the kernel tells those who may know it: its user and
 * root. All that then happens is between the two daemons (takeover); here it is only waited for.
 *
 * Which process it is says the STATUS page, and that is the word of whoever made the page: a process
 * that is another user's or group's, in whatever way, is not the one. Else who owns a page would
 * have root run what he likes as whom he likes. */
#include <argp.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/cbctl.h"
#include "tools/watch.h"

#define GONE " (deleted)" /* what the kernel puts behind the name of a file that was replaced */

enum { GROUPS_MAX = 256 };

struct user {
    uid_t uid;
    gid_t gid;
    size_t n_groups;
    gid_t groups[GROUPS_MAX];
};

struct upgrade {
    struct cbctl ctl;
    struct user user;    /* the old one's, and so the new one's */
    const char *program; /* NULL: the old one's */
    char **more;         /* options for the new one */
    size_t n_more;
};

/* ---- the old one ----------------------------------------------------------------------------- */

/* /proc/PID/NAME whole, with two 0 behind; the caller's to free. NULL: it can't be read. */
static char *read_proc(uint64_t pid, const char *name, size_t *np)
{
    char path[64], *bytes = NULL;
    size_t room = 0;
    ssize_t n = 0;

    snprintf(path, sizeof path, "/proc/%llu/%s", (unsigned long long)pid, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    *np = 0;
    if (fd < 0)
        return NULL;
    do {
        if (room - *np < 4096) {
            char *larger = realloc(bytes, room += 65536);
            if (!larger) {
                n = -1;
                break;
            }
            bytes = larger;
        }
        n = read(fd, bytes + *np, room - *np - 2);
        *np += n > 0 ? (size_t)n : 0;
    } while (n > 0);
    close(fd);
    if (n < 0) {
        free(bytes);
        return NULL;
    }
    bytes[*np] = bytes[*np + 1] = 0;
    return bytes;
}

/* Pointers to the strings of `bytes` [n], room for `more` and a NULL. NULL: out of memory. */
static char **split(char *bytes, size_t n, size_t more, size_t *countp)
{
    size_t count = 0;

    for (size_t i = 0; i < n; i++)
        count += bytes[i] == 0;
    char **words = calloc(count + more + 2, sizeof *words);
    *countp = 0;
    for (char *at = bytes; words && at < bytes + n; at += strlen(at) + 1)
        words[(*countp)++] = at;
    return words;
}

/* What it runs, also if that file has been replaced since. */
static bool find_program(uint64_t pid, char path[4096])
{
    char link[64];

    snprintf(link, sizeof link, "/proc/%llu/exe", (unsigned long long)pid);
    ssize_t n = readlink(link, path, 4095);
    if (n <= 0)
        return false;
    path[n] = 0;
    size_t bytes = (size_t)n, gone = strlen(GONE);
    if (bytes > gone && strcmp(path + bytes - gone, GONE) == 0)
        path[bytes - gone] = 0;
    return true;
}

/* The ids of a process are four: real, effective, saved, and for files. */
static bool are_all(const gid_t ids[4], gid_t id)
{
    return ids[0] == id && ids[1] == id && ids[2] == id && ids[3] == id;
}

/* Up to `most` numbers of the line that starts with `name` in /proc/PID/status. */
static size_t read_ids(const char *status, const char *name, gid_t *ids, size_t most)
{
    const char *at = strstr(status, name);
    size_t n = 0;

    if (!at)
        return 0;
    at += strlen(name);
    at += strspn(at, " \t");
    while (n < most && *at >= '0' && *at <= '9') {
        char *end;
        ids[n++] = (gid_t)strtoul(at, &end, 10);
        at = end + strspn(end, " \t");
    }
    return n;
}

/* Who it runs as: uid, and one group beside others. A program that takes the rights of its file's
 * owner or group, as su does, runs as neither. */
static bool find_user(uint64_t pid, uid_t uid, struct user *user)
{
    gid_t uids[4], gids[4];
    size_t n;
    char *status = read_proc(pid, "status", &n);

    if (!status)
        return false;
    n = read_ids(status, "\nUid:", uids, 4) + read_ids(status, "\nGid:", gids, 4);
    user->n_groups = read_ids(status, "\nGroups:", user->groups, GROUPS_MAX);
    free(status);
    user->uid = uid;
    user->gid = gids[1];
    return n == 8 && are_all(uids, uid) && are_all(gids, user->gid);
}

/* ---- the new one ----------------------------------------------------------------------------- */

/* What that process has open as `fd`, as it has it. -1: it may not be had. */
static int take_fd(uint64_t pid, int fd)
{
    int process = pidfd_open((pid_t)pid, 0);
    int taken = process < 0 ? -1 : pidfd_getfd(process, fd, 0);

    if (process >= 0)
        close(process);
    return taken;
}

/* Root runs nothing that another user chose, and opens nothing for it. */
static bool become_user(const struct user *user)
{
    return user->uid == geteuid() || (setgroups(user->n_groups, user->groups) == 0 &&
                                      setgid(user->gid) == 0 && setuid(user->uid) == 0);
}

/* In the child: as the old one runs, but for its standard output, which says `ready`. */
static _Noreturn void become(const struct user *user, uint64_t pid, const char *program,
                             char **arguments, char **environment, int out_fd)
{
    char path[64];
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);

    setsid();
    snprintf(path, sizeof path, "/proc/%llu/cwd", (unsigned long long)pid);
    if (chdir(path) < 0)
        _exit(126);
    /* Where its log goes. What can neither be taken nor opened again, is ours; but another user is not
     * given root's terminal. */
    bool is_other = user->uid != geteuid();
    int log = take_fd(pid, STDERR_FILENO);
    if (!become_user(user))
        _exit(126);
    snprintf(path, sizeof path, "/proc/%llu/fd/2", (unsigned long long)pid);
    if (log < 0)
        log = open(path, O_WRONLY | O_APPEND | O_CLOEXEC | O_NOCTTY);
    if (log >= 0 || is_other)
        dup2(log >= 0 ? log : null, STDERR_FILENO);
    dup2(null, STDIN_FILENO);
    dup2(out_fd, STDOUT_FILENO);
    execve(program, arguments, environment);
    _exit(127);
}

/* Waits for its `ready`. */
static bool is_ready(int fd)
{
    static const char ready[] = "ready\n";
    char text[sizeof ready] = "";
    size_t n = 0;
    ssize_t r;

    while (n < sizeof ready - 1 &&
           ((r = read(fd, text + n, sizeof ready - 1 - n)) > 0 || (r < 0 && errno == EINTR)))
        n += r > 0 ? (size_t)r : 0;
    return strcmp(text, ready) == 0;
}

/* Starts it and waits until it serves: its process, or -1 after a complaint. */
static pid_t start(const struct upgrade *u, uint64_t old, const char *program, char **arguments,
                   char **environment)
{
    int out[2], status = 0;

    if (pipe2(out, O_CLOEXEC) < 0) {
        cbctl_complain(&u->ctl, "can't make a pipe: %s", strerror(errno));
        return -1;
    }
    pid_t pid = fork();
    if (pid == 0)
        become(&u->user, old, program, arguments, environment, out[1]);
    close(out[1]);
    if (pid < 0) {
        cbctl_complain(&u->ctl, "can't start a process: %s", strerror(errno));
    } else if (!is_ready(out[0])) {
        waitpid(pid, &status, 0);
        cbctl_complain(&u->ctl,
                       WIFEXITED(status) && WEXITSTATUS(status) == 127
                           ? "can't run %s; the daemon that serves goes on"
                           : "%s did not come to serve, its log says why; the daemon that served "
                             "goes on, if it was not told to stop",
                       program);
        pid = -1;
    }
    close(out[0]);
    return pid;
}

static int upgrade(struct upgrade *u, uint64_t old)
{
    char path[4096];
    size_t n_line, n_environment, n_arguments, n_variables;
    char *line = read_proc(old, "cmdline", &n_line);
    char *variables = read_proc(old, "environ", &n_environment);
    char **arguments = line ? split(line, n_line, u->n_more + 1, &n_arguments) : NULL;
    char **environment = variables ? split(variables, n_environment, 0, &n_variables) : NULL;
    pid_t pid = -1;

    if (!arguments || !environment || (!u->program && !find_program(old, path))) {
        cbctl_complain(&u->ctl, "can't read how process %llu was started", (unsigned long long)old);
    } else if (!find_user(old, u->user.uid, &u->user)) {
        cbctl_complain(&u->ctl, "process %llu became another one meanwhile",
                       (unsigned long long)old);
    } else {
        static char take[] = "--takeover=true";
        const char *program = u->program ? u->program : path;

        for (size_t i = 0; i < u->n_more; i++)
            arguments[n_arguments++] = u->more[i];
        arguments[n_arguments++] = take;
        pid = start(u, old, program, arguments, environment);
    }
    free(arguments);
    free(environment);
    free(line);
    free(variables);
    if (pid < 0)
        return CBCTL_FAILED;
    if (u->ctl.json)
        printf("{\"pid\": %d, \"was\": %llu}\n", (int)pid, (unsigned long long)old);
    else
        printf("process %d serves in the place of %llu\n", (int)pid, (unsigned long long)old);
    return CBCTL_OK;
}

/* ---- the command ----------------------------------------------------------------------------- */

enum { KEY_PROGRAM = 256 };

static const struct argp_option options[] = {
    {"program", KEY_PROGRAM, "FILE", 0, "the new cbd; else what stands where the old one's stood",
     0},
    {"json", 'j', NULL, 0, "print JSON, for programs", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct upgrade *u = state->input;

    switch (key) {
    case KEY_PROGRAM:
        u->program = arg;
        return 0;
    case 'j':
        u->ctl.json = true;
        return 0;
    case ARGP_KEY_ARGS:
        u->more = state->argv + state->next;
        u->n_more = (size_t)(state->argc - state->next);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {
    options,
    parse,
    "[-- OPTION...]",
    "Starts a cbd as the one that serves was started, OPTIONs behind its own; it loads while the "
    "old "
    "one serves, then takes its place.\v"
    "Nothing is drained: requests of clients that go on with the next daemon do so, after one "
    "computation of what they have; all others end as when a daemon is stopped. For the daemon's "
    "own "
    "user, or root. There must be memory for both.",
    NULL,
    NULL,
    NULL};

int cmd_upgrade(const struct cbctl *ctl, int argc, char **argv)
{
    struct upgrade u = {.ctl = *ctl};
    char why[WATCH_WHY_MAX];
    struct watch w;

    if (argp_parse(&argp, argc, argv, 0, NULL, &u))
        return CBCTL_USAGE;
    if (watch_take(u.ctl.instance, &w, why)) {
        cbctl_complain(&u.ctl, "%s", why);
        return CBCTL_FAILED;
    }
    if (w.maker != geteuid() && geteuid() != 0) {
        cbctl_complain(&u.ctl,
                       "process %llu is another user's: only it and root can put one in its place",
                       (unsigned long long)w.boot.pid);
        return CBCTL_FAILED;
    }
    if (!find_user(w.boot.pid, w.maker, &u.user)) {
        cbctl_complain(
            &u.ctl,
            "the STATUS page, which is user %u's, names process %llu, which does not run "
            "as that user: nothing is put in its place",
            (unsigned)w.maker, (unsigned long long)w.boot.pid);
        return CBCTL_FAILED;
    }
    return upgrade(&u, w.boot.pid);
}
