/* An arena is a list of regions; a piece is cut from the end of the last one, and a region counts
 * its pieces. Only what was written of a region takes memory. */
#include "kernels/cpu/memory.h"

#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#define HUGE_PAGE    ((size_t)2 << 20)
#define REGION_BYTES ((size_t)64 << 20)

struct region {
    struct region *before;
    uint8_t *data;
    size_t bytes, used;
    size_t n_pieces;
};

static size_t round_up(size_t bytes, size_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

void *memory_new(size_t bytes)
{
    void *data = mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    return data == MAP_FAILED ? NULL : data;
}

void *memory_free(void *data, size_t bytes)
{
    if (data)
        munmap(data, bytes ? bytes : 1);
    return NULL;
}

void *memory_huge_new(size_t bytes)
{
    uint8_t *data, *begin, *end, *last;

    if (bytes > SIZE_MAX - HUGE_PAGE || !(data = memory_new(bytes + HUGE_PAGE)))
        return NULL;
    end = data + round_up(bytes + HUGE_PAGE, 4096);
    /* What stands out at both ends goes back. */
    begin = data + (HUGE_PAGE - (uintptr_t)data % HUGE_PAGE) % HUGE_PAGE;
    last = begin + round_up(bytes, 4096);
    if (begin > data)
        munmap(data, (size_t)(begin - data));
    if (end > last)
        munmap(last, (size_t)(end - last));
    madvise(begin, bytes, MADV_HUGEPAGE);
    return begin;
}

static struct region *region_new(struct region *before, size_t bytes)
{
    struct region *r = calloc(1, sizeof *r);

    if (!r)
        return NULL;
    *r = (struct region){.before = before, .bytes = round_up(bytes, HUGE_PAGE)};
    r->data = memory_huge_new(r->bytes);
    if (!r->data) {
        free(r);
        return NULL;
    }
    return r;
}

void *arena_take(struct arena *a, size_t bytes)
{
    size_t rounded = round_up(bytes, 64);
    struct region *r = a->last;
    uint8_t *piece;

    if (rounded < bytes)
        return NULL;
    if (!r || rounded > r->bytes - r->used) {
        r = region_new(r, rounded > REGION_BYTES ? rounded : REGION_BYTES);
        if (!r)
            return NULL;
        a->last = r;
    }
    piece = r->data + r->used;
    r->used += rounded;
    r->n_pieces++;
    return piece;
}

void arena_give(struct arena *a, void *data)
{
    struct region **link = &a->last, *r;

    if (!data)
        return;
    while (*link &&
           ((uint8_t *)data < (*link)->data || (uint8_t *)data >= (*link)->data + (*link)->used))
        link = &(*link)->before;
    r = *link;
    assert(r && r->n_pieces);
    if (--r->n_pieces)
        return;
    *link = r->before;
    memory_free(r->data, r->bytes);
    free(r);
}
