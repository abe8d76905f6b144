/* daemon/model/gguf.h - reads a GGUF file, version 2 or 3, whose every byte may be hostile.
 *
 * All lengths, counts, types and offsets are checked once, when the file is opened; memory is
 * bounded by GGUF_HEAD_MAX, GGUF_KEYS_MAX and GGUF_TENSORS_MAX, whatever the file claims. What the
 * look-ups hand out points into a copy of the file's head and lives as long as the struct gguf:
 * nobody changes it by writing to the file. The data of the tensors are not read here: a
 * gguf_tensor says where in the file they lie, and lay inside it when it was opened; whoever reads
 * them (loader.h) sees whether they still do.
 *
 * The order of keys does not matter. A key or tensor that occurs twice is refused. Any thread, not
 * two at a time during open. Messages (MODEL_MESSAGE_MAX bytes) name the key or tensor and the
 * offset in the file. */
#ifndef CB_DAEMON_MODEL_GGUF_H
#define CB_DAEMON_MODEL_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"

#define GGUF_KEYS_MAX    65536u
#define GGUF_TENSORS_MAX 65536u
#define GGUF_NAME_MAX    255u        /* bytes of the name of a key or tensor                   */
#define GGUF_HEAD_MAX    (64u << 20) /* bytes of a file before the data; 262144 tokens take 20 */

/* The file's own numbers. */
enum gguf_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_TYPE_COUNT
};

struct gguf;

/* Bytes of the file: no NUL at the end, any byte inside. */
struct gguf_string {
    const char *data;
    size_t n;
};

struct gguf_array {
    enum gguf_type type; /* of the elements; never GGUF_ARRAY */
    uint64_t n;          /* elements                          */
    const uint8_t *data; /* not aligned                       */
    size_t bytes;
    uint64_t file_off; /* of data, for messages             */
};

struct gguf_tensor {
    char name[GGUF_NAME_MAX + 1];
    enum dtype dtype;
    uint32_t n_dims;  /* 1 to 4                                                         */
    uint64_t dims[4]; /* dims[0] is contiguous (columns), dims[1] rows; those past n_dims are 1 */
    size_t bytes;
    uint64_t file_off; /* of the data                                                    */
};

/* Opens the regular file at path and reads its head. 0 or a negative errno with message; on 0 *ggufp is the
 * caller's. */
int gguf_open(struct gguf **ggufp, const char *path, char *message);
/* The same of an open file, which stays the caller's; `name` is for messages. */
int gguf_open_fd(struct gguf **ggufp, int fd, const char *name, char *message);
/* The same over bytes that stay the caller's and must outlive *ggufp; data is aligned to 8; `name`
 * is for messages. */
int gguf_parse(struct gguf **ggufp, const void *data, size_t bytes, const char *name,
               char *message);
struct gguf *gguf_free(struct gguf *g); /* NULL is fine; returns NULL */

/* Look-ups: 0; GGUF_MISSING: no such key, *valuep untouched; -EINVAL with message: it has another
 * type, or its value does not fit. Any integer type serves u32 and u64; f32 takes f32 or f64. */
enum { GGUF_MISSING = 1 };
int gguf_u32(const struct gguf *g, const char *key, uint32_t *valuep, char *message);
int gguf_u64(const struct gguf *g, const char *key, uint64_t *valuep, char *message);
int gguf_f32(const struct gguf *g, const char *key, float *valuep, char *message);
int gguf_bool(const struct gguf *g, const char *key, bool *valuep, char *message);
int gguf_string(const struct gguf *g, const char *key, struct gguf_string *valuep, char *message);
/* An array whose elements are of this type. */
int gguf_array(const struct gguf *g, const char *key, enum gguf_type type,
               struct gguf_array *valuep, char *message);

/* Element i < n of an array of I32 or U32, or of F32. */
int32_t gguf_array_i32(const struct gguf_array *a, uint64_t i);
float gguf_array_f32(const struct gguf_array *a, uint64_t i);

/* Walks an array of strings in order:
 *     struct gguf_walk walk = gguf_walk(&array);
 *     while (gguf_walk_next(&walk, &string)) ... */
struct gguf_walk {
    const uint8_t *at, *end;
    uint64_t n_left;
};
struct gguf_walk gguf_walk(const struct gguf_array *a);
bool gguf_walk_next(struct gguf_walk *w, struct gguf_string *stringp);

/* Tensors in the order of the file, one array; by name, NULL if there is none. */
uint32_t gguf_n_tensors(const struct gguf *g);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, uint32_t i);
const struct gguf_tensor *gguf_tensor(const struct gguf *g, const char *name);

/* The path, for messages; the open file, which stays gguf's, -1 after gguf_parse; its bytes when it
 * was opened. */
const char *gguf_path(const struct gguf *g);
int gguf_fd(const struct gguf *g);
size_t gguf_bytes(const struct gguf *g);
const char *gguf_type_name(enum gguf_type t);

#endif
