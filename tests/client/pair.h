/* tests/client/pair.h - a fake daemon with a handle on it, and what most tests do to the two. All
 * of it asserts that it succeeds. */
#ifndef CB_TESTS_CLIENT_PAIR_H
#define CB_TESTS_CLIENT_PAIR_H

#include "client/cbclient.h"
#include "tests/client/fake.h"

#include <criterion/criterion.h>
#include <string.h>

enum { HANG_MS = 10000 }; /* what takes this long hangs */

#define expect_message(part) \
    cr_assert(strstr(cb_message(), part), "\"%s\" lacks \"%s\"", cb_message(), part)

extern const uint32_t ids3[3]; /* 5, 6, 7 */

struct pair {
    struct fake *f;
    struct cb_handle *h;
};

struct pair start(const struct fake_config *config, uint32_t kind, uint32_t mode);
struct pair start_plain(void); /* defaults */
void stop(struct pair p);

struct cb_request request_of(const uint32_t *ids, size_t n, uint32_t limit);

/* A prompt of one id; the answer is first, first + 1, ... */
uint64_t submit(struct cb_handle *h, uint32_t first, uint32_t limit, uint32_t flags);

/* Takes all events of id; checks that the tokens are first, first + 1, ... and come once, in order.
 * Returns the last event. */
struct cb_event take_all(struct cb_handle *h, uint64_t id, uint32_t first);

struct waiter {
    struct cb_handle *h;
    uint64_t id;
    uint32_t first;
};

/* For pthread_create, with a struct waiter. */
void *take_all_thread(void *waiter); /* take_all of a request that ends by its limit */
void *wait_released(void *waiter);   /* one cb_wait; what it returned, as intptr_t */

/* A request with a handler that, at each end, submits the next until n_left is used up. */
struct chain {
    uint64_t id;
    int n_tokens, n_ends, n_left;
    uint32_t end;
    bool nested;
    _Atomic bool inside;
};

void chain_submit(struct cb_handle *h, struct chain *c);

#endif
