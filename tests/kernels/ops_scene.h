/* tests/kernels/ops_scene.h - a pool of keys and values on both sides, sequences that grow over it,
 * and the steps in which they do. */
#ifndef CB_TESTS_KERNELS_OPS_SCENE_H
#define CB_TESTS_KERNELS_OPS_SCENE_H

#include "tests/kernels/ops_side.h"

enum { SEQS_MAX = 6, PAGES_MAX = 512, TOKENS_MAX = 320 };

/* Sequences that grow step by step over one pool, and the current step's arrays. */
struct plan {
    uint32_t page_size, n_pages, n_taken;
    uint32_t order[PAGES_MAX]; /* pages in the order they are given out: shuffled */
    uint32_t n_past[SEQS_MAX], n_table[SEQS_MAX], tables[SEQS_MAX][PAGES_MAX];
    struct step step;
    int32_t tokens[TOKENS_MAX], positions[TOKENS_MAX];
    uint32_t slots[TOKENS_MAX];
    uint32_t token_off[SEQS_MAX + 2], n_keys[SEQS_MAX + 1], table_off[SEQS_MAX + 2];
    uint32_t table[SEQS_MAX * PAGES_MAX];
};

/* What happens to the sequences, step by step. MIXED: prefill in chunks beside decoding. EDGES:
 * they stop and go on right before, at and behind multiples of 16, of pages of 16, 32 and 48, and
 * of spans. ALONE: a single sequence, whose spans several workers share. */
enum { MIXED, EDGES, ALONE, N_SCHEDULES };
enum { N_STEPS = 7, SCHEDULE_TOKENS = 960 };
extern const uint32_t schedules[N_SCHEDULES][N_STEPS][SEQS_MAX];

struct attention_case {
    uint32_t n_heads, n_kv_heads, head_dim, page_size;
    enum dtype kv_dtype;
    uint32_t window;
    float softcap;
    bool sinks;
    enum input kind;   /* of q and k */
    enum input v_kind; /* of v */
    uint32_t schedule;
};

/* A pool on each side, a plan over it, and a weight to fill it by. Two layers; layer 1 is used, for
 * the other must not be touched. */
struct scene {
    struct pair *p;
    struct attention_case c;
    struct plan plan;
    struct kv *kv[2];
    struct weight *w[2];
    struct qkv_args qkv[2]; /* but for w; the caller may add to them */
    struct both sinks;
    uint32_t n_q;    /* columns of q */
    uint32_t n_cols; /* of w: as many as q, k and v have, unless the caller knows better */
};

void plan_grow(struct plan *plan, uint32_t seq, uint32_t n_keys); /* pages for so many keys */
/* The next step: counts[seq] new tokens; sequences with one token come first, and first of all a
 * row of padding that writes nothing and sees nothing. */
void plan_step(struct plan *plan, const uint32_t counts[SEQS_MAX]);
/* Gives up the pages that no later query can see. */
void plan_free_behind(struct plan *plan, uint32_t window);

/* A pool of n_tokens and some more. s->w is the caller's to make; scene_close frees it. */
void scene_open(struct scene *s, struct pair *p, const struct attention_case *c, uint32_t n_tokens);
void scene_close(struct scene *s);
struct attention_args scene_attention(const struct scene *s, int side);
/* Rows for the unit weight, in which q, k and v are pieces of x. */
struct both scene_rows(struct scene *s);
/* The planned step through qkv, then attention: q[2], o[2]. */
void scene_step(struct scene *s, const struct both *x, struct tensor q[2], struct tensor o[2]);

enum ops_path scene_path(const struct scene *s);

#endif
