/* daemon/loop_body.h - what a body of loop.h implements; only loop*.c include it.
 *
 * A body puts struct loop first in its own struct and calls loop_init from its open function. A
 * slot is a watch's place; its generation tells late news of an earlier watch from the present
 * one's. */
#ifndef CB_DAEMON_LOOP_BODY_H
#define CB_DAEMON_LOOP_BODY_H

#include "daemon/loop.h"

#define LOOP_GEN_MASK 0xffffffu

struct loop_ops {
    const char *name;
    void (*free)(struct loop *l); /* the body's whole struct */
    /* Slot idx was filled, or its watch's events changed. */
    int (*arm)(struct loop *l, uint32_t idx, bool is_new);
    void (*disarm)(struct loop *l, uint32_t idx); /* about to be emptied */
    /* Waits at most timeout_ns for the first ready slot, and calls nothing. True: there is one. */
    bool (*wait)(struct loop *l, uint64_t timeout_ns);
    /* Calls loop_ready for all that are ready, those that a wait found first of all. */
    void (*tell)(struct loop *l);
    /* Rings the sockets of these slots and calls loop_rung for each. */
    void (*ring)(struct loop *l, const uint32_t *idxs, uint32_t n);
};

struct loop_slot {
    struct loop_watch *watch; /* NULL: free */
    uint32_t gen;             /* counted up when it is emptied */
    uint32_t next_free;
};

struct loop {
    const struct loop_ops *ops;
    const struct clock *clock;
    struct log *log;
    struct loop_slot *slots;
    uint32_t *ringing; /* [n_slots] slots to ring */
    uint32_t n_slots, first_free, n_ringing, n_called;
    struct list timers; /* earliest first */
};

/* 0 or -ENOMEM. */
int loop_init(struct loop *l, const struct loop_ops *ops, uint32_t n_slots,
              const struct clock *clock, struct log *log);
void loop_fini(struct loop *l);

/* A slot is ready: calls its handler, unless the watch that gen meant is gone. */
void loop_ready(struct loop *l, uint32_t idx, uint32_t gen, uint32_t events);
void loop_rung(struct loop *l, uint32_t idx, uint32_t gen, int result);

int loop_uring_new(struct loop **loopp, uint32_t n_watches, const struct clock *clock,
                   struct log *log);
int loop_epoll_new(struct loop **loopp, uint32_t n_watches, const struct clock *clock,
                   struct log *log);

#endif
