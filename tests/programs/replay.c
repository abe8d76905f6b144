/* tests/programs/replay.c - replay FILE: runs recorded cases again.
 *
 * The form of the file is told from what is in it. Prints the first difference of each case that
 * has one, and ends with `N passed, N failed`. */
#include "tests/replay/replay.h"

#include <stdarg.h>
#include <stdio.h>

#include "kernels/kernels.h"

static const struct replay_form *const forms[] = {&replay_processors, &replay_traces,
                                                  &replay_sizing};
enum { N_FORMS = sizeof forms / sizeof forms[0] };

void replay_differs(struct replay *r, const char *format, ...)
{
    va_list args;

    if (r->difference[0])
        return;
    va_start(args, format);
    vsnprintf(r->difference, sizeof r->difference, format, args);
    va_end(args);
}

void replay_case(struct replay *r, const char *name)
{
    if (r->difference[0]) {
        r->n_failed++;
        printf("%s: %s\n", name, r->difference);
    } else {
        r->n_passed++;
    }
    r->difference[0] = '\0';
}

int main(int argc, char **argv)
{
    struct replay r = {0};
    json_error_t error;
    json_t *root;
    int i = 0;

    if (argc != 2) {
        fprintf(stderr, "usage: replay FILE\n");
        return 2;
    }
    root = json_load_file(argv[1], 0, &error);
    if (!root) {
        fprintf(stderr, "%s:%d: %s\n", argv[1], error.line, error.text);
        return 2;
    }
    while (i < N_FORMS && !forms[i]->matches(root))
        i++;
    if (i == N_FORMS) {
        fprintf(stderr, "%s: no form of file that is known here\n", argv[1]);
        json_decref(root);
        return 2;
    }
    kernels_thread_init();
    printf("%s: %s\n", argv[1], forms[i]->name);
    forms[i]->run(&r, root);
    json_decref(root);
    printf("%u passed, %u failed\n", r.n_passed, r.n_failed);
    return r.n_failed > 0 || r.n_passed == 0;
}
