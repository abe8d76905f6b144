/* sched/batch.h - the flat arrays of one step.
 *
 * The scheduler adds entries in its own order; batch_build lays them out as kernels.h wants a step
 * (sequences of one token first, otherwise in the order of adding). Results are applied by entry,
 * so the kernels' order is nobody else's matter. Everything points into the batch and stays until
 * the next batch_clear. Engine thread only. */
#ifndef CB_DAEMON_SCHED_BATCH_H
#define CB_DAEMON_SCHED_BATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/sched/request.h"
#include "kernels/kernels.h"

struct batch_entry {
    struct request *r;
    uint32_t past, n_tokens; /* computes ids[past .. past + n_tokens)                            */
    uint32_t new_block;      /* index in r's table of the first block taken for this step        */
    bool yields;             /* a token is sampled at the end                                    */
    bool decodes;            /* it was DECODING before                                           */
    uint32_t output_idx;     /* if it yields: which of the step's outputs, set by batch_build    */
    /* Likewise: the log-probabilities of ids[score_idx .. score_idx + n_scores) are outputs from
     * score_output_idx on. */
    uint32_t score_idx, n_scores, score_output_idx;
};

struct batch {
    struct batch_entry *entries; /* [n_entries], the scheduler's order */
    uint32_t n_entries, n_tokens;

    /* Set by batch_build: the step as the layers of each group see it. They differ in the places
     * of tokens and blocks only (slot_idx, table_off, table). */
    struct step step[SIZING_GROUPS_MAX];
    struct sample_params *params; /* [step[0].n_outputs]             */
    struct sample *samples;       /* [step[0].n_outputs] the model's */
    struct sample_best *best; /* [step[0].n_outputs][SAMPLE_BEST_MAX] likewise, where asked for */
    uint32_t n_groups;

    /* What step points to. */
    int32_t *tokens, *positions;
    uint32_t *token_off, *n_keys, *table_off, *output_token_idx;
    uint32_t *slot_idx[SIZING_GROUPS_MAX], *table[SIZING_GROUPS_MAX];
    uint32_t max_tokens, max_seqs;
};

/* Room for max_seqs sequences with max_tokens tokens, each with up to max_blocks blocks in each of
 * n_groups. 0 or -ENOMEM. */
int batch_new(struct batch **batchp, uint32_t max_tokens, uint32_t max_seqs, uint32_t n_groups,
              uint32_t max_blocks);
struct batch *batch_free(struct batch *b); /* NULL is fine; returns NULL */

void batch_clear(struct batch *b);

/* Adds n_tokens of r from r->past on; it has blocks for them, from new_block on new ones. */
void batch_add(struct batch *b, struct request *r, uint32_t n_tokens, uint32_t new_block);

/* Takes the entry out again; those behind it move up. */
void batch_drop(struct batch *b, uint32_t entry_idx);

/* Fills step and params from the entries. */
void batch_build(struct batch *b, uint32_t page_size);

#endif
