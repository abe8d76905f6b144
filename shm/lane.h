/* shm/lane.h - a client's lane: two rings, slots, cancel words, output runs, and who sleeps when.
 *
 * struct cb_lane is the daemon's end, struct cb_lane_client the client's. Each is a private record
 * over the same two segments (shm/format.h); neither allocates, waits, locks or makes a system
 * call, and no call's time depends on what the other side does: bounded by the lane's sizes, mostly
 * constant.
 *
 * The two laws behind it:
 *
 *   Room. Everything a running request may yet need in the result ring is reserved when it is
 *   admitted: an active slot owes at most a TOKENS and a terminal entry, or only the latter while a
 *   TOKENS entry of it is unread. The sum over the lane never exceeds the free places. So the
 *   daemon always can write, whatever the client does or fails to do.
 *
 *   Merging. A slot has at most one unread TOKENS entry; more tokens only move its `emitted`. The
 *   client gives the entry back, fences, then reads `emitted`; the daemon stores `emitted`, fences,
 *   then looks whether the entry was given back. One of them sees the other.
 *
 * Both sleep/wake pairs have that same shape: publish, fence, test, ring against announce, fence,
 * look again, sleep. The calls below keep the order; what rings is shm/doorbell.h.
 *
 * The client's words are claims: the daemon clamps them by its private record, and answers a lie
 * with -EPROTO, upon which the lane must be closed (CB_CLOSED_BROKEN). It never reads DOWN back. */
#ifndef CB_SHM_LANE_H
#define CB_SHM_LANE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shm/format.h"
#include "shm/geometry.h"
#include "shm/status.h"

/* Outcomes of both ends; which, is said at each call. */
enum {
    CB_LANE_NOTHING = 0,
    CB_LANE_ENTRY = 1,     /* an entry was copied out */
    CB_LANE_WAITS = 2,     /* the entry stays in the ring until the lane has room or credit */
    CB_LANE_RING = 4,      /* a flag: the peer sleeps, ring it */
    CB_LANE_CANCELLED = 8, /* it was cancelled before it was admitted */
};

/* ==== the daemon's end ===========================================================================
 *
 * Loop thread only. The life of a request:
 *
 *   while ((r = cb_lane_peek(lane, &entry)) == CB_LANE_ENTRY) {
 *       status = cb_message_check(&entry, ...);              // shm/message.h
 *       if (!status) r = cb_lane_reserve(lane, &entry, n_out, detail);
 *       ... cb_lane_copy_arena() for prompt and options, check the copies, charge the uid ...
 *       one of: cb_lane_accept, cb_lane_reject, cb_lane_cancel, cb_lane_wait (and stop)
 *   }
 *   cb_lane_flush(lane)                                      // publishes the answers
 *
 * and in each step: cb_lane_token, cb_lane_end for whatever moved, then cb_lane_flush once. */

struct cb_lane;

struct cb_lane_config {
    uint32_t lane_id;
    uint64_t boot_id[2], fingerprint[2];
    uint64_t first_cursor; /* where all four cursors begin: 0; tests begin near 2^64 */
};

/* Bytes of private memory (8-aligned, zeroed) that a record for this geometry takes. */
size_t cb_lane_bytes(const struct cb_geometry *g);

/* Makes a record in `memory` and fills the fixed part of DOWN. up and down are the mapped segments,
 * fresh and zeroed; all three stay the caller's. There is no fini. */
struct cb_lane *cb_lane_init(void *memory, const struct cb_geometry *g, const void *up, void *down,
                             const struct cb_lane_config *config);

/* The oldest request: CB_LANE_ENTRY, copied once into *entry, nothing of it checked;
 * CB_LANE_NOTHING; CB_LANE_WAITS: there is one, but the result ring has no room for its answers
 * (step 4), or it was left by cb_lane_wait and nothing that it waits for has moved; -EPROTO: the
 * lane is broken. */
int cb_lane_peek(struct cb_lane *lane, struct cb_request_entry *entry);

/* For how many slots, from its own on, the peeked entry is answered: one for each child, or 1 if it
 * names slots that there are not. All are accepted, rejected or cancelled in one. */
uint32_t cb_lane_n_children(const struct cb_lane *lane);

/* Claims slots and output runs for the peeked entry, whose fields cb_message_check has passed. n_out:
 * how many tokens it may generate. Returns
 *   0                   reserved; accept, reject, cancel or wait must follow before the next peek
 *   CB_LANE_CANCELLED   its cancel words, all of them, match already: call cb_lane_cancel
 *   CB_LANE_WAITS       the pool is full now: cb_lane_wait was done for you
 *   a negative cb_status, with detail[2]: a slot is active, its generation the last one, or the
 *                       runs larger than the pool: call cb_lane_reject */
int cb_lane_reserve(struct cb_lane *lane, const struct cb_request_entry *entry, uint32_t n_out,
                    uint32_t detail[2]);

/* The most tokens that each child of a request like this entry can have room for in this lane. */
uint32_t cb_lane_tokens_max(const struct cb_lane *lane, const struct cb_request_entry *entry);

/* Copies arena bytes, once, word by word. off and bytes must be multiples of 4. 0, or -ERANGE if it
 * does not lie in the arena. The client may be writing there: check the copy, not the arena. */
int cb_lane_copy_arena(const struct cb_lane *lane, uint64_t off, uint64_t bytes, void *copy);

/* Ends of the peeked entry. Each takes it from the ring, and its arena bytes are the client's
 * again; answers become visible at the next flush. */

/* What is guessed of a request's times, from its acceptance, in us, the most meaning that or more.
 * finish_us 0: nothing is. */
struct cb_lane_forecast {
    uint32_t start_us, finish_us;
};
/* Before cb_lane_accept, of an entry with a resume_from: its so many ids, which head the run. */
void cb_lane_give(struct cb_lane *lane, const struct cb_request_entry *entry, const uint32_t *ids);
/* After cb_lane_reserve gave 0: the slots are ADMITTED. `seed` as used. */
void cb_lane_accept(struct cb_lane *lane, const struct cb_request_entry *entry, uint64_t seed,
                    struct cb_lane_forecast forecast);
/* At any point: undoes the reservation if there is one. a and b are the numbers of status's
 * text. */
void cb_lane_reject(struct cb_lane *lane, const struct cb_request_entry *entry, int status,
                    uint32_t a, uint32_t b);
/* After CB_LANE_CANCELLED: the slots end as CANCELLED without tokens. */
void cb_lane_cancel(struct cb_lane *lane, const struct cb_request_entry *entry);
/* Leaves it in the ring for want of credit outside the lane (the uid's, the engine's): undoes the
 * reservation. Until cb_lane_retry, peek gives CB_LANE_WAITS, unless its cancel words come to
 * match. */
void cb_lane_wait(struct cb_lane *lane);
/* Credit has come: the next peek gives the entry again. */
void cb_lane_retry(struct cb_lane *lane);

/* What the daemon hangs on an active slot; NULL after accept. */
void cb_lane_set_owner(struct cb_lane *lane, uint32_t slot, void *owner);
void *cb_lane_owner(const struct cb_lane *lane, uint32_t slot);

/* A token of an active slot, in order; at most n_out of them. The first makes it RUNNING. since_ns:
 * since acceptance; stored if the plane was asked for. */
void cb_lane_token(struct cb_lane *lane, uint32_t slot, uint32_t token, uint64_t since_ns);

/* Log-probabilities of one token: its own, and of the n best, which are padded to as many as were
 * asked for. */
struct cb_lane_logprobs {
    float logprob;
    const struct cb_top *top;
    uint32_t n_top;
};

/* Of the token that cb_lane_token will tell next; stored as far as the planes were asked for. */
void cb_lane_logprobs(struct cb_lane *lane, uint32_t slot, const struct cb_lane_logprobs *l);
/* Whose it is: the epoch of weights, perhaps with CB_EPOCH_ANEW; likewise, and the slot's record says
 * it too. */
void cb_lane_epoch(struct cb_lane *lane, uint32_t slot, uint32_t epoch);
/* Of token `index` of the prompt, 1 or more; likewise, before the first token. */
void cb_lane_prompt_logprobs(struct cb_lane *lane, uint32_t slot, uint32_t index,
                             const struct cb_lane_logprobs *l);

/* Whether the client wants its requests not to run now; before each step is scheduled. That this is
 * acted on is published by the next flush, so none of them may be in a step then. */
bool cb_lane_look_pause(struct cb_lane *lane);

struct cb_lane_end {
    enum cb_slot_state state; /* FINISHED, CANCELLED or FAILED */
    uint32_t finish;          /* enum cb_finish_reason, perhaps | CB_FINISH_STOP_ID */
    int32_t error;            /* enum cb_status; FAILED only */
    uint32_t stop_idx, text_bytes, n_prefix_hit, weight_epoch;
    uint64_t queued_ns, first_token_ns, total_ns; /* since acceptance; 0: not reached */
};

/* Ends an active slot, once. Its run stays readable until the client frees the slot. */
void cb_lane_end(struct cb_lane *lane, uint32_t slot, const struct cb_lane_end *end);

/* Writes to `slots` (room for n_slots) the active slots whose cancel word matches now and was not
 * reported before; returns how many. Before a step is scheduled, and again before it is applied. */
uint32_t cb_lane_look_cancels(struct cb_lane *lane, uint32_t *slots);

/* Publishes all that happened since the last flush: counts, entries, notice, closed.
 * CB_LANE_NOTHING; CB_LANE_RING: the client sleeps and this sleep has no answer yet: ring, then
 * call cb_lane_answered; -EPROTO: broken. Cheap if nothing happened (cb_lane_dirty). */
int cb_lane_flush(struct cb_lane *lane);
bool cb_lane_dirty(const struct cb_lane *lane);

/* Futex bell: moves the bell word, which the caller then hands to cb_doorbell_wake. A client that
 * asked for socket bells gets a record instead. Either way: */
cb_atomic32 *cb_lane_bell(struct cb_lane *lane);
/* The client was rung, or is about to be: the sleep that the last flush found gets no second bell. */
void cb_lane_answered(struct cb_lane *lane);
/* The bell could not be sent: the next flush that finds that sleep asks for one again. */
void cb_lane_unanswered(struct cb_lane *lane);

/* Before the loop sleeps: doze in every lane, then one cb_lane_doze_fence, then cb_lane_look_again
 * in every lane; sleep only if all give CB_LANE_NOTHING. Afterwards undoze in every lane.
 * look_again: CB_LANE_ENTRY if a peek, look_pause or, where requests of the lane are paused,
 * look_cancels would find something; -EPROTO. */
void cb_lane_doze(struct cb_lane *lane);
void cb_lane_doze_fence(void);
int cb_lane_look_again(struct cb_lane *lane, bool paused);
void cb_lane_undoze(struct cb_lane *lane);

/* State bits (CB_NOTICE_*), and the end of the lane: published by the next flush. Both also put a
 * LANE entry into the ring if there is a place that nothing else may need. Closing is final: the
 * first reason counts. */
void cb_lane_notice(struct cb_lane *lane, uint32_t bits);
void cb_lane_close(struct cb_lane *lane, enum cb_closed why);

struct cb_lane_info {
    uint32_t n_slots, n_active, closed;
    bool waits;          /* an entry waits for room or credit */
    uint64_t n_requests; /* taken from the ring */
    uint64_t n_results;  /* entries written */
    uint64_t n_unread;   /* of these, by the last accepted claim */
    uint64_t pool_bytes, pool_held_bytes;
    char name[CB_NAME_MAX]; /* foreign bytes, but for the NUL at the end: clean before printing */
};
void cb_lane_info(const struct cb_lane *lane, struct cb_lane_info *info);

/* 0, or -EUCLEAN and a sentence: audits the room law, slots and pool. For tests. */
int cb_lane_check(const struct cb_lane *lane, const char **whyp);

/* ==== the client's end ===========================================================================
 *
 * One thread at a time (the library's lock), but for cb_lane_client_cancel, _doze and _rang, which
 * any thread or signal handler may call. A flag CB_LANE_RING in a result means: send a BELL record,
 * for the daemon sleeps.
 *
 * Slots: the library tells a request by (slot, generation). A slot is free at first; submit takes
 * the one that has been free longest, or the first that are consecutive where there are to be
 * several, which get one generation; each is given back by cb_lane_client_free after its terminal
 * entry or its REJECTED, in any order. */

struct cb_lane_client;

/* Bytes of private memory (8-aligned, zeroed) for the record. */
size_t cb_lane_client_bytes(const struct cb_geometry *g);

/* Attaches: g has passed cb_geometry_check, up and down are mapped and zero but for what the daemon
 * wrote. Sets UP's cursors to where DOWN's begin: call it before READY is sent. *lcp is in
 * `memory`. 0, or -EPROTO if DOWN's fixed part does not hold magic, format and this very
 * geometry. */
int cb_lane_client_init(struct cb_lane_client **lcp, void *memory, const struct cb_geometry *g,
                        void *up, const void *down);

/* What the daemon's monitors show for this client. */
void cb_lane_client_set_name(struct cb_lane_client *lc, const char *name);

/* True if submit has so many consecutive slots, and a ring entry, for one more. */
bool cb_lane_client_can_submit(struct cb_lane_client *lc, uint32_t n_children);

/* Which slots, from this one on, submit would take then. */
uint32_t cb_lane_client_next_slot(const struct cb_lane_client *lc, uint32_t n_children);

/* Copies into the arena. off and bytes: multiples of 4, inside it. */
void cb_lane_client_write_arena(struct cb_lane_client *lc, uint64_t off, const void *bytes,
                                size_t n);

/* Sends the entry, with slot and gen filled in here (also in *entry). Prompt and options are in the
 * arena already and stay untouched until its ACCEPTED, REJECTED or CANCELLED. 0 or CB_LANE_RING;
 * -EAGAIN: no slot or no place now, nothing was written; -EPROTO: DOWN makes no sense. */
int cb_lane_client_submit(struct cb_lane_client *lc, struct cb_request_entry *entry);

/* Around a BELL: load doze, send, tell rang that number. Until the daemon sleeps anew nothing asks
 * for a bell then. In this order: a bell sent before doze was loaded may belong to an older sleep,
 * and nobody may rely on one that is not sent yet. */
uint32_t cb_lane_client_doze(const struct cb_lane_client *lc);
void cb_lane_client_rang(struct cb_lane_client *lc, uint32_t doze);

/* Asks for the end of (slot, gen). No-op if it is over or the slot was reused. Async-signal-safe,
 * any thread. 0 or CB_LANE_RING. */
int cb_lane_client_cancel(struct cb_lane_client *lc, uint32_t slot, uint32_t gen);

/* Gives the slot back after its end: the client has read all it wants of the run. 0 or
 * CB_LANE_RING. */
int cb_lane_client_free(struct cb_lane_client *lc, uint32_t slot);

/* The next result, given back and fenced, so that cb_lane_client_emitted is fresh by the merging
 * law: CB_LANE_ENTRY, perhaps | CB_LANE_RING; CB_LANE_NOTHING; -EPROTO. A TOKENS entry's count may
 * be overtaken already: hand out from where the reader stopped up to cb_lane_client_emitted. */
int cb_lane_client_poll(struct cb_lane_client *lc, struct cb_result_entry *entry);

/* True if poll has something: one load. */
bool cb_lane_client_pending(const struct cb_lane_client *lc);

/* The count of tokens that can be read (acquire), never more than the run holds. */
uint32_t cb_lane_client_emitted(const struct cb_lane_client *lc, uint32_t slot);

struct cb_slot_view {
    uint32_t gen;
    enum cb_slot_state state;
    uint32_t emitted, out_cap;
    const uint32_t *ids;      /* in DOWN: read below `emitted`; NULL if the run makes no sense */
    const uint64_t *times;    /* ns since acceptance; NULL: not asked for */
    const uint32_t *epochs;   /* of weights, with CB_EPOCH_ANEW; likewise NULL */
    const float *logprobs;    /* likewise NULL */
    const struct cb_top *top; /* [..][n_top] */
    uint32_t n_top;
    /* [n_prompt] and [n_prompt][n_top], all of them; NULL: not asked for, or not all there yet */
    const float *prompt_logprobs;
    const struct cb_top *prompt_top;
    uint32_t finish, stop_idx, text_bytes;
    int32_t error;
    uint32_t n_prompt, n_prefix_hit, weight_epoch;
    uint64_t seed, queued_ns, first_token_ns, total_ns;
};

/* What the slot table says (ctl acquire, then emitted acquire, then the rest): for an end, for
 * views of ids, for the safety net, and for a lane whose daemon died. `ids` and `times` are valid
 * from ACCEPTED until the slot is freed. */
void cb_lane_client_slot(const struct cb_lane_client *lc, uint32_t slot, struct cb_slot_view *view);

/* Sleeping. park: notes the bell word (*bellp), announces a new sleep, fences and looks again:
 * CB_LANE_NOTHING: sleep (on the bell word while it is *bellp, or on the socket); CB_LANE_ENTRY:
 * there is something (also a changed notice or closed): don't. Either way unpark follows, and both
 * are the leader's alone. bell_word is what cb_doorbell_wait takes. */
int cb_lane_client_park(struct cb_lane_client *lc, uint32_t *bellp);
void cb_lane_client_unpark(struct cb_lane_client *lc);
const cb_atomic32 *cb_lane_client_bell_word(const struct cb_lane_client *lc);

/* Asks that the lane's requests not run, or run again. 0 or CB_LANE_RING. is_paused: the daemon acts
 * on the last pause that was asked for, and every token made before can be seen (acquire); looked at
 * like a notice, it lets park sleep again. */
int cb_lane_client_pause(struct cb_lane_client *lc, bool pause);
bool cb_lane_client_is_paused(struct cb_lane_client *lc);

/* enum cb_closed, and CB_NOTICE_* bits; at each submit, poll and wait. A notice that changed since
 * it was last read here keeps park from sleeping. */
uint32_t cb_lane_client_closed(const struct cb_lane_client *lc);
uint32_t cb_lane_client_notice(struct cb_lane_client *lc);

#endif
