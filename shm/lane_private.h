/* shm/lane_private.h - the daemon's record of a lane, shared by lane.c (intake, sleeping) and
 * lane_deliver.c (results). Nobody else includes it but tests that look inside. */
#ifndef CB_SHM_LANE_PRIVATE_H
#define CB_SHM_LANE_PRIVATE_H

#include "shm/arena.h"
#include "shm/lane.h"
#include "shm/ring.h"

enum lane_wait { WAIT_NOT = 0, WAIT_ROOM, WAIT_RUN, WAIT_CREDIT };

struct lane_slot {
    uint32_t gen;    /* the last one that was answered; 0: never used */
    uint32_t active; /* its place in lane->active + 1; 0: owes no terminal entry */
    uint32_t n_out, n_prompt, planes;
    uint32_t emitted;      /* tokens stored */
    uint32_t announced;    /* of these, known to the client by a TOKENS entry */
    uint32_t last;         /* the newest token */
    uint32_t weight_epoch; /* its */
    bool quiet;            /* CB_FLAG_FINAL_ONLY */
    bool is_running;       /* it had a token of this lane's */
    bool touched;          /* is in lane->touched */
    bool cancel_seen;
    bool has_run;
    bool has_tokens_entry; /* tokens_at means something */
    uint64_t tokens_at;    /* cursor of the newest TOKENS entry */
    uint64_t run_off;      /* in the pool */
    struct cb_run_layout layout;
    uint32_t k; /* of CB_PLANE_TOPK */
    uint64_t user;
    void *owner;
};

struct cb_lane {
    struct cb_geometry g;
    const struct cb_up_hot *up_hot;
    const struct cb_slot_words *words;
    const unsigned char *arena;
    struct cb_down_hot *down_hot;
    unsigned char *down;

    struct cb_ring_in req;
    struct cb_ring_out res;
    struct cb_arena pool;

    enum lane_wait wait;
    uint32_t wait_slot, wait_gen; /* of the entry left in the ring */
    uint32_t n_children;          /* slots for which it, or the one peeked, is answered */
    bool has_peeked;              /* an entry awaits its answer */
    bool has_reserved;            /* ... and from reserved_slot on each slot holds a run for it */
    uint32_t reserved_slot;
    struct cb_run_layout reserved; /* of each */
    uint64_t reserved_off[CB_CHILDREN_MAX];
    uint32_t reserved_n_out;
    uint32_t given_last; /* the newest of what heads it */

    bool dirty;
    uint32_t closed, notice;
    uint32_t pause, pause_told; /* the client's word, last looked at; told to be acted on */
    uint32_t parked, answered;  /* last seen; last one that was rung */
    uint32_t doze;              /* as stored: odd while asleep */
    uint32_t bell;

    uint64_t n_requests;
    uint64_t first_cursor;
    uint32_t n_active, n_touched;
    uint32_t *active, *touched; /* slot indices */
    struct lane_slot *slots;
};

static inline struct cb_slot *lane_slot_at(struct cb_lane *lane, uint32_t slot)
{
    return (struct cb_slot *)(void *)(lane->down + lane->g.down_slots_off +
                                      (size_t)slot * lane->g.slot_stride);
}

/* Writes a result; it becomes visible at the next flush. */
static inline void lane_put(struct cb_lane *lane, enum cb_result_type type, uint32_t slot,
                            uint32_t gen, uint32_t first, uint32_t count, uint32_t last,
                            uint64_t user)
{
    struct cb_result_entry entry = {.type = type,
                                    .slot = slot,
                                    .gen = gen,
                                    .first = first,
                                    .count = count,
                                    .last = last,
                                    .user = user};

    cb_ring_out_put(&lane->res, &entry, sizeof entry);
    lane->dirty = true;
}

/* Marks the first token of the prompt, of which there is no log-probability (lane_deliver.c). */
void lane_prompt_begin(struct cb_lane *lane, uint32_t slot);

/* Relaxed: the word carries no data, and is valid by its generation. */
static inline bool lane_is_cancelled(const struct cb_lane *lane, uint32_t slot, uint32_t gen)
{
    return cb_load32(&lane->words[slot].cancel_gen, CB_RELAXED) == gen;
}

#endif
