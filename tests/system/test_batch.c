/* Batches against the real daemon: cb_generate_batch, and `cbctl generate-batch`. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/system/fixture.h"

TestSuite(batch, .timeout = 120);

enum { N_PROMPTS = 300, N_NEW = 12 };

struct prompts {
    uint32_t ids[N_PROMPTS][3];
    struct cb_prompt v[N_PROMPTS];
};

static struct cb_outputs *generate(struct cb_handle *h, const struct cb_prompt *prompts, size_t n)
{
    struct cb_request config;
    struct cb_batch batch;
    struct cb_outputs *outputs;
    cb_request_init(&config);
    config.max_new_tokens = N_NEW;
    cb_batch_init(&batch);
    batch.prompts = prompts;
    batch.n_prompts = n;
    batch.config = &config;
    cr_assert_eq(cb_generate_batch(h, &batch, &outputs), 0, "%s", cb_message());
    return outputs;
}

/* Together they are what each is alone; and a daemon that refuses for now is asked again. */
static void alike(const char *const *settings)
{
    struct system s;
    struct prompts *p = calloc(1, sizeof *p);
    system_init(&s);
    system_start(&s, settings);
    struct cb_handle *h = system_open(&s, NULL);
    for (uint32_t i = 0; i < N_PROMPTS; i++) {
        for (uint32_t k = 0; k < 3; k++)
            p->ids[i][k] = (i * 31 + k * 7) % 49000;
        p->v[i].ids = p->ids[i];
        p->v[i].n_ids = 1 + i % 3;
    }
    struct cb_outputs *all = generate(h, p->v, N_PROMPTS);
    cr_assert_eq(all->n, N_PROMPTS);
    for (uint32_t i = 0; i < N_PROMPTS; i += 37) {
        struct cb_outputs *one = generate(h, &p->v[i], 1);
        cr_expect_eq(all->v[i].n_generated, N_NEW);
        cr_expect_eq(memcmp(all->v[i].generated, one->v[0].generated, N_NEW * sizeof(uint32_t)), 0,
                     "prompt %u", i);
        cb_outputs_free(one);
    }
    /* As many as there are slots, then one with each end; not one with each look. */
    cr_expect_leq(system_counter(&s, "requests_rejected"), 64 + 2 * N_PROMPTS);
    cb_outputs_free(all);
    cb_close(h);
    system_settle(&s);
    system_fini(&s);
    free(p);
}

Test(batch, of_many_is_as_of_one)
{
    alike(SETTINGS("--model", "null"));
}

/* Whatever a request can tell of its tokens, its output has. */
Test(batch, outputs_have_what_was_asked_for)
{
    enum { TOP = 2, N_IDS = 3 };
    static const uint32_t ids[N_IDS] = {5, 6, 7};
    const struct cb_prompt prompt = {.ids = ids, .n_ids = N_IDS};
    const struct cb_top_logprob *top, *prompt_top;
    const float *logprobs, *prompt_logprobs;
    const uint32_t *epochs;
    struct cb_request config, request;
    struct cb_outputs *outputs;
    struct cb_event event;
    struct cb_batch batch;
    struct system s;
    uint64_t id;
    size_t n;
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null"));
    struct cb_handle *h = system_open(&s, NULL);
    cb_request_init(&config);
    config.flags = CB_LOGPROBS | CB_PROMPT_LOGPROBS | CB_EPOCHS;
    config.top_logprobs = TOP;
    config.max_new_tokens = N_NEW;
    cb_batch_init(&batch);
    batch.prompts = &prompt;
    batch.n_prompts = 1;
    batch.config = &config;
    cr_assert_eq(cb_generate_batch(h, &batch, &outputs), 0, "%s", cb_message());
    const struct cb_output *o = &outputs->v[0];
    cr_assert(o->n_generated == N_NEW && o->logprobs && o->top_logprobs && o->prompt_logprobs &&
              o->prompt_top_logprobs && o->epochs && !o->times_ns);
    request = config;
    request.flags |= CB_FINAL_ONLY;
    request.ids = ids;
    request.n_ids = N_IDS;
    cr_assert_eq(cb_submit(h, &request, &id), 0, "%s", cb_message());
    cr_assert_eq(cb_wait(h, id, &event, -1), 1);
    cr_assert_eq(cb_logprobs(h, id, &logprobs, &top, &n), 0);
    cr_assert_eq(n, N_NEW);
    cr_assert_eq(cb_prompt_logprobs(h, id, &prompt_logprobs, &prompt_top, &n), 0);
    cr_assert_eq(n, N_IDS);
    cr_assert_eq(cb_epochs(h, id, &epochs, &n), 0);
    cr_expect(!memcmp(o->logprobs, logprobs, N_NEW * sizeof *logprobs));
    cr_expect(!memcmp(o->top_logprobs, top, N_NEW * TOP * sizeof *top));
    cr_expect(!memcmp(o->prompt_logprobs, prompt_logprobs, N_IDS * sizeof *prompt_logprobs));
    cr_expect(!memcmp(o->prompt_top_logprobs, prompt_top, N_IDS * TOP * sizeof *prompt_top));
    cr_expect(!memcmp(o->epochs, epochs, N_NEW * sizeof *epochs));
    cb_release(h, id);
    cb_outputs_free(outputs);
    /* A second batch, of another configuration, acts by that one. */
    config.flags = 0;
    config.top_logprobs = 0;
    config.max_new_tokens = 2;
    cr_assert_eq(cb_generate_batch(h, &batch, &outputs), 0, "%s", cb_message());
    o = &outputs->v[0];
    cr_expect(o->n_generated == 2 && !o->logprobs && !o->top_logprobs && !o->prompt_logprobs &&
              !o->prompt_top_logprobs && !o->epochs);
    cb_outputs_free(outputs);
    cb_close(h);
    system_settle(&s);
    system_fini(&s);
}

Test(batch, asks_again_where_others_wait)
{
    alike(SETTINGS("--model", "null", "--max_queue_size", "1", "--null_step_us", "300"));
}

/* ---- cbctl generate-batch -------------------------------------------------------------------- */

enum { N_LINES = 1500, BAD = 7 };

/* A file of prompts, of which one makes no sense, and blank lines between. */
static void write_prompts(const struct system *s, char path[96], uint32_t n, uint32_t first)
{
    snprintf(path, 96, "%s/in-%u-%u.jsonl", s->dir, n, first);
    FILE *f = fopen(path, "w");
    cr_assert(f);
    for (uint32_t i = 0; i < n; i++)
        if (i == BAD)
            fputs("{\"ids\": \"x\"}\n\n", f);
        else
            fprintf(f, "{\"ids\": [%u, %u], \"max_new_tokens\": %u}\n", first + i, i % 37,
                    3 + i % 9);
    fclose(f);
}

static struct output batch(const struct system *s, const char *in, const char *out)
{
    return system_run(s, NULL, "cbctl",
                      SETTINGS("-i", s->instance, "generate-batch", in, "-o", out, "--json"));
}

static void expect_summary(const struct output *o, json_int_t answered, json_int_t kept,
                           json_int_t failed)
{
    json_t *j = json_loads(o->out, 0, NULL);
    cr_assert(j, "%s%s", o->out, o->err);
    cr_expect(json_integer_value(json_object_get(j, "answered")) == answered &&
                  json_integer_value(json_object_get(j, "kept")) == kept &&
                  json_integer_value(json_object_get(j, "failed")) == failed,
              "%s", o->out);
    cr_expect(json_is_true(json_object_get(j, "complete")));
    json_decref(j);
}

/* The file has an answer to each of n prompts, once, and that is the ids of each as of `run`. */
static void expect_answers(const char *out, uint32_t n, json_t *all[])
{
    char *line = NULL;
    size_t room = 0, n_seen = 0;
    ssize_t bytes;
    FILE *f = fopen(out, "r");
    cr_assert(f);
    for (uint32_t i = 0; i < n; i++)
        all[i] = NULL;
    while ((bytes = getline(&line, &room, f)) > 0) {
        json_t *o = json_loadb(line, (size_t)bytes, JSON_ALLOW_NUL, NULL);
        json_int_t i = json_integer_value(json_object_get(o, "index"));
        cr_assert(o && i < n && !all[i], "%s", line);
        all[i] = o;
        n_seen++;
        cr_expect_eq(json_object_get(o, "error") != NULL, i == BAD, "%s", line);
        cr_expect_eq(json_array_size(json_object_get(o, "ids")), i == BAD ? 0 : 3 + (size_t)i % 9);
    }
    cr_assert_eq(n_seen, n, "%zu answers", n_seen);
    free(line);
    fclose(f);
}

static void forget(json_t *all[], uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        json_decref(all[i]);
}

static void expect_same(json_t *a[], json_t *b[], uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        cr_assert(json_equal(json_object_get(a[i], "ids"), json_object_get(b[i], "ids")), "%u", i);
}

Test(batch, a_file_is_sent_again_only_as_others_end)
{
    enum { N = 200 };
    struct system s;
    char in[96], out[104];
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null", "--max_queue_size", "1", "--null_step_us", "300"));
    write_prompts(&s, in, N, 0);
    snprintf(out, sizeof out, "%s.out", in);
    struct output o = batch(&s, in, out);
    cr_expect_eq(o.status, 1, "%s", o.err); /* one line makes no sense */
    cr_expect_leq(system_counter(&s, "requests_rejected"), 64 + 2 * N);
    output_free(&o);
    unlink(in);
    unlink(out);
    system_settle(&s);
    system_fini(&s);
}

Test(batch, a_file_is_answered_line_by_line)
{
    struct system s;
    char in[96], out[96];
    static json_t *all[N_LINES], *again[N_LINES];
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null"));
    write_prompts(&s, in, N_LINES, 5);
    snprintf(out, sizeof out, "%s/out.jsonl", s.dir);
    struct output o = batch(&s, in, out);
    cr_expect_eq(o.status, 1, "a line has failed");
    expect_summary(&o, N_LINES, 0, 1);
    cr_expect_null(strchr(o.err, '\r'), "a bar where no terminal is: %s", o.err);
    output_free(&o);
    expect_answers(out, N_LINES, all);
    cr_expect(strstr(json_string_value(json_object_get(all[BAD], "error")), ":8: needs"));
    struct output run =
        system_run(&s, NULL, "cbctl",
                   SETTINGS("-i", s.instance, "run", "--json", "-n", "12", "--ids-in", "8 3"));
    json_t *one = json_loads(run.out, 0, NULL);
    cr_expect(json_equal(json_object_get(one, "ids"), json_object_get(all[3], "ids")) == 0 &&
              json_equal(json_array_get(json_object_get(one, "ids"), 0),
                         json_array_get(json_object_get(all[3], "ids"), 0)));
    json_decref(one);
    output_free(&run);

    o = batch(&s, in, out); /* nothing is left to do */
    expect_summary(&o, 0, N_LINES, 1);
    output_free(&o);
    /* The last two lines are gone, and half of the one before. */
    FILE *f = fopen(out, "r+");
    fseek(f, 0, SEEK_END);
    long end = ftell(f), n_newlines = 0;
    while (n_newlines < 3 && end-- > 0) {
        fseek(f, end, SEEK_SET);
        n_newlines += fgetc(f) == '\n';
    }
    cr_assert_eq(ftruncate(fileno(f), end - 20), 0);
    fclose(f);
    o = batch(&s, in, out);
    expect_summary(&o, 3, N_LINES - 3, 1);
    output_free(&o);
    expect_answers(out, N_LINES, again);
    expect_same(all, again, N_LINES);
    forget(all, N_LINES);
    forget(again, N_LINES);
    system_settle(&s);
    system_fini(&s);
}

static long size_of(const char *path)
{
    struct stat st;
    return stat(path, &st) ? 0 : (long)st.st_size;
}

/* Waits until the file has more than so many bytes. */
static void await_growth(const char *path, long n)
{
    uint64_t end = now_ms() + HANG_MS;
    for (; size_of(path) <= n; nap())
        cr_assert_lt(now_ms(), end, "%s does not grow", path);
}

/* Cut short by Ctrl-C, and by the daemon's death, it goes on where it was; what ended so is no
 * answer. */
Test(batch, goes_on_where_it_was_cut_short)
{
    struct system s;
    char in[96], out[96], whole[96];
    static json_t *all[N_LINES], *again[N_LINES];
    const char *const settings[] = {"--model", "null", "--null_step_us", "1500", NULL};
    system_init(&s);
    system_start(&s, settings);
    write_prompts(&s, in, N_LINES, 5);
    snprintf(out, sizeof out, "%s/out.jsonl", s.dir);
    snprintf(whole, sizeof whole, "%s/whole.jsonl", s.dir);
    const char *const words[] = {"-i", s.instance, "generate-batch", in, "-o", out, NULL};
    struct running r = system_run_begin(&s, NULL, "cbctl", words);
    await_growth(out, 0);
    struct output o = batch(&s, in, out);
    cr_expect(o.status == 1 && strstr(o.err, "another process writes"), "%s", o.err);
    output_free(&o);
    kill(r.pid, SIGINT);
    o = system_run_end(&r);
    cr_expect_eq(o.status, 130, "%s", o.err);
    cr_expect(strstr(o.err, "the same command goes on"), "%s", o.err);
    output_free(&o);

    long n = size_of(out);
    r = system_run_begin(&s, NULL, "cbctl", words);
    await_growth(out, n);
    system_signal(&s, SIGKILL);
    system_wait(&s);
    o = system_run_end(&r);
    cr_expect_eq(o.status, 1, "%s", o.err);
    cr_expect(strstr(o.err, "the daemon is gone"), "%s", o.err);
    output_free(&o);

    system_start(&s, settings);
    o = batch(&s, in, out);
    output_free(&o);
    expect_answers(out, N_LINES, all);
    o = batch(&s, in, whole);
    output_free(&o);
    expect_answers(whole, N_LINES, again);
    expect_same(all, again, N_LINES);
    forget(all, N_LINES);
    forget(again, N_LINES);
    system_settle(&s);
    system_fini(&s);
}

static void complains(const struct system *s, int status, const char *says,
                      const char *const *words)
{
    const char *all[16] = {"-i", s->instance, "generate-batch"};
    size_t n = 3;
    while (*words && n < 15)
        all[n++] = *words++;
    struct output o = system_run(s, "", "cbctl", all);
    cr_expect_eq(o.status, status, "%d: %s", o.status, o.err);
    cr_expect(strstr(o.err, says), "%s", o.err);
    output_free(&o);
}

Test(batch, files_that_do_not_belong_together)
{
    struct system s;
    char in[96], other[96], more[96], out[96], no[96];
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null"));
    write_prompts(&s, in, 20, 5);
    write_prompts(&s, other, 20, 6);
    write_prompts(&s, more, 10, 5);
    snprintf(out, sizeof out, "%s/out.jsonl", s.dir);
    snprintf(no, sizeof no, "%s/none/out.jsonl", s.dir);
    complains(&s, 1, "20 answered", SETTINGS(in, "-o", out));
    complains(&s, 1, "something else than line 1 of", SETTINGS(other, "-o", out));
    complains(&s, 1, "more prompts than the 10", SETTINGS(more, "-o", out));
    complains(&s, 1, "is no answer of this command", SETTINGS(in, "-o", in));
    FILE *f = fopen(more, "w"); /* one line, without an end: somebody's, and not torn */
    fputs("{\"text\": \"dear\"}", f);
    fclose(f);
    complains(&s, 1, "is no answer of this command", SETTINGS(in, "-o", more));
    f = fopen(more, "r");
    cr_expect(f && fgetc(f) == '{' && fgetc(f) == '"' && fgetc(f) == 't', "it was kept");
    fclose(f);
    complains(&s, 1, "can't open", SETTINGS(in, "-o", no));
    complains(&s, 1, "can't open", SETTINGS(no));
    complains(&s, 0, "0 answered", SETTINGS("-"));
    complains(&s, 2, "Usage", SETTINGS(in, out));
    complains(&s, 2, "Usage", SETTINGS("-o", out));
    complains(&s, 2, "-n is \"x\"", SETTINGS(in, "-n", "x"));
    struct output o =
        system_run(&s, NULL, "cbctl", SETTINGS("-i", s.instance, "generate-batch", in));
    size_t n = 0;
    for (const char *c = o.out; *c; c++)
        n += *c == '\n';
    cr_expect_eq(n, 20, "%s", o.out);
    output_free(&o);
    system_settle(&s);
    system_fini(&s);
}
