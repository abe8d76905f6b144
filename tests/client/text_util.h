/* tests/client/text_util.h - vocabularies and tokenizing for the tests of client/text. */
#ifndef CB_TESTS_CLIENT_TEXT_UTIL_H
#define CB_TESTS_CLIENT_TEXT_UTIL_H

#include <stddef.h>
#include <stdint.h>

#include "client/text/tokenizer.h"
#include "daemon/model/vocabulary.h"

/* A vocabulary with a tokenizer on it. Any failure fails the test. */
struct text_fixture {
    struct vocab_image *image;
    const struct cb_vocab *vocab;
    struct cb_tokenizer *tokenizer;
    struct cb_tokenizer_scratch *scratch;
};

/* Of the default model ($CBD_MODEL or build/models/...). */
struct text_fixture fixture_default(void);
/* Of this image, which is the fixture's from here on. */
struct text_fixture fixture_of(struct vocab_image *image);
/* All 256 bytes as ids 0 to 255, no merges, this pre-tokenizer, and control token 256 "<s>" as
 * BOS. */
struct text_fixture fixture_bytes(enum cb_vocab_pre pre, uint32_t flags);
void fixture_fini(struct text_fixture *f);

/* Ids of text [n] in *idsp, to be freed; returns how many. */
size_t fixture_ids(struct text_fixture *f, const void *text, size_t n, uint32_t flags,
                   uint32_t **idsp);

#endif
