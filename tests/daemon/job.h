/* tests/daemon/job.h - a request as a test of the engine sees it: what it asks, what it gets.
 *
 * It is the owner of its request, and spec.prompt is its prompt. job_token and job_end are a sink's
 * token and end: they fail the test if the engine tells something out of turn. */
#ifndef CB_TESTS_DAEMON_JOB_H
#define CB_TESTS_DAEMON_JOB_H

#include <stdint.h>

#include "daemon/engine.h"

enum { JOB_TOKENS_MAX = 600 };

struct job {
    uint32_t prompt[JOB_TOKENS_MAX], n_prompt;
    struct request_spec spec;
    struct request *r; /* NULL: ended */
    uint32_t got[JOB_TOKENS_MAX], n_got, n_ends;
    struct request_end end;
};

void job_token(void *ctx, struct request *r, void *owner, uint32_t index, uint32_t token,
               uint64_t time_ns);
void job_end(void *ctx, struct request *r, void *owner, const struct request_end *end);

#endif
