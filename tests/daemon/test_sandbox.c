/* The filter of system calls, in a child each, for it is for good. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "daemon/loop.h"
#include "daemon/sandbox.h"

TestSuite(sandbox, .timeout = 60);

/* ---- calls that serving does not take; whether they were let through --------------------------- */

static bool socket_made(void)
{
    return socket(AF_UNIX, SOCK_STREAM, 0) >= 0;
}

static bool program_started(void)
{
    char *none[] = {NULL};
    execve("/bin/true", none, none);
    return errno != EPERM;
}

static bool process_made(void)
{
    return syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL) >= 0;
}

static bool file_written(void)
{
    return open("/dev/null", O_WRONLY) >= 0 || open("/dev/null", O_RDWR) >= 0 ||
           open("/tmp", O_RDWR | O_TMPFILE, 0600) >= 0;
}

static bool process_traced(void)
{
    return ptrace(PTRACE_TRACEME, 0, NULL, NULL) >= 0;
}

static bool memory_executable(void)
{
    void *plain = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) !=
               MAP_FAILED ||
           mprotect(plain, 4096, PROT_READ | PROT_EXEC) == 0;
}

static bool ring_made(void)
{
    struct io_uring_params params = {0};
    return syscall(SYS_io_uring_setup, 4, &params) >= 0 || errno != EPERM;
}

static bool other_signalled(void)
{
    return kill(getppid(), 0) == 0 || syscall(SYS_tgkill, getppid(), getppid(), 0) == 0;
}

static bool limit_raised(void)
{
    const uint64_t low[2] = {64, 64};
    return syscall(SYS_prlimit64, 0, 7, low, NULL) == 0;
}

static const struct {
    bool (*let_through)(void);
    const char *name; /* of the call, in the log */
} refused[] = {
    {socket_made, "socket"},       {program_started, "execve"}, {process_made, "clone"},
    {file_written, "open"},        {process_traced, "ptrace"},  {memory_executable, "mprotect"},
    {ring_made, "io_uring_setup"}, {other_signalled, "kill"},   {limit_raised, "prlimit64"},
};

enum { N_REFUSED = sizeof refused / sizeof refused[0] };

static bool is_possible(void)
{
    if (!sandbox_is_possible())
        fprintf(stderr, "skipped: this build has a sanitizer in it\n");
    return sandbox_is_possible();
}

/* Runs fn in a child that has entered; its exit status, or minus the signal. Its log into text. */
static int in_the_sandbox(int (*fn)(void *), void *arg, char text[4096])
{
    char message[SANDBOX_MESSAGE_MAX];
    int fds[2], status;
    cr_assert_eq(pipe(fds), 0);
    pid_t pid = fork();
    if (pid == 0) {
        close(fds[0]);
        if (sandbox_enter(false, fds[1], message))
            _exit(100);
        _exit(fn(arg));
    }
    close(fds[1]);
    size_t n = 0;
    ssize_t got;
    while ((got = read(fds[0], text + n, 4095 - n)) > 0)
        n += (size_t)got;
    text[n] = 0;
    close(fds[0]);
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

static int try_one(void *arg)
{
    return refused[*(const int *)arg].let_through();
}

Test(sandbox, what_serving_does_not_take_is_refused_and_named)
{
    char text[4096], name[64];
    if (!is_possible())
        return;
    for (int i = 0; i < N_REFUSED; i++) {
        cr_expect_eq(in_the_sandbox(try_one, &i, text), 0, "%s was let through", refused[i].name);
        snprintf(name, sizeof name, "the system call %s", refused[i].name);
        cr_expect(strstr(text, name), "%s is not in: %s", name, text);
    }
}

/* ---- and what it takes ------------------------------------------------------------------------- */

static int serve(void *arg)
{
    char bytes[64];
    (void)arg;
    int memory = memfd_create("lane", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    bool made = memory >= 0 && ftruncate(memory, 65536) == 0 &&
                fallocate(memory, 0, 0, 65536) == 0 &&
                fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK) == 0 &&
                mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0) != MAP_FAILED;
    int proc = open("/proc/meminfo", O_RDONLY | O_CLOEXEC);
    bool read_it = proc >= 0 && read(proc, bytes, sizeof bytes) > 0;
    free(malloc(64 << 20));
    return made && read_it ? 0 : 1;
}

static int die(void *arg)
{
    (void)arg;
    abort();
}

Test(sandbox, what_serving_takes_is_not)
{
    char text[4096];
    if (!is_possible())
        return;
    cr_expect_eq(in_the_sandbox(serve, NULL, text), 0);
    cr_expect_str_eq(text, "");
    cr_expect_eq(in_the_sandbox(die, NULL, text), -SIGABRT, "an assert has to end it");
    cr_expect_str_eq(text, "");
}

/* ---- threads that were there before -------------------------------------------------------------- */

static _Atomic int may_try;

static void *try_in_thread(void *arg)
{
    while (!may_try)
        sched_yield();
    *(bool *)arg = socket_made();
    return NULL;
}

Test(sandbox, holds_for_threads_that_were_there_before)
{
    char message[SANDBOX_MESSAGE_MAX];
    bool made = true;
    pthread_t thread;
    int status;
    if (!is_possible())
        return;
    pid_t pid = fork();
    if (pid == 0) {
        if (pthread_create(&thread, NULL, try_in_thread, &made) ||
            sandbox_enter(false, -1, message))
            _exit(100);
        may_try = 1;
        pthread_join(thread, NULL);
        _exit(made);
    }
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_expect_eq(status, 0, "a thread escaped, or it ended with %x", (unsigned)status);
}

/* ---- the ring of the loop ------------------------------------------------------------------------ */

/* The filter can't see what is asked through io_uring. */
Test(sandbox, the_ring_of_the_loop_is_restricted)
{
    struct loop *loop;
    struct log log;
    bool found = false;
    log_init(&log, -1, LOG_LEVEL_ERROR, &clock_monotonic);
    if (loop_new(&loop, LOOP_URING, 4, &clock_monotonic, &log)) {
        fprintf(stderr, "skipped: io_uring is refused here\n");
        return;
    }
    for (int fd = 0; fd < 256; fd++) {
        char path[64], target[64] = "";
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        if (readlink(path, target, sizeof target - 1) <= 0 || !strstr(target, "[io_uring]"))
            continue;
        found = true;
        cr_expect(syscall(SYS_io_uring_register, fd, IORING_REGISTER_EVENTFD, &fd, 1) < 0);
        cr_expect_eq(errno, EACCES, "a ring that is restricted takes no more registrations");
    }
    cr_expect(found);
    loop_free(loop);
}
