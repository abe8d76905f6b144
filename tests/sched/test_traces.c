/* The scheduler against recorded decisions of the reference implementation, step by step. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "tests/util/traces.h"

static json_t *traces(void)
{
    json_error_t error;
    json_t *root = json_load_file("tests/data/scheduler-traces.json", 0, &error);
    cr_assert_not_null(root, "%s", error.text);
    return root;
}

/* All workloads of a list run to their end; those that is_exact names match, too. */
static size_t run_list(const char *key, enum scheduler_kind fifo,
                       bool (*is_exact)(const char *name))
{
    json_t *root = traces(), *w;
    size_t i, n = 0;
    json_array_foreach(json_object_get(root, key), i, w)
    {
        char why[TRACES_WHY_MAX], differs[TRACES_WHY_MAX];
        const char *name = json_string_value(json_object_get(w, "name"));
        traces_run(root, w, fifo, why, differs);
        cr_expect_str_empty(why, "%s: %s", name, why);
        if (is_exact(name)) {
            cr_expect_str_empty(differs, "%s: %s", name, differs);
            n++;
        }
    }
    json_decref(root);
    return n;
}

static bool every_one(const char *name)
{
    (void)name;
    return true;
}

/* The one under pressure that depends on nothing but whose blocks are taken. */
static bool two_outgrow(const char *name)
{
    return strcmp(name, "two-outgrow") == 0;
}

static bool none(const char *name)
{
    (void)name;
    return false;
}

Test(traces, exact_workloads_match_step_by_step)
{
    cr_assert_eq(run_list("workloads", SCHEDULER_FIFO, every_one), 58);
}

Test(traces, auto_is_fifo_for_one_user)
{
    cr_assert_eq(run_list("workloads", SCHEDULER_AUTO, every_one), 58);
    cr_assert_eq(run_list("sliding", SCHEDULER_AUTO, every_one), 4);
    cr_assert_eq(run_list("pressure", SCHEDULER_AUTO, two_outgrow), 1);
}

Test(traces, with_sliding_layers_too)
{
    cr_assert_eq(run_list("sliding", SCHEDULER_FIFO, every_one), 4);
}

Test(traces, under_pressure_all_end)
{
    cr_assert_eq(run_list("pressure", SCHEDULER_FIFO, two_outgrow), 1);
    run_list("quirks", SCHEDULER_FIFO, none);
}
