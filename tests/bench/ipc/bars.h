/* tests/bench/ipc/bars.h - what our lanes may cost at most, as a share of the least that the same
 * machine can do in the same run. */
#ifndef CB_BENCH_IPC_BARS_H
#define CB_BENCH_IPC_BARS_H

#include "tests/bench/ipc/way.h"

/* Measures in turns and prints a line a bar. How many are missed. */
int bars_run(struct place *place, int n_turns);

#endif
