/* A hash table with chains through an array of one entry a block. What a block holds is known by
 * its ids and by the block before it. That one is named by a serial number, new each time a block
 * is entered: a block id may come back with other contents, a serial number never does, so what
 * hung on a block that is gone can't be found through its successor. Such leftovers cost room until
 * they are the oldest; a tree that finds and frees them at once would cost more, and they only
 * arise where a request fails.
 *
 * The hash of a block is seeded with the hash of the one before, and the first with a number that
 * nobody outside knows, so no client can aim many blocks at one place of the table. */
#include "daemon/cache/prefix.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <xxhash.h>

/* word[1] of what an entry hangs on: not the first of its chain, a user's, a salt's. */
#define HANGS_ON_BLOCK UINT64_C(0)
#define HANGS_ON_UID   UINT64_C(1)
#define HANGS_ON_SALT  (UINT64_C(1) << 63)

struct entry {
    uint64_t serial;          /* 0: not in the table                                         */
    uint64_t hash;            /* of its ids and all before                                   */
    struct prefix_key before; /* word[0]: the serial of the block before; or the chain's key */
    uint32_t next;            /* of the same place, as id plus one; 0: none                  */
};

struct prefix {
    struct blocks *blocks;
    uint32_t page_size;
    uint32_t n_entries;
    uint32_t mask;         /* places less one              */
    uint32_t *places;      /* [mask + 1] id plus one; 0: none */
    struct entry *entries; /* [n_blocks]                   */
    uint32_t *ids;         /* [n_blocks][page_size]        */
    uint32_t n_faults;
    uint64_t last_serial;
    uint64_t seed;
    uint8_t secret[192];
};

int prefix_new(struct prefix **prefixp, struct blocks *b, uint32_t page_size)
{
    struct prefix *p = calloc(1, sizeof *p);
    if (!p)
        return -ENOMEM;
    uint32_t n_blocks = blocks_n_total(b);
    uint64_t n_places = 1;
    while (n_places < n_blocks)
        n_places *= 2;
    p->blocks = b;
    p->page_size = page_size;
    p->mask = (uint32_t)(n_places - 1);
    p->places = calloc(n_places, sizeof *p->places);
    p->entries = calloc(n_blocks, sizeof *p->entries);
    p->ids = calloc(n_blocks, page_size * sizeof *p->ids);
    int r = p->places && p->entries && p->ids ? 0 : -ENOMEM;
    if (!r && (getrandom(&p->seed, sizeof p->seed, 0) != sizeof p->seed ||
               getrandom(p->secret, sizeof p->secret, 0) != sizeof p->secret))
        r = -EIO;
    if (r) {
        prefix_free(p);
        return r;
    }
    *prefixp = p;
    return 0;
}

struct prefix *prefix_free(struct prefix *p)
{
    if (p) {
        free(p->places);
        free(p->entries);
        free(p->ids);
        free(p);
    }
    return NULL;
}

struct prefix_key prefix_key_uid(uint32_t uid)
{
    return (struct prefix_key){{uid, HANGS_ON_UID}};
}

struct prefix_key prefix_key_salt(const struct prefix *p, const void *salt, size_t n)
{
    XXH128_hash_t h = XXH3_128bits_withSecret(salt, n, p->secret, sizeof p->secret);
    return (struct prefix_key){{h.low64, h.high64 | HANGS_ON_SALT}};
}

/* ---- the table ------------------------------------------------------------------------------- */

static uint64_t hash_key(const struct prefix *p, const struct prefix_key *key)
{
    return XXH3_64bits_withSeed(key, sizeof *key, p->seed);
}

static uint64_t hash_ids(const struct prefix *p, const uint32_t *ids, uint64_t hash_before)
{
    return XXH3_64bits_withSeed(ids, p->page_size * sizeof *ids, hash_before);
}

static const uint32_t *ids_of(const struct prefix *p, uint32_t block_idx)
{
    return p->ids + (size_t)block_idx * p->page_size;
}

static uint32_t lookup(const struct prefix *p, uint64_t hash, const struct prefix_key *before,
                       const uint32_t *ids)
{
    uint32_t at = p->places[hash & p->mask];
    for (uint32_t n = 0; at && n <= p->n_entries; at = p->entries[at - 1].next, n++) {
        const struct entry *e = &p->entries[at - 1];
        if (e->hash == hash && e->before.word[0] == before->word[0] &&
            e->before.word[1] == before->word[1] &&
            memcmp(ids_of(p, at - 1), ids, p->page_size * sizeof *ids) == 0)
            return at - 1;
    }
    return BLOCKS_NONE;
}

uint32_t prefix_find(const struct prefix *p, const struct prefix_key *key, const uint32_t *ids,
                     uint32_t blocks_max, uint32_t *block_idx)
{
    struct prefix_key before = *key;
    uint64_t hash = hash_key(p, key);
    uint32_t n;
    for (n = 0; n < blocks_max; n++) {
        const uint32_t *block_ids = ids + (size_t)n * p->page_size;
        hash = hash_ids(p, block_ids, hash);
        block_idx[n] = lookup(p, hash, &before, block_ids);
        if (block_idx[n] == BLOCKS_NONE || !blocks_is_in_use(p->blocks, block_idx[n]))
            break;
        before = (struct prefix_key){{p->entries[block_idx[n]].serial, HANGS_ON_BLOCK}};
    }
    return n;
}

uint32_t prefix_add(struct prefix *p, const struct prefix_key *key, const uint32_t *ids,
                    const uint32_t *block_idx, uint32_t i)
{
    struct entry *e = &p->entries[block_idx[i]];
    struct prefix_key before = *key;
    uint64_t hash_before;
    if (e->serial)
        return block_idx[i];
    if (i > 0) {
        const struct entry *last = &p->entries[block_idx[i - 1]];
        if (last->serial == 0)
            return BLOCKS_NONE;
        before = (struct prefix_key){{last->serial, HANGS_ON_BLOCK}};
        hash_before = last->hash;
    } else {
        hash_before = hash_key(p, key);
    }
    ids += (size_t)i * p->page_size;
    uint64_t hash = hash_ids(p, ids, hash_before);
    uint32_t there = lookup(p, hash, &before, ids);
    if (there != BLOCKS_NONE)
        return there;
    blocks_keep(p->blocks, block_idx[i]);
    uint32_t *place = &p->places[hash & p->mask];
    *e = (struct entry){.serial = ++p->last_serial, .hash = hash, .before = before, .next = *place};
    *place = block_idx[i] + 1;
    memcpy(p->ids + (size_t)block_idx[i] * p->page_size, ids, p->page_size * sizeof *ids);
    p->n_entries++;
    return block_idx[i];
}

void prefix_forget(struct prefix *p, uint32_t block_idx)
{
    struct entry *e = &p->entries[block_idx];
    if (e->serial == 0)
        return;
    uint32_t *at = &p->places[e->hash & p->mask];
    for (uint32_t n = 0; *at && *at != block_idx + 1 && n <= p->n_entries; n++)
        at = &p->entries[*at - 1].next;
    if (*at == block_idx + 1)
        *at = e->next;
    e->serial = 0;
    p->n_entries--;
    blocks_give_up(p->blocks, block_idx);
}

void prefix_forget_all(struct prefix *p)
{
    for (uint32_t i = 0; i < blocks_n_total(p->blocks) && p->n_entries > 0; i++)
        prefix_forget(p, i);
}

bool prefix_holds(const struct prefix *p, const struct prefix_key *key, const uint32_t *ids,
                  const uint32_t *block_idx, uint32_t i)
{
    const struct entry *e = &p->entries[block_idx[i]];
    struct prefix_key before = *key;
    if (i > 0)
        before = (struct prefix_key){{p->entries[block_idx[i - 1]].serial, HANGS_ON_BLOCK}};
    return e->serial != 0 && e->before.word[0] == before.word[0] &&
           e->before.word[1] == before.word[1] &&
           memcmp(ids_of(p, block_idx[i]), ids + (size_t)i * p->page_size,
                  p->page_size * sizeof *ids) == 0;
}

bool prefix_has(const struct prefix *p, uint32_t block_idx)
{
    return p->entries[block_idx].serial != 0;
}

void prefix_give_up_oldest(struct prefix *p)
{
    uint32_t oldest = blocks_oldest_kept(p->blocks);
    assert(oldest != BLOCKS_NONE);
    if (prefix_has(p, oldest)) {
        prefix_forget(p, oldest);
    } else {
        p->n_faults++;
        blocks_give_up(p->blocks, oldest);
    }
}

void prefix_clear(struct prefix *p)
{
    memset(p->places, 0, ((size_t)p->mask + 1) * sizeof *p->places);
    for (uint32_t i = 0; i < blocks_n_total(p->blocks); i++)
        p->entries[i].serial = 0;
    p->n_entries = p->n_faults = 0;
}

/* ---- audit ----------------------------------------------------------------------------------- */

static int unclean(const char **whyp, const char *why)
{
    *whyp = why;
    return -EUCLEAN;
}

bool prefix_is_reachable(const struct prefix *p, uint32_t block_idx)
{
    const struct entry *e = &p->entries[block_idx];
    uint32_t at = p->places[e->hash & p->mask];
    for (uint32_t n = 0; at && at != block_idx + 1 && n <= p->n_entries; n++)
        at = p->entries[at - 1].next;
    return e->serial == 0 || at == block_idx + 1;
}

uint32_t prefix_n_faults(const struct prefix *p)
{
    return p->n_faults;
}

int prefix_check(const struct prefix *p, const char **whyp)
{
    uint32_t n_entries = 0, n_reached = 0;
    for (uint32_t i = 0; i < blocks_n_total(p->blocks); i++) {
        const struct entry *e = &p->entries[i];
        if (e->serial > p->last_serial)
            return unclean(whyp, "prefix: a serial number that was not given out");
        n_entries += e->serial != 0;
    }
    if (n_entries != p->n_entries || blocks_n_kept(p->blocks) > n_entries)
        return unclean(whyp, "prefix: more or fewer blocks than it counts");
    for (uint32_t place = 0; place <= p->mask; place++)
        for (uint32_t at = p->places[place]; at; at = p->entries[at - 1].next) {
            if (at > blocks_n_total(p->blocks) || p->entries[at - 1].serial == 0 ||
                (p->entries[at - 1].hash & p->mask) != place || n_reached++ >= n_entries)
                return unclean(whyp, "prefix: the table is broken");
        }
    if (n_reached != n_entries)
        return unclean(whyp, "prefix: a block can't be found");
    return 0;
}
