#include "tests/bench/ipc/null.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/bench/ipc/peer.h"

enum { WORDS_MAX = 40 };

_Noreturn static void run(const struct place *place, const char *const *settings, int out)
{
    static const char *const own[] = {
        "--model",          "null", "--null_context",    "1024", "--num_blocks",    "1024",
        "--max_lanes",      "300",  "--uid_lanes",       "300",  "--uid_half_open", "64",
        "--lane_slots_max", "64",   "--uid_connections", "400",  "--max_requests",  "1024"};
    const char *words[WORDS_MAX];
    char program[300], log[100];
    size_t n = 0;
    snprintf(program, sizeof program, "%s/cbd", place->build);
    snprintf(log, sizeof log, "%s/log", place->dir);
    words[n++] = program;
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
        words[n++] = own[i];
    for (; *settings && n + 1 < WORDS_MAX; settings++)
        words[n++] = *settings;
    words[n] = NULL;
    int err = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (err < 0 || dup2(out, STDOUT_FILENO) < 0 || dup2(err, STDERR_FILENO) < 0)
        peer_fail(log);
    execv(program, (char *const *)(void *)words);
    peer_fail(program);
}

bool null_start(struct null_daemon *d, struct place *place, const char *const *settings)
{
    char said[16];
    int out[2];
    if (!place->dir[0]) {
        strcpy(place->dir, "/tmp/bench_ipc.XXXXXX");
        if (!mkdtemp(place->dir) || setenv("CBD_RUNTIME_DIR", place->dir, 1))
            peer_fail("mkdtemp");
    }
    if (pipe2(out, O_CLOEXEC))
        peer_fail("pipe");
    d->place = place;
    d->pid = peer_fork(place->there);
    if (d->pid == 0)
        run(place, settings, out[1]);
    close(out[1]);
    ssize_t n = read(out[0], said, sizeof said);
    close(out[0]);
    if (n >= 5 && memcmp(said, "ready", 5) == 0)
        return true;
    snprintf(place->why, sizeof place->why, "%s/cbd does not start: see %s/log", place->build,
             place->dir);
    null_stop(d);
    return false;
}

void null_stop(struct null_daemon *d)
{
    if (d->pid <= 0)
        return;
    kill(d->pid, SIGTERM);
    while (waitpid(d->pid, NULL, 0) < 0 && errno == EINTR)
        ;
    d->pid = 0;
}

struct cb_handle *null_open(struct place *place, enum cb_wait_mode mode, uint32_t n_slots)
{
    struct cb_options options;
    struct cb_handle *h;
    cb_options_init(&options);
    options.run_dir = place->dir;
    options.name = "bench_ipc";
    options.wait_mode = mode;
    options.n_slots = n_slots;
    options.arena_bytes = options.pool_bytes = 4096;
    if (cb_open(&h, &options)) {
        snprintf(place->why, sizeof place->why, "%s", cb_message());
        return NULL;
    }
    return h;
}

uint64_t null_submit(struct cb_handle *h, uint32_t max_new_tokens, uint32_t flags)
{
    static const uint32_t prompt = 7;
    struct cb_request r;
    uint64_t id;
    cb_request_init(&r);
    r.ids = &prompt;
    r.n_ids = 1;
    r.max_new_tokens = max_new_tokens;
    r.flags = flags | CB_IGNORE_EOS;
    if (cb_submit(h, &r, &id)) {
        fprintf(stderr, "bench_ipc: submit: %s\n", cb_message());
        exit(1);
    }
    return id;
}

double null_figure(const struct place *place, const char *name)
{
    char command[400], text[16384], key[64];
    snprintf(command, sizeof command, "%s/cbctl status --json", place->build);
    FILE *f = popen(command, "r");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f)
        pclose(f);
    text[n] = 0;
    snprintf(key, sizeof key, "\"%s\":", name);
    const char *at = strstr(text, key);
    if (!at)
        peer_fail(name);
    return strtod(at + strlen(key), NULL);
}

/* ---- as a way -------------------------------------------------------------------------------- */

struct null_lanes {
    struct null_daemon daemon;
    uint32_t n_lanes;
    struct cb_handle *handles[];
};

static void close_null(void *ctx)
{
    struct null_lanes *l = ctx;
    for (uint32_t i = 0; i < l->n_lanes; i++)
        cb_close(l->handles[i]);
    null_stop(&l->daemon);
    free(l);
}

static void *open_null(struct place *place, const struct way *way, uint32_t n_lanes)
{
    static const char *const modes[] = {
        [CB_WAIT_BALANCED] = "balanced", [CB_WAIT_SPIN] = "spin", [CB_WAIT_ECO] = "eco"};
    const char *const settings[] = {"--wait_mode", modes[way->variant], "--loop", place->loop,
                                    NULL};
    struct null_lanes *l = calloc(1, sizeof *l + n_lanes * sizeof(struct cb_handle *));
    if (!l)
        peer_fail("null");
    if (!null_start(&l->daemon, place, settings)) {
        free(l);
        return NULL;
    }
    for (; l->n_lanes < n_lanes; l->n_lanes++) {
        l->handles[l->n_lanes] = null_open(place, (enum cb_wait_mode)way->variant, 4);
        if (!l->handles[l->n_lanes]) {
            close_null(l);
            return NULL;
        }
    }
    return l;
}

static void round_null(void *ctx, uint32_t lane)
{
    struct cb_handle *h = ((struct null_lanes *)ctx)->handles[lane];
    struct cb_event e;
    uint64_t id = null_submit(h, 1, CB_FINAL_ONLY);
    if (cb_wait(h, id, &e, -1) != 1 || e.type != CB_EVENT_END || e.n_ids != 1) {
        fprintf(stderr, "bench_ipc: wait: %s\n", cb_message());
        exit(1);
    }
    cb_release(h, id);
}

#define NULL_WAY(words, mode)                                                           \
    {                                                                                   \
        .name = words, .sleeps = mode != CB_WAIT_SPIN, .is_ours = true, .n_lanes = 256, \
        .variant = mode, .open = open_null, .round = round_null, .close = close_null    \
    }
const struct way way_null_spin = NULL_WAY("cbd, spin", CB_WAIT_SPIN);
const struct way way_null_balanced = NULL_WAY("cbd, balanced", CB_WAIT_BALANCED);
const struct way way_null_eco = NULL_WAY("cbd, eco", CB_WAIT_ECO);
