/* sched/shares.h - what each user got of the machine, and whose turn it is.
 *
 * Virtual token counters, after Sheng et al., "Fairness in Serving Large Language Models" (VTC,
 * OSDI 2024): a counter a user grows by what is computed for its requests, 1 for each token of a
 * prompt and 2 for each generated one, divided by the user's weight; the least counter goes first.
 * A user of whom nobody waits and who then sends a request is lifted to the least counter of those
 * who have somebody waiting, so that nobody saves up turns while idle; if there is none, to the
 * counter of the last of whom somebody waited.
 *
 * While two users have requests waiting all the time their counters differ by no more than what one
 * of them can have computed while the other cannot be admitted: twice the larger of a prompt and
 * twice the tokens of the cache, each by weight (theorem 4.8 there), and a step's tokens. Unlike
 * there, those who wait are asked each step, and those who run may have to give way.
 *
 * Tokens computed again after a soft reset, and those found in the cache, are not charged. Engine
 * thread only; never allocates after new. */
#ifndef CB_DAEMON_SCHED_SHARES_H
#define CB_DAEMON_SCHED_SHARES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/base/list.h"

#define SHARE_WEIGHTS_MAX 64
#define SHARE_WEIGHT_MAX  1000

/* "1000=2,1001=1": users not named weigh 1. */
struct share_weights {
    uint32_t n;
    struct share_weight {
        uint32_t uid, weight; /* 1 to SHARE_WEIGHT_MAX */
    } of[SHARE_WEIGHTS_MAX];
};

/* 0, or -EINVAL with message (REFUSE_MESSAGE_MAX bytes): what is wrong, and what to write. */
int share_weights_parse(const char *text, struct share_weights *weights, char *message);

/* Requests that wait and that nothing but their age tells apart. */
struct queue {
    struct list requests; /* request.queue_link */
    struct list *cursor;  /* of a round: the next candidate */
    uint32_t n;
    /* Of those that are not paused, as far as that was noted: how many, ids to compute, and tokens
     * that they may generate. */
    uint32_t n_able;
    uint64_t n_tokens, n_limit;
};

static inline void queue_clear(struct queue *q)
{
    *q = (struct queue){.cursor = &q->requests};
    list_init(&q->requests);
}

struct share {
    struct queue queue;
    uint32_t uid, weight;
    uint64_t counter;    /* in SHARE_UNITs                                  */
    uint32_t n_requests; /* that wait or run; 0: the place may be given up  */
    uint32_t rank;       /* of this round                                   */
    uint64_t lifted;     /* count of the latest lift: on a par, who was idle goes first */
    uint64_t n_held;     /* blocks of its active requests, while somebody counts them   */
    struct list link;    /* of those with requests, in order of rank of late; else free */
};

#define SHARE_UNIT 1024u /* of a counter: a prompt's token at weight 1 */

struct shares;

int shares_new(struct shares **sharesp, uint32_t max_requests); /* 0 or -ENOMEM */
struct shares *shares_free(struct shares *s);                   /* NULL is fine; returns NULL */

/* Weights from now on. */
void shares_set_weights(struct shares *s, const struct share_weights *weights);

/* The user's share, for a new request of its: before that one is in the queue. */
struct share *shares_enter(struct shares *s, uint32_t uid);
/* One of its requests ended. */
void shares_leave(struct shares *s, struct share *share);
/* Nobody of its waits any more. */
void shares_note_empty(struct shares *s, struct share *share);

/* Nobody has requests any more; to be followed by shares_enter for each there is. */
void shares_forget_requests(struct shares *s);

/* NULL: the user has no requests. */
const struct share *shares_find(const struct shares *s, uint32_t uid);

/* So many tokens of a prompt and generated ones are computed for it. */
void share_charge(struct share *share, uint32_t n_prompt, uint32_t n_generated);

/* Gives all with requests their rank, from 0; returns how many there are. */
uint32_t shares_rank(struct shares *s);
uint32_t shares_n(const struct shares *s);
/* Those with requests, as shares_rank left them: struct share by `link`. */
const struct list *shares_all(const struct shares *s);

#endif
