/* The pool: every item is run once, what workers wrote is seen afterwards, scratch numbers are not
 * shared; with tiny regions, more threads than cores, and workers that sleep between regions. */
#include "kernels/cpu/pool.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/cpu/cores.h"
#include "kernels/kernels.h"

TestSuite(cpu_pool, .timeout = 60);

enum { ITEMS_MAX = 5000 };

struct count {
    uint32_t n_runs[ITEMS_MAX]; /* plain: a second run of an item would be a race */
    _Atomic uint32_t inside[POOL_THREADS_MAX];
    _Atomic bool shared, longer;
    uint32_t run_max;
};

static void count_items(void *arg, uint32_t worker, uint32_t begin, uint32_t end)
{
    struct count *c = arg;

    if (atomic_fetch_add(&c->inside[worker], 1))
        atomic_store(&c->shared, true);
    if (end - begin > c->run_max)
        atomic_store(&c->longer, true);
    for (uint32_t i = begin; i < end; i++)
        c->n_runs[i]++;
    atomic_fetch_sub(&c->inside[worker], 1);
}

static struct pool *open_pool(uint32_t n_threads, uint32_t spin_us)
{
    struct pool *p = NULL;

    cr_assert_eq(pool_new(&p, n_threads, spin_us), 0);
    cr_assert_eq(pool_n_threads(p), n_threads);
    return p;
}

static void check_region(struct pool *p, struct count *c, uint32_t n_items, uint32_t run_max)
{
    memset(c->n_runs, 0, sizeof c->n_runs);
    c->run_max = pool_n_threads(p) == 1 || n_items <= 1 ? ITEMS_MAX : run_max;
    pool_run(p, count_items, c, n_items, run_max);
    for (uint32_t i = 0; i < ITEMS_MAX; i++)
        cr_assert_eq(c->n_runs[i], i < n_items, "item %u of %u ran %u times", i, n_items,
                     c->n_runs[i]);
    cr_assert_not(c->shared, "two threads had one number");
    cr_assert_not(c->longer, "a run was longer than %u", run_max);
}

Test(cpu_pool, runs_every_item_once)
{
    static const uint32_t sizes[] = {0, 1, 2, 3, 7, 64, 1000, ITEMS_MAX};
    static const uint32_t run_maxes[] = {1, 3, 64};
    struct count *c = calloc(1, sizeof *c);

    for (uint32_t n_threads = 1; n_threads <= 4; n_threads++) {
        struct pool *p = open_pool(n_threads, 0);

        for (int round = 0; round < 20; round++) {
            for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
                check_region(p, c, sizes[i], run_maxes[i % 3]);
        }
        pool_free(p);
    }
    free(c);
}

struct errand {
    uint32_t n_runs, n_told; /* plain: two at once would be a race */
    pthread_t caller;
    _Atomic bool was_other;
};

static void run_errand(void *arg)
{
    struct errand *e = arg;

    e->n_runs++;
    if (!pthread_equal(e->caller, pthread_self()))
        atomic_store(&e->was_other, true);
}

/* Each is run once, settled or overtaken by the next one or by a region; whether workers sleep, spin
 * or are not there. */
Test(cpu_pool, runs_errands_once)
{
    struct count *c = calloc(1, sizeof *c);
    struct errand e = {.caller = pthread_self()};

    for (uint32_t n_threads = 1; n_threads <= 4; n_threads++) {
        struct pool *p = open_pool(n_threads, n_threads % 2 ? 1000 : 1);

        atomic_store(&e.was_other, false);
        for (int round = 0; round < 2000; round++) {
            e.n_told += pool_errand(p, run_errand, &e);
            if (round % 3 == 0)
                check_region(p, c, 100, 3);
            if (round % 7 == 0)
                nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
            if (round % 2 == 0) {
                pool_settle(p);
                cr_assert_eq(e.n_runs, e.n_told);
            }
        }
        pool_settle(p);
        cr_assert_eq(e.n_runs, e.n_told);
        cr_assert(n_threads > 1 || !e.was_other);
        pool_free(p);
    }
    free(c);
}

Test(cpu_pool, works_with_more_threads_than_cores)
{
    struct count *c = calloc(1, sizeof *c);
    struct pool *p = open_pool(24, 1);

    for (int round = 0; round < 100; round++)
        check_region(p, c, 200, 4);
    pool_free(p);
    free(c);
}

struct sum {
    uint64_t part[POOL_THREADS_MAX];
};

static void add_items(void *arg, uint32_t worker, uint32_t begin, uint32_t end)
{
    struct sum *s = arg;

    for (uint32_t i = begin; i < end; i++)
        s->part[worker] += i;
}

/* Each region reads what all workers wrote in the one before, without atomics of its own: under the
 * thread sanitizer this fails if entering or leaving a region orders nothing. */
Test(cpu_pool, many_tiny_regions)
{
    struct pool *p = open_pool(3, 20);
    struct sum s = {{0}};
    uint64_t total = 0;

    for (uint32_t round = 0; round < 20000; round++) {
        uint32_t n_items = 1 + round % 9;

        pool_run(p, add_items, &s, n_items, 1);
        total += n_items * (n_items - 1) / 2;
        if (round % 100 == 0) {
            uint64_t sum = 0;

            for (uint32_t i = 0; i < POOL_THREADS_MAX; i++)
                sum += s.part[i];
            cr_assert_eq(sum, total, "round %u", round);
        }
    }
    pool_free(p);
}

Test(cpu_pool, wakes_workers_that_sleep)
{
    struct count *c = calloc(1, sizeof *c);
    struct pool *p = open_pool(3, 1);

    for (int round = 0; round < 40; round++) {
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
        check_region(p, c, 100, 1);
    }
    pool_free(p);
    free(c);
}

Test(cpu_pool, stops_at_once_or_after_sleep)
{
    for (uint32_t i = 0; i < 30; i++) {
        struct pool *p = open_pool(1 + i % 5, 1);

        if (i % 3 == 0)
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        pool_free(p);
    }
    cr_expect_null(pool_free(NULL));
}

static void take_signals(void *arg, uint32_t worker, uint32_t begin, uint32_t end)
{
    _Atomic bool *open = arg;
    sigset_t blocked;

    (void)begin;
    (void)end;
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    if (worker && !sigismember(&blocked, SIGTERM))
        atomic_store(open, true);
    nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

Test(cpu_pool, workers_block_signals_and_the_caller_does_not)
{
    struct pool *p = open_pool(4, 0);
    _Atomic bool open = false;
    sigset_t blocked;

    pool_run(p, take_signals, &open, 40, 1);
    cr_expect_not(open);
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    cr_expect_not(sigismember(&blocked, SIGTERM));
    pool_free(p);
}

static void flush_denormals(void *arg, uint32_t worker, uint32_t begin, uint32_t end)
{
    _Atomic uint32_t *kept = arg;
    volatile float tiny = 0x1p-120f, tinier;

    (void)worker;
    (void)begin;
    (void)end;
    tinier = tiny * 0x1p-20f;
    if (tinier != 0.0f)
        atomic_fetch_add(kept, 1);
    nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

Test(cpu_pool, workers_flush_denormals)
{
    struct pool *p = open_pool(4, 0);
    _Atomic uint32_t kept = 0;

    kernels_thread_init();
    pool_run(p, flush_denormals, &kept, 40, 1);
    cr_expect_eq(kept, 0);
    pool_free(p);
}

Test(cpu_pool, refuses_bad_counts)
{
    struct pool *p = NULL;

    cr_expect_eq(pool_new(&p, 0, 0), -EINVAL);
    cr_expect_eq(pool_new(&p, POOL_THREADS_MAX + 1, 0), -EINVAL);
    cr_expect_null(p);
}

/* Where each worker ran, and how many processors it could have had. */
struct places {
    _Atomic int cpu[POOL_THREADS_MAX], n_allowed[POOL_THREADS_MAX];
};

static void note_place(void *arg, uint32_t worker, uint32_t begin, uint32_t end)
{
    struct places *places = arg;
    cpu_set_t allowed;

    (void)begin;
    (void)end;
    sched_getaffinity(0, sizeof allowed, &allowed);
    places->n_allowed[worker] = CPU_COUNT(&allowed);
    places->cpu[worker] = sched_getcpu();
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

Test(cpu_pool, pinned_workers_have_a_core_each_and_the_caller_is_let_go)
{
    int cpus[POOL_THREADS_MAX];
    uint32_t n = cores_list(cpus, POOL_THREADS_MAX);
    struct places places = {0};
    struct pool *p = open_pool(n, 0);
    cpu_set_t before, after;

    sched_getaffinity(0, sizeof before, &before);
    cr_assert_eq(pool_pin(p), 0);
    for (int round = 0; round < 5; round++)
        pool_run(p, note_place, &places, 8 * n, 1);
    for (uint32_t i = 0; i < n; i++) {
        /* One that the system did not schedule in time has nothing to tell. */
        if (!places.n_allowed[i])
            continue;
        cr_expect_eq(places.n_allowed[i], 1);
        cr_expect_eq(places.cpu[i], cpus[i], "worker %u ran on %d", i, places.cpu[i]);
    }
    cr_expect_eq(places.n_allowed[0], 1);
    pool_free(p);
    sched_getaffinity(0, sizeof after, &after);
    cr_expect(CPU_EQUAL(&before, &after));
}

Test(cpu_pool, more_threads_than_cores_are_not_pinned)
{
    int cpus[POOL_THREADS_MAX];
    uint32_t n = cores_list(cpus, POOL_THREADS_MAX);
    struct pool *p = open_pool(n + 1, 0);
    cpu_set_t before, after;

    sched_getaffinity(0, sizeof before, &before);
    cr_expect_eq(pool_pin(p), -EBUSY);
    sched_getaffinity(0, sizeof after, &after);
    cr_expect(CPU_EQUAL(&before, &after));
    pool_free(p);
}
