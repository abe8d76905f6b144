/* A client is killed at every system call of its life, and between any two instructions of its
 * submits, of one sequence and of several, its polls, cancels and releases: half-done writes spoil
 * its own lane only, and all comes back. */
#include <criterion/criterion.h>
#include <signal.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/system/storm.h"

TestSuite(torture, .timeout = 200);

static const struct storm_scale scale = {.seed = 71,
                                         .n_vocab = 49152,
                                         .n_distinct = 32,
                                         .prompt_usual = 30,
                                         .prompt_max = 200,
                                         .new_usual = 30,
                                         .new_max = 100};

/* A short life with everything in it. Stops itself where the stepping is to begin. */
static void life(struct crowd *c, bool stops)
{
    static const uint32_t prompt[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    static const uint32_t stop_ids[] = {11, 12};
    struct cb_handle *h = crowd_open(c, NULL);
    struct cb_request r;
    struct cb_event event;
    uint64_t family, ids[3];
    cb_request_init(&r);
    r.ids = prompt;
    r.n_ids = 10;
    r.max_new_tokens = 20;
    r.stop_ids = stop_ids;
    r.n_stop_ids = 2;
    if (stops)
        raise(SIGSTOP);
    r.n = 3;
    if (cb_submit(h, &r, &family))
        _exit(1);
    cb_cancel(h, family + 1);
    cb_release(h, family + 2);
    r.n = 1;
    for (int i = 0; i < 3; i++)
        if (cb_submit(h, &r, &ids[i]))
            _exit(1);
    cb_cancel(h, ids[1]);
    cb_release(h, ids[2]);
    for (int n = 0; n < 4;) {
        int got = cb_poll(h, &event);
        if (got == 0)
            got = cb_wait(h, 0, &event, HANG_MS);
        if (got < 0)
            _exit(1);
        if (event.type != CB_EVENT_TOKENS) {
            cb_release(h, event.id);
            n++;
        }
    }
    cb_close(h);
    _exit(0);
}

enum { OVER = 1 };

/* Lets a life go on for n stops of that kind, then kills it. OVER: it ended before. */
static int kill_after(struct crowd *c, enum __ptrace_request kind, uint32_t n)
{
    pid_t pid = fork();
    int status;
    if (pid == 0) {
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        if (kind == PTRACE_SYSCALL)
            raise(SIGSTOP);
        life(c, kind == PTRACE_SINGLESTEP);
    }
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert(WIFSTOPPED(status), "it did not come to the beginning: %x", status);
    for (uint32_t i = 0; i < n; i++) {
        cr_assert_eq(ptrace(kind, pid, NULL, NULL), 0);
        cr_assert_eq(waitpid(pid, &status, 0), pid);
        if (WIFEXITED(status)) {
            cr_assert_eq(WEXITSTATUS(status), 0, "an undisturbed life ended with %d", status);
            return OVER;
        }
    }
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    return 0;
}

/* Beside a storm that goes on all the while. */
static void torture(enum __ptrace_request kind, uint32_t stride, uint32_t most)
{
    struct storm st;
    struct system s;
    struct crowd c;
    uint32_t n_deaths = 0;
    storm_init(&st, &scale);
    system_init(&s);
    /* Without the net a missed wake is a hang. With it, it would be a count, and so would be a life
     * that is held for a second where it has published but not rung yet. */
    system_start(&s, SETTINGS("--model", "null", "--net_ms", "3600000"));
    storm_answer_all(&st, &s);
    crowd_init(&c, &s);
    struct storm_member member = {.storm = &st, .n_rounds = 50};
    crowd_add(&c, storm_member_run, &member);
    while (n_deaths < most && kill_after(&c, kind, n_deaths * stride) != OVER)
        n_deaths++;
    cr_expect_gt(n_deaths, 30, "only %u deaths", n_deaths);
    crowd_join(&c);
    crowd_fini(&c);
    system_settle(&s);
    cr_expect_eq(system_counter(&s, "requests_failed"), 0);
    cr_expect_eq(system_counter(&s, "lane_broken"), 0);
    system_fini(&s);
    storm_fini(&st);
}

Test(torture, killed_at_every_system_call)
{
    torture(PTRACE_SYSCALL, 1, 400);
}

/* A stride that is no power of two, so that loops are met at each of their instructions. */
Test(torture, killed_between_any_two_instructions)
{
    torture(PTRACE_SINGLESTEP, IS_SANITIZED ? 997 : 83, 80);
}
