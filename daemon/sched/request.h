/* sched/request.h - a request's life as a state machine, and the pool that requests come from.
 *
 *   submitted --> WAITING --> PREFILLING --> DECODING --> ended, back in the pool
 *                    ^            |              |
 *                    +--- reset or put aside ----+           from anywhere: cancel, deadline, error
 *
 * A prompt that fits one step goes from WAITING to DECODING at once. The ids of a request are its
 * prompt and then what was generated, in one array; `past` of them have keys in the cache. What is
 * still to be computed is always ids[past .. n_ids), and a step yields a token iff it computes up
 * to n_ids. So a soft reset is past = 0 and no blocks: nothing else of a request ever changes back.
 * With blocks that others computed, a request begins with a past above 0; and so it does where its
 * blocks were put aside (scheduler.h) instead of being let go.
 *
 * A request may have children: the same prompt, continued otherwise. They wait for their parent,
 * which computes all of the prompt but its last id, and begin where it stands then (scheduler.h).
 *
 * Memory is taken once. Each place in the pool has address space for the longest request; pages are
 * touched only by what is written there, and long requests give theirs back to the system when they
 * end. Engine thread only. */
#ifndef CB_DAEMON_SCHED_REQUEST_H
#define CB_DAEMON_SCHED_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/base/list.h"
#include "daemon/cache/cache.h"
#include "daemon/sample/sampler.h"
#include "shm/format.h" /* CB_STOP_IDS_MAX */
#include "shm/stop.h"

/* Why a request ended; the same numbers go over the lane (shm/format.h). */
enum finish {
    FINISH_NONE = 0,
    FINISH_EOS = 1,
    FINISH_STOP = 2, /* a stop id or a stop string */
    FINISH_LENGTH = 3,
    FINISH_CANCELLED = 4,
    FINISH_DEADLINE = 5,
    FINISH_ERROR = 6,
};

/* What becomes of a request that has tokens when the model gets other weights. The same numbers go
 * over the lane (shm/format.h); 0: as the operator wishes. */
enum on_new_weights {
    ON_NEW_WEIGHTS_DEFAULT = 0,
    ON_NEW_WEIGHTS_CONTINUE = 1, /* keys and values so far stay              */
    ON_NEW_WEIGHTS_RESTART = 2,  /* they are computed anew, its tokens stay  */
    ON_NEW_WEIGHTS_FAIL = 3,     /* it ends with CB_NEW_WEIGHTS              */
};

enum request_phase { REQUEST_WAITING, REQUEST_PREFILLING, REQUEST_DECODING };

/* What intake checked and hands over. Everything pointed to is copied. */
struct request_spec {
    const uint32_t *prompt;   /* ids within the vocabulary, [n_prompt + n_given]              */
    uint32_t n_prompt;        /* at least 1                                                   */
    uint64_t now_ns;          /* when it came; 0: now                                          */
    uint32_t n_given;         /* generated before, elsewhere: at most max_new_tokens          */
    uint32_t max_new_tokens;  /* prompt and these within engine_tokens_max; 0: ends at once   */
    const uint32_t *stop_ids; /* besides the model's eos; an id here ends with FINISH_STOP    */
    uint32_t n_stop_ids;      /* at most CB_STOP_IDS_MAX                                 */
    bool ignore_eos;
    const struct cb_stops *stops; /* compiled stop strings (shm/stop.h), or NULL                  */
    float temperature;            /* 0: greedy; finite, not negative */
    uint32_t top_k;               /* 0: off; above the vocabulary: off */
    float top_p;                  /* in (0, 1]; 1: off */
    uint64_t seed;
    const struct sampler_wishes *wishes; /* what else is asked of its tokens; NULL: nothing */
    uint64_t deadline_ns;                /* by daemon/base/clock.h; 0: none */
    uint8_t priority;                    /* 0-255: the higher first         */
    uint32_t uid;                        /* whose quota                     */
    const void *cache_salt; /* blocks are shared with all that name it; NULL: within the uid    */
    uint32_t n_cache_salt;  /* bytes                                                            */
    const bool *paused;     /* while true it is not run; looked at each step; NULL: never */
    void *owner;            /* the sink's: which lane and slot */
    enum on_new_weights on_new_weights;
    uint32_t child_idx; /* 0, or which continuation of a prompt it is: other draws */
};

struct request_end {
    enum finish finish;
    int32_t error;        /* FINISH_ERROR: an enum cb_status (shm/status.h)                     */
    uint32_t n_generated; /* tokens handed out, the ending one included                         */
    uint32_t stop_idx;    /* FINISH_STOP: which string, or which id (by `stop_is_id`)           */
    bool stop_is_id;
    uint32_t text_bytes; /* FINISH_STOP by string: bytes of generated text before the stop     */
    uint64_t submitted_ns, started_ns, first_token_ns, ended_ns; /* 0: not reached              */
    uint32_t n_prompt, n_prefix_hit;
    uint32_t weight_epoch; /* of the newest token; none: 0 */
};

struct request {
    struct list link;       /* scheduler: waiting or active; pool: free       */
    struct list queue_link; /* policy: in its queue, while it waits           */
    struct list end_link;   /* engine: those that end at the next boundary    */
    struct request *parent; /* NULL, or whom it waits for */
    struct list sibling;    /* in its parent's children   */
    struct list children;   /* that wait for it           */
    enum request_phase phase;

    uint32_t *ids; /* [n_prompt + max_new_tokens] */
    uint32_t n_ids, n_prompt, max_new_tokens;
    uint32_t past;           /* ids with keys in the cache                                       */
    uint32_t starved_tokens; /* it lately found no room for its first so many tokens; 0: it did  */
    uint32_t n_soft_resets;
    uint32_t n_scored; /* ids of the prompt whose log-probabilities were told, the first included */
    uint32_t n_reached; /* the largest past it ever had */
    struct table table;
    struct table aside;    /* while it waits: its blocks in the pool beside the cache             */
    struct prefix_key key; /* whose blocks it may share: set by who took it from the pool         */
    /* A row of its was not finite: it is computed once more, from the first id, and neither takes
     * blocks of others nor gives any. */
    bool is_suspect;
    bool is_broken; /* what is kept of it contradicts itself, or what is kept of another */
    bool is_lost;   /* of use in a repair only: no list was seen to have it               */

    /* Weights are counted in epochs from 0. Those that computed its first key, and what this was when
     * its newest token was told; and what was told with that: CB_EPOCH_ANEW, the epoch. */
    uint32_t kv_epoch, told_kv_epoch, token_epoch;
    enum on_new_weights on_new_weights;

    struct sampler sampler;
    uint32_t *stop_ids; /* [n_stop_ids] */
    uint32_t n_stop_ids;
    bool ignore_eos;
    uint8_t priority;
    uint8_t level;          /* policy: what its priority has risen to   */
    bool is_counted;        /* policy: in its queue's sums, which leave out who is paused */
    struct share *share;    /* policy: its user's; NULL: nobody counts  */
    struct cb_stops *stops; /* NULL: no stop strings */
    struct cb_stop_state stop_state;

    uint64_t deadline_ns;
    uint32_t uid;
    const bool *paused; /* its owner's, or NULL */
    void *owner;
    struct request_end end; /* end.finish is set as soon as the end is decided, and never again */
};

struct requests;

/* What a request must know of the model's ids; eos up to SAMPLER_EOS_MAX. */
struct request_vocab {
    uint32_t n_vocab, n_eos;
    const uint32_t *eos;
};

/* A pool of n_requests of up to tokens_max ids and blocks_max blocks each, in each of n_groups rows
 * (table.h). 0 or -ENOMEM. */
int requests_new(struct requests **requestsp, uint32_t n_requests, uint32_t tokens_max,
                 uint32_t n_groups, uint32_t blocks_max);
struct requests *requests_free(struct requests *p); /* NULL is fine; returns NULL */

/* A request filled from spec but for what was given, WAITING and in no list; NULL: all are taken.
 * n_prompt + max_new_tokens is at most tokens_max. */
struct request *requests_take(struct requests *p, const struct request_spec *spec,
                              const struct request_vocab *vocab, uint64_t now_ns);

/* Takes r back. It is in no list and holds no blocks; if it seems to, that is a fault. */
void requests_release(struct requests *p, struct request *r);

/* How often that was so. */
uint32_t requests_n_faults(const struct requests *p);

/* For a repair: counts anew what is free and what is taken, and no fault has ever been. All that are
 * taken and have not ended become is_lost, which whoever has them in a list takes back. */
void requests_recount(struct requests *p);
struct request *requests_find_lost(struct requests *p); /* NULL: none is */

uint32_t requests_n_free(const struct requests *p);
/* Sum of prompts and limits of those that are taken. */
uint64_t requests_n_tokens(const struct requests *p);

static inline uint32_t request_n_generated(const struct request *r)
{
    return r->n_ids - r->n_prompt;
}

/* It keeps its place and, while nobody else needs them, its blocks. */
static inline bool request_is_paused(const struct request *r)
{
    return r->paused && *r->paused;
}

/* Whether some of its prompt's log-probabilities are still to be told: it must compute that part. */
static inline bool request_scores(const struct request *r)
{
    return r->sampler.prompt_logprobs && r->n_scored < r->n_prompt;
}

/* Whether it waits with a past. */
static inline bool request_is_aside(const struct request *r)
{
    return r->aside.n_blocks > 0;
}

/* Lets its blocks go and makes it wait again, to be computed from its first id. */
void request_soft_reset(struct request *r, struct cache *c);

/* Appends a generated token and says whether the request ends with it: FINISH_NONE, or, also in
 * r->end, STOP (a stop id), EOS, STOP (a string, found in the token's bytes text[n_text]), LENGTH:
 * the first of these that applies. eos[n_eos] are the model's. */
enum finish request_append(struct request *r, uint32_t token, const uint32_t *eos, uint32_t n_eos,
                           const uint8_t *text, size_t n_text, uint64_t now_ns);

/* Audits one request on its own: 0, or -EUCLEAN and *whyp a sentence. `between_steps`: nothing of
 * it is on the device. */
int request_check(const struct request *r, uint32_t page_size, bool between_steps,
                  const char **whyp);

#endif
