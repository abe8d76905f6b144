/* A penalty needs to know each id once. The table of counts says which ids it has met; it is undone
 * by going over the same ids again, so that it never has to be cleared as a whole. */
#include "kernels/sampling_edit.h"

#include <float.h>
#include <math.h>
#include <string.h>

static float in_range(float x)
{
    return x > FLT_MAX ? FLT_MAX : x < -FLT_MAX ? -FLT_MAX : x;
}

static void add_biases(float *row, uint32_t n_vocab, const struct sample_program *p)
{
    for (uint32_t i = 0; i < p->n_biases; i++) {
        if (p->biases[i].id < n_vocab)
            row[p->biases[i].id] = in_range(row[p->biases[i].id] + p->biases[i].bias);
    }
}

static void clear_counts(uint32_t *counts, uint32_t n_vocab, const uint32_t *ids, uint32_t n_ids)
{
    for (uint32_t i = 0; i < n_ids; i++) {
        if (ids[i] < n_vocab)
            counts[ids[i]] = 0;
    }
}

static void penalise_repetition(float *row, uint32_t n_vocab, const struct sample_params *params,
                                uint32_t *counts)
{
    const float penalty = params->program->repetition_penalty;

    for (uint32_t i = 0; i < params->n_ids; i++) {
        uint32_t id = params->ids[i];

        if (id >= n_vocab || counts[id]++)
            continue;
        row[id] = in_range(row[id] < 0 ? row[id] * penalty : row[id] / penalty);
    }
    clear_counts(counts, n_vocab, params->ids, params->n_ids);
}

static void penalise_generated(float *row, uint32_t n_vocab, const struct sample_params *params,
                               uint32_t *counts)
{
    const struct sample_program *p = params->program;
    const uint32_t *ids = params->ids + params->n_prompt;
    uint32_t n_ids = params->n_ids - params->n_prompt;

    for (uint32_t i = 0; i < n_ids; i++) {
        if (ids[i] < n_vocab)
            counts[ids[i]]++;
    }
    for (uint32_t i = 0; i < n_ids; i++) {
        uint32_t id = ids[i];

        if (id >= n_vocab || !counts[id])
            continue;
        row[id] =
            in_range(row[id] - p->frequency_penalty * (float)counts[id] - p->presence_penalty);
        counts[id] = 0;
    }
}

static void remove_ids(float *row, uint32_t n_vocab, const uint32_t *ids, uint32_t n_ids)
{
    for (uint32_t i = 0; i < n_ids; i++) {
        if (ids[i] < n_vocab)
            row[ids[i]] = -INFINITY;
    }
}

/* Removes what followed the last n - 1 ids wherever they stand in the history. */
static void remove_repeats(float *row, uint32_t n_vocab, const struct sample_params *params)
{
    uint32_t n = params->program->no_repeat_ngram, n_ids = params->n_ids;
    const uint32_t *ids = params->ids, *tail;
    size_t tail_bytes = (size_t)(n - 1) * sizeof *ids;

    if (n > n_ids)
        return;
    tail = ids + (n_ids - (n - 1));
    for (uint32_t i = n - 1; i < n_ids; i++) {
        if (n > 1 && (ids[i - 1] != tail[n - 2] || memcmp(ids + i - (n - 1), tail, tail_bytes)))
            continue;
        remove_ids(row, n_vocab, &ids[i], 1);
    }
}

void sampling_edit(float *row, uint32_t n_vocab, const struct sample_params *params,
                   uint32_t *counts)
{
    const struct sample_program *p = params->program;

    add_biases(row, n_vocab, p);
    if (p->repetition_penalty != 1)
        penalise_repetition(row, n_vocab, params, counts);
    if (p->presence_penalty != 0 || p->frequency_penalty != 0)
        penalise_generated(row, n_vocab, params, counts);
    if (p->no_repeat_ngram)
        remove_repeats(row, n_vocab, params);
    remove_ids(row, n_vocab, p->banned, p->n_banned);
    if (params->token_idx < p->min_new_tokens)
        remove_ids(row, n_vocab, p->ends, p->n_ends);
}
