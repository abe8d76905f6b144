/* shm/stdio_hold.h - what the programs do first: no file of theirs may become a standard one.
 *
 * A standard descriptor that is closed would be the number of the next file, socket or segment, and
 * what is printed would go there. */
#ifndef CB_SHM_STDIO_HOLD_H
#define CB_SHM_STDIO_HOLD_H

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

/* Opens /dev/null where a standard descriptor is missing. Standard output for reading, so that a
 * write to it fails, as it should: only complaints may be lost. Without a /dev/null there is
 * nothing to be said, and nowhere. */
static inline void cb_stdio_hold(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) < 0 &&
            open("/dev/null", fd == STDERR_FILENO ? O_WRONLY : O_RDONLY) != fd)
            abort();
    }
}

#endif
