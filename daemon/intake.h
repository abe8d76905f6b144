/* daemon/intake.h - from rings to requests: copied once, checked, charged, handed to the engine.
 *
 * A pass is bounded, and shared out among uids in rounds with deficits: each uid may take so much a
 * round, its lanes in turn, so that one user's flood delays others by a round and no more. What a
 * client writes, at any moment, is input: the entry, the prompt and the options are copied once
 * each, and only the copies are looked at. A bad request is answered with its status; a broken rule
 * of the lane closes the lane; nothing here fails as a whole. Loop thread only, nothing allocates
 * after intake_new. */
#ifndef CB_DAEMON_INTAKE_H
#define CB_DAEMON_INTAKE_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/clients.h"

struct intake;

struct intake_config {
    const struct settings *settings;
    const struct clock *clock;
    struct clients *clients;
    struct engine *engine;
    struct cb_stats_page *stats;
    uint32_t n_vocab, n_context, page_size;
};

int intake_new(struct intake **intakep, const struct intake_config *config); /* 0 or -ENOMEM */
struct intake *intake_free(struct intake *i); /* NULL is fine; returns NULL */

/* Takes what waits, at most a pass. True: it ended at its bound, and more may wait. */
bool intake_drain(struct intake *i);

/* From now on every request is refused with CB_DRAINING. */
void intake_refuse_all(struct intake *i);

#endif
