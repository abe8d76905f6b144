/* A request whose client is gone still has its place in the engine until the next step ends it: its
 * slot record lives on, without a lane, and what comes for it is dropped here. */
#include "daemon/deliver.h"

#include "daemon/base/clock.h"
#include "daemon/guard.h"

void deliver_init(struct deliver *d, struct clients *clients, struct cb_stats_page *stats,
                  const struct clock *clock)
{
    *d = (struct deliver){.clients = clients, .stats = stats, .clock = clock};
}

/* What the client's pause word says now. */
static void look_pause(struct deliver *d, struct client *cl)
{
    bool was_paused = cl->is_paused;
    cl->is_paused = cb_lane_look_pause(cl->lane);
    for (uint32_t s = 0; cl->is_paused != was_paused && s < cl->geometry.n_slots; s++)
        if (cl->slots[s].request)
            engine_note_pause(d->engine, cl->slots[s].request);
}

/* Pause and cancel words of all lanes that have requests. No step is on the device now. */
static void deliver_look(void *ctx)
{
    struct deliver *d = ctx;
    struct list *l, *after, *k, *behind;
    d->clients->n_paused = 0;
    list_for_each (l, after, &d->clients->quotas->used) {
        struct quota *q = list_entry(l, struct quota, link);
        list_for_each (k, behind, &q->live) {
            struct client *cl = list_entry(k, struct client, link);
            if (cl->n_running == 0)
                continue;
            look_pause(d, cl);
            if (cl->is_paused)
                d->clients->n_paused += cl->n_running;
            uint32_t n = cb_lane_look_cancels(cl->lane, d->slots);
            for (uint32_t i = 0; i < n; i++)
                if (cl->slots[d->slots[i]].request)
                    engine_cancel(d->engine, cl->slots[d->slots[i]].request);
        }
    }
}

static void flush_gaps(struct deliver *d)
{
    if (d->n_gaps)
        cb_stats_observe(d->stats, CB_TIMING_time_between_tokens_ns, d->gap_ns, d->n_gaps);
    d->n_gaps = 0;
}

/* Requests that had a token in the last step wait equally long for this step's: a run of them is
 * counted as one. */
static void observe_token(struct deliver *d, struct client_slot *s, uint64_t time_ns)
{
    uint64_t gap_ns = time_ns - s->last_token_ns;
    if (s->last_token_ns == 0) {
        cb_stats_observe(d->stats, CB_TIMING_time_to_first_token_ns, time_ns - s->accepted_ns, 1);
    } else {
        if (gap_ns != d->gap_ns)
            flush_gaps(d);
        d->gap_ns = gap_ns;
        d->n_gaps++;
    }
    s->last_token_ns = time_ns;
}

static void deliver_token(void *ctx, struct request *r, void *owner, uint32_t index, uint32_t token,
                          uint64_t time_ns)
{
    struct client_slot *s = owner;
    (void)index;
    observe_token(ctx, s, time_ns);
    if (!s->client->lane)
        return;
    cb_lane_epoch(s->client->lane, s->slot, r->token_epoch);
    cb_lane_token(s->client->lane, s->slot, token, time_ns - s->accepted_ns);
}

static_assert(SAMPLE_BEST_MAX == CB_TOPK_MAX && SAMPLE_NO_ID == CB_NO_ID,
              "the lane tells what the operator says");

static_assert((int)ON_NEW_WEIGHTS_CONTINUE == CB_ON_WEIGHTS_CONTINUE &&
                  (int)ON_NEW_WEIGHTS_RESTART == CB_ON_WEIGHTS_RESTART &&
                  (int)ON_NEW_WEIGHTS_FAIL == CB_ON_WEIGHTS_FAIL,
              "the engine's numbers are the lane's");

static void deliver_logprobs(void *ctx, struct request *r, void *owner, bool of_prompt,
                             uint32_t index, const struct engine_logprobs *l)
{
    const struct client_slot *s = owner;
    struct cb_top top[CB_TOPK_MAX];
    const struct cb_lane_logprobs told = {.logprob = l->logprob, .top = top, .n_top = l->n_best};
    (void)ctx;
    (void)r;
    if (!s->client->lane)
        return;
    for (uint32_t i = 0; i < l->n_best; i++)
        top[i] = (struct cb_top){.id = l->best[i].id, .logprob = l->best[i].logprob};
    if (of_prompt)
        cb_lane_prompt_logprobs(s->client->lane, s->slot, index, &told);
    else
        cb_lane_logprobs(s->client->lane, s->slot, &told);
}

/* A moment of the engine's clock as the client is told it. */
static uint64_t since(const struct client_slot *s, uint64_t at_ns)
{
    if (at_ns == 0)
        return 0;
    return at_ns > s->accepted_ns ? at_ns - s->accepted_ns : 1; /* reached, if only just */
}

static void count_end(struct deliver *d, const struct client_slot *s, enum finish finish)
{
    enum cb_stat stat = !s->client->lane             ? CB_STAT_requests_dropped
                        : finish == FINISH_CANCELLED ? CB_STAT_requests_cancelled
                        : finish == FINISH_DEADLINE  ? CB_STAT_requests_deadline
                        : finish == FINISH_ERROR     ? CB_STAT_requests_failed
                                                     : CB_STAT_requests_finished;
    cb_stats_add(d->stats, stat, 1);
}

static void observe_end(struct deliver *d, const struct client_slot *s,
                        const struct request_end *end)
{
    if (end->started_ns)
        cb_stats_observe(d->stats, CB_TIMING_request_queued_ns, since(s, end->started_ns), 1);
    cb_stats_observe(d->stats, CB_TIMING_request_total_ns, since(s, end->ended_ns), 1);
}

/* The daemon stops: no end of its own making is told, for the request may go on with the next one. */
static bool is_cut_off(const struct request_end *end)
{
    return end->finish == FINISH_ERROR && end->error == CB_STOPPED;
}

static void deliver_end(void *ctx, struct request *r, void *owner, const struct request_end *end)
{
    struct deliver *d = ctx;
    struct client_slot *s = owner;
    (void)r;
    count_end(d, s, end->finish);
    observe_end(d, s, end);
    if (s->client->lane && !is_cut_off(end)) {
        const struct cb_lane_end lane_end = {
            .state = end->finish == FINISH_ERROR ? CB_SLOT_FAILED
                     : end->finish == FINISH_CANCELLED || end->finish == FINISH_DEADLINE
                         ? CB_SLOT_CANCELLED
                         : CB_SLOT_FINISHED,
            .finish = (uint32_t)end->finish |
                      (end->finish == FINISH_STOP && end->stop_is_id ? CB_FINISH_STOP_ID : 0u),
            .error = end->error,
            .stop_idx = end->stop_idx,
            .text_bytes = end->text_bytes,
            .n_prefix_hit = end->n_prefix_hit,
            .weight_epoch = end->weight_epoch,
            .queued_ns = since(s, end->started_ns),
            .first_token_ns = since(s, end->first_token_ns),
            .total_ns = since(s, end->ended_ns),
        };
        cb_lane_end(s->client->lane, s->slot, &lane_end);
    }
    clients_request_over(d->clients, s);
}

struct engine_sink deliver_sink(struct deliver *d)
{
    return (struct engine_sink){.ctx = d,
                                .look = deliver_look,
                                .logprobs = deliver_logprobs,
                                .token = deliver_token,
                                .end = deliver_end};
}

void deliver_flush(struct deliver *d)
{
    struct list *l, *after, *k, *behind;
    uint64_t begun_ns = 0;
    d->flush_ns = 0;
    list_for_each (l, after, &d->clients->quotas->used) {
        struct quota *q = list_entry(l, struct quota, link);
        list_for_each (k, behind, &q->live) {
            struct client *cl = list_entry(k, struct client, link);
            if (cl->n_running == 0) /* nothing to keep from running, but somebody may wait for it */
                look_pause(d, cl);
            if (!cb_lane_dirty(cl->lane) && !lane_memory_is_broken(&cl->memory))
                continue;
            if (begun_ns == 0)
                begun_ns = clock_now(d->clock);
            clients_flush(d->clients, cl);
        }
    }
    loop_ring_flush(d->clients->config.loop);
    bells_ring(&d->clients->bells);
    flush_gaps(d);
    if (begun_ns == 0)
        return;
    d->flush_ns = clock_now(d->clock) - begun_ns;
    d->ring_us += ((double)d->flush_ns / 1000 - d->ring_us) / 16;
    cb_stats_set(d->stats, CB_STAT_ring_us_per_step, (uint64_t)d->ring_us);
}
