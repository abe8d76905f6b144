/* Lanes by name: asked for, refused in all ways, and slept on by a semaphore. */
#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/control.h"
#include "tests/client/pair.h"

static struct pair start_named(const struct fake_config *config, uint32_t kind, uint32_t mode)
{
    struct cb_options o;
    struct pair p = {fake_start(config), NULL};
    cb_options_init(&o);
    o.run_dir = fake_dir(p.f);
    o.kind = kind;
    o.wait_mode = mode;
    o.named = 1;
    cr_assert_eq(cb_open(&p.h, &o), 0, "%s", cb_message());
    cr_assert_eq(fake_n_named(p.f), 1);
    return p;
}

/* All of this process: one that stays need not have the lowest number. */
static int n_fds(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = 0;
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

static int open_named(const struct fake *f)
{
    struct cb_options o;
    struct cb_handle *h;
    cb_options_init(&o);
    o.run_dir = fake_dir(f);
    o.named = 1;
    int r = cb_open(&h, &o);
    cb_close(h);
    return r;
}

Test(named, only_who_asks_gets_one)
{
    struct pair p = start_plain();
    cr_expect_eq(fake_n_named(p.f), 0);
    stop(p);
}

Test(named, each_way_of_waiting_brings_all_tokens)
{
    for (uint32_t kind = 0; kind < 2; kind++)
        for (uint32_t mode = CB_WAIT_BALANCED; mode <= CB_WAIT_ECO; mode++) {
            struct pair p = start_named(
                &(struct fake_config){.step_us = mode == CB_WAIT_ECO ? 200 : 0}, kind, mode);
            struct cb_info info;
            for (uint32_t i = 0; i < 20; i++) {
                uint64_t id = submit(p.h, i, 10, CB_IGNORE_EOS);
                cr_assert_eq(take_all(p.h, id, i).end, CB_END_LENGTH);
                cr_assert_eq(cb_release(p.h, id), 0);
            }
            cr_assert_eq(cb_info(p.h, &info), 0);
            cr_expect_eq(info.wake_missed, 0);
            stop(p);
        }
}

Test(named, many_threads_wait_on_one_semaphore)
{
    enum { N = 8 };
    struct pair p =
        start_named(&(struct fake_config){.step_us = 300}, CB_KIND_LATENCY, CB_WAIT_ECO);
    struct waiter w[N];
    pthread_t threads[N];
    struct cb_info info;
    for (int i = 0; i < N; i++) {
        w[i] = (struct waiter){p.h, submit(p.h, (uint32_t)i, 30, CB_IGNORE_EOS), (uint32_t)i};
        cr_assert_eq(pthread_create(&threads[i], NULL, take_all_thread, &w[i]), 0);
    }
    for (int i = 0; i < N; i++)
        pthread_join(threads[i], NULL);
    cr_assert_eq(cb_info(p.h, &info), 0);
    cr_expect_eq(info.wake_missed, 0);
    stop(p);
}

/* A semaphore does not tell of it. */
Test(named, whoever_sleeps_notices_the_daemon_s_death)
{
    struct pair p = start_named(&(struct fake_config){0}, CB_KIND_LATENCY, CB_WAIT_ECO);
    struct cb_event event;
    fake_hold(p.f, true);
    uint64_t id = submit(p.h, 5, 10, 0);
    fake_kill(p.f);
    cr_assert_eq(cb_wait(p.h, id, &event, HANG_MS), 1, "%s", cb_message());
    cr_expect_eq(event.status, CB_LOST);
    stop(p);
}

/* ---- refused --------------------------------------------------------------------------------- */

Test(named, a_daemon_that_does_not_let_this_user)
{
    struct fake *f = fake_start(&(struct fake_config){.refuse = CB_DENIED});
    cr_expect_eq(open_named(f), CB_DENIED);
    expect_message("named_uids");
    fake_stop(f);
}

Test(named, a_daemon_that_knows_no_names)
{
    struct fake *f = fake_start(&(struct fake_config){.is_old = true});
    cr_expect_eq(open_named(f), CB_VERSION);
    expect_message("older");
    fake_stop(f);
}

static void no_slash(struct cb_names_record *n)
{
    n->lane[0] = 'x';
}
static void endless(struct cb_names_record *n)
{
    memset(n->vocab, 'x', sizeof(n->vocab));
    n->vocab[0] = '/';
}
static void reserved_set(struct cb_names_record *n)
{
    n->reserved[55] = 1;
}
static void other_type(struct cb_names_record *n)
{
    n->head.type = CB_RECORD_NOTICE;
}
static void nothing_there(struct cb_names_record *n)
{
    n->lane[strlen(n->lane) - 1] = 'x';
}
static void no_vocab_there(struct cb_names_record *n)
{
    n->vocab[strlen(n->vocab) - 1] = 'x';
}
static void out_of_dev_shm(struct cb_names_record *n)
{
    snprintf(n->vocab, sizeof(n->vocab), "/../etc/passwd");
}

Test(named, nothing_of_names_is_believed)
{
    static const struct {
        void (*spoil)(struct cb_names_record *);
        int status;
    } cases[] = {{no_slash, CB_BAD_RECORD},     {endless, CB_BAD_RECORD},
                 {reserved_set, CB_BAD_RECORD}, {other_type, CB_BAD_RECORD},
                 {nothing_there, CB_SYSTEM},    {no_vocab_there, CB_SYSTEM},
                 {out_of_dev_shm, CB_SYSTEM}};
    int before = n_fds();
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct fake *f = fake_start(&(struct fake_config){.spoil_names = cases[i].spoil});
        int r = open_named(f);
        cr_expect_eq(r, cases[i].status, "case %zu: %d, %s", i, r, cb_message());
        fake_stop(f);
        cr_expect_eq(n_fds(), before, "case %zu leaves some", i);
    }
}

Test(named, names_that_do_not_come_are_not_waited_for)
{
    struct fake *f = fake_start(&(struct fake_config){.keeps_names = true});
    cr_expect_eq(open_named(f), CB_BAD_RECORD);
    expect_message("NAMES");
    fake_stop(f);
}

Test(named, an_option_that_is_none)
{
    struct cb_options o;
    struct cb_handle *h;
    cb_options_init(&o);
    o.named = 2;
    cr_expect_eq(cb_open(&h, &o), CB_INVALID);
    expect_message("cb_options.named");
}

/* ---- nothing is left ------------------------------------------------------------------------- */

static int n_lines(const char *path, const char *part)
{
    FILE *f = fopen(path, "re");
    char line[512];
    int n = 0;
    while (f && fgets(line, sizeof(line), f))
        n += strstr(line, part) != NULL;
    if (f)
        fclose(f);
    return n;
}

Test(named, neither_descriptor_nor_mapping_nor_name)
{
    struct fake *f = fake_start(&(struct fake_config){0});
    int before = n_fds();
    for (int i = 0; i < 50; i++)
        cr_assert_eq(open_named(f), 0, "%s", cb_message());
    usleep(50000); /* for the fake's own end of the last one */
    cr_expect(n_fds() <= before + 1, "%d, then %d", before, n_fds());
    cr_expect_eq(fake_n_named(f), 50);
    fake_stop(f);
    cr_expect_eq(n_lines("/proc/self/maps", ".fake."), 0);
}

/* The segments are not the child's. */
Test(named, a_child_inherits_no_mapping)
{
    struct pair p = start_named(&(struct fake_config){0}, CB_KIND_LATENCY, CB_WAIT_ECO);
    cr_assert_geq(n_lines("/proc/self/maps", ".fake."), 3);
    pid_t pid = fork();
    if (pid == 0) {
        int n = n_lines("/proc/self/maps", ".up") + n_lines("/proc/self/maps", ".down") +
                n_lines("/proc/self/maps", ".bell");
        cb_close(p.h);
        _exit(n);
    }
    int status;
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_expect_eq(status, 0, "%x", (unsigned)status);
    uint64_t id = submit(p.h, 3, 5, CB_IGNORE_EOS);
    cr_expect_eq(take_all(p.h, id, 3).end, CB_END_LENGTH);
    stop(p);
}
