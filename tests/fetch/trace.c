/* A hook comes before the load it speaks of, so what is to change then changes at the next hook,
 * whatever that is; an atomic load is made here, and a copy too, so they change theirs at once. */
#include "tests/fetch/trace.h"

#include <stdbool.h>
#include <string.h>

static struct trace *now;
static struct {
    size_t at, n;
} due; /* loaded by the instruction behind the last hook */

static void change(size_t at, size_t n)
{
    for (size_t i = at; now->after && i < at + n; i++)
        if (now->n_loads[i] == 1)
            now->mirror[i] = now->after[i];
}

static void settle(void)
{
    if (due.n)
        change(due.at, due.n);
    due.n = 0;
}

/* The part of [p, p + n) that is watched, now loaded once more: false if there is none. */
static bool note(const void *p, size_t n, size_t *atp, size_t *np)
{
    uintptr_t from = (uintptr_t)p, base = now ? (uintptr_t)now->base : 0;
    if (!now)
        return false;
    settle();
    if (from >= base + now->bytes || from + n <= base)
        return false;
    size_t at = from < base ? 0 : from - base;
    size_t end = from + n > base + now->bytes ? now->bytes : from + n - base;
    for (size_t i = at; i < end; i++)
        now->n_loads[i] = (uint8_t)(now->n_loads[i] + (now->n_loads[i] < UINT8_MAX));
    *atp = at;
    *np = end - at;
    return true;
}

static void before_load(const void *p, size_t n)
{
    (void)note(p, n, &due.at, &due.n);
}

static void other_hook(void)
{
    if (now)
        settle();
}

static void at_once(const void *p, size_t n)
{
    size_t at, some;
    if (note(p, n, &at, &some))
        change(at, some);
}

void trace_begin(struct trace *t)
{
    now = t;
    due.n = 0;
    trace_clear();
}

void trace_clear(void)
{
    settle();
    memset(now->n_loads, 0, now->bytes);
}

void trace_end(void)
{
    settle();
    now = NULL;
}

/* ---- the compiler's hooks ------------------------------------------------------------------------ */

/* Names and types are the compiler's. */
#pragma GCC diagnostic ignored "-Wmissing-prototypes"

void __tsan_init(void)
{
}

void __tsan_func_entry(void *from)
{
    (void)from;
    other_hook();
}

void __tsan_func_exit(void)
{
    other_hook();
}

#define PLAIN(bytes)                                 \
    void __tsan_read##bytes(void *p)                 \
    {                                                \
        before_load(p, bytes);                       \
    }                                                \
    void __tsan_unaligned_read##bytes(void *p)       \
    {                                                \
        before_load(p, bytes);                       \
    }                                                \
    void __tsan_read_write##bytes(void *p)           \
    {                                                \
        before_load(p, bytes);                       \
    }                                                \
    void __tsan_unaligned_read_write##bytes(void *p) \
    {                                                \
        before_load(p, bytes);                       \
    }                                                \
    void __tsan_write##bytes(void *p)                \
    {                                                \
        (void)p;                                     \
        other_hook();                                \
    }                                                \
    void __tsan_unaligned_write##bytes(void *p)      \
    {                                                \
        (void)p;                                     \
        other_hook();                                \
    }
PLAIN(1)
PLAIN(2)
PLAIN(4)
PLAIN(8)
PLAIN(16)

void __tsan_read_range(void *p, size_t n)
{
    before_load(p, n);
}

void __tsan_write_range(void *p, size_t n)
{
    (void)p;
    (void)n;
    other_hook();
}

/* Atomics are made here, in the strongest order. */
#define FETCH(bits, T, op)                                            \
    T __tsan_atomic##bits##_fetch_##op(volatile T *p, T v, int order) \
    {                                                                 \
        (void)order;                                                  \
        at_once((const void *)p, sizeof *p);                          \
        return __atomic_fetch_##op(p, v, __ATOMIC_SEQ_CST);           \
    }
#define SWAP(bits, T, strength, is_weak)                                                   \
    int __tsan_atomic##bits##_compare_exchange_##strength(volatile T *p, T *expected, T v, \
                                                          int order, int failed)           \
    {                                                                                      \
        (void)order;                                                                       \
        (void)failed;                                                                      \
        at_once((const void *)p, sizeof *p);                                               \
        return __atomic_compare_exchange_n(p, expected, v, is_weak, __ATOMIC_SEQ_CST,      \
                                           __ATOMIC_SEQ_CST);                              \
    }
/* What clang makes of both: the old value, by which the caller sees whether it was swapped. */
#define SWAP_VALUE(bits, T)                                                                 \
    T __tsan_atomic##bits##_compare_exchange_val(volatile T *p, T expected, T v, int order, \
                                                 int failed)                                \
    {                                                                                       \
        (void)order;                                                                        \
        (void)failed;                                                                       \
        at_once((const void *)p, sizeof *p);                                                \
        (void)__atomic_compare_exchange_n(p, &expected, v, false, __ATOMIC_SEQ_CST,         \
                                          __ATOMIC_SEQ_CST);                                \
        return expected;                                                                    \
    }
#define ATOMIC(bits, T)                                             \
    T __tsan_atomic##bits##_load(const volatile T *p, int order)    \
    {                                                               \
        other_hook();                                               \
        T v = __atomic_load_n(p, __ATOMIC_SEQ_CST);                 \
        (void)order;                                                \
        at_once((const void *)p, sizeof *p);                        \
        return v;                                                   \
    }                                                               \
    void __tsan_atomic##bits##_store(volatile T *p, T v, int order) \
    {                                                               \
        (void)order;                                                \
        other_hook();                                               \
        __atomic_store_n(p, v, __ATOMIC_SEQ_CST);                   \
    }                                                               \
    T __tsan_atomic##bits##_exchange(volatile T *p, T v, int order) \
    {                                                               \
        (void)order;                                                \
        at_once((const void *)p, sizeof *p);                        \
        return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST);         \
    }                                                               \
    FETCH(bits, T, add)                                             \
    FETCH(bits, T, sub)                                             \
    FETCH(bits, T, and)                                             \
    FETCH(bits, T, or)                                              \
    FETCH(bits, T, xor)                                             \
    SWAP(bits, T, strong, false)                                    \
    SWAP(bits, T, weak, true)                                       \
    SWAP_VALUE(bits, T)
ATOMIC(8, uint8_t)
ATOMIC(16, uint16_t)
ATOMIC(32, uint32_t)
ATOMIC(64, uint64_t)

void __tsan_atomic_thread_fence(int order)
{
    (void)order;
    other_hook();
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

void __tsan_atomic_signal_fence(int order)
{
    (void)order;
    other_hook();
}

/* ---- copies and comparisons ------------------------------------------------------------------------ */

void *__real_memcpy(void *to, const void *from, size_t n);
void *__real_memmove(void *to, const void *from, size_t n);
int __real_memcmp(const void *a, const void *b, size_t n);

void *__wrap_memcpy(void *to, const void *from, size_t n)
{
    other_hook();
    void *r = __real_memcpy(to, from, n);
    at_once(from, n);
    return r;
}

void *__wrap_memmove(void *to, const void *from, size_t n)
{
    other_hook();
    void *r = __real_memmove(to, from, n);
    at_once(from, n);
    return r;
}

int __wrap_memcmp(const void *a, const void *b, size_t n)
{
    other_hook();
    int r = __real_memcmp(a, b, n);
    at_once(a, n);
    at_once(b, n);
    return r;
}
