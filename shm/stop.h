/* shm/stop.h - stop strings: found in a stream of bytes that comes in pieces of any size.
 *
 * The daemon feeds the text of each generated token and ends the request at a match; the library
 * feeds the same bytes and holds back what may yet turn out to begin a stop. Both use this code, so
 * they agree. What bytes a token adds to the text says cb_vocab_text() (shm/vocab.h): control
 * tokens add none.
 *
 * Which match counts: the one that ends first; of several that end at the same byte, the one that
 * begins first (the longest); of equal strings, the one added first. How the bytes were cut into
 * pieces never matters. A stop may begin and end inside a token, and its first byte may follow an
 * incomplete character.
 *
 * struct cb_stops is what was compiled: fixed size, no pointers, may be copied with memcpy and read
 * by any number of threads. struct cb_stop_state is one stream's place in it. Nothing here
 * allocates or fails once the strings are added; a byte costs at most a few operations a string. */
#ifndef CB_SHM_STOP_H
#define CB_SHM_STOP_H

#include <stddef.h>
#include <stdint.h>

#define CB_STOPS_MAX      16  /* strings a request      */
#define CB_STOP_BYTES_MAX 256 /* bytes of one string    */

/* Private to stop.c; here so that it can be embedded and copied. */
struct cb_stops {
    uint32_t n_stops;
    uint16_t first[CB_STOPS_MAX + 1]; /* string i is chain[first[i]] .. chain[first[i + 1] - 1] */
    struct cb_stop_link {
        uint8_t byte;
        uint8_t back; /* if the byte after this one does not fit: so many bytes are still matched */
    } chain[CB_STOPS_MAX * CB_STOP_BYTES_MAX];
};

/* One stream. All zero is the beginning: `struct cb_stop_state state = {0};` */
struct cb_stop_state {
    uint64_t fed_bytes;
    uint16_t matched[CB_STOPS_MAX]; /* bytes of string i that the latest bytes fed agree with */
};

struct cb_stop_match {
    uint32_t stop_idx;   /* which string, in the order of adding                     */
    uint64_t text_bytes; /* bytes of the stream before the stop: what is kept        */
    uint64_t end_bytes;  /* bytes of the stream up to and including the stop's last  */
};

/* Empties the set. */
void cb_stops_init(struct cb_stops *stops);

/* Adds one string; its index is the number of strings before it. 0, or, with the set unchanged:
 *   -EINVAL   it is empty
 *   -E2BIG    it is longer than CB_STOP_BYTES_MAX
 *   -ENOSPC   there are CB_STOPS_MAX already
 *   -EILSEQ   it is not valid UTF-8 */
int cb_stops_add(struct cb_stops *stops, const void *bytes, size_t n);

enum { CB_STOP_FOUND = 1 };

/* Feeds the next n bytes (bytes may be NULL if n is 0). 0: no stop so far. CB_STOP_FOUND: *match
 * says which and where; what followed it in this piece was not looked at, and the stream must not
 * be fed again. */
int cb_stop_feed(const struct cb_stops *stops, struct cb_stop_state *state, const void *bytes,
                 size_t n, struct cb_stop_match *match);

/* How many of the latest bytes fed may begin a stop (at most CB_STOP_BYTES_MAX - 1): a reader must
 * not see them yet. The bytes before them will never be part of one. At the end of the stream
 * without a match nothing is held any more: all bytes fed are text. */
uint32_t cb_stop_held(const struct cb_stops *stops, const struct cb_stop_state *state);

#endif
