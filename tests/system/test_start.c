/* How a daemon starts, refuses to, and ends: exact messages, exit statuses, and nothing left
 * behind. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/model/model.h"
#include "shm/stats.h"
#include "tests/system/crowd.h"
#include "tests/util/tiny.h"

TestSuite(start, .timeout = 120);

/* cbd with these settings must end with that status and say exactly that. */
static void expect_refusal(struct system *s, int status, const char *message,
                           const char *const *settings)
{
    char expected[600];
    truncate(s->log, 0);
    system_spawn_as(s, geteuid(), settings);
    cr_assert_not(system_is_ready(s), "it serves in spite of: %s", message);
    cr_expect_eq(system_wait(s), status, "%s", message);
    char *log = system_log(s);
    snprintf(expected, sizeof expected, "cbd: error: %s\n", message);
    cr_expect_str_eq(log, expected);
    free(log);
}

static void write_file(const char *path, const char *bytes, size_t n)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    cr_assert(fd >= 0 && write(fd, bytes, n) == (ssize_t)n);
    close(fd);
}

Test(start, bad_settings)
{
    struct system s;
    char file[128], message[512];
    system_init(&s);
    expect_refusal(&s, 2, "no setting is called 'max_bach_tokens'; the nearest is max_batch_tokens",
                   SETTINGS("--model", "null", "--max_bach_tokens", "5"));
    expect_refusal(&s, 2, "page_size is 3; allowed: 4..65536 tokens", SETTINGS("--page_size", "3"));
    expect_refusal(&s, 2, "threads is 0; allowed: none or 1..256 threads",
                   SETTINGS("--threads", "0"));
    expect_refusal(&s, 2, "threads is 257; allowed: none or 1..256 threads",
                   SETTINGS("--threads", "257"));
    expect_refusal(&s, 2,
                   "isa is 'mmx'; allowed: "
                   "auto|scalar|avx2|avx512vnni|avx512bf16|amx|amx_emulated|amx512_emulated",
                   SETTINGS("--isa", "mmx"));
    expect_refusal(&s, 2, "num_blocks is '-1', not a number; allowed: none or 1..16777216 blocks",
                   SETTINGS("--num_blocks", "-1"));
    expect_refusal(&s, 2, "scheduler is 'lifo'; allowed: auto|fifo|prefill_first|priority|fair",
                   SETTINGS("--scheduler", "lifo"));
    expect_refusal(&s, 2, "--num_blocks has no value", SETTINGS("--num_blocks"));
    expect_refusal(&s, 2, "can't read /nonexistent: No such file or directory",
                   SETTINGS("--config", "/nonexistent"));
    snprintf(file, sizeof file, "%s/conf", s.dir);
    write_file(file, "model = null\n\nnum_bocks = 4\n", 28);
    snprintf(message, sizeof message,
             "%s line 3: no setting is called 'num_bocks'; the nearest is num_blocks", file);
    expect_refusal(&s, 2, message, SETTINGS("--config", file));
    write_file(file, "model = null\n[x\n", 16);
    snprintf(message, sizeof message, "%s line 2: not of the form 'name = value'", file);
    expect_refusal(&s, 2, message, SETTINGS("--config", file));
    system_fini(&s);
}

Test(start, bad_models)
{
    struct system s;
    char file[128], message[512];
    const char *model = default_model();
    system_init(&s);
    expect_refusal(&s, 2, "no model is set; give --model FILE, or --model null", SETTINGS(NULL));
    expect_refusal(&s, 1,
                   "/nonexistent.gguf: cannot open the model file: No such file or directory",
                   SETTINGS("--model", "/nonexistent.gguf"));
    snprintf(message, sizeof message, "%s: is a directory; name a .gguf file in it", s.dir);
    expect_refusal(&s, 1, message, SETTINGS("--model", s.dir));
    snprintf(file, sizeof file, "%s/model.gguf", s.dir);
    write_file(file, "once upon a time there was a file", 33);
    snprintf(message, sizeof message,
             "%s: not a GGUF file: its 33 bytes do not begin with 'GGUF'; name a .gguf model file",
             file);
    expect_refusal(&s, 1, message, SETTINGS("--model", file));
    if (model) {
        char *bytes = malloc(1000000);
        int fd = open(model, O_RDONLY | O_CLOEXEC);
        cr_assert(bytes && fd >= 0 && read(fd, bytes, 1000000) == 1000000);
        close(fd);
        write_file(file, bytes, 1000000);
        free(bytes);
        truncate(s.log, 0);
        system_spawn_as(&s, geteuid(), SETTINGS("--model", file));
        cr_expect_not(system_is_ready(&s));
        cr_expect_eq(system_wait(&s), 1);
        system_expect_log(&s, file);
        system_expect_log(&s, "the file is damaged or cut short; fetch it again\n");
        truncate(s.log, 0);
        system_spawn_as(&s, geteuid(), SETTINGS("--model", model, "--num_blocks", "16m"));
        cr_expect_not(system_is_ready(&s));
        cr_expect_eq(system_wait(&s), 1);
        system_expect_log(&s, "not enough memory: needs ");
        system_expect_log(&s, " MiB free; lower num_blocks or free memory\n");
    }
    system_fini(&s);
}

/* The most memory the daemon ever had, in bytes. */
static uint64_t peak_bytes(const struct system *s)
{
    char path[64], line[256];
    unsigned long long kib = 0;
    snprintf(path, sizeof path, "/proc/%d/status", s->pid);
    FILE *f = fopen(path, "re");
    cr_assert_not_null(f);
    while (!kib && fgets(line, sizeof line, f))
        sscanf(line, "VmHWM: %llu kB", &kib);
    fclose(f);
    cr_assert(kib > 0);
    return kib << 10;
}

/* Loading takes no more memory than serving: weights, cache and a little. The packed weights are no
 * larger than the file. */
Test(start, memory_of_a_load)
{
    struct system s;
    struct stat st;
    const char *model = default_model();
    if (!model || IS_SANITIZED) /* which has memory of its own */
        return;
    cr_assert_eq(stat(model, &st), 0);
    for (int i = 0; i < 2; i++) {
        system_init(&s);
        system_start(&s, SETTINGS("--model", model, "--num_blocks", "4", "--page_size", "16",
                                  "--loop", i ? "epoll" : "uring"));
        /* 30 layers of 3 heads of 64 columns, keys and values in 2 bytes, 64 tokens */
        uint64_t cache = 30 * 3 * 64 * 2 * 2 * 64;
        cr_expect_leq(peak_bytes(&s), (uint64_t)st.st_size + cache + (64 << 20), "%lu KiB",
                      peak_bytes(&s) >> 10);
        system_fini(&s);
    }
}

/* A model's fingerprint is another for each type of keys and values: status must show that of the
 * model opened with this one. */
static void expect_kv_dtype(const char *model, const char *backend, const char *kv_dtype,
                            enum dtype dtype)
{
    char message[MODEL_MESSAGE_MAX], expected[33];
    const struct model_config config = {.path = model,
                                        .backend = backend,
                                        .kv_dtype = dtype,
                                        .page_size = 16,
                                        .n_blocks = 4,
                                        .max_batch_tokens = 16,
                                        .max_batch_seqs = 4};
    struct model *m;
    struct system s;
    cr_assert_eq(model_open(&m, &config, message), 0, "%s", message);
    const uint64_t *fingerprint = model_info(m)->fingerprint;
    snprintf(expected, sizeof expected, "%016lx%016lx", fingerprint[1], fingerprint[0]);
    model_free(m);
    system_init(&s);
    system_start(&s, SETTINGS("--model", model, "--backend", backend, "--kv_dtype", kv_dtype));
    json_t *status = system_cbctl(&s, SETTINGS("status"));
    cr_expect_str_eq(json_string_value(json_object_get(status, "fingerprint")), expected,
                     "kv_dtype %s on %s", kv_dtype, backend);
    json_decref(status);
    system_fini(&s);
}

Test(start, kv_dtype_reaches_the_model)
{
    struct system files;
    struct tiny tiny = tiny_default();
    char model[128];
    system_init(&files);
    snprintf(model, sizeof model, "%s/tiny.gguf", files.dir);
    struct gguf_out *out = tiny_new(&tiny);
    gguf_out_save(out, model);
    gguf_out_free(out);
    expect_kv_dtype(model, "cpu", "auto", DTYPE_BF16);
    expect_kv_dtype(model, "cpu", "bf16", DTYPE_BF16);
    expect_kv_dtype(model, "cpu", "u8", DTYPE_U8);
    expect_kv_dtype(model, "cpu", "f32", DTYPE_F32);
    expect_kv_dtype(model, "reference", "auto", DTYPE_F32);
    expect_kv_dtype(model, "reference", "bf16", DTYPE_BF16);
    system_fini(&files);
}

/* 16 requests of 17 blocks each in a cache of 100. */
Test(start, a_pool_beside_the_cache_saves_computing_again)
{
    for (int i = 0; i < 2; i++) {
        struct system s;
        system_init(&s);
        system_start(&s, SETTINGS("--model", "null", "--page_size", "16", "--num_blocks", "100",
                                  "--safety_margin", "0", "--cpu_offload_space",
                                  i ? "0.0001" : "0.00000001"));
        if (i)
            system_expect_log(&s, "838 blocks beside the cache");
        else
            system_expect_log(&s, "cpu_offload_space has no room for a block of 128 bytes");
        json_decref(system_cbctl(&s, SETTINGS("bench", "--requests", "16", "--prompt-tokens", "64",
                                              "--new-tokens", "200")));
        cr_expect_eq(system_counter(&s, "offloads") > 0, i);
        cr_expect_eq(system_counter(&s, "restores"), system_counter(&s, "offloads"));
        cr_expect_eq(system_counter(&s, "soft_resets") > 0, !i);
        cr_expect_eq(system_counter(&s, "tokens_recomputed") > 0, !i);
        cr_expect_eq(system_counter(&s, "blocks_aside"), 0);
        cr_expect_eq(system_counter(&s, "violations"), 0);
        system_fini(&s);
    }
}

Test(start, twice_or_where_it_may_not)
{
    struct system s, again;
    char message[512], file[128];
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null"));
    again = s;
    again.pid = 0;
    again.out = -1;
    snprintf(again.log, sizeof again.log, "%s/log2", s.dir);
    snprintf(message, sizeof message,
             "instance %s is already running (%s/%s/lock is locked); stop it, or choose another "
             "--instance",
             s.instance, s.dir, s.instance);
    expect_refusal(&again, 1, message, SETTINGS("--model", "null"));
    cb_close(system_open(&s, NULL)); /* the first one is unharmed */
    system_settle(&s);
    system_fini(&s);

    system_init(&s);
    snprintf(file, sizeof file, "%s/file", s.dir);
    write_file(file, "", 0);
    snprintf(message, sizeof message,
             "the run directory %s is no directory; remove it, or set runtime_dir", file);
    expect_refusal(&s, 1, message, SETTINGS("--model", "null", "--runtime_dir", file));
    system_fini(&s);
}

Test(start, two_in_the_same_millisecond)
{
    for (int round = 0; round < 5; round++) {
        struct system a, b;
        system_init(&a);
        b = a;
        system_spawn_as(&a, geteuid(), SETTINGS("--model", "null"));
        system_spawn_as(&b, geteuid(), SETTINGS("--model", "null"));
        bool a_serves = system_is_ready(&a), b_serves = system_is_ready(&b);
        cr_assert_neq(a_serves, b_serves, "%d serve", a_serves + b_serves);
        cr_expect_eq(system_wait(a_serves ? &b : &a), 1);
        system_fini(a_serves ? &a : &b);
    }
}

Test(start, a_directory_that_is_not_writable)
{
    struct system s;
    char message[512];
    if (geteuid() != 0) {
        fprintf(stderr, "skipped: only root can become another user\n");
        return;
    }
    system_init(&s);
    write_file(s.log, "", 0);
    system_spawn_as(&s, 65534, SETTINGS("--model", "null"));
    cr_expect_not(system_is_ready(&s));
    cr_expect_eq(system_wait(&s), 1);
    snprintf(
        message, sizeof message,
        "cbd: error: the run directory %s is not writable: Permission denied; see runtime_dir\n",
        s.dir);
    char *log = system_log(&s);
    cr_expect_str_eq(log, message);
    free(log);
    system_fini(&s);
}

/* What others may have put in the way of STATUS: another name is taken, and the monitors are
 * told. */
Test(start, status_names_that_are_taken)
{
    struct system s;
    char name[128];
    for (int way = 0; way < 3; way++) {
        system_init(&s);
        snprintf(name, sizeof name, "/dev/shm/cbd.%u.%s.status", geteuid(), s.instance);
        if (way == 0) { /* left by a dead daemon: nobody holds its lock */
            write_file(name, "old", 3);
        } else if (way == 1) {
            cr_assert_eq(symlink("/etc/passwd", name), 0);
        } else {
            cr_assert_eq(mkdir(name, 0777), 0);
        }
        system_spawn_as(&s, geteuid(), SETTINGS("--model", "null"));
        cr_assert(system_is_ready(&s), "way %d", way);
        cr_expect_geq(system_counter(&s, "blocks_total"), 1);
        cb_close(system_open(&s, NULL));
        system_signal(&s, SIGTERM);
        cr_expect_eq(system_wait(&s), 0);
        if (way > 0)
            cr_expect_eq(way == 1 ? unlink(name) : rmdir(name), 0,
                         "it took away what is not its own");
        cr_expect_lt(access(name, F_OK), 0);
        system_fini(&s);
    }
}

Test(start, no_room_in_dev_shm)
{
    struct system s;
    char size[32]; /* of a STATUS page in whole pages, of which one is taken */
    snprintf(size, sizeof size, "size=%zu", (sizeof(struct cb_stats_page) + 4095) / 4096 * 4096);
    if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mount("none", "/dev/shm", "tmpfs", 0, size) < 0) {
        fprintf(stderr, "skipped: no mount namespace of one's own here\n");
        return;
    }
    write_file("/dev/shm/full", "x", 1);
    system_init(&s);
    truncate(s.log, 0);
    system_spawn_as(&s, geteuid(), SETTINGS("--model", "null"));
    cr_expect_not(system_is_ready(&s));
    cr_expect_eq(system_wait(&s), 1);
    system_expect_log(&s, "no room in /dev/shm for ");
    system_expect_log(&s, "remove files there, or mount it larger (size=, --shm-size)");
    cr_expect_eq(unlink("/dev/shm/full"), 0);
    system_start(&s, SETTINGS("--model", "null")); /* with room, in what the failed one left */
    system_fini(&s);
}

/* ---- the end --------------------------------------------------------------------------------- */

static void send_prompt(struct cb_handle *h, uint32_t limit, uint64_t *idp)
{
    static const uint32_t prompt[] = {1, 2, 3, 4};
    struct cb_request r;
    cb_request_init(&r);
    r.ids = prompt;
    r.n_ids = 4;
    r.max_new_tokens = limit;
    r.flags = CB_IGNORE_EOS;
    cr_assert_eq(cb_submit(h, &r, idp), 0, "%s", cb_message());
}

static void wait_end(struct cb_handle *h, uint64_t id, struct cb_event *event)
{
    do
        cr_assert_eq(cb_wait(h, id, event, HANG_MS), 1, "%s", cb_message());
    while (event->type == CB_EVENT_TOKENS);
}

/* A daemon with one request that streams and two that wait for their turn. */
static struct cb_handle *start_busy(struct system *s, uint32_t limit, uint64_t ids[3],
                                    const char *timeout)
{
    struct cb_event event;
    system_init(s);
    system_start(s, SETTINGS("--model", "null", "--null_step_us", "2000", "--drain_timeout",
                             timeout, "--max_requests_per_batch", "1"));
    struct cb_handle *h = system_open(s, NULL);
    for (int i = 0; i < 3; i++)
        send_prompt(h, limit, &ids[i]);
    cr_assert_eq(cb_wait(h, ids[0], &event, HANG_MS), 1);
    system_await(s, "requests_accepted", 3);
    return h;
}

static void expect_draining(struct system *s, struct cb_handle *h)
{
    struct cb_options options;
    struct cb_handle *other;
    struct cb_event event;
    uint64_t id;
    system_await(s, "draining", 1);
    send_prompt(h, 1, &id);
    wait_end(h, id, &event);
    cr_expect_eq(event.type, CB_EVENT_REJECTED);
    cr_expect_eq(event.status, CB_DRAINING);
    cb_release(h, id);
    cb_options_init(&options);
    cr_expect_eq(system_try_open(s, &options, &other), CB_DRAINING);
}

Test(start, sigterm_drains)
{
    static const int signals[] = {SIGTERM, SIGINT};
    for (int i = 0; i < 3; i++) {
        struct system s;
        uint64_t ids[3];
        struct cb_event event;
        struct cb_handle *h = start_busy(&s, 60, ids, "30");
        if (i < 2) {
            system_signal(&s, signals[i]);
        } else {
            struct output o = system_run(&s, NULL, "cbctl", SETTINGS("-i", s.instance, "drain"));
            cr_expect_eq(o.status, 0, "%s", o.err);
            output_free(&o);
            o = system_run(&s, NULL, "cbctl", SETTINGS("-i", s.instance, "stop"));
            cr_expect_eq(o.status, 0, "a second time: %s", o.err);
            cr_expect(strstr(o.out, "draining") && strstr(o.out, "active"), "%s", o.out);
            output_free(&o);
        }
        expect_draining(&s, h);
        for (int k = 0; k < 3; k++) {
            wait_end(h, ids[k], &event);
            cr_expect_eq(event.end, CB_END_LENGTH, "request %d ends with %u, %d", k, event.end,
                         event.status);
            cr_expect_eq(event.first + event.n_ids, 60);
        }
        cr_expect_eq(system_wait(&s), 0);
        cr_expect(cb_wait(h, 0, &event, HANG_MS) == CB_LOST);
        cb_close(h);
        system_expect_log(&s, "cbd: stopped\n");
        system_fini(&s);
    }
}

/* The signal had to wait until the daemon was ready. One that loads so fast that it is, all the same,
 * is given other chances. */
Test(start, sigterm_during_a_load)
{
    struct system s;
    char lock[128];
    const char *model = default_model();
    bool was_ready = true;
    if (!model)
        return;
    system_init(&s);
    snprintf(lock, sizeof lock, "%s/%s/lock", s.dir, s.instance);
    for (int i = 0; i < 10 && was_ready; i++) {
        uint64_t end = now_ms() + HANG_MS;
        unlink(lock);
        system_spawn_as(&s, geteuid(), SETTINGS("--model", model));
        while (access(lock, F_OK) < 0) { /* it looks at signals from before that on */
            cr_assert_lt(now_ms(), end, "it takes no lock");
            nap();
        }
        system_signal(&s, SIGTERM);
        was_ready = system_is_ready(&s);
        cr_expect_eq(system_wait(&s), 0);
    }
    cr_expect_not(was_ready);
    system_expect_log(&s, "SIGTERM while ");
    system_expect_log(&s, "cbd: stopped\n");
    system_fini(&s);
}

static void on_signal(int signal)
{
    (void)signal;
}

/* It killed the daemon, and left its socket and its clients' requests behind. */
Test(start, sighup_drains_only_where_there_is_a_terminal)
{
    enum { NO_TERMINAL, NOHUP, TERMINAL };
    /* A session of our own, whose terminal comes later; its end must not end the test. The leader of
     * a process group has to leave that first. */
    signal(SIGHUP, on_signal);
    if (getsid(0) != getpid())
        cr_assert(setpgid(0, getpgid(getppid())) == 0 && setsid() == getpid());
    for (int i = NO_TERMINAL; i <= TERMINAL; i++) {
        struct system s;
        int ours = -1, its = -1;
        if (i >= NOHUP) {
            ours = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
            cr_assert(ours >= 0 && grantpt(ours) == 0 && unlockpt(ours) == 0);
            its = open(ptsname(ours), O_RDWR | O_CLOEXEC);
            cr_assert_geq(its, 0);
        }
        signal(SIGHUP, i == NOHUP ? SIG_IGN : on_signal);
        system_init(&s);
        system_start(&s, SETTINGS("--model", "null"));
        system_signal(&s, SIGHUP);
        if (i == TERMINAL) {
            cr_expect_eq(system_wait(&s), 0);
            system_expect_log(&s, "draining (SIGHUP)");
        } else {
            cb_close(system_open(&s, NULL));
            cr_expect_eq(system_counter(&s, "draining"), 0);
        }
        if (i == NO_TERMINAL)
            system_expect_log(&s, "SIGHUP changes nothing");
        signal(SIGHUP, on_signal);
        system_fini(&s);
        if (i == NOHUP) /* to take another one */
            cr_assert_eq(ioctl(its, TIOCNOTTY), 0);
        close(its);
        close(ours);
    }
}

/* The drain is over at once when nothing runs, whoever is connected. */
Test(start, sigterm_with_idle_clients)
{
    struct system s;
    struct cb_event event;
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null"));
    struct cb_handle *h = system_open(&s, NULL);
    system_signal(&s, SIGTERM);
    cr_expect_eq(system_wait(&s), 0);
    cr_expect_eq(cb_wait(h, 0, &event, HANG_MS), CB_LOST);
    cb_close(h);
    system_fini(&s);
}

static void expect_cut_short(struct system *s, struct cb_handle *h, const uint64_t ids[3])
{
    struct cb_event event;
    cr_expect_eq(system_wait(s), 0);
    for (int k = 0; k < 3; k++) {
        wait_end(h, ids[k], &event);
        cr_expect_eq(event.end, CB_END_ERROR);
        cr_expect_eq(event.status, CB_STOPPED, "request %d: status %d", k, event.status);
    }
    cr_expect_eq(cb_wait(h, 0, &event, HANG_MS), CB_LOST);
    cb_close(h);
    system_fini(s);
}

Test(start, a_drain_that_takes_too_long)
{
    struct system s;
    uint64_t ids[3];
    struct cb_handle *h = start_busy(&s, 50000, ids, "1");
    system_signal(&s, SIGTERM);
    expect_draining(&s, h);
    expect_cut_short(&s, h, ids);
}

Test(start, a_second_sigterm_stops_at_once)
{
    struct system s;
    uint64_t ids[3];
    struct cb_handle *h = start_busy(&s, 50000, ids, "3600");
    system_signal(&s, SIGTERM);
    expect_draining(&s, h);
    system_signal(&s, SIGTERM);
    expect_cut_short(&s, h, ids);
}

Test(start, the_command_stop_lets_what_was_accepted_end)
{
    struct system s;
    uint64_t ids[3];
    struct cb_event event;
    struct cb_handle *h = start_busy(&s, 60, ids, "30");
    struct output o = system_run(&s, NULL, "cbctl", SETTINGS("-i", s.instance, "stop"));
    cr_expect_eq(o.status, 0, "%s", o.err);
    output_free(&o);
    expect_draining(&s, h);
    for (int k = 0; k < 3; k++) {
        wait_end(h, ids[k], &event);
        cr_expect_eq(event.end, CB_END_LENGTH, "request %d ends with %u", k, event.end);
    }
    cr_expect_eq(system_wait(&s), 0);
    s.pid = 0;
    cb_close(h);
    system_fini(&s);
}

Test(start, the_command_stop_hard_stops_at_once)
{
    struct system s;
    uint64_t ids[3];
    struct cb_handle *h = start_busy(&s, 50000, ids, "3600");
    struct output o = system_run(&s, NULL, "cbctl", SETTINGS("-i", s.instance, "stop", "--hard"));
    cr_expect_eq(o.status, 0, "%s", o.err);
    output_free(&o);
    expect_cut_short(&s, h, ids);
}

Test(start, too_few_descriptors_are_named)
{
    struct system s;
    char line[1400], path[512];
    system_init(&s);
    for (int n = 40; n < 64; n += 23) {
        snprintf(line, sizeof line,
                 "ulimit -n %d; '%s' --model null --runtime_dir %s 2>&1 | "
                 "grep -q 'RLIMIT_NOFILE allows %d open files and cbd needs 64'",
                 n, built("cbd", path), s.dir, n);
        cr_expect_eq(system(line), 0, "%s", line);
    }
    system_fini(&s);
}

/* Else its lock or its STATUS page could be standard output. Help that nobody can read is a
 * failure; to say that it is ready is not worth one. */
Test(start, closed_standard_descriptors)
{
    struct system s;
    struct cb_options options;
    struct cb_handle *h;
    char line[1400], path[512];
    system_init(&s);
    built("cbd", path);
    snprintf(line, sizeof line, "'%s' --help <&- >&- 2>&-", path);
    cr_expect_eq(system(line), 1 << 8);
    snprintf(line, sizeof line, "'%s' --help <&- 2>&- >/dev/null", path);
    cr_expect_eq(system(line), 0);
    snprintf(line, sizeof line, "'%s' --model null --instance %s --runtime_dir %s <&- >&- 2>&- &",
             path, s.instance, s.dir);
    cr_expect_eq(system(line), 0);
    cb_options_init(&options);
    options.wait_ms = HANG_MS;
    cr_assert_eq(system_try_open(&s, &options, &h), 0, "%s", cb_message());
    struct output o = system_run(&s, NULL, "cbctl", SETTINGS("-i", s.instance, "drain"));
    cr_expect_eq(o.status, 0, "%s", o.err);
    output_free(&o);
    cb_close(h);
    system_fini(&s);
}
