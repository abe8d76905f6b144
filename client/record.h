/* client/record.h - what the library keeps of a resumable request, so that it outlives its daemon.
 *
 * From submission on: what was asked, as it was sent. From the first time its daemon is gone: also
 * what it has, in arrays of its own that never move, for then no lane has all of it any more. What
 * was handed out before points into the lane that it was in, or into arrays of before a restart; both
 * stay until the request is released. Everything is under the handle's lock. */
#ifndef CB_CLIENT_RECORD_H
#define CB_CLIENT_RECORD_H

#include "client/internal.h"

struct cb_origin; /* prompt and options, which children have in common */

/* What it has, [capacity] each; NULL: not asked for. */
struct cb_kept {
    uint32_t n, capacity;
    uint32_t *ids, *epochs;
    uint64_t *times; /* ns since its first acceptance, as far as that can be told */
    float *logprobs;
    struct cb_top *top; /* [][k] */
    uint32_t k;
    bool has_prompt;           /* the next two are filled */
    float *prompt_logprobs;    /* [n_prompt] */
    struct cb_top *prompt_top; /* [n_prompt][k] */
    struct cb_kept *older;     /* of before a restart */
};

struct cb_record {
    struct cb_origin *origin;
    struct cb_request_entry entry; /* as sent first, but for one child */
    uint32_t child_idx;
    uint64_t order;           /* of admission, in the handle */
    uint64_t fingerprint[2];  /* under which its tokens were made */
    uint32_t weight_epoch;    /* in which that holds */
    bool is_mixed;            /* some were made by other weights */
    bool is_anew;             /* it has begun again, and is under no fingerprint yet */
    uint64_t sent_ns, due_ns; /* first; its deadline, 0: none */
    uint64_t since_ns;        /* from the first time it was sent to the last */
    uint32_t n_resumes;       /* how often it was sent again */
    uint32_t n_given;         /* tokens that it had then */
    struct cb_kept *kept;     /* NULL: the lane has all */
    struct cb_slot_view view; /* with kept: what else is known; no pointers */
};

/* For a request of entry->n_children, of which this one is child i; `first` is that of child 0, whose
 * origin it shares, or NULL. NULL: out of memory. */
struct cb_record *cb_record_new(const struct cb_request_entry *entry, uint32_t i,
                                const uint32_t *ids, const void *options, size_t option_bytes,
                                const struct cb_record *first);
void cb_record_free(struct cb_record *r); /* NULL is fine */

/* From now on it keeps for itself. n_context: the most there can be. 0 or CB_NO_MEMORY. */
int cb_record_keep(struct cb_record *r, uint32_t n_context);
/* Copies what the slot has beyond what is kept. */
void cb_record_pull(struct cb_record *r, const struct cb_slot_view *view);
/* What is kept begins at index 0 again. 0 or CB_NO_MEMORY, with nothing changed. */
int cb_record_restart(struct cb_record *r);
/* It is sent again, now, to a daemon of this fingerprint. */
void cb_record_sent(struct cb_record *r, const struct cb_link *link, uint64_t now_ns);

/* The entry to send again, but for its place in the arena, at now_ns, before its deadline. */
void cb_record_entry(const struct cb_record *r, uint64_t now_ns, struct cb_request_entry *entry);
/* Writes its prompt, tokens and options there. */
void cb_record_write(const struct cb_record *r, struct cb_lane_client *lane,
                     const struct cb_request_entry *entry);

#endif
