/* shm/format.h - lane format 1: every word that two processes share, who writes it, in which order.
 *
 *   UP (a sealed memfd; the client writes, the daemon only reads)
 *     0        struct cb_up_hot             one page
 *     4096     struct cb_slot_words         n_slots x 8
 *     ring     struct cb_request_entry      req_capacity x req_stride
 *     arena    bytes                        prompt ids and option blocks; the client alone says
 *                                           what lies where
 *
 *   DOWN (a sealed memfd; the daemon writes, everyone else can only map it read-only)
 *     0        struct cb_down_fixed         one page, constant from WELCOME on
 *     4096     struct cb_down_hot           one page
 *     8192     struct cb_slot               n_slots x slot_stride
 *     ring     struct cb_result_entry       res_capacity x res_stride
 *     pool     output runs                  a run: u32 ids [out_cap], then the planes asked for
 *
 * 64-bit little-endian peers only. Fixed-width types, natural alignment, no bool, enum or pointer.
 * Cursors are free-running u64; capacities are powers of two; "used" is the unsigned difference.
 * Step by the strides of the geometry, not by sizeof: entries may grow. Reserved bytes are zero,
 * and checked.
 *
 * Each word below names its writer and the order of its stores; how they pair is in cb_shm.7 and at
 * the accesses in lane.c. All accesses go through shm/atomics.h. */
#ifndef CB_SHM_FORMAT_H
#define CB_SHM_FORMAT_H

#include <assert.h>
#include <stdalign.h>
#include <stddef.h>
#include <stdint.h>

#include "shm/atomics.h"

#define CB_FORMAT       1u
#define CB_MAGIC        0x314b4e414c4243ffull /* bytes ff "CBLANK1" */
#define CB_PAGE         4096u
#define CB_NO_LIMIT     0xffffffffu /* request.max_new_tokens: as much as the context holds */
#define CB_GEN_MASK     0x00ffffffu /* generations are 24 bits, never 0 */
#define CB_SLOTS_MAX    4096u
#define CB_OPTIONS_MAX  49152u /* bytes of one option block: every list at its longest */
#define CB_STOP_IDS_MAX 64u
#define CB_BIASES_MAX   1024u
#define CB_IDS_MAX      4096u /* allowed ids, and banned ones */
#define CB_TOPK_MAX     20u
#define CB_NO_ID        0xffffffffu
#define CB_NAME_MAX     64u
#define CB_SALT_MAX     64u /* bytes of a cache salt */
#define CB_CHILDREN_MAX 64u /* of a request */

/* ---- UP -------------------------------------------------------------------------------------- */

struct cb_up_hot {
    /* client; release, then a full fence before it looks at doze: publishes request entries */
    alignas(128) cb_atomic64 req_sent;
    /* client; release, then a full fence before it looks at emitted: gives result entries back */
    alignas(128) cb_atomic64 res_taken;
    /* client; relaxed, then a full fence before it looks again. Odd: asleep, by a number of its own
     * for each sleep */
    alignas(128) cb_atomic32 parked;
    /* client; relaxed, then a full fence before it looks at doze. Odd: its requests shall not run;
     * a new odd number for each pause. Feature CB_FEATURE_PAUSE */
    cb_atomic32 pause;
    /* client; plain, for display only. The daemon prints neither without cleaning it */
    alignas(128) char name[CB_NAME_MAX];
    cb_atomic64 heartbeat;
};
static_assert(offsetof(struct cb_up_hot, req_sent) == 0, "format 1");
static_assert(offsetof(struct cb_up_hot, res_taken) == 128, "format 1");
static_assert(offsetof(struct cb_up_hot, parked) == 256, "format 1");
static_assert(offsetof(struct cb_up_hot, pause) == 260, "format 1");
static_assert(offsetof(struct cb_up_hot, name) == 384, "format 1");
static_assert(offsetof(struct cb_up_hot, heartbeat) == 448, "format 1");
static_assert(sizeof(struct cb_up_hot) == 512, "format 1");

struct cb_slot_words {
    /* client. Cancel: compare-and-swap, newer over older, then a full fence. Submit: 0, relaxed */
    cb_atomic32 cancel_gen;
    /* client. Free: release, then a full fence. Submit: the generation given up again, relaxed */
    cb_atomic32 free_gen;
};
static_assert(sizeof(struct cb_slot_words) == 8, "format 1");

/* Generations count up at each reuse of a slot; 0 is none. */
static inline uint32_t cb_generation_next(uint32_t gen)
{
    return gen >= CB_GEN_MASK ? 1 : gen + 1;
}

enum cb_op { CB_OP_GENERATE = 1 };

/* request.flags: the low half must be understood, the high half may be ignored. */
#define CB_FLAG_FINAL_ONLY   0x00000001u /* no TOKENS entries: only ACCEPTED and the end */
#define CB_FLAG_IGNORE_EOS   0x00000002u /* an end-of-sequence id does not end it */
#define CB_FLAG_RAW_LOGPROBS 0x00000004u /* of logits as they are, not as they are drawn from */
/* What becomes of it when the model gets other weights: enum cb_on_weights, 0: the operator's wish */
#define CB_FLAG_ON_WEIGHTS_SHIFT 3
#define CB_FLAG_ON_WEIGHTS       0x00000018u
#define CB_FLAGS_UNDERSTOOD      0x0000001fu
#define CB_FLAGS_MUST            0x0000ffffu

/* As it stands then, if it has tokens; if not, its prompt begins again. */
enum cb_on_weights {
    CB_ON_WEIGHTS_CONTINUE = 1, /* keys and values so far stay                       */
    CB_ON_WEIGHTS_RESTART = 2,  /* they are computed anew from all ids; tokens stay  */
    CB_ON_WEIGHTS_FAIL = 3,     /* FAILED with CB_NEW_WEIGHTS, its tokens stay       */
};

/* request.planes: low 16 bits a mask; high 16 bits k of CB_PLANE_TOPK, which goes with LOGPROBS.
 * EPOCHS needs CB_FEATURE_EPOCHS, those but it and TIMES need CB_FEATURE_LOGPROBS. */
#define CB_PLANE_TIMES    0x0001u     /* u64 a token: ns since acceptance */
#define CB_PLANE_LOGPROBS 0x0002u     /* f32 a token: its natural log-probability */
#define CB_PLANE_TOPK     0x0004u     /* k x struct cb_top a token: the best, k 1 to CB_TOPK_MAX */
#define CB_PLANE_EPOCHS   0x0008u     /* u32 a token: CB_EPOCH_ANEW, and of which weights it is */
#define CB_EPOCH_ANEW     0x80000000u /* all keys and values before it were computed anew by them */
/* f32 a prompt token, of raw logits, NaN for the first; with TOPK behind these, at the next multiple
 * of 8, k x struct cb_top a prompt token. All are there once a token is, or the request has FINISHED
 * with a limit of 0. */
#define CB_PLANE_PROMPT      0x0010u
#define CB_PLANES_UNDERSTOOD 0x001fu

static inline uint32_t cb_planes_k(uint32_t planes)
{
    return planes & CB_PLANE_TOPK ? planes >> 16 : 0;
}

/* CB_NO_ID: fewer tokens are left to choose from. */
struct cb_top {
    uint32_t id;
    float logprob;
};
static_assert(sizeof(struct cb_top) == 8, "format 1");

/* client; plain, ordered by req_sent. The daemon copies it once by relaxed words. */
struct cb_request_entry {
    uint32_t op; /* enum cb_op */
    uint32_t flags;
    uint32_t slot;        /* first of n_children consecutive slots */
    uint32_t gen;         /* their new generation, the same for all */
    uint32_t n_children;  /* continuations, each in a slot: 1, or with CB_FEATURE_CHILDREN more */
    uint32_t n_prompt;    /* ids */
    uint64_t prompt_off;  /* bytes from the arena's start, multiple of 4 */
    uint64_t opt_off;     /* bytes from the arena's start, multiple of 8 */
    uint32_t opt_len;     /* bytes; 0: no option block */
    uint32_t resume_from; /* how many of the ids were generated; 0 unless CB_FEATURE_RESUME */
    float temperature;    /* 0: greedy */
    float top_p;          /* in (0, 1]; 1: off */
    uint32_t top_k;       /* 0: off; above the vocabulary: clamped */
    uint32_t max_new_tokens; /* or CB_NO_LIMIT */
    uint64_t seed;
    uint64_t user;        /* opaque; comes back in every entry */
    uint64_t deadline_ns; /* from acceptance; 0: none */
    uint32_t planes;
    uint32_t priority;  /* 0-255 */
    uint32_t child_idx; /* of the first: by which each draws. CB_FEATURE_CHILDREN, else 0 */
    uint32_t reserved_half;
    uint64_t reserved[3];
};
static_assert(offsetof(struct cb_request_entry, prompt_off) == 24, "format 1");
static_assert(offsetof(struct cb_request_entry, opt_len) == 40, "format 1");
static_assert(offsetof(struct cb_request_entry, temperature) == 48, "format 1");
static_assert(offsetof(struct cb_request_entry, seed) == 64, "format 1");
static_assert(offsetof(struct cb_request_entry, planes) == 88, "format 1");
static_assert(offsetof(struct cb_request_entry, child_idx) == 96, "format 1");
static_assert(sizeof(struct cb_request_entry) == 128, "format 1");

/* Of a checked entry: its ids without those that were generated. */
static inline uint32_t cb_entry_prompt(const struct cb_request_entry *e)
{
    return e->n_prompt - e->resume_from;
}

/* An option block is records of this head and `bytes` of value, each padded with zeros to 8; each
 * type at most once. A type with the top bit set must be understood. */
struct cb_option_head {
    uint16_t type;
    uint16_t reserved;
    uint32_t bytes; /* of the value, without head and padding */
};
static_assert(sizeof(struct cb_option_head) == 8, "format 1");
#define CB_OPTION_MUST         0x8000u
#define CB_OPTION_STOP_IDS     (CB_OPTION_MUST | 1u)  /* u32 ids */
#define CB_OPTION_STOP_STRINGS (CB_OPTION_MUST | 2u)  /* each: u32 bytes, the bytes, zeros to 4 */
#define CB_OPTION_RESUME       (CB_OPTION_MUST | 3u)  /* struct cb_resume */
#define CB_OPTION_CACHE_SALT   (CB_OPTION_MUST | 16u) /* 1 to CB_SALT_MAX bytes, any */
#define CB_OPTION_SAMPLING     (CB_OPTION_MUST | 17u) /* struct cb_sampling */
#define CB_OPTION_BIASES       (CB_OPTION_MUST | 18u) /* struct cb_logit_bias, ids ascending */
#define CB_OPTION_ALLOWED_IDS  (CB_OPTION_MUST | 19u) /* u32 ids, ascending: no others */
#define CB_OPTION_BANNED_IDS   (CB_OPTION_MUST | 20u) /* u32 ids, ascending */

/* Feature CB_FEATURE_SAMPLING: the options 17 to 20. Bounds are in sampling.h. */
struct cb_sampling {
    float min_p;                               /* 0: off */
    float typical_p;                           /* 1: off */
    float repetition_penalty;                  /* 1: off */
    float presence_penalty, frequency_penalty; /* 0: off */
    uint32_t no_repeat_ngram;                  /* 0: off */
    uint32_t min_new_tokens;                   /* 0: off */
    uint32_t first_id;                         /* the first generated token; CB_NO_ID: none */
};
static_assert(sizeof(struct cb_sampling) == 32, "format 1");

struct cb_logit_bias {
    uint32_t id;
    float bias;
};
static_assert(sizeof(struct cb_logit_bias) == 8, "format 1");

/* CB_FEATURE_RESUME: a request that another lane did not see the end of, perhaps another boot's. Its
 * ids are the prompt and then the resume_from ids that were generated so far, fewer than all of them
 * and at most max_new_tokens, which counts them; one child alone, by which it draws, and the entry's
 * own child_idx is 0. It goes on where these stand if fingerprint is still the daemon's own, and is
 * refused with CB_CHANGED if not, or if by its stops it would have ended before the last of them. */
struct cb_resume {
    uint64_t fingerprint[2]; /* under which it began: WELCOME's then */
    uint32_t child_idx;
    uint32_t reserved;
};
static_assert(sizeof(struct cb_resume) == 24, "format 1");

/* ---- DOWN ------------------------------------------------------------------------------------ */

/* Sizes and places; the same words go in WELCOME, and the client compares the two. */
struct cb_geometry {
    uint32_t n_slots, req_capacity, req_stride, res_capacity;
    uint32_t res_stride, slot_stride, n_vocab, n_context;
    uint64_t up_bytes, up_slots_off, up_ring_off, up_arena_off, up_arena_bytes;
    uint64_t down_bytes, down_slots_off, down_ring_off, down_pool_off, down_pool_bytes;
};
static_assert(sizeof(struct cb_geometry) == 112, "format 1");

/* daemon; before WELCOME is sent. */
struct cb_down_fixed {
    uint64_t magic;
    uint32_t format, lane_id;
    uint64_t boot_id[2];
    uint64_t fingerprint[2];
    struct cb_geometry geometry;
};
static_assert(offsetof(struct cb_down_fixed, geometry) == 48, "format 1");
static_assert(sizeof(struct cb_down_fixed) == 160, "format 1");

/* down_hot.closed: why the lane ended. 0: it lives. */
enum cb_closed {
    CB_CLOSED_NO = 0,
    CB_CLOSED_STOPPED = 1, /* the daemon stopped; unfinished requests have no end there */
    CB_CLOSED_BROKEN = 2,  /* the client broke a rule of the lane */
    CB_CLOSED_DENIED = 3,  /* an administrator closed it */
    CB_CLOSED_BYE = 4,     /* the client said BYE, or died */
};

/* down_hot.notice: state bits. */
#define CB_NOTICE_DRAINING 0x1u
#define CB_NOTICE_QUOTA    0x2u
#define CB_NOTICE_PAUSED   0x4u
#define CB_NOTICE_WEIGHTS  0x8u

struct cb_down_hot {
    /* daemon; release: its reads of the entries are over */
    alignas(128) cb_atomic64 req_taken;
    /* daemon; release, then a full fence before it looks at parked and res_taken */
    alignas(128) cb_atomic64 res_sent;
    /* daemon; relaxed, after a full fence behind what it announces; then FUTEX_WAKE of all that
     * sleep on it */
    alignas(128) cb_atomic32 bell;
    /* daemon; relaxed, then a full fence before it looks again. Odd: it sleeps, ring it; each sleep
     * has a new odd number, so that one bell is enough for all who find it */
    alignas(128) cb_atomic32 doze;
    /* daemon; relaxed, then a full fence before it looks at parked */
    alignas(128) cb_atomic32 closed;
    cb_atomic32 notice;
    /* daemon; release, behind all tokens of the steps before: `pause` as it now acts on it */
    cb_atomic32 pause_seen;
};
static_assert(offsetof(struct cb_down_hot, res_sent) == 128, "format 1");
static_assert(offsetof(struct cb_down_hot, bell) == 256, "format 1");
static_assert(offsetof(struct cb_down_hot, doze) == 384, "format 1");
static_assert(offsetof(struct cb_down_hot, closed) == 512, "format 1");
static_assert(offsetof(struct cb_down_hot, notice) == 516, "format 1");
static_assert(offsetof(struct cb_down_hot, pause_seen) == 520, "format 1");

enum cb_slot_state {
    CB_SLOT_FREE = 0,
    CB_SLOT_ADMITTED = 1,
    CB_SLOT_RUNNING = 2,
    CB_SLOT_FINISHED = 3,
    CB_SLOT_CANCELLED = 4,
    CB_SLOT_FAILED = 5,
};

/* slot.finish, low byte. */
enum cb_finish_reason {
    CB_FINISH_NONE = 0,
    CB_FINISH_EOS = 1,
    CB_FINISH_STOP = 2,
    CB_FINISH_LENGTH = 3,
    CB_FINISH_CANCELLED = 4,
    CB_FINISH_DEADLINE = 5,
    CB_FINISH_ERROR = 6,
};
#define CB_FINISH_STOP_ID 0x100u /* the stop was an id, not a string */

/* daemon. All but ctl and emitted: relaxed, ordered by ctl. Offsets are bytes from DOWN's start; 0:
 * none. Times are durations in ns since acceptance; 0: not reached. */
struct cb_slot {
    cb_atomic32 ctl;     /* release, last of the record: generation << 8 | state */
    cb_atomic32 emitted; /* release: publishes ids and planes below it */
    cb_atomic32 finish;
    cb_atomic32 error; /* enum cb_status, FAILED only */
    cb_atomic32 stop_idx;
    cb_atomic32 text_bytes; /* bytes of generated text before the stop string */
    cb_atomic32 n_prompt; /* without those of resume_from, which head the run; planes begin there */
    cb_atomic32 out_cap;  /* tokens the run has room for */
    cb_atomic64 out_off;
    cb_atomic32 planes;
    cb_atomic32 weight_epoch; /* of its newest token; 0: those of the start, or no token yet */
    cb_atomic64 seed;
    cb_atomic32 n_prefix_hit;
    cb_atomic32 reserved;
    cb_atomic64 queued_ns, first_token_ns, total_ns;
    cb_atomic64 times_off, logprobs_off, topk_off, epochs_off, prompt_off;
};
static_assert(offsetof(struct cb_slot, out_off) == 32, "format 1");
static_assert(offsetof(struct cb_slot, seed) == 48, "format 1");
static_assert(offsetof(struct cb_slot, queued_ns) == 64, "format 1");
static_assert(offsetof(struct cb_slot, times_off) == 88, "format 1");
static_assert(sizeof(struct cb_slot) == 128, "format 1");

enum cb_result_type {
    /* first, last: when it is guessed to start and to end, in us from acceptance, the most meaning
     * that or more; last 0: nothing was guessed */
    CB_RESULT_ACCEPTED = 1,
    CB_RESULT_REJECTED = 2, /* count: enum cb_status; first, last: the two numbers of its message */
    CB_RESULT_TOKENS = 3,   /* ids [first, first + count) are there, `last` is the newest of them */
    /* slot.ctl is terminal; first: ids announced before; count: all ids there are; last: the
     * newest. It also announces the ids of its own step, for which there is no TOKENS entry. */
    CB_RESULT_FINISHED = 4,
    CB_RESULT_CANCELLED = 5, /* likewise; cancelled or past its deadline */
    CB_RESULT_FAILED = 6,    /* likewise; slot.error says why */
    CB_RESULT_LANE = 7,      /* look at notice and closed */
};

/* daemon; plain, ordered by res_sent. */
struct cb_result_entry {
    uint32_t type;
    uint32_t slot;
    uint32_t gen;
    uint32_t first;
    uint32_t count;
    uint32_t last;
    uint64_t user;
};
static_assert(sizeof(struct cb_result_entry) == 32, "format 1");

#endif
