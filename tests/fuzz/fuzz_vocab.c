/* Bytes as a VOCAB segment: attach refuses it, or everything it allows is safe. */
#include <stdlib.h>
#include <string.h>

#include "shm/vocab.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static volatile uint32_t seen; /* so that reads are not optimised away */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    void *base = aligned_alloc(8, (n + 8) & ~(size_t)7);
    struct cb_vocab v;
    memcpy(base, data, n);
    if (cb_vocab_attach(&v, base, n) == 0) {
        uint32_t length;
        for (uint32_t id = 0; id < v.n_tokens; id++) {
            const uint8_t *bytes = cb_vocab_bytes(&v, id, &length);
            for (uint32_t i = 0; i < length; i++)
                seen += bytes[i];
            seen += cb_vocab_find(&v, bytes, length);
            seen += cb_vocab_merge_rank(&v, id, v.n_tokens - 1 - id);
        }
        for (uint32_t i = 0; i < v.n_specials; i++)
            seen += *cb_vocab_bytes(&v, v.special_ids[i], &length);
        for (uint32_t i = 0; i < v.template_bytes; i++)
            seen += (uint8_t)v.chat_template[i];
        for (uint32_t i = 0; i < v.name_bytes; i++)
            seen += (uint8_t)v.name[i];
    }
    free(base);
    return 0;
}
