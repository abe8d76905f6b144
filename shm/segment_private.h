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

/* Gives a file in /dev/shm its pages, every one now and not at the first touch, and maps it. 0; or
 * -errno and why: there is no room, say. */
int segment_fill(struct cb_segment *s, int fd, size_t bytes, int prot, struct cb_why *why);

#endif
