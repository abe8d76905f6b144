/* Texts of single tokens need not be whole characters, so they are printed as JSON strings, in which
 * such bytes come as U+FFFD. */
#include "tools/logprobs.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

bool logprobs_asked(const struct cb_request *request)
{
    return request->top_logprobs || request->flags & (CB_LOGPROBS | CB_PROMPT_LOGPROBS);
}

/* ---- lines ----------------------------------------------------------------------------------- */

static void print_token(struct cb_handle *h, uint32_t id, float logprob)
{
    char text[1024], *quoted;
    size_t bytes = 0;
    json_t *string;

    if (cb_detokenize(h, &id, 1, CB_SHOW_SPECIAL, text, sizeof text, &bytes))
        bytes = 0;
    string = json_stringn(text, bytes);
    quoted = json_dumps(string, JSON_ENCODE_ANY);
    if (isfinite(logprob))
        printf("  %u %.5f %s", id, (double)logprob, quoted ? quoted : "\"\"");
    else
        printf("  %u - %s", id, quoted ? quoted : "\"\"");
    free(quoted);
    json_decref(string);
}

/* top [n_top]; NULL: none. */
static void print_line(struct cb_handle *h, long place, uint32_t id, float logprob,
                       const struct cb_top_logprob *top, uint32_t n_top)
{
    printf("%ld", place);
    print_token(h, id, logprob);
    for (uint32_t i = 0; top && i < n_top; i++)
        if (top[i].id != CB_NO_TOKEN)
            print_token(h, top[i].id, top[i].logprob);
    putchar('\n');
}

void logprobs_print(struct cb_handle *h, const struct cb_event *event, const struct prompt *p,
                    const char *label)
{
    uint32_t n_top = p->request.top_logprobs;
    const struct cb_top_logprob *top = NULL;
    const float *logprobs = NULL;
    size_t n = 0;

    /* All are there with the first token, or with an end without one. */
    if (event->first == 0 && p->request.flags & CB_PROMPT_LOGPROBS &&
        !cb_prompt_logprobs(h, event->id, &logprobs, &top, &n) &&
        (event->n_ids || event->type == CB_EVENT_END)) {
        for (size_t i = 0; i < n && i < p->n_ids; i++) {
            fputs(label, stdout);
            print_line(h, (long)i - (long)n, p->ids[i], logprobs[i],
                       i && top ? top + i * n_top : NULL, n_top);
        }
    }
    n = 0;
    top = NULL;
    if (n_top || p->request.flags & CB_LOGPROBS)
        cb_logprobs(h, event->id, &logprobs, &top, &n);
    for (size_t i = event->first; i < event->first + event->n_ids; i++) {
        fputs(label, stdout);
        print_line(h, (long)i, event->ids[i - event->first], i < n ? logprobs[i] : NAN,
                   i < n && top ? top + i * n_top : NULL, n_top);
    }
    fflush(stdout);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

/* A number, or null where there is none: JSON knows no NaN and no infinity. */
static json_t *number(float x)
{
    return isfinite(x) ? json_real((double)x) : json_null();
}

static json_t *numbers(const float *logprobs, size_t n)
{
    json_t *list = json_array();

    for (size_t i = 0; i < n; i++)
        json_array_append_new(list, number(logprobs[i]));
    return list;
}

/* A list a token, of as many as were left to choose from. */
static json_t *best(const struct cb_top_logprob *top, size_t n, uint32_t n_top)
{
    json_t *all = json_array();

    for (size_t i = 0; i < n; i++) {
        json_t *list = json_array();

        for (uint32_t k = 0; k < n_top; k++, top++)
            if (top->id != CB_NO_TOKEN)
                json_array_append_new(list, json_pack("{s:I, s:o}", "id", (json_int_t)top->id,
                                                      "logprob", number(top->logprob)));
        json_array_append_new(all, list);
    }
    return all;
}

void logprobs_json(struct cb_handle *h, uint64_t id, const struct cb_request *request, json_t *o)
{
    uint32_t n_top = request->top_logprobs;
    const struct cb_top_logprob *top;
    const float *logprobs;
    size_t n;

    if (!cb_logprobs(h, id, &logprobs, &top, &n)) {
        json_object_set_new(o, "logprobs", numbers(logprobs, n));
        if (n_top)
            json_object_set_new(o, "top_logprobs", best(top, top ? n : 0, n_top));
    }
    if (request->flags & CB_PROMPT_LOGPROBS && !cb_prompt_logprobs(h, id, &logprobs, &top, &n)) {
        json_object_set_new(o, "prompt_logprobs", numbers(logprobs, n));
        if (n_top)
            json_object_set_new(o, "prompt_top_logprobs", best(top, top ? n : 0, n_top));
    }
}
