/* Tables, sharing and room together under random programs, against a model that remembers of every
 * block which ids it was computed for. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/cache/cache.h"

enum { N_BLOCKS = 41, N_TABLES = 9, PAGE = 4, IDS_MAX = 80, BLOCKS_MAX = IDS_MAX / PAGE };

static uint32_t random_below(uint64_t *state, uint32_t n)
{
    *state = *state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (uint32_t)((*state >> 33) % n);
}

/* Whom a block was computed for, and the ids up to its end. */
struct content {
    uint32_t user, n_ids, ids[IDS_MAX];
    bool is_findable;
};

struct holder {
    struct table t;
    uint32_t storage[BLOCKS_MAX];
    uint32_t user, ids[IDS_MAX], n_ids, past;
};

struct play {
    struct cache *c;
    uint64_t state;
    struct holder holders[N_TABLES];
    struct content contents[N_BLOCKS];
    uint64_t n_found, n_evicted;
};

static struct prefix_key key_of(const struct play *p, uint32_t user)
{
    /* Users 0 and 1 go by their uid, 2 and 3 by one salt: they are one. */
    return user < 2 ? cache_key(p->c, user, NULL, 0) : cache_key(p->c, user, "salt", 4);
}

static bool same_user(uint32_t a, uint32_t b)
{
    return a == b || (a >= 2 && b >= 2);
}

/* The longest chain of blocks that hold h's ids and may be found by it. */
static uint32_t expected_blocks(const struct play *p, const struct holder *h)
{
    uint32_t n;
    for (n = 0; n < (h->n_ids - 1) / PAGE; n++) {
        uint32_t b, n_ids = (n + 1) * PAGE;
        for (b = 0; b < N_BLOCKS; b++) {
            const struct content *k = &p->contents[b];
            if (k->is_findable && same_user(k->user, h->user) && k->n_ids == n_ids &&
                memcmp(k->ids, h->ids, n_ids * sizeof *h->ids) == 0)
                break;
        }
        if (b == N_BLOCKS)
            break;
    }
    return n;
}

/* What is in blocks that are new in the table is of nobody's any more. */
static void taken(struct play *p, const struct holder *h, uint32_t first)
{
    for (uint32_t i = first; i < h->t.n_blocks; i++)
        p->contents[h->t.block_idx[0][i]].is_findable = false;
}

static void compute(struct play *p, struct holder *h, uint32_t end)
{
    struct prefix_key key = key_of(p, h->user);
    cache_promise(p->c, &h->t, &key, h->ids, h->past, end);
    for (uint32_t i = h->past / PAGE; i < end / PAGE; i++) {
        struct content *k = &p->contents[h->t.block_idx[0][i]];
        k->user = h->user;
        k->n_ids = (i + 1) * PAGE;
        memcpy(k->ids, h->ids, k->n_ids * sizeof *h->ids);
        k->is_findable = true;
    }
    uint32_t before[BLOCKS_MAX];
    memcpy(before, h->t.block_idx[0], sizeof before);
    cache_settle(p->c, &h->t, &key, h->ids, h->past, end);
    for (uint32_t i = 0; i < h->t.n_blocks; i++)
        if (h->t.block_idx[0][i] != before[i])
            p->contents[before[i]].is_findable = false; /* one of the two goes */
    h->past = end;
}

static bool is_held(const struct play *p, uint32_t block_idx)
{
    for (int k = 0; k < N_TABLES; k++)
        for (uint32_t i = 0; i < p->holders[k].t.n_blocks; i++)
            if (p->holders[k].t.block_idx[0][i] == block_idx)
                return true;
    return false;
}

/* A request begins: what it finds is what there is, and holds what it should. */
static void begin(struct play *p, struct holder *h)
{
    struct cache_counts room;
    h->user = random_below(&p->state, 4);
    h->n_ids = 1 + random_below(&p->state, IDS_MAX);
    /* Few different ids, and the first ones nearly always the same: much is in common. */
    for (uint32_t i = 0; i < h->n_ids; i++)
        h->ids[i] = random_below(&p->state, 24) == 0;
    struct prefix_key key = key_of(p, h->user);
    uint32_t n_found = cache_find(p->c, &key, h->ids, h->n_ids, &h->t);
    cr_assert_eq(n_found, expected_blocks(p, h), "found %u blocks instead of %u", n_found,
                 expected_blocks(p, h));
    cr_assert_lt(n_found * PAGE, h->n_ids);
    uint32_t end = n_found * PAGE + 1 + random_below(&p->state, h->n_ids - n_found * PAGE);
    cache_counts(p->c, &room);
    for (uint32_t i = 0; i < n_found; i++)
        room.n_unheld -= !is_held(p, h->t.block_idx[0][i]);
    int r = cache_admit(p->c, &h->t, n_found, end);
    cr_assert_eq(r, table_blocks_for(end, PAGE) - n_found > room.n_unheld ? CACHE_EXHAUSTED : 0);
    if (r) {
        cr_assert_eq(h->t.n_blocks, 0);
        h->n_ids = 0;
        return;
    }
    for (uint32_t i = 0; i < n_found; i++) {
        const struct content *k = &p->contents[h->t.block_idx[0][i]];
        cr_assert(same_user(k->user, h->user) && k->n_ids == (i + 1) * PAGE);
        cr_assert_eq(memcmp(k->ids, h->ids, k->n_ids * sizeof *h->ids), 0, "foreign block");
    }
    p->n_found += n_found;
    h->past = n_found * PAGE;
    taken(p, h, n_found);
    compute(p, h, end);
}

static void go_on(struct play *p, struct holder *h)
{
    uint32_t end = h->past + 1 + random_below(&p->state, 9), first = h->t.n_blocks;
    if (end > h->n_ids)
        end = h->n_ids;
    struct cache_counts room;
    cache_counts(p->c, &room);
    uint32_t n_more = table_blocks_for(end, PAGE) - first;
    int r = cache_grow(p->c, &h->t, end);
    cr_assert_eq(r, n_more > room.n_unheld ? CACHE_EXHAUSTED : 0);
    if (r)
        return;
    taken(p, h, first);
    compute(p, h, end);
}

static void leave(struct play *p, struct holder *h)
{
    cache_clear(p->c, &h->t);
    h->n_ids = 0;
}

/* What h computed is worthless: nobody finds it, and who shares it begins anew. */
static void leave_in_disgrace(struct play *p, struct holder *h)
{
    cache_forget(p->c, &h->t, 0);
    for (int k = 0; k < N_TABLES; k++) {
        struct holder *other = &p->holders[k];
        if (other == h || other->t.n_blocks == 0 || h->t.n_blocks == 0 ||
            other->t.block_idx[0][0] != h->t.block_idx[0][0])
            continue;
        cache_forget(p->c, &other->t, 0);
        leave(p, other);
    }
    leave(p, h);
}

static void audit(struct play *p)
{
    const char *why = "";
    cache_audit_begin(p->c);
    for (int k = 0; k < N_TABLES; k++) {
        const struct holder *h = &p->holders[k];
        struct prefix_key key = key_of(p, h->user);
        cr_assert_eq(cache_audit_table(p->c, &h->t, &why), 0, "%s", why);
        cr_assert_eq(cache_check_table(p->c, &h->t, &key, h->ids, h->past, &why), 0, "%s", why);
    }
    cr_assert_eq(cache_audit_end(p->c, &why), 0, "%s", why);
}

/* Blocks that had to go are no longer found: the cache says how many went, and the model learns
 * which by asking for each. With one that is forgotten, all that hang on it go as well. */
static void learn_evictions(struct play *p, bool any_forgotten)
{
    struct cache_counts counts;
    uint64_t n_lost = 0, n_evicted = p->n_evicted;
    cache_counts(p->c, &counts);
    p->n_evicted = counts.n_evicted;
    for (uint32_t b = 0; b < N_BLOCKS; b++) {
        struct content *k = &p->contents[b];
        struct table t;
        uint32_t storage[BLOCKS_MAX], ids[IDS_MAX + 1];
        if (!k->is_findable)
            continue;
        table_init(&t, storage, 1, BLOCKS_MAX);
        memcpy(ids, k->ids, k->n_ids * sizeof *ids);
        ids[k->n_ids] = 0;
        struct prefix_key key = key_of(p, k->user);
        uint32_t n = cache_find(p->c, &key, ids, k->n_ids + 1, &t);
        k->is_findable = n * PAGE == k->n_ids && storage[n - 1] == b;
        n_lost += !k->is_findable;
    }
    if (!any_forgotten)
        cr_assert_leq(n_lost, p->n_evicted - n_evicted, "a block is lost that was not given up");
}

Test(cache, random_programs_find_what_there_is_and_nothing_else)
{
    uint64_t n_found = 0, n_evicted = 0;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        static struct play p;
        memset(&p, 0, sizeof p);
        p.state = seed;
        cr_assert_eq(cache_new(&p.c, &(struct cache_config){N_BLOCKS, PAGE, 1, {{1, 0}}, true}), 0);
        for (int i = 0; i < N_TABLES; i++)
            table_init(&p.holders[i].t, p.holders[i].storage, 1, BLOCKS_MAX);
        for (int op = 0; op < 600; op++) {
            struct holder *h = &p.holders[random_below(&p.state, N_TABLES)];
            bool in_disgrace = h->n_ids > 0 && random_below(&p.state, 40) == 0;
            if (in_disgrace)
                leave_in_disgrace(&p, h);
            else if (h->n_ids == 0)
                begin(&p, h);
            else if (h->past < h->n_ids && random_below(&p.state, 4))
                go_on(&p, h);
            else
                leave(&p, h);
            learn_evictions(&p, in_disgrace);
            audit(&p);
        }
        n_found += p.n_found;
        n_evicted += p.n_evicted;
        cache_free(p.c);
    }
    cr_assert_gt(n_found, 5000u);
    cr_assert_gt(n_evicted, 1000u);
}

/* ---- single facts ---------------------------------------------------------------------------- */

struct bench {
    struct cache *c;
    struct table t[3];
    uint32_t storage[3][8], ids[32];
    struct prefix_key key;
};

static void bench_init(struct bench *b, uint32_t n_blocks, bool shares)
{
    cr_assert_eq(cache_new(&b->c, &(struct cache_config){n_blocks, PAGE, 1, {{1, 0}}, shares}), 0);
    for (int i = 0; i < 3; i++)
        table_init(&b->t[i], b->storage[i], 1, 8);
    for (uint32_t i = 0; i < 32; i++)
        b->ids[i] = 100 + i;
    b->key = cache_key(b->c, 7, NULL, 0);
}

/* Table i computes ids[0 .. n). */
static void bench_compute(struct bench *b, int i, uint32_t n)
{
    cr_assert_eq(cache_grow(b->c, &b->t[i], n), 0);
    cache_promise(b->c, &b->t[i], &b->key, b->ids, 0, n);
    cache_settle(b->c, &b->t[i], &b->key, b->ids, 0, n);
}

static uint32_t bench_find(struct bench *b, const struct prefix_key *key, uint32_t n_ids)
{
    struct table t;
    uint32_t storage[8];
    table_init(&t, storage, 1, 8);
    return cache_find(b->c, key, b->ids, n_ids, &t);
}

Test(cache, one_id_is_always_left_to_compute)
{
    struct bench b;
    bench_init(&b, 8, true);
    bench_compute(&b, 0, 12);
    cr_assert_eq(bench_find(&b, &b.key, 1), 0);
    cr_assert_eq(bench_find(&b, &b.key, 4), 0);
    cr_assert_eq(bench_find(&b, &b.key, 5), 1);
    cr_assert_eq(bench_find(&b, &b.key, 12), 2);
    cr_assert_eq(bench_find(&b, &b.key, 13), 3);
    cr_assert_eq(bench_find(&b, &b.key, 20), 3);
    cache_free(b.c);
}

Test(cache, users_do_not_find_each_others_blocks_unless_both_name_one_salt)
{
    struct bench b;
    bench_init(&b, 8, true);
    const struct prefix_key other = cache_key(b.c, 8, NULL, 0);
    const struct prefix_key salted[3] = {cache_key(b.c, 7, "s", 1), cache_key(b.c, 8, "s", 1),
                                         cache_key(b.c, 7, "t", 1)};
    bench_compute(&b, 0, 12);
    cr_assert_eq(bench_find(&b, &b.key, 13), 3);
    cr_assert_eq(bench_find(&b, &other, 13), 0);
    cr_assert_eq(bench_find(&b, &salted[0], 13), 0);
    b.key = salted[0];
    bench_compute(&b, 1, 12);
    cr_assert_eq(bench_find(&b, &salted[1], 13), 3);
    cr_assert_eq(bench_find(&b, &salted[2], 13), 0);
    cache_free(b.c);
}

Test(cache, a_uid_that_looks_like_a_salts_digest_is_none)
{
    struct bench b;
    bench_init(&b, 8, true);
    struct prefix_key salted = cache_key(b.c, 0, "s", 1);
    for (uint32_t uid = 0; uid < 100000; uid++) {
        struct prefix_key k = cache_key(b.c, uid, NULL, 0);
        cr_assert(k.word[1] != salted.word[1]);
    }
    cache_free(b.c);
}

Test(cache, the_longest_unused_goes_first_and_one_by_one)
{
    struct bench b;
    struct cache_counts counts;
    bench_init(&b, 8, true);
    bench_compute(&b, 0, 12); /* three blocks: 100.. */
    cache_clear(b.c, &b.t[0]);
    b.ids[0] = 999;
    bench_compute(&b, 1, 12); /* three more: 999.. */
    cache_clear(b.c, &b.t[1]);
    b.ids[0] = 100;
    cr_assert_eq(bench_find(&b, &b.key, 13), 3);
    cr_assert_eq(cache_grow(b.c, &b.t[2], 12), 0); /* two are free; one must go */
    cache_counts(b.c, &counts);
    cr_assert_eq(counts.n_evicted, 1);
    cr_assert_eq(counts.n_kept, 5);
    cr_assert_eq(bench_find(&b, &b.key, 13), 2, "the end of the older prefix should have gone");
    b.ids[0] = 999;
    cr_assert_eq(bench_find(&b, &b.key, 13), 3);
    b.ids[0] = 100;
    uint32_t n = cache_find(b.c, &b.key, b.ids, 13, &b.t[0]); /* a use makes it young again */
    cr_assert_eq(cache_admit(b.c, &b.t[0], n, 8), 0);
    cache_clear(b.c, &b.t[0]);
    cr_assert_eq(cache_grow(b.c, &b.t[2], 20), 0); /* two of the other */
    cr_assert_eq(bench_find(&b, &b.key, 13), 2);
    b.ids[0] = 999;
    cr_assert_eq(bench_find(&b, &b.key, 13), 1);
    cache_free(b.c);
}

Test(cache, what_is_found_and_unheld_is_no_room_for_the_rest)
{
    struct bench b;
    bench_init(&b, 4, true);
    bench_compute(&b, 0, 12);
    cache_clear(b.c, &b.t[0]);
    uint32_t n = cache_find(b.c, &b.key, b.ids, 24, &b.t[1]);
    cr_assert_eq(n, 3);
    cr_assert_eq(cache_admit(b.c, &b.t[1], n, 20), CACHE_EXHAUSTED);
    cr_assert_eq(bench_find(&b, &b.key, 24), 3, "a refusal gave blocks up");
    n = cache_find(b.c, &b.key, b.ids, 24, &b.t[1]);
    cr_assert_eq(cache_admit(b.c, &b.t[1], n, 16), 0);
    cache_free(b.c);
}

Test(cache, who_computed_the_same_lets_its_own_go)
{
    struct bench b;
    struct cache_counts counts;
    bench_init(&b, 8, true);
    cr_assert_eq(cache_grow(b.c, &b.t[0], 9), 0);
    cr_assert_eq(cache_grow(b.c, &b.t[1], 9), 0);
    cache_promise(b.c, &b.t[0], &b.key, b.ids, 0, 9);
    cache_promise(b.c, &b.t[1], &b.key, b.ids, 0, 9);
    cache_settle(b.c, &b.t[0], &b.key, b.ids, 0, 9);
    cache_settle(b.c, &b.t[1], &b.key, b.ids, 0, 9);
    cr_assert_eq(b.t[0].block_idx[0][0], b.t[1].block_idx[0][0]);
    cr_assert_eq(b.t[0].block_idx[0][1], b.t[1].block_idx[0][1]);
    cr_assert_neq(b.t[0].block_idx[0][2], b.t[1].block_idx[0][2], "an unfinished block was shared");
    cache_counts(b.c, &counts);
    cr_assert_eq(counts.n_unheld, 4);
    cache_free(b.c);
}

Test(cache, a_forgotten_block_hides_what_hangs_on_it_for_ever)
{
    struct bench b;
    bench_init(&b, 8, true);
    bench_compute(&b, 0, 12);
    uint32_t n = cache_find(b.c, &b.key, b.ids, 13, &b.t[1]);
    cr_assert_eq(cache_admit(b.c, &b.t[1], n, 13), 0);
    cache_forget(b.c, &(struct table){.block_idx = {b.t[0].block_idx[0]}, .n_blocks = 1}, 0);
    cr_assert_eq(bench_find(&b, &b.key, 13), 0);
    /* The same first block again, by another request: what hung on the old one stays hidden. */
    bench_compute(&b, 2, 4);
    cr_assert_eq(bench_find(&b, &b.key, 13), 1);
    cache_free(b.c);
}

Test(cache, without_sharing_nothing_is_found_or_kept)
{
    struct bench b;
    struct cache_counts counts;
    bench_init(&b, 8, false);
    bench_compute(&b, 0, 12);
    cr_assert_eq(bench_find(&b, &b.key, 13), 0);
    cache_clear(b.c, &b.t[0]);
    cache_counts(b.c, &counts);
    cr_assert_eq(counts.n_kept, 0);
    cr_assert_eq(counts.n_unheld, 8);
    cache_free(b.c);
}
