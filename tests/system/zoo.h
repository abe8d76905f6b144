/* tests/system/zoo.h - the bad-client zoo: a program for each cell of the table of attacks on a lane.
 *
 * Each is a member of a crowd, bounded by itself: it does its harm ZOO_ROUNDS times or so, looks that
 * what must fail does, and ends. What it may not do is harm anybody: that is for the test to see.
 *
 * Cells that are tested elsewhere, or not: zoo_elsewhere. */
#ifndef CB_TESTS_SYSTEM_ZOO_H
#define CB_TESTS_SYSTEM_ZOO_H

/* clang-format off: cbclient.h spells out the enums that status.h has, so it comes first */
#include "tests/system/storm.h"
#include "tests/system/raw.h"
#include "shm/lane.h"
#include "shm/message.h"
#include "shm/sampling.h"
#include "shm/stop.h"
/* clang-format on */

enum { ZOO_ROUNDS = 60 };

struct beast {
    const char *cell;
    crowd_fn *fn; /* its argument is the beast */
    int way;      /* of several */
};
extern const struct beast zoo_memory[], zoo_socket[],
    zoo_life[]; /* each up to one without a name */

struct zoo_cell {
    const char *cell, *where;
};
extern const struct zoo_cell zoo_elsewhere[];

/* A lane, and the client's end of it: right until something is written by hand. */
struct cage {
    struct raw raw;
    struct cb_lane_client *lc;
    uint64_t random;
    bool is_held[CB_SLOTS_MAX]; /* slots sent and not freed */
};

/* False: refused, since lanes of this uid broke rules before. Others fail the member. */
bool cage_open(struct cage *k, struct crowd *c, uint32_t i);
void cage_close(struct cage *k);
/* A right request of n_prompt ids at the arena's start, to be made wrong. */
struct cb_request_entry cage_entry(struct cage *k, uint32_t n_prompt);
/* Sends it as it is; false if there is no place for it now. */
bool cage_submit(struct cage *k, struct cb_request_entry *e);
/* Scribbles over lanes of its own until then, each until it is closed, with the reason in it. How many
 * were closed for a broken rule. */
uint32_t zoo_mutate(struct crowd *c, uint32_t i, uint64_t until_ms);
/* Rings, and takes what results there are. False: the lane is over. */
bool cage_turn(struct cage *k);

#endif
