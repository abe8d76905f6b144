/* The null model: next token = hash of the ids so far (and, if sampled, of the request's sampling, and
 * of whatever else it asks of its tokens), with no arithmetic to speak of; log-probabilities are
 * hashes too. It makes transport, scheduling and bookkeeping testable: the hash
 * runs through the "keys and values" of the cache, one word a position, so a wrong slot, a block
 * given to two, a stale block or a chunk out of place changes every token from there on. And it
 * refuses a step that is not what kernels.h says a step is. Its weights are a number that is hashed
 * with each id.
 *
 * With null_step_us a step is not done before that much time has passed: a device whose steps the
 * loop polls, instead of a CPU that computes within submit. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "daemon/model/memory.h"
#include "daemon/model/model_ops.h"
#include "daemon/model/vocabulary.h"
#include "kernels/pin.h"

enum { NULL_VOCAB = 49152, NULL_CONTEXT = 131072, NULL_CACHE_CONTEXTS = 8, NULL_SLICES = 4 };

/* A position no request has computed: no hash is 0. */
#define NULL_EMPTY UINT64_C(0)
#define NULL_SEED  UINT64_C(0x6362206e756c6c21)

struct null_model {
    struct model model; /* first */
    struct vocab_image *vocab;
    uint64_t *kv; /* [n_all_blocks * page_size] the hash up to and with that position */
    size_t kv_bytes;
    uint32_t n_all_blocks; /* the pool's too */
    uint8_t *populated;    /* [n_all_blocks] */
    uint32_t max_tokens, max_seqs;
    uint32_t step_us;
    uint64_t weights;       /* a number that goes into each position's hash */
    uint64_t other_weights; /* while others are loaded, in so many slices more */
    uint32_t n_slices;
    uint64_t ticket, done_ns;
    struct sample *samples; /* [max_tokens] of the step in flight */
    uint8_t *done;          /* [max_seqs] sequences of the step that were computed */
    uint32_t n_samples;
};

static struct null_model *null_of(struct model *m)
{
    return (struct null_model *)m;
}

/* splitmix64's finaliser over the sum: each bit of either argument moves half of the result's. */
static uint64_t mix(uint64_t hash, uint64_t value)
{
    uint64_t z = hash + value + UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    z ^= z >> 31;
    return z ? z : 1;
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint32_t float_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static void null_free(struct model *m)
{
    struct null_model *n = null_of(m);
    vocab_image_free(n->vocab);
    if (n->kv)
        munmap(n->kv, n->kv_bytes);
    free(n->populated);
    free(n->samples);
    free(n->done);
    free(n);
}

static int null_populate(struct model *m, uint32_t block_idx, uint32_t n_blocks)
{
    struct null_model *n = null_of(m);
    if (n_blocks > n->n_all_blocks || block_idx > n->n_all_blocks - n_blocks)
        return -EINVAL;
    memset(n->populated + block_idx, 1, n_blocks);
    return 0;
}

static int null_clear_block(struct model *m, uint32_t group, uint32_t block_idx)
{
    struct null_model *n = null_of(m);
    if (group != 0 || block_idx >= m->info.n_blocks || !n->populated[block_idx])
        return -EINVAL;
    memset(n->kv + (size_t)block_idx * m->info.page_size, 0, m->info.block_bytes);
    return 0;
}

static int null_copy_block(struct model *m, uint32_t group, uint32_t from_idx, uint32_t to_idx)
{
    struct null_model *n = null_of(m);
    uint32_t n_blocks = n->n_all_blocks, page_size = m->info.page_size;
    if (group != 0 || from_idx >= n_blocks || to_idx >= n_blocks || !n->populated[from_idx] ||
        !n->populated[to_idx] || from_idx == to_idx)
        return -EINVAL;
    memcpy(n->kv + (size_t)to_idx * page_size, n->kv + (size_t)from_idx * page_size,
           m->info.block_bytes);
    return 0;
}

/* Where position p of a sequence with this table lies. */
static size_t place_of(const struct null_model *n, const uint32_t *table, uint32_t p)
{
    uint32_t page_size = n->model.info.page_size;
    return (size_t)table[p / page_size] * page_size + p % page_size;
}

/* Sequence i: whether it is what kernels.h says, its blocks there, its places not taken. */
static int check_seq(const struct null_model *n, const struct step *s, uint32_t i)
{
    const struct model_info *info = &n->model.info;
    uint32_t first = s->token_off[i], end = s->token_off[i + 1], n_keys = s->n_keys[i];
    if (end <= first || end > s->n_tokens || n_keys < end - first || n_keys > info->n_context)
        return -EINVAL;
    if ((i < s->n_decode_seqs) != (end - first == 1))
        return -EINVAL;
    uint32_t n_blocks = (n_keys + info->page_size - 1) / info->page_size;
    const uint32_t *table = s->table + s->table_off[i];
    if (s->table_off[i + 1] - s->table_off[i] != n_blocks)
        return -EINVAL;
    for (uint32_t b = 0; b < n_blocks; b++)
        if (table[b] >= info->n_blocks || !n->populated[table[b]])
            return -EINVAL;
    for (uint32_t t = first; t < end; t++) {
        uint32_t p = n_keys - (end - t);
        if ((uint32_t)s->positions[t] != p || s->slot_idx[t] != place_of(n, table, p))
            return -EINVAL;
        if ((uint32_t)s->tokens[t] >= info->n_vocab || n->kv[s->slot_idx[t]] != NULL_EMPTY)
            return -EINVAL;
    }
    return 0;
}

static int check_step(const struct null_model *n, const struct step *s)
{
    if (s->n_tokens == 0 || s->n_tokens > n->max_tokens || s->n_seqs > n->max_seqs ||
        s->n_outputs > s->n_tokens || s->token_off[0] != 0 || s->table_off[0] != 0 ||
        s->token_off[s->n_seqs] != s->n_tokens)
        return -EINVAL;
    for (uint32_t i = 0; i < s->n_outputs; i++)
        if (s->output_token_idx[i] >= s->n_tokens)
            return -EINVAL;
    for (uint32_t i = 0; i < s->n_seqs; i++) {
        int r = check_seq(n, s, i);
        if (r)
            return r;
    }
    return 0;
}

static uint64_t mix_ids(uint64_t hash, const uint32_t *ids, uint32_t n)
{
    hash = mix(hash, n);
    for (uint32_t i = 0; i < n; i++)
        hash = mix(hash, ids[i]);
    return hash;
}

/* All that the request asks for, and where it stands: the hash knows the ids themselves. */
static uint64_t mix_program(uint64_t hash, const struct sample_params *params)
{
    const struct sample_program *p = params->program;
    hash = mix(hash, (uint64_t)float_bits(p->min_p) << 32 | float_bits(p->typical_p));
    hash = mix(hash, float_bits(p->repetition_penalty));
    hash = mix(hash,
               (uint64_t)float_bits(p->presence_penalty) << 32 | float_bits(p->frequency_penalty));
    hash = mix(hash, (uint64_t)p->no_repeat_ngram << 32 | p->min_new_tokens);
    hash = mix_ids(hash, p->allowed, p->n_allowed);
    hash = mix_ids(hash, p->banned, p->n_banned);
    hash = mix_ids(hash, p->ends, p->n_ends);
    for (uint32_t i = 0; i < p->n_biases; i++)
        hash = mix(hash, (uint64_t)p->biases[i].id << 32 | float_bits(p->biases[i].bias));
    hash = mix(hash, (uint64_t)params->n_ids << 32 | params->n_prompt);
    return mix(hash, params->ids[params->n_ids - 1]);
}

static float logprob_of(uint64_t hash)
{
    return -(float)(hash >> 44) * 0x1p-16f;
}

static struct sample sample_of(uint64_t hash, const struct sample_params *p, uint32_t n_vocab)
{
    struct sample s = {0};
    if (p->temperature > 0) {
        hash = mix(hash, p->seed);
        hash = mix(hash, (uint64_t)p->child_idx << 32 | p->token_idx);
        hash = mix(hash, (uint64_t)float_bits(p->temperature) << 32 | float_bits(p->top_p));
        hash = mix(hash, p->top_k);
    }
    if (p->program)
        hash = mix_program(hash, p);
    s.token = p->is_given ? p->given_id : (uint32_t)(hash % n_vocab);
    if (p->logprobs == SAMPLE_NO_LOGPROBS)
        return s;
    hash = mix(hash, (uint64_t)p->logprobs << 32 | s.token);
    s.logprob = logprob_of(hash);
    for (uint32_t i = 0; i < p->n_best; i++)
        p->best[i] =
            (struct sample_best){(uint32_t)((hash + i) % n_vocab), logprob_of(mix(hash, i))};
    return s;
}

enum { SEQ_LATER = 1 };

/* Computes sequence i: 0; SEQ_LATER: what it goes on from is not there yet; -EINVAL: another
 * sequence wrote where it must. */
static int compute_seq(struct null_model *n, const struct step *s, uint32_t i)
{
    uint32_t t = s->token_off[i], past = (uint32_t)s->positions[t];
    const uint32_t *table = s->table + s->table_off[i];
    uint64_t hash = past > 0 ? n->kv[place_of(n, table, past - 1)] : NULL_SEED;
    if (hash == NULL_EMPTY)
        return SEQ_LATER;
    for (; t < s->token_off[i + 1]; t++) {
        if (n->kv[s->slot_idx[t]] != NULL_EMPTY)
            return -EINVAL;
        hash = mix(hash, (uint64_t)s->tokens[t] ^ n->weights);
        n->kv[s->slot_idx[t]] = hash;
    }
    return 0;
}

/* All sequences, in as many rounds as it takes: one may go on from a place that another one of the
 * step writes. */
static int compute_step(struct null_model *n, const struct step *s)
{
    uint32_t n_left = s->n_seqs, n_before;
    memset(n->done, 0, s->n_seqs);
    do {
        n_before = n_left;
        for (uint32_t i = 0; i < s->n_seqs; i++) {
            if (n->done[i])
                continue;
            int r = compute_seq(n, s, i);
            if (r < 0)
                return r;
            n->done[i] = r == 0;
            n_left -= r == 0;
        }
    } while (n_left > 0 && n_left < n_before);
    return n_left > 0 ? -EINVAL : 0;
}

static int null_step_submit(struct model *m, const struct step *step,
                            const struct sample_params *params, uint64_t *ticketp)
{
    struct null_model *n = null_of(m);
    int r = check_step(n, step);
    if (!r)
        r = compute_step(n, step);
    if (r)
        return r;
    n->n_samples = step->n_outputs;
    for (uint32_t i = 0; i < step->n_outputs; i++)
        n->samples[i] = sample_of(n->kv[step->slot_idx[step->output_token_idx[i]]], &params[i],
                                  m->info.n_vocab);
    if (n->step_us > 0)
        n->done_ns = now_ns() + n->step_us * UINT64_C(1000);
    *ticketp = ++n->ticket;
    return 0;
}

static int null_step_poll(struct model *m, uint64_t ticket, struct sample *samples)
{
    struct null_model *n = null_of(m);
    if (ticket != n->ticket)
        return -EINVAL;
    if (n->step_us > 0 && now_ns() < n->done_ns)
        return MODEL_STEP_RUNNING;
    memcpy(samples, n->samples, n->n_samples * sizeof *samples);
    return 0;
}

static void set_fingerprint(struct null_model *n)
{
    struct model_info *info = &n->model.info;
    info->fingerprint[0] = mix(NULL_SEED ^ n->weights, info->n_vocab);
    info->fingerprint[1] = mix(info->fingerprint[0], info->n_context);
}

static int null_reload_begin(struct model *m, int fd, const char *name, char *message)
{
    static const char head[] = "null weights ";
    char text[64], *end;
    ssize_t n_bytes = pread(fd, text, sizeof text, 0);
    if (n_bytes < 0)
        return model_refuse(message, -errno, "%s: %s", name, strerror(errno));
    text[n_bytes < (ssize_t)sizeof text ? n_bytes : 0] = 0;
    size_t n_head = sizeof head - 1;
    bool is_number = strncmp(text, head, n_head) == 0 && text[n_head] >= '0' && text[n_head] <= '9';
    uint64_t weights = is_number ? strtoull(text + n_head, &end, 10) : 0;
    if (!is_number || end[0] != '\n' || end + 1 != text + n_bytes)
        return model_refuse(message, -EINVAL,
                            "%s: not weights of the null model: those are the text \"null weights "
                            "N\" and a newline",
                            name);
    null_of(m)->other_weights = weights;
    null_of(m)->n_slices = NULL_SLICES;
    return 0;
}

static int null_reload_some(struct model *m, char *message)
{
    (void)message;
    return null_of(m)->n_slices-- > 0 ? MODEL_RELOAD_MORE : 0;
}

static void null_reload_publish(struct model *m)
{
    null_of(m)->weights = null_of(m)->other_weights;
    set_fingerprint(null_of(m));
}

static void null_reload_drop(struct model *m)
{
    (void)m; /* a number was all there was of it */
}

static const struct model_ops null_ops = {
    .free = null_free,
    .populate = null_populate,
    .clear_block = null_clear_block,
    .copy_block = null_copy_block,
    .step_submit = null_step_submit,
    .step_poll = null_step_poll,
    .reload_begin = null_reload_begin,
    .reload_some = null_reload_some,
    .reload_publish = null_reload_publish,
    .reload_drop = null_reload_drop,
};

static void fill_info(struct model_info *info, const struct model_config *c)
{
    strcpy(info->name, "null");
    strcpy(info->arch, "null");
    strcpy(info->caps.name, "null");
    strcpy(info->caps.isa, "none");
    info->caps.n_threads = 1;
    info->caps.bf16_refusal = "the null model multiplies nothing";
    info->n_vocab = c->null_vocab ? c->null_vocab : NULL_VOCAB;
    info->n_context = c->null_context ? c->null_context : NULL_CONTEXT;
    info->page_size = c->page_size;
    info->n_blocks = c->n_blocks;
    if (info->n_blocks == 0)
        info->n_blocks = (info->n_context + c->page_size - 1) / c->page_size * NULL_CACHE_CONTEXTS;
    info->block_bytes = c->page_size * sizeof(uint64_t);
    info->n_pool_blocks = memory_choose_pool(&(struct memory_pool){
        .available_bytes = memory_available(""),
        .wanted_bytes = c->pool_bytes,
        .share = c->pool_share,
        .block_bytes = info->block_bytes,
    });
    info->n_groups = 1;
    info->groups[0].blocks_per_sector = 1;
    /* The last id: it comes up by chance, once in n_vocab tokens. */
    info->n_eos = 1;
    info->eos[0] = info->n_vocab - 1;
    info->bos = UINT32_MAX;
}

int null_open(struct model **modelp, const struct model_config *config, char *message)
{
    if (config->page_size < 4)
        return model_refuse(message, -EINVAL, "page_size %u is below 4", config->page_size);
    struct null_model *n = calloc(1, sizeof *n);
    if (!n)
        return model_refuse(message, -ENOMEM, "out of memory for the null model");
    struct model_info *info = &n->model.info;
    n->model.ops = &null_ops;
    fill_info(info, config);
    set_fingerprint(n);
    n->max_tokens = config->max_batch_tokens;
    n->max_seqs = config->max_batch_seqs;
    n->step_us = config->null_step_us;
    n->n_all_blocks = info->n_blocks + info->n_pool_blocks;
    n->kv_bytes = n->n_all_blocks * info->block_bytes;
    void *kv = mmap(NULL, n->kv_bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    n->kv = kv == MAP_FAILED ? NULL : kv;
    if (n->kv)
        info->pool_pin_error = -pin_memory((char *)kv + info->n_blocks * info->block_bytes,
                                           info->n_pool_blocks * info->block_bytes);
    n->populated = calloc(n->n_all_blocks, 1);
    n->samples = calloc(n->max_tokens, sizeof *n->samples);
    n->done = calloc(n->max_seqs, 1);
    int r = n->kv && n->populated && n->samples && n->done ? 0 : -ENOMEM;
    if (!r)
        r = vocab_image_null(&n->vocab, info->n_vocab);
    if (r) {
        null_free(&n->model);
        return model_refuse(message, r,
                            "the null model could not be made with %u blocks of %u tokens and a "
                            "vocabulary of %u: %s",
                            config->n_blocks, config->page_size, config->null_vocab, strerror(-r));
    }
    n->model.vocab = n->vocab;
    *modelp = &n->model;
    return 0;
}
