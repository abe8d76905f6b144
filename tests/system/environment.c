#include "tests/system/environment.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <seccomp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

bool can(bool is_done, const char *what)
{
    if (!is_done)
        fprintf(stderr, "skipped: %s: %s\n", what, strerror(errno));
    return is_done;
}

bool write_text(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool done = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0)
        close(fd);
    return done;
}

bool deny(int call, unsigned arg, uint64_t value, int error)
{
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ALLOW);
    const struct scmp_arg_cmp when = {arg, SCMP_CMP_EQ, value, 0};
    bool always = arg > 5;
    bool done = filter &&
                seccomp_rule_add_array(filter, SCMP_ACT_ERRNO((uint32_t)error), call, !always,
                                       &when) == 0 &&
                seccomp_load(filter) == 0;
    seccomp_release(filter);
    return can(done, "no filter of system calls here");
}

const struct storm_scale environment_scale = {.seed = 71,
                                              .n_vocab = 49152,
                                              .n_distinct = 16,
                                              .prompt_usual = 30,
                                              .prompt_max = 200,
                                              .new_usual = 20,
                                              .new_max = 60};

void expect_service(const struct system *s)
{
    struct storm st;
    struct crowd c;
    storm_init(&st, &environment_scale);
    storm_answer_all(&st, s);
    struct storm_member member = {.storm = &st, .n_rounds = 2, .cancels = true};
    crowd_init(&c, s);
    for (uint32_t i = 0; i < 6; i++)
        crowd_add(&c, storm_member_run, &member);
    crowd_signal(&c, 0, SIGKILL);
    crowd_join(&c);
    crowd_fini(&c);
    system_settle(s);
    storm_fini(&st);
}

uint64_t service_submit(struct cb_handle *h, uint32_t n_new, uint32_t deadline_ms)
{
    const uint32_t prompt[3] = {5, 6, 7};
    struct cb_request r;
    uint64_t id;
    cb_request_init(&r);
    r.ids = prompt;
    r.n_ids = 3;
    r.max_new_tokens = n_new;
    r.flags = CB_IGNORE_EOS;
    r.deadline_ms = deadline_ms;
    cr_assert_eq(cb_submit(h, &r, &id), 0, "%s", cb_message());
    return id;
}

uint32_t service_end(struct cb_handle *h, uint64_t id)
{
    struct cb_event event;
    do
        cr_assert_eq(cb_wait(h, id, &event, HANG_MS), 1, "%s", cb_message());
    while (event.type == CB_EVENT_TOKENS);
    cr_assert_eq(event.type, CB_EVENT_END, "%s", cb_strerror(event.status));
    cr_assert_eq(cb_release(h, id), 0);
    return event.end;
}

void expects_open(struct crowd *c, uint32_t i, void *arg)
{
    struct cb_options options;
    struct cb_handle *h;
    (void)i;
    cb_options_init(&options);
    int r = system_try_open(c->system, &options, &h);
    member_expect(c, r == *(const int *)arg, "cb_open gives %d: %s", r, cb_message());
    cb_close(h);
}
