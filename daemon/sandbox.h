/* daemon/sandbox.h - what a daemon that serves can still ask of the kernel: what serving takes.
 *
 * Whoever finds a way into the daemon is left with memory it has, descriptors it holds, and files it
 * may read or remove (among them other processes of its user, as far as the kernel lets it): no
 * program is started, no socket made or connected, no file written, no process traced, no memory
 * made executable, no second io_uring made; new files are made only where some users may have lanes
 * by name. The filter holds for all threads, for good.
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
/* What `cbctl status` says of it. makes_names: as below. */
void sandbox_words(bool is_wanted, bool makes_names, char words[SANDBOX_WORDS_MAX]);
/* Closes it, after every thread is made and everything is open. makes_names: new files may be made, with
 * mode 0600, and be given access lists: for lanes by name. Lines about refused calls go to log_fd
 * (-1: nowhere). 0, or negative errno and a sentence. */
int sandbox_enter(bool makes_names, int log_fd, char *message);

#endif
