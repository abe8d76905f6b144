/* daemon/model/reader.c - a ring of buffers that io_uring fills.
 *
 * Plain reads decide and io_uring only hurries: whatever a completion did not bring (all of it where
 * io_uring is refused, the rest of a short read, an error), pread brings when the piece is taken. So
 * there is one place that finds the end of the file and one that reports errors.
 *
 * What the page cache has is copied when it is asked for; the rest comes while the caller works.
 * Handing all of it to the kernel's workers (IOSQE_ASYNC) was no faster warm and slower cold: they
 * compete with the threads that pack, and read out of order. */
#include "daemon/model/reader.h"

#include <assert.h>
#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

struct slot {
    uint8_t *data;
    uint64_t file_off;
    size_t n_bytes, n_read;
    bool in_flight;
};

struct reader {
    int fd;
    bool has_ring;  /* it was made       */
    bool uses_ring; /* it is still obeyed */
    struct io_uring ring;
    struct slot slots[READER_DEPTH];
    uint32_t n_asked, n_taken; /* run free */
    void *memory;
    size_t memory_bytes;
};

int reader_new(struct reader **readerp, int fd, size_t bytes_max, bool without_uring)
{
    size_t stride = (bytes_max + 4095) / 4096 * 4096;
    struct reader *r = calloc(1, sizeof *r);

    if (!r)
        return -ENOMEM;
    r->fd = fd;
    r->memory_bytes = stride * READER_DEPTH;
    r->memory =
        mmap(NULL, r->memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (r->memory == MAP_FAILED) {
        free(r);
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < READER_DEPTH; i++)
        r->slots[i].data = (uint8_t *)r->memory + i * stride;
    r->has_ring = !without_uring && io_uring_queue_init(READER_DEPTH, &r->ring, 0) == 0;
    r->uses_ring = r->has_ring;
    *readerp = r;
    return 0;
}

/* Waits until the slot is not in flight; completions come in any order. 0 or a negative errno. */
static int settle(struct reader *r, struct slot *slot)
{
    while (slot->in_flight) {
        struct io_uring_cqe *cqe;
        struct slot *done;
        int err = io_uring_wait_cqe(&r->ring, &cqe);

        if (err == -EINTR)
            continue;
        if (err)
            return err;
        done = &r->slots[io_uring_cqe_get_data64(cqe)];
        if (cqe->res > 0)
            done->n_read = (size_t)cqe->res;
        done->in_flight = false;
        io_uring_cqe_seen(&r->ring, cqe);
    }
    return 0;
}

struct reader *reader_free(struct reader *r)
{
    int err = 0;

    if (!r)
        return NULL;
    for (uint32_t i = 0; i < READER_DEPTH && !err; i++)
        err = settle(r, &r->slots[i]);
    if (r->has_ring)
        io_uring_queue_exit(&r->ring);
    /* The kernel may still write to buffers it was not heard of again: those are left to it. */
    if (!err)
        munmap(r->memory, r->memory_bytes);
    free(r);
    return NULL;
}

bool reader_has_room(const struct reader *r)
{
    return r->n_asked - r->n_taken < READER_DEPTH;
}

void reader_ask(struct reader *r, uint64_t file_off, size_t n_bytes)
{
    uint32_t slot_idx = r->n_asked++ % READER_DEPTH;
    struct slot *slot = &r->slots[slot_idx];
    struct io_uring_sqe *sqe;

    assert(r->n_asked - r->n_taken <= READER_DEPTH && !slot->in_flight);
    assert(n_bytes <= r->memory_bytes / READER_DEPTH);
    slot->file_off = file_off;
    slot->n_bytes = n_bytes;
    slot->n_read = 0;
    if (!r->uses_ring)
        return;
    sqe = io_uring_get_sqe(&r->ring); /* there are as many as slots */
    io_uring_prep_read(sqe, r->fd, slot->data, (unsigned)n_bytes, file_off);
    io_uring_sqe_set_data64(sqe, slot_idx);
    /* What the kernel did not take stays queued, so nothing is submitted after it. */
    slot->in_flight = io_uring_submit(&r->ring) == 1;
    r->uses_ring = slot->in_flight;
}

ssize_t reader_take(struct reader *r, const void **datap)
{
    struct slot *slot = &r->slots[r->n_taken % READER_DEPTH];
    int err;

    assert(r->n_taken != r->n_asked);
    err = settle(r, slot);
    if (err)
        return err;
    r->n_taken++;
    while (slot->n_read < slot->n_bytes) {
        ssize_t n = pread(r->fd, slot->data + slot->n_read, slot->n_bytes - slot->n_read,
                          (off_t)(slot->file_off + slot->n_read));

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (n == 0)
            break;
        slot->n_read += (size_t)n;
    }
    *datap = slot->data;
    return (ssize_t)slot->n_read;
}
