#include "tests/explore/world.h"

#include <string.h>

#include "shm/ring.h"

enum {
    UP_BYTES = 4 * 4096,
    DOWN_BYTES = 4 * 4096,
    RING_OFF = 2 * 4096,
    ARENA_OFF = 3 * 4096,
    REQ_CAPACITY = 2,
    PRIVATE_BYTES = 4096,
    LANES_MAX = 2,
    TOKENS_MAX = 4,
};

struct world world;

struct memory {
    alignas(4096) unsigned char up[UP_BYTES], down[DOWN_BYTES];
};

struct private_memory {
    alignas(64) unsigned char lane[PRIVATE_BYTES], client[PRIVATE_BYTES];
};

static struct {
    struct memory shared[LANES_MAX], shared_first[LANES_MAX];
    struct private_memory private[LANES_MAX], private_first[LANES_MAX];
    unsigned n_lanes;
    struct cb_geometry geometry;
    bool adopted;
    struct world first;
    bool built;
    void (*build)(void);
    struct world_shape shape;
} m;

void world_next_lane(void)
{
    struct cb_lane_config config = {.lane_id = m.n_lanes + 1, .first_cursor = m.shape.first};
    struct memory *s = &m.shared[m.n_lanes];
    struct private_memory *p = &m.private[m.n_lanes];
    int r;

    assert(m.n_lanes < LANES_MAX);
    world.up = s->up;
    world.down = s->down;
    world.lane = cb_lane_init(p->lane, &m.geometry, s->up, s->down, &config);
    r = cb_lane_client_init(&world.client, p->client, &m.geometry, s->up, s->down);
    assert(r == 0);
    m.n_lanes++;
}

const struct cb_geometry *world_geometry(void)
{
    return &m.geometry;
}

static void make(const struct world_shape *shape, void (*build)(void))
{
    struct cb_geometry g = {
        .n_slots = shape->n_slots,
        .req_capacity = REQ_CAPACITY,
        .req_stride = sizeof(struct cb_request_entry),
        .res_capacity = shape->res_capacity,
        .res_stride = sizeof(struct cb_result_entry),
        .slot_stride = sizeof(struct cb_slot),
        .n_vocab = 1000,
        .n_context = 64,
        .up_bytes = UP_BYTES,
        .up_slots_off = CB_PAGE,
        .up_ring_off = RING_OFF,
        .up_arena_off = ARENA_OFF,
        .up_arena_bytes = CB_PAGE,
        .down_bytes = DOWN_BYTES,
        .down_slots_off = 2 * CB_PAGE,
        .down_ring_off = 2 * CB_PAGE + 1024,
        .down_pool_off = 3 * CB_PAGE,
        .down_pool_bytes = cb_run_layout(shape->pool_tokens, 0, 0).bytes,
    };

    memset(&m, 0, sizeof m);
    memset(&world, 0, sizeof world);
    m.shape = *shape;
    m.geometry = g;
    assert(cb_lane_bytes(&g) <= PRIVATE_BYTES && cb_lane_client_bytes(&g) <= PRIVATE_BYTES);
    world_next_lane();
    if (build)
        build();
    memcpy(m.private_first, m.private, sizeof m.private);
    memcpy(m.shared_first, m.shared, sizeof m.shared);
    m.first = world;
    m.built = true;
    m.build = build;
}

void world_init(const struct world_shape *shape, void (*build)(void))
{
    if (!m.built || m.build != build || memcmp(&m.shape, shape, sizeof *shape) != 0)
        make(shape, build);
    if (m.adopted) {
        memcpy(m.shared, m.shared_first, sizeof m.shared);
        m.adopted = false;
    }
    memcpy(m.private, m.private_first, m.n_lanes * sizeof m.private[0]);
    world = m.first;
    explore_private(&world, sizeof world);
}

void world_adopt(void)
{
    explore_adopt();
    m.adopted = true;
}

void world_bell_daemon(int r)
{
    if (r & CB_LANE_RING) {
        uint32_t doze = cb_lane_client_doze(world.client);

        explore_kernel();
        world.daemon_bells++;
        cb_lane_client_rang(world.client, doze);
    }
}

bool world_submit(uint32_t n_new)
{
    return world_submit_many(1, n_new);
}

bool world_submit_many(uint32_t n_children, uint32_t n_new)
{
    struct cb_request_entry entry = {
        .op = CB_OP_GENERATE,
        .n_children = n_children,
        .n_prompt = 1,
        .top_p = 1,
        .max_new_tokens = n_new,
    };
    int r = cb_lane_client_submit(world.client, &entry);

    if (r < 0)
        return false;
    world_bell_daemon(r);
    return true;
}

/* ACCEPTED: where the run is. The record's other words may be changing: they are the end's. */
static void view_run(uint32_t slot)
{
    struct cb_slot_view view;

    explore_newest_only(true);
    cb_lane_client_slot(world.client, slot, &view);
    explore_newest_only(false);
    explore_claim(view.ids != NULL, "a run lies outside the pool");
    world.ids[slot] = view.ids;
}

/* Reads the tokens of a slot that have come since. */
static void read_tokens(uint32_t slot)
{
    uint32_t emitted = cb_lane_client_emitted(world.client, slot);

    for (; world.n_seen[slot] < emitted; world.n_seen[slot]++) {
        uint32_t id;

        cb_copy_in(&id, &world.ids[slot][world.n_seen[slot]], sizeof id);
        explore_claim(id == WORLD_FIRST_TOKEN + world.n_seen[slot],
                      "a token was not the one written");
    }
}

static void take_end(const struct cb_result_entry *entry)
{
    struct cb_slot_view view;

    read_tokens(entry->slot);
    explore_claim(world.n_seen[entry->slot] == entry->count, "an end came before its tokens");
    cb_lane_client_slot(world.client, entry->slot, &view);
    explore_claim(view.state == CB_SLOT_FINISHED || view.state == CB_SLOT_CANCELLED,
                  "an end was announced before it stood in the slot");
    explore_claim(view.gen == entry->gen, "an end is of another generation");
    world.n_seen[entry->slot] = 0;
    world.last[entry->slot] = view.state;
    world.n_ended++;
    world_bell_daemon(cb_lane_client_free(world.client, entry->slot));
}

bool world_consume_one(void)
{
    struct cb_result_entry entry;
    int r = cb_lane_client_poll(world.client, &entry);

    explore_claim(r >= 0, "an honest lane was called broken");
    if (r == CB_LANE_NOTHING)
        return false;
    world_bell_daemon(r);
    if (entry.type == CB_RESULT_LANE)
        return true;
    explore_claim(entry.slot < m.shape.n_slots, "an entry names no slot");
    switch (entry.type) {
    case CB_RESULT_TOKENS:
        read_tokens(entry.slot);
        break;
    case CB_RESULT_FINISHED:
    case CB_RESULT_CANCELLED:
        take_end(&entry);
        break;
    default:
        explore_claim(entry.type == CB_RESULT_ACCEPTED, "an entry of no known type");
        view_run(entry.slot);
    }
    return true;
}

bool world_consume(void)
{
    bool any = false;

    while (world_consume_one())
        any = true;
    return any;
}

/* What was generated so far comes back, and heads the run. */
static void give(const struct cb_request_entry *entry)
{
    uint32_t ids[TOKENS_MAX];

    explore_claim(entry->resume_from <= TOKENS_MAX &&
                      cb_lane_copy_arena(world.lane, entry->prompt_off + 4,
                                         4ull * entry->resume_from, ids) == 0,
                  "the tokens that were generated lie outside the arena");
    for (uint32_t i = 0; i < entry->resume_from; i++)
        explore_claim(ids[i] == WORLD_FIRST_TOKEN + i, "another token came back than went out");
    cb_lane_give(world.lane, entry, ids);
}

uint32_t world_intake(void)
{
    struct cb_request_entry entry;
    uint32_t n = 0, detail[2];
    int r;

    while ((r = cb_lane_peek(world.lane, &entry)) == CB_LANE_ENTRY) {
        explore_claim(entry.op == CB_OP_GENERATE && entry.n_prompt == 1 + entry.resume_from,
                      "a request was torn");
        r = cb_lane_reserve(world.lane, &entry, entry.max_new_tokens, detail);
        if (r == CB_LANE_WAITS)
            break;
        if (r == CB_LANE_CANCELLED) {
            cb_lane_cancel(world.lane, &entry);
            continue;
        }
        explore_claim(r == 0, "an honest request was refused");
        if (entry.resume_from)
            give(&entry);
        cb_lane_accept(world.lane, &entry, 0, (struct cb_lane_forecast){0});
        n++;
    }
    explore_claim(r >= 0, "an honest lane was called broken");
    world.n_accepted += n;
    return n;
}

void world_token(uint32_t slot, uint32_t index)
{
    cb_lane_token(world.lane, slot, WORLD_FIRST_TOKEN + index, 0);
}

void world_end(uint32_t slot)
{
    struct cb_lane_end end = {.state = CB_SLOT_FINISHED, .finish = CB_FINISH_LENGTH};

    cb_lane_end(world.lane, slot, &end);
}

bool world_semaphore_try(void)
{
    uint32_t n = cb_load32(world.semaphore, CB_RELAXED);

    while (n > 0) {
        if (cb_cas32(world.semaphore, &n, n - 1))
            return true;
    }
    return false;
}

void world_semaphore_wait(void)
{
    while (!world_semaphore_try())
        explore_futex_wait(world.semaphore, 0);
}

void world_flush(void)
{
    const char *why;
    int r = cb_lane_flush(world.lane);

    explore_claim(r >= 0, "an honest lane was called broken");
    explore_claim(!cb_lane_check(world.lane, &why), "the daemon's record is unsound");
    if (!(r & CB_LANE_RING))
        return;
    if (world.socket_bells) {
        explore_kernel();
        if (world.socket < world.socket_room)
            world.socket++;
    } else if (world.semaphore) {
        cb_add32(world.semaphore, 1, CB_RELAXED);
        explore_futex_wake(world.semaphore);
    } else {
        explore_futex_wake(cb_lane_bell(world.lane));
    }
    cb_lane_answered(world.lane);
}

static bool is_rung(void *arg)
{
    (void)arg;
    return world.daemon_bells > 0;
}

void world_sleep(bool paused)
{
    cb_lane_doze(world.lane);
    cb_lane_doze_fence();
    if (cb_lane_look_again(world.lane, paused) == CB_LANE_NOTHING) {
        explore_until(is_rung, NULL);
        world.daemon_bells = 0;
    }
    cb_lane_undoze(world.lane);
}

void world_serve_until(uint32_t n_accepted)
{
    while (world.n_accepted < n_accepted) {
        uint32_t before = world.n_accepted;

        world_intake();
        world_flush();
        if (world.n_accepted == before)
            world_sleep(false);
    }
}
