/* client/internal.h - what the library's parts share: the handle, its requests, its lock.
 *
 * Everything in a handle is guarded by `lock`, but for what says otherwise. The lock is private
 * memory, held for well under a microsecond, never across a system call that can wait, and never
 * while a handler runs. Functions that end in _locked want it held.
 *
 * Who consumes the result ring: whoever polls, under the lock; but while a thread sleeps on the
 * lane (`leader_parked`), it alone. Others then look only at what is in private memory already, or
 * wait on a word of their own (struct cb_waiter) that the leader's next drain sets. */
#ifndef CB_CLIENT_INTERNAL_H
#define CB_CLIENT_INTERNAL_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/cbclient.h"
#include "shm/arena.h"
#include "shm/control.h"
#include "shm/lane.h"
#include "shm/segment.h"
#include "shm/vocab.h"

struct cb_text;              /* text.c: a request's text so far */
struct cb_record;            /* record.h: what it takes to send a request again */
struct cb_tokenizer;         /* text/tokenizer.h */
struct cb_tokenizer_scratch; /* likewise */

enum cb_request_state {
    CB_REQUEST_FREE = 0,
    CB_REQUEST_SENT = 1,     /* not yet taken in by the daemon: its arena piece is in use */
    CB_REQUEST_RUNNING = 2,  /* accepted */
    CB_REQUEST_AWAY = 3,     /* its daemon died: it is to be sent to the next one */
    CB_REQUEST_ENDED = 4,    /* its end is known, if perhaps not yet told */
    CB_REQUEST_REJECTED = 5, /* likewise */
};

/* An id is wraps << 36 | number << 12 | index in h->held: never 0, never used again. */
#define CB_ID_IDX(id)    ((uint32_t)((id)&0xfffu))
#define CB_ID_NUMBER(id) ((uint32_t)((id) >> 12 & CB_GEN_MASK))

/* Where a request runs, in one word for cb_cancel: the link's serial number << 36 | generation << 12 |
 * slot. 0: nowhere. So a late cancel can't hit the slot's next request, nor another lane's. */
#define CB_PLACE_SLOT(place)   ((uint32_t)((place)&0xfffu))
#define CB_PLACE_GEN(place)    ((uint32_t)((place) >> 12 & CB_GEN_MASK))
#define CB_PLACE_SERIAL(place) ((uint32_t)((place) >> 36))

/* A connection to a daemon, and the lane that came with it. A handle has one at a time; one whose
 * daemon is gone stays mapped for as long as a request has results there that may be looked at. */
struct cb_link {
    uint32_t serial; /* from 1, counting the handle's */
    int sock;        /* -1: closed */
    struct cb_geometry geometry;
    uint32_t lane_id, weight_epoch, defaults;
    uint64_t features; /* agreed: shm/control.h */
    uint64_t fingerprint[2], boot_id[2], seed, spin_ns;
    struct cb_segment up, down;
    struct cb_segment bell; /* of a lane by name, a semaphore's page; else unmapped */
    struct cb_lane_client *lane;
    void *lane_memory;
    struct cb_arena arena;
    struct cb_held **of_slot; /* [geometry.n_slots] whose it is; NULL: nobody's */
    uint32_t n_threads;       /* that look at it without the lock */
    uint32_t n_requests;      /* that were sent here first */
    struct cb_link *older;    /* in the handle's list of those that are gone */
};

/* A request. */
struct cb_held {
    cb_atomic64 id;        /* 0: free. Stored under the lock; cb_cancel loads it without */
    cb_atomic64 cancel_id; /* == id: cancel was asked for. Without the lock */
    cb_atomic64 place;     /* CB_PLACE; stored under the lock */
    uint64_t last_id;      /* of this index, the latest */
    struct cb_link *link;  /* where its slot is; NULL: in none */
    struct cb_link *home;  /* where it was sent first: what was told lies there until its release */
    uint32_t slot, gen;    /* of link */
    enum cb_request_state state;
    uint32_t flags; /* cb_request.flags */
    bool abandoned; /* released before its end */
    bool told;      /* END or REJECTED was taken */
    bool is_cut;    /* a hard stop cancelled it */
    bool busy;      /* its handler runs */
    bool listed;    /* in a ready list */
    bool has_arena;
    uint64_t arena_off;
    uint64_t user, seed;
    uint32_t n_prompt;
    uint32_t limit;               /* the most tokens it can come to have */
    uint32_t start_us, finish_us; /* predicted; finish 0: not */
    uint32_t n_told;              /* tokens that events brought */
    uint32_t n_seen;              /* tokens known to be there */
    uint32_t n_unannounced;       /* tokens, and an end, that a first scan found; 0: none */
    uint32_t end;                 /* enum cb_end */
    int32_t status;
    uint32_t detail[2];
    const uint32_t *ids;      /* in DOWN */
    const uint64_t *times;    /* likewise, or NULL */
    struct cb_record *record; /* NULL: it ends with its daemon */
    uint32_t n_restarts;      /* how often it began anew */
    bool is_restart_told;     /* the last of them */
    struct cb_held *later;    /* in h->away_first: to be sent behind this one */
    struct cb_text *text;     /* NULL until needed; the caller of cb_text's */
    cb_handler_fn *handler;
    void *handler_arg;
    struct cb_group *group;      /* NULL: none */
    struct cb_held *next, *prev; /* in the ready list */
};

/* Requests with an event to take, the longest waiting first. */
struct cb_ready {
    struct cb_held *first, *last;
};

/* Requests whose events one call takes: nobody else sees them. */
struct cb_group {
    struct cb_ready ready;
};

/* What a thread waits for. */
enum cb_want_kind {
    CB_WANT_EVENT,   /* that no handler gets */
    CB_WANT_HANDLED, /* an event for a handler */
    CB_WANT_GROUP,   /* an event of a group's */
    CB_WANT_ENDS,    /* no request runs */
    CB_WANT_PAUSE,   /* the daemon acts on the pause that was asked for */
};
struct cb_want {
    enum cb_want_kind kind;
    uint64_t id; /* events: 0: any request's */
    const struct cb_group *group;
};

/* A thread asleep in private memory, on its stack. */
struct cb_waiter {
    cb_atomic32 word; /* 1: look */
    struct cb_want want;
    struct cb_waiter *next;
};

/* Higher ones win. */
enum cb_stop_level { CB_STOP_NOT, CB_STOP_FLUSHES, CB_STOP_CUTS };

struct cb_handle {
    /* constant after cb_open */
    const volatile unsigned char *alive; /* 1; the kernel makes it 0 in a forked child */
    uint32_t kind, wait_mode;
    uint64_t spin_ns;
    uint32_t n_held, n_vocab, n_context;
    uint64_t arena_bytes, pool_bytes; /* granted, as n_held slots were */
    uint64_t features; /* agreed: shm/control.h. Every further daemon has these too */
    uint32_t defaults; /* of requests that do not say: likewise */
    struct cb_segment vocab_segment;
    struct cb_vocab vocab;
    char *model_name;
    struct cb_reconnect *reconnect; /* reconnect.c; NULL: it does not */

    pthread_mutex_t lock;
    struct cb_link *link;       /* the present one: cb_link_set */
    cb_atomic64 link_shown;     /* its address, for cb_link_enter, which has no lock */
    cb_atomic32 n_inside;       /* threads in cb_link_enter */
    struct cb_link *older;      /* that are gone, and still mapped */
    struct cb_held *held;       /* [n_held] */
    struct cb_held *away_first; /* to be sent again, in the order in which they were admitted */
    uint64_t n_sent;            /* requests, ever */
    uint32_t n_reconnects;
    uint64_t resend_ns; /* not before; 0: at once */
    struct cb_ready ready, ready_handlers;
    struct cb_waiter *waiters;
    enum cb_stop_level stop;
    uint32_t n_unended; /* sent, and not known to have ended */
    uint32_t n_pauses;  /* holders */
    bool is_paused;     /* by the daemon too, at the last drain */
    bool leader_parked;
    pthread_t leader;      /* valid while leader_parked */
    cb_atomic32 lost;      /* cb_lost(); stored under the lock, for good */
    bool is_away;          /* the daemon is gone, and another one is looked for */
    cb_atomic32 n_moves;   /* counts what became ready; spinners watch it without the lock */
    uint64_t life_seen_ns; /* coarse clock: when the daemon last showed life */
    uint64_t wake_missed;  /* results that only the safety net found */
    uint64_t seed_state;
    uint64_t n_batched; /* requests of batches, for their names */
    bool is_warm;

    pthread_mutex_t text_lock; /* for the two below */
    struct cb_tokenizer *tokenizer;
    struct cb_tokenizer_scratch *scratch; /* one that nobody uses now, or NULL */
};

/* ---- errors.c: each returns the status, after keeping it for cb_message ---------------------- */

int cb_fail(int status);
int cb_fail_with(int status, uint32_t a, uint32_t b);
/* where: copied; may be NULL */
int cb_fail_at(const char *where, int status, uint32_t a, uint32_t b);
int cb_fail_errno(const char *where, int errnum);

/* ---- handle.c -------------------------------------------------------------------------------- */

/* What every call does first: 0, CB_INVALID for NULL, CB_FORKED. */
static inline int cb_enter(const struct cb_handle *h)
{
    if (!h)
        return CB_INVALID;
    return *h->alive ? 0 : CB_FORKED;
}

/* 0, CB_LOST or CB_CLOSED: nothing works any more. With or without the lock. */
static inline int cb_lost(const struct cb_handle *h)
{
    return (int32_t)cb_load32(&h->lost, CB_RELAXED);
}

/* ---- clock.c --------------------------------------------------------------------------------- */

uint64_t cb_now_ns(void);
uint64_t cb_now_coarse_ns(void); /* to a few ms, in a few ns */

/* ---- find.c ---------------------------------------------------------------------------------- */

/* A socket to a trusted daemon, waiting for one as the options say; or a status, kept. */
int cb_find_socket(const struct cb_options *options);
/* The same with one look, which waits for nothing. */
int cb_find_socket_now(const struct cb_options *options);

struct cb_found_status {
    struct cb_segment page;       /* read with shm/stats.h; cb_segment_unmap when done */
    struct cb_status_maker maker; /* if it does not live, it was killed, and left it */
    char name[CB_STATUS_NAME_MAX];
};

/* The STATUS page of a trusted daemon: nothing is asked of the daemon, and nothing waits for one. 0,
 * or a status, kept. */
int cb_find_status(const struct cb_options *options, struct cb_found_status *found);

/* A signal (SIGSTOP) keeps the process from running, as far as can be told from here. */
bool cb_is_suspended(uint64_t pid);
/* Waits until something can be read from sock: whether it can; false after wait_ms (-1: none) of waiting.
 * While this process was stopped, as by SIGSTOP, or the machine slept, it did not wait: a daemon that
 * stood still as well could not answer. */
bool cb_await_answer(int sock, int wait_ms);
/* The daemon at the other end of sock said nothing for so long: CB_TIMEOUT, kept with what can be
 * told about it. */
int cb_fail_silent(int sock, unsigned waited_s);

/* ---- connect.c ------------------------------------------------------------------------------- */

/* HELLO to READY over a socket, which is taken over: the handle's first link, and what is constant in
 * the handle. 0 or a status, kept; cb_close undoes a half-made handle. */
int cb_connect_first(struct cb_handle *h, int sock, const struct cb_options *options);

/* The same in pieces, for who may not wait: HELLO over a socket. 0 or a status, kept. */
int cb_connect_hello(int sock, const struct cb_options *options);
/* Waits up to wait_ms for the answer: 0 and *linkp, which has taken the socket over, READY being sent;
 * CB_TIMEOUT: not yet; or a status, kept, with detail[2]. CB_CHANGED: the vocabulary is another than
 * the handle's. */
int cb_connect_answer(struct cb_handle *h, int sock, const struct cb_options *options, int wait_ms,
                      struct cb_link **linkp, uint32_t detail[2]);

/* ---- link.c ---------------------------------------------------------------------------------- */

struct cb_link *cb_link_free(struct cb_link *link, bool is_child); /* a fork's: no mappings */

/* The handle's link from now on; the lock is held, or nobody else has the handle yet. */
void cb_link_set(struct cb_handle *h, struct cb_link *link);

/* Nothing of the lane can be used: its daemon is gone, whether another one is looked for or not. */
bool cb_gone_locked(const struct cb_handle *h);

/* Without the lock, also in a signal handler: the link cannot go away until cb_link_leave. */
struct cb_link *cb_link_enter(struct cb_handle *h);
void cb_link_leave(struct cb_handle *h);

/* Under the lock, by who is to look at it without: until cb_link_drop. */
struct cb_link *cb_link_hold_locked(struct cb_handle *h);
void cb_link_drop_locked(struct cb_handle *h, struct cb_link *link);

/* Frees what nobody needs of those that are gone. */
void cb_link_reap_locked(struct cb_handle *h);

/* ---- sampling.c ------------------------------------------------------------------------------ */

/* What a request asks of the choice of tokens, checked; lists are sorted copies. */
struct cb_wishes {
    struct cb_sampling sampling;
    bool has_sampling; /* it asks for something */
    struct cb_logit_bias *biases;
    uint32_t *allowed_ids, *banned_ids;
    uint32_t n_biases, n_allowed_ids, n_banned_ids;
};

/* 0 or a status, kept; either way cb_wishes_fini follows. */
int cb_wishes_init(struct cb_wishes *w, const struct cb_handle *h,
                   const struct cb_request *request);
void cb_wishes_fini(struct cb_wishes *w);

/* The request's flags, with the daemon's defaults where it does not say. */
uint32_t cb_flags_of(const struct cb_handle *h, const struct cb_request *request);

/* The planes of its results (shm/format.h), whose flags are as cb_flags_of gives them. 0 or a status,
 * kept. */
int cb_planes_of(const struct cb_handle *h, const struct cb_request *request, uint32_t flags,
                 uint32_t *planesp);

/* ---- wake.c ---------------------------------------------------------------------------------- */

void cb_wake_locked(struct cb_handle *h, uint64_t id, bool handled); /* who waits for its events */
void cb_wake_group_locked(struct cb_handle *h, const struct cb_group *group);
void cb_wake_all_locked(struct cb_handle *h);
/* On leaving a wait: if nobody leads, the one that has waited longest shall look. */
void cb_pass_lead_locked(struct cb_handle *h);

/* ---- held.c ---------------------------------------------------------------------------------- */

/* The request with this id, neither free nor abandoned, or NULL. */
struct cb_held *cb_held_find_locked(struct cb_handle *h, uint64_t id);
/* Gives the slot back to the daemon and forgets the request. Returns CB_LANE_RING or 0. */
int cb_held_free_locked(struct cb_handle *h, struct cb_held *q);

bool cb_has_event(const struct cb_held *q);
void cb_unlist_locked(struct cb_handle *h, struct cb_held *q);
void cb_make_ready_locked(struct cb_handle *h, struct cb_held *q);
/* Fills *event with the request's next one, which there is, and lists it again if there is more. */
void cb_take_locked(struct cb_handle *h, struct cb_held *q, struct cb_event *event);

/* It is to be sent again, behind those that were admitted before it. */
void cb_queue_locked(struct cb_handle *h, struct cb_held *q);

/* Its piece of the arena, if it has one. */
void cb_release_arena_locked(struct cb_held *q);
/* It has no slot any more, but is not over. CB_LANE_RING or 0. */
int cb_leave_slot_locked(struct cb_handle *h, struct cb_held *q);

/* ---- ends.c ---------------------------------------------------------------------------------- */

/* It runs, or has ended, as its slot says; sees: its tokens are there to be told. */
void cb_admit_locked(struct cb_held *q, const struct cb_slot_view *view, bool sees);
/* How many of its tokens are there now. */
uint32_t cb_count_locked(struct cb_handle *h, struct cb_held *q);
/* What its slot says, in whatever place that is now; false: nothing. */
bool cb_view_locked(const struct cb_held *q, struct cb_slot_view *view);

/* These return CB_LANE_RING or 0. Nothing more comes of it. */
int cb_over_locked(struct cb_handle *h, struct cb_held *q, enum cb_request_state state);
/* Its end is known. */
int cb_end_locked(struct cb_handle *h, struct cb_held *q, uint32_t end, int status);
int cb_end_by_view_locked(struct cb_handle *h, struct cb_held *q, const struct cb_slot_view *view);
/* What was sent again is not what it was: it ends or begins anew. */
int cb_changed_locked(struct cb_handle *h, struct cb_held *q);

bool cb_is_cancelled(const struct cb_held *q);
/* One that waits: whether its time has come, be it by its end or by one that was asked for; then it
 * has ended. */
bool cb_is_over_locked(struct cb_handle *h, struct cb_held *q, uint64_t now_ns);

/* ---- send.c ---------------------------------------------------------------------------------- */

/* Room in the arena for an entry's ids and so many bytes of options behind them: 0 with *offp and the
 * entry's offsets; or CB_BUSY, also if there is no slot or no place in the ring. */
int cb_room_locked(struct cb_handle *h, struct cb_request_entry *entry, uint64_t option_bytes,
                   uint64_t *offp);
/* Sends an entry whose prompt and options lie there, for the requests *first and those behind it, one
 * for each of its children. 0, and CB_LANE_RING is added to *ringp; CB_BUSY; or CB_LOST: the lane is
 * broken, and to tell that is the caller's. If it was not sent the piece of the arena is released. */
int cb_send_locked(struct cb_handle *h, struct cb_request_entry *entry, uint64_t arena_off,
                   struct cb_held *first, int *ringp);

/* Sends a BELL: 0, or -errno: the daemon is gone. Async-signal-safe, any thread in cb_link_enter. */
int cb_send_bell(const struct cb_link *link);

/* ---- lost.c ---------------------------------------------------------------------------------- */

/* The daemon is gone (CB_LOST) or has closed the lane (CB_CLOSED): every request that runs gets
 * what the slot table still holds, and an end (CB_STOPPED where the daemon said that it stops), unless
 * it is to go on with the next one. Wakes all. */
void cb_lose_locked(struct cb_handle *h, int status);

/* The next daemon was not found: what waits for it ends so, and nothing works any more. */
void cb_give_up_locked(struct cb_handle *h, int status);

/* The safety net: whether the slot table holds what no entry has told. What the scan before this one,
 * a second ago, found so too (is_second) is told now, and counts as missed. */
bool cb_scan_locked(struct cb_handle *h, bool is_second);

/* Sends a BELL; without the lock, any thread. If the daemon is gone, marks the handle lost. */
void cb_ring(struct cb_handle *h);

/* ---- resend.c -------------------------------------------------------------------------------- */

/* Sends what waits, as far as there is room, before anything new. Adds CB_LANE_RING to *ringp. */
void cb_resend_locked(struct cb_handle *h, int *ringp);
/* Ends what waits and is cancelled, or too late. */
void cb_sweep_locked(struct cb_handle *h);
/* What was sent again was refused, and ends, or waits once more. CB_LANE_RING or 0. */
int cb_refused_locked(struct cb_handle *h, struct cb_held *q, int status, const uint32_t detail[2]);

/* ---- results.c ------------------------------------------------------------------------------- */

/* True if a thread other than this one is asleep on the lane, so that the ring is not ours. */
bool cb_led_by_other_locked(const struct cb_handle *h);

/* Takes all entries there are from the ring and makes requests ready; wakes those who wait for
 * them; notices that the lane has been closed. Nothing, if a leader sleeps. Returns CB_LANE_RING or
 * 0. */
int cb_drain_locked(struct cb_handle *h);

/* Looks at the socket for the daemon's death, at most every 50 ms without a sign of life. */
void cb_life_locked(struct cb_handle *h, bool now);

/* ---- answers.c ------------------------------------------------------------------------------- */

/* What cb_result tells. */
void cb_fill_result_locked(struct cb_handle *h, struct cb_held *q, struct cb_result *result);

/* ---- submit.c -------------------------------------------------------------------------------- */

/* The prompt as ids, from whichever of the three was given: the caller's, or *ownp, which is to be
 * freed. 0 or a status, kept. */
int cb_prompt_ids(struct cb_handle *h, const struct cb_request *request, const uint32_t **idsp,
                  uint32_t **ownp, size_t *np);

/* cb_submit, of a request of a group: until its release, its events are only for cb_group_wait. */
int cb_group_submit(struct cb_handle *h, struct cb_group *group, const struct cb_request *request,
                    uint64_t *idp);

/* ---- wait.c ---------------------------------------------------------------------------------- */

/* Waits until there is what is wanted: 0, CB_TIMEOUT, or why there never will be. Adds CB_LANE_RING
 * to *ringp; cb_pass_lead_locked follows. */
int cb_await_locked(struct cb_handle *h, const struct cb_want *want, int64_t timeout_ms,
                    int *ringp);
/* As cb_wait, for a request of the group. CB_LOST or CB_CLOSED: all their events were taken. */
int cb_group_wait(struct cb_handle *h, struct cb_group *group, struct cb_event *event,
                  int64_t timeout_ms);

/* ---- words.c --------------------------------------------------------------------------------- */

/* Ids of text; *idsp is the caller's to free. 0 or a status, kept for cb_message. */
int cb_text_ids(struct cb_handle *h, const char *text, size_t bytes, uint32_t flags,
                uint32_t **idsp, size_t *np);
/* Text of a chat, 0-terminated; *textp is the caller's to free. */
int cb_text_chat(struct cb_handle *h, const struct cb_chat_message *turns, size_t n, char **textp,
                 size_t *bytesp);

void cb_words_fini(struct cb_handle *h); /* tokenizer and scratch */

#endif
