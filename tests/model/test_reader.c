/* Pieces of a file in the order asked, with io_uring and without: where the file ends, where it
 * cannot be read, and given up half-way. */
#include "daemon/model/reader.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/util/memory_file.h"

enum { FILE_BYTES = 300001, PIECE_MAX = 5000 };

/* A file whose byte i is one that its neighbours are not. */
static int make_file(uint8_t *bytes)
{
    char path[MEMORY_FILE_PATH_MAX];

    for (size_t i = 0; i < FILE_BYTES; i++)
        bytes[i] = (uint8_t)(i * 7 + i / 251);
    return memory_file(bytes, FILE_BYTES, path);
}

/* Lengths from 1 to PIECE_MAX. */
static size_t piece_bytes(uint32_t i)
{
    return 1 + i * 2711u % PIECE_MAX;
}

static void read_all(const uint8_t *bytes, int fd, bool without_uring)
{
    uint64_t asked_off = 0, taken_off = 0;
    uint32_t n_asked = 0, n_taken = 0;
    struct reader *r;
    const void *data;

    cr_assert_eq(reader_new(&r, fd, PIECE_MAX, without_uring), 0);
    while (taken_off < FILE_BYTES) {
        size_t n = piece_bytes(n_taken++);
        size_t left = FILE_BYTES - taken_off;

        while (reader_has_room(r)) { /* also past the end */
            reader_ask(r, asked_off, piece_bytes(n_asked));
            asked_off += piece_bytes(n_asked++);
        }
        cr_assert_eq(n_asked - n_taken, READER_DEPTH - 1);
        cr_assert_eq(reader_take(r, &data), (ssize_t)(n < left ? n : left));
        cr_assert((uintptr_t)data % 64 == 0);
        cr_assert(memcmp(data, bytes + taken_off, n < left ? n : left) == 0, "at %lu", taken_off);
        taken_off += n;
    }
    cr_expect_eq(reader_take(r, &data), 0, "beyond the end");
    reader_free(r); /* with the last pieces still out */
}

Test(reader, pieces_come_in_the_order_asked)
{
    uint8_t *bytes = malloc(FILE_BYTES);
    int fd = make_file(bytes);

    read_all(bytes, fd, false);
    read_all(bytes, fd, true);
    close(fd);
    free(bytes);
}

Test(reader, a_file_that_shrinks_is_a_short_piece)
{
    uint8_t *bytes = malloc(FILE_BYTES);
    int fd = make_file(bytes);
    const void *data;
    struct reader *r;

    for (int without_uring = 0; without_uring < 2; without_uring++) {
        cr_assert_eq(ftruncate(fd, 0) + ftruncate(fd, FILE_BYTES), 0);
        cr_assert_eq(reader_new(&r, fd, PIECE_MAX, without_uring), 0);
        reader_ask(r, 1000, PIECE_MAX);
        cr_assert_eq(reader_take(r, &data), PIECE_MAX);
        cr_assert_eq(ftruncate(fd, 1500), 0);
        reader_ask(r, 1000, PIECE_MAX);
        reader_ask(r, 6000, PIECE_MAX);
        cr_expect_eq(reader_take(r, &data), 500);
        cr_expect_eq(reader_take(r, &data), 0);
        reader_free(r);
    }
    close(fd);
    free(bytes);
}

Test(reader, what_cannot_be_read)
{
    int fd = open("/", O_RDONLY | O_CLOEXEC);
    const void *data;
    struct reader *r;

    for (int without_uring = 0; without_uring < 2; without_uring++) {
        cr_assert_eq(reader_new(&r, fd, PIECE_MAX, without_uring), 0);
        reader_ask(r, 0, PIECE_MAX);
        cr_expect_eq(reader_take(r, &data), -EISDIR);
        reader_free(r);
    }
    cr_expect_null(reader_free(NULL));
    close(fd);
}
