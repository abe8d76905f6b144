/* Several answers to a prompt, from cbctl: told apart in each form, drawn as they are alone, and in a
 * file of answers there as a whole or not at all. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/system/fixture.h"
#include "tests/util/tiny.h"

TestSuite(sequences, .timeout = 120);

enum { ANSWERS_MAX = 64 };

static struct output run(const struct system *s, const char *input, const char *const *arguments)
{
    const char *all[32] = {"-i", s->instance, "run"};
    size_t n = 3;
    while (*arguments && n < 31)
        all[n++] = *arguments++;
    return system_run(s, input, "cbctl", all);
}

/* The only line of `run --json`. */
static json_t *run_json(const struct system *s, const char *input, const char *const *arguments)
{
    struct output o = run(s, input, arguments);
    json_error_t error;
    json_t *line = json_loads(o.out, JSON_ALLOW_NUL, &error);
    cr_assert(line && o.status == 0, "%s: %s%s", error.text, o.out, o.err);
    output_free(&o);
    return line;
}

static const json_t *ids_of(const json_t *line, size_t seq)
{
    const json_t *list = json_object_get(line, "sequences");
    return json_object_get(list ? json_array_get(list, seq) : line, "ids");
}

#define DRAWN "--seed", "5", "--temperature", "0.9"

Test(sequences, an_answer_is_the_same_however_many_there_are)
{
    struct system s;
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null"));
    json_t *three =
        run_json(&s, NULL, SETTINGS("--json", "-n", "12", DRAWN, "--n", "3", "--ids-in", "1 2 3"));
    json_t *two =
        run_json(&s, NULL, SETTINGS("--json", "-n", "12", DRAWN, "--n", "2", "--ids-in", "1 2 3"));
    json_t *one = run_json(&s, NULL, SETTINGS("--json", "-n", "12", DRAWN, "--ids-in", "1 2 3"));
    json_t *many =
        run_json(&s, "{\"ids\": [1, 2, 3], \"n\": 64, \"seed\": 5, \"temperature\": 0.9}\n",
                 SETTINGS("--json", "-n", "12", "--file", "-"));
    cr_assert_eq(json_array_size(json_object_get(three, "sequences")), 3);
    cr_assert_eq(json_array_size(json_object_get(two, "sequences")), 2);
    cr_assert_eq(json_array_size(json_object_get(many, "sequences")), 64);
    cr_expect_null(json_object_get(one, "sequences"));
    cr_expect_eq(json_array_size(json_object_get(three, "prompt_ids")), 3);
    for (size_t i = 0; i < 3; i++) {
        const json_t *answer = json_array_get(json_object_get(three, "sequences"), i);
        cr_expect_eq(json_array_size(ids_of(three, i)), 12);
        cr_expect_eq(json_integer_value(json_object_get(answer, "seed")), 5);
        cr_expect(json_object_get(answer, "usage") && json_object_get(answer, "times"));
        cr_expect(json_equal(ids_of(three, i), ids_of(many, i)), "answer %zu", i);
        cr_expect(i >= 2 || json_equal(ids_of(three, i), ids_of(two, i)), "answer %zu", i);
        for (size_t k = 0; k < i; k++)
            cr_expect_not(json_equal(ids_of(three, i), ids_of(three, k)), "%zu and %zu", i, k);
    }
    cr_expect(json_equal(ids_of(three, 0), ids_of(one, 0)));
    json_decref(one);
    json_decref(two);
    json_decref(three);
    json_decref(many);
    system_settle(&s);
    system_fini(&s);
}

/* All lines of out with this label, joined again, are the text. */
static void expect_text(const char *out, const char *label, const char *text)
{
    char *joined = calloc(1, strlen(out) + 1);
    size_t n = 0, n_label = strlen(label);
    for (const char *line = out; *line;) {
        const char *end = strchr(line, '\n');
        cr_assert(end, "a line without an end: %s", line);
        if (strncmp(line, label, n_label) == 0) {
            n += (size_t)(end + 1 - line) - n_label;
            memcpy(joined + n - (size_t)(end + 1 - line) + n_label, line + n_label,
                   (size_t)(end + 1 - line) - n_label);
        }
        line = end + 1;
    }
    if (n && text[strlen(text) - 1] != '\n')
        joined[n - 1] = 0; /* the last line has an end in any case */
    cr_expect_str_eq(joined, text, "%s", label);
    free(joined);
}

Test(sequences, lines_say_whose_they_are)
{
    /* A newline and three letters: of a model whose first ids but three are the bytes. */
#define FEW_BYTES "--allow-ids", "13,68,69,70", "--frequency-penalty", "1"
    struct tiny t = tiny_default();
    struct system s;
    char label[32], model[128];
    system_init(&s);
    snprintf(model, sizeof model, "%s/tiny.gguf", s.dir);
    struct gguf_out *file = tiny_new(&t);
    gguf_out_save(file, model);
    gguf_out_free(file);
    system_start(&s, SETTINGS("--model", model, "--backend", "reference", "--threads", "1"));
    json_t *line =
        run_json(&s, NULL, SETTINGS("--json", "-n", "60", DRAWN, FEW_BYTES, "--n", "4", "Once"));
    struct output o = run(&s, NULL, SETTINGS("-n", "60", DRAWN, FEW_BYTES, "--n", "4", "Once"));
    cr_assert_eq(o.status, 0, "%s", o.err);
    for (size_t i = 0; i < 4; i++) {
        const json_t *answer = json_array_get(json_object_get(line, "sequences"), i);
        const char *text = json_string_value(json_object_get(answer, "text"));
        snprintf(label, sizeof label, "[%zu] ", i + 1);
        cr_expect(strchr(text, '\n'), "no line to be told early in %s", text);
        expect_text(o.out, label, text);
    }
    output_free(&o);
    json_decref(line);

    o = run(&s, NULL,
            SETTINGS("-n", "3", DRAWN, "--n", "2", "--ids", "--ids-in", "1", "--ids-in", "2"));
    cr_expect_eq(o.status, 0, "%s", o.err);
    for (int i = 0; i < 4; i++) {
        snprintf(label, sizeof label, "[%d.%d] ", 1 + i / 2, 1 + i % 2);
        cr_expect(strstr(o.out, label), "no %s in %s", label, o.out);
    }
    output_free(&o);
    o = run(&s, NULL, SETTINGS("-n", "2", DRAWN, "--n", "2", "--logprobs", "1", "--ids-in", "1"));
    cr_expect_eq(o.status, 0, "%s", o.err);
    cr_expect(strstr(o.out, "[1] 0  ") && strstr(o.out, "[2] 1  "), "%s", o.out);
    output_free(&o);
    system_settle(&s);
    unlink(model);
    system_fini(&s);
}

/* Each answer may be as long as there is room, which not all have at once: they go in parts. */
Test(sequences, more_than_there_is_room_for_come_one_after_the_other)
{
    struct system s;
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null", "--null_context", "30000"));
    struct output o = run(&s, NULL, SETTINGS("--json", DRAWN, "--n", "16", "-n", "20000", "Once"));
    json_t *line = json_loads(o.out, JSON_ALLOW_NUL, NULL);
    cr_assert(line && o.status == 0, "%.200s%s", o.out, o.err);
    cr_expect_null(json_object_get(line, "error"));
    cr_expect_eq(json_array_size(json_object_get(line, "sequences")), 16);
    json_decref(line);
    output_free(&o);
    system_settle(&s);
    system_fini(&s);
}

static void refuses(const struct system *s, int status, const char *why, const char *input,
                    const char *const *arguments)
{
    struct output o = run(s, input, arguments);
    cr_expect_eq(o.status, status, "%d: %s%s", o.status, o.out, o.err);
    cr_expect(strstr(o.err, why), "no \"%s\" in %s", why, o.err);
    output_free(&o);
}

Test(sequences, what_makes_no_sense_is_said)
{
    static const char greedy[] = "greedy answers to a prompt are all the same";
    struct system s;
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null"));
    refuses(&s, 2, "--n is \"0\", which is no whole number from 1 to 64", NULL,
            SETTINGS("--n", "0", "x"));
    refuses(&s, 2, "--n is \"65\"", NULL, SETTINGS("--n", "65", "x"));
    refuses(&s, 2, greedy, NULL, SETTINGS("--n", "2", "x"));
    refuses(&s, 1, greedy, "{\"text\": \"x\", \"n\": 2}\n", SETTINGS("--file", "-"));
    refuses(&s, 1, "\"n\" is no whole number from 1 to 64",
            "{\"text\": \"x\", \"n\": 65, \"temperature\": 1}\n", SETTINGS("--file", "-"));
    refuses(&s, 1, "prompt 1, answer 2: its deadline has passed", NULL,
            SETTINGS("--n", "2", "--temperature", "1", "--ignore-eos", "--deadline", "1", "x"));
    /* Of a line that fails there is one error, not several. */
    json_t *line;
    struct output o = run(&s, "{\"text\": \"x\", \"n\": 2, \"temperature\": 0}\n",
                          SETTINGS("--json", "--file", "-"));
    line = json_loads(o.out, JSON_ALLOW_NUL, NULL);
    cr_assert(line, "%s%s", o.out, o.err);
    cr_expect(json_object_get(line, "error") && !json_object_get(line, "sequences"), "%s", o.out);
    json_decref(line);
    output_free(&o);
    system_settle(&s);
    system_fini(&s);
}

/* What a limit keeps from running even alone is refused, not asked for again and again. */
Test(sequences, what_never_has_room_is_refused)
{
    struct system s;
    char text[400];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null", "--uid_waiting_tokens", "100"));
    refuses(&s, 1, "over a limit", NULL, SETTINGS(DRAWN, "-n", "2", "--n", "2", text));
    struct output o =
        system_run(&s, "{\"ids\": [1]}\n", "cbctl",
                   SETTINGS("-i", s.instance, "generate-batch", DRAWN, "-n", "2", "--n", "2", "-"));
    cr_expect_eq(o.status, 0, "%s%s", o.out, o.err);
    output_free(&o);
    snprintf(text, 30, "{\"text\": \"");
    memset(text + strlen(text), 'x', 300);
    snprintf(text + 310, 20, "\"}\n");
    o = system_run(&s, text, "cbctl",
                   SETTINGS("-i", s.instance, "generate-batch", DRAWN, "-n", "2", "--n", "2", "-"));
    cr_expect_eq(o.status, 1);
    cr_expect(strstr(o.out, "over a limit"), "%s", o.out);
    output_free(&o);
    system_settle(&s);
    system_fini(&s);
}

/* ---- files ----------------------------------------------------------------------------------- */

enum { N_LINES = 60 };

static size_t n_of(size_t i)
{
    return i % 3 ? 1 + i % 17 : 1;
}

static void write_lines(const struct system *s, char path[96])
{
    snprintf(path, 96, "%s/prompts.jsonl", s->dir);
    FILE *f = fopen(path, "w");
    cr_assert(f);
    for (size_t i = 0; i < N_LINES; i++)
        fprintf(f,
                "{\"ids\": [%zu, 9], \"n\": %zu, \"seed\": %zu, \"temperature\": 1, "
                "\"ignore_eos\": true, \"max_new_tokens\": %zu}\n",
                i + 1, n_of(i), i, 2 + i % 7);
    fclose(f);
}

static void answer_all(const struct system *s, const char *in, const char *out)
{
    struct output o =
        system_run(s, NULL, "cbctl", SETTINGS("-i", s->instance, "generate-batch", in, "-o", out));
    cr_assert_eq(o.status, 0, "%s", o.err);
    output_free(&o);
}

/* Each line's answer, once, and whole. */
static void read_answers(const char *out, json_t *all[N_LINES])
{
    char *line = NULL;
    size_t room = 0, n = 0;
    ssize_t bytes;
    FILE *f = fopen(out, "r");
    cr_assert(f);
    memset(all, 0, N_LINES * sizeof all[0]);
    while ((bytes = getline(&line, &room, f)) > 0) {
        json_t *o = json_loadb(line, (size_t)bytes, JSON_ALLOW_NUL, NULL);
        json_int_t i = json_integer_value(json_object_get(o, "index"));
        cr_assert(o && i < N_LINES && !all[i], "%s", line);
        all[i] = o;
        n++;
        cr_expect_null(json_object_get(o, "error"), "%s", line);
        cr_expect_eq(json_array_size(json_object_get(o, "sequences")), n_of(i) > 1 ? n_of(i) : 0);
        for (size_t k = 0; k < n_of(i); k++)
            cr_expect_eq(json_array_size(ids_of(o, k)), 2 + (size_t)i % 7, "%s", line);
    }
    cr_assert_eq(n, N_LINES);
    free(line);
    fclose(f);
}

static void forget(json_t *all[N_LINES])
{
    for (size_t i = 0; i < N_LINES; i++)
        json_decref(all[i]);
}

static void expect_same(json_t *a[N_LINES], json_t *b[N_LINES])
{
    for (size_t i = 0; i < N_LINES; i++)
        for (size_t k = 0; k < n_of(i); k++)
            cr_expect(json_equal(ids_of(a[i], k), ids_of(b[i], k)), "%zu, answer %zu", i, k);
}

/* Cut in the middle of a line with several answers, that line is asked again, and no other. */
Test(sequences, a_file_goes_on_where_it_was_cut)
{
    struct system s;
    char in[96], out[96], *log;
    json_t *all[N_LINES], *again[N_LINES];
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null"));
    write_lines(&s, in);
    snprintf(out, sizeof out, "%s/out.jsonl", s.dir);
    answer_all(&s, in, out);
    read_answers(out, all);
    FILE *f = fopen(out, "r+");
    size_t room = 0;
    ssize_t bytes;
    long keep = 0, n_kept = 0;
    log = NULL;
    while ((bytes = getline(&log, &room, f)) > 0 && (n_kept < 9 || !strstr(log, "\"sequences\"")))
        keep += bytes, n_kept++;
    cr_assert_gt(bytes, 0);
    for (long cut = 1; cut < bytes; cut += bytes / 3) {
        cr_assert_eq(ftruncate(fileno(f), keep + cut), 0);
        uint64_t before = system_counter(&s, "requests_accepted");
        answer_all(&s, in, out);
        cr_expect_lt(system_counter(&s, "requests_accepted") - before, 700);
        read_answers(out, again);
        expect_same(all, again);
        forget(again);
    }
    free(log);
    fclose(f);
    forget(all);
    system_settle(&s);
    system_fini(&s);
}

/* Where others wait, and where a user may not have as many at once as a line asks for. */
Test(sequences, a_file_is_answered_in_parts_where_there_is_no_room)
{
    static const char *const few[][2] = {{"--max_queue_size", "1"},
                                         {"--uid_requests", "3"},
                                         {"--max_requests", "5"},
                                         {"--lane_slots", "16"}};
    json_t *all[N_LINES], *again[N_LINES];
    struct system s;
    char in[96], out[96];
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null"));
    write_lines(&s, in);
    snprintf(out, sizeof out, "%s/out.jsonl", s.dir);
    answer_all(&s, in, out);
    read_answers(out, all);
    for (size_t i = 0; i < sizeof few / sizeof few[0]; i++) {
        system_settle(&s);
        system_signal(&s, SIGTERM);
        cr_assert_eq(system_wait(&s), 0);
        unlink(out);
        system_start(&s, SETTINGS("--model", "null", few[i][0], few[i][1]));
        answer_all(&s, in, out);
        read_answers(out, again);
        expect_same(all, again);
        forget(again);
    }
    forget(all);
    system_settle(&s);
    system_fini(&s);
}
