/* tests/util/memory_file.h - a regular file with a path that no disk holds: a memfd under
 * /proc/self/fd. */
#ifndef CB_TESTS_UTIL_MEMORY_FILE_H
#define CB_TESTS_UTIL_MEMORY_FILE_H

#include <stddef.h>

struct gguf_out;

#define MEMORY_FILE_PATH_MAX 32

/* Writes the bytes and the path; returns the descriptor, which the caller closes when done. Aborts
 * on failure. */
int memory_file(const void *data, size_t bytes, char path[MEMORY_FILE_PATH_MAX]);
/* The same of a file that tests build; frees o. */
int memory_file_gguf(struct gguf_out *o, char path[MEMORY_FILE_PATH_MAX]);

#endif
