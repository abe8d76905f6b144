#include "daemon/allowance.h"

void allowance_init(struct allowance *a, uint64_t now_ns)
{
    *a = (struct allowance){.seen_ns = now_ns};
}

static void grant(struct allowance *a, uint64_t now_ns)
{
    uint64_t ns = (now_ns - a->seen_ns) / ALLOWANCE_SHARE;
    a->seen_ns += ns * ALLOWANCE_SHARE; /* what is left of the division is granted later */
    a->taken_ns = a->taken_ns > ns ? a->taken_ns - ns : 0;
}

void allowance_take(struct allowance *a, uint64_t now_ns, uint64_t ns)
{
    grant(a, now_ns);
    a->taken_ns += ns;
}

bool allowance_is_spent(struct allowance *a, uint64_t now_ns)
{
    grant(a, now_ns);
    return a->taken_ns >= ALLOWANCE_SAVED_NS;
}

bool allowance_is_whole(struct allowance *a, uint64_t now_ns)
{
    grant(a, now_ns);
    return a->taken_ns == 0;
}
