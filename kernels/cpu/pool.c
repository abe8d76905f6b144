/* A region is opened and closed by one word, the gate: an open bit, the number of workers inside,
 * and a lap number. Joining is a compare-and-swap on an open gate, leaving a decrement; the caller
 * works too, shuts the gate when nothing is left to claim and waits only for those inside. A
 * barrier that counts all workers was refused: beside one busy process it stalls every region for a
 * time slice, and a step has some 250 regions.
 *
 * Waiting for a region: workers spin on the gate, then sleep on `lap`, a futex word that the caller
 * bumps after opening the gate. Either the worker's look at the gate sees it open, or the caller's
 * look at n_sleepers sees the worker: both are sequentially consistent. The caller waits for the
 * last one inside likewise, on `gate` itself.
 *
 * An errand is one word as well: open, then taken by whoever gets it. The same pair of looks as for
 * the gate keeps one from being left to workers that all sleep.
 *
 * Items are shared out beforehand, a range a worker, in order: so a worker meets in one region what
 * it left in its cache in the last one, reads weights as one stream, and claims from a word that is
 * its own. Whoever is through takes from the end of another's range. */
#include "kernels/cpu/pool.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "kernels/cpu/cores.h"
#include "kernels/kernels.h"

enum {
    GATE_OPEN = 1 << 15,
    GATE_WAITER = 1 << 14, /* the caller sleeps until nobody is inside */
    GATE_INSIDE = GATE_WAITER - 1,
    GATE_LAP = 1 << 16,
    SPIN_US_DEFAULT = 50,
    SPINS_A_LOOK = 32 /* pauses between two looks at the clock */
};

enum { ERRAND_NONE, ERRAND_OPEN, ERRAND_TAKEN };

struct worker {
    alignas(64) _Atomic uint64_t left; /* its items not claimed: begin, and end in the upper half */
    alignas(64) struct pool *pool;
    uint32_t idx;
    _Atomic uint32_t n_joined; /* regions that it took part in; it alone writes */
    pthread_t thread;
};

struct pool {
    alignas(64) _Atomic uint32_t gate;
    alignas(64) _Atomic uint32_t lap; /* futex: bumped for sleepers whenever the gate opens */
    _Atomic uint32_t n_sleepers;
    _Atomic bool stop;

    /* The region. Written by the caller while the gate is shut and nobody is inside. */
    alignas(64) pool_fn *fn;
    void *arg;
    uint32_t n_items, run_max;

    /* Written by the caller while there is no errand. */
    alignas(64) _Atomic uint32_t errand;
    void (*errand_fn)(void *arg);
    void *errand_arg;
    uint32_t errand_lap, errand_joined; /* when company was asked for last: see has_company */

    alignas(64) uint32_t n_threads, n_started, spin_us;
    bool is_crowded; /* more threads than cores: who waits lets others run */
    bool is_pinned;
    cpu_set_t caller_cpus; /* where worker 0 could run before it was pinned */
    struct worker workers[];
};

static void futex_wait(_Atomic uint32_t *word, uint32_t seen)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* A bounded spin: true while it should go on. */
struct spin {
    uint64_t end_ns;
    uint32_t n;
};

static bool spin_more(const struct pool *p, struct spin *s)
{
    __builtin_ia32_pause();
    if (++s->n % SPINS_A_LOOK)
        return true;
    if (p->is_crowded)
        sched_yield();
    if (!s->end_ns)
        s->end_ns = now_ns() + (uint64_t)p->spin_us * 1000u;
    return now_ns() < s->end_ns;
}

static uint64_t range(uint32_t begin, uint32_t end)
{
    return (uint64_t)end << 32 | begin;
}

/* Takes between 1 and run_max items: half of what is left, so that late runs are short. The owner
 * takes from the front, others from the end. */
static bool claim(struct pool *p, struct worker *from, bool is_owner, uint32_t *beginp,
                  uint32_t *endp)
{
    uint64_t left = atomic_load_explicit(&from->left, memory_order_relaxed), rest;

    do {
        uint32_t begin = (uint32_t)left, end = (uint32_t)(left >> 32), take;

        if (begin >= end)
            return false;
        take = (end - begin) / 2;
        take = take > p->run_max ? p->run_max : take ? take : 1;
        *beginp = is_owner ? begin : end - take;
        *endp = *beginp + take;
        rest = is_owner ? range(begin + take, end) : range(begin, end - take);
    } while (!atomic_compare_exchange_weak_explicit(&from->left, &left, rest, memory_order_relaxed,
                                                    memory_order_relaxed));
    return true;
}

static void work(struct pool *p, uint32_t worker)
{
    uint32_t begin, end;

    for (uint32_t i = 0; i < p->n_threads; i++) {
        struct worker *from = &p->workers[(worker + i) % p->n_threads];

        while (claim(p, from, i == 0, &begin, &end))
            p->fn(p->arg, worker, begin, end);
    }
}

/* Joins the open region if there is one and helps until nothing is left. Returns the gate as it was
 * seen last. */
static uint32_t help(struct pool *p, uint32_t worker, uint32_t gate)
{
    while (gate & GATE_OPEN) {
        /* Acquire: the region's fields. Release on leaving: what this worker wrote. */
        if (!atomic_compare_exchange_weak_explicit(&p->gate, &gate, gate + 1, memory_order_acquire,
                                                   memory_order_relaxed))
            continue;
        atomic_store_explicit(
            &p->workers[worker].n_joined,
            atomic_load_explicit(&p->workers[worker].n_joined, memory_order_relaxed) + 1,
            memory_order_relaxed);
        work(p, worker);
        gate = atomic_fetch_sub_explicit(&p->gate, 1, memory_order_acq_rel) - 1;
        if ((gate & (GATE_WAITER | GATE_INSIDE)) == GATE_WAITER)
            futex_wake(&p->gate);
        break;
    }
    return gate;
}

/* Whether there was an errand to run, and nobody else got it. */
static bool run_errand(struct pool *p)
{
    uint32_t open = ERRAND_OPEN;

    if (atomic_load_explicit(&p->errand, memory_order_relaxed) != ERRAND_OPEN ||
        !atomic_compare_exchange_strong_explicit(&p->errand, &open, ERRAND_TAKEN,
                                                 memory_order_acquire, memory_order_relaxed))
        return false;
    p->errand_fn(p->errand_arg);
    /* Release: what it wrote. */
    atomic_store_explicit(&p->errand, ERRAND_NONE, memory_order_release);
    return true;
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct pool *p = w->pool;
    uint32_t seen_lap = 0; /* lap number, in the gate, of the region this worker was in last */

    kernels_thread_init();
    while (!atomic_load_explicit(&p->stop, memory_order_acquire)) {
        struct spin spin = {0};
        uint32_t lap = atomic_load(&p->lap), gate;
        bool found = false;

        do {
            (void)run_errand(p);
            gate = atomic_load_explicit(&p->gate, memory_order_acquire);
            found = (gate & GATE_OPEN) && gate / GATE_LAP != seen_lap;
        } while (!found && spin_more(p, &spin));
        if (found) {
            seen_lap = help(p, w->idx, gate) / GATE_LAP;
            continue;
        }
        atomic_fetch_add(&p->n_sleepers, 1);
        gate = atomic_load(&p->gate);
        if (!((gate & GATE_OPEN) && gate / GATE_LAP != seen_lap) && !atomic_load(&p->stop) &&
            atomic_load(&p->errand) != ERRAND_OPEN)
            futex_wait(&p->lap, lap);
        atomic_fetch_sub(&p->n_sleepers, 1);
    }
    return NULL;
}

/* Shuts the gate and waits until nobody is inside. */
static void shut(struct pool *p)
{
    struct spin spin = {0};
    uint32_t gate = atomic_fetch_and_explicit(&p->gate, ~(uint32_t)GATE_OPEN, memory_order_acq_rel);

    while (atomic_load_explicit(&p->gate, memory_order_acquire) & GATE_INSIDE) {
        if (spin_more(p, &spin))
            continue;
        gate = atomic_fetch_or(&p->gate, GATE_WAITER) | GATE_WAITER;
        if (gate & GATE_INSIDE)
            futex_wait(&p->gate, gate);
        atomic_fetch_and(&p->gate, ~(uint32_t)GATE_WAITER);
    }
}

void pool_run(struct pool *p, pool_fn *fn, void *arg, uint32_t n_items, uint32_t run_max)
{
    uint32_t gate;

    (void)run_errand(p);
    if (p->n_threads == 1 || n_items <= 1) {
        if (n_items)
            fn(arg, 0, 0, n_items);
        return;
    }
    p->fn = fn;
    p->arg = arg;
    p->n_items = n_items;
    p->run_max = run_max ? run_max : 1;
    for (uint32_t i = 0; i < p->n_threads; i++) {
        uint32_t begin = (uint32_t)((uint64_t)n_items * i / p->n_threads);
        uint32_t end = (uint32_t)((uint64_t)n_items * (i + 1) / p->n_threads);

        atomic_store_explicit(&p->workers[i].left, range(begin, end), memory_order_relaxed);
    }
    gate = atomic_load_explicit(&p->gate, memory_order_relaxed);
    atomic_store(&p->gate, (gate / GATE_LAP + 1) * GATE_LAP | GATE_OPEN);
    if (atomic_load(&p->n_sleepers)) {
        atomic_fetch_add(&p->lap, 1);
        futex_wake(&p->lap);
    }
    work(p, 0);
    shut(p);
}

void pool_settle(struct pool *p)
{
    struct spin spin = {0};

    if (run_errand(p))
        return;
    while (atomic_load_explicit(&p->errand, memory_order_acquire) != ERRAND_NONE) {
        if (!spin_more(p, &spin))
            sched_yield();
    }
}

/* Whether workers took part in three of four regions since this was asked last. If not they share
 * their cores with somebody, and who wakes a thread there may not come back for a time slice. */
static bool has_company(struct pool *p)
{
    uint32_t lap = atomic_load_explicit(&p->gate, memory_order_relaxed) / GATE_LAP, joined = 0;
    uint32_t n_laps = (lap - p->errand_lap) % (UINT32_MAX / GATE_LAP + 1), n_joined;

    for (uint32_t i = 1; i < p->n_threads; i++)
        joined += atomic_load_explicit(&p->workers[i].n_joined, memory_order_relaxed);
    n_joined = joined - p->errand_joined;
    p->errand_lap = lap;
    p->errand_joined = joined;
    return (uint64_t)n_joined * 4 >= (uint64_t)n_laps * (p->n_threads - 1) * 3;
}

/* Who is at an errand may have lost his core: to wait for that would cost more than errands save. */
bool pool_errand(struct pool *p, void (*fn)(void *arg), void *arg)
{
    if (!run_errand(p) && atomic_load_explicit(&p->errand, memory_order_acquire) != ERRAND_NONE)
        return false;
    if (!has_company(p)) {
        fn(arg);
        return true;
    }
    p->errand_fn = fn;
    p->errand_arg = arg;
    atomic_store(&p->errand, ERRAND_OPEN);
    if (atomic_load(&p->n_sleepers) + 1 >= p->n_threads)
        (void)run_errand(p);
    return true;
}

uint32_t pool_n_threads(const struct pool *p)
{
    return p->n_threads;
}

int pool_new(struct pool **poolp, uint32_t n_threads, uint32_t spin_us)
{
    struct pool *p;
    sigset_t all, old;
    int r = 0;

    if (!n_threads || n_threads > POOL_THREADS_MAX)
        return -EINVAL;
    p = aligned_alloc(64, (sizeof *p + n_threads * sizeof p->workers[0] + 63) / 64 * 64);
    if (!p)
        return -ENOMEM;
    memset(p, 0, sizeof *p + n_threads * sizeof p->workers[0]);
    p->n_threads = n_threads;
    p->n_started = 1;
    p->spin_us = spin_us ? spin_us : SPIN_US_DEFAULT;
    p->is_crowded = n_threads > cores_usable();

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    for (uint32_t i = 1; i < n_threads && !r; i++) {
        char name[16];

        p->workers[i].pool = p;
        p->workers[i].idx = i;
        r = -pthread_create(&p->workers[i].thread, NULL, worker_main, &p->workers[i]);
        if (r)
            break;
        p->n_started++;
        snprintf(name, sizeof name, "kernels/%u", i);
        pthread_setname_np(p->workers[i].thread, name);
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (r) {
        pool_free(p);
        return r;
    }
    *poolp = p;
    return 0;
}

int pool_pin(struct pool *p)
{
    int cpus[POOL_THREADS_MAX];

    if (cores_list(cpus, POOL_THREADS_MAX) < p->n_threads)
        return -EBUSY;
    if (sched_getaffinity(0, sizeof p->caller_cpus, &p->caller_cpus))
        return -errno;
    for (uint32_t i = p->n_threads; i-- > 0;) {
        cpu_set_t one;
        int r;

        CPU_ZERO(&one);
        CPU_SET(cpus[i], &one);
        r = pthread_setaffinity_np(i ? p->workers[i].thread : pthread_self(), sizeof one, &one);
        if (r)
            return -r;
    }
    p->is_pinned = true;
    return 0;
}

struct pool *pool_free(struct pool *p)
{
    if (!p)
        return NULL;
    if (p->is_pinned)
        (void)sched_setaffinity(0, sizeof p->caller_cpus, &p->caller_cpus);
    atomic_store(&p->stop, true);
    atomic_fetch_add(&p->lap, 1);
    futex_wake(&p->lap);
    for (uint32_t i = 1; i < p->n_started; i++)
        pthread_join(p->workers[i].thread, NULL);
    free(p);
    return NULL;
}
