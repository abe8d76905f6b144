/* tests/model/common.c */
#include "tests/model/common.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/util/memory_file.h"

#define PAGE_SIZE 32u

const char *default_model(void)
{
    const char *path = getenv("CBD_MODEL");

    return path && *path ? path : "build/models/SmolLM2-135M-Instruct.Q4_1.gguf";
}

struct model *open_model(const char *path, const char *backend, enum dtype kv_dtype,
                         uint32_t n_seqs, uint32_t seq_tokens, uint32_t max_batch_tokens)
{
    char message[MODEL_MESSAGE_MAX];
    struct model *m;
    const struct model_config config = {
        .path = path,
        .backend = backend,
        .kv_dtype = kv_dtype,
        .page_size = PAGE_SIZE,
        .n_blocks = n_seqs * ((seq_tokens + PAGE_SIZE - 1) / PAGE_SIZE),
        .max_batch_tokens = max_batch_tokens,
        .max_batch_seqs = n_seqs,
    };

    cr_assert_eq(model_open(&m, &config, message), 0, "%s", message);
    return m;
}

struct model *open_built(struct gguf_out *o, const char *backend, enum dtype kv_dtype,
                         uint32_t n_seqs, uint32_t seq_tokens, uint32_t max_batch_tokens)
{
    char path[MEMORY_FILE_PATH_MAX];
    int fd = memory_file_gguf(o, path);
    struct model *m = open_model(path, backend, kv_dtype, n_seqs, seq_tokens, max_batch_tokens);

    close(fd);
    return m;
}

double nmse(const float *a, const float *b, size_t n)
{
    double error = 0, size = 0;

    for (size_t i = 0; i < n; i++) {
        if (!isfinite(a[i]) || !isfinite(b[i]))
            return HUGE_VAL;
        error += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        size += (double)b[i] * (double)b[i];
    }
    return size > 0 ? error / size : HUGE_VAL;
}
