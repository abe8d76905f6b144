/* client/text/tokenizer.h - text to ids, from a published vocabulary (shm/vocab.h).
 *
 * The order of things: user-defined tokens (and, if asked, control tokens) are found in the text,
 * the leftmost first, the longest of those that begin there; what lies between is normalised if the
 * vocabulary says so, cut into words, and each word merged. The ids are those of the model's own
 * tokenizer.
 *
 * Control tokens written out in text ("<|im_end|>") are plain text unless CB_TOKENIZE_SPECIAL is
 * given. Give it for text that you made, such as a rendered chat whose parts you trust; whoever can
 * write a part of such text can steer the model.
 *
 * A tokenizer never changes once made and may be used by any number of threads, each with a
 * scratch of its own. Time is about n log n in the bytes of the text, whatever it holds. */
#ifndef CB_CLIENT_TEXT_TOKENIZER_H
#define CB_CLIENT_TEXT_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

#include "shm/vocab.h"

struct cb_tokenizer;
struct cb_tokenizer_scratch; /* a thread's working memory; grows with the longest word */

#define CB_TOKENIZE_TEXT_MAX ((size_t)1 << 30) /* bytes of one text */

enum cb_tokenize_flag {
    CB_TOKENIZE_SPECIAL = 1u << 0, /* control tokens in the text are those tokens      */
    CB_TOKENIZE_NO_BOS = 1u << 1,  /* no BOS in front, whatever the vocabulary says    */
    CB_TOKENIZE_BOS = 1u << 2,     /* BOS in front; with neither: as the vocabulary says */
};

enum { CB_TOKENIZE_ROOM = 1 }; /* not all ids fit */

/* 0; -ENOTSUP: the vocabulary asks for a pre-tokenizer that this library does not have; -ENOMEM. On
 * 0 *tokenizerp is the caller's to free; vocab must outlive it. */
int cb_tokenizer_new(struct cb_tokenizer **tokenizerp, const struct cb_vocab *vocab);
struct cb_tokenizer *cb_tokenizer_free(struct cb_tokenizer *t); /* NULL is fine; returns NULL */

/* For this tokenizer only, which must outlive it. 0 or -ENOMEM. */
int cb_tokenizer_scratch_new(struct cb_tokenizer_scratch **scratchp, const struct cb_tokenizer *t);
struct cb_tokenizer_scratch *cb_tokenizer_scratch_free(struct cb_tokenizer_scratch *scratch);

/* Makes ids of text [n] (may be NULL if n is 0; NUL bytes are text). capacity may be 0, and ids
 * NULL then.
 *   0                  *n_ids ids were written
 *   CB_TOKENIZE_ROOM   *n_ids are needed; the first `capacity` of them were written
 *   -EILSEQ            not UTF-8: *n_ids is the position of the first byte that is not part of a
 *                      character
 *   -EINVAL            both BOS flags; or CB_TOKENIZE_BOS, but the vocabulary has none
 *   -E2BIG             longer than CB_TOKENIZE_TEXT_MAX
 *   -ENOMEM
 * On the last three *n_ids is 0. Bytes for which the vocabulary has no token (a few control
 * characters, in some) are dropped, as by the model's own tokenizer. */
int cb_tokenizer_encode(const struct cb_tokenizer *t, struct cb_tokenizer_scratch *scratch,
                        const void *text, size_t n, uint32_t flags, uint32_t *ids, size_t capacity,
                        size_t *n_ids);

#endif
