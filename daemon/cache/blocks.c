/* Two lists through the blocks: the free ones of sectors that are ours, the latest released first,
 * and the kept ones, oldest first. All that is done is done at their ends, or to a block at hand:
 * nothing is ever searched, and a start touches no memory that grows with the cache.
 *
 * With one block a sector, a pool is no more than the sectors' stack and a count of holders. */
#include "daemon/cache/blocks.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

enum block_state { BLOCK_ABSENT, BLOCK_FREE, BLOCK_HELD, BLOCK_KEPT }; /* ABSENT: no sector */

struct block {
    uint32_t n_holders;
    uint32_t before, behind; /* neighbours in the list of its state: id plus one; 0: none */
    uint8_t state;           /* enum block_state                                          */
    bool is_used;            /* its bytes were in use before it was last taken            */
    bool keeps;              /* it becomes KEPT when the last holder goes                 */
};

struct ends {
    uint32_t first, last, n;
};

struct blocks {
    struct sectors *sectors;
    uint32_t per_sector, n_blocks;
    struct ends free, kept;
    uint32_t n_held, n_sectors; /* held blocks; sectors that are ours */
    uint32_t n_faults;
    uint64_t ledger;
    struct block *all;  /* [n_blocks]                             */
    uint32_t *n_in_use; /* [n_sectors] held and kept ones in each */
};

int blocks_new(struct blocks **blocksp, struct sectors *s, uint32_t blocks_per_sector)
{
    uint32_t n_sectors = sectors_n_total(s);
    struct blocks *b = calloc(1, sizeof *b);
    if (!b)
        return -ENOMEM;
    assert(blocks_per_sector > 0 && blocks_per_sector < BLOCKS_NONE / n_sectors);
    b->sectors = s;
    b->per_sector = blocks_per_sector;
    b->n_blocks = n_sectors * blocks_per_sector;
    b->all = calloc(b->n_blocks, sizeof *b->all);
    b->n_in_use = calloc(n_sectors, sizeof *b->n_in_use);
    if (!b->all || !b->n_in_use) {
        blocks_free(b);
        return -ENOMEM;
    }
    *blocksp = b;
    return 0;
}

struct blocks *blocks_free(struct blocks *b)
{
    if (b) {
        free(b->all);
        free(b->n_in_use);
        free(b);
    }
    return NULL;
}

/* ---- the two lists --------------------------------------------------------------------------- */

static void list_add(struct blocks *b, struct ends *l, uint32_t id)
{
    b->all[id].before = l->last;
    b->all[id].behind = 0;
    *(l->last ? &b->all[l->last - 1].behind : &l->first) = id + 1;
    l->last = id + 1;
    l->n++;
}

static void list_drop(struct blocks *b, struct ends *l, uint32_t id)
{
    struct block *k = &b->all[id];
    *(k->before ? &b->all[k->before - 1].behind : &l->first) = k->behind;
    *(k->behind ? &b->all[k->behind - 1].before : &l->last) = k->before;
    l->n--;
}

/* ---- sectors --------------------------------------------------------------------------------- */

/* Cuts a free sector into free blocks, of which the first one is the last in the list. False:
 * there is none, though there should be. */
static bool cut_sector(struct blocks *b)
{
    uint32_t sector = sectors_take(b->sectors), first = sector * b->per_sector;
    if (sector == SECTORS_NONE) {
        b->n_faults++;
        return false;
    }
    b->n_sectors++;
    for (uint32_t id = first + b->per_sector; id-- > first;) {
        b->n_faults += b->all[id].state != BLOCK_ABSENT;
        b->all[id] =
            (struct block){.state = BLOCK_FREE, .is_used = sectors_was_held(b->sectors, sector)};
        list_add(b, &b->free, id);
    }
    return true;
}

/* The block is no longer in use; nor is its sector, perhaps. */
static void let_go(struct blocks *b, uint32_t id)
{
    uint32_t sector = id / b->per_sector, first = sector * b->per_sector;
    b->all[id].state = BLOCK_FREE;
    b->all[id].is_used = true;
    list_add(b, &b->free, id);
    if (--b->n_in_use[sector] > 0)
        return;
    for (uint32_t i = first; i < first + b->per_sector; i++) {
        list_drop(b, &b->free, i);
        b->all[i].state = BLOCK_ABSENT;
    }
    sectors_release(b->sectors, sector);
    b->n_sectors--;
}

static void add_holder(struct blocks *b, uint32_t id)
{
    b->n_held += b->all[id].n_holders++ == 0;
    b->all[id].state = BLOCK_HELD;
    b->ledger += blocks_mark(id);
}

/* ---- taking and giving back ------------------------------------------------------------------ */

uint32_t blocks_sectors_for(const struct blocks *b, uint32_t n)
{
    return n > b->free.n ? (n - b->free.n - 1) / b->per_sector + 1 : 0;
}

int blocks_take(struct blocks *b, uint32_t n, uint32_t *ids)
{
    if (blocks_sectors_for(b, n) > sectors_n_free(b->sectors))
        return BLOCKS_EXHAUSTED;
    for (uint32_t i = 0; i < n; i++) {
        if (b->free.last == 0 && !cut_sector(b)) {
            blocks_release(b, i, ids);
            return BLOCKS_EXHAUSTED;
        }
        ids[i] = b->free.last - 1;
        list_drop(b, &b->free, ids[i]);
        add_holder(b, ids[i]);
        b->n_in_use[ids[i] / b->per_sector]++;
    }
    return 0;
}

bool blocks_ref(struct blocks *b, uint32_t block_idx)
{
    struct block *k = &b->all[block_idx];
    if (block_idx >= b->n_blocks || (k->state != BLOCK_HELD && k->state != BLOCK_KEPT)) {
        b->n_faults++;
        return false;
    }
    if (k->state == BLOCK_KEPT)
        list_drop(b, &b->kept, block_idx);
    add_holder(b, block_idx);
    return true;
}

static void release_one(struct blocks *b, uint32_t id)
{
    struct block *k = &b->all[id];
    if (id >= b->n_blocks || k->state != BLOCK_HELD || k->n_holders == 0) {
        b->n_faults++;
        return;
    }
    b->ledger -= blocks_mark(id);
    if (--k->n_holders > 0)
        return;
    b->n_held--;
    if (k->keeps) {
        k->state = BLOCK_KEPT;
        list_add(b, &b->kept, id);
    } else {
        let_go(b, id);
    }
}

void blocks_release(struct blocks *b, uint32_t n, const uint32_t *ids)
{
    /* Last taken on top: a request that comes back gets its blocks in the order it had them. And
     * the end of a prefix is given up before its beginning, without which it is of no use. */
    for (uint32_t i = n; i-- > 0;)
        release_one(b, ids[i]);
}

void blocks_keep(struct blocks *b, uint32_t block_idx)
{
    if (block_idx < b->n_blocks && b->all[block_idx].state == BLOCK_HELD)
        b->all[block_idx].keeps = true;
    else
        b->n_faults++;
}

void blocks_give_up(struct blocks *b, uint32_t block_idx)
{
    struct block *k = &b->all[block_idx];
    if (block_idx >= b->n_blocks || !k->keeps) {
        b->n_faults++;
        return;
    }
    k->keeps = false;
    if (k->state == BLOCK_KEPT) {
        list_drop(b, &b->kept, block_idx);
        let_go(b, block_idx);
    }
}

/* ---- watching -------------------------------------------------------------------------------- */

uint32_t blocks_oldest_kept(const struct blocks *b)
{
    return b->kept.first ? b->kept.first - 1 : BLOCKS_NONE;
}

uint32_t blocks_n_holders(const struct blocks *b, uint32_t block_idx)
{
    return block_idx < b->n_blocks ? b->all[block_idx].n_holders : 0;
}

bool blocks_is_held(const struct blocks *b, uint32_t block_idx)
{
    assert(block_idx < b->n_blocks);
    return b->all[block_idx].state == BLOCK_HELD;
}

bool blocks_is_in_use(const struct blocks *b, uint32_t block_idx)
{
    return block_idx < b->n_blocks &&
           (b->all[block_idx].state == BLOCK_HELD || b->all[block_idx].state == BLOCK_KEPT);
}

bool blocks_keeps(const struct blocks *b, uint32_t block_idx)
{
    return b->all[block_idx].keeps;
}

bool blocks_was_held(const struct blocks *b, uint32_t block_idx)
{
    assert(block_idx < b->n_blocks);
    return b->all[block_idx].is_used;
}

uint32_t blocks_n_total(const struct blocks *b)
{
    return b->n_blocks;
}

uint32_t blocks_n_free(const struct blocks *b)
{
    return b->free.n + b->per_sector * sectors_n_free(b->sectors);
}

uint32_t blocks_n_kept(const struct blocks *b)
{
    return b->kept.n;
}

uint64_t blocks_ledger(const struct blocks *b)
{
    return b->ledger;
}

/* ---- audit ----------------------------------------------------------------------------------- */

static int unclean(const char **whyp, const char *why)
{
    *whyp = why;
    return -EUCLEAN;
}

static int check_block(const struct block *k, bool is_ours, const char **whyp)
{
    if (is_ours != (k->state != BLOCK_ABSENT))
        return unclean(whyp, "blocks: a block is without its sector, or is not cut from it");
    if (is_ours && (k->n_holders > 0) != (k->state == BLOCK_HELD))
        return unclean(whyp, "blocks: a block's state is not what its holders say");
    if (k->state == BLOCK_KEPT ? !k->keeps : k->state != BLOCK_HELD && k->keeps)
        return unclean(whyp, "blocks: a block is kept that should not be, or free that should");
    return 0;
}

int blocks_audit(const struct blocks *b, uint32_t *n_sectorsp, const char **whyp)
{
    *n_sectorsp = b->n_sectors;
    if (b->n_faults)
        return unclean(whyp, "blocks: one was given back that nobody held, or was not there");
    if (b->n_held + b->kept.n + b->free.n != b->n_sectors * b->per_sector)
        return unclean(whyp, "blocks: held, kept and free ones are not those of its sectors");
    return 0;
}

int blocks_audit_one(const struct blocks *b, uint32_t block_idx, const char **whyp)
{
    uint32_t sector = block_idx / b->per_sector, n_in_use = 0;
    for (uint32_t i = sector * b->per_sector; i < (sector + 1) * b->per_sector; i++)
        n_in_use += b->all[i].state == BLOCK_HELD || b->all[i].state == BLOCK_KEPT;
    if (n_in_use != b->n_in_use[sector])
        return unclean(whyp, "blocks: more or fewer are in use in a sector than it counts");
    return check_block(&b->all[block_idx], n_in_use > 0, whyp);
}

void blocks_rebuild(struct blocks *b, const uint32_t *holders, bool *is_mine)
{
    b->free = b->kept = (struct ends){0};
    b->n_held = b->n_sectors = b->n_faults = 0;
    b->ledger = 0;
    for (uint32_t sector = 0; sector < b->n_blocks / b->per_sector; sector++) {
        uint32_t first = sector * b->per_sector, end = first + b->per_sector;
        b->n_in_use[sector] = 0;
        for (uint32_t i = first; i < end; i++)
            b->n_in_use[sector] += holders[i] > 0;
        b->n_sectors += b->n_in_use[sector] > 0;
        is_mine[sector] |= b->n_in_use[sector] > 0;
        for (uint32_t i = first; i < end; i++) {
            b->all[i] = (struct block){.is_used = true};
            if (b->n_in_use[sector] == 0)
                continue;
            for (uint32_t k = 0; k < holders[i]; k++)
                add_holder(b, i);
            if (holders[i] == 0) {
                b->all[i].state = BLOCK_FREE;
                list_add(b, &b->free, i);
            }
        }
    }
}

/* A list from end to end. */
static int check_ends(const struct blocks *b, const struct ends *l, uint8_t state,
                      const char **whyp)
{
    uint32_t n = 0, before = 0;
    for (uint32_t at = l->first; at; at = b->all[at - 1].behind) {
        if (at > b->n_blocks || n++ >= l->n || b->all[at - 1].state != state ||
            b->all[at - 1].before != before)
            return unclean(whyp, "blocks: a list of free or kept ones is broken");
        before = at;
    }
    if (n != l->n || l->last != before)
        return unclean(whyp, "blocks: a list of free or kept ones is not as long as it says");
    return 0;
}

int blocks_check(const struct blocks *b, const uint32_t *holders, bool *is_mine, const char **whyp)
{
    uint32_t n_of[4] = {0};
    for (uint32_t s = 0; s < b->n_blocks / b->per_sector; s++) {
        uint32_t n_in_use = 0;
        for (uint32_t i = s * b->per_sector; i < (s + 1) * b->per_sector; i++) {
            int err = check_block(&b->all[i], b->n_in_use[s] > 0, whyp);
            if (err)
                return err;
            if (holders && holders[i] != b->all[i].n_holders)
                return unclean(whyp, "blocks: holders and pool disagree about a block");
            n_of[b->all[i].state]++;
            n_in_use += b->all[i].state == BLOCK_HELD || b->all[i].state == BLOCK_KEPT;
        }
        if (n_in_use != b->n_in_use[s])
            return unclean(whyp, "blocks: more or fewer are in use in a sector than it counts");
        if (n_in_use > 0 && is_mine[s])
            return unclean(whyp, "blocks: a sector has two owners");
        is_mine[s] |= n_in_use > 0;
    }
    if (n_of[BLOCK_FREE] != b->free.n || n_of[BLOCK_KEPT] != b->kept.n)
        return unclean(whyp, "blocks: free or kept ones are not in their list");
    uint32_t n_sectors;
    int fault = blocks_audit(b, &n_sectors, whyp);
    if (fault)
        return fault;
    int err = check_ends(b, &b->free, BLOCK_FREE, whyp);
    return err ? err : check_ends(b, &b->kept, BLOCK_KEPT, whyp);
}
