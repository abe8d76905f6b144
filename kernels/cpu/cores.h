/* kernels/cpu/cores.h - how many threads this process can keep busy, and where.
 *
 * A container is often given a share of the processor's time rather than processors of its own: then
 * all of them are in sight, and a thread for each would only be throttled, all at once and in the
 * middle of a step. */
#ifndef CB_KERNELS_CPU_CORES_H
#define CB_KERNELS_CPU_CORES_H

#include <stdint.h>

/* Physical cores among those that this process may use, but no more than its control group's time
 * pays for. At least 1. */
uint32_t cores_usable(void);

/* One processor of each physical core that this process may use: at most cpus_max, lowest first, to
 * cpus; returns how many. 0: the system doesn't say. */
uint32_t cores_list(int *cpus, uint32_t cpus_max);

/* The quota of processor time of this process's control group and those around it (cgroup v2
 * cpu.max, v1 cpu.cfs_quota_us), in whole processors, rounded up; 0: none. `root` stands before all
 * paths: "" for the machine's own. */
uint32_t cores_quota(const char *root);

#endif
