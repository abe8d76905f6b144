/* Pages of keys and values. The pool is one mapping of reserved address space; a page is
 * contiguous, all layers together, so that populating and copying a page are single sweeps. */
#include "kernels/cpu/cpu.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kernels/pin.h"

enum { SYSTEM_PAGE = 4096, POPULATE_BYTES = 1 << 21 };

size_t cpu_kv_page_bytes(const struct kv_shape *shape)
{
    size_t bytes = (size_t)shape->n_layers * shape->n_kv_heads * (shape->page_size / 16) * 2 *
                   kv_half_bytes(shape->dtype, shape->head_dim);

    return (bytes + SYSTEM_PAGE - 1) / SYSTEM_PAGE * SYSTEM_PAGE;
}

static const char *shape_fault(const struct kv_shape *shape)
{
    if (!shape->n_layers || !shape->n_kv_heads || !shape->head_dim || !shape->n_pages)
        return "a cache has at least one layer, head, dimension and page";
    if (shape->head_dim % 2)
        return "the cpu backend needs an even head dimension";
    if (!shape->page_size || shape->page_size % 16)
        return "the cpu backend needs a page size that is a multiple of 16 tokens";
    if (shape->dtype != DTYPE_BF16 && shape->dtype != DTYPE_U8 && shape->dtype != DTYPE_F32)
        return "the cpu backend keeps keys and values in BF16, U8 or F32";
    return NULL;
}

int cpu_kv_new(struct backend *b, struct kv **kvp, const struct kv_shape *shape, const char **why)
{
    struct kv *kv;

    *why = shape_fault(shape);
    if (*why)
        return -EINVAL;
    *why = "no address space for the cache";
    kv = calloc(1, sizeof *kv);
    if (!kv)
        return -ENOMEM;
    *kv = (struct kv){.shape = *shape,
                      .pool = b->pool,
                      .page_bytes = cpu_kv_page_bytes(shape),
                      .half_bytes = kv_half_bytes(shape->dtype, shape->head_dim)};
    kv->head_bytes = shape->page_size / 16 * 2 * kv->half_bytes;
    /* The last row's vector load may run past the last page by less than a vector. */
    kv->mapped_bytes = kv->page_bytes * shape->n_pages + SYSTEM_PAGE;
    kv->data = memory_huge_new(kv->mapped_bytes);
    if (!kv->data) {
        free(kv);
        return -ENOMEM;
    }
    *why = NULL;
    *kvp = kv;
    return 0;
}

struct kv *cpu_kv_free(struct kv *kv)
{
    if (!kv)
        return NULL;
    memory_free(kv->data, kv->mapped_bytes);
    free(kv);
    return NULL;
}

struct populate {
    uint8_t *begin, *end;
    uint8_t *first; /* of item 0: begin or before, on a border of POPULATE_BYTES */
    atomic_int err; /* of a piece that failed */
};

static int populate_piece(uint8_t *from, size_t bytes)
{
    if (!madvise(from, bytes, MADV_POPULATE_WRITE))
        return 0;
    if (errno != EINVAL)
        return -errno;
    /* Kernels before 5.14: touch each page, keeping what is there. */
    for (size_t i = 0; i < bytes; i += SYSTEM_PAGE)
        *(volatile uint8_t *)(from + i) = *(volatile uint8_t *)(from + i);
    return 0;
}

static void populate_items(void *arg, uint32_t worker, uint32_t begin, uint32_t end)
{
    struct populate *p = arg;

    (void)worker;
    for (uint32_t i = begin; i < end; i++) {
        uint8_t *from = p->first + (size_t)i * POPULATE_BYTES, *to = from + POPULATE_BYTES;
        int r;

        from = from < p->begin ? p->begin : from;
        to = to > p->end ? p->end : to;
        r = populate_piece(from, (size_t)(to - from));
        if (r)
            atomic_store_explicit(&p->err, r, memory_order_relaxed);
    }
}

/* All workers at it, a huge page each: the system zeroes memory at less than one core's speed, and
 * in a virtual machine first asks its host for it. */
int cpu_kv_populate(struct kv *kv, uint32_t page_idx, uint32_t n_pages)
{
    struct populate p = {0};
    size_t before;

    if (page_idx > kv->shape.n_pages || n_pages > kv->shape.n_pages - page_idx)
        return -EINVAL;
    p.begin = kv->data + page_idx * kv->page_bytes;
    p.end = p.begin + n_pages * kv->page_bytes;
    before = (uintptr_t)p.begin % POPULATE_BYTES;
    p.first = p.begin - before;
    pool_run(kv->pool, populate_items, &p,
             (uint32_t)((n_pages * kv->page_bytes + before + POPULATE_BYTES - 1) / POPULATE_BYTES),
             1);
    return atomic_load_explicit(&p.err, memory_order_relaxed);
}

int cpu_kv_pin(struct kv *kv, uint32_t page_idx, uint32_t n_pages)
{
    assert(page_idx <= kv->shape.n_pages && n_pages <= kv->shape.n_pages - page_idx);
    return pin_memory(kv->data + page_idx * kv->page_bytes, n_pages * kv->page_bytes);
}

int cpu_kv_copy(struct kv *kv, const struct page_copy *copies, uint32_t n_copies)
{
    for (uint32_t i = 0; i < n_copies; i++) {
        if (copies[i].from_page >= kv->shape.n_pages || copies[i].to_page >= kv->shape.n_pages)
            return -EINVAL;
    }
    for (uint32_t i = 0; i < n_copies; i++) {
        if (copies[i].from_page != copies[i].to_page)
            memcpy(kv->data + copies[i].to_page * kv->page_bytes,
                   kv->data + copies[i].from_page * kv->page_bytes, kv->page_bytes);
    }
    return 0;
}
