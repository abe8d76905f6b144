/* The client in Python, against the real daemon: its examples, its sleep, its death and the daemon's.
 * What it answers is test_conformance.c's affair. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/text/pretokenize.h"
#include "tests/system/storm.h"

TestSuite(python, .timeout = 240);

#define PYTHON  "/usr/bin/python3"
#define PACKAGE "client/examples/python"

/* A program of tests/python, which finds the package as it would if it was installed. */
#define SCRIPT(name, ...)                                                                      \
    SETTINGS("-B", "-W", "error", "-c",                                                        \
             "import runpy, sys; sys.path.insert(0, '" PACKAGE "'); sys.argv = sys.argv[1:]; " \
             "runpy.run_path(sys.argv[0], run_name='__main__')",                               \
             "tests/python/" name __VA_OPT__(, ) __VA_ARGS__)

static void expect_well(struct output *o)
{
    cr_expect_eq(o->status, 0, "it ended with %d: %s", o->status, o->err);
    cr_expect_str_empty(o->err);
    output_free(o);
}

/* ---- examples -------------------------------------------------------------------------------- */

/* They look for the instance "default", which another test may run as well. */
static void start_as_default(struct system *s)
{
    char name[128];
    system_init(s);
    snprintf(name, sizeof name, "%s/default", s->dir);
    cr_assert_eq(symlink(s->instance, name), 0);
    system_start(s, SETTINGS("--model", "null"));
}

static const char prompt[] = "The sea is";

/* What the library makes of it: the text of each of n sequences, the caller's to free. */
static void ask(const struct system *s, uint32_t n, char **texts)
{
    struct cb_handle *h = system_open(s, NULL);
    struct cb_request r;
    struct cb_event e;
    uint64_t id;
    cb_request_init(&r);
    r.text = prompt;
    r.max_new_tokens = 32;
    r.n = n;
    r.temperature = n > 1 ? 0.8f : 0;
    r.seed = 1;
    r.flags = CB_HAS_SEED;
    cr_assert_eq(cb_submit(h, &r, &id), 0, "%s", cb_message());
    for (uint32_t i = 0; i < n; i++) {
        const char *text;
        size_t bytes;
        do {
            cr_assert_eq(cb_wait(h, id + i, &e, HANG_MS), 1, "%s", cb_message());
        } while (e.type != CB_EVENT_END);
        cr_assert_geq(cb_text_all(h, id + i, &text, &bytes), 0);
        texts[i] = strdup(text);
    }
    cb_close(h);
}

Test(python, stream_example)
{
    struct system s;
    char *text, expected[2048];
    start_as_default(&s);
    ask(&s, 1, &text);
    struct output o = system_run(
        &s, NULL, PYTHON, SETTINGS("-B", "-W", "error", PACKAGE "/stream.py", "-n", "32", prompt));
    snprintf(expected, sizeof expected, "%s\n", text);
    cr_expect_eq(o.status, 0, "%s", o.err);
    cr_expect_str_eq(o.out, expected);
    cr_expect_str_eq(o.err, "32 tokens, until length\n");
    output_free(&o);
    free(text);
    system_settle(&s);
    system_fini(&s);
}

Test(python, generate_example)
{
    struct system s;
    char *texts[3], expected[4096];
    start_as_default(&s);
    ask(&s, 3, texts);
    struct output o =
        system_run(&s, NULL, PYTHON, SETTINGS("-B", "-W", "error", PACKAGE "/generate.py", prompt));
    snprintf(expected, sizeof expected, "[1] %s\n[2] %s\n[3] %s\n", texts[0], texts[1], texts[2]);
    cr_expect_str_eq(o.out, expected);
    expect_well(&o);
    for (int i = 0; i < 3; i++)
        free(texts[i]);
    system_settle(&s);
    system_fini(&s);
}

/* ---- sleep ----------------------------------------------------------------------------------- */

static void sleep_without_a_net(const char *loop, const char *wake)
{
    struct system s;
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null", "--null_context", "2048", "--wait_mode", "eco",
                              "--net_ms", "3600000", "--loop", loop));
    struct output o = system_run(&s, NULL, PYTHON,
                                 SCRIPT("bells.py", s.instance, wake, IS_SANITIZED ? "50" : "300"));
    expect_well(&o);
    cr_expect_eq(system_counter(&s, "wake_missed"), 0);
    cr_expect_gt(system_counter(&s, "bells_received"), 0);
    cr_expect_gt(system_counter(&s, "bells_sent"), 0);
    system_settle(&s);
    system_fini(&s);
}

Test(python, no_bell_of_its_socket_is_lost)
{
    sleep_without_a_net("uring", "socket");
    sleep_without_a_net("epoll", "socket");
}

Test(python, no_bell_of_a_futex_is_lost)
{
    sleep_without_a_net("uring", "futex");
    sleep_without_a_net("epoll", "futex");
}

/* ---- death ----------------------------------------------------------------------------------- */

static const struct storm_scale scale = {.seed = 22,
                                         .n_vocab = 49152,
                                         .n_distinct = 64,
                                         .prompt_usual = 60,
                                         .prompt_max = 300,
                                         .new_usual = 60,
                                         .new_max = 200};

enum { N_VICTIMS = 4, N_KILLS = 12 };

static bool has_said_something(const struct running *r)
{
    struct stat out;
    return fstat(r->out_fd, &out) == 0 && out.st_size > 0;
}

static struct running start_victim(const struct system *s, unsigned seed)
{
    char number[16];
    snprintf(number, sizeof number, "%u", seed);
    struct running r = system_run_begin(s, NULL, PYTHON, SCRIPT("victim.py", s->instance, number));
    /* In naps, not by the clock: both may have been stopped for a while. */
    for (int n = 0; n < HANG_MS && !has_said_something(&r); n++)
        nap();
    if (!has_said_something(&r)) {
        kill(r.pid, SIGKILL);
        struct output o = system_run_end(&r);
        cr_assert_fail("no victim comes to ask; it ended with %d, %s", o.status, o.err);
    }
    return r;
}

static void kill_victim(struct running *r)
{
    cr_expect_eq(kill(r->pid, SIGKILL), 0);
    struct output o = system_run_end(r);
    cr_expect_eq(o.status, -SIGKILL, "it ended by itself: %d, %s", o.status, o.err);
    output_free(&o);
}

/* Beside clients whose right answers are known. The last victim stands still all the while. */
Test(python, one_that_is_killed_or_stands_still_harms_nobody)
{
    struct running victims[N_VICTIMS];
    uint64_t random = 7;
    struct storm st;
    struct system s;
    struct crowd c;
    storm_init(&st, &scale);
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null"));
    storm_answer_all(&st, &s);
    system_signal(&s, SIGTERM);
    cr_assert_eq(system_wait(&s), 0);
    system_start(&s, SETTINGS("--model", "null", "--null_step_us", "300", "--page_size", "16",
                              "--num_blocks", "1024"));
    for (unsigned i = 0; i < N_VICTIMS; i++)
        victims[i] = start_victim(&s, i);
    kill(victims[N_VICTIMS - 1].pid, SIGSTOP);

    crowd_init(&c, &s);
    struct storm_member member = {.storm = &st, .n_rounds = 4};
    for (int i = 0; i < 8; i++)
        crowd_add(&c, storm_member_run, &member);
    for (unsigned k = 0; k < N_KILLS; k++) {
        struct running *victim = &victims[k % (N_VICTIMS - 1)];
        for (uint32_t ms = draw(&random, 60); ms > 0; ms--)
            nap();
        kill_victim(victim);
        *victim = start_victim(&s, 100 + k);
    }
    crowd_join(&c);
    for (int i = 0; i < N_VICTIMS; i++)
        kill_victim(&victims[i]);
    crowd_fini(&c);
    system_settle(&s);
    cr_expect_eq(system_counter(&s, "lane_broken"), 0);
    cr_expect_eq(system_counter(&s, "requests_failed"), 0);
    cr_expect_gt(system_counter(&s, "requests_dropped"), 0);
    system_fini(&s);
    storm_fini(&st);
}

Test(python, goes_on_with_the_next_daemon)
{
    const char *const *settings = SETTINGS("--model", "null", "--null_step_us", "3000");
    struct system s;
    char pid[16];
    system_init(&s);
    system_start(&s, settings);
    snprintf(pid, sizeof pid, "%d", (int)s.pid);
    struct running r = system_run_begin(&s, NULL, PYTHON, SCRIPT("goes_on.py", s.instance, pid));
    cr_assert_eq(system_wait(&s), -SIGKILL);
    system_spawn_as(&s, geteuid(), settings);
    cr_assert(system_is_ready(&s));
    struct output o = system_run_end(&r);
    expect_well(&o);
    system_settle(&s);
    system_fini(&s);
}

/* ---- what needs no daemon -------------------------------------------------------------------- */

Test(python, a_socket_that_takes_nobody_in_holds_nobody_up, .timeout = 60)
{
    struct system s;
    system_init(&s);
    struct output o = system_run(&s, NULL, PYTHON, SCRIPT("strangers.py", s.dir));
    cr_expect_str_eq(o.out, "NO_DAEMON\n", "%s", o.out);
    expect_well(&o);
    system_fini(&s);
}

Test(python, words_of_memory_are_stored_whole)
{
    struct system s = {.out = -1};
    struct output o = system_run(&s, NULL, PYTHON, SCRIPT("tears.py"));
    expect_well(&o);
}

/* Where both have words for a status, they are the same. */
Test(python, says_the_same_of_each_status)
{
    static const int statuses[] = {0,   -1,  -2,  -3,  -4,  -5,  -6,  -7,  -8,  -9,  -10, -12, -14,
                                   -20, -21, -22, -23, -24, -25, -26, -27, -28, -30, -31, -32, -33,
                                   -35, -36, -37, -40, -41, -42, -43, -44, -45, -46, -50};
    enum { N = sizeof statuses / sizeof statuses[0], N_LIMITS = 18, N_PARAMETERS = 14 };
    enum { N_ALL = N + N_LIMITS + N_PARAMETERS };
    struct system s = {.out = -1};
    char numbers[N_ALL * 36] = "", expected[N_ALL * 128] = "", words[128];
    for (int i = 0; i < N_ALL; i++) {
        int status = i < N ? statuses[i] : i < N + N_LIMITS ? CB_QUOTA : CB_BAD_PARAMETER;
        int first = i < N ? 70 : i < N + N_LIMITS ? i - N + 1 : i - N - N_LIMITS + 1;
        uint32_t detail[2] = {(uint32_t)first, i < N ? 80 : 0x40490fdb};
        sprintf(numbers + strlen(numbers), "%d %u %u ", status, detail[0], detail[1]);
        strcat(expected, cb_explain(status, detail, words, sizeof words));
        strcat(expected, "\n");
    }
    struct output o = system_run(&s, NULL, PYTHON, SCRIPT("words.py", numbers));
    cr_expect_str_eq(o.out, expected);
    expect_well(&o);
}

/* Every way of cutting, of which a model has one: where the library cuts. */
Test(python, cuts_text_into_the_same_words)
{
    static const char *const pres[] = {"1", "2", "3", "4"};
    json_t *root = json_load_file("tests/data/tokens.json", JSON_ALLOW_NUL, NULL);
    const json_t *texts = json_object_get(root, "texts");
    struct system s = {.out = -1};
    cr_assert_gt(json_array_size(texts), 200);
    for (size_t k = 0; k < sizeof pres / sizeof pres[0]; k++) {
        struct output o = system_run(&s, NULL, PYTHON, SCRIPT("splits.py", pres[k]));
        struct cb_splitter_scan *scan;
        struct cb_splitter *splitter;
        char *rest = o.out;
        cr_assert_eq(cb_splitter_new(&splitter, (uint32_t)atoi(pres[k])), 0);
        cr_assert_eq(cb_splitter_scan_new(&scan, splitter), 0);
        for (size_t i = 0; i < json_array_size(texts); i++) {
            const uint8_t *text = (const uint8_t *)json_string_value(json_array_get(texts, i));
            size_t n = json_string_length(json_array_get(texts, i));
            char *line = strsep(&rest, "\n");
            cr_assert(line, "%zu texts only", i);
            bool same = true;
            for (size_t at = 0, end; at < n && same; at = end) {
                cr_assert_eq(cb_splitter_next(splitter, scan, text, n, at, &end), 0);
                same = strtoul(line, &line, 10) == end - at;
            }
            cr_expect(same && !*line, "way %s, text %zu: \"%s\"", pres[k], i, (const char *)text);
        }
        cb_splitter_scan_free(scan);
        cb_splitter_free(splitter);
        expect_well(&o);
    }
    json_decref(root);
}
