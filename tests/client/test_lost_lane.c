/* The slot table of a lane whose daemon is dead: each check of it, alone. The lane is written by hand, as
 * honest as can be but for one thing, and then lost. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "client/internal.h"
#include "client/reconnect.h"
#include "client/record.h"
#include "shm/geometry.h"

enum { N_VOCAB = 64, N_CONTEXT = 48, N_PROMPT = 3, LIMIT = 5, POOL_BYTES = 4096, N_MADE = 3 };

/* A handle without a daemon, one slot, and the lane behind it. */
struct lost {
    struct cb_handle *h;
    struct cb_held *q;
    uint64_t id;
    struct cb_geometry g;
    unsigned char *up, *down;
    struct cb_slot *slot;
};

static struct cb_link *lane_new(struct lost *l, uint32_t serial)
{
    const struct cb_lane_config config = {.lane_id = 1};
    struct cb_link *link = calloc(1, sizeof *link);
    struct cb_piece *pieces = calloc(1, sizeof *pieces);
    cr_assert_eq(cb_geometry_make(&l->g, 1, 0, POOL_BYTES, N_VOCAB, N_CONTEXT), 0);
    l->up = aligned_alloc(4096, (l->g.up_bytes + 4095) / 4096 * 4096);
    l->down = aligned_alloc(4096, (l->g.down_bytes + 4095) / 4096 * 4096);
    memset(l->up, 0, l->g.up_bytes);
    memset(l->down, 0, l->g.down_bytes);
    cb_lane_init(calloc(1, cb_lane_bytes(&l->g)), &l->g, l->up, l->down, &config);
    l->slot = (void *)(l->down + l->g.down_slots_off);
    link->serial = serial;
    link->sock = -1;
    link->geometry = l->g;
    link->features = CB_FEATURES;
    link->lane_memory = calloc(1, cb_lane_client_bytes(&l->g));
    link->of_slot = calloc(1, sizeof *link->of_slot);
    cb_arena_init(&link->arena, pieces, 1, l->g.up_arena_bytes, 8);
    cr_assert_eq(cb_lane_client_init(&link->lane, link->lane_memory, &l->g, l->up, l->down), 0);
    return link;
}

/* One request with a limit, or CB_NO_LIMIT, was sent. */
static void begin(struct lost *l, uint32_t limit, uint32_t flags, uint32_t resume_max)
{
    static const volatile unsigned char alive = 1;
    static const uint32_t prompt[N_PROMPT] = {1, 2, 3};
    struct cb_request r;
    struct cb_options options;
    struct cb_handle *h = calloc(1, sizeof *h);
    pthread_mutex_init(&h->lock, NULL);
    pthread_mutex_init(&h->text_lock, NULL);
    h->alive = &alive;
    h->n_held = 1;
    h->n_vocab = N_VOCAB;
    h->n_context = N_CONTEXT;
    h->features = CB_FEATURES;
    h->held = calloc(1, sizeof *h->held);
    h->life_seen_ns = UINT64_MAX / 2; /* there is no socket to look at */
    cb_link_set(h, lane_new(l, 1));
    l->h = h;
    l->q = h->held;
    cb_options_init(&options);
    options.resume_max = resume_max;
    cr_assert_eq(cb_reconnect_new(h, &options), 0);
    cb_request_init(&r);
    r.ids = prompt;
    r.n_ids = N_PROMPT;
    r.max_new_tokens = limit;
    r.flags = flags;
    cr_assert_eq(cb_submit(h, &r, &l->id), 0);
}

/* The record of a request that runs and has tokens 10, 11, ... */
static void make(struct lost *l, uint32_t emitted, uint32_t out_cap)
{
    struct cb_slot *s = l->slot;
    const struct cb_run_layout layout =
        cb_run_layout(out_cap, N_PROMPT, l->q->record ? l->q->record->entry.planes : 0);
    uint64_t run = l->g.down_pool_off;
    uint32_t *ids = (void *)(l->down + run);
    s->ctl = l->q->gen << 8 | CB_SLOT_RUNNING;
    s->emitted = emitted;
    s->out_cap = out_cap;
    s->out_off = run;
    s->n_prompt = N_PROMPT;
    s->planes = l->q->record ? l->q->record->entry.planes : 0;
    s->logprobs_off = layout.logprobs_off ? run + layout.logprobs_off : 0;
    s->prompt_off = layout.prompt_off ? run + layout.prompt_off : 0;
    for (uint32_t i = 0; i < out_cap; i++)
        ids[i] = 10 + i;
}

static void state(struct lost *l, uint32_t s, uint32_t finish)
{
    l->slot->ctl = l->q->gen << 8 | s;
    l->slot->finish = finish;
}

static void lose(struct lost *l)
{
    cb_lose_locked(l->h, CB_LOST);
}

/* The next daemon has it, and dies too. */
static void resume(struct lost *l)
{
    struct cb_link *old = l->h->link;
    int ring = 0;
    old->older = l->h->older;
    l->h->older = old;
    cb_link_set(l->h, lane_new(l, old->serial + 1));
    l->h->is_away = false;
    cb_resend_locked(l->h, &ring);
    cr_assert_eq(l->q->state, CB_REQUEST_SENT);
}

/* So many tokens are known, and they are the right ones. */
static void knows(struct lost *l, uint32_t n, const char *why)
{
    const uint32_t *ids;
    size_t n_ids;
    cr_assert_eq(cb_tokens(l->h, l->id, &ids, &n_ids), 0);
    cr_assert_eq(n_ids, n, "%s: %zu tokens, not %u", why, n_ids, n);
    for (size_t i = 0; i < n_ids; i++)
        cr_assert_eq(ids[i], 10 + i, "%s: token %zu is %u", why, i, ids[i]);
}

static void is_away(struct lost *l, const char *why)
{
    cr_assert_eq(l->q->state, CB_REQUEST_AWAY, "%s: state %d", why, (int)l->q->state);
}

static void ended(struct lost *l, uint32_t end, int status, const char *why)
{
    struct cb_result result;
    cr_assert_eq(l->q->state, CB_REQUEST_ENDED, "%s: state %d", why, (int)l->q->state);
    cr_assert_eq(cb_result(l->h, l->id, &result), 0);
    cr_assert(result.end == end && result.status == status, "%s: %u, %d", why, result.end,
              result.status);
}

/* ---- what makes no sense --------------------------------------------------------------------- */

static void another_generation(struct lost *l)
{
    l->slot->ctl += 1u << 8;
}

static void free_state(struct lost *l)
{
    state(l, CB_SLOT_FREE, 0);
}

static void unknown_state(struct lost *l)
{
    state(l, CB_SLOT_FAILED + 1, 0);
}

static void above_the_limit(struct lost *l)
{
    l->slot->out_cap = LIMIT + 1;
}

static void run_before_the_pool(struct lost *l)
{
    l->slot->out_off = l->g.down_pool_off - 64;
}

static void run_behind_the_pool(struct lost *l)
{
    l->slot->out_off = l->g.down_pool_off + l->g.down_pool_bytes + 64;
}

static void run_over_the_end(struct lost *l)
{
    l->slot->out_off = l->g.down_pool_off + l->g.down_pool_bytes - 4 * (LIMIT - 1);
}

static void run_that_wraps(struct lost *l)
{
    l->slot->out_off = (uint64_t)0 - 64;
}

static void run_unaligned(struct lost *l)
{
    memset(l->down + l->g.down_pool_off, 0, 64); /* ids of tokens, wherever one begins */
    l->slot->out_off += 2;
}

static void id_of_no_token(struct lost *l)
{
    ((uint32_t *)(void *)(l->down + l->g.down_pool_off))[N_MADE - 1] = N_VOCAB;
}

static void another_prompt(struct lost *l)
{
    l->slot->n_prompt = N_PROMPT + 1;
}

static void fewer_than_known(struct lost *l)
{
    l->slot->emitted = N_MADE - 1;
}

static const struct {
    const char *why;
    void (*spoil)(struct lost *l);
    bool is_first; /* of a first daemon's lane, too */
} senseless[] = {
    {"another generation", another_generation, true},
    {"no state", free_state, true},
    {"an unknown state", unknown_state, true},
    {"a run above the limit", above_the_limit, true},
    {"a run before the pool", run_before_the_pool, true},
    {"a run behind the pool", run_behind_the_pool, true},
    {"a run over the pool's end", run_over_the_end, true},
    {"a run whose offset wraps", run_that_wraps, true},
    {"an unaligned run", run_unaligned, true},
    {"an id of no token", id_of_no_token, true},
    {"another prompt", another_prompt, false},
    {"fewer tokens than known", fewer_than_known, false},
};
enum { N_SENSELESS = sizeof senseless / sizeof senseless[0] };

Test(lost_lane, what_makes_sense_is_the_clients)
{
    struct lost l;
    begin(&l, LIMIT, CB_RESUMABLE, 5);
    make(&l, N_MADE, LIMIT);
    lose(&l);
    is_away(&l, "honest");
    knows(&l, N_MADE, "honest");
    resume(&l);
    make(&l, N_MADE + 1, LIMIT);
    lose(&l);
    is_away(&l, "honest again");
    knows(&l, N_MADE + 1, "honest again");
}

Test(lost_lane, what_makes_none_is_as_if_it_had_never_been_written)
{
    for (size_t i = 0; i < N_SENSELESS; i++) {
        struct lost l;
        if (!senseless[i].is_first)
            continue;
        begin(&l, LIMIT, CB_RESUMABLE, 5);
        make(&l, N_MADE, LIMIT);
        senseless[i].spoil(&l);
        lose(&l);
        is_away(&l, senseless[i].why);
        knows(&l, 0, senseless[i].why);
    }
}

Test(lost_lane, the_record_stands_alone_against_a_second_lane)
{
    for (size_t i = 0; i < N_SENSELESS; i++) {
        struct lost l;
        if (senseless[i].spoil == id_of_no_token)
            continue; /* that one is known, and not read again */
        begin(&l, LIMIT, CB_RESUMABLE, 5);
        make(&l, N_MADE, LIMIT);
        lose(&l);
        resume(&l);
        make(&l, N_MADE + 1, LIMIT);
        senseless[i].spoil(&l);
        lose(&l);
        is_away(&l, senseless[i].why);
        knows(&l, N_MADE, senseless[i].why);
    }
}

/* An end is no better than the rest of its record. */
Test(lost_lane, an_end_of_what_makes_no_sense_is_none)
{
    for (size_t i = 0; i < N_SENSELESS; i++) {
        struct lost l;
        if (!senseless[i].is_first || senseless[i].spoil == free_state ||
            senseless[i].spoil == unknown_state)
            continue;
        begin(&l, LIMIT, CB_RESUMABLE, 5);
        make(&l, N_MADE, LIMIT);
        state(&l, CB_SLOT_FINISHED, CB_FINISH_LENGTH);
        senseless[i].spoil(&l);
        lose(&l);
        is_away(&l, senseless[i].why);
    }
}

/* Two looks of the safety net: what the second finds unannounced, too, is told. */
static void scan(struct lost *l)
{
    (void)cb_scan_locked(l->h, false);
    (void)cb_scan_locked(l->h, true);
}

/* More than its run has room for: no more than there is room for is looked at. */
Test(lost_lane, tokens_behind_the_run_are_not_looked_at)
{
    struct lost l;
    begin(&l, LIMIT, CB_RESUMABLE, 5);
    make(&l, UINT32_MAX, LIMIT);
    lose(&l);
    knows(&l, LIMIT, "too many");
}

/* What was told may lie in the dead lane only; it is never taken back. */
Test(lost_lane, fewer_tokens_than_were_told_are_not_believed)
{
    struct lost l;
    begin(&l, LIMIT, 0, 5);
    make(&l, N_MADE, LIMIT);
    l.h->leader_parked = false;
    scan(&l);
    cr_assert_eq(l.q->n_seen, N_MADE);
    make(&l, N_MADE - 1, LIMIT);
    state(&l, CB_SLOT_FINISHED, CB_FINISH_LENGTH);
    lose(&l);
    ended(&l, CB_END_ERROR, CB_LOST, "fewer than told");
    cr_assert_eq(l.q->n_seen, N_MADE);
}

/* What was told stays, whatever has become of the lane that it was read in. */
Test(lost_lane, what_was_told_is_kept_though_its_record_makes_no_sense)
{
    struct lost l;
    begin(&l, LIMIT, CB_RESUMABLE, 5);
    make(&l, N_MADE, LIMIT);
    scan(&l);
    knows(&l, N_MADE, "seen");
    another_generation(&l);
    lose(&l);
    is_away(&l, "seen, then lost");
    knows(&l, N_MADE, "seen, then lost");
    cr_assert_eq(l.q->record->kept->n, N_MADE);
}

Test(lost_lane, what_is_known_is_not_read_again)
{
    struct lost l;
    begin(&l, LIMIT, CB_RESUMABLE, 5);
    make(&l, N_MADE, LIMIT);
    lose(&l);
    resume(&l);
    make(&l, N_MADE + 1, LIMIT);
    memset(l.down + l.g.down_pool_off, 0, 4 * N_MADE);
    scan(&l);
    make(&l, N_MADE + 2, LIMIT);
    knows(&l, N_MADE + 2, "looked at, and not waited for");
    cr_assert_eq(l.q->n_seen, N_MADE + 1);
    ((uint32_t *)(void *)(l.down + l.g.down_pool_off))[N_MADE + 1] = N_VOCAB;
    state(&l, CB_SLOT_FINISHED, CB_FINISH_LENGTH);
    lose(&l);
    knows(&l, LIMIT, "known, and then otherwise");
    ended(&l, CB_END_LENGTH, 0, "known, and then otherwise");
}

Test(lost_lane, a_lane_that_lives_has_no_more_than_there_is_room_for)
{
    struct lost l;
    begin(&l, LIMIT, CB_RESUMABLE, 5);
    make(&l, N_MADE, LIMIT);
    scan(&l);
    l.slot->emitted = UINT32_MAX;
    knows(&l, LIMIT, "of the first daemon");
    l.slot->emitted = N_MADE;
    lose(&l);
    resume(&l);
    make(&l, N_MADE + 1, LIMIT);
    scan(&l);
    make(&l, 2 * LIMIT, 2 * LIMIT);
    knows(&l, LIMIT, "of the second");
}

Test(lost_lane, a_view_has_no_tokens_without_a_run_and_few_alternatives)
{
    struct cb_slot_view view;
    struct lost l;
    begin(&l, LIMIT, 0, 5);
    make(&l, N_MADE, LIMIT);
    l.slot->planes = CB_PLANE_LOGPROBS | CB_PLANE_TOPK | (CB_TOPK_MAX + 1) << 16;
    cr_assert_eq(cb_planes_k(l.slot->planes), CB_TOPK_MAX + 1);
    run_behind_the_pool(&l);
    cb_lane_client_slot(l.h->link->lane, 0, &view);
    cr_assert(!view.ids && view.emitted == 0 && view.n_top == 0);
}

Test(lost_lane, log_probabilities_of_another_prompt_are_not_kept)
{
    for (uint32_t i = 0; i < 2; i++) {
        const float *logprobs;
        const struct cb_top_logprob *top;
        struct lost l;
        size_t n;
        begin(&l, LIMIT, CB_RESUMABLE | CB_LOGPROBS | CB_PROMPT_LOGPROBS, 5);
        make(&l, N_MADE, LIMIT);
        l.slot->n_prompt = N_PROMPT + i;
        lose(&l);
        knows(&l, N_MADE, "with log-probabilities");
        cr_assert_eq(cb_prompt_logprobs(l.h, l.id, &logprobs, &top, &n), 0);
        cr_assert_eq(n, i ? 0 : N_PROMPT);
    }
}

/* An open limit is what the first daemon made of it; the next one's run cannot be longer. */
Test(lost_lane, an_open_request_does_not_grow)
{
    struct lost l;
    begin(&l, CB_NO_LIMIT, CB_RESUMABLE, 5);
    make(&l, N_MADE, 20);
    lose(&l);
    knows(&l, N_MADE, "open");
    resume(&l);
    make(&l, 30, 30);
    lose(&l);
    knows(&l, N_MADE, "longer than before");
    is_away(&l, "longer than before");
}

/* ---- ends ------------------------------------------------------------------------------------ */

Test(lost_lane, ends_are_results)
{
    struct lost l;
    begin(&l, LIMIT, CB_RESUMABLE, 5);
    make(&l, LIMIT, LIMIT);
    state(&l, CB_SLOT_FINISHED, CB_FINISH_LENGTH);
    lose(&l);
    ended(&l, CB_END_LENGTH, 0, "finished");
    knows(&l, LIMIT, "finished");
    begin(&l, LIMIT, CB_RESUMABLE, 5);
    make(&l, N_MADE, LIMIT);
    state(&l, CB_SLOT_FINISHED, 200);
    lose(&l);
    ended(&l, CB_END_ERROR, CB_INTERNAL, "for no known reason");
    begin(&l, LIMIT, CB_RESUMABLE, 5);
    make(&l, N_MADE, LIMIT);
    state(&l, CB_SLOT_CANCELLED, CB_FINISH_NONE);
    lose(&l);
    ended(&l, CB_END_CANCELLED, 0, "cancelled");
}

Test(lost_lane, an_end_before_what_is_known_is_of_something_else)
{
    struct lost l;
    begin(&l, LIMIT, CB_RESUMABLE, 5);
    make(&l, N_MADE, LIMIT);
    lose(&l);
    resume(&l);
    make(&l, N_MADE - 1, LIMIT);
    state(&l, CB_SLOT_FINISHED, CB_FINISH_LENGTH);
    lose(&l);
    ended(&l, CB_END_ERROR, CB_CHANGED, "shorter than known");
    knows(&l, N_MADE, "shorter than known");
}

/* ---- what becomes of it ---------------------------------------------------------------------- */

Test(lost_lane, who_is_cancelled_is_not_sent_again)
{
    struct lost l;
    begin(&l, LIMIT, CB_RESUMABLE, 5);
    make(&l, N_MADE, LIMIT);
    cr_assert_eq(cb_cancel(l.h, l.id), 0);
    lose(&l);
    ended(&l, CB_END_CANCELLED, 0, "cancelled");
    knows(&l, N_MADE, "cancelled");
}

Test(lost_lane, who_is_not_resumable_is_lost)
{
    struct lost l;
    begin(&l, LIMIT, 0, 5);
    make(&l, N_MADE, LIMIT);
    lose(&l);
    ended(&l, CB_END_ERROR, CB_LOST, "not resumable");
    knows(&l, N_MADE, "not resumable");
}

Test(lost_lane, a_daemon_that_said_that_it_stops_did_so)
{
    struct lost l;
    begin(&l, LIMIT, 0, 5);
    ((struct cb_down_hot *)(void *)(l.down + CB_PAGE))->closed = CB_CLOSED_STOPPED;
    lose(&l);
    ended(&l, CB_END_ERROR, CB_STOPPED, "stopped");
}

Test(lost_lane, who_begins_anew_kills_no_more_of_them)
{
    const uint32_t detail[2] = {0, 0};
    struct lost l;
    int ring = 0;
    begin(&l, LIMIT, CB_RESUMABLE | CB_RESTART, 1);
    lose(&l);
    resume(&l);
    (void)cb_refused_locked(l.h, l.q, CB_CHANGED, detail);
    is_away(&l, "anew");
    cb_resend_locked(l.h, &ring);
    ended(&l, CB_END_ERROR, CB_LOST, "anew");
}

Test(lost_lane, no_request_kills_daemon_after_daemon)
{
    struct lost l;
    begin(&l, LIMIT, CB_RESUMABLE, 1);
    lose(&l);
    is_away(&l, "once");
    resume(&l);
    lose(&l);
    ended(&l, CB_END_ERROR, CB_LOST, "twice");
}

Test(lost_lane, a_cancel_of_before_reaches_the_next_lane)
{
    struct lost l;
    begin(&l, LIMIT, CB_RESUMABLE, 5);
    lose(&l);
    cr_assert_eq(cb_cancel(l.h, l.id), 0);
    l.h->is_away = false;
    cb_sweep_locked(l.h);
    ended(&l, CB_END_CANCELLED, 0, "cancelled while lost");
}
