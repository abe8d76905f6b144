/* Lanes by name on the real daemon, sandbox and all: they give what others give, only to those who are
 * listed; what can be taken beforehand, cut short or left behind harms nobody. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <gnu/libc-version.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/system/environment.h"
#include "tests/system/raw.h"
#include "tests/system/stream.h"

/* clang-format off: cbclient.h spells out the enums that status.h has, so it comes first */
#include "shm/lane.h"
#include "shm/message.h"
#include "shm/names.h"
/* clang-format on */

TestSuite(named, .timeout = 180);

enum { STRANGER = 21000, N_STRANGERS = 3 };

#define DAEMON                                                                               \
    "--model", "null", "--named_uids", "0,65534,21000,21001,21002", "--socket_mode", "0666", \
        "--socket_trust", "true"

static bool is_root(void)
{
    if (geteuid() == 0)
        return true;
    fprintf(stderr, "skipped: only root can become another user\n");
    return false;
}

/* Names of this test's daemons in /dev/shm that end so. */
static int n_names(const struct system *s, const char *end)
{
    DIR *d = opendir("/dev/shm");
    struct dirent *e;
    int n = 0;
    while (d && (e = readdir(d))) {
        size_t bytes = strlen(e->d_name), skip = strlen(end);
        n += strstr(e->d_name, s->instance) && bytes > skip &&
             strcmp(e->d_name + bytes - skip, end) == 0;
    }
    if (d)
        closedir(d);
    return n;
}

static int n_lane_names(const struct system *s)
{
    return n_names(s, ".up") + n_names(s, ".down") + n_names(s, ".bell");
}

static void await_no_lane_names(const struct system *s)
{
    for (uint64_t end = now_ms() + HANG_MS; n_lane_names(s) && now_ms() < end;)
        nap();
    cr_expect_eq(n_lane_names(s), 0);
}

/* ---- what they give -------------------------------------------------------------------------- */

Test(named, they_give_what_others_give_bit_for_bit)
{
    struct storm st;
    struct system s;
    struct crowd c;
    if (!is_root())
        return;
    system_init(&s);
    system_start(&s, SETTINGS(DAEMON));
    cr_expect_eq(n_names(&s, ".vocab"), 1);
    storm_init(&st, &environment_scale);
    storm_answer_all(&st, &s); /* over descriptors */
    struct storm_member members[4];
    crowd_init(&c, &s);
    for (uint32_t i = 0; i < 12; i++) {
        members[i % 4] = (struct storm_member){
            .storm = &st, .n_rounds = 3, .cancels = true, .kind = i % 2, .named = i % 4 < 3};
        crowd_add_as(&c, i % 3 ? NOBODY : 0, storm_member_run, &members[i % 4]);
    }
    crowd_join(&c);
    crowd_fini(&c);
    cr_expect_eq(n_lane_names(&s), 0);
    system_settle(&s);
    cr_expect_eq(system_counter(&s, "lanes_named"), 0);
    cr_expect_eq(system_counter(&s, "wake_missed"), 0);
    cr_expect_eq(system_counter(&s, "lane_broken"), 0);
    storm_fini(&st);
    system_fini(&s);
    cr_expect_eq(n_names(&s, ".vocab"), 0);
}

Test(named, the_text_of_a_real_model_too)
{
    const char *model = default_model();
    struct system s;
    if (!model)
        return;
    char uid[16];
    snprintf(uid, sizeof uid, "%u", (unsigned)geteuid());
    system_init(&s);
    system_start(&s, SETTINGS("--model", model, "--named_uids", uid, "--num_blocks", "8"));
    struct output a =
        system_run(&s, NULL, "cbctl", SETTINGS("-i", s.instance, "run", "-n", "12", "Once upon a"));
    struct output b = system_run(
        &s, NULL, "cbctl", SETTINGS("-i", s.instance, "run", "--named", "-n", "12", "Once upon a"));
    cr_expect_eq(a.status, 0, "%s", a.err);
    cr_expect_eq(b.status, 0, "%s", b.err);
    cr_expect_str_eq(a.out, b.out);
    output_free(&a);
    output_free(&b);
    system_fini(&s);
}

/* A client that is not the library: nothing but what POSIX has. */
struct posix_client {
    struct raw raw;
    struct cb_names_record names;
    sem_t *bell;
    struct cb_lane_client *lc;
};

static bool posix_map(const char *base, const char *part, int flags, size_t bytes, void **p)
{
    char name[128];
    snprintf(name, sizeof name, "%s.%s", base, part);
    int fd = shm_open(name, flags, 0);
    *p = fd < 0 ? MAP_FAILED
                : mmap(NULL, bytes, flags == O_RDWR ? PROT_READ | PROT_WRITE : PROT_READ,
                       MAP_SHARED, fd, 0);
    if (fd >= 0)
        close(fd);
    return *p != MAP_FAILED;
}

/* Up to WELCOME and NAMES. */
static bool posix_greet(struct posix_client *p, const struct system *s)
{
    struct cb_hello hello = raw_hello();
    _Alignas(8) char record[CB_RECORD_BYTES];
    memset(p, 0, sizeof *p);
    hello.features = CB_FEATURE_NAMED;
    snprintf(hello.libc, sizeof hello.libc, "glibc-%s", gnu_get_libc_version());
    if (!raw_connect(&p->raw, s) || !raw_send(&p->raw, &hello, sizeof hello) ||
        raw_receive(&p->raw, record) != CB_RECORD_WELCOME)
        return false;
    memcpy(&p->raw.welcome, record, sizeof p->raw.welcome);
    return raw_receive(&p->raw, &p->names) == CB_RECORD_NAMES;
}

/* All but READY. */
static bool posix_open(struct posix_client *p, const struct system *s)
{
    char name[128];
    void *up, *down, *vocab;
    if (!posix_greet(p, s))
        return false;
    const struct cb_geometry *g = &p->raw.welcome.geometry;
    snprintf(name, sizeof name, "%s.bell", p->names.lane);
    p->bell = sem_open(name, 0);
    if (p->bell == SEM_FAILED || !posix_map(p->names.lane, "up", O_RDWR, g->up_bytes, &up) ||
        !posix_map(p->names.lane, "down", O_RDONLY, g->down_bytes, &down) ||
        !posix_map(p->names.vocab, "vocab", O_RDONLY, p->raw.welcome.vocab_bytes, &vocab))
        return false;
    munmap(vocab, p->raw.welcome.vocab_bytes);
    p->raw.up = (struct cb_segment){up, g->up_bytes};
    p->raw.down = (struct cb_segment){down, g->down_bytes};
    void *memory = calloc(1, cb_lane_client_bytes(g));
    return memory && cb_lane_client_init(&p->lc, memory, g, up, down) == 0;
}

static void posix_close(struct posix_client *p)
{
    if (p->bell && p->bell != SEM_FAILED)
        sem_close(p->bell);
    raw_close(&p->raw);
    free(p->lc);
}

/* A request of n tokens. */
static void posix_submit(struct posix_client *p, uint32_t n)
{
    const uint32_t ids[4] = {11, 12, 13, 14};
    struct cb_request_entry e;
    cb_message_init(&e);
    e.n_prompt = 4;
    e.max_new_tokens = n;
    e.flags = CB_FLAG_IGNORE_EOS;
    cb_lane_client_write_arena(p->lc, 0, ids, sizeof ids);
    (void)cb_lane_client_submit(p->lc, &e);
    raw_send_plain(&p->raw, CB_RECORD_BELL);
}

Test(named, a_client_of_posix_calls_only_is_woken_by_its_semaphore)
{
    struct posix_client p;
    struct system s;
    uint32_t bell;
    if (!is_root())
        return;
    system_init(&s);
    system_start(&s, SETTINGS(DAEMON, "--null_step_us", "20000"));
    cr_assert(posix_open(&p, &s));
    cr_expect_eq(n_lane_names(&s), 3);
    cr_assert(raw_send_plain(&p.raw, CB_RECORD_READY));
    await_no_lane_names(&s);
    posix_submit(&p, 5);
    for (bool is_over = false; !is_over;) {
        struct cb_result_entry e;
        while (sem_trywait(p.bell) == 0)
            ;
        if (cb_lane_client_park(p.lc, &bell) == CB_LANE_NOTHING) {
            struct timespec until;
            clock_gettime(CLOCK_REALTIME, &until);
            until.tv_sec += HANG_MS / 1000;
            cr_assert_eq(sem_timedwait(p.bell, &until), 0, "no bell came");
        }
        cb_lane_client_unpark(p.lc);
        while (cb_lane_client_poll(p.lc, &e) & CB_LANE_ENTRY)
            is_over |= e.type == CB_RESULT_FINISHED;
    }
    posix_close(&p);
    system_settle(&s);
    system_fini(&s);
}

/* ---- to whom --------------------------------------------------------------------------------- */

static void is_denied(struct crowd *c, uint32_t i, void *arg)
{
    struct cb_options options;
    struct cb_handle *h;
    (void)i;
    (void)arg;
    cb_options_init(&options);
    options.named = 1;
    int r = system_try_open(c->system, &options, &h);
    member_expect(c, r == CB_DENIED, "cb_open gives %d: %s", r, cb_message());
    member_expect(c, strstr(cb_message(), "named_uids"), "%s", cb_message());
    options.named = 0;
    h = crowd_open(c, &options); /* but the usual one is his */
    cb_close(h);
}

Test(named, only_to_those_who_are_listed)
{
    struct system s;
    struct crowd c;
    if (!is_root())
        return;
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null", "--named_uids", "65534", "--socket_mode", "0666",
                              "--socket_trust", "true"));
    crowd_init(&c, &s);
    crowd_add_as(&c, STRANGER, is_denied, NULL);
    crowd_add_as(&c, 0, is_denied, NULL);
    crowd_join(&c);
    crowd_fini(&c);
    cr_expect_eq(n_lane_names(&s), 0);
    cr_expect_geq(system_counter(&s, "lanes_refused"), 2);
    system_settle(&s);
    system_fini(&s);
}

Test(named, without_the_setting_to_nobody)
{
    struct system s;
    struct crowd c;
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null"));
    cr_expect_eq(n_names(&s, ".vocab"), 0);
    crowd_init(&c, &s);
    crowd_add(&c, is_denied, NULL);
    crowd_join(&c);
    crowd_fini(&c);
    system_settle(&s);
    system_fini(&s);
}

static void tries_all_names(struct crowd *c, uint32_t i, void *arg)
{
    const struct posix_client *p = arg;
    struct cb_why why;
    (void)i;
    for (int part = 0; part <= CB_NAMES_BELL; part++)
        for (int writable = 0; writable < 2; writable++)
            member_expect(c,
                          cb_names_open(p->names.lane, (enum cb_names_part)part, writable,
                                        (uid_t)-1, &why) == -EACCES,
                          "part %d is open to a stranger: %s", part, why.text);
}

Test(named, names_are_open_to_no_third_user)
{
    struct posix_client p;
    struct system s;
    struct crowd c;
    if (!is_root())
        return;
    system_init(&s);
    system_start(&s, SETTINGS(DAEMON));
    cr_assert(posix_greet(&p, &s));
    crowd_init(&c, &s);
    crowd_add_as(&c, NOBODY, tries_all_names, &p); /* listed, but it is not his lane */
    crowd_join(&c);
    crowd_fini(&c);
    posix_close(&p);
    system_settle(&s);
    system_fini(&s);
}

/* ---- what is cut short ----------------------------------------------------------------------- */

/* Cuts its own lane in the midst of a request, and sees that the lane is over. */
static void cutter(struct crowd *c, uint32_t i, void *arg)
{
    const enum cb_names_part part = *(const enum cb_names_part *)arg;
    struct posix_client p;
    struct cb_why why;
    uint32_t bell;
    _Alignas(8) char record[CB_RECORD_BYTES];
    (void)i;
    member_expect(c, posix_open(&p, c->system), "no lane");
    int fd = cb_names_open(p.names.lane, part, true, (uid_t)-1, &why);
    member_expect(c, fd >= 0, "%s", why.text);
    raw_send_plain(&p.raw, CB_RECORD_READY);
    posix_submit(&p, 1000);
    (void)cb_lane_client_park(p.lc, &bell);
    member_expect(c, ftruncate(fd, 0) == 0, "%s", strerror(errno));
    int type;
    do {
        raw_send_plain(&p.raw, CB_RECORD_BELL);
        type = raw_receive(&p.raw, record);
        crowd_move(c);
    } while (type > 0);
    member_expect(c, type == 0, "part %d: the lane goes on", part);
    close(fd);
}

Test(named, what_is_cut_short_breaks_one_lane)
{
    static const enum cb_names_part parts[N_STRANGERS] = {CB_NAMES_UP, CB_NAMES_BELL,
                                                          CB_NAMES_DOWN};
    struct storm st;
    struct system s;
    struct crowd c;
    if (!is_root())
        return;
    storm_init(&st, &environment_scale);
    system_init(&s);
    system_start(&s, SETTINGS(DAEMON, "--null_step_us", "200"));
    storm_answer_all(&st, &s);
    const struct storm_member by_name = {.storm = &st, .n_rounds = 4, .named = 1};
    const struct storm_member plain = {.storm = &st, .n_rounds = 4};
    crowd_init(&c, &s);
    crowd_add_as(&c, NOBODY, storm_member_run, (void *)&by_name);
    crowd_add_as(&c, NOBODY, storm_member_run, (void *)&plain);
    /* DOWN only the daemon's own user can write. */
    for (int i = 0; i < N_STRANGERS; i++)
        crowd_add_as(&c, i == 2 ? 0 : STRANGER + (uid_t)i, cutter, (void *)&parts[i]);
    crowd_join(&c);
    crowd_fini(&c);
    cr_expect_eq(system_counter(&s, "lane_broken"), N_STRANGERS);
    system_settle(&s);
    storm_fini(&st);
    system_fini(&s);
}

/* STATUS has a name for good. */
Test(named, status_cut_short_is_said_and_all_goes_on)
{
    char path[128];
    struct system s;
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null"));
    snprintf(path, sizeof path, "/dev/shm/cbd.%u.%s.status", (unsigned)geteuid(), s.instance);
    struct cb_handle *h = system_open(&s, NULL);
    cr_assert_eq(truncate(path, 0), 0);
    for (int i = 0; i < 3; i++)
        cr_expect_eq(service_end(h, service_submit(h, 5, 0)), CB_END_LENGTH);
    cb_close(h);
    h = system_open(&s, NULL);
    cr_expect_eq(service_end(h, service_submit(h, 5, 0)), CB_END_LENGTH);
    cb_close(h);
    system_expect_log(&s, "the STATUS page was cut short");
    system_signal(&s, SIGTERM);
    cr_expect_eq(system_wait(&s), 0);
    cr_expect_eq(access(path, F_OK), -1, "its name is left");
    system_start(&s, SETTINGS("--model", "null"));
    system_fini(&s);
}

/* ---- what is left ---------------------------------------------------------------------------- */

static void half_open(struct crowd *c, uint32_t i, void *arg)
{
    struct posix_client p;
    (void)i;
    (void)arg;
    member_expect(c, posix_open(&p, c->system), "no lane");
    crowd_there(c);
    crowd_hold(c, 1);
}

static void open_and_busy(struct crowd *c, uint32_t i, void *arg)
{
    struct cb_options options;
    struct cb_event event;
    (void)i;
    (void)arg;
    cb_options_init(&options);
    options.named = 1;
    struct cb_handle *h = crowd_open(c, &options);
    (void)service_submit(h, 100000, 0);
    member_expect(c, cb_wait(h, 0, &event, HANG_MS) == 1, "%s", cb_message());
    crowd_there(c);
    crowd_hold(c, 1);
}

Test(named, names_and_memory_go_with_a_client_that_is_killed)
{
    struct system s;
    struct crowd c;
    if (!is_root())
        return;
    system_init(&s);
    system_start(&s, SETTINGS(DAEMON, "--null_step_us", "200"));
    crowd_init(&c, &s);
    for (uint32_t i = 0; i < 3; i++)
        crowd_add_as(&c, NOBODY, half_open, NULL);
    crowd_add(&c, open_and_busy, NULL);
    crowd_await(&c, 4);
    for (uint32_t i = 0; i < 4; i++)
        crowd_signal(&c, i, SIGKILL);
    await_no_lane_names(&s);
    crowd_fini(&c);
    system_settle(&s);
    system_fini(&s);
}

Test(named, what_a_killed_daemon_left_goes_with_the_next_start)
{
    struct posix_client p;
    struct system s, other;
    struct stat st;
    char path[160], made_up[160];
    if (!is_root())
        return;
    system_init(&other); /* of the same user */
    system_start(&other, SETTINGS(DAEMON));
    system_init(&s);
    system_start(&s, SETTINGS(DAEMON));
    cr_assert(posix_greet(&p, &s));
    system_signal(&s, SIGKILL);
    cr_assert_eq(system_wait(&s), -SIGKILL);
    cr_expect_eq(n_lane_names(&s), 3);
    cr_expect_eq(n_names(&s, ".vocab"), 1);
    /* Another user sees the names, and makes more of them. */
    snprintf(made_up, sizeof made_up, "/dev/shm/cbd.0.%s.%032x.up", s.instance, 7);
    int fd = open(made_up, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    cr_assert(fd >= 0 && fchown(fd, NOBODY, NOBODY) == 0);
    close(fd);
    snprintf(path, sizeof path, "/dev/shm%s.up", p.names.lane);
    cr_assert_eq(stat(path, &st), 0);
    posix_close(&p);
    system_spawn_as(&s, 0, SETTINGS(DAEMON));
    cr_assert(system_is_ready(&s));
    cr_expect_eq(n_lane_names(&s), 1, "the made up one");
    cr_expect_eq(n_names(&s, ".vocab"), 1);
    cr_expect_eq(n_names(&other, ".vocab"), 1);
    cr_expect_eq(stat(made_up, &st), 0);
    cr_expect_eq(st.st_uid, NOBODY);
    unlink(made_up);
    system_note(&s);
    expect_service(&s);
    system_fini(&s);
    system_fini(&other);
}

static void goes_on(struct crowd *c, uint32_t i, void *arg)
{
    const struct streams *st = arg;
    enum stream_way way = (enum stream_way)(i % STREAM_WAYS);
    struct cb_options options;
    struct cb_info info;
    stream_options(&options, way);
    options.named = 1;
    struct cb_handle *h = crowd_open(c, &options);
    crowd_there(c);
    for (uint32_t k = 0; k < 4 || !atomic_load(&c->shared->go); k++)
        stream_run(c, st, h, (i + k) % STREAM_KINDS, way, HANG_MS);
    member_expect(c, cb_info(h, &info) == 0 && info.n_reconnects > 0, "it has seen no kill");
    member_expect(c, info.wake_missed == 0, "wakes were missed");
    cb_close(h);
}

Test(named, streams_outlive_the_daemon)
{
    static struct streams st;
    struct cb_options options;
    struct system s;
    struct crowd c;
    if (!is_root())
        return;
    system_init(&s);
    system_start(&s, SETTINGS(DAEMON, "--null_step_us", "500"));
    stream_options(&options, STREAM_WAIT);
    struct cb_handle *h = system_open(&s, &options);
    streams_learn(&st, h);
    cb_close(h);
    crowd_init(&c, &s);
    for (uint32_t i = 0; i < STREAM_WAYS; i++)
        crowd_add_as(&c, i % 2 ? NOBODY : 0, goes_on, &st);
    crowd_await(&c, STREAM_WAYS);
    for (int k = 0; k < 4; k++) {
        for (int i = 0; i < 50; i++)
            nap();
        system_signal(&s, SIGKILL);
        cr_assert_eq(system_wait(&s), -SIGKILL);
        system_spawn_as(&s, 0, SETTINGS(DAEMON, "--null_step_us", "500"));
        cr_assert(system_is_ready(&s));
    }
    atomic_store(&c.shared->go, 1);
    crowd_join(&c);
    crowd_fini(&c);
    cr_expect_eq(n_lane_names(&s), 0);
    system_settle(&s);
    system_fini(&s);
}

/* ---- no room, no common place ---------------------------------------------------------------- */

static bool own_dev_shm(const char *size)
{
    return can(unshare(CLONE_NEWNS) == 0 &&
                   mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
                   mount("none", "/dev/shm", "tmpfs", 0, size) == 0,
               "no mount namespace of one's own here");
}

Test(named, a_full_dev_shm_is_a_clear_error)
{
    struct cb_options options;
    struct cb_handle *h[16];
    struct system s;
    int n = 0, r;
    if (!is_root() || !own_dev_shm("size=12m"))
        return;
    system_init(&s);
    system_start(&s, SETTINGS(DAEMON));
    system_expect_log(&s, "/dev/shm has 10 MiB free, for 3 of the usual ones");
    cb_options_init(&options);
    options.named = 1;
    while ((r = system_try_open(&s, &options, &h[n])) == 0)
        cr_assert_lt(++n, 16);
    cr_expect_eq(r, CB_QUOTA, "%s", cb_message());
    cr_expect(strstr(cb_message(), "/dev/shm") && strstr(cb_message(), "--shm-size"), "%s",
              cb_message());
    cr_expect_eq(n, 3);
    cr_expect_eq(n_lane_names(&s), 0);
    cb_close(h[--n]); /* and with one less there is room again */
    for (uint64_t end = now_ms() + HANG_MS; r && now_ms() < end; nap())
        r = system_try_open(&s, &options, &h[n]);
    cr_expect_eq(r, 0, "%s", cb_message());
    cr_expect_eq(service_end(h[n], service_submit(h[n], 5, 0)), CB_END_LENGTH);
    for (; n >= 0; n--)
        cb_close(h[n]);
    expect_service(&s); /* by descriptors, of which none counts there */
    system_fini(&s);
}

Test(named, no_room_for_the_vocabulary_ends_the_start_with_words)
{
    struct system s;
    if (!is_root() || !own_dev_shm("size=64k"))
        return;
    system_init(&s);
    system_spawn_as(&s, 0, SETTINGS(DAEMON));
    cr_expect_not(system_is_ready(&s));
    cr_expect_eq(system_wait(&s), 1);
    system_expect_log(&s, "no room in /dev/shm");
    system_expect_log(&s, "named_uids");
    cr_expect_eq(n_names(&s, ""), 0);
    system_start(&s, SETTINGS("--model", "null"));
    system_fini(&s);
}

static void elsewhere(struct crowd *c, uint32_t i, void *arg)
{
    struct cb_options options;
    struct cb_handle *h;
    (void)i;
    (void)arg;
    member_expect(c, own_dev_shm("size=1m"), "no place of its own");
    cb_options_init(&options);
    options.named = 1;
    int r = system_try_open(c->system, &options, &h);
    member_expect(c, r == CB_SYSTEM && strstr(cb_message(), "the same /dev/shm"), "%d: %s", r,
                  cb_message());
    options.named = 0;
    h = crowd_open(c, &options);
    cb_close(h);
}

/* Of all namespaces it needs /dev/shm in common, and nothing else. */
static void in_a_container(struct crowd *c, uint32_t i, void *arg)
{
    int status;
    member_expect(c, unshare(CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWNET | CLONE_NEWNS) == 0, "%s",
                  strerror(errno));
    pid_t pid = fork();
    if (pid == 0) {
        storm_member_run(c, i, arg);
        _exit(0);
    }
    member_expect(c, waitpid(pid, &status, 0) == pid && status == 0, "it ended with %x",
                  (unsigned)status);
}

Test(named, containers_need_dev_shm_in_common)
{
    struct storm st;
    struct system s;
    struct crowd c;
    if (!is_root() || !can(unshare(CLONE_NEWNS) == 0, "no mount namespace of one's own here"))
        return;
    system_init(&s);
    system_start(&s, SETTINGS(DAEMON));
    storm_init(&st, &environment_scale);
    storm_answer_all(&st, &s);
    const struct storm_member by_name = {.storm = &st, .n_rounds = 2, .named = 1};
    crowd_init(&c, &s);
    crowd_add(&c, elsewhere, NULL);
    crowd_add(&c, in_a_container, (void *)&by_name);
    crowd_join(&c);
    crowd_fini(&c);
    system_settle(&s);
    storm_fini(&st);
    system_fini(&s);
}
