/* client/text/decode.h - ids to text, piece by piece, never splitting a character.
 *
 * Ids go in as they come; out comes text in whole UTF-8 characters, as soon as each is whole.
 * However the ids and the room for text are cut into calls, the pieces put together are the
 * same. What the model made that is not UTF-8 becomes U+FFFD, one for each fault (shm/utf8.h),
 * or with CB_DECODE_RAW stays as it is.
 *
 * With stop strings, text that may begin one is held back until that is decided, and neither the
 * stop (but for CB_DECODE_KEEP_STOP) nor what follows it comes out: the same bytes that the
 * daemon counts (shm/stop.h). Stops are matched on what the model made, before faults are
 * replaced.
 *
 * A decoder is plain memory of fixed size: no allocation, nothing to free, may be copied. One
 * thread. */
#ifndef CB_CLIENT_TEXT_DECODE_H
#define CB_CLIENT_TEXT_DECODE_H

#include <stddef.h>
#include <stdint.h>

#include "shm/stop.h"
#include "shm/utf8.h"
#include "shm/vocab.h"

enum cb_decode_flag {
    CB_DECODE_RAW = 1u << 0,       /* bytes that are not UTF-8 come out as they are        */
    CB_DECODE_SPECIAL = 1u << 1,   /* control tokens come out as written in the model file */
    CB_DECODE_KEEP_STOP = 1u << 2, /* the stop string that ended the text comes out too      */
};

enum { CB_DECODE_STOPPED = 1, CB_DECODE_ROOM = 2 };

/* Private to decode.c; here for its size. */
struct cb_decoder {
    const struct cb_vocab *vocab;
    const struct cb_stops *stops; /* or NULL */
    uint32_t flags;
    struct cb_decoder_place {
        struct cb_stop_state stop;
        uint64_t passed_bytes; /* of the model's text: past the stop strings, towards the reader */
        uint32_t stop_idx;     /* CB_VOCAB_NONE: none found                                      */
        uint32_t n_held;
        uint32_t n_tail;
        uint8_t held[CB_STOP_BYTES_MAX]; /* may begin a stop            */
        uint8_t tail[CB_UTF8_BYTES_MAX]; /* beginning of a character    */
    } place;
};

/* vocab, and stops if not NULL, must outlive the decoder. 0; -EINVAL: CB_DECODE_SPECIAL with stops
 * (the daemon does not match stops on control tokens, so counts would differ). */
int cb_decoder_init(struct cb_decoder *d, const struct cb_vocab *vocab,
                    const struct cb_stops *stops, uint32_t flags);

/* Takes up to n ids and writes the text that is certain to out [capacity], without a 0 at the end.
 * *n_taken ids were taken, *n_out bytes written, also if the answer is not 0:
 *   0                   all were taken
 *   CB_DECODE_STOPPED   a stop string ended the text; ids after it are never taken
 *   CB_DECODE_ROOM      the text of the next id does not fit in what is left of out: come again
 *   -EINVAL             the next id is outside the vocabulary
 * Three times (CB_STOP_BYTES_MAX + the longest token's bytes) is room enough for any one id. */
int cb_decoder_feed(struct cb_decoder *d, const uint32_t *ids, size_t n, size_t *n_taken, char *out,
                    size_t capacity, size_t *n_out);

/* The ids are at their end: writes what was held back, as text, except the beginning of a character
 * whose rest never came (cb_decoder_tail). 0, or CB_DECODE_ROOM with nothing changed. */
int cb_decoder_finish(struct cb_decoder *d, char *out, size_t capacity, size_t *n_out);

/* The bytes, 0 to 3, of the character that is incomplete so far. After finish this is what is left:
 * show it as U+FFFD, as whole-text decoders do, or keep the bytes. Valid until d is used again. */
const uint8_t *cb_decoder_tail(const struct cb_decoder *d, size_t *n);

/* After CB_DECODE_STOPPED: which stop. Else CB_VOCAB_NONE. */
uint32_t cb_decoder_stop_idx(const struct cb_decoder *d);

#endif
