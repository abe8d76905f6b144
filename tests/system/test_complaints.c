/* What cbctl complains of, in which words, and that it does not complain of less than there is. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "tests/system/raw.h"

TestSuite(complaints, .timeout = 60);

static void begin(struct system *s, const char *setting, const char *value)
{
    system_init(s);
    system_start(s, SETTINGS("--model", "null", setting, value));
}

/* Runs it and expects this exit status and these words in what it complains of. */
static void complains(const struct system *s, const char *input, const char *const *words,
                      int status, const char *says)
{
    const char *arguments[16] = {"-i", s->instance};
    for (size_t n = 2; *words && n < 15; words++)
        arguments[n++] = *words;
    struct output o = system_run(s, input, "cbctl", arguments);
    cr_assert_eq(o.status, status, "%s ended with %d: %s", arguments[2], o.status, o.err);
    cr_assert(strstr(o.err, says), "%s says: %s", arguments[2], o.err);
    output_free(&o);
}

Test(complaints, settings_with_a_key_shows_that_one)
{
    struct system s;
    begin(&s, "--page_size", "64");
    json_t *reply = system_cbctl(&s, SETTINGS("settings", "page_size"));
    const json_t *rows = json_object_get(reply, "settings");
    cr_assert_eq(json_array_size(rows), 1);
    const json_t *row = json_array_get(rows, 0);
    cr_assert_str_eq(json_string_value(json_object_get(row, "name")), "page_size");
    cr_assert_str_eq(json_string_value(json_object_get(row, "value")), "64");
    json_decref(reply);
    reply = system_cbctl(&s, SETTINGS("settings"));
    cr_assert_gt(json_array_size(json_object_get(reply, "settings")), 30);
    json_decref(reply);
    complains(&s, NULL, SETTINGS("settings", "page_sice"), 1, "the nearest is page_size");
    system_fini(&s);
}

/* One over the quota is refused each time; who only asks is not. */
Test(complaints, a_full_house_says_so_each_time)
{
    struct system s;
    begin(&s, "--uid_connections", "2");
    struct cb_handle *h = system_open(&s, NULL), *other = system_open(&s, NULL);
    for (int i = 0; i < 20; i++) {
        struct cb_options options;
        struct cb_handle *third;
        cb_options_init(&options);
        int r = system_try_open(&s, &options, &third);
        cr_assert_eq(r, CB_QUOTA, "%d: %s", r, cb_message());
        complains(&s, NULL, SETTINGS("run", "-n", "1", "a"), 1,
                  "connections of this user (uid_connections), at most 2");
        json_decref(system_cbctl(&s, SETTINGS("clients")));
    }
    cb_close(h);
    cb_close(other);
    system_fini(&s);
}

/* Here the refusal comes at once, before the daemon has read anything. */
Test(complaints, too_many_who_say_nothing_are_complained_of)
{
    struct system s;
    struct raw silent;
    begin(&s, "--uid_half_open", "1");
    for (int i = 0; i < 3; i++) {
        struct cb_options options;
        struct cb_handle *h;
        cr_assert(raw_connect(&silent, &s));
        cb_options_init(&options);
        int r = system_try_open(&s, &options, &h);
        cr_assert_eq(r, CB_QUOTA, "%d: %s", r, cb_message());
        complains(&s, NULL, SETTINGS("clients"), 1,
                  "unfinished handshakes of this user (uid_half_open), at most 1");
        raw_close(&silent);
        system_settle(&s);
    }
    system_fini(&s);
}

Test(complaints, a_file_of_prompts_that_cannot_be_read_or_a_line_of_it)
{
    struct system s;
    char path[80];
    begin(&s, "--page_size", "64");
    complains(&s, NULL, SETTINGS("run", "--file", s.dir), 2, "can't read");
    snprintf(path, sizeof path, "%s/prompts", s.dir);
    FILE *f = fopen(path, "w");
    cr_assert(f);
    fwrite("{\"text\": \"a\"}\n{\"text\": \"b\"}\0junk\n", 1, 33, f);
    cr_assert_eq(fclose(f), 0);
    complains(&s, NULL, SETTINGS("run", "-n", "1", "--file", path), 1, "prompts:2: ");
    /* Lines that only the library can judge are named likewise; blank ones count. */
    f = fopen(path, "w");
    cr_assert(f);
    fputs("\n\n{\"text\": \"\"}\n{\"text\": \"a\", \"top_p\": 2}\n", f);
    cr_assert_eq(fclose(f), 0);
    complains(&s, NULL, SETTINGS("run", "-n", "1", "--file", path), 1, "prompts:3: the prompt is");
    complains(&s, NULL, SETTINGS("run", "-n", "1", "--file", path), 1, "prompts:4: top_p");
    cr_assert_eq(remove(path), 0);
    system_fini(&s);
}

Test(complaints, complaints_name_command_and_bounds)
{
    struct system s;
    begin(&s, "--page_size", "64");
    complains(&s, NULL, SETTINGS("run", "-n", "x", "a"), 2, "from 0 to 4294967294");
    complains(&s, NULL, SETTINGS("run", "-n", "2.5", "a"), 2,
              "-n is \"2.5\", which is no whole number from 0 to 4294967294");
    complains(&s, NULL, SETTINGS("run", "--top-k", "1e3", "a"), 2, "no whole number from 0 to");
    complains(&s, NULL, SETTINGS("run", "--seed", "9223372036854775808", "a"), 2,
              "no whole number from 0 to 9223372036854775807");
    complains(&s, NULL, SETTINGS("run", "--seed", "-1", "a"), 2, "--seed is \"-1\"");
    complains(&s, NULL, SETTINGS("bench", "-r", "1.5"), 2, "no whole number from 1 to 4096");
    complains(&s, NULL, SETTINGS("bench", "extra"), 2, "cbctl bench: ");
    complains(&s, NULL, SETTINGS("cancel", "-1"), 2, "\"-1\" is no LANE or LANE:SLOT");
    complains(&s, NULL, SETTINGS("cancel", "-x"), 2, "cbctl cancel --help");
    complains(&s, NULL, SETTINGS("settings", "drain_timeout", "-1"), 1,
              "drain_timeout is '-1', not a number; allowed: 0..86400 s");
    char weights[300]; /* as many users as a setting may name, but not a command */
    memset(weights, '1', sizeof weights - 1);
    weights[sizeof weights - 1] = 0;
    complains(&s, NULL, SETTINGS("set", "uid_weights", weights), 2, "more than 207 bytes");
    weights[206 - strlen("uid_weights")] = 0; /* just fits, for the daemon to judge */
    complains(&s, NULL, SETTINGS("set", "uid_weights", weights), 1, "uid_weights");
    complains(&s, NULL, SETTINGS("run", "--stop", "", "a"), 2, "--stop is empty");
    for (int i = 0; i < 5; i++) {
        static const char *const places[] = {"abc", "", ":", "1:", "1:2:3"};
        complains(&s, NULL, SETTINGS("cancel", places[i]), 2, "is no LANE or LANE:SLOT");
    }
    complains(&s, NULL, SETTINGS("cancel", "9:1"), 1, "no such lane or slot");
    system_fini(&s);
}

/* It would lead out of the run directory. */
Test(complaints, an_instance_is_no_path)
{
    static const char *const names[] = {"../x", "a/b", "", ".", ".hidden", "a b"};
    static const char *const commands[] = {"status", "clients", "run"};
    struct system s;
    system_init(&s);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char says[100];
        snprintf(says, sizeof says, "instance is '%s'; allowed: letters, digits", names[i]);
        for (size_t k = 0; k < 3; k++) {
            struct output o = system_run(&s, "a", "cbctl", SETTINGS("-i", names[i], commands[k]));
            cr_expect_eq(o.status, 1, "%d: %s", o.status, o.err);
            cr_expect(strstr(o.err, says), "%s", o.err);
            output_free(&o);
        }
    }
    system_fini(&s);
}

/* It looks like an answer that has ended of itself. */
Test(complaints, an_answer_that_fills_the_cache_is_told_of)
{
    static const char says[] =
        "prompt 1: it ended because it was full: with its prompt it has 64 "
        "tokens, and the daemon's cache, the model's context or the room for its results holds no "
        "more";
    struct system s;
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null", "--page_size", "16", "--num_blocks", "4"));
    complains(&s, NULL, SETTINGS("run", "--ids-in", "1 2 3 4", "--ignore-eos"), 0, says);
    struct output o = system_run(
        &s, NULL, "cbctl",
        SETTINGS("-i", s.instance, "run", "--ids-in", "1 2 3 4", "--ignore-eos", "-n", "60"));
    cr_expect_eq(o.status, 0);
    cr_expect_str_eq(o.err, "", "that is what was asked for");
    output_free(&o);
    system_fini(&s);
}

/* Whatever else runs: it could never have run. */
Test(complaints, what_can_never_fit_is_refused_at_once)
{
    struct system s;
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null", "--page_size", "16", "--num_blocks", "80",
                              "--max_held_tokens", "1024"));
    complains(&s, NULL, SETTINGS("run", "--ids-in", "1 2 3 4", "-n", "1021"), 1,
              "over a limit: prompts and limits of all requests (max_held_tokens), at most 1024");
    system_fini(&s);
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null", "--page_size", "16", "--num_blocks", "4"));
    complains(&s, NULL, SETTINGS("run", "--ids-in", "1 2 3 4", "-n", "61"), 1,
              "prompt 1: 5 cache blocks are needed, there are 4 in all; lower the limit");
    system_fini(&s);
}

/* An answer that was cut off must not look whole. */
Test(complaints, what_ended_early_is_told)
{
    struct system s;
    begin(&s, "--null_step_us", "1000");
    complains(&s, NULL, SETTINGS("run", "--deadline", "20", "--ignore-eos", "-n", "100000", "a"), 1,
              "prompt 1: its deadline has passed");
    complains(&s, NULL, SETTINGS("run", "--deadline", "20", "--ignore-eos", "-n", "100000", "a"), 1,
              "and its deadline is 20 ms");
    complains(&s, NULL, SETTINGS("run", "--priority", "256", "a"), 2, "--priority");
    const char *arguments[] = {"-i", s.instance, "run", "--ignore-eos", "-n", "100000", "a", NULL};
    struct running r = system_run_begin(&s, NULL, "cbctl", arguments);
    json_t *rows = NULL;
    char place[32];
    while (json_array_size(rows) == 0) {
        json_decref(rows);
        json_t *reply = system_cbctl(&s, SETTINGS("requests"));
        rows = json_incref(json_is_array(reply) ? reply : json_object_get(reply, "requests"));
        json_decref(reply);
    }
    const json_t *row = json_array_get(rows, 0);
    snprintf(place, sizeof place, "%d:%d", (int)json_integer_value(json_object_get(row, "lane")),
             (int)json_integer_value(json_object_get(row, "slot")));
    json_decref(rows);
    json_decref(system_cbctl(&s, SETTINGS("cancel", place)));
    struct output o = system_run_end(&r);
    cr_expect_eq(o.status, 1, "%d: %s", o.status, o.err);
    cr_expect(strstr(o.err, "prompt 1: somebody else has cancelled it"), "%s", o.err);
    output_free(&o);
    system_fini(&s);
}

/* cbctl's status when standard output is that file. */
static int status_into(const struct system *s, const char *file, const char *command)
{
    char line[1400], path[512];
    snprintf(line, sizeof line, "CBD_RUNTIME_DIR=%s '%s' -i %s %s >%s 2>/dev/null", s->dir,
             built("cbctl", path), s->instance, command, file);
    int status = system(line);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

Test(complaints, output_that_cannot_be_written_is_no_success)
{
    static const char *const commands[] = {"status", "--json status", "run -n 3 --ids a",
                                           "run -n 3 --json a b", "bench -r 1 -p 4 -t 2"};
    struct system s;
    begin(&s, "--page_size", "64");
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        cr_expect_eq(status_into(&s, "/dev/null", commands[i]), 0, "%s", commands[i]);
        cr_expect_eq(status_into(&s, "/dev/full", commands[i]), 1, "%s", commands[i]);
        cr_expect_eq(status_into(&s, "&-", commands[i]), 1, "%s", commands[i]);
    }
    system_fini(&s);
}
