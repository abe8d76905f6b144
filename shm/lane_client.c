/* The client's end. It trusts the daemon's answers but checks what it indexes by: a lane whose
 * daemon died half-way, or was of another version, must end in an error and not in a wild read. */
#include "shm/lane.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "shm/ring.h"

struct cb_lane_client {
    struct cb_geometry g;
    struct cb_up_hot *up_hot;
    struct cb_slot_words *words;
    unsigned char *arena;
    const unsigned char *down;
    const struct cb_down_hot *down_hot;
    struct cb_ring_out req;
    struct cb_ring_in res;
    uint32_t parked;            /* the last epoch stored: odd while asleep */
    uint32_t notice;            /* as the library last read it */
    uint32_t pause, pause_seen; /* as stored; as the library last read it */
    /* The last doze for which a bell was sent. Private, but any thread may store it. Relaxed: an
     * older number costs a bell too many. */
    cb_atomic32 rung;
    uint32_t free_first, n_free;
    uint32_t *gens;    /* a slot: its present or last generation; 0: never used */
    uint32_t *is_free; /* a slot: 1 while it is in the queue */
    uint32_t *queue;   /* free slots, the one free longest at free_first */
};

/* ---- attaching ------------------------------------------------------------------------------- */

size_t cb_lane_client_bytes(const struct cb_geometry *g)
{
    return ((sizeof(struct cb_lane_client) + 7) & ~(size_t)7) +
           3ull * g->n_slots * sizeof(uint32_t);
}

int cb_lane_client_init(struct cb_lane_client **lcp, void *memory, const struct cb_geometry *g,
                        void *up, const void *down)
{
    struct cb_lane_client *lc = memory;
    unsigned char *up_bytes = up;
    const unsigned char *down_bytes = down;
    struct cb_down_fixed fixed;
    uint64_t req_first, res_first;

    assert(((uintptr_t)memory & 7) == 0);
    cb_copy_in(&fixed, down, sizeof fixed);
    if (fixed.magic != CB_MAGIC || fixed.format != CB_FORMAT ||
        memcmp(&fixed.geometry, g, sizeof *g) != 0)
        return -EPROTO;

    memset(lc, 0, cb_lane_client_bytes(g));
    lc->g = *g;
    lc->up_hot = up;
    lc->words = (struct cb_slot_words *)(void *)(up_bytes + g->up_slots_off);
    lc->arena = up_bytes + g->up_arena_off;
    lc->down = down_bytes;
    lc->down_hot = (const struct cb_down_hot *)(const void *)(down_bytes + CB_PAGE);
    lc->gens = (uint32_t *)(void *)((unsigned char *)memory + ((sizeof *lc + 7) & ~(size_t)7));
    lc->queue = lc->gens + g->n_slots;
    lc->is_free = lc->queue + g->n_slots;
    for (uint32_t i = 0; i < g->n_slots; i++) {
        lc->queue[i] = i;
        lc->is_free[i] = 1;
    }
    lc->n_free = g->n_slots;

    /* Relaxed: stored before WELCOME, which the socket orders. */
    req_first = cb_load64(&lc->down_hot->req_taken, CB_RELAXED);
    res_first = cb_load64(&lc->down_hot->res_sent, CB_RELAXED);
    lc->req = (struct cb_ring_out){.sent_word = &lc->up_hot->req_sent,
                                   .taken_word = &lc->down_hot->req_taken,
                                   .entries = up_bytes + g->up_ring_off,
                                   .capacity = g->req_capacity,
                                   .stride = g->req_stride,
                                   .sent = req_first,
                                   .published = req_first,
                                   .taken = req_first};
    lc->res = (struct cb_ring_in){.taken_word = &lc->up_hot->res_taken,
                                  .sent_word = &lc->down_hot->res_sent,
                                  .entries = down_bytes + g->down_ring_off,
                                  .capacity = g->res_capacity,
                                  .stride = g->res_stride,
                                  .taken = res_first,
                                  .sent = res_first};
    /* Relaxed: the daemon looks only after READY, which the socket orders. */
    cb_store64(&lc->up_hot->req_sent, req_first, CB_RELAXED);
    cb_store64(&lc->up_hot->res_taken, res_first, CB_RELAXED);
    *lcp = lc;
    return 0;
}

void cb_lane_client_set_name(struct cb_lane_client *lc, const char *name)
{
    char text[CB_NAME_MAX] = {0};

    strncpy(text, name, sizeof text - 1);
    cb_copy_out(lc->up_hot->name, text, sizeof text);
}

/* ---- requests -------------------------------------------------------------------------------- */

/* After a fence: whether what was published before it must be announced by a bell. One that was
 * sent in this very sleep is enough: the daemon looks at everything after it. */
static int ring_if_dozing(const struct cb_lane_client *lc)
{
    /* Relaxed: the caller's full fence orders it behind what it published. */
    uint32_t doze = cb_load32(&lc->down_hot->doze, CB_RELAXED);

    if (!(doze & 1) || doze == cb_load32(&lc->rung, CB_RELAXED))
        return 0;
    return CB_LANE_RING;
}

uint32_t cb_lane_client_doze(const struct cb_lane_client *lc)
{
    /* Relaxed: only compared with another load of it. */
    return cb_load32(&lc->down_hot->doze, CB_RELAXED);
}

void cb_lane_client_rang(struct cb_lane_client *lc, uint32_t doze)
{
    cb_store32(&lc->rung, doze, CB_RELAXED);
}

/* The same for what matters to the daemon only while a request waits in the ring: freed runs,
 * places given back. A stale cursor can only make it look fuller than it is. */
static int ring_if_waiting(struct cb_lane_client *lc)
{
    if (lc->req.sent == lc->req.taken || cb_ring_out_refresh(&lc->req) < 0 ||
        lc->req.sent == lc->req.taken)
        return 0;
    return ring_if_dozing(lc);
}

/* The first of n consecutive slots that are free, or n_slots: there are none. One alone: that which
 * has been free longest. */
static uint32_t find_slots(const struct cb_lane_client *lc, uint32_t n)
{
    uint32_t n_found = 0;

    if (lc->n_free < n)
        return lc->g.n_slots;
    if (n == 1)
        return lc->queue[lc->free_first];
    for (uint32_t i = 0; i < lc->g.n_slots; i++) {
        n_found = lc->is_free[i] ? n_found + 1 : 0;
        if (n_found == n)
            return i + 1 - n;
    }
    return lc->g.n_slots;
}

/* Takes these slots from the queue, where the others keep their order. */
static void take_slots(struct cb_lane_client *lc, uint32_t slot, uint32_t n)
{
    uint32_t n_kept = 0;

    for (uint32_t i = 0; i < n; i++)
        lc->is_free[slot + i] = 0;
    if (n == 1) {
        lc->free_first = (lc->free_first + 1) % lc->g.n_slots;
        lc->n_free--;
        return;
    }
    for (uint32_t i = 0; i < lc->n_free; i++) {
        uint32_t at = lc->queue[(lc->free_first + i) % lc->g.n_slots];

        if (at - slot >= n)
            lc->queue[(lc->free_first + n_kept++) % lc->g.n_slots] = at;
    }
    lc->n_free = n_kept;
}

/* One that is new to each of these slots: behind the newest of theirs, in serial order. */
static uint32_t next_generation(const struct cb_lane_client *lc, uint32_t slot, uint32_t n)
{
    uint32_t newest = lc->gens[slot];

    for (uint32_t i = 1; i < n; i++) {
        uint32_t gen = lc->gens[slot + i];

        if (newest == 0 || (gen && ((gen - newest) & CB_GEN_MASK) - 1 < CB_GEN_MASK / 2))
            newest = gen;
    }
    return cb_generation_next(newest);
}

bool cb_lane_client_can_submit(struct cb_lane_client *lc, uint32_t n_children)
{
    if (find_slots(lc, n_children) == lc->g.n_slots)
        return false;
    if (cb_ring_out_free(&lc->req) == 0)
        cb_ring_out_refresh(&lc->req);
    return cb_ring_out_free(&lc->req) > 0;
}

uint32_t cb_lane_client_next_slot(const struct cb_lane_client *lc, uint32_t n_children)
{
    return find_slots(lc, n_children);
}

void cb_lane_client_write_arena(struct cb_lane_client *lc, uint64_t off, const void *bytes,
                                size_t n)
{
    assert(off % 4 == 0 && n % 4 == 0);
    assert(off <= lc->g.up_arena_bytes && n <= lc->g.up_arena_bytes - off);
    cb_copy_out(lc->arena + off, bytes, n);
}

int cb_lane_client_submit(struct cb_lane_client *lc, struct cb_request_entry *entry)
{
    uint32_t n = entry->n_children, slot = find_slots(lc, n);
    int r;

    assert(n > 0 && n <= CB_CHILDREN_MAX);
    if (slot == lc->g.n_slots)
        return -EAGAIN;
    if (cb_ring_out_free(&lc->req) == 0) {
        r = cb_ring_out_refresh(&lc->req);
        if (r)
            return r;
        if (cb_ring_out_free(&lc->req) == 0)
            return -EAGAIN;
    }
    take_slots(lc, slot, n);
    entry->slot = slot;
    entry->gen = next_generation(lc, slot, n);

    /* Words of 2^24 uses ago would match again, so both are set anew before the entry is visible.
     * free_gen gets the generation given up, not 0: the daemon may not have seen that free yet, and
     * an entry further ahead may wait for its run. */
    for (uint32_t i = slot; i < slot + n; i++) {
        /* Relaxed: carries no data; ordered by req.sent. */
        cb_store32(&lc->words[i].cancel_gen, 0, CB_RELAXED);
        /* Relaxed: cb_lane_client_free has stored this very value with release, and fenced. */
        cb_store32(&lc->words[i].free_gen, lc->gens[i], CB_RELAXED);
        lc->gens[i] = entry->gen;
    }
    cb_ring_out_put(&lc->req, entry, sizeof *entry);
    cb_ring_out_publish(&lc->req);
    /* Full: req.sent before the look at doze; the daemon sets doze, fences, looks at req.sent. */
    cb_fence();
    return ring_if_dozing(lc);
}

int cb_lane_client_cancel(struct cb_lane_client *lc, uint32_t slot, uint32_t gen)
{
    cb_atomic32 *word = &lc->words[slot].cancel_gen;
    /* Relaxed: the compare-and-swap decides. */
    uint32_t seen = cb_load32(word, CB_RELAXED);

    /* Newer replaces older, in serial order of 24 bits: a thread delayed with an old generation
     * must not undo a newer cancel. Another thread's success is the only reason for a further
     * turn. */
    while (seen == 0 || ((gen - seen) & CB_GEN_MASK) - 1 < CB_GEN_MASK / 2) {
        if (cb_cas32(word, &seen, gen))
            break;
    }
    /* Full: the word before the look at doze. */
    cb_fence();
    return ring_if_dozing(lc);
}

int cb_lane_client_pause(struct cb_lane_client *lc, bool pause)
{
    lc->pause = pause ? (lc->pause + 1) | 1 : (lc->pause + 1) & ~1u;
    /* Relaxed, then full: the word before the look at doze; the daemon sets doze, fences, looks
     * here. */
    cb_store32(&lc->up_hot->pause, lc->pause, CB_RELAXED);
    cb_fence();
    return ring_if_dozing(lc);
}

bool cb_lane_client_is_paused(struct cb_lane_client *lc)
{
    /* Acquire: with it comes every token of the steps before. */
    lc->pause_seen = cb_load32(&lc->down_hot->pause_seen, CB_ACQUIRE);
    return lc->pause & 1 && lc->pause_seen == lc->pause;
}

int cb_lane_client_free(struct cb_lane_client *lc, uint32_t slot)
{
    assert(slot < lc->g.n_slots && !lc->is_free[slot]);
    lc->is_free[slot] = 1;
    lc->queue[(lc->free_first + lc->n_free) % lc->g.n_slots] = slot;
    lc->n_free++;
    /* Release: our reads of the run are over before the daemon may write into it again. */
    cb_store32(&lc->words[slot].free_gen, lc->gens[slot], CB_RELEASE);
    /* Full: the word before the look at doze. */
    cb_fence();
    return ring_if_waiting(lc);
}

/* ---- results --------------------------------------------------------------------------------- */

int cb_lane_client_poll(struct cb_lane_client *lc, struct cb_result_entry *entry)
{
    int r;

    if (cb_ring_in_used(&lc->res) == 0) {
        r = cb_ring_in_refresh(&lc->res);
        if (r)
            return r;
        if (cb_ring_in_used(&lc->res) == 0)
            return CB_LANE_NOTHING;
    }
    cb_ring_in_peek(&lc->res, entry, sizeof *entry);
    if (entry->slot >= lc->g.n_slots)
        return -EPROTO;
    cb_ring_in_take(&lc->res);
    /* Full: the give-back before the look at `emitted`. The daemon stores `emitted`, fences, then
     * looks whether the entry was given back: whoever comes second sees the other, and no token is
     * left behind without an entry. Also before the look at doze. */
    cb_fence();
    return CB_LANE_ENTRY | ring_if_waiting(lc);
}

bool cb_lane_client_pending(const struct cb_lane_client *lc)
{
    /* Relaxed: a hint; poll loads it again with acquire. */
    return cb_load64(&lc->down_hot->res_sent, CB_RELAXED) != lc->res.taken;
}

static const struct cb_slot *slot_at(const struct cb_lane_client *lc, uint32_t slot)
{
    return (const struct cb_slot *)(const void *)(lc->down + lc->g.down_slots_off +
                                                  (size_t)slot * lc->g.slot_stride);
}

uint32_t cb_lane_client_emitted(const struct cb_lane_client *lc, uint32_t slot)
{
    const struct cb_slot *from = slot_at(lc, slot);
    /* Acquire: ids and planes below it are there. */
    uint32_t emitted = cb_load32(&from->emitted, CB_ACQUIRE);
    /* Relaxed: constant while the request lives. */
    uint32_t cap = cb_load32(&from->out_cap, CB_RELAXED);

    return emitted < cap ? emitted : cap;
}

/* n elements of `size` bytes at `off` of DOWN, if they lie in the pool; else NULL. */
static const void *pool_at(const struct cb_lane_client *lc, uint64_t off, uint64_t n, uint64_t size)
{
    uint64_t at = off - lc->g.down_pool_off;

    /* Before the pool, `at` has wrapped and is behind it. */
    if (off % size || at > lc->g.down_pool_bytes || n > (lc->g.down_pool_bytes - at) / size)
        return NULL;
    return lc->down + off;
}

/* After state, emitted, out_cap and n_prompt: where log-probabilities lie. */
static void look_at_logprobs(const struct cb_lane_client *lc, const struct cb_slot *from,
                             struct cb_slot_view *view)
{
    uint32_t k = cb_planes_k(cb_load32(&from->planes, CB_RELAXED));
    uint64_t prompt_off = cb_load64(&from->prompt_off, CB_RELAXED);
    /* Their bytes are the prompt's plane, padded; no other part of the format needs a sum. */
    uint64_t prompt_bytes = (4ull * view->n_prompt + 7) & ~(uint64_t)7;
    bool has_prompt = view->emitted || (view->state == CB_SLOT_FINISHED && !view->out_cap);

    view->n_top = k <= CB_TOPK_MAX ? k : 0;
    view->logprobs = pool_at(lc, cb_load64(&from->logprobs_off, CB_RELAXED), view->out_cap, 4);
    if (view->n_top)
        view->top = pool_at(lc, cb_load64(&from->topk_off, CB_RELAXED),
                            (uint64_t)view->out_cap * view->n_top, sizeof *view->top);
    if (!has_prompt)
        return;
    view->prompt_logprobs = pool_at(lc, prompt_off, view->n_prompt, 4);
    if (view->n_top && view->prompt_logprobs)
        view->prompt_top =
            pool_at(lc, prompt_off + prompt_bytes, (uint64_t)view->n_prompt * view->n_top,
                    sizeof *view->prompt_top);
}

void cb_lane_client_slot(const struct cb_lane_client *lc, uint32_t slot, struct cb_slot_view *view)
{
    const struct cb_slot *from = slot_at(lc, slot);
    /* Acquire: with ctl comes the record, and with a terminal state the end. */
    uint32_t ctl = cb_load32(&from->ctl, CB_ACQUIRE);

    memset(view, 0, sizeof *view);
    view->gen = ctl >> 8;
    view->state = (enum cb_slot_state)(ctl & 0xff);
    /* Acquire: ids and planes below it are there. */
    view->emitted = cb_load32(&from->emitted, CB_ACQUIRE);
    /* Relaxed, all of them: ordered by ctl. */
    view->out_cap = cb_load32(&from->out_cap, CB_RELAXED);
    if (view->emitted > view->out_cap)
        view->emitted = view->out_cap;
    view->n_prompt = cb_load32(&from->n_prompt, CB_RELAXED);
    view->ids = pool_at(lc, cb_load64(&from->out_off, CB_RELAXED), view->out_cap, 4);
    view->times = pool_at(lc, cb_load64(&from->times_off, CB_RELAXED), view->out_cap, 8);
    view->epochs = pool_at(lc, cb_load64(&from->epochs_off, CB_RELAXED), view->out_cap, 4);
    look_at_logprobs(lc, from, view);
    view->finish = cb_load32(&from->finish, CB_RELAXED);
    view->stop_idx = cb_load32(&from->stop_idx, CB_RELAXED);
    view->text_bytes = cb_load32(&from->text_bytes, CB_RELAXED);
    view->error = (int32_t)cb_load32(&from->error, CB_RELAXED);
    view->n_prefix_hit = cb_load32(&from->n_prefix_hit, CB_RELAXED);
    view->weight_epoch = cb_load32(&from->weight_epoch, CB_RELAXED);
    view->seed = cb_load64(&from->seed, CB_RELAXED);
    view->queued_ns = cb_load64(&from->queued_ns, CB_RELAXED);
    view->first_token_ns = cb_load64(&from->first_token_ns, CB_RELAXED);
    view->total_ns = cb_load64(&from->total_ns, CB_RELAXED);
    if (!view->ids)
        view->emitted = 0;
}

/* ---- sleeping -------------------------------------------------------------------------------- */

int cb_lane_client_park(struct cb_lane_client *lc, uint32_t *bellp)
{
    /* Relaxed, and before the second look: a bell after this look changes the word, so the futex
     * call does not sleep on it; a bell before it was fenced behind what the second look, behind
     * our fence, then finds. */
    *bellp = cb_load32(&lc->down_hot->bell, CB_RELAXED);
    lc->parked = (lc->parked + 1) | 1;
    /* Relaxed, then full: the epoch before the second look. The daemon publishes, fences, looks
     * here. */
    cb_store32(&lc->up_hot->parked, lc->parked, CB_RELAXED);
    cb_fence();
    /* Relaxed: only whether to sleep; who then reads results loads them with acquire. */
    if (cb_load64(&lc->down_hot->res_sent, CB_RELAXED) != lc->res.taken ||
        cb_load32(&lc->down_hot->notice, CB_RELAXED) != lc->notice ||
        cb_load32(&lc->down_hot->pause_seen, CB_RELAXED) != lc->pause_seen ||
        cb_load32(&lc->down_hot->closed, CB_RELAXED) != CB_CLOSED_NO)
        return CB_LANE_ENTRY;
    return CB_LANE_NOTHING;
}

void cb_lane_client_unpark(struct cb_lane_client *lc)
{
    if (!(lc->parked & 1))
        return;
    lc->parked++;
    /* Relaxed: seen late, it costs a bell too many. */
    cb_store32(&lc->up_hot->parked, lc->parked, CB_RELAXED);
}

const cb_atomic32 *cb_lane_client_bell_word(const struct cb_lane_client *lc)
{
    return &lc->down_hot->bell;
}

uint32_t cb_lane_client_closed(const struct cb_lane_client *lc)
{
    /* Relaxed: a flag; what ended before it is read through ctl. */
    return cb_load32(&lc->down_hot->closed, CB_RELAXED);
}

uint32_t cb_lane_client_notice(struct cb_lane_client *lc)
{
    /* Relaxed: state bits, no data behind them. */
    lc->notice = cb_load32(&lc->down_hot->notice, CB_RELAXED);
    return lc->notice;
}
