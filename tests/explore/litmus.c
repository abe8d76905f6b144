/* Litmus shapes whose outcomes the C11 model fixes: each weak one must be found to fail, each
 * strong one must hold, or the explorer is not worth its word. Names as in the literature: MP
 * message passing, SB store buffering, CoRR coherence, IRIW independent reads of independent
 * writes. */
#include <string.h>

#include "shm/atomics.h"
#include "tests/explore/cases.h"

static cb_atomic32 a, b;
static uint32_t seen[4];

static void init(void)
{
    a = b = 0;
    memset(seen, 0, sizeof seen);
}

static void mp_write_release(void)
{
    cb_store32(&a, 1, CB_RELAXED);
    cb_store32(&b, 1, CB_RELEASE);
}

static void mp_write_relaxed(void)
{
    cb_store32(&a, 1, CB_RELAXED);
    cb_store32(&b, 1, CB_RELAXED);
}

static void mp_write_fence(void)
{
    cb_store32(&a, 1, CB_RELAXED);
    cb_fence();
    cb_store32(&b, 1, CB_RELAXED);
}

static void mp_read_acquire(void)
{
    if (cb_load32(&b, CB_ACQUIRE))
        explore_claim(cb_load32(&a, CB_RELAXED) == 1, "message read before it was written");
}

static void mp_read_relaxed(void)
{
    if (cb_load32(&b, CB_RELAXED))
        explore_claim(cb_load32(&a, CB_RELAXED) == 1, "message read before it was written");
}

static void mp_read_fence(void)
{
    if (cb_load32(&b, CB_RELAXED)) {
        cb_fence();
        explore_claim(cb_load32(&a, CB_RELAXED) == 1, "message read before it was written");
    }
}

static void sb_0(void)
{
    cb_store32(&a, 1, CB_RELEASE);
    seen[0] = cb_load32(&b, CB_ACQUIRE);
}

static void sb_1(void)
{
    cb_store32(&b, 1, CB_RELEASE);
    seen[1] = cb_load32(&a, CB_ACQUIRE);
}

static void sb_0_fence(void)
{
    cb_store32(&a, 1, CB_RELAXED);
    cb_fence();
    seen[0] = cb_load32(&b, CB_RELAXED);
}

static void sb_1_fence(void)
{
    cb_store32(&b, 1, CB_RELAXED);
    cb_fence();
    seen[1] = cb_load32(&a, CB_RELAXED);
}

static void sb_check(void)
{
    explore_claim(seen[0] || seen[1], "both missed the other's store");
}

static void corr_write(void)
{
    cb_store32(&a, 1, CB_RELAXED);
    cb_store32(&a, 2, CB_RELAXED);
}

static void corr_read(void)
{
    uint32_t first = cb_load32(&a, CB_RELAXED);

    explore_claim(cb_load32(&a, CB_RELAXED) >= first, "a word went backwards");
}

static void count_cas(void)
{
    uint32_t old = cb_load32(&a, CB_RELAXED);

    while (!cb_cas32(&a, &old, old + 1))
        ;
}

static void count_store(void)
{
    cb_store32(&a, cb_load32(&a, CB_RELAXED) + 1, CB_RELAXED);
}

static void count_check(void)
{
    explore_claim(explore_newest(&a, 4) == 2, "a count was lost");
}

static void wake_sleep(void)
{
    if (!cb_load32(&a, CB_RELAXED))
        explore_futex_wait(&a, 0);
    explore_claim(explore_newest(&a, 4) == 1, "woken before the store");
}

static void wake_store(void)
{
    cb_store32(&a, 1, CB_RELAXED);
    explore_futex_wake(&a);
}

static void wake_first(void)
{
    explore_futex_wake(&a);
    cb_store32(&a, 1, CB_RELAXED);
}

static void data_write(void)
{
    uint32_t v = 7;

    cb_copy_out(&a, &v, 4);
    cb_store32(&b, 1, CB_RELEASE);
}

static void data_read(void)
{
    uint32_t v;

    if (cb_load32(&b, CB_ACQUIRE)) {
        cb_copy_in(&v, &a, 4);
        explore_claim(v == 7, "stale data");
    }
}

static void data_give_release(void)
{
    uint32_t v;

    cb_copy_in(&v, &a, 4);
    cb_store32(&b, 1, CB_RELEASE);
}

static void data_give_relaxed(void)
{
    uint32_t v;

    cb_copy_in(&v, &a, 4);
    cb_store32(&b, 1, CB_RELAXED);
}

static void data_reuse(void)
{
    uint32_t v = 9;

    if (cb_load32(&b, CB_ACQUIRE))
        cb_copy_out(&a, &v, 4);
}

static void count_add(void)
{
    cb_add32(&a, 1, CB_RELAXED);
    (void)cb_load32(&a, CB_RELAXED);
}

static void mp_add_release(void)
{
    cb_store32(&a, 1, CB_RELAXED);
    cb_add32(&b, 1, CB_RELEASE);
}

static void mp_add_relaxed(void)
{
    cb_store32(&a, 1, CB_RELAXED);
    cb_add32(&b, 1, CB_RELAXED);
}

static const char mutex, other_mutex; /* their addresses are all of them */

static void mp_write_locked(void)
{
    explore_lock(&mutex);
    mp_write_relaxed();
    explore_unlock(&mutex);
}

static void mp_read_locked(void)
{
    explore_lock(&mutex);
    mp_read_relaxed();
    explore_unlock(&mutex);
}

static void alone(void)
{
    seen[0]++;
    cb_store32(&a, cb_load32(&a, CB_RELAXED) + 1, CB_RELAXED);
    explore_claim(seen[0] == 1, "two are inside");
    seen[0]--;
}

static void alone_locked(void)
{
    explore_lock(&mutex);
    alone();
    explore_unlock(&mutex);
}

static void lock_one_in_other(void)
{
    explore_lock(&mutex);
    explore_lock(&other_mutex);
    explore_unlock(&other_mutex);
    explore_unlock(&mutex);
}

static void lock_other_in_one(void)
{
    explore_lock(&other_mutex);
    explore_lock(&mutex);
    explore_unlock(&mutex);
    explore_unlock(&other_mutex);
}

static void map_release(void)
{
    explore_map(&a, 4, 3);
    cb_store32(&b, 1, CB_RELEASE);
}

static void map_relaxed(void)
{
    explore_map(&a, 4, 3);
    cb_store32(&b, 1, CB_RELAXED);
}

static void use_mapped(void)
{
    if (cb_load32(&b, CB_ACQUIRE))
        cb_store32(&a, 1, CB_RELAXED);
}

static void init_mapped(void)
{
    init();
    explore_map(&a, 4, 3);
}

static void use_release(void)
{
    cb_store32(&a, 1, CB_RELAXED);
    cb_store32(&b, 1, CB_RELEASE);
}

static void use_relaxed(void)
{
    cb_store32(&a, 1, CB_RELAXED);
    cb_store32(&b, 1, CB_RELAXED);
}

static void unmap_used(void)
{
    if (cb_load32(&b, CB_ACQUIRE))
        explore_unmap(&a);
}

static void unmap(void)
{
    explore_unmap(&a);
}

static void choose_two(void)
{
    explore_claim(explore_choose(2) == 0, "the second was chosen");
}

/* A thread's first access may be a store, or a load of what nobody writes: others may come behind it. */
static cb_atomic32 c;

static void begin_with_store(void)
{
    cb_store32(&a, 1, CB_RELAXED);
    explore_claim(cb_load32(&b, CB_RELAXED) == 0, "answered");
}

static void begin_with_load(void)
{
    (void)cb_load32(&c, CB_RELAXED);
    begin_with_store();
}

static void answer(void)
{
    if (cb_load32(&a, CB_RELAXED))
        cb_store32(&b, 1, CB_RELAXED);
}

/* Who compares, by itself or in the kernel, sees when a count was added to. */
static void init_count(void)
{
    init();
    c = 0;
}

static void count_last(void)
{
    cb_fence();
    cb_store32(&b, 1, CB_RELAXED);
    cb_add32(&c, 1, CB_RELAXED);
}

static void cas_before(void)
{
    uint32_t old = 0;

    if (cb_load32(&b, CB_RELAXED))
        explore_claim(!cb_cas32(&c, &old, 10), "before the count");
}

static void sleep_before(void)
{
    if (cb_load32(&b, CB_RELAXED))
        explore_futex_wait(&c, 0);
}

#define LITMUS(label, t0, t1, end, must_fail)                                                      \
    {                                                                                              \
        {.name = label, .n_threads = 2, .init = init, .thread = {t0, t1}, .check = end}, must_fail \
    }
const struct explore_litmus explore_litmus[] = {
    LITMUS("MP release/acquire", mp_write_release, mp_read_acquire, NULL, false),
    LITMUS("MP relaxed store", mp_write_relaxed, mp_read_acquire, NULL, true),
    LITMUS("MP relaxed load", mp_write_release, mp_read_relaxed, NULL, true),
    LITMUS("MP fences", mp_write_fence, mp_read_fence, NULL, false),
    LITMUS("MP fence/acquire", mp_write_fence, mp_read_acquire, NULL, false),
    LITMUS("MP one fence", mp_write_fence, mp_read_relaxed, NULL, true),
    LITMUS("SB release/acquire", sb_0, sb_1, sb_check, true),
    LITMUS("SB fences", sb_0_fence, sb_1_fence, sb_check, false),
    LITMUS("SB one fence", sb_0_fence, sb_1, sb_check, true),
    LITMUS("CoRR", corr_write, corr_read, NULL, false),
    LITMUS("count by cas", count_cas, count_cas, count_check, false),
    LITMUS("count by store", count_store, count_store, count_check, true),
    LITMUS("data", data_write, data_read, NULL, false),
    LITMUS("data given back", data_give_release, data_reuse, NULL, false),
    LITMUS("data given back relaxed", data_give_relaxed, data_reuse, NULL, true),
    LITMUS("count by add", count_add, count_add, count_check, false),
    LITMUS("MP add release", mp_add_release, mp_read_acquire, NULL, false),
    LITMUS("MP add relaxed", mp_add_relaxed, mp_read_acquire, NULL, true),
    LITMUS("MP locked", mp_write_locked, mp_read_locked, NULL, false),
    LITMUS("MP locked by one", mp_write_locked, mp_read_relaxed, NULL, true),
    LITMUS("alone", alone_locked, alone_locked, count_check, false),
    LITMUS("alone, unlocked", alone_locked, alone, NULL, true),
    LITMUS("locks in one order", lock_one_in_other, lock_one_in_other, NULL, false),
    LITMUS("locks in two orders", lock_one_in_other, lock_other_in_one, NULL, true),
    LITMUS("map", map_release, use_mapped, NULL, false),
    LITMUS("map relaxed", map_relaxed, use_mapped, NULL, true),
    LITMUS("choice", choose_two, corr_read, NULL, true),
    {{.name = "unmap", .n_threads = 2, .init = init_mapped, .thread = {use_release, unmap_used}},
     false},
    {{.name = "unmap relaxed",
      .n_threads = 2,
      .init = init_mapped,
      .thread = {use_relaxed, unmap_used}},
     true},
    {{.name = "unmap at once", .n_threads = 2, .init = init_mapped, .thread = {use_release, unmap}},
     true},
    LITMUS("begins with a store", begin_with_store, answer, NULL, true),
    LITMUS("begins with a load", begin_with_load, answer, NULL, true),
    {{.name = "cas before a count",
      .n_threads = 2,
      .init = init_count,
      .thread = {count_last, cas_before}},
     true},
    {{.name = "futex before a count",
      .n_threads = 2,
      .init = init_count,
      .thread = {count_last, sleep_before}},
     true},
    LITMUS("futex", wake_sleep, wake_store, NULL, false),
    LITMUS("futex, wake first", wake_sleep, wake_first, NULL, true),
};
const size_t n_explore_litmus = sizeof explore_litmus / sizeof explore_litmus[0];
