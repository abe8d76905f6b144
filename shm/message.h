/* shm/message.h - what a request says: built by the client, copied out and checked by the daemon.
 *
 * Everything here works on private memory: the client builds an entry and an option block and
 * copies them into UP; the daemon copies both out, once, and hands the copies in here. Pure
 * functions, no allocation. Whatever the bytes are, the answer is a status with the two numbers of
 * its text. */
#ifndef CB_SHM_MESSAGE_H
#define CB_SHM_MESSAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shm/format.h"
#include "shm/sampling.h"
#include "shm/status.h"
#include "shm/stop.h"

/* ---- client ---------------------------------------------------------------------------------- */

struct cb_message_text {
    const void *bytes;
    size_t n;
};

/* What goes into an option block. */
struct cb_message_options {
    const uint32_t *stop_ids;
    uint32_t n_stop_ids;
    const struct cb_message_text *stops; /* stop strings */
    uint32_t n_stops;
    struct cb_message_text cache_salt;  /* 0 bytes: none */
    const struct cb_sampling *sampling; /* NULL: nothing is asked */
    const struct cb_logit_bias *biases; /* ascending, as the lists below */
    uint32_t n_biases;
    const uint32_t *allowed_ids, *banned_ids;
    uint32_t n_allowed_ids, n_banned_ids; /* 0: no list */
    const struct cb_resume *resume;       /* NULL: it begins here */
};

/* All zero but op, n_children, top_p 1 and max_new_tokens CB_NO_LIMIT: greedy, no limit. */
void cb_message_init(struct cb_request_entry *entry);

/* Bytes of the option block: a multiple of 8; 0 if it says nothing, and then none is needed. It may
 * be more than CB_OPTIONS_MAX, which the daemon refuses: check the limits first. */
size_t cb_message_options_bytes(const struct cb_message_options *options);

/* Writes exactly that many bytes. */
void cb_message_options_build(const struct cb_message_options *options, void *block);

/* ---- daemon ---------------------------------------------------------------------------------- */

struct cb_message_limits {
    uint64_t arena_bytes;
    uint32_t n_slots, n_vocab;
    uint32_t n_context; /* the most that prompt and limit may have together */
    uint64_t features;  /* agreed with this client: control.h */
};

/* Checks every field of the copied entry: CB_OK or the reason, with detail[2]. May normalise: top_k
 * above the vocabulary becomes the vocabulary, -0.0 becomes 0, CB_NO_LIMIT becomes what the context
 * leaves. What resume_from asks of the option block is cb_message_check_resume's. */
enum cb_status cb_message_check(struct cb_request_entry *entry,
                                const struct cb_message_limits *limits, uint32_t detail[2]);

/* All ids must be below n_vocab. */
enum cb_status cb_message_check_ids(const uint32_t *ids, uint32_t n, uint32_t n_vocab,
                                    uint32_t detail[2]);

/* A checked option block. */
struct cb_message_parsed {
    const uint32_t *stop_ids; /* in the block */
    uint32_t n_stop_ids;
    struct cb_stops stops;  /* compiled; n_stops 0: none */
    const void *cache_salt; /* in the block */
    uint32_t n_cache_salt;  /* bytes; 0: none */
    struct cb_sampling sampling;
    const struct cb_logit_bias *biases; /* these are in the block */
    const uint32_t *allowed_ids, *banned_ids;
    uint32_t n_biases, n_allowed_ids, n_banned_ids;
    bool has_resume;
    struct cb_resume resume;
};

/* Of a request without an option block. */
void cb_message_parsed_init(struct cb_message_parsed *parsed);

/* Parses a copied block of `bytes` (8-aligned memory). Unknown types that need not be understood
 * are skipped. */
enum cb_status cb_message_parse_options(const void *block, size_t bytes, uint32_t n_vocab,
                                        struct cb_message_parsed *parsed, uint32_t detail[2]);

/* Both have passed: whether they agree about a request that goes on (format.h, struct cb_resume), and
 * whether it may under this fingerprint. */
enum cb_status cb_message_check_resume(const struct cb_request_entry *entry,
                                       const struct cb_message_parsed *parsed, uint64_t features,
                                       const uint64_t fingerprint[2], uint32_t detail[2]);

#endif
