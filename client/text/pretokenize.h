/* client/text/pretokenize.h - cuts text into the words within which merging happens.
 *
 * One pattern for each enum cb_vocab_pre. Every byte of the text is in exactly one word. */
#ifndef CB_CLIENT_TEXT_PRETOKENIZE_H
#define CB_CLIENT_TEXT_PRETOKENIZE_H

#include <stddef.h>
#include <stdint.h>

struct cb_splitter;      /* the compiled pattern; read by any number of threads */
struct cb_splitter_scan; /* what one thread needs to use it                      */

/* 0; -ENOTSUP: no such pre-tokenizer; -ENOMEM. On 0 *splitterp is the caller's to free. */
int cb_splitter_new(struct cb_splitter **splitterp, uint32_t pre);
struct cb_splitter *cb_splitter_free(struct cb_splitter *s); /* NULL is fine; returns NULL */

/* For this splitter only, which must outlive it. 0 or -ENOMEM. */
int cb_splitter_scan_new(struct cb_splitter_scan **scanp, const struct cb_splitter *s);
struct cb_splitter_scan *cb_splitter_scan_free(struct cb_splitter_scan *scan);

/* Where the word that begins at `at` < n ends. text [n] must be valid UTF-8 and `at` the beginning
 * of the text or the end of the word before. 0 or -ENOMEM. */
int cb_splitter_next(const struct cb_splitter *s, struct cb_splitter_scan *scan,
                     const uint8_t *text, size_t n, size_t at, size_t *endp);

#endif
