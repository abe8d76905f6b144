#include "tests/bench/ipc/bars.h"

#include <stdio.h>

#include "tests/bench/ipc/load.h"
#include "tests/bench/ipc/peer.h"
#include "tests/bench/ipc/wakes.h"

enum { TURNS_MAX = 31, N_SLEEPERS = 64, N_WAKES = 60, N_CELLS = 5 };
#define NULL_NS_MAX 2000.0

static double p50_of(struct place *place, const struct way *way)
{
    const struct load load = {.n_max = way->sleeps ? 5000 : 50000, .seconds_max = 0.2};
    void *ctx = way->open(place, way, 1);
    if (!ctx)
        peer_fail(place->why);
    struct took took = load_run(way, ctx, 1, &load);
    way->close(ctx);
    return took.p50;
}

/* Of what the turns say, each by itself: neighbours in time share the machine's mood. */
static int bar(const char *what, const double *values, const double *of, int n, double most,
               double ns_most)
{
    double ratios[TURNS_MAX], v[TURNS_MAX], o[TURNS_MAX];
    for (int i = 0; i < n; i++) {
        ratios[i] = values[i] / of[i];
        v[i] = values[i];
        o[i] = of[i];
    }
    double ratio = load_median(ratios, (uint32_t)n), ns = load_median(v, (uint32_t)n);
    bool holds = ratio <= most || (ns_most > 0 && ns <= ns_most);
    printf("  %-44s %9.3f us of %9.3f us  ratio %5.2f  (%.2f to %.2f)  most %4.1f%s  %s\n", what,
           ns / 1e3, load_median(o, (uint32_t)n) / 1e3, ratio, ratios[0], ratios[n - 1], most,
           ns_most > 0 ? " or 2 us" : "        ", holds ? "holds" : "MISSED");
    return !holds;
}

int bars_run(struct place *place, int n_turns)
{
    static const struct way *const cells[N_CELLS] = {&way_spin, &way_ring, &way_null_spin,
                                                     &way_futex, &way_null_eco};
    double v[N_CELLS][TURNS_MAX], bare[2][TURNS_MAX], cbd[2][TURNS_MAX];
    int n_missed = 0;
    for (int t = 0; t < n_turns; t++) {
        for (int i = 0; i < N_CELLS; i++)
            v[i][t] = p50_of(place, cells[i]);
        struct wakes w = wakes_bare(place, N_SLEEPERS, N_WAKES);
        bare[0][t] = w.busy;
        bare[1][t] = w.span;
        w = wakes_cbd(place, N_SLEEPERS, N_WAKES);
        cbd[0][t] = w.busy;
        cbd[1][t] = w.span;
    }
    printf("bars: medians of %d turns, p50 of round trips on one lane\n", n_turns);
    n_missed += bar("bare ring, of spin on two words", v[1], v[0], n_turns, 2, 0);
    n_missed +=
        bar("cbd, null model, spin, of spin on two words", v[2], v[0], n_turns, 12, NULL_NS_MAX);
    n_missed += bar("cbd, null model, asleep, of futex", v[4], v[3], n_turns, 1.2, 0);
    n_missed +=
        bar("64 clients woken by cbd's loop, of 64 FUTEX_WAKEs", cbd[0], bare[0], n_turns, 1.2, 0);
    printf("  from the first of these awake to the last: %.0f us, of %.0f us that threads need "
           "which do "
           "nothing else\n",
           load_median(cbd[1], (uint32_t)n_turns) / 1e3,
           load_median(bare[1], (uint32_t)n_turns) / 1e3);
    return n_missed;
}
