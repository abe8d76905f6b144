/* tests/util/score.c */
#include "tests/util/score.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "daemon/model/forward.h"
#include "daemon/model/message.h"
#include "tests/util/feed.h"
#include "tests/util/safetensors.h"

#define CHUNK       128u /* tokens a step: their logits are 25 MB with 49,152 ids */
#define MARGIN_WIDE 0.3f

struct teacher {
    struct safetensors *file;
    const int32_t *input_ids, *top_ids;
    const float *top_logprobs, *next_logprob;
    uint32_t n_texts, n_tokens, n_top;
};

struct tally {
    double *kl;
    double nll;
    uint32_t n, n_agree, n_next, n_disagree_wide;
};

static int teacher_open(struct teacher *t, const char *path, char *message)
{
    uint32_t ids[4] = {0}, top[4] = {0}, probs[4] = {0}, next[4] = {0};

    t->file = safetensors_open(path);
    if (!t->file)
        return model_refuse(message, -EINVAL, "%s: cannot be read", path);
    t->input_ids = safetensors_get(t->file, "input_ids", "I32", ids);
    t->top_ids = safetensors_get(t->file, "top_ids", "I32", top);
    t->top_logprobs = safetensors_get(t->file, "top_logprobs", "F32", probs);
    t->next_logprob = safetensors_get(t->file, "next_logprob", "F32", next);
    t->n_texts = ids[0];
    t->n_tokens = ids[1];
    t->n_top = top[2];
    if (!t->input_ids || !t->top_ids || !t->top_logprobs || !t->next_logprob || top[0] != ids[0] ||
        top[1] != ids[1] || probs[0] != ids[0] || probs[1] != ids[1] || probs[2] != top[2] ||
        top[2] < 2 || next[0] != ids[0] || next[1] != ids[1] - 1)
        return model_refuse(message, -EINVAL, "%s: no file of recorded distributions", path);
    return 0;
}

/* One position: logits [n_vocab] against the recorded ids and log-probabilities. */
static int tally_position(struct tally *y, const float *logits, uint32_t n_vocab,
                          const int32_t *ids, const float *logprobs, uint32_t n_top)
{
    uint32_t best = 0;
    double sum = 0, log_sum, kl = 0, p_rest = 1, q_rest = 1;

    for (uint32_t i = 1; i < n_vocab; i++)
        if (logits[i] > logits[best])
            best = i;
    for (uint32_t i = 0; i < n_vocab; i++)
        sum += exp((double)logits[i] - (double)logits[best]);
    log_sum = (double)logits[best] + log(sum);
    for (uint32_t i = 0; i < n_top; i++) {
        double p = (double)logprobs[i], q;

        if (ids[i] < 0 || (uint32_t)ids[i] >= n_vocab)
            return -EINVAL;
        q = (double)logits[ids[i]] - log_sum;
        kl += exp(p) * (p - q);
        p_rest -= exp(p);
        q_rest -= exp(q);
    }
    p_rest = fmax(1e-9, p_rest);
    q_rest = fmax(1e-9, q_rest);
    y->kl[y->n++] = kl + p_rest * log(p_rest / q_rest);
    if (best == (uint32_t)ids[0])
        y->n_agree++;
    else if (logprobs[0] - logprobs[1] > MARGIN_WIDE)
        y->n_disagree_wide++;
    return 0;
}

static int tally_next(struct tally *y, const float *logits, uint32_t n_vocab, int32_t next)
{
    double most = (double)logits[0], sum = 0;

    if (next < 0 || (uint32_t)next >= n_vocab)
        return -EINVAL;
    for (uint32_t i = 1; i < n_vocab; i++)
        most = fmax(most, (double)logits[i]);
    for (uint32_t i = 0; i < n_vocab; i++)
        sum += exp((double)logits[i] - most);
    y->nll -= (double)logits[next] - most - log(sum);
    y->n_next++;
    return 0;
}

static int run_text(struct model *m, struct feed *f, const struct teacher *t, uint32_t text,
                    float *logits, struct tally *y)
{
    uint32_t n_vocab = model_info(m)->n_vocab;
    const int32_t *ids = t->input_ids + (size_t)text * t->n_tokens;
    int r = 0;

    for (uint32_t at = 0; at < t->n_tokens && !r; at += CHUNK) {
        uint32_t n = t->n_tokens - at < CHUNK ? t->n_tokens - at : CHUNK;

        feed_begin(f);
        feed_add(f, 0, ids + at, at, n, FEED_ALL);
        r = forward_logits(m, feed_step(f), logits);
        for (uint32_t i = 0; i < n && !r; i++) {
            const float *row = logits + (size_t)i * n_vocab;
            size_t position = (size_t)text * t->n_tokens + at + i;

            r = tally_position(y, row, n_vocab, t->top_ids + position * t->n_top,
                               t->top_logprobs + position * t->n_top, t->n_top);
            if (!r && at + i + 1 < t->n_tokens)
                r = tally_next(y, row, n_vocab, ids[at + i + 1]);
        }
    }
    return r;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void finish(struct score *s, struct tally *y, const struct teacher *t, uint32_t n_texts)
{
    double at = 0.99 * (y->n - 1), next = 0;
    uint32_t below = (uint32_t)at, n_next = n_texts * (t->n_tokens - 1);
    uint32_t above = below + 1 < y->n ? below + 1 : below;

    *s = (struct score){.n_positions = y->n, .n_disagree_wide = y->n_disagree_wide};
    for (uint32_t i = 0; i < y->n; i++)
        s->mean_kl += y->kl[i] / y->n;
    qsort(y->kl, y->n, sizeof y->kl[0], compare);
    s->p99_kl = y->kl[below] + (at - below) * (y->kl[above] - y->kl[below]);
    s->top1_agreement = (double)y->n_agree / y->n;
    s->ppl = exp(y->nll / y->n_next);
    for (uint32_t i = 0; i < n_next; i++)
        next += (double)t->next_logprob[i];
    s->ref_ppl = exp(-next / n_next);
}

int score_model(struct score *score, const char *model_path, const char *backend,
                const struct backend_config *backend_config, enum dtype kv_dtype,
                const char *teacher_path, uint32_t n_texts, char *message)
{
    struct teacher t = {0};
    struct tally y = {0};
    struct model *m = NULL;
    struct feed *f = NULL;
    float *logits = NULL;
    struct model_config config = {
        .path = model_path,
        .backend = backend,
        .backend_config = *backend_config,
        .kv_dtype = kv_dtype,
        .page_size = 64,
        .max_batch_tokens = CHUNK,
        .max_batch_seqs = 1,
    };
    int r = teacher_open(&t, teacher_path, message);

    if (n_texts == 0 || n_texts > t.n_texts)
        n_texts = t.n_texts;
    if (!r) {
        config.n_blocks = (t.n_tokens + config.page_size - 1) / config.page_size;
        r = model_open(&m, &config, message);
    }
    if (!r) {
        y.kl = calloc((size_t)n_texts * t.n_tokens, sizeof y.kl[0]);
        logits = malloc((size_t)CHUNK * model_info(m)->n_vocab * sizeof logits[0]);
        f = feed_new(m, 1, t.n_tokens, CHUNK);
        if (!y.kl || !logits)
            abort();
    }
    for (uint32_t i = 0; i < n_texts && !r; i++) {
        r = run_text(m, f, &t, i, logits, &y);
        if (r)
            model_refuse(message, r,
                         "%s: text %u: an id is outside the vocabulary, or the step "
                         "failed",
                         teacher_path, i);
    }
    if (!r)
        finish(score, &y, &t, n_texts);
    feed_free(f);
    free(logits);
    free(y.kl);
    model_free(m);
    safetensors_close(t.file);
    return r;
}
