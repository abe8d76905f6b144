/* Lanes by name on the real daemon, sandbox and all: they give what others give, to those who are listed,
 * where there is room and a common place. What they withstand: test_named_harm.c. */
#include <criterion/criterion.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/system/named.h"

TestSuite(named, .timeout = 180);

/* ---- what they give -------------------------------------------------------------------------- */

Test(named, they_give_what_others_give_bit_for_bit)
{
    struct storm st;
    struct system s;
    struct crowd c;
    if (!named_is_root())
        return;
    system_init(&s);
    system_start(&s, SETTINGS(NAMED_DAEMON));
    cr_expect_eq(named_count(&s, ".vocab"), 1);
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
    cr_expect_eq(named_count_lanes(&s), 0);
    system_settle(&s);
    cr_expect_eq(system_counter(&s, "lanes_named"), 0);
    cr_expect_eq(system_counter(&s, "wake_missed"), 0);
    cr_expect_eq(system_counter(&s, "lane_broken"), 0);
    storm_fini(&st);
    system_fini(&s);
    cr_expect_eq(named_count(&s, ".vocab"), 0);
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

Test(named, a_client_of_posix_calls_only_is_woken_by_its_semaphore)
{
    struct posix_client p;
    struct system s;
    uint32_t bell;
    if (!named_is_root())
        return;
    system_init(&s);
    system_start(&s, SETTINGS(NAMED_DAEMON, "--null_step_us", "20000"));
    cr_assert(posix_open(&p, &s));
    cr_expect_eq(named_count_lanes(&s), 3);
    cr_assert(raw_send_plain(&p.raw, CB_RECORD_READY));
    named_await_no_lanes(&s);
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
    if (!named_is_root())
        return;
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null", "--named_uids", "65534", "--socket_mode", "0666",
                              "--socket_trust", "true"));
    crowd_init(&c, &s);
    crowd_add_as(&c, STRANGER, is_denied, NULL);
    crowd_add_as(&c, 0, is_denied, NULL);
    crowd_join(&c);
    crowd_fini(&c);
    cr_expect_eq(named_count_lanes(&s), 0);
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
    cr_expect_eq(named_count(&s, ".vocab"), 0);
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
    if (!named_is_root())
        return;
    system_init(&s);
    system_start(&s, SETTINGS(NAMED_DAEMON));
    cr_assert(posix_greet(&p, &s));
    crowd_init(&c, &s);
    crowd_add_as(&c, NOBODY, tries_all_names, &p); /* listed, but it is not his lane */
    crowd_join(&c);
    crowd_fini(&c);
    posix_close(&p);
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
    if (!named_is_root() || !own_dev_shm("size=12m"))
        return;
    system_init(&s);
    system_start(&s, SETTINGS(NAMED_DAEMON));
    system_expect_log(&s, "/dev/shm has 10 MiB free, for 3 of the usual ones");
    cb_options_init(&options);
    options.named = 1;
    while ((r = system_try_open(&s, &options, &h[n])) == 0)
        cr_assert_lt(++n, 16);
    cr_expect_eq(r, CB_QUOTA, "%s", cb_message());
    cr_expect(strstr(cb_message(), "/dev/shm") && strstr(cb_message(), "--shm-size"), "%s",
              cb_message());
    cr_expect_eq(n, 3);
    cr_expect_eq(named_count_lanes(&s), 0);
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
    if (!named_is_root() || !own_dev_shm("size=64k"))
        return;
    system_init(&s);
    system_spawn_as(&s, 0, SETTINGS(NAMED_DAEMON));
    cr_expect_not(system_is_ready(&s));
    cr_expect_eq(system_wait(&s), 1);
    system_expect_log(&s, "no room in /dev/shm");
    system_expect_log(&s, "named_uids");
    cr_expect_eq(named_count(&s, ""), 0);
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
    if (!named_is_root() || !can(unshare(CLONE_NEWNS) == 0, "no mount namespace of one's own here"))
        return;
    system_init(&s);
    system_start(&s, SETTINGS(NAMED_DAEMON));
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
