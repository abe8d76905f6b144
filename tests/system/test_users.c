/* Who may do what: clients as root and as an unprivileged uid against a daemon of root's. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/system/storm.h"
#include "tools/talk.h"

TestSuite(users, .timeout = 120);

#define NOBODY 65534

static bool is_root(void)
{
    if (geteuid() == 0)
        return true;
    fprintf(stderr, "skipped: only root can become another user\n");
    return false;
}

/* Opens and expects this status. */
static void tries(struct crowd *c, uint32_t i, void *arg)
{
    struct cb_options options;
    struct cb_handle *h;
    (void)i;
    cb_options_init(&options);
    int r = system_try_open(c->system, &options, &h);
    member_expect(c, r == *(const int *)arg, "cb_open gives %d: %s", r, cb_message());
    cb_close(h);
}

Test(users, socket_mode_decides_who_connects)
{
    static const struct {
        const char *mode;
        int status;
    } ways[] = {{"0666", CB_OK}, {"0660", CB_DENIED}, {"0600", CB_DENIED}};
    if (!is_root())
        return;
    for (int i = 0; i < 3; i++) {
        struct system s;
        struct crowd c;
        system_init(&s);
        system_start(&s, SETTINGS("--model", "null", "--socket_mode", ways[i].mode,
                                  "--socket_trust", "true"));
        crowd_init(&c, &s);
        crowd_add_as(&c, NOBODY, tries, (void *)&ways[i].status);
        crowd_add(&c, tries, &(int){CB_OK});
        crowd_join(&c);
        crowd_fini(&c);
        system_settle(&s);
        system_fini(&s);
    }
}

Test(users, both_at_once_get_what_each_gets_alone)
{
    struct storm st;
    struct system s;
    struct crowd c;
    if (!is_root())
        return;
    system_init(&s);
    system_start(&s,
                 SETTINGS("--model", "null", "--socket_mode", "0666", "--socket_trust", "true"));
    storm_init(&st, &(struct storm_scale){.seed = 41,
                                          .n_vocab = 49152,
                                          .n_distinct = 64,
                                          .prompt_usual = 30,
                                          .prompt_max = 200,
                                          .new_usual = 20,
                                          .new_max = 100});
    storm_answer_all(&st, &s);
    struct storm_member member = {.storm = &st, .n_rounds = 2, .cancels = true};
    crowd_init(&c, &s);
    for (uint32_t i = 0; i < 8; i++)
        crowd_add_as(&c, i % 2 ? NOBODY : 0, storm_member_run, &member);
    crowd_join(&c);
    crowd_fini(&c);
    system_settle(&s);
    system_fini(&s);
    storm_fini(&st);
}

/* ---- commands -------------------------------------------------------------------------------- */

static void command(struct crowd *c, const char *name, const char *argument, int status)
{
    json_t *reply;
    int r = talk(c->system->instance, name, argument, &reply);
    member_expect(c, r == status, "%s gives %d: %s", name, r, cb_message());
    if (r == CB_DENIED) {
        const char *words = json_string_value(json_object_get(reply, "error"));
        member_expect(c, words && strstr(words, "admin_group"), "%s: %s", name, words);
    }
    json_decref(reply);
}

/* As nobody, while lane `arg` is root's and has a request. */
static void commands_of_nobody(struct crowd *c, uint32_t i, void *arg)
{
    char lane[16];
    json_t *reply;
    (void)i;
    setenv("CBD_RUNTIME_DIR", c->system->dir, 1);
    snprintf(lane, sizeof lane, "%u", *(const uint32_t *)arg);
    command(c, "settings", "", 0);
    command(c, "drain", "", CB_DENIED);
    command(c, "stop", "", CB_DENIED);
    command(c, "stage-weights", "15", CB_DENIED);
    command(c, "load-weights", "0123456789abcdef0123456789abcdef", CB_DENIED);
    command(c, "stop", "hard", CB_DENIED);
    command(c, "pause", "", CB_DENIED);
    command(c, "pause", "hold", CB_DENIED);
    command(c, "resume", "", CB_DENIED);
    command(c, "resume", "all", CB_DENIED);
    command(c, "why", lane, CB_DENIED);
    command(c, "set", "net_ms=200", CB_DENIED);
    command(c, "cancel", lane, CB_DENIED);
    strcat(lane, ":0");
    command(c, "cancel", lane, CB_DENIED);
    command(c, "nonsense", "", CB_BAD_COMMAND);
    /* It is shown nothing of others. */
    member_expect(c, talk(c->system->instance, "requests", "", &reply) == 0, "%s", cb_message());
    member_expect(c, json_array_size(json_object_get(reply, "requests")) == 0, "others' requests");
    json_decref(reply);
    member_expect(c, talk(c->system->instance, "clients", "", &reply) == 0, "%s", cb_message());
    member_expect(c, json_array_size(json_object_get(reply, "clients")) == 1, "others' clients");
    json_decref(reply);
}

/* As nobody: its own may be cancelled by root. */
static void cancelled_by_root(struct crowd *c, uint32_t i, void *arg)
{
    static const uint32_t prompt[] = {1, 2};
    struct cb_handle *h = crowd_open(c, NULL);
    struct cb_event event;
    struct cb_request r;
    uint64_t id;
    (void)i;
    (void)arg;
    cb_request_init(&r);
    r.ids = prompt;
    r.n_ids = 2;
    r.max_new_tokens = 100000;
    r.flags = CB_IGNORE_EOS | CB_FINAL_ONLY;
    member_expect(c, cb_submit(h, &r, &id) == 0, "%s", cb_message());
    crowd_there(c);
    member_expect(c, cb_wait(h, id, &event, HANG_MS) == 1, "%s", cb_message());
    member_expect(c, event.end == CB_END_CANCELLED, "end %u", event.end);
    cb_close(h);
}

Test(users, commands_that_touch_others)
{
    static const uint32_t prompt[] = {1, 2};
    struct system s;
    struct crowd c;
    struct cb_event event;
    struct cb_request r;
    struct cb_info info;
    uint64_t id;
    char lane[16];
    if (!is_root())
        return;
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null", "--socket_mode", "0666", "--socket_trust", "true",
                              "--null_step_us", "1000"));
    struct cb_handle *h = system_open(&s, NULL);
    cr_assert_eq(cb_info(h, &info), 0);
    cb_request_init(&r);
    r.ids = prompt;
    r.n_ids = 2;
    r.max_new_tokens = 100000;
    r.flags = CB_IGNORE_EOS;
    cr_assert_eq(cb_submit(h, &r, &id), 0, "%s", cb_message());
    cr_assert_eq(cb_wait(h, id, &event, HANG_MS), 1);
    crowd_init(&c, &s);
    crowd_add_as(&c, NOBODY, commands_of_nobody, &info.lane_id);
    crowd_join(&c);
    cr_assert_eq(cb_wait(h, id, &event, HANG_MS), 1);
    cr_assert_eq(event.type, CB_EVENT_TOKENS, "root's request ended with %u", event.end);
    cb_close(h);

    crowd_add_as(&c, NOBODY, cancelled_by_root, NULL);
    crowd_await(&c, 1);
    system_await(&s, "requests_accepted", 2);
    json_t *reply = system_cbctl(&s, SETTINGS("requests"));
    json_t *list = json_is_array(reply) ? reply : json_object_get(reply, "requests");
    const json_t *row = json_array_get(list, json_array_size(list) - 1);
    cr_assert_eq(json_integer_value(json_object_get(row, "uid")), NOBODY);
    snprintf(lane, sizeof lane, "%d", (int)json_integer_value(json_object_get(row, "lane")));
    json_decref(reply);
    json_decref(system_cbctl(&s, SETTINGS("cancel", lane)));
    crowd_join(&c);
    crowd_fini(&c);
    system_settle(&s);
    system_fini(&s);
}

/* A daemon of another user than root is not trusted unless it is named. */
static void distrusts(struct crowd *c, uint32_t i, void *arg)
{
    const uint32_t trusted[] = {NOBODY};
    struct cb_options options;
    struct cb_handle *h;
    (void)i;
    (void)arg;
    cb_options_init(&options);
    int r = system_try_open(c->system, &options, &h);
    member_expect(c, r == CB_UNTRUSTED && !h, "cb_open gives %d", r);
    options.trusted_uids = trusted;
    options.n_trusted_uids = 1;
    r = system_try_open(c->system, &options, &h);
    member_expect(c, r == 0, "cb_open gives %d: %s", r, cb_message());
    cb_close(h);
}

Test(users, a_daemon_of_another_user_is_not_trusted)
{
    struct system s;
    struct crowd c;
    if (!is_root())
        return;
    system_init(&s);
    cr_assert_eq(chown(s.dir, NOBODY, NOBODY), 0);
    system_spawn_as(&s, NOBODY,
                    SETTINGS("--model", "null", "--socket_mode", "0666", "--socket_trust", "true"));
    cr_assert(system_is_ready(&s));
    crowd_init(&c, &s);
    crowd_add(&c, distrusts, NULL); /* root */
    crowd_add_as(&c, 1234, distrusts, NULL);
    crowd_join(&c);
    crowd_fini(&c);
    system_fini(&s);
}
