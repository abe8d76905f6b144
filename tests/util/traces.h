/* tests/util/traces.h - recorded decisions of a scheduler, step by step. */
#ifndef CB_TESTS_UTIL_TRACES_H
#define CB_TESTS_UTIL_TRACES_H

#include <jansson.h>
#include <stddef.h>

#include "daemon/sched/policy.h"

#define TRACES_WHY_MAX 256

/* Runs a workload of the file `root` until all its requests ended: the engine over a scripted
 * model, audited at each step. Where it says fifo the scheduler is `fifo`: that, or auto, which must be
 * the same for one user. why: "", or what went wrong. differs: "", or the first difference
 * from what was recorded: of a step's batch, or of an end, or of what was taken over. */
void traces_run(const json_t *root, const json_t *workload, enum scheduler_kind fifo,
                char why[TRACES_WHY_MAX], char differs[TRACES_WHY_MAX]);

#endif
