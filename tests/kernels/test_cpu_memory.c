/* kernels/cpu/memory: pieces of an arena; and kernels/cpu/kv: which pages of a cache have memory. */
#include "kernels/cpu/memory.h"
#include "kernels/cpu/cpu.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

enum { N_PIECES = 200, SMALL_PAGE = 4096, HUGE_PAGE = 2 << 20 };

/* From a few bytes to more than a region has. */
static size_t piece_bytes(uint32_t i)
{
    return i % 50 == 49 ? (size_t)80 << 20 : i % 7 == 6 ? 3000000 + i : 1 + i * 97;
}

static bool is_mapped(void *data)
{
    unsigned char resident;

    return !mincore((void *)((uintptr_t)data / SMALL_PAGE * SMALL_PAGE), 1, &resident);
}

static void check_zeroed(const uint8_t *data, size_t bytes)
{
    cr_assert_eq(data[0], 0);
    cr_assert_eq(data[bytes - 1], 0);
}

Test(cpu_memory, a_huge_mapping_is_aligned_zeroed_and_given_back_whole)
{
    size_t bytes = HUGE_PAGE * 3 + 5;
    uint8_t *data = memory_huge_new(bytes);

    cr_assert(data);
    cr_assert_eq((uintptr_t)data % HUGE_PAGE, 0);
    check_zeroed(data, bytes);
    memset(data, 1, bytes);
    memory_free(data, bytes);
    for (size_t at = 0; at < bytes; at += SMALL_PAGE)
        cr_assert_not(is_mapped(data + at), "still mapped at %zu", at);
    cr_assert_null(memory_huge_new(SIZE_MAX - 100));
}

Test(cpu_memory, pieces_of_an_arena_lie_apart_and_keep_what_is_written)
{
    static uint8_t *pieces[N_PIECES];
    struct arena a = {0};

    for (uint32_t i = 0; i < N_PIECES; i++) {
        pieces[i] = arena_take(&a, piece_bytes(i));
        cr_assert(pieces[i]);
        cr_assert_eq((uintptr_t)pieces[i] % 64, 0);
        check_zeroed(pieces[i], piece_bytes(i));
        pieces[i][0] = (uint8_t)i;
        pieces[i][piece_bytes(i) - 1] = (uint8_t)i;
    }
    for (uint32_t i = 0; i < N_PIECES; i++) {
        cr_assert_eq(pieces[i][0], (uint8_t)i, "piece %u", i);
        cr_assert_eq(pieces[i][piece_bytes(i) - 1], (uint8_t)i, "piece %u", i);
    }
    for (uint32_t i = 0; i < N_PIECES; i++)
        arena_give(&a, pieces[i]);
    cr_assert_null(a.last);
}

Test(cpu_memory, an_arena_gives_memory_back_when_all_pieces_around_it_are_given)
{
    static uint8_t *pieces[N_PIECES];
    struct arena a = {0};
    uint8_t *more;

    for (uint32_t i = 0; i < N_PIECES; i++) {
        pieces[i] = arena_take(&a, 64);
        cr_assert(pieces[i]);
        *pieces[i] = 1;
    }
    /* Odd ones, then even ones but the last. */
    for (uint32_t i = 1; i < N_PIECES; i += 2)
        arena_give(&a, pieces[i]);
    for (uint32_t i = 0; i + 2 < N_PIECES; i += 2)
        arena_give(&a, pieces[i]);
    cr_assert(is_mapped(pieces[N_PIECES - 2]));
    more = arena_take(&a, 64);
    cr_assert(more);
    check_zeroed(more, 64);
    arena_give(&a, pieces[N_PIECES - 2]);
    arena_give(&a, more);
    cr_assert_null(a.last);
    cr_assert_not(is_mapped(pieces[0]));
    arena_give(&a, NULL);
}

Test(cpu_memory, what_no_machine_has_is_refused)
{
    struct arena a = {0};

    cr_assert_null(arena_take(&a, SIZE_MAX));
    cr_assert_null(arena_take(&a, SIZE_MAX / 2));
    cr_assert_null(a.last);
}

static bool is_resident(uint8_t *data)
{
    unsigned char resident = 0;

    cr_assert_eq(mincore((void *)((uintptr_t)data / SMALL_PAGE * SMALL_PAGE), 1, &resident), 0);
    return resident & 1;
}

/* Pages of 72 KiB and of 4.5 MiB: neither begins where huge pages do, and a huge page has many of
 * the ones while the others lie over several. */
Test(cpu_memory, populating_a_cache_backs_every_byte_of_the_pages_asked_for)
{
    struct kv_shape shapes[] = {
        {.n_layers = 3, .n_kv_heads = 3, .head_dim = 64, .page_size = 16, .n_pages = 500},
        {.n_layers = 24, .n_kv_heads = 3, .head_dim = 64, .page_size = 128, .n_pages = 9},
    };

    for (uint32_t n_threads = 1; n_threads <= 3; n_threads++) {
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            struct backend_config config = {.n_threads = n_threads};
            struct backend *b;
            struct kv *kv;
            const char *why;
            uint32_t from = shapes[i].n_pages / 2, n = 3;

            shapes[i].dtype = DTYPE_BF16;
            cr_assert_eq(backend_cpu.open(&b, &config, &why), 0);
            cr_assert_eq(backend_cpu.kv_new(b, &kv, &shapes[i], &why), 0, "%s", why);
            /* On small pages, so that a byte's neighbours don't bring it along. */
            cr_assert_eq(madvise(kv->data, kv->mapped_bytes, MADV_NOHUGEPAGE), 0);
            cr_assert_eq(backend_cpu.kv_populate(kv, from, 0), 0);
            cr_assert_not(is_resident(kv->data + from * kv->page_bytes));
            cr_assert_eq(backend_cpu.kv_populate(kv, from, n), 0);
            for (size_t at = 0; at < n * kv->page_bytes; at += SMALL_PAGE)
                cr_assert(is_resident(kv->data + from * kv->page_bytes + at), "byte %zu", at);
            cr_assert_eq(backend_cpu.kv_populate(kv, shapes[i].n_pages - 1, 2), -EINVAL);
            backend_cpu.kv_free(kv);
            backend_cpu.close(b);
        }
    }
}
