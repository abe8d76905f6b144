/* tests/util/gguf_write.h - builds GGUF files for tests, in memory or on disk.
 *
 * Keys and tensors keep the order of the calls. Any failure of the heap aborts: it is a test. */
#ifndef CB_TESTS_UTIL_GGUF_WRITE_H
#define CB_TESTS_UTIL_GGUF_WRITE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"

struct gguf_out;

struct gguf_out *gguf_out_new(uint32_t version); /* 2 or 3 */
struct gguf_out *gguf_out_free(struct gguf_out *o);

void gguf_out_u32(struct gguf_out *o, const char *key, uint32_t value);
void gguf_out_u64(struct gguf_out *o, const char *key, uint64_t value);
void gguf_out_f32(struct gguf_out *o, const char *key, float value);
void gguf_out_bool(struct gguf_out *o, const char *key, bool value);
void gguf_out_string(struct gguf_out *o, const char *key, const char *value);
void gguf_out_strings(struct gguf_out *o, const char *key, const char *const *values, size_t n);
void gguf_out_i32s(struct gguf_out *o, const char *key, const int32_t *values, size_t n);
void gguf_out_f32s(struct gguf_out *o, const char *key, const float *values, size_t n);

/* A matrix of n_rows rows of n_cols values, rounded to dtype (columns: a multiple of 32 for the Q
 * types); n_rows 0: a vector (one dimension). Values are copied. */
void gguf_out_tensor(struct gguf_out *o, const char *name, enum dtype dtype, uint32_t n_rows,
                     uint32_t n_cols, const float *values);

/* The whole file so far, aligned to 64, to be freed with free(); the tensors' data end the file. */
void *gguf_out_finish(struct gguf_out *o, size_t *bytesp);
/* The same into a file. */
void gguf_out_save(struct gguf_out *o, const char *path);

/* Rounds n values to dtype in GGUF's layout; returns the bytes written. n: a multiple of 32 for Q
 * types. */
size_t gguf_round(enum dtype dtype, const float *values, size_t n, void *out);

#endif
