/* The pool against a naive model under random programs. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/cache/blocks.h"

enum { N_BLOCKS = 97 };

static uint32_t random_below(uint64_t *state, uint32_t n)
{
    *state = *state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (uint32_t)((*state >> 33) % n);
}

/* What a pool is: who holds each block, whether it is to be kept, whether anyone ever held it, and
 * in which order those that are kept were let go. */
struct naive {
    uint32_t holders[N_BLOCKS];
    bool keeps[N_BLOCKS], ever[N_BLOCKS], again[N_BLOCKS];
    uint32_t kept[N_BLOCKS], n_kept; /* the oldest first */
};

static bool naive_is_free(const struct naive *n, uint32_t id)
{
    return n->holders[id] == 0 && !n->keeps[id];
}

static uint32_t naive_n_free(const struct naive *n)
{
    uint32_t free = 0;
    for (uint32_t i = 0; i < N_BLOCKS; i++)
        free += naive_is_free(n, i);
    return free;
}

static void naive_take(struct naive *n, uint32_t n_ids, const uint32_t *ids)
{
    for (uint32_t i = 0; i < n_ids; i++) {
        cr_assert_lt(ids[i], (uint32_t)N_BLOCKS);
        cr_assert(naive_is_free(n, ids[i]), "block %u was given out and is not free", ids[i]);
        /* Never-held ones come in ascending order. */
        if (!n->ever[ids[i]])
            for (uint32_t k = 0; k < ids[i]; k++)
                cr_assert(n->ever[k], "block %u was given out before block %u", ids[i], k);
        n->again[ids[i]] = n->ever[ids[i]];
        n->ever[ids[i]] = true;
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

static void agree(const struct blocks *b, const struct naive *n)
{
    const char *why = "";
    cr_assert_eq(blocks_check(b, n->holders, &why), 0, "%s", why);
    cr_assert_eq(blocks_n_free(b), naive_n_free(n));
    cr_assert_eq(blocks_n_kept(b), n->n_kept);
    cr_assert_eq(blocks_oldest_kept(b), n->n_kept ? n->kept[0] : BLOCKS_NONE);
    for (uint32_t i = 0; i < N_BLOCKS; i++) {
        cr_assert_eq(blocks_is_held(b, i), n->holders[i] > 0);
        if (n->holders[i] > 0)
            cr_assert_eq(blocks_was_held(b, i), n->again[i]);
    }
}

struct play {
    struct blocks *b;
    struct naive n;
    uint64_t state;
};

/* A block that is held, or that is kept too; BLOCKS_NONE: the one drawn is not. */
static uint32_t draw_block(struct play *p, bool or_kept)
{
    uint32_t id = random_below(&p->state, N_BLOCKS);
    return p->n.holders[id] > 0 || (or_kept && p->n.keeps[id]) ? id : BLOCKS_NONE;
}

static void draw_take(struct play *p)
{
    uint32_t ids[16], k = random_below(&p->state, 12);
    memset(ids, 0xee, sizeof ids);
    int r = blocks_take(p->b, k, ids);
    cr_assert_eq(r, k > naive_n_free(&p->n) ? BLOCKS_EXHAUSTED : 0);
    if (r)
        cr_assert_eq(ids[0], 0xeeeeeeee);
    naive_take(&p->n, r ? 0 : k, ids);
}

static void draw_release(struct play *p)
{
    uint32_t ids[12], n = 0;
    for (uint32_t i = 0; i < 12; i++) {
        uint32_t id = draw_block(p, false), again = 0;
        for (uint32_t k = 0; k < n; k++)
            again += ids[k] == id;
        if (id != BLOCKS_NONE && !again)
            ids[n++] = id;
    }
    blocks_release(p->b, n, ids);
    while (n-- > 0)
        naive_release(&p->n, ids[n]);
}

static void draw_op(struct play *p)
{
    uint32_t op = random_below(&p->state, 6), id = draw_block(p, op == 2 || op == 3);
    switch (op) {
    case 0:
        draw_take(p);
        return;
    case 1:
        draw_release(p);
        return;
    case 2:
        if (id == BLOCKS_NONE)
            return;
        blocks_ref(p->b, id);
        naive_drop_kept(&p->n, id);
        p->n.holders[id]++;
        return;
    case 3:
        if (id == BLOCKS_NONE || !p->n.keeps[id])
            return;
        blocks_give_up(p->b, id);
        naive_drop_kept(&p->n, id);
        p->n.keeps[id] = false;
        return;
    default:
        if (id == BLOCKS_NONE)
            return;
        blocks_keep(p->b, id);
        p->n.keeps[id] = true;
    }
}

Test(blocks, random_programs_agree_with_a_naive_pool)
{
    for (uint64_t seed = 1; seed <= 50; seed++) {
        struct play p = {.state = seed};
        cr_assert_eq(blocks_new(&p.b, N_BLOCKS), 0);
        for (int op = 0; op < 600; op++) {
            draw_op(&p);
            agree(p.b, &p.n);
        }
        blocks_free(p.b);
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
    uint32_t holders[4] = {0, 1, 0, 0};
    cr_assert_eq(blocks_new(&b, 4), 0);
    cr_assert_lt(blocks_check(b, holders, &why), 0);
    cr_assert_not_null(why);
    blocks_free(b);
}
