/* From edited logits to a token and its log-probability: whoever needs no list of candidates does
 * without one. What is cut is sampling_candidates.c's matter. */
#include "kernels/sampling.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <string.h>

#include "kernels/numeric.h"
#include "kernels/philox.h"
#include "kernels/sampling_candidates.h"
#include "kernels/sampling_edit.h"

/* ---- scratch --------------------------------------------------------------------------------- */

static size_t part_bytes(size_t n, size_t bytes)
{
    return (n * bytes + 63) / 64 * 64;
}

size_t sampler_scratch_bytes(uint32_t n_vocab)
{
    return 7 * part_bytes(n_vocab, 4) + part_bytes(sampling_n_groups(n_vocab), sizeof(float)) +
           part_bytes(sampling_n_blocks(n_vocab), sizeof(double));
}

static void *carve(uint8_t **atp, size_t bytes)
{
    void *part = *atp;

    *atp += bytes;
    return part;
}

struct sampler_scratch sampler_scratch_at(void *memory, uint32_t n_vocab)
{
    size_t bytes = part_bytes(n_vocab, 4);
    uint8_t *at = memory;

    return (struct sampler_scratch){
        .row = carve(&at, bytes),
        .counts = carve(&at, bytes),
        .ids = carve(&at, bytes),
        .keys = carve(&at, bytes),
        .order = carve(&at, bytes),
        .scores = carve(&at, bytes),
        .weights = carve(&at, bytes),
        .maxima = carve(&at, part_bytes(sampling_n_groups(n_vocab), sizeof(float))),
        .sums = carve(&at, part_bytes(sampling_n_blocks(n_vocab), sizeof(double))),
    };
}

/* ---- log-probabilities ----------------------------------------------------------------------- */

static float logprob_of(const struct distribution *d, float score)
{
    return (float)((double)(score - d->max) - d->log_total);
}

static bool wants_processed(const struct sampled_row *r)
{
    return r->params->logprobs == SAMPLE_PROCESSED;
}

/* The best n_best of a list, whose scores are less the largest. */
static void tell_best(const struct sample_params *params, const struct distribution *d,
                      const struct sampling_list *l)
{
    struct sample_best *best = params->best;
    uint32_t n = 0;

    /* Scores stand in the place of log-probabilities until all are there. */

    for (uint32_t i = 0; i < l->n; i++) {
        uint32_t at;

        if (n == params->n_best && (!n || l->scores[i] <= best[n - 1].logprob))
            continue;
        at = n < params->n_best ? n++ : n - 1;
        for (; at > 0 && best[at - 1].logprob < l->scores[i]; at--)
            best[at] = best[at - 1];
        best[at] = (struct sample_best){l->ids[i], l->scores[i]};
    }
    for (uint32_t i = 0; i < n; i++)
        best[i].logprob = (float)((double)best[i].logprob - d->log_total);
    for (uint32_t i = n; i < params->n_best; i++)
        best[i] = (struct sample_best){SAMPLE_NO_ID, -INFINITY};
}

static void tell_only(const struct sample_params *params, uint32_t id)
{
    for (uint32_t i = 0; i < params->n_best; i++)
        params->best[i] = (struct sample_best){SAMPLE_NO_ID, -INFINITY};
    if (params->n_best)
        params->best[0] = (struct sample_best){id, 0};
}

/* Sums the weights of a whole row; scratch->sums are its blocks' then. */
static double total_of_row(const struct sampled_row *r, const struct distribution *d)
{
    double total = 0;

    r->sweeps->sums(r->logits, r->n, d->temperature, d->max, r->scratch->sums);
    for (uint32_t b = 0; b < sampling_n_blocks(r->n); b++)
        total += r->scratch->sums[b];
    return total;
}

/* The best of a whole row. */
static void tell_best_of_row(const struct sampled_row *r, const struct distribution *d)
{
    struct sampling_list l = candidates_none(r);

    if (!r->params->n_best)
        return;
    candidates_best(r, d, r->params->n_best, &l);
    tell_best(r->params, d, &l);
}

/* The row's own distribution at this temperature, and its best if they are asked for. */
static struct distribution tell_row(const struct sampled_row *r, float temperature)
{
    struct distribution d = {.temperature = temperature, .max = r->largest / temperature + 0.0f};

    d.log_total = log(total_of_row(r, &d));
    tell_best_of_row(r, &d);
    return d;
}

/* ---- one token ------------------------------------------------------------------------------- */

static double uniform(const struct sample_params *p)
{
    return philox_uniform(p->seed, p->child_idx, p->token_idx, 0);
}

/* The whole row is kept: a draw needs no more than its blocks' sums and one block. */
static void draw_of_row(struct sample *out, const struct sampled_row *r, struct distribution *d)
{
    struct sampling_list l = candidates_none(r);
    double total = total_of_row(r, d), target = uniform(r->params) * total, before = 0;
    uint32_t block = 0;

    while (before + r->scratch->sums[block] <= target) {
        before += r->scratch->sums[block++];
        assert(block < sampling_n_blocks(r->n));
    }
    for (uint32_t i = block * SAMPLING_BLOCK; i < r->n && l.n < SAMPLING_BLOCK; i++)
        l.ids[l.n++] = i;
    candidates_weigh(r, d, &l);
    out->token = l.ids[sampling_list_pick_in(&l, 0, l.n, target - before)];
    if (!wants_processed(r))
        return;
    d->log_total = log(total);
    out->logprob = logprob_of(d, r->logits[out->token] / d->temperature + 0.0f);
    tell_best_of_row(r, d);
}

static bool has_cuts(const struct sampled_row *r)
{
    const struct sample_params *p = r->params;

    return (p->top_k && p->top_k < r->n) || p->top_p < 1 ||
           (p->program && (p->program->min_p > 0 || p->program->typical_p < 1));
}

/* The list has been cut. */
static void draw_of_list(struct sample *out, const struct sampled_row *r, struct distribution *d,
                         const struct sampling_list *l)
{
    const struct sample_params *p = r->params;
    double total;
    uint32_t at;

    total = sampling_list_sum(l, NULL);
    at = sampling_list_pick(l, uniform(p) * total);
    out->token = l->ids[at];
    if (!wants_processed(r))
        return;
    d->log_total = log(total);
    out->logprob = (float)((double)l->scores[at] - d->log_total);
    tell_best(p, d, l);
}

/* The best token, whether greedy or because the temperature is next to nothing. */
static void take_best(struct sample *out, const struct sampled_row *r,
                      struct sampling_list *allowed)
{
    struct distribution d = {.temperature = 1, .max = r->largest + 0.0f};

    out->token = r->best;
    if (!wants_processed(r))
        return;
    if (r->params->temperature > 0) {
        tell_only(r->params, r->best);
    } else if (allowed) {
        candidates_weigh(r, &d, allowed);
        d.log_total = log(sampling_list_sum(allowed, NULL));
        tell_best(r->params, &d, allowed);
        out->logprob = logprob_of(&d, d.max);
    } else {
        d = tell_row(r, 1);
        out->logprob = logprob_of(&d, d.max);
    }
}

/* allowed: the ids that were not removed, if a list says so; NULL: the row's. */
static void choose(struct sample *out, const struct sampled_row *r, struct sampling_list *allowed)
{
    const struct sample_params *p = r->params;
    struct distribution d = {.temperature = p->temperature};
    struct sampling_list l = candidates_none(r);

    if (r->largest == -INFINITY) {
        out->nothing_left = 1;
        return;
    }
    d.max = r->largest / p->temperature + 0.0f;
    if (p->temperature == 0 || !isfinite(d.max)) {
        take_best(out, r, allowed);
        return;
    }
    if (!allowed && !has_cuts(r)) {
        draw_of_row(out, r, &d);
        return;
    }
    if (allowed)
        l = *allowed;
    candidates_cut(r, &d, &l, allowed);
    draw_of_list(out, r, &d, &l);
}

/* Edits the row, and sweeps it again unless only a list of its ids is left. Returns that list, or
 * NULL. `logits` of a row whose raw log-probabilities are asked for stay as they are. */
static struct sampling_list *edit(struct sampled_row *r, float *logits, struct sampling_list *list)
{
    const struct sample_program *p = r->params->program;

    if (r->params->logprobs == SAMPLE_RAW)
        logits = memcpy(r->scratch->row, logits, r->n * sizeof *logits);
    sampling_edit(logits, r->n, r->params, r->scratch->counts);
    r->logits = logits;
    if (!p->n_allowed) {
        candidates_sweep(r);
        return NULL;
    }
    r->largest = -INFINITY;
    for (uint32_t i = 0; i < p->n_allowed; i++) {
        uint32_t id = p->allowed[i];

        if (id >= r->n || logits[id] == -INFINITY)
            continue;
        list->ids[list->n++] = id;
        if (logits[id] > r->largest) {
            r->largest = logits[id];
            r->best = id;
        }
    }
    return list;
}

static void sample_logits(struct sample *out, struct sampled_row *r, float *logits)
{
    const struct sample_params *params = r->params;
    struct sampling_list list = candidates_none(r), *allowed = NULL;
    struct distribution raw = {0};

    if (!candidates_sweep(r)) {
        out->not_finite = 1;
        return;
    }
    if (params->logprobs == SAMPLE_RAW)
        raw = tell_row(r, 1);
    if (params->is_given) {
        out->token = params->given_id < r->n ? params->given_id : r->n - 1;
        if (wants_processed(r))
            tell_only(params, out->token);
    } else {
        if (params->program)
            allowed = edit(r, logits, &list);
        choose(out, r, allowed);
    }
    if (params->logprobs == SAMPLE_RAW && !out->nothing_left)
        out->logprob = logprob_of(&raw, logits[out->token] + 0.0f);
}

void sampling_row(struct sample *out, float *logits, uint32_t n_vocab, const struct head_row *head,
                  const struct sample_params *params, const struct sampling_sweeps *sweeps,
                  const struct sampler_scratch *scratch)
{
    struct sampled_row r = {
        .logits = logits, .n = n_vocab, .params = params, .sweeps = sweeps, .scratch = scratch};

    assert(n_vocab >= 1 && n_vocab <= KERNELS_VOCAB_MAX);
    *out = (struct sample){0};
    if (sample_reads_logits(params)) {
        sample_logits(out, &r, logits);
    } else {
        out->token = params->is_given ? params->given_id : head->argmax;
        out->not_finite = head->not_finite;
    }
}
