/* tests/fuzz/fuzz_gguf.c - any bytes as a model file: keys, tensors, hyperparameters,
 * vocabulary. */
#include <stdlib.h>
#include <string.h>

#include "daemon/model/config.h"
#include "daemon/model/gguf.h"
#include "daemon/model/model.h"
#include "daemon/model/vocabulary.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char message[MODEL_MESSAGE_MAX] = "";
    struct vocab_image *vocab;
    struct gguf *g;
    struct config c;
    /* A copy of the exact size: the sanitizer sees the first byte beyond it. */
    void *copy = malloc(size ? size : 1);
    unsigned sum = 0;

    if (!copy)
        abort();
    memcpy(copy, data, size);
    if (gguf_parse(&g, copy, size, "FILE", message) == 0) {
        for (uint32_t i = 0; i < gguf_n_tensors(g); i++) {
            const struct gguf_tensor *t = gguf_tensor_at(g, i);
            const uint8_t *bytes = (const uint8_t *)copy + t->file_off;

            for (size_t j = 0; j < t->bytes; j++)
                sum += bytes[j];
            if (gguf_tensor(g, t->name) != t)
                abort();
        }
        config_read(&c, g, message);
        if (vocab_image_from_gguf(&vocab, g, message) == 0)
            vocab_image_free(vocab);
        gguf_free(g);
    } else if (strlen(message) == 0 || strlen(message) >= MODEL_MESSAGE_MAX) {
        abort();
    }
    free(copy);
    return (int)(sum & 0); /* sum is used: the reads are not left out */
}
