/* shm/stats_table.h - the counters and histograms of the STATUS page, one row each.
 * X(name, kind, unit, meaning), and X(name, meaning) of a histogram, whose values are ns.
 *
 * kind: COUNTER only grows; GAUGE is the present value. A row's place is part of the page: new rows
 * go to the end, none is ever removed. cbctl, the manual and the daemon read this table. */
/* clang-format off */
#define CB_STATS_TABLE(X)                                                                         \
    X(requests_accepted,  COUNTER, "requests", "taken in: each then runs, waits or has ended")      \
    X(requests_rejected,  COUNTER, "requests", "refused by intake; the result says why")          \
    X(requests_finished,  COUNTER, "requests", "ended by eos, a stop, their limit or a full cache") \
    X(requests_cancelled, COUNTER, "requests", "ended by a cancel of client or administrator, also before their first step") \
    X(requests_deadline,  COUNTER, "requests", "ended by their deadline")                         \
    X(requests_failed,    COUNTER, "requests", "ended by an error: not finite, new weights, a device, a hard stop") \
    X(requests_dropped,   COUNTER, "requests", "dropped: their client died, or its lane closed")  \
    X(requests_active,    GAUGE,   "requests", "running now")                                     \
    X(requests_waiting,   GAUGE,   "requests", "taken in, not yet running")                        \
    X(tokens_prefill,     COUNTER, "tokens",   "prompt tokens computed")                          \
    X(tokens_decode,      COUNTER, "tokens",   "generated, but for each request's first")         \
    X(tokens_prefix_hit,  COUNTER, "tokens",   "found in the cache, not computed")                \
    X(steps,              COUNTER, "steps",    "engine steps that ran something")                 \
    X(soft_resets,        COUNTER, "requests", "preempted for want of cache and computed again")  \
    X(model_ns,           COUNTER, "ns",       "time in the model")                               \
    X(own_ns,             COUNTER, "ns",       "time in the daemon itself while it worked")       \
    X(ring_us_per_step,   GAUGE,   "us",       "time spent waking clients, recent average")       \
    X(blocks_total,       GAUGE,   "blocks",   "cache blocks")                                    \
    X(blocks_free,        GAUGE,   "blocks",   "cache blocks nobody holds")                       \
    X(lanes,              GAUGE,   "lanes",    "clients connected")                               \
    X(lanes_opened,       COUNTER, "lanes",    "clients ever welcomed")                           \
    X(lanes_refused,      COUNTER, "lanes",    "handshakes refused")                              \
    X(lane_broken,        COUNTER, "lanes",    "closed for breaking a rule of the format")        \
    X(lane_bytes,         GAUGE,   "bytes",    "memory of all lanes")                             \
    X(bells_sent,         COUNTER, "bells",    "sleeping clients woken")                          \
    X(bells_received,     COUNTER, "bells",    "times a client woke the daemon")                  \
    X(wake_missed,        COUNTER, "wakes",    "work that the safety net found, not a bell")      \
    X(watchdog,           COUNTER, "times",    "work waited and nothing moved")                   \
    X(draining,           GAUGE,   "0 or 1",   "no new requests are taken")                       \
    X(paused,             GAUGE,   "0 or 1",   "no steps are run")                                \
    X(prefix_hits,        COUNTER, "requests", "began with tokens found in the cache")            \
    X(restarts,           COUNTER, "requests", "computed anew: a row not finite, new weights")        \
    X(blocks_cached,      GAUGE,   "blocks",   "of the free ones, kept to be found again")        \
    X(blocks_evicted,     COUNTER, "blocks",   "kept ones given up for want of room")             \
    X(forks,              COUNTER, "requests", "began where the first of their prompt stood")     \
    X(intake_ns,          COUNTER, "ns",       "of own_ns: taking requests, and all the rest")    \
    X(schedule_ns,        COUNTER, "ns",       "of own_ns: until a step was submitted")           \
    X(deliver_ns,         COUNTER, "ns",       "of own_ns: handing out tokens, waking clients")   \
    X(violations,         COUNTER, "times",    "the bookkeeping contradicted itself, a fault")        \
    X(offloads,           COUNTER, "requests", "preempted for want of cache, their blocks put aside") \
    X(restores,           COUNTER, "requests", "went on with blocks that had been put aside")         \
    X(tokens_recomputed,  COUNTER, "tokens",   "computed though they had been: resets, restarts")     \
    X(blocks_aside,       GAUGE,   "blocks",   "blocks put aside in cpu_offload_space")  \
    X(requests_paused,    GAUGE,   "requests", "of those active or waiting, paused by their client") \
    X(weight_epoch,       GAUGE,   "times",    "other weights were loaded; 0: those of the start")    \
    X(weights_loaded,     COUNTER, "times",    "other weights were loaded")                           \
    X(weights_refused,    COUNTER, "times",    "other weights were refused: torn, of another model")  \
    X(pool_pinned,        GAUGE,   "0 or 1",   "cpu_offload_space can't be swapped out")                 \
    X(lanes_named,        GAUGE,   "lanes",    "of lanes, those by names in /dev/shm")                    \
    X(held_back,          COUNTER, "times",    "a client was not listened to: its user had taken too much of the loop's time")

#define CB_HISTOGRAMS_TABLE(X)                                                                    \
    X(time_to_first_token_ns, "from acceptance to a request's first token")                       \
    X(time_between_tokens_ns, "from one token of a request to its next")                          \
    X(request_queued_ns,      "from acceptance to the first step, of those that ended after it")  \
    X(request_total_ns,       "from acceptance to the end of a request, however it ended")        \
    X(step_model_ns,          "time in the model, of each step")                                  \
    X(step_own_ns,            "time in the daemon itself, of each turn with a step")
/* clang-format on */
