/* daemon/bells.h - the futex bells of a turn: they are rung together, beside the next step.
 *
 * To wake a sleeping thread takes longer than all the rest of a turn, and it may be given this very
 * core at once. So whoever is to be woken is noted, and woken by one of the model's threads, which are
 * all awake just after a step. Bells of sockets are the loop's (loop.h). Loop thread only. */
#ifndef CB_DAEMON_BELLS_H
#define CB_DAEMON_BELLS_H

#include "shm/doorbell.h"

struct model;

struct bells {
    struct model *model; /* set once it is known */
    struct bell_list {
        cb_atomic32 **words;
        uint32_t n;
    } lists[2];     /* one to note bells in, one that may be under way */
    uint32_t noted; /* which is which */
    uint32_t n_max;
};

/* Room for n bells. 0 or -ENOMEM. */
int bells_init(struct bells *b, uint32_t n);
void bells_fini(struct bells *b); /* none is there, or under way */

/* Notes a bell that has been moved. Its word must stay until all is settled. */
void bells_add(struct bells *b, cb_atomic32 *word);
/* Has those that were noted rung beside what comes next. */
void bells_ring(struct bells *b);
/* On return all are rung. To be called before the loop sleeps, for then nobody may be awake. */
void bells_settle(struct bells *b);

#endif
