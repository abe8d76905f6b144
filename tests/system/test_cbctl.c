/* Every command of cbctl against a real daemon, as programs and as people use it. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shm/stats_table.h"
#include "tests/system/fixture.h"
#include "tests/util/tiny.h"

TestSuite(cbctl, .timeout = 120);

static void start_null(struct system *s)
{
    system_init(s);
    system_start(s, SETTINGS("--model", "null"));
}

static void expect_keys(const json_t *o, const char *const *keys)
{
    char *text = json_dumps(o, JSON_COMPACT | JSON_ENCODE_ANY);
    for (; *keys; keys++)
        cr_expect(json_object_get(o, *keys), "no key %s in %s", *keys, text);
    free(text);
}

/* cbctl -i INSTANCE WORDS...: its status, and a part of what it prints to each. */
static void expect_output(const struct system *s, int status, const char *out, const char *err,
                          const char *const *words)
{
    const char *arguments[32] = {"-i", s->instance};
    size_t n = 2;
    while (*words && n < 31)
        arguments[n++] = *words++;
    struct output o = system_run(s, NULL, "cbctl", arguments);
    cr_expect_eq(o.status, status, "cbctl %s ended with %d: %s%s", arguments[2], o.status, o.out,
                 o.err);
    cr_expect(strstr(o.out, out), "cbctl %s prints %s, not %s", arguments[2], o.out, out);
    cr_expect(strstr(o.err, err), "cbctl %s complains %s, not %s", arguments[2], o.err, err);
    output_free(&o);
}

/* A list, whether it comes bare or under its name. */
static json_t *list_of(json_t *reply, const char *name)
{
    json_t *list = json_is_array(reply) ? reply : json_object_get(reply, name);
    cr_assert(json_is_array(list), "no list %s", name);
    return list;
}

Test(cbctl, status)
{
    static const char *const counters[] = {
#define X(name, kind, unit, meaning) #name,
        CB_STATS_TABLE(X)
#undef X
            NULL};
    struct system s;
    start_null(&s);
    json_t *o = system_cbctl(&s, SETTINGS("status"));
    expect_keys(o, SETTINGS("state", "instance", "version", "pid", "started_unix_s", "model",
                            "arch", "backend", "isa", "threads", "batch_invariant", "loop",
                            "vocabulary", "context", "page_size", "max_batch_tokens", "boot_id",
                            "fingerprint", "counters"));
    expect_keys(json_object_get(o, "counters"), counters);
    cr_expect_str_eq(json_string_value(json_object_get(o, "state")), "serving");
    cr_expect_str_eq(json_string_value(json_object_get(o, "instance")), s.instance);
    cr_expect_eq(json_integer_value(json_object_get(o, "pid")), s.pid);
    cr_expect_str_eq(json_string_value(json_object_get(o, "model")), "null");
    cr_expect_str_eq(json_string_value(json_object_get(o, "arch")), "null");
    cr_expect_str_eq(json_string_value(json_object_get(o, "isa")), "none");
    cr_expect_eq(json_integer_value(json_object_get(o, "threads")), 1);
    cr_expect_eq(json_object_size(json_object_get(o, "counters")),
                 sizeof counters / sizeof counters[0] - 1);
    json_decref(o);
    expect_output(&s, 0, "serving", "", SETTINGS("status"));
    expect_output(&s, 2, "", "Usage", SETTINGS("status", "extra"));
    system_settle(&s);
    system_fini(&s);
}

/* Both have the same name in /dev/shm, but for its being taken when the second one comes. */
Test(cbctl, status_tells_run_directories_apart)
{
    struct system a, b;
    start_null(&a);
    system_init(&b);
    strcpy(b.instance, a.instance);
    system_spawn_as(&b, geteuid(), SETTINGS("--model", "null", "--page_size", "64"));
    cr_assert(system_is_ready(&b));
    for (int round = 0; round < 2; round++) {
        const struct system *s = round ? &b : &a;
        json_t *o = system_cbctl(s, SETTINGS("status"));
        cr_expect_eq(json_integer_value(json_object_get(o, "pid")), s->pid);
        cr_expect_eq(json_integer_value(json_object_get(o, "page_size")), round ? 64 : 256);
        json_decref(o);
    }
    system_signal(&b, SIGTERM);
    cr_expect_eq(system_wait(&b), 0);
    expect_output(&b, 1, "", "no daemon serves this instance", SETTINGS("status"));
    system_settle(&a);
    system_fini(&a);
    system_fini(&b);
}

/* Who watches must not wait for the daemon, nor keep it from its work; who asks is told why there is
 * no answer. */
Test(cbctl, a_suspended_daemon)
{
    struct system s;
    uint64_t end = now_ms() + HANG_MS;
    bool is_suspended = false;
    start_null(&s);
    system_signal(&s, SIGSTOP);
    while (!is_suspended) { /* the signal takes its time */
        json_t *o = system_cbctl(&s, SETTINGS("status"));
        is_suspended = strcmp(json_string_value(json_object_get(o, "state")), "suspended") == 0;
        cr_expect_eq(json_integer_value(json_object_get(o, "pid")), s.pid);
        json_decref(o);
        cr_assert_lt(now_ms(), end, "it is never suspended");
    }
    expect_output(&s, 1, "", "the daemon is suspended", SETTINGS("run", "-n", "1", "x"));
    system_signal(&s, SIGCONT);
    system_settle(&s);
    system_fini(&s);
}

/* What status says of batch_invariant, and settings of its effect where it is false. */
static void expect_invariance(const struct system *s, const char *status)
{
    json_t *o = system_cbctl(s, SETTINGS("status"));
    const char *got = json_string_value(json_object_get(o, "batch_invariant"));
    cr_expect_str_eq(got, status);
    json_decref(o);
    o = system_cbctl(s, SETTINGS("settings", "batch_invariant"));
    const json_t *row = json_array_get(list_of(o, "settings"), 0);
    got = json_string_value(json_object_get(row, "effect"));
    cr_expect(strcmp(status, "true") ? got && !strcmp(got, status) : !got, "the effect is %s", got);
    json_decref(o);
}

Test(cbctl, whether_results_depend_on_the_batch)
{
    static uint32_t prompt[200];
    struct system s;
    struct cb_event event;
    struct cb_request r;
    char path[128];
    uint64_t id;
    start_null(&s);
    expect_invariance(&s, "true");
    system_fini(&s);

    system_init(&s);
    system_start(&s, SETTINGS("--model", "null", "--batch_invariant", "false"));
    expect_invariance(&s, "false, idle: the null model multiplies nothing");
    system_fini(&s);
    if (!has_isa("avx2"))
        return;

    system_init(&s);
    struct tiny tiny = tiny_default();
    struct gguf_out *out = tiny_new(&tiny);
    snprintf(path, sizeof path, "%s/tiny.gguf", s.dir);
    gguf_out_save(out, path);
    gguf_out_free(out);
    system_start(&s, SETTINGS("--model", path, "--batch_invariant", "false", "--isa", "avx2"));
    json_t *o = system_cbctl(&s, SETTINGS("status"));
    cr_expect(strstr(json_string_value(json_object_get(o, "batch_invariant")), "false, idle: "));
    json_decref(o);
    system_signal(&s, SIGTERM);
    cr_expect_eq(system_wait(&s), 0);

    system_start(&s,
                 SETTINGS("--model", path, "--batch_invariant", "false", "--isa", "amx_emulated"));
    expect_invariance(&s, "false, products of 64 tokens and more are in bf16");
    struct cb_handle *h = system_open(&s, NULL);
    for (uint32_t i = 0; i < 200; i++)
        prompt[i] = 3 + i % 250;
    cb_request_init(&r);
    r.ids = prompt;
    r.n_ids = 200;
    r.max_new_tokens = 5;
    r.flags = CB_IGNORE_EOS;
    cr_assert_eq(cb_submit(h, &r, &id), 0, "%s", cb_message());
    do
        cr_assert_eq(cb_wait(h, id, &event, HANG_MS), 1);
    while (event.type == CB_EVENT_TOKENS);
    cr_expect_eq(event.status, CB_OK);
    cb_close(h);
    system_settle(&s);
    system_fini(&s);
}

Test(cbctl, clients_requests_and_cancel)
{
    static const uint32_t prompt[] = {1, 2, 3};
    struct system s;
    struct cb_options options;
    struct cb_event event;
    struct cb_request r;
    uint64_t ids[2];
    char name[64];
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null", "--null_step_us", "1000"));
    expect_output(&s, 0, "", "", SETTINGS("requests"));
    cb_options_init(&options);
    options.name = "a client\033[1m";
    struct cb_handle *h = system_open(&s, &options);
    cb_request_init(&r);
    r.ids = prompt;
    r.n_ids = 3;
    r.max_new_tokens = 100000;
    r.priority = 9;
    r.flags = CB_IGNORE_EOS;
    for (int i = 0; i < 2; i++)
        cr_assert_eq(cb_submit(h, &r, &ids[i]), 0, "%s", cb_message());
    for (int i = 0; i < 2; i++)
        cr_assert_eq(cb_wait(h, ids[i], &event, HANG_MS), 1);

    json_t *o = system_cbctl(&s, SETTINGS("clients"));
    const json_t *row = json_array_get(list_of(o, "clients"), 0);
    expect_keys(row, SETTINGS("lane", "state", "uid", "pid", "name", "slots", "active", "requests",
                              "results", "unread", "bytes"));
    cr_expect_eq(json_integer_value(json_object_get(row, "active")), 2);
    cr_expect_eq(json_integer_value(json_object_get(row, "pid")), getpid());
    json_decref(o);
    struct output shown = system_run(&s, NULL, "cbctl", SETTINGS("-i", s.instance, "clients"));
    cr_expect(strstr(shown.out, "a client"));
    cr_expect_null(strchr(shown.out, '\033'), "a client's name steers the terminal");
    output_free(&shown);

    o = system_cbctl(&s, SETTINGS("requests"));
    cr_assert_eq(json_array_size(list_of(o, "requests")), 2);
    row = json_array_get(list_of(o, "requests"), 1);
    expect_keys(row, SETTINGS("id", "lane", "slot", "uid", "pid", "client", "state", "phase",
                              "priority", "prompt_tokens", "generated_tokens", "max_new_tokens",
                              "cached_tokens", "blocks", "soft_resets", "age_ms"));
    cr_expect_str_eq(json_string_value(json_object_get(row, "phase")), "decoding");
    cr_expect_str_eq(json_string_value(json_object_get(row, "state")), "decoding");
    cr_expect_eq(json_integer_value(json_object_get(row, "priority")), 9);
    cr_expect(strstr(json_string_value(json_object_get(row, "client")), "a client"));
    /* Which of the two that is, tells its end. */
    snprintf(name, sizeof name, "%d:%d", (int)json_integer_value(json_object_get(row, "lane")),
             (int)json_integer_value(json_object_get(row, "slot")));
    cr_expect_str_eq(json_string_value(json_object_get(row, "id")), name);
    json_decref(o);
    o = system_cbctl(&s, SETTINGS("why", name));
    cr_expect_str_eq(json_string_value(json_object_get(o, "id")), name);
    cr_expect(strstr(json_string_value(json_object_get(o, "why")), "runs"));
    json_decref(o);
    expect_output(&s, 2, "", "LANE", SETTINGS("why", "x"));
    expect_output(&s, 1, "", "no such lane", SETTINGS("why", "4000000"));
    json_decref(system_cbctl(&s, SETTINGS("cancel", name)));
    do
        cr_assert_eq(cb_wait(h, 0, &event, HANG_MS), 1, "%s", cb_message());
    while (event.type == CB_EVENT_TOKENS);
    cr_expect_eq(event.end, CB_END_CANCELLED);
    expect_output(&s, 1, "", "no request", SETTINGS("cancel", name));
    expect_output(&s, 1, "", "no such lane", SETTINGS("cancel", "4000000"));
    expect_output(&s, 2, "", "LANE", SETTINGS("cancel", "x"));
    expect_output(&s, 2, "", "usage", SETTINGS("cancel"));
    uint64_t other = event.id == ids[0] ? ids[1] : ids[0];
    cr_assert_eq(cb_wait(h, other, &event, HANG_MS), 1);
    cr_expect_eq(event.type, CB_EVENT_TOKENS, "the other request ended too");
    cb_close(h);
    system_settle(&s);
    system_fini(&s);
}

Test(cbctl, settings)
{
    struct system s;
    start_null(&s);
    json_t *o = system_cbctl(&s, SETTINGS("settings"));
    json_t *list = list_of(o, "settings"), *row;
    size_t i;
    bool found = false;
    cr_expect_gt(json_array_size(list), 40);
    json_array_foreach(list, i, row)
    {
        expect_keys(row, SETTINGS("name", "value", "resolved", "source", "live", "idle", "default",
                                  "bounds", "meaning"));
        if (strcmp(json_string_value(json_object_get(row, "name")), "model") == 0) {
            found = true;
            cr_expect_str_eq(json_string_value(json_object_get(row, "value")), "null");
            cr_expect_str_eq(json_string_value(json_object_get(row, "source")), "command line");
        }
    }
    cr_expect(found);
    json_decref(o);
    expect_output(&s, 0, "max_batch_tokens", "", SETTINGS("settings"));
    expect_output(&s, 0, "", "", SETTINGS("settings", "net_ms", "750"));
    expect_output(&s, 0, "750", "", SETTINGS("settings", "net_ms"));
    expect_output(&s, 1, "", "net_ms is 5; allowed: 100..3600000 ms",
                  SETTINGS("settings", "net_ms", "5"));
    expect_output(&s, 1, "", "the nearest is net_ms", SETTINGS("settings", "net_mss", "500"));
    expect_output(&s, 1, "", "page_size", SETTINGS("settings", "page_size", "64"));
    expect_output(&s, 2, "", "usage", SETTINGS("settings", "a", "b", "c"));
    system_settle(&s);
    system_fini(&s);
}

/* A row of `cbctl settings NAME`; the caller's to json_decref. */
static json_t *setting(const struct system *s, const char *name)
{
    json_t *o = system_cbctl(s, SETTINGS("settings", name));
    json_t *row = json_incref(json_array_get(list_of(o, "settings"), 0));
    cr_assert(row, "no setting %s", name);
    json_decref(o);
    return row;
}

static void expect_setting(const struct system *s, const char *name, const char *value,
                           const char *resolved, const char *source, const char *idle)
{
    json_t *row = setting(s, name);
    const char *why = json_string_value(json_object_get(row, "idle"));
    cr_expect_str_eq(json_string_value(json_object_get(row, "value")), value, "%s", name);
    cr_expect_str_eq(json_string_value(json_object_get(row, "resolved")), resolved, "%s", name);
    cr_expect_str_eq(json_string_value(json_object_get(row, "source")), source, "%s", name);
    cr_expect(idle ? why && strstr(why, idle) : !why, "%s is idle: %s", name, why ? why : "not");
    json_decref(row);
}

Test(cbctl, settings_show_what_they_come_to)
{
    struct system s;
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null", "--block_size", "64", "--num_blocks", "20",
                              "--max_batch_tokens", "200", "--max_requests_per_batch", "300",
                              "--scheduler_type", "prefill_first", "--use_cuda_graph", "true"));
    expect_setting(&s, "page_size", "256", "64", "default", "block_size");
    expect_setting(&s, "block_size", "64", "64", "command line", NULL);
    expect_setting(&s, "num_blocks", "20", "20", "command line", NULL);
    expect_setting(&s, "max_requests_per_batch", "300", "200", "command line", NULL);
    expect_setting(&s, "max_memory_percent", "none", "none", "default", "num_blocks");
    expect_setting(&s, "use_cuda_graph", "true", "false,false", "command line", "graphs");
    expect_setting(&s, "scheduler_type", "prefill_first", "prefill_first", "command line", NULL);
    expect_setting(&s, "safety_margin", "none", "0", "default", NULL);
    system_expect_log(&s, "block_size is deprecated");
    system_expect_log(&s, "use_cuda_graph is idle");
    json_t *o = system_cbctl(&s, SETTINGS("status"));
    cr_expect_eq(json_integer_value(json_object_get(o, "page_size")), 64);
    cr_expect_eq(json_integer_value(json_object_get(o, "max_batch_tokens")), 200);
    json_decref(o);
    system_settle(&s);
    system_fini(&s);
}

Test(cbctl, wrong_usage_and_no_daemon)
{
    struct system s;
    system_init(&s);
    expect_output(&s, 1, "", "no daemon serves this instance", SETTINGS("status"));
    expect_output(&s, 1, "", "no daemon serves this instance", SETTINGS("run", "x"));
    expect_output(&s, 1, "", "no daemon serves this instance", SETTINGS("bench"));
    expect_output(&s, 2, "", "no command \"nonsense\"", SETTINGS("nonsense"));
    expect_output(&s, 2, "", "-n is \"x\"", SETTINGS("run", "-n", "x", "text"));
    expect_output(&s, 2, "", "is no list of token ids", SETTINGS("run", "--ids-in", "1 x"));
    expect_output(&s, 2, "", "can't open /nonexistent", SETTINGS("run", "--file", "/nonexistent"));
    expect_output(&s, 0, "Commands", "", SETTINGS("--help"));
    expect_output(&s, 0, "--max-new-tokens", "", SETTINGS("run", "--help"));
    system_fini(&s);
}

/* ---- run ------------------------------------------------------------------------------------- */

/* The JSON lines of `cbctl run --json ARGUMENTS...`, n of them, and its exit status. */
static int run_json(const struct system *s, const char *input, json_t **lines, size_t n,
                    const char *const *arguments)
{
    const char *all[32] = {"-i", s->instance, "run", "--json"};
    size_t k = 4;
    while (*arguments && k < 31)
        all[k++] = *arguments++;
    struct output o = system_run(s, input, "cbctl", all);
    char *text = o.out;
    for (k = 0; k < n; k++) {
        json_error_t error;
        char *end = strchr(text, '\n');
        cr_assert(end, "%zu lines, not %zu: %s%s", k, n, o.out, o.err);
        lines[k] = json_loadb(text, (size_t)(end - text), 0, &error);
        cr_assert(lines[k], "no JSON: %s", text);
        cr_expect_eq(json_integer_value(json_object_get(lines[k], "index")), (json_int_t)k);
        text = end + 1;
    }
    cr_expect_str_eq(text, "", "more lines than prompts");
    int status = o.status;
    output_free(&o);
    return status;
}

static const char *reason(const json_t *line)
{
    return json_string_value(json_object_get(line, "finish_reason"));
}

static void drop(json_t **lines, size_t n)
{
    while (n > 0)
        json_decref(lines[--n]);
}

/* What every line has, and a failed one too. */
static const char *const line_keys[] = {"index", "prompt_ids", "ids",   "text", "finish_reason",
                                        "seed",  "usage",      "times", NULL};

Test(cbctl, run_gives_the_same_in_every_form)
{
    struct system s;
    json_t *lines[4], *again[1];
    start_null(&s);
    cr_assert_eq(run_json(&s, NULL, lines, 4,
                          SETTINGS("-n", "12", "--seed", "5", "--temperature", "0.8", "--ids-in",
                                   "1 2 3", "--ids-in", "4,5", "One", "Two")),
                 0);
    for (int i = 0; i < 4; i++) {
        expect_keys(lines[i], line_keys);
        expect_keys(json_object_get(lines[i], "usage"),
                    SETTINGS("prompt_tokens", "completion_tokens", "prefix_tokens"));
        expect_keys(json_object_get(lines[i], "times"),
                    SETTINGS("queued_ms", "first_token_ms", "total_ms", "predicted_start_ms",
                             "predicted_end_ms"));
        cr_expect_eq(json_array_size(json_object_get(lines[i], "ids")), 12);
        cr_expect_str_eq(reason(lines[i]), "length");
        cr_expect_eq(json_integer_value(json_object_get(lines[i], "seed")), 5);
    }
    cr_expect_eq(json_array_size(json_object_get(lines[0], "prompt_ids")), 3);
    cr_expect_eq(json_array_size(json_object_get(lines[1], "prompt_ids")), 2);
    /* From standard input, from a file, as text and as ids: what it was among the four. */
    cr_assert_eq(
        run_json(&s, "One", again, 1, SETTINGS("-n", "12", "--seed", "5", "--temperature", "0.8")),
        0);
    cr_expect(json_equal(json_object_get(again[0], "ids"), json_object_get(lines[2], "ids")));
    drop(again, 1);
    cr_assert_eq(run_json(&s,
                          "{\"ids\": [1, 2, 3], \"seed\": 5, \"temperature\": 0.8, "
                          "\"max_new_tokens\": 12}\n",
                          again, 1, SETTINGS("--file", "-")),
                 0);
    cr_expect(json_equal(json_object_get(again[0], "ids"), json_object_get(lines[0], "ids")));
    drop(again, 1);

    const char *text = json_string_value(json_object_get(lines[3], "text"));
    struct output o = system_run(&s, NULL, "cbctl",
                                 SETTINGS("-i", s.instance, "run", "-n", "12", "--seed", "5",
                                          "--temperature", "0.8", "Two"));
    cr_expect_eq(o.status, 0, "%s", o.err);
    cr_expect(strncmp(o.out, text, strlen(text)) == 0 && strcmp(o.out + strlen(text), "\n") == 0,
              "%s is not %s", o.out, text);
    output_free(&o);
    o = system_run(&s, NULL, "cbctl",
                   SETTINGS("-i", s.instance, "run", "-n", "12", "--seed", "5", "--temperature",
                            "0.8", "--ids", "--ids-in", "4 5"));
    cr_expect_eq(o.status, 0, "%s", o.err);
    const char *p = o.out;
    json_t *ids = json_object_get(lines[1], "ids"), *id;
    size_t i;
    json_array_foreach(ids, i, id)
    {
        char *end;
        cr_expect_eq(strtol(p, &end, 10), json_integer_value(id), "%s", o.out);
        p = end;
    }
    output_free(&o);
    drop(lines, 4);
    system_settle(&s);
    system_fini(&s);
}

static json_int_t prefix_tokens(const struct system *s, const char *input,
                                const char *const *arguments)
{
    json_t *line;
    cr_assert_eq(run_json(s, input, &line, 1, arguments), 0);
    json_int_t n =
        json_integer_value(json_object_get(json_object_get(line, "usage"), "prefix_tokens"));
    json_decref(line);
    return n;
}

Test(cbctl, run_finds_prompts_again_by_user_or_salt)
{
    static const char ids[] = "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20";
    static const char line[] = "{\"ids\": [1, 2, 3, 4, 5, 6, 7, 8, 9], \"cache_salt\": \"b\"}";
    struct system s;
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null", "--page_size", "8"));
    const char *const *plain = SETTINGS("-n", "1", "--ids-in", ids);
    const char *const *salted = SETTINGS("-n", "1", "--cache-salt", "a", "--ids-in", ids);
    const char *const *file = SETTINGS("-n", "1", "--cache-salt", "a", "--file", "-");
    cr_expect_eq(prefix_tokens(&s, NULL, plain), 0);
    cr_expect_eq(prefix_tokens(&s, NULL, plain), 16);
    cr_expect_eq(prefix_tokens(&s, NULL, salted), 0);
    cr_expect_eq(prefix_tokens(&s, NULL, salted), 16);
    cr_expect_eq(prefix_tokens(&s, line, file), 0);
    cr_expect_eq(prefix_tokens(&s, line, file), 8);
    cr_expect_eq(system_counter(&s, "prefix_hits"), 3);
    cr_expect_eq(system_counter(&s, "tokens_prefix_hit"), 40);
    cr_expect_eq(system_counter(&s, "blocks_cached"), 5);
    system_settle(&s);
    system_fini(&s);
}

Test(cbctl, run_stops)
{
    struct system s;
    json_t *lines[1];
    char stop[8] = "", id[16];
    start_null(&s);
    cr_assert_eq(run_json(&s, NULL, lines, 1, SETTINGS("-n", "50", "--ignore-eos", "Stop")), 0);
    const char *whole = json_string_value(json_object_get(lines[0], "text"));
    /* Some printable character in the middle of what it says without a stop. */
    const char *at = whole + strlen(whole) / 2;
    while (*at && (*at < '!' || *at > '~'))
        at++;
    cr_assert(*at, "nothing to stop at in %s", whole);
    stop[0] = *at;
    char *expected = strndup(whole, strcspn(whole, stop));
    snprintf(id, sizeof id, "%d",
             (int)json_integer_value(json_array_get(json_object_get(lines[0], "ids"), 10)));
    drop(lines, 1);
    cr_assert_eq(run_json(&s, NULL, lines, 1,
                          SETTINGS("-n", "50", "--ignore-eos", "--stop", "\x01never", "--stop",
                                   stop, "Stop")),
                 0);
    cr_expect_str_eq(reason(lines[0]), "stop");
    cr_expect_str_eq(json_string_value(json_object_get(lines[0], "text")), expected);
    cr_expect_eq(json_integer_value(json_object_get(lines[0], "stop_index")), 1);
    drop(lines, 1);
    cr_assert_eq(
        run_json(&s, NULL, lines, 1, SETTINGS("-n", "50", "--ignore-eos", "--stop-id", id, "Stop")),
        0);
    cr_expect_str_eq(reason(lines[0]), "stop");
    cr_expect_leq(json_array_size(json_object_get(lines[0], "ids")), 11);
    drop(lines, 1);
    free(expected);
    system_settle(&s);
    system_fini(&s);
}

Test(cbctl, run_from_a_file_with_mixed_options)
{
    static const char file[] =
        /* The first, so that no step was measured yet: else it would be refused for its deadline. */
        "{\"text\": \"Late\", \"max_new_tokens\": 100000, \"deadline_ms\": 30, \"ignore_eos\": "
        "true}\n"
        "{\"text\": \"One\", \"max_new_tokens\": 3, \"priority\": 255}\n"
        "\n"
        "{\"ids\": [1, 2, 99999999], \"max_new_tokens\": 3}\n"
        "{\"ids\": [7], \"max_new_tokens\": 5, \"temperature\": 1.0, \"seed\": 9, \"top_k\": 40, "
        "\"top_p\": 0.9}\n"
        "{\"ids\": [8], \"temperature\": -1}\n"
        "{\"ids\": []}\n"
        "{\"text\": \"Two\", \"stop\": [\"\\u0001never\"], \"stop_ids\": [3, 4]}\n";
    struct system s;
    json_t *lines[7];
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null", "--null_step_us", "500"));
    cr_expect_eq(run_json(&s, file, lines, 7, SETTINGS("-n", "4", "--file", "-")), 1);
    cr_expect_str_eq(reason(lines[0]), "deadline");
    cr_expect_str_eq(reason(lines[1]), "length");
    cr_expect_eq(json_array_size(json_object_get(lines[1], "ids")), 3);
    cr_expect_eq(json_integer_value(json_object_get(lines[2], "status")), CB_BAD_TOKEN);
    cr_expect_eq(json_array_size(json_object_get(lines[3], "ids")), 5);
    cr_expect_eq(json_integer_value(json_object_get(lines[3], "seed")), 9);
    cr_expect_eq(json_integer_value(json_object_get(lines[4], "status")), CB_BAD_TEMPERATURE);
    cr_expect_eq(json_integer_value(json_object_get(lines[5], "status")), CB_EMPTY_PROMPT);
    cr_expect_eq(json_array_size(json_object_get(lines[6], "ids")), 4, "-n is the default");
    for (int i = 2; i < 6; i++)
        if (i != 3) {
            cr_expect_str_eq(reason(lines[i]), "error");
            cr_expect(json_is_string(json_object_get(lines[i], "error")));
        }
    for (int i = 0; i < 7; i++) {
        expect_keys(lines[i], line_keys);
        expect_keys(json_object_get(lines[i], "usage"),
                    SETTINGS("prompt_tokens", "completion_tokens", "prefix_tokens"));
        expect_keys(json_object_get(lines[i], "times"),
                    SETTINGS("queued_ms", "first_token_ms", "total_ms", "predicted_start_ms",
                             "predicted_end_ms"));
    }
    drop(lines, 7);
    system_settle(&s);
    system_fini(&s);
}

/* One bad line kept all the others from running. */
Test(cbctl, run_from_a_file_with_lines_that_make_no_sense)
{
    static const char file[] = "{\"text\": \"One\", \"seed\": 9223372036854775807}\n"
                               "nonsense\n"
                               "{\"text\": \"Two\", \"max_new_token\": 3}\n"
                               "{\"text\": \"Two\", \"max_new_tokens\": 2.5}\n"
                               "{\"ids\": [1, 2, -3]}\n"
                               "\n"
                               "{\"text\": \"Two\", \"seed\": -1}\n"
                               "{\"text\": \"Two\", \"seed\": 9223372036854775808}\n"
                               "[1]\n"
                               "{\"ids\": [8]}";
    static const char *const faults[] = {
        NULL,
        "-:2: ",
        "-:3: unknown key \"max_new_token\"",
        "-:4: \"max_new_tokens\" is no whole number from 0 to 4294967294",
        "-:5: \"ids\" holds something that is no token id",
        "-:7: \"seed\" is no whole number from 0 to 9223372036854775807",
        "-:8: ",
        "-:9: not a JSON object",
        NULL};
    enum { N = sizeof faults / sizeof faults[0] };
    struct system s;
    json_t *lines[N];
    start_null(&s);
    cr_expect_eq(run_json(&s, file, lines, N, SETTINGS("-n", "4", "--file", "-")), 1);
    for (int i = 0; i < N; i++) {
        const char *error = json_string_value(json_object_get(lines[i], "error"));
        expect_keys(lines[i], line_keys);
        cr_expect_eq(json_array_size(json_object_get(lines[i], "ids")), faults[i] ? 0 : 4);
        cr_expect_eq(json_integer_value(json_object_get(lines[i], "status")),
                     faults[i] ? CB_INVALID : 0);
        cr_expect(faults[i] ? error && strncmp(error, faults[i], strlen(faults[i])) == 0 : !error,
                  "line %d: %s", i, error ? error : "no error");
        cr_expect_str_eq(reason(lines[i]), faults[i] ? "error" : "length");
    }
    cr_expect_eq(json_integer_value(json_object_get(lines[0], "seed")), INT64_MAX);
    drop(lines, N);
    struct output o =
        system_run(&s, file, "cbctl", SETTINGS("-i", s.instance, "run", "-n", "4", "--file", "-"));
    cr_expect_eq(o.status, 1);
    cr_expect(strstr(o.err, "cbctl run: -:3: unknown key"), "%s", o.err);
    cr_expect(strstr(o.out, "[1]") && strstr(o.out, "[9]"), "%s", o.out);
    output_free(&o);
    system_settle(&s);
    system_fini(&s);
}

/* Times had all digits that a double has. */
Test(cbctl, run_prints_times_to_the_microsecond)
{
    struct system s;
    start_null(&s);
    struct output o = system_run(&s, NULL, "cbctl",
                                 SETTINGS("-i", s.instance, "run", "--json", "-n", "50", "One"));
    const char *at = strstr(o.out, "\"times\"");
    cr_assert(at, "%s%s", o.out, o.err);
    for (int i = 0; i < 3; i++) {
        at = strchr(at, '.');
        cr_assert(at, "%s", o.out);
        cr_expect_leq(strspn(++at, "0123456789"), 3, "%s", o.out);
    }
    output_free(&o);
    system_fini(&s);
}

Test(cbctl, run_is_interrupted)
{
    struct system s;
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null", "--null_step_us", "1000"));
    for (int as_json = 0; as_json < 2; as_json++) {
        struct running r =
            system_run_begin(&s, NULL, "cbctl",
                             SETTINGS("-i", s.instance, "run", "-n", "100000", "--ignore-eos",
                                      "One", "Two", as_json ? "--json" : NULL));
        system_await(&s, "requests_active", 2);
        kill(r.pid, SIGINT);
        struct output o = system_run_end(&r);
        cr_expect_eq(o.status, 130, "%s", o.err);
        cr_expect(!as_json || strstr(o.out, "\"finish_reason\":\"cancelled\""), "%s", o.out);
        output_free(&o);
        cr_expect_eq(system_counter(&s, "requests_cancelled"), 2u * (unsigned)(as_json + 1));
        system_settle(&s);
    }
    system_fini(&s);
}

Test(cbctl, bench)
{
    struct system s;
    start_null(&s);
    json_t *o = system_cbctl(&s, SETTINGS("bench", "--requests", "8", "--prompt-tokens", "32",
                                          "--new-tokens", "16", "--processes", "3"));
    const char *const *keys =
        SETTINGS("prefill_tok_s", "decode_tok_s", "ttft_ms_p50", "ttft_ms_p99", "itl_ms_p50",
                 "itl_ms_p99", "itl_ms_max", "submit_us_p50", "submit_us_p99");
    expect_keys(o, keys);
    for (; *keys; keys++)
        cr_expect(json_is_number(json_object_get(o, *keys)), "%s is no number", *keys);
    json_decref(o);
    cr_expect_eq(system_counter(&s, "tokens_prefill"), 2 * 8 * 32);
    cr_expect_eq(system_counter(&s, "tokens_decode"), 8 * 15);
    expect_output(&s, 0, "prefill", "", SETTINGS("bench", "--requests", "2", "--new-tokens", "4"));
    system_settle(&s);
    system_fini(&s);
}
