/* Every level's sweeps against those in plain C, bit by bit. */
#include "kernels/sampling_sweep.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "kernels/cpu/isa.h"
#include "tests/kernels/ops_common.h"

TestSuite(sampling_sweep, .init = kernels_thread_init);

enum { N_MAX = 1300, BLOCKS_MAX = N_MAX / SAMPLING_BLOCK + 1 };

static const uint32_t lengths[] = {1, 15, 16, 17, 255, 256, 257, 300, 1024, 1300};
enum { N_LENGTHS = sizeof lengths / sizeof lengths[0] };

struct swept {
    float maxima[BLOCKS_MAX * SAMPLING_LANES], weights[N_MAX], scores[N_MAX];
    double sums[BLOCKS_MAX];
    float logits[N_MAX + SAMPLING_LANES], kept_scores[N_MAX], kept_weights[N_MAX];
    uint32_t ids[N_MAX + SAMPLING_LANES], kept_ids[N_MAX], n_ids, n_kept;
    uint64_t mass;
    struct sampling_moments moments;
    bool finite;
};

static struct swept swept; /* by the level under test */

static void sweep(struct swept *s, const struct sampling_sweeps *sweeps, const float *row,
                  uint32_t n, float temperature, float least)
{
    float max = -INFINITY, less[N_MAX];

    memset(s, 0, sizeof *s);
    s->finite = sweeps->maxima(row, n, s->maxima);
    for (uint32_t i = 0; i < n; i++)
        max = row[i] / temperature > max ? row[i] / temperature : max;
    for (uint32_t i = 0; i < n; i++)
        less[i] = row[i] / temperature - max;
    s->n_ids = sweeps->collect(row, n, s->maxima, least, s->ids, s->logits);
    sweeps->sums(row, n, temperature, max, s->sums);
    s->mass = sweeps->mass(row, n, temperature, max);
    s->moments = sweeps->moments(row, n, temperature, max);
    sweeps->scores(row, n, temperature, max, s->scores);
    sweeps->weights(less, n, s->weights);
    for (uint32_t i = 0; i < n; i++)
        s->kept_ids[i] = 7 * i;
    memcpy(s->kept_scores, s->scores, n * sizeof *s->scores);
    memcpy(s->kept_weights, s->weights, n * sizeof *s->weights);
    s->n_kept = sweeps->keep(s->kept_ids, s->kept_scores, s->kept_weights, n, least - 6, 4);
    /* What is behind those that were found is nobody's business. */
    for (uint32_t i = s->n_ids; i < N_MAX + SAMPLING_LANES; i++)
        s->ids[i] = 0, s->logits[i] = 0;
    for (uint32_t i = s->n_kept; i < N_MAX; i++)
        s->kept_ids[i] = 0, s->kept_scores[i] = s->kept_weights[i] = 0;
}

static void each_level(const float *row, uint32_t n, float temperature, float least)
{
    static struct swept plain;
    const struct level *level;

    sweep(&plain, &sampling_sweeps_plain, row, n, temperature, least);
    for (uint32_t i = 0; (level = isa_level_at(i)); i++) {
        sweep(&swept, level->sampling_sweeps, row, n, temperature, least);
        cr_expect(!memcmp(&swept, &plain, sizeof plain),
                  "%s, %u ids: %d %u %llu, should be %d %u %llu", level->name, n, swept.finite,
                  swept.n_ids, (unsigned long long)swept.mass, plain.finite, plain.n_ids,
                  (unsigned long long)plain.mass);
    }
}

Test(sampling_sweep, levels_agree)
{
    uint64_t random = 3;
    float row[N_MAX];

    for (int trial = 0; trial < 20; trial++) {
        for (int l = 0; l < N_LENGTHS; l++) {
            for (uint32_t i = 0; i < lengths[l]; i++) {
                row[i] = (float)(4 * ops_random_normal(&random));
                if (trial > 10 && i > 0 && ops_random(&random) % 8 == 0)
                    row[i] = -INFINITY; /* removed */
            }
            each_level(row, lengths[l], trial % 3 ? 0.7f : 1, trial % 4 ? 3 : -1);
        }
    }
}

/* A maximum hides a NaN. */
Test(sampling_sweep, levels_find_what_is_not_finite)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    const struct level *level;
    float row[N_MAX] = {0}, maxima[BLOCKS_MAX * SAMPLING_LANES];

    for (uint32_t i = 0; (level = isa_level_at(i)); i++) {
        for (uint32_t at = 0; at < 300; at++) {
            cr_expect(level->sampling_sweeps->maxima(row, 300, maxima));
            row[at] = bad[at % 3];
            cr_expect(!level->sampling_sweeps->maxima(row, 300, maxima), "%s: %g at %u",
                      level->name, (double)row[at], at);
            row[at] = 0;
        }
    }
}
