/* shm/segment_private.h - what segment.c and names.c share. */
#ifndef CB_SHM_SEGMENT_PRIVATE_H
#define CB_SHM_SEGMENT_PRIVATE_H

#include <stdbool.h>

#include "shm/segment.h"

/* -errno, and the sentence: what it was, errno's words, and the advice unless it is NULL. */
int segment_fail(struct cb_why *why, const char *what, const char *advice);

/* Opens what has this name in /dev/shm, where anybody may have put it, a pipe or a file with a lease
 * on it too: whose it is shows only once it is open, and until then nothing here waits. */
int segment_open(const char *name, bool writable);

/* Every page, now and not at the first touch: where there is no room, this fails, and nobody dies
 * of SIGBUS later. 0, or -1 with errno. */
int segment_allocate(int fd, size_t bytes);

/* Pages are there already, so populating only fills page tables; a child must not hold on to
 * them. */
int segment_map_fd(struct cb_segment *s, int fd, size_t bytes, int prot, struct cb_why *why);

#endif
