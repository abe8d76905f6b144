/* Copies between private and shared memory by relaxed atomic words, so that each foreign byte is
 * loaded exactly once and races with a hostile writer are defined behaviour. */
#include "shm/atomics.h"

void cb_copy_in(void *dst, const void *src, size_t bytes)
{
    const _Atomic uint32_t *from = src;
    uint32_t *to = dst;

    assert(bytes % 4 == 0);
    for (size_t i = 0; i < bytes / 4; i++)
        to[i] = atomic_load_explicit(&from[i], memory_order_relaxed);
}

void cb_copy_out(void *dst, const void *src, size_t bytes)
{
    _Atomic uint32_t *to = dst;
    const uint32_t *from = src;

    assert(bytes % 4 == 0);
    for (size_t i = 0; i < bytes / 4; i++) {
        atomic_store_explicit(&to[i], from[i], memory_order_relaxed);
        CB_CRASH_POINT();
    }
}
