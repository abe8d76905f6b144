/* The explorer over shm's and the library's own code is a program of its own, for it replaces <stdatomic.h>. Here it
 * runs whole: every case, every litmus shape with the outcome that C11 fixes. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

Test(explore, every_case_holds, .timeout = 600)
{
    const char *build = getenv("CBD_BUILD");
    char command[512];

    snprintf(command, sizeof command, "%s/tests/explore >&2", build ? build : "build");
    cr_assert_eq(system(command), 0, "a case fails; run %s for which", command);
}

/* The processor keeps what the explorer's C11 promises; make litmus asks it for longer. */
Test(litmus, this_machine_keeps_the_order, .timeout = 300)
{
    const char *build = getenv("CBD_BUILD");
    char command[512];
    snprintf(command, sizeof command, "%s/tests/litmus 2000000 >&2", build ? build : "build");
    cr_assert_eq(system(command), 0, "what must not be was seen; run %s for what", command);
}

/* The protocols as models, each in its first form; make promela checks the others, and mutants. */
Test(promela, every_model_holds, .timeout = 600)
{
    cr_assert_eq(system("tests/promela/run.sh -s >&2"), 0, "a model fails; run make promela");
}
