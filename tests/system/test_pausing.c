/* Pauses of the real daemon: by cbctl, whose processes come and go, and by clients of another. */
#include <criterion/criterion.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/system/fixture.h"

TestSuite(pausing, .timeout = 120);

static int control(const struct system *s, const char *const *words, char *err, size_t bytes)
{
    struct output o = system_run(s, NULL, "cbctl", words);
    int status = o.status;
    if (err)
        snprintf(err, bytes, "%s", o.err);
    output_free(&o);
    return status;
}

static uint64_t submit(struct cb_handle *h, uint32_t n_new)
{
    static const uint32_t prompt[] = {3, 1, 4, 1, 5};
    struct cb_request r;
    uint64_t id;
    cb_request_init(&r);
    r.ids = prompt;
    r.n_ids = 5;
    r.max_new_tokens = n_new;
    r.flags = CB_IGNORE_EOS;
    cr_assert_eq(cb_submit(h, &r, &id), 0, "%s", cb_message());
    return id;
}

static uint32_t n_made(struct cb_handle *h, uint64_t id)
{
    struct cb_result result;
    cr_assert_eq(cb_result(h, id, &result), 0);
    return result.n_generated;
}

static void await_paused(const struct system *s, uint64_t paused)
{
    for (uint64_t end = now_ms() + HANG_MS; system_counter(s, "paused") != paused; nap())
        cr_assert_lt(now_ms(), end, "paused is not %d", (int)paused);
}

Test(pausing, by_command_until_it_is_taken_back)
{
    struct system s;
    struct cb_event e = {0};
    char err[512];
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null", "--null_step_us", "200"));
    struct cb_handle *h = system_open(&s, NULL);
    uint64_t a = submit(h, 400), b;
    cr_assert_eq(cb_wait(h, a, &e, HANG_MS), 1);
    cr_assert_eq(control(&s, SETTINGS("-i", s.instance, "resume"), err, sizeof err), 1);
    cr_assert(strstr(err, "not paused"), "%s", err);
    cr_assert_eq(control(&s, SETTINGS("-i", s.instance, "pause"), NULL, 0), 0);
    uint64_t n_steps = system_counter(&s, "steps");
    uint32_t n = n_made(h, a);
    b = submit(h, 5);
    system_await(&s, "requests_accepted", 2);
    json_t *reply = system_cbctl(&s, SETTINGS("pause", "--json"));
    cr_assert_eq(json_integer_value(json_object_get(reply, "holders")), 2);
    json_decref(reply);
    cr_assert_eq(control(&s, SETTINGS("-i", s.instance, "resume"), NULL, 0), 0);
    usleep(30000);
    cr_assert_eq(system_counter(&s, "steps"), n_steps);
    cr_assert_eq(n_made(h, a), n);
    cr_assert_eq(control(&s, SETTINGS("-i", s.instance, "drain"), err, sizeof err), 1);
    cr_assert(strstr(err, "paused"), "%s", err);
    cr_assert_eq(control(&s, SETTINGS("-i", s.instance, "resume", "--all"), NULL, 0), 0);
    cr_assert_eq(cb_join(h, HANG_MS), 0);
    cr_assert(n_made(h, a) == 400 && n_made(h, b) == 5);
    cb_close(h);
    system_fini(&s);
}

Test(pausing, while_a_command_runs)
{
    struct system s;
    char probe[1200], path[512];
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null"));
    snprintf(probe, sizeof probe, "'%s' -i %s status | grep -q '^ *paused  *1' && exit 7",
             built("cbctl", path), s.instance);
    cr_assert_eq(control(&s, SETTINGS("-i", s.instance, "pause", "--", "sh", "-c", probe), NULL, 0),
                 7);
    await_paused(&s, 0);
    cr_assert_eq(control(&s, SETTINGS("-i", s.instance, "pause", "/no/such/program"), NULL, 0),
                 127);
    cr_assert_eq(control(&s, SETTINGS("-i", s.instance, "pause", "--hold", "true"), NULL, 0), 2);
    await_paused(&s, 0);
    system_fini(&s);
}

Test(pausing, ends_with_its_holder_however_that_ends)
{
    static const int signals[] = {SIGINT, SIGKILL};
    struct system s;
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null"));
    for (int i = 0; i < 2; i++) {
        struct running r =
            system_run_begin(&s, NULL, "cbctl", SETTINGS("-i", s.instance, "pause", "--hold"));
        await_paused(&s, 1);
        kill(r.pid, signals[i]);
        struct output o = system_run_end(&r);
        cr_assert_eq(o.status, i == 0 ? 0 : -SIGKILL, "%s", o.err);
        output_free(&o);
        await_paused(&s, 0);
    }
    system_fini(&s);
}

Test(pausing, ends_with_sigterm_and_what_was_accepted_ends_well)
{
    struct system s;
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null"));
    struct cb_handle *h = system_open(&s, NULL);
    cr_assert_eq(control(&s, SETTINGS("-i", s.instance, "pause"), NULL, 0), 0);
    uint64_t id = submit(h, 20);
    system_await(&s, "requests_accepted", 1);
    system_signal(&s, SIGTERM);
    cr_assert_eq(cb_join(h, HANG_MS), 0);
    cr_assert_eq(n_made(h, id), 20);
    cb_close(h);
    cr_assert_eq(system_wait(&s), 0);
    s.pid = 0;
    system_fini(&s);
}

/* One handle stands still, another goes on; a handle that is closed lets go of its room. */
Test(pausing, by_a_client_of_its_own_requests)
{
    struct system s;
    struct cb_event e = {0};
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null", "--null_step_us", "200", "--page_size", "16",
                              "--num_blocks", "32"));
    struct cb_handle *a = system_open(&s, NULL), *b = system_open(&s, NULL);
    uint64_t ida = submit(a, 400), idb;
    cr_assert_eq(cb_wait(a, ida, &e, HANG_MS), 1);
    cr_assert_eq(cb_pause(a, HANG_MS), 0, "%s", cb_message());
    uint32_t n = n_made(a, ida);
    idb = submit(b, 400); /* there is room for one of them */
    cr_assert_eq(cb_join(b, HANG_MS), 0);
    cr_assert_eq(n_made(b, idb), 400);
    cr_assert_eq(n_made(a, ida), n);
    cr_assert_eq(cb_resume(a), 0);
    cr_assert_eq(cb_join(a, HANG_MS), 0);
    cr_assert_eq(n_made(a, ida), 400);
    submit(a, 400);
    cr_assert_eq(cb_pause(a, HANG_MS), 0);
    cb_close(a);
    cb_close(b);
    system_settle(&s);
    system_fini(&s);
}
