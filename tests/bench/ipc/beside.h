/* tests/bench/ipc/beside.h - a process beside what is measured. A bad client of the same daemon rings
 * at full speed and scribbles over its cursors, whereupon its lane is closed and it comes again. What
 * it costs by its mere work is told by the same process scribbling over memory of its own. */
#ifndef CB_BENCH_IPC_BESIDE_H
#define CB_BENCH_IPC_BESIDE_H

#include "tests/bench/ipc/way.h"

enum beside { BESIDE_NOBODY, BESIDE_SPINNER, BESIDE_BAD_CLIENT, N_BESIDES };

const char *beside_name(enum beside what);
/* 0 for nobody; what there is ends with peer_end. */
pid_t beside_start(struct place *place, enum beside what);

#endif
