/* tests/replay/replay.h - recorded cases run again, for tests/programs/replay.c.
 *
 * A form is a kind of file; each has a file of its own here and a row in the program's table. It
 * tells each case's outcome once, by replay_case. */
#ifndef CB_TESTS_REPLAY_H
#define CB_TESTS_REPLAY_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct replay {
    uint32_t n_passed, n_failed;
    char difference[256]; /* the case's first one; "": none yet */
};

struct replay_form {
    const char *name;
    bool (*matches)(const json_t *root); /* whether a file is of this form */
    void (*run)(struct replay *r, const json_t *root);
};

extern const struct replay_form replay_processors; /* logits processing, case by case  */
extern const struct replay_form replay_traces;     /* a scheduler's batches, step by step */
extern const struct replay_form replay_sizing;     /* how large a cache fits            */

/* Notes a difference, unless the case has one already. */
void replay_differs(struct replay *r, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The case is over: counts it, and prints its first difference. */
void replay_case(struct replay *r, const char *name);

#endif
