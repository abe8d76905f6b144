/* Decisions of a scheduler: each batch of each step must be the recorded one. Lists that the file
 * names in `informative_only` need not match, but must run to their end. */
#include "tests/util/traces.h"

#include <stdio.h>
#include <string.h>

#include "tests/replay/replay.h"

static bool is_workloads(const json_t *list)
{
    return json_array_size(list) > 0 && json_object_get(json_array_get(list, 0), "steps");
}

static bool is_informative(const json_t *root, const char *list)
{
    const json_t *name;
    size_t i;

    json_array_foreach(json_object_get(root, "informative_only"), i, name)
    {
        if (strcmp(json_string_value(name), list) == 0)
            return true;
    }
    return false;
}

static bool matches(const json_t *root)
{
    const char *key;
    const json_t *list;

    if (!json_object_get(root, "first_token"))
        return false;
    json_object_foreach((json_t *)root, key, list)
    {
        if (is_workloads(list))
            return true;
    }
    return false;
}

static void run_list(struct replay *r, const json_t *root, const char *key, const json_t *list)
{
    bool informative = is_informative(root, key);
    const json_t *w;
    size_t i;

    json_array_foreach(list, i, w)
    {
        char why[TRACES_WHY_MAX], differs[TRACES_WHY_MAX], name[128];

        traces_run(root, w, SCHEDULER_FIFO, why, differs);
        snprintf(name, sizeof name, "%s/%s", key, json_string_value(json_object_get(w, "name")));
        if (why[0])
            replay_differs(r, "%s", why);
        else if (differs[0] && informative)
            printf("%s: need not match: %s\n", name, differs);
        else if (differs[0])
            replay_differs(r, "%s", differs);
        if (why[0] || !informative)
            replay_case(r, name);
    }
}

static void run(struct replay *r, const json_t *root)
{
    const char *key;
    const json_t *list;

    json_object_foreach((json_t *)root, key, list)
    {
        if (is_workloads(list))
            run_list(r, root, key, list);
    }
}

const struct replay_form replay_traces = {
    .name = "decisions of a scheduler", .matches = matches, .run = run};
