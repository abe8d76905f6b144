/* Finding a daemon, and every way in which the handshake can go wrong. */
#include "client/cbclient.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/client/fake.h"

#define expect_message(part) \
    cr_assert(strstr(cb_message(), part), "\"%s\" lacks \"%s\"", cb_message(), part)

static int open_at(struct cb_handle **h, const char *dir)
{
    struct cb_options o;
    cb_options_init(&o);
    o.run_dir = dir;
    return cb_open(h, &o);
}

Test(connect, says_what_it_is_connected_to)
{
    struct fake *f = fake_start(&(struct fake_config){0});
    struct cb_handle *h;
    struct cb_info info;
    cr_assert_eq(open_at(&h, fake_dir(f)), 0, "%s", cb_message());
    cr_assert_eq(cb_info(h, &info), 0);
    cr_assert(info.n_vocab == FAKE_VOCAB && info.n_context == FAKE_CONTEXT);
    cr_assert(info.n_slots == 64 && info.lane_id == 5 && !info.has_chat && info.model);
    cr_assert_eq(info.eos, CB_NO_TOKEN);
    cb_close(h);
    fake_stop(f);
}

Test(connect, finds_the_run_directory_by_its_environment)
{
    struct fake *f = fake_start(&(struct fake_config){0});
    struct cb_handle *h;
    setenv("CBD_RUNTIME_DIR", fake_dir(f), 1);
    cr_assert_eq(cb_open(&h, NULL), 0, "%s", cb_message());
    cb_close(h);
    setenv("CBD_RUNTIME_DIR", "/nonexistent", 1);
    cr_assert_eq(
        cb_open(&h, &(struct cb_options){.size = sizeof(struct cb_options), .instance = "x"}),
        CB_NO_DAEMON);
    cr_assert_null(h);
    expect_message("'x'");
    fake_stop(f);
}

/* It was the run directory's path that was called too long. */
Test(connect, an_instance_name_that_is_too_long_is_named)
{
    char name[200];
    struct cb_options o;
    struct cb_handle *h;
    cb_options_init(&o);
    o.instance = name;
    memset(name, 'x', sizeof name);
    name[199] = 0;
    cr_assert_eq(cb_open(&h, &o), CB_INVALID);
    expect_message("instance 'xxxx");
    expect_message("has more than 31 bytes");
    name[32] = 0;
    cr_assert_eq(cb_open(&h, &o), CB_INVALID);
    name[31] = 0;
    cr_assert_eq(cb_open(&h, &o), CB_NO_DAEMON);
}

Test(connect, without_a_daemon_fails_at_once_or_after_wait_ms)
{
    struct cb_options o;
    struct cb_handle *h;
    cb_options_init(&o);
    o.run_dir = "/nonexistent";
    cr_assert_eq(cb_open(&h, &o), CB_NO_DAEMON);
    expect_message("/nonexistent/default/sock");
    o.wait_ms = 60;
    cr_assert_eq(cb_open(&h, &o), CB_NO_DAEMON);
}

static void *open_later(void *arg)
{
    struct cb_options o;
    struct cb_handle *h = NULL;
    cb_options_init(&o);
    o.run_dir = arg;
    o.wait_ms = 10000;
    cb_open(&h, &o);
    return h;
}

Test(connect, waits_for_a_daemon_that_comes_later)
{
    struct fake *f = fake_start(&(struct fake_config){0});
    char hidden[128], sock[128];
    pthread_t t;
    void *h;
    snprintf(sock, sizeof(sock), "%s/default/sock", fake_dir(f));
    snprintf(hidden, sizeof(hidden), "%s/default/away", fake_dir(f));
    rename(sock, hidden);
    pthread_create(&t, NULL, open_later, (void *)(uintptr_t)fake_dir(f));
    usleep(50000);
    rename(hidden, sock);
    pthread_join(t, &h);
    cr_assert_not_null(h);
    cb_close(h);
    fake_stop(f);
}

Test(connect, refusals_come_with_their_numbers)
{
    struct fake *f = fake_start(&(struct fake_config){.refuse = CB_QUOTA});
    struct cb_handle *h;
    cr_assert_eq(open_at(&h, fake_dir(f)), CB_QUOTA);
    expect_message("over a limit: lanes of this user (uid_lanes), at most 8");
    fake_stop(f);
    f = fake_start(&(struct fake_config){.refuse = CB_VERSION});
    cr_assert_eq(open_at(&h, fake_dir(f)), CB_VERSION);
    fake_stop(f);
    f = fake_start(&(struct fake_config){.refuse = CB_DENIED});
    cr_assert_eq(open_at(&h, fake_dir(f)), CB_DENIED);
    fake_stop(f);
}

/* As the daemon does when it can't even take the connection in. Many times: the client must be slow
 * enough to find the socket closed already. */
Test(connect, a_refusal_arrives_even_if_hello_was_never_read)
{
    struct fake *f = fake_start(&(struct fake_config){.refuse = CB_QUOTA, .refuse_unread = true});
    struct cb_handle *h;
    for (int i = 0; i < 200; i++) {
        cr_assert_eq(open_at(&h, fake_dir(f)), CB_QUOTA);
        expect_message("over a limit: lanes of this user (uid_lanes), at most 8");
    }
    fake_stop(f);
}

Test(connect, a_daemon_that_hangs_up_or_never_answers)
{
    struct fake *f = fake_start(&(struct fake_config){.hang_up_early = true});
    struct cb_handle *h;
    cr_assert_eq(open_at(&h, fake_dir(f)), CB_LOST);
    fake_stop(f);
    f = fake_start(&(struct fake_config){.never_answer = true});
    cr_assert_eq(open_at(&h, fake_dir(f)), CB_TIMEOUT);
    fake_stop(f);
}

/* The daemon answers after 2.6 s, of which the client is stopped for 2.2: it has waited for 0.4. */
Test(connect, a_process_that_is_stopped_does_not_wait)
{
    struct fake *f = fake_start(&(struct fake_config){.late_ms = 2600});
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        struct cb_handle *h;
        int r = open_at(&h, fake_dir(f));
        if (r)
            fprintf(stderr, "%s\n", cb_message());
        cb_close(h);
        _exit(r != 0);
    }
    usleep(200000);
    cr_assert_eq(kill(pid, SIGSTOP), 0);
    usleep(2200000);
    cr_assert_eq(kill(pid, SIGCONT), 0);
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert_eq(status, 0);
    fake_stop(f);
}

static void other_format(struct cb_welcome *w)
{
    w->format = 2;
}
static void other_magic(struct cb_welcome *w)
{
    w->head.magic = 0;
}
static void reserved_set(struct cb_welcome *w)
{
    w->reserved[3] = 1;
}
static void unknown_default(struct cb_welcome *w)
{
    w->defaults = 8;
}
static void stray_seed(struct cb_welcome *w)
{
    w->seed = 1;
}
static void defaults_not_agreed(struct cb_welcome *w)
{
    w->features &= ~CB_FEATURE_DEFAULTS;
    w->defaults = CB_DEFAULT_LOGPROBS;
}
static void unasked_feature(struct cb_welcome *w)
{
    w->features = CB_FEATURE_NAMED;
}
static void huge_up(struct cb_welcome *w)
{
    w->geometry.up_bytes = UINT64_MAX;
}
static void larger_down(struct cb_welcome *w)
{
    w->geometry.down_bytes += 4096; /* more than the file has */
}
static void pool_outside(struct cb_welcome *w)
{
    w->geometry.down_pool_off = w->geometry.down_bytes;
}
static void odd_ring(struct cb_welcome *w)
{
    w->geometry.res_capacity = 77;
}
static void other_geometry(struct cb_welcome *w)
{
    w->geometry.n_vocab++; /* whole, but not what DOWN says */
}
static void other_boot(struct cb_welcome *w)
{
    w->boot_id[1] = 9;
}
static void short_vocab(struct cb_welcome *w)
{
    w->vocab_bytes = 64;
}
static void long_vocab(struct cb_welcome *w)
{
    w->vocab_bytes = (uint64_t)1 << 39;
}

Test(connect, no_number_of_welcome_is_believed)
{
    static const struct {
        void (*spoil)(struct cb_welcome *);
        int status;
        bool in_down;
    } cases[] = {{other_format, CB_VERSION, false},    {other_magic, CB_BAD_RECORD, false},
                 {reserved_set, CB_BAD_RECORD, false}, {unasked_feature, CB_BAD_RECORD, false},
                 {huge_up, CB_BAD_RECORD, false},      {larger_down, CB_BAD_RECORD, false},
                 {pool_outside, CB_BAD_RECORD, false}, {odd_ring, CB_BAD_RECORD, false},
                 {pool_outside, CB_BAD_RECORD, true},  {odd_ring, CB_BAD_RECORD, true},
                 {huge_up, CB_BAD_RECORD, true},       {other_geometry, CB_BAD_RECORD, false},
                 {other_boot, CB_BAD_RECORD, false},   {short_vocab, CB_BAD_RECORD, false},
                 {long_vocab, CB_BAD_RECORD, false},   {unknown_default, CB_BAD_RECORD, false},
                 {stray_seed, CB_BAD_RECORD, false},   {defaults_not_agreed, CB_BAD_RECORD, false}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct fake *f = fake_start(
            &(struct fake_config){.spoil = cases[i].spoil, .spoil_down = cases[i].in_down});
        struct cb_handle *h;
        int r = open_at(&h, fake_dir(f));
        cr_assert_eq(r, cases[i].status, "case %zu: %d, %s", i, r, cb_message());
        cr_assert_null(h);
        fake_stop(f);
    }
}

/* As whom this process opens; back to root afterwards, for the fake's files. */
static int open_as(uid_t uid, const struct cb_options *o)
{
    struct cb_handle *h;
    int r;
    cr_assert_eq(seteuid(uid), 0);
    r = cb_open(&h, o);
    cb_close(h);
    cr_assert_eq(seteuid(0), 0);
    return r;
}

Test(connect, a_socket_of_another_uid_is_passed_over)
{
    enum { THEIRS = 12345, MINE = 54321 };
    const uint32_t uid = THEIRS;
    struct cb_options o;
    struct fake *f;
    char path[128];
    if (geteuid() != 0)
        cr_skip_test("needs root to become two users");
    cr_assert_eq(seteuid(THEIRS), 0); /* whose listen() it is counts */
    f = fake_start(&(struct fake_config){0});
    cr_assert_eq(seteuid(0), 0);
    cb_options_init(&o);
    o.run_dir = fake_dir(f);
    snprintf(path, sizeof(path), "%s/default", fake_dir(f));
    cr_assert(!chmod(fake_dir(f), 0755) && !chmod(path, 0755));
    snprintf(path, sizeof(path), "%s/default/sock", fake_dir(f));
    cr_assert_eq(chmod(path, 0777), 0);
    cr_assert_eq(open_as(MINE, &o), CB_UNTRUSTED);
    cr_assert_eq(open_as(THEIRS, &o), 0);
    o.trusted_uids = &uid;
    o.n_trusted_uids = 1;
    cr_assert_eq(open_as(MINE, &o), 0, "%s", cb_message());
    cr_assert_eq(chmod(path, 0700), 0);
    cr_assert_eq(open_as(MINE, &o), CB_DENIED);
    fake_stop(f);
}

Test(connect, bad_options)
{
    struct cb_options o;
    struct cb_handle *h;
    cb_options_init(&o);
    o.size = 8;
    cr_assert_eq(cb_open(&h, &o), CB_INVALID);
    expect_message("cb_options_init");
    cb_options_init(&o);
    o.wait_mode = 3;
    cr_assert_eq(cb_open(&h, &o), CB_INVALID);
    cb_options_init(&o);
    o.instance = "../x";
    cr_assert_eq(cb_open(&h, &o), CB_INVALID);
    cr_assert_eq(cb_open(NULL, NULL), CB_INVALID);
    cb_close(NULL);
}

Test(connect, no_descriptor_is_left)
{
    struct fake *f = fake_start(&(struct fake_config){0});
    int before = dup(0), after;
    close(before);
    for (int i = 0; i < 50; i++) {
        struct cb_handle *h;
        cr_assert_eq(open_at(&h, fake_dir(f)), 0);
        cb_close(h);
    }
    usleep(50000); /* for the fake's own end of the last one */
    after = dup(0);
    close(after);
    cr_assert(after <= before + 1, "%d, then %d", before, after);
    fake_stop(f);
}
