/* tests/util/safetensors.h - reads the recorded data of tests. Whatever is wrong with a file is
 * said on stderr. */
#ifndef CB_TESTS_UTIL_SAFETENSORS_H
#define CB_TESTS_UTIL_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

struct safetensors;

/* The whole file in memory, or NULL. */
struct safetensors *safetensors_open(const char *path);
struct safetensors *safetensors_close(struct safetensors *s);

/* The data of a tensor of that type ("F32", "F16", "I32") with up to 4 dimensions (those missing
 * are 1), or NULL. Aligned to 4 (F16: 2). */
const void *safetensors_get(const struct safetensors *s, const char *name, const char *dtype,
                            uint32_t shape[4]);

/* Names in the order of the file; NULL past the last. */
const char *safetensors_name(const struct safetensors *s, size_t i);

#endif
