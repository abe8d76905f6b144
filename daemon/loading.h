/* daemon/loading.h - other weights on their way into the engine, a slice after each step.
 *
 *   staged ──load-weights──▶ its checksum is computed ──▶ it is read ──▶ published, or refused
 *
 * Steps go on meanwhile, and nothing changes for them before the last of it: then all of the new
 * weights take the place of the old ones between two steps. Who asked for it is answered then, and if
 * it goes before, the load is given up. Loop thread only; uses the heap. */
#ifndef CB_DAEMON_LOADING_H
#define CB_DAEMON_LOADING_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/buf.h"
#include "daemon/clients.h"
#include "daemon/staging.h"

struct daemon;

struct loading {
    struct staging staging;
    struct client *client; /* who waits for the answer; NULL: nothing is loaded */
    bool is_checked;       /* the checksum fits                           */
    uint64_t n_steps;      /* that the engine had done when it began      */
    uint64_t stall_ns;     /* the longest slice: for so long no step ran  */
};

void loading_init(struct loading *l);

/* Begins with what `who` staged, whose XXH3-128 that is: CONTROL_LATER (control.h); or an enum
 * cb_status, and what it says is in reply. */
int loading_begin(struct daemon *d, struct client *who, const uint64_t hash[2], struct buf *reply);

/* A slice, if something is loaded: whether it was. Between steps. Calls `changed` when they are other
 * weights, before anybody is told so. */
bool loading_turn(struct daemon *d, void (*changed)(struct daemon *d));

/* Gives up what is staged or loaded if its client is gone. Before anybody stages, and once a turn. */
void loading_settle(struct daemon *d);

/* Gives it up. */
void loading_drop(struct daemon *d);

#endif
