/* daemon/sleep.h - how the loop falls asleep, and what wakes it: a bell, a record, a death, a timer,
 * a deadline of a request that does not run. Loop thread only. */
#ifndef CB_DAEMON_SLEEP_H
#define CB_DAEMON_SLEEP_H

#include "daemon/daemon.h"

/* Without work for so long, the daemon gives the cache memory (daemon.c), and wakes for it. */
#define SLEEP_QUIET_NS 20000000u

/* True while it is worth looking again before the loop sleeps (settings wait_mode, spin_us). */
bool sleep_is_early(struct daemon *d, uint64_t now_ns);

/* Blocks until something happens, unless it has happened meanwhile. */
void sleep_until_something(struct daemon *d);

#endif
