/* tests/util/feed.c */
#include "tests/util/feed.h"

#include <stdlib.h>

struct feed {
    struct model *model;
    uint32_t blocks_a_seq, page_size, step_tokens, n_seqs;
    struct step step;
    int32_t *tokens, *positions;
    uint32_t *token_off, *n_keys, *slot_idx, *table_off, *table, *output_token_idx;
    struct sample_params *params; /* all greedy */
};

static void *make(size_t n, size_t size)
{
    void *p = calloc(n, size);

    if (!p)
        abort();
    return p;
}

struct feed *feed_new(struct model *m, uint32_t n_seqs, uint32_t seq_tokens, uint32_t step_tokens)
{
    const struct model_info *info = model_info(m);
    struct feed *f = make(1, sizeof *f);

    f->model = m;
    f->page_size = info->page_size;
    f->blocks_a_seq = (seq_tokens + info->page_size - 1) / info->page_size;
    f->step_tokens = step_tokens;
    f->n_seqs = n_seqs;
    if (f->blocks_a_seq * n_seqs > info->n_blocks)
        abort();
    for (uint32_t i = 0; i < f->blocks_a_seq * n_seqs; i++)
        if (model_populate(m, i, 1))
            abort();
    f->tokens = make(step_tokens, sizeof *f->tokens);
    f->positions = make(step_tokens, sizeof *f->positions);
    f->token_off = make(n_seqs + 1, sizeof *f->token_off);
    f->n_keys = make(n_seqs, sizeof *f->n_keys);
    f->slot_idx = make(step_tokens, sizeof *f->slot_idx);
    f->table_off = make(n_seqs + 1, sizeof *f->table_off);
    f->table = make((size_t)n_seqs * f->blocks_a_seq, sizeof *f->table);
    f->output_token_idx = make(step_tokens, sizeof *f->output_token_idx);
    f->params = make(step_tokens, sizeof *f->params);
    feed_begin(f);
    return f;
}

struct feed *feed_free(struct feed *f)
{
    if (!f)
        return NULL;
    free(f->params);
    free(f->output_token_idx);
    free(f->table);
    free(f->table_off);
    free(f->slot_idx);
    free(f->n_keys);
    free(f->token_off);
    free(f->positions);
    free(f->tokens);
    free(f);
    return NULL;
}

void feed_begin(struct feed *f)
{
    f->step = (struct step){
        .tokens = f->tokens,
        .positions = f->positions,
        .token_off = f->token_off,
        .n_keys = f->n_keys,
        .slot_idx = f->slot_idx,
        .table_off = f->table_off,
        .table = f->table,
        .output_token_idx = f->output_token_idx,
    };
}

void feed_add(struct feed *f, uint32_t seq, const int32_t *tokens, uint32_t position, uint32_t n,
              enum feed_outputs outputs)
{
    struct step *s = &f->step;
    uint32_t n_pages = (position + n + f->page_size - 1) / f->page_size;
    uint32_t first_page = seq * f->blocks_a_seq;

    if (s->n_seqs == f->n_seqs || s->n_tokens + n > f->step_tokens || n_pages > f->blocks_a_seq)
        abort();
    for (uint32_t i = 0; i < n; i++) {
        uint32_t p = position + i, t = s->n_tokens + i;

        f->tokens[t] = tokens[i];
        f->positions[t] = (int32_t)p;
        f->slot_idx[t] = (first_page + p / f->page_size) * f->page_size + p % f->page_size;
        if (outputs == FEED_ALL || (outputs == FEED_LAST && i == n - 1))
            f->output_token_idx[s->n_outputs++] = t;
    }
    for (uint32_t i = 0; i < n_pages; i++)
        f->table[f->table_off[s->n_seqs] + i] = first_page + i;
    f->n_keys[s->n_seqs] = position + n;
    if (n == 1 && s->n_decode_seqs == s->n_seqs)
        s->n_decode_seqs++;
    s->n_tokens += n;
    s->n_seqs++;
    f->token_off[s->n_seqs] = s->n_tokens;
    f->table_off[s->n_seqs] = f->table_off[s->n_seqs - 1] + n_pages;
}

const struct step *feed_step(const struct feed *f)
{
    return &f->step;
}

int feed_greedy(struct feed *f, struct sample *samples)
{
    uint64_t ticket;
    int r = model_step_submit(f->model, &f->step, f->params, &ticket);

    return r ? r : model_step_poll(f->model, ticket, samples);
}
