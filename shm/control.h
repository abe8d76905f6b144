/* shm/control.h - records of the control socket: fixed 256 bytes, SOCK_SEQPACKET.
 *
 *   client                                   daemon
 *   HELLO  ────────────────────────────────▶ checked; unknown must-understand bit: REFUSED
 *          ◀──────────────────────────────── WELCOME, fds: UP, DOWN, STATUS, VOCAB; or REFUSED;
 *                                            of a lane by name WELCOME without fds, then NAMES
 *   READY  ────────────────────────────────▶ lane live
 *   BELL   ────────────────────────────────▶ requests wait (the daemon had said doze)
 *          ◀──────────────────────────────── BELL (results wait), NOTICE (look at down_hot.notice)
 *   BYE    ────────────────────────────────▶ lane ends
 *
 *   ADMIN  ────────────────────────────────▶ a command (cbctl), instead of HELLO: no lane is made
 *          ◀──────────────────────────────── REPLY records: JSON text in pieces, up to the last
 *
 * Every record begins with the head; bytes that a type does not name are zero, and checked. Records
 * never carry descriptors towards the daemon. Pieces of text need not end at a character. */
#ifndef CB_SHM_CONTROL_H
#define CB_SHM_CONTROL_H

#include "shm/format.h"

#define CB_RECORD_BYTES 256u
#define CB_RECORD_MAGIC 0x5443u
#define CB_WORD_SIZE    8u
#define CB_ENDIAN       0x01020304u

enum cb_record_type {
    CB_RECORD_HELLO = 1,
    CB_RECORD_WELCOME = 2,
    CB_RECORD_REFUSED = 3,
    CB_RECORD_READY = 4,
    CB_RECORD_BYE = 5,
    CB_RECORD_BELL = 6,
    CB_RECORD_NOTICE = 7,
    CB_RECORD_ADMIN = 8,
    CB_RECORD_REPLY = 9,
    CB_RECORD_NAMES = 10,
};

struct cb_record_head {
    uint16_t magic; /* CB_RECORD_MAGIC */
    uint16_t type;  /* enum cb_record_type */
    uint32_t reserved;
};

/* How the client wants to be woken: a futex on `bell`, of a lane by name its semaphore instead; or a
 * BELL record. */
enum cb_wake { CB_WAKE_FUTEX = 0, CB_WAKE_SOCKET = 1 };

/* hello.features, welcome.features: what is offered, and what of it is agreed. */
#define CB_FEATURE_RESUME   0x1ull  /* request.resume_from, option 3, welcome.weight_epoch */
#define CB_FEATURE_NAMED    0x2ull  /* NAMES: asked for, not offered: it is had, or refused */
#define CB_FEATURE_SAMPLING 0x4ull  /* options of requests: format.h */
#define CB_FEATURE_LOGPROBS 0x8ull  /* planes of results */
#define CB_FEATURE_DEFAULTS 0x10ull /* welcome.defaults and seed */
#define CB_FEATURE_PAUSE    0x20ull /* up_hot.pause, down_hot.pause_seen */
#define CB_FEATURE_EPOCHS   0x40ull /* CB_PLANE_EPOCHS, CB_FLAG_ON_WEIGHTS */
#define CB_FEATURE_CHILDREN 0x80ull /* request.n_children above 1, child_idx */
#define CB_FEATURES                                                                        \
    (CB_FEATURE_RESUME | CB_FEATURE_SAMPLING | CB_FEATURE_LOGPROBS | CB_FEATURE_DEFAULTS | \
     CB_FEATURE_PAUSE | CB_FEATURE_EPOCHS | CB_FEATURE_CHILDREN)
#define CB_FEATURES_MUST 0xffffffff00000000ull

struct cb_hello {
    struct cb_record_head head;
    uint32_t format_min, format_max;
    uint64_t features;
    uint32_t word_size;               /* CB_WORD_SIZE */
    uint32_t endian;                  /* CB_ENDIAN as the client stores it */
    uint32_t n_slots;                 /* wanted; 0: the daemon's default */
    uint32_t wake;                    /* enum cb_wake */
    uint64_t arena_bytes, pool_bytes; /* wanted; 0: default */
    char libc[16];
    char name[CB_NAME_MAX]; /* for display */
    uint8_t reserved[120];
};

/* welcome.defaults: what the daemon's operator wants of requests that do not say. Zero unless
 * CB_FEATURE_DEFAULTS is agreed. */
#define CB_DEFAULT_SEED         0x1u /* seeds are drawn from welcome.seed */
#define CB_DEFAULT_LOGPROBS     0x2u
#define CB_DEFAULT_RAW_LOGPROBS 0x4u
#define CB_DEFAULTS             (CB_DEFAULT_SEED | CB_DEFAULT_LOGPROBS | CB_DEFAULT_RAW_LOGPROBS)

struct cb_welcome {
    struct cb_record_head head;
    uint32_t format, lane_id;
    uint64_t features;
    uint64_t boot_id[2];
    uint64_t fingerprint[2];
    struct cb_geometry geometry;
    uint64_t vocab_bytes, status_bytes;
    char status_name[48];
    uint32_t spin_us;  /* what the daemon advises a client in balanced mode */
    uint32_t defaults; /* CB_DEFAULT_ */
    uint64_t seed;
    uint32_t weight_epoch; /* in which fingerprint holds; 0 unless CB_FEATURE_RESUME */
    uint8_t reserved[4];
};

/* What is opened under these names, with which ending, says shm/names.h. */
struct cb_names_record {
    struct cb_record_head head;
    char lane[96];  /* 0-terminated, as is */
    char vocab[96]; /* this */
    uint8_t reserved[56];
};

struct cb_refused {
    struct cb_record_head head;
    int32_t status; /* enum cb_status */
    uint32_t detail[2];
    uint8_t reserved[236];
};

struct cb_plain_record { /* READY, BYE, BELL, NOTICE */
    struct cb_record_head head;
    uint8_t reserved[248];
};

/* A command with its argument, as text: "clients", "requests", "why", "settings", "set",
 * "cancel", "pause", "resume", "drain", "stop". To "stage-weights" the
 * daemon's answer carries a descriptor: memory for a file, which "load-weights" then loads. */
struct cb_admin {
    struct cb_record_head head;
    uint32_t command_bytes, argument_bytes;
    char command[32];
    char argument[208];
};

struct cb_reply {
    struct cb_record_head head;
    int32_t status; /* enum cb_status; on the last piece */
    uint16_t bytes; /* of text here */
    uint16_t is_last;
    char text[240];
};

static_assert(sizeof(struct cb_hello) == CB_RECORD_BYTES, "format 1");
static_assert(sizeof(struct cb_welcome) == CB_RECORD_BYTES, "format 1");
static_assert(sizeof(struct cb_names_record) == CB_RECORD_BYTES, "format 1");
static_assert(sizeof(struct cb_refused) == CB_RECORD_BYTES, "format 1");
static_assert(sizeof(struct cb_plain_record) == CB_RECORD_BYTES, "format 1");
static_assert(sizeof(struct cb_admin) == CB_RECORD_BYTES, "format 1");
static_assert(sizeof(struct cb_reply) == CB_RECORD_BYTES, "format 1");

#endif
