/* shm/atomics.h - every access to memory that another process writes goes through here, and so does
 * every one to what threads of the library share without a lock.
 *
 * Two back-ends: <stdatomic.h>, and with CB_MODEL defined the explorer of tests/explore/explorer.h,
 * which runs the same code under the C11 memory model: all interleavings, all stale reads. With
 * CB_CRASH defined there is a point after each store at which tests/crash/points.h can end the
 * process, numbered as it runs; else it is nothing. Orders are spelled at each access. Shared words
 * are never touched by a plain expression, never volatile.
 *
 *   cb_load32(p, ORDER) cb_load64        ORDER: CB_RELAXED, CB_ACQUIRE
 *   cb_store32(p, v, ORDER) cb_store64   ORDER: CB_RELAXED, CB_RELEASE
 *   cb_cas32(p, &expected, v) cb_cas64   relaxed, strong; not 0 if it stored; refreshes expected
 *   cb_add32(p, n, ORDER)                to whatever is there; modulo 2^32
 *   cb_fence()                           sequentially consistent fence
 *   cb_copy_in(dst, src, bytes)          out of shared memory, relaxed words; bytes % 4 == 0
 *   cb_copy_out(dst, src, bytes)         into shared memory, likewise
 *   cb_spin_hint()                           one turn of a spin loop */
#ifndef CB_SHM_ATOMICS_H
#define CB_SHM_ATOMICS_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#ifdef CB_MODEL
#include "tests/explore/explorer.h"
#else
#include <stdatomic.h>

typedef _Atomic uint32_t cb_atomic32;
typedef _Atomic uint64_t cb_atomic64;

#define CB_RELAXED memory_order_relaxed
#define CB_ACQUIRE memory_order_acquire
#define CB_RELEASE memory_order_release

#ifdef CB_CRASH
#include "tests/crash/points.h"
#define CB_CRASH_POINT()     crash_point()
#define CB_CRASH_POINT_IF(r) crash_point_if(r)
#else
#define CB_CRASH_POINT()     ((void)0)
#define CB_CRASH_POINT_IF(r) (r)
#endif

#define cb_load32(p, order)     atomic_load_explicit((p), (order))
#define cb_load64(p, order)     atomic_load_explicit((p), (order))
#define cb_store32(p, v, order) (atomic_store_explicit((p), (v), (order)), CB_CRASH_POINT())
#define cb_store64(p, v, order) (atomic_store_explicit((p), (v), (order)), CB_CRASH_POINT())
#define cb_cas32(p, expected, v)                               \
    CB_CRASH_POINT_IF(atomic_compare_exchange_strong_explicit( \
        (p), (expected), (v), memory_order_relaxed, memory_order_relaxed))
#define cb_cas64(p, expected, v) cb_cas32(p, expected, v)
#define cb_add32(p, n, order)    ((void)atomic_fetch_add_explicit((p), (n), (order)), CB_CRASH_POINT())
#define cb_fence()               atomic_thread_fence(memory_order_seq_cst)

#if defined(__x86_64__)
#define cb_spin_hint() __builtin_ia32_pause()
#else
#define cb_spin_hint() ((void)0)
#endif

/* In atomics.c, never inlined: the compiler can't read the source again after a check. */
void cb_copy_in(void *dst, const void *src, size_t bytes);
void cb_copy_out(void *dst, const void *src, size_t bytes);
#endif

static_assert(sizeof(cb_atomic32) == 4 && sizeof(cb_atomic64) == 8, "words are words");
#endif
