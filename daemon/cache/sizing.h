/* cache/sizing.h - how much cache fits: pages, blocks, sectors, and what a step costs beside them.
 *
 * A page holds page_size tokens of one layer; a block, a page for each layer of a group (layers
 * that see all keys, or a window of them); a sector, a whole number of blocks of any group. Memory
 * is handed to groups by sectors, so that what one group does not use another can have.
 *
 * Pure functions of sizes. Bytes are whole numbers; shares of memory are rounded down. */
#ifndef CB_DAEMON_CACHE_SIZING_H
#define CB_DAEMON_CACHE_SIZING_H

#include <stdbool.h>
#include <stdint.h>

#define SIZING_GROUPS_MAX 2
#define SIZING_NONE       INT64_MIN /* not given: to be chosen */

struct sizing_layers {
    uint64_t page_bytes; /* keys and values of page_size tokens in one layer */
    uint32_t page_size;
    uint32_t n_groups;
    uint32_t n_layers[SIZING_GROUPS_MAX]; /* of each group, at least 1 */
};

struct sizing_sector {
    int64_t bytes;       /* the least that holds whole blocks of every group, and whole lines */
    int64_t n_tokens;    /* of the group that gets most out of one                            */
    int64_t model_bytes; /* a block of every group: page_size tokens in all layers            */
    uint32_t n_blocks[SIZING_GROUPS_MAX];
};

void sizing_sector(const struct sizing_layers *layers, struct sizing_sector *sector);

/* Sectors for so many blocks of the whole model: at least one. */
int64_t sizing_sectors_for(const struct sizing_sector *sector, int64_t n_blocks);

/* ---- what fits ------------------------------------------------------------------------------- */

/* All that memory goes into: a part that is there anyway, one by the tokens of a step, one by the
 * sectors, and masks of queries times keys, where attention needs them. */
struct sizing_costs {
    int64_t available_bytes; /* of which all must be paid          */
    int64_t fixed_bytes;
    int64_t batch_token_bytes;
    int64_t sector_bytes; /* with what else grows with a sector */
    int64_t sector_tokens;
    int64_t mask_bytes; /* of a query and a key; 0: no masks  */
};

enum {
    SIZING_TOO_LARGE = 1, /* what was asked for does not fit             */
    SIZING_NOTHING = 2,   /* not one sector fits, or a step of no tokens */
};

struct sizing_fit {
    int64_t n_sectors, footprint_bytes;
};

/* For steps of batch_tokens, as many sectors as fit, or n_sectors if that is given: 0 or one of the
 * above, and *fit as far as it was found. */
int sizing_fit(const struct sizing_costs *costs, int64_t batch_tokens, int64_t n_sectors,
               struct sizing_fit *fit);

/* ---- costs of the usual engine --------------------------------------------------------------- */

/* A transformer and an engine around it that keeps activations of one layer, gathers keys and
 * values of a step, and, without flash attention, a dense mask. */
struct sizing_model {
    uint32_t element_size, n_embd, n_vocab, n_heads, n_kv_heads, head_dim;
    uint32_t n_groups; /* of layers, as in sizing_layers          */
    bool has_sliding;  /* one of them sees a window               */
    bool flash;        /* attention without mask                  */
    bool selects;      /* only the outputs' rows go into the head */
    bool async;        /* inputs and outputs of two steps at once */
    bool logprobs;
    uint32_t max_requests; /* of a step                                          */
    uint32_t max_blocks;   /* width of the block tables of the decode fast path  */
};

struct sizing_memory {
    int64_t total_bytes, reserved_bytes, allocated_bytes; /* the larger of these two is gone */
    double share;                                         /* of the rest that may be used    */
};

void sizing_costs(const struct sizing_model *model, const struct sizing_sector *sector,
                  const struct sizing_memory *memory, struct sizing_costs *costs);

#endif
