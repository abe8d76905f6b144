/* daemon/settings_resolve.h - what settings come to: what "none" stands for, which settings decide
 * over others, what backend and model make of them, and which do nothing there.
 *
 * Pure functions: settings are what was given, and stay so. */
#ifndef CB_DAEMON_SETTINGS_RESOLVE_H
#define CB_DAEMON_SETTINGS_RESOLVE_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/sched/policy.h" /* enum scheduler_kind */
#include "daemon/settings.h"

/* What it depends on besides. All zero: a backend on CPUs, before the model is open. */
struct settings_facts {
    bool has_graphs;       /* steps can be recorded and replayed                       */
    bool overlaps;         /* a step runs beside the loop                              */
    bool needs_mask;       /* attention takes a mask: graphs and overlap don't pay     */
    bool compiles;         /* kernels can be tuned at start                            */
    uint32_t table_blocks; /* so wide are tables of blocks from which decoding is faster; 0: no */
    /* Of the model, once it is open. */
    uint32_t n_blocks; /* whole pages of all layers */
    bool has_windows;  /* layers that see the last keys only */
    double pool_gib;   /* beside the cache */
    uint32_t n_threads;
    const char *isa;          /* NULL: unknown */
    const char *bf16_refusal; /* why no product is in bf16; NULL: some are, or unknown */
};

struct settings_resolved {
    uint32_t page_size;
    uint32_t max_batch_tokens, max_requests_per_batch, max_blocks_per_request;
    uint32_t q_interval, kv_interval;
    uint32_t level, mixed_level, decode_level; /* of tuning; 0: none */
    bool mixed_graphs, decode_graphs;
    bool overlaps;
    enum scheduler_kind scheduler;
    double safety_margin;
    const char *kv_dtype;
};

void settings_resolve(const struct settings *set, const struct settings_facts *facts,
                      struct settings_resolved *r);

/* What row i comes to, as text. */
void settings_resolved_value(const struct settings *set, const struct settings_facts *facts,
                             uint32_t i, char text[SETTINGS_TEXT_MAX]);

/* Why row i, whatever its value, changes nothing; NULL: it acts. */
const char *settings_idle(const struct settings *set, const struct settings_facts *facts,
                          uint32_t i);

#endif
