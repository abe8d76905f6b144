/* tests/shm/lane_pair.h - a lane in plain memory with both ends attached, for the tests of this
 * folder. */
#ifndef CB_TESTS_SHM_LANE_PAIR_H
#define CB_TESTS_SHM_LANE_PAIR_H

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "shm/control.h"
#include "shm/lane.h"
#include "shm/message.h"

struct pair {
    struct cb_geometry g;
    struct cb_message_limits limits;
    void *up, *down, *daemon_memory, *client_memory;
    struct cb_lane *lane;
    struct cb_lane_client *client;
};

static inline void pair_init_geometry(struct pair *p, const struct cb_geometry *g, uint64_t first)
{
    struct cb_lane_config config = {.lane_id = 7, .first_cursor = first};

    memset(p, 0, sizeof *p);
    p->g = *g;
    p->limits = (struct cb_message_limits){.arena_bytes = g->up_arena_bytes,
                                           .n_slots = g->n_slots,
                                           .n_vocab = g->n_vocab,
                                           .n_context = g->n_context};
    p->up = aligned_alloc(CB_PAGE, g->up_bytes);
    p->down = aligned_alloc(CB_PAGE, g->down_bytes);
    memset(p->up, 0, g->up_bytes);
    memset(p->down, 0, g->down_bytes);
    p->daemon_memory = calloc(1, cb_lane_bytes(g));
    p->client_memory = calloc(1, cb_lane_client_bytes(g));
    p->lane = cb_lane_init(p->daemon_memory, g, p->up, p->down, &config);
    cr_assert_eq(cb_lane_client_init(&p->client, p->client_memory, g, p->up, p->down), 0);
}

static inline void pair_init(struct pair *p, uint32_t n_slots, uint64_t first)
{
    struct cb_geometry g;

    cr_assert_eq(cb_geometry_make(&g, n_slots, 0, 0, 1000, 64), 0);
    pair_init_geometry(p, &g, first);
}

static inline void pair_fini(struct pair *p)
{
    free(p->up);
    free(p->down);
    free(p->daemon_memory);
    free(p->client_memory);
}

static inline void pair_check(const struct pair *p)
{
    const char *why = "";

    cr_assert_eq(cb_lane_check(p->lane, &why), 0, "%s", why);
}

/* A request of one prompt id that wants n_new tokens. */
static inline int pair_submit(struct pair *p, uint32_t n_new, uint64_t user,
                              struct cb_request_entry *entry)
{
    const uint32_t id = 5;

    cb_message_init(entry);
    entry->n_prompt = 1;
    entry->max_new_tokens = n_new;
    entry->user = user;
    cb_lane_client_write_arena(p->client, 0, &id, sizeof id);
    return cb_lane_client_submit(p->client, entry);
}

/* One peek and its answer as intake gives it; what peek, reserve or the check said. */
static inline int pair_intake(struct pair *p, struct cb_request_entry *entry)
{
    uint32_t detail[2] = {0};
    int r = cb_lane_peek(p->lane, entry);

    if (r != CB_LANE_ENTRY)
        return r;
    r = (int)cb_message_check(entry, &p->limits, detail);
    if (!r)
        r = cb_lane_reserve(p->lane, entry, entry->max_new_tokens, detail);
    if (r == 0)
        cb_lane_accept(p->lane, entry, entry->seed, (struct cb_lane_forecast){0});
    else if (r == CB_LANE_CANCELLED)
        cb_lane_cancel(p->lane, entry);
    else if (r < 0)
        cb_lane_reject(p->lane, entry, r, detail[0], detail[1]);
    return r ? r : CB_LANE_ENTRY;
}

static inline void pair_end(struct pair *p, uint32_t slot)
{
    const struct cb_lane_end end = {.state = CB_SLOT_FINISHED, .finish = CB_FINISH_LENGTH};

    cb_lane_end(p->lane, slot, &end);
}

#endif
