/* SIGKILL, so that nothing of ours runs behind the point: no handler, no flush, no exit function. The
 * kernel then does what it does for any process that is killed. */
#include "tests/crash/points.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>

static _Atomic uint32_t n_left; /* points to go, the last one included; 0: not armed */

void crash_arm(uint32_t n)
{
    atomic_store(&n_left, n);
}

__attribute__((constructor)) static void arm_by_environment(void)
{
    const char *word = getenv("CB_CRASH_AT");
    if (word)
        crash_arm((uint32_t)strtoul(word, NULL, 10));
}

void crash_point(void)
{
    if (atomic_load_explicit(&n_left, memory_order_relaxed) && atomic_fetch_sub(&n_left, 1) == 1)
        raise(SIGKILL);
}

int crash_point_if(int stored)
{
    if (stored)
        crash_point();
    return stored;
}
