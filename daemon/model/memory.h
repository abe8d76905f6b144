/* daemon/model/memory.h - how much memory there is, and how much of it the cache gets. */
#ifndef CB_DAEMON_MODEL_MEMORY_H
#define CB_DAEMON_MODEL_MEMORY_H

#include <stdint.h>

#define MEMORY_UNKNOWN UINT64_MAX

/* Bytes that this process could still use: the least of what the system has free or can free and
 * what each cgroup (version 1 or 2) above this process leaves. MEMORY_UNKNOWN if neither can be read.
 * `root` is "" but in tests: a folder with a proc and a sys of its own. */
uint64_t memory_available(const char *root);

struct memory_plan {
    uint64_t available_bytes;  /* memory_available                                              */
    uint64_t fixed_bytes;      /* weights, scratch, tables: all but the cache                   */
    uint64_t block_bytes;      /* of the cache, all layers                                      */
    uint32_t blocks_a_context; /* so that one request can fill the model's context              */
    uint32_t n_blocks;         /* wanted; 0: choose                                             */
    double max_memory_percent; /* share of available memory for all of it; 0: the default rule  */
};

/* How many blocks the cache gets: n_blocks if given; by max_memory_percent, what that share of the
 * available memory leaves; else the smaller of 0.6 of what fixed_bytes leave and eight contexts,
 * but no less than one context. 0 and *n_blocksp; or -ENOMEM with message: what is needed and what
 * is free. */
int memory_choose(const struct memory_plan *plan, uint32_t *n_blocksp, char *message);

struct memory_pool {
    uint64_t available_bytes; /* that weights and cache leave, or MEMORY_UNKNOWN */
    uint64_t wanted_bytes;    /* or UINT64_MAX: all of the share                 */
    double share;             /* of what is available that it may take: 0 to 1 */
    uint64_t block_bytes;
};

/* How many whole blocks the pool beside the cache gets. Where nobody knows what is available, as many
 * as are wanted, and none of a share. */
uint32_t memory_choose_pool(const struct memory_pool *pool);

#endif
