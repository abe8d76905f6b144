/* tests/model/common.h - opening a model for a test, and where its data lie. */
#ifndef CB_TESTS_MODEL_COMMON_H
#define CB_TESTS_MODEL_COMMON_H

#include "daemon/model/model.h"
#include "tests/util/sanitized.h"

struct gguf_out;

/* The default model: $CBD_MODEL, else where `make model` puts it. */
const char *default_model(void);

/* A model of that file on that backend, with blocks for n_seqs sequences of seq_tokens; the test
 * fails if it does not open. */
struct model *open_model(const char *path, const char *backend, enum dtype kv_dtype,
                         uint32_t n_seqs, uint32_t seq_tokens, uint32_t max_batch_tokens);
/* The same of a file that the test built; takes o. */
struct model *open_built(struct gguf_out *o, const char *backend, enum dtype kv_dtype,
                         uint32_t n_seqs, uint32_t seq_tokens, uint32_t max_batch_tokens);

/* |a - b|^2 / |b|^2; huge if a value is not finite. */
double nmse(const float *a, const float *b, size_t n);

#endif
