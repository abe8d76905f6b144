/* A whole life of a lane in process. The input is a program of steps: write UP here, run intake,
 * run a fake engine step, deliver, doze, die. Whatever is written, the daemon's record must stay
 * sound, and only the lane may end. */
#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "shm/lane.h"
#include "shm/control.h"
#include "shm/message.h"
#include "tests/fuzz/input.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct life {
    struct cb_geometry g;
    unsigned char *up, *down;
    void *memory;
    struct cb_lane *lane;
    struct {
        bool active;
        uint32_t n_have, n_want;
    } runs[8];
};

static void write_entry(struct life *l, struct input *in)
{
    struct cb_up_hot *hot = (struct cb_up_hot *)(void *)l->up;
    struct cb_request_entry e;
    uint32_t which = (uint32_t)eat(in, 1);

    cb_message_init(&e);
    e.slot = (uint32_t)eat(in, 1) % 9;
    e.gen = (uint32_t)eat(in, 1);
    e.n_prompt = (uint32_t)eat(in, 1) % 70;
    e.max_new_tokens = which & 1 ? CB_NO_LIMIT : (uint32_t)eat(in, 1);
    if (which & 2)
        e.planes = (uint32_t)eat(in, 1) & CB_PLANES_UNDERSTOOD;
    if (e.planes & CB_PLANE_TOPK)
        e.planes |= ((uint32_t)eat(in, 1) % 24) << 16;
    e.flags = which >> 2 & 3;
    if (which & 16)
        e.prompt_off = eat(in, 8);
    if (which & 32) {
        e.opt_len = (uint32_t)eat(in, 2);
        e.opt_off = eat(in, 2);
    }
    if (which & 128) { /* a family */
        e.n_children = 1 + (uint32_t)eat(in, 1) % 9;
        e.child_idx = (uint32_t)eat(in, 1);
    }
    /* One byte of it anything at all. */
    if (which & 64)
        ((unsigned char *)&e)[eat(in, 1) % sizeof e] = (unsigned char)eat(in, 1);
    cb_copy_out(l->up + l->g.up_ring_off + (hot->req_sent % l->g.req_capacity) * l->g.req_stride,
                &e, sizeof e);
    hot->req_sent++;
}

static void write_up(struct life *l, struct input *in)
{
    struct cb_up_hot *hot = (struct cb_up_hot *)(void *)l->up;
    size_t at;

    switch (eat(in, 1) % 6) {
    case 0:
        hot->req_sent += (uint64_t)(int64_t)(int8_t)eat(in, 1);
        break;
    case 1:
        hot->res_taken += eat(in, 1) % 4;
        break;
    case 2:
        hot->parked = (uint32_t)eat(in, 4);
        break;
    case 3:
        at = l->g.up_slots_off + eat(in, 1) % (2 * l->g.n_slots) * 4;
        l->up[at] = (unsigned char)eat(in, 1);
        break;
    case 4:
        at = eat(in, 2) % l->g.up_bytes;
        l->up[at] = (unsigned char)eat(in, 1);
        break;
    default:
        at = eat(in, 1) % 16;
        for (size_t n = 1 + eat(in, 1) % 32; n; n--)
            l->up[l->g.up_arena_off + at++] = (unsigned char)eat(in, 1);
    }
}

/* Fewer best than some ask for. */
static const struct cb_top top[2] = {{1, -1}, {2, -2}};
static const struct cb_lane_logprobs some = {.logprob = -1, .top = top, .n_top = 2};

/* As the daemon's intake does it. */
static int intake(struct life *l, bool is_credit_there)
{
    static _Alignas(8) unsigned char options[CB_OPTIONS_MAX];
    static struct cb_message_parsed parsed;
    const struct cb_message_limits limits = {.arena_bytes = l->g.up_arena_bytes,
                                             .n_slots = l->g.n_slots,
                                             .n_vocab = l->g.n_vocab,
                                             .n_context = l->g.n_context,
                                             .features = CB_FEATURES};
    struct cb_request_entry e;
    uint32_t ids[64], detail[2] = {0};
    int r = cb_lane_peek(l->lane, &e);

    if (r != CB_LANE_ENTRY)
        return r;
    r = (int)cb_message_check(&e, &limits, detail);
    if (!r)
        r = cb_lane_reserve(l->lane, &e, e.max_new_tokens, detail);
    if (r == CB_LANE_CANCELLED) {
        cb_lane_cancel(l->lane, &e);
        return 0;
    }
    if (r == CB_LANE_WAITS)
        return 0;
    if (!r && !is_credit_there) {
        cb_lane_wait(l->lane);
        return 0;
    }
    if (!r) {
        r = cb_lane_copy_arena(l->lane, e.prompt_off, 4ull * e.n_prompt, ids);
        assert(r == 0);
        r = (int)cb_message_check_ids(ids, e.n_prompt, limits.n_vocab, detail);
    }
    if (!r) {
        r = cb_lane_copy_arena(l->lane, e.opt_len ? e.opt_off : 0, e.opt_len, options);
        assert(r == 0);
        r = (int)cb_message_parse_options(options, e.opt_len, limits.n_vocab, &parsed, detail);
    }
    if (!r && e.resume_from)
        cb_lane_give(l->lane, &e, ids + cb_entry_prompt(&e));
    if (r) {
        cb_lane_reject(l->lane, &e, r, detail[0], detail[1]);
        return 0;
    }
    cb_lane_accept(l->lane, &e, e.seed, (struct cb_lane_forecast){0});
    for (uint32_t slot = e.slot; slot < e.slot + e.n_children; slot++) {
        assert(!l->runs[slot].active);
        l->runs[slot].active = true;
        l->runs[slot].n_have = e.resume_from;
        l->runs[slot].n_want = e.max_new_tokens;
        for (uint32_t i = 1; i < cb_entry_prompt(&e); i++)
            cb_lane_prompt_logprobs(l->lane, slot, i, &some);
    }
    return 0;
}

static void engine(struct life *l, uint8_t which)
{
    for (uint32_t slot = 0; slot < l->g.n_slots; slot++) {
        const struct cb_lane_end end = {.state = which & 0x40 ? CB_SLOT_FAILED : CB_SLOT_FINISHED};

        if (!l->runs[slot].active || !(which >> slot % 6 & 1))
            continue;
        if (l->runs[slot].n_have < l->runs[slot].n_want) {
            cb_lane_logprobs(l->lane, slot, &some);
            cb_lane_epoch(l->lane, slot, which & 0x20 ? 3 | CB_EPOCH_ANEW : 2);
            cb_lane_token(l->lane, slot, 7, 9);
            l->runs[slot].n_have++;
        }
        if (l->runs[slot].n_have == l->runs[slot].n_want || which & 0x80) {
            cb_lane_end(l->lane, slot, &end);
            l->runs[slot].active = false;
        }
    }
}

static int deliver(struct life *l)
{
    int r = cb_lane_flush(l->lane);

    if (r == CB_LANE_RING) {
        cb_lane_bell(l->lane);
        cb_lane_answered(l->lane);
        return 0;
    }
    return r;
}

static int step(struct life *l, struct input *in)
{
    uint32_t slots[8];

    switch (eat(in, 1) % 9) {
    case 0:
    case 1:
        write_entry(l, in);
        return 0;
    case 2:
        write_up(l, in);
        return 0;
    case 3:
        return intake(l, true);
    case 4:
        return intake(l, false);
    case 5:
        engine(l, (uint8_t)eat(in, 1));
        return 0;
    case 6:
        return deliver(l);
    case 7:
        for (uint32_t n = cb_lane_look_cancels(l->lane, slots); n-- > 0;)
            assert(l->runs[slots[n]].active);
        (void)cb_lane_look_pause(l->lane);
        cb_lane_retry(l->lane);
        cb_lane_doze(l->lane);
        cb_lane_doze_fence();
        return cb_lane_look_again(l->lane, true);
    default:
        cb_lane_notice(l->lane, (uint32_t)eat(in, 1));
        return 0;
    }
}

static void check(const struct life *l)
{
    const char *why;

    if (cb_lane_check(l->lane, &why))
        assert(!"the record is unsound");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {.at = data, .left = size};
    struct life l = {0};
    struct cb_lane_config config = {.lane_id = 1};
    uint8_t shape = (uint8_t)eat(&in, 1);
    int r = 0;

    if (cb_geometry_make(&l.g, 1 + shape % 8, 0, 0, 256, 64))
        abort();
    if (shape & 0x80)
        l.g.down_pool_bytes = 1024;
    if (shape & 0x40)
        config.first_cursor = UINT64_MAX - 3;
    l.up = calloc(1, l.g.up_bytes);
    l.down = calloc(1, l.g.down_bytes);
    l.memory = calloc(1, cb_lane_bytes(&l.g));
    assert(l.up && l.down && l.memory);
    l.lane = cb_lane_init(l.memory, &l.g, l.up, l.down, &config);
    ((struct cb_up_hot *)(void *)l.up)->req_sent = config.first_cursor;
    ((struct cb_up_hot *)(void *)l.up)->res_taken = config.first_cursor;
    while (in.left && r >= 0) {
        r = step(&l, &in);
        check(&l);
    }
    /* The lane ends; what runs is dropped at the next step boundary. */
    cb_lane_close(l.lane, r < 0 ? CB_CLOSED_BROKEN : CB_CLOSED_BYE);
    engine(&l, 0xbf);
    if (cb_lane_flush(l.lane) < 0)
        abort();
    check(&l);
    free(l.memory);
    free(l.down);
    free(l.up);
    return 0;
}
