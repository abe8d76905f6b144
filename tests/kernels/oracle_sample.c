/* The sampler by the book: sort, cut, sort back, draw. */
#include "tests/kernels/oracle.h"

#include <math.h>
#include <stdlib.h>

#include "kernels/numeric.h"
#include "kernels/philox.h"

struct candidate {
    float score, weight;
    uint32_t id;
};

static int by_rank(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;

    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

static int by_id(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;

    return x->id < y->id ? -1 : x->id > y->id;
}

/* The tree over 16 lanes of one block of 256 ids, of the kept candidates (sorted by id) from *atp
 * on. */
static double block_sum(const struct candidate *list, uint32_t n_kept, uint32_t *atp,
                        uint32_t block)
{
    double lane[16] = {0};

    for (; *atp < n_kept && list[*atp].id / 256 == block; ++*atp)
        lane[list[*atp].id % 16] += (double)list[*atp].weight;
    return numeric_tree_double(lane);
}

static void draw(struct sample *out, const float *logits, uint32_t n,
                 const struct sample_params *params)
{
    struct candidate *list = calloc(n, sizeof *list);
    uint32_t n_kept = n, at = 0;
    uint64_t total_mass = 0, mass = 0;
    double total = 0, running = 0, target;
    float max;

    *out = (struct sample){0};
    for (uint32_t i = 0; i < n; i++) {
        out->not_finite |= !isfinite(logits[i]);
        list[i] = (struct candidate){.score = logits[i] / params->temperature, .id = i};
    }
    qsort(list, n, sizeof *list, by_rank);
    max = list[0].score;
    out->token = list[0].id;
    if (out->not_finite || !isfinite(max)) {
        out->token = out->not_finite ? 0 : out->token;
        free(list);
        return;
    }
    if (params->top_k && params->top_k < n) {
        for (n_kept = params->top_k; n_kept < n; n_kept++) {
            if (list[n_kept].score < list[params->top_k - 1].score)
                break;
        }
    }
    for (uint32_t i = 0; i < n_kept; i++) {
        list[i].weight = numeric_exp(list[i].score - max);
        total_mass += (uint64_t)((double)list[i].weight * 0x1p44);
    }
    for (uint32_t i = 0; params->top_p < 1 && i < n_kept; i++) {
        if (i && (double)mass >= (double)params->top_p * (double)total_mass)
            n_kept = i;
        mass += (uint64_t)((double)list[i].weight * 0x1p44);
    }
    qsort(list, n_kept, sizeof *list, by_id);
    for (uint32_t block = 0; block <= (n - 1) / 256; block++)
        total += block_sum(list, n_kept, &at, block);
    target = total * philox_uniform(params->seed, params->child_idx, params->token_idx, 0);
    at = 0;
    for (uint32_t block = 0; block <= (n - 1) / 256; block++) {
        uint32_t first = at;
        double sum = block_sum(list, n_kept, &at, block), inside = 0;

        if (running + sum <= target) {
            running += sum;
            continue;
        }
        for (uint32_t i = first; i < at && inside <= target - running; i++) {
            inside += (double)list[i].weight;
            if (list[i].weight > 0)
                out->token = list[i].id;
        }
        break;
    }
    out->logprob = (float)((double)(logits[out->token] / params->temperature - max) - log(total));
    free(list);
}

int oracle_sample(struct stream *s, struct sample *samples, struct tensor *logits,
                  const struct head_row *rows, const struct sample_params *params,
                  uint32_t n_outputs)
{
    (void)s;
    for (uint32_t i = 0; i < n_outputs; i++) {
        if (params[i].temperature > 0)
            draw(&samples[i],
                 (const float *)((const char *)logits->data + i * logits->stride_bytes),
                 logits->n_cols, &params[i]);
        else
            samples[i] = (struct sample){rows[i].argmax, rows[i].not_finite, 0};
    }
    return 0;
}
