/* tests/util/sim_client_parts.h - between the parts of a scripted client: its life (sim_client.c),
 * what it asks for (sim_requests.c), what it is told (sim_answers.c). */
#ifndef CB_TESTS_UTIL_SIM_CLIENT_PARTS_H
#define CB_TESTS_UTIL_SIM_CLIENT_PARTS_H

#include "tests/util/sim.h"

#define SIM_PROMPT_BYTES (SIM_PROMPT_MAX * 4)
#define SIM_REGION_BYTES (SIM_PROMPT_BYTES + 256) /* a prompt, and a block of options */

static inline uint32_t draw(struct sim_client *c, uint32_t n)
{
    return sim_draw(&c->random, n);
}

/* Rings the daemon if a call on the lane says so. */
void sim_client_ring(struct sim_client *c, int result);

/* A drawn request or family, good or bad, if there is room for it. */
void sim_client_submit(struct sim_client *c);
/* Of one that runs, or of its whole family. */
void sim_client_cancel(struct sim_client *c);
void sim_client_toggle_pause(struct sim_client *c);
/* The request's family was answered: its part of the arena is scribbled over. */
void sim_client_release(struct sim_client *c, struct sim_request *r);
/* Tokens of the request itself: before it is admitted, its slot still speaks of the one before. */
uint32_t sim_client_emitted(const struct sim_client *c, const struct sim_request *r);

/* Takes one result, if there is one, and checks it. */
bool sim_client_poll(struct sim_client *c);
/* Takes the end of each request that has one by the slot table, and gives its slot back: the entries
 * for it stay in the ring. */
void sim_client_scan(struct sim_client *c);
/* Whether a pause that is acted on holds. */
void sim_client_check_pause(struct sim_client *c);

#endif
