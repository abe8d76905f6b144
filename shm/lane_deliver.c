/* Counts, states and entries are stored as they arise, the result cursor once a flush: entries are
 * invisible until then, and `emitted` alone tells nobody to look. So a step of many tokens costs
 * one publication, one fence and one look at the client's words a lane. */
#include "shm/lane.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <string.h>

#include "shm/lane_private.h"

static unsigned char *run_at(struct cb_lane *lane, const struct lane_slot *s)
{
    return lane->down + lane->g.down_pool_off + s->run_off;
}

/* Whether the slot's newest TOKENS entry has not been given back, by the last accepted cursor. */
static bool is_tokens_unread(const struct cb_lane *lane, const struct lane_slot *s)
{
    return s->has_tokens_entry && s->tokens_at - lane->res.taken < lane->res.sent - lane->res.taken;
}

/* What the active slots may yet cost. Both sides of `free >= debt` come from the same cursor. */
static uint64_t debt(const struct cb_lane *lane)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < lane->n_active; i++)
        sum += is_tokens_unread(lane, &lane->slots[lane->active[i]]) ? 1 : 2;
    return sum;
}

static void active_remove(struct cb_lane *lane, uint32_t slot)
{
    struct lane_slot *s = &lane->slots[slot];
    uint32_t moved = lane->active[--lane->n_active];

    lane->active[s->active - 1] = moved;
    lane->slots[moved].active = s->active;
    s->active = 0;
}

/* ---- while it runs --------------------------------------------------------------------------- */

void cb_lane_set_owner(struct cb_lane *lane, uint32_t slot, void *owner)
{
    lane->slots[slot].owner = owner;
}

void *cb_lane_owner(const struct cb_lane *lane, uint32_t slot)
{
    return lane->slots[slot].owner;
}

/* Relaxed, all of them: ordered by `emitted`, or by ctl where there is no token. */
static void store_float(unsigned char *at, float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    cb_store32((cb_atomic32 *)(void *)at, bits, CB_RELAXED);
}

/* Element `index` of a plane of log-probabilities and of one of the k best; offsets of 0: none. */
static void store_logprobs(struct cb_lane *lane, const struct lane_slot *s, uint64_t off,
                           uint64_t topk_off, uint32_t index, const struct cb_lane_logprobs *l)
{
    const struct cb_top none = {CB_NO_ID, -INFINITY};
    unsigned char *run = run_at(lane, s);

    if (off)
        store_float(run + off + 4ull * index, l->logprob);
    for (uint32_t i = 0; topk_off && i < s->k; i++) {
        unsigned char *at = run + topk_off + ((uint64_t)index * s->k + i) * sizeof(struct cb_top);
        const struct cb_top *top = i < l->n_top ? &l->top[i] : &none;

        cb_store32((cb_atomic32 *)(void *)at, top->id, CB_RELAXED);
        store_float(at + 4, top->logprob);
    }
}

void lane_prompt_begin(struct cb_lane *lane, uint32_t slot)
{
    const struct lane_slot *s = &lane->slots[slot];
    const struct cb_lane_logprobs none = {.logprob = NAN};

    store_logprobs(lane, s, s->layout.prompt_off, s->layout.prompt_topk_off, 0, &none);
}

void cb_lane_prompt_logprobs(struct cb_lane *lane, uint32_t slot, uint32_t index,
                             const struct cb_lane_logprobs *l)
{
    const struct lane_slot *s = &lane->slots[slot];

    assert(s->active && index > 0 && index < s->n_prompt);
    store_logprobs(lane, s, s->layout.prompt_off, s->layout.prompt_topk_off, index, l);
}

void cb_lane_logprobs(struct cb_lane *lane, uint32_t slot, const struct cb_lane_logprobs *l)
{
    const struct lane_slot *s = &lane->slots[slot];

    assert(s->active && s->emitted < s->n_out);
    store_logprobs(lane, s, s->layout.logprobs_off, s->layout.topk_off, s->emitted, l);
}

void cb_lane_epoch(struct cb_lane *lane, uint32_t slot, uint32_t epoch)
{
    struct lane_slot *s = &lane->slots[slot];

    assert(s->active && s->emitted < s->n_out);
    /* Relaxed: ordered by `emitted`, both. */
    if (s->weight_epoch != (epoch & ~CB_EPOCH_ANEW)) {
        s->weight_epoch = epoch & ~CB_EPOCH_ANEW;
        cb_store32(&lane_slot_at(lane, slot)->weight_epoch, s->weight_epoch, CB_RELAXED);
    }
    if (s->layout.epochs_off)
        cb_store32((cb_atomic32 *)(void *)(run_at(lane, s) + s->layout.epochs_off) + s->emitted,
                   epoch, CB_RELAXED);
}

void cb_lane_token(struct cb_lane *lane, uint32_t slot, uint32_t token, uint64_t since_ns)
{
    struct lane_slot *s = &lane->slots[slot];
    struct cb_slot *to = lane_slot_at(lane, slot);
    unsigned char *run = run_at(lane, s);

    assert(s->active && s->emitted < s->n_out);
    /* Relaxed: ordered by `emitted`. */
    cb_store32((cb_atomic32 *)(void *)run + s->emitted, token, CB_RELAXED);
    if (s->layout.times_off)
        cb_store64((cb_atomic64 *)(void *)(run + s->layout.times_off) + s->emitted, since_ns,
                   CB_RELAXED);
    s->last = token;
    s->emitted++;
    if (!s->is_running) {
        s->is_running = true;
        /* Release like every store of ctl; nothing of the record has changed. */
        cb_store32(&to->ctl, s->gen << 8 | CB_SLOT_RUNNING, CB_RELEASE);
    }
    /* Release: publishes the id and its planes. The fence of the next flush pairs it with the
     * client's fence after giving an entry back. */
    cb_store32(&to->emitted, s->emitted, CB_RELEASE);
    lane->dirty = true;
    if (!s->touched) {
        s->touched = true;
        lane->touched[lane->n_touched++] = slot;
    }
}

void cb_lane_end(struct cb_lane *lane, uint32_t slot, const struct cb_lane_end *end)
{
    struct lane_slot *s = &lane->slots[slot];
    struct cb_slot *to = lane_slot_at(lane, slot);
    enum cb_result_type type = CB_RESULT_FINISHED;

    assert(s->active);
    if (end->state == CB_SLOT_CANCELLED)
        type = CB_RESULT_CANCELLED;
    else if (end->state == CB_SLOT_FAILED)
        type = CB_RESULT_FAILED;
    /* Relaxed: ordered by ctl. */
    cb_store32(&to->finish, end->finish, CB_RELAXED);
    cb_store32(&to->error, (uint32_t)end->error, CB_RELAXED);
    cb_store32(&to->stop_idx, end->stop_idx, CB_RELAXED);
    cb_store32(&to->text_bytes, end->text_bytes, CB_RELAXED);
    cb_store32(&to->n_prefix_hit, end->n_prefix_hit, CB_RELAXED);
    cb_store32(&to->weight_epoch, end->weight_epoch, CB_RELAXED);
    cb_store64(&to->queued_ns, end->queued_ns, CB_RELAXED);
    cb_store64(&to->first_token_ns, end->first_token_ns, CB_RELAXED);
    cb_store64(&to->total_ns, end->total_ns, CB_RELAXED);
    /* Release: publishes the end, after the last `emitted` and before its entry. */
    cb_store32(&to->ctl, s->gen << 8 | (uint32_t)end->state, CB_RELEASE);
    active_remove(lane, slot);
    s->owner = NULL;
    /* It also announces the tokens of this step: they need no entry of their own. */
    lane_put(lane, type, slot, s->gen, s->announced, s->emitted, s->last, s->user);
}

uint32_t cb_lane_look_cancels(struct cb_lane *lane, uint32_t *slots)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < lane->n_active; i++) {
        uint32_t slot = lane->active[i];
        struct lane_slot *s = &lane->slots[slot];

        if (!s->cancel_seen && lane_is_cancelled(lane, slot, s->gen)) {
            s->cancel_seen = true;
            slots[n++] = slot;
        }
    }
    return n;
}

bool cb_lane_look_pause(struct cb_lane *lane)
{
    /* Relaxed: carries no data. */
    lane->pause = cb_load32(&lane->up_hot->pause, CB_RELAXED);
    if (lane->pause != lane->pause_told)
        lane->dirty = true;
    return lane->pause & 1;
}

/* ---- deliver --------------------------------------------------------------------------------- */

/* Writes TOKENS entries for touched slots that have none unread; keeps those that have one. */
static bool announce(struct cb_lane *lane)
{
    uint32_t n_kept = 0;
    bool any = false;

    for (uint32_t i = 0; i < lane->n_touched; i++) {
        uint32_t slot = lane->touched[i];
        struct lane_slot *s = &lane->slots[slot];

        if (s->active && !s->quiet && s->emitted > s->announced) {
            if (is_tokens_unread(lane, s)) {
                lane->touched[n_kept++] = slot;
                continue;
            }
            s->has_tokens_entry = true;
            s->tokens_at = lane->res.sent;
            lane_put(lane, CB_RESULT_TOKENS, slot, s->gen, s->announced, s->emitted - s->announced,
                     s->last, s->user);
            s->announced = s->emitted;
            any = true;
        }
        s->touched = false;
    }
    lane->n_touched = n_kept;
    return any;
}

bool cb_lane_dirty(const struct cb_lane *lane)
{
    return lane->dirty;
}

int cb_lane_flush(struct cb_lane *lane)
{
    int r;

    if (!lane->dirty)
        return CB_LANE_NOTHING;
    /* Not needed for safety: it spares the second round below wherever the client keeps up. */
    r = cb_ring_out_refresh(&lane->res);
    if (r && !lane->closed)
        return r;
    announce(lane);
    cb_ring_out_publish(&lane->res);
    if (lane->pause_told != lane->pause) {
        lane->pause_told = lane->pause;
        /* Release: every `emitted` stored so far comes before. */
        cb_store32(&lane->down_hot->pause_seen, lane->pause, CB_RELEASE);
    }
    /* Full: `emitted`, res.sent, notice, closed and pause_seen come before the looks at res.taken and parked.
     * The client does the reverse: gives back or parks, fences, looks. */
    cb_fence();
    if (lane->n_touched) {
        r = cb_ring_out_refresh(&lane->res);
        if (r && !lane->closed)
            return r;
        /* An entry still unread: its reader will find the new count, for it looks after its
         * fence. */
        if (announce(lane)) {
            cb_ring_out_publish(&lane->res);
            /* Full: the new res.sent comes before the look at parked. */
            cb_fence();
        }
        while (lane->n_touched)
            lane->slots[lane->touched[--lane->n_touched]].touched = false;
    }
    lane->dirty = false;
    /* Relaxed: after the fence. */
    lane->parked = cb_load32(&lane->up_hot->parked, CB_RELAXED);
    if ((lane->parked & 1) && lane->parked != lane->answered)
        return CB_LANE_RING;
    return CB_LANE_NOTHING;
}

cb_atomic32 *cb_lane_bell(struct cb_lane *lane)
{
    cb_atomic32 *bell = &lane->down_hot->bell;

    lane->bell++;
    /* Relaxed: the flush has fenced since it published. One writer, so the private count is the
     * word. */
    cb_store32(bell, lane->bell, CB_RELAXED);
    return bell;
}

void cb_lane_answered(struct cb_lane *lane)
{
    lane->answered = lane->parked;
}

void cb_lane_unanswered(struct cb_lane *lane)
{
    lane->answered = 0; /* no sleep's number */
}

/* ---- the rest -------------------------------------------------------------------------------- */

/* A hint that notice or closed changed, where nothing else may need the place. */
static void hint(struct cb_lane *lane)
{
    lane->dirty = true;
    if (cb_ring_out_free(&lane->res) > debt(lane))
        lane_put(lane, CB_RESULT_LANE, 0, 0, 0, 0, 0, 0);
}

void cb_lane_notice(struct cb_lane *lane, uint32_t bits)
{
    if (lane->closed || lane->notice == bits)
        return;
    lane->notice = bits;
    /* Relaxed: the flush fences before it looks at parked. */
    cb_store32(&lane->down_hot->notice, bits, CB_RELAXED);
    hint(lane);
}

void cb_lane_close(struct cb_lane *lane, enum cb_closed why)
{
    if (lane->closed)
        return;
    lane->closed = why;
    /* Relaxed: the flush fences before it looks at parked; what has ended is read through ctl. */
    cb_store32(&lane->down_hot->closed, why, CB_RELAXED);
    hint(lane);
}

void cb_lane_info(const struct cb_lane *lane, struct cb_lane_info *info)
{
    *info = (struct cb_lane_info){.n_slots = lane->g.n_slots,
                                  .n_active = lane->n_active,
                                  .closed = lane->closed,
                                  .waits = lane->wait != WAIT_NOT,
                                  .n_requests = lane->n_requests,
                                  .n_results = lane->res.sent - lane->first_cursor,
                                  .n_unread = lane->res.sent - lane->res.taken,
                                  .pool_bytes = lane->pool.bytes,
                                  .pool_held_bytes = lane->pool.held_bytes};
    cb_copy_in(info->name, lane->up_hot->name, sizeof info->name);
    info->name[sizeof info->name - 1] = 0;
}

static int fault(const char **whyp, const char *why)
{
    *whyp = why;
    return -EUCLEAN;
}

int cb_lane_check(const struct cb_lane *lane, const char **whyp)
{
    uint64_t held = 0;
    uint32_t n_runs = 0;

    if (cb_ring_out_free(&lane->res) < debt(lane))
        return fault(whyp, "active slots may need more places than the result ring has free");
    for (uint32_t i = 0; i < lane->n_active; i++) {
        if (lane->slots[lane->active[i]].active != i + 1)
            return fault(whyp, "an active slot does not know its place in the list");
    }
    for (uint32_t i = 0; i < lane->g.n_slots; i++) {
        const struct lane_slot *s = &lane->slots[i];

        if (s->emitted > s->n_out || s->announced > s->emitted)
            return fault(whyp, "a slot has more tokens than it was given room for");
        if (s->active && s->n_out && !s->has_run)
            return fault(whyp, "an active slot has lost its run");
        if (s->has_run) {
            n_runs++;
            held += s->layout.bytes;
        }
    }
    if (lane->has_reserved && lane->reserved.bytes) {
        n_runs += lane->n_children;
        held += lane->n_children * lane->reserved.bytes;
    }
    if (n_runs != lane->pool.n_held || held != lane->pool.held_bytes)
        return fault(whyp, "pieces of the pool belong to nobody");
    return 0;
}
