/* daemon/sandbox.h - what a daemon that serves can still ask of the kernel: what serving takes.
 *
 * Whoever finds a way into the daemon is left with memory it has, descriptors it holds, and files it
 * may read or remove (among them other processes of its user, as far as the kernel lets it): no
 * program is started, no socket made or connected, no file written, no process traced, no memory
 * made executable, no second io_uring made. The filter holds for all threads, for good.
 *
 * A call that is not on the list fails with EPERM and is logged by name, the first few times: where
 * the list lacks something that a library needs, the daemon goes on and its operator hears of it. */
#ifndef CB_DAEMON_SANDBOX_H
#define CB_DAEMON_SANDBOX_H

#include <stdbool.h>

#include "daemon/base/refuse.h"

#define SANDBOX_MESSAGE_MAX REFUSE_MESSAGE_MAX
#define SANDBOX_WORDS_MAX   96

/* False: this build has a sanitizer in it, which makes calls of its own. */
bool sandbox_is_possible(void);
/* What `cbctl status` says of it. */
void sandbox_words(bool is_wanted, char words[SANDBOX_WORDS_MAX]);
/* Closes it, after every thread is made and everything is open. Lines about refused calls go to
 * log_fd (-1: nowhere). 0, or negative errno and a sentence. */
int sandbox_enter(int log_fd, char *message);

#endif
