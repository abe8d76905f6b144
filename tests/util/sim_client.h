/* tests/util/sim_client.h - a scripted client of the simulation: a real lane, a drawn life.
 *
 * It connects, shakes hands, submits good and bad requests and families of them, cancels, polls,
 * sleeps, frees, dies, or turns hostile and scribbles over its own segment, one act at a time as the
 * world lets it. Everything an honest one is told is checked at once (sim_answers.c) against what
 * the same request gets alone (sim_expect). A family is n continuations of one prompt: each is a
 * request in a slot of its own, and all are answered at once. Some requests are of a client whose
 * daemon died: what they get alone is known before, so they come with any part of that, and go on. */
#ifndef CB_TESTS_UTIL_SIM_CLIENT_H
#define CB_TESTS_UTIL_SIM_CLIENT_H

#include <stdbool.h>
#include <stdint.h>

#include "shm/control.h"
#include "shm/lane.h"
#include "shm/segment.h"

#define SIM_PROMPT_MAX 48
#define SIM_TOKENS_MAX 128
#define SIM_SLOTS_MAX  64
#define SIM_REGIONS    16            /* of the arena, one for each request on its way */
#define SIM_EPOCHS_MAX 32            /* of weights, in one run */
#define SIM_TOP        2             /* best tokens, where any are asked for */
#define SIM_NET_NS     2000000000ull /* a sleep this long looks by itself: a missed wake */

struct sim; /* tests/util/sim.h */

/* What was asked for, and what it gives alone. */
struct sim_request {
    bool is_sent;
    uint32_t slot, gen;
    uint64_t user;                  /* the family's */
    uint32_t n_children, child_idx; /* of the family; which one by its draws */
    uint32_t prompt[SIM_PROMPT_MAX], n_prompt, max_new_tokens;
    uint32_t n_given; /* its first tokens, which another daemon made: behind its prompt */
    float temperature;
    uint64_t seed, deadline_ns;
    uint32_t stop_ids[2], n_stop_ids;
    char stop[8]; /* a stop string; empty: none */
    bool is_salted;
    struct cb_sampling sampling;
    struct cb_logit_bias biases[2];
    uint32_t allowed[3], banned[2], n_biases, n_allowed, n_banned; /* 0: no list */
    uint32_t flags, planes;
    int must_reject; /* the status a bad one must get; 0: it is good */
    bool was_cancelled, was_accepted;
    uint32_t n_at_cancel;
    uint32_t n_seen; /* tokens announced so far */
    uint32_t n_held; /* tokens there were when the daemon began to act on a pause */
    uint32_t region; /* of the arena; SIM_REGIONS: none any more */
    uint32_t epoch;  /* in which it was sent */
    uint32_t n_at_epoch[SIM_EPOCHS_MAX]; /* tokens it had when a later one began */
};

struct sim_logprobs {
    float logprob;
    struct cb_top top[SIM_TOP];
};

struct sim_answer { /* of the request alone */
    uint32_t tokens[SIM_TOKENS_MAX], n_tokens;
    struct sim_logprobs logprobs[SIM_TOKENS_MAX], prompt[SIM_PROMPT_MAX];
    uint32_t finish; /* as slot.finish */
    uint32_t stop_idx, text_bytes;
};

enum sim_client_state {
    SIM_AWAY,    /* not connected yet            */
    SIM_GREETED, /* HELLO sent, WELCOME awaited  */
    SIM_MUTE,    /* will never finish the handshake */
    SIM_LIVE,
    SIM_OVER,
};

struct sim_client {
    struct sim *sim;
    uint32_t idx;
    uint64_t random;
    enum sim_client_state state;
    uint32_t uid;
    bool is_hostile, was_refused;
    bool is_lazy;    /* looks for results but rarely, ... */
    bool is_hasty;   /* ... and takes ends from the slot table, so that entries stay unread */
    int sock, death; /* our ends; death: written to, it is the pidfd */
    uint32_t wake;
    struct cb_welcome welcome;
    struct cb_segment up, down;
    struct cb_lane_client *lc;
    struct sim_request requests[SIM_SLOTS_MAX]; /* by slot */
    struct cb_result_entry answer;              /* of a family's first, ... */
    uint32_t n_answers;                         /* ... which so many others must get as well */
    uint32_t n_left;                            /* requests, or families, it still wants to make */
    uint32_t n_running;                         /* sent and not ended */
    bool wants_pause, is_held;                  /* asked for; acted on */
    bool is_parked;
    uint32_t bell;
    uint64_t parked_ns;
    uint64_t regions; /* bits of arena regions in use */
    uint64_t last_user;
};

/* Begins a life drawn from seed; sim is told of what it does. */
void sim_client_init(struct sim_client *c, struct sim *sim, uint32_t idx, uint64_t seed);
void sim_client_fini(struct sim_client *c);

/* Whether an act would do something now. */
bool sim_client_can_act(const struct sim_client *c);
/* When it will want to act by itself while it sleeps. */
uint64_t sim_client_next_ns(const struct sim_client *c);
void sim_client_act(struct sim_client *c);
/* Ends it now, in one of the ways a process ends. */
void sim_client_die(struct sim_client *c);
/* This epoch of weights begins: notes how far each request is. */
void sim_client_note_epoch(struct sim_client *c, uint32_t epoch);

#endif
