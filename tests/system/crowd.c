#include "tests/system/crowd.h"

#include <criterion/criterion.h>
#include <grp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

void crowd_init(struct crowd *c, const struct system *s)
{
    *c = (struct crowd){.system = s};
    c->shared =
        mmap(NULL, sizeof *c->shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert(c->shared != MAP_FAILED);
}

void crowd_fini(struct crowd *c)
{
    for (uint32_t i = 0; i < c->n; i++)
        if (c->pids[i])
            crowd_signal(c, i, SIGKILL);
    munmap(c->shared, sizeof *c->shared);
}

static pid_t start(struct crowd *c, uint32_t i, uid_t uid, crowd_fn *fn, void *arg)
{
    pid_t pid = fork();
    if (pid == 0) {
        if (uid != geteuid() && (setgroups(0, NULL) || setgid(uid) || setuid(uid)))
            crowd_fail(c, "can't become uid %u", (unsigned)uid);
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* to change the user undoes it */
        fn(c, i, arg);
        crowd_move(c);
        _exit(0);
    }
    cr_assert_gt(pid, 0);
    return pid;
}

uint32_t crowd_add_as(struct crowd *c, uid_t uid, crowd_fn *fn, void *arg)
{
    cr_assert_lt(c->n, CROWD_MAX);
    c->pids[c->n] = start(c, c->n, uid, fn, arg);
    return c->n++;
}

uint32_t crowd_add(struct crowd *c, crowd_fn *fn, void *arg)
{
    return crowd_add_as(c, geteuid(), fn, arg);
}

void crowd_again(struct crowd *c, uint32_t i, crowd_fn *fn, void *arg)
{
    cr_assert(i < c->n && c->pids[i] == 0);
    c->pids[i] = start(c, i, geteuid(), fn, arg);
}

/* Fails the test if a member failed, or if nobody moved for long. */
static void look(struct crowd *c, uint32_t *seenp, uint64_t *sincep)
{
    uint32_t moves = atomic_load(&c->shared->n_moves) + atomic_load(&c->shared->n_there);
    cr_assert_eq(atomic_load(&c->shared->n_failed), 0, "a client: %s", c->shared->why);
    if (moves != *seenp || *sincep == 0) {
        *seenp = moves;
        *sincep = now_ms();
    }
    cr_assert_lt(now_ms() - *sincep, HANG_MS, "the clients hang");
}

void crowd_await(struct crowd *c, uint32_t n_there)
{
    uint32_t seen = 0;
    uint64_t since = 0;
    while (atomic_load(&c->shared->n_there) < n_there) {
        look(c, &seen, &since);
        nap();
    }
}

void crowd_signal(struct crowd *c, uint32_t i, int signal)
{
    cr_assert(c->pids[i] > 0);
    kill(c->pids[i], signal);
    if (signal == SIGKILL) {
        waitpid(c->pids[i], NULL, 0);
        c->pids[i] = 0;
    }
}

void crowd_join(struct crowd *c)
{
    uint32_t seen = 0, n_left;
    uint64_t since = 0;
    do {
        n_left = 0;
        for (uint32_t i = 0; i < c->n; i++) {
            int status;
            pid_t r = c->pids[i] ? waitpid(c->pids[i], &status, WNOHANG) : 0;
            n_left += c->pids[i] != 0;
            if (r != c->pids[i] || r == 0)
                continue;
            c->pids[i] = 0;
            n_left--;
            cr_assert_eq(status, 0, "client %u ended with %s %d: %s", i,
                         WIFSIGNALED(status) ? "signal" : "status",
                         WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status),
                         c->shared->why);
        }
        look(c, &seen, &since);
        if (n_left)
            nap();
    } while (n_left);
}

/* ---- for members ----------------------------------------------------------------------------- */

void crowd_fail(struct crowd *c, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (atomic_fetch_add(&c->shared->n_claims, 1) == 0) {
        vsnprintf(c->shared->why, sizeof c->shared->why, format, args);
        atomic_fetch_add(&c->shared->n_failed, 1);
    }
    va_end(args);
    _exit(1);
}

void crowd_move(struct crowd *c)
{
    atomic_fetch_add(&c->shared->n_moves, 1);
}

void crowd_there(struct crowd *c)
{
    atomic_fetch_add(&c->shared->n_there, 1);
}

void crowd_hold(struct crowd *c, uint32_t go)
{
    while (atomic_load(&c->shared->go) < go)
        nap();
}

struct cb_handle *crowd_open(struct crowd *c, const struct cb_options *options)
{
    struct cb_options own;
    struct cb_handle *h;
    uint64_t end = now_ms() + HANG_MS;
    int r;
    if (options)
        own = *options;
    else
        cb_options_init(&own);
    do /* among many on few cores the daemon, or we, may not have a turn for long */
        r = system_try_open(c->system, &own, &h);
    while ((r == CB_TIMEOUT || r == CB_LOST) && now_ms() < end);
    if (r)
        crowd_fail(c, "cb_open: %s", cb_message());
    return h;
}
