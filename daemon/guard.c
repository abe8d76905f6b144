/* The table is written by the loop and read by the handler, which runs on the thread that faulted:
 * the loop, or a worker that copies. `bytes` is stored last and cleared first, so that the handler
 * never sees half a range. */
#include "daemon/guard.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>

static struct guard_range {
    _Atomic uintptr_t base;
    _Atomic size_t bytes; /* 0: free */
    atomic_bool is_broken;
} ranges[GUARD_RANGES_MAX];

static void on_bus(int number, siginfo_t *info, void *context)
{
    uintptr_t at = (uintptr_t)info->si_addr;
    int saved = errno;
    (void)context;
    for (int i = 0; i < GUARD_RANGES_MAX; i++) {
        size_t bytes = atomic_load_explicit(&ranges[i].bytes, memory_order_acquire);
        uintptr_t base = atomic_load_explicit(&ranges[i].base, memory_order_relaxed);
        if (bytes == 0 || at < base || at - base >= bytes)
            continue;
        if (mmap((void *)base, bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) == MAP_FAILED)
            break;
        atomic_store_explicit(&ranges[i].is_broken, true, memory_order_relaxed);
        errno = saved;
        return;
    }
    (void)signal(number, SIG_DFL); /* the access is tried again, and now it kills */
}

int guard_install(void)
{
    struct sigaction action = {.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigemptyset(&action.sa_mask);
    return sigaction(SIGBUS, &action, NULL) < 0 ? -errno : 0;
}

int guard_add(void *base, size_t bytes)
{
    for (int i = 0; i < GUARD_RANGES_MAX; i++)
        if (atomic_load_explicit(&ranges[i].bytes, memory_order_relaxed) == 0) {
            atomic_store_explicit(&ranges[i].is_broken, false, memory_order_relaxed);
            atomic_store_explicit(&ranges[i].base, (uintptr_t)base, memory_order_relaxed);
            atomic_store_explicit(&ranges[i].bytes, bytes, memory_order_release);
            return i;
        }
    return -ENOSPC;
}

bool guard_is_broken(int handle)
{
    return handle >= 0 && atomic_load_explicit(&ranges[handle].is_broken, memory_order_relaxed);
}

void guard_remove(int handle)
{
    if (handle >= 0)
        atomic_store_explicit(&ranges[handle].bytes, 0, memory_order_release);
}
