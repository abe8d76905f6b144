/* The pool and the tables against naive models under random programs. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/cache/blocks.h"
#include "daemon/cache/table.h"

enum { N_BLOCKS = 97, N_TABLES = 7, PAGE = 4 };

static uint32_t random_below(uint64_t *state, uint32_t n)
{
    *state = *state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (uint32_t)((*state >> 33) % n);
}

/* What a pool is: who holds each block, and whether anyone ever did. */
struct naive {
    uint8_t held[N_BLOCKS], ever[N_BLOCKS], again[N_BLOCKS];
};

static uint32_t naive_n_free(const struct naive *n)
{
    uint32_t free = 0;
    for (int i = 0; i < N_BLOCKS; i++)
        free += !n->held[i];
    return free;
}

static void naive_take(struct naive *n, uint32_t n_ids, const uint32_t *ids)
{
    for (uint32_t i = 0; i < n_ids; i++) {
        cr_assert_lt(ids[i], (uint32_t)N_BLOCKS);
        cr_assert_eq(n->held[ids[i]], 0, "block %u was given out twice", ids[i]);
        /* Never-held ones come in ascending order. */
        if (!n->ever[ids[i]])
            for (uint32_t k = 0; k < ids[i]; k++)
                cr_assert(n->ever[k], "block %u was given out before block %u", ids[i], k);
        n->again[ids[i]] = n->ever[ids[i]];
        n->held[ids[i]] = n->ever[ids[i]] = 1;
    }
}

static void agree(const struct blocks *b, const struct naive *n)
{
    const char *why = "";
    cr_assert_eq(blocks_check(b, n->held, &why), 0, "%s", why);
    cr_assert_eq(blocks_n_free(b), naive_n_free(n));
    for (uint32_t i = 0; i < N_BLOCKS; i++)
        if (n->held[i])
            cr_assert_eq(blocks_was_held(b, i), n->again[i]);
}

Test(blocks, random_programs_agree_with_a_naive_pool)
{
    for (uint64_t seed = 1; seed <= 50; seed++) {
        struct naive n = {0};
        struct blocks *b;
        uint32_t held[N_BLOCKS], n_held = 0;
        uint64_t state = seed;
        cr_assert_eq(blocks_new(&b, N_BLOCKS), 0);
        for (int op = 0; op < 400; op++) {
            uint32_t k = random_below(&state, 12);
            if (random_below(&state, 2) == 0) {
                uint32_t ids[16];
                memset(ids, 0xee, sizeof ids);
                int r = blocks_take(b, k, ids);
                cr_assert_eq(r, k > naive_n_free(&n) ? BLOCKS_EXHAUSTED : 0);
                if (r)
                    cr_assert_eq(ids[0], 0xeeeeeeee);
                for (uint32_t i = 0; i < k && !r; i++)
                    held[n_held++] = ids[i];
                naive_take(&n, r ? 0 : k, ids);
            } else {
                for (uint32_t i = 0; i < k && n_held > 0; i++) {
                    uint32_t at = random_below(&state, n_held);
                    blocks_release(b, 1, &held[at]);
                    n.held[held[at]] = 0;
                    held[at] = held[--n_held];
                }
            }
            agree(b, &n);
        }
        blocks_free(b);
    }
}

Test(blocks, releasing_twice_stops, .signal = SIGABRT)
{
    struct blocks *b;
    uint32_t id;
    cr_assert_eq(blocks_new(&b, 4), 0);
    blocks_take(b, 1, &id);
    blocks_release(b, 1, &id);
    blocks_release(b, 1, &id);
}

Test(blocks, audit_sees_a_holder_that_the_pool_does_not)
{
    struct blocks *b;
    const char *why = NULL;
    uint8_t held[4] = {0, 1, 0, 0};
    cr_assert_eq(blocks_new(&b, 4), 0);
    cr_assert_lt(blocks_check(b, held, &why), 0);
    cr_assert_not_null(why);
    blocks_free(b);
}

Test(table, random_programs_hold_what_they_need_and_no_more)
{
    for (uint64_t seed = 1; seed <= 50; seed++) {
        static uint32_t storage[N_TABLES][N_BLOCKS];
        struct table t[N_TABLES];
        uint32_t n_tokens[N_TABLES] = {0};
        struct blocks *b;
        uint64_t state = seed;
        cr_assert_eq(blocks_new(&b, N_BLOCKS), 0);
        for (int i = 0; i < N_TABLES; i++)
            table_init(&t[i], storage[i], N_BLOCKS);
        for (int op = 0; op < 400; op++) {
            uint32_t i = random_below(&state, N_TABLES);
            uint32_t wanted = n_tokens[i] + random_below(&state, 40);
            if (random_below(&state, 8) == 0) {
                table_clear(&t[i], b);
                n_tokens[i] = 0;
            } else if (wanted <= N_BLOCKS * PAGE) {
                uint32_t need = (wanted + PAGE - 1) / PAGE - t[i].n_blocks;
                int want_r = need > blocks_n_free(b) ? BLOCKS_EXHAUSTED : 0;
                cr_assert_eq(table_grow(&t[i], b, wanted, PAGE), want_r);
                if (!want_r)
                    n_tokens[i] = wanted;
            }
            uint8_t held[N_BLOCKS] = {0};
            const char *why = "";
            for (int k = 0; k < N_TABLES; k++) {
                cr_assert_eq(t[k].n_blocks, (n_tokens[k] + PAGE - 1) / PAGE);
                for (uint32_t j = 0; j < t[k].n_blocks; j++)
                    cr_assert_eq(held[t[k].block_idx[j]]++, 0, "a block stands in two tables");
            }
            cr_assert_eq(blocks_check(b, held, &why), 0, "%s", why);
        }
        blocks_free(b);
    }
}
