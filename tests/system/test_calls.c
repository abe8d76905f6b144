/* What must not be called: the kernel, by a client's submit, poll and cancel while the daemon is
 * busy; the heap, by the daemon once it serves. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/system/storm.h"

TestSuite(calls, .timeout = 120);

/* A daemon that has said nothing for LIFE_MS is looked for: so a machine too busy to let it run makes a
 * client call the kernel, which is no fault, but no more often than that. */
enum { LIFE_MS = 50 };
static volatile sig_atomic_t n_looks;

static void on_look(int signal)
{
    (void)signal;
    n_looks = n_looks + 1; /* the look itself does not take place, and finds nothing */
}

/* From here on any system call kills this process, but for exit_group, and a look, which counts. */
static void no_more_system_calls(struct crowd *c)
{
    struct sigaction action = {.sa_handler = on_look};
    struct sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigreturn, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ppoll, 0, 2),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog filter = {sizeof program / sizeof program[0], program};
    member_expect(c, sigaction(SIGSYS, &action, NULL) == 0, "sigaction");
    member_expect(c, prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no_new_privs");
    member_expect(c, prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0, "seccomp");
}

static void plain_request(struct cb_request *r, const uint32_t *prompt, size_t n, uint32_t limit)
{
    cb_request_init(r);
    r->ids = prompt;
    r->n_ids = n;
    r->max_new_tokens = limit;
    r->flags = CB_IGNORE_EOS;
}

/* One request keeps the daemon busy; then a thousand others are sent, polled, cancelled,
 * released. */
static void silent(struct crowd *c, uint32_t i, void *arg)
{
    static const uint32_t prompt[] = {3, 1, 4, 1, 5, 9, 2, 6};
    static const uint32_t stop_ids[] = {7, 8};
    static const struct cb_string stop = {"never", 5};
    const struct cb_options *options = arg;
    struct cb_handle *h = crowd_open(c, options);
    struct cb_event event;
    struct cb_request r;
    uint64_t busy, ids[8];
    (void)i;
    plain_request(&r, prompt, 8, 200000);
    member_expect(c, cb_submit(h, &r, &busy) == 0, "%s", cb_message());
    member_expect(c, cb_wait(h, busy, &event, HANG_MS) == 1 && event.type == CB_EVENT_TOKENS,
                  "no token: type %u", event.type);
    uint64_t begun_ms = now_ms();
    no_more_system_calls(c);

    uint32_t n_over = 0, n_cancelled = 0;
    for (uint32_t round = 0; round < 40; round++) {
        uint32_t n_left = 8;
        for (uint32_t k = 0; k < 8; k++) {
            plain_request(&r, prompt, 1 + k, k % 2 ? 1000 : 1 + k);
            if (k % 4 == 2) {
                r.stop_ids = stop_ids;
                r.n_stop_ids = 2;
                r.stops = &stop;
                r.n_stops = 1;
            }
            if (k % 4 >= 2)
                r.temperature = 0.5f;
            member_expect(c, cb_submit(h, &r, &ids[k]) == 0, "submit");
            if (k % 2)
                member_expect(c, cb_cancel(h, ids[k]) == 0, "cancel");
        }
        while (n_left > 0) {
            if (cb_poll(h, &event) != 1 || event.type == CB_EVENT_TOKENS)
                continue;
            member_expect(c, event.id != busy, "the daemon is not busy any more");
            member_expect(c, event.type == CB_EVENT_END, "refused: %d", event.status);
            n_over++;
            n_cancelled += event.end == CB_END_CANCELLED;
            cb_release(h, event.id);
            n_left--;
            crowd_move(c);
        }
    }
    member_expect(c, n_over == 320 && n_cancelled > 0, "%u ended, %u by cancel", n_over,
                  n_cancelled);
    member_expect(c, (uint64_t)n_looks <= 1 + (now_ms() - begun_ms) / LIFE_MS, "%d looks",
                  (int)n_looks);
}

static void busy_daemon(const char *loop)
{
    struct cb_options options;
    struct system s;
    struct crowd c;
    cb_options_init(&options);
    options.pool_bytes = 8 << 20;
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null", "--null_step_us", "200", "--null_context",
                              "250000", "--loop", loop));
    crowd_init(&c, &s);
    crowd_add(&c, silent, &options);
    crowd_join(&c);
    options.kind = CB_KIND_EVENT_LOOP;
    crowd_add(&c, silent, &options);
    crowd_join(&c);
    crowd_fini(&c);
    system_settle(&s);
    system_fini(&s);
}

Test(calls, a_client_makes_no_system_call_while_the_daemon_is_busy)
{
    if (IS_SANITIZED)
        return; /* the sanitizers make their own */
    busy_daemon("uring");
    busy_daemon("epoll");
}

/* The heap's calls of a daemon that everything is done to. */
static void heap_silence(const char *const *settings, uint32_t n_vocab)
{
    struct storm st;
    struct system s;
    struct crowd c;
    char shim[512], counts[128];
    struct page {
        _Atomic uint64_t n_calls;
        _Atomic uintptr_t last_caller;
    } * page;
    system_init(&s);
    snprintf(counts, sizeof counts, "%s/counts", s.dir);
    int fd = open(counts, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    cr_assert(fd >= 0 && ftruncate(fd, 4096) == 0);
    page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    cr_assert(page != MAP_FAILED);
    close(fd);
    setenv("HEAP_SHIM_FILE", counts, 1);
    setenv("LD_PRELOAD", built("tests/heap_shim.so", shim), 1);
    system_spawn_as(&s, geteuid(), settings);
    unsetenv("LD_PRELOAD"); /* cbctl may call the heap */
    cr_assert(system_is_ready(&s));
    uint64_t n_at_ready = atomic_load(&page->n_calls);
    cr_assert_gt(n_at_ready, 0, "the shim counts nothing");

    storm_init(&st, &(struct storm_scale){.seed = 31,
                                          .n_vocab = n_vocab,
                                          .n_distinct = 32,
                                          .prompt_usual = 16,
                                          .prompt_max = 40,
                                          .new_usual = 8,
                                          .new_max = 40});
    storm_answer_all(&st, &s);
    crowd_init(&c, &s);
    struct storm_member member = {.storm = &st, .n_rounds = 2, .cancels = true};
    for (uint32_t i = 0; i < 8; i++)
        crowd_add(&c, storm_member_run, &member);
    crowd_join(&c);
    crowd_fini(&c);
    json_decref(system_cbctl(&s, SETTINGS("clients")));
    json_decref(system_cbctl(&s, SETTINGS("requests")));
    json_decref(system_cbctl(&s, SETTINGS("settings")));
    json_decref(system_cbctl(&s, SETTINGS("settings", "spin_us", "20")));
    for (int i = 0; i < 100; i++) /* until the cache is populated, and asleep */
        nap();
    uint64_t n_calls = atomic_load(&page->n_calls) - n_at_ready;
    cr_expect_eq(n_calls, 0, "the heap was called %llu times, the last time from %p",
                 (unsigned long long)n_calls, (void *)atomic_load(&page->last_caller));
    munmap(page, 4096);
    storm_fini(&st);
    system_fini(&s);
}

Test(calls, the_daemon_calls_no_heap_once_it_serves)
{
    if (IS_SANITIZED)
        return; /* they replace the heap themselves */
    heap_silence(SETTINGS("--model", "null", "--loop", "uring"), 49152);
    heap_silence(SETTINGS("--model", "null", "--loop", "epoll"), 49152);
    const char *model = default_model();
    if (model)
        heap_silence(SETTINGS("--model", model), 49152);
}
