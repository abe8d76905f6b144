/* daemon/model/gguf_file.h - what the files behind gguf.h share; nobody else includes it.
 *
 * gguf.c opens and reads the header, by gguf_cursor.c; gguf_keys.c keys, gguf_tensors.c tensors;
 * gguf_values.c looks keys up. */
#ifndef CB_DAEMON_MODEL_GGUF_FILE_H
#define CB_DAEMON_MODEL_GGUF_FILE_H

#include <string.h>

#include "daemon/model/gguf.h"

#define GGUF_DAMAGED "the file is damaged or cut short; fetch it again"

struct entry {
    char name[GGUF_NAME_MAX + 1];
    enum gguf_type type;
    struct gguf_string value; /* of scalars, their bytes; of strings, the text */
    struct gguf_array array;
    uint64_t file_off; /* of the key */
};

struct gguf {
    char *path;
    int fd;              /* -1: the bytes are the caller's                                    */
    const uint8_t *data; /* the head: [n_read] of the file's bytes                            */
    size_t bytes;        /* of the file                                                       */
    size_t n_read;
    uint8_t *head; /* [head_bytes] what data points to, if the bytes are not the caller's */
    size_t head_bytes;
    struct entry *entries;
    const struct entry **entries_by_name;
    uint32_t n_entries;
    struct gguf_tensor *tensors;
    const struct gguf_tensor **tensors_by_name;
    uint32_t n_tensors;
};

/* What is being read, for messages: "key" or "tensor", its name once known, else its number. */
struct cursor {
    struct gguf *g;
    uint64_t at;
    char *message;
    const char *what;
    const char *name;
    uint64_t idx;
};

/* Little-endian bytes; the machines we run on are too. */
static inline uint32_t load_u32(const uint8_t *p)
{
    uint32_t v;

    memcpy(&v, p, sizeof v);
    return v;
}

static inline uint64_t load_u64(const uint8_t *p)
{
    uint64_t v;

    memcpy(&v, p, sizeof v);
    return v;
}

static inline uint64_t cursor_left(const struct cursor *c)
{
    return c->g->bytes - c->at;
}

/* Makes bytes [0, end) of the file readable, which has as many. */
int gguf_read_head(struct gguf *g, uint64_t end, char *message);

/* The next n bytes of what is being read, or NULL with the message. `part` is for it. */
const uint8_t *cursor_take(struct cursor *c, uint64_t n, const char *part);
int cursor_take_u32(struct cursor *c, uint32_t *v, const char *part);
int cursor_take_u64(struct cursor *c, uint64_t *v, const char *part);
int cursor_take_string(struct cursor *c, struct gguf_string *s, const char *part);
/* Reads the name (GGUF_NAME_MAX + 1 bytes) that a key or tensor begins with; messages use it from
 * here on. */
int cursor_take_name(struct cursor *c, const char *what, uint64_t idx, char *name);

/* The next key, with its value. */
int gguf_take_entry(struct cursor *c, uint64_t idx, struct entry *e);
/* Sorts what was read, by name; refuses a name that occurs twice. */
int gguf_index_entries(struct gguf *g, char *message);

/* Fills g->tensors with the next n_tensors descriptions; file_off is still the offset in the
 * data. */
int gguf_take_tensors(struct gguf *g, struct cursor *c, uint64_t n_tensors);
/* Turns offsets into places (aligned, inside the file, apart from each other) and sorts the
 * names. */
int gguf_place_tensors(struct gguf *g, uint64_t data_off, uint32_t alignment, char *message);

#endif
