/* The daemon's end. All truth is in the private record: what runs, which generation, how far, which
 * TOKENS entry is unread, which bytes of the pool are whose. DOWN is a mirror that is written and
 * never read; UP is read by single atomic loads and by copies, and nothing in it is believed. */
#include "shm/lane.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "shm/lane_private.h"

/* ---- making one ------------------------------------------------------------------------------ */

static size_t round8(size_t n)
{
    return (n + 7) & ~(size_t)7;
}

size_t cb_lane_bytes(const struct cb_geometry *g)
{
    return round8(sizeof(struct cb_lane)) + g->n_slots * sizeof(struct lane_slot) +
           round8(2 * g->n_slots * sizeof(uint32_t)) + g->n_slots * sizeof(struct cb_piece);
}

struct cb_lane *cb_lane_init(void *memory, const struct cb_geometry *g, const void *up, void *down,
                             const struct cb_lane_config *config)
{
    struct cb_lane *lane = memory;
    const unsigned char *up_bytes = up;
    unsigned char *down_bytes = down;
    unsigned char *at = (unsigned char *)memory + round8(sizeof *lane);
    struct cb_down_fixed fixed = {.magic = CB_MAGIC,
                                  .format = CB_FORMAT,
                                  .lane_id = config->lane_id,
                                  .boot_id = {config->boot_id[0], config->boot_id[1]},
                                  .fingerprint = {config->fingerprint[0], config->fingerprint[1]},
                                  .geometry = *g};
    struct cb_piece *pieces;

    assert(((uintptr_t)memory & 7) == 0);
    memset(lane, 0, sizeof *lane);
    lane->slots = (struct lane_slot *)(void *)at;
    at += g->n_slots * sizeof(struct lane_slot);
    pieces = (struct cb_piece *)(void *)at;
    at += g->n_slots * sizeof(struct cb_piece);
    lane->active = (uint32_t *)(void *)at;
    lane->touched = lane->active + g->n_slots;
    memset(lane->slots, 0, g->n_slots * sizeof(struct lane_slot));

    lane->g = *g;
    lane->up_hot = up;
    lane->words = (const struct cb_slot_words *)(const void *)(up_bytes + g->up_slots_off);
    lane->arena = up_bytes + g->up_arena_off;
    lane->down = down_bytes;
    lane->down_hot = (struct cb_down_hot *)(void *)(down_bytes + CB_PAGE);
    lane->first_cursor = config->first_cursor;
    lane->req = (struct cb_ring_in){.taken_word = &lane->down_hot->req_taken,
                                    .sent_word = &lane->up_hot->req_sent,
                                    .entries = up_bytes + g->up_ring_off,
                                    .capacity = g->req_capacity,
                                    .stride = g->req_stride,
                                    .taken = config->first_cursor,
                                    .sent = config->first_cursor};
    lane->res = (struct cb_ring_out){.sent_word = &lane->down_hot->res_sent,
                                     .taken_word = &lane->up_hot->res_taken,
                                     .entries = down_bytes + g->down_ring_off,
                                     .capacity = g->res_capacity,
                                     .stride = g->res_stride,
                                     .sent = config->first_cursor,
                                     .published = config->first_cursor,
                                     .taken = config->first_cursor};
    cb_arena_init(&lane->pool, pieces, g->n_slots, g->down_pool_bytes, CB_RUN_ALIGN);

    cb_copy_out(down, &fixed, sizeof fixed);
    /* Relaxed: the client reads these after WELCOME, and the socket orders them. */
    cb_store64(&lane->down_hot->req_taken, config->first_cursor, CB_RELAXED);
    cb_store64(&lane->down_hot->res_sent, config->first_cursor, CB_RELAXED);
    return lane;
}

/* ---- the places of things: nobody else does arithmetic on segments --------------------------- */

/* NULL if it does not lie in the arena. Subtraction, not addition: off + bytes may wrap. */
static const unsigned char *arena_at(const struct cb_lane *lane, uint64_t off, uint64_t bytes)
{
    if (off > lane->g.up_arena_bytes || bytes > lane->g.up_arena_bytes - off)
        return NULL;
    return lane->arena + off;
}

int cb_lane_copy_arena(const struct cb_lane *lane, uint64_t off, uint64_t bytes, void *copy)
{
    const unsigned char *from = arena_at(lane, off, bytes);

    if (!from || off % 4 || bytes % 4)
        return -ERANGE;
    cb_copy_in(copy, from, (size_t)bytes);
    return 0;
}

/* ---- results --------------------------------------------------------------------------------- */

/* The rule that keeps `free >= debt` when n more children are let in. */
static bool has_room(const struct cb_lane *lane, uint32_t n_children)
{
    uint64_t n_free = cb_ring_out_free(&lane->res);

    return n_free >= 2ull * lane->n_active + 3ull * n_children + 1;
}

static void run_release(struct cb_lane *lane, struct lane_slot *s)
{
    if (s->has_run)
        cb_arena_release(&lane->pool, s->run_off);
    s->has_run = false;
}

/* Takes back the runs of ended slots that the client has freed; true if there were any. */
static bool collect_freed(struct cb_lane *lane)
{
    bool any = false;

    for (uint32_t i = 0; i < lane->g.n_slots; i++) {
        struct lane_slot *s = &lane->slots[i];

        if (!s->has_run || s->active)
            continue;
        /* Acquire: the client's reads of the run are over before we write into it again. */
        if (cb_load32(&lane->words[i].free_gen, CB_ACQUIRE) == s->gen) {
            run_release(lane, s);
            any = true;
        }
    }
    return any;
}

static void active_add(struct cb_lane *lane, uint32_t slot)
{
    lane->active[lane->n_active++] = slot;
    lane->slots[slot].active = lane->n_active;
}

/* ---- intake ---------------------------------------------------------------------------------- */

/* For how many slots an entry is answered. Nothing of it is checked yet: one whose slots are not all
 * there is refused whole, in its first. */
static uint32_t n_answers(const struct cb_lane *lane, const struct cb_request_entry *entry)
{
    if (entry->n_children > CB_CHILDREN_MAX || entry->slot >= lane->g.n_slots ||
        entry->n_children > lane->g.n_slots - entry->slot)
        return 1;
    return entry->n_children ? entry->n_children : 1;
}

/* Whether all children are cancelled. Where only some are, the others need it admitted, and those
 * end behind that. */
static bool are_cancelled(const struct cb_lane *lane, uint32_t slot, uint32_t gen)
{
    for (uint32_t i = 0; i < lane->n_children; i++) {
        if (!lane_is_cancelled(lane, slot + i, gen))
            return false;
    }
    return true;
}

static bool wait_is_cancelled(const struct cb_lane *lane)
{
    return lane->wait_slot < lane->g.n_slots &&
           are_cancelled(lane, lane->wait_slot, lane->wait_gen);
}

/* Whether what the entry left in the ring waits for has come. 0 no, 1 yes, -EPROTO. */
static int wait_is_over(struct cb_lane *lane)
{
    int r;

    switch (lane->wait) {
    case WAIT_ROOM:
        r = cb_ring_out_refresh(&lane->res);
        return r ? r : has_room(lane, lane->n_children);
    case WAIT_RUN:
        return collect_freed(lane) || wait_is_cancelled(lane);
    case WAIT_CREDIT:
        return wait_is_cancelled(lane);
    case WAIT_NOT:
        break;
    }
    return 1;
}

static void wait_for(struct cb_lane *lane, enum lane_wait what)
{
    lane->wait = what;
    lane->has_peeked = false;
}

int cb_lane_peek(struct cb_lane *lane, struct cb_request_entry *entry)
{
    int r;

    if (lane->closed)
        return CB_LANE_NOTHING;
    assert(!lane->has_peeked);
    r = cb_ring_in_refresh(&lane->req);
    if (r)
        return r;
    if (cb_ring_in_used(&lane->req) == 0)
        return CB_LANE_NOTHING;
    r = wait_is_over(lane);
    if (r <= 0)
        return r ? r : CB_LANE_WAITS;

    cb_ring_in_peek(&lane->req, entry, sizeof *entry);
    lane->wait_slot = entry->slot;
    lane->wait_gen = entry->gen;
    lane->n_children = n_answers(lane, entry);
    r = cb_ring_out_refresh(&lane->res);
    if (r)
        return r;
    if (!has_room(lane, lane->n_children)) {
        wait_for(lane, WAIT_ROOM);
        return CB_LANE_WAITS;
    }
    lane->wait = WAIT_NOT;
    lane->has_peeked = true;
    return CB_LANE_ENTRY;
}

uint32_t cb_lane_n_children(const struct cb_lane *lane)
{
    assert(lane->has_peeked);
    return lane->n_children;
}

static void give_runs(struct cb_lane *lane, uint32_t n)
{
    for (uint32_t i = 0; i < n && lane->reserved.bytes; i++)
        cb_arena_release(&lane->pool, lane->reserved_off[i]);
}

/* A run for each child, or for none. 0 or CB_ARENA_FULL. */
static int take_runs(struct cb_lane *lane)
{
    for (uint32_t i = 0; i < lane->n_children && lane->reserved.bytes; i++) {
        int r = cb_arena_take(&lane->pool, lane->reserved.bytes, &lane->reserved_off[i]);

        if (r) {
            give_runs(lane, i);
            return r;
        }
    }
    return 0;
}

static void unreserve(struct cb_lane *lane)
{
    if (lane->has_reserved)
        give_runs(lane, lane->n_children);
    lane->has_reserved = false;
}

int cb_lane_reserve(struct cb_lane *lane, const struct cb_request_entry *entry, uint32_t n_out,
                    uint32_t detail[2])
{
    int r;

    assert(lane->has_peeked && !lane->has_reserved);
    detail[0] = entry->slot;
    detail[1] = lane->g.n_slots;
    if (entry->slot >= lane->g.n_slots)
        return CB_BAD_SLOT;
    for (uint32_t i = 0; i < lane->n_children; i++) {
        const struct lane_slot *s = &lane->slots[entry->slot + i];

        detail[0] = entry->gen;
        detail[1] = s->gen;
        if (entry->gen == 0 || entry->gen > CB_GEN_MASK || s->active || entry->gen == s->gen)
            return CB_BAD_GENERATION;
    }
    /* Submitting into a slot gives its old run up; free_gen says so too, but need not be asked. */
    for (uint32_t i = 0; i < lane->n_children; i++)
        run_release(lane, &lane->slots[entry->slot + i]);
    if (are_cancelled(lane, entry->slot, entry->gen))
        return CB_LANE_CANCELLED;

    lane->reserved = cb_run_layout(n_out, cb_entry_prompt(entry), entry->planes);
    if (lane->reserved.bytes > lane->pool.bytes / lane->n_children)
        return cb_over(CB_LIMIT_POOL, cb_lane_tokens_max(lane, entry), detail);
    r = take_runs(lane);
    if (r && collect_freed(lane))
        r = take_runs(lane);
    if (r) {
        wait_for(lane, WAIT_RUN);
        return CB_LANE_WAITS;
    }
    lane->has_reserved = true;
    lane->reserved_slot = entry->slot;
    lane->reserved_n_out = n_out;
    return 0;
}

uint32_t cb_lane_tokens_max(const struct cb_lane *lane, const struct cb_request_entry *entry)
{
    return cb_run_tokens_max(lane->pool.bytes / n_answers(lane, entry), cb_entry_prompt(entry),
                             entry->planes);
}

static uint64_t plane_at(uint64_t run, uint64_t off)
{
    return off ? run + off : 0;
}

/* Writes all of a slot's record; ctl comes last. */
static void publish_record(struct cb_lane *lane, uint32_t slot,
                           const struct cb_request_entry *entry, enum cb_slot_state state,
                           uint64_t seed)
{
    const struct lane_slot *s = &lane->slots[slot];
    struct cb_slot *to = lane_slot_at(lane, slot);
    uint64_t run = s->has_run ? lane->g.down_pool_off + s->run_off : 0;

    /* Relaxed, all of them: ordered by ctl, which whoever reads them loads first. */
    cb_store32(&to->emitted, s->emitted, CB_RELAXED);
    cb_store32(&to->finish, state == CB_SLOT_CANCELLED ? CB_FINISH_CANCELLED : CB_FINISH_NONE,
               CB_RELAXED);
    cb_store32(&to->error, 0, CB_RELAXED);
    cb_store32(&to->stop_idx, 0, CB_RELAXED);
    cb_store32(&to->text_bytes, 0, CB_RELAXED);
    cb_store32(&to->n_prompt, cb_entry_prompt(entry), CB_RELAXED);
    cb_store32(&to->out_cap, s->n_out, CB_RELAXED);
    cb_store64(&to->out_off, run, CB_RELAXED);
    cb_store32(&to->planes, s->planes, CB_RELAXED);
    cb_store32(&to->weight_epoch, 0, CB_RELAXED);
    cb_store64(&to->seed, seed, CB_RELAXED);
    cb_store32(&to->n_prefix_hit, 0, CB_RELAXED);
    cb_store64(&to->queued_ns, 0, CB_RELAXED);
    cb_store64(&to->first_token_ns, 0, CB_RELAXED);
    cb_store64(&to->total_ns, 0, CB_RELAXED);
    cb_store64(&to->times_off, plane_at(run, s->layout.times_off), CB_RELAXED);
    cb_store64(&to->logprobs_off, plane_at(run, s->layout.logprobs_off), CB_RELAXED);
    cb_store64(&to->topk_off, plane_at(run, s->layout.topk_off), CB_RELAXED);
    cb_store64(&to->epochs_off, plane_at(run, s->layout.epochs_off), CB_RELAXED);
    cb_store64(&to->prompt_off, plane_at(run, s->layout.prompt_off), CB_RELAXED);
    /* Release: publishes the record. */
    cb_store32(&to->ctl, s->gen << 8 | (uint32_t)state, CB_RELEASE);
}

/* The entry is answered: its place in the ring, and its arena bytes, are the client's again. */
static void take(struct cb_lane *lane)
{
    assert(lane->has_peeked);
    lane->has_peeked = false;
    lane->has_reserved = false;
    lane->given_last = 0;
    lane->n_requests++;
    cb_ring_in_take(&lane->req);
}

/* Child `i` of the entry has its slot. */
static void admit(struct cb_lane *lane, const struct cb_request_entry *entry, uint32_t i,
                  uint64_t seed, struct cb_lane_forecast forecast)
{
    uint32_t slot = entry->slot + i;
    struct lane_slot *s = &lane->slots[slot];

    assert(!s->active);
    *s = (struct lane_slot){.gen = entry->gen,
                            .touched = s->touched,
                            .n_out = lane->reserved_n_out,
                            .n_prompt = cb_entry_prompt(entry),
                            .planes = entry->planes,
                            .emitted = entry->resume_from,
                            .announced = entry->resume_from,
                            .last = lane->given_last,
                            .quiet = (entry->flags & CB_FLAG_FINAL_ONLY) != 0,
                            .has_run = lane->reserved.bytes > 0,
                            .run_off = lane->reserved_off[i],
                            .layout = lane->reserved,
                            .k = cb_planes_k(entry->planes),
                            .user = entry->user};
    lane_prompt_begin(lane, slot);
    active_add(lane, slot);
    publish_record(lane, slot, entry, CB_SLOT_ADMITTED, seed);
    lane_put(lane, CB_RESULT_ACCEPTED, slot, entry->gen, forecast.start_us, 0, forecast.finish_us,
             entry->user);
}

void cb_lane_give(struct cb_lane *lane, const struct cb_request_entry *entry, const uint32_t *ids)
{
    cb_atomic32 *run =
        (cb_atomic32 *)(void *)(lane->down + lane->g.down_pool_off + lane->reserved_off[0]);

    assert(lane->has_reserved && lane->n_children == 1 && entry->resume_from > 0);
    assert(entry->resume_from <= lane->reserved_n_out);
    for (uint32_t i = 0; i < entry->resume_from; i++)
        cb_store32(&run[i], ids[i], CB_RELAXED); /* ordered by ctl */
    lane->given_last = ids[entry->resume_from - 1];
}

void cb_lane_accept(struct cb_lane *lane, const struct cb_request_entry *entry, uint64_t seed,
                    struct cb_lane_forecast forecast)
{
    assert(lane->has_reserved && lane->reserved_slot == entry->slot);
    for (uint32_t i = 0; i < lane->n_children; i++)
        admit(lane, entry, i, seed, forecast);
    take(lane);
}

void cb_lane_reject(struct cb_lane *lane, const struct cb_request_entry *entry, int status,
                    uint32_t a, uint32_t b)
{
    bool is_gen = entry->gen && entry->gen <= CB_GEN_MASK;

    unreserve(lane);
    for (uint32_t i = 0; i < lane->n_children; i++) {
        uint32_t slot = entry->slot + i;

        /* A slot that is not active is given up by this entry all the same. */
        if (entry->slot < lane->g.n_slots && is_gen) {
            struct lane_slot *s = &lane->slots[slot];

            if (!s->active && entry->gen != s->gen) {
                run_release(lane, s);
                s->gen = entry->gen;
            }
        }
        lane_put(lane, CB_RESULT_REJECTED, slot, entry->gen, a, (uint32_t)status, b, entry->user);
    }
    take(lane);
}

void cb_lane_cancel(struct cb_lane *lane, const struct cb_request_entry *entry)
{
    for (uint32_t i = 0; i < lane->n_children; i++) {
        uint32_t slot = entry->slot + i;
        struct lane_slot *s = &lane->slots[slot];

        assert(!s->active && !s->has_run);
        *s = (struct lane_slot){.gen = entry->gen, .touched = s->touched, .user = entry->user};
        publish_record(lane, slot, entry, CB_SLOT_CANCELLED, entry->seed);
        lane_put(lane, CB_RESULT_CANCELLED, slot, entry->gen, 0, 0, 0, entry->user);
    }
    take(lane);
}

void cb_lane_wait(struct cb_lane *lane)
{
    assert(lane->has_peeked);
    unreserve(lane);
    wait_for(lane, WAIT_CREDIT);
}

void cb_lane_retry(struct cb_lane *lane)
{
    if (lane->wait == WAIT_CREDIT)
        lane->wait = WAIT_NOT;
}

/* ---- sleeping -------------------------------------------------------------------------------- */

void cb_lane_doze(struct cb_lane *lane)
{
    lane->doze = (lane->doze + 1) | 1;
    /* Relaxed: cb_lane_doze_fence comes between this and the second look. */
    cb_store32(&lane->down_hot->doze, lane->doze, CB_RELAXED);
}

void cb_lane_doze_fence(void)
{
    /* Full: doze in every lane before the looks. The client publishes, fences, then looks at
     * doze. */
    cb_fence();
}

int cb_lane_look_again(struct cb_lane *lane, bool paused)
{
    int r;

    if (lane->closed)
        return CB_LANE_NOTHING;
    /* Relaxed, as the others: after cb_lane_doze_fence. */
    if (cb_load32(&lane->up_hot->pause, CB_RELAXED) != lane->pause)
        return CB_LANE_ENTRY;
    if (paused) {
        for (uint32_t i = 0; i < lane->n_active; i++) {
            const struct lane_slot *s = &lane->slots[lane->active[i]];

            if (!s->cancel_seen && lane_is_cancelled(lane, lane->active[i], s->gen))
                return CB_LANE_ENTRY;
        }
    }
    r = cb_ring_in_refresh(&lane->req);
    if (r)
        return r;
    if (cb_ring_in_used(&lane->req) == 0)
        return CB_LANE_NOTHING;
    r = wait_is_over(lane);
    if (r > 0)
        lane->wait = WAIT_NOT;
    return r > 0 ? CB_LANE_ENTRY : r;
}

void cb_lane_undoze(struct cb_lane *lane)
{
    if (!(lane->doze & 1))
        return;
    lane->doze++;
    /* Relaxed: seen late, it costs a bell too many. */
    cb_store32(&lane->down_hot->doze, lane->doze, CB_RELAXED);
}
