/* daemon/allowance.h - how much of the loop's time somebody may take: a hundredth of the time that
 * passes, and what was not taken is saved up to a tenth of a second. Who took more owes it. */
#ifndef CB_DAEMON_ALLOWANCE_H
#define CB_DAEMON_ALLOWANCE_H

#include <stdbool.h>
#include <stdint.h>

#define ALLOWANCE_SHARE    100          /* one part in so many       */
#define ALLOWANCE_SAVED_NS 100000000ull /* at the most, and at first */

struct allowance {
    uint64_t seen_ns;  /* up to when it was granted */
    uint64_t taken_ns; /* of what may be saved; more: a debt */
};

void allowance_init(struct allowance *a, uint64_t now_ns);
void allowance_take(struct allowance *a, uint64_t now_ns, uint64_t ns);
bool allowance_is_spent(struct allowance *a, uint64_t now_ns);
/* Nothing is taken: it is as a new one. */
bool allowance_is_whole(struct allowance *a, uint64_t now_ns);

#endif
