/* tests/explore/world.h - both ends of one small lane, for the cases: a daemon that answers request
 * with tokens 100, 101, ..., a client that checks that each arrives once, in order. What a client is that
 * has the library between is library.h's.
 *
 * What is built before threads start is built once a case, by plain accesses; each execution
 * restores the private records only, since under the explorer shared memory itself is never
 * written. */
#ifndef CB_TESTS_EXPLORE_WORLD_H
#define CB_TESTS_EXPLORE_WORLD_H

#include "shm/lane.h"
#include "tests/explore/explorer.h"

enum { WORLD_SLOTS_MAX = 3, WORLD_FIRST_TOKEN = 100 };

struct world_shape {
    uint32_t n_slots, res_capacity;
    uint32_t pool_tokens; /* room for output */
    uint64_t first;       /* where the cursors begin */
};

struct world {
    struct cb_lane *lane;
    struct cb_lane_client *client;
    void *up, *down;                          /* the lane's memory */
    bool socket_bells;                        /* the client is woken by records, else by futex */
    cb_atomic32 *semaphore;                   /* NULL, or by this one's count */
    uint32_t socket;                          /* records queued towards the client */
    uint32_t socket_room;                     /* more are refused (EAGAIN) */
    uint32_t daemon_bells;                    /* records queued towards the daemon */
    uint32_t n_accepted;                      /* by the daemon */
    const uint32_t *ids[WORLD_SLOTS_MAX];     /* the client's views, from ACCEPTED to the end */
    uint32_t n_seen[WORLD_SLOTS_MAX];         /* tokens the client has read */
    uint32_t n_ended;                         /* terminal entries the client has read */
    enum cb_slot_state last[WORLD_SLOTS_MAX]; /* how the newest request of a slot ended */
};
extern struct world world;

/* In init: a lane of this shape; then `build`, if not NULL, makes the state the threads start
 * from. */
void world_init(const struct world_shape *shape, void (*build)(void));

/* In build: the daemon is no more, and another one has a lane of this shape, which is the world's from now
 * on. */
void world_next_lane(void);
const struct cb_geometry *world_geometry(void); /* of either lane */

/* In check: shared memory as the threads left it, for plain looks at it. */
void world_adopt(void);

/* The client submits a request for n_new tokens; rings if told so. Returns false if it got none
 * in. */
bool world_submit(uint32_t n_new);
/* The same for a family: so many continuations in slots of their own. */
bool world_submit_many(uint32_t n_children, uint32_t n_new);
void world_bell_daemon(int r);

/* The client takes an entry; false if there is none now. */
bool world_consume_one(void);
/* The client takes entries until there is none; false if it found nothing at all. */
bool world_consume(void);

/* The daemon takes in what waits. Returns how many it accepted. */
uint32_t world_intake(void);
/* One more token for an active slot; its end. */
void world_token(uint32_t slot, uint32_t index);
void world_end(uint32_t slot);
/* sem_trywait, and the rest of sem_wait, of world.semaphore. */
bool world_semaphore_try(void);
void world_semaphore_wait(void);

/* Publishes, and rings if due. The room law holds. */
void world_flush(void);
/* One sleep of the loop, with one lane; `paused` as in cb_lane_look_again. */
void world_sleep(bool paused);
/* Intake, flush and sleep, until so many were accepted. */
void world_serve_until(uint32_t n_accepted);

#endif
