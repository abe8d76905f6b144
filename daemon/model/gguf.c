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

static int check_header(struct cursor *c, uint64_t *n_tensors, uint64_t *n_keys)
{
    struct gguf *g = c->g;
    uint32_t version;

    if (g->n_read < HEADER_BYTES && g->n_read < g->bytes) {
        int r = gguf_read_head(g, g->bytes < HEADER_BYTES ? g->bytes : HEADER_BYTES, c->message);

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
        r = gguf_take_entry(&c, g->n_entries, &g->entries[g->n_entries]);
    if (!r)
        r = gguf_index_entries(g, message);
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
