/* Our own rings without a daemon, spinning. `ring`: an entry there and an entry back, with the fences
 * that a sleeper on the other side would need. `lane`: all that a request does to its lane, from
 * submit to free, answered by the daemon's half of the lane's code and nothing else. */
#include <stdalign.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "shm/lane.h"
#include "shm/ring.h"
#include "tests/bench/ipc/peer.h"
#include "tests/bench/ipc/way.h"

enum { CAPACITY = 16 };

struct ring_words {
    alignas(128) cb_atomic64 req_sent;
    alignas(128) cb_atomic64 req_taken;
    alignas(128) cb_atomic64 res_sent;
    alignas(128) cb_atomic64 res_taken;
    alignas(128) unsigned char req[CAPACITY * sizeof(struct cb_request_entry)];
    alignas(128) unsigned char res[CAPACITY * sizeof(struct cb_result_entry)];
};

struct ring_end {
    struct cb_ring_out out;
    struct cb_ring_in in;
};

struct rings {
    struct ring_words *words;
    struct ring_end *ends; /* [n_lanes], this side's */
    uint32_t n_lanes;
    pid_t peer;
};

static void attach(struct ring_words *w, struct ring_end *client, struct ring_end *server)
{
    *client = (struct ring_end){
        .out = {.sent_word = &w->req_sent,
                .taken_word = &w->req_taken,
                .entries = w->req,
                .capacity = CAPACITY,
                .stride = sizeof(struct cb_request_entry)},
        .in = {.taken_word = &w->res_taken,
               .sent_word = &w->res_sent,
               .entries = w->res,
               .capacity = CAPACITY,
               .stride = sizeof(struct cb_result_entry)},
    };
    *server = (struct ring_end){
        .out = {.sent_word = &w->res_sent,
                .taken_word = &w->res_taken,
                .entries = w->res,
                .capacity = CAPACITY,
                .stride = sizeof(struct cb_result_entry)},
        .in = {.taken_word = &w->req_taken,
               .sent_word = &w->req_sent,
               .entries = w->req,
               .capacity = CAPACITY,
               .stride = sizeof(struct cb_request_entry)},
    };
}

static bool receive(struct cb_ring_in *in, void *entry, size_t bytes)
{
    if (cb_ring_in_refresh(in))
        peer_fail("ring");
    if (cb_ring_in_used(in) == 0)
        return false;
    cb_ring_in_peek(in, entry, bytes);
    cb_ring_in_take(in);
    return true;
}

static void send_on(struct cb_ring_out *out, const void *entry, size_t bytes)
{
    if (cb_ring_out_free(out) == 0 && cb_ring_out_refresh(out))
        peer_fail("ring");
    cb_ring_out_put(out, entry, bytes);
    cb_ring_out_publish(out);
    cb_fence(); /* behind which one looks whether the other sleeps */
}

static void serve_rings(struct ring_end *ends, uint32_t n_lanes)
{
    struct cb_request_entry request;
    for (uint32_t i = 0;; i = i + 1 == n_lanes ? 0 : i + 1) {
        if (!receive(&ends[i].in, &request, sizeof request)) {
            cb_spin_hint();
            continue;
        }
        const struct cb_result_entry result = {.type = CB_RESULT_FINISHED, .user = request.user};
        send_on(&ends[i].out, &result, sizeof result);
    }
}

static void round_ring(void *ctx, uint32_t lane)
{
    struct rings *r = ctx;
    struct cb_request_entry request = {.op = CB_OP_GENERATE, .user = lane};
    struct cb_result_entry result;
    send_on(&r->ends[lane].out, &request, sizeof request);
    while (!receive(&r->ends[lane].in, &result, sizeof result))
        cb_spin_hint();
}

static void *open_ring(struct place *place, const struct way *way, uint32_t n_lanes)
{
    struct rings *r = calloc(1, sizeof *r);
    struct ring_end *servers = calloc(n_lanes, sizeof *servers);
    (void)way;
    if (!r || !servers || !(r->ends = calloc(n_lanes, sizeof *r->ends)))
        peer_fail("rings");
    r->n_lanes = n_lanes;
    r->words = peer_share(n_lanes * sizeof *r->words);
    for (uint32_t i = 0; i < n_lanes; i++)
        attach(&r->words[i], &r->ends[i], &servers[i]);
    r->peer = peer_fork(place->there);
    if (r->peer == 0)
        serve_rings(servers, n_lanes);
    free(servers);
    return r;
}

static void close_ring(void *ctx)
{
    struct rings *r = ctx;
    peer_end(r->peer);
    munmap(r->words, r->n_lanes * sizeof *r->words);
    free(r->ends);
    free(r);
}

/* ---- whole lanes ----------------------------------------------------------------------------- */

enum { N_SLOTS = 4, N_VOCAB = 49152, N_CONTEXT = 1024 };

struct lanes {
    struct cb_geometry g;
    unsigned char *up, *down;
    struct cb_lane_client **clients; /* [n_lanes] */
    uint32_t n_lanes;
    pid_t peer;
};

static void answer(struct cb_lane *lane, const struct cb_request_entry *entry)
{
    const struct cb_lane_end end = {
        .state = CB_SLOT_FINISHED, .finish = CB_FINISH_LENGTH, .total_ns = 1};
    uint32_t detail[2], id;
    if (cb_lane_copy_arena(lane, entry->prompt_off, sizeof id, &id) ||
        cb_lane_reserve(lane, entry, 1, detail))
        peer_fail("lane");
    cb_lane_accept(lane, entry, 1, (struct cb_lane_forecast){0, 0});
    cb_lane_token(lane, entry->slot, id, 1);
    cb_lane_end(lane, entry->slot, &end);
    (void)cb_lane_flush(lane);
}

static void serve_lanes(struct lanes *l)
{
    const struct cb_lane_config config = {.lane_id = 1};
    struct cb_lane **ends = calloc(l->n_lanes, sizeof *ends);
    struct cb_request_entry entry;
    if (!ends)
        peer_fail("lanes");
    for (uint32_t i = 0; i < l->n_lanes; i++) {
        void *memory = calloc(1, cb_lane_bytes(&l->g));
        if (!memory)
            peer_fail("lanes");
        ends[i] = cb_lane_init(memory, &l->g, l->up + i * l->g.up_bytes,
                               l->down + i * l->g.down_bytes, &config);
    }
    cb_store32((cb_atomic32 *)(void *)(l->up + l->n_lanes * l->g.up_bytes), 1, CB_RELEASE);
    for (uint32_t i = 0;; i = i + 1 == l->n_lanes ? 0 : i + 1) {
        if (cb_lane_peek(ends[i], &entry) == CB_LANE_ENTRY)
            answer(ends[i], &entry);
        else
            cb_spin_hint();
    }
}

static void round_lane(void *ctx, uint32_t lane)
{
    struct lanes *l = ctx;
    struct cb_lane_client *lc = l->clients[lane];
    struct cb_result_entry result = {0};
    struct cb_request_entry entry = {.op = CB_OP_GENERATE,
                                     .n_children = 1,
                                     .n_prompt = 1,
                                     .flags = CB_FLAG_FINAL_ONLY,
                                     .top_p = 1,
                                     .max_new_tokens = 1};
    uint32_t id = 7;
    cb_lane_client_write_arena(lc, 0, &id, sizeof id);
    if (cb_lane_client_submit(lc, &entry))
        peer_fail("submit");
    while (result.type != CB_RESULT_FINISHED)
        if (cb_lane_client_poll(lc, &result) == CB_LANE_NOTHING)
            cb_spin_hint();
    (void)cb_lane_client_free(lc, entry.slot);
}

static void *open_lane(struct place *place, const struct way *way, uint32_t n_lanes)
{
    struct lanes *l = calloc(1, sizeof *l);
    (void)way;
    if (!l || !(l->clients = calloc(n_lanes, sizeof(struct cb_lane_client *))) ||
        cb_geometry_make(&l->g, N_SLOTS, 1, 1, N_VOCAB, N_CONTEXT))
        peer_fail("lanes");
    l->n_lanes = n_lanes;
    l->up = peer_share(n_lanes * l->g.up_bytes + 4);
    l->down = peer_share(n_lanes * l->g.down_bytes);
    l->peer = peer_fork(place->there);
    if (l->peer == 0)
        serve_lanes(l);
    while (!cb_load32((cb_atomic32 *)(void *)(l->up + n_lanes * l->g.up_bytes), CB_ACQUIRE))
        cb_spin_hint();
    for (uint32_t i = 0; i < n_lanes; i++) {
        void *memory = calloc(1, cb_lane_client_bytes(&l->g));
        if (!memory || cb_lane_client_init(&l->clients[i], memory, &l->g, l->up + i * l->g.up_bytes,
                                           l->down + i * l->g.down_bytes))
            peer_fail("lane");
    }
    return l;
}

static void close_lane(void *ctx)
{
    struct lanes *l = ctx;
    peer_end(l->peer);
    for (uint32_t i = 0; i < l->n_lanes; i++)
        free(l->clients[i]);
    munmap(l->up, l->n_lanes * l->g.up_bytes + 4);
    munmap(l->down, l->n_lanes * l->g.down_bytes);
    free(l->clients);
    free(l);
}

const struct way way_ring = {.name = "bare ring",
                             .n_lanes = 256,
                             .open = open_ring,
                             .round = round_ring,
                             .close = close_ring};
const struct way way_lane = {.name = "bare lane",
                             .n_lanes = 256,
                             .open = open_lane,
                             .round = round_lane,
                             .close = close_lane};
