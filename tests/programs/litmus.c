/* litmus [ROUNDS]: the two shapes that the lane's promises rest on, on this machine's own cores: does it keep them?
 * The explorer (tests/explore) knows what C11 allows; here is what compiler and processor make of it.
 *
 *   store buffering   each side stores a word of its own, fences, and loads the other's: one of them sees the other.
 *                     So no wake is lost: results against `parked`, requests against `doze`.
 *   message passing   data, then a word with release; that word with acquire, then the data: they are there. So
 *                     entries and tokens are whole, and with them the places given back.
 *
 * Two threads on two cores go through a row of lanes side by side, the words where format.h has them, ROUNDS times in
 * all (10^8), a shape. Store buffering comes without its fences, too: what is then seen shows that this run could have
 * seen it. Without release and acquire x86 keeps messages in order all the same.
 *
 * Ends with 0 if nothing was seen that must not be.
 *
 * Source: the shapes' names and the method are those of Alglave et al., "Litmus: Running Tests against Hardware",
 * TACAS 2011. */
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "shm/atomics.h"
#include "shm/format.h"

enum { N_LANES = 256, DATA_WORDS = 8 };

struct row {
    alignas(CB_PAGE) struct cb_up_hot up;
    alignas(CB_PAGE) struct cb_down_hot down;
    alignas(CB_PAGE) cb_atomic32 data[DATA_WORDS]; /* an entry */
};

/* What one side does on a lane in pass k: whether it failed to see the other side's. */
typedef bool side_fn(struct row *r, uint32_t k);

struct shape {
    const char *name;
    side_fn *side[2];
    bool is_control; /* may be seen */
};

struct race {
    const struct shape *shape;
    struct row *rows;
    uint64_t n_passes, n_both; /* n_both: lanes on which neither side saw the other */
    int cpus[2];
    cb_atomic32 arrived[2];
    bool missed[2][N_LANES];
};

struct runner {
    struct race *race;
    unsigned side;
};

/* ---- shapes ---------------------------------------------------------------------------------- */

static bool publish(struct row *r, uint32_t k)
{
    cb_store64(&r->down.res_sent, k, CB_RELEASE);
    cb_fence();
    return cb_load32(&r->up.parked, CB_RELAXED) != k;
}

static bool park(struct row *r, uint32_t k)
{
    cb_store32(&r->up.parked, k, CB_RELAXED);
    cb_fence();
    return cb_load64(&r->down.res_sent, CB_RELAXED) != k;
}

static bool publish_unfenced(struct row *r, uint32_t k)
{
    cb_store64(&r->down.res_sent, k, CB_RELEASE);
    return cb_load32(&r->up.parked, CB_RELAXED) != k;
}

static bool park_unfenced(struct row *r, uint32_t k)
{
    cb_store32(&r->up.parked, k, CB_RELAXED);
    return cb_load64(&r->down.res_sent, CB_RELAXED) != k;
}

static bool submit(struct row *r, uint32_t k)
{
    cb_store64(&r->up.req_sent, k, CB_RELEASE);
    cb_fence();
    return cb_load32(&r->down.doze, CB_RELAXED) != k;
}

static bool doze(struct row *r, uint32_t k)
{
    cb_store32(&r->down.doze, k, CB_RELAXED);
    cb_fence();
    return cb_load64(&r->up.req_sent, CB_RELAXED) != k;
}

/* Of messages the reader alone can miss something; the writer says that it missed it, too. */
static bool write_entry(struct row *r, uint32_t k)
{
    uint32_t words[DATA_WORDS];
    for (int i = 0; i < DATA_WORDS; i++)
        words[i] = k;
    cb_copy_out(r->data, words, sizeof words);
    cb_store64(&r->down.res_sent, k, CB_RELEASE);
    return true;
}

static bool read_entry(struct row *r, uint32_t k)
{
    uint32_t words[DATA_WORDS];
    bool is_old = false;
    if (cb_load64(&r->down.res_sent, CB_ACQUIRE) != k)
        return false; /* it came first: nothing to see */
    cb_copy_in(words, r->data, sizeof words);
    for (int i = 0; i < DATA_WORDS; i++)
        is_old |= words[i] != k;
    return is_old;
}

static const struct shape shapes[] = {
    {"store buffering, publish and park, without fences", {publish_unfenced, park_unfenced}, true},
    {"store buffering, publish and park", {publish, park}, false},
    {"store buffering, submit and doze", {submit, doze}, false},
    {"message passing, an entry", {write_entry, read_entry}, false},
};

/* ---- running --------------------------------------------------------------------------------- */

/* Both sides have come to pass k. */
static void meet(struct race *race, unsigned side, uint32_t k)
{
    cb_store32(&race->arrived[side], k, CB_RELEASE);
    while (cb_load32(&race->arrived[1 - side], CB_ACQUIRE) < k)
        cb_spin_hint();
}

static void *run_side(void *arg)
{
    struct runner *me = arg;
    struct race *race = me->race;
    side_fn *side = race->shape->side[me->side];
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET(race->cpus[me->side], &cpus);
    (void)pthread_setaffinity_np(pthread_self(), sizeof cpus, &cpus);
    for (uint32_t k = 1; k <= race->n_passes; k++) {
        meet(race, me->side, 2 * k - 1);
        for (int i = 0; i < N_LANES; i++)
            race->missed[me->side][i] = side(&race->rows[i], k);
        meet(race, me->side, 2 * k);
        for (int i = 0; me->side == 0 && i < N_LANES; i++)
            race->n_both += race->missed[0][i] && race->missed[1][i];
    }
    return NULL;
}

/* The shape on all lanes, n_passes times: how often neither side saw the other. */
static uint64_t run(const struct shape *shape, uint64_t n_passes, const int cpus[2])
{
    static struct row rows[N_LANES];
    struct race race = {
        .shape = shape, .rows = rows, .n_passes = n_passes, .cpus = {cpus[0], cpus[1]}};
    struct runner runners[2] = {{&race, 0}, {&race, 1}};
    pthread_t other;
    memset(rows, 0, sizeof rows);
    if (pthread_create(&other, NULL, run_side, &runners[1])) {
        fprintf(stderr, "litmus: no second thread can be had\n");
        exit(2);
    }
    run_side(&runners[0]);
    pthread_join(other, NULL);
    return race.n_both;
}

/* Two that this process may run on, as far apart as their numbers: neighbours may share a core. */
static bool find_cpus(int cpus[2])
{
    cpu_set_t mine;
    if (sched_getaffinity(0, sizeof mine, &mine) || CPU_COUNT(&mine) < 2)
        return false;
    cpus[0] = cpus[1] = -1;
    for (int i = 0; i < CPU_SETSIZE; i++) {
        if (!CPU_ISSET(i, &mine))
            continue;
        cpus[0] = cpus[0] < 0 ? i : cpus[0];
        cpus[1] = i;
    }
    return true;
}

int main(int argc, char **argv)
{
    char *end = NULL;
    uint64_t n_rounds = argc > 1 ? strtoull(argv[1], &end, 10) : 100000000u;
    uint64_t n_passes = (n_rounds + N_LANES - 1) / N_LANES;
    int cpus[2], bad = 0;
    if (argc > 2 || (end && *end) || n_passes == 0 || n_passes > UINT32_MAX / 2 - 1) {
        fprintf(stderr, "usage: litmus [ROUNDS]\n");
        return 2;
    }
    if (!find_cpus(cpus)) {
        printf("litmus: one processor only, on which there is nothing to see\n");
        return 0;
    }
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        struct timespec from, to;
        clock_gettime(CLOCK_MONOTONIC, &from);
        uint64_t n_seen = run(&shapes[i], n_passes, cpus);
        clock_gettime(CLOCK_MONOTONIC, &to);
        bool is_bad = n_seen > 0 && !shapes[i].is_control;
        printf("%-50s %11llu rounds %6.2f s  seen %llu times%s\n", shapes[i].name,
               (unsigned long long)(n_passes * N_LANES),
               (double)(to.tv_sec - from.tv_sec) + (double)(to.tv_nsec - from.tv_nsec) * 1e-9,
               (unsigned long long)n_seen,
               is_bad                            ? ": NEVER must it be"
               : shapes[i].is_control && !n_seen ? ": this run shows nothing"
                                                 : "");
        bad += is_bad;
    }
    return bad ? 1 : 0;
}
