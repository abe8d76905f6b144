/* daemon/loop_sim.h - the third body of loop.h: virtual time, and a seed that decides what is seen
 * when.
 *
 * Descriptors are real (socket pairs, eventfds) and are asked with poll(2), which in one thread
 * answers the same every time. Ready ones are told of in an order that the seed draws, some only at
 * a later turn, as a real kernel and scheduler would. Whoever else lives in the simulated world
 * acts when the loop lets them: now and then between two turns, and while the loop sleeps. When
 * nobody wants to act, the clock jumps to what is due next. */
#ifndef CB_DAEMON_LOOP_SIM_H
#define CB_DAEMON_LOOP_SIM_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/loop.h"

struct virtual_clock;

struct loop_world {
    void *ctx;
    /* Lets one of the others do one thing. False: nobody has anything to do now. */
    bool (*act)(void *ctx);
    /* When somebody will next want to act without being woken; LOOP_FOREVER: nobody will; now,
     * though act said there is nothing: the sleep ends, and time stands still. */
    uint64_t (*next_ns)(void *ctx);
};

/* 0 or -ENOMEM. time is what clock reads, and is moved here only. A sleep in which nobody will ever
 * act returns. */
int loop_sim_new(struct loop **loopp, uint32_t n_watches, struct virtual_clock *time,
                 const struct clock *clock, struct log *log, uint64_t seed,
                 const struct loop_world *world);

#endif
