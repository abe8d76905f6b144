/* What is taken beforehand, written at random, cut short or left behind harms nobody but the one whose lane
 * it is. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/system/named.h"
#include "tests/system/stream.h"

TestSuite(named_harm, .timeout = 180);

/* ---- what stands in the bell ----------------------------------------------------------------- */

/* Writes into its semaphore what would have sem_post sleep for good, or abort: each behind the last. */
static void scribbler(struct crowd *c, uint32_t i, void *arg)
{
    struct posix_client p;
    uint32_t bell;
    (void)i;
    (void)arg;
    member_expect(c, posix_open(&p, c->system), "no lane");
    raw_send_plain(&p.raw, CB_RECORD_READY);
    volatile uint32_t *words = (volatile uint32_t *)(void *)p.bell;
    for (uint32_t k = 0; k < 512; k++) {
        struct cb_result_entry e;
        (void)cb_lane_client_park(p.lc, &bell);
        words[0] = k / 256; /* the count, who waits, and the flags of the system call */
        words[1] = UINT32_MAX;
        words[2] = words[3] = k;
        if (k % 64 == 0)
            posix_submit(&p, 100);
        nap();
        cb_lane_client_unpark(p.lc);
        while (cb_lane_client_poll(p.lc, &e) & CB_LANE_ENTRY)
            if (e.type == CB_RESULT_FINISHED)
                (void)cb_lane_client_free(p.lc, e.slot);
        crowd_move(c);
    }
    member_expect(c, !cb_lane_client_closed(p.lc), "what it writes there broke a rule");
    posix_close(&p);
}

Test(named_harm, whatever_stands_in_the_bell)
{
    struct storm st;
    struct system s;
    struct crowd c;
    if (!named_is_root())
        return;
    storm_init(&st, &environment_scale);
    system_init(&s);
    system_start(&s, SETTINGS(NAMED_DAEMON, "--null_step_us", "200"));
    storm_answer_all(&st, &s);
    const struct storm_member member = {.storm = &st, .n_rounds = 4, .named = 1};
    crowd_init(&c, &s);
    for (int i = 0; i < 3; i++)
        crowd_add_as(&c, NOBODY, storm_member_run, (void *)&member);
    for (int i = 0; i < N_STRANGERS; i++)
        crowd_add_as(&c, STRANGER + (uid_t)i, scribbler, NULL);
    crowd_join(&c);
    crowd_fini(&c);
    system_settle(&s);
    storm_fini(&st);
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

Test(named_harm, what_is_cut_short_breaks_one_lane)
{
    static const enum cb_names_part parts[N_STRANGERS] = {CB_NAMES_UP, CB_NAMES_BELL,
                                                          CB_NAMES_DOWN};
    struct storm st;
    struct system s;
    struct crowd c;
    if (!named_is_root())
        return;
    storm_init(&st, &environment_scale);
    system_init(&s);
    system_start(&s, SETTINGS(NAMED_DAEMON, "--null_step_us", "200"));
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
Test(named_harm, status_cut_short_is_said_and_all_goes_on)
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

Test(named_harm, names_and_memory_go_with_a_client_that_is_killed)
{
    struct system s;
    struct crowd c;
    if (!named_is_root())
        return;
    system_init(&s);
    system_start(&s, SETTINGS(NAMED_DAEMON, "--null_step_us", "200"));
    crowd_init(&c, &s);
    for (uint32_t i = 0; i < 3; i++)
        crowd_add_as(&c, NOBODY, half_open, NULL);
    crowd_add(&c, open_and_busy, NULL);
    crowd_await(&c, 4);
    for (uint32_t i = 0; i < 4; i++)
        crowd_signal(&c, i, SIGKILL);
    named_await_no_lanes(&s);
    crowd_fini(&c);
    system_settle(&s);
    system_fini(&s);
}

Test(named_harm, what_a_killed_daemon_left_goes_with_the_next_start)
{
    struct posix_client p;
    struct system s, other;
    struct stat st;
    char path[160], made_up[160];
    if (!named_is_root())
        return;
    system_init(&other); /* of the same user */
    system_start(&other, SETTINGS(NAMED_DAEMON));
    system_init(&s);
    system_start(&s, SETTINGS(NAMED_DAEMON));
    cr_assert(posix_greet(&p, &s));
    system_signal(&s, SIGKILL);
    cr_assert_eq(system_wait(&s), -SIGKILL);
    cr_expect_eq(named_count_lanes(&s), 3);
    cr_expect_eq(named_count(&s, ".vocab"), 1);
    /* Another user sees the names, and makes more of them. */
    snprintf(made_up, sizeof made_up, "/dev/shm/cbd.0.%s.%032x.up", s.instance, 7);
    int fd = open(made_up, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    cr_assert(fd >= 0 && fchown(fd, NOBODY, NOBODY) == 0);
    close(fd);
    snprintf(path, sizeof path, "/dev/shm%s.up", p.names.lane);
    cr_assert_eq(stat(path, &st), 0);
    posix_close(&p);
    system_spawn_as(&s, 0, SETTINGS(NAMED_DAEMON));
    cr_assert(system_is_ready(&s));
    cr_expect_eq(named_count_lanes(&s), 1, "the made up one");
    cr_expect_eq(named_count(&s, ".vocab"), 1);
    cr_expect_eq(named_count(&other, ".vocab"), 1);
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

static void killed(struct system *s)
{
    system_signal(s, SIGKILL);
    cr_assert_eq(system_wait(s), -SIGKILL);
    system_spawn_as(s, 0, SETTINGS(NAMED_DAEMON, "--null_step_us", "500"));
    cr_assert(system_is_ready(s));
}

static void upgraded(struct system *s)
{
    system_upgrade(s, SETTINGS("-i", s->instance, "upgrade", "--json"));
}

/* Four times, an even number: after an upgrade every other one can't have the plain name of STATUS. */
static void outlive(void (*next)(struct system *s))
{
    static struct streams st;
    struct cb_options options;
    struct system s;
    struct crowd c;
    if (!named_is_root())
        return;
    system_init(&s);
    system_start(&s, SETTINGS(NAMED_DAEMON, "--null_step_us", "500"));
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
        next(&s);
    }
    atomic_store(&c.shared->go, 1);
    crowd_join(&c);
    crowd_fini(&c);
    cr_expect_eq(named_count_lanes(&s), 0);
    cr_expect_eq(named_count(&s, ".vocab"), 1);
    system_settle(&s);
    system_fini(&s);
}

Test(named_harm, streams_outlive_daemons_that_are_killed)
{
    outlive(killed);
}

Test(named_harm, streams_outlive_daemons_that_are_replaced)
{
    outlive(upgraded);
}
