/* daemon/model/gguf_cursor.c - reading the head of a file front to back, and never beyond its end. The
 * pieces of the file come as the cursor gets there. */
#include "daemon/model/gguf_file.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "daemon/model/message.h"

#define HEAD_STEP (256u << 10) /* bytes of the head that are read at once */

/* Makes bytes [0, end) of the file readable, which has as many. */
int gguf_read_head(struct gguf *g, uint64_t end, char *message)
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
    if (c->at + n > c->g->n_read && gguf_read_head(c->g, c->at + n, c->message))
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

int cursor_take_string(struct cursor *c, struct gguf_string *s, const char *part)
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
    r = cursor_take_string(c, &s, "name");
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
