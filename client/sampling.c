/* client/sampling.c - what a request asks of the choice of tokens, as the lane wants it.
 *
 * Lists go out sorted, each id once, for the daemon to check them in one pass. An id that is allowed
 * or banned twice is simply so; one with two biases is a mistake. */
#include "client/internal.h"

#include <stdlib.h>
#include <string.h>

#include "shm/control.h"
#include "shm/sampling.h"

#define LIST_MAX (1u << 20) /* more ids than any vocabulary's */

void cb_wishes_fini(struct cb_wishes *w)
{
    free(w->biases);
    free(w->allowed_ids);
    free(w->banned_ids);
}

static int compare_ids(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static int compare_biases(const void *a, const void *b)
{
    const struct cb_logit_bias *x = a, *y = b;
    return (x->id > y->id) - (x->id < y->id);
}

static int refuse(const uint32_t detail[2], int status)
{
    return cb_fail_with(status, detail[0], detail[1]);
}

static int bad_count(enum cb_parameter which, size_t n)
{
    return cb_fail_with(CB_BAD_PARAMETER, which, n > UINT32_MAX ? UINT32_MAX : (uint32_t)n);
}

static int copy_ids(const uint32_t *ids, size_t n, uint32_t n_vocab, enum cb_parameter which,
                    uint32_t **copyp, uint32_t *np)
{
    uint32_t detail[2], *copy;
    uint32_t n_copy = 0;
    int r;
    if (!ids && !n)
        return 0;
    if (!n || n > LIST_MAX)
        return bad_count(which, n);
    copy = *copyp = malloc(n * sizeof(*copy));
    if (!copy)
        return cb_fail(CB_NO_MEMORY);
    memcpy(copy, ids, n * sizeof(*copy));
    qsort(copy, n, sizeof(*copy), compare_ids);
    for (size_t i = 0; i < n; i++)
        if (!n_copy || copy[i] != copy[n_copy - 1])
            copy[n_copy++] = copy[i];
    *np = n_copy;
    r = cb_sampling_check_ids(copy, n_copy, n_vocab, which, detail);
    return r ? refuse(detail, r) : 0;
}

static int copy_biases(const struct cb_bias *biases, size_t n, uint32_t n_vocab,
                       struct cb_wishes *w)
{
    uint32_t detail[2];
    int r;
    if (!n)
        return 0;
    if (n > CB_BIASES_MAX)
        return bad_count(CB_PARAMETER_BIASES, n);
    w->biases = malloc(n * sizeof(*w->biases));
    if (!w->biases)
        return cb_fail(CB_NO_MEMORY);
    for (size_t i = 0; i < n; i++)
        w->biases[i] = (struct cb_logit_bias){biases[i].id, biases[i].bias};
    qsort(w->biases, n, sizeof(*w->biases), compare_biases);
    w->n_biases = (uint32_t)n;
    r = cb_sampling_check_biases(w->biases, w->n_biases, n_vocab, detail);
    return r ? refuse(detail, r) : 0;
}

static int copy_sampling(const struct cb_request *request, uint32_t n_vocab, struct cb_wishes *w)
{
    struct cb_sampling none;
    uint32_t detail[2];
    int r;
    w->sampling = (struct cb_sampling){
        .min_p = request->min_p,
        .typical_p = request->typical_p,
        .repetition_penalty = request->repetition_penalty,
        .presence_penalty = request->presence_penalty,
        .frequency_penalty = request->frequency_penalty,
        .no_repeat_ngram = request->no_repeat_ngram,
        .min_new_tokens = request->min_new_tokens,
        .first_id = request->first_id,
    };
    r = cb_sampling_check(&w->sampling, n_vocab, detail);
    if (r)
        return refuse(detail, r);
    cb_sampling_init(&none);
    w->has_sampling = memcmp(&w->sampling, &none, sizeof(none)) != 0;
    return 0;
}

int cb_wishes_init(struct cb_wishes *w, const struct cb_handle *h, const struct cb_request *request)
{
    uint32_t n_vocab = h->n_vocab, detail[2];
    int r;
    memset(w, 0, sizeof(*w));
    r = copy_sampling(request, n_vocab, w);
    if (!r)
        r = copy_biases(request->biases, request->n_biases, n_vocab, w);
    if (!r)
        r = copy_ids(request->allowed_ids, request->n_allowed_ids, n_vocab, CB_PARAMETER_ALLOWED,
                     &w->allowed_ids, &w->n_allowed_ids);
    if (!r)
        r = copy_ids(request->banned_ids, request->n_banned_ids, n_vocab, CB_PARAMETER_BANNED,
                     &w->banned_ids, &w->n_banned_ids);
    if (r)
        return r;
    r = cb_sampling_check_rest(w->allowed_ids, w->n_allowed_ids, w->banned_ids, w->n_banned_ids,
                               detail);
    if (r)
        return refuse(detail, r);
    if ((w->has_sampling || w->n_biases || w->n_allowed_ids || w->n_banned_ids) &&
        !(h->features & CB_FEATURE_SAMPLING))
        return cb_fail_at("this daemon knows of no penalties, biases, lists of ids and the like",
                          CB_VERSION, 0, 0);
    return 0;
}

uint32_t cb_flags_of(const struct cb_handle *h, const struct cb_request *request)
{
    uint32_t flags = request->flags;
    if (h->defaults & CB_DEFAULT_LOGPROBS || request->top_logprobs)
        flags |= CB_LOGPROBS;
    if (h->defaults & CB_DEFAULT_RAW_LOGPROBS && !(flags & CB_PROCESSED_LOGPROBS))
        flags |= CB_RAW_LOGPROBS;
    return flags;
}

int cb_planes_of(const struct cb_handle *h, const struct cb_request *request, uint32_t flags,
                 uint32_t *planesp)
{
    uint32_t planes = 0;
    if (request->top_logprobs > CB_TOPK_MAX)
        return bad_count(CB_PARAMETER_TOP_LOGPROBS, request->top_logprobs);
    if (flags & CB_LOGPROBS)
        planes |= CB_PLANE_LOGPROBS;
    if (request->top_logprobs)
        planes |= CB_PLANE_TOPK | request->top_logprobs << 16;
    if (flags & CB_PROMPT_LOGPROBS)
        planes |= CB_PLANE_PROMPT;
    if (planes && !(h->features & CB_FEATURE_LOGPROBS))
        return cb_fail_at("this daemon gives no log-probabilities", CB_VERSION, 0, 0);
    if ((flags & CB_EPOCHS || request->on_new_weights) && !(h->features & CB_FEATURE_EPOCHS))
        return cb_fail_at("this daemon never loads other weights", CB_VERSION, 0, 0);
    if (flags & CB_EPOCHS)
        planes |= CB_PLANE_EPOCHS;
    if (flags & CB_TIMES)
        planes |= CB_PLANE_TIMES;
    *planesp = planes;
    return 0;
}
