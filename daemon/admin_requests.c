/* Commands about requests, which are named LANE:SLOT. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/admin_parts.h"
#include "daemon/base/clock.h"
#include "daemon/why.h"
#include "shm/status.h"

static const char *state_of(const struct request_info *info)
{
    static const char *const phases[] = {"waiting", "prefilling", "decoding"};
    return info->is_paused ? "paused" : phases[info->phase];
}

static void put_request(const struct daemon *d, const struct client_slot *s, struct buf *reply)
{
    static const char *const phases[] = {"waiting", "prefilling", "decoding"};
    struct cb_lane_info lane = {0};
    struct request_info info;
    char id[32];
    engine_request_info(s->request, &info);
    snprintf(id, sizeof id, "%u:%u", s->client->lane_id, s->slot);
    if (s->client->lane)
        cb_lane_info(s->client->lane, &lane);
    buf_open(reply, NULL, '{');
    buf_string(reply, "id", id);
    buf_u64(reply, "lane", s->client->lane_id);
    buf_u64(reply, "slot", s->slot);
    buf_u64(reply, "uid", s->client->lease.uid);
    buf_i64(reply, "pid", s->client->lease.pid);
    buf_bytes(reply, "client", lane.name, sizeof lane.name);
    buf_string(reply, "state", state_of(&info));
    buf_string(reply, "phase", phases[info.phase]);
    buf_u64(reply, "priority", info.priority);
    buf_u64(reply, "prompt_tokens", info.n_prompt);
    buf_u64(reply, "generated_tokens", info.n_generated);
    buf_u64(reply, "max_new_tokens", info.max_new_tokens);
    buf_u64(reply, "cached_tokens", info.n_cached);
    buf_u64(reply, "blocks", info.n_blocks);
    buf_u64(reply, "soft_resets", info.n_soft_resets);
    buf_u64(reply, "age_ms", (clock_now(d->config.clock) - s->accepted_ns) / 1000000u);
    buf_close(reply, '}');
}

int admin_requests(struct daemon *d, struct client *who, const char *argument, struct buf *reply)
{
    bool cut = false;
    (void)argument;
    buf_open(reply, "requests", '[');
    for (uint32_t i = 0; i < d->clients->n_clients; i++) {
        const struct client *cl = &d->clients->table[i];
        if (cl->state == CLIENT_FREE || cl->n_running == 0 || !admin_sees(who, cl))
            continue;
        for (uint32_t s = 0; s < cl->geometry.n_slots; s++)
            if (cl->slots[s].request && admin_has_room(reply, &cut))
                put_request(d, &cl->slots[s], reply);
    }
    buf_close(reply, ']');
    buf_bool(reply, "cut", cut);
    return CB_OK;
}

/* What "LANE" or "LANE:SLOT" names. */
struct place {
    struct client *client;
    bool has_slot;
    uint32_t slot;
};

/* 0, or a status that the reply explains. */
static int find_place(struct daemon *d, const struct client *who, const char *text,
                      struct place *place, struct buf *reply)
{
    char *end;
    unsigned long lane_id = strtoul(text, &end, 10);
    bool has_slot = end != text && (*end == ':' || *end == '.');
    const char *slot_text = end + 1;
    unsigned long slot = has_slot ? strtoul(slot_text, &end, 10) : 0;
    if (*text < '0' || *text > '9' || *end || lane_id > UINT32_MAX ||
        (has_slot && (*slot_text < '0' || *slot_text > '9')))
        return admin_fail(reply, CB_INVALID,
                          "give LANE or LANE:SLOT, numbers as `requests` shows them");
    struct client *cl = clients_find(d->clients, (uint32_t)lane_id);
    if (!cl || (has_slot && slot >= cl->geometry.n_slots))
        return admin_fail(reply, CB_NOT_FOUND, "no such lane or slot");
    if (!admin_sees(who, cl))
        return admin_fail(reply, CB_DENIED, NULL);
    *place = (struct place){.client = cl, .has_slot = has_slot, .slot = (uint32_t)slot};
    if (has_slot && !cl->slots[slot].request)
        return admin_fail(reply, CB_NOT_FOUND, "no request runs in this slot");
    return CB_OK;
}

int admin_why(struct daemon *d, struct client *who, const char *argument, struct buf *reply)
{
    char words[WHY_MAX];
    struct place place;
    int status = find_place(d, who, argument, &place, reply);
    if (status)
        return status;
    if (place.has_slot)
        why_request(d, &place.client->slots[place.slot], words);
    else
        why_lane(d, place.client, words);
    buf_string(reply, "id", argument);
    buf_string(reply, "why", words);
    return CB_OK;
}

int admin_cancel(struct daemon *d, struct client *who, const char *argument, struct buf *reply)
{
    struct place place;
    uint64_t n = 0;
    int status = find_place(d, who, argument, &place, reply);
    if (status)
        return status;
    for (uint32_t s = 0; s < place.client->geometry.n_slots; s++)
        if (place.client->slots[s].request && (!place.has_slot || s == place.slot)) {
            engine_cancel(d->engine, place.client->slots[s].request);
            n++;
        }
    buf_u64(reply, "cancelled", n);
    return CB_OK;
}
