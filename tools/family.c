/* States, not counters, say who is where: parts of a family may be refused and sent again. */
#include "tools/family.h"

#include <stdlib.h>

bool family_init(struct family *f, uint32_t n)
{
    *f = (struct family){.n = n, .v = calloc(n, sizeof *f->v)};
    if (!f->v)
        f->n = 0;
    return f->v != NULL;
}

void family_fini(struct family *f)
{
    for (uint32_t i = 0; i < f->n; i++)
        json_decref(f->v[i].answer);
    free(f->v);
    *f = (struct family){0};
}

/* The first that wait, one behind the other: how many, at most `most`. */
static uint32_t find_waiting(const struct family *f, uint32_t most, uint32_t *firstp)
{
    uint32_t first = 0, n = 1;

    while (first < f->n && f->v[first].state != SEQUENCE_WAITS)
        first++;
    *firstp = first;
    if (first == f->n || most == 0)
        return 0;
    while (n < most && first + n < f->n && f->v[first + n].state == SEQUENCE_WAITS &&
           !f->v[first].is_alone && !f->v[first + n].is_alone)
        n++;
    return n;
}

int family_send(struct family *f, struct cb_handle *h, struct cb_request *request, uint32_t most,
                size_t n_running)
{
    uint32_t first, n = find_waiting(f, most, &first);
    uint64_t id = 0;
    int r;

    if (n == 0)
        return 0;
    request->child_idx = first;
    do {
        request->n = n;
        r = cb_submit(h, request, &id);
    } while (r == CB_BUSY && n_running == 0 && (n /= 2) > 0);
    if (r)
        return r;
    for (uint32_t i = first; i < first + n; i++) {
        f->v[i].state = SEQUENCE_RUNS;
        f->v[i].id = id + (i - first);
        f->n_running++;
    }
    return (int)n;
}

uint32_t family_find(const struct family *f, uint64_t id)
{
    uint32_t i = 0;

    while (i + 1 < f->n && (f->v[i].state != SEQUENCE_RUNS || f->v[i].id != id))
        i++;
    return i;
}

void family_wait_again(struct family *f, uint32_t i, bool is_alone)
{
    f->n_running--;
    f->v[i].state = SEQUENCE_WAITS;
    f->v[i].is_alone |= is_alone;
}

void family_over(struct family *f, uint32_t i, json_t *answer)
{
    f->n_running -= f->v[i].state == SEQUENCE_RUNS;
    f->v[i].state = SEQUENCE_OVER;
    f->v[i].answer = answer;
    f->n_over++;
}

void family_cut(struct family *f)
{
    uint32_t first;

    if (find_waiting(f, FAMILY_MAX, &first))
        f->n = first;
}

bool family_is_over(const struct family *f)
{
    return f->n_over == f->n;
}

bool family_waits(const struct family *f)
{
    return f->n_running + f->n_over < f->n;
}

bool family_was_too_many(const struct family *f, uint32_t i, const struct cb_event *event)
{
    return event->type == CB_EVENT_REJECTED && event->status == CB_QUOTA && f->n > 1 &&
           !f->v[i].is_alone;
}

void family_cancel(const struct family *f, struct cb_handle *h)
{
    for (uint32_t i = 0; i < f->n; i++)
        if (f->v[i].state == SEQUENCE_RUNS)
            cb_cancel(h, f->v[i].id);
}

json_t *family_answer(struct family *f)
{
    json_t *all, *list;

    if (f->n == 1) {
        all = f->v[0].answer;
        f->v[0].answer = NULL;
        return all;
    }
    all = json_object();
    list = json_array();
    for (uint32_t i = 0; i < f->n; i++) {
        json_t *o = f->v[i].answer, *error = json_object_get(o, "error");

        if (error && !json_object_get(all, "error")) {
            json_object_set(all, "error", error);
            if (json_object_get(o, "status"))
                json_object_set(all, "status", json_object_get(o, "status"));
        }
        json_array_append_new(list, o);
        f->v[i].answer = NULL;
    }
    json_object_set_new(all, "sequences", list);
    return all;
}
