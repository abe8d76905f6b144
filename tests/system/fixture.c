/* Output goes to files rather than pipes: nothing here has to be read for the other side to go on.
 * Only `ready` comes by a pipe, whose end also tells that a daemon ended. */
#include "tests/system/fixture.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ARGUMENTS_MAX = 64 };

uint64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000u + (uint64_t)t.tv_nsec / 1000000u;
}

void nap(void)
{
    nanosleep(&(struct timespec){0, 1000000}, NULL);
}

const char *built(const char *name, char path[512])
{
    const char *build = getenv("CBD_BUILD");
    char real[400];
    if (name[0] == '/') {
        snprintf(path, 512, "%s", name);
        return path;
    }
    if (!realpath(build && *build ? build : "build", real))
        cr_assert_fail("there is no build directory; see CBD_BUILD");
    snprintf(path, 512, "%s/%s", real, name);
    return path;
}

const char *default_model(void)
{
    const char *model = getenv("CBD_MODEL");
    if (!model || !*model)
        model = "build/models/SmolLM2-135M-Instruct.Q4_1.gguf";
    if (access(model, R_OK) == 0)
        return model;
    fprintf(stderr, "skipped: no default model at %s; make model fetches it\n", model);
    return NULL;
}

bool has_isa(const char *isa)
{
    bool has = strcmp(isa, "avx512vnni") == 0
                   ? __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") &&
                         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")
                   : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (!has)
        fprintf(stderr, "skipped: this processor has no %s\n", isa);
    return has;
}

/* ---- the directory --------------------------------------------------------------------------- */

void system_init(struct system *s)
{
    *s = (struct system){.out = -1, .program = "cbd"};
    strcpy(s->dir, "/tmp/cbd-test-XXXXXX");
    cr_assert(mkdtemp(s->dir), "no directory in /tmp: %s", strerror(errno));
    chmod(s->dir, 0755);
    snprintf(s->instance, sizeof s->instance, "test-%s", s->dir + strlen(s->dir) - 6);
    snprintf(s->log, sizeof s->log, "%s/log", s->dir);
}

static void remove_tree(const char *path)
{
    DIR *d = opendir(path);
    struct dirent *e;
    while (d && (e = readdir(d))) {
        char inner[400];
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        snprintf(inner, sizeof inner, "%s/%s", path, e->d_name);
        if (unlink(inner) < 0)
            remove_tree(inner);
    }
    if (d)
        closedir(d);
    rmdir(path);
}

/* Those with this in their name, and behind it that. */
static uint64_t count_entries(const char *path, const char *part, const char *behind)
{
    DIR *d = opendir(path);
    struct dirent *e;
    uint64_t n = 0;
    while (d && (e = readdir(d))) {
        const char *at = e->d_name[0] != '.' ? strstr(e->d_name, part) : NULL;
        n += at && strstr(at + strlen(part), behind);
    }
    if (d)
        closedir(d);
    return n;
}

/* Of mappings that a process shares with others. */
static uint64_t count_mapped(pid_t pid)
{
    char path[64], line[512], permissions[8];
    unsigned long from, to;
    uint64_t bytes = 0;
    snprintf(path, sizeof path, "/proc/%d/maps", pid);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "%lx-%lx %7s", &from, &to, permissions) == 3 && permissions[3] == 's')
            bytes += to - from;
    if (f)
        fclose(f);
    return bytes;
}

void system_fini(struct system *s)
{
    char sock[128];
    if (s->pid) {
        system_signal(s, SIGTERM);
        int status = system_wait(s);
        char *log = system_log(s);
        cr_assert_eq(status, 0, "a drain ended with %d; the log:\n%s", status, log);
        cr_expect(!strstr(log, "the sandbox refused"), "the list of calls lacks one:\n%s", log);
        free(log);
        cr_expect_eq(count_entries("/dev/shm", s->instance, ""), 0, "a name is left in /dev/shm");
        snprintf(sock, sizeof sock, "%s/%s/sock", s->dir, s->instance);
        cr_expect(access(sock, F_OK) < 0, "the socket is left");
    }
    remove_tree(s->dir);
}

char *system_log(const struct system *s)
{
    int fd = open(s->log, O_RDONLY | O_CLOEXEC);
    struct stat st = {0};
    if (fd >= 0)
        fstat(fd, &st);
    char *text = calloc(1, (size_t)st.st_size + 1);
    if (fd >= 0) {
        ssize_t n = read(fd, text, (size_t)st.st_size);
        text[n < 0 ? 0 : n] = 0;
        close(fd);
    }
    return text;
}

void system_expect_log(const struct system *s, const char *part)
{
    char *log = system_log(s);
    cr_expect(strstr(log, part), "\"%s\" is not in the log:\n%s", part, log);
    free(log);
}

/* ---- the daemon's process -------------------------------------------------------------------- */

/* In the child: dies with the test, runs as uid, has only the variables that a test means. */
static void become(uid_t uid, const char *const *arguments, const char *run_dir)
{
    static const char *const kept[] = {"PATH",        "LD_PRELOAD",   "HEAP_SHIM_FILE",
                                       "CB_CRASH_AT", "ASAN_OPTIONS", "UBSAN_OPTIONS",
                                       "TSAN_OPTIONS"};
    char *environment[16], variable[128];
    size_t n = 0;
    if (uid != geteuid() && (setgroups(0, NULL) || setgid(uid) || setuid(uid)))
        _exit(125);
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* to change the user undoes it */
    for (size_t i = 0; i < sizeof kept / sizeof kept[0]; i++) {
        const char *value = getenv(kept[i]);
        if (value && asprintf(&environment[n], "%s=%s", kept[i], value) > 0)
            n++;
    }
    if (run_dir) {
        snprintf(variable, sizeof variable, "CBD_RUNTIME_DIR=%s", run_dir);
        environment[n++] = variable;
    }
    environment[n] = NULL;
    execve(arguments[0], (char *const *)arguments, environment);
    _exit(126);
}

void system_spawn_as(struct system *s, uid_t uid, const char *const *settings)
{
    char path[512];
    const char *arguments[ARGUMENTS_MAX] = {
        built(s->program, path), "--instance", s->instance,     "--runtime_dir", s->dir,
        "--log_level",           "debug",      "--socket_mode", "0600"};
    size_t n = 9;
    int pipe_fds[2], log = open(s->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    while (*settings && n < ARGUMENTS_MAX - 1)
        arguments[n++] = *settings++;
    cr_assert(log >= 0 && pipe2(pipe_fds, O_CLOEXEC) == 0);
    s->pid = fork();
    if (s->pid == 0) {
        dup2(pipe_fds[1], STDOUT_FILENO);
        dup2(log, STDERR_FILENO);
        become(uid, arguments, NULL);
    }
    close(pipe_fds[1]);
    close(log);
    if (s->out >= 0)
        close(s->out);
    s->out = pipe_fds[0];
    cr_assert_gt(s->pid, 0);
}

bool system_is_ready(struct system *s)
{
    char line[16];
    size_t n = 0;
    for (;;) {
        struct pollfd p = {s->out, POLLIN, 0};
        int r = poll(&p, 1, HANG_MS);
        cr_assert_neq(r, 0, "cbd neither serves nor ends");
        ssize_t got = read(s->out, line + n, sizeof line - 1 - n);
        if (got <= 0)
            return false;
        n += (size_t)got;
        line[n] = 0;
        if (strcmp(line, "ready\n") == 0)
            return true;
        cr_assert(n < 6, "cbd says \"%s\"", line);
    }
}

static void figures_take(const struct system *s, struct figures *f)
{
    json_t *status = system_cbctl(s, SETTINGS("status"));
    json_t *counters = json_object_get(status, "counters");
    char path[64];
#define COUNTER(name) (uint64_t) json_integer_value(json_object_get(counters, #name))
    *f = (struct figures){
        .blocks_free = COUNTER(blocks_free),
        .lanes = COUNTER(lanes),
        .lane_bytes = COUNTER(lane_bytes),
        .requests_active = COUNTER(requests_active),
        .requests_waiting = COUNTER(requests_waiting),
    };
#undef COUNTER
    json_decref(status);
    snprintf(path, sizeof path, "/proc/%d/fd", s->pid);
    f->n_fds = count_entries(path, "", "");
    f->mapped_bytes = count_mapped(s->pid);
    f->n_shm = count_entries("/dev/shm", s->instance, "");
}

/* Twice the same: what was connected before is gone from the descriptors. */
static void figures_steady(const struct system *s, struct figures *f)
{
    uint64_t end = now_ms() + HANG_MS;
    struct figures again;
    figures_take(s, f);
    for (;;) {
        for (int i = 0; i < 5; i++)
            nap();
        figures_take(s, &again);
        if (memcmp(&again, f, sizeof again) == 0)
            return;
        *f = again;
        cr_assert_lt(now_ms(), end, "the figures of an idle daemon move");
    }
}

void system_note(struct system *s)
{
    figures_steady(s, &s->start);
    cr_assert_eq(s->start.lanes, 0);
    /* STATUS, and with lanes by name the vocabulary. */
    cr_assert_eq(s->start.n_shm, 1 + count_entries("/dev/shm", s->instance, ".vocab"),
                 "%d names in /dev/shm", (int)s->start.n_shm);
}

void system_note_again(struct system *s)
{
    figures_steady(s, &s->start);
}

void system_start(struct system *s, const char *const *settings)
{
    system_spawn_as(s, geteuid(), settings);
    if (!system_is_ready(s)) {
        char *log = system_log(s);
        int status = system_wait(s);
        cr_assert_fail("cbd ended with %d; the log:\n%s", status, log);
    }
    system_note(s);
}

static int wait_for(pid_t pid)
{
    uint64_t end = now_ms() + HANG_MS;
    int status;
    pid_t r;
    while ((r = waitpid(pid, &status, WNOHANG)) == 0 && now_ms() < end)
        nap();
    if (r == 0) {
        kill(pid, SIGKILL);
        waitpid(pid, &status, 0);
        cr_assert_fail("process %d hung and was killed", (int)pid);
    }
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

int system_wait(struct system *s)
{
    pid_t pid = s->pid;
    s->pid = 0;
    return wait_for(pid);
}

void system_signal(struct system *s, int signal)
{
    cr_assert(s->pid > 0);
    kill(s->pid, signal);
}

/* The new one is nobody's child until it is ours. */
void system_upgrade(struct system *s, const char *const *words)
{
    pid_t old = s->pid;
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    struct output o = system_run(s, NULL, "cbctl", words);
    cr_assert_eq(o.status, 0, "%s", o.err);
    cr_assert_eq(system_wait(s), 0);
    json_t *answer = json_loads(o.out, 0, NULL);
    cr_assert_eq(json_integer_value(json_object_get(answer, "was")), old);
    s->pid = (pid_t)json_integer_value(json_object_get(answer, "pid"));
    cr_assert(s->pid > 0 && s->pid != old);
    json_decref(answer);
    output_free(&o);
}

/* ---- as a client ----------------------------------------------------------------------------- */

int system_try_open(const struct system *s, struct cb_options *options, struct cb_handle **hp)
{
    options->run_dir = s->dir;
    options->instance = s->instance;
    return cb_open(hp, options);
}

struct cb_handle *system_open(const struct system *s, const struct cb_options *options)
{
    struct cb_options own;
    struct cb_handle *h;
    if (options)
        own = *options;
    else
        cb_options_init(&own);
    cr_assert_eq(system_try_open(s, &own, &h), 0, "%s", cb_message());
    return h;
}

uint64_t system_counter(const struct system *s, const char *name)
{
    json_t *status = system_cbctl(s, SETTINGS("status"));
    json_t *value = json_object_get(json_object_get(status, "counters"), name);
    cr_assert(value, "no counter %s", name);
    uint64_t v = (uint64_t)json_integer_value(value);
    json_decref(status);
    return v;
}

void system_await(const struct system *s, const char *name, uint64_t least)
{
    uint64_t end = now_ms() + HANG_MS;
    while (system_counter(s, name) < least) {
        cr_assert_lt(now_ms(), end, "%s never reached %llu", name, (unsigned long long)least);
        nap();
    }
}

void system_settle(const struct system *s)
{
    uint64_t end = now_ms() + HANG_MS;
    struct figures f;
    for (;;) {
        figures_take(s, &f);
        if (memcmp(&f, &s->start, sizeof f) == 0)
            return;
        if (now_ms() > end)
            break;
        nap();
    }
#define SAME(field)                                                       \
    cr_expect_eq(f.field, s->start.field, #field " is %llu, it was %llu", \
                 (unsigned long long)f.field, (unsigned long long)s->start.field)
    SAME(blocks_free);
    SAME(lanes);
    SAME(lane_bytes);
    SAME(requests_active);
    SAME(requests_waiting);
    SAME(n_fds);
    SAME(mapped_bytes);
    SAME(n_shm);
#undef SAME
    cr_assert_fail("the daemon did not come back to where it was");
}

/* ---- other programs -------------------------------------------------------------------------- */

static int temporary(const char *text)
{
    int fd = memfd_create("test-file", MFD_CLOEXEC);
    cr_assert(fd >= 0);
    if (text)
        cr_assert_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    lseek(fd, 0, SEEK_SET);
    return fd;
}

struct running system_run_begin(const struct system *s, const char *input, const char *program,
                                const char *const *arguments)
{
    char path[512];
    const char *all[ARGUMENTS_MAX] = {built(program, path)};
    struct running r = {.out_fd = temporary(NULL), .err_fd = temporary(NULL)};
    int in = temporary(input);
    for (size_t n = 1; *arguments && n < ARGUMENTS_MAX - 1; n++)
        all[n] = *arguments++;
    r.pid = fork();
    if (r.pid == 0) {
        dup2(in, STDIN_FILENO);
        dup2(r.out_fd, STDOUT_FILENO);
        dup2(r.err_fd, STDERR_FILENO);
        become(geteuid(), all, s->dir);
    }
    close(in);
    cr_assert_gt(r.pid, 0);
    return r;
}

static char *take_all(int fd)
{
    off_t bytes = lseek(fd, 0, SEEK_END);
    char *text = calloc(1, (size_t)bytes + 1);
    cr_assert(text && pread(fd, text, (size_t)bytes, 0) == bytes);
    close(fd);
    return text;
}

struct output system_run_end(struct running *r)
{
    struct output o;
    o.status = wait_for(r->pid);
    o.out = take_all(r->out_fd);
    o.err = take_all(r->err_fd);
    return o;
}

struct output system_run(const struct system *s, const char *input, const char *program,
                         const char *const *arguments)
{
    struct running r = system_run_begin(s, input, program, arguments);
    return system_run_end(&r);
}

void output_free(struct output *o)
{
    free(o->out);
    free(o->err);
}

json_t *system_cbctl(const struct system *s, const char *const *words)
{
    const char *arguments[ARGUMENTS_MAX] = {"-i", s->instance, "--json"};
    size_t n = 3;
    json_error_t error;
    while (*words && n < ARGUMENTS_MAX - 1)
        arguments[n++] = *words++;
    struct output o = system_run(s, NULL, "cbctl", arguments);
    cr_assert_eq(o.status, 0, "cbctl %s ended with %d: %s", arguments[3], o.status, o.err);
    json_t *reply = json_loads(o.out, 0, &error);
    cr_assert(reply, "cbctl %s prints no JSON (%s): %s", arguments[3], error.text, o.out);
    output_free(&o);
    return reply;
}
