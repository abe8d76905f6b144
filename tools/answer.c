/* Keys are the same whatever became of a prompt, so that who reads needs no cases. */
#include "tools/answer.h"

#include <stdint.h>
#include <string.h>

#include "tools/logprobs.h"

static const char *end_name(uint32_t end)
{
    static const char *const names[] = {
        [CB_END_NONE] = "none",           [CB_END_EOS] = "eos",
        [CB_END_STOP] = "stop",           [CB_END_LENGTH] = "length",
        [CB_END_CANCELLED] = "cancelled", [CB_END_DEADLINE] = "deadline",
        [CB_END_ERROR] = "error",
    };

    return end < sizeof names / sizeof names[0] ? names[end] : "unknown";
}

json_t *answer_ids(const uint32_t *ids, size_t n)
{
    json_t *list = json_array();

    for (size_t i = 0; i < n; i++)
        json_array_append_new(list, json_integer(ids[i]));
    return list;
}

/* Microseconds are enough to tell, and short. */
static double ms(uint64_t ns)
{
    return (double)(ns / 1000) / 1e3;
}

/* null where the daemon had nothing to guess from. */
static json_t *guess(const struct cb_result *result, uint64_t ns)
{
    return result->predicted_finish_ns ? json_real(ms(ns)) : json_null();
}

/* The line of a prompt, whatever became of it: always the same keys, and status and error for one
 * that failed. */
static json_t *line_json(const uint32_t *ids, size_t n, const char *text, size_t bytes,
                         const char *reason, const struct cb_result *result)
{
    return json_pack("{s:o, s:s%, s:s, s:I, s:{s:i, s:i, s:i}, s:{s:f, s:f, s:f, s:o, s:o}}", "ids",
                     answer_ids(ids, n), "text", text, bytes, "finish_reason", reason, "seed",
                     (json_int_t)result->seed, "usage", "prompt_tokens", (int)result->n_prompt,
                     "completion_tokens", (int)n, "prefix_tokens", (int)result->n_prefix_hit,
                     "times", "queued_ms", ms(result->queued_ns), "first_token_ms",
                     ms(result->first_token_ns), "total_ms", ms(result->total_ns),
                     "predicted_start_ms", guess(result, result->predicted_start_ns),
                     "predicted_end_ms", guess(result, result->predicted_finish_ns));
}

static void line_failed(json_t *o, int status, const char *words)
{
    json_object_set_new(o, "status", json_integer(status));
    json_object_set_new(o, "error", json_string(words));
}

json_t *answer_json(struct cb_handle *h, const struct cb_event *event, const struct prompt *p)
{
    const uint32_t *ids = NULL;
    const char *text = "";
    size_t n = 0, bytes = 0;
    struct cb_result result = {0};
    char words[256];
    json_t *o;

    cb_tokens(h, event->id, &ids, &n);
    cb_text_all(h, event->id, &text, &bytes);
    cb_result(h, event->id, &result);
    o = line_json(ids, n, text, bytes,
                  event->type == CB_EVENT_REJECTED ? "error" : end_name(event->end), &result);
    if (event->status)
        line_failed(o, event->status,
                    cb_explain(event->status, event->detail, words, sizeof words));
    if (event->end == CB_END_STOP && !result.stop_is_id)
        json_object_set_new(o, "stop_index", json_integer(result.stop_idx));
    logprobs_json(h, event->id, &p->request, o);
    return o;
}

json_t *answer_refused(const struct prompt *p, int status, const char *words)
{
    const struct cb_result result = {.seed = p->request.seed,
                                     .n_prompt = p->ids ? (uint32_t)p->n_ids : 0};
    json_t *o = line_json(NULL, 0, "", 0, "error", &result);

    line_failed(o, status, words);
    return o;
}

void answer_print(const json_t *o, FILE *out)
{
    json_dumpf(o, out, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(15));
    putc('\n', out);
    fflush(out);
}
