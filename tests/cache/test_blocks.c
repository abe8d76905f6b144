/* Pools over common sectors against naive models under random programs. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/cache/blocks.h"

enum { N_SECTORS = 61, PER_SECTOR_MAX = 4, N_BLOCKS_MAX = N_SECTORS * PER_SECTOR_MAX, N_POOLS = 2 };

static uint32_t random_below(uint64_t *state, uint32_t n)
{
    *state = *state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (uint32_t)((*state >> 33) % n);
}

/* What a pool is: who holds each block, whether it is to be kept, and in which order those that are
 * kept were let go. */
struct naive {
    uint32_t per_sector;
    uint32_t holders[N_BLOCKS_MAX];
    bool keeps[N_BLOCKS_MAX], again[N_BLOCKS_MAX];
    uint32_t kept[N_BLOCKS_MAX], n_kept; /* the oldest first */
};

struct play {
    struct sectors *sectors;
    uint32_t n_pools;
    struct blocks *b[N_POOLS];
    struct naive n[N_POOLS];
    /* How many bytes of a sector were ever in use: of each, whether by anyone, and which blocks of
     * its present pool since that has it. */
    bool ever[N_SECTORS], used[N_POOLS][N_BLOCKS_MAX];
    uint64_t state;
};

static bool is_in_use(const struct naive *n, uint32_t id)
{
    return n->holders[id] > 0 || n->keeps[id];
}

static bool sector_in_use(const struct naive *n, uint32_t sector)
{
    for (uint32_t i = 0; i < n->per_sector; i++)
        if (is_in_use(n, sector * n->per_sector + i))
            return true;
    return false;
}

/* The pool that has this sector, or N_POOLS. */
static uint32_t owner(const struct play *p, uint32_t sector)
{
    for (uint32_t k = 0; k < p->n_pools; k++)
        if (sector_in_use(&p->n[k], sector))
            return k;
    return N_POOLS;
}

static uint32_t naive_n_free(const struct play *p, uint32_t pool)
{
    const struct naive *n = &p->n[pool];
    uint32_t n_free = 0;
    for (uint32_t s = 0; s < N_SECTORS; s++) {
        uint32_t of = owner(p, s);
        for (uint32_t i = 0; i < n->per_sector && (of == pool || of == N_POOLS); i++)
            n_free += !is_in_use(n, s * n->per_sector + i);
    }
    return n_free;
}

static void naive_take(struct play *p, uint32_t pool, uint32_t n_ids, const uint32_t *ids)
{
    struct naive *n = &p->n[pool];
    for (uint32_t i = 0; i < n_ids; i++) {
        uint32_t sector = ids[i] / n->per_sector, of = owner(p, sector);
        cr_assert_lt(sector, (uint32_t)N_SECTORS);
        cr_assert(of == pool || of == N_POOLS, "block %u is of a sector of another pool", ids[i]);
        cr_assert(!is_in_use(n, ids[i]), "block %u was given out and is not free", ids[i]);
        /* Sectors that were never held come in ascending order. */
        if (!p->ever[sector])
            for (uint32_t k = 0; k < sector; k++)
                cr_assert(p->ever[k], "sector %u was given out before sector %u", sector, k);
        if (of == N_POOLS)
            for (uint32_t k = 0; k < n->per_sector; k++)
                p->used[pool][sector * n->per_sector + k] = p->ever[sector];
        n->again[ids[i]] = p->used[pool][ids[i]];
        p->used[pool][ids[i]] = p->ever[sector] = true;
        n->holders[ids[i]] = 1;
    }
}

static void naive_drop_kept(struct naive *n, uint32_t id)
{
    uint32_t at = 0;
    while (at < n->n_kept && n->kept[at] != id)
        at++;
    if (at == n->n_kept)
        return;
    memmove(&n->kept[at], &n->kept[at + 1], (--n->n_kept - at) * sizeof *n->kept);
}

static void naive_release(struct naive *n, uint32_t id)
{
    if (--n->holders[id] == 0 && n->keeps[id])
        n->kept[n->n_kept++] = id;
}

static void agree(const struct play *p)
{
    const char *why = "";
    bool owned[N_SECTORS] = {false};
    for (uint32_t k = 0; k < p->n_pools; k++) {
        const struct blocks *b = p->b[k];
        const struct naive *n = &p->n[k];
        cr_assert_eq(blocks_check(b, n->holders, owned, &why), 0, "%s", why);
        cr_assert_eq(blocks_n_free(b), naive_n_free(p, k));
        cr_assert_eq(blocks_n_kept(b), n->n_kept);
        cr_assert_eq(blocks_oldest_kept(b), n->n_kept ? n->kept[0] : BLOCKS_NONE);
        for (uint32_t i = 0; i < blocks_n_total(b); i++) {
            cr_assert_eq(blocks_is_held(b, i), n->holders[i] > 0);
            if (n->holders[i] > 0)
                cr_assert_eq(blocks_was_held(b, i), n->again[i]);
        }
    }
    for (uint32_t s = 0; s < N_SECTORS; s++)
        cr_assert_eq(owned[s], owner(p, s) != N_POOLS);
    cr_assert_eq(sectors_check(p->sectors, owned, &why), 0, "%s", why);
}

/* A block that is held, or that is kept too; BLOCKS_NONE: the one drawn is not. */
static uint32_t draw_block(struct play *p, uint32_t pool, bool or_kept)
{
    const struct naive *n = &p->n[pool];
    uint32_t id = random_below(&p->state, N_SECTORS * n->per_sector);
    return n->holders[id] > 0 || (or_kept && n->keeps[id]) ? id : BLOCKS_NONE;
}

static void draw_take(struct play *p, uint32_t pool)
{
    uint32_t ids[16], k = random_below(&p->state, 12);
    memset(ids, 0xee, sizeof ids);
    int r = blocks_take(p->b[pool], k, ids);
    cr_assert_eq(r, k > naive_n_free(p, pool) ? BLOCKS_EXHAUSTED : 0);
    if (r)
        cr_assert_eq(ids[0], 0xeeeeeeee);
    naive_take(p, pool, r ? 0 : k, ids);
}

static void draw_release(struct play *p, uint32_t pool)
{
    uint32_t ids[24], n = 0;
    for (uint32_t i = 0; i < 24; i++) {
        uint32_t id = draw_block(p, pool, false), again = 0;
        for (uint32_t k = 0; k < n; k++)
            again += ids[k] == id;
        if (id != BLOCKS_NONE && !again)
            ids[n++] = id;
    }
    blocks_release(p->b[pool], n, ids);
    while (n-- > 0)
        naive_release(&p->n[pool], ids[n]);
}

static void draw_op(struct play *p)
{
    uint32_t pool = random_below(&p->state, p->n_pools), op = random_below(&p->state, 7);
    uint32_t id = draw_block(p, pool, op >= 4);
    struct naive *n = &p->n[pool];
    if (op < 2) {
        draw_take(p, pool);
    } else if (op == 2) {
        draw_release(p, pool);
    } else if (id == BLOCKS_NONE) {
        return;
    } else if (op == 3) {
        blocks_keep(p->b[pool], id);
        n->keeps[id] = true;
    } else if (op == 4) {
        blocks_ref(p->b[pool], id);
        naive_drop_kept(n, id);
        n->holders[id]++;
    } else if (n->keeps[id]) {
        blocks_give_up(p->b[pool], id);
        naive_drop_kept(n, id);
        n->keeps[id] = false;
    }
}

static void run_program(uint64_t seed, uint32_t n_pools, uint32_t first_cut, uint32_t second_cut)
{
    static struct play p;
    p = (struct play){.state = seed, .n_pools = n_pools};
    cr_assert_eq(sectors_new(&p.sectors, N_SECTORS), 0);
    for (uint32_t k = 0; k < n_pools; k++) {
        p.n[k].per_sector = k ? second_cut : first_cut;
        cr_assert_eq(blocks_new(&p.b[k], p.sectors, p.n[k].per_sector), 0);
    }
    for (int op = 0; op < 500; op++) {
        draw_op(&p);
        agree(&p);
    }
    for (uint32_t k = 0; k < n_pools; k++)
        blocks_free(p.b[k]);
    sectors_free(p.sectors);
}

Test(blocks, random_programs_agree_with_a_naive_pool)
{
    for (uint64_t seed = 1; seed <= 30; seed++)
        run_program(seed, 1, 1 + (uint32_t)seed % 2 * 2, 1);
}

Test(blocks, pools_over_common_sectors_agree_with_naive_ones)
{
    for (uint64_t seed = 1; seed <= 30; seed++)
        run_program(seed, 2, 1 + (uint32_t)seed % PER_SECTOR_MAX, 1 + (uint32_t)seed / 8);
}

/* ---- faults ---------------------------------------------------------------------------------- */

static struct blocks *pool_of_4(struct sectors **sectorsp)
{
    struct blocks *b;
    cr_assert_eq(sectors_new(sectorsp, 4), 0);
    cr_assert_eq(blocks_new(&b, *sectorsp, 1), 0);
    return b;
}

Test(blocks, what_can_not_be_is_counted_and_undone_by_a_rebuild)
{
    struct sectors *s;
    struct blocks *b = pool_of_4(&s);
    const char *why = NULL;
    uint32_t ids[3], far = 77, n_sectors;
    for (int fault = 0; fault < 6; fault++) {
        bool owned[4] = {false};
        cr_assert_eq(blocks_take(b, 3, ids), 0);
        cr_assert_eq(blocks_audit(b, &n_sectors, &why), 0);
        cr_assert_eq(n_sectors, 3);
        blocks_release(b, 1, &ids[2]);
        if (fault == 0)
            blocks_release(b, 1, &ids[2]);
        else if (fault == 1)
            blocks_release(b, 1, &far);
        else if (fault == 2)
            cr_assert(!blocks_ref(b, ids[2]));
        else if (fault == 3)
            cr_assert(!blocks_ref(b, far));
        else if (fault == 4)
            blocks_keep(b, ids[2]);
        else
            blocks_give_up(b, ids[0]);
        cr_assert_lt(blocks_audit(b, &n_sectors, &why), 0);
        uint32_t holders[4] = {0};
        holders[ids[0]] = 2; /* so two tables say */
        blocks_rebuild(b, holders, owned);
        sectors_rebuild(s, owned);
        cr_assert_eq(blocks_audit(b, &n_sectors, &why), 0);
        memset(owned, 0, sizeof owned);
        cr_assert_eq(blocks_check(b, holders, owned, &why), 0, "%s", why);
        cr_assert_eq(sectors_check(s, owned, &why), 0, "%s", why);
        cr_assert_eq(blocks_n_free(b), 3);
        blocks_release(b, 1, ids);
        blocks_release(b, 1, ids);
        cr_assert_eq(blocks_n_free(b), 4);
    }
    blocks_free(b);
    sectors_free(s);
}

Test(blocks, audit_sees_a_holder_that_the_pool_does_not)
{
    struct sectors *s;
    struct blocks *b = pool_of_4(&s);
    const char *why = NULL;
    bool owned[4] = {false};
    uint32_t holders[4] = {0, 1, 0, 0};
    cr_assert_lt(blocks_check(b, holders, owned, &why), 0);
    cr_assert_not_null(why);
    blocks_free(b);
    sectors_free(s);
}

Test(blocks, audit_sees_a_sector_that_nobody_uses_and_nobody_gave_back)
{
    struct sectors *s;
    const char *why = NULL;
    bool owned[4] = {false};
    cr_assert_eq(sectors_new(&s, 4), 0);
    cr_assert_eq(sectors_check(s, owned, &why), 0);
    sectors_take(s);
    cr_assert_lt(sectors_check(s, owned, &why), 0);
    cr_assert_not_null(why);
    sectors_free(s);
}
