/* daemon/guard.h - against SIGBUS: pages that vanish under a mapping that another process can
 * touch.
 *
 * A client can punch holes into its UP segment; under strict overcommit reading there can then
 * fail. STATUS has a name, so whoever runs as this uid can truncate it; the segments and the bell of
 * a lane by name can be truncated by its client, too. The guard maps zero pages
 * over the whole range that holds the address, so that the access succeeds, and notes that the
 * range is broken; its owner asks at its convenience. A SIGBUS anywhere else kills, as it should.
 *
 * One guard a process, for a signal's handler has no argument: its ranges are the one state of this
 * program that hangs from nothing. Loop thread only but for the handler, which is
 * async-signal-safe. */
#ifndef CB_DAEMON_GUARD_H
#define CB_DAEMON_GUARD_H

#include <stdbool.h>
#include <stddef.h>

#define GUARD_RANGES_MAX 12352 /* three a lane, of which there are 4096 at most, and STATUS */

/* Installs the handler. 0 or -errno. */
int guard_install(void);

/* Guards [base, base + bytes), page-aligned. A handle of at least 0, or -ENOSPC. */
int guard_add(void *base, size_t bytes);
/* True once a page of it was missing. */
bool guard_is_broken(int handle);
/* Before it is unmapped. */
void guard_remove(int handle);

#endif
