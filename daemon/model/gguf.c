/* daemon/model/gguf.c - one pass over the head of the file, then look-ups in sorted indexes.
 *
 * A cursor that cannot leave the file does all reading; a count is believed only if that many of
 * the smallest possible things could still follow, so no claim in the file costs more time or
 * memory than the file's own size, nor more than GGUF_HEAD_MAX. The file is read, never mapped, for
 * a mapped file that shrinks kills its reader. The head goes into address space reserved for the
 * longest there can be, as far as the cursor gets, so that what was handed out stays where it is;
 * it is read once, so what was checked is what look-ups see. */
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

#include "daemon/model/gguf_file.h"
#include "daemon/model/message.h"
#include "daemon/model/model.h"

#define HEADER_BYTES      24u /* magic, version, tensors, keys                        */
#define KEY_BYTES_MIN     13u /* length of the name, type, one byte of value          */
#define TENSOR_BYTES_MIN  32u /* length of the name, dimensions, one of them, type, offset */
#define ALIGNMENT_DEFAULT 32u
#define ALIGNMENT_MAX     65536u
#define HEAD_STEP         (256u << 10) /* bytes of the head that are read at once */

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

const char *gguf_type_name(enum gguf_type t)
{
    return (unsigned)t < GGUF_TYPE_COUNT ? value_types[t].name : "unknown";
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Makes bytes [0, end) of the file readable, which has as many. */
static int read_head(struct gguf *g, uint64_t end, char *message)
{
    if (end > g->head_bytes)
        return model_refuse(message, -ENOTSUP,
                            "%s: keys and descriptions of tensors go on beyond byte %zu, which is "
                            "as far as is supported",
                            g->path, g->head_bytes);
    end = (end + HEAD_STEP - 1) / HEAD_STEP * HEAD_STEP;
    if (end > g->head_bytes)
        end = g->head_bytes;
    while (g->n_read < end) {
        ssize_t n = pread(g->fd, g->head + g->n_read, end - g->n_read, (off_t)g->n_read);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return model_refuse(message, -errno, "%s: cannot read at byte %zu: %s", g->path,
                                g->n_read, strerror(errno));
        if (n == 0)
            return model_refuse(message, -EINVAL,
                                "%s: the file had %zu bytes when it was opened and ends at byte "
                                "%zu now: " GGUF_DAMAGED,
                                g->path, g->bytes, g->n_read);
        g->n_read += (size_t)n;
    }
    return 0;
}

/* The next n bytes, or NULL with the message. */
const uint8_t *cursor_take(struct cursor *c, uint64_t n, const char *part)
{
    const uint8_t *p = c->g->data + c->at;

    if (n > cursor_left(c)) {
        if (c->name)
            model_refuse(c->message, -EINVAL,
                         "%s: %s '%s': its %s at byte %" PRIu64 " needs %" PRIu64
                         " bytes, but the file ends %" PRIu64 " bytes later: " GGUF_DAMAGED,
                         c->g->path, c->what, c->name, part, c->at, n, cursor_left(c));
        else
            model_refuse(c->message, -EINVAL,
                         "%s: %s number %" PRIu64 ": its %s at byte %" PRIu64 " needs %" PRIu64
                         " bytes, but the file ends %" PRIu64 " bytes later: " GGUF_DAMAGED,
                         c->g->path, c->what, c->idx, part, c->at, n, cursor_left(c));
        return NULL;
    }
    if (c->at + n > c->g->n_read && read_head(c->g, c->at + n, c->message))
        return NULL;
    c->at += n;
    return p;
}

int cursor_take_u32(struct cursor *c, uint32_t *v, const char *part)
{
    const uint8_t *p = cursor_take(c, 4, part);

    if (!p)
        return -EINVAL;
    *v = load_u32(p);
    return 0;
}

int cursor_take_u64(struct cursor *c, uint64_t *v, const char *part)
{
    const uint8_t *p = cursor_take(c, 8, part);

    if (!p)
        return -EINVAL;
    *v = load_u64(p);
    return 0;
}

static int take_string(struct cursor *c, struct gguf_string *s, const char *part)
{
    uint64_t n;
    const uint8_t *p;
    int r = cursor_take_u64(c, &n, part);

    if (r)
        return r;
    p = cursor_take(c, n, part);
    if (!p)
        return -EINVAL;
    *s = (struct gguf_string){(const char *)p, (size_t)n};
    return 0;
}

/* Reads the name that a key or tensor begins with. From here on messages can use it. */
int cursor_take_name(struct cursor *c, const char *what, uint64_t idx, char *name)
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
        return model_refuse(
            c->message, -EINVAL,
            "%s: %s number %" PRIu64 " at byte %" PRIu64
            ": a name has 1 to %u bytes and no NUL, this one has %zu: " GGUF_DAMAGED,
            c->g->path, what, idx, start, GGUF_NAME_MAX, s.n);
    memcpy(name, s.data, s.n);
    name[s.n] = '\0';
    c->name = name;
    return 0;
}

/* ---- keys ------------------------------------------------------------------------------------ */

static int take_type(struct cursor *c, enum gguf_type *type)
{
    uint32_t number;
    int r = cursor_take_u32(c, &number, "type");

    if (r)
        return r;
    if (number >= GGUF_TYPE_COUNT)
        return model_refuse(c->message, -EINVAL,
                            "%s: key '%s': value type %" PRIu32 " at byte %" PRIu64
                            " is none of GGUF's %d: " GGUF_DAMAGED,
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
        r = cursor_take_u64(c, &a->n, "array length");
    if (r)
        return r;
    if (a->type == GGUF_ARRAY)
        return model_refuse(c->message, -EINVAL,
                            "%s: key '%s' at byte %" PRIu64
                            ": arrays of arrays are not supported: convert the model again",
                            c->g->path, c->name, at);
    element_bytes = a->type == GGUF_STRING ? 8 : value_types[a->type].bytes;
    if (a->n > cursor_left(c) / element_bytes)
        return model_refuse(c->message, -EINVAL,
                            "%s: key '%s': the array at byte %" PRIu64 " claims %" PRIu64
                            " elements of type %s, but only %" PRIu64
                            " bytes of the file follow: " GGUF_DAMAGED,
                            c->g->path, c->name, at, a->n, gguf_type_name(a->type), cursor_left(c));
    a->file_off = c->at;
    a->data = c->g->data + c->at;
    if (a->type == GGUF_STRING)
        for (uint64_t i = 0; i < a->n && !r; i++)
            r = take_string(c, &s, "array element");
    else if (!cursor_take(c, a->n * element_bytes, "elements"))
        r = -EINVAL;
    a->bytes = (size_t)(c->at - a->file_off);
    return r;
}

static int take_entry(struct cursor *c, uint64_t idx, struct entry *e)
{
    const uint8_t *p;
    int r;

    e->file_off = c->at;
    r = cursor_take_name(c, "key", idx, e->name);
    if (!r)
        r = take_type(c, &e->type);
    if (r)
        return r;
    if (e->type == GGUF_STRING)
        return take_string(c, &e->value, "string");
    if (e->type == GGUF_ARRAY)
        return take_array(c, &e->array);
    p = cursor_take(c, value_types[e->type].bytes, "value");
    if (!p)
        return -EINVAL;
    e->value = (struct gguf_string){(const char *)p, value_types[e->type].bytes};
    if (e->type == GGUF_BOOL && *p > 1)
        return model_refuse(c->message, -EINVAL,
                            "%s: key '%s': the bool at byte %" PRIu64 " is %u: " GGUF_DAMAGED,
                            c->g->path, c->name, c->at - 1, *p);
    return 0;
}

static int compare_entries(const void *a, const void *b)
{
    const struct entry *const *x = a, *const *y = b;

    return strcmp((*x)->name, (*y)->name);
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

/* ---- the whole ------------------------------------------------------------------------------- */

static int check_header(struct cursor *c, uint64_t *n_tensors, uint64_t *n_keys)
{
    struct gguf *g = c->g;
    uint32_t version;

    if (g->n_read < HEADER_BYTES && g->n_read < g->bytes) {
        int r = read_head(g, g->bytes < HEADER_BYTES ? g->bytes : HEADER_BYTES, c->message);

        if (r)
            return r;
    }
    if (g->bytes < 4 || memcmp(g->data, "GGUF", 4) != 0)
        return model_refuse(c->message, -EINVAL,
                            "%s: not a GGUF file: its %zu bytes do not begin with 'GGUF'; name a "
                            ".gguf model file",
                            g->path, g->bytes);
    if (g->bytes < HEADER_BYTES)
        return model_refuse(
            c->message, -EINVAL,
            "%s: the header has %u bytes, but the file ends at byte %zu: " GGUF_DAMAGED, g->path,
            HEADER_BYTES, g->bytes);
    version = load_u32(g->data + 4);
    if (version != 2 && version != 3)
        return model_refuse(c->message, -ENOTSUP,
                            "%s: GGUF version %" PRIu32
                            "%s at byte 4 is not supported, only 2 and 3: convert the model again",
                            g->path, version, (version & 0xffff) == 0 ? " (big-endian?)" : "");
    *n_tensors = load_u64(g->data + 8);
    *n_keys = load_u64(g->data + 16);
    c->at = HEADER_BYTES;
    if (*n_keys > GGUF_KEYS_MAX || *n_keys > cursor_left(c) / KEY_BYTES_MIN)
        return model_refuse(
            c->message, -EINVAL, "%s: byte 16 claims %" PRIu64 " keys, more than %s: " GGUF_DAMAGED,
            g->path, *n_keys,
            *n_keys > GGUF_KEYS_MAX ? "are supported (65536)" : "the file could hold");
    if (*n_tensors > GGUF_TENSORS_MAX || *n_tensors > cursor_left(c) / TENSOR_BYTES_MIN)
        return model_refuse(c->message, -EINVAL,
                            "%s: byte 8 claims %" PRIu64 " tensors, more than %s: " GGUF_DAMAGED,
                            g->path, *n_tensors,
                            *n_tensors > GGUF_TENSORS_MAX ? "are supported (65536)"
                                                          : "the file could hold");
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
    if (!r)
        r = gguf_take_tensors(g, &c, n_tensors);
    if (!r)
        r = find_alignment(g, &alignment, message);
    if (r)
        return r;
    data_off = (c.at + alignment - 1) & ~((uint64_t)alignment - 1);
    return gguf_place_tensors(g, data_off, alignment, message);
}

/* ---- open, parse, free ----------------------------------------------------------------------- */

static int gguf_new(struct gguf **ggufp, const char *path, char *message)
{
    struct gguf *g = calloc(1, sizeof *g);

    if (g) {
        g->fd = -1;
        g->path = strdup(path);
    }
    if (!g || !g->path) {
        gguf_free(g);
        return model_refuse(message, -ENOMEM, "%s: no memory", path);
    }
    *ggufp = g;
    return 0;
}

/* Sees that fd is a file that can be a model, and keeps it. */
static int take_file(struct gguf *g, int fd, char *message)
{
    struct stat st;
    void *head;

    g->fd = fd;
    if (fstat(fd, &st) < 0)
        return model_refuse(message, -errno, "%s: %s", g->path, strerror(errno));
    if (S_ISDIR(st.st_mode))
        return model_refuse(message, -EISDIR, "%s: is a directory; name a .gguf file in it",
                            g->path);
    if (!S_ISREG(st.st_mode))
        return model_refuse(message, -EINVAL, "%s: not a regular file; name a .gguf model file",
                            g->path);
    g->bytes = (size_t)st.st_size;
    if (g->bytes == 0)
        return model_refuse(message, -EINVAL,
                            "%s: not a GGUF file: it is empty; name a .gguf model file", g->path);
    g->head_bytes = g->bytes < GGUF_HEAD_MAX ? g->bytes : GGUF_HEAD_MAX;
    head = mmap(NULL, g->head_bytes, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (head == MAP_FAILED)
        return model_refuse(message, -errno, "%s: no memory for its head of up to %zu bytes",
                            g->path, g->head_bytes);
    g->data = g->head = head;
    return 0;
}

/* fd is the gguf's in any case. */
static int open_file(struct gguf **ggufp, int fd, const char *path, char *message)
{
    struct gguf *g;
    int r = gguf_new(&g, path, message);

    if (r) {
        close(fd);
        return r;
    }
    r = take_file(g, fd, message);
    if (!r)
        r = parse(g, message);
    if (r) {
        gguf_free(g);
        return r;
    }
    *ggufp = g;
    return 0;
}

int gguf_open(struct gguf **ggufp, const char *path, char *message)
{
    /* O_NONBLOCK: opening a FIFO must not wait for a writer. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);

    if (fd < 0)
        return model_refuse(message, -errno, "%s: cannot open the model file: %s", path,
                            strerror(errno));
    return open_file(ggufp, fd, path, message);
}

int gguf_open_fd(struct gguf **ggufp, int fd, const char *name, char *message)
{
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);

    if (own < 0)
        return model_refuse(message, -errno, "%s: %s", name, strerror(errno));
    return open_file(ggufp, own, name, message);
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
    g->bytes = g->n_read = bytes;
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
    if (g->head)
        munmap(g->head, g->head_bytes);
    if (g->fd >= 0)
        close(g->fd);
    free(g->tensors_by_name);
    free(g->tensors);
    free(g->entries_by_name);
    free(g->entries);
    free(g->path);
    free(g);
    return NULL;
}

const char *gguf_path(const struct gguf *g)
{
    return g->path;
}

int gguf_fd(const struct gguf *g)
{
    return g->fd;
}

size_t gguf_bytes(const struct gguf *g)
{
    return g->bytes;
}
