/* libseccomp makes the filter; what is refused traps into a handler that names the call and turns it
 * into EPERM. So an error costs the caller what any failing call costs, and nobody has to search the
 * kernel's log for a number.
 *
 * The filter can't see what a pointer points to, so files are opened for reading only, whichever
 * they are: the daemon looks at /proc and the control group when it counts memory. And it does not
 * see what is asked through io_uring: the loop's ring is restricted by itself (loop_uring.c), and
 * another one can't be made. */
#include "daemon/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <seccomp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

enum { NAME_MAX_BYTES = 24, CALLS_MAX = 512, LINES_MAX = 20 };

/* Whatever the arguments. */
static const int allowed[] = {
    /* the loop, both bodies, and its clients */
    SCMP_SYS(io_uring_enter), SCMP_SYS(epoll_ctl), SCMP_SYS(epoll_wait), SCMP_SYS(epoll_pwait),
    SCMP_SYS(epoll_pwait2), SCMP_SYS(poll), SCMP_SYS(ppoll), SCMP_SYS(accept4), SCMP_SYS(recvmsg),
    SCMP_SYS(recvfrom), SCMP_SYS(sendmsg), SCMP_SYS(sendto), SCMP_SYS(getsockopt),
    SCMP_SYS(setsockopt), SCMP_SYS(shutdown), SCMP_SYS(pidfd_open), SCMP_SYS(futex),
    /* lanes, staged weights, and their pages */
    SCMP_SYS(memfd_create), SCMP_SYS(ftruncate), SCMP_SYS(fallocate), SCMP_SYS(fcntl),
    SCMP_SYS(munmap), SCMP_SYS(mremap), SCMP_SYS(madvise), SCMP_SYS(brk),
    /* files that are open, and those that end with the daemon */
    SCMP_SYS(read), SCMP_SYS(pread64), SCMP_SYS(write), SCMP_SYS(writev), SCMP_SYS(lseek),
    SCMP_SYS(close), SCMP_SYS(fstat), SCMP_SYS(newfstatat), SCMP_SYS(readlink),
    SCMP_SYS(readlinkat), SCMP_SYS(fadvise64), SCMP_SYS(flock), SCMP_SYS(unlink),
    SCMP_SYS(unlinkat),
    /* threads, time, signals, and how a process ends */
    SCMP_SYS(sched_yield), SCMP_SYS(sched_getaffinity), SCMP_SYS(sched_setaffinity),
    SCMP_SYS(nanosleep), SCMP_SYS(clock_nanosleep), SCMP_SYS(clock_gettime), SCMP_SYS(gettimeofday),
    SCMP_SYS(time), SCMP_SYS(restart_syscall), SCMP_SYS(rt_sigaction), SCMP_SYS(rt_sigprocmask),
    SCMP_SYS(rt_sigreturn), SCMP_SYS(getpid), SCMP_SYS(gettid), SCMP_SYS(getuid), SCMP_SYS(geteuid),
    SCMP_SYS(getgid), SCMP_SYS(getegid), SCMP_SYS(sysinfo), SCMP_SYS(getrusage),
    SCMP_SYS(getrandom), SCMP_SYS(exit), SCMP_SYS(exit_group),
    /* of a thread that was made and has not begun */
    SCMP_SYS(set_robust_list), SCMP_SYS(rseq)};

/* What `allowed` would allow too much of. */
static const struct {
    int call;
    struct scmp_arg_cmp when;
} allowed_if[] = {
    {SCMP_SYS(mmap), {2, SCMP_CMP_MASKED_EQ, PROT_EXEC, 0}},
    {SCMP_SYS(mprotect), {2, SCMP_CMP_MASKED_EQ, PROT_EXEC, 0}},
    {SCMP_SYS(openat), {2, SCMP_CMP_MASKED_EQ, O_ACCMODE | O_CREAT | O_TRUNC, O_RDONLY}},
    {SCMP_SYS(open), {1, SCMP_CMP_MASKED_EQ, O_ACCMODE | O_CREAT | O_TRUNC, O_RDONLY}},
    {SCMP_SYS(fchmod), {1, SCMP_CMP_EQ, 0600, 0}}, /* of a lane's memory */
    {SCMP_SYS(prlimit64), {2, SCMP_CMP_EQ, 0, 0}}, /* asked, not set */
};

/* Where lanes by name are made. A file that is there can still not be written. */
static const int allowed_names[] = {SCMP_SYS(fsetxattr), SCMP_SYS(statfs)};
static const struct scmp_arg_cmp new_file[] = {
    {2, SCMP_CMP_MASKED_EQ, O_ACCMODE | O_CREAT | O_EXCL | O_TRUNC, O_RDWR | O_CREAT | O_EXCL},
    {3, SCMP_CMP_EQ, 0600, 0}};

enum { N_ALLOWED_NAMES = sizeof allowed_names / sizeof allowed_names[0] };
enum { N_ALLOWED = sizeof allowed / sizeof allowed[0] };
enum { N_ALLOWED_IF = sizeof allowed_if / sizeof allowed_if[0] };

/* Filled before the filter holds; the handler only reads. */
static struct trap {
    int log_fd;
    _Atomic int n_lines;
    char names[CALLS_MAX][NAME_MAX_BYTES]; /* [number of the call] */
} trap;

bool sandbox_is_possible(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return false;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
    return false;
#else
    return true;
#endif
#else
    return true;
#endif
}

void sandbox_words(bool is_wanted, bool makes_names, char words[SANDBOX_WORDS_MAX])
{
    if (!is_wanted)
        snprintf(words, SANDBOX_WORDS_MAX, "off");
    else if (!sandbox_is_possible())
        snprintf(words, SANDBOX_WORDS_MAX, "off, idle: this build has a sanitizer in it");
    else
        snprintf(words, SANDBOX_WORDS_MAX, "on: uid %u, no capabilities, %d system calls",
                 (unsigned)geteuid(),
                 N_ALLOWED + N_ALLOWED_IF + 1 + (makes_names ? N_ALLOWED_NAMES : 0));
}

static size_t put(char *line, size_t at, const char *text)
{
    while (*text)
        line[at++] = *text++;
    return at;
}

/* Runs on whichever thread made the call, at any place: calls nothing but write. */
static void on_refused(int number, siginfo_t *info, void *context)
{
    ucontext_t *uc = context;
    int saved = errno, call = info->si_syscall;
    char line[160];
    size_t at = 0;
    (void)number;
    if (atomic_fetch_add_explicit(&trap.n_lines, 1, memory_order_relaxed) < LINES_MAX) {
        at = put(line, at, "cbd: warning: the sandbox refused the system call ");
        if (call >= 0 && call < CALLS_MAX && trap.names[call][0])
            at = put(line, at, trap.names[call]);
        else
            at = put(line, at, "of an unknown number");
        at = put(line, at, " (EPERM); if serving needs it, please report this\n");
        ssize_t written = write(trap.log_fd, line, at);
        (void)written;
    }
    uc->uc_mcontext.gregs[REG_RAX] = -EPERM;
    errno = saved;
}

static void names_fill(void)
{
    for (int i = 0; i < CALLS_MAX; i++) {
        char *name = seccomp_syscall_resolve_num_arch(SCMP_ARCH_NATIVE, i);
        if (name)
            snprintf(trap.names[i], sizeof trap.names[i], "%s", name);
        free(name);
    }
}

static int rules_add(scmp_filter_ctx filter, bool makes_names)
{
    const struct scmp_arg_cmp own = {0, SCMP_CMP_EQ, (scmp_datum_t)getpid(), 0};
    int r = 0;
    for (int i = 0; i < N_ALLOWED && !r; i++)
        r = seccomp_rule_add(filter, SCMP_ACT_ALLOW, allowed[i], 0);
    for (int i = 0; i < N_ALLOWED_IF && !r; i++)
        r = seccomp_rule_add_array(filter, SCMP_ACT_ALLOW, allowed_if[i].call, 1,
                                   &allowed_if[i].when);
    for (int i = 0; i < N_ALLOWED_NAMES && makes_names && !r; i++)
        r = seccomp_rule_add(filter, SCMP_ACT_ALLOW, allowed_names[i], 0);
    if (makes_names && !r)
        r = seccomp_rule_add_array(filter, SCMP_ACT_ALLOW, SCMP_SYS(openat), 2, new_file);
    /* abort() signals its own thread, and nobody else's. */
    return r ? r : seccomp_rule_add_array(filter, SCMP_ACT_ALLOW, SCMP_SYS(tgkill), 1, &own);
}

int sandbox_enter(bool makes_names, int log_fd, char *message)
{
    struct sigaction action = {.sa_sigaction = on_refused, .sa_flags = SA_SIGINFO | SA_NODEFER};
    trap.log_fd = log_fd;
    names_fill();
    sigemptyset(&action.sa_mask);
    if (sigaction(SIGSYS, &action, NULL) < 0)
        return refuse(message, -errno, "can't handle SIGSYS: %s", strerror(errno));
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_TRAP);
    if (!filter)
        return refuse(message, -ENOMEM, "no memory for the filter of system calls");
    int r = seccomp_attr_set(filter, SCMP_FLTATR_CTL_TSYNC, 1); /* all threads, or none */
    if (!r)
        r = seccomp_attr_set(filter, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS);
    if (!r)
        r = rules_add(filter, makes_names);
    if (!r)
        r = seccomp_load(filter); /* with no_new_privs, without which it is refused */
    seccomp_release(filter);
    return r ? refuse(message, r,
                      "can't load the filter of system calls: %s; set sandbox to false "
                      "to serve without",
                      strerror(-r))
             : 0;
}
