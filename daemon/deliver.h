/* daemon/deliver.h - from the engine to lanes: tokens, ends, bells.
 *
 * The engine's sink. What a step made is written into each request's lane as it comes;
 * deliver_flush publishes it, once a step, lane by lane, and rings who sleeps. Room for all of it
 * was reserved at admission, so a client that reads nothing delays only itself. Loop thread
 * only. */
#ifndef CB_DAEMON_DELIVER_H
#define CB_DAEMON_DELIVER_H

#include "daemon/clients.h"
#include "daemon/engine.h"

struct deliver {
    struct clients *clients;
    struct engine *engine; /* set once it exists */
    struct cb_stats_page *stats;
    const struct clock *clock;
    double ring_us;    /* average of recent steps */
    uint64_t flush_ns; /* how long the last deliver_flush took */
    uint64_t gap_ns;   /* between tokens, of the last n_gaps; not yet in stats */
    uint64_t n_gaps;
    uint32_t slots[CB_SLOTS_MAX]; /* scratch of deliver_look */
};

void deliver_init(struct deliver *d, struct clients *clients, struct cb_stats_page *stats,
                  const struct clock *clock);

/* The sink to make the engine with; *d must outlive the engine. */
struct engine_sink deliver_sink(struct deliver *d);

/* Publishes what happened in all lanes since the last time and rings whoever sleeps. */
void deliver_flush(struct deliver *d);

#endif
