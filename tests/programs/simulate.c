/* simulate --seeds A-B [--verbose]: the whole daemon in one process, a run a seed, and then users who
 * are busy all the time (tests/util/busy.h). Each tenth seed
 * is run twice, and must come out the same. Prints what a failing seed says; exits 1 if there was
 * one. */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "tests/util/busy.h"
#include "tests/util/sim.h"

static const struct {
    size_t at;
    const char *words;
} counts[] = {
    {offsetof(struct sim_report, n_turns), "turns"},
    {offsetof(struct sim_report, n_requests), "requests"},
    {offsetof(struct sim_report, n_finished), "finished"},
    {offsetof(struct sim_report, n_cancelled), "cancelled"},
    {offsetof(struct sim_report, n_rejected), "rejected"},
    {offsetof(struct sim_report, n_too_late), "of these for their deadline"},
    {offsetof(struct sim_report, n_past_deadline), "passed it"},
    {offsetof(struct sim_report, n_families), "families"},
    {offsetof(struct sim_report, n_forks), "forks"},
    {offsetof(struct sim_report, n_resumed), "resumed"},
    {offsetof(struct sim_report, n_room_waits), "waits of families for room"},
    {offsetof(struct sim_report, n_switches), "switches of weights"},
    {offsetof(struct sim_report, n_weights_refused), "weights refused"},
    {offsetof(struct sim_report, n_mixed), "went on with other weights"},
    {offsetof(struct sim_report, n_anew), "began anew"},
    {offsetof(struct sim_report, n_failed), "failed by other weights"},
    {offsetof(struct sim_report, n_soft_resets), "soft resets"},
    {offsetof(struct sim_report, n_deaths), "deaths"},
    {offsetof(struct sim_report, n_hostile), "hostile clients"},
};
enum { N_COUNTS = sizeof counts / sizeof counts[0] };

static uint64_t *count_at(struct sim_report *r, size_t i)
{
    return (uint64_t *)(void *)((char *)r + counts[i].at);
}

int main(int argc, char **argv)
{
    uint64_t first = 0, last = 99, n_failed = 0;
    int verbose = argc > 3 && strcmp(argv[3], "--verbose") == 0;
    struct sim_report sum = {.error = ""};
    if (argc > 1 && (argc < 3 || strcmp(argv[1], "--seeds") != 0 ||
                     sscanf(argv[2], "%" SCNu64 "-%" SCNu64, &first, &last) < 1)) {
        fprintf(stderr, "usage: simulate --seeds A-B [--verbose]\n");
        return 2;
    }
    if (argc > 2 && !strchr(argv[2], '-'))
        last = first;
    for (uint64_t seed = first; seed <= last; seed++) {
        struct sim_report report, again;
        int r = sim_run(seed, &report);
        if (r == 0 && seed % 10 == 0) {
            r = sim_run(seed, &again);
            if (r == 0 && again.digest != report.digest) {
                snprintf(report.error, sizeof report.error, "a second run came out differently");
                r = -1;
            }
        }
        struct busy_report busy;
        if (r == 0 && busy_run(seed, &busy)) {
            snprintf(report.error, sizeof report.error, "busy users: %s", busy.error);
            r = -1;
        }
        if (verbose || r)
            printf("seed %" PRIu64 ": %s; %" PRIu64 " turns, digest %016" PRIx64 "\n", seed,
                   r ? report.error : "ok", report.n_turns, report.digest);
        if (r)
            printf("  again: build/tests/simulate --seeds %" PRIu64 "-%" PRIu64 "\n", seed, seed);
        n_failed += r != 0;
        for (size_t i = 0; i < N_COUNTS; i++)
            *count_at(&sum, i) += *count_at(&report, i);
    }
    printf("%" PRIu64 " seeds, %" PRIu64 " failed:", last - first + 1, n_failed);
    for (size_t i = 0; i < N_COUNTS; i++)
        printf("%s %" PRIu64 " %s", i ? "," : "", *count_at(&sum, i), counts[i].words);
    printf("\n");
    return n_failed != 0;
}
