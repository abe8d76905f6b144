/* The examples, run as they are: what they print is what cbctl says to the same prompts. */
#include <criterion/criterion.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/system/fixture.h"

TestSuite(examples, .timeout = 120);

/* They look for the instance "default", which another test may run as well. */
static void start_as_default(struct system *s)
{
    char name[128];
    system_init(s);
    snprintf(name, sizeof name, "%s/default", s->dir);
    cr_assert_eq(symlink(s->instance, name), 0);
    system_start(s, SETTINGS("--model", "null"));
}

static char *text_of(const struct system *s, const char *prompt, const char *limit)
{
    struct output o = system_run(s, NULL, "cbctl",
                                 SETTINGS("-i", s->instance, "run", "--json", "-n", limit, prompt));
    cr_assert_eq(o.status, 0, "%s", o.err);
    json_t *line = json_loads(o.out, 0, NULL);
    char *text = strdup(json_string_value(json_object_get(line, "text")));
    cr_assert_gt(strlen(text), 0);
    json_decref(line);
    output_free(&o);
    return text;
}

/* Whether a piece of an answer begins here: "[1] ". */
static bool begins_piece(const char *text, const char *p)
{
    return (p == text || p[-1] == '\n') && p[0] == '[' && isdigit((unsigned char)p[1]) &&
           p[2] == ']' && p[3] == ' ';
}

/* The pieces of answer `number`, put together again. */
static char *collect(const char *text, char number)
{
    char *all = calloc(1, strlen(text) + 1);
    size_t n = 0;
    for (const char *p = text; *p;) {
        cr_assert(begins_piece(text, p), "no piece: %s", p);
        const char *end = p + 4;
        while (*end && !(*end == '\n' && (!end[1] || begins_piece(text, end + 1))))
            end++;
        if (p[1] == number) {
            memcpy(all + n, p + 4, (size_t)(end - p - 4));
            n += (size_t)(end - p - 4);
        }
        p = *end ? end + 1 : end;
    }
    return all;
}

Test(examples, minimal)
{
    struct system s;
    start_as_default(&s);
    char *text = text_of(&s, "The sea is", "64");
    struct output o = system_run(&s, NULL, "examples/minimal", SETTINGS("The sea is"));
    cr_expect_eq(o.status, 0, "%s", o.err);
    cr_expect(strncmp(o.out, text, strlen(text)) == 0 && strcmp(o.out + strlen(text), "\n") == 0,
              "\"%s\" is not \"%s\"", o.out, text);
    cr_expect(strstr(o.err, "64 generated"), "%s", o.err);
    output_free(&o);
    free(text);
    system_settle(&s);
    system_fini(&s);
}

/* script: of an interpreter; NULL: the program takes prompts. */
static void several(const char *program, const char *script)
{
    const char *all[] = {script, "Once upon a time", "The sea is", "Two and two are", NULL};
    const char *const *prompts = &all[1];
    struct system s;
    start_as_default(&s);
    struct output o = system_run(&s, NULL, program, script ? all : prompts);
    cr_expect_eq(o.status, 0, "%s", o.err);
    for (int i = 0; prompts[i]; i++) {
        char *text = text_of(&s, prompts[i], "24"), *got = collect(o.out, (char)('1' + i));
        cr_expect_str_eq(got, text);
        free(text);
        free(got);
    }
    output_free(&o);
    system_settle(&s);
    system_fini(&s);
}

Test(examples, event_loop)
{
    several("examples/event_loop", NULL);
}

Test(examples, threads)
{
    several("examples/threads", NULL);
}

Test(examples, batch)
{
    several("examples/batch", NULL);
}

Test(examples, python_event_loop)
{
    several("/usr/bin/python3", "client/examples/python/event_loop.py");
}
