/* daemon/model/vocabulary.h - the bytes that become VOCAB (shm/vocab.h): from a model file, or made
 * up.
 *
 * A vocab_image is those bytes in private memory, with a view of them for the daemon's own use
 * (text of generated tokens). It never changes once made; any thread may read it. */
#ifndef CB_DAEMON_MODEL_VOCABULARY_H
#define CB_DAEMON_MODEL_VOCABULARY_H

#include <stddef.h>
#include <stdint.h>

#include "shm/vocab.h"

struct gguf; /* daemon/model/gguf.h */
struct vocab_image;

/* What an image is made of. Nothing is kept: the image holds its own copies. */
struct vocab_spec {
    uint32_t n_tokens;
    /* [n_tokens + 1]; token i is text[text_off[i]] .. text[text_off[i + 1] - 1]. */
    const uint32_t *text_off;
    const uint8_t *text;
    const uint8_t *types; /* [n_tokens] enum cb_token_type            */
    uint32_t n_merges;
    const struct cb_vocab_merge *merges; /* [n_merges] by rank; of equal pairs the first counts */
    enum cb_vocab_pre pre;
    uint32_t flags;              /* enum cb_vocab_flag                        */
    uint32_t bos, eos, eot, unk; /* ids, or CB_VOCAB_NONE                     */
    const char *chat_template;   /* NULL if template_bytes is 0               */
    size_t template_bytes;
    const char *name; /* cut to CB_VOCAB_NAME_MAX bytes; NULL if name_bytes is 0 */
    size_t name_bytes;
};

/* 0; -ENOMEM; -EINVAL: it breaks a rule or bound of shm/vocab.h. On 0 *imagep is the caller's to
 * free. */
int vocab_image_new(struct vocab_image **imagep, const struct vocab_spec *spec);

/* From the metadata of a model file: byte-level BPE ("gpt2") with a pre-tokenizer that we know. 0
 * or a negative errno; then `message` (MODEL_MESSAGE_MAX bytes) says which key is wrong and how. */
int vocab_image_from_gguf(struct vocab_image **imagep, const struct gguf *g, char *message);

/* For the null model: n_tokens made-up tokens, no merges, no special tokens. From 512 tokens on,
 * ids 0 to 255 are the single bytes, so that any text makes ids and comes back; the others are " "
 * and a short lower-case word, all different. Below 512 tokens all are words, and text does not
 * come back. 0; -ENOMEM; -EINVAL: none, or more than CB_VOCAB_TOKENS_MAX. */
int vocab_image_null(struct vocab_image **imagep, uint32_t n_tokens);

struct vocab_image *vocab_image_free(struct vocab_image *image); /* NULL is fine; returns NULL */

/* To be copied into the VOCAB segment. Lives as long as the image. */
const void *vocab_image_data(const struct vocab_image *image);
size_t vocab_image_bytes(const struct vocab_image *image);

/* The same, checked and ready for look-ups. Lives as long as the image. */
const struct cb_vocab *vocab_image_view(const struct vocab_image *image);

#endif
