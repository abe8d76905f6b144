#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

#include "shm/control.h"
#include "shm/geometry.h"
#include "shm/status.h"

Test(format, the_magic_is_what_the_page_says)
{
    const uint64_t magic = CB_MAGIC;

    cr_assert_eq(memcmp(&magic,
                        "\xff"
                        "CBLANK1",
                        8),
                 0);
}

Test(format, statuses_have_distinct_numbers_and_words)
{
    static const struct {
        int number;
        const char *text;
    } rows[] = {
#define X(name, number, text) {number, text},
        CB_STATUS_TABLE(X)
#undef X
    };
    const size_t n = sizeof rows / sizeof rows[0];

    for (size_t i = 0; i < n; i++) {
        cr_assert_leq(rows[i].number, 0);
        cr_assert_gt(strlen(rows[i].text), 0);
        for (size_t j = 0; j < i; j++)
            cr_assert_neq(rows[i].number, rows[j].number);
    }
}

Test(geometry, defaults_are_as_large_as_promised)
{
    struct cb_geometry g;

    cr_assert_eq(cb_geometry_make(&g, 64, 1 << 20, 1 << 20, 49152, 8192), 0);
    cr_assert_eq(g.req_capacity, 64);
    cr_assert_eq(g.res_capacity, 512);
    cr_assert_leq(g.up_bytes, 1200u << 10);
    cr_assert_leq(g.down_bytes, 1200u << 10);
    cr_assert_eq(cb_geometry_check(&g), 0);
}

Test(geometry, every_request_within_the_context_fits)
{
    const uint32_t slots[] = {0, 1, 2, 3, 16, 17, 64, 4096, UINT32_MAX};
    const uint32_t contexts[] = {1, 2, 63, 8192, 1u << 20};

    for (size_t i = 0; i < sizeof slots / sizeof slots[0]; i++) {
        for (size_t j = 0; j < sizeof contexts / sizeof contexts[0]; j++) {
            struct cb_geometry g;

            cr_assert_eq(cb_geometry_make(&g, slots[i], 0, 0, 100, contexts[j]), 0);
            cr_assert_eq(cb_geometry_check(&g), 0);
            cr_assert_geq(g.n_slots, 1);
            cr_assert_leq(g.n_slots, CB_SLOTS_MAX);
            cr_assert_geq(g.res_capacity, 4 * g.n_slots + 8);
            cr_assert_geq(g.req_capacity, g.n_slots);
            cr_assert_geq(g.up_arena_bytes, 4ull * contexts[j] + CB_OPTIONS_MAX);
            cr_assert_geq(g.down_pool_bytes,
                          cb_run_layout(contexts[j], CB_PLANES_UNDERSTOOD).bytes);
        }
    }
}

Test(geometry, nonsense_is_refused)
{
    struct cb_geometry g;

    cr_assert_eq(cb_geometry_make(&g, 1, 0, 0, 0, 5), -EINVAL);
    cr_assert_eq(cb_geometry_make(&g, 1, 0, 0, 5, 0), -EINVAL);
    cr_assert_eq(cb_geometry_make(&g, 1, UINT64_MAX, 0, 5, 5), -EOVERFLOW);
    cr_assert_eq(cb_geometry_make(&g, 1, 0, UINT64_MAX - 100, 5, 5), -EOVERFLOW);
}

/* Every field, set to something that does not fit the rest. */
Test(geometry, a_bad_number_anywhere_is_found)
{
    struct cb_geometry good, g;

    cr_assert_eq(cb_geometry_make(&good, 4, 0, 0, 100, 64), 0);
#define BAD(field, value) \
    g = good;             \
    g.field = (value);    \
    cr_assert_eq(cb_geometry_check(&g), -EPROTO, #field " = " #value);
    BAD(n_slots, 0)
    BAD(n_slots, CB_SLOTS_MAX + 1)
    BAD(n_slots, 600)
    BAD(req_capacity, 0)
    BAD(req_capacity, 12)
    BAD(req_capacity, 1u << 31)
    BAD(req_stride, 64)
    BAD(req_stride, 132)
    BAD(res_capacity, 0)
    BAD(res_capacity, 16)
    BAD(res_capacity, 1u << 30)
    BAD(res_stride, 24)
    BAD(res_stride, 36)
    BAD(slot_stride, 120)
    BAD(slot_stride, 132)
    BAD(n_vocab, 0)
    BAD(n_context, 0)
    BAD(up_bytes, 4096)
    BAD(up_bytes, 1ull << 41)
    BAD(up_slots_off, 0)
    BAD(up_slots_off, UINT64_MAX - 7)
    BAD(up_ring_off, good.up_slots_off)
    BAD(up_ring_off, good.up_ring_off + 4)
    BAD(up_arena_off, good.up_bytes)
    BAD(up_arena_bytes, good.up_arena_bytes + 1)
    BAD(up_arena_bytes, UINT64_MAX)
    BAD(down_bytes, 8192)
    BAD(down_slots_off, 4096)
    BAD(down_ring_off, good.down_slots_off)
    BAD(down_pool_off, UINT64_MAX - 63)
    BAD(down_pool_bytes, good.down_pool_bytes + 64)
    BAD(down_pool_bytes, UINT64_MAX - 63)
#undef BAD
}

Test(geometry, runs_hold_ids_and_times_aligned)
{
    for (uint32_t n = 0; n < 300; n++) {
        struct cb_run_layout plain = cb_run_layout(n, 0);
        struct cb_run_layout timed = cb_run_layout(n, CB_PLANE_TIMES);

        cr_assert_eq(plain.times_off, 0);
        cr_assert_geq(plain.bytes, 4ull * n);
        cr_assert_eq(plain.bytes % CB_RUN_ALIGN, 0);
        cr_assert_eq(timed.times_off % 8, 0);
        if (n) {
            cr_assert_geq(timed.times_off, 4ull * n);
            cr_assert_geq(timed.bytes, timed.times_off + 8ull * n);
        }
    }
    cr_assert_geq(cb_run_layout(UINT32_MAX, CB_PLANE_TIMES).bytes, 12ull * UINT32_MAX);
}
