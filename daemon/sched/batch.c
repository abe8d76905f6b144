/* Two passes over the entries: those of one token, then the rest. Sorting would buy nothing, for
 * kernels only ask that the single ones come first. The table array is sized for the worst case as
 * address space; a step touches what its sequences have. */
#include "daemon/sched/batch.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

int batch_new(struct batch **batchp, uint32_t max_tokens, uint32_t max_seqs, uint32_t n_groups,
              uint32_t max_blocks)
{
    bool complete = true;
    struct batch *b = calloc(1, sizeof *b);
    if (!b)
        return -ENOMEM;
    /* A token of a prompt is either the last one, from which one is sampled, or has one behind it,
     * which may be scored. */
    uint32_t max_outputs = max_tokens;
    b->max_tokens = max_tokens;
    b->max_seqs = max_seqs;
    b->n_groups = n_groups;
    b->entries = calloc(max_seqs, sizeof *b->entries);
    b->params = calloc(max_outputs, sizeof *b->params);
    b->samples = calloc(max_outputs, sizeof *b->samples);
    b->best = calloc((size_t)max_outputs * SAMPLE_BEST_MAX, sizeof *b->best);
    b->tokens = calloc(max_tokens, sizeof *b->tokens);
    b->positions = calloc(max_tokens, sizeof *b->positions);
    b->token_off = calloc(max_seqs + 1, sizeof *b->token_off);
    b->n_keys = calloc(max_seqs, sizeof *b->n_keys);
    b->table_off = calloc(max_seqs + 1, sizeof *b->table_off);
    b->output_token_idx = calloc(max_outputs, sizeof *b->output_token_idx);
    for (uint32_t g = 0; g < n_groups; g++) {
        b->slot_idx[g] = calloc(max_tokens, sizeof *b->slot_idx[g]);
        b->table[g] = calloc((size_t)max_seqs * max_blocks, sizeof *b->table[g]);
        complete = complete && b->slot_idx[g] && b->table[g];
    }
    if (!complete || !b->entries || !b->params || !b->samples || !b->best || !b->tokens ||
        !b->positions || !b->token_off || !b->n_keys || !b->table_off || !b->output_token_idx) {
        batch_free(b);
        return -ENOMEM;
    }
    *batchp = b;
    return 0;
}

struct batch *batch_free(struct batch *b)
{
    if (b) {
        free(b->entries);
        free(b->params);
        free(b->samples);
        free(b->best);
        free(b->tokens);
        free(b->positions);
        free(b->token_off);
        free(b->n_keys);
        free(b->table_off);
        for (uint32_t g = 0; g < b->n_groups; g++) {
            free(b->slot_idx[g]);
            free(b->table[g]);
        }
        free(b->output_token_idx);
        free(b);
    }
    return NULL;
}

void batch_clear(struct batch *b)
{
    b->n_entries = b->n_tokens = 0;
}

void batch_add(struct batch *b, struct request *r, uint32_t n_tokens, uint32_t new_block)
{
    assert(b->n_entries < b->max_seqs && n_tokens > 0 && n_tokens <= b->max_tokens - b->n_tokens);
    assert(n_tokens <= r->n_ids - r->past);
    b->entries[b->n_entries++] = (struct batch_entry){
        .r = r,
        .past = r->past,
        .n_tokens = n_tokens,
        .new_block = new_block,
        .yields = r->past + n_tokens == r->n_ids,
        .decodes = r->phase == REQUEST_DECODING,
    };
    b->n_tokens += n_tokens;
}

void batch_drop(struct batch *b, uint32_t entry_idx)
{
    assert(entry_idx < b->n_entries);
    b->n_tokens -= b->entries[entry_idx].n_tokens;
    b->n_entries--;
    memmove(&b->entries[entry_idx], &b->entries[entry_idx + 1],
            (b->n_entries - entry_idx) * sizeof *b->entries);
}

/* Adds an output of flat token token_idx; its parameters are to be filled in. */
static struct sample_params *add_output(struct batch *b, uint32_t token_idx,
                                        struct sample_best **bestp)
{
    uint32_t i = b->step[0].n_outputs++;
    b->output_token_idx[i] = token_idx;
    *bestp = &b->best[(size_t)i * SAMPLE_BEST_MAX];
    return &b->params[i];
}

/* The entry's tokens begin with flat token first. */
static void add_outputs(struct batch *b, struct batch_entry *entry, uint32_t first)
{
    const struct request *r = entry->r;
    uint32_t end = entry->past + entry->n_tokens;
    struct sample_params *params;
    struct sample_best *best;
    entry->n_scores = 0;
    entry->score_output_idx = b->step[0].n_outputs;
    entry->score_idx = r->n_scored;
    assert(!request_scores(r) || r->n_scored > entry->past);
    if (request_scores(r))
        for (uint32_t i = entry->score_idx; i <= end && i < r->n_prompt; i++) {
            params = add_output(b, first + (i - 1 - entry->past), &best);
            sampler_score_params(&r->sampler, r->ids[i], best, params);
            entry->n_scores++;
        }
    if (entry->yields) {
        entry->output_idx = b->step[0].n_outputs;
        params = add_output(b, first + entry->n_tokens - 1, &best);
        sampler_params(&r->sampler, r->ids, r->n_ids, r->n_prompt, best, params);
    }
}

/* Where the entry's tokens and blocks lie for the layers of one group. */
static void lay_out_places(struct batch *b, const struct batch_entry *entry, uint32_t group,
                           uint32_t page_size)
{
    const struct step *s = &b->step[0];
    const uint32_t *row = entry->r->table.block_idx[group];
    uint32_t n_blocks = table_blocks_for(entry->past + entry->n_tokens, page_size);
    uint32_t block = entry->past / page_size, offset = entry->past % page_size;
    assert(n_blocks <= entry->r->table.n_blocks);
    for (uint32_t i = 0; i < entry->n_tokens; i++) {
        b->slot_idx[group][s->n_tokens + i] = row[block] * page_size + offset;
        if (++offset == page_size) {
            offset = 0;
            block++;
        }
    }
    memcpy(&b->table[group][b->table_off[s->n_seqs]], row, n_blocks * sizeof *row);
    b->table_off[s->n_seqs + 1] = b->table_off[s->n_seqs] + n_blocks;
}

static void lay_out(struct batch *b, struct batch_entry *entry, uint32_t page_size)
{
    struct step *s = &b->step[0];
    const struct request *r = entry->r;
    for (uint32_t g = 0; g < b->n_groups; g++)
        lay_out_places(b, entry, g, page_size);
    for (uint32_t i = 0; i < entry->n_tokens; i++) {
        b->tokens[s->n_tokens] = (int32_t)r->ids[entry->past + i];
        b->positions[s->n_tokens] = (int32_t)(entry->past + i);
        s->n_tokens++;
    }
    add_outputs(b, entry, s->n_tokens - entry->n_tokens);
    b->n_keys[s->n_seqs] = entry->past + entry->n_tokens;
    s->n_seqs++;
    b->token_off[s->n_seqs] = s->n_tokens;
}

void batch_build(struct batch *b, uint32_t page_size)
{
    struct step *s = &b->step[0];
    *s = (struct step){
        .tokens = b->tokens,
        .positions = b->positions,
        .token_off = b->token_off,
        .n_keys = b->n_keys,
        .slot_idx = b->slot_idx[0],
        .table_off = b->table_off,
        .table = b->table[0],
        .output_token_idx = b->output_token_idx,
    };
    b->token_off[0] = b->table_off[0] = 0;
    for (uint32_t i = 0; i < b->n_entries; i++)
        if (b->entries[i].n_tokens == 1)
            lay_out(b, &b->entries[i], page_size);
    s->n_decode_seqs = s->n_seqs;
    for (uint32_t i = 0; i < b->n_entries; i++)
        if (b->entries[i].n_tokens != 1)
            lay_out(b, &b->entries[i], page_size);
    for (uint32_t g = 1; g < b->n_groups; g++) {
        b->step[g] = *s;
        b->step[g].slot_idx = b->slot_idx[g];
        b->step[g].table = b->table[g];
    }
}
