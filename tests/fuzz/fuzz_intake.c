/* A client that writes anything anywhere in its UP segment, between turns of the daemon, beside an
 * honest one whose results must stay what they are alone. Steps: a byte of what, then its operands.
 *
 * Fuzz programs link none of the tests' helpers, so those are included whole. */
#include <stdlib.h>

#include "tests/util/sim.c"
#include "tests/util/sim_answers.c"
#include "tests/util/sim_client.c"
#include "tests/util/sim_operator.c"
#include "tests/util/sim_oracle.c"
#include "tests/util/sim_requests.c"

enum { ENDS_WITHIN = 400 }; /* turns, for all that was begun */

static bool has_somebody(const struct sim *s)
{
    struct engine_held held;
    engine_held(s->daemon->engine, &held);
    return held.n_requests > 0 || s->daemon->clients->n_connections > 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct input {
    const uint8_t *data;
    size_t n;
};

static uint64_t take(struct input *in, size_t bytes)
{
    uint64_t value = 0;
    for (size_t i = 0; i < bytes && in->n > 0; i++, in->n--)
        value |= (uint64_t)*in->data++ << 8 * i;
    return value;
}

/* A live lane of the fuzzer's, or false. */
static bool enter(struct sim *s, struct sim_client *c)
{
    struct cb_hello hello = {
        .head = {.magic = CB_RECORD_MAGIC, .type = CB_RECORD_HELLO},
        .format_min = 1,
        .format_max = 1,
        .word_size = CB_WORD_SIZE,
        .endian = CB_ENDIAN,
        .n_slots = 4,
        .arena_bytes = SIM_REGIONS * SIM_REGION_BYTES,
        .wake = CB_WAKE_SOCKET,
        .features = CB_FEATURES,
    };
    sim_connect(s, c->uid, &c->sock, &c->death);
    c->state = SIM_GREETED;
    (void)send(c->sock, &hello, sizeof hello, MSG_DONTWAIT | MSG_NOSIGNAL);
    for (int i = 0; i < 20 && c->state == SIM_GREETED; i++) {
        daemon_turn(s->daemon);
        if (sock_is_readable(c))
            welcomed(c);
    }
    for (int i = 0; i < 4; i++)
        daemon_turn(s->daemon);
    return c->state == SIM_LIVE;
}

/* A whole block of wishes at the arena's head, values from the input. */
static void write_options(struct sim_client *c, struct input *in, unsigned char *arena)
{
    uint32_t ids[2][3], n_vocab = c->welcome.geometry.n_vocab;
    struct cb_logit_bias biases[3];
    struct cb_sampling s;
    struct cb_resume resume = {.fingerprint = {c->welcome.fingerprint[0]}};
    struct cb_message_options options = {
        .sampling = &s, .biases = biases, .allowed_ids = ids[0], .banned_ids = ids[1]};
    options.resume = take(in, 1) & 1 ? &resume : NULL;
    resume.fingerprint[1] = c->welcome.fingerprint[1] ^ take(in, 1) / 250;
    resume.child_idx = (uint32_t)take(in, 1);
    options.n_biases = (uint32_t)take(in, 1) % 4;
    options.n_allowed_ids = (uint32_t)take(in, 1) % 4;
    options.n_banned_ids = (uint32_t)take(in, 1) % 4;
    cb_sampling_init(&s);
    s.min_p = (float)take(in, 1) / 200;
    s.typical_p = (float)take(in, 1) / 200;
    s.repetition_penalty = (float)take(in, 1) / 50;
    s.frequency_penalty = (float)(int8_t)take(in, 1);
    s.no_repeat_ngram = (uint32_t)take(in, 1);
    s.min_new_tokens = (uint32_t)take(in, 1);
    s.first_id = take(in, 1) & 1 ? (uint32_t)take(in, 2) : CB_NO_ID;
    for (int i = 0; i < 3; i++) {
        biases[i].id = (uint32_t)take(in, 2) % n_vocab;
        biases[i].bias = (float)take(in, 1);
        ids[0][i] = (uint32_t)take(in, 2) % (n_vocab + 1);
        ids[1][i] = (uint32_t)take(in, 2) % (n_vocab + 1);
    }
    cb_message_options_build(&options, arena);
}

static void write_up(struct sim_client *c, struct input *in)
{
    struct cb_up_hot *hot = c->up.base;
    unsigned char *bytes = c->up.base;
    switch (take(in, 1) % 9) {
    case 0:
        cb_store64(&hot->req_sent, cb_load64(&hot->req_sent, CB_RELAXED) + 1, CB_RELEASE);
        break;
    case 1:
        cb_store64(&hot->req_sent, take(in, 8), CB_RELEASE);
        break;
    case 2:
        cb_store64(&hot->res_taken, cb_load64(&hot->res_taken, CB_RELAXED) + take(in, 1),
                   CB_RELEASE);
        break;
    case 3:
        cb_store32(&hot->parked, (uint32_t)take(in, 4), CB_RELAXED);
        break;
    case 4: { /* slot words: cancels and frees that may hit */
        uint64_t at = take(in, 1) % 8;
        cb_store32((cb_atomic32 *)(void *)(bytes + c->welcome.geometry.up_slots_off) + at,
                   (uint32_t)take(in, 1), CB_RELEASE);
        break;
    }
    case 5: { /* an entry, in place */
        uint64_t first = cb_load64(&hot->req_sent, CB_RELAXED) % c->welcome.geometry.req_capacity;
        uint64_t off = c->welcome.geometry.up_ring_off + first * c->welcome.geometry.req_stride;
        struct cb_request_entry e;
        cb_message_init(&e);
        e.resume_from = take(in, 1) & 1 ? (uint32_t)take(in, 1) % 8 : 0;
        uint32_t where = (uint32_t)take(in, 1);
        e.slot = where % 8;
        e.n_children = where & 0x80 ? 1 + (where >> 3 & 7) : 1;
        e.gen = (uint32_t)take(in, 1);
        e.n_prompt = (uint32_t)take(in, 1) % 64;
        e.max_new_tokens = (uint32_t)take(in, 1);
        e.opt_len = (uint32_t)take(in, 1) % 32 * 8;
        e.planes = (uint32_t)take(in, 1) & CB_PLANES_UNDERSTOOD;
        if (e.planes & CB_PLANE_TOPK)
            e.planes |= ((uint32_t)take(in, 1) % 24) << 16;
        uint64_t at = take(in, 1) % sizeof e;
        ((unsigned char *)&e)[at] ^= (unsigned char)take(in, 1);
        memcpy(bytes + off, &e, sizeof e);
        cb_store64(&hot->req_sent, cb_load64(&hot->req_sent, CB_RELAXED) + 1, CB_RELEASE);
        break;
    }
    case 6: { /* the arena's head: prompts and options */
        uint64_t off = c->welcome.geometry.up_arena_off + take(in, 1);
        for (uint64_t i = take(in, 1) % 64; i > 0; i--)
            bytes[off + i] = (unsigned char)take(in, 1);
        break;
    }
    case 7: /* options that make sense, or nearly */
        write_options(c, in, bytes + c->welcome.geometry.up_arena_off);
        break;
    default:
        bytes[take(in, 4) % c->up.bytes] = (unsigned char)take(in, 1);
        break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct sim *s;
    static struct sim_report report;
    static struct sim_client honest, wild;
    static uint64_t round;
    struct input in = {.data = data, .n = size};
    if (!s) {
        s = sim_new(1, false, &report);
        if (!s)
            abort();
    }
    sim_client_init(&honest, s, 0, 0);
    sim_client_init(&wild, s, 1,
                    ++round % 8); /* draws little: a lane that is killed in its handshake */
    honest.is_hasty = false;      /* it is checked by what it is told */
    honest.uid = 1000;
    wild.uid = 1001;
    if (!enter(s, &honest) || !enter(s, &wild)) {
        sim_client_fini(&honest);
        sim_client_fini(&wild);
    } else {
        honest.n_left = 4;
        while (in.n > 0 && !cb_lane_client_closed(wild.lc)) {
            write_up(&wild, &in);
            if (honest.n_left)
                sim_client_submit(&honest);
            (void)cb_doorbell_send(wild.sock, CB_RECORD_BELL);
            daemon_turn(s->daemon);
            while (sim_client_poll(&honest))
                ;
        }
        for (int i = 0; i < ENDS_WITHIN && honest.n_running; i++) {
            daemon_turn(s->daemon);
            while (sim_client_poll(&honest))
                ;
        }
        if (honest.n_running || cb_lane_client_closed(honest.lc))
            sim_fail(s, "the honest client still waits");
    }
    sim_client_fini(&honest);
    sim_client_fini(&wild);
    /* The simulated loop keeps each death for later one time in three, again and again. */
    for (int i = 0; i < 8 || (i < ENDS_WITHIN && has_somebody(s)); i++)
        daemon_turn(s->daemon);
    s->time.now_ns += 60000000000ull;
    sim_audit(s);
    check_empty(s);
    if (report.error[0]) {
        fprintf(stderr, "%s\n", report.error);
        abort();
    }
    return 0;
}
