/* client/text/bpe.h - byte-pair merging of one word.
 *
 * The pair of neighbours with the lowest rank merges first, the leftmost of equals, until none
 * merges. Time is n log n in the bytes of the word; there is no limit on them. */
#ifndef CB_CLIENT_TEXT_BPE_H
#define CB_CLIENT_TEXT_BPE_H

#include <stddef.h>
#include <stdint.h>

#include "shm/vocab.h"

/* Where ids go: counted all, written as far as there is room. */
struct cb_ids {
    uint32_t *ids;
    size_t capacity;
    size_t n;
};

static inline void cb_ids_put(struct cb_ids *out, uint32_t id)
{
    if (out->n < out->capacity)
        out->ids[out->n] = id;
    out->n++;
}

/* Memory for long words, one thread's; all zero is the beginning. */
struct cb_bpe {
    struct cb_bpe_symbol *symbols;
    uint64_t *heap;
    size_t capacity;
};

/* Frees the memory and leaves *bpe as at the beginning. */
void cb_bpe_fini(struct cb_bpe *bpe);

/* Puts the ids of word [n], n at least 1 and below 2^31. A byte for which the vocabulary has no
 * token is dropped, as the models' own tokenizers do. 0 or -ENOMEM, with nothing put. */
int cb_bpe_word(struct cb_bpe *bpe, const struct cb_vocab *vocab, const uint8_t *word, size_t n,
                struct cb_ids *out);

#endif
