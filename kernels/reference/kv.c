/* One pool of pages as one mapping. The address space is reserved at once and costs nothing until
 * pages are populated. */
#include "kernels/reference/reference.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/numeric.h"
#include "kernels/pin.h"

static size_t head_bytes(const struct kv_shape *shape)
{
    switch (shape->dtype) {
    case DTYPE_U8:
        return 2 * sizeof(float) + reference_round_up(shape->head_dim, sizeof(float));
    case DTYPE_BF16:
        return shape->head_dim * sizeof(uint16_t);
    default:
        return shape->head_dim * sizeof(float);
    }
}

static size_t plane_bytes(const struct kv_shape *shape)
{
    return (size_t)shape->page_size * shape->n_kv_heads * head_bytes(shape);
}

size_t reference_kv_page_bytes(const struct kv_shape *shape)
{
    return reference_round_up(2 * shape->n_layers * plane_bytes(shape), REFERENCE_ALIGN);
}

int reference_kv_new(struct backend *b, struct kv **kvp, const struct kv_shape *shape,
                     const char **why)
{
    unsigned __int128 n_bytes = 2 * (unsigned __int128)head_bytes(shape);
    struct kv *kv;

    (void)b;
    *why = NULL;
    if (shape->dtype != DTYPE_BF16 && shape->dtype != DTYPE_U8 && shape->dtype != DTYPE_F32)
        *why = "keys and values are kept as BF16, U8 or F32";
    else if (shape->page_size < 4)
        *why = "a page holds at least 4 tokens";
    else if (!shape->n_layers || !shape->n_kv_heads || !shape->head_dim || !shape->n_pages)
        *why = "a pool without layers, heads, dimensions or pages";
    else if ((uint64_t)shape->n_pages * shape->page_size >= KERNELS_NO_SLOT)
        *why = "a pool of 2^32 tokens or more";
    if (*why)
        return -EINVAL;
    n_bytes *= (uint64_t)shape->n_pages * shape->page_size;
    n_bytes *= shape->n_kv_heads;
    if (n_bytes > UINT64_MAX || n_bytes * shape->n_layers > (uint64_t)1 << 47) {
        *why = "a pool larger than the address space";
        return -ENOMEM;
    }
    *why = "no memory for the pool of keys and values";
    kv = calloc(1, sizeof *kv);
    if (!kv)
        return -ENOMEM;
    kv->shape = *shape;
    kv->head_bytes = head_bytes(shape);
    kv->plane_bytes = plane_bytes(shape);
    kv->page_bytes = reference_kv_page_bytes(shape);
    kv->map_bytes = kv->page_bytes * shape->n_pages;
    kv->pages = mmap(NULL, kv->map_bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (kv->pages == MAP_FAILED) {
        free(kv);
        return -ENOMEM;
    }
    *why = NULL;
    *kvp = kv;
    return 0;
}

struct kv *reference_kv_free(struct kv *kv)
{
    if (kv) {
        munmap(kv->pages, kv->map_bytes);
        free(kv);
    }
    return NULL;
}

static uint8_t *page_at(const struct kv *kv, uint32_t page_idx)
{
    assert(page_idx < kv->shape.n_pages);
    return kv->pages + (size_t)page_idx * kv->page_bytes;
}

int reference_kv_populate(struct kv *kv, uint32_t page_idx, uint32_t n_pages)
{
    size_t unit = (size_t)sysconf(_SC_PAGESIZE);
    uintptr_t begin, end;

    if (!n_pages)
        return 0;
    assert(page_idx < kv->shape.n_pages && n_pages <= kv->shape.n_pages - page_idx);
    begin = (uintptr_t)page_at(kv, page_idx) / unit * unit;
    end = (uintptr_t)page_at(kv, page_idx) + n_pages * kv->page_bytes;
    if (!madvise((void *)begin, end - begin, MADV_POPULATE_WRITE))
        return 0;
    if (errno != EINVAL)
        return -ENOMEM;
    /* Kernels before 5.14: write what is there, a byte of each page of the machine's. */
    for (uintptr_t at = begin; at < end; at += unit) {
        volatile uint8_t *byte = (volatile uint8_t *)at;

        *byte = *byte;
    }
    return 0;
}

int reference_kv_pin(struct kv *kv, uint32_t page_idx, uint32_t n_pages)
{
    assert(page_idx <= kv->shape.n_pages && n_pages <= kv->shape.n_pages - page_idx);
    return pin_memory(kv->pages + page_idx * kv->page_bytes, n_pages * kv->page_bytes);
}

int reference_kv_copy(struct kv *kv, const struct page_copy *copies, uint32_t n_copies)
{
    for (uint32_t i = 0; i < n_copies; i++)
        memmove(page_at(kv, copies[i].to_page), page_at(kv, copies[i].from_page), kv->page_bytes);
    return 0;
}

static uint8_t *vector_at(const struct kv *kv, uint32_t layer, bool is_v, uint32_t slot_idx,
                          uint32_t kv_head)
{
    uint32_t page_idx = slot_idx / kv->shape.page_size, row = slot_idx % kv->shape.page_size;
    size_t vector = (size_t)row * kv->shape.n_kv_heads + kv_head;

    return page_at(kv, page_idx) + (2 * (size_t)layer + is_v) * kv->plane_bytes +
           vector * kv->head_bytes;
}

static void put_codes(uint8_t *at, const float *from, uint32_t n)
{
    float min = from[0], max = from[0], not_finite = 0, *facts = (float *)at;
    struct numeric_u8 u;

    for (uint32_t i = 0; i < n; i++) {
        min = from[i] < min ? from[i] : min;
        max = from[i] > max ? from[i] : max;
        not_finite += from[i] * 0;
    }
    u = numeric_u8(min, max, not_finite);
    facts[0] = u.scale;
    facts[1] = u.zero;
    for (uint32_t i = 0; i < n; i++)
        at[2 * sizeof *facts + i] = numeric_u8_code(from[i], &u);
}

/* All heads of one token. */
static void put(const struct kv *kv, uint8_t *at, const float *from)
{
    uint32_t hd = kv->shape.head_dim, n = kv->shape.n_kv_heads * hd;

    switch (kv->shape.dtype) {
    case DTYPE_U8:
        for (uint32_t h = 0; h < kv->shape.n_kv_heads; h++)
            put_codes(at + h * kv->head_bytes, from + (size_t)h * hd, hd);
        break;
    case DTYPE_BF16:
        for (uint32_t i = 0; i < n; i++)
            ((uint16_t *)at)[i] = numeric_to_bf16(from[i]);
        break;
    default:
        memcpy(at, from, n * sizeof *from);
        break;
    }
}

void reference_kv_put(struct kv *kv, uint32_t layer, uint32_t slot_idx, const float *k,
                      const float *v)
{
    assert(layer < kv->shape.n_layers);
    if (slot_idx / kv->shape.page_size >= kv->shape.n_pages)
        return;
    put(kv, vector_at(kv, layer, false, slot_idx, 0), k);
    put(kv, vector_at(kv, layer, true, slot_idx, 0), v);
}

void reference_kv_get(float *out, const struct kv *kv, uint32_t layer, bool is_v, uint32_t slot_idx,
                      uint32_t kv_head)
{
    const uint8_t *at = vector_at(kv, layer, is_v, slot_idx, kv_head);
    const float *facts = (const float *)at;
    uint32_t hd = kv->shape.head_dim;

    switch (kv->shape.dtype) {
    case DTYPE_U8:
        for (uint32_t i = 0; i < hd; i++)
            out[i] = numeric_u8_value(at[2 * sizeof *facts + i], facts[0], facts[1]);
        break;
    case DTYPE_BF16:
        for (uint32_t i = 0; i < hd; i++)
            out[i] = numeric_from_bf16(((const uint16_t *)at)[i]);
        break;
    default:
        memcpy(out, at, hd * sizeof *out);
        break;
    }
}
