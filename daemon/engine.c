/* A step is: end what must end, plan, prepare blocks, submit, poll, apply. On CPUs all of it
 * happens in one call; on a device the call returns after submit and a later one applies. Nothing
 * that a request owns is taken away while it may be on the device, so ends are only decided at any
 * time (engine_decide: the request goes to the list of those that end) and carried out between steps
 * (engine_end_decided). Whoever decides first wins; results for a request whose end is decided are
 * dropped. */
#include "daemon/engine_state.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "daemon/model/vocabulary.h"

/* The cache as the model's groups of layers want it; with a window the decode fast path is off. */
static void configure_cache(struct engine *e)
{
    e->cache_config = (struct cache_config){.n_sectors = e->info->n_blocks,
                                            .page_size = e->info->page_size,
                                            .n_groups = e->info->n_groups,
                                            .shares = e->config.allow_block_sharing};
    for (uint32_t g = 0; g < e->info->n_groups; g++) {
        e->cache_config.groups[g] =
            (struct cache_group){.blocks_per_sector = e->info->groups[g].blocks_per_sector,
                                 .window = e->info->groups[g].window};
        if (e->info->groups[g].window)
            e->config.max_blocks_per_request = 0;
    }
}

static int copy_aside(void *ctx, const struct table *from, const struct table *to, bool to_pool)
{
    struct engine *e = ctx;
    return backing_move(&e->backing, from, to, to_pool);
}

static int pool_new(struct engine *e)
{
    struct cache_config config = e->cache_config;
    config.n_sectors = e->info->n_pool_blocks;
    config.shares = false;
    return config.n_sectors > 0 ? cache_new(&e->pool, &config) : 0;
}

/* Prompt and limit of a request that has the cache to itself. */
static uint32_t tokens_max_of(const struct engine *e)
{
    uint64_t most = cache_tokens_max(&e->cache_config, e->config.max_batch_tokens);
    if (most > e->info->n_context)
        most = e->info->n_context;
    return (uint32_t)(most < e->config.max_held_tokens ? most : e->config.max_held_tokens);
}

static int build(struct engine *e)
{
    const struct engine_config *c = &e->config;
    e->tokens_max = tokens_max_of(e);
    uint32_t blocks_max = table_blocks_for(e->tokens_max, e->info->page_size);
    int r = cache_new(&e->cache, &e->cache_config);
    backing_init(&e->backing, e->model, e->cache);
    if (!r)
        r = pool_new(e);
    if (!r)
        r = requests_new(&e->requests, c->max_requests, e->tokens_max, e->info->n_groups,
                         blocks_max);
    if (!r)
        r = batch_new(&e->batch, c->max_batch_tokens, c->max_requests_per_batch, e->info->n_groups,
                      blocks_max);
    if (!r)
        r = scheduler_new(&e->scheduler,
                          &(struct scheduler_config){
                              .policy = c->scheduler,
                              .ageing_ms = c->ageing_ms,
                              .max_requests = c->max_requests,
                              .max_batch_tokens = c->max_batch_tokens,
                              .max_requests_per_batch = c->max_requests_per_batch,
                              .max_blocks_per_request = c->max_blocks_per_request,
                              .page_size = e->info->page_size,
                              .safety_margin = c->safety_margin,
                              .step_ms_max = c->step_ms_max,
                              .pool = {.cache = e->pool, .copy = copy_aside, .ctx = e},
                          },
                          e->cache);
    e->probe_blocks = calloc((size_t)e->info->n_groups * blocks_max, sizeof *e->probe_blocks);
    table_init(&e->probe, e->probe_blocks, e->info->n_groups, blocks_max);
    return r || e->probe_blocks ? r : -ENOMEM;
}

int engine_new(struct engine **enginep, const struct engine_config *config, struct model *model,
               const struct engine_sink *sink, const struct clock *clock)
{
    assert(config->max_requests > 0 && config->max_batch_tokens > 0);
    assert(config->max_requests_per_batch > 0);
    struct engine *e = calloc(1, sizeof *e);
    if (!e)
        return -ENOMEM;
    e->config = *config;
    if (e->config.max_requests_per_batch > config->max_batch_tokens)
        e->config.max_requests_per_batch = config->max_batch_tokens;
    e->model = model;
    e->info = model_info(model);
    e->vocab = vocab_image_view(model_vocab(model));
    e->sink = *sink;
    e->clock = clock;
    e->next_deadline_ns = UINT64_MAX;
    list_init(&e->ending);
    configure_cache(e);
    int r = build(e);
    if (r) {
        engine_free(e);
        return r;
    }
    *enginep = e;
    return 0;
}

struct engine *engine_free(struct engine *e)
{
    if (e) {
        engine_settle(e);
        scheduler_free(e->scheduler);
        batch_free(e->batch);
        requests_free(e->requests);
        free(e->probe_blocks);
        cache_free(e->pool);
        cache_free(e->cache);
        free(e);
    }
    return NULL;
}

uint32_t engine_tokens_max(const struct engine *e)
{
    return e->tokens_max;
}

/* ---- requests come and go -------------------------------------------------------------------- */

/* Appends the tokens that are given: whether it ends with none but the last of them. */
static bool take_given(const struct engine *e, struct request *r, const struct request_spec *spec)
{
    for (uint32_t i = 0; i < spec->n_given; i++) {
        uint32_t token = spec->prompt[spec->n_prompt + i], n_text;
        const uint8_t *text = cb_vocab_text(e->vocab, token, &n_text);
        if (r->end.finish != FINISH_NONE)
            return false;
        request_append(r, token, e->info->eos, e->info->n_eos, text, n_text, 0);
        r->end.weight_epoch = e->epoch; /* of such weights, or it would have been refused */
    }
    return true;
}

static uint64_t came_ns(const struct engine *e, const struct request_spec *spec)
{
    return spec->now_ns ? spec->now_ns : clock_now(e->clock);
}

/* Takes one from the pool, where there is one. NULL: it would have ended before. */
static struct request *accept(struct engine *e, const struct request_spec *spec,
                              struct request *parent)
{
    const struct request_vocab vocab = {
        .n_vocab = e->info->n_vocab, .eos = e->info->eos, .n_eos = e->info->n_eos};
    struct request *r = requests_take(e->requests, spec, &vocab, came_ns(e, spec));
    if (!take_given(e, r, spec)) {
        requests_release(e->requests, r);
        return NULL;
    }
    r->key = cache_key(e->cache, spec->uid, spec->cache_salt, spec->n_cache_salt);
    if (parent)
        scheduler_add_child(e->scheduler, parent, r);
    else
        scheduler_add(e->scheduler, r);
    if (r->end.finish != FINISH_NONE)
        list_append(&e->ending, &r->end_link);
    else if (spec->max_new_tokens == 0 && !request_scores(r))
        engine_decide(e, r, FINISH_LENGTH, 0);
    return r;
}

int engine_submit_many(struct engine *e, const struct request_spec *spec, uint32_t n,
                       void *const *owners, struct request **requests)
{
    uint64_t n_tokens = (uint64_t)spec->n_prompt + spec->max_new_tokens;
    assert(n > 0 && (spec->n_given == 0 || n == 1));
    if (n_tokens > e->tokens_max)
        return ENGINE_TOO_BIG;
    if (n > requests_n_free(e->requests) ||
        n_tokens > (e->config.max_held_tokens - e->n_held_tokens) / n)
        return ENGINE_FULL;
    for (uint32_t i = 0; i < n; i++) {
        struct request_spec one = *spec;
        one.owner = owners[i];
        one.child_idx += i;
        requests[i] = accept(e, &one, i > 0 ? requests[0] : NULL);
        if (!requests[i])
            return ENGINE_ENDED;
    }
    e->n_held_tokens += n * n_tokens;
    if (spec->deadline_ns != 0 && spec->deadline_ns < e->next_deadline_ns)
        e->next_deadline_ns = spec->deadline_ns;
    return 0;
}

int engine_submit(struct engine *e, const struct request_spec *spec, struct request **requestp)
{
    return engine_submit_many(e, spec, 1, &spec->owner, requestp);
}

/* How many tokens of the prompt a new request would find in the cache. */
static uint32_t find_tokens(struct engine *e, const struct request_spec *spec)
{
    const struct prefix_key key =
        cache_key(e->cache, spec->uid, spec->cache_salt, spec->n_cache_salt);
    return cache_find(e->cache, &key, spec->prompt, spec->n_prompt + spec->n_given, &e->probe) *
           e->info->page_size;
}

void engine_forecast(struct engine *e, const struct request_spec *spec, struct engine_forecast *f)
{
    struct scheduler_forecast forecast;
    uint32_t n_ids = spec->n_prompt + spec->n_given;
    assert(n_ids <= e->tokens_max);
    const struct scheduler_wish wish = {.uid = spec->uid,
                                        .priority = spec->priority,
                                        .n_prompt = n_ids - find_tokens(e, spec),
                                        .limit = spec->max_new_tokens - spec->n_given};
    scheduler_forecast(e->scheduler, &wish, came_ns(e, spec), &forecast);
    bool is_paused = spec->paused && *spec->paused; /* for how long, nobody knows */
    *f = (struct engine_forecast){.is_known = forecast.is_known && !is_paused,
                                  .start_ns = forecast.start_ns,
                                  .first_token_ns = forecast.first_token_ns,
                                  .finish_ns = forecast.finish_ns};
}

void engine_request_why(const struct engine *e, const struct request *r, char *text, size_t bytes)
{
    scheduler_why(e->scheduler, r, clock_now(e->clock), text, bytes);
}

void engine_set_weights(struct engine *e, const struct share_weights *weights)
{
    scheduler_set_weights(e->scheduler, weights);
}

void engine_cancel(struct engine *e, struct request *r)
{
    engine_decide(e, r, FINISH_CANCELLED, 0);
}

void engine_note_pause(struct engine *e, struct request *r)
{
    scheduler_note_pause(e->scheduler, r);
}

/* ---- one step -------------------------------------------------------------------------------- */

/* Makes the batch's new blocks ready. Who can't have his ends, and leaves the batch; so does who
 * took over what he would have computed, but only to begin anew. */
static void prepare_blocks(struct engine *e)
{
    for (uint32_t i = 0; i < e->batch->n_entries;) {
        struct request *r = e->batch->entries[i].r;
        int err = 0;
        if (r->phase == REQUEST_WAITING) {
            batch_drop(e->batch, i);
            continue;
        }
        for (uint32_t b = e->batch->entries[i].new_block; b < r->table.n_blocks && !err; b++)
            for (uint32_t g = 0; g < e->info->n_groups && !err; g++)
                err = backing_prepare(&e->backing, g, r->table.block_idx[g][b]);
        if (err) {
            engine_decide(e, r, FINISH_ERROR, CB_NO_MEMORY);
            scheduler_distrust(e->scheduler, r, e->batch->entries[i].past / e->info->page_size);
            batch_drop(e->batch, i);
        } else {
            i++;
        }
    }
}

static bool has_requests(const struct engine *e)
{
    return !list_is_empty(scheduler_active(e->scheduler)) ||
           !list_is_empty(scheduler_waiting(e->scheduler));
}

/* Plans and submits: 0, or ENGINE_IDLE if there is nothing to submit. Its result, or its failure,
 * is for `advance` to see. now_ns: or a little earlier. */
static int launch(struct engine *e, uint64_t now_ns)
{
    struct request *stuck = NULL;
    batch_clear(e->batch);
    if (!has_requests(e))
        return ENGINE_IDLE;
    int r = scheduler_plan(e->scheduler, e->batch, now_ns, &stuck);
    if (r == SCHEDULER_STUCK)
        engine_decide(e, stuck, FINISH_ERROR, CB_INTERNAL);
    prepare_blocks(e);
    if (e->batch->n_entries == 0)
        return ENGINE_IDLE;
    batch_build(e->batch, e->info->page_size);
    e->submit_ns = clock_now(e->clock);
    r = model_step_submit(e->model, e->batch->step, e->batch->params, &e->ticket);
    e->in_flight = true;
    if (r)
        engine_apply(e, r);
    return 0;
}

/* Applies the step on the device if it is done: whether one is still running there. */
static bool is_running(struct engine *e)
{
    if (!e->in_flight)
        return false;
    int r = model_step_poll(e->model, e->ticket, e->batch->samples);
    if (r == MODEL_STEP_RUNNING)
        return true;
    engine_apply(e, r);
    return false;
}

void engine_pause(struct engine *e, bool paused)
{
    while (is_running(e))
        ;
    e->is_paused = paused;
}

uint64_t engine_next_ns(const struct engine *e)
{
    return e->next_deadline_ns;
}

static int step(struct engine *e, uint64_t now_ns)
{
    bool was_in_flight = e->in_flight;
    if (is_running(e))
        return ENGINE_RUNNING;
    engine_look(e);
    bool any_ended = engine_end_decided(e);
    engine_audit(e);
    bool launched = !e->is_paused && launch(e, now_ns) == 0;
    if (is_running(e))
        return ENGINE_RUNNING;
    any_ended |= engine_end_decided(e);
    return was_in_flight || launched || any_ended ? 0 : ENGINE_IDLE;
}

int engine_step(struct engine *e)
{
    bool has_work = e->in_flight || !list_is_empty(&e->ending) || has_requests(e);
    /* As most turns of a loop that spins are without: a clock costs as much as all the rest. */
    uint64_t begin_ns = has_work ? clock_now(e->clock) : 0, model_ns = e->stats.model_ns;
    uint64_t on_device_ns = e->in_flight ? begin_ns - e->submit_ns : 0;
    int r = step(e, begin_ns);
    if (r == ENGINE_IDLE)
        return r;
    assert(has_work);
    uint64_t took_ns = clock_now(e->clock) - begin_ns;
    uint64_t in_model_ns = e->stats.model_ns - model_ns;
    in_model_ns -= in_model_ns < on_device_ns ? in_model_ns : on_device_ns;
    uint64_t own_ns = took_ns > in_model_ns ? took_ns - in_model_ns : 0;
    uint64_t schedule_ns = e->submit_ns > begin_ns ? e->submit_ns - begin_ns : 0;
    e->stats.own_ns += own_ns;
    e->stats.schedule_ns += schedule_ns < own_ns ? schedule_ns : own_ns;
    return r;
}

/* ---- other weights --------------------------------------------------------------------------- */

static void fail_who_wish(struct engine *e, const struct list *head, enum on_new_weights otherwise)
{
    for (const struct list *link = head->next; link != head; link = link->next) {
        struct request *r = list_entry(link, struct request, link);
        enum on_new_weights wish = r->on_new_weights ? r->on_new_weights : otherwise;
        if (wish == ON_NEW_WEIGHTS_FAIL && request_n_generated(r) > 0)
            engine_decide(e, r, FINISH_ERROR, CB_NEW_WEIGHTS);
    }
}

int engine_load_begin(struct engine *e, int fd, const char *name, char *message)
{
    return model_reload_begin(e->model, fd, name, message);
}

int engine_load_some(struct engine *e, char *message)
{
    int r = model_reload_some(e->model, message);
    return r == MODEL_RELOAD_MORE ? ENGINE_MORE : r;
}

void engine_load_publish(struct engine *e, enum on_new_weights otherwise)
{
    assert(otherwise != ON_NEW_WEIGHTS_DEFAULT);
    while (is_running(e))
        ;
    engine_end_decided(e);
    model_reload_publish(e->model);
    e->epoch = (e->epoch + 1) & ~CB_EPOCH_ANEW;
    fail_who_wish(e, scheduler_active(e->scheduler), otherwise);
    fail_who_wish(e, scheduler_waiting(e->scheduler), otherwise);
    engine_end_decided(e);
    scheduler_switch(e->scheduler, e->epoch, otherwise);
}

void engine_load_drop(struct engine *e)
{
    model_reload_drop(e->model);
}

int engine_populate_some(struct engine *e, size_t bytes)
{
    int r = backing_some(&e->backing, bytes);
    return r == BACKING_MORE ? ENGINE_MORE : r;
}

/* ---- watching -------------------------------------------------------------------------------- */

void engine_held(const struct engine *e, struct engine_held *held)
{
    struct scheduler_counts counts;
    scheduler_counts(e->scheduler, &counts);
    *held = (struct engine_held){.n_requests = counts.n_active + counts.n_waiting,
                                 .n_waiting = counts.n_waiting,
                                 .n_tokens = e->n_held_tokens};
}

void engine_stats(const struct engine *e, struct engine_stats *stats)
{
    struct scheduler_counts counts;
    struct cache_counts room;
    scheduler_counts(e->scheduler, &counts);
    cache_counts(e->cache, &room);
    *stats = e->stats;
    stats->n_active = counts.n_active;
    stats->n_waiting = counts.n_waiting;
    stats->n_held_tokens = e->n_held_tokens;
    stats->n_soft_resets = counts.n_soft_resets;
    stats->n_restarts = counts.n_restarts;
    stats->n_forks = counts.n_forks;
    stats->weight_epoch = e->epoch;
    stats->n_offloads = counts.n_offloads;
    stats->n_restores = counts.n_restores;
    stats->n_recomputed_tokens = counts.n_recomputed;
    stats->n_prefix_hits = counts.n_hits;
    stats->n_prefix_hit_tokens = counts.n_hit_tokens;
    stats->n_free_blocks = room.n_unheld;
    stats->n_blocks = room.n_total;
    stats->n_cached_blocks = room.n_kept;
    stats->n_evicted_blocks = room.n_evicted;
    if (!e->pool)
        return;
    cache_counts(e->pool, &room);
    stats->n_pool_blocks = room.n_total;
    stats->n_free_pool_blocks = room.n_unheld;
}

void engine_request_info(const struct request *r, struct request_info *info)
{
    *info = (struct request_info){
        .phase = r->phase,
        .uid = r->uid,
        .n_prompt = r->n_prompt,
        .n_generated = request_n_generated(r),
        .max_new_tokens = r->max_new_tokens,
        .n_cached = r->past,
        .n_blocks = r->table.n_blocks,
        .priority = r->priority,
        .is_paused = request_is_paused(r),
        .n_soft_resets = r->n_soft_resets,
        .submitted_ns = r->end.submitted_ns,
        .owner = r->owner,
    };
}

const struct batch *engine_batch(const struct engine *e)
{
    return e->batch;
}
