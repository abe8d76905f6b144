/* Other weights for the real daemon: sent by cbctl while requests run; and sent wrongly. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>
#include <xxhash.h>

#include "tests/system/crowd.h"
#include "tests/system/raw.h"
#include "tests/util/tiny.h"

TestSuite(weights, .timeout = 120);

enum { N_REQUESTS = 6, N_NEW = 120, NOBODY = 65534 };

/* ---- while requests run ---------------------------------------------------------------------- */

static void write_tiny(const struct system *s, const char *name, uint64_t seed, uint32_t n_layers,
                       char path[128])
{
    struct tiny t = tiny_default();
    t.seed = seed;
    t.n_layers = n_layers;
    snprintf(path, 128, "%s/%s", s->dir, name);
    struct gguf_out *o = tiny_new(&t);
    gguf_out_save(o, path);
    gguf_out_free(o);
}

static uint64_t submit(struct cb_handle *h, uint32_t n, enum cb_on_new_weights wish)
{
    static const uint32_t prompt[] = {20, 30, 40, 50, 60};
    struct cb_request r;
    uint64_t id;
    cb_request_init(&r);
    r.ids = prompt;
    r.n_ids = n;
    r.max_new_tokens = N_NEW;
    r.flags = CB_IGNORE_EOS | CB_EPOCHS;
    r.on_new_weights = wish;
    cr_assert_eq(cb_submit(h, &r, &id), 0, "%s", cb_message());
    return id;
}

/* Waits for the end, and for the whole of it. */
static struct cb_result await(struct cb_handle *h, uint64_t id)
{
    struct cb_event e;
    struct cb_result result;
    do
        cr_assert_eq(cb_wait(h, id, &e, HANG_MS), 1, "%s", cb_message());
    while (e.type != CB_EVENT_END && e.type != CB_EVENT_REJECTED);
    cr_assert_eq(cb_result(h, id, &result), 0);
    return result;
}

static void load(const struct system *s, const char *path, int status, const char *part)
{
    struct output o = system_run(
        s, NULL, "cbctl", (const char *const[]){"-i", s->instance, "load-weights", path, NULL});
    cr_expect_eq(o.status, status, "%d: %s%s", o.status, o.out, o.err);
    cr_expect(strstr(status ? o.err : o.out, part), "no \"%s\" in: %s%s", part, o.out, o.err);
    output_free(&o);
}

/* As status shows it and as WELCOME has it, which must be the same. The caller's to free. */
static json_t *fingerprint_of(const struct system *s)
{
    struct raw r;
    char text[40];
    cr_assert(raw_open(&r, s));
    const uint64_t *told = r.welcome.fingerprint;
    snprintf(text, sizeof text, "%016llx%016llx", (unsigned long long)told[1],
             (unsigned long long)told[0]);
    raw_close(&r);
    json_t *status = system_cbctl(s, SETTINGS("status"));
    json_t *shown = json_incref(json_object_get(status, "fingerprint"));
    json_decref(status);
    cr_expect_str_eq(json_string_value(shown), text);
    return shown;
}

Test(weights, requests_live_through_a_load)
{
    static const enum cb_on_new_weights wishes[] = {CB_WEIGHTS_DEFAULT, CB_WEIGHTS_CONTINUE,
                                                    CB_WEIGHTS_RESTART, CB_WEIGHTS_FAIL};
    char first[128], second[128], other[128];
    uint64_t ids[N_REQUESTS];
    uint32_t tokens[N_NEW];
    struct cb_result result;
    const uint32_t *epochs;
    struct cb_handle *h;
    struct system s;
    size_t n;
    system_init(&s);
    write_tiny(&s, "first.gguf", 1, 2, first);
    write_tiny(&s, "second.gguf", 2, 2, second);
    write_tiny(&s, "other.gguf", 2, 3, other);
    system_start(&s, SETTINGS("--model", first, "--backend", "reference", "--threads", "1"));
    h = system_open(&s, NULL);
    json_t *at_first = fingerprint_of(&s);
    for (uint32_t i = 0; i < N_REQUESTS; i++)
        ids[i] = submit(h, 1 + i % 5, wishes[i % 4]);
    system_await(&s, "tokens_decode", N_REQUESTS);
    load(&s, other, 1, "llama.block_count is 3, of the model that runs it is 2");
    load(&s, second, 0, "weights 1: ");
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        bool fails = wishes[i % 4] == CB_WEIGHTS_FAIL;
        uint32_t n_anew = 0, n_switches = 0;
        result = await(h, ids[i]);
        cr_assert_eq(cb_epochs(h, ids[i], &epochs, &n), 0);
        cr_assert_eq(n, result.n_generated);
        for (size_t k = 0; k < n; k++) {
            cr_assert_leq(epochs[k] & ~CB_EPOCH_ANEW, 1);
            n_anew += (epochs[k] & CB_EPOCH_ANEW) != 0;
            n_switches += k && (epochs[k] ^ epochs[k - 1]) & 1;
        }
        if (result.end == CB_END_ERROR) {
            cr_expect(fails && result.status == CB_NEW_WEIGHTS && n_switches == 0);
            continue;
        }
        cr_expect(result.end == CB_END_LENGTH && n == N_NEW, "%u", result.end);
        cr_expect_eq(result.weight_epoch, epochs[n - 1] & ~CB_EPOCH_ANEW);
        cr_expect_leq(n_switches, fails ? 0 : 1);
        cr_expect_eq(n_anew, wishes[i % 4] == CB_WEIGHTS_RESTART ? n_switches : 0);
    }
    cr_expect_eq(system_counter(&s, "weight_epoch"), 1);
    cr_expect_eq(system_counter(&s, "weights_loaded"), 1);
    cr_expect_eq(system_counter(&s, "weights_refused"), 1);
    system_expect_log(&s, "weights 1, of uid ");
    /* Whoever comes later gets what a daemon gives that began with these weights. */
    ids[0] = submit(h, 5, CB_WEIGHTS_DEFAULT);
    result = await(h, ids[0]);
    cr_assert_eq(result.n_generated, N_NEW);
    cr_expect(result.weight_epoch == 1 && result.n_prefix_hit == 0);
    memcpy(tokens, result.ids, sizeof tokens);
    json_t *in_use = fingerprint_of(&s);
    cr_expect_not(json_equal(at_first, in_use));
    json_decref(at_first);
    cb_close(h);
    system_signal(&s, SIGTERM);
    cr_assert_eq(system_wait(&s), 0);
    system_start(&s, SETTINGS("--model", second, "--backend", "reference", "--threads", "1"));
    h = system_open(&s, NULL);
    ids[0] = submit(h, 5, CB_WEIGHTS_DEFAULT);
    result = await(h, ids[0]);
    cr_expect_eq(result.weight_epoch, 0);
    cr_expect_eq(memcmp(tokens, result.ids, sizeof tokens), 0);
    at_first = fingerprint_of(&s);
    cr_expect(json_equal(at_first, in_use));
    json_decref(at_first);
    json_decref(in_use);
    cb_close(h);
    system_settle(&s);
    unlink(first);
    unlink(second);
    unlink(other);
    system_fini(&s);
}

/* ---- what cbctl run asks for --------------------------------------------------------------------- */

enum { N_PROMPT = 3, N_TOKENS = 4000 };

/* The line that asks for what n ids give, `done` of them at most: the prompt and then tokens. */
static char *line_of(const uint32_t *ids, size_t n, uint32_t n_new)
{
    char *line = malloc(n * 12 + 100), *at = line;
    cr_assert(line);
    at += sprintf(at, "{\"max_new_tokens\": %u, \"ignore_eos\": true, \"ids\": [", n_new);
    for (size_t i = 0; i < n; i++)
        at += sprintf(at, "%s%u", i ? ", " : "", ids[i]);
    strcpy(at, "]}\n");
    return line;
}

/* The answer's ids behind those that are there; how many. */
static size_t take_ids(const struct output *o, uint32_t *ids, size_t n)
{
    json_t *line = json_loads(o->out, JSON_ALLOW_NUL, NULL), *list = json_object_get(line, "ids"),
           *id;
    size_t i;
    cr_assert(json_is_array(list), "%.200s%s", o->out, o->err);
    json_array_foreach(list, i, id) ids[n + i] = (uint32_t)json_integer_value(id);
    n = json_array_size(list);
    json_decref(line);
    return n;
}

/* All by the weights that it has. */
static void answer_all(const struct system *s, uint32_t *ids, size_t n_given)
{
    size_t n_new = N_PROMPT + N_TOKENS - n_given;
    char *line = line_of(ids, n_given, (uint32_t)n_new);
    struct output o =
        system_run(s, line, "cbctl", SETTINGS("-i", s->instance, "run", "--json", "--file", "-"));
    cr_assert_eq(take_ids(&o, ids, n_given), n_new);
    output_free(&o);
    free(line);
}

static json_int_t load_json(const struct system *s, const char *path)
{
    json_t *loaded = system_cbctl(s, SETTINGS("load-weights", path));
    json_int_t n = json_integer_value(json_object_get(loaded, "restarted"));
    json_decref(loaded);
    return n;
}

/* Each begins by the old weights and gets the new ones in the middle. Up to the token where it leaves
 * the path of the old ones it is theirs; from there on restart's is what the new ones make of all
 * before it, and continue's is not, for what it looks back at is the old ones'. */
static void wish_from_cbctl(const struct system *s, const char *wish, const char *first,
                            const char *second)
{
    static uint32_t old[N_PROMPT + N_TOKENS], got[N_PROMPT + N_TOKENS], anew[N_PROMPT + N_TOKENS];
    static const uint32_t prompt[N_PROMPT] = {20, 30, 40};
    bool fails = strcmp(wish, "fail") == 0, restarts = strcmp(wish, "restart") == 0;
    load_json(s, first);
    memcpy(old, prompt, sizeof prompt);
    answer_all(s, old, N_PROMPT);
    memcpy(got, prompt, sizeof prompt);
    char *line = line_of(prompt, N_PROMPT, N_TOKENS);
    uint64_t n_before = system_counter(s, "tokens_decode");
    struct running r = system_run_begin(
        s, line, "cbctl",
        SETTINGS("-i", s->instance, "run", "--json", "--file", "-", "--on-new-weights", wish));
    system_await(s, "tokens_decode", n_before + 20);
    json_int_t n_restarted = load_json(s, second);
    struct output o = system_run_end(&r);
    size_t n = N_PROMPT + take_ids(&o, got, N_PROMPT), same = N_PROMPT;
    cr_expect_eq(o.status, fails ? 1 : 0, "%s: %s", wish, o.err);
    cr_expect_eq(n_restarted, restarts ? 1 : 0, "%s", wish);
    cr_expect_eq(strstr(o.out, "\"error\"") != NULL, fails);
    output_free(&o);
    free(line);
    while (same < n && got[same] == old[same])
        same++;
    cr_expect_gt(same, N_PROMPT + 10, "%s", wish);
    if (fails) {
        cr_expect(same == n && n < N_PROMPT + N_TOKENS, "%zu of %zu tokens are the old ones'", same,
                  n);
        return;
    }
    cr_expect_eq(n, N_PROMPT + N_TOKENS);
    cr_assert_lt(same, n, "%s: the new ones say the same", wish);
    memcpy(anew, got, same * sizeof anew[0]);
    answer_all(s, anew, same);
    cr_expect_eq(memcmp(anew, got, sizeof got) == 0, restarts, "%s", wish);
}

Test(weights, cbctl_run_says_what_becomes_of_a_request)
{
    struct tiny t = tiny_default();
    char paths[2][128];
    struct system s;
    system_init(&s);
    t.n_context = N_PROMPT + N_TOKENS;
    for (int i = 0; i < 2; i++, t.seed++) {
        snprintf(paths[i], sizeof paths[i], "%s/%d.gguf", s.dir, i);
        struct gguf_out *o = tiny_new(&t);
        gguf_out_save(o, paths[i]);
        gguf_out_free(o);
    }
    system_start(&s, SETTINGS("--model", paths[0], "--backend", "cpu", "--threads", "1",
                              "--num_blocks", "600", "--on_new_weights", "fail"));
    wish_from_cbctl(&s, "continue", paths[0], paths[1]);
    wish_from_cbctl(&s, "restart", paths[0], paths[1]);
    wish_from_cbctl(&s, "fail", paths[0], paths[1]);
    system_settle(&s);
    unlink(paths[0]);
    unlink(paths[1]);
    system_fini(&s);
}

/* A file's tensors are read in a piece each at least, and a step comes after each piece. */
Test(weights, steps_go_on_while_a_file_is_read)
{
    enum { N_TENSORS = 20, N_LONG = 30000 };
    static const uint32_t prompt[] = {20, 30};
    struct tiny t = tiny_default();
    char first[128], second[128];
    struct cb_request r;
    struct cb_result result;
    const uint32_t *epochs;
    struct system s;
    uint64_t id;
    size_t n;
    system_init(&s);
    t.n_context = N_LONG + 2;
    for (int i = 0; i < 2; i++) {
        char *path = i ? second : first;
        snprintf(path, 128, "%s/%d.gguf", s.dir, i);
        struct gguf_out *o = tiny_new(&t);
        gguf_out_save(o, path);
        gguf_out_free(o);
        t.seed++;
    }
    system_start(&s, SETTINGS("--model", first, "--backend", "reference", "--threads", "1",
                              "--num_blocks", "2000"));
    struct cb_handle *h = system_open(&s, NULL);
    cb_request_init(&r);
    r.ids = prompt;
    r.n_ids = 2;
    r.max_new_tokens = N_LONG;
    r.flags = CB_IGNORE_EOS | CB_EPOCHS;
    cr_assert_eq(cb_submit(h, &r, &id), 0, "%s", cb_message());
    system_await(&s, "tokens_decode", 1);
    json_t *loaded = system_cbctl(&s, SETTINGS("load-weights", second));
    json_int_t n_steps = json_integer_value(json_object_get(loaded, "steps"));
    cr_expect_geq(n_steps, N_TENSORS);
    json_decref(loaded);
    system_await(&s, "tokens_decode", system_counter(&s, "tokens_decode") + 2);
    cb_cancel(h, id);
    result = await(h, id);
    cr_assert_eq(result.end, CB_END_CANCELLED);
    cr_assert_eq(cb_epochs(h, id, &epochs, &n), 0);
    cr_assert_gt(n, (size_t)n_steps);
    cr_expect(epochs[0] == 0 && epochs[n - 1] == 1);
    cr_expect_eq(epochs[n_steps / 2], 0, "they were made meanwhile, by the old ones");
    cb_close(h);
    system_settle(&s);
    unlink(first);
    unlink(second);
    system_fini(&s);
}

/* ---- sent wrongly ---------------------------------------------------------------------------- */

struct answer {
    int status, fd;
    char text[1024];
};

static struct answer ask(struct raw *r, const char *command, const char *argument)
{
    struct cb_admin record = {.head = {CB_RECORD_MAGIC, CB_RECORD_ADMIN, 0},
                              .command_bytes = (uint32_t)strlen(command),
                              .argument_bytes = (uint32_t)strlen(argument)};
    struct answer a = {.fd = -1};
    struct cb_reply piece = {0};
    memcpy(record.command, command, strlen(command));
    memcpy(record.argument, argument, strlen(argument));
    cr_assert(raw_send(r, &record, sizeof record));
    while (!piece.is_last) {
        union {
            char bytes[CMSG_SPACE(sizeof(int))];
            struct cmsghdr align;
        } control;
        struct iovec iov = {&piece, sizeof piece};
        struct msghdr m = {.msg_iov = &iov,
                           .msg_iovlen = 1,
                           .msg_control = control.bytes,
                           .msg_controllen = sizeof control.bytes};
        struct pollfd p = {r->sock, POLLIN, 0};
        cr_assert_eq(poll(&p, 1, HANG_MS), 1);
        cr_assert_eq(recvmsg(r->sock, &m, MSG_CMSG_CLOEXEC), sizeof piece);
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        if (c)
            memcpy(&a.fd, CMSG_DATA(c), sizeof(int));
        strncat(a.text, piece.text, piece.bytes);
    }
    a.status = piece.status;
    return a;
}

#define EXPECT(asked, status_, part)                                         \
    do {                                                                     \
        struct answer a_ = asked;                                            \
        cr_expect_eq(a_.status, status_, "%d: %s", a_.status, a_.text);      \
        cr_expect(strstr(a_.text, part), "no \"%s\" in: %s", part, a_.text); \
        cr_expect_eq(a_.fd, -1);                                             \
    } while (0)

static const char good[] = "null weights 9\n";
enum { N_GOOD = sizeof good - 1 };

static const char *hash_of(const void *bytes, size_t n)
{
    static char text[33];
    XXH128_hash_t h = XXH3_128bits(bytes, n);
    snprintf(text, sizeof text, "%016llx%016llx", (unsigned long long)h.high64,
             (unsigned long long)h.low64);
    return text;
}

/* Memory with these bytes. */
static int stage(struct raw *r, const char *bytes, size_t n)
{
    char size[24];
    snprintf(size, sizeof size, "%zu", n);
    struct answer a = ask(r, "stage-weights", size);
    cr_assert(a.status == 0 && a.fd >= 0, "%s", a.text);
    cr_assert_eq(pwrite(a.fd, bytes, n, 0), (ssize_t)n);
    return a.fd;
}

Test(weights, what_is_sent_wrongly_is_refused)
{
    struct system s;
    struct raw r, late;
    int fd;
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null"));
    cr_assert(raw_connect(&r, &s));
    EXPECT(ask(&r, "load-weights", hash_of(good, N_GOOD)), CB_INVALID, "stage-weights first");
    EXPECT(ask(&r, "load-weights", "12"), CB_INVALID, "32 hexadecimal digits");
    EXPECT(ask(&r, "stage-weights", ""), CB_INVALID, "the size of the file");
    EXPECT(ask(&r, "stage-weights", "-1"), CB_INVALID, "the size of the file");
    EXPECT(ask(&r, "stage-weights", "0"), CB_BAD_WEIGHTS, "the file is empty");
    EXPECT(ask(&r, "stage-weights", "1048577"), CB_BAD_WEIGHTS, "weights_bytes_max");
    EXPECT(ask(&r, "stage-weights", "99999999999999999999"), CB_BAD_WEIGHTS, "weights_bytes_max");

    /* Torn: another checksum; and not all of it is there. */
    fd = stage(&r, good, N_GOOD);
    cr_expect(ftruncate(fd, 5) < 0 && errno == EPERM);
    cr_expect(ftruncate(fd, 5000) < 0 && errno == EPERM);
    EXPECT(ask(&r, "load-weights", hash_of(good, 3)), CB_BAD_WEIGHTS, "the file is torn");
    cr_expect(pwrite(fd, good, 1, 0) < 0 && errno == EPERM);
    EXPECT(ask(&r, "load-weights", hash_of(good, N_GOOD)), CB_INVALID, "stage-weights first");
    close(fd);
    fd = stage(&r, good, N_GOOD - 4);
    EXPECT(ask(&r, "load-weights", hash_of(good, N_GOOD)), CB_BAD_WEIGHTS, "the file is torn");
    close(fd);
    /* Whole, and no weights. */
    fd = stage(&r, "GGUF", 4);
    EXPECT(ask(&r, "load-weights", hash_of("GGUF", 4)), CB_BAD_WEIGHTS, "not weights of the null");
    close(fd);
    /* Sealed by the client, so that the daemon can't. */
    fd = stage(&r, good, N_GOOD);
    cr_assert_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL), 0);
    EXPECT(ask(&r, "load-weights", hash_of(good, N_GOOD)), CB_BAD_WEIGHTS, "can't be sealed");
    close(fd);
    cr_expect_eq(system_counter(&s, "weight_epoch"), 0);
    cr_expect_eq(system_counter(&s, "weights_refused"), 4);

    /* Still mapped; then not. */
    fd = stage(&r, good, N_GOOD);
    void *map = mmap(NULL, N_GOOD, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    cr_assert_neq(map, MAP_FAILED);
    EXPECT(ask(&r, "load-weights", hash_of(good, N_GOOD)), CB_BUSY, "still mapped for writing");
    munmap(map, N_GOOD);
    EXPECT(ask(&r, "load-weights", hash_of(good, N_GOOD)), CB_OK, "\"weight_epoch\":1");
    close(fd);

    /* One at a time; who goes gives it up. */
    fd = stage(&r, good, N_GOOD);
    cr_assert(raw_connect(&late, &s));
    EXPECT(ask(&late, "stage-weights", "15"), CB_BUSY, "another connection");
    EXPECT(ask(&late, "load-weights", hash_of(good, N_GOOD)), CB_INVALID, "stage-weights first");
    close(fd);
    raw_close(&r);
    for (int tries = 0;; tries++) {
        struct answer a = ask(&late, "stage-weights", "15");
        if (a.status == 0) {
            close(a.fd);
            break;
        }
        cr_assert(a.status == CB_BUSY && tries < HANG_MS, "%s", a.text);
        nap();
    }
    raw_close(&late);
    system_settle(&s); /* its memory is gone too */
    system_fini(&s);
}

static void may_not(struct crowd *c, uint32_t i, void *arg)
{
    struct cb_options options;
    (void)i;
    cb_options_init(&options);
    options.instance = c->system->instance;
    options.run_dir = c->system->dir;
    int r = cb_load_weights(&options, arg, NULL, NULL, NULL);
    member_expect(c, r == CB_DENIED, "%d: %s", r, cb_message());
}

Test(weights, who_has_no_authority_is_refused)
{
    struct system s;
    struct crowd c;
    if (geteuid() != 0) {
        fprintf(stderr, "skipped: only root can become another user\n");
        return;
    }
    system_init(&s);
    system_start(&s,
                 SETTINGS("--model", "null", "--socket_mode", "0666", "--socket_trust", "true"));
    crowd_init(&c, &s);
    crowd_add_as(&c, NOBODY, may_not, (void *)"/etc/passwd");
    crowd_join(&c);
    crowd_fini(&c);
    cr_expect_eq(system_counter(&s, "weights_loaded"), 0);
    system_settle(&s);
    system_fini(&s);
}
