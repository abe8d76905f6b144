/* simulate --seeds A-B [--verbose]: the whole daemon in one process, a run a seed, and then users who
 * are busy all the time (tests/util/busy.h). Each tenth seed
 * is run twice, and must come out the same. Prints what a failing seed says; exits 1 if there was
 * one. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tests/util/busy.h"
#include "tests/util/sim.h"

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
        sum.n_turns += report.n_turns;
        sum.n_requests += report.n_requests;
        sum.n_finished += report.n_finished;
        sum.n_cancelled += report.n_cancelled;
        sum.n_rejected += report.n_rejected;
        sum.n_deaths += report.n_deaths;
        sum.n_hostile += report.n_hostile;
        sum.n_soft_resets += report.n_soft_resets;
        sum.n_too_late += report.n_too_late;
        sum.n_past_deadline += report.n_past_deadline;
    }
    printf("%" PRIu64 " seeds, %" PRIu64 " failed: %" PRIu64 " turns, %" PRIu64
           " requests (%" PRIu64 " finished, %" PRIu64 " cancelled, %" PRIu64
           " rejected, of these %" PRIu64 " for their deadline; %" PRIu64 " passed it), %" PRIu64
           " soft resets, %" PRIu64 " deaths, %" PRIu64 " hostile clients\n",
           last - first + 1, n_failed, sum.n_turns, sum.n_requests, sum.n_finished, sum.n_cancelled,
           sum.n_rejected, sum.n_too_late, sum.n_past_deadline, sum.n_soft_resets, sum.n_deaths,
           sum.n_hostile);
    return n_failed != 0;
}
