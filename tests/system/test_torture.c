/* A client is killed at every system call of its life, and before each instruction of a submit, of one
 * sequence or of several, a poll, a cancel, a release and a close: half-done writes spoil its own lane
 * only, and all comes back.
 *
 * CB_EVERY_INSTRUCTION kills at each of them (`make soak-instructions`); by default each run does so
 * at some, which change. */
#include <criterion/criterion.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/system/storm.h"

TestSuite(torture, .timeout = 3600);

static const struct storm_scale scale = {.seed = 71,
                                         .n_vocab = 49152,
                                         .n_distinct = 32,
                                         .prompt_usual = 30,
                                         .prompt_max = 200,
                                         .new_usual = 30,
                                         .new_max = 100};

/* ---- lives ------------------------------------------------------------------------------------ */

static struct cb_request request(uint32_t n, uint32_t limit)
{
    static const uint32_t prompt[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    static const uint32_t stop_ids[] = {11, 12};
    struct cb_request r;
    cb_request_init(&r);
    r.ids = prompt;
    r.n_ids = 10;
    r.max_new_tokens = limit;
    r.stop_ids = stop_ids;
    r.n_stop_ids = 2;
    r.n = n;
    return r;
}

/* What a life is killed in the midst of. `ids` are of requests of its own. */
typedef void act_fn(struct cb_handle *h, const uint64_t ids[4]);

static void act_submit(struct cb_handle *h, const uint64_t ids[4])
{
    struct cb_request r = request(1, 20);
    uint64_t id;
    (void)ids;
    if (cb_submit(h, &r, &id))
        _exit(1);
}

static void act_submit_family(struct cb_handle *h, const uint64_t ids[4])
{
    struct cb_request r = request(3, 20);
    uint64_t id;
    (void)ids;
    r.temperature = 1;
    if (cb_submit(h, &r, &id))
        _exit(1);
}

/* All four have ended, so that there is something for a while. */
static void act_poll(struct cb_handle *h, const uint64_t ids[4])
{
    struct cb_event e;
    (void)ids;
    for (int i = 0; i < 3; i++)
        if (cb_poll(h, &e) < 0)
            _exit(1);
}

static void act_cancel(struct cb_handle *h, const uint64_t ids[4])
{
    cb_cancel(h, ids[1]);
}

static void act_release(struct cb_handle *h, const uint64_t ids[4])
{
    cb_release(h, ids[2]); /* it runs, and is abandoned */
}

static void act_close(struct cb_handle *h, const uint64_t ids[4])
{
    (void)ids;
    cb_close(h);
}

static const struct act {
    const char *name;
    act_fn *act;
    bool waits; /* until all have ended */
} acts[] = {{"submit", act_submit, false},   {"submit of three", act_submit_family, false},
            {"poll", act_poll, true},        {"cancel", act_cancel, false},
            {"release", act_release, false}, {"close", act_close, false}};

/* Stops itself before the act, and behind it. */
static void life_until(struct crowd *c, const struct act *act)
{
    struct cb_handle *h = crowd_open(c, NULL);
    struct cb_request r = request(1, act->waits ? 3 : 2000);
    struct cb_result result;
    uint64_t ids[4];
    r.flags |= CB_IGNORE_EOS;
    for (int i = 0; i < 4; i++)
        if (cb_submit(h, &r, &ids[i]))
            _exit(1);
    for (int i = 0; act->waits && i < 4; i++) /* looks at the slot only, takes nothing */
        for (result.end = 0; !result.end && !result.n_generated; nap())
            if (cb_result(h, ids[i], &result))
                _exit(1);
    raise(SIGSTOP);
    act->act(h, ids);
    raise(SIGSTOP);
    _exit(0);
}

/* A short life with everything in it. */
static void life(struct crowd *c)
{
    struct cb_handle *h = crowd_open(c, NULL);
    struct cb_request r = request(3, 20);
    struct cb_event event;
    uint64_t family, ids[3];
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

/* ---- deaths ----------------------------------------------------------------------------------- */

static bool is_stop(int status)
{
    return WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP;
}

/* Lets a life go on for n stops from its beginning, or, with an act, for n instructions of that, then
 * kills it. How many there were, at most n. */
static uint32_t kill_after(struct crowd *c, const struct act *act, uint32_t n)
{
    enum __ptrace_request kind = act ? PTRACE_SINGLESTEP : PTRACE_SYSCALL;
    uint32_t n_steps = 0;
    pid_t pid = fork();
    int status;
    if (pid == 0) {
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        if (act)
            life_until(c, act);
        raise(SIGSTOP);
        life(c);
    }
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert(is_stop(status), "it did not come to the beginning: %x", status);
    for (; n_steps < n; n_steps++) {
        cr_assert_eq(ptrace(kind, pid, NULL, NULL), 0);
        cr_assert_eq(waitpid(pid, &status, 0), pid);
        if (WIFEXITED(status)) {
            cr_assert_eq(WEXITSTATUS(status), 0, "an undisturbed life ended with %d", status);
            return n_steps;
        }
        if (is_stop(status))
            break;
    }
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    return n_steps;
}

static void beside(struct crowd *c, uint32_t i, void *arg)
{
    const struct storm_member member = {.storm = arg, .n_rounds = 1};
    do
        storm_member_run(c, i, (void *)(uintptr_t)&member);
    while (atomic_load(&c->shared->go) == 0);
}

/* A daemon, and one whose storm goes on all the while. */
struct rack {
    struct storm st;
    struct system s;
    struct crowd c;
};

static void rack_open(struct rack *k)
{
    storm_init(&k->st, &scale);
    system_init(&k->s);
    /* Without the net a missed wake is a hang. With it, it would be a count, and so would be a life
     * that is held for a second where it has published but not rung yet. */
    system_start(&k->s, SETTINGS("--model", "null", "--net_ms", "3600000"));
    storm_answer_all(&k->st, &k->s);
    crowd_init(&k->c, &k->s);
    crowd_add(&k->c, beside, &k->st);
}

static void rack_close(struct rack *k)
{
    atomic_store(&k->c.shared->go, 1);
    crowd_join(&k->c);
    crowd_fini(&k->c);
    system_settle(&k->s);
    cr_expect_eq(system_counter(&k->s, "requests_failed"), 0);
    cr_expect_eq(system_counter(&k->s, "lane_broken"), 0);
    system_fini(&k->s);
    storm_fini(&k->st);
}

Test(torture, killed_at_every_system_call)
{
    static struct rack k;
    uint32_t n_deaths = 0;
    rack_open(&k);
    while (n_deaths < 400 && kill_after(&k.c, NULL, n_deaths) == n_deaths)
        n_deaths++;
    cr_expect_gt(n_deaths, 30, "only %u deaths", n_deaths);
    rack_close(&k);
}

/* The steps go to and fro between tracer and traced: on one processor that takes a tenth of the time. */
static void stay_here(void)
{
    cpu_set_t here;
    CPU_ZERO(&here);
    CPU_SET((size_t)sched_getcpu(), &here);
    cr_assert_eq(sched_setaffinity(0, sizeof here, &here), 0);
}

/* Some of its instructions are others each time: what it finds of the daemon's decides. */
static void kill_at_each(struct rack *k, const struct act *act)
{
    enum { N_DRIVEN = 16 };
    uint32_t n = kill_after(&k->c, act, UINT32_MAX), n_deaths = 0;
    uint32_t stride = getenv("CB_EVERY_INSTRUCTION") ? 1 : 1 + n / N_DRIVEN;
    for (uint32_t i = (uint32_t)now_ms() % stride; i < n; i += stride) {
        (void)kill_after(&k->c, act, i);
        n_deaths++;
        cr_assert_eq(atomic_load(&k->c.shared->n_failed), 0, "at instruction %u of %s: %s", i,
                     act->name, k->c.shared->why);
    }
    fprintf(stderr, "%s: %u instructions, killed before %u of them\n", act->name, n, n_deaths);
    cr_expect_gt(n, 50, "%s is of %u instructions", act->name, n);
}

Test(torture, killed_at_any_instruction)
{
    static struct rack k;
    rack_open(&k);
    stay_here();
    for (size_t i = 0; i < sizeof acts / sizeof acts[0]; i++)
        kill_at_each(&k, &acts[i]);
    rack_close(&k);
}

/* ---- who is held ------------------------------------------------------------------------------ */

/* Stops itself before it opens and, as long as that is looked for, when it has. */
static void patient_life(struct crowd *c)
{
    struct cb_request r = request(1, 20);
    struct cb_options options;
    struct cb_handle *h;
    struct cb_event e = {0};
    uint64_t id;
    int status;
    cb_options_init(&options);
    options.resume = 1;
    r.flags |= CB_RESUMABLE | CB_IGNORE_EOS;
    raise(SIGSTOP);
    while ((status = system_try_open(c->system, &options, &h)) == CB_LOST || status == CB_TIMEOUT)
        continue;
    if (atomic_load(&c->shared->go) == 0)
        raise(SIGSTOP);
    while (status == 0 && (status = cb_submit(h, &r, &id)) == CB_BUSY)
        nap();
    while (status == 0 && e.type != CB_EVENT_END)
        status = cb_wait(h, id, &e, HANG_MS) == 1 ? 0 : 1;
    _exit(status ? 2 : e.end == CB_END_LENGTH ? 0 : 3);
}

/* A patient life that has gone on for n stops, or until it has opened: then 0 in *pidp. How many. */
static uint32_t hold_after(struct crowd *c, uint32_t n, pid_t *pidp)
{
    uint32_t n_steps = 0;
    int status;
    *pidp = fork();
    if (*pidp == 0) {
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        patient_life(c);
    }
    cr_assert_eq(waitpid(*pidp, &status, 0), *pidp);
    for (; n_steps < n; n_steps++) {
        cr_assert_eq(ptrace(PTRACE_SYSCALL, *pidp, NULL, NULL), 0);
        cr_assert_eq(waitpid(*pidp, &status, 0), *pidp);
        cr_assert(WIFSTOPPED(status), "it ended with %x", status);
        if (is_stop(status)) {
            kill(*pidp, SIGKILL);
            waitpid(*pidp, &status, 0);
            *pidp = 0;
            break;
        }
    }
    return n_steps;
}

static void await_good_end(pid_t pid, uint32_t n)
{
    int status;
    while (waitpid(pid, &status, WNOHANG) == 0) {
        kill(pid, SIGCONT); /* it may have been about to stop itself */
        nap();
    }
    cr_expect_eq(status, 0, "held at stop %u, it ended with %x", n, status);
}

/* For longer than a daemon waits for a handshake the clients stand still, or it does. */
static void hold_all(bool holds_clients)
{
    enum { N_HELD = 48 }; /* at once */
    struct system s;
    struct crowd c;
    pid_t pids[N_HELD];
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null"));
    crowd_init(&c, &s);
    uint32_t n = hold_after(&c, UINT32_MAX, &pids[0]);
    cr_assert_gt(n, 20);
    for (uint32_t from = 0; from < n; from += N_HELD) {
        uint32_t n_held = n - from < N_HELD ? n - from : N_HELD;
        for (uint32_t i = 0; i < n_held; i++)
            (void)hold_after(&c, from + i, &pids[i]);
        atomic_store(&c.shared->go, 1);
        if (!holds_clients)
            system_signal(&s, SIGSTOP);
        for (int k = 0; k < 2; k++) {
            for (uint32_t i = 0; i < n_held; i++)
                if (pids[i] && (k == 0) != holds_clients)
                    ptrace(PTRACE_DETACH, pids[i], NULL, NULL);
            for (int ms = 0; ms < 2300 && k == 0; ms++)
                nap();
        }
        system_signal(&s, SIGCONT);
        for (uint32_t i = 0; i < n_held; i++)
            if (pids[i])
                await_good_end(pids[i], from + i);
        atomic_store(&c.shared->go, 0);
    }
    crowd_fini(&c);
    system_settle(&s);
    cr_expect_eq(system_counter(&s, "lane_broken"), 0);
    system_fini(&s);
}

/* Whether it opens then or has to again, a handle that outlives its daemon gets its results. */
Test(torture, held_at_every_system_call_of_its_opening)
{
    hold_all(true);
}

Test(torture, opening_while_the_daemon_stands_still)
{
    hold_all(false);
}
