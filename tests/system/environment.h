/* tests/system/environment.h - what tests of environments share: how one is made for the test's own
 * process, which is one of its own, and so for the daemon and clients that it starts; and what has to
 * work in all of them. */
#ifndef CB_TESTS_SYSTEM_ENVIRONMENT_H
#define CB_TESTS_SYSTEM_ENVIRONMENT_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/system/storm.h"

enum { NOBODY = 65534 };

extern const struct storm_scale environment_scale;

/* False, and the reason (errno's) is printed, if something can't be had here. */
bool can(bool is_done, const char *what);
bool write_text(const char *path, const char *text);
/* From now on this system call fails with `error`, in this process and all that it starts: always
 * (arg is WHATEVER), or where this argument has that value. False, and said, if that can't be had. */
bool deny(int call, unsigned arg, uint64_t value, int error);
enum { WHATEVER = 6 };

/* This process, and all that it starts, in a memory control group of its own below the one it is in,
 * with that limit; `name` [4096] is its directory. False, and said, if that can't be had. */
bool memory_group_enter(const char *bytes, char *name);
/* How often its limit was met, or -1. */
long memory_group_fails(const char *name);
/* Back into the one above; what it started has ended. */
void memory_group_leave(const char *name);

/* Clients of a running daemon get what they should, one of them is killed, nothing is left. */
void expect_service(const struct system *s);
/* One request, and how it ended. deadline_ms: 0: none. */
uint64_t service_submit(struct cb_handle *h, uint32_t n_new, uint32_t deadline_ms);
uint32_t service_end(struct cb_handle *h, uint64_t id);
/* A deadline that is far off is kept, and one that is near ends what it should. The null model, at a
 * millisecond a step. */
void expect_deadlines(const struct system *s);
/* A member that opens and expects the status *(const int *)arg. */
void expects_open(struct crowd *c, uint32_t i, void *arg);

#endif
