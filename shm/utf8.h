/* shm/utf8.h - UTF-8, strictly: no overlong form, no surrogate, nothing above U+10FFFF.
 *
 * Where bytes are not UTF-8, what counts as one fault is the longest beginning of a character that
 * could still have become one, or else a single byte ("maximal subpart", Unicode 3.9): replacing
 * each fault by U+FFFD gives what Python's errors="replace" and most other decoders give. Pure
 * functions. */
#ifndef CB_SHM_UTF8_H
#define CB_SHM_UTF8_H

#include <stddef.h>
#include <stdint.h>

enum { CB_UTF8_BYTES_MAX = 4 }; /* of one character */

/* Looks at the beginning of bytes [n], n at least 1. Returns
 *    k > 0   the first k bytes are a character
 *    0       all n bytes are the beginning of a character whose rest is missing
 *   -k < 0   the first k bytes are one fault */
int cb_utf8_scan(const uint8_t *bytes, size_t n);

/* How many leading bytes of bytes [n] are whole, valid characters: n if all are; else the position
 * of the first fault or of the incomplete character at the end. bytes may be NULL if n is 0. */
size_t cb_utf8_valid(const uint8_t *bytes, size_t n);

#endif
