/* sched/policy.h - in which order requests are asked to run, and who gives way to whom.
 *
 * A policy keeps those who wait, in queues of its own, and names the candidates of a step one by
 * one, active and waiting ones in one order.
 *
 *   fifo           decoding, then prefilling, then waiting, in order of arrival; of those who wait
 *                  one with blocks aside and one without in turn
 *   prefill_first  the same, but prefilling before decoding
 *   priority       the higher level first. A request's level is its priority, and rises by one for
 *                  every ageing_ms that it waits, so that all come to the top in the end. What it
 *                  has when it is admitted it keeps while it is active.
 *   fair           the user who got least first: virtual token counters (Sheng et al., "Fairness in
 *                  Serving Large Language Models", OSDI 2024), see shares.h
 *   auto           fifo while requests of one user are there, fair while several users' are
 *
 * priority and fair rank requests, and that makes more of a difference than the order. Who waits
 * and finds no room is not passed over by those behind it, so large ones are not starved by small
 * ones. It may press: active requests of a lower level, or of a user who holds more of the cache
 * than its own would with it, give way. And prompts leave tokens to those who decode. Within a
 * level or a user the order is fifo's.
 *
 * Engine thread only; never allocates after new. */
#ifndef CB_DAEMON_SCHED_POLICY_H
#define CB_DAEMON_SCHED_POLICY_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/sched/request.h"
#include "daemon/sched/shares.h"

enum scheduler_kind {
    SCHEDULER_FIFO,
    SCHEDULER_PREFILL_FIRST,
    SCHEDULER_PRIORITY,
    SCHEDULER_FAIR,
    SCHEDULER_AUTO,
};

struct policy;

/* For up to max_requests at once. 0 or -ENOMEM. */
int policy_new(struct policy **policyp, enum scheduler_kind kind, uint32_t max_requests,
               uint32_t ageing_ms);
struct policy *policy_free(struct policy *p); /* NULL is fine; returns NULL */

/* The default free share of the cache below which new prefills wait. */
double policy_safety_margin(enum scheduler_kind kind);

/* What users' requests weigh from now on. */
void policy_set_weights(struct policy *p, const struct share_weights *weights);

/* ---- who is there ---------------------------------------------------------------------------- */

/* A new request, which waits behind all of its queue; and one that ended, in no queue any more. */
void policy_enter(struct policy *p, struct request *r);
void policy_leave(struct policy *p, struct request *r);

/* The request no longer waits. */
void policy_unqueue(struct policy *p, struct request *r);
/* Whether it is paused has changed. */
void policy_note_pause(struct policy *p, struct request *r);
/* It waits again, before all of its queue. */
void policy_queue_first(struct policy *p, struct request *r);
/* It waits again after it gave way: by rank at its old place, else behind all. */
void policy_queue_again(struct policy *p, struct request *r);

/* Makes all queues anew from the scheduler's lists, believing nothing else: for a repair. */
void policy_rebuild(struct policy *p, const struct list *waiting, const struct list *active);

/* n_tokens of r from its past on are about to be computed: what is new of them is charged. */
void policy_charge(struct request *r, uint32_t n_tokens);

/* ---- one step -------------------------------------------------------------------------------- */

/* Begins a round over the active requests and those who wait; any_aside: some of these have blocks
 * in the pool beside the cache. */
void policy_begin(struct policy *p, const struct list *active, bool any_aside, uint64_t now_ns);
/* The next candidate, or NULL. One that waits may be admitted or stay where it is, and an active
 * one may be made to wait, before the next call. */
struct request *policy_next(struct policy *p);
/* None of those who wait is to come any more in this round. */
void policy_skip_waiting(struct policy *p);

/* Whether this round ranks requests. */
bool policy_is_ranked(const struct policy *p);
/* Whether it is bound to ask everyone who waits, as the recorded rules do. */
bool policy_asks_all(const struct policy *p);

/* Whether r might press anyone: after policy_begin, and a guess. */
bool policy_may_press(const struct policy *p, const struct request *r);

/* Whom the waiting r, which needs n_blocks more, may press to give way: the newest of those that it
 * would press first, or NULL. *n_blocksp: what all it may press hold, at most. */
struct request *policy_pressed_by(struct policy *p, const struct list *active,
                                  const struct request *r, uint32_t n_blocks, uint32_t *n_blocksp);

/* Who gives way when active requests find no room. */
struct request *policy_loser(struct policy *p, const struct list *active);

/* ---- watching -------------------------------------------------------------------------------- */

/* Of requests that wait and are not paused: how many, and ids to be computed of them. */
struct policy_ahead {
    uint32_t n_requests;
    uint64_t n_tokens, n_limit; /* n_limit: tokens that they may yet generate */
};
/* Who would come before a new request of this user and priority, about. */
void policy_ahead_of_new(const struct policy *p, uint32_t uid, uint8_t priority, uint32_t n_tokens,
                         uint64_t now_ns, struct policy_ahead *ahead);
/* Who comes before r, which waits. Walks the queues. */
void policy_ahead_of(const struct policy *p, const struct request *r, uint64_t now_ns,
                     struct policy_ahead *ahead);

const char *policy_name(const struct policy *p); /* what it does now: of auto, fifo or fair */

/* Audits the queues against n_waiting requests: 0, or -EUCLEAN and *whyp a sentence. */
int policy_check(const struct policy *p, uint32_t n_waiting, const char **whyp);

#endif
