/* A stack of released ids over a mark below which all ids have been held at least once. Both ends
 * are O(1) a block, nothing is ever searched, and a start touches no memory that grows with the
 * pool (the arrays come zeroed from the kernel). A bitmap would find low ids, which nobody
 * needs. */
#include "daemon/cache/blocks.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

enum block_state { BLOCK_NEVER_HELD, BLOCK_HELD, BLOCK_HELD_AGAIN, BLOCK_RELEASED };

struct blocks {
    uint32_t n_blocks;
    uint32_t n_ever_held; /* ids below were held at least once */
    uint32_t n_released;  /* entries of the stack              */
    uint32_t *released;   /* [n_blocks] stack of ids           */
    uint8_t *state;       /* [n_blocks] enum block_state       */
};

int blocks_new(struct blocks **blocksp, uint32_t n_blocks)
{
    assert(n_blocks > 0);
    struct blocks *b = calloc(1, sizeof *b);
    if (!b)
        return -ENOMEM;
    b->n_blocks = n_blocks;
    b->released = calloc(n_blocks, sizeof *b->released);
    b->state = calloc(n_blocks, sizeof *b->state);
    if (!b->released || !b->state) {
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
        free(b->state);
        free(b);
    }
    return NULL;
}

int blocks_take(struct blocks *b, uint32_t n, uint32_t *ids)
{
    if (n > blocks_n_free(b))
        return BLOCKS_EXHAUSTED;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t id;
        if (b->n_released > 0) {
            id = b->released[--b->n_released];
            assert(b->state[id] == BLOCK_RELEASED);
            b->state[id] = BLOCK_HELD_AGAIN;
        } else {
            id = b->n_ever_held++;
            assert(b->state[id] == BLOCK_NEVER_HELD);
            b->state[id] = BLOCK_HELD;
        }
        ids[i] = id;
    }
    return 0;
}

void blocks_release(struct blocks *b, uint32_t n, const uint32_t *ids)
{
    /* Last taken on top: a request that comes back gets its blocks in the order it had them. */
    for (uint32_t i = n; i-- > 0;) {
        uint32_t id = ids[i];
        assert(id < b->n_ever_held);
        assert(b->state[id] == BLOCK_HELD || b->state[id] == BLOCK_HELD_AGAIN);
        b->state[id] = BLOCK_RELEASED;
        b->released[b->n_released++] = id;
    }
}

bool blocks_was_held(const struct blocks *b, uint32_t block_idx)
{
    assert(block_idx < b->n_blocks);
    return b->state[block_idx] == BLOCK_HELD_AGAIN || b->state[block_idx] == BLOCK_RELEASED;
}

uint32_t blocks_n_total(const struct blocks *b)
{
    return b->n_blocks;
}

uint32_t blocks_n_free(const struct blocks *b)
{
    return b->n_released + (b->n_blocks - b->n_ever_held);
}

static int unclean(const char **whyp, const char *why)
{
    *whyp = why;
    return -EUCLEAN;
}

int blocks_check(const struct blocks *b, const uint8_t *held, const char **whyp)
{
    if (b->n_ever_held > b->n_blocks || b->n_released > b->n_ever_held)
        return unclean(whyp, "blocks: more released or held than there are");
    uint32_t n_held = 0, n_released = 0;
    for (uint32_t i = 0; i < b->n_blocks; i++) {
        bool is_held = b->state[i] == BLOCK_HELD || b->state[i] == BLOCK_HELD_AGAIN;
        if ((i >= b->n_ever_held) != (b->state[i] == BLOCK_NEVER_HELD))
            return unclean(whyp, "blocks: a block is on the wrong side of the mark");
        if (held && held[i] != is_held)
            return unclean(whyp, "blocks: holders and pool disagree about a block");
        n_held += is_held;
        n_released += b->state[i] == BLOCK_RELEASED;
    }
    if (n_held + blocks_n_free(b) != b->n_blocks || n_released != b->n_released)
        return unclean(whyp, "blocks: held and free ones do not add up");
    for (uint32_t i = 0; i < b->n_released; i++)
        if (b->released[i] >= b->n_blocks || b->state[b->released[i]] != BLOCK_RELEASED)
            return unclean(whyp, "blocks: the stack holds a block that is not released");
    return 0;
}
