/* daemon/model/reader.h - pieces of a file, read ahead of the one that is worked on.
 *
 * The caller asks for pieces while there is room, and takes them in the order asked:
 *     while (reader_has_room(r) && (more to ask))
 *         reader_ask(r, file_off, n_bytes);
 *     n = reader_take(r, &data);
 * Memory is READER_DEPTH buffers, whatever the file. Nothing is mapped: a file that shrinks
 * meanwhile is a short piece, never a signal. One thread. */
#ifndef CB_DAEMON_MODEL_READER_H
#define CB_DAEMON_MODEL_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define READER_DEPTH 4u

struct reader;

/* For pieces of up to bytes_max bytes of the file fd, which stays the caller's. without_uring:
 * nothing is read before it is taken. 0 or -ENOMEM. */
int reader_new(struct reader **readerp, int fd, size_t bytes_max, bool without_uring);
/* Waits for what is still being read; NULL is fine; returns NULL. */
struct reader *reader_free(struct reader *r);

/* Whether one more piece may be asked for. */
bool reader_has_room(const struct reader *r);
void reader_ask(struct reader *r, uint64_t file_off, size_t n_bytes);

/* The oldest piece that was asked for: its bytes, fewer only where the file ends; or a negative
 * errno. *datap, aligned to 64, is good until the next ask. */
ssize_t reader_take(struct reader *r, const void **datap);

#endif
