#include "tests/daemon/job.h"

#include <criterion/criterion.h>

void job_token(void *ctx, struct request *r, void *owner, uint32_t index, uint32_t token,
               uint64_t time_ns)
{
    struct job *j = owner;
    (void)ctx;
    (void)time_ns;
    cr_assert_eq(r, j->r);
    cr_assert_eq(j->n_ends, 0, "a token after the end");
    cr_assert_eq(index, j->n_got, "token %u where %u was due", index, j->n_got);
    cr_assert_lt(index, JOB_TOKENS_MAX);
    j->got[j->n_got++] = token;
}

void job_end(void *ctx, struct request *r, void *owner, const struct request_end *end)
{
    struct job *j = owner;
    (void)ctx;
    cr_assert_eq(r, j->r);
    cr_assert_eq(j->n_ends++, 0, "a second end");
    j->end = *end;
    j->r = NULL;
}
