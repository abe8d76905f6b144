/* tests/explore/system.h - put before the library's sources where they are compiled for the explorer: what they
 * ask of threads, of the heap and of the kernel directly. The rest of what they want and do not get is defined in
 * library.c, instead of the files that have it. */
#ifndef CB_TESTS_EXPLORE_SYSTEM_H
#define CB_TESTS_EXPLORE_SYSTEM_H

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/explore/explorer.h"

/* Zeroed, at the same address in each execution, and never freed. */
void *library_allocate(size_t bytes);
long library_syscall(long number, ...);
void library_close(int fd);

#define pthread_mutex_lock(m)   explore_lock(m)
#define pthread_mutex_unlock(m) explore_unlock(m)
#define pthread_self()          ((pthread_t)explore_self())
#define malloc(bytes)           library_allocate(bytes)
#define calloc(n, bytes)        library_allocate((n) * (bytes))
#define free(p)                 ((void)(p))
#define close(fd)               library_close(fd)
#define syscall                 library_syscall

#endif
