/* base/buf.h - text of bounded length, and JSON in it.
 *
 * A buf writes into storage of its caller and never past its end: what does not fit is left out and
 * `is_cut` says so. Nothing allocates, so replies can be built while the daemon serves. The text is
 * 0-terminated at all times.
 *
 * JSON: open, fields, close. Commas come by themselves. `key` is NULL inside an array. Strings are
 * escaped; bytes that are not UTF-8 become '?', so that what a client chose can't break a
 * reader. */
#ifndef CB_DAEMON_BASE_BUF_H
#define CB_DAEMON_BASE_BUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf {
    char *data;
    size_t cap; /* bytes at data, the 0 included; at least 1 */
    size_t n;   /* bytes of text                             */
    bool is_cut;
};

void buf_init(struct buf *b, char *data, size_t cap);
void buf_add(struct buf *b, const char *format, ...) __attribute__((format(printf, 2, 3)));

void buf_open(struct buf *b, const char *key, char bracket); /* '{' or '[' */
void buf_close(struct buf *b, char bracket);                 /* '}' or ']' */
void buf_u64(struct buf *b, const char *key, uint64_t value);
void buf_i64(struct buf *b, const char *key, int64_t value);
void buf_f64(struct buf *b, const char *key, double value); /* not finite: null */
void buf_bool(struct buf *b, const char *key, bool value);
void buf_null(struct buf *b, const char *key);
void buf_string(struct buf *b, const char *key, const char *text);
void buf_bytes(struct buf *b, const char *key, const char *text, size_t n); /* ends at a 0 */

#endif
