/* The separator is found by looking at the last byte written: after an opening bracket or a colon
 * there is none. So no depth, no state, and nothing to keep in step with the nesting. */
#include "daemon/base/buf.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void buf_init(struct buf *b, char *data, size_t cap)
{
    assert(cap >= 1);
    *b = (struct buf){.data = data, .cap = cap};
    data[0] = 0;
}

static void buf_put(struct buf *b, const char *text, size_t n)
{
    if (b->is_cut || n > b->cap - 1 - b->n) {
        b->is_cut = true;
        return;
    }
    memcpy(b->data + b->n, text, n);
    b->n += n;
    b->data[b->n] = 0;
}

void buf_add(struct buf *b, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    size_t room = b->cap - b->n;
    int n = vsnprintf(b->data + b->n, b->is_cut ? 0 : room, format, args);
    va_end(args);
    if (b->is_cut || n < 0 || (size_t)n >= room) {
        b->is_cut = true;
        b->data[b->n] = 0;
    } else {
        b->n += (size_t)n;
    }
}

static void buf_quote(struct buf *b, const char *text, size_t n);

static void buf_next(struct buf *b, const char *key)
{
    if (b->n && !strchr("{[:", b->data[b->n - 1]))
        buf_put(b, ",", 1);
    if (key) {
        buf_quote(b, key, strlen(key));
        buf_put(b, ":", 1);
    }
}

void buf_open(struct buf *b, const char *key, char bracket)
{
    buf_next(b, key);
    buf_put(b, &bracket, 1);
}

void buf_close(struct buf *b, char bracket)
{
    buf_put(b, &bracket, 1);
}

void buf_u64(struct buf *b, const char *key, uint64_t value)
{
    buf_next(b, key);
    buf_add(b, "%llu", (unsigned long long)value);
}

void buf_i64(struct buf *b, const char *key, int64_t value)
{
    buf_next(b, key);
    buf_add(b, "%lld", (long long)value);
}

void buf_f64(struct buf *b, const char *key, double value)
{
    buf_next(b, key);
    if (isfinite(value))
        buf_add(b, "%.9g", value);
    else
        buf_put(b, "null", 4);
}

void buf_bool(struct buf *b, const char *key, bool value)
{
    buf_next(b, key);
    buf_add(b, "%s", value ? "true" : "false");
}

void buf_null(struct buf *b, const char *key)
{
    buf_next(b, key);
    buf_put(b, "null", 4);
}

/* Bytes of the well-formed UTF-8 character at text, 0 if there is none (Unicode, table 3-7). */
static size_t utf8_bytes(const unsigned char *t, size_t n)
{
    size_t len = t[0] < 0x80 ? 1 : t[0] < 0xc2 ? 0 : t[0] < 0xe0 ? 2 : t[0] < 0xf0 ? 3 : 4;
    if (len == 0 || len > n || t[0] > 0xf4)
        return 0;
    for (size_t i = 1; i < len; i++)
        if ((t[i] & 0xc0) != 0x80)
            return 0;
    if ((t[0] == 0xe0 && t[1] < 0xa0) || (t[0] == 0xed && t[1] > 0x9f) ||
        (t[0] == 0xf0 && t[1] < 0x90) || (t[0] == 0xf4 && t[1] > 0x8f))
        return 0;
    return len;
}

static void buf_quote(struct buf *b, const char *text, size_t n)
{
    const unsigned char *t = (const unsigned char *)text;
    buf_put(b, "\"", 1);
    for (size_t i = 0; i < n && t[i];) {
        size_t len = utf8_bytes(t + i, n - i);
        if (len == 0)
            buf_put(b, "?", 1);
        else if (t[i] == '"' || t[i] == '\\')
            buf_add(b, "\\%c", t[i]);
        else if (t[i] < 0x20 || t[i] == 0x7f)
            buf_add(b, "\\u%04x", t[i]);
        else
            buf_put(b, text + i, len);
        i += len ? len : 1;
    }
    buf_put(b, "\"", 1);
}

void buf_string(struct buf *b, const char *key, const char *text)
{
    buf_bytes(b, key, text, strlen(text));
}

void buf_bytes(struct buf *b, const char *key, const char *text, size_t n)
{
    buf_next(b, key);
    buf_quote(b, text, n);
}
