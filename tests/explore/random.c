/* Random programs of two and three threads, explored as cases are and with a step of others before each access: the
 * outcomes must be the same. It is how the explorer's own short cuts are tested. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shm/atomics.h"
#include "tests/explore/cases.h"

enum { WORDS = 3, STEPS_MAX = 4, OUTCOMES_MAX = 1 << 14 };

enum kind { LOAD, STORE, CAS, ADD, FENCE, LOAD_IF, STORE_IF, LOCKED, N_KINDS };

struct step {
    enum kind kind;
    unsigned word;
    uint32_t value;
    bool strong; /* acquire or release */
};

static struct {
    struct step steps[EXPLORE_THREADS_MAX][STEPS_MAX];
    unsigned n_steps[EXPLORE_THREADS_MAX];
    cb_atomic32 words[WORDS];
    uint32_t got[EXPLORE_THREADS_MAX][STEPS_MAX]; /* 0: nothing, else what was loaded, plus 1 */
    uint64_t outcomes[OUTCOMES_MAX];
    unsigned n_outcomes;
    uint64_t state; /* of the generator */
} p;

static unsigned draw(unsigned n)
{
    p.state = p.state * 6364136223846793005u + 1442695040888963407u; /* Knuth's MMIX */
    return (unsigned)(p.state >> 33) % n;
}

static void init(void)
{
    memset(p.words, 0, sizeof p.words);
    memset(p.got, 0, sizeof p.got);
}

static void take(unsigned thread, unsigned i)
{
    static const char mutex;
    const struct step *s = &p.steps[thread][i];
    cb_atomic32 *word = &p.words[s->word];
    uint32_t *got = &p.got[thread][i], old = s->value & 1;
    bool before = i > 0 && p.got[thread][i - 1] > 1; /* the step before loaded something */

    switch (s->kind) {
    case LOAD:
        *got = 1 + (s->strong ? cb_load32(word, CB_ACQUIRE) : cb_load32(word, CB_RELAXED));
        break;
    case STORE:
        if (s->strong)
            cb_store32(word, s->value, CB_RELEASE);
        else
            cb_store32(word, s->value, CB_RELAXED);
        break;
    case CAS:
        *got = cb_cas32(word, &old, 10 + thread) ? 100 : 1 + old;
        break;
    case ADD:
        if (s->strong)
            cb_add32(word, 16, CB_RELEASE);
        else
            cb_add32(word, 16, CB_RELAXED);
        break;
    case FENCE:
        cb_fence();
        break;
    case LOAD_IF:
        if (before)
            *got = 1 + cb_load32(word, CB_RELAXED);
        break;
    case STORE_IF:
        if (before)
            cb_store32(word, s->value, CB_RELAXED);
        break;
    default:
        explore_lock(&mutex);
        *got = 1 + cb_load32(word, CB_RELAXED);
        cb_store32(word, s->value, CB_RELAXED);
        explore_unlock(&mutex);
    }
}

static void run(unsigned thread)
{
    for (unsigned i = 0; i < p.n_steps[thread]; i++)
        take(thread, i);
}

static void run_0(void)
{
    run(0);
}

static void run_1(void)
{
    run(1);
}

static void run_2(void)
{
    run(2);
}

/* What was loaded, and what stands in the words in the end. */
static void check(void)
{
    uint64_t h = 1469598103934665603u; /* FNV-1a */

    for (unsigned t = 0; t < EXPLORE_THREADS_MAX; t++) {
        for (unsigned i = 0; i < STEPS_MAX; i++)
            h = (h ^ p.got[t][i]) * 1099511628211u;
    }
    for (unsigned i = 0; i < WORDS; i++)
        h = (h ^ explore_newest(&p.words[i], 4)) * 1099511628211u;
    for (unsigned i = 0; i < p.n_outcomes; i++) {
        if (p.outcomes[i] == h)
            return;
    }
    assert(p.n_outcomes < OUTCOMES_MAX);
    p.outcomes[p.n_outcomes++] = h;
}

static int compare(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;

    return (left > right) - (left < right);
}

/* All outcomes, as one digest. */
static uint64_t outcomes_of(const struct explore_case *c, bool at_all)
{
    struct explore_result r;
    uint64_t h = 0;

    p.n_outcomes = 0;
    explore_give_way_at_all(at_all);
    explore_run(c, &r);
    explore_give_way_at_all(false);
    qsort(p.outcomes, p.n_outcomes, sizeof p.outcomes[0], compare);
    for (unsigned i = 0; i < p.n_outcomes; i++)
        h = (h ^ p.outcomes[i]) * 1099511628211u;
    return r.failed ? 0 : h;
}

unsigned explore_random(unsigned n_programs)
{
    unsigned n_wrong = 0;

    for (unsigned k = 0; k < n_programs; k++) {
        p.state = k;
        struct explore_case c = {.name = "random",
                                 .n_threads = 2 + draw(2),
                                 .init = init,
                                 .thread = {run_0, run_1, run_2},
                                 .check = check};

        for (unsigned t = 0; t < EXPLORE_THREADS_MAX; t++) {
            p.n_steps[t] = t < c.n_threads ? 2 + draw(c.n_threads == 2 ? 3 : 2) : 0;
            for (unsigned i = 0; i < p.n_steps[t]; i++)
                p.steps[t][i] = (struct step){.kind = (enum kind)draw(N_KINDS),
                                              .word = draw(c.n_threads),
                                              .value = 1 + draw(2),
                                              .strong = draw(2)};
        }
        if (outcomes_of(&c, false) != outcomes_of(&c, true)) {
            printf("random program %u: other outcomes with a step of others before each access\n",
                   k);
            n_wrong++;
        }
    }
    printf("random: %u programs, %u wrong\n", n_programs, n_wrong);
    return n_wrong;
}
