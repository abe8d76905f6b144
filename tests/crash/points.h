/* tests/crash/points.h - a process that ends itself by SIGKILL behind a store to shared memory.
 *
 * shm/ compiled with CB_CRASH passes a point after every store that it makes into a lane, each word
 * of a copy by itself: shm/atomics.h is the only way there, so none is missed and none needs a
 * number of its own. (What threads share in private memory goes that way too, and counts.) The points count from where the process was armed. A process whose environment
 * has CB_CRASH_AT=n is armed from its start. */
#ifndef CB_TESTS_CRASH_POINTS_H
#define CB_TESTS_CRASH_POINTS_H

#include <stdint.h>

/* From now on the n-th point is the end; 0: none is. */
void crash_arm(uint32_t n);

void crash_point(void);
/* A point if `stored`, which it returns. */
int crash_point_if(int stored);

#endif
