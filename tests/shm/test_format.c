#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

#include "shm/control.h"
#include "shm/geometry.h"
#include "shm/status.h"

#define ALL_BUT_TOPK (CB_PLANES_UNDERSTOOD & ~CB_PLANE_TOPK)

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
            for (uint32_t n = 0; n <= contexts[j]; n += 1 + contexts[j] / 50)
                cr_assert_geq(g.down_pool_bytes,
                              cb_run_layout(contexts[j] - n, n, ALL_BUT_TOPK).bytes);
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
        struct cb_run_layout plain = cb_run_layout(n, 7, 0);
        struct cb_run_layout timed = cb_run_layout(n, 7, CB_PLANE_TIMES);

        cr_assert_eq(plain.times_off, 0);
        cr_assert_geq(plain.bytes, 4ull * n);
        cr_assert_eq(plain.bytes % CB_RUN_ALIGN, 0);
        cr_assert_eq(timed.times_off % 8, 0);
        if (n) {
            cr_assert_geq(timed.times_off, 4ull * n);
            cr_assert_geq(timed.bytes, timed.times_off + 8ull * n);
        }
    }
    cr_assert_geq(cb_run_layout(UINT32_MAX, 7, CB_PLANE_TIMES).bytes, 12ull * UINT32_MAX);
}

/* Each part lies behind the one before, aligned, and the run holds the last one. */
Test(geometry, runs_hold_log_probabilities)
{
    for (uint32_t n = 0; n < 40; n++) {
        for (uint32_t n_prompt = 1; n_prompt < 40; n_prompt++) {
            for (uint32_t k = 0; k <= CB_TOPK_MAX; k++) {
                uint32_t planes = ALL_BUT_TOPK | (k ? CB_PLANE_TOPK | k << 16 : 0);
                struct cb_run_layout l = cb_run_layout(n, n_prompt, planes);
                const struct {
                    uint64_t off, bytes;
                } parts[] = {{l.times_off, 8ull * n},
                             {l.logprobs_off, 4ull * n},
                             {l.topk_off, 8ull * k * n},
                             {l.prompt_off, 4ull * n_prompt},
                             {l.prompt_topk_off, 8ull * k * n_prompt}};
                uint64_t end = 4ull * n;

                for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
                    cr_assert_eq(parts[i].off == 0, parts[i].bytes == 0);
                    if (!parts[i].bytes)
                        continue;
                    cr_assert_eq(parts[i].off % 8, 0);
                    cr_assert_geq(parts[i].off, end);
                    end = parts[i].off + parts[i].bytes;
                }
                cr_assert_geq(l.bytes, end);
                if (k)
                    cr_assert_eq(l.prompt_topk_off, (l.prompt_off + 4ull * n_prompt + 7) / 8 * 8);
            }
        }
    }
    cr_assert_eq(cb_run_layout(0, 5, CB_PLANE_LOGPROBS).bytes, 0);
}

Test(geometry, a_pool_says_how_many_tokens_it_holds)
{
    for (uint64_t bytes = 1024; bytes < 100000; bytes += 333) {
        uint32_t planes = ALL_BUT_TOPK | CB_PLANE_TOPK | 3u << 16;
        uint32_t n = cb_run_tokens_max(bytes, 10, planes);

        cr_assert_leq(cb_run_layout(n, 10, planes).bytes, bytes);
        cr_assert_gt(cb_run_layout(n + 1, 10, planes).bytes, bytes);
    }
    cr_assert_eq(cb_run_tokens_max(0, 10, CB_PLANE_PROMPT), 0);
    cr_assert_eq(cb_run_tokens_max(UINT64_MAX, 10, 0), UINT32_MAX);
}
