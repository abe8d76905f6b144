/* Each output has one piece of the heap, cut into its arrays, the widest elements first. */
#include "client/outputs.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct cb_outputs_made *cb_outputs_new(size_t n_prompts, uint32_t n_sequences,
                                       uint64_t first_number)
{
    struct cb_outputs_made *m = calloc(1, sizeof(*m));
    size_t n;
    if (!m || __builtin_mul_overflow(n_prompts, (size_t)n_sequences, &n)) {
        free(m);
        return NULL;
    }
    m->n_prompts = n_prompts;
    m->n_sequences = n_sequences;
    m->v = calloc(n ? n : 1, sizeof(*m->v));
    m->names = calloc(n ? n : 1, sizeof(*m->names));
    m->copies = calloc(n ? n : 1, sizeof(*m->copies));
    m->prompt_ids = calloc(n_prompts ? n_prompts : 1, sizeof(*m->prompt_ids));
    m->outputs.v = m->v;
    if (!m->v || !m->names || !m->copies || !m->prompt_ids) {
        cb_outputs_free(&m->outputs);
        return NULL;
    }
    m->outputs.n = n;
    for (size_t i = 0; i < n; i++) {
        struct cb_output *o = &m->v[i];
        o->prompt_idx = i / n_sequences;
        o->sequence = (uint32_t)(i % n_sequences);
        o->text = "";
        o->request_id = m->names[i];
        int used = snprintf(m->names[i], sizeof(m->names[i]), "req_%" PRIu64,
                            first_number + o->prompt_idx);
        if (o->sequence)
            snprintf(m->names[i] + used, sizeof(m->names[i]) - (size_t)used, "__child#%u",
                     o->sequence - 1);
    }
    return m;
}

void cb_outputs_free(struct cb_outputs *outputs)
{
    struct cb_outputs_made *m = (struct cb_outputs_made *)outputs; /* its first member */
    if (!m)
        return;
    for (size_t i = 0; m->copies && i < m->outputs.n; i++)
        free(m->copies[i]);
    for (size_t i = 0; m->prompt_ids && i < m->n_prompts; i++)
        free(m->prompt_ids[i]);
    free(m->prompt_ids);
    free(m->copies);
    free(m->names);
    free(m->v);
    free(m);
}

const struct cb_output *cb_outputs_find(const struct cb_outputs *outputs, const char *request_id)
{
    for (size_t i = 0; outputs && request_id && i < outputs->n; i++)
        if (strcmp(outputs->v[i].request_id, request_id) == 0)
            return &outputs->v[i];
    return NULL;
}

void cb_outputs_set_prompt(struct cb_outputs_made *m, size_t prompt_idx, uint32_t *ids, size_t n)
{
    m->prompt_ids[prompt_idx] = ids;
    for (uint32_t s = 0; s < m->n_sequences; s++) {
        m->v[prompt_idx * m->n_sequences + s].prompt_ids = ids;
        m->v[prompt_idx * m->n_sequences + s].n_prompt = n;
    }
}

static void fail(struct cb_outputs_made *m, struct cb_output *o, int status, const char *words)
{
    o->status = status;
    o->error = words;
    m->outputs.n_failed++;
}

void cb_outputs_fail(struct cb_outputs_made *m, size_t i, int status, const char *words)
{
    m->copies[i] = strdup(words);
    fail(m, &m->v[i], status, m->copies[i] ? m->copies[i] : cb_strerror(status));
}

/* ---- copying --------------------------------------------------------------------------------- */

/* What there is to copy, in the handle's memory. */
struct made {
    const uint32_t *ids, *epochs;
    const uint64_t *times;
    const float *logprobs, *prompt_logprobs;
    const struct cb_top_logprob *top, *prompt_top;
    const char *text;
    size_t n, n_scored, text_bytes;
};

static void look(struct cb_handle *h, uint64_t id, struct made *made)
{
    size_t n;
    memset(made, 0, sizeof(*made));
    made->text = "";
    cb_tokens(h, id, &made->ids, &made->n);
    if (cb_times(h, id, &made->times, &n) || n < made->n)
        made->times = NULL;
    if (cb_epochs(h, id, &made->epochs, &n) || n < made->n)
        made->epochs = NULL;
    if (cb_logprobs(h, id, &made->logprobs, &made->top, &n) || n < made->n)
        made->logprobs = NULL, made->top = NULL;
    if (cb_prompt_logprobs(h, id, &made->prompt_logprobs, &made->prompt_top, &made->n_scored) ||
        !made->n_scored)
        made->prompt_logprobs = NULL, made->prompt_top = NULL, made->n_scored = 0;
    if (cb_text_all(h, id, &made->text, &made->text_bytes)) {
        made->text = "";
        made->text_bytes = 0;
    }
}

/* Copies n bytes to *atp, which moves on; NULL stays NULL. */
static const void *put(char **atp, const void *from, size_t n)
{
    char *to = *atp;
    if (!from)
        return NULL;
    memcpy(to, from, n);
    *atp += n;
    return to;
}

static bool copy(struct cb_outputs_made *m, size_t i, const struct made *made, const char *error)
{
    struct cb_output *o = &m->v[i];
    size_t error_bytes = error ? strlen(error) + 1 : 0;
    size_t n = made->n, n_scored = made->n_scored;
    size_t top_bytes = n * m->n_top * sizeof(*made->top);
    size_t prompt_top_bytes = n_scored * m->n_top * sizeof(*made->top);
    char *at = m->copies[i] =
        malloc(n * (sizeof(uint64_t) + sizeof(float) + 2 * sizeof(uint32_t)) + top_bytes +
               n_scored * sizeof(float) + prompt_top_bytes + made->text_bytes + 1 + error_bytes);
    if (!at)
        return false;
    o->n_generated = n;
    o->times_ns = put(&at, made->times, n * sizeof(uint64_t));
    o->logprobs = put(&at, made->logprobs, n * sizeof(float));
    o->top_logprobs = put(&at, made->top, top_bytes);
    o->prompt_logprobs = put(&at, made->prompt_logprobs, n_scored * sizeof(float));
    o->prompt_top_logprobs = put(&at, made->prompt_top, prompt_top_bytes);
    o->epochs = put(&at, made->epochs, n * sizeof(uint32_t));
    o->generated = put(&at, made->ids, n * sizeof(uint32_t));
    o->text_bytes = made->text_bytes;
    o->text = put(&at, made->text, made->text_bytes);
    *at++ = 0;
    o->error = put(&at, error, error_bytes);
    return true;
}

void cb_outputs_take(struct cb_outputs_made *m, size_t i, struct cb_handle *h,
                     const struct cb_event *event)
{
    struct cb_output *o = &m->v[i];
    struct cb_result result;
    struct made made;
    char words[256];
    const char *error = NULL;
    if (event->status)
        error = cb_explain(event->status, event->detail, words, sizeof(words));
    else if (event->end == CB_END_CANCELLED)
        error = "it was cancelled";
    else if (event->end == CB_END_DEADLINE)
        error = "its deadline has passed";
    look(h, event->id, &made);
    cb_result(h, event->id, &result);
    o->end = event->end;
    o->seed = result.seed;
    o->n_prefix_hit = result.n_prefix_hit;
    o->started_ns = result.queued_ns;
    o->ended_ns = result.total_ns;
    if (!copy(m, i, &made, error))
        fail(m, o, CB_NO_MEMORY, cb_strerror(CB_NO_MEMORY));
    else if (error)
        fail(m, o, event->status, o->error);
}
