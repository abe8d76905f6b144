/* client/find.c - where daemons are looked for, and which of them is trusted.
 *
 * A path is only where to look: whom to trust is decided by who made what is there, SO_PEERCRED of
 * a socket and the owner of a page, for /tmp/cbd-UID may be anybody's. */
#include "client/internal.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "shm/stats.h"

#define BACKLOG_NS    2000000000ull
#define SLICE_NS      50000000ull
#define LOOK_AGAIN_NS 20000000ull /* for a daemon that is not there yet */
#define SHM_DIR       "/dev/shm"
enum { INSTANCE_BYTES_MAX = 31, PATH_BYTES = 160 }; /* an instance's as cbd.conf(5) says */

static void sleep_ns(uint64_t ns)
{
    struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    nanosleep(&t, NULL);
}

static const char *instance_of(const struct cb_options *options)
{
    return options->instance ? options->instance : "default";
}

/* What no instance is called must not lead out of the run directory. */
static int instance_check(const struct cb_options *options)
{
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-";
    const char *instance = instance_of(options);
    char where[160];
    if (strlen(instance) > INSTANCE_BYTES_MAX) {
        snprintf(where, sizeof(where), "instance '%.40s...' has more than %d bytes", instance,
                 INSTANCE_BYTES_MAX);
        return cb_fail_at(where, CB_INVALID, 0, 0);
    }
    if (*instance && *instance != '.' && !instance[strspn(instance, allowed)])
        return 0;
    snprintf(where, sizeof(where),
             "instance is '%s'; allowed: letters, digits, '_', '-' and '.', not first", instance);
    return cb_fail_at(where, CB_INVALID, 0, 0);
}

/* ---- where ----------------------------------------------------------------------------------- */

/* The directory of number i, of 4; NULL: there is none. It may lie in path. */
static const char *run_dir(int i, char path[PATH_BYTES])
{
    const char *dir = path;
    switch (i) {
    case 0:
        dir = getenv("CBD_RUNTIME_DIR");
        break;
    case 1:
        dir = getenv("XDG_RUNTIME_DIR");
        if (dir && *dir) { /* cut: too long for a socket, too */
            snprintf(path, PATH_BYTES, "%s/cbd", dir);
            dir = path;
        }
        break;
    case 2:
        dir = "/run/cbd";
        break;
    default:
        snprintf(path, PATH_BYTES, "/tmp/cbd-%u", (unsigned)geteuid());
    }
    return dir && *dir ? dir : NULL;
}

/* The status of a failed look: the one that says more stays. */
static int worse(int a, int b)
{
    static const int order[] = {CB_NO_DAEMON, CB_UNTRUSTED, CB_DENIED};
    for (size_t i = 0; i < sizeof(order) / sizeof(order[0]); i++) {
        if (order[i] == a)
            return b;
        if (order[i] == b)
            return a;
    }
    return a;
}

/* A look at run_dir: 0 or more: found. A status, kept for cb_message; CB_NO_DAEMON, CB_UNTRUSTED
 * and CB_DENIED: it may be in the next one. */
typedef int look(const char *run_dir, const struct cb_options *options, void *arg);

static int look_everywhere(const struct cb_options *options, look *at, void *arg)
{
    char path[PATH_BYTES], where[96];
    int status = CB_NO_DAEMON;
    if (options->run_dir)
        return at(options->run_dir, options, arg);
    for (int i = 0; i < 4; i++) {
        const char *dir = run_dir(i, path);
        if (!dir)
            continue;
        int r = at(dir, options, arg);
        if (r >= 0 || (r != CB_NO_DAEMON && r != CB_UNTRUSTED && r != CB_DENIED))
            return r;
        status = worse(status, r);
    }
    snprintf(where, sizeof(where), "instance '%.64s'", instance_of(options));
    return cb_fail_at(where, status, 0, 0);
}

/* ---- the socket ------------------------------------------------------------------------------ */

/* Where root alone makes directories, the owner of the instance's is one whom root let in: a manager
 * made it for the daemon's user, or cbd did before it became that one. (uid_t)-1: there is none. */
static uid_t let_in_by_root(const char *run_dir, const struct cb_options *options)
{
    char path[PATH_BYTES];
    struct stat above, own;
    int n = snprintf(path, sizeof(path), "%s/%s", run_dir, instance_of(options));
    if (n < 0 || (size_t)n >= sizeof(path) || lstat(run_dir, &above) || lstat(path, &own))
        return (uid_t)-1;
    bool is_roots =
        S_ISDIR(above.st_mode) && above.st_uid == 0 && (above.st_mode & (S_IWGRP | S_IWOTH)) == 0;
    return is_roots && S_ISDIR(own.st_mode) ? own.st_uid : (uid_t)-1;
}

static bool trusted(uid_t uid, const char *run_dir, const struct cb_options *options)
{
    if (uid == 0 || uid == geteuid() || uid == let_in_by_root(run_dir, options))
        return true;
    for (size_t i = 0; i < options->n_trusted_uids; i++)
        if (options->trusted_uids[i] == uid)
            return true;
    return false;
}

/* Connects to run_dir/instance/sock: a descriptor. *arg: ns to wait for room in its backlog. */
static int look_for_socket(const char *run_dir, const struct cb_options *options, void *arg)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int n = snprintf(address.sun_path, sizeof(address.sun_path), "%s/%s/sock", run_dir,
                     instance_of(options));
    const uint64_t *patience_ns = arg;
    if (n < 0 || (size_t)n >= sizeof(address.sun_path))
        return cb_fail_at("the path of the run directory is too long for a socket", CB_INVALID, 0,
                          0);
    int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (sock < 0)
        return cb_fail_errno("socket", errno);

    uint64_t end = cb_now_ns() + *patience_ns;
    int r = connect(sock, (struct sockaddr *)&address, sizeof(address));
    while (r && errno == EAGAIN && cb_now_ns() < end) { /* its backlog is full */
        sleep_ns(1000000);
        r = connect(sock, (struct sockaddr *)&address, sizeof(address));
    }
    if (r) {
        int errnum = errno;
        close(sock);
        if (errnum == EACCES || errnum == EPERM)
            return cb_fail_at(address.sun_path, CB_DENIED, 0, 0);
        if (errnum == ENOENT || errnum == ECONNREFUSED || errnum == ENOTDIR || errnum == EAGAIN ||
            errnum == EPROTOTYPE)
            return cb_fail_at(address.sun_path, CB_NO_DAEMON, 0, 0);
        return cb_fail_errno(address.sun_path, errnum);
    }

    struct ucred peer;
    socklen_t bytes = sizeof(peer);
    if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) ||
        !trusted(peer.uid, run_dir, options)) {
        close(sock);
        return cb_fail_at(address.sun_path, CB_UNTRUSTED, 0, 0);
    }
    return sock;
}

int cb_find_socket(const struct cb_options *options)
{
    int r = instance_check(options);
    if (r)
        return r;
    uint64_t begin = cb_now_ns(), patience_ns = BACKLOG_NS;
    for (;;) {
        r = look_everywhere(options, look_for_socket, &patience_ns);
        if (r != CB_NO_DAEMON || !options->wait_ms)
            return r;
        uint64_t waited = cb_now_ns() - begin, all = (uint64_t)options->wait_ms * 1000000u;
        if (options->wait_ms > 0 && waited >= all)
            return r;
        sleep_ns(options->wait_ms > 0 && all - waited < LOOK_AGAIN_NS ? all - waited
                                                                      : LOOK_AGAIN_NS);
    }
}

int cb_find_socket_now(const struct cb_options *options)
{
    uint64_t patience_ns = 0;
    return look_everywhere(options, look_for_socket, &patience_ns);
}

/* ---- the STATUS page ------------------------------------------------------------------------- */

/* Maps what run_dir/instance/status leads to. A dead daemon's page is kept, but a living one in
 * another directory is better. */
static int look_for_status(const char *run_dir, const struct cb_options *options, void *arg)
{
    char path[PATH_BYTES], target[sizeof(SHM_DIR) - 1 + CB_STATUS_NAME_MAX];
    struct cb_found_status found, *best = arg;
    struct cb_why why;
    int n = snprintf(path, sizeof(path), "%s/%s/status", run_dir, instance_of(options));
    if (n < 0 || (size_t)n >= sizeof(path))
        return cb_fail_at("the path of the run directory is too long", CB_INVALID, 0, 0);
    ssize_t bytes = readlink(path, target, sizeof(target) - 1);
    if (bytes < 0)
        return cb_fail_at(path, errno == EACCES ? CB_DENIED : CB_NO_DAEMON, 0, 0);
    target[bytes] = 0;
    if (strncmp(target, SHM_DIR "/", sizeof(SHM_DIR)) != 0)
        return cb_fail_at(path, CB_NO_DAEMON, 0, 0);
    snprintf(found.name, sizeof(found.name), "%s", target + sizeof(SHM_DIR) - 1);
    int r = cb_segment_open_status(&found.page, found.name, options->trusted_uids,
                                   options->n_trusted_uids, &found.maker, &why);
    const uid_t owner = let_in_by_root(run_dir, options);
    if (r == -EPERM && owner != (uid_t)-1)
        r = cb_segment_open_status(&found.page, found.name, &owner, 1, &found.maker, &why);
    if (r == 0 && cb_stats_attach(found.page.base, found.page.bytes) != 0) {
        cb_segment_unmap(&found.page);
        return cb_fail_at(found.name, found.maker.is_live ? CB_VERSION : CB_NO_DAEMON, 0, 0);
    }
    if (r)
        return cb_fail_at(why.text,
                          r == -ENOENT   ? CB_NO_DAEMON
                          : r == -EPERM  ? CB_UNTRUSTED
                          : r == -EACCES ? CB_DENIED
                                         : CB_SYSTEM,
                          0, 0);
    if (found.maker.is_live || !best->page.base) {
        cb_segment_unmap(&best->page);
        *best = found;
    } else {
        cb_segment_unmap(&found.page);
    }
    return best->maker.is_live ? 0 : CB_NO_DAEMON;
}

int cb_find_status(const struct cb_options *options, struct cb_found_status *found)
{
    *found = (struct cb_found_status){0};
    int r = instance_check(options);
    if (r == 0)
        r = look_everywhere(options, look_for_status, found);
    if (found->page.base && (r == CB_NO_DAEMON || r == CB_UNTRUSTED || r == CB_DENIED))
        r = 0;
    if (r)
        cb_segment_unmap(&found->page);
    return r;
}

/* ---- one that says nothing ------------------------------------------------------------------- */

bool cb_is_suspended(uint64_t pid)
{
    char path[48], text[512];
    snprintf(path, sizeof(path), "/proc/%llu/stat", (unsigned long long)pid);
    FILE *f = fopen(path, "re");
    size_t n = f ? fread(text, 1, sizeof(text) - 1, f) : 0;
    if (f)
        fclose(f);
    text[n] = 0;
    const char *name_end = strrchr(text, ')'); /* the name may hold anything */
    return name_end && strlen(name_end) > 2 && (name_end[2] == 'T' || name_end[2] == 't');
}

/* In slices, of which none counts for more than it was meant to last. */
bool cb_await_answer(int sock, int wait_ms)
{
    uint64_t left_ns = wait_ms < 0 ? UINT64_MAX : (uint64_t)wait_ms * 1000000u;
    for (;;) {
        uint64_t slice_ns = left_ns < SLICE_NS ? left_ns : SLICE_NS, begun_ns = cb_now_ns();
        struct pollfd p = {sock, POLLIN, 0};
        if (poll(&p, 1, (int)((slice_ns + 999999) / 1000000u)) > 0)
            return true;
        uint64_t took_ns = cb_now_ns() - begun_ns;
        took_ns = took_ns < slice_ns ? took_ns : slice_ns;
        if (took_ns >= left_ns)
            return false;
        left_ns -= wait_ms < 0 ? 0 : took_ns;
    }
}

int cb_fail_silent(int sock, unsigned waited_s)
{
    struct ucred peer = {0};
    socklen_t bytes = sizeof(peer);
    char where[160];
    if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && peer.pid > 0 &&
        cb_is_suspended((uint64_t)peer.pid))
        snprintf(where, sizeof(where),
                 "the daemon is suspended (process %d, by a signal); `kill -CONT %d` lets it go on",
                 (int)peer.pid, (int)peer.pid);
    else
        snprintf(where, sizeof(where), "the daemon is there but did not answer within %u s",
                 waited_s);
    return cb_fail_at(where, CB_TIMEOUT, 0, 0);
}
