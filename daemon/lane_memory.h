/* daemon/lane_memory.h - the segments of one lane: made, guarded, let go.
 *
 * By descriptor: sealed memory without a name (shm/segment.h); UP is guarded, for its pages can be
 * punched. By name (shm/names.h): DOWN and the bell too, for nothing there is sealed. Fresh from
 * the kernel each time, never the heap. Loop thread only. */
#ifndef CB_DAEMON_LANE_MEMORY_H
#define CB_DAEMON_LANE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "shm/names.h"
#include "shm/segment.h"

#define LANE_MEMORY_GUARDS 3 /* at most: GUARD_RANGES_MAX counts with them */

struct lane_memory {
    struct cb_segment up, down;
    struct cb_segment bell;   /* a semaphore's page; unmapped: the bell is another one */
    struct cb_segment record; /* the daemon's own; outlives the others */
    struct cb_names names;    /* until the peer has opened them */
    int guards[LANE_MEMORY_GUARDS];
};

/* What is asked for. */
struct lane_memory_wish {
    size_t up_bytes, down_bytes, record_bytes;
    bool is_named;
    /* These if so. */
    bool has_bell;
    const char *instance;
    uid_t uid;
};

/* All of it, or nothing: 0 and fds[2], UP and DOWN, are the caller's to pass and close (-1 if it is
 * named); or negative errno and why. -ENOSPC: /dev/shm is full. */
int lane_memory_make(struct lane_memory *m, const struct lane_memory_wish *wish, int fds[2],
                     struct cb_why *why);

/* The peer has it mapped: the names are taken away. Fine if there are none. */
void lane_memory_unname(struct lane_memory *m);

/* Whether a page was gone when it was touched. */
bool lane_memory_is_broken(const struct lane_memory *m);

/* All but the record, of one that was made. */
void lane_memory_end(struct lane_memory *m);

#endif
