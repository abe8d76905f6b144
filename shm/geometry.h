/* shm/geometry.h - sizes and places of a lane's parts: made by the daemon, checked by the client.
 *
 * The daemon computes them once, keeps its own copy and uses only that; what stands in DOWN and in
 * WELCOME is for the client, which checks every number before it maps or reads by it. Pure. */
#ifndef CB_SHM_GEOMETRY_H
#define CB_SHM_GEOMETRY_H

#include <stddef.h>
#include <stdint.h>

#include "shm/format.h"

#define CB_RING_CAPACITY_MIN 16u
#define CB_RUN_ALIGN         64u /* runs start on cache lines */

/* Geometry of a lane. n_slots is brought into 1..CB_SLOTS_MAX; the arena is made to hold at least a
 * whole context of ids and the largest option block, the pool at least the run of a whole context
 * with every plane of this version but CB_PLANE_TOPK. So only for its sake a request within the
 * context can be too big for its lane.
 * 0, or -EINVAL if n_vocab or n_context is 0, or -EOVERFLOW if a segment would exceed 2^40
 * bytes. */
int cb_geometry_make(struct cb_geometry *g, uint32_t n_slots, uint64_t arena_bytes,
                     uint64_t pool_bytes, uint32_t n_vocab, uint32_t n_context);

/* 0 if every part lies whole and aligned inside its segment, no two overlap, the strides hold what
 * this version reads and writes, and the capacities are powers of two that fit the protocol; else
 * -EPROTO. */
int cb_geometry_check(const struct cb_geometry *g);

/* How a run of n tokens with these planes is laid out, after a prompt of n_prompt: byte offsets from
 * its start. */
struct cb_run_layout {
    uint64_t times_off, logprobs_off, topk_off; /* 0: not asked for, or of no token   */
    uint64_t epochs_off;                        /* likewise                                */
    uint64_t prompt_off, prompt_topk_off;       /* likewise; the latter follows the former */
    uint64_t bytes; /* all of it, rounded up to CB_RUN_ALIGN; 0: there is nothing */
};
struct cb_run_layout cb_run_layout(uint32_t n_tokens, uint32_t n_prompt, uint32_t planes);

/* The most tokens whose run takes at most `bytes`; UINT32_MAX: all that there can be. */
uint32_t cb_run_tokens_max(uint64_t bytes, uint32_t n_prompt, uint32_t planes);

#endif
