/* iceoryx, where its C binding is installed: a chunk published there and one back, both sides
 * spinning, each lane a pair of topics. A process may join its daemon once, so that is started with
 * the first lane and lives as long as the bench. */
#include "tests/bench/ipc/way.h"

#include <stdio.h>
#include <stdlib.h>

#ifdef HAS_ICEORYX
#include <iceoryx_binding_c/log.h>
#include <iceoryx_binding_c/publisher.h>
#include <iceoryx_binding_c/runtime.h>
#include <iceoryx_binding_c/subscriber.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "shm/atomics.h"
#include "tests/bench/ipc/load.h"
#include "tests/bench/ipc/peer.h"

enum { BYTES = 8, PATIENCE_MS = 5000 };

struct topic {
    iox_pub_storage_t pub_storage;
    iox_sub_storage_t sub_storage;
    iox_pub_t pub;
    iox_sub_t sub;
};

struct iceoryx {
    uint32_t n_lanes;
    pid_t peer;
    struct topic topics[];
};

static void join(struct topic *t, uint32_t n_lanes, uint32_t lane, bool is_echo)
{
    char name[32];
    iox_pub_options_t pub;
    iox_sub_options_t sub;
    iox_pub_options_init(&pub);
    iox_sub_options_init(&sub);
    snprintf(name, sizeof name, "%u of %u", lane, n_lanes);
    t->pub = iox_pub_init(&t->pub_storage, "bench_ipc", name, is_echo ? "back" : "there", &pub);
    t->sub = iox_sub_init(&t->sub_storage, "bench_ipc", name, is_echo ? "there" : "back", &sub);
}

static void publish(const struct topic *t)
{
    void *chunk;
    if (iox_pub_loan_chunk(t->pub, &chunk, BYTES) != AllocationResult_SUCCESS)
        peer_fail("iceoryx has no chunk");
    iox_pub_publish_chunk(t->pub, chunk);
}

static bool take(const struct topic *t)
{
    const void *chunk;
    if (iox_sub_take_chunk(t->sub, &chunk) != ChunkReceiveResult_SUCCESS)
        return false;
    iox_sub_release_chunk(t->sub, chunk);
    return true;
}

void iceoryx_echo(uint32_t n_lanes)
{
    struct topic *topics = calloc(n_lanes, sizeof *topics);
    char name[64];
    snprintf(name, sizeof name, "bench_ipc_echo_%ld", (long)getpid());
    if (!topics)
        peer_fail("iceoryx");
    iox_set_loglevel(Iceoryx_LogLevel_Error);
    iox_runtime_init(name);
    for (uint32_t i = 0; i < n_lanes; i++)
        join(&topics[i], n_lanes, i, true);
    for (uint32_t i = 0;; i = i + 1 == n_lanes ? 0 : i + 1) {
        if (take(&topics[i]))
            publish(&topics[i]);
        else
            cb_spin_hint();
    }
}

static void round_iceoryx(void *ctx, uint32_t lane)
{
    const struct topic *t = &((struct iceoryx *)ctx)->topics[lane];
    publish(t);
    while (!take(t))
        cb_spin_hint();
}

/* It ends when we have: asked to earlier it would end us first, as a process that still uses it. By a signal
 * that leaves it time, for it has files to remove. False: it does not say that it is ready. */
static bool start_daemon(struct place *place)
{
    char said[4096];
    int out[2];
    size_t n = 0;
    if (pipe(out))
        peer_fail("pipe");
    place->roudi = peer_fork(-1);
    if (place->roudi == 0) {
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        if (dup2(out[1], STDOUT_FILENO) < 0 || dup2(out[1], STDERR_FILENO) < 0)
            _exit(1);
        close(out[0]);
        execlp("iox-roudi", "iox-roudi", (char *)NULL);
        _exit(1);
    }
    close(out[1]);
    bool is_ready = false;
    for (ssize_t r; !is_ready && n + 1 < sizeof said; n += (size_t)r) {
        r = read(out[0], said + n, sizeof said - 1 - n);
        if (r <= 0)
            break;
        said[n + (size_t)r] = 0;
        is_ready = strstr(said, "ready for clients") != NULL;
    }
    return is_ready; /* the reading end stays open: without it, what it says later would end it */
}

static void close_iceoryx(void *ctx)
{
    struct iceoryx *x = ctx;
    peer_end(x->peer);
    for (uint32_t i = 0; i < x->n_lanes; i++) {
        iox_sub_deinit(x->topics[i].sub);
        iox_pub_deinit(x->topics[i].pub);
    }
    free(x);
}

static void *open_iceoryx(struct place *place, const struct way *way, uint32_t n_lanes)
{
    struct iceoryx *x = calloc(1, sizeof *x + n_lanes * sizeof x->topics[0]);
    char name[64];
    (void)way;
    if (!x)
        peer_fail("iceoryx");
    x->n_lanes = n_lanes;
    if (!place->roudi) {
        if (!start_daemon(place)) {
            peer_end(place->roudi);
            place->roudi = -1;
        } else {
            iox_set_loglevel(Iceoryx_LogLevel_Error);
            snprintf(name, sizeof name, "bench_ipc_%ld", (long)getpid());
            iox_runtime_init(name);
        }
    }
    if (place->roudi < 0) {
        snprintf(place->why, sizeof place->why, "iox-roudi does not start");
        free(x);
        return NULL;
    }
    x->peer = peer_fork(place->there);
    if (x->peer == 0) {
        /* Anew: what has joined as one process can't go on as two. */
        snprintf(name, sizeof name, "%u", n_lanes);
        execl("/proc/self/exe", "bench_ipc", "-x", name, (char *)NULL);
        _exit(1);
    }
    uint64_t end = load_now_ns() + PATIENCE_MS * UINT64_C(1000000);
    for (uint32_t i = 0; i < n_lanes; i++)
        join(&x->topics[i], n_lanes, i, false);
    /* A chunk that is published before the other has joined is lost. */
    for (uint32_t i = 0; i < n_lanes && load_now_ns() < end; i++)
        while (!take(&x->topics[i]) && load_now_ns() < end) {
            publish(&x->topics[i]);
            usleep(10000);
        }
    for (uint32_t i = 0; i < n_lanes; i++)
        iox_sub_release_queued_chunks(x->topics[i].sub);
    if (load_now_ns() >= end) {
        snprintf(place->why, sizeof place->why, "the echo does not join");
        close_iceoryx(x);
        return NULL;
    }
    return x;
}

const struct way way_iceoryx = {.name = "iceoryx, spin",
                                .n_lanes = 16,
                                .open = open_iceoryx,
                                .round = round_iceoryx,
                                .close = close_iceoryx};
#else

void iceoryx_echo(uint32_t n_lanes)
{
    (void)n_lanes;
    exit(1);
}

static void *open_nothing(struct place *place, const struct way *way, uint32_t n_lanes)
{
    (void)way;
    (void)n_lanes;
    snprintf(place->why, sizeof place->why, "built without its C binding");
    return NULL;
}

const struct way way_iceoryx = {.name = "iceoryx, spin", .n_lanes = 16, .open = open_nothing};
#endif
