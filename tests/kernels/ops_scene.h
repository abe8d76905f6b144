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

struct attention_case {
    uint32_t n_heads, n_kv_heads, head_dim, page_size;
    enum dtype kv_dtype;
    uint32_t window;
    float softcap;
    bool sinks;
    enum input kind;
};

/* A pool on each side, a plan over it, and a weight to fill it by. Two layers; layer 1 is used, for
 * the other must not be touched. */
struct scene {
    struct pair *p;
    struct attention_case c;
    struct plan plan;
    struct kv *kv[2];
    struct weight *w[2];
    struct both sinks;
    const float *bias[2]; /* of q, K and V; NULL: none */
    uint32_t n_cols, n_q;
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
/* The planned step through qkv with the unit weight, then attention: o[2]. */
void scene_step(struct scene *s, struct both *x, struct tensor o[2]);

const struct ops_limit *attention_limit(const struct pair *p, enum dtype kv_dtype);

/* Prefill in chunks beside decoding, over page and span boundaries. */
enum { N_STEPS = 7, SCHEDULE_TOKENS = 720 };
extern const uint32_t schedule[N_STEPS][SEQS_MAX];

#endif
