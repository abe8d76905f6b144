/* The daemon's end. All truth is in the private record: what runs, which generation, how far, which
 * TOKENS entry is unread, which bytes of the pool are whose. DOWN is a mirror that is written and
 * never read; UP is read by single atomic loads and by copies, and nothing in it is believed.
 *
 * Counts, states and entries are stored as they arise, the result cursor once a flush: entries are
 * invisible until then, and `emitted` alone tells nobody to look. So a step of many tokens costs
 * one publication, one fence and one look at the client's words a lane. */
#include "shm/lane.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "shm/arena.h"
#include "shm/ring.h"

enum lane_wait { WAIT_NOT = 0, WAIT_ROOM, WAIT_RUN, WAIT_CREDIT };

struct lane_slot {
    uint32_t gen;    /* the last one that was answered; 0: never used */
    uint32_t active; /* its place in lane->active + 1; 0: owes no terminal entry */
    uint32_t n_out, planes;
    uint32_t emitted;   /* tokens stored */
    uint32_t announced; /* of these, known to the client by a TOKENS entry */
    uint32_t last;      /* the newest token */
    bool quiet;         /* CB_FLAG_FINAL_ONLY */
    bool touched;       /* is in lane->touched */
    bool cancel_seen;
    bool has_run;
    bool has_tokens_entry; /* tokens_at means something */
    uint64_t tokens_at;    /* cursor of the newest TOKENS entry */
    uint64_t run_off;      /* in the pool */
    uint64_t times_off;    /* from the run's start; 0: none */
    uint64_t user;
    void *owner;
};

struct cb_lane {
    struct cb_geometry g;
    const struct cb_up_hot *up_hot;
    const struct cb_slot_words *words;
    const unsigned char *arena;
    struct cb_down_hot *down_hot;
    unsigned char *down;

    struct cb_ring_in req;
    struct cb_ring_out res;
    struct cb_arena pool;

    enum lane_wait wait;
    uint32_t wait_slot, wait_gen; /* of the entry left in the ring */
    bool has_peeked;              /* an entry awaits its answer */
    bool has_reserved;            /* ... and slot reserved_slot holds a run for it */
    uint32_t reserved_slot;
    struct cb_run_layout reserved;
    uint64_t reserved_off;
    uint32_t reserved_n_out;

    bool dirty;
    uint32_t closed, notice;
    uint32_t parked, answered; /* last seen; last one that was rung */
    uint32_t bell;

    uint64_t n_requests;
    uint64_t first_cursor;
    uint32_t n_active, n_touched;
    uint32_t *active, *touched; /* slot indices */
    struct lane_slot *slots;
};

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

/* ---- the places of things: nobody else does arithmetic on segments -----------------------------
 */

static struct cb_slot *slot_at(struct cb_lane *lane, uint32_t slot)
{
    return (struct cb_slot *)(void *)(lane->down + lane->g.down_slots_off +
                                      (size_t)slot * lane->g.slot_stride);
}

static unsigned char *run_at(struct cb_lane *lane, const struct lane_slot *s)
{
    return lane->down + lane->g.down_pool_off + s->run_off;
}

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

/* ---- results -----------------------------------------------------------------------------------
 */

static void put(struct cb_lane *lane, enum cb_result_type type, uint32_t slot, uint32_t gen,
                uint32_t first, uint32_t count, uint32_t last, uint64_t user)
{
    struct cb_result_entry entry = {.type = type,
                                    .slot = slot,
                                    .gen = gen,
                                    .first = first,
                                    .count = count,
                                    .last = last,
                                    .user = user};

    cb_ring_out_put(&lane->res, &entry, sizeof entry);
    lane->dirty = true;
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

/* The rule that keeps `free >= debt` when n more children are let in. */
static bool has_room(const struct cb_lane *lane, uint32_t n_children)
{
    uint64_t n_free = cb_ring_out_free(&lane->res);

    return n_free >= 2ull * lane->n_active + 3ull * n_children + 1;
}

/* Relaxed: the word carries no data, and is valid by its generation. */
static bool is_cancelled(const struct cb_lane *lane, uint32_t slot, uint32_t gen)
{
    return cb_load32(&lane->words[slot].cancel_gen, CB_RELAXED) == gen;
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

static void active_remove(struct cb_lane *lane, uint32_t slot)
{
    struct lane_slot *s = &lane->slots[slot];
    uint32_t moved = lane->active[--lane->n_active];

    lane->active[s->active - 1] = moved;
    lane->slots[moved].active = s->active;
    s->active = 0;
}

/* ---- intake ------------------------------------------------------------------------------------
 */

static bool wait_is_cancelled(const struct cb_lane *lane)
{
    return lane->wait_slot < lane->g.n_slots && is_cancelled(lane, lane->wait_slot, lane->wait_gen);
}

/* Whether what the entry left in the ring waits for has come. 0 no, 1 yes, -EPROTO. */
static int wait_is_over(struct cb_lane *lane)
{
    int r;

    switch (lane->wait) {
    case WAIT_ROOM:
        r = cb_ring_out_refresh(&lane->res);
        return r ? r : has_room(lane, 1);
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

    assert(!lane->has_peeked);
    if (lane->closed)
        return CB_LANE_NOTHING;
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
    r = cb_ring_out_refresh(&lane->res);
    if (r)
        return r;
    /* One child: any other number is a bad field in this version, and counts as one. */
    if (!has_room(lane, 1)) {
        wait_for(lane, WAIT_ROOM);
        return CB_LANE_WAITS;
    }
    lane->wait = WAIT_NOT;
    lane->has_peeked = true;
    return CB_LANE_ENTRY;
}

static void unreserve(struct cb_lane *lane)
{
    if (lane->has_reserved && lane->reserved.bytes)
        cb_arena_release(&lane->pool, lane->reserved_off);
    lane->has_reserved = false;
}

int cb_lane_reserve(struct cb_lane *lane, const struct cb_request_entry *entry, uint32_t n_out,
                    uint32_t detail[2])
{
    struct lane_slot *s;
    int r = 0;

    assert(lane->has_peeked && !lane->has_reserved);
    detail[0] = entry->slot;
    detail[1] = lane->g.n_slots;
    if (entry->slot >= lane->g.n_slots)
        return CB_BAD_SLOT;
    s = &lane->slots[entry->slot];
    detail[0] = entry->gen;
    detail[1] = s->gen;
    if (entry->gen == 0 || entry->gen > CB_GEN_MASK || s->active || entry->gen == s->gen)
        return CB_BAD_GENERATION;
    /* Submitting into a slot gives its old run up; free_gen says so too, but need not be asked. */
    run_release(lane, s);
    if (is_cancelled(lane, entry->slot, entry->gen))
        return CB_LANE_CANCELLED;

    lane->reserved = cb_run_layout(n_out, entry->planes);
    if (lane->reserved.bytes > lane->pool.bytes) {
        detail[0] = n_out;
        detail[1] = (uint32_t)(lane->pool.bytes / sizeof(uint32_t));
        return CB_QUOTA;
    }
    if (lane->reserved.bytes) {
        r = cb_arena_take(&lane->pool, lane->reserved.bytes, &lane->reserved_off);
        if (r && collect_freed(lane))
            r = cb_arena_take(&lane->pool, lane->reserved.bytes, &lane->reserved_off);
    }
    if (r) {
        wait_for(lane, WAIT_RUN);
        return CB_LANE_WAITS;
    }
    lane->has_reserved = true;
    lane->reserved_slot = entry->slot;
    lane->reserved_n_out = n_out;
    return 0;
}

/* Writes all of a slot's record; ctl comes last. */
static void publish_record(struct cb_lane *lane, uint32_t slot,
                           const struct cb_request_entry *entry, enum cb_slot_state state,
                           uint64_t seed)
{
    const struct lane_slot *s = &lane->slots[slot];
    struct cb_slot *to = slot_at(lane, slot);
    uint64_t run = s->has_run ? lane->g.down_pool_off + s->run_off : 0;

    /* Relaxed, all of them: ordered by ctl, which whoever reads them loads first. */
    cb_store32(&to->emitted, 0, CB_RELAXED);
    cb_store32(&to->finish, state == CB_SLOT_CANCELLED ? CB_FINISH_CANCELLED : CB_FINISH_NONE,
               CB_RELAXED);
    cb_store32(&to->error, 0, CB_RELAXED);
    cb_store32(&to->stop_idx, 0, CB_RELAXED);
    cb_store32(&to->text_bytes, 0, CB_RELAXED);
    cb_store32(&to->n_prompt, entry->n_prompt, CB_RELAXED);
    cb_store32(&to->out_cap, s->n_out, CB_RELAXED);
    cb_store64(&to->out_off, run, CB_RELAXED);
    cb_store32(&to->planes, s->planes, CB_RELAXED);
    cb_store32(&to->weight_epoch, 0, CB_RELAXED);
    cb_store64(&to->seed, seed, CB_RELAXED);
    cb_store32(&to->n_prefix_hit, 0, CB_RELAXED);
    cb_store64(&to->queued_ns, 0, CB_RELAXED);
    cb_store64(&to->first_token_ns, 0, CB_RELAXED);
    cb_store64(&to->total_ns, 0, CB_RELAXED);
    cb_store64(&to->times_off, s->times_off ? run + s->times_off : 0, CB_RELAXED);
    /* Release: publishes the record. */
    cb_store32(&to->ctl, s->gen << 8 | (uint32_t)state, CB_RELEASE);
}

/* The entry is answered: its place in the ring, and its arena bytes, are the client's again. */
static void take(struct cb_lane *lane)
{
    assert(lane->has_peeked);
    lane->has_peeked = false;
    lane->has_reserved = false;
    lane->n_requests++;
    cb_ring_in_take(&lane->req);
}

void cb_lane_accept(struct cb_lane *lane, const struct cb_request_entry *entry, uint64_t seed)
{
    struct lane_slot *s = &lane->slots[entry->slot];

    assert(lane->has_reserved && lane->reserved_slot == entry->slot && !s->active);
    *s = (struct lane_slot){.gen = entry->gen,
                            .touched = s->touched,
                            .n_out = lane->reserved_n_out,
                            .planes = entry->planes,
                            .quiet = (entry->flags & CB_FLAG_FINAL_ONLY) != 0,
                            .has_run = lane->reserved.bytes > 0,
                            .run_off = lane->reserved_off,
                            .times_off = lane->reserved.times_off,
                            .user = entry->user};
    active_add(lane, entry->slot);
    publish_record(lane, entry->slot, entry, CB_SLOT_ADMITTED, seed);
    take(lane);
    put(lane, CB_RESULT_ACCEPTED, entry->slot, entry->gen, 0, 0, 0, entry->user);
}

void cb_lane_reject(struct cb_lane *lane, const struct cb_request_entry *entry, int status,
                    uint32_t a, uint32_t b)
{
    unreserve(lane);
    /* A slot that is not active is given up by this entry all the same. */
    if (entry->slot < lane->g.n_slots && entry->gen && entry->gen <= CB_GEN_MASK) {
        struct lane_slot *s = &lane->slots[entry->slot];

        if (!s->active && entry->gen != s->gen) {
            run_release(lane, s);
            s->gen = entry->gen;
        }
    }
    take(lane);
    put(lane, CB_RESULT_REJECTED, entry->slot, entry->gen, a, (uint32_t)status, b, entry->user);
}

void cb_lane_cancel(struct cb_lane *lane, const struct cb_request_entry *entry)
{
    struct lane_slot *s = &lane->slots[entry->slot];

    assert(!s->active && !s->has_run);
    *s = (struct lane_slot){.gen = entry->gen, .touched = s->touched, .user = entry->user};
    publish_record(lane, entry->slot, entry, CB_SLOT_CANCELLED, entry->seed);
    take(lane);
    put(lane, CB_RESULT_CANCELLED, entry->slot, entry->gen, 0, 0, 0, entry->user);
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

/* ---- while it runs ------------------------------------------------------------------------------
 */

void cb_lane_set_owner(struct cb_lane *lane, uint32_t slot, void *owner)
{
    lane->slots[slot].owner = owner;
}

void *cb_lane_owner(const struct cb_lane *lane, uint32_t slot)
{
    return lane->slots[slot].owner;
}

void cb_lane_token(struct cb_lane *lane, uint32_t slot, uint32_t token, uint64_t since_ns)
{
    struct lane_slot *s = &lane->slots[slot];
    struct cb_slot *to = slot_at(lane, slot);
    unsigned char *run = run_at(lane, s);

    assert(s->active && s->emitted < s->n_out);
    /* Relaxed: ordered by `emitted`. */
    cb_store32((cb_atomic32 *)(void *)run + s->emitted, token, CB_RELAXED);
    if (s->times_off)
        cb_store64((cb_atomic64 *)(void *)(run + s->times_off) + s->emitted, since_ns, CB_RELAXED);
    s->last = token;
    s->emitted++;
    if (s->emitted == 1) {
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
    struct cb_slot *to = slot_at(lane, slot);
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
    cb_store64(&to->queued_ns, end->queued_ns, CB_RELAXED);
    cb_store64(&to->first_token_ns, end->first_token_ns, CB_RELAXED);
    cb_store64(&to->total_ns, end->total_ns, CB_RELAXED);
    /* Release: publishes the end, after the last `emitted` and before its entry. */
    cb_store32(&to->ctl, s->gen << 8 | (uint32_t)end->state, CB_RELEASE);
    active_remove(lane, slot);
    s->owner = NULL;
    /* It also announces the tokens of this step: they need no entry of their own. */
    put(lane, type, slot, s->gen, s->announced, s->emitted, s->last, s->user);
}

uint32_t cb_lane_look_cancels(struct cb_lane *lane, uint32_t *slots)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < lane->n_active; i++) {
        uint32_t slot = lane->active[i];
        struct lane_slot *s = &lane->slots[slot];

        if (!s->cancel_seen && is_cancelled(lane, slot, s->gen)) {
            s->cancel_seen = true;
            slots[n++] = slot;
        }
    }
    return n;
}

/* ---- deliver ------------------------------------------------------------------------------------
 */

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
            put(lane, CB_RESULT_TOKENS, slot, s->gen, s->announced, s->emitted - s->announced,
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
    /* Full: `emitted`, res.sent, notice and closed come before the looks at res.taken and parked.
     * The client does the reverse: gives back or parks, fences, looks. */
    cb_fence();
    if (lane->n_touched) {
        r = cb_ring_out_refresh(&lane->res);
        if (r && !lane->closed)
            return r;
        /* An entry still unread: its reader will find the new count, for it looks after its fence.
         */
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
    /* Release: what was published comes first. One writer, so the private count is the word. */
    cb_store32(bell, lane->bell, CB_RELEASE);
    return bell;
}

void cb_lane_answered(struct cb_lane *lane)
{
    lane->answered = lane->parked;
}

/* ---- sleeping -----------------------------------------------------------------------------------
 */

void cb_lane_doze(struct cb_lane *lane)
{
    /* Relaxed: cb_lane_doze_fence comes between this and the second look. */
    cb_store32(&lane->down_hot->doze, 1, CB_RELAXED);
}

void cb_lane_doze_fence(void)
{
    /* Full: doze in every lane before the looks. The client publishes, fences, then looks at doze.
     */
    cb_fence();
}

int cb_lane_look_again(struct cb_lane *lane, bool paused)
{
    int r;

    if (lane->closed)
        return CB_LANE_NOTHING;
    if (paused) {
        for (uint32_t i = 0; i < lane->n_active; i++) {
            const struct lane_slot *s = &lane->slots[lane->active[i]];

            if (!s->cancel_seen && is_cancelled(lane, lane->active[i], s->gen))
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
    /* Relaxed: seen late, it costs a bell too many. */
    cb_store32(&lane->down_hot->doze, 0, CB_RELAXED);
}

/* ---- the rest -------------------------------------------------------------------------------- */

/* A hint that notice or closed changed, where nothing else may need the place. */
static void hint(struct cb_lane *lane)
{
    lane->dirty = true;
    if (cb_ring_out_free(&lane->res) > debt(lane))
        put(lane, CB_RESULT_LANE, 0, 0, 0, 0, 0, 0);
}

void cb_lane_notice(struct cb_lane *lane, uint32_t bits)
{
    if (lane->closed || lane->notice == bits)
        return;
    lane->notice = bits;
    /* Release, and the flush fences before it looks at parked. */
    cb_store32(&lane->down_hot->notice, bits, CB_RELEASE);
    hint(lane);
}

void cb_lane_close(struct cb_lane *lane, enum cb_closed why)
{
    if (lane->closed)
        return;
    unreserve(lane);
    lane->has_peeked = false;
    lane->closed = why;
    /* Release, and the flush fences before it looks at parked. */
    cb_store32(&lane->down_hot->closed, why, CB_RELEASE);
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
            held += cb_run_layout(s->n_out, s->planes).bytes;
        }
    }
    if (lane->has_reserved && lane->reserved.bytes) {
        n_runs++;
        held += lane->reserved.bytes;
    }
    if (n_runs != lane->pool.n_held || held != lane->pool.held_bytes)
        return fault(whyp, "pieces of the pool belong to nobody");
    return 0;
}
