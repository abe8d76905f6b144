/* A roomy engine that shares nothing and has one request at a time, over a model of its own, whose
 * weights are switched where the request under test was told that its were. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/model/model.h"
#include "tests/util/sim.h"

struct sim_oracle {
    struct model *model;
    struct engine *engine;
    struct virtual_clock time;
    struct clock clock;
    struct sim_answer *answer;
    uint32_t n_got;   /* tokens of the request so far */
    uint32_t weights; /* that the model has now */
    int fd;           /* a file for others */
};

static void alone_token(void *ctx, struct request *r, void *owner, uint32_t index, uint32_t token,
                        uint64_t time_ns)
{
    struct sim_oracle *o = ctx;
    (void)r;
    (void)owner;
    (void)time_ns;
    if (index < SIM_TOKENS_MAX)
        o->answer->tokens[index] = token;
    o->n_got = index + 1;
}

static void alone_logprobs(void *ctx, struct request *r, void *owner, bool of_prompt,
                           uint32_t index, const struct engine_logprobs *l)
{
    struct sim_oracle *o = ctx;
    struct sim_logprobs *to = of_prompt ? o->answer->prompt : o->answer->logprobs;
    (void)r;
    (void)owner;
    if (index >= (of_prompt ? SIM_PROMPT_MAX : SIM_TOKENS_MAX))
        return;
    to[index].logprob = l->logprob;
    for (uint32_t i = 0; i < l->n_best && i < SIM_TOP; i++)
        to[index].top[i] = (struct cb_top){l->best[i].id, l->best[i].logprob};
}

static void alone_end(void *ctx, struct request *r, void *owner, const struct request_end *end)
{
    struct sim_oracle *o = ctx;
    (void)r;
    (void)owner;
    o->answer->n_tokens = end->n_generated;
    o->answer->finish = (uint32_t)end->finish |
                        (end->finish == FINISH_STOP && end->stop_is_id ? CB_FINISH_STOP_ID : 0u);
    o->answer->stop_idx = end->stop_idx;
    o->answer->text_bytes = end->text_bytes;
}

struct model_config sim_null_config(uint32_t page_size, uint32_t n_blocks, uint32_t tokens,
                                    uint32_t seqs)
{
    return (struct model_config){.path = "null",
                                 .backend = "cpu",
                                 .page_size = page_size,
                                 .n_blocks = n_blocks,
                                 .max_batch_tokens = tokens,
                                 .max_batch_seqs = seqs,
                                 .null_vocab = SIM_VOCAB,
                                 .null_context = SIM_CONTEXT};
}

struct sim_oracle *sim_oracle_free(struct sim_oracle *o)
{
    if (!o)
        return NULL;
    engine_free(o->engine);
    model_free(o->model);
    if (o->fd >= 0)
        close(o->fd);
    free(o);
    return NULL;
}

struct sim_oracle *sim_oracle_new(void)
{
    char message[MODEL_MESSAGE_MAX];
    struct sim_oracle *o = calloc(1, sizeof *o);
    const struct model_config model = sim_null_config(SIM_CONTEXT, 4, 2 * SIM_CONTEXT, 4);
    const struct engine_sink sink = {
        .ctx = o, .logprobs = alone_logprobs, .token = alone_token, .end = alone_end};
    const struct engine_config config = {.max_requests = 1,
                                         .max_held_tokens = 2 * SIM_CONTEXT,
                                         .max_batch_tokens = 2 * SIM_CONTEXT,
                                         .max_requests_per_batch = 1,
                                         .safety_margin = 0};
    if (!o)
        return NULL;
    virtual_clock_init(&o->time, &o->clock);
    o->fd = memfd_create("sim", MFD_CLOEXEC);
    if (o->fd < 0 || model_open(&o->model, &model, message) ||
        engine_new(&o->engine, &config, o->model, &sink, &o->clock))
        return sim_oracle_free(o);
    return o;
}

size_t sim_weights_text(uint32_t weights, char text[SIM_WEIGHTS_TEXT])
{
    return (size_t)snprintf(text, SIM_WEIGHTS_TEXT, "null weights %u\n", weights);
}

/* The weights of that epoch from here on; for a request that is there, with all before it computed
 * anew or not. */
static void load(struct sim *s, uint32_t epoch, bool is_anew)
{
    struct sim_oracle *o = s->oracle;
    char text[SIM_WEIGHTS_TEXT], message[MODEL_MESSAGE_MAX];
    uint32_t weights = s->weights[epoch];
    if (weights == o->weights && !is_anew)
        return;
    size_t n = sim_weights_text(weights, text);
    int r = ftruncate(o->fd, (off_t)n) || pwrite(o->fd, text, n, 0) != (ssize_t)n
                ? -EIO
                : engine_load_begin(o->engine, o->fd, "sim", message);
    while (r == 0 && (r = engine_load_some(o->engine, message)) == ENGINE_MORE)
        r = 0;
    if (r)
        sim_fail(s, "the oracle takes no weights");
    else
        engine_load_publish(o->engine, is_anew ? ON_NEW_WEIGHTS_RESTART : ON_NEW_WEIGHTS_CONTINUE);
    o->weights = weights;
}

static struct sampler_wishes wishes_of(const struct sim_request *r, struct sample_bias *biases)
{
    for (uint32_t i = 0; i < r->n_biases; i++)
        biases[i] = (struct sample_bias){r->biases[i].id, r->biases[i].bias};
    return (struct sampler_wishes){
        .min_p = r->sampling.min_p,
        .typical_p = r->sampling.typical_p,
        .repetition_penalty = r->sampling.repetition_penalty,
        .presence_penalty = r->sampling.presence_penalty,
        .no_repeat_ngram = r->sampling.no_repeat_ngram,
        .min_new_tokens = r->sampling.min_new_tokens,
        .first_id = r->sampling.first_id,
        .n_biases = r->n_biases,
        .biases = biases,
        .n_allowed = r->n_allowed,
        .allowed = r->allowed,
        .n_banned = r->n_banned,
        .banned = r->banned,
        .logprobs = !(r->planes & CB_PLANE_LOGPROBS)  ? SAMPLE_NO_LOGPROBS
                    : r->flags & CB_FLAG_RAW_LOGPROBS ? SAMPLE_RAW
                                                      : SAMPLE_PROCESSED,
        .n_best = r->planes & CB_PLANE_TOPK ? SIM_TOP : 0,
        .prompt_logprobs = r->planes & CB_PLANE_PROMPT,
    };
}

/* Steps until the request has ended, with the weights that `epochs` tells of its first n tokens. */
static void run_alone(struct sim *s, const uint32_t *epochs, uint32_t n)
{
    struct sim_oracle *o = s->oracle;
    do {
        uint32_t i = o->n_got;
        if (i > 0 && i < n && epochs[i] != epochs[i - 1])
            load(s, epochs[i] & ~CB_EPOCH_ANEW, epochs[i] & CB_EPOCH_ANEW);
    } while (engine_step(o->engine) != ENGINE_IDLE);
}

void sim_expect(struct sim *s, const struct sim_request *r, const uint32_t *epochs, uint32_t n,
                struct sim_answer *answer)
{
    struct sim_oracle *o = s->oracle;
    struct sample_bias biases[2];
    struct cb_stops stops;
    struct request *request;
    uint32_t most = engine_tokens_max(s->daemon->engine);
    const struct sampler_wishes wishes = wishes_of(r, biases);
    const struct request_spec spec = {
        .wishes = &wishes,
        .prompt = r->prompt,
        .n_prompt = r->n_prompt,
        .max_new_tokens = r->max_new_tokens == CB_NO_LIMIT ? most - r->n_prompt : r->max_new_tokens,
        .stop_ids = r->stop_ids,
        .n_stop_ids = r->n_stop_ids,
        .ignore_eos = r->flags & CB_FLAG_IGNORE_EOS,
        .stops = r->stop[0] ? &stops : NULL,
        .temperature = r->temperature,
        .top_p = 1,
        .seed = r->seed,
        .child_idx = r->child_idx,
    };
    memset(answer, 0, sizeof *answer);
    cb_stops_init(&stops);
    if (r->stop[0])
        (void)cb_stops_add(&stops, r->stop, strlen(r->stop));
    o->answer = answer;
    o->n_got = 0;
    load(s, n > 0 ? epochs[0] & ~CB_EPOCH_ANEW : r->epoch, false);
    if (engine_submit(o->engine, &spec, &request))
        sim_fail(s, "the oracle refuses request %llu", (unsigned long long)r->user);
    run_alone(s, epochs, n);
}

uint32_t sim_epoch_of(const struct sim *s, const struct sim_request *r, uint32_t index)
{
    uint32_t epoch = r->epoch;
    while (epoch < s->epoch && r->n_at_epoch[epoch + 1] <= index)
        epoch++;
    return epoch;
}

bool sim_is_too_big(const struct sim *s, const struct sim_request *r)
{
    uint32_t most = engine_tokens_max(s->daemon->engine);
    return r->n_prompt + (r->max_new_tokens == CB_NO_LIMIT ? 0 : r->max_new_tokens) > most ||
           r->n_prompt >= most;
}
