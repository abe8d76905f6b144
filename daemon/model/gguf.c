/* daemon/model/gguf.c - one pass over the head of the file, then look-ups in sorted indexes.
 *
 * A cursor that cannot leave the file does all reading; a count is believed only if that many of
 * the smallest possible things could still follow, so no claim in the file costs more time or
 * memory than the file's own size. Names are copied: they are compared and sorted later, while the
 * file could change. Values stay in the map, and every look-up reads them within the bounds
 * recorded here. */
#include "daemon/model/gguf.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/model/message.h"
#include "daemon/model/model.h"

#define HEADER_BYTES      24u /* magic, version, tensors, keys                        */
#define KEY_BYTES_MIN     13u /* length of the name, type, one byte of value          */
#define TENSOR_BYTES_MIN  32u /* length of the name, dimensions, one of them, type, offset */
#define ALIGNMENT_DEFAULT 32u
#define ALIGNMENT_MAX     65536u
#define DAMAGED           "the file is damaged or cut short; fetch it again"

struct entry {
    char name[GGUF_NAME_MAX + 1];
    enum gguf_type type;
    struct gguf_string value; /* of scalars, their bytes; of strings, the text */
    struct gguf_array array;
    uint64_t file_off; /* of the key */
};

struct gguf {
    char *path;
    const uint8_t *data;
    size_t bytes;
    void *map; /* NULL: the bytes are the caller's */
    struct entry *entries;
    const struct entry **entries_by_name;
    uint32_t n_entries;
    struct gguf_tensor *tensors;
    const struct gguf_tensor **tensors_by_name;
    uint32_t n_tensors;
};

/* What is being read, for messages: "key" or "tensor", its name once known, else its number. */
struct cursor {
    const struct gguf *g;
    uint64_t at;
    char *message;
    const char *what;
    const char *name;
    uint64_t idx;
};

/* ---- the numbers of the format
 * ------------------------------------------------------------------- */

static const struct {
    const char *name;
    uint8_t bytes; /* 0: has a length of its own */
} value_types[GGUF_TYPE_COUNT] = {
    [GGUF_U8] = {"u8", 1},       [GGUF_I8] = {"i8", 1},     [GGUF_U16] = {"u16", 2},
    [GGUF_I16] = {"i16", 2},     [GGUF_U32] = {"u32", 4},   [GGUF_I32] = {"i32", 4},
    [GGUF_F32] = {"f32", 4},     [GGUF_BOOL] = {"bool", 1}, [GGUF_STRING] = {"string", 0},
    [GGUF_ARRAY] = {"array", 0}, [GGUF_U64] = {"u64", 8},   [GGUF_I64] = {"i64", 8},
    [GGUF_F64] = {"f64", 8},
};

/* Tensor types by their number in the file. block_bytes 0: known by name only, so that the message
 * can say which type a file needs. */
static const struct {
    const char *name;
    enum dtype dtype;
    uint8_t block_cols, block_bytes;
} tensor_types[] = {
    [0] = {"F32", DTYPE_F32, 1, 4},        [1] = {"F16", DTYPE_F16, 1, 2},
    [2] = {"Q4_0", DTYPE_Q4_0, 32, 18},    [3] = {"Q4_1", DTYPE_Q4_1, 32, 20},
    [6] = {"Q5_0", DTYPE_COUNT, 0, 0},     [7] = {"Q5_1", DTYPE_COUNT, 0, 0},
    [8] = {"Q8_0", DTYPE_Q8_0, 32, 34},    [9] = {"Q8_1", DTYPE_COUNT, 0, 0},
    [10] = {"Q2_K", DTYPE_COUNT, 0, 0},    [11] = {"Q3_K", DTYPE_COUNT, 0, 0},
    [12] = {"Q4_K", DTYPE_COUNT, 0, 0},    [13] = {"Q5_K", DTYPE_COUNT, 0, 0},
    [14] = {"Q6_K", DTYPE_COUNT, 0, 0},    [15] = {"Q8_K", DTYPE_COUNT, 0, 0},
    [16] = {"IQ2_XXS", DTYPE_COUNT, 0, 0}, [17] = {"IQ2_XS", DTYPE_COUNT, 0, 0},
    [18] = {"IQ3_XXS", DTYPE_COUNT, 0, 0}, [19] = {"IQ1_S", DTYPE_COUNT, 0, 0},
    [20] = {"IQ4_NL", DTYPE_COUNT, 0, 0},  [21] = {"IQ3_S", DTYPE_COUNT, 0, 0},
    [22] = {"IQ2_S", DTYPE_COUNT, 0, 0},   [23] = {"IQ4_XS", DTYPE_COUNT, 0, 0},
    [24] = {"I8", DTYPE_COUNT, 0, 0},      [25] = {"I16", DTYPE_COUNT, 0, 0},
    [26] = {"I32", DTYPE_COUNT, 0, 0},     [27] = {"I64", DTYPE_COUNT, 0, 0},
    [28] = {"F64", DTYPE_COUNT, 0, 0},     [29] = {"IQ1_M", DTYPE_COUNT, 0, 0},
    [30] = {"BF16", DTYPE_BF16, 1, 2},     [34] = {"TQ1_0", DTYPE_COUNT, 0, 0},
    [35] = {"TQ2_0", DTYPE_COUNT, 0, 0},   [39] = {"MXFP4", DTYPE_COUNT, 0, 0},
};
#define N_TENSOR_TYPES     (sizeof tensor_types / sizeof tensor_types[0])
#define TENSOR_TYPES_WORDS "F32, F16, BF16, Q4_0, Q4_1 and Q8_0"

const char *gguf_type_name(enum gguf_type t)
{
    return (unsigned)t < GGUF_TYPE_COUNT ? value_types[t].name : "unknown";
}

/* ---- reading
 * -------------------------------------------------------------------------------------- */

/* Little-endian bytes; the machines we run on are too. */
static uint32_t load_u32(const uint8_t *p)
{
    uint32_t v;

    memcpy(&v, p, sizeof v);
    return v;
}

static uint64_t load_u64(const uint8_t *p)
{
    uint64_t v;

    memcpy(&v, p, sizeof v);
    return v;
}

static uint64_t left(const struct cursor *c)
{
    return c->g->bytes - c->at;
}

/* The next n bytes, or NULL with the message. */
static const uint8_t *take(struct cursor *c, uint64_t n, const char *part)
{
    const uint8_t *p = c->g->data + c->at;

    if (n > left(c)) {
        if (c->name)
            model_refuse(c->message, -EINVAL,
                         "%s: %s '%s': its %s at byte %" PRIu64 " needs %" PRIu64
                         " bytes, but the file ends %" PRIu64 " bytes later: " DAMAGED,
                         c->g->path, c->what, c->name, part, c->at, n, left(c));
        else
            model_refuse(c->message, -EINVAL,
                         "%s: %s number %" PRIu64 ": its %s at byte %" PRIu64 " needs %" PRIu64
                         " bytes, but the file ends %" PRIu64 " bytes later: " DAMAGED,
                         c->g->path, c->what, c->idx, part, c->at, n, left(c));
        return NULL;
    }
    c->at += n;
    return p;
}

static int take_u32(struct cursor *c, uint32_t *v, const char *part)
{
    const uint8_t *p = take(c, 4, part);

    if (!p)
        return -EINVAL;
    *v = load_u32(p);
    return 0;
}

static int take_u64(struct cursor *c, uint64_t *v, const char *part)
{
    const uint8_t *p = take(c, 8, part);

    if (!p)
        return -EINVAL;
    *v = load_u64(p);
    return 0;
}

static int take_string(struct cursor *c, struct gguf_string *s, const char *part)
{
    uint64_t n;
    const uint8_t *p;
    int r = take_u64(c, &n, part);

    if (r)
        return r;
    p = take(c, n, part);
    if (!p)
        return -EINVAL;
    *s = (struct gguf_string){(const char *)p, (size_t)n};
    return 0;
}

/* Reads the name that a key or tensor begins with. From here on messages can use it. */
static int take_name(struct cursor *c, const char *what, uint64_t idx, char *name)
{
    struct gguf_string s;
    uint64_t start = c->at;
    int r;

    c->what = what;
    c->name = NULL;
    c->idx = idx;
    r = take_string(c, &s, "name");
    if (r)
        return r;
    if (s.n == 0 || s.n > GGUF_NAME_MAX || memchr(s.data, 0, s.n))
        return model_refuse(c->message, -EINVAL,
                            "%s: %s number %" PRIu64 " at byte %" PRIu64
                            ": a name has 1 to %u bytes and no NUL, this one has %zu: " DAMAGED,
                            c->g->path, what, idx, start, GGUF_NAME_MAX, s.n);
    memcpy(name, s.data, s.n);
    name[s.n] = '\0';
    c->name = name;
    return 0;
}

static int take_type(struct cursor *c, enum gguf_type *type)
{
    uint32_t number;
    int r = take_u32(c, &number, "type");

    if (r)
        return r;
    if (number >= GGUF_TYPE_COUNT)
        return model_refuse(c->message, -EINVAL,
                            "%s: key '%s': value type %" PRIu32 " at byte %" PRIu64
                            " is none of GGUF's %d: " DAMAGED,
                            c->g->path, c->name, number, c->at - 4, GGUF_TYPE_COUNT);
    *type = (enum gguf_type)number;
    return 0;
}

static int take_array(struct cursor *c, struct gguf_array *a)
{
    uint64_t at, element_bytes;
    struct gguf_string s;
    int r = take_type(c, &a->type);

    at = c->at;
    if (!r)
        r = take_u64(c, &a->n, "array length");
    if (r)
        return r;
    if (a->type == GGUF_ARRAY)
        return model_refuse(c->message, -EINVAL,
                            "%s: key '%s' at byte %" PRIu64
                            ": arrays of arrays are not supported: convert the model again",
                            c->g->path, c->name, at);
    element_bytes = a->type == GGUF_STRING ? 8 : value_types[a->type].bytes;
    if (a->n > left(c) / element_bytes)
        return model_refuse(c->message, -EINVAL,
                            "%s: key '%s': the array at byte %" PRIu64 " claims %" PRIu64
                            " elements of type %s, but only %" PRIu64
                            " bytes of the file follow: " DAMAGED,
                            c->g->path, c->name, at, a->n, gguf_type_name(a->type), left(c));
    a->file_off = c->at;
    a->data = c->g->data + c->at;
    if (a->type == GGUF_STRING)
        for (uint64_t i = 0; i < a->n && !r; i++)
            r = take_string(c, &s, "array element");
    else
        c->at += a->n * element_bytes;
    a->bytes = (size_t)(c->at - a->file_off);
    return r;
}

static int take_entry(struct cursor *c, uint64_t idx, struct entry *e)
{
    const uint8_t *p;
    int r;

    e->file_off = c->at;
    r = take_name(c, "key", idx, e->name);
    if (!r)
        r = take_type(c, &e->type);
    if (r)
        return r;
    if (e->type == GGUF_STRING)
        return take_string(c, &e->value, "string");
    if (e->type == GGUF_ARRAY)
        return take_array(c, &e->array);
    p = take(c, value_types[e->type].bytes, "value");
    if (!p)
        return -EINVAL;
    e->value = (struct gguf_string){(const char *)p, value_types[e->type].bytes};
    if (e->type == GGUF_BOOL && *p > 1)
        return model_refuse(c->message, -EINVAL,
                            "%s: key '%s': the bool at byte %" PRIu64 " is %u: " DAMAGED,
                            c->g->path, c->name, c->at - 1, *p);
    return 0;
}

static int check_type(struct cursor *c, struct gguf_tensor *t, uint32_t number, uint64_t *bytes)
{
    uint64_t n_blocks;

    if (number >= N_TENSOR_TYPES || tensor_types[number].block_bytes == 0) {
        const char *name = number < N_TENSOR_TYPES ? tensor_types[number].name : NULL;

        return model_refuse(c->message, -ENOTSUP,
                            "%s: tensor '%s' at byte %" PRIu64 " has type %s (number %" PRIu32
                            "), which is not supported; use a file with " TENSOR_TYPES_WORDS
                            " tensors only",
                            c->g->path, t->name, c->at, name ? name : "unknown", number);
    }
    t->dtype = tensor_types[number].dtype;
    if (t->dims[0] % tensor_types[number].block_cols != 0)
        return model_refuse(c->message, -EINVAL,
                            "%s: tensor '%s' at byte %" PRIu64 ": rows of %" PRIu64
                            " values cannot be cut into %s blocks of %u: " DAMAGED,
                            c->g->path, t->name, c->at, t->dims[0], tensor_types[number].name,
                            tensor_types[number].block_cols);
    n_blocks = t->dims[0] / tensor_types[number].block_cols;
    for (uint32_t d = 1; d < 4; d++)
        if (__builtin_mul_overflow(n_blocks, t->dims[d], &n_blocks))
            n_blocks = UINT64_MAX; /* stays too large, or overflows again */
    if (__builtin_mul_overflow(n_blocks, tensor_types[number].block_bytes, bytes))
        *bytes = UINT64_MAX;
    return 0;
}

/* Reads one tensor's description; its place is checked once the data's start is known. */
static int take_tensor(struct cursor *c, uint64_t idx, struct gguf_tensor *t)
{
    uint64_t bytes = 0;
    uint32_t number = 0;
    int r = take_name(c, "tensor", idx, t->name);

    if (!r)
        r = take_u32(c, &t->n_dims, "number of dimensions");
    if (r)
        return r;
    if (t->n_dims < 1 || t->n_dims > 4)
        return model_refuse(c->message, -EINVAL,
                            "%s: tensor '%s' at byte %" PRIu64 " has %" PRIu32
                            " dimensions; 1 to 4 are possible: " DAMAGED,
                            c->g->path, t->name, c->at - 4, t->n_dims);
    for (uint32_t d = 0; d < 4; d++) {
        t->dims[d] = 1;
        if (d < t->n_dims)
            r = take_u64(c, &t->dims[d], "dimension");
        if (r)
            return r;
        if (t->dims[d] == 0)
            return model_refuse(c->message, -EINVAL,
                                "%s: tensor '%s' at byte %" PRIu64 ": dimension %" PRIu32
                                " is 0: " DAMAGED,
                                c->g->path, t->name, c->at - 8, d);
    }
    r = take_u32(c, &number, "type");
    if (!r)
        r = check_type(c, t, number, &bytes);
    if (!r)
        r = take_u64(c, &t->file_off, "offset");
    if (!r && bytes > c->g->bytes)
        r = model_refuse(c->message, -EINVAL,
                         "%s: tensor '%s' described before byte %" PRIu64 " takes %s%" PRIu64
                         " bytes, more than the whole file of %zu: " DAMAGED,
                         c->g->path, t->name, c->at, bytes == UINT64_MAX ? "at least " : "", bytes,
                         c->g->bytes);
    t->bytes = (size_t)bytes;
    return r;
}

/* ---- checks over all keys and all tensors
 * ---------------------------------------------------------- */

static int compare_entries(const void *a, const void *b)
{
    const struct entry *const *x = a, *const *y = b;

    return strcmp((*x)->name, (*y)->name);
}

static int compare_tensors(const void *a, const void *b)
{
    const struct gguf_tensor *const *x = a, *const *y = b;

    return strcmp((*x)->name, (*y)->name);
}

static int compare_offsets(const void *a, const void *b)
{
    const struct gguf_tensor *const *x = a, *const *y = b;

    return ((*x)->file_off > (*y)->file_off) - ((*x)->file_off < (*y)->file_off);
}

static int index_entries(struct gguf *g, char *message)
{
    for (uint32_t i = 0; i < g->n_entries; i++)
        g->entries_by_name[i] = &g->entries[i];
    qsort(g->entries_by_name, g->n_entries, sizeof g->entries_by_name[0], compare_entries);
    for (uint32_t i = 1; i < g->n_entries; i++) {
        const struct entry *a = g->entries_by_name[i - 1], *b = g->entries_by_name[i];

        if (strcmp(a->name, b->name) == 0)
            return model_refuse(message, -EINVAL,
                                "%s: key '%s' occurs twice, at bytes %" PRIu64 " and %" PRIu64
                                ": convert the model again",
                                g->path, a->name, a->file_off, b->file_off);
    }
    return 0;
}

/* Turns offsets into places: aligned, inside the file, apart from each other. */
static int place_tensors(struct gguf *g, uint64_t data_off, uint32_t alignment, char *message)
{
    const struct gguf_tensor **sorted = g->tensors_by_name; /* by name only in the end */

    for (uint32_t i = 0; i < g->n_tensors; i++) {
        struct gguf_tensor *t = &g->tensors[i];
        uint64_t offset = t->file_off;

        if (offset % alignment != 0)
            return model_refuse(message, -EINVAL,
                                "%s: tensor '%s': offset %" PRIu64
                                " is no multiple of the file's alignment %" PRIu32 ": " DAMAGED,
                                g->path, t->name, offset, alignment);
        if (data_off > g->bytes || offset > g->bytes - data_off ||
            t->bytes > g->bytes - data_off - offset)
            return model_refuse(message, -EINVAL,
                                "%s: tensor '%s': its %zu bytes at offset %" PRIu64
                                " of the data, which begin at byte %" PRIu64
                                ", go past the end of the file at byte %zu: " DAMAGED,
                                g->path, t->name, t->bytes, offset, data_off, g->bytes);
        t->file_off = data_off + offset;
        t->data = g->data + t->file_off;
        sorted[i] = t;
    }
    qsort(sorted, g->n_tensors, sizeof sorted[0], compare_offsets);
    for (uint32_t i = 1; i < g->n_tensors; i++) {
        const struct gguf_tensor *a = sorted[i - 1], *b = sorted[i];

        if (b->file_off - a->file_off < a->bytes)
            return model_refuse(message, -EINVAL,
                                "%s: tensor '%s' at byte %" PRIu64
                                " overlaps tensor '%s' at byte %" PRIu64 " (%zu bytes): " DAMAGED,
                                g->path, b->name, b->file_off, a->name, a->file_off, a->bytes);
    }
    qsort(sorted, g->n_tensors, sizeof sorted[0], compare_tensors);
    for (uint32_t i = 1; i < g->n_tensors; i++)
        if (strcmp(sorted[i - 1]->name, sorted[i]->name) == 0)
            return model_refuse(message, -EINVAL,
                                "%s: tensor '%s' occurs twice, with data at bytes %" PRIu64
                                " and %" PRIu64 ": convert the model again",
                                g->path, sorted[i]->name, sorted[i - 1]->file_off,
                                sorted[i]->file_off);
    return 0;
}

static int check_header(struct cursor *c, uint64_t *n_tensors, uint64_t *n_keys)
{
    const struct gguf *g = c->g;
    uint32_t version;

    if (g->bytes < 4 || memcmp(g->data, "GGUF", 4) != 0)
        return model_refuse(c->message, -EINVAL,
                            "%s: not a GGUF file: its %zu bytes do not begin with 'GGUF'; name a "
                            ".gguf model file",
                            g->path, g->bytes);
    if (g->bytes < HEADER_BYTES)
        return model_refuse(c->message, -EINVAL,
                            "%s: the header has %u bytes, but the file ends at byte %zu: " DAMAGED,
                            g->path, HEADER_BYTES, g->bytes);
    version = load_u32(g->data + 4);
    if (version != 2 && version != 3)
        return model_refuse(c->message, -ENOTSUP,
                            "%s: GGUF version %" PRIu32
                            "%s at byte 4 is not supported, only 2 and 3: convert the model again",
                            g->path, version, (version & 0xffff) == 0 ? " (big-endian?)" : "");
    *n_tensors = load_u64(g->data + 8);
    *n_keys = load_u64(g->data + 16);
    c->at = HEADER_BYTES;
    if (*n_keys > GGUF_KEYS_MAX || *n_keys > left(c) / KEY_BYTES_MIN)
        return model_refuse(
            c->message, -EINVAL, "%s: byte 16 claims %" PRIu64 " keys, more than %s: " DAMAGED,
            g->path, *n_keys,
            *n_keys > GGUF_KEYS_MAX ? "are supported (65536)" : "the file could hold");
    if (*n_tensors > GGUF_TENSORS_MAX || *n_tensors > left(c) / TENSOR_BYTES_MIN)
        return model_refuse(
            c->message, -EINVAL, "%s: byte 8 claims %" PRIu64 " tensors, more than %s: " DAMAGED,
            g->path, *n_tensors,
            *n_tensors > GGUF_TENSORS_MAX ? "are supported (65536)" : "the file could hold");
    return 0;
}

static int find_alignment(const struct gguf *g, uint32_t *alignmentp, char *message)
{
    int r;

    *alignmentp = ALIGNMENT_DEFAULT;
    r = gguf_u32(g, "general.alignment", alignmentp, message);
    if (r < 0)
        return r;
    if (*alignmentp < 8 || *alignmentp > ALIGNMENT_MAX || (*alignmentp & (*alignmentp - 1)) != 0)
        return model_refuse(message, -EINVAL,
                            "%s: key 'general.alignment' is %" PRIu32
                            "; a power of two from 8 to %u is possible: convert the model again",
                            g->path, *alignmentp, ALIGNMENT_MAX);
    return 0;
}

static int parse(struct gguf *g, char *message)
{
    struct cursor c = {.g = g, .message = message, .what = "header"};
    uint64_t n_tensors = 0, n_keys = 0, data_off;
    uint32_t alignment;
    int r = check_header(&c, &n_tensors, &n_keys);

    if (r)
        return r;
    /* One more of each: calloc of nothing may be NULL. */
    g->entries = calloc(n_keys + 1, sizeof g->entries[0]);
    g->entries_by_name = calloc(n_keys + 1, sizeof g->entries_by_name[0]);
    g->tensors = calloc(n_tensors + 1, sizeof g->tensors[0]);
    g->tensors_by_name = calloc(n_tensors + 1, sizeof g->tensors_by_name[0]);
    if (!g->entries || !g->entries_by_name || !g->tensors || !g->tensors_by_name)
        return model_refuse(message, -ENOMEM,
                            "%s: no memory for %" PRIu64 " keys and %" PRIu64 " tensors", g->path,
                            n_keys, n_tensors);

    for (; g->n_entries < n_keys && !r; g->n_entries++)
        r = take_entry(&c, g->n_entries, &g->entries[g->n_entries]);
    if (!r)
        r = index_entries(g, message);
    for (; g->n_tensors < n_tensors && !r; g->n_tensors++)
        r = take_tensor(&c, g->n_tensors, &g->tensors[g->n_tensors]);
    if (!r)
        r = find_alignment(g, &alignment, message);
    if (r)
        return r;
    data_off = (c.at + alignment - 1) & ~((uint64_t)alignment - 1);
    return place_tensors(g, data_off, alignment, message);
}

/* ---- open, parse, free
 * ----------------------------------------------------------------------------- */

static int gguf_new(struct gguf **ggufp, const char *path, char *message)
{
    struct gguf *g = calloc(1, sizeof *g);

    if (g)
        g->path = strdup(path);
    if (!g || !g->path) {
        gguf_free(g);
        return model_refuse(message, -ENOMEM, "%s: no memory", path);
    }
    *ggufp = g;
    return 0;
}

static int map_file(struct gguf *g, int fd, char *message)
{
    struct stat st;
    void *map;

    if (fstat(fd, &st) < 0)
        return model_refuse(message, -errno, "%s: %s", g->path, strerror(errno));
    if (S_ISDIR(st.st_mode))
        return model_refuse(message, -EISDIR, "%s: is a directory; name a .gguf file in it",
                            g->path);
    if (!S_ISREG(st.st_mode))
        return model_refuse(message, -EINVAL, "%s: not a regular file; name a .gguf model file",
                            g->path);
    g->bytes = (size_t)st.st_size;
    if (g->bytes == 0) /* which cannot be mapped */
        return model_refuse(message, -EINVAL,
                            "%s: not a GGUF file: it is empty; name a .gguf model file", g->path);
    map = mmap(NULL, g->bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (map == MAP_FAILED)
        return model_refuse(message, -errno, "%s: cannot map %zu bytes: %s", g->path, g->bytes,
                            strerror(errno));
    g->map = map;
    g->data = map;
    return 0;
}

int gguf_open(struct gguf **ggufp, const char *path, char *message)
{
    struct gguf *g;
    int fd, r;

    /* O_NONBLOCK: opening a FIFO must not wait for a writer. */
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return model_refuse(message, -errno, "%s: cannot open the model file: %s", path,
                            strerror(errno));
    r = gguf_new(&g, path, message);
    if (r) {
        close(fd);
        return r;
    }
    r = map_file(g, fd, message);
    close(fd);
    if (!r)
        r = parse(g, message);
    if (r) {
        gguf_free(g);
        return r;
    }
    *ggufp = g;
    return 0;
}

int gguf_parse(struct gguf **ggufp, const void *data, size_t bytes, const char *name, char *message)
{
    struct gguf *g;
    int r;

    assert((uintptr_t)data % 8 == 0);
    r = gguf_new(&g, name, message);
    if (r)
        return r;
    g->data = data;
    g->bytes = bytes;
    r = parse(g, message);
    if (r) {
        gguf_free(g);
        return r;
    }
    *ggufp = g;
    return 0;
}

struct gguf *gguf_free(struct gguf *g)
{
    if (!g)
        return NULL;
    if (g->map)
        munmap(g->map, g->bytes);
    free(g->tensors_by_name);
    free(g->tensors);
    free(g->entries_by_name);
    free(g->entries);
    free(g->path);
    free(g);
    return NULL;
}

/* ---- look-ups
 * ---------------------------------------------------------------------------------------- */

static const struct entry *find(const struct gguf *g, const char *key)
{
    uint32_t low = 0, high = g->n_entries;

    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        int order = strcmp(key, g->entries_by_name[mid]->name);

        if (order == 0)
            return g->entries_by_name[mid];
        if (order < 0)
            high = mid;
        else
            low = mid + 1;
    }
    return NULL;
}

static int other_type(const struct gguf *g, const struct entry *e, const char *wanted,
                      char *message)
{
    return model_refuse(message, -EINVAL,
                        "%s: key '%s' at byte %" PRIu64 " has type %s%s where %s is needed: "
                        "convert the model again",
                        g->path, e->name, e->file_off, e->type == GGUF_ARRAY ? "array of " : "",
                        gguf_type_name(e->type == GGUF_ARRAY ? e->array.type : e->type), wanted);
}

/* Integers of any width as a 64-bit magnitude and sign; false: not an integer. */
static bool load_integer(const struct entry *e, uint64_t *valuep, bool *negativep)
{
    const uint8_t *p = (const uint8_t *)e->value.data;
    int64_t s;

    *negativep = false;
    switch (e->type) {
    case GGUF_U8:
        *valuep = p[0];
        return true;
    case GGUF_U16:
        *valuep = (uint64_t)p[0] | (uint64_t)p[1] << 8;
        return true;
    case GGUF_U32:
        *valuep = load_u32(p);
        return true;
    case GGUF_U64:
        *valuep = load_u64(p);
        return true;
    case GGUF_I8:
        s = (int8_t)p[0];
        break;
    case GGUF_I16:
        s = (int16_t)((uint16_t)p[0] | (uint16_t)(p[1] << 8));
        break;
    case GGUF_I32:
        s = (int32_t)load_u32(p);
        break;
    case GGUF_I64:
        s = (int64_t)load_u64(p);
        break;
    default:
        return false;
    }
    *negativep = s < 0;
    *valuep = (uint64_t)s;
    return true;
}

int gguf_u64(const struct gguf *g, const char *key, uint64_t *valuep, char *message)
{
    const struct entry *e = find(g, key);
    uint64_t value;
    bool negative;

    if (!e)
        return GGUF_MISSING;
    if (!load_integer(e, &value, &negative))
        return other_type(g, e, "an integer", message);
    if (negative)
        return model_refuse(message, -EINVAL,
                            "%s: key '%s' at byte %" PRIu64 " is %" PRId64
                            ", which cannot be: convert the model again",
                            g->path, key, e->file_off, (int64_t)value);
    *valuep = value;
    return 0;
}

int gguf_u32(const struct gguf *g, const char *key, uint32_t *valuep, char *message)
{
    uint64_t value;
    int r = gguf_u64(g, key, &value, message);

    if (r)
        return r;
    if (value > UINT32_MAX)
        return model_refuse(message, -EINVAL,
                            "%s: key '%s' at byte %" PRIu64 " is %" PRIu64
                            ", which is too large: convert the model again",
                            g->path, key, find(g, key)->file_off, value);
    *valuep = (uint32_t)value;
    return 0;
}

int gguf_f32(const struct gguf *g, const char *key, float *valuep, char *message)
{
    const struct entry *e = find(g, key);
    double d;

    if (!e)
        return GGUF_MISSING;
    if (e->type == GGUF_F32) {
        memcpy(valuep, e->value.data, sizeof *valuep);
        return 0;
    }
    if (e->type != GGUF_F64)
        return other_type(g, e, "f32", message);
    memcpy(&d, e->value.data, sizeof d);
    *valuep = (float)d;
    return 0;
}

int gguf_bool(const struct gguf *g, const char *key, bool *valuep, char *message)
{
    const struct entry *e = find(g, key);

    if (!e)
        return GGUF_MISSING;
    if (e->type != GGUF_BOOL)
        return other_type(g, e, "bool", message);
    *valuep = e->value.data[0] != 0;
    return 0;
}

int gguf_string(const struct gguf *g, const char *key, struct gguf_string *valuep, char *message)
{
    const struct entry *e = find(g, key);

    if (!e)
        return GGUF_MISSING;
    if (e->type != GGUF_STRING)
        return other_type(g, e, "string", message);
    *valuep = e->value;
    return 0;
}

int gguf_array(const struct gguf *g, const char *key, enum gguf_type type,
               struct gguf_array *valuep, char *message)
{
    const struct entry *e = find(g, key);

    if (!e)
        return GGUF_MISSING;
    if (e->type != GGUF_ARRAY || e->array.type != type) {
        char wanted[32] = "array of ";

        return other_type(g, e, strcat(wanted, gguf_type_name(type)), message);
    }
    *valuep = e->array;
    return 0;
}

int32_t gguf_array_i32(const struct gguf_array *a, uint64_t i)
{
    assert(i < a->n && (a->type == GGUF_I32 || a->type == GGUF_U32));
    return (int32_t)load_u32(a->data + 4 * i);
}

float gguf_array_f32(const struct gguf_array *a, uint64_t i)
{
    float v;

    assert(i < a->n && a->type == GGUF_F32);
    memcpy(&v, a->data + 4 * i, sizeof v);
    return v;
}

struct gguf_walk gguf_walk(const struct gguf_array *a)
{
    assert(a->type == GGUF_STRING);
    return (struct gguf_walk){a->data, a->data + a->bytes, a->n};
}

/* Lengths were checked when the file was opened, and are checked again: the file may have changed.
 */
bool gguf_walk_next(struct gguf_walk *w, struct gguf_string *stringp)
{
    uint64_t n;

    if (w->n_left == 0 || w->end - w->at < 8)
        return false;
    n = load_u64(w->at);
    if (n > (uint64_t)(w->end - w->at) - 8)
        return false;
    *stringp = (struct gguf_string){(const char *)w->at + 8, (size_t)n};
    w->at += 8 + n;
    w->n_left--;
    return true;
}

uint32_t gguf_n_tensors(const struct gguf *g)
{
    return g->n_tensors;
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, uint32_t i)
{
    assert(i < g->n_tensors);
    return &g->tensors[i];
}

const struct gguf_tensor *gguf_tensor(const struct gguf *g, const char *name)
{
    uint32_t low = 0, high = g->n_tensors;

    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        int order = strcmp(name, g->tensors_by_name[mid]->name);

        if (order == 0)
            return g->tensors_by_name[mid];
        if (order < 0)
            high = mid;
        else
            low = mid + 1;
    }
    return NULL;
}

const void *gguf_bytes(const struct gguf *g, size_t *bytesp)
{
    *bytesp = g->bytes;
    return g->data;
}

const char *gguf_path(const struct gguf *g)
{
    return g->path;
}
