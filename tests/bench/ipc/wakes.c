/* Both are the same in all but who wakes: sleepers on one core, threads of one process; the waker on
 * the other; long enough between two wakes that all sleep again. The moments at which threads found
 * themselves awake fall into heaps that the pauses separate. */
#include "tests/bench/ipc/wakes.h"

#include <linux/futex.h>
#include <pthread.h>
#include <stdalign.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "shm/doorbell.h"
#include "tests/bench/ipc/load.h"
#include "tests/bench/ipc/null.h"
#include "tests/bench/ipc/peer.h"

enum { STEP_US = 10000, N_WARM = 5 };
#define PAUSE_NS (STEP_US * 500ull) /* longer than all wakes take, shorter than a step */

struct word {
    alignas(128) cb_atomic32 v;
};

struct sleeper {
    pthread_t thread;
    struct word *word;   /* bare */
    struct cb_handle *h; /* of cbd */
    uint32_t n_wakes;
    uint64_t *woken; /* [n_wakes] */
};

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* The median distance from first to last in whole heaps. */
static double span_of(uint64_t *all, uint32_t n, uint32_t n_sleepers)
{
    double *spans = calloc(n, sizeof *spans);
    uint32_t n_spans = 0, first = 0;
    if (!spans)
        peer_fail("wakes");
    qsort(all, n, sizeof *all, by_value);
    for (uint32_t i = 1; i <= n; i++)
        if (i == n || all[i] - all[i - 1] > PAUSE_NS) {
            if (i - first == n_sleepers)
                spans[n_spans++] = (double)(all[i - 1] - all[first]);
            first = i;
        }
    double span = n_spans ? load_median(spans, n_spans) : 0;
    free(spans);
    return span;
}

static struct sleeper *sleepers_new(uint32_t n_sleepers, uint32_t n_wakes)
{
    struct sleeper *s = calloc(n_sleepers, sizeof *s);
    uint64_t *woken = calloc((size_t)n_sleepers * n_wakes, sizeof *woken);
    if (!s || !woken)
        peer_fail("wakes");
    for (uint32_t i = 0; i < n_sleepers; i++)
        s[i] = (struct sleeper){.n_wakes = n_wakes, .woken = woken + (size_t)i * n_wakes};
    return s;
}

static void sleepers_begin(struct sleeper *s, uint32_t n, void *(*sleep)(void *))
{
    for (uint32_t i = 0; i < n; i++)
        if (pthread_create(&s[i].thread, NULL, sleep, &s[i]))
            peer_fail("pthread_create");
}

/* Joins them: the span. */
static double sleepers_end(struct sleeper *s, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        pthread_join(s[i].thread, NULL);
    double span = span_of(s[0].woken, n * s[0].n_wakes, n);
    free(s[0].woken);
    free(s);
    return span;
}

/* ---- bare ------------------------------------------------------------------------------------ */

static void *sleep_bare(void *arg)
{
    struct sleeper *s = arg;
    for (uint32_t i = 0; i < s->n_wakes; i++) {
        while (cb_load32(&s->word->v, CB_ACQUIRE) == i)
            (void)cb_doorbell_wait(&s->word->v, i, UINT64_C(1000000000));
        s->woken[i] = load_now_ns();
    }
    return NULL;
}

/* Wakes all, n_wakes times; how long each took is left in ns. */
static void wake_bare(struct word *words, uint32_t n_sleepers, uint32_t n_wakes, uint64_t *ns)
{
    const struct timespec step = {.tv_nsec = STEP_US * 1000};
    for (uint32_t i = 0; i < n_wakes; i++) {
        nanosleep(&step, NULL);
        uint64_t begun_ns = load_now_ns();
        for (uint32_t k = 0; k < n_sleepers; k++) {
            cb_store32(&words[k].v, i + 1, CB_RELEASE);
            (void)cb_doorbell_wake(&words[k].v);
        }
        ns[i] = load_now_ns() - begun_ns;
    }
}

struct wakes wakes_bare(const struct place *place, uint32_t n_sleepers, uint32_t n_wakes)
{
    struct word *words = peer_share(n_sleepers * sizeof *words);
    uint64_t *ns = peer_share(n_wakes * sizeof *ns);
    struct sleeper *s = sleepers_new(n_sleepers, n_wakes);
    struct wakes w;
    for (uint32_t i = 0; i < n_sleepers; i++)
        s[i].word = &words[i];
    sleepers_begin(s, n_sleepers, sleep_bare);
    pid_t waker = peer_fork(place->there);
    if (waker == 0) {
        wake_bare(words, n_sleepers, n_wakes, ns);
        _exit(0);
    }
    w.span = sleepers_end(s, n_sleepers);
    usleep(1000); /* the last time of all is written behind the last wake */
    peer_end(waker);
    w.busy = load_took(ns, n_wakes).p50;
    munmap(words, n_sleepers * sizeof *words);
    munmap(ns, n_wakes * sizeof *ns);
    return w;
}

/* ---- cbd ------------------------------------------------------------------------------------- */

static void *sleep_cbd(void *arg)
{
    struct sleeper *s = arg;
    struct cb_event e;
    uint64_t id = null_submit(s->h, s->n_wakes, 0);
    for (uint32_t i = 0; i < s->n_wakes;) {
        if (cb_wait(s->h, id, &e, -1) != 1 || e.type != CB_EVENT_TOKENS)
            peer_fail("wait");
        uint64_t now_ns = load_now_ns();
        for (size_t k = 0; k < e.n_ids && i < s->n_wakes; k++)
            s->woken[i++] = now_ns;
    }
    return NULL;
}

struct wakes wakes_cbd(struct place *place, uint32_t n_sleepers, uint32_t n_wakes)
{
    const char *const settings[] = {"--wait_mode",
                                    "eco",
                                    "--loop",
                                    place->loop,
                                    "--null_step_us",
                                    "10000",
                                    "--max_requests_per_batch",
                                    "256",
                                    NULL};
    struct null_daemon daemon;
    struct sleeper *s = sleepers_new(n_sleepers, n_wakes);
    struct cb_handle **handles = calloc(n_sleepers, sizeof(struct cb_handle *));
    struct wakes w;
    if (!handles || !null_start(&daemon, place, settings))
        peer_fail(place->why);
    for (uint32_t i = 0; i < n_sleepers; i++) {
        s[i].h = handles[i] = null_open(place, CB_WAIT_ECO, 4);
        if (!handles[i])
            peer_fail(place->why);
    }
    sleepers_begin(s, n_sleepers, sleep_cbd);
    usleep(STEP_US * (n_wakes - N_WARM)); /* the daemon's figure is of its last steps */
    w.busy = null_figure(place, "ring_us_per_step") * 1000;
    w.span = sleepers_end(s, n_sleepers);
    for (uint32_t i = 0; i < n_sleepers; i++)
        cb_close(handles[i]);
    free(handles);
    null_stop(&daemon);
    return w;
}
