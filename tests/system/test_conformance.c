/* The cases of tests/conformance/cases.json, by the library and by the client in Python: both say what
 * is written there, word by word and bit by bit. Of cases that are drawn, both say the same. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/system/fixture.h"

#define CASES  "tests/conformance/cases.json"
#define PYTHON "/usr/bin/python3"

TestSuite(conformance, .timeout = 240);

enum { N_CLIENTS = 3 };
static const char *const names[N_CLIENTS] = {"the library", "Python, by its socket",
                                             "Python, by a futex"};

/* The lines that a runner prints, as a list. */
static json_t *run(const struct system *s, int client, const char *file, const char *group)
{
    const char *const *arguments[N_CLIENTS] = {
        SETTINGS(file, group, s->instance),
        SETTINGS("-B", "-W", "error", "tests/conformance/run.py", file, group, s->instance),
        SETTINGS("-B", "-W", "error", "tests/conformance/run.py", "--wake", "futex", file, group,
                 s->instance)};
    struct output o =
        system_run(s, NULL, client == 0 ? "tests/conformance" : PYTHON, arguments[client]);
    json_t *lines = json_array();
    char *rest = o.out;
    cr_assert_eq(o.status, 0, "%s, %s: %s", names[client], group, o.err);
    cr_expect_str_empty(o.err, "%s, %s: %s", names[client], group, o.err);
    for (char *line; (line = strsep(&rest, "\n")) && *line;) {
        json_t *outcome = json_loads(line, 0, NULL);
        cr_assert(outcome, "%s, %s: %s", names[client], group, line);
        json_array_append_new(lines, outcome);
    }
    output_free(&o);
    return lines;
}

/* What differs from run to run: how many tokens there were before it was cut off. */
static bool begins_alike(const json_t *expected, const json_t *outcome)
{
    const json_t *ids = json_object_get(outcome, "ids"),
                 *all = json_object_get(expected, "prefix_of");
    const char *key;
    json_t *value;
    bool same = true;
    for (size_t i = 0; i < json_array_size(ids) && i < json_array_size(all); i++)
        same &= json_equal(json_array_get(ids, i), json_array_get(all, i));
    json_object_foreach((json_t *)expected, key, value)
    {
        same &= strcmp(key, "prefix_of") == 0 || json_equal(value, json_object_get(outcome, key));
    }
    return same;
}

static void compare(const char *who, const json_t *c, const json_t *expected, const json_t *line)
{
    const json_t *outcomes = json_object_get(line, "outcomes");
    cr_expect(json_equal(json_object_get(c, "name"), json_object_get(line, "name")));
    cr_expect_eq(json_array_size(outcomes), json_array_size(expected));
    for (size_t i = 0; i < json_array_size(expected); i++) {
        const json_t *e = json_array_get(expected, i), *o = json_array_get(outcomes, i);
        if (json_object_get(e, "prefix_of") ? begins_alike(e, o) : json_equal(e, o))
            continue;
        char *want = json_dumps(e, JSON_SORT_KEYS), *got = json_dumps(o, JSON_SORT_KEYS);
        cr_expect_fail("%s: %s, sequence %zu\n  expected %s\n       got %s", who,
                       json_string_value(json_object_get(c, "name")), i, want, got ? got : "none");
        free(want);
        free(got);
    }
}

/* All clients in turn on one daemon, which is stopped in the end; without answers in the file they are
 * compared with the first. */
static void run_group(struct system *s, const char *file, const char *name, const char *model)
{
    const char *settings[16] = {"--model", model};
    json_t *root = json_load_file(file, 0, NULL), *lines[N_CLIENTS], *c, *v;
    const json_t *group = json_object_get(root, name), *cases = json_object_get(group, "cases");
    size_t i, n = model ? 2 : 0;
    cr_assert(cases, "%s has no group %s", file, name);
    json_array_foreach(json_object_get(group, "settings"), i, v)
    {
        settings[n++] = json_string_value(v);
    }
    system_start(s, settings);
    for (int k = 0; k < N_CLIENTS; k++) {
        lines[k] = run(s, k, file, name);
        cr_assert_eq(json_array_size(lines[k]), json_array_size(cases), "%s", names[k]);
        system_settle(s);
    }
    json_array_foreach(cases, i, c)
    {
        const json_t *expected = json_object_get(c, "expect");
        if (!expected)
            expected = json_object_get(json_array_get(lines[0], i), "outcomes");
        for (int k = 0; k < N_CLIENTS; k++)
            compare(names[k], c, expected, json_array_get(lines[k], i));
    }
    for (int k = 0; k < N_CLIENTS; k++)
        json_decref(lines[k]);
    json_decref(root);
    system_fini(s);
}

static void recorded(const char *group, const char *model)
{
    struct system s;
    system_init(&s);
    run_group(&s, CASES, group, model);
}

Test(conformance, what_can_be_asked_and_what_is_refused)
{
    recorded("null", NULL);
}

Test(conformance, what_takes_time)
{
    recorded("slow", NULL);
}

Test(conformance, a_small_cache)
{
    recorded("small", NULL);
}

Test(conformance, a_real_model)
{
    const char *model = default_model();
    if (model)
        recorded("model", model);
}

Test(conformance, whatever_is_asked_together)
{
    for (const char *seed = "123"; *seed; seed++) {
        char file[80], number[2] = {*seed};
        struct system s;
        system_init(&s);
        struct output o =
            system_run(&s, NULL, PYTHON, SETTINGS("-B", "tests/conformance/draw.py", number));
        cr_assert_eq(o.status, 0, "%s", o.err);
        snprintf(file, sizeof file, "%s/cases.json", s.dir);
        FILE *f = fopen(file, "we");
        cr_assert(f && fputs(o.out, f) >= 0 && fclose(f) == 0, "%s", file);
        output_free(&o);
        run_group(&s, file, "drawn", NULL);
    }
}
