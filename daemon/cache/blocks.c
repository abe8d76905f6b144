/* A stack of released ids over a mark below which all ids have been held at least once, and a list
 * through the kept ones, oldest first. All ends are O(1) a block, nothing is ever searched, and a
 * start touches no memory that grows with the pool (the arrays come zeroed from the kernel). A
 * bitmap would find low ids, which nobody needs.
 *
 * Links of the list are ids plus one, so that zero means none. */
#include "daemon/cache/blocks.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

enum block_state { BLOCK_NEVER_HELD, BLOCK_HELD, BLOCK_KEPT, BLOCK_RELEASED };

struct block {
    uint32_t n_holders;
    uint32_t older, newer; /* KEPT: its neighbours in the list          */
    uint8_t state;         /* enum block_state                          */
    bool is_used;          /* it was released before it was last taken  */
    bool keeps;            /* it becomes KEPT when the last holder goes */
};

struct blocks {
    uint32_t n_blocks;
    uint32_t n_ever_held;    /* ids below were held at least once */
    uint32_t n_released;     /* entries of the stack              */
    uint32_t n_kept;         /* entries of the list               */
    uint32_t oldest, newest; /* its ends                          */
    uint32_t *released;      /* [n_blocks] stack of ids           */
    struct block *all;       /* [n_blocks]                        */
};

int blocks_new(struct blocks **blocksp, uint32_t n_blocks)
{
    assert(n_blocks > 0);
    struct blocks *b = calloc(1, sizeof *b);
    if (!b)
        return -ENOMEM;
    b->n_blocks = n_blocks;
    b->released = calloc(n_blocks, sizeof *b->released);
    b->all = calloc(n_blocks, sizeof *b->all);
    if (!b->released || !b->all) {
        blocks_free(b);
        return -ENOMEM;
    }
    *blocksp = b;
    return 0;
}

struct blocks *blocks_free(struct blocks *b)
{
    if (b) {
        free(b->released);
        free(b->all);
        free(b);
    }
    return NULL;
}

/* ---- the two ways to be without a holder ----------------------------------------------------- */

static void release(struct blocks *b, uint32_t id)
{
    b->all[id].state = BLOCK_RELEASED;
    b->released[b->n_released++] = id;
}

static void keep(struct blocks *b, uint32_t id)
{
    struct block *k = &b->all[id];
    k->state = BLOCK_KEPT;
    k->older = b->newest;
    k->newer = 0;
    *(b->newest ? &b->all[b->newest - 1].newer : &b->oldest) = id + 1;
    b->newest = id + 1;
    b->n_kept++;
}

static void unlink_kept(struct blocks *b, uint32_t id)
{
    struct block *k = &b->all[id];
    *(k->older ? &b->all[k->older - 1].newer : &b->oldest) = k->newer;
    *(k->newer ? &b->all[k->newer - 1].older : &b->newest) = k->older;
    b->n_kept--;
}

/* ---- taking and giving back ------------------------------------------------------------------ */

int blocks_take(struct blocks *b, uint32_t n, uint32_t *ids)
{
    if (n > blocks_n_free(b))
        return BLOCKS_EXHAUSTED;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t id;
        if (b->n_released > 0) {
            id = b->released[--b->n_released];
            assert(b->all[id].state == BLOCK_RELEASED);
            b->all[id].is_used = true;
        } else {
            id = b->n_ever_held++;
            assert(b->all[id].state == BLOCK_NEVER_HELD);
        }
        b->all[id].state = BLOCK_HELD;
        b->all[id].n_holders = 1;
        ids[i] = id;
    }
    return 0;
}

void blocks_ref(struct blocks *b, uint32_t block_idx)
{
    assert(block_idx < b->n_ever_held);
    struct block *k = &b->all[block_idx];
    assert(k->state == BLOCK_HELD || k->state == BLOCK_KEPT);
    if (k->state == BLOCK_KEPT)
        unlink_kept(b, block_idx);
    k->state = BLOCK_HELD;
    k->n_holders++;
}

void blocks_release(struct blocks *b, uint32_t n, const uint32_t *ids)
{
    /* Last taken on top: a request that comes back gets its blocks in the order it had them. And
     * the end of a prefix is given up before its beginning, without which it is of no use. */
    for (uint32_t i = n; i-- > 0;) {
        assert(ids[i] < b->n_ever_held);
        struct block *k = &b->all[ids[i]];
        assert(k->state == BLOCK_HELD && k->n_holders > 0);
        if (--k->n_holders > 0)
            continue;
        if (k->keeps)
            keep(b, ids[i]);
        else
            release(b, ids[i]);
    }
}

void blocks_keep(struct blocks *b, uint32_t block_idx)
{
    assert(block_idx < b->n_ever_held && b->all[block_idx].state == BLOCK_HELD);
    b->all[block_idx].keeps = true;
}

void blocks_give_up(struct blocks *b, uint32_t block_idx)
{
    assert(block_idx < b->n_ever_held);
    struct block *k = &b->all[block_idx];
    assert(k->keeps);
    k->keeps = false;
    if (k->state == BLOCK_KEPT) {
        unlink_kept(b, block_idx);
        release(b, block_idx);
    }
}

/* ---- watching -------------------------------------------------------------------------------- */

uint32_t blocks_oldest_kept(const struct blocks *b)
{
    return b->oldest ? b->oldest - 1 : BLOCKS_NONE;
}

bool blocks_is_held(const struct blocks *b, uint32_t block_idx)
{
    assert(block_idx < b->n_blocks);
    return b->all[block_idx].state == BLOCK_HELD;
}

bool blocks_was_held(const struct blocks *b, uint32_t block_idx)
{
    assert(block_idx < b->n_blocks);
    return b->all[block_idx].is_used || b->all[block_idx].state == BLOCK_RELEASED;
}

uint32_t blocks_n_total(const struct blocks *b)
{
    return b->n_blocks;
}

uint32_t blocks_n_free(const struct blocks *b)
{
    return b->n_released + (b->n_blocks - b->n_ever_held);
}

uint32_t blocks_n_kept(const struct blocks *b)
{
    return b->n_kept;
}

/* ---- audit ----------------------------------------------------------------------------------- */

static int unclean(const char **whyp, const char *why)
{
    *whyp = why;
    return -EUCLEAN;
}

static int check_block(const struct blocks *b, uint32_t id, const char **whyp)
{
    const struct block *k = &b->all[id];
    if ((id >= b->n_ever_held) != (k->state == BLOCK_NEVER_HELD))
        return unclean(whyp, "blocks: a block is on the wrong side of the mark");
    if ((k->n_holders > 0) != (k->state == BLOCK_HELD))
        return unclean(whyp, "blocks: a block's state is not what its holders say");
    if (k->state == BLOCK_KEPT ? !k->keeps : k->keeps && k->state != BLOCK_HELD)
        return unclean(whyp, "blocks: a block is kept that should not be, or free that should");
    return 0;
}

/* The list of kept blocks from end to end. */
static int check_kept(const struct blocks *b, const char **whyp)
{
    uint32_t n = 0, before = 0;
    for (uint32_t at = b->oldest; at; at = b->all[at - 1].newer) {
        if (at > b->n_blocks || n++ >= b->n_kept || b->all[at - 1].state != BLOCK_KEPT ||
            b->all[at - 1].older != before)
            return unclean(whyp, "blocks: the list of kept blocks is broken");
        before = at;
    }
    if (n != b->n_kept || b->newest != before)
        return unclean(whyp, "blocks: the list of kept blocks has another length than it says");
    return 0;
}

int blocks_check(const struct blocks *b, const uint32_t *holders, const char **whyp)
{
    if (b->n_ever_held > b->n_blocks || b->n_released > b->n_ever_held)
        return unclean(whyp, "blocks: more released or held than there are");
    uint32_t n_held = 0, n_released = 0;
    for (uint32_t i = 0; i < b->n_blocks; i++) {
        int err = check_block(b, i, whyp);
        if (err)
            return err;
        if (holders && holders[i] != b->all[i].n_holders)
            return unclean(whyp, "blocks: holders and pool disagree about a block");
        n_held += b->all[i].state == BLOCK_HELD;
        n_released += b->all[i].state == BLOCK_RELEASED;
    }
    if (n_held + b->n_kept + blocks_n_free(b) != b->n_blocks || n_released != b->n_released)
        return unclean(whyp, "blocks: held, kept and free ones do not add up");
    for (uint32_t i = 0; i < b->n_released; i++)
        if (b->released[i] >= b->n_blocks || b->all[b->released[i]].state != BLOCK_RELEASED)
            return unclean(whyp, "blocks: the stack holds a block that is not released");
    return check_kept(b, whyp);
}
