/* tests/explore/cases.h - the lists of cases: a file a part of the protocol. */
#ifndef CB_TESTS_EXPLORE_CASES_H
#define CB_TESTS_EXPLORE_CASES_H

#include "tests/explore/explorer.h"

struct explore_list {
    const struct explore_case *cases;
    size_t n_cases;
};

extern const struct explore_list cases_ring;
extern const struct explore_list cases_lane;
extern const struct explore_list cases_sleep;
extern const struct explore_list cases_family;
extern const struct explore_list cases_library;

/* Shapes with known outcomes under C11: they test the explorer. `fails` says whether a claim must
 * fail. */
struct explore_litmus {
    struct explore_case c;
    bool fails;
};
extern const struct explore_litmus explore_litmus[];
extern const size_t n_explore_litmus;

/* Programs drawn from 0 on, explored with and without the explorer's short cuts: how many differ. */
unsigned explore_random(unsigned n_programs);

#endif
