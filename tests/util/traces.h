/* tests/util/traces.h - recorded decisions of a scheduler, step by step. */
#ifndef CB_TESTS_UTIL_TRACES_H
#define CB_TESTS_UTIL_TRACES_H

#include <jansson.h>
#include <stddef.h>

#define TRACES_WHY_MAX 256

/* Runs a workload of the file `root` until all its requests ended: the engine over a scripted
 * model, audited at each step. why: "", or what went wrong. differs: "", or the first difference
 * from what was recorded: of a step's batch, or of an end, or of what was taken over. */
void traces_run(const json_t *root, const json_t *workload, char why[TRACES_WHY_MAX],
                char differs[TRACES_WHY_MAX]);

#endif
