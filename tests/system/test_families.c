/* Several sequences of one prompt, by the library against the real daemon. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/system/fixture.h"

TestSuite(families, .timeout = 120);

enum { N_PROMPT = 40, N_NEW = 16 };

static struct cb_request request_of(float temperature)
{
    static uint32_t ids[N_PROMPT];
    struct cb_request r;
    for (uint32_t i = 0; i < N_PROMPT; i++)
        ids[i] = 100 + i * 13;
    cb_request_init(&r);
    r.ids = ids;
    r.n_ids = N_PROMPT;
    r.max_new_tokens = N_NEW;
    r.temperature = temperature;
    r.seed = 77;
    r.flags = CB_HAS_SEED | CB_IGNORE_EOS;
    r.cache_salt = NULL;
    return r;
}

/* The tokens of the request, which is waited for; how it ended. */
static struct cb_result take(struct cb_handle *h, uint64_t id, uint32_t *tokens)
{
    struct cb_result result;
    do
        cr_assert_eq(cb_get_result(h, id, &result, HANG_MS), 1, "%s", cb_message());
    while (!result.end && !result.status);
    memcpy(tokens, result.ids, result.n_generated * sizeof *tokens);
    cr_assert_eq(cb_release(h, id), 0);
    return result;
}

Test(families, prompt_is_computed_once_and_children_are_as_alone)
{
    struct system s;
    uint32_t tokens[4][N_NEW], alone[N_NEW];
    uint64_t first, id;
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null", "--allow_block_sharing", "off"));
    struct cb_handle *h = system_open(&s, NULL);
    struct cb_request r = request_of(1);
    r.n = 4;
    cr_assert_eq(cb_submit(h, &r, &first), 0, "%s", cb_message());
    for (uint32_t i = 0; i < 4; i++)
        cr_assert_eq(take(h, first + i, tokens[i]).n_generated, N_NEW);
    system_await(&s, "requests_finished", 4);
    cr_assert_eq(system_counter(&s, "forks"), 3);
    /* All of it but its last token, which is each one's own first step. */
    cr_assert_eq(system_counter(&s, "tokens_prefill"), N_PROMPT - 1 + 4);
    cr_assert_eq(system_counter(&s, "requests_accepted"), 4);
    for (uint32_t i = 0; i < 4; i++) {
        r.n = i % 2; /* 0 is 1 */
        r.child_idx = i;
        cr_assert_eq(cb_submit(h, &r, &id), 0);
        take(h, id, alone);
        cr_assert_eq(memcmp(alone, tokens[i], sizeof alone), 0, "child %u", i);
        for (uint32_t k = 0; k < i; k++)
            cr_assert_neq(memcmp(tokens[k], tokens[i], sizeof alone), 0, "%u and %u", k, i);
    }
    r = request_of(0);
    r.n = 4;
    cr_assert_eq(cb_submit(h, &r, &first), 0);
    for (uint32_t i = 0; i < 4; i++) {
        take(h, first + i, tokens[i]);
        cr_assert_eq(memcmp(tokens[0], tokens[i], sizeof alone), 0);
    }
    cb_close(h);
    system_settle(&s);
    system_fini(&s);
}

Test(families, each_is_cancelled_and_released_on_its_own)
{
    struct system s;
    uint32_t whole[3][N_NEW], tokens[N_NEW];
    uint64_t first;
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null", "--null_step_us", "5000"));
    struct cb_handle *h = system_open(&s, NULL);
    struct cb_request r = request_of(1);
    r.n = 3;
    cr_assert_eq(cb_submit(h, &r, &first), 0);
    for (uint32_t i = 0; i < 3; i++)
        take(h, first + i, whole[i]);
    cr_assert_eq(cb_submit(h, &r, &first), 0);
    cr_assert_eq(cb_cancel(h, first), 0);
    cr_assert_eq(cb_release(h, first + 1), 0);
    struct cb_result result = take(h, first + 2, tokens);
    cr_assert_eq(result.n_generated, N_NEW);
    cr_assert_eq(memcmp(tokens, whole[2], sizeof tokens), 0);
    cr_assert_eq(take(h, first, tokens).end, CB_END_CANCELLED);
    cb_close(h);
    system_settle(&s);
    system_fini(&s);
}

Test(families, slots_in_a_row_or_busy)
{
    struct system s;
    struct cb_options options;
    uint64_t ids[4], first;
    uint32_t tokens[N_NEW];
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null"));
    cb_options_init(&options);
    options.n_slots = 4;
    struct cb_handle *h = system_open(&s, &options);
    struct cb_request r = request_of(0);
    r.n = 5;
    cr_assert_eq(cb_submit(h, &r, &first), CB_INVALID);
    cr_assert(strstr(cb_message(), "cb_request.n"));
    r.n = 65;
    cr_assert_eq(cb_submit(h, &r, &first), CB_INVALID);
    r.n = 4;
    cr_assert_eq(cb_submit(h, &r, &ids[0]), 0);
    for (uint32_t i = 1; i < 4; i++)
        ids[i] = ids[0] + i;
    take(h, ids[0], tokens);
    take(h, ids[2], tokens);
    r.n = 2;
    cr_assert_eq(cb_submit(h, &r, &first), CB_BUSY, "two are free, but apart");
    take(h, ids[1], tokens);
    cr_assert_eq(cb_submit(h, &r, &first), 0);
    take(h, first + 1, tokens);
    take(h, first, tokens);
    cb_close(h);
    system_settle(&s);
    system_fini(&s);
}

Test(families, a_client_killed_in_mid_stream_leaves_nothing)
{
    struct system s;
    int ready[2];
    char c;
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null", "--null_step_us", "2000"));
    cr_assert_eq(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
        struct cb_handle *h = system_open(&s, NULL);
        struct cb_request r = request_of(1);
        struct cb_event event;
        uint64_t id;
        r.n = 8;
        r.max_new_tokens = 1000;
        if (cb_submit(h, &r, &id) || cb_wait(h, id, &event, -1) != 1)
            _exit(1);
        if (write(ready[1], "x", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    cr_assert_eq(read(ready[0], &c, 1), 1);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    system_settle(&s);
    cr_assert_eq(system_counter(&s, "requests_dropped"), 8);
    system_fini(&s);
}
