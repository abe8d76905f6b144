/* Words in shared memory: two threads that spin on them, that sleep on them by futex, or on
 * semaphores there. The least that each kind of waking can cost. */
#include <errno.h>
#include <linux/futex.h>
#include <semaphore.h>
#include <stdalign.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shm/atomics.h"
#include "tests/bench/ipc/peer.h"
#include "tests/bench/ipc/way.h"

struct words {
    alignas(128) cb_atomic32 there; /* stored here, looked at there */
    alignas(128) cb_atomic32 back;
    alignas(128) sem_t sem_there;
    alignas(128) sem_t sem_back;
};

struct pair {
    struct words *words; /* [n_lanes] */
    uint32_t n_lanes;
    uint32_t *sent; /* [n_lanes] */
    pid_t peer;
};

enum { SPIN, FUTEX, SEMAPHORE };

static void serve_spin(struct words *words, uint32_t n_lanes)
{
    uint32_t *seen = calloc(n_lanes, sizeof *seen);
    if (!seen)
        peer_fail("words");
    for (uint32_t i = 0;; i = i + 1 == n_lanes ? 0 : i + 1) {
        uint32_t v = cb_load32(&words[i].there, CB_ACQUIRE);
        if (v == seen[i]) {
            cb_spin_hint();
            continue;
        }
        seen[i] = v;
        cb_store32(&words[i].back, v, CB_RELEASE);
    }
}

static void round_spin(void *ctx, uint32_t lane)
{
    struct pair *p = ctx;
    uint32_t v = ++p->sent[lane];
    cb_store32(&p->words[lane].there, v, CB_RELEASE);
    while (cb_load32(&p->words[lane].back, CB_ACQUIRE) != v)
        cb_spin_hint();
}

static void wake(cb_atomic32 *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static void await(cb_atomic32 *word, uint32_t old)
{
    while (cb_load32(word, CB_ACQUIRE) == old)
        syscall(SYS_futex, word, FUTEX_WAIT, old, NULL, NULL, 0);
}

static void serve_futex(void *shared, uint32_t lane)
{
    struct words *w = (struct words *)shared + lane;
    for (uint32_t v = 0;; v++) {
        await(&w->there, v);
        cb_store32(&w->back, v + 1, CB_RELEASE);
        wake(&w->back);
    }
}

static void round_futex(void *ctx, uint32_t lane)
{
    struct pair *p = ctx;
    struct words *w = &p->words[lane];
    uint32_t v = p->sent[lane]++;
    cb_store32(&w->there, v + 1, CB_RELEASE);
    wake(&w->there);
    await(&w->back, v);
}

static void take(sem_t *s)
{
    while (sem_wait(s) && errno == EINTR)
        ;
}

static void serve_semaphore(void *shared, uint32_t lane)
{
    struct words *w = (struct words *)shared + lane;
    for (;;) {
        take(&w->sem_there);
        sem_post(&w->sem_back);
    }
}

static void round_semaphore(void *ctx, uint32_t lane)
{
    struct pair *p = ctx;
    sem_post(&p->words[lane].sem_there);
    take(&p->words[lane].sem_back);
}

static void *open_words(struct place *place, const struct way *way, uint32_t n_lanes)
{
    struct pair *p = calloc(1, sizeof *p);
    if (!p || !(p->sent = calloc(n_lanes, sizeof *p->sent)))
        peer_fail("words");
    p->n_lanes = n_lanes;
    p->words = peer_share(n_lanes * sizeof *p->words);
    for (uint32_t i = 0; i < n_lanes; i++)
        if (sem_init(&p->words[i].sem_there, 1, 0) || sem_init(&p->words[i].sem_back, 1, 0))
            peer_fail("sem_init");
    p->peer = peer_fork(place->there);
    if (p->peer == 0) {
        if (way->variant == SPIN)
            serve_spin(p->words, n_lanes);
        peer_serve(n_lanes, way->variant == FUTEX ? serve_futex : serve_semaphore, p->words);
    }
    return p;
}

static void close_words(void *ctx)
{
    struct pair *p = ctx;
    peer_end(p->peer);
    munmap(p->words, p->n_lanes * sizeof *p->words);
    free(p->sent);
    free(p);
}

const struct way way_spin = {.name = "spin on two words",
                             .n_lanes = 256,
                             .variant = SPIN,
                             .open = open_words,
                             .round = round_spin,
                             .close = close_words};
const struct way way_futex = {.name = "futex",
                              .sleeps = true,
                              .n_lanes = 256,
                              .variant = FUTEX,
                              .open = open_words,
                              .round = round_futex,
                              .close = close_words};
const struct way way_semaphore = {.name = "POSIX semaphore",
                                  .sleeps = true,
                                  .n_lanes = 256,
                                  .variant = SEMAPHORE,
                                  .open = open_words,
                                  .round = round_semaphore,
                                  .close = close_words};
