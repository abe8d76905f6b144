/* explore: shm's and the library's own code under the C11 memory model.
 *
 *   explore                 litmus shapes, random programs, then every case, completely but where it says otherwise; states and time a line
 *   explore --mutants       weakens each acquire, release and fence of shm/ and client/ in turn; a case must fail
 *   explore --first         every case until one fails; says why
 *   explore --sites         the lines that --mutants weakens
 *   explore --trace NAME    one case; prints its failing execution
 *
 * Exit status 0: all as it must be. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/explore/cases.h"

/* The quick ones first: a mutant is caught by the first case that fails. */
static const struct explore_list *const lists[] = {&cases_ring, &cases_sleep, &cases_family,
                                                   &cases_lane, &cases_library};
enum { N_LISTS = sizeof lists / sizeof lists[0], RANDOM_PROGRAMS = 5000 };

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int run_litmus(void)
{
    int bad = 0;

    for (size_t i = 0; i < n_explore_litmus; i++) {
        struct explore_result r;

        explore_run(&explore_litmus[i].c, &r);
        if (r.failed != explore_litmus[i].fails) {
            printf("litmus %s: %s\n", explore_litmus[i].c.name,
                   r.failed ? r.why : "a forbidden outcome was not found");
            bad++;
        }
    }
    printf("litmus: %zu shapes, %d wrong\n", n_explore_litmus, bad);
    return bad;
}

static int run_cases(const char *only, bool quiet)
{
    int bad = 0;

    for (size_t l = 0; l < N_LISTS; l++) {
        for (size_t i = 0; i < lists[l]->n_cases; i++) {
            const struct explore_case *c = &lists[l]->cases[i];
            struct explore_result r;
            double t = now_s();

            if (only && strcmp(only, c->name) != 0)
                continue;
            explore_run(c, &r);
            if (r.failed)
                bad++;
            if (!quiet)
                printf("%-44s %9llu states %9llu executions %6.2f s  %s\n", c->name,
                       (unsigned long long)r.n_states, (unsigned long long)r.n_executions,
                       now_s() - t, r.failed ? r.why : "holds");
            if (quiet && bad) {
                printf("%s: %s", c->name, r.why);
                return bad;
            }
        }
    }
    return bad;
}

/* The product's, and not the cases' own. */
static bool is_ours(const char *file)
{
    return strncmp(file, "shm/", 4) == 0 || strncmp(file, "client/", 7) == 0;
}

static int run_mutants(void)
{
    const struct explore_site *sites;
    struct explore_site *copy;
    size_t n;
    int survivors = 0;

    explore_forget();
    if (run_cases(NULL, true)) {
        printf("a case fails without any mutation\n");
        return 1;
    }
    n = explore_sites(&sites);
    copy = malloc(n * sizeof *copy);
    if (!copy)
        return 1;
    memcpy(copy, sites, n * sizeof *copy);
    for (size_t i = 0; i < n; i++) {
        double t = now_s();
        bool caught;

        if (!is_ours(copy[i].file))
            continue;
        explore_weaken(copy[i].file, copy[i].line);
        printf("%-8s at %s:%d  ", copy[i].kind, copy[i].file, copy[i].line);
        caught = run_cases(NULL, true) > 0;
        explore_weaken(NULL, 0);
        printf("%s (%.2f s)\n", caught ? "" : "SURVIVED", now_s() - t);
        survivors += !caught;
    }
    free(copy);
    printf("mutants: %d survived\n", survivors);
    return survivors;
}

static int print_first(void)
{
    int bad = run_cases(NULL, true);

    if (bad)
        putchar('\n');
    return bad;
}

static int print_sites(void)
{
    const struct explore_site *sites;
    size_t n;

    if (run_cases(NULL, true))
        return 1;
    n = explore_sites(&sites);
    for (size_t i = 0; i < n; i++) {
        if (is_ours(sites[i].file))
            printf("%s:%d\n", sites[i].file, sites[i].line);
    }
    return 0;
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc == 3 && !strcmp(argv[1], "--trace")) {
        explore_trace(true);
        return run_cases(argv[2], false) ? 1 : 0;
    }
    if (argc == 2 && !strcmp(argv[1], "--mutants"))
        return run_mutants() ? 1 : 0;
    if (argc == 2 && !strcmp(argv[1], "--first"))
        return print_first() ? 1 : 0;
    if (argc == 2 && !strcmp(argv[1], "--sites"))
        return print_sites();
    if (argc != 1) {
        fprintf(stderr, "usage: explore [--mutants | --first | --sites | --trace CASE]\n");
        return 2;
    }
    return run_litmus() + (int)explore_random(RANDOM_PROGRAMS) + run_cases(NULL, false) ? 1 : 0;
}
