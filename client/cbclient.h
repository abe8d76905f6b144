/* cbclient.h - talk to cbd, the daemon that runs a language model for many processes at once.
 *
 *     struct cb_handle *h;
 *     struct cb_request request;
 *     struct cb_event event;
 *     uint64_t id;
 *     if (cb_open(&h, NULL))                      // NULL: all defaults
 *         errx(1, "%s", cb_message());
 *     cb_request_init(&request);
 *     request.text = "The capital of France is";
 *     request.max_new_tokens = 32;
 *     if (cb_submit(h, &request, &id))
 *         errx(1, "%s", cb_message());
 *     while (cb_wait(h, id, &event, -1) > 0) {    // 1: an event; CB_NOT_FOUND after the last
 *         const char *text;
 *         size_t bytes;
 *         while (cb_text(h, id, &text, &bytes) > 0)
 *             fwrite(text, 1, bytes, stdout);
 *         if (event.type == CB_EVENT_END)
 *             break;
 *     }
 *     cb_release(h, id);
 *     cb_close(h);
 *
 * The shape. A handle is a lane of shared memory to one daemon. A request is made of token ids
 * (text becomes ids here, in the library: no model file is opened). It takes a *slot* of the
 * handle, from cb_submit until cb_release; a handle has 64 by default. Its tokens appear in shared
 * memory as they are made, and stay there, readable in place, until cb_release.
 *
 * Each request yields events: any number of TOKENS (none if CB_FINAL_ONLY), then exactly one END or
 * REJECTED, whatever happens: also if it is cancelled, if its deadline passes, or if the daemon
 * dies. Every token comes once, in order. An event is taken by one call only: of a request that
 * several threads wait for, each event goes to one of them.
 *
 * Results. Calls return 0 or a positive count, or a negative enum cb_status. cb_message() says in
 * words what went wrong. Nothing in the library aborts, prints, starts a thread or sets a handler.
 *
 * Threads. Any thread may make any call on a handle at any time, but nobody may use it during or
 * after cb_close. Of one request's calls cb_text, cb_text_all and cb_text_tail, and of one
 * decoder's calls, only one may run at a time. cb_cancel may also be called from a signal handler;
 * nothing else.
 *
 * Forks. A child can't use the parent's handle: each call gives CB_FORKED (without a system call),
 * but for cb_close, which frees the child's copy and leaves the parent's lane alone.
 *
 * Costs. cb_submit (of ids), cb_poll and cb_cancel make no system call while the daemon is busy,
 * and never wait for it: what is full says CB_BUSY at once.
 *
 * Structures that you fill begin with `size`, which the _init functions set; so a program built
 * with an older header goes on working. What the library fills has room to grow inside. */
#ifndef CBCLIENT_H
#define CBCLIENT_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CB_API __attribute__((visibility("default")))

/* ---- what can go wrong ----------------------------------------------------------------------- */

/* 0 is success. -20 to -39 are bad requests: cb_submit gives them where the library sees the fault,
 * else they come in a REJECTED event. -40 to -44 and -46 come in an END event whose end is
 * CB_END_ERROR; -45 comes in a REJECTED event. */
enum cb_status {
    CB_OK = 0,
    CB_BUSY = -1,      /* no free slot, ring entry or arena space now: poll, release, try again */
    CB_NO_DAEMON = -2, /* cb_open: no daemon serves this instance */
    CB_LOST = -3,      /* the daemon is gone: open a new handle, or see cb_options.resume */
    CB_DENIED = -4,    /* not allowed for this user */
    CB_FORKED = -5,    /* the handle belongs to the parent process */
    CB_TIMEOUT = -6,
    CB_INVALID = -7,    /* an argument is outside what this manual allows */
    CB_CLOSED = -8,     /* the daemon closed the lane */
    CB_VERSION = -9,    /* library and daemon share no lane format */
    CB_NO_MEMORY = -10, /* out of memory, here or in the daemon */
    CB_NOT_FOUND = -11, /* no such request: never was, was released, or has given its last event */
    CB_SYSTEM = -12,    /* a system call failed: errno */
    CB_TOO_SMALL = -13, /* the buffer is too small; the size needed was returned */
    CB_UNTRUSTED = -14, /* the socket's owner is neither root nor you, nor a trusted uid */
    CB_NOT_RUNNING = -15, /* the handle was stopped: cb_start */
    CB_RUNNING = -16,     /* cb_start: it was not stopped */
    CB_PAUSED = -17,      /* what flushes can't be had while it is paused */
    CB_NOT_PAUSED = -18,  /* cb_resume without its cb_pause */
    CB_EMPTY_PROMPT = -20,
    CB_BAD_TOKEN = -21,
    CB_TOO_LONG = -22,
    CB_NO_CAPACITY = -23,
    CB_BAD_TEMPERATURE = -24,
    CB_BAD_TOP_P = -25,
    CB_BAD_TOP_K = -26,
    CB_BAD_STOP = -27,
    CB_BAD_UTF8 = -28,
    CB_BAD_NUL = -29,
    CB_BAD_SLOT = -30,
    CB_BAD_GENERATION = -31,
    CB_BAD_OPTION = -32,
    CB_BAD_BOUNDS = -33,
    CB_QUOTA = -34,
    CB_BAD_PLANES = -35,
    CB_DRAINING = -36,
    CB_CHANGED = -37,
    CB_NO_TEMPLATE = -38,
    CB_BAD_PARAMETER = -39,
    CB_NOT_FINITE = -40,
    CB_DEVICE = -41,
    CB_STOPPED = -42,
    CB_INTERNAL = -43,
    CB_NOTHING_LEFT = -44,
    CB_TOO_LATE = -45, /* it can't make its deadline: detail are its predicted end and that, ms */
    CB_NEW_WEIGHTS = -46,
    CB_BAD_RECORD = -50,
    CB_BAD_SETTING = -51,
    CB_BAD_COMMAND = -52,
    CB_BAD_WEIGHTS = -53,
};

/* What CB_QUOTA is about: its detail[0] is one of these, detail[1] what the limit allows. */
enum cb_limit {
    CB_LIMIT_CONNECTIONS = 1,     /* connections of all users */
    CB_LIMIT_FILES = 2,           /* open files of the daemon (RLIMIT_NOFILE) */
    CB_LIMIT_UID_CONNECTIONS = 3, /* connections of this user (uid_connections) */
    CB_LIMIT_UID_HALF_OPEN = 4,   /* unfinished handshakes of this user (uid_half_open) */
    CB_LIMIT_UID_ADMINS = 5,      /* connections of this user that give commands */
    CB_LIMIT_LANES = 6,           /* lanes of all users (max_lanes) */
    CB_LIMIT_UID_LANES = 7,       /* lanes of this user (uid_lanes) */
    CB_LIMIT_UID_MIB = 8,         /* MiB in lanes of this user (uid_bytes) */
    CB_LIMIT_LANE_SLOTS = 9,      /* slots of a lane (lane_slots_max) */
    CB_LIMIT_LANE_ARENA_KIB = 10, /* KiB for a lane's prompts (lane_arena_bytes_max) */
    CB_LIMIT_LANE_POOL = 11,      /* tokens of a lane's results (lane_pool_tokens_max) */
    CB_LIMIT_POOL = 12,           /* tokens of this lane's results (cb_options.pool_bytes) */
    CB_LIMIT_UID_WAITING = 13,    /* prompt tokens of this user (uid_waiting_tokens) */
    CB_LIMIT_HELD_TOKENS = 14,    /* prompts and limits of all requests (max_held_tokens) */
    CB_LIMIT_UID_REQUESTS = 15,   /* requests of this user at once (uid_requests) */
    CB_LIMIT_REQUESTS = 16,       /* requests of all users at once (max_requests) */
    CB_LIMIT_SHM_KIB = 17,        /* KiB for a lane by name in /dev/shm, which is full */
};

/* What CB_BAD_PARAMETER is about: its detail[0] is one of these, detail[1] the value: the bits of a
 * float for 1 to 6, else a number or an id. cb_message and cb_explain say it with its bounds. */
enum cb_parameter {
    CB_PARAMETER_MIN_P = 1,
    CB_PARAMETER_TYPICAL_P = 2,
    CB_PARAMETER_REPETITION = 3,
    CB_PARAMETER_PRESENCE = 4,
    CB_PARAMETER_FREQUENCY = 5,
    CB_PARAMETER_BIAS = 6,
    CB_PARAMETER_BIASES = 7,     /* too many */
    CB_PARAMETER_BIAS_TWICE = 8, /* of one id */
    CB_PARAMETER_ALLOWED = 9,    /* none, or too many */
    CB_PARAMETER_BANNED = 10,    /* likewise */
    CB_PARAMETER_IDS_ORDER = 11, /* of a list in the lane; the library sorts */
    CB_PARAMETER_ALL_BANNED = 12,
    CB_PARAMETER_TOP_LOGPROBS = 13,
};

/* A status in words, with its numbers left out. Never NULL; static. */
CB_API const char *cb_strerror(int status);

/* A status with its two numbers (cb_event.detail, cb_result.detail) in words, into out [bytes],
 * 0-terminated, cut if need be. Returns out. */
CB_API const char *cb_explain(int status, const uint32_t detail[2], char *out, size_t bytes);

/* Why the last call on this thread that returned a negative status did so, exactly, with its
 * numbers and the place. Never NULL. Valid until this thread's next call of the library. cb_cancel
 * leaves no message. */
CB_API const char *cb_message(void);

/* "1.0.0": the library's version. */
CB_API const char *cb_version(void);

/* ---- opening --------------------------------------------------------------------------------- */

struct cb_handle;

enum cb_wait_mode {
    CB_WAIT_BALANCED = 0, /* spin for a moment, then sleep; sleep at once on one or two cores */
    CB_WAIT_SPIN = 1,     /* never sleep: for a thread with a core of its own */
    CB_WAIT_ECO = 2,      /* sleep at once */
};

enum cb_kind {
    CB_KIND_LATENCY = 0,    /* sleeps are futexes: cb_wait, cb_dispatch */
    CB_KIND_EVENT_LOOP = 1, /* sleeps are on a socket: cb_fd and cb_arm too */
};

struct cb_options {
    size_t size;
    const char *instance; /* up to 31 bytes; NULL: "default" */
    const char *run_dir;  /* NULL: $CBD_RUNTIME_DIR, $XDG_RUNTIME_DIR/cbd, /run/cbd, /tmp/cbd-UID,
                             the first that has a trusted daemon; else only this one */
    const char *name;     /* shown to operators, up to 63 bytes; NULL: the program's name */
    uint32_t wait_mode;   /* enum cb_wait_mode */
    uint32_t kind;        /* enum cb_kind */
    uint32_t n_slots;     /* requests held at once; 0: the daemon's default (64) */
    int32_t wait_ms;      /* how long to wait for a daemon to appear; 0: not at all; -1: for ever */
    uint64_t arena_bytes; /* for prompts under way to the daemon; 0: default (1 MiB) */
    uint64_t pool_bytes;  /* for results, 4 bytes a token; 0: default (1 MiB) */
    /* Users of a daemon to accept besides root, oneself, and, where only root can write run_dir, the
     * owner of <run_dir>/<instance>. */
    const uint32_t *trusted_uids;
    size_t n_trusted_uids;
    uint32_t resume;       /* 1: it outlives its daemon, see below; 0, the default: it does not */
    uint32_t reconnect_ms; /* how long to look for the next one; 0: 30000 */
    uint32_t resume_max;   /* how often to send one request again; 0: 5 */
    uint32_t named; /* 1: for where no descriptors can be received: the lane is opened by names in
                       /dev/shm, which the daemon's setting named_uids has to allow; 0: not */
};

static inline void cb_options_init(struct cb_options *options)
{
    memset(options, 0, sizeof(*options));
    options->size = sizeof(*options);
}

/* Connects. options may be NULL and need not outlive the call. On 0 *handlep is the caller's to
 * cb_close; else it is NULL. Blocks for the handshake, at most 2 s after a daemon was found, not
 * counting time for which this process was stopped.
 *   CB_NO_DAEMON CB_UNTRUSTED CB_DENIED CB_VERSION CB_QUOTA CB_DRAINING CB_NO_MEMORY CB_SYSTEM
 *   CB_LOST (it hung up meanwhile) CB_TIMEOUT (it did not answer)
 *   CB_BAD_RECORD (its answer makes no sense) CB_INVALID
 *   CB_BUSY (lanes of this user broke the format: try again in some seconds) */
CB_API int cb_open(struct cb_handle **handlep, const struct cb_options *options);

/* Ends what still runs and frees all; every pointer got from the handle dies. NULL is fine. */
CB_API void cb_close(struct cb_handle *h);

struct cb_info {
    const char *model; /* name, 0-terminated, UTF-8 */
    uint32_t n_vocab, n_context;
    uint32_t bos, eos, eot;           /* ids, or CB_NO_TOKEN */
    uint32_t n_slots;                 /* granted */
    uint32_t lane_id;                 /* as `cbctl clients` shows it */
    uint32_t has_chat;                /* 1: cb_chat works */
    uint64_t arena_bytes, pool_bytes; /* granted */
    uint64_t wake_missed;             /* results found late, without a wake; a fault, if not 0 */
    uint64_t n_reconnects;            /* daemons that it has outlived */
    uint64_t reserved[6];
};
#define CB_NO_TOKEN 0xffffffffu

/* What the handle is connected to; pointers live as long as the handle. */
CB_API int cb_info(struct cb_handle *h, struct cb_info *info);

/* ---- requests -------------------------------------------------------------------------------- */

#define CB_NO_LIMIT 0xffffffffu /* max_new_tokens: as much as the context holds */

/* cb_request.flags */
#define CB_FINAL_ONLY 0x01u /* no TOKENS events: END brings all tokens */
#define CB_IGNORE_EOS 0x02u /* an end-of-sequence id does not end it */
#define CB_TIMES      0x04u /* record the time of each token: cb_times */
/* seed is given; else the library draws one (cb_result.seed): from the daemon's setting seed, the same
 * ones for the same requests in turn on a new handle, or at random */
#define CB_HAS_SEED      0x08u
#define CB_PARSE_SPECIAL 0x10u /* special tokens written out in text become their ids */
#define CB_NO_BOS        0x20u /* no begin-of-sequence id in front, even if the model asks for it */
#define CB_KEEP_STOP     0x40u /* text includes the stop string that ended it */
#define CB_AUTO_RELEASE  0x80u /* with a handler: released when the handler returns from the end */
#define CB_LOGPROBS      0x200u /* record the log-probability of each token: cb_logprobs */
/* Those are of what tokens are chosen from, after everything that the request asks for (and without
 * temperature and cuts if it is greedy), or of the model's logits as they are; with neither, the
 * daemon's setting logprobs_mode says which, and its setting return_logprobs has all requests
 * record. */
#define CB_PROCESSED_LOGPROBS 0x1000u
#define CB_RAW_LOGPROBS       0x400u
#define CB_EPOCHS             0x2000u /* record whose weights made each token: cb_epochs */
#define CB_PROMPT_LOGPROBS    0x800u  /* of the prompt's tokens, always raw: cb_prompt_logprobs */
/* On a handle with cb_options.resume: it goes on with the next daemon where this one left it. */
#define CB_RESUMABLE 0x4000u
#define CB_RESTART   0x8000u /* with it: and begins anew where it can't go on */

struct cb_string {
    const char *bytes;
    size_t n;
};

/* Added to the logit of an id. */
struct cb_bias {
    uint32_t id;
    float bias; /* -10000 to 10000 */
};

struct cb_chat_message {
    const char *role; /* "system", "user", "assistant"; 0-terminated */
    const char *content;
    size_t content_bytes; /* 0: content is 0-terminated */
};

enum cb_event_type {
    CB_EVENT_NONE = 0,
    CB_EVENT_TOKENS = 1,
    CB_EVENT_END = 2,
    CB_EVENT_REJECTED = 3, /* the daemon refused it: status and detail say why. Also an end */
    CB_EVENT_RESTARTED =
        4, /* CB_RESTART: all there was of it is void; its tokens begin at index 0 */
};

/* Why a request ended. */
enum cb_end {
    CB_END_NONE = 0,
    CB_END_EOS = 1,
    CB_END_STOP = 2,      /* a stop id or stop string */
    CB_END_LENGTH = 3,    /* max_new_tokens, or a full context */
    CB_END_CANCELLED = 4, /* what was made before stays readable */
    CB_END_DEADLINE = 5,
    CB_END_ERROR = 6, /* status says which; CB_STOPPED if the daemon or, hard, the handle was
                         stopped, CB_LOST if the daemon died */
};

struct cb_event {
    uint64_t id;
    uint64_t user;      /* the request's */
    uint32_t type;      /* enum cb_event_type */
    uint32_t end;       /* enum cb_end; END only */
    int32_t status;     /* enum cb_status: REJECTED, and END with CB_END_ERROR; else 0 */
    uint32_t detail[2]; /* the two numbers of status */
    uint32_t first;     /* index of ids[0] among the generated tokens */
    /* The tokens that no event of this request has brought yet, in shared memory: valid until
     * cb_release. */
    const uint32_t *ids;
    size_t n_ids;
    uint64_t reserved[4];
};

/* Called by cb_dispatch, with no lock held. It may make any call on the handle but cb_close; event
 * dies with its return. Calls for one request never overlap and come in order; the last one is END
 * or REJECTED, after which it is never called again for this request. */
typedef void cb_handler_fn(struct cb_handle *h, const struct cb_event *event, void *arg);

/* What becomes of a request that has tokens when the daemon loads other weights (cbctl load-weights).
 * One that has none begins again with these: a prompt is always computed by one set. */
enum cb_on_new_weights {
    CB_WEIGHTS_DEFAULT = 0,  /* the daemon's setting on_new_weights */
    CB_WEIGHTS_CONTINUE = 1, /* what was computed of its tokens so far stays */
    CB_WEIGHTS_RESTART = 2,  /* that is computed anew; its tokens stay */
    CB_WEIGHTS_FAIL = 3,     /* it ends: CB_END_ERROR, CB_NEW_WEIGHTS */
};

struct cb_request {
    size_t size;
    /* The prompt, exactly one of: ids [n_ids]; UTF-8 text [text_bytes] without a NUL (0 bytes: it
     * is 0-terminated); a chat, messages [n_messages], rendered by the model's template with the
     * assistant's turn next. */
    const uint32_t *ids;
    size_t n_ids;
    const char *text;
    size_t text_bytes;
    const struct cb_chat_message *messages;
    size_t n_messages;
    uint32_t flags;          /* CB_FINAL_ONLY and those below it */
    uint32_t max_new_tokens; /* CB_NO_LIMIT by default */
    float temperature;       /* 0, the default: greedy */
    float top_p;             /* in (0, 1]; 1, the default: off */
    int32_t top_k;           /* 0, the default: off; above the vocabulary: off */
    uint32_t priority;       /* 0-255: the higher first, where the daemon goes by it */
    uint64_t seed;           /* with CB_HAS_SEED */
    uint64_t user;           /* yours: comes back in each event */
    /* From acceptance; 0: none. What is not there by then ends with CB_END_DEADLINE; and what can't
     * be, going by the speed of late and what waits before it, is rejected at once (CB_TOO_LATE):
     * with a limit if its last token comes too late, with CB_NO_LIMIT if its first does. */
    uint64_t deadline_ms;
    const uint32_t *stop_ids; /* besides the model's own end ids; up to 64 */
    size_t n_stop_ids;
    const struct cb_string *stops; /* stop strings, UTF-8, up to 16 of up to 256 bytes */
    size_t n_stops;
    /* What the daemon computes of a prompt it keeps, and does not compute again for requests of
     * this user that begin with the same tokens. With a salt, of 1 to 64 bytes and a NUL: for
     * those that name the same one, of any user, and for no others. It cannot be told from the
     * results, but from the time they take and from cb_result.n_prefix_hit. NULL: none. */
    const char *cache_salt;
    cb_handler_fn *handler; /* NULL: cb_poll and cb_wait take its events; else only cb_dispatch */
    void *handler_arg;

    /* How each token is chosen, in this order: only allowed and no banned ids; bias; penalties; no
     * n-gram again; no end before min_new_tokens; temperature; and of what is left top_k, top_p,
     * min_p, typical_p. Greedy requests (temperature 0) take the best after min_new_tokens. */
    const uint32_t *allowed_ids; /* up to 4096; NULL: all */
    size_t n_allowed_ids;
    const uint32_t *banned_ids; /* up to 4096 */
    size_t n_banned_ids;
    const struct cb_bias *biases; /* up to 1024 */
    size_t n_biases;
    float repetition_penalty; /* 0.001 to 1000: logits of ids in prompt or answer, if positive,
                                 divided by it, else times it; 1, the default: off */
    float presence_penalty;   /* -1000 to 1000: subtracted for ids in the answer; 0: off */
    float frequency_penalty;  /* -1000 to 1000: likewise, times how often; 0: off */
    uint32_t no_repeat_ngram; /* so many ids in a row, of prompt and answer, come once; 0: off */
    uint32_t min_new_tokens;  /* the model's end ids, unless CB_IGNORE_EOS, and stop_ids are removed
                                 until there are so many tokens. Stop strings may end it before */
    uint32_t first_id;        /* the first token, whatever else; CB_NO_TOKEN, the default: none */
    float min_p;              /* 0 to 1: keeps what is so probable, the best being 1; 0: off */
    float typical_p;          /* above 0, to 1: keeps those whose surprise is nearest to the mean,
                                 until they make up this much; 1, the default: off */
    uint32_t top_logprobs;    /* 0 to 20: the log-probabilities of so many best tokens too */
    uint32_t on_new_weights;  /* enum cb_on_new_weights */
    uint32_t n;         /* sequences of the prompt: 1, the default, to 64, and n_slots; 0: 1 */
    uint32_t child_idx; /* of the first: each draws by seed and its own */
};

static inline void cb_request_init(struct cb_request *request)
{
    memset(request, 0, sizeof(*request));
    request->size = sizeof(*request);
    request->max_new_tokens = CB_NO_LIMIT;
    request->top_p = 1.0f;
    request->repetition_penalty = 1.0f;
    request->typical_p = 1.0f;
    request->first_id = CB_NO_TOKEN;
    request->n = 1;
}

/* Sends a request; *idp gets its id, > 0 and never used again on this handle. Everything given is
 * copied.
 *
 * With n above 1 these are n requests, all of them or none, with the ids *idp, *idp + 1, ...: each has
 * a slot, tokens, events, a cancel and a release of its own. The prompt is computed once. What
 * sequence i draws depends on seed and child_idx + i alone: to have one again, ask for n 1 with that
 * child_idx. n_slots, quotas and limits count each of them.
 *
 * 0, or the request does not exist and *idp is 0:
 *   CB_BUSY           no slot, ring entry or room for the prompt now; or, with n above 1, no n slots
 *                     in a row, though so many may be free apart: release more, or ask for fewer
 *   CB_EMPTY_PROMPT CB_BAD_TOKEN CB_TOO_LONG CB_BAD_TEMPERATURE CB_BAD_TOP_P CB_BAD_TOP_K
 *   CB_BAD_STOP CB_BAD_PARAMETER CB_BAD_UTF8 CB_BAD_NUL CB_NO_TEMPLATE CB_INVALID
 *   CB_VERSION        the daemon is older than what is asked for
 *   CB_NOT_RUNNING    the handle was stopped
 *   CB_LOST CB_CLOSED CB_FORKED CB_NO_MEMORY
 * What only the daemon knows (CB_NO_CAPACITY, CB_QUOTA, CB_DRAINING) comes as a REJECTED event. */
CB_API int cb_submit(struct cb_handle *h, const struct cb_request *request, uint64_t *idp);

/* Sends requests[0], [1], ... in this order, with one look at the daemon for all. Returns how many
 * were sent, ids[] filled for these and 0 for the others; fewer than n: cb_message() says why the
 * next was not. If none was, its negative status. The array steps by requests[0].size. */
CB_API int cb_submit_many(struct cb_handle *h, const struct cb_request *requests, size_t n,
                          uint64_t *ids);

/* Asks that the request end; its END event says CB_END_CANCELLED, or how it ended first. Lock-free;
 * from any thread, and from signal handlers. Cancelling what has ended, and twice, is fine. 0, or
 * CB_NOT_FOUND, CB_LOST, CB_FORKED. */
CB_API int cb_cancel(struct cb_handle *h, uint64_t id);

/* Gives the slot back; every pointer got for this id dies, and the id is no more. Once for each id,
 * whatever its end. What has not ended is cancelled and yields no more events; its slot is free for
 * reuse when the daemon has ended it. 0, or CB_NOT_FOUND, CB_FORKED. Works on a lost handle too. */
CB_API int cb_release(struct cb_handle *h, uint64_t id);

/* ---- events ---------------------------------------------------------------------------------- */

struct cb_result; /* below */

/* Takes the next event of any request without a handler. Never blocks.
 *   1                    *event is filled
 *   0                    nothing now
 *   CB_LOST, CB_CLOSED   the daemon is gone, and every event there was has been taken (each request
 *                        that had not ended has had its END)
 *   CB_FORKED CB_INVALID */
CB_API int cb_poll(struct cb_handle *h, struct cb_event *event);

/* As cb_poll, for request `id` only (id 0: for any), and waits until there is one. timeout_ms: -1
 * for ever; the full time is waited, whatever other requests do, and not longer.
 *   1                    *event is filled
 *   CB_TIMEOUT           the time is over
 *   CB_NOT_FOUND         no such id, or its END or REJECTED has been taken; id 0: never
 *   CB_LOST, CB_CLOSED   id 0: as cb_poll. With an id, its END event says it (status CB_LOST;
 *                        CB_STOPPED if the daemon did not die but was stopped)
 *   CB_INVALID           the request has a handler; or an argument is wrong
 *   CB_FORKED */
CB_API int cb_wait(struct cb_handle *h, uint64_t id, struct cb_event *event, int64_t timeout_ms);

/* As cb_wait, with the same answers, but gives the whole result of the request so far instead of
 * what its event brings: the view for those who want no pieces. The last one has result->end or, if
 * it was rejected, result->status; those before come of requests that are not CB_FINAL_ONLY. */
CB_API int cb_get_result(struct cb_handle *h, uint64_t id, struct cb_result *result,
                         int64_t timeout_ms);

/* From now on this handler, or none (NULL), gets the events of the request that were not taken yet,
 * whatever it was submitted with. Whoever waits for its events in the other way waits no more
 * (cb_wait: CB_INVALID). 0; CB_NOT_FOUND: no such id, or its end was taken, which removes the
 * handler; CB_INVALID: CB_AUTO_RELEASE wants one; CB_FORKED. */
CB_API int cb_set_handler(struct cb_handle *h, uint64_t id, cb_handler_fn *handler, void *arg);

/* Runs the handlers of all events there are, waiting up to timeout_ms for the first (0: not at all;
 * -1: for ever). Returns how many ran, 0 after the timeout, or, when nothing is left to run,
 * CB_LOST or CB_CLOSED; CB_FORKED. Several threads may dispatch. */
CB_API int cb_dispatch(struct cb_handle *h, int64_t timeout_ms);

/* ---- stop and start -------------------------------------------------------------------------- */

/* Nothing here touches what other handles asked of the daemon. Stopping waits for nothing: cb_join
 * does. What was computed of prompts stays in the daemon's cache, whoever starts again. */

#define CB_STOP_HARD 0x01u

/* Takes no more requests from now on: cb_submit gives CB_NOT_RUNNING. What was submitted goes on to
 * its end, whether anybody waits or not; with CB_STOP_HARD it ends at once, with the tokens that it
 * has and status CB_STOPPED. Either way each request has its one END or REJECTED.
 *   0
 *   CB_NOT_RUNNING       it was stopped, and this asks for no more
 *   CB_PAUSED            it is paused, so that nothing would end; with CB_STOP_HARD, all does
 *   CB_LOST CB_CLOSED CB_INVALID CB_FORKED */
CB_API int cb_stop(struct cb_handle *h, uint32_t flags);

/* Takes requests again; what a stop has left running runs on. 0, or CB_RUNNING: it was not stopped;
 * CB_LOST CB_CLOSED CB_FORKED. */
CB_API int cb_start(struct cb_handle *h);

/* Waits until no request of the handle runs, stopped or not; their events stay to be taken. -1: for
 * ever. 0; CB_TIMEOUT; CB_INVALID CB_FORKED. If the daemon dies, nothing runs. */
CB_API int cb_join(struct cb_handle *h, int64_t timeout_ms);

/* 1: the handle takes requests, or some still run; 0: it was stopped and all have ended, or the
 * daemon is gone; CB_INVALID CB_FORKED. */
CB_API int cb_is_running(struct cb_handle *h);

/* Stops the handle if it is not, waits as cb_join does, runs the handlers of what is left, and
 * closes it. 0 (h may be NULL); else h is still there: CB_TIMEOUT, CB_PAUSED, CB_INVALID. */
CB_API int cb_destroy(struct cb_handle *h, int64_t timeout_ms);

/* The requests of this handle, sent and to be sent, stand still until cb_resume was called as often
 * as this: any thread may, and a handle that is closed lets go. Other handles go on. Nothing is lost,
 * and no token is different for it; cancels and deadlines end requests as ever, and others may take
 * the room in the cache that they hold, so that some of it is computed again. Waits until the daemon
 * acts on it, after the step that runs: then every token that was made can be seen, and no more will
 * be. timeout_ms: -1 for ever.
 *   0
 *   CB_TIMEOUT           the daemon did not answer; the handle is not paused, but for others' pauses
 *   CB_NOT_RUNNING       the handle was stopped
 *   CB_VERSION           the daemon is older
 *   CB_LOST CB_CLOSED CB_INVALID CB_FORKED */
CB_API int cb_pause(struct cb_handle *h, int64_t timeout_ms);

/* Takes one pause back. 0; CB_NOT_PAUSED: each was taken back; CB_INVALID CB_FORKED. */
CB_API int cb_resume(struct cb_handle *h);

/* ---- outliving the daemon -------------------------------------------------------------------- */

/* A handle with cb_options.resume is not lost with its daemon. Whoever polls or waits looks for the
 * next one, for reconnect_ms (at 20 ms, then at longer and longer intervals up to 2 s), and until it is
 * there cb_submit gives CB_BUSY; cb_poll and calls with timeout 0 wait at most 100 ms for its answer,
 * in event loops not at all. Only when none is found, or one that has less to offer, is the handle
 * lost.
 *
 * Requests without CB_RESUMABLE end with the daemon as ever: CB_LOST, or CB_STOPPED. Those with it wait,
 * and are sent to the next one in the order in which they were submitted: with the same model and
 * arithmetic each goes on with the very token that comes next, greedy or sampled, and the application
 * sees nothing of it but a pause. What events and calls have given stays where it is until cb_release;
 * what they give later may lie elsewhere. Times are since the first acceptance, as far as can be told.
 *
 * One whose model or arithmetic is another now ends with CB_END_ERROR and CB_CHANGED; with CB_RESTART
 * it begins anew, at index 0, and with an event CB_EVENT_RESTARTED: what there was of it, its text
 * included, is void. One that was sent resume_max times ends with CB_LOST, lest it be what kills
 * daemon after daemon. If the vocabulary is another, nothing can go on: all end with CB_CHANGED, and
 * the handle is lost. Cancels and deadlines work meanwhile. A daemon that drains ends what it has
 * taken in; one that is stopped hard leaves it for the next. */

/* ---- event loops (CB_KIND_EVENT_LOOP) -------------------------------------------------------- */

/* The descriptor to watch for reading (level-triggered). It is the handle's: don't read or close
 * it. CB_INVALID on a handle of another kind. The recipe, on the loop's one thread, at the start
 * and each time it is readable; leave nothing out:
 *
 *     while (cb_poll(h, &event) > 0) ...      // or cb_dispatch(h, 0), or both
 *     r = cb_arm(h);                          // CB_LOST: the daemon died; stop watching
 *     while (cb_poll(h, &event) > 0) ...      // always, whatever cb_arm said
 *     return to the loop
 *
 * Other threads may submit, cancel, and cb_wait for ids of their own meanwhile. cb_wait or a
 * dispatch that waits, on the loop's own thread, undoes the arming: run the recipe after it. */
CB_API int cb_fd(struct cb_handle *h);

/* Empties the socket and asks the daemon to make it readable at the next result. 0, CB_LOST,
 * CB_CLOSED, CB_INVALID, CB_FORKED. */
CB_API int cb_arm(struct cb_handle *h);

/* ---- what a request has made ----------------------------------------------------------------- */

/* All tokens made so far, those that no event has brought yet too: *idsp [*np] in shared memory,
 * which never move nor change; valid until cb_release. 0, CB_NOT_FOUND, CB_FORKED. */
CB_API int cb_tokens(struct cb_handle *h, uint64_t id, const uint32_t **idsp, size_t *np);

/* With CB_TIMES: when each of these tokens was made, in ns since acceptance; likewise in place.
 * CB_INVALID without CB_TIMES. */
CB_API int cb_times(struct cb_handle *h, uint64_t id, const uint64_t **nsp, size_t *np);

#define CB_EPOCH_ANEW 0x80000000u

/* With CB_EPOCHS: of each of these tokens, whose it is: how often the daemon had loaded other weights
 * when it was made. With CB_EPOCH_ANEW, all that was computed of the tokens before it was computed
 * again by these weights; else it stands as it was: the prompt by those of the first token, each token
 * by those of the next one, all since the last one with CB_EPOCH_ANEW by that one's. Likewise in
 * place. CB_INVALID without CB_EPOCHS. */
CB_API int cb_epochs(struct cb_handle *h, uint64_t id, const uint32_t **epochsp, size_t *np);

struct cb_top_logprob {
    uint32_t id; /* CB_NO_TOKEN: fewer tokens were left to choose from */
    float logprob;
};

/* With CB_LOGPROBS or top_logprobs: the natural logarithm of each of these tokens' probability, and
 * *topp [*np][top_logprobs] of the best at its place, the best first; likewise in place. topp may be
 * NULL; *topp is NULL without top_logprobs. CB_INVALID if neither was asked for. */
CB_API int cb_logprobs(struct cb_handle *h, uint64_t id, const float **logprobsp,
                       const struct cb_top_logprob **topp, size_t *np);

/* With CB_PROMPT_LOGPROBS: the same of the prompt's tokens, each given those before it; the first
 * one's is NaN. All are there with the first generated token, or at the end if max_new_tokens is 0;
 * before, *np is 0. Prompts that are scored are computed whole, whatever is in the cache. */
CB_API int cb_prompt_logprobs(struct cb_handle *h, uint64_t id, const float **logprobsp,
                              const struct cb_top_logprob **topp, size_t *np);

struct cb_result {
    uint64_t id, user;
    uint64_t seed;           /* the one used: given, or drawn below 2^53 */
    uint32_t end;            /* enum cb_end; CB_END_NONE: it still runs, or was rejected */
    int32_t status;          /* 0, or why it was rejected or failed */
    uint32_t detail[2];      /* of status */
    uint32_t stop_idx;       /* CB_END_STOP: which of stops[], or of stop_ids[] if stop_is_id */
    uint32_t stop_is_id;     /* 1: it ended at a stop id */
    uint32_t text_bytes;     /* CB_END_STOP by a string: bytes of the tokens before it; cb_text has
                                more where they are no UTF-8 */
    uint32_t n_prompt;       /* tokens, BOS included */
    uint32_t n_generated;    /* tokens, the last one (EOS or stop) included */
    uint32_t n_prefix_hit;   /* prompt tokens that needed no computing */
    uint64_t queued_ns;      /* from acceptance to its first step */
    uint64_t first_token_ns; /* from acceptance; 0: there was none */
    uint64_t total_ns;       /* from acceptance to its end; 0: it runs */
    const uint32_t *ids;     /* the n_generated tokens, as cb_tokens gives them */
    /* What the daemon guessed when it accepted the request, from acceptance: when its first step
     * would come, and its end, at most UINT32_MAX us. finish 0: it had nothing to guess from,
     * or the handle was paused. */
    uint64_t predicted_start_ns, predicted_finish_ns;
    /* Of its newest token, once it has ended: how often the daemon had loaded other weights. */
    uint32_t weight_epoch, zero;
    uint64_t reserved[4];
};

/* Where the request stands; final once its end has come. 0, CB_NOT_FOUND, CB_FORKED. */
CB_API int cb_result(struct cb_handle *h, uint64_t id, struct cb_result *result);

/* The next piece of the generated text: whole characters only, without what may yet turn out to
 * begin a stop string, cut exactly at the stop in the end; bytes that are no UTF-8 come as U+FFFD.
 * All pieces together are the same text, byte by byte, however often and on whatever occasion this
 * is called. What may be told is decided from all tokens made so far, not from the events taken.
 *   1  *textp [*bytesp], not 0-terminated; valid until the next cb_text, cb_text_all or cb_release
 *      of id
 *   0  nothing new now; if the request has ended, never again
 *   CB_NOT_FOUND CB_NO_MEMORY CB_FORKED */
CB_API int cb_text(struct cb_handle *h, uint64_t id, const char **textp, size_t *bytesp);

/* The whole text so far, 0-terminated; the same rules. Does not count as told for cb_text. */
CB_API int cb_text_all(struct cb_handle *h, uint64_t id, const char **textp, size_t *bytesp);

/* If the request ended inside a character: its bytes so far (at most 3), which are not in the text.
 * 0 with *np 0 to 3. */
CB_API int cb_text_tail(struct cb_handle *h, uint64_t id, uint8_t tail[4], size_t *np);

/* ---- other weights --------------------------------------------------------------------------- */

/* Called after each piece that was sent. */
typedef void cb_load_progress_fn(void *arg, uint64_t bytes_done, uint64_t bytes_in_all);

struct cb_loaded {
    uint32_t weight_epoch; /* tokens made from now on have this one (cb_epochs) */
    uint32_t n_restarted;  /* requests that began, or computed what they had, anew */
    uint64_t bytes;        /* of the file */
    uint64_t stall_ms;     /* for so long, at most, no step ran */
    uint64_t n_steps;      /* that ran while it was checked and loaded */
    uint64_t reserved[3];
};

/* Gives a daemon, whose operator's authority is needed for it (cbctl.8), other weights of the model
 * that it runs: a file with the same architecture, shapes and vocabulary. It is sent whole, checked,
 * loaded beside the steps, and takes the place of the present weights between two of them; or is
 * refused, and nothing has changed: cb_message() says what was wrong. Requests under way live on, as
 * cb_request.on_new_weights says. Of options (NULL: the usual ones) those count that say where the
 * daemon is. progress and loaded may be NULL. Blocks until it is done.
 *   0
 *   CB_BAD_WEIGHTS    torn, too large, no model, or of another model
 *   CB_BUSY           another process is loading weights
 *   CB_NO_MEMORY      there is none for a second set of weights
 *   CB_DENIED CB_NO_DAEMON CB_UNTRUSTED CB_LOST CB_TIMEOUT CB_SYSTEM CB_INVALID CB_BAD_RECORD
 *   CB_BAD_COMMAND    the daemon is older than this call */
CB_API int cb_load_weights(const struct cb_options *options, const char *path,
                           cb_load_progress_fn *progress, void *arg, struct cb_loaded *loaded);

/* ---- batches --------------------------------------------------------------------------------- */

/* Many prompts in, all their outputs back, in one call. */

/* A prompt, exactly one of the three as in cb_request, and what of the configuration it has of its
 * own: NULL: nothing. */
struct cb_prompt {
    const uint32_t *ids;
    size_t n_ids;
    const char *text;
    size_t text_bytes;
    const struct cb_chat_message *messages;
    size_t n_messages;
    const float *temperature; /* these with CB_BATCH_PER_REQUEST */
    const int32_t *top_k;
    const float *top_p;
    uint64_t reserved[4];
};

/* What came of one sequence. Everything it points to lives until cb_outputs_free. */
struct cb_output {
    const char *request_id; /* "req_7"; further sequences of its prompt: "req_7__child#0", ... */
    const uint32_t *prompt_ids;
    size_t n_prompt;
    const uint32_t *generated; /* all tokens, the last one (EOS or stop) included */
    size_t n_generated;
    /* What config asks for, each as the call of its name gives it; else NULL. */
    const float *logprobs;                            /* [n_generated] */
    const struct cb_top_logprob *top_logprobs;        /* [n_generated][config's top_logprobs] */
    const float *prompt_logprobs;                     /* [n_prompt] */
    const struct cb_top_logprob *prompt_top_logprobs; /* [n_prompt][config's top_logprobs] */
    const uint32_t *epochs;                           /* [n_generated] */
    const uint64_t *times_ns; /* [n_generated]; NULL without CB_BATCH_TIMES */
    const char *text;         /* 0-terminated; "" without tokens */
    size_t text_bytes;
    const char *error;   /* NULL: none; else why it failed, in words; there may be tokens */
    int32_t status;      /* enum cb_status, of error */
    uint32_t end;        /* enum cb_end; CB_END_NONE: it never ran */
    uint64_t seed;       /* the one used */
    uint64_t created_ns; /* CLOCK_MONOTONIC when it was submitted; 0: it was not */
    uint64_t started_ns; /* its first step; as times_ns since the daemon took it in; 0: none ran */
    uint64_t ended_ns;   /* likewise */
    size_t prompt_idx;   /* of prompts[] */
    uint32_t sequence;   /* 0, then the children */
    uint32_t n_prefix_hit;
    uint64_t reserved[4];
};

/* In the order of the prompts, children after their parent. */
struct cb_outputs {
    const struct cb_output *v;
    size_t n;
    size_t n_failed; /* with an error */
};

struct cb_progress {
    size_t n_done, n_failed, n;     /* sequences: over; of these, with an error; all */
    const struct cb_output *output; /* the one that is over now */
    uint64_t reserved[4];
};

/* Called by cb_generate_batch in its thread, with no lock held, each time a sequence is over. Not 0:
 * what is not over is cancelled. */
typedef int cb_progress_fn(const struct cb_progress *progress, void *arg);

/* cb_batch.flags */
#define CB_BATCH_TIMES       0x01u /* record the time of each token */
#define CB_BATCH_NO_WARMUP   0x02u
#define CB_BATCH_PER_REQUEST 0x04u /* prompts may have a temperature, top_k, top_p of their own */

/* Has the daemon make a token for nobody, so that the handle's first request does not pay for what is
 * touched the first time; once a handle, then it does nothing. -1: for ever. 0; CB_TIMEOUT; or why it
 * could not, as of cb_submit and of events. */
CB_API int cb_warmup(struct cb_handle *h, int64_t timeout_ms);

struct cb_batch {
    size_t size;
    const struct cb_prompt *prompts;
    size_t n_prompts;
    /* What holds for all: everything of cb_request but prompt, user and handler. NULL: as
     * cb_request_init leaves it, greedy and without a limit. */
    const struct cb_request *config;
    uint32_t max_new_tokens; /* of each sequence; CB_NO_LIMIT, the default: config's */
    uint32_t n_sequences;    /* of each prompt; sequence i draws as child_idx i; 1 by default */
    uint32_t flags;          /* CB_BATCH_ */
    int32_t progress_fd;     /* a bar is drawn there if it is a terminal; -1, the default: none */
    cb_progress_fn *progress;
    void *progress_arg;
    int64_t stall_ms; /* when nothing has moved for so long, what is left fails with CB_TIMEOUT;
                         600000, ten minutes, by default; -1: never */
    const struct cb_options *open; /* without a handle */
    uint64_t reserved[4];
};

static inline void cb_batch_init(struct cb_batch *batch)
{
    memset(batch, 0, sizeof(*batch));
    batch->size = sizeof(*batch);
    batch->max_new_tokens = CB_NO_LIMIT;
    batch->n_sequences = 1;
    batch->progress_fd = -1;
    batch->stall_ms = 600000;
}

/* Runs all of them, as many at a time as the handle has free slots, and returns when each is over:
 * it ended, or it failed alone, or the daemon is gone. Without a handle (NULL) it opens one for the
 * call; names count from req_0 on each handle. Unless CB_BATCH_NO_WARMUP, a handle's first batch is
 * preceded by cb_warmup. No prompts: no outputs, and no daemon is needed.
 *   >= 0  how many failed, and *outputsp is the caller's to cb_outputs_free
 *   CB_INVALID CB_NO_MEMORY CB_FORKED, or what cb_open gives: nothing was run
 * With CB_BATCH_PER_REQUEST a prompt may have those of temperature (config's: above 0, and not 1), top_k
 * (above 0) and top_p (below 1) that config has a value for and sampling; any other fails alone. */
CB_API int cb_generate_batch(struct cb_handle *h, const struct cb_batch *batch,
                             struct cb_outputs **outputsp);

/* The output of that name, or NULL. */
CB_API const struct cb_output *cb_outputs_find(const struct cb_outputs *outputs,
                                               const char *request_id);
CB_API void cb_outputs_free(struct cb_outputs *outputs); /* NULL is fine */

/* ---- text and ids ---------------------------------------------------------------------------- */

/* Text to the ids that a request with this text would have. flags: CB_PARSE_SPECIAL, CB_NO_BOS.
 * Always sets *np to the number of ids. 0, CB_TOO_SMALL (ids [n_max] is not filled; may be NULL if
 * n_max is 0), CB_BAD_UTF8, CB_BAD_NUL, CB_NO_MEMORY. */
CB_API int cb_tokenize(struct cb_handle *h, const char *text, size_t text_bytes, uint32_t flags,
                       uint32_t *ids, size_t n_max, size_t *np);

#define CB_SHOW_SPECIAL 0x100u /* special tokens are written out; else they make no text */

/* Ids to text, all at once: *bytesp bytes, not 0-terminated; bytes that are no UTF-8 become U+FFFD.
 * flags: CB_SHOW_SPECIAL. 0, CB_TOO_SMALL (text is not filled; may be NULL if bytes_max is 0),
 * CB_BAD_TOKEN, CB_NO_MEMORY. */
CB_API int cb_detokenize(struct cb_handle *h, const uint32_t *ids, size_t n, uint32_t flags,
                         char *text, size_t bytes_max, size_t *bytesp);

/* Ids to text, bit by bit, for tokens that come from elsewhere. Lives at most as long as the
 * handle. */
struct cb_detokenizer;
CB_API int cb_detokenizer_new(struct cb_handle *h, uint32_t flags, struct cb_detokenizer **dp);
/* Feeds ids; *textp [*bytesp] gets the whole characters that are now complete, valid until the next
 * call. is_last: an incomplete character at the end comes as U+FFFD, and the next feed begins anew.
 * 0, CB_BAD_TOKEN, CB_NO_MEMORY. */
CB_API int cb_detokenizer_feed(struct cb_detokenizer *d, const uint32_t *ids, size_t n, int is_last,
                               const char **textp, size_t *bytesp);
CB_API void cb_detokenizer_free(struct cb_detokenizer *d); /* NULL is fine */

/* Renders a chat by the model's template, the assistant's turn next; tokenize it with
 * CB_PARSE_SPECIAL | CB_NO_BOS. 0, CB_TOO_SMALL (as cb_detokenize), CB_NO_TEMPLATE, CB_BAD_UTF8,
 * CB_INVALID, CB_NO_MEMORY. */
CB_API int cb_chat(struct cb_handle *h, const struct cb_chat_message *messages, size_t n,
                   char *text, size_t bytes_max, size_t *bytesp);

#ifdef __cplusplus
}
#endif

#endif
